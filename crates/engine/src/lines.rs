//! Changes of a line that concern more than one component.
//!
//! Every resident line is in the index. A dirty line is also in the dirty set of its volume, counts
//! towards the quota, may belong to an epoch, and may have parity. This module keeps these
//! components consistent: each function takes a line from one state to another in all of them.
//! Reads, writes, destages and completions work on the lines of a volume through it.

use crate::index::Slots;
use crate::index::buffered;
use crate::index::miniatures::{sample_access, sample_removal, set_in_sequence};
use crate::index::shares::Taker;
use crate::integrity::ShardIntegrity;
use crate::line::key::LineKey;
use crate::line::meta::{BUFFERED, DETACHED, FROZEN, LineTable, SEALED};
use crate::ops::{LineOp, OpKind, Ops, WaitFor};
use crate::sabotage::{Planted, PlantedBug};
use crate::volume::ShardVolume;
use crate::writeback::quota::DirtyQuota;
use crate::{
    IoId, JournalOp, JournalRequest, LineMeta, MemoryStep, Outbox, Part, PartId, Protection,
    SealVerdict, Slot,
};
use forebay_policy::Hint;
use forebay_types::{ByteRange, LINE_BYTES, Mode, VolumeId};
use std::ops::Range;

/// The lines of one volume, with the components that describe them. Borrowed from the shard for one
/// call; owns nothing.
pub(crate) struct VolumeLines<'a, M> {
    pub id: VolumeId,
    pub volume: &'a mut ShardVolume,
    pub quota: &'a mut DirtyQuota,
    pub index: &'a mut Slots<M>,
    pub ops: &'a mut Ops,
    pub integrity: &'a mut ShardIntegrity,
    pub planted: Planted,
}

impl<M: LineTable> VolumeLines<'_, M> {
    /// Records the lines of a client's part as accessed: as read, or as written (`Hint::Write`).
    pub(crate) fn record_access(&mut self, part: &Part, hint: Hint) {
        if part.restores {
            return;
        }
        let lines = part.range.offset / LINE_BYTES..part.range.end().div_ceil(LINE_BYTES);
        let is_held_out = self.volume.holds_out(part.range.offset);
        for line in lines.clone() {
            let key = LineKey::new(self.id, line);
            if self.volume.record_access(key) && !is_held_out {
                sample_line(self.index, self.volume, key, (hint, &lines));
            }
        }
    }
}

/// Records an access to a line that may be sampled, as a part of an access to `lines`.
#[inline(never)]
pub(crate) fn sample_line<M: LineTable>(
    index: &mut Slots<M>,
    volume: &mut ShardVolume,
    key: LineKey,
    (hint, lines): (Hint, &Range<u64>),
) {
    let is_read = hint != Hint::Write;
    let hint = if is_read { read_hint(index, volume, key.volume()) } else { hint };
    let (admits, mode) = (volume.admits_accesses(), volume.mode());
    let (samples, curve) = volume.sampling_mut();
    if is_read
        && key.line() == lines.start
        && let Some((hash, is_in_sequence)) = samples.watch_read(curve, lines)
    {
        set_in_sequence(index, hash, is_in_sequence);
    }
    let accessed = (hint, admits, mode == Mode::WriteBack);
    let kind = sample_access(index, key, accessed, &mut samples.sizes);
    if kind.is_some_and(|kind| samples.watch_sequence(curve, (key, kind), lines)) {
        set_in_sequence(index, key.hash(), true);
    }
    if !admits && !is_read && mode == Mode::Bypass {
        sample_removal(index, key);
    }
}

/// How a line that a client reads comes into the pool: like one of a stream if the volume is read
/// once and others have lines here. Otherwise, what it reads would displace their lines in
/// proportion to its speed, although it never returns.
pub(crate) fn read_hint<M: LineTable>(
    index: &Slots<M>,
    volume: &mut ShardVolume,
    id: VolumeId,
) -> Hint {
    let has_neighbours = index.resident() as u64 > index.resident_lines(id);
    let (_, curve) = volume.sampling_mut();
    if has_neighbours && curve.is_read_once() { Hint::Stream } else { Hint::Normal }
}

/// Removes a line from the pool unless it is dirty or busy. Its volume may be unknown: an adopted
/// pool may hold lines of volumes that are not served.
pub(crate) fn drop_if_idle<M: LineTable>(index: &mut Slots<M>, ops: &Ops, slot: Slot) {
    let line = index.get(slot);
    if line.dirty == 0 && ops.busy(line.key).is_none() {
        index.drop_line(slot);
    }
}

/// See [`crate::Shard::drop_clean`].
pub(crate) fn drop_clean<M: LineTable>(
    index: &mut Slots<M>,
    ops: &Ops,
    volume: VolumeId,
    first: Slot,
    count: Slot,
) -> Option<Slot> {
    let end = index.used();
    let next = first.saturating_add(count).min(end);
    for slot in first..next {
        if index.resident_lines(volume) == 0 {
            return None;
        }
        let line = *index.get(slot);
        if line.volume() == Some(volume) && index.find(line.key) == Some(slot) {
            drop_if_idle(index, ops, slot);
        }
    }
    (next < end).then_some(next)
}

/// See [`crate::Shard::forget_clean`].
pub(crate) fn forget_clean<M: LineTable>(
    index: &mut Slots<M>,
    ops: &Ops,
    integrity: &ShardIntegrity,
    volume: VolumeId,
    out: &mut Outbox,
) {
    drop_clean(index, ops, volume, 0, Slot::MAX);
    for slot in 0..index.used() {
        let line = *index.get(slot);
        let is_mixed = line.dirty != 0 && line.valid & !line.dirty != 0;
        if line.volume() == Some(volume) && is_mixed && !line.has(DETACHED) {
            integrity.verify_before(index, slot, !line.dirty, out);
            index.change(slot, line.destageable());
        }
    }
}

impl<M: LineTable> VolumeLines<'_, M> {
    /// Borrows the same lines for a shorter lifetime.
    pub(crate) const fn reborrow(&mut self) -> VolumeLines<'_, M> {
        VolumeLines {
            id: self.id,
            volume: self.volume,
            quota: self.quota,
            index: self.index,
            ops: self.ops,
            integrity: self.integrity,
            planted: self.planted,
        }
    }

    /// Starts an operation and counts it.
    pub(crate) fn start(&mut self, op: LineOp) -> IoId {
        assert!(op.volume == self.id, "an operation on {} for a part of {}", op.volume, self.id);
        self.volume.count_start(op.kind, op.lines.len());
        if op.kind == OpKind::Destage {
            self.quota.count_destage_start(self.id, op.lines.len());
        }
        self.ops.start(op)
    }

    /// Starts a long erase of the lines from `first` up to `end` and counts it.
    pub(crate) fn start_long_erase(&mut self, op: LineOp, first: LineKey, end: LineKey) -> IoId {
        assert!(op.volume == self.id, "an erase of {} for a part of {}", op.volume, self.id);
        self.volume.count_start(op.kind, op.lines.len());
        if self.planted.is(PlantedBug::ForgetErasedRange) {
            return self.ops.start(op);
        }
        self.ops.start_long_erase(op, first, end)
    }

    /// Makes a part wait for an operation.
    pub(crate) fn wait(&mut self, op: u32, part: &Part, wait_for: WaitFor, out: &mut Outbox) {
        assert!(self.ops.op(op).volume == part.volume, "a part waits for another volume");
        out.waits_for = self.ops.op(op).waits_for();
        self.ops.wait(op, part.id, wait_for);
        self.volume.counters_mut().waits += 1;
    }

    /// Whether the journal records the changes of a part.
    pub(crate) fn is_recorded(&self, part: &Part) -> bool {
        self.volume.protection() == Protection::Journal && !part.restores
    }

    /// The journal record of a part whose write or erase goes to the disk, if the journal records
    /// the part.
    pub(crate) fn journal_op(
        &self,
        part: &Part,
        kind: JournalOp,
    ) -> Option<(JournalOp, ByteRange)> {
        self.is_recorded(part).then_some((kind, part.range))
    }

    /// Adds a journal record to the outbox. No other function does.
    pub(crate) fn notify_journal(
        &self,
        part: PartId,
        range: ByteRange,
        kind: JournalOp,
        out: &mut Outbox,
    ) {
        out.journal_requests.push(JournalRequest { part, volume: self.id, range, kind });
    }

    /// Closes the current epoch if the driver's epoch is newer.
    pub(crate) fn advance_epoch(&mut self, epoch: u64) {
        if let Some(epochs) = self.volume.writeback_mut().epochs_mut() {
            epochs.advance(self.id, epoch, self.index);
        }
    }

    /// The slots of the dirty lines, in ascending order of their lines.
    pub(crate) fn dirty_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.volume.dirty_slots(self.index)
    }

    /// Whether a line is dirty in a closed epoch. Such a line must not change.
    pub(crate) fn is_closed(&self, line: &LineMeta) -> bool {
        if line.dirty == 0 {
            return false;
        }
        let epochs = self.volume.writeback().epochs();
        let closed = epochs.is_some_and(|epochs| epochs.is_closed(line.key.line()));
        closed && !self.planted.is(PlantedBug::ChangeClosedEpoch)
    }

    /// See [`ShardIntegrity::verify_before`].
    pub(crate) fn verify_before(&self, slot: Slot, rewritten: u8, out: &mut Outbox) {
        self.integrity.verify_before(self.index, slot, rewritten, out);
    }

    /// Sets the valid sectors of a line. Those that were valid and stay so keep their content; if
    /// the line is sealed, they are verified first.
    pub(crate) fn set_valid(&mut self, slot: Slot, valid: u8, out: &mut Outbox) {
        self.verify_before(slot, !valid, out);
        self.index.change(slot, valid);
    }

    /// Marks sectors of a line dirty, because a write has changed them.
    pub(crate) fn mark_dirty(&mut self, slot: Slot, mask: u8, now_ms: u64) {
        // Not copied: the processor would stall until the copy of the previous write is stored.
        let line = self.index.get(slot);
        assert!(!line.has(DETACHED) && line.key.volume() == self.id, "a write changes {line:?}");
        let flags = line.flags;
        if line.lost() & mask != 0 {
            self.count_recovered(slot, mask);
        }
        let (key, was_clean) = self.index.mark_dirty(slot, mask);
        if self.planted.is(PlantedBug::KeepSeal) {
            self.index.set_flags(slot, flags & SEALED);
        }
        if self.planted.is(PlantedBug::TrustFilling) {
            self.index.clear_filling();
        }
        if was_clean {
            self.quota.count_dirtied(self.id, now_ms);
            let dirty_lines = self.quota.dirty_lines();
            assert!(dirty_lines <= self.index.capacity(), "{dirty_lines} dirty lines in the pool");
            self.volume.writeback_mut().insert(key.line());
        }
    }

    /// Removes a line from the dirty set and the quota: none of its sectors is dirty any more.
    fn remove_dirty(&mut self, slot: Slot) {
        let line = self.index.get(slot);
        assert!(line.dirty == 0, "a dirty line is counted as clean: {line:?}");
        self.quota.count_cleaned(self.id);
        self.volume.counters_mut().cleaned_lines += 1;
        self.volume.writeback_mut().remove(line.key, slot);
        self.integrity.free_parity(slot, self.index);
    }

    /// Relocates a line, of which the caller holds a pin, to a free slot. Sectors in `rewritten`
    /// are about to be overwritten and are not copied.
    pub(crate) fn move_away(
        &mut self,
        slot: Slot,
        rewritten: u8,
        out: &mut Outbox,
    ) -> Option<Slot> {
        self.move_away_as(Taker::Data(self.id), slot, rewritten, out)
    }

    /// As [`VolumeLines::move_away`], with what the taker may have.
    pub(crate) fn move_away_as(
        &mut self,
        taker: Taker,
        slot: Slot,
        rewritten: u8,
        out: &mut Outbox,
    ) -> Option<Slot> {
        let new = self.index.reserve(taker)?;
        self.move_to(slot, new, rewritten, out);
        Some(new)
    }

    /// Relocates a line to a slot that was reserved for it.
    pub(crate) fn move_to(&mut self, slot: Slot, new: Slot, rewritten: u8, out: &mut Outbox) {
        let line = *self.index.get(slot);
        if !self.planted.is(PlantedBug::ChangeUnverified) {
            self.verify_before(slot, rewritten, out);
        }
        let freeze = self.is_closed(&line);
        self.index.relocate(slot, new, freeze);
        out.memory.extend(MemoryStep::copies(slot, new, line.valid & !rewritten));
        if self.planted.is(PlantedBug::ForgetDetached) {
            self.index.forget_detached(slot);
        }
        if self.planted.is(PlantedBug::TrustFilling) {
            self.index.clear_filling();
        }
        if freeze {
            self.quota.add_dirty(self.id);
            let epochs = self.volume.writeback_mut().epochs_mut();
            epochs.expect("only ordered volumes freeze slots").freeze(line.key.line());
        } else if line.dirty != 0 {
            self.integrity.free_parity(slot, self.index);
            self.follow_relocation(line.key, slot, new);
        }
        self.volume.counters_mut().relocated_lines += u64::from(line.pins > 1);
    }

    /// Updates the destage state of a relocated dirty line. If the old slot is being destaged,
    /// flushes that arrived earlier wait only for that destage.
    fn follow_relocation(&mut self, key: LineKey, old: Slot, new: Slot) {
        let destaging = self.ops.destage_of(key, old).is_some();
        let writeback = self.volume.writeback_mut();
        if self.planted.is(PlantedBug::ChangeClosedEpoch)
            && let Some(epochs) = writeback.epochs_mut()
        {
            epochs.move_closed(key, old, new);
        }
        if self.planted.is(PlantedBug::ForgetMovedInFlush) {
            writeback.clear_owed(key.line());
        }
        if destaging {
            self.ops.supersede(key, old, writeback.supersede(key.line()));
        }
    }

    /// Removes a line from the pool if it has no valid, dirty or lost sector.
    pub(crate) fn drop_if_empty(&mut self, slot: Slot) {
        let line = self.index.get(slot);
        if line.valid == 0 && line.dirty == 0 {
            self.index.drop_line(slot);
        }
    }

    /// The lost sectors of a line among `sectors`.
    pub(crate) fn lost_under(&self, key: LineKey, sectors: u8) -> u8 {
        self.index.line(key).lost() & sectors
    }

    /// Drops a line that is only buffered ([`BUFFERED`]), or makes it an ordinary one, if it is
    /// clean and idle.
    pub(crate) fn finish_buffered(&mut self, key: LineKey) {
        let Some(slot) = self.index.find(key) else { return };
        let line = *self.index.get(slot);
        if line.has(BUFFERED) && line.dirty == 0 && self.ops.busy(key).is_none() {
            buffered::finish(self.index, slot, !self.volume.is_frozen());
        }
    }

    /// Counts lost sectors as recovered, because they were rewritten in the pool or on the disk, or
    /// restored from a journal.
    pub(crate) fn count_recovered(&mut self, slot: Slot, sectors: u8) {
        let recovered = self.index.get(slot).lost() & sectors;
        if recovered != 0 {
            self.volume.remove_lost_sectors(recovered.count_ones().into());
        }
    }

    /// Marks lost sectors clean, because the disk has newer data for them.
    pub(crate) fn clean_lost(&mut self, slot: Slot, sectors: u8) {
        self.count_recovered(slot, sectors);
        let lost = self.index.get(slot).lost();
        self.clean(slot, sectors & lost);
    }

    /// Marks sectors of a slot clean. If only lost ones stay dirty, flushes no longer wait for the
    /// line.
    pub(crate) fn clean(&mut self, slot: Slot, sectors: u8) {
        if self.index.clean(slot, sectors) {
            return self.remove_dirty(slot);
        }
        let line = self.index.get(slot);
        if line.dirty != 0 && line.destageable() == 0 {
            self.volume.writeback_mut().give_up(line.key.line());
        }
    }

    /// Abandons all lost sectors of the volume.
    pub(crate) fn abandon_lost(&mut self) {
        let dirty: Vec<Slot> = self.dirty_slots().collect();
        for slot in dirty {
            let lost = self.index.get(slot).lost();
            if lost != 0 {
                let key = self.index.get(slot).key;
                self.clean_lost(slot, lost);
                if self.volume.mode() == Mode::Bypass {
                    // In bypass, the completion of an operation drops its clean lines. An idle line
                    // has no operation that will complete.
                    drop_if_idle(self.index, self.ops, slot);
                } else if self.ops.busy(key).is_none() {
                    self.drop_if_empty(slot);
                    self.finish_buffered(key);
                }
            }
        }
    }

    /// Marks lost sectors valid again, because the driver has restored them into the line's slot,
    /// which is neither pinned nor busy.
    pub(crate) fn restore_lost(&mut self, key: LineKey, sectors: u8) {
        let slot = self.index.find(key).expect("a line with lost sectors is resident");
        let line = *self.index.get(slot);
        let recovered = line.lost() & sectors;
        let is_idle = line.pins == 0 && self.ops.busy(key).is_none();
        assert!(recovered != 0 && is_idle, "nothing is lost, or the line is in use: {line:?}");
        self.count_recovered(slot, recovered);
        self.index.change(slot, line.valid | recovered);
        self.volume.counters_mut().regained_lines += 1;
    }

    /// Applies the verdict on a sealed line.
    pub(crate) fn apply_verdict(&mut self, key: LineKey, verdict: SealVerdict) {
        let counters = self.volume.counters_mut();
        counters.damaged_lines += 1;
        let SealVerdict::Lost { sectors } = verdict else {
            counters.corrected_lines += 1;
            return;
        };
        if let Some(slot) = self.index.find(key) {
            self.invalidate_damaged(slot, sectors & self.index.get(slot).valid);
        }
    }

    /// Invalidates damaged sectors. Clean ones are read from the disk again; dirty ones become
    /// lost.
    fn invalidate_damaged(&mut self, slot: Slot, sectors: u8) {
        let line = *self.index.get(slot);
        if sectors == 0 {
            return;
        }
        self.volume.counters_mut().refetched_lines += u64::from(sectors & !line.dirty != 0);
        let idle = self.ops.busy(line.key).is_none();
        if line.dirty == 0 && idle {
            self.index.drop_line(slot);
            return;
        }
        self.index.change(slot, line.valid & !sectors);
        let lost = sectors & line.dirty;
        if lost == 0 {
            return;
        }
        self.volume.counters_mut().lost_lines += 1;
        self.volume.add_lost_sectors(lost.count_ones().into());
        if self.planted.is(PlantedBug::ForgetLostSectors) {
            self.clean_lost(slot, lost);
            if self.index.get(slot).valid == 0 && idle {
                self.index.drop_line(slot);
            }
            return;
        }
        let left = self.index.get(slot).destageable();
        // The completion of a destage notifies the flushes; that of any other operation does not.
        let destage = self.ops.destage_of(line.key, slot);
        let gives_up = left == 0 && destage.is_none();
        self.volume.writeback_mut().record_loss(line.key, slot, destage, gives_up);
        if left == 0 {
            self.integrity.free_parity(slot, self.index);
            self.leave_epoch(line.key, slot);
        }
    }

    /// Removes a slot from its closed epoch, because nothing in it can be destaged any more.
    pub(crate) fn leave_epoch(&mut self, key: LineKey, slot: Slot) {
        let line = *self.index.get(slot);
        let Some(epochs) = self.volume.writeback_mut().epochs_mut() else { return };
        if line.has(FROZEN) {
            epochs.thaw(key, slot);
            self.quota.count_cleaned(self.id);
            self.integrity.free_parity(slot, self.index);
            self.index.thaw(slot);
        } else if line.dirty != 0 {
            epochs.reopen(key, slot);
        }
    }

    /// Marks the sectors in `done` clean after an attempt to destage a line of a closed epoch.
    pub(crate) fn finish_ordered(&mut self, key: LineKey, slot: Slot, done: u8) {
        let line = self.index.get(slot);
        if line.has(DETACHED) && !line.has(FROZEN) {
            return;
        }
        self.index.clean(slot, done);
        if self.index.get(slot).destageable() == 0 {
            self.leave_epoch(key, slot);
        }
    }

    /// Invalidates damaged sectors of a frozen slot. The resident line has the same sectors,
    /// unchanged or newer.
    pub(crate) fn invalidate_frozen(&mut self, key: LineKey, slot: Slot, sectors: u8) {
        self.index.invalidate_frozen(slot, sectors);
        let busy = self.ops.destage_of(key, slot).is_some();
        if self.index.get(slot).destageable() == 0 && !busy {
            self.volume.writeback_mut().abandon_frozen(slot);
            self.leave_epoch(key, slot);
        }
    }
}
