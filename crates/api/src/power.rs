//! The status of the UPSes and of write-back under their protection.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether the UPSes would bridge a power failure, and the consequences.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct PowerStatus {
    /// Whether writes to volumes under UPS protection may be acknowledged from memory.
    pub write_back_allowed: bool,
    /// The reason, in one line.
    pub reason: String,
    /// How often `write_back_allowed` has changed.
    pub changes: u64,
    /// Seconds since the last change, or since the start.
    pub since_seconds: u64,
    /// The time from the reading that caused the last change to the change, in milliseconds; null
    /// before the first change, and if a missing reading caused it.
    pub change_ms: Option<u64>,
    /// Dirty bytes under UPS protection that no journal has.
    pub dirty_bytes: u64,
    /// The budget for these: the bytes that the vault can take while the battery lasts.
    pub dirty_bytes_max: u64,
    /// How long a dump would take now, in seconds; null while the vault's speed is unknown.
    pub dump_seconds: Option<f64>,
    /// How long the battery would last, in seconds; null while unknown.
    pub battery_seconds: Option<u32>,
    /// Both in a sentence: `if mains failed now: dump 7 s, battery 640 s`.
    pub forecast: String,
    /// Whether writes to volumes under UPS protection are halted, because power is failing.
    pub halted: bool,
    /// The expression of the UPSes that must be safe.
    pub needed: String,
    /// The UPSes.
    pub supplies: Vec<UpsStatus>,
}

/// One UPS.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct UpsStatus {
    /// Its name.
    pub name: String,
    /// The source of its readings, as configured.
    pub place: String,
    /// Its state in words: `protected against power failure`, `on battery, 300 s left`.
    #[serde(rename = "verdict")]
    pub state: String,
    /// The last `ups.status`: `OL CHRG`.
    pub status: Option<String>,
    /// The charge of its battery.
    pub charge_percent: Option<f64>,
    /// The reported runtime on battery, in seconds.
    pub runtime_seconds: Option<u32>,
    /// Its load.
    pub load_percent: Option<f64>,
    /// Manufacturer and model.
    pub model: Option<String>,
    /// The reported result of the last battery test.
    #[serde(default)]
    pub battery_test: Option<String>,
    /// The reported date of manufacture or installation of the battery.
    #[serde(default)]
    pub battery_date: Option<String>,
    /// A warning, if the runtime at full charge is below 90 % of that when the UPS was first seen.
    #[serde(default)]
    pub battery_ages: Option<String>,
}
