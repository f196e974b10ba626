//! Reads, writes and erases: the writes in one file per cache mode, and the function that decides
//! the effective mode.
//!
//! A part waits while one of its lines is in a conflicting operation, and is then tried again. It
//! is either acknowledged from the pool or becomes one operation on the disk. The place of each
//! acknowledgement is marked with a comment.

mod bypass;
pub(crate) mod erase;
mod long_erase;
pub(crate) mod read;
mod staged;
mod write_back;
mod write_through;

use crate::index::buffered;
use crate::index::prepare_lookups;
use crate::line::key::{LinePart, line_parts};
use crate::line::meta::LineTable;
use crate::lines::VolumeLines;
use crate::ops::{OpKind, WaitFor};
use crate::sabotage::PlantedBug;
use crate::volume::{Protection, holds_out_writes};
use crate::{Attempt, JournalOp, LineHits, LineMeta, Outbox, Part, Slot, Uncached, WaitsFor};
use forebay_policy::Hint;
use forebay_types::{IoError, Mode};

/// The number of attempts after which a part is no longer throttled, but written through to the
/// disk.
const THROTTLED_ATTEMPTS_MAX: u8 = 16;

/// The result of an attempt to write a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The write is acknowledged; the payload is no longer needed.
    Done,
    /// The write failed; the payload is no longer needed.
    Failed(IoError),
    /// The part waits, and is retried after [`crate::Outcome::Retry`]; it needs its payload then.
    Waiting,
    /// The write to the disk has started; the part is answered when it completes. Until then
    /// segments of the I/O may refer to the payload.
    Started,
    /// The write must go to the disk, and the volume is ordered. Try again with
    /// [`Attempt::in_order`] when all earlier epochs are on the disk; the part needs its payload
    /// then.
    Held {
        /// Sectors under the write are dirty, so the current epoch must be on the disk as well.
        dirty: bool,
    },
}

/// The conditions of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteTerms {
    /// The write must be acknowledged from stable storage.
    pub fua: bool,
    /// The write must be on the disk before it is acknowledged, whatever the mode: the volume's
    /// protection does not cover it.
    pub through: bool,
    /// The driver's epoch. Meaningless for a volume that is not ordered.
    pub epoch: u64,
    /// The current time, in milliseconds.
    pub now_ms: u64,
    /// Whether the journal records the write if it is acknowledged from memory.
    pub record: JournalRecording,
}

/// Whether the journal records a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalRecording {
    /// It does not record the write.
    #[default]
    No,
    /// It records the write; the part is answered at once.
    Answered,
    /// It records the write, and answers the part when the record is durable.
    Answers,
}

/// Why a write is written through to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Through {
    Mode,
    Protection,
    Fua,
    Flushed,
    DirtyLimit,
    NoRoom,
    HoldOut,
}

impl Through {
    const fn reason(self) -> Uncached {
        match self {
            Self::Mode => Uncached::WriteThrough,
            Self::Protection => Uncached::Protection,
            Self::Fua => Uncached::Fua,
            Self::Flushed => Uncached::Flushed,
            Self::DirtyLimit => Uncached::DirtyLimit,
            Self::NoRoom => Uncached::NoRoom,
            Self::HoldOut => Uncached::HoldOut,
        }
    }
}

/// Where the bytes of a write are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteSource {
    /// In the payload, to be copied into the pool.
    Payload,
    /// In the slots already.
    Slots,
}

/// The effective mode of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effective {
    WriteBack,
    WriteThrough(Through),
    Bypass,
}

/// Decides the effective mode of a write. No other function does.
const fn effective(
    mode: Mode,
    protection: Protection,
    terms: WriteTerms,
    fits_quota: bool,
    (held_out, flushed): (bool, bool),
) -> Effective {
    let protected = !matches!(protection, Protection::None);
    match mode {
        Mode::Bypass => Effective::Bypass,
        _ if held_out => Effective::WriteThrough(Through::HoldOut),
        Mode::WriteThrough => Effective::WriteThrough(Through::Mode),
        Mode::WriteBack if terms.through => Effective::WriteThrough(Through::Protection),
        Mode::WriteBack if terms.fua && !protected => Effective::WriteThrough(Through::Fua),
        Mode::WriteBack if flushed => Effective::WriteThrough(Through::Flushed),
        Mode::WriteBack if !fits_quota => Effective::WriteThrough(Through::DirtyLimit),
        Mode::WriteBack => Effective::WriteBack,
    }
}

/// Writes and erases parts of one volume.
pub(crate) struct PartWriter<'a, M> {
    lines: VolumeLines<'a, M>,
    scratch: &'a mut Scratch,
}

/// Lists that calls reuse, so that a write acknowledged from memory allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The lines of the current part, and their slots.
    lines: Vec<(LinePart, Option<Slot>)>,
    /// Slots reserved for lines of the current part. Empty between calls.
    reserved: Vec<Slot>,
}

impl<'a, M: LineTable> PartWriter<'a, M> {
    pub(crate) const fn new(lines: VolumeLines<'a, M>, scratch: &'a mut Scratch) -> Self {
        Self { lines, scratch }
    }

    /// See [`crate::Shard::write`]. `found` is the line of a part of one line, if it is in the
    /// pool.
    pub(crate) fn write(
        &mut self,
        part: &Part,
        found: Option<(Slot, LineMeta)>,
        terms: WriteTerms,
        attempt: Attempt,
        out: &mut Outbox,
    ) -> WriteOutcome {
        self.lines.advance_epoch(terms.epoch);
        let fua = self.disk_fua(part, terms);
        match self.effective(part, terms, attempt) {
            Effective::WriteBack => {
                let is_done =
                    found.is_some_and(|it| self.overwrite_line(part, it, terms.now_ms, out));
                let outcome = match is_done {
                    true => WriteOutcome::Done,
                    false => self.write_back(part, fua, attempt, terms.now_ms, out),
                };
                self.record(part, &[], terms.record, outcome, out)
            }
            Effective::WriteThrough(Through::DirtyLimit)
                if self.throttle(part, terms.now_ms, attempt, out) =>
            {
                WriteOutcome::Waiting
            }
            Effective::WriteThrough(why) => {
                self.write_through(part, fua, why, attempt, terms.now_ms, out)
            }
            Effective::Bypass => self.write_bypass(part, fua, attempt, terms.now_ms, out),
        }
    }

    /// Adds a journal record for a write that was acknowledged from memory.
    fn record(
        &self,
        part: &Part,
        staged: &[Slot],
        record: JournalRecording,
        outcome: WriteOutcome,
        out: &mut Outbox,
    ) -> WriteOutcome {
        if outcome == WriteOutcome::Done && record != JournalRecording::No {
            let wait = record == JournalRecording::Answers;
            let kind = JournalOp::Write { slots: staged.to_vec(), wait };
            self.lines.notify_journal(part.id, part.range, kind, out);
        }
        outcome
    }

    fn effective(&mut self, part: &Part, terms: WriteTerms, attempt: Attempt) -> Effective {
        if attempt.count == 0 && !part.restores {
            self.lines.volume.writeback_mut().scheduler_mut().count_write(terms.now_ms);
        }
        let flushed = self.is_flushed(part, attempt);
        let state = &*self.lines.volume;
        let fua = terms.fua && !self.lines.planted.is(PlantedBug::AcknowledgeFuaFromMemory);
        let terms = WriteTerms { fua, ..terms };
        let held_out = self.is_held_out(part);
        let fits_quota = self.fits_quota(part);
        effective(state.mode(), state.protection(), terms, fits_quota, (held_out, flushed))
    }

    /// Whether a write goes to the disk because a flush is likely to wait for it. Writes to a line
    /// that others write too stay in memory: one destage serves them all.
    fn is_flushed(&self, part: &Part, attempt: Attempt) -> bool {
        let state = &*self.lines.volume;
        let is_busy = |key| {
            let found = self.lines.index.find(key);
            let is_dirty = found.is_some_and(|slot| self.lines.index.get(slot).dirty != 0);
            is_dirty || self.lines.ops.busy(key).is_some()
        };
        state.writeback().scheduler().favours_disk()
            && state.protection() == Protection::None
            && !(state.is_ordered() || part.restores || attempt.count > 0)
            && !line_parts(part.volume, part.range).any(|line| is_busy(line.key))
    }

    /// Whether a write goes to the disk because its region is held out.
    fn is_held_out(&self, part: &Part) -> bool {
        let state = &*self.lines.volume;
        state.holds_out(part.range.offset) && !part.restores && holds_out_writes(state)
    }

    /// Whether a write to the disk brings lines into the pool that are not there. Nothing new of a
    /// held-out region or of a frozen volume comes into it.
    fn admits_write(&self, why: Through) -> bool {
        why != Through::HoldOut && !self.lines.volume.is_frozen()
    }

    /// Marks a new line of a write that is acknowledged from memory, if the volume is frozen: its
    /// data needs a place until the disk has it.
    fn mark_buffered(&mut self, slot: Slot) {
        if self.lines.volume.is_frozen() && !self.lines.planted.is(PlantedBug::KeepBuffered) {
            buffered::mark(self.lines.index, slot);
        }
    }

    /// The number of lines of a held-out part that is written as if there were no cache: in the
    /// first attempt, and without FUA on behalf of the journal or the UPS. Otherwise zero.
    fn pure_lines(&self, part: &Part, why: Through, attempt: Attempt) -> u16 {
        let is_forced =
            self.lines.is_recorded(part) || self.lines.volume.promises_stable(self.lines.planted);
        let is_pure = why == Through::HoldOut && attempt.count == 0 && !is_forced;
        if is_pure { line_parts(part.volume, part.range).count() as u16 } else { 0 }
    }

    /// Whether a write to the disk must reach stable storage. A write past a journal must, because
    /// it voids the journal's older record of the range. So must a write that the UPS does not
    /// cover, because power may fail at any moment.
    fn disk_fua(&self, part: &Part, terms: WriteTerms) -> bool {
        let fua = terms.fua && !self.lines.planted.is(PlantedBug::AcknowledgeFuaFromMemory);
        fua || self.lines.is_recorded(part) || self.lines.volume.promises_stable(self.lines.planted)
    }

    /// See [`crate::Shard::destage_part`].
    pub(crate) fn destage_part(
        &mut self,
        part: &Part,
        attempt: Attempt,
        out: &mut Outbox,
    ) -> WriteOutcome {
        if self.wait_if_busy(part, |_| true, out) || self.destage_under(part, attempt, out) {
            return WriteOutcome::Waiting;
        }
        WriteOutcome::Done
    }

    /// Whether the quota lets the lines of a part become dirty.
    fn fits_quota(&self, part: &Part) -> bool {
        if self.lines.planted.is(PlantedBug::PassDirtyLimit) {
            return true;
        }
        let lines = line_parts(part.volume, part.range);
        let free = self.lines.quota.free_lines(part.volume);
        // Far from the limit, skip counting the lines that are dirty already.
        let (fewest, _) = lines.size_hint();
        if fewest <= free {
            return true;
        }
        let is_dirty = |key| {
            self.lines.index.find(key).is_some_and(|slot| {
                let line = self.lines.index.get(slot);
                line.dirty != 0 && !self.lines.is_closed(line)
            })
        };
        lines.filter(|line| !is_dirty(line.key)).count() <= free
    }

    /// Throttles a part at the dirty limit or without a free slot. Returns false if waiting is
    /// useless: the part has been tried too often, is longer than the dirty limit, or no destage
    /// can make progress.
    fn throttle(&mut self, part: &Part, now_ms: u64, attempt: Attempt, out: &mut Outbox) -> bool {
        let (lines, _) = line_parts(part.volume, part.range).size_hint();
        let never = lines > self.lines.quota.lines_max(part.volume);
        out.waits_for = WaitsFor::Throttle;
        !never
            && attempt.count < THROTTLED_ATTEMPTS_MAX
            && self.lines.destager().throttle(part.id, lines, now_ms, out)
    }

    /// Whether a part is held because of its epoch, and if so, whether sectors under it are dirty.
    fn held_by_epoch(&self, part: &Part, attempt: Attempt) -> Option<bool> {
        let epochs = self.lines.volume.writeback().epochs()?;
        if self.lines.planted.is(PlantedBug::PassEpochs) {
            return None;
        }
        // Where the newest version of a sector is lost, an older, frozen one may still be destaged.
        let is_dirty = line_parts(part.volume, part.range).any(|line| {
            let newest = self.lines.index.find(line.key).into_iter();
            let mut slots = newest.chain(epochs.versions(line.key));
            slots.any(|slot| self.lines.index.get(slot).destageable() & line.mask != 0)
        });
        (is_dirty || !attempt.in_order).then_some(is_dirty)
    }

    /// Makes a part wait if an operation on one of its lines `conflicts`.
    fn wait_if_busy(
        &mut self,
        part: &Part,
        conflicts: impl Fn(OpKind) -> bool,
        out: &mut Outbox,
    ) -> bool {
        let busy = line_parts(part.volume, part.range).find_map(|line| {
            self.lines.ops.busy(line.key).filter(|&(_, kind)| conflicts(kind)).map(|(op, _)| op)
        });
        if let Some(op) = busy {
            self.lines.wait(op, part, WaitFor::End, out);
        }
        busy.is_some()
    }

    /// Looks up the lines of a part into the scratch list and pins the resident ones, so that
    /// allocating slots for the others cannot evict them.
    fn look_up_pinned(&mut self, part: &Part) -> LineHits {
        self.scratch.lines.clear();
        prepare_lookups(self.lines.index, part.volume, part.range);
        for line in line_parts(part.volume, part.range) {
            let found = self.lines.index.find(line.key);
            if let Some(slot) = found {
                self.lines.index.pin(slot);
            }
            self.scratch.lines.push((line, found));
        }
        let hits = self.scratch.lines.iter().filter(|(_, slot)| slot.is_some()).count() as u16;
        let misses = self.scratch.lines.len() as u16 - hits;
        LineHits { hits, misses, ..LineHits::default() }
    }

    /// Counts the lines of a write once, in the attempt that carries it out.
    fn count_write(&mut self, part: &Part, line_hits: LineHits, out: &mut Outbox) {
        // As for reads: a frozen volume admits nothing that more memory would keep.
        if line_hits.misses == 0 || !self.lines.volume.is_frozen() {
            self.lines.record_access(part, Hint::Write);
        }
        if line_hits.uncached == Some(Uncached::HoldOut) {
            let (samples, _) = self.lines.volume.sampling_mut();
            samples.count_held_out(line_hits.hits, line_hits.misses);
        }
        out.write_hits = line_hits;
        let counters = self.lines.volume.counters_mut();
        counters.write_hit_lines += u64::from(line_hits.hits);
        counters.write_miss_lines += u64::from(line_hits.misses);
    }

    fn count_through(&mut self, why: Through) {
        let counters = self.lines.volume.counters_mut();
        match why {
            Through::Mode => counters.writes_through_mode += 1,
            Through::Protection => counters.writes_through_protection += 1,
            Through::Fua => counters.writes_through_fua += 1,
            Through::Flushed => counters.writes_through_flushed += 1,
            Through::DirtyLimit => counters.writes_through_dirty_limit += 1,
            Through::NoRoom => counters.writes_through_no_room += 1,
            Through::HoldOut => counters.writes_through_hold_out += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effective_mode_of_each_combination() {
        use Effective::{Bypass, WriteBack, WriteThrough};
        let no = WriteTerms::default();
        let fua = WriteTerms { fua: true, ..no };
        let through = WriteTerms { through: true, ..no };
        for protection in [Protection::None, Protection::Journal, Protection::Power] {
            for terms in [no, fua, through] {
                for room in [false, true] {
                    let of = |mode, held| effective(mode, protection, terms, room, (held, false));
                    assert_eq!([of(Mode::Bypass, false), of(Mode::Bypass, true)], [Bypass; 2]);
                    assert_eq!(of(Mode::WriteThrough, false), WriteThrough(Through::Mode));
                    let held = [of(Mode::WriteThrough, true), of(Mode::WriteBack, true)];
                    assert_eq!(held, [WriteThrough(Through::HoldOut); 2]);
                }
            }
            let back =
                |terms, room| effective(Mode::WriteBack, protection, terms, room, (false, false));
            assert_eq!(back(no, true), WriteBack);
            assert_eq!(back(no, false), WriteThrough(Through::DirtyLimit));
            assert_eq!(back(through, true), WriteThrough(Through::Protection));
            let bare = protection == Protection::None;
            let flushed = effective(Mode::WriteBack, protection, no, true, (false, true));
            assert_eq!(flushed, WriteThrough(Through::Flushed));
            assert_eq!(back(fua, true), if bare { WriteThrough(Through::Fua) } else { WriteBack });
        }
    }
}
