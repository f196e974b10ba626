//! What background work may use of processors and disks.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The share of a resource that background work may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BackgroundShare {
    /// All that it can use beside clients.
    #[default]
    Full,
    /// A quarter of that.
    Reduced,
    /// A sixteenth of that.
    Least,
}

impl From<forebay_types::BackgroundShare> for BackgroundShare {
    fn from(share: forebay_types::BackgroundShare) -> Self {
        match share {
            forebay_types::BackgroundShare::Full => Self::Full,
            forebay_types::BackgroundShare::Reduced => Self::Reduced,
            forebay_types::BackgroundShare::Least => Self::Least,
        }
    }
}

impl fmt::Display for BackgroundShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full",
            Self::Reduced => "reduced",
            Self::Least => "least",
        })
    }
}

/// The limits of background work: patrols, warm-ups, reads of pinned ranges, preloads, warm lists,
/// and writeback that is not urgent.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct BackgroundStatus {
    /// The setting `background`, as configured or set since.
    pub setting: String,
    /// The share of the processors.
    pub processors: BackgroundShare,
    /// The share of the disks. Reads into memory are limited by both shares.
    pub disks: BackgroundShare,
    /// The percentage of the last second in which something waited for a processor. Null if it is
    /// not measured.
    pub processors_pressure: Option<f64>,
    /// The percentage of the last second in which something other than this server's clients waited
    /// for I/O. Null if it is not measured.
    pub disks_pressure: Option<f64>,
    /// Why the shares are what they are.
    pub reason: String,
}

impl BackgroundStatus {
    /// The smaller one of the shares.
    pub fn share(&self) -> BackgroundShare {
        match (self.processors, self.disks) {
            (BackgroundShare::Least, _) | (_, BackgroundShare::Least) => BackgroundShare::Least,
            (BackgroundShare::Full, disks) => disks,
            (BackgroundShare::Reduced, _) => BackgroundShare::Reduced,
        }
    }
}
