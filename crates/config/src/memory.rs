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

    /// The size that the operator's setting means on this machine. An explicit size may use the
    /// system's part, but not exceed the available memory.
    ///
    /// # Errors
    /// As [`MemInfo::auto_bytes`], or an explicit size exceeds the available memory.
    pub fn resolve(self, setting: MemorySetting) -> Result<u64, MemoryError> {
        match setting {
            MemorySetting::Auto => self.auto_bytes(),
            MemorySetting::Bytes(bytes) if bytes > self.available_bytes => {
                Err(MemoryError::NotAvailable {
                    wanted_bytes: bytes,
                    available_bytes: self.available_bytes,
                })
            }
            MemorySetting::Bytes(bytes) => Ok(bytes),
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
            small.resolve(MemorySetting::Auto).unwrap_err().explained(),
            "the machine has 511 MB of memory, less than the 512 MB that memory=auto requires: use \
             a larger machine, or set memory to 32MiB"
        );
        assert_eq!(small.resolve(MemorySetting::Bytes(32 * MIB)), Ok(32 * MIB));
        let error = small.resolve(MemorySetting::Bytes(512 * MIB)).unwrap_err().explained();
        assert_eq!(
            error,
            "memory 512MiB exceeds the 457MiB available: ask for less, or set memory \
             to auto"
        );
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
