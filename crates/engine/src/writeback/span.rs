//! What goes to the disk together: whole stripes where there are any, runs of neighbours otherwise.
//!
//! An array of disks with parity writes a whole stripe as it comes. For anything less it reads
//! first, what it replaces or what it does not, and so does two to four times the work. So a stripe
//! that is wholly in the pool, and at least half of it dirty, is written wholly, and what of it is
//! clean is written once more with the rest: the disk has the same there, before and after, however
//! the write ends. Of n data disks and one for parity a whole stripe keeps all busy once, and less
//! than one two for each that is touched, so half is where it begins to pay.
//!
//! What is dirty of a stripe here and there goes in one operation with an I/O for each run, all at
//! once: the array then reads and writes what the stripe takes once for all of them, and not once
//! for each. Reading the holes first would save it little more, and cost more on flash
//! (`lab/src/experiment/gathering.rs`).
//!
//! A write of a whole stripe touches sectors that nobody has changed. Where it fails, one of those
//! may be the reason; so nobody is told, and what is dirty is tried again by itself. The same is
//! done where runs went together.

use crate::index::Slots;
use crate::index::key::{LineKey, mask_runs};
use crate::index::meta::LineTable;
use crate::integrity::Integrity;
use crate::modes::read::{Run, push_run};
use crate::ops::{OpLine, Ops};
use crate::volume::VolumeState;
use crate::{Place, Segment, Slot};
use forebay_types::{LINE_BYTES, LINES_PER_REGION, REGION_BYTES, SECTOR_BYTES, Stripes};

/// Lines that one operation destages.
pub(crate) struct Span {
    /// Their dirty sectors, which are those that the operation answers for.
    pub lines: Vec<OpLine>,
    /// What is written.
    pub runs: Vec<Run>,
    /// How many whole stripes it is, if it is made of such.
    pub stripes: u64,
    /// It is several runs of one stripe.
    pub is_scattered: bool,
    /// Whether it holds what need not go together, so that a failure says nothing of each line.
    pub is_wide: bool,
}

impl Span {
    /// Runs that fail or not for each of the lines.
    pub(crate) const fn of_runs(lines: Vec<OpLine>, runs: Vec<Run>) -> Self {
        Self { lines, runs, stripes: 0, is_scattered: false, is_wide: false }
    }

    /// What is written, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.range.len).sum()
    }
}

/// Says what goes with a line of a volume. Changes nothing.
pub(crate) struct Planner<'a, M> {
    volume: &'a VolumeState,
    index: &'a Slots<M>,
    ops: &'a Ops,
    integrity: &'a Integrity,
    /// Nothing is looked at before it is written, which is a planted bug.
    unverified: bool,
}

impl<'a, M: LineTable> Planner<'a, M> {
    pub(crate) const fn new(
        volume: &'a VolumeState,
        index: &'a Slots<M>,
        ops: &'a Ops,
        integrity: &'a Integrity,
        unverified: bool,
    ) -> Self {
        Self { volume, index, ops, integrity, unverified }
    }

    fn stripes(&self) -> Stripes {
        self.volume.writeback().dirty().stripes()
    }

    fn is_narrow(&self) -> bool {
        self.volume.writeback().scheduler().is_narrow()
    }

    /// What goes with a dirty line that is not busy.
    pub(crate) fn span_of(&self, key: LineKey) -> Span {
        let whole = self.whole_stripes(key);
        if whole.is_none()
            && let Some(span) = self.scattered(key)
        {
            return span;
        }
        let (first, count, stripes) = whole.unwrap_or_else(|| {
            let (first, count) = self.run_around(key);
            (first, count, 0)
        });
        let is_stripe = stripes > 0;
        let mut lines = Vec::with_capacity(count as usize);
        let mut runs = Vec::with_capacity(1);
        // The run of the I/O at hand; a stripe may be longer than one I/O is to be.
        let mut piece = Vec::with_capacity(1);
        for at in 0..count {
            let key = first.plus(at);
            let slot = self.index.find(key).expect("the span holds lines of the pool");
            let mask = self.index.get(slot).destageable();
            self.push_sectors(key, slot, if is_stripe { 0xff } else { mask }, &mut piece);
            lines.push(OpLine::new(key, slot, mask));
            if (at + 1).is_multiple_of(LINES_PER_REGION) || at + 1 == count {
                runs.append(&mut piece);
            }
        }
        let is_wide = stripes > 1 || is_stripe && lines.iter().any(|line| line.mask != 0xff);
        Span { stripes, is_wide, ..Span::of_runs(lines, runs) }
    }

    /// Appends sectors of a line to what is to be written.
    pub(crate) fn push_sectors(&self, key: LineKey, slot: Slot, mask: u8, runs: &mut Vec<Run>) {
        let seal = self.integrity.seal_of(self.index, slot).filter(|_| !self.unverified);
        for (sector, sectors) in mask_runs(mask) {
            let offset = sector * SECTOR_BYTES as u32;
            let place = Place::Slot { slot, offset };
            let len = sectors * SECTOR_BYTES as u32;
            push_run(runs, key.offset() + u64::from(offset), Segment { place, len }, 0);
            let run = runs.last_mut().expect("pushed just now");
            if run.seals.last().is_none_or(|last| last.slot != slot) {
                run.seals.extend(seal);
            }
        }
    }

    /// All that is dirty and not busy in the stripe of a line, or in the piece of it that makes
    /// one I/O; `None` where that is one run.
    fn scattered(&self, key: LineKey) -> Option<Span> {
        if self.is_narrow() {
            return None;
        }
        let stripe = self.volume.stripe_at(key.offset())?;
        let into = (key.offset() - stripe.offset) / REGION_BYTES * REGION_BYTES;
        let first = LineKey::new(key.volume(), (stripe.offset + into) / LINE_BYTES);
        let count = (stripe.len - into).min(REGION_BYTES) / LINE_BYTES;
        let (mut lines, mut runs) = (Vec::new(), Vec::new());
        for key in (0..count).map(|at| first.plus(at)) {
            let Some(slot) = self.index.find(key) else { continue };
            let mask = self.index.get(slot).destageable();
            if mask != 0 && self.ops.busy(key).is_none() {
                self.push_sectors(key, slot, mask, &mut runs);
                lines.push(OpLine::new(key, slot, mask));
            }
        }
        let is_scattered = runs.len() > 1;
        let span = Span { is_scattered, is_wide: true, ..Span::of_runs(lines, runs) };
        is_scattered.then_some(span)
    }

    /// The stripe that a dirty line is in, if it goes wholly, and those that do so next to it, as
    /// far as they make one I/O: its first line, the lines of all, and how many they are. An array
    /// takes neighbours at once, and none of its disks has to wait for the next stripe.
    fn whole_stripes(&self, key: LineKey) -> Option<(LineKey, u64, u64)> {
        let (mut first, width) = self.whole_stripe(key)?;
        let stripes = self.stripes();
        let region = stripes.region_at(key.offset());
        let max = (LINES_PER_REGION / width).max(1);
        let mut count = 1;
        while count < max
            && (first.plus(count * width).offset()) < region.end()
            && self.whole_stripe(first.plus(count * width)).is_some()
        {
            count += 1;
        }
        while count < max && first.offset() > region.offset {
            let before = LineKey(first.0 - width);
            if self.whole_stripe(before).is_none() {
                break;
            }
            first = before;
            count += 1;
        }
        Some((first, count * width, count))
    }

    /// The lines of the stripe that a dirty line is in, if all of it is in the pool, half of them
    /// are dirty, and none is busy.
    fn whole_stripe(&self, key: LineKey) -> Option<(LineKey, u64)> {
        if self.is_narrow() {
            return None;
        }
        let stripe = self.volume.stripe_at(key.offset())?;
        let first = LineKey::new(key.volume(), stripe.offset / LINE_BYTES);
        let count = stripe.len / LINE_BYTES;
        let mut dirty = 0;
        for key in (0..count).map(|at| first.plus(at)) {
            let line = self.index.get(self.index.find(key)?);
            // Sectors that are lost are not valid.
            if line.valid != 0xff || self.ops.busy(key).is_some() {
                return None;
            }
            dirty += u64::from(line.dirty != 0);
        }
        (2 * dirty >= count).then_some((first, count))
    }

    /// The neighbours of a dirty line that go with it: as far as dirty sectors follow each other
    /// without a gap, inside the region, and no further than where a stripe begins or ends that
    /// goes by itself.
    fn run_around(&self, key: LineKey) -> (LineKey, u64) {
        let dirty = |key: LineKey| {
            let found = self.index.find(key);
            let mask = found.map_or(0, |slot| self.index.get(slot).destageable());
            if mask == 0 || self.ops.busy(key).is_some() { 0 } else { mask }
        };
        let is_one_run = |mask: u8| mask_runs(mask).count() == 1;
        let (before_max, after_max) = self.room_around(key);
        let mut before = 0;
        let mut mask = dirty(key);
        while mask & 1 != 0 && before < before_max {
            let previous = dirty(LineKey(key.0 - before - 1));
            if previous & 0x80 == 0 || !is_one_run(previous) {
                break;
            }
            before += 1;
            mask = previous;
        }
        let mut after = 1;
        let mut mask = dirty(key);
        while mask & 0x80 != 0 && after < after_max {
            mask = dirty(key.plus(after));
            if mask & 1 == 0 || !is_one_run(mask) {
                break;
            }
            after += 1;
        }
        (LineKey(key.0 - before), before + after)
    }

    /// How many lines before a line, and from it on, may go in one run: those of its stripe, or of
    /// its region where there are none, and no more than make one I/O. Stripes are not mixed, as
    /// the array would have to take the run apart, and a part of the next stripe may still become
    /// a whole one.
    fn room_around(&self, key: LineKey) -> (u64, u64) {
        let stripes = self.stripes();
        let offset = key.offset();
        let around = stripes.stripe_at(offset).unwrap_or_else(|| stripes.region_at(offset));
        let before = ((offset - around.offset) / LINE_BYTES).min(LINES_PER_REGION / 2);
        (before, ((around.end() - offset) / LINE_BYTES).min(LINES_PER_REGION - before))
    }
}
