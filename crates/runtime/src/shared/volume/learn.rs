//! What a volume needs at which time of the day, as workers and management see it.

use crate::platform::locks::Lock;
use forebay_policy::Needs;
use forebay_types::{ByteRange, TimeSlot, VolumeId};
use std::sync::atomic::{AtomicBool, Ordering};

/// Lines of a range that were needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub volume: VolumeId,
    pub range: ByteRange,
    pub lines: u32,
}

/// The state of a volume's learning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LearnState {
    /// Nothing is learned: it is turned off, or no histories are kept.
    #[default]
    Off,
    /// It records, forecasts and preloads.
    Learning,
    /// It records, and compares its forecasts with what is needed, but does not preload: too little
    /// of what it preloaded was used.
    Paused,
    /// It records, but the history cannot be written.
    Unwritable,
}

/// A forecast of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForecastStatus {
    /// The slot.
    pub slot: TimeSlot,
    /// Bytes that it probably needs, as far as they fit the budget.
    pub bytes: u64,
    /// Bytes beyond the budget.
    pub bytes_left: u64,
    /// Regions that are needed daily.
    pub daily_regions: usize,
    /// Regions that are needed weekly.
    pub weekly_regions: usize,
}

/// How much of a forecast was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForecastScore {
    /// The slot.
    pub slot: TimeSlot,
    /// Lines that were preloaded for it, or were in the pool, unused since an earlier preload.
    pub preloaded_lines: u64,
    /// Preloaded lines that clients have read within the first ten minutes of the slot.
    pub used_lines: u64,
}

/// A snapshot of a volume's learning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LearnStatus {
    /// Its state.
    pub state: LearnState,
    /// The current slot by the clock. `None` if nothing is learned.
    pub slot: Option<TimeSlot>,
    /// Slots of the week that were observed at least once.
    pub observed_slots: usize,
    /// Regions in the history, of all slots.
    pub regions: usize,
    /// The number of days in a row on which a region must have been needed to be preloaded.
    pub days_demanded: u32,
    /// The number of weeks in a row on which it must have been needed instead.
    pub weeks_demanded: u32,
    /// The latest forecast that was not empty.
    pub forecast: Option<ForecastStatus>,
    /// The latest score.
    pub score: Option<ForecastScore>,
}

/// The learning of a volume, as workers and management see it.
pub(crate) struct Learn {
    is_on: AtomicBool,
    needs: Lock<Needs>,
    status: Lock<LearnStatus>,
}

impl Learn {
    pub(crate) fn new(is_on: bool) -> Self {
        // Nothing is recorded before the thread has read the history.
        let needs = Lock::new(Needs::new(0));
        Self { is_on: AtomicBool::new(is_on), needs, status: Lock::default() }
    }

    /// Limits the needs of the current slot to a quarter of the regions that the volume's history
    /// may have.
    pub(crate) fn set_regions_max(&self, regions_max: usize) {
        self.needs.lock().set_regions_max(regions_max / 4);
    }

    pub(crate) fn set_on(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Records what was needed.
    pub(crate) fn record(&self, all: &[Need]) {
        if self.is_on() {
            let mut needs = self.needs.lock();
            all.iter().for_each(|need| needs.record(need.range, need.lines));
        }
    }

    pub(crate) fn take_needs(&self) -> Needs {
        self.needs.lock().take()
    }

    pub(crate) fn status(&self) -> LearnStatus {
        *self.status.lock()
    }

    pub(crate) fn set_status(&self, status: LearnStatus) {
        *self.status.lock() = status;
    }
}
