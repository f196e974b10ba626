//! What a volume has learned of the time of the day.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// What the learning of a volume does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LearnState {
    /// Nothing is learned.
    #[default]
    Off,
    /// What is needed is recorded, forecast and preloaded.
    Learning,
    /// Nothing is preloaded, because too little of what was preloaded was used. Forecasts are
    /// compared with what is needed.
    Paused,
    /// The history cannot be written; the log says why.
    Unwritable,
}

impl fmt::Display for LearnState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Learning => "learning",
            Self::Paused => "paused",
            Self::Unwritable => "unwritable",
        })
    }
}

/// What a volume has learned of the time of the day. Times are local, in quarters of an hour.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct LearnStatus {
    /// Whether it learns.
    pub enabled: bool,
    /// What the learning does.
    pub state: LearnState,
    /// The present quarter of an hour, such as `Mon 09:15`. Null if nothing is learned.
    pub slot: Option<String>,
    /// Quarters of an hour of the week, of 672, that were observed at least once.
    pub observed_slots: u64,
    /// Regions of 1 MiB in the history, of all quarters of an hour.
    pub regions: u64,
    /// Something is preloaded if it was needed on this many days in a row, at this time.
    pub days_required: u32,
    /// Or in this many weeks in a row, on this day at this time.
    pub weeks_required: u32,
    /// The latest forecast that was not empty.
    pub forecast: Option<ForecastStatus>,
    /// The latest forecast that was scored.
    pub score: Option<ForecastScore>,
}

/// A forecast: what a quarter of an hour probably needs.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ForecastStatus {
    /// The quarter of an hour, such as `Mon 09:15`.
    pub slot: String,
    /// Bytes that it probably needs, within the part of memory for forecasts.
    pub bytes: u64,
    /// Further bytes, which exceed the part of memory for forecasts.
    pub beyond_budget_bytes: u64,
    /// Regions of 1 MiB that are forecast because they were needed on the days before.
    pub daily_regions: u64,
    /// Regions of 1 MiB that are forecast because they were needed in the weeks before.
    pub weekly_regions: u64,
}

/// What a forecast was worth, ten minutes after its time began.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ForecastScore {
    /// The quarter of an hour, such as `Mon 09:15`.
    pub slot: String,
    /// Bytes that were preloaded for it, or earlier without being used since. Other data that was
    /// in memory already is not counted.
    pub preloaded_bytes: u64,
    /// Of these, bytes that clients have read.
    pub used_bytes: u64,
}
