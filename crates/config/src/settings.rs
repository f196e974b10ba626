//! The settings of the whole program.

use crate::{
    ConfigError, Mistake,
    words::{self, words},
};
use forebay_types::{Size, limits};
use std::{fmt, str::FromStr};

/// Limit of data-path threads.
pub const WORKERS_MAX: usize = 64;

/// The memory of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemorySetting {
    /// A part of the available memory, see [`crate::MemInfo::auto_bytes`].
    Auto,
    /// This many bytes, at least [`limits::MEMORY_BYTES_MIN`].
    Bytes(u64),
}

impl FromStr for MemorySetting {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let least = Size(limits::MEMORY_BYTES_MIN);
        let message = || format!("invalid memory size '{text}'");
        let remedy = || "write auto, or a size like 512MiB or 1.5GiB".to_owned();
        let size = words::size(text, message, remedy)?;
        if size < least {
            return Err(ConfigError::new(
                Mistake::Limit,
                format!("memory {size} is too little for a cache"),
                format!("give at least {least}, or auto"),
            ));
        }
        Ok(Self::Bytes(size.bytes()))
    }
}

impl fmt::Display for MemorySetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Bytes(bytes) => Size(*bytes).fmt(f),
        }
    }
}

/// The number of worker threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workers {
    /// One per processor, up to a limit.
    Auto,
    /// This many, from 1 to [`WORKERS_MAX`].
    Count(usize),
}

impl FromStr for Workers {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            _ if text == "auto" => Ok(Self::Auto),
            Ok(count) if (1..=WORKERS_MAX).contains(&count) => Ok(Self::Count(count)),
            _ => Err(ConfigError::new(
                Mistake::Value,
                format!("invalid number of workers '{text}'"),
                format!("write auto, or a number from 1 to {WORKERS_MAX}"),
            )),
        }
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(count) => count.fmt(f),
        }
    }
}

words! {
    /// The kernel interface for files and sockets.
    pub enum IoEngine("I/O engine") {
        /// `io_uring` if the kernel allows it, otherwise `epoll`.
        Auto = "auto",
        /// `io_uring`; an error if the kernel does not allow it.
        IoUring = "io_uring",
        /// `epoll` for sockets, threads for files: works everywhere.
        Epoll = "epoll",
    }
}

words! {
    /// The keeper of the pool's memory, which outlives the server.
    pub enum KeeperMode("keeper mode") {
        /// The service manager if it keeps descriptors, otherwise a separate process.
        Auto = "auto",
        /// A separate process.
        Yes = "yes",
        /// None: the pool ends with the server.
        No = "no",
    }
}

words! {
    /// Detection and correction of memory errors.
    pub enum Ecc("ecc mode") {
        /// Checksums for all data, and parity for dirty data.
        Parity = "parity",
        /// Checksums only: damage to dirty data is detected, but not corrected.
        Checksum = "checksum",
        /// None.
        Off = "off",
    }
}

words! {
    /// Whether workers look for requests before they sleep.
    pub enum PollingMode("polling mode") {
        /// While processors are free, and clients get more done by it.
        Auto = "auto",
        /// Never.
        Off = "off",
    }
}

words! {
    /// How background work uses processors and disks.
    pub enum BackgroundMode("background mode") {
        /// Background work slows down while other programs wait for processors or disks.
        Auto = "auto",
        /// Background work slows down for clients only.
        Full = "full",
    }
}

words! {
    /// The least severe kind of message that is logged.
    pub enum LogLevel("log level") {
        /// Failures that require action.
        Error = "error",
        /// Problems that may lead to a failure.
        Warn = "warn",
        /// Changes of state, such as starts, stops and write-back on or off.
        Info = "info",
        /// Details for the diagnosis of faults.
        Debug = "debug",
        /// Every step.
        Trace = "trace",
    }
}

words! {
    /// Whether connections are encrypted. The NBD protocol uses the same words.
    #[derive(Default)]
    pub enum TlsMode("TLS mode") {
        /// No encryption.
        #[default]
        Off = "off",
        /// Encryption at the client's request, and for volumes with `tls=required`.
        Selective = "selective",
        /// Every connection is encrypted.
        Forced = "forced",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    #[test]
    fn memory_is_auto_or_at_least_the_minimum() {
        assert_eq!("auto".parse(), Ok(MemorySetting::Auto));
        assert_eq!("32MiB".parse(), Ok(MemorySetting::Bytes(32 << 20)));
        assert_eq!(MemorySetting::Bytes(3 << 29).to_string(), "1536MiB");
        let error = "31MiB".parse::<MemorySetting>().unwrap_err();
        assert_eq!(error.mistake(), Mistake::Limit);
        assert_eq!(
            error.explained(),
            "memory 31MiB is too little for a cache: give at least 32MiB, or auto"
        );
        let error = |text: &str| text.parse::<MemorySetting>().unwrap_err().explained();
        let much = "invalid memory size 'much': write auto, or a size like 512MiB or 1.5GiB";
        assert_eq!(error("much"), much);
        let decimal = "invalid memory size '1GB': units are powers of 1024, so write it like 1GiB";
        assert_eq!(error("1GB"), decimal);
    }

    #[test]
    fn workers_are_auto_or_one_to_64() {
        assert_eq!("auto".parse(), Ok(Workers::Auto));
        assert_eq!("1".parse(), Ok(Workers::Count(1)));
        assert_eq!("64".parse(), Ok(Workers::Count(64)));
        for text in ["0", "65", "-1", "many", ""] {
            assert!(text.parse::<Workers>().is_err(), "{text}");
        }
    }

    #[test]
    fn words_are_parsed_as_they_are_displayed() {
        for engine in IoEngine::ALL {
            assert_eq!(engine.to_string().parse(), Ok(*engine));
        }
        for level in LogLevel::ALL {
            assert_eq!(level.to_string().parse(), Ok(*level));
        }
        for mode in TlsMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(*mode));
        }
        let error = "uring".parse::<IoEngine>().unwrap_err().explained();
        assert_eq!(error, "unknown I/O engine 'uring': use auto, io_uring or epoll");
    }
}
