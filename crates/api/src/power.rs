//! What the server tells about the supplies it watches.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether a power failure would be bridged, and what follows from that.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct PowerStatus {
    /// Whether writes to volumes under a supply may be acknowledged from memory.
    pub write_back_allowed: bool,
    /// Why, in one line.
    pub reason: String,
    /// How often that has changed.
    pub changes: u64,
    /// Seconds since it changed, or since the start.
    pub since_seconds: u64,
    /// How long the last change took from the reading that caused it, in milliseconds; null
    /// before the first, and where it was silence that caused it.
    pub change_ms: Option<u64>,
    /// What is dirty under supplies and in no journal, in bytes.
    pub dirty_bytes: u64,
    /// How much of that may be, in bytes: what the vault takes while the battery lasts.
    pub dirty_bytes_max: u64,
    /// How long it would take to save what is dirty now, in seconds; null while the vault's speed
    /// is not known.
    pub dump_seconds: Option<f64>,
    /// How long the battery would last, in seconds; null while that is not known.
    pub battery_seconds: Option<u32>,
    /// The two in a sentence: `if mains failed now: dump 7 s, battery 640 s`.
    pub forecast: String,
    /// Writes to volumes under supplies are refused, because power is failing.
    pub halted: bool,
    /// Which of the supplies are enough.
    pub needed: String,
    /// The supplies.
    pub supplies: Vec<SupplyStatus>,
}

/// One supply.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct SupplyStatus {
    /// What it is called here.
    pub name: String,
    /// Where it is asked, as it was written.
    pub place: String,
    /// What it is worth, in a few words.
    pub verdict: String,
    /// What it said last of itself, in the words of Network UPS Tools: `OL CHRG`.
    pub status: Option<String>,
    /// How full its battery is.
    pub charge_percent: Option<f64>,
    /// How long its battery would last, as it says, in seconds.
    pub runtime_seconds: Option<u32>,
    /// How much of what it can carry it carries.
    pub load_percent: Option<f64>,
    /// Who made it, and what.
    pub model: Option<String>,
    /// How the last test of its battery went, in its own words.
    #[serde(default)]
    pub battery_test: Option<String>,
    /// When its battery was made or put in, in its own words.
    #[serde(default)]
    pub battery_date: Option<String>,
    /// That its battery lasts less long at full charge than when it was first seen, if so.
    #[serde(default)]
    pub battery_ages: Option<String>,
}
