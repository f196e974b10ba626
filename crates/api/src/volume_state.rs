//! What a volume is and does, each in a word.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The cache mode of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Writes are acknowledged from memory and destaged later.
    WriteBack,
    /// Writes are acknowledged from the disk, and kept in memory.
    #[default]
    WriteThrough,
    /// Writes are acknowledged from the disk, and nothing new is cached.
    Bypass,
}

impl From<forebay_types::Mode> for Mode {
    fn from(mode: forebay_types::Mode) -> Self {
        match mode {
            forebay_types::Mode::WriteBack => Self::WriteBack,
            forebay_types::Mode::WriteThrough => Self::WriteThrough,
            forebay_types::Mode::Bypass => Self::Bypass,
        }
    }
}

impl From<Mode> for forebay_types::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::WriteBack => Self::WriteBack,
            Mode::WriteThrough => Self::WriteThrough,
            Mode::Bypass => Self::Bypass,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        forebay_types::Mode::from(*self).fmt(f)
    }
}

/// The state of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// It is served without errors.
    #[default]
    Serving,
    /// It is being removed, or restored from its journal; new requests are refused.
    Flushing,
    /// It is served with errors; see the reason.
    Failing,
    /// Its disk has not answered an I/O for seconds; see `stall`.
    Stalled,
}

impl fmt::Display for VolumeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serving => "serving",
            Self::Flushing => "flushing",
            Self::Failing => "failing",
            Self::Stalled => "stalled",
        })
    }
}

/// What is lost of a volume's acknowledged writes if its host is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DurabilityClass {
    /// Nothing: the disk has all of them.
    #[default]
    Through,
    /// Nothing: what the disk lacks is in a journal that another host can take over with it. With
    /// `durability=flush`, what was flushed.
    Shared,
    /// What the disk lacks, `dirty_bytes`: its journal or its memory is lost with the host. With
    /// `ordered=yes`, the disk has an older state without gaps.
    Local,
}

impl DurabilityClass {
    /// The class of a volume in this mode, whose disk and journal another host can take over if
    /// `is_shared`.
    pub const fn of(mode: Mode, is_shared: bool) -> Self {
        match mode {
            Mode::WriteBack if is_shared => Self::Shared,
            Mode::WriteBack => Self::Local,
            Mode::WriteThrough | Mode::Bypass => Self::Through,
        }
    }
}

impl fmt::Display for DurabilityClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Through => "through",
            Self::Shared => "shared",
            Self::Local => "local",
        })
    }
}
