//! Selects the lines that are destaged together: whole stripes if possible, otherwise runs of
//! adjacent lines.
//!
//! An array with parity writes a whole stripe without reading. For anything less it must first read
//! old data, and does two to four times the work. So a stripe that is completely in the pool, with
//! at least half of its lines dirty, is written as a whole. Its clean sectors are written again;
//! the disk has the same data in them before and after, even if the write fails. A whole stripe
//! costs one I/O on each of the n data disks and the parity disk; less than a stripe costs two I/Os
//! on each disk touched. So half is where a whole stripe begins to save time.
//!
//! Separate dirty runs of one stripe go into one operation, with an I/O for each run, started
//! together: the array then reads and writes the stripe's blocks once for all runs, instead of once
//! for each. Reading the holes first would save little more, and cost more on flash
//! (`lab/src/experiment/gathering.rs`).
//!
//! A write of a whole stripe covers sectors that no client has changed. If it fails, one of these
//! may be the cause, so the error is not reported, and the dirty lines are retried alone. The same
//! applies to several runs in one operation.

use crate::index::Slots;
use crate::integrity::ShardIntegrity;
use crate::line::key::{LineKey, mask_runs};
use crate::line::meta::LineTable;
use crate::ops::io_run::{IoRun, push_run};
use crate::ops::{OpLine, Ops};
use crate::volume::ShardVolume;
use crate::{Place, Segment, Slot};
use forebay_types::{Few, LINE_BYTES, LINES_PER_REGION, REGION_BYTES, SECTOR_BYTES, Stripes};

/// The lines of one destage operation.
pub(crate) struct Span {
    /// The lines, each with its dirty sectors.
    pub lines: Few<OpLine>,
    /// The ranges to write.
    pub runs: Few<IoRun>,
    /// The number of whole stripes, or zero.
    pub stripes: u64,
    /// It consists of several runs of one stripe.
    pub is_scattered: bool,
    /// A failure does not show which line is at fault: it has clean sectors, several stripes or
    /// several runs.
    pub is_wide: bool,
}

impl Span {
    /// A span in which a failure applies to every line.
    pub(crate) const fn of_runs(lines: Few<OpLine>, runs: Few<IoRun>) -> Self {
        Self { lines, runs, stripes: 0, is_scattered: false, is_wide: false }
    }

    /// The bytes to write.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.range.len).sum()
    }
}

/// Selects the lines to destage together with a given one. Changes nothing.
pub(crate) struct Planner<'a, M> {
    volume: &'a ShardVolume,
    index: &'a Slots<M>,
    ops: &'a Ops,
    integrity: &'a ShardIntegrity,
    /// Limit of the lines of a span, except that a whole stripe is not divided.
    lines_max: u64,
    /// Omits the seals. For a planted bug only.
    unverified: bool,
}

impl<'a, M: LineTable> Planner<'a, M> {
    pub(crate) const fn new(
        volume: &'a ShardVolume,
        index: &'a Slots<M>,
        ops: &'a Ops,
        integrity: &'a ShardIntegrity,
        unverified: bool,
    ) -> Self {
        let lines_max = LINES_PER_REGION;
        Self { volume, index, ops, integrity, lines_max, unverified }
    }

    /// With a limit of the lines of a span; at least one.
    pub(crate) const fn limited(self, lines_max: u64) -> Self {
        Self { lines_max, ..self }
    }

    fn stripes(&self) -> Stripes {
        self.volume.writeback().dirty().stripes()
    }

    fn is_narrow(&self) -> bool {
        self.volume.writeback().scheduler().is_narrow()
    }

    /// The span of a dirty line that is not busy.
    pub(crate) fn span_of(&self, key: LineKey) -> Span {
        let whole = self.whole_stripes(key);
        if whole.is_none()
            && let Some(span) = self.scattered_span(key)
        {
            return span;
        }
        let (first, count, stripes) = whole.unwrap_or_else(|| {
            let (first, count) = self.run_around(key);
            (first, count, 0)
        });
        let is_stripe = stripes > 0;
        let mut lines = Few::with_capacity(count as usize);
        let mut runs = Few::new();
        // The run of the current I/O: a stripe may be longer than the largest I/O.
        let mut piece = Few::new();
        for at in 0..count {
            let key = first.plus(at);
            let slot = self.index.find(key).expect("the lines of a span are in the pool");
            let line = self.index.get(slot);
            let mask = line.destageable();
            assert!(!is_stripe || line.valid == 0xff, "a hole in a whole stripe: {line:?}");
            self.push_sectors(key, slot, if is_stripe { 0xff } else { mask }, &mut piece);
            lines.push(OpLine::new(key, slot, mask));
            if (at + 1).is_multiple_of(LINES_PER_REGION) || at + 1 == count {
                runs.extend(std::mem::take(&mut piece));
            }
        }
        let is_wide = stripes > 1 || is_stripe && lines.iter().any(|line| line.mask != 0xff);
        Span { stripes, is_wide, ..Span::of_runs(lines, runs) }
    }

    /// Appends sectors of a line to the runs of a write.
    pub(crate) fn push_sectors(&self, key: LineKey, slot: Slot, mask: u8, runs: &mut Few<IoRun>) {
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

    /// All dirty lines that are not busy in the stripe of a line, or in the part of the stripe that
    /// fits one I/O. `None` if they form a single run.
    fn scattered_span(&self, key: LineKey) -> Option<Span> {
        if self.is_narrow() {
            return None;
        }
        let stripe = self.volume.stripe_at(key.offset())?;
        let into = (key.offset() - stripe.offset) / REGION_BYTES * REGION_BYTES;
        let first = LineKey::new(key.volume(), (stripe.offset + into) / LINE_BYTES);
        let count = (stripe.len - into).min(REGION_BYTES) / LINE_BYTES;
        let (mut lines, mut runs) = (Few::new(), Few::new());
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

    /// The whole stripes to destage with a dirty line, as far as they fit one I/O: the first line,
    /// the number of lines, and the number of stripes. The array gets adjacent stripes at once, so
    /// that none of its disks waits for the next stripe.
    fn whole_stripes(&self, key: LineKey) -> Option<(LineKey, u64, u64)> {
        let (mut first, width) = self.whole_stripe(key)?;
        let stripes = self.stripes();
        let region = stripes.region_at(key.offset());
        let max = (self.lines_max.min(LINES_PER_REGION) / width).max(1);
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

    /// The first line and the number of lines of the stripe that contains a line, if the stripe is
    /// completely in the pool, at least half of its lines are dirty, and none is busy.
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
            // Lost sectors are not valid.
            if line.valid != 0xff || self.ops.busy(key).is_some() {
                return None;
            }
            dirty += u64::from(line.dirty != 0);
        }
        (2 * dirty >= count).then_some((first, count))
    }

    /// The first line and the number of lines of the run around a dirty line: dirty sectors without
    /// a gap, within the limits of `run_limits`.
    fn run_around(&self, key: LineKey) -> (LineKey, u64) {
        let dirty = |key: LineKey| {
            let found = self.index.find(key);
            let mask = found.map_or(0, |slot| self.index.get(slot).destageable());
            if mask == 0 || self.ops.busy(key).is_some() { 0 } else { mask }
        };
        let is_one_run = |mask: u8| mask_runs(mask).count() == 1;
        let (before_max, after_max) = self.run_limits(key);
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

    /// The maximum length of the run around a line, in lines before it and in lines from it on. A
    /// run fits one I/O, and does not leave the line's stripe, or its region if there are no
    /// stripes: the array would have to split the run at the border, and the rest of the adjacent
    /// stripe may still become dirty.
    fn run_limits(&self, key: LineKey) -> (u64, u64) {
        let stripes = self.stripes();
        let offset = key.offset();
        let around = stripes.stripe_at(offset).unwrap_or_else(|| stripes.region_at(offset));
        let most = self.lines_max.clamp(1, LINES_PER_REGION);
        let before = ((offset - around.offset) / LINE_BYTES).min(most / 2);
        (before, ((around.end() - offset) / LINE_BYTES).min(most - before))
    }
}
