//! A shard over a table that a killed process has left.
//!
//! The process may have died between any two stores to the table, and in the middle of any copy
//! into a slot. Each slot is judged by its own sixteen bytes:
//!
//! | slot | says | becomes |
//! | --- | --- | --- |
//! | without a name | nothing | free |
//! | named, nothing valid or dirty but what was on its way | nothing | free |
//! | named, with valid or dirty sectors | what was not on its way, or is lost | a line |
//! | detached, nothing dirty | nothing: its line is elsewhere, or it was a payload | free |
//! | frozen | nothing: its line has the same, or something newer | free |
//! | detached, with dirty sectors | the line was moving, and these may not have arrived | *held* |
//!
//! and what is held is then brought together with the line of the same name:
//!
//! | the line has the sector | the held copy of it |
//! | --- | --- |
//! | valid, and it was not on its way | is void: the line has the same, or something newer |
//! | on its way, or not at all | is copied into the line; what is lost here is lost there |
//! | there is no such line | the slot becomes the line |
//!
//! A sector on its way whose place was clean is dropped: the disk has what was there before, and
//! the write was not acknowledged. One whose place was dirty never is on its way without a held
//! copy, since dirty sectors are not overwritten where they are. What a call has done to the disk
//! while the pool said otherwise is no trouble either: sectors under a write through the cache or
//! under an erase are not valid, unless they are dirty, and what is dirty goes to the disk again.
//!
//! The kernel may still be reading from a disk into slots that were pinned, after the process is
//! gone. So they stay pinned, and nothing is written there, until the volume is added: whoever
//! adds it has its disk locked, and the lock was held by what was under way.
//!
//! Recovery changes the table by the same steps as a move, so it may be killed like everything
//! else. Two lines of one name, or a dirty line of no known volume, can't come from a kill: then
//! the table is damaged, and nothing in it is believed.

use crate::index::Slots;
use crate::index::meta::{DETACHED, FROZEN, LineTable, in_order};
use crate::{LineKey, LineMeta, MemoryStep, Slot};
use forebay_types::VolumeId;

/// What a table is found to say that no killed process has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableDamage {
    /// Two slots claim to be the same line.
    Twice(LineKey),
    /// Something dirty is of a volume that nobody knows.
    Stray(LineKey),
}

impl std::fmt::Display for TableDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Twice(key) => {
                write!(f, "line {} of {} is in two places", key.line(), key.volume())
            }
            Self::Stray(key) => write!(f, "there is dirty data of {}, unknown", key.volume()),
        }
    }
}

impl std::error::Error for TableDamage {}

/// What becomes of a volume's lines in a table that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They are kept.
    Kept,
    /// The volume's disk is gone for good, and its lines with it.
    Gone,
    /// There is no such volume.
    Unknown,
}

/// What was found in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Lines kept.
    pub lines: u64,
    /// Those of them with dirty sectors.
    pub dirty_lines: u64,
    /// Lines that were on their way to another slot, with something that had not arrived.
    pub moving_lines: u64,
    /// Sectors that were being filled, and are dropped.
    pub torn_sectors: u64,
}

impl Recovery {
    /// Adds what was found in another table.
    pub const fn add(&mut self, other: &Self) {
        self.lines += other.lines;
        self.dirty_lines += other.dirty_lines;
        self.moving_lines += other.moving_lines;
        self.torn_sectors += other.torn_sectors;
    }
}

/// What a slot is worth by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Free,
    /// These sectors count.
    Line {
        valid: u8,
        dirty: u8,
    },
    /// These sectors count where the line has no newer ones. What else was valid counts if there is
    /// no line at all.
    Held {
        valid: u8,
        dirty: u8,
    },
}

/// The first table of the module's description.
const fn judge(line: &LineMeta) -> Verdict {
    let valid = line.valid & !line.filling;
    let dirty = line.dirty & !line.filling;
    match (line.key.0 == LineKey::NONE.0, line.has(DETACHED)) {
        (true, _) => Verdict::Free,
        (false, _) if line.has(FROZEN) => Verdict::Free,
        (false, false) if valid | dirty == 0 => Verdict::Free,
        (false, false) => Verdict::Line { valid, dirty },
        (false, true) if dirty == 0 => Verdict::Free,
        (false, true) => Verdict::Held { valid, dirty },
    }
}

/// The second: the sectors to be copied from what is held into the line.
const fn missing(held: u8, line_valid: u8) -> u8 {
    held & !line_valid
}

impl<M: LineTable> Slots<M> {
    /// Believes what a table says, as far as it can be. The copies that are left to do are appended
    /// to `steps`; nothing is settled before they are done.
    pub(crate) fn recover(
        &mut self,
        fate: &dyn Fn(VolumeId) -> Fate,
        steps: &mut Vec<MemoryStep>,
    ) -> Result<Recovery, TableDamage> {
        let mut found = Recovery::default();
        let mut held = Vec::new();
        let used = self.lines.iter().rposition(|line| line.key != LineKey::NONE);
        for slot in 0..used.map_or(0, |last| last as Slot + 1) {
            let line = *self.get(slot);
            let verdict = judge(&line);
            let fate = match verdict {
                Verdict::Free => Fate::Kept,
                _ => fate(line.key.volume()),
            };
            match verdict {
                Verdict::Line { dirty, .. } | Verdict::Held { dirty, .. }
                    if fate == Fate::Unknown && dirty != 0 =>
                {
                    return Err(TableDamage::Stray(line.key));
                }
                Verdict::Line { .. } | Verdict::Held { .. } if fate != Fate::Kept => {
                    self.set_aside(slot, fate != Fate::Gone);
                }
                Verdict::Line { valid, dirty } => {
                    if self.find(line.key).is_some() {
                        return Err(TableDamage::Twice(line.key));
                    }
                    found.torn_sectors += u64::from((line.filling & line.valid).count_ones());
                    self.take_over(slot, valid, dirty);
                }
                Verdict::Held { dirty, .. } => held.push((slot, dirty)),
                Verdict::Free if line.key != LineKey::NONE => {
                    let torn = if line.has(DETACHED) { 0 } else { line.filling & line.valid };
                    found.torn_sectors += u64::from(torn.count_ones());
                    self.set_aside(slot, line.key != LineKey::PARITY);
                }
                Verdict::Free => {}
            }
        }
        self.set_used(used.map_or(0, |last| last as Slot + 1));
        for &(slot, dirty) in &held {
            found.moving_lines += 1;
            self.take_held(slot, dirty, steps);
        }
        self.free_the_rest();
        Ok(found)
    }

    /// A slot that is detached becomes the line it holds, or gives it what it lacks.
    fn take_held(&mut self, slot: Slot, dirty: u8, steps: &mut Vec<MemoryStep>) {
        let line = *self.get(slot);
        let Some(live) = self.find(line.key) else {
            self.take_over(slot, line.valid & !line.filling, dirty);
            return;
        };
        let there = self.get(live).valid;
        let mask = missing(dirty & line.valid, there);
        let lost = missing(dirty & !line.valid, there);
        let in_use = line.pins > 0;
        self.get_mut(slot).pins = 1 + u32::from(in_use);
        if in_use {
            self.in_doubt.push(slot);
        }
        self.leave(slot);
        if mask != 0 {
            steps.extend(MemoryStep::copies(slot, live, mask));
            self.mark_dirty(live, mask);
        }
        self.get_mut(live).dirty |= lost;
        if lost != 0 {
            self.dirty.insert(live);
        }
    }

    /// Makes a slot the one of its line, with these sectors and nobody who uses it.
    fn take_over(&mut self, slot: Slot, valid: u8, dirty: u8) {
        let key = self.get(slot).key;
        self.get_mut(slot).valid = valid;
        in_order();
        self.get_mut(slot).dirty = dirty;
        in_order();
        self.get_mut(slot).filling = 0;
        in_order();
        self.get_mut(slot).flags = 0;
        self.keep_pin(slot);
        self.unsealed.insert(slot);
        if dirty != 0 {
            self.dirty.insert(slot);
        }
        self.index_line(key, slot);
    }

    /// A slot holds nothing, and is free, if nobody may still be using it.
    fn set_aside(&mut self, slot: Slot, may_be_used: bool) {
        self.get_mut(slot).dirty = 0;
        in_order();
        self.get_mut(slot).valid = 0;
        in_order();
        self.get_mut(slot).filling = 0;
        if may_be_used && self.get(slot).pins > 0 {
            self.get_mut(slot).flags = DETACHED;
            self.keep_pin(slot);
        } else {
            self.clear(slot);
        }
    }

    /// One pin stands for all that there were.
    fn keep_pin(&mut self, slot: Slot) {
        let in_use = self.get(slot).pins > 0;
        self.get_mut(slot).pins = u32::from(in_use);
        if in_use {
            self.in_doubt.push(slot);
        }
    }

    /// Nothing of a volume is under way any more that was when the process before died.
    pub(crate) fn trust(&mut self, volume: VolumeId) {
        let mut in_doubt = std::mem::take(&mut self.in_doubt);
        in_doubt.retain(|&slot| {
            let is_theirs = self.get(slot).key.volume() == volume;
            if is_theirs {
                self.unpin(slot);
            }
            !is_theirs
        });
        self.in_doubt = in_doubt;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(valid: u8, dirty: u8, filling: u8, flags: u8) -> LineMeta {
        let key = LineKey::new(VolumeId(0), 7);
        LineMeta { key, valid, dirty, filling, flags, pins: 3 }
    }

    /// Every combination of the first table, for one sector and what else there may be.
    #[test]
    fn each_slot_is_judged_by_its_own_bytes() {
        for bits in 0..64u8 {
            let bit = |at: u8| bits >> at & 1;
            let (valid, dirty, filling) = (bit(0), bit(1), bit(2));
            let flags = (bit(3) * DETACHED) | (bit(4) * crate::index::meta::MARK);
            let mut line = line(valid, dirty, filling, flags);
            let named = bit(5) != 0;
            if !named {
                line.key = LineKey::NONE;
            }
            let counts = named && valid | dirty == 1 && filling == 0;
            let expected = match (counts, bit(3) != 0, dirty == 1) {
                (false, _, _) | (true, true, false) => Verdict::Free,
                (true, false, _) => Verdict::Line { valid, dirty },
                (true, true, true) => Verdict::Held { valid, dirty },
            };
            assert_eq!(judge(&line), expected, "{line:?}");
        }
    }

    #[test]
    fn what_is_held_counts_where_the_line_has_nothing() {
        for held in [0, 1] {
            for valid in [0, 1] {
                assert_eq!(missing(held, valid), held * (1 - valid));
            }
        }
    }
}
