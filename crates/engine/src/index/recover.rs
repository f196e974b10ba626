//! Adopts the line table of a killed process.
//!
//! The process may have died between any two stores to the table, and in the middle of any copy
//! into a slot. Each slot is first classified by its own sixteen bytes:
//!
//! | slot | what counts | becomes |
//! | --- | --- | --- |
//! | no key | nothing | free |
//! | marked as away, and so is its whole slab | nothing | away: its memory is given back |
//! | marked as away, but not its whole slab is | nothing | free |
//! | a key; no sector valid or dirty except filling ones | nothing | free |
//! | a key; valid or dirty sectors that are not filling | these sectors | a line |
//! | detached; no sector dirty | nothing: its line is elsewhere, or it was a payload | free |
//! | frozen | nothing: its line has the same or newer data | free |
//! | detached; dirty sectors | the dirty ones: the line was being relocated | *held* |
//!
//! A held slot is then merged with the line of the same key:
//!
//! | the sector in the line | the sector in the held slot |
//! | --- | --- |
//! | valid and not filling | is void: the line has the same or newer data |
//! | filling or not valid | is copied to the line; a lost sector becomes lost in the line |
//! | there is no line | the slot becomes the line |
//!
//! A filling sector that replaced clean data is dropped: the disk has the old data, and the write
//! was not acknowledged. A filling sector that replaced dirty data always has a held copy, because
//! dirty sectors are never overwritten in place. Changes to the disk that the table does not show
//! do no harm: sectors under a write through the cache or an erase are valid only if they are
//! dirty, and dirty sectors will be destaged again.
//!
//! The kernel may still read from a disk into pinned slots after the process has died. So these
//! stay pinned and unchanged until the volume is added. The driver must hold the lock of the
//! volume's disk by then; I/O of the dead process keeps it locked until that I/O has ended.
//!
//! Recovery changes the table in the same steps as a relocation, so it may itself be killed at any
//! point. A kill cannot produce two lines with one key, or a dirty line of an unknown volume. A
//! table with either is damaged, and none of it is used.

use crate::index::Slots;
use crate::line::meta::{BUFFERED, DETACHED, FROZEN, LineTable, in_order};
use crate::{LineKey, LineMeta, MemoryStep, Slot};
use forebay_policy::Hint;
use forebay_types::VolumeId;

/// A state of the table that no kill can produce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableDamage {
    /// Two slots hold the same line.
    Twice(LineKey),
    /// A dirty line belongs to an unknown volume.
    Stray(LineKey),
}

impl std::fmt::Display for TableDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Twice(key) => {
                let (line, volume) = (key.line(), key.volume());
                write!(f, "line table damaged: line {line} of {volume} is in two slots")
            }
            Self::Stray(key) => {
                let (line, volume) = (key.line(), key.volume());
                write!(f, "line table damaged: dirty line {line} is of {volume}, which is unknown")
            }
        }
    }
}

impl std::error::Error for TableDamage {}

/// What to do with a volume's lines in an adopted table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Keep them.
    Kept,
    /// Drop them, because the volume's disk is gone for good.
    Gone,
    /// There is no such volume. Drop clean lines; a dirty line means that the table is damaged.
    Unknown,
}

/// What was found in an adopted table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Lines kept.
    pub lines: u64,
    /// Kept lines with dirty sectors.
    pub dirty_lines: u64,
    /// Lines with dirty sectors whose relocation was interrupted.
    pub moving_lines: u64,
    /// Sectors dropped because they were filling.
    pub torn_sectors: u64,
    /// Slots whose memory was given back.
    pub given_back_lines: u64,
}

impl Recovery {
    /// Adds the counts of another table.
    pub const fn add(&mut self, other: &Self) {
        self.lines += other.lines;
        self.dirty_lines += other.dirty_lines;
        self.moving_lines += other.moving_lines;
        self.torn_sectors += other.torn_sectors;
        self.given_back_lines += other.given_back_lines;
    }
}

/// What a slot holds, by its own sixteen bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotContent {
    Free,
    /// A line with these sectors.
    Line {
        valid: u8,
        dirty: u8,
    },
    /// An interrupted relocation. If another slot has the line, the dirty sectors replace those
    /// that are not valid there. Otherwise this slot becomes the line, with its valid sectors.
    Held {
        valid: u8,
        dirty: u8,
    },
}

/// Classifies a slot by the first table of the module's documentation.
const fn classify(line: &LineMeta) -> SlotContent {
    let valid = line.valid & !line.filling;
    let dirty = line.dirty & !line.filling;
    match (line.key.0 == LineKey::NONE.0, line.has(DETACHED)) {
        (true, _) => SlotContent::Free,
        (false, _) if line.has(FROZEN) => SlotContent::Free,
        (false, false) if valid | dirty == 0 => SlotContent::Free,
        (false, false) => SlotContent::Line { valid, dirty },
        (false, true) if dirty == 0 => SlotContent::Free,
        (false, true) => SlotContent::Held { valid, dirty },
    }
}

/// The held sectors to copy to the line, by the second table.
const fn missing(held: u8, line_valid: u8) -> u8 {
    held & !line_valid
}

/// Frees the slots of an adopted table that hold no line. In descending order, so that slots with
/// lower numbers are used first.
fn free_empty_slots<M: LineTable>(slots: &mut Slots<M>) {
    for slot in (0..slots.unused).rev() {
        if slots.get(slot).key == LineKey::NONE {
            slots.free_slot(slot);
        }
    }
}

impl<M: LineTable> Slots<M> {
    /// Takes over the table. Appends the remaining copies to `steps`; after the driver has made
    /// them, [`Slots::finish_call`] must be called.
    pub(crate) fn recover(
        &mut self,
        fate: &dyn Fn(VolumeId) -> Fate,
        steps: &mut Vec<MemoryStep>,
    ) -> Result<Recovery, TableDamage> {
        let mut found = Recovery::default();
        let mut held = Vec::new();
        found.given_back_lines = super::slabs::recover(self);
        // Slabs that were given back may lie behind the last slot that was used.
        let is_used = |line: &LineMeta| line.key != LineKey::NONE && !line.is_away();
        let used = self.lines.iter().rposition(is_used);
        for slot in 0..used.map_or(0, |last| last as Slot + 1) {
            let line = *self.get(slot);
            if line.is_away() {
                continue;
            }
            let content = classify(&line);
            let fate = match content {
                SlotContent::Free => Fate::Kept,
                _ => fate(line.key.volume()),
            };
            match content {
                SlotContent::Line { dirty, .. } | SlotContent::Held { dirty, .. }
                    if fate == Fate::Unknown && dirty != 0 =>
                {
                    return Err(TableDamage::Stray(line.key));
                }
                SlotContent::Line { .. } | SlotContent::Held { .. } if fate != Fate::Kept => {
                    self.empty_slot(slot, fate != Fate::Gone);
                }
                SlotContent::Line { valid, dirty } => {
                    if self.find(line.key).is_some() {
                        return Err(TableDamage::Twice(line.key));
                    }
                    found.torn_sectors += u64::from((line.filling & line.valid).count_ones());
                    self.restore_line(slot, valid, dirty);
                }
                SlotContent::Held { dirty, .. } => held.push((slot, dirty)),
                SlotContent::Free if line.key != LineKey::NONE => {
                    let torn = if line.has(DETACHED) { 0 } else { line.filling & line.valid };
                    found.torn_sectors += u64::from(torn.count_ones());
                    self.empty_slot(slot, line.key != LineKey::PARITY);
                }
                SlotContent::Free => {}
            }
        }
        self.unused = used.map_or(0, |last| last as Slot + 1);
        for &(slot, dirty) in &held {
            found.moving_lines += 1;
            self.merge_held(slot, dirty, steps);
        }
        free_empty_slots(self);
        Ok(found)
    }

    /// Makes a held slot the line, or copies the sectors that the line lacks from it.
    fn merge_held(&mut self, slot: Slot, dirty: u8, steps: &mut Vec<MemoryStep>) {
        let line = *self.get(slot);
        assert!(line.has(DETACHED) && !line.has(FROZEN), "slot {slot} is not held: {line:?}");
        let Some(live) = self.find(line.key) else {
            self.restore_line(slot, line.valid & !line.filling, dirty);
            return;
        };
        let there = self.get(live).valid;
        let mask = missing(dirty & line.valid, there);
        let lost = missing(dirty & !line.valid, there);
        self.keep_one_pin(slot);
        self.get_mut(slot).pins += 1;
        self.old_slots.push(slot);
        if mask != 0 {
            steps.extend(MemoryStep::copies(slot, live, mask));
            self.mark_dirty(live, mask);
        }
        self.get_mut(live).dirty |= lost;
        if lost != 0 {
            self.dirty.insert(live);
        }
    }

    /// Makes a slot the place of its line, with these sectors and no pins except that for I/O of
    /// the dead process.
    fn restore_line(&mut self, slot: Slot, valid: u8, dirty: u8) {
        let key = self.get(slot).key;
        assert!(valid | dirty != 0, "slot {slot} holds no data of {key:?}");
        self.get_mut(slot).valid = valid;
        in_order();
        self.get_mut(slot).dirty = dirty;
        in_order();
        self.get_mut(slot).filling = 0;
        in_order();
        let line = self.get_mut(slot);
        line.flags &= if dirty == 0 { 0 } else { BUFFERED };
        self.keep_one_pin(slot);
        self.unsealed.insert(slot);
        if dirty != 0 {
            self.dirty.insert(slot);
        }
        self.insert_line(key, slot, Hint::Normal);
    }

    /// Empties a slot, and frees it unless I/O of the dead process may use it.
    fn empty_slot(&mut self, slot: Slot, may_be_used: bool) {
        self.get_mut(slot).dirty = 0;
        in_order();
        self.get_mut(slot).valid = 0;
        in_order();
        self.get_mut(slot).filling = 0;
        if may_be_used && self.get(slot).pins > 0 {
            self.get_mut(slot).flags = DETACHED;
            self.keep_one_pin(slot);
        } else {
            self.clear(slot);
        }
    }

    /// Replaces all pins of the dead process by one.
    fn keep_one_pin(&mut self, slot: Slot) {
        let in_use = self.get(slot).pins > 0;
        self.get_mut(slot).pins = u32::from(in_use);
        if in_use {
            self.orphan_pins.push(slot);
        }
    }

    /// Releases the pins that stood for the dead process's I/O on a volume, which has ended.
    pub(crate) fn release_orphan_pins(&mut self, volume: VolumeId) {
        let mut orphan_pins = std::mem::take(&mut self.orphan_pins);
        orphan_pins.retain(|&slot| {
            let is_of_volume = self.get(slot).key.volume() == volume;
            if is_of_volume {
                self.unpin(slot);
            }
            !is_of_volume
        });
        self.orphan_pins = orphan_pins;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(valid: u8, dirty: u8, filling: u8, flags: u8) -> LineMeta {
        let key = LineKey::new(VolumeId(0), 7);
        LineMeta { key, valid, dirty, filling, flags, pins: 3 }
    }

    /// Every combination of the first table, for one sector and the flags.
    #[test]
    fn each_slot_is_classified_by_its_own_bytes() {
        for bits in 0..64u8 {
            let bit = |at: u8| bits >> at & 1;
            let (valid, dirty, filling) = (bit(0), bit(1), bit(2));
            let flags = (bit(3) * DETACHED) | (bit(4) * crate::line::meta::MARK);
            let mut line = line(valid, dirty, filling, flags);
            let named = bit(5) != 0;
            if !named {
                line.key = LineKey::NONE;
            }
            let counts = named && valid | dirty == 1 && filling == 0;
            let expected = match (counts, bit(3) != 0, dirty == 1) {
                (false, _, _) | (true, true, false) => SlotContent::Free,
                (true, false, _) => SlotContent::Line { valid, dirty },
                (true, true, true) => SlotContent::Held { valid, dirty },
            };
            assert_eq!(classify(&line), expected, "{line:?}");
        }
    }

    /// A hole in the pool's file reads as zeroes. A zeroed entry must count as a free slot.
    #[test]
    fn a_zeroed_entry_holds_nothing() {
        let zeroed =
            LineMeta { key: LineKey(0), pins: 0, valid: 0, dirty: 0, flags: 0, filling: 0 };
        assert_eq!(classify(&zeroed), SlotContent::Free);
    }

    #[test]
    fn held_sectors_fill_the_gaps_of_the_line() {
        for held in [0, 1] {
            for valid in [0, 1] {
                assert_eq!(missing(held, valid), held * (1 - valid));
            }
        }
    }
}
