//! Writeback of a volume's dirty lines: which lines go to the disk together, and when.
//!
//! Lines are destaged in ascending order, whole stripes first, adjacent lines in one write. A
//! flush, or a mode without dirty data, destages all lines at once, and a checkpoint of a journal
//! all lines at the pace of background writeback. Otherwise a line is destaged when it
//! has been dirty for a while, or when the dirty limit is near. A line whose destage fails stays
//! dirty and is retried.
//!
//! Background writeback slows down while clients wait for reads of the same disk: a hard disk that
//! destages between reads seeks twice for each destage. The rate is set from outside and rises as
//! the dirty limit nears, so reads delay writeback but never stop it.
//!
//! The components:
//! - [`dirty_lines`] is the set of dirty lines, in ascending order;
//! - [`scheduler`] decides when a destage may start;
//! - [`elevator`] is the order shared by the shards of a volume;
//! - [`epochs`] replaces elevator and schedule in an ordered volume;
//! - [`quota`] counts the dirty lines of the whole shard.
//!
//! [`crate::destage`] starts the destages.

mod destage_rate;
pub(crate) mod dirty;
pub(crate) mod dirty_lines;
pub(crate) mod elevator;
pub(crate) mod epochs;
mod flush;
mod flush_share;
mod line_set;
pub(crate) mod quota;
mod read_meter;
mod scale;
pub(crate) mod scheduler;
mod slices;
mod token_bucket;
pub(crate) mod volume_quota;

use crate::index::Slots;
use crate::line::key::LineKey;
use crate::line::meta::LineTable;
use crate::ops::{OpLine, Serves};
use crate::{Outbox, PartId, Slot};
use dirty_lines::DirtySet;
use epochs::Epochs;
use flush::Flushes;
use forebay_types::{IoError, Mode, Stripes, VolumeId};
use quota::DirtyQuota;
use scheduler::{DestageScheduler, SchedulerInputs};
use std::collections::BTreeSet;

/// The dirty lines of a volume in one shard, and the state of their destages.
#[derive(Debug)]
pub(crate) struct Writeback {
    dirty: DirtySet,
    flushes: Flushes,
    scheduler: DestageScheduler,
    /// Set if the volume is ordered.
    epochs: Option<Epochs>,
    /// Dirty lines whose last destage failed, as far as there is room for them here. The others are
    /// retried as well, and enter when there is room.
    refused: BTreeSet<u64>,
}

/// Lines in [`Writeback::refused`].
const REFUSED_MAX: usize = 64;

/// The flushes for which a line is tried again after a failed destage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// All, because another line may be at fault.
    All,
    /// Those that began after the destage.
    Later,
    /// None: nothing of the line can be destaged any more.
    None,
}

impl Writeback {
    pub(crate) fn new(volume: VolumeId, size_bytes: u64) -> Self {
        Self {
            dirty: DirtySet::new(size_bytes),
            flushes: Flushes::default(),
            scheduler: DestageScheduler::new(volume),
            epochs: None,
            refused: BTreeSet::new(),
        }
    }

    /// Dirty lines whose last destage failed, at most [`REFUSED_MAX`].
    pub(crate) fn refused_lines(&self) -> usize {
        self.refused.len()
    }

    /// Records whether the disk has taken a line that is dirty, or was.
    pub(crate) fn record_result(&mut self, line: u64, ok: bool) {
        if ok {
            self.refused.remove(&line);
        } else if self.refused.len() < REFUSED_MAX && self.dirty.contains(line) {
            self.refused.insert(line);
        }
    }

    pub(crate) const fn dirty(&self) -> &DirtySet {
        &self.dirty
    }

    pub(crate) const fn dirty_mut(&mut self) -> &mut DirtySet {
        &mut self.dirty
    }

    pub(crate) const fn flushes_mut(&mut self) -> &mut Flushes {
        &mut self.flushes
    }

    /// A time before which none of the dirty lines became dirty, to a tick.
    pub(crate) fn since_ms(&self) -> Option<u64> {
        let ordered = self.epochs.as_ref().and_then(Epochs::since_ms);
        self.dirty.since_ms().map(|since_ms| ordered.unwrap_or(since_ms))
    }

    pub(crate) const fn scheduler(&self) -> &DestageScheduler {
        &self.scheduler
    }

    pub(crate) const fn scheduler_mut(&mut self) -> &mut DestageScheduler {
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
        assert!(self.epochs.is_none(), "the volume is ordered already");
        self.epochs = Some(Epochs::of(&self.dirty));
    }

    /// Frozen slots of the volume.
    pub(crate) fn frozen_lines(&self) -> usize {
        self.epochs.as_ref().map_or(0, Epochs::frozen)
    }

    /// Adds a line that has become dirty.
    #[inline]
    pub(crate) fn insert(&mut self, line: u64) {
        self.dirty.insert(line);
        if let Some(epochs) = &mut self.epochs {
            epochs.insert(line);
        }
    }

    /// Removes a line that has become clean. Nothing waits for it any longer.
    pub(crate) fn remove(&mut self, key: LineKey, slot: Slot) {
        self.dirty.remove(key.line());
        self.refused.remove(&key.line());
        if let Some(epochs) = &mut self.epochs {
            epochs.remove(key, slot);
            epochs.record_attempt(slot, None);
        }
    }

    /// Marks a line old, so that the next pass by age destages it. Not needed while the elevator
    /// runs, which destages the line by itself.
    #[inline]
    pub(crate) fn boost(&mut self, line: u64) {
        if !self.scheduler.is_elevator_running() {
            self.dirty.make_old(line);
        }
    }

    /// Records that a line was rewritten while its older data is being destaged: the newer data
    /// waits for the next destage. Returns the last group of flushes that the older data satisfies.
    #[inline]
    pub(crate) fn supersede(&mut self, line: u64) -> u64 {
        self.dirty.make_young(line);
        self.dirty.clear_in_destage(line);
        self.flushes.begun()
    }

    /// Makes flushes no longer wait for a line. For a planted bug only.
    pub(crate) fn clear_owed(&mut self, line: u64) {
        self.dirty.clear_owed(line, false);
    }

    /// Records an attempt to destage a line. If it failed, the line is owed again to the flushes
    /// that it is tried again for, and the others fail. An attempt with superseded data does not
    /// matter to flushes that began later.
    pub(crate) fn record_attempt(
        &mut self,
        line: &OpLine,
        serves: Serves,
        error: Option<IoError>,
        retry: Retry,
    ) {
        if let Some(epochs) = &mut self.epochs {
            return epochs.record_attempt(line.slot, error);
        }
        let Some(error) = error else { return };
        let until = if line.superseded == 0 { u64::MAX } else { line.superseded };
        let serves = serves.of_line(line);
        let from = match retry {
            Retry::All => serves.first,
            Retry::Later => serves.first.max(serves.last + 1),
            Retry::None => return self.flushes.fail(serves.first..=until, error),
        };
        self.flushes.fail(serves.first..=until.min(from.saturating_sub(1)), error);
        if self.flushes.has(from..=until) && self.dirty.owe(line.key.line()) {
            self.flushes.owe_from(from);
        }
    }

    /// Records that nothing of a frozen slot can be destaged any more.
    pub(crate) fn abandon_frozen(&mut self, slot: Slot) {
        let epochs = self.epochs.as_mut().expect("only an ordered volume freezes slots");
        epochs.record_attempt(slot, None);
    }

    /// Records that sectors of a dirty line were lost. `destage` is the destage of these sectors in
    /// flight, if there is one. With `gives_up`, nothing waits for the line any longer: it has no
    /// sector to destage, and no destage of it is in flight.
    pub(crate) fn record_loss(
        &mut self,
        key: LineKey,
        slot: Slot,
        destage: Option<Serves>,
        gives_up: bool,
    ) {
        if let Some(epochs) = &mut self.epochs {
            return epochs.record_loss(slot, gives_up);
        }
        let owed = self.dirty.is_owed(key.line()).then(|| self.flushes.owing());
        for first in destage.map(|serves| serves.first).into_iter().chain(owed) {
            self.flushes.fail(first..=u64::MAX, IoError::Io);
        }
        if gives_up {
            self.give_up(key.line());
        }
    }

    /// Makes flushes fail instead of waiting for a line of which nothing can be destaged.
    pub(crate) fn give_up(&mut self, line: u64) {
        if self.epochs.is_none() && self.dirty.is_owed(line) {
            self.flushes.fail(self.flushes.owing()..=u64::MAX, IoError::Io);
            self.dirty.clear_owed(line, true);
        }
    }

    /// Makes a line that is still dirty after a destage wait for the next one.
    pub(crate) fn clear_in_destage(&mut self, line: u64) {
        self.dirty.clear_in_destage(line);
    }

    /// The scheduler's inputs.
    pub(crate) fn inputs(&self, mode: Mode, now_ms: u64) -> SchedulerInputs {
        let is_waiting = self.flushes.is_owed();
        let flushing = self.flushes.is_urgent() || is_waiting && self.scheduler.is_log_short();
        let draining = mode != Mode::WriteBack;
        let flushes = self.flushes.len() as u32;
        SchedulerInputs { flushing, reclaiming: is_waiting && !flushing, flushes, draining, now_ms }
    }

    /// Whether a part waits for destages.
    pub(crate) fn has_waiter(&self) -> bool {
        self.epochs.as_ref().map_or(self.flushes.is_running(), Epochs::is_running)
    }

    /// Whether only a tick may answer a part, or end what the scheduler knows of one.
    pub(crate) fn needs_tick(&self) -> bool {
        self.has_waiter() || self.scheduler.is_flushing()
    }

    /// Whether [`Destager::pump`] may have something to start or to answer.
    ///
    /// [`Destager::pump`]: crate::destage::Destager::pump
    pub(crate) fn has_work(&self, quota: &DirtyQuota) -> bool {
        self.epochs.is_some()
            || self.flushes.is_running()
            || self.flushes.has_next()
            || self.dirty.is_sweeping()
            || self.scheduler.wants_elevator(quota)
    }

    /// Whether a part waits for destages while none is in flight.
    pub(crate) fn is_stalled(&self) -> bool {
        self.has_waiter() && self.scheduler.destaging() == 0
    }

    /// Makes every line owed that waits and has a destageable sector.
    fn owe_all<M: LineTable>(&mut self, volume: VolumeId, has_lost: bool, index: &Slots<M>) {
        self.dirty.owe_all(is_lost(volume, has_lost, index));
    }

    /// Begins a sweep of the owed lines, or of lines due because of the mode or their age. Returns
    /// whether it is a pass by age.
    pub(crate) fn begin_sweep<M: LineTable>(
        &mut self,
        volume: VolumeId,
        inputs: SchedulerInputs,
        may_age: bool,
        has_lost: bool,
        index: &Slots<M>,
    ) -> bool {
        if self.dirty.is_sweeping() {
            return false;
        }
        if inputs.flushing || inputs.reclaiming {
            if self.scheduler.destaging() == 0 {
                self.dirty.begin_sweep();
            }
        } else if !self.scheduler.is_backing_off(inputs.now_ms) {
            if inputs.draining {
                self.owe_all(volume, has_lost, index);
            } else if may_age && self.scheduler.is_aging_due(inputs.now_ms) {
                self.dirty.owe_old(inputs.now_ms, is_lost(volume, has_lost, index));
                return true;
            }
        }
        false
    }

    /// Answers the flushes whose lines have all been tried, and begins the next group if all lines
    /// of the earlier ones are in flight. With `error`, which is set if sectors are lost, it fails.
    /// Returns whether a group began.
    pub(crate) fn answer_flushes<M: LineTable>(
        &mut self,
        volume: VolumeId,
        error: Option<IoError>,
        has_lost: bool,
        index: &Slots<M>,
        out: &mut Outbox,
    ) -> bool {
        if let Some(epochs) = &mut self.epochs {
            epochs.answer(out);
            return false;
        }
        self.answer_settled(out);
        let begins = self.flushes.begin_next(self.scheduler.destaging(), error);
        if begins {
            self.owe_all(volume, has_lost, index);
            self.answer_settled(out);
        }
        begins
    }

    fn answer_settled(&mut self, out: &mut Outbox) {
        if self.dirty.owed_lines() == 0 {
            self.flushes.end_owing();
        }
        self.flushes.answer(out);
    }

    /// Adds a flush, or a checkpoint, which is not urgent.
    ///
    /// # Panics
    /// If the volume is ordered: its epochs are destaged instead.
    pub(crate) fn push_flush(&mut self, part: PartId, is_urgent: bool) {
        assert!(self.epochs.is_none(), "an ordered volume destages epochs instead");
        self.flushes.push(part, is_urgent);
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.dirty.metadata_bytes()
            + self.scheduler.metadata_bytes()
            + self.epochs.as_ref().map_or(0, Epochs::metadata_bytes)
    }

    /// Whether flushes wait until a line is in a destage.
    pub(crate) fn is_owed_to_flushes(&self, line: u64) -> bool {
        self.flushes.is_running() && self.dirty.is_owed(line)
    }

    /// Panics if the components are inconsistent.
    pub(crate) fn self_check<M: LineTable>(&self, index: &Slots<M>) {
        self.dirty.self_check();
        let is_dirty = |&line: &u64| self.dirty.contains(line);
        assert!(self.refused.iter().all(is_dirty), "a clean line counts as refused");
        if let Some(epochs) = &self.epochs {
            epochs.self_check(&self.dirty, index);
            assert!(!self.flushes.is_running(), "an ordered volume has no flushes");
        }
        assert!(!self.flushes.may_begin(), "flushes wait although no flush has owed lines");
    }
}

/// Whether nothing of a line can be destaged, so that a flush would wait for it in vain. `has_lost`
/// says whether sectors of the volume are lost.
fn is_lost<M: LineTable>(
    volume: VolumeId,
    has_lost: bool,
    index: &Slots<M>,
) -> impl Fn(u64) -> bool {
    move |line| {
        let found = has_lost.then(|| index.find(LineKey::new(volume, line))).flatten();
        found.is_some_and(|slot| index.get(slot).destageable() == 0)
    }
}
