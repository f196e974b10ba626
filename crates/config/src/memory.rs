//! How much memory the cache can be given on this machine.
//!
//! The rule is a pure function of [`MemInfo`]; what the system says is read in
//! [`MemInfo::read`], at the edge. Memory in a container is what its control group allows, as
//! far as that is less than what the machine has.

use crate::MemorySetting;
use forebay_types::{Action, Fault, Remedy, Size, limits};
use std::fmt;

/// Kept for the system, whatever the cache could use: 500 MB, enough for a Linux host and its
/// services to stay alive beside us.
pub const SYSTEM_BYTES_MIN: u64 = 500_000_000;
/// The smallest machine that is used without being told how: 512 MB.
pub const MACHINE_BYTES_MIN: u64 = 512_000_000;
/// The least that `auto` takes where the machine has it.
pub const AUTO_BYTES_MIN: u64 = 64 << 20;
/// The part of the available memory that `auto` starts with.
const AUTO_SHARE: u64 = 8;
/// Sizes are rounded down to whole mebibytes, so that they are short in logs and tables.
const STEP_BYTES: u64 = 1 << 20;

/// The memory of the machine, or of the control group we are in where that is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemInfo {
    /// All there is, in bytes.
    pub total_bytes: u64,
    /// What can be had without swapping, in bytes.
    pub available_bytes: u64,
}

impl MemInfo {
    /// The same machine seen through a limit of `limit_bytes`, of which `used_bytes` are in use.
    #[must_use]
    pub fn limited(self, limit_bytes: u64, used_bytes: u64) -> Self {
        Self {
            total_bytes: self.total_bytes.min(limit_bytes),
            available_bytes: self.available_bytes.min(limit_bytes.saturating_sub(used_bytes)),
        }
    }

    /// The most the cache can have now: what is available, less what is kept for the system.
    pub const fn spare_bytes(self) -> u64 {
        self.available_bytes.saturating_sub(SYSTEM_BYTES_MIN)
    }

    /// What `auto` takes: an eighth of the available memory, at least [`AUTO_BYTES_MIN`], and
    /// never what is kept for the system.
    ///
    /// # Errors
    /// The machine is too small, or too much of it is in use.
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

    /// What the operator's setting comes to. A size written by hand is taken at its word, even
    /// from what would be kept for the system; but not if the memory isn't there.
    ///
    /// # Errors
    /// As [`MemInfo::auto_bytes`], or a size larger than what is available.
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

/// The cache can't be given the memory it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// The machine has less than [`MACHINE_BYTES_MIN`].
    MachineTooSmall {
        /// What it has.
        total_bytes: u64,
    },
    /// Without what is kept for the system, less than [`limits::MEMORY_BYTES_MIN`] remains.
    TooMuchInUse {
        /// What is available.
        available_bytes: u64,
    },
    /// More was asked for than is available.
    NotAvailable {
        /// What was asked for.
        wanted_bytes: u64,
        /// What is available.
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
                "the machine has {} MB of memory, and a cache needs one of {needed} MB",
                mb(total_bytes)
            ),
            Self::TooMuchInUse { available_bytes } => write!(
                f,
                "{} MB of memory are available, of which {kept} MB are kept for the system",
                mb(available_bytes)
            ),
            Self::NotAvailable { wanted_bytes, available_bytes } => write!(
                f,
                "memory {} is asked for and {} is available",
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
    fn auto_is_an_eighth_of_what_is_available() {
        assert_eq!(machine(32 << 30, 16 << 30).auto_bytes(), Ok(2 << 30));
        assert_eq!(machine(1 << 30, 800 * MIB).auto_bytes(), Ok(100 * MIB));
    }

    #[test]
    fn auto_is_at_least_64_mib_as_long_as_the_system_keeps_its_part() {
        let kept = SYSTEM_BYTES_MIN;
        assert_eq!(machine(600 * MB, kept + 70 * MIB).auto_bytes(), Ok(68 * MIB), "an eighth");
        assert_eq!(machine(600 * MB, kept + 50 * MIB).auto_bytes(), Ok(50 * MIB));
        assert_eq!(machine(600 * MB, kept + 32 * MIB).auto_bytes(), Ok(32 * MIB));
        let error = machine(600 * MB, kept + 32 * MIB - 1).auto_bytes().unwrap_err();
        assert_eq!(
            error.explained(),
            "533 MB of memory are available, of which 500 MB are kept for the system: free some, \
             or set memory to 32MiB"
        );
    }

    #[test]
    fn a_machine_below_512_mb_is_refused_unless_told_how_much_to_take() {
        let small = machine(511 * MB, 480 * MB);
        assert_eq!(
            small.resolve(MemorySetting::Auto).unwrap_err().explained(),
            "the machine has 511 MB of memory, and a cache needs one of 512 MB: use a larger \
             machine, or set memory to 32MiB"
        );
        assert_eq!(small.resolve(MemorySetting::Bytes(32 * MIB)), Ok(32 * MIB));
        let error = small.resolve(MemorySetting::Bytes(512 * MIB)).unwrap_err().explained();
        assert_eq!(
            error,
            "memory 512MiB is asked for and 457MiB is available: ask for less, or set memory \
             to auto"
        );
    }

    #[test]
    fn a_limit_narrows_total_and_available() {
        let machine = machine(32 << 30, 16 << 30);
        let narrowed = machine.limited(4 << 30, 1 << 30);
        assert_eq!(narrowed, MemInfo { total_bytes: 4 << 30, available_bytes: 3 << 30 });
        assert_eq!(machine.limited(u64::MAX, 5), machine);
        assert_eq!(machine.limited(1, 2).available_bytes, 0);
    }

    proptest! {
        #[test]
        fn auto_never_takes_what_is_the_systems(total: u64, available: u64) {
            if let Ok(bytes) = machine(total, available).auto_bytes() {
                prop_assert!(bytes >= limits::MEMORY_BYTES_MIN);
                prop_assert!(available - bytes >= SYSTEM_BYTES_MIN);
                prop_assert!(bytes <= (available / 8).max(AUTO_BYTES_MIN));
            }
        }
    }
}
