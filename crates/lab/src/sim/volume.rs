//! The settings of a volume.

use super::plan::VolumePlan;
use forebay_journal::Freshness;
use forebay_types::Mode;
use forebay_volume::{EpochOrder, Streams};
use std::sync::Arc;

/// The settings of a volume, and what its process keeps beside the shards for it.
pub(crate) struct Volume {
    mode: Mode,
    first_mode: Mode,
    /// The moment at which the mode was last changed while it was write-back; 0 if it never was.
    write_back_until: u32,
    /// Its lines were dropped when it became bypassed, and it still is.
    is_emptied: bool,
    pub streams: Option<Streams>,
    /// The epochs of an ordered volume.
    order: Option<Arc<EpochOrder>>,
    /// Whether lost data may be restored from the journal.
    pub freshness: Freshness,
    /// Whether the journal has a record of all acknowledged data that the disk may lack. It is kept
    /// with the pool.
    records_all: bool,
}

impl Volume {
    pub(crate) fn new(plan: &VolumePlan) -> Self {
        Self {
            mode: plan.mode,
            first_mode: plan.mode,
            write_back_until: 0,
            is_emptied: false,
            streams: None,
            order: None,
            freshness: Freshness::new(false),
            records_all: false,
        }
    }

    pub(crate) const fn mode(&self) -> Mode {
        self.mode
    }

    /// Changes the mode. If the volume becomes bypassed and `empties`, its lines are dropped.
    pub(crate) fn set_mode(&mut self, mode: Mode, moment: u32, empties: bool) {
        if self.mode == Mode::WriteBack {
            self.write_back_until = moment;
        }
        self.mode = mode;
        self.is_emptied = mode == Mode::Bypass && empties;
    }

    /// Whether write-back cannot have applied to a write submitted at this moment.
    pub(crate) fn is_through_since(&self, submitted: u32) -> bool {
        self.mode != Mode::WriteBack && self.write_back_until < submitted
    }

    /// Whether it has been in write-back all the time.
    pub(crate) fn was_always_in_write_back(&self) -> bool {
        let modes = [self.first_mode, self.mode];
        modes == [Mode::WriteBack; 2] && self.write_back_until == 0
    }

    pub(crate) const fn is_emptied(&self) -> bool {
        self.is_emptied
    }

    /// Handles the end of the process. Clean lines may be in the pool of the next one.
    pub(crate) fn end_process(&mut self) {
        self.is_emptied = false;
    }

    /// Begins without epochs in new shards.
    pub(crate) fn start_order(&mut self, plan: &VolumePlan) {
        self.order = plan.ordered.then(Arc::default);
    }

    /// Begins with an empty pool.
    pub(crate) fn start_empty(&mut self) {
        self.freshness = Freshness::new(false);
    }

    /// Begins with the pool of a killed process. `records` says whether its data is recorded again,
    /// and `was_reset` whether the journal is a new one.
    pub(crate) fn adopt(&mut self, records: bool, was_reset: bool) {
        self.freshness = Freshness::new(records);
        self.records_all &= !was_reset;
    }

    /// Whether the journal has a record of all acknowledged data that the disk may lack.
    pub(crate) const fn has_all_recorded(&self) -> bool {
        self.records_all
    }

    /// Clients are served from now on. `keeps_each` says whether each write waits for its record.
    pub(crate) fn begin_service(&mut self, keeps_each: bool) {
        self.records_all = keeps_each && self.freshness.newest().is_some();
    }

    /// The journal was replaced by a new one.
    pub(crate) const fn forget_records(&mut self) {
        self.records_all = false;
    }

    pub(crate) fn order(&self) -> Option<Arc<EpochOrder>> {
        self.order.clone()
    }
}
