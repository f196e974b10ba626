//! How a volume is cached.

use std::{fmt, str::FromStr};

/// What the cache does with a volume's requests, chosen by the administrator per volume and
/// changeable while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Writes are acknowledged from memory and reach the disk later.
    WriteBack,
    /// Writes are acknowledged when they are on the disk; memory keeps a copy.
    #[default]
    WriteThrough,
    /// Nothing new is kept in memory.
    Bypass,
}

impl Mode {
    /// All modes, in the order they are listed to people.
    pub const ALL: [Self; 3] = [Self::WriteBack, Self::WriteThrough, Self::Bypass];

    /// The word for it in the command line, the configuration and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WriteBack => "write-back",
            Self::WriteThrough => "write-through",
            Self::Bypass => "bypass",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// When a write that a journal keeps is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// When its record is on the journal's stable storage.
    #[default]
    Ack,
    /// At once; a FLUSH waits for the records, as it does for a disk with a volatile cache.
    Flush,
}

impl Durability {
    /// Both, in the order they are listed to people.
    pub const ALL: [Self; 2] = [Self::Ack, Self::Flush];

    /// The word for it in the command line, the configuration and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Flush => "flush",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a write of a volume under a UPS is acknowledged from while the UPS would not bridge a power
/// failure, or while there is no room left in what the UPS allows to be dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum UnsafeSupply {
    /// The disk's stable storage: an acknowledged write outlives a power failure as before.
    #[default]
    Stable,
    /// The disk, whose volatile cache may hold it: a power failure loses what was not flushed.
    DiskCache,
}

impl UnsafeSupply {
    /// Both, in the order they are listed to people.
    pub const ALL: [Self; 2] = [Self::Stable, Self::DiskCache];

    /// The word for it in the command line, the configuration and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::DiskCache => "disk-cache",
        }
    }
}

impl fmt::Display for UnsafeSupply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The word names no mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseModeError(String);

impl fmt::Display for ParseModeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no mode '{}'", self.0)
    }
}

impl std::error::Error for ParseModeError {}

impl FromStr for Mode {
    type Err = ParseModeError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|m| m.as_str() == s).ok_or_else(|| ParseModeError(s.into()))
    }
}

/// The word names no durability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseDurabilityError(String);

impl fmt::Display for ParseDurabilityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no durability '{}'", self.0)
    }
}

impl std::error::Error for ParseDurabilityError {}

impl FromStr for Durability {
    type Err = ParseDurabilityError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|durability| durability.as_str() == s);
        found.ok_or_else(|| ParseDurabilityError(s.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durabilities_are_read_as_they_are_written() {
        for durability in Durability::ALL {
            assert_eq!(durability.to_string().parse(), Ok(durability));
        }
        let error = "fsync".parse::<Durability>().unwrap_err();
        assert_eq!(error.to_string(), "no durability 'fsync'");
    }

    #[test]
    fn modes_are_read_as_they_are_written() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let error = "writeback".parse::<Mode>().unwrap_err();
        assert_eq!(error.to_string(), "no mode 'writeback'");
    }
}
