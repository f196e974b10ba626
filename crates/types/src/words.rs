//! The values of a volume's settings that are words.

use std::fmt;

/// Defines an enumeration whose values are words.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$value_meta:meta])* $value:ident = $word:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
        pub enum $name {
            $($(#[$value_meta])* $value,)+
        }

        impl $name {
            /// All values, in the order of help texts.
            pub const ALL: [Self; [$($word,)+].len()] = [$(Self::$value,)+];

            /// The word on the command line, in the configuration and in the API.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// The cache mode of a volume. It can change while the volume is served.
    pub enum Mode {
        /// Writes are acknowledged from memory and reach the disk later.
        WriteBack = "write-back",
        /// Writes are acknowledged when they are on the disk; memory keeps a copy.
        #[default]
        WriteThrough = "write-through",
        /// Writes are acknowledged when they are on the disk; nothing new is cached.
        Bypass = "bypass",
    }
}

words! {
    /// When a write to a volume with a journal is acknowledged.
    pub enum Durability {
        /// When its record is on the journal's stable storage.
        #[default]
        Ack = "ack",
        /// At once; a FLUSH waits until the records are durable. This is the guarantee of a disk
        /// with a volatile write cache.
        Flush = "flush",
    }
}

words! {
    /// Where a write to a volume protected by a UPS must be before it is acknowledged, while the
    /// UPS is not safe or the write exceeds the budget of dirty data.
    pub enum UnsafeUps {
        /// On the disk's stable storage: a power failure loses no acknowledged write.
        #[default]
        Stable = "stable",
        /// On the disk or in its volatile cache: a power failure loses writes since the last flush.
        DiskCache = "disk-cache",
    }
}

words! {
    /// What preserves acknowledged writes that are not on the disk.
    pub enum Protection {
        /// Not set. Sufficient for every mode but write-back. Its word is not a valid setting.
        #[default]
        Unstated = "unstated",
        /// Explicitly none.
        None = "none",
        /// The volume's journal.
        Journal = "journal",
        /// A UPS, and a vault that takes dirty data when the battery runs low.
        Ups = "ups",
        /// A journal, and the UPS once the journal has failed.
        JournalUps = "journal+ups",
    }
}

impl Protection {
    /// Whether it includes a journal.
    pub const fn has_journal(self) -> bool {
        matches!(self, Self::Journal | Self::JournalUps)
    }

    /// Whether it includes a UPS.
    pub const fn has_ups(self) -> bool {
        matches!(self, Self::Ups | Self::JournalUps)
    }
}

words! {
    /// Whether clients may use a volume over an unencrypted connection.
    pub enum TlsUse {
        /// They may, unless the TLS mode is forced.
        #[default]
        Optional = "optional",
        /// They may not; the volume is hidden from them.
        Required = "required",
    }
}

words! {
    /// Whether a disk may have the content of a disk image in another format.
    pub enum DiskFormat {
        /// It may not.
        #[default]
        Auto = "auto",
        /// It may have any content.
        Raw = "raw",
    }
}

/// The latency of reads that writeback preserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ReadLatency {
    /// The disk's latency without writeback.
    #[default]
    Idle,
    /// None.
    Off,
    /// A p99, in microseconds.
    Micros(u64),
}

/// A value that is detected, or set by the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Auto<T> {
    /// Detected.
    #[default]
    Auto,
    /// Set by the operator.
    Set(T),
}

impl<T: Copy> Auto<T> {
    /// The value set by the operator.
    pub fn set(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Set(value) => Some(value),
        }
    }
}
