//! Settings of a volume that decide when a write is acknowledged.

use std::{fmt, str::FromStr};

/// The cache mode of a volume. It can change while the volume is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Writes are acknowledged from memory and reach the disk later.
    WriteBack,
    /// Writes are acknowledged when they are on the disk; memory keeps a copy.
    #[default]
    WriteThrough,
    /// Writes are acknowledged when they are on the disk; nothing new is cached.
    Bypass,
}

impl Mode {
    /// All modes, in the order of help texts.
    pub const ALL: [Self; 3] = [Self::WriteBack, Self::WriteThrough, Self::Bypass];

    /// Its name on the command line, in the configuration and in the API.
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

/// When a write to a volume with a journal is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// When its record is on the journal's stable storage.
    #[default]
    Ack,
    /// At once; a FLUSH waits until the records are durable. This is the guarantee of a disk with a
    /// volatile write cache.
    Flush,
}

impl Durability {
    /// Both values, in the order of help texts.
    pub const ALL: [Self; 2] = [Self::Ack, Self::Flush];

    /// Its name on the command line, in the configuration and in the API.
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

/// Where a write to a volume protected by a UPS must be before it is acknowledged, while the UPS is
/// not safe or the write exceeds the budget of dirty data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum UnsafeUps {
    /// On the disk's stable storage: a power failure loses no acknowledged write.
    #[default]
    Stable,
    /// On the disk or in its volatile cache: a power failure loses writes since the last flush.
    DiskCache,
}

impl UnsafeUps {
    /// Both values, in the order of help texts.
    pub const ALL: [Self; 2] = [Self::Stable, Self::DiskCache];

    /// Its name on the command line, in the configuration and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::DiskCache => "disk-cache",
        }
    }
}

impl fmt::Display for UnsafeUps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not the name of a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseModeError(String);

impl fmt::Display for ParseModeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown mode '{}'", self.0)
    }
}

impl std::error::Error for ParseModeError {}

impl FromStr for Mode {
    type Err = ParseModeError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|m| m.as_str() == s).ok_or_else(|| ParseModeError(s.into()))
    }
}

/// The text is not the name of a durability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseDurabilityError(String);

impl fmt::Display for ParseDurabilityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown durability '{}'", self.0)
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
    fn displayed_durabilities_parse_back() {
        for durability in Durability::ALL {
            assert_eq!(durability.to_string().parse(), Ok(durability));
        }
        let error = "fsync".parse::<Durability>().unwrap_err();
        assert_eq!(error.to_string(), "unknown durability 'fsync'");
    }

    #[test]
    fn displayed_modes_parse_back() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let error = "writeback".parse::<Mode>().unwrap_err();
        assert_eq!(error.to_string(), "unknown mode 'writeback'");
    }
}
