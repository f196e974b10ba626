//! Writing dirty lines back: what goes together, and when.
//!
//! Lines go out in ascending order of place, whole stripes first and neighbours in one write. A
//! flush, or a mode that has no place for dirty data, takes all; otherwise a line goes when it has
//! been dirty for a while, or when so much is dirty that the limit is near. What fails stays dirty
//! and is tried again.
//!
//! Background write-back steps aside while clients wait for reads of the same disk: a hard disk
//! that writes back between them seeks twice for each. It goes at the pace it was given, the faster
//! the nearer the dirty limit is, so reads put it off and never stop it.
//!
//! The parts: [`dirty_lines`] is the one set of what is dirty, in order of place; [`scheduler`]
//! says when a destage may start; [`elevator`] is the order that the shards of a volume share;
//! [`span`] says what goes with a line; [`destage`] carries all of that out. [`epochs`] replaces
//! order and schedule in an ordered volume. [`quota`] counts what is dirty in the whole shard.

pub(crate) mod destage;
pub(crate) mod dirty;
pub(crate) mod dirty_lines;
pub(crate) mod elevator;
pub(crate) mod epochs;
mod flush;
mod line_set;
pub(crate) mod quota;
mod scheduler;
mod span;
mod token_bucket;

use crate::index::Slots;
use crate::index::key::LineKey;
use crate::index::meta::LineTable;
use crate::{Outbox, PartId, Slot};
use dirty_lines::DirtyLines;
use epochs::Epochs;
use flush::Flushes;
use forebay_types::{IoError, Mode, Stripes, VolumeId};
use scheduler::{Inputs, Scheduler};

/// The dirty lines of a volume in one shard, and their way to the disk.
#[derive(Debug)]
pub(crate) struct Writeback {
    dirty: DirtyLines,
    /// How often lines were made owed: tells what a destage in flight is worth to a flush.
    demand: u32,
    flushes: Flushes,
    scheduler: Scheduler,
    /// The order of destages, if the volume is ordered.
    epochs: Option<Epochs>,
}

impl Writeback {
    pub(crate) fn new(size_bytes: u64) -> Self {
        Self {
            dirty: DirtyLines::new(size_bytes),
            demand: 1,
            flushes: Flushes::default(),
            scheduler: Scheduler::new(),
            epochs: None,
        }
    }

    pub(crate) const fn dirty(&self) -> &DirtyLines {
        &self.dirty
    }

    pub(crate) const fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub(crate) const fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    pub(crate) const fn epochs(&self) -> Option<&Epochs> {
        self.epochs.as_ref()
    }

    pub(crate) const fn epochs_mut(&mut self) -> Option<&mut Epochs> {
        self.epochs.as_mut()
    }

    pub(crate) fn set_stripes(&mut self, stripes: Stripes) {
        self.dirty.set_stripes(stripes);
    }

    pub(crate) fn set_ordered(&mut self) {
        assert!(self.epochs.is_none(), "a volume is made ordered once");
        self.epochs = Some(Epochs::of(&self.dirty));
    }

    /// Older versions of lines.
    pub(crate) fn frozen_lines(&self) -> usize {
        self.epochs.as_ref().map_or(0, Epochs::frozen)
    }

    /// A line that was clean has become dirty.
    #[inline]
    pub(crate) fn dirtied(&mut self, line: u64) {
        self.dirty.insert(line);
        if let Some(epochs) = &mut self.epochs {
            epochs.touch(line);
        }
    }

    /// A line has no dirty sector any more, so nothing waits for it.
    pub(crate) fn cleaned(&mut self, key: LineKey, slot: Slot) {
        self.dirty.remove(key.line());
        if let Some(epochs) = &mut self.epochs {
            epochs.cleaned(key, slot);
            epochs.tried(slot, None);
        }
    }

    /// A line of a write that is not worth holding back goes as if it were old, or with the
    /// elevator if that runs.
    #[inline]
    pub(crate) fn boost(&mut self, line: u64) {
        if !self.scheduler.is_elevator_running() {
            self.dirty.make_old(line);
        }
    }

    /// A dirty line was written while its older content is on its way to the disk. Returns the
    /// demand that this content still meets.
    #[inline]
    pub(crate) fn superseded(&mut self, line: u64) -> u32 {
        self.dirty.make_young(line);
        self.demand
    }

    /// No flush waits for a line any more, which is a planted bug.
    pub(crate) fn forget(&mut self, line: u64) {
        self.dirty.settle(line);
    }

    /// A slot was destaged, or could not be.
    pub(crate) fn tried(&mut self, key: LineKey, slot: Slot, error: Option<IoError>) {
        if let Some(epochs) = &mut self.epochs {
            return epochs.tried(slot, error);
        }
        if self.dirty.is_owed(key.line()) {
            self.dirty.settle(key.line());
            error.into_iter().for_each(|error| self.flushes.fail(error));
        }
    }

    /// The same of content that a newer write superseded while `demand` was in force.
    pub(crate) fn tried_superseded(
        &mut self,
        key: LineKey,
        slot: Slot,
        demand: u32,
        error: Option<IoError>,
    ) {
        if self.epochs.is_some() || demand == self.demand {
            self.tried(key, slot, error);
        }
    }

    /// Something of a dirty line was lost. Unless the rest of it can be destaged, or is on its way,
    /// nothing waits for the line any longer.
    pub(crate) fn lost(&mut self, key: LineKey, slot: Slot, gives_up: bool) {
        if let Some(epochs) = &mut self.epochs {
            return epochs.lost(slot, gives_up);
        }
        if self.dirty.is_owed(key.line()) {
            self.flushes.fail(IoError::Io);
            if gives_up {
                self.dirty.settle(key.line());
            }
        }
    }

    /// A destage is over, and the line is dirty: it failed, or the line was written meanwhile.
    pub(crate) fn come_back(&mut self, line: u64) {
        self.dirty.come_back(line);
    }

    /// What the scheduler is to know.
    fn inputs(&self, mode: Mode, now_ms: u64) -> Inputs {
        let draining = mode != Mode::WriteBack;
        Inputs { flushing: self.flushes.is_running(), draining, now_ms }
    }

    /// Whether a part waits for lines to be destaged, and no destage is in flight.
    fn is_stalled(&self) -> bool {
        let is_running = self.epochs.as_ref().map_or(self.flushes.is_running(), Epochs::is_running);
        is_running && self.scheduler.destaging() == 0
    }

    /// All lines are owed but those that are lost.
    fn owe_all<M: LineTable>(&mut self, volume: VolumeId, has_lost: bool, index: &Slots<M>) {
        self.demand = self.demand.wrapping_add(1);
        self.dirty.owe_all(|line| {
            let found = has_lost.then(|| index.find(LineKey::new(volume, line))).flatten();
            found.is_some_and(|slot| index.get(slot).destageable() == 0)
        });
    }

    /// Begins a sweep of what is owed, or of what is due by mode or age.
    fn begin_sweep<M: LineTable>(
        &mut self,
        volume: VolumeId,
        inputs: Inputs,
        may_age: bool,
        has_lost: bool,
        index: &Slots<M>,
    ) -> bool {
        if self.dirty.is_sweeping() {
            return false;
        }
        if inputs.flushing {
            if self.scheduler.destaging() == 0 {
                self.dirty.begin_sweep();
            }
        } else if !self.scheduler.is_backing_off(inputs.now_ms) {
            if inputs.draining {
                self.owe_all(volume, has_lost, index);
            } else if may_age && self.scheduler.is_aging_due(inputs.now_ms) {
                self.demand = self.demand.wrapping_add(1);
                self.dirty.owe_old();
                return true;
            }
        }
        false
    }

    /// Answers the flushes that have nothing left to wait for, and starts those behind them.
    /// `error` is that of all that start while something is lost.
    fn answer_flushes<M: LineTable>(
        &mut self,
        volume: VolumeId,
        error: Option<IoError>,
        has_lost: bool,
        index: &Slots<M>,
        out: &mut Outbox,
    ) {
        if let Some(epochs) = &mut self.epochs {
            return epochs.answer(out);
        }
        loop {
            if self.flushes.is_running() && self.dirty.owed_lines() == 0 {
                self.flushes.answer(out);
            }
            if !self.flushes.start_next() {
                return;
            }
            error.into_iter().for_each(|error| self.flushes.fail(error));
            self.owe_all(volume, has_lost, index);
        }
    }

    /// Takes a flush in.
    ///
    /// # Panics
    /// If the volume is ordered: its epochs are destaged instead.
    fn push_flush(&mut self, part: PartId) {
        assert!(self.epochs.is_none(), "an ordered volume is not flushed but destaged in order");
        self.flushes.push(part);
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.dirty.metadata_bytes()
            + self.scheduler.metadata_bytes()
            + self.epochs.as_ref().map_or(0, Epochs::metadata_bytes)
    }

    /// Panics where the parts contradict each other.
    pub(crate) fn self_check<M: LineTable>(&self, index: &Slots<M>) {
        self.dirty.self_check();
        if let Some(epochs) = &self.epochs {
            epochs.self_check(&self.dirty, index);
            assert!(!self.flushes.is_running(), "an ordered volume has no flushes");
        }
        let owes = self.flushes.is_running() || !self.flushes.has_next();
        assert!(owes, "a flush waits for no other one");
    }
}
