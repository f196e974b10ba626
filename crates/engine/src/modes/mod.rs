//! How writes are acknowledged: one file per mode, and the one function that says which applies.

mod bypass;
pub(crate) mod erase;
pub(crate) mod read;
mod staged;
mod write_back;
mod write_through;

use crate::index::key::line_parts;
use crate::index::meta::LineTable;
use crate::ops::{OpKind, WaitFor};
use crate::sabotage::PlantedBug;
use crate::{Attempt, LineKey, MemoryStep, Outbox, Part, Shard, Slot, Touched};
use forebay_policy::Hint;
use forebay_types::{IoError, Mode};

/// How often a part is throttled before it goes through to the disk.
const THROTTLED_ATTEMPTS_MAX: u8 = 16;

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It is acknowledged; the payload is no longer needed.
    Done,
    /// It is refused with this error; the payload is no longer needed.
    Failed(IoError),
    /// The part is told to try again, and needs its payload then.
    Waiting,
    /// It is on its way to the disk, and the part is told when it is there. Until then segments of
    /// its I/O may mean the payload.
    Started,
    /// It is to go to the disk, and the volume is ordered: it is to be tried again, with
    /// [`Attempt::in_order`], when everything of the epochs before this one is there. It needs its
    /// payload then.
    Held {
        /// Something under it is dirty, so this epoch has to be there as well.
        dirty: bool,
    },
}

/// What keeps dirty data besides the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// Nothing: what must be on stable storage goes to the disk.
    #[default]
    None,
    /// A journal: it is told of every change, and stands in for the disk's stable storage.
    Journal,
    /// A supply that bridges a loss of power: the pool stands in for stable storage.
    Power,
}

/// What is asked of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteTerms {
    /// It is to be acknowledged from stable storage only.
    pub fua: bool,
    /// It is to go to the disk before it is acknowledged, whatever the mode: what protects the
    /// volume can't take it.
    pub through: bool,
    /// The driver's epoch, if the volume is ordered.
    pub epoch: u64,
    /// The time, in milliseconds.
    pub now_ms: u64,
}

/// Why a write in a write-back volume goes through to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Through {
    Mode,
    Protection,
    Fua,
    DirtyLimit,
    NoRoom,
}

/// Where the bytes of a write are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// In a payload, to be copied into the pool.
    Payload,
    /// In the slots already.
    Slots,
}

/// The mode in force for one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effective {
    WriteBack,
    WriteThrough(Through),
    Bypass,
}

/// The one place where the mode in force is decided.
const fn effective(
    mode: Mode,
    protection: Protection,
    terms: WriteTerms,
    dirty_room: bool,
) -> Effective {
    let protected = !matches!(protection, Protection::None);
    match mode {
        Mode::Bypass => Effective::Bypass,
        Mode::WriteThrough => Effective::WriteThrough(Through::Mode),
        Mode::WriteBack if terms.through => Effective::WriteThrough(Through::Protection),
        Mode::WriteBack if terms.fua && !protected => Effective::WriteThrough(Through::Fua),
        Mode::WriteBack if !dirty_room => Effective::WriteThrough(Through::DirtyLimit),
        Mode::WriteBack => Effective::WriteBack,
    }
}

impl<M: LineTable> Shard<M> {
    /// Writes a part.
    pub fn write(
        &mut self,
        part: &Part,
        terms: WriteTerms,
        attempt: Attempt,
        out: &mut Outbox,
    ) -> WriteOutcome {
        self.assert_part(part);
        self.advance(part.volume, terms.epoch);
        let fua = self.disk_fua(part, terms);
        match self.effective(part, terms) {
            Effective::WriteBack => self.write_back(part, fua, attempt, terms.now_ms, out),
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

    fn effective(&self, part: &Part, terms: WriteTerms) -> Effective {
        let state = self.volume(part.volume);
        let fua = terms.fua && !self.planted.is(PlantedBug::AcknowledgeFuaFromMemory);
        let terms = WriteTerms { fua, ..terms };
        effective(state.mode(), state.protection(), terms, self.has_dirty_room(part))
    }

    /// Whether a write that goes to the disk is to be on stable storage there. What goes past a
    /// journal must be: the journal's older record of the place is void from then on. So must what
    /// a UPS does not cover: power may fail at any moment.
    fn disk_fua(&self, part: &Part, terms: WriteTerms) -> bool {
        let fua = terms.fua && !self.planted.is(PlantedBug::AcknowledgeFuaFromMemory);
        fua || self.tells_journal(part) || self.promises_stable(part.volume)
    }

    /// Brings what the pool holds of a part to the disk: what protects the volume has failed to
    /// keep it. Done means that the disk has it, in its own cache at least.
    pub fn settle(&mut self, part: &Part, attempt: Attempt, out: &mut Outbox) -> WriteOutcome {
        if self.wait_if_busy(part, |_| true) {
            return WriteOutcome::Waiting;
        }
        self.destage_under(part, attempt, out).unwrap_or(WriteOutcome::Done)
    }

    /// Whether the lines of a part may become dirty.
    fn has_dirty_room(&self, part: &Part) -> bool {
        let lines = line_parts(part.volume, part.range);
        let room = self.quota.free_lines();
        // Far from the limit, nobody counts which of the lines are dirty already.
        let (fewest, _) = lines.size_hint();
        if fewest <= room {
            return true;
        }
        let is_dirty = |key| {
            self.index.find(key).is_some_and(|slot| {
                let line = self.index.get(slot);
                line.dirty != 0 && !self.is_closed(line)
            })
        };
        lines.filter(|line| !is_dirty(line.key)).count() <= room
    }

    /// Throttles a part that finds too much dirty, or in use. Returns false if that would bring it
    /// nothing: the part waited often, is too long for there ever to be room, or no destage can
    /// make progress.
    fn throttle(&mut self, part: &Part, now_ms: u64, attempt: Attempt, out: &mut Outbox) -> bool {
        let (lines, _) = line_parts(part.volume, part.range).size_hint();
        let never = lines > self.quota.config().dirty_lines_max;
        !never
            && attempt.count < THROTTLED_ATTEMPTS_MAX
            && self.destager(part.volume).throttle(part.id, lines, now_ms, out)
    }

    /// Waits if one of the part's lines is busy in a way that `conflicts`.
    fn wait_if_busy(&mut self, part: &Part, conflicts: impl Fn(OpKind) -> bool) -> bool {
        let busy = line_parts(part.volume, part.range).find_map(|line| {
            self.ops.busy(line.key).filter(|&(_, kind)| conflicts(kind)).map(|(op, _)| op)
        });
        if let Some(op) = busy {
            self.wait(op, part, WaitFor::End);
        }
        busy.is_some()
    }

    /// Looks up the part's lines into the scratch list and pins those that are there, so that
    /// making room for the others can't evict them. Returns how many are there and how many not.
    fn look_up_pinned(&mut self, part: &Part) -> Touched {
        self.scratch.clear();
        for line in line_parts(part.volume, part.range) {
            let found = self.index.find(line.key);
            if let Some(slot) = found {
                self.index.pin(slot);
            }
            self.scratch.push((line, found));
        }
        let hits = self.scratch.iter().filter(|(_, slot)| slot.is_some()).count() as u32;
        Touched { hits, misses: self.scratch.len() as u32 - hits }
    }

    /// Counts the lines of a write that is being done: each once, however often it was tried.
    fn count_write(&mut self, part: &Part, touched: Touched) {
        let counters = self.volume_mut(part.volume).counters_mut();
        counters.write_hit_lines += u64::from(touched.hits);
        counters.write_miss_lines += u64::from(touched.misses);
    }

    fn count_through(&mut self, part: &Part, why: Through) {
        let counters = self.volume_mut(part.volume).counters_mut();
        match why {
            Through::Mode => counters.writes_through_mode += 1,
            Through::Protection => counters.writes_through_protection += 1,
            Through::Fua => counters.writes_through_fua += 1,
            Through::DirtyLimit => counters.writes_through_dirty_limit += 1,
            Through::NoRoom => counters.writes_through_no_room += 1,
        }
    }

    /// The memory steps of the call have been carried out: what it has marked is true from here
    /// on. To be called after each call to the shard, before it is let go of.
    pub fn settle_steps(&mut self) {
        self.index.settle();
    }

    /// Moves a line that others have pinned (its one pin more is ours) to a slot of its own.
    /// The sectors in `rewritten` are about to be written, and need not come along.
    pub(crate) fn move_away(
        &mut self,
        slot: Slot,
        rewritten: u8,
        out: &mut Outbox,
    ) -> Option<Slot> {
        let new = self.index.reserve(self.index.get(slot).key, Hint::Normal)?;
        self.move_to(slot, new, rewritten, out);
        Some(new)
    }

    /// The same, to a slot that was reserved for it.
    fn move_to(&mut self, slot: Slot, new: Slot, rewritten: u8, out: &mut Outbox) {
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
            self.index.believe();
        }
        if freeze {
            self.quota.found_dirty(1);
            let writeback = self.volume_mut(line.key.volume()).writeback_mut();
            writeback.epochs_mut().expect("only ordered volumes freeze").froze(line.key.line());
        } else if line.dirty != 0 {
            self.integrity.give_back(slot, &mut self.index);
            self.dirty_moved(line.key, slot, new);
        }
        let in_use = u64::from(line.pins > 1);
        self.volume_mut(line.key.volume()).counters_mut().relocated_lines += in_use;
    }

    /// A dirty line has moved. If its old content is on its way to the disk, that is all that
    /// flushes wait for which came before.
    fn dirty_moved(&mut self, key: LineKey, old: Slot, new: Slot) {
        let destaging = self.ops.is_destaging(key, old);
        let writeback = self.volumes.get_mut(key.volume()).writeback_mut();
        if self.planted.is(PlantedBug::ChangeClosedEpoch)
            && let Some(epochs) = writeback.epochs_mut()
        {
            epochs.moved_closed(key, old, new);
        }
        if self.planted.is(PlantedBug::ForgetMovedInFlush) {
            writeback.forget(key.line());
        }
        if destaging {
            self.ops.supersede(key, old, writeback.superseded(key.line()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_in_force() {
        use Effective::{Bypass, WriteBack, WriteThrough};
        let no = WriteTerms::default();
        let fua = WriteTerms { fua: true, ..no };
        let through = WriteTerms { through: true, ..no };
        for protection in [Protection::None, Protection::Journal, Protection::Power] {
            for terms in [no, fua, through] {
                for room in [false, true] {
                    assert_eq!(effective(Mode::Bypass, protection, terms, room), Bypass);
                    let mode = WriteThrough(Through::Mode);
                    assert_eq!(effective(Mode::WriteThrough, protection, terms, room), mode);
                }
            }
            let back = |terms, room| effective(Mode::WriteBack, protection, terms, room);
            assert_eq!(back(no, true), WriteBack);
            assert_eq!(back(no, false), WriteThrough(Through::DirtyLimit));
            assert_eq!(back(through, true), WriteThrough(Through::Protection));
            let bare = protection == Protection::None;
            assert_eq!(back(fua, true), if bare { WriteThrough(Through::Fua) } else { WriteBack });
        }
    }
}
