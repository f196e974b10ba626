//! The memory for the cache, chosen from the memory of the machine.
//!
//! The rule is a pure function of [`MemInfo`]; only [`MemInfo::read`] accesses the system. In a
//! container, the limits of its control groups apply if they are lower than the machine's memory.

use crate::MemorySetting;
use forebay_types::{Action, Fault, Remedy, Size, limits};
use std::fmt;

/// Memory that `auto` leaves to the system: 500 MB, enough for a Linux host and its services.
pub const SYSTEM_BYTES_MIN: u64 = 500_000_000;
/// The smallest machine that `auto` accepts: 512 MB.
pub const MACHINE_BYTES_MIN: u64 = 512_000_000;
/// The minimum of `auto`, if that much can be spared.
pub const AUTO_BYTES_MIN: u64 = 64 << 20;
/// `auto` takes the available memory divided by this.
const AUTO_SHARE: u64 = 8;
/// Sizes are rounded down to whole mebibytes, for short numbers in logs and tables.
const STEP_BYTES: u64 = 1 << 20;

/// The memory of a pool that a keeper holds. The server that starts continues with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptMemory {
    /// The memory that the pool occupies, in bytes.
    pub used_bytes: u64,
    /// The memory for the cache that the pool was created for, in bytes; `None` if that is unknown.
    pub limit_bytes: Option<u64>,
}

/// The memory of the machine, or the lower limit of the process's control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemInfo {
    /// Total memory, in bytes.
    pub total_bytes: u64,
    /// Memory available without swapping, in bytes.
    pub available_bytes: u64,
}

impl MemInfo {
    /// Applies a limit of `limit_bytes`, of which `used_bytes` are in use.
    #[must_use]
    pub fn limited(self, limit_bytes: u64, used_bytes: u64) -> Self {
        Self {
            total_bytes: self.total_bytes.min(limit_bytes),
            available_bytes: self.available_bytes.min(limit_bytes.saturating_sub(used_bytes)),
        }
    }

    /// The available memory, minus the system's part.
    pub const fn spare_bytes(self) -> u64 {
        self.available_bytes.saturating_sub(SYSTEM_BYTES_MIN)
    }

    /// The size that `auto` chooses: an eighth of the available memory, at least
    /// [`AUTO_BYTES_MIN`], without touching the system's part.
    ///
    /// # Errors
    /// The machine has too little memory, or too much of it is in use.
    pub fn auto_bytes(self) -> Result<u64, MemoryError> {
        if self.total_bytes < MACHINE_BYTES_MIN {
            return Err(MemoryError::MachineTooSmall { total_bytes: self.total_bytes });
        }
        let wanted = (self.available_bytes / AUTO_SHARE).max(AUTO_BYTES_MIN);
        let bytes = wanted.min(self.spare_bytes()) / STEP_BYTES * STEP_BYTES;
        if bytes < limits::MEMORY_BYTES_MIN {
            return Err(MemoryError::TooMuchInUse { available_bytes: self.available_bytes });
        }
        Ok(bytes)
    }

    /// Counts the memory of a kept pool as available.
    fn beside(self, kept: KeptMemory) -> Self {
        // The pool may be charged to another control group, whose limit is not this one's.
        let available_bytes = self.available_bytes.saturating_add(kept.used_bytes);
        Self { available_bytes: available_bytes.min(self.total_bytes), ..self }
    }

    /// The size that the operator's setting means on this machine. An explicit size may use the
    /// system's part, but not exceed the available memory. With `auto`, a kept pool keeps its size
    /// if that leaves the system its part, because a pool of another size would begin empty.
    ///
    /// # Errors
    /// As [`MemInfo::auto_bytes`], or an explicit size exceeds the available memory.
    pub fn resolve(self, setting: MemorySetting, kept: KeptMemory) -> Result<u64, MemoryError> {
        let machine = self.beside(kept);
        match (setting, kept.limit_bytes) {
            (MemorySetting::Auto, Some(bytes)) if bytes <= machine.spare_bytes() => Ok(bytes),
            (MemorySetting::Auto, _) => machine.auto_bytes(),
            (MemorySetting::Bytes(bytes), _) if bytes > machine.available_bytes => {
                Err(MemoryError::NotAvailable {
                    wanted_bytes: bytes,
                    available_bytes: machine.available_bytes,
                })
            }
            (MemorySetting::Bytes(bytes), _) => Ok(bytes),
        }
    }
}

/// The machine has too little memory for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// The machine has less than [`MACHINE_BYTES_MIN`].
    MachineTooSmall {
        /// The machine's memory.
        total_bytes: u64,
    },
    /// Without the system's part, less than [`limits::MEMORY_BYTES_MIN`] remains.
    TooMuchInUse {
        /// The available memory.
        available_bytes: u64,
    },
    /// The explicit size exceeds the available memory.
    NotAvailable {
        /// The explicit size.
        wanted_bytes: u64,
        /// The available memory.
        available_bytes: u64,
    },
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes / 1_000_000;
        let (kept, needed) = (mb(SYSTEM_BYTES_MIN), mb(MACHINE_BYTES_MIN));
        match *self {
            Self::MachineTooSmall { total_bytes } => write!(
                f,
                "the machine has {} MB of memory, less than the {needed} MB that memory=auto \
                 requires",
                mb(total_bytes)
            ),
            Self::TooMuchInUse { available_bytes } => write!(
                f,
                "{} MB of memory are available, and {kept} MB are reserved for the system",
                mb(available_bytes)
            ),
            Self::NotAvailable { wanted_bytes, available_bytes } => write!(
                f,
                "memory {} exceeds the {} available",
                Size(wanted_bytes),
                Size(available_bytes / STEP_BYTES * STEP_BYTES)
            ),
        }
    }
}

impl std::error::Error for MemoryError {}

impl Fault for MemoryError {
    fn remedy(&self) -> Remedy {
        let least = Action::set("memory", Size(limits::MEMORY_BYTES_MIN).to_string());
        match self {
            Self::MachineTooSmall { .. } => Remedy::from("use a larger machine").or(least),
            Self::TooMuchInUse { .. } => Remedy::from("free some").or(least),
            Self::NotAvailable { .. } => {
                Remedy::from("ask for less").or(Action::set("memory", "auto"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MB: u64 = 1_000_000;
    const MIB: u64 = 1 << 20;

    fn machine(total_bytes: u64, available_bytes: u64) -> MemInfo {
        MemInfo { total_bytes, available_bytes }
    }

    /// Resolves a setting without a kept pool.
    fn resolve(machine: MemInfo, setting: MemorySetting) -> Result<u64, MemoryError> {
        machine.resolve(setting, KeptMemory::default())
    }

    #[test]
    fn auto_is_an_eighth_of_the_available_memory() {
        assert_eq!(machine(32 << 30, 16 << 30).auto_bytes(), Ok(2 << 30));
        assert_eq!(machine(1 << 30, 800 * MIB).auto_bytes(), Ok(100 * MIB));
    }

    #[test]
    fn auto_is_at_least_64_mib_if_the_system_keeps_its_part() {
        let kept = SYSTEM_BYTES_MIN;
        assert_eq!(machine(600 * MB, kept + 70 * MIB).auto_bytes(), Ok(68 * MIB), "an eighth");
        assert_eq!(machine(600 * MB, kept + 50 * MIB).auto_bytes(), Ok(50 * MIB));
        assert_eq!(machine(600 * MB, kept + 32 * MIB).auto_bytes(), Ok(32 * MIB));
        let error = machine(600 * MB, kept + 32 * MIB - 1).auto_bytes().unwrap_err();
        assert_eq!(
            error.explained(),
            "533 MB of memory are available, and 500 MB are reserved for the system: free some, \
             or set memory to 32MiB"
        );
    }

    #[test]
    fn a_machine_below_512_mb_is_refused_without_an_explicit_size() {
        let small = machine(511 * MB, 480 * MB);
        assert_eq!(
            resolve(small, MemorySetting::Auto).unwrap_err().explained(),
            "the machine has 511 MB of memory, less than the 512 MB that memory=auto requires: use \
             a larger machine, or set memory to 32MiB"
        );
        assert_eq!(resolve(small, MemorySetting::Bytes(32 * MIB)), Ok(32 * MIB));
        let error = resolve(small, MemorySetting::Bytes(512 * MIB)).unwrap_err().explained();
        assert_eq!(
            error,
            "memory 512MiB exceeds the 457MiB available: ask for less, or set memory \
             to auto"
        );
    }

    #[test]
    fn the_memory_of_a_kept_pool_counts_as_available() {
        let full = machine(32 << 30, 10 << 30);
        let kept = KeptMemory { used_bytes: 19 << 30, limit_bytes: Some(20 << 30) };
        let twenty = MemorySetting::Bytes(20 << 30);
        assert_eq!(full.resolve(twenty, kept), Ok(20 << 30));
        assert!(resolve(full, twenty).is_err(), "it does not without the pool");
        let error = full.resolve(MemorySetting::Bytes(30 << 30), kept).unwrap_err();
        assert_eq!(
            error,
            MemoryError::NotAvailable { wanted_bytes: 30 << 30, available_bytes: 29 << 30 }
        );
        // The pool is charged to another group than the one that limits this process.
        let limited = full.limited(8 << 30, 1 << 30);
        assert!(limited.resolve(MemorySetting::Bytes(9 << 30), kept).is_err());
    }

    #[test]
    fn auto_keeps_the_size_of_a_kept_pool_that_leaves_the_system_its_part() {
        let kept = |mib: u64| KeptMemory { used_bytes: mib * MIB, limit_bytes: Some(mib * MIB) };
        let auto = |available_bytes, kept| {
            machine(32 << 30, available_bytes).resolve(MemorySetting::Auto, kept)
        };
        for available_bytes in [1 << 30, 8 << 30, 28 << 30] {
            assert_eq!(auto(available_bytes, kept(2048)), Ok(2 << 30), "{available_bytes}");
        }
        // Other programs have taken the memory, beside which the pool is too large.
        let in_use = KeptMemory { used_bytes: 100 * MIB, ..kept(4096) };
        assert_eq!(auto(2 << 30, in_use), machine(32 << 30, (2 << 30) + 100 * MIB).auto_bytes());
        let unknown = KeptMemory { limit_bytes: None, ..kept(2048) };
        assert_eq!(auto(14 << 30, unknown), Ok(2 << 30), "an eighth");
    }

    #[test]
    fn a_limit_lowers_total_and_available() {
        let machine = machine(32 << 30, 16 << 30);
        let narrowed = machine.limited(4 << 30, 1 << 30);
        assert_eq!(narrowed, MemInfo { total_bytes: 4 << 30, available_bytes: 3 << 30 });
        assert_eq!(machine.limited(u64::MAX, 5), machine);
        assert_eq!(machine.limited(1, 2).available_bytes, 0);
    }

    proptest! {
        #[test]
        fn auto_never_takes_the_systems_part(total: u64, available: u64) {
            if let Ok(bytes) = machine(total, available).auto_bytes() {
                prop_assert!(bytes >= limits::MEMORY_BYTES_MIN);
                prop_assert!(available - bytes >= SYSTEM_BYTES_MIN);
                prop_assert!(bytes <= (available / 8).max(AUTO_BYTES_MIN));
            }
        }
    }
}
