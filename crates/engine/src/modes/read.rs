//! Reads, prefetch and preload.
//!
//! A read that finds all its sectors valid is answered at once, from pinned slots. Otherwise one
//! operation fills the missing sectors; all parts that need its lines wait for it and try again. If
//! no slot can be freed, or after a shared read has failed, the part is read past the cache into
//! private memory. Such a direct read starts once no write, destage or erase of its missing lines
//! is in flight.

use crate::index::FIRST_USE;
use crate::index::miniatures::{sample_first_use, sample_prefetch, sample_preload};
use crate::index::prepare_lookups;
use crate::index::retained::{follow_pins, is_pinned};
use crate::index::shares;
use crate::index::warm::{count_forecast, forecast_again, touch_first};
use crate::line::key::{line_parts, mask_runs, pieces, sector_mask};
use crate::line::meta::{LineTable, MARK, PREFETCHED, PRELOADED};
use crate::lines::{VolumeLines, read_hint};
use crate::ops::io_run::push_run;
use crate::ops::{LineOp, OpKind, OpLine, WaitFor, emit};
use crate::sabotage::PlantedBug;
use crate::{
    Attempt, IoCause, IoVerb, LineHits, LineKey, LineMeta, Outbox, Part, Place, Segment, Slot,
    Uncached, WaitsFor,
};
use forebay_policy::Hint;
use forebay_types::{
    ByteRange, Few, GRANULE_LINES, IoError, LINES_PER_REGION, Mode, SECTOR_BYTES, SECTORS_PER_LINE,
};

/// Attempts after which a part is read past the cache. Usually its lines were evicted between fill
/// and use each time, because the pool is too small for the current load.
const SHARED_ATTEMPTS: u8 = 4;

/// The longest gap between two missing pieces that is read and discarded, to make one I/O of two.
/// Reading 16 KiB takes a disk a tenth of a millisecond, another I/O several milliseconds.
const BRIDGE_BYTES_MAX: u64 = 16 << 10;

/// The result of an attempt to read a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The segments hold the data. The driver releases the pin of each slot in them.
    Ready,
    /// The part waits, and is retried after [`crate::Outcome::Retry`].
    Waiting,
    /// A direct read has started. The segments hold the data when the part is answered.
    Started,
    /// The read failed.
    Failed(IoError),
}

/// The result of an attempt to preload a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreloadOutcome {
    /// No read has started: there is nothing to read, no room for it, or the lines are busy.
    Done,
    /// Reads have started. [`crate::Outcome::Retry`] reports their result.
    Started,
}

/// The outcome of a read of lost sectors.
const FAILED: (ReadOutcome, LineHits) = {
    let uncached = Some(Uncached::Failed);
    (ReadOutcome::Failed(IoError::Io), LineHits { hits: 0, misses: 0, uncached, held_out: 0 })
};

/// Why a part is preloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreloadKind {
    /// It is on a warm list. Only free slots are used, so nothing is evicted for it.
    Warm,
    /// As [`PreloadKind::Warm`], and it was used repeatedly before.
    Hot,
    /// It is forecast to be needed soon. If no slot is free, a clean line is evicted for it, but
    /// only one that is worth less to the policy than a line that will be used once.
    Forecast,
    /// It is of a pinned range. Such lines are read even if others must be evicted for them.
    Pinned,
}

/// Reads parts of one volume.
pub(crate) struct PartReader<'a, M> {
    lines: VolumeLines<'a, M>,
}

impl<'a, M: LineTable> PartReader<'a, M> {
    pub(crate) const fn new(lines: VolumeLines<'a, M>) -> Self {
        Self { lines }
    }

    /// See [`crate::Shard::read`].
    pub(crate) fn read(
        &mut self,
        part: &Part,
        attempt: Attempt,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> (ReadOutcome, LineHits) {
        if self.lines.volume.holds_out(part.range.offset) {
            return self.read_held_out(part, attempt, segments, out);
        }
        let first_try = attempt == Attempt::default();
        prepare_lookups(self.lines.index, part.volume, part.range);
        let mut line_hits = LineHits::default();
        for line in line_parts(part.volume, part.range) {
            match self.lines.index.find(line.key) {
                Some(slot) if self.lines.index.get(slot).valid & line.mask == line.mask => {
                    self.lines.index.pin(slot);
                    if first_try {
                        self.record_use(slot, out);
                        line_hits.hits += 1;
                    }
                    let place = Place::Slot { slot, offset: line.offset };
                    segments.push(Segment { place, len: line.len });
                }
                _ => {
                    self.unpin_segments(segments);
                    return self.read_missing(part, attempt, line_hits, segments, out);
                }
            }
        }
        if first_try {
            self.lines.record_access(part, Hint::Normal);
            self.lines.volume.counters_mut().read_hit_lines += u64::from(line_hits.hits);
        }
        (ReadOutcome::Ready, line_hits)
    }

    /// Records the use of a valid line by a client.
    fn record_use(&mut self, slot: Slot, out: &mut Outbox) {
        // The first use of a prefetched line counts as its arrival, not as a reuse: lines of a
        // stream that are read once must not look popular.
        if self.record_first_use(slot, out) & (PREFETCHED | PRELOADED) == 0 {
            self.lines.index.touch(slot, Hint::Normal);
        }
    }

    /// Records the first use of a line that was prefetched or preloaded, or that has a mark.
    /// Returns the flags of such a line.
    ///
    /// Called for a line that is still being filled, too, because the retry of a read that waits
    /// for the fill is not recorded as a use. So a client that has caught up with the prefetch
    /// requests the next window now.
    fn record_first_use(&mut self, slot: Slot, out: &mut Outbox) -> u8 {
        if self.lines.index.get(slot).flags & FIRST_USE == 0 {
            return 0;
        }
        let flags = self.lines.index.take_flags(slot);
        if flags & MARK != 0 {
            out.marks.push(self.lines.index.get(slot).key);
        }
        if flags & PREFETCHED != 0 {
            self.count_prefetch_use(out);
            sample_first_use(self.lines.index, self.lines.index.get(slot).key);
        } else if flags & PRELOADED != 0 {
            touch_first(self.lines.index, slot);
            self.lines.volume.counters_mut().preload_used_lines += 1;
            out.preloads_used.push(self.lines.index.get(slot).key);
        }
        flags
    }

    fn count_prefetch_use(&mut self, out: &mut Outbox) {
        self.lines.volume.counters_mut().prefetch_used_lines += 1;
        out.add_prefetch_use(self.lines.id);
    }

    fn unpin_segments(&mut self, segments: &mut Vec<Segment>) {
        for segment in segments.drain(..) {
            if let Place::Slot { slot, .. } = segment.place {
                self.lines.index.unpin(slot);
            }
        }
    }

    /// Starts a fill of the missing lines, waits for operations on them, or reads past the cache.
    fn read_missing(
        &mut self,
        part: &Part,
        attempt: Attempt,
        mut line_hits: LineHits,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> (ReadOutcome, LineHits) {
        if self.has_lost(part) {
            return FAILED;
        }
        let first_try = attempt == Attempt::default();
        let mode = self.lines.volume.mode();
        let direct = self.is_direct(attempt);
        let hint = read_hint(self.lines.index, self.lines.volume, part.volume);
        let mut fill: Few<OpLine> = Few::new();
        let mut wait_for = None;
        let counted = line_hits.hits;
        for (at, line) in line_parts(part.volume, part.range).enumerate() {
            let found = self.lines.index.find(line.key);
            let valid = found.map_or(0, |slot| self.lines.index.get(slot).valid);
            if valid & line.mask == line.mask {
                if first_try && at >= usize::from(counted) {
                    self.record_use(found.expect("a valid line has a slot"), out);
                    line_hits.hits += 1;
                }
                continue;
            }
            line_hits.misses += 1;
            let busy = self.lines.ops.busy(line.key);
            if let (Some(slot), Some((_, OpKind::Fill))) = (found.filter(|_| first_try), busy) {
                self.record_first_use(slot, out);
            }
            match busy {
                Some((_, OpKind::Fill)) if direct => {}
                Some((op, OpKind::Fill)) => wait_for = Some((op, WaitFor::Result)),
                Some((op, _)) => wait_for = Some((op, WaitFor::End)),
                None if direct => {}
                None => fill.extend(self.fill_line(line.key, found, hint, out)),
            }
        }
        if first_try {
            // More memory would not make a hit of what a frozen volume does not admit.
            if !self.lines.volume.is_frozen() {
                self.lines.record_access(part, Hint::Normal);
            }
            let counters = self.lines.volume.counters_mut();
            counters.read_hit_lines += u64::from(line_hits.hits);
            counters.read_miss_lines += u64::from(line_hits.misses);
        } else {
            line_hits = LineHits::default();
        }
        line_hits.uncached = Some(Uncached::IoInFlight);
        let has_started = !fill.is_empty();
        if has_started {
            line_hits.uncached = Some(Uncached::Miss);
            self.lines.volume.count_read();
            let op = self.start_fill(fill, IoCause::Demand, out);
            wait_for = Some((op, WaitFor::Result));
        }
        if let Some((op, wait_for)) = wait_for {
            self.lines.wait(op, part, wait_for, out);
            if has_started {
                out.waits_for = WaitsFor::OwnRead;
            }
            return (ReadOutcome::Waiting, line_hits);
        }
        line_hits.uncached = Some(self.count_direct(attempt, mode));
        (self.read_direct(part, |line| line.valid, segments, out), line_hits)
    }

    /// Whether a read of lines that are not in the pool goes past it.
    const fn is_direct(&self, attempt: Attempt) -> bool {
        matches!(self.lines.volume.mode(), Mode::Bypass)
            || self.lines.volume.is_frozen()
            || attempt.count >= SHARED_ATTEMPTS
            || attempt.error.is_some()
    }

    /// Whether sectors of a part are lost.
    fn has_lost(&self, part: &Part) -> bool {
        self.lines.volume.lost_sectors() > 0
            && line_parts(part.volume, part.range)
                .any(|line| self.lines.lost_under(line.key, line.mask) != 0)
    }

    /// Reads a part of a held-out region as if there were no cache: from the disk, even if the pool
    /// has clean lines of it. Only dirty sectors come from the pool, because the disk does not have
    /// them. The read is not reported to the policy.
    fn read_held_out(
        &mut self,
        part: &Part,
        attempt: Attempt,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> (ReadOutcome, LineHits) {
        if self.has_lost(part) {
            return FAILED;
        }
        let trusts_disk = self.lines.planted.is(PlantedBug::IgnoreDirtyInHoldOut);
        let dirty = |line: &LineMeta| if trusts_disk { 0 } else { line.dirty };
        let (mut lines, mut is_pure, mut wait_for) = (0, attempt.count == 0, None);
        for line in line_parts(part.volume, part.range) {
            lines += 1;
            let dirty = dirty(&self.lines.index.line(line.key)) & line.mask;
            is_pure &= dirty == 0;
            match self.lines.ops.busy(line.key) {
                None | Some((_, OpKind::Fill)) => {}
                _ if dirty == line.mask => {}
                Some((op, _)) => wait_for = Some(op),
            }
        }
        let mut line_hits = LineHits::default();
        if attempt == Attempt::default() {
            let held_out = if is_pure && wait_for.is_none() { lines } else { 0 };
            let uncached = Some(Uncached::HoldOut);
            line_hits = LineHits { hits: 0, misses: lines, uncached, held_out };
            self.lines.record_access(part, Hint::Normal);
            self.lines.volume.counters_mut().read_miss_lines += u64::from(lines);
            self.lines.volume.sampling_mut().0.count_held_out(0, lines);
        }
        if let Some(op) = wait_for {
            self.lines.wait(op, part, WaitFor::End, out);
            return (ReadOutcome::Waiting, line_hits);
        }
        self.lines.volume.counters_mut().direct_reads_hold_out += 1;
        (self.read_direct(part, dirty, segments, out), line_hits)
    }

    /// Counts a read past the cache. Returns its reason.
    const fn count_direct(&mut self, attempt: Attempt, mode: Mode) -> Uncached {
        let is_frozen = self.lines.volume.is_frozen();
        let counters = self.lines.volume.counters_mut();
        let (count, uncached) = match (attempt.error, mode) {
            (Some(_), _) => (&mut counters.direct_reads_after_error, Uncached::AfterError),
            (None, Mode::Bypass) => (&mut counters.direct_reads_bypass, Uncached::Bypass),
            (None, _) if is_frozen => (&mut counters.direct_reads_frozen, Uncached::Frozen),
            (None, _) => (&mut counters.direct_reads_no_room, Uncached::NoRoom),
        };
        *count += 1;
        uncached
    }

    /// Prepares a fill of the missing sectors of a line. `None` if it gets no slot.
    fn fill_line(
        &mut self,
        key: LineKey,
        found: Option<Slot>,
        hint: Hint,
        out: &mut Outbox,
    ) -> Option<OpLine> {
        let slot = match found {
            Some(slot) => self.slot_to_fill(slot, out)?,
            None => {
                let slot = self.lines.index.allocate(key, hint)?;
                self.lines.index.pin(slot);
                slot
            }
        };
        let mask = self.missing_sectors(key, self.lines.index.get(slot));
        Some(OpLine::new(key, slot, mask))
    }

    /// The sectors of a line that a fill reads.
    fn missing_sectors(&self, key: LineKey, line: &LineMeta) -> u8 {
        let size = self.lines.volume.size_bytes();
        assert!(key.offset() < size, "{key:?} is outside of the volume");
        let sectors = ((size - key.offset()) / SECTOR_BYTES).min(u64::from(SECTORS_PER_LINE));
        // The disk does not have the newest data of lost sectors.
        let lost = if self.lines.planted.is(PlantedBug::FillLostSectors) { 0 } else { line.lost() };
        sector_mask(0, sectors) & !line.valid & !lost
    }

    /// Pins the slot of a line for a fill. If the slot has other pins, relocates the line first:
    /// replies may still use the old data of erased sectors. `None` if there is no slot for that.
    fn slot_to_fill(&mut self, slot: Slot, out: &mut Outbox) -> Option<Slot> {
        self.lines.index.pin(slot);
        if self.lines.index.get(slot).pins == 1 {
            return Some(slot);
        }
        let moved = self.lines.move_away(slot, 0, out);
        if moved.is_none() {
            self.lines.index.unpin(slot);
        }
        moved
    }

    /// Starts one operation that fills `lines`, which are in ascending order.
    fn start_fill(&mut self, lines: Few<OpLine>, cause: IoCause, out: &mut Outbox) -> u32 {
        let volume = self.lines.id;
        let mut runs = Few::new();
        for line in &lines {
            for (first, count) in mask_runs(line.mask) {
                let offset = first * SECTOR_BYTES as u32;
                let len = count * SECTOR_BYTES as u32;
                let place = Place::Slot { slot: line.slot, offset };
                let at = line.key.offset() + u64::from(offset);
                push_run(&mut runs, at, Segment { place, len }, BRIDGE_BYTES_MAX);
            }
        }
        let op = LineOp::new(OpKind::Fill, volume, lines, None, runs.len());
        let id = self.lines.start(LineOp { cause, ..op });
        emit(out, id, (IoVerb::Read, cause), volume, None, runs);
        id.op
    }

    /// Reads the sectors that `from_pool` does not select into the part's private memory.
    fn read_direct(
        &mut self,
        part: &Part,
        from_pool: impl Fn(&LineMeta) -> u8,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> ReadOutcome {
        let mut runs = Few::new();
        for line in line_parts(part.volume, part.range) {
            let found = self.lines.index.find(line.key);
            let meta = found.map_or(LineMeta::FREE, |slot| *self.lines.index.get(slot));
            let pooled = meta.valid & from_pool(&meta);
            let missing = line.mask & !pooled;
            if missing != 0 {
                let is_known = missing & meta.dirty == 0
                    || self.lines.planted.is(PlantedBug::IgnoreDirtyInHoldOut);
                assert!(is_known, "the disk lacks the newest data of {meta:?}");
                let busy = self.lines.ops.busy(line.key).map(|(_, kind)| kind);
                assert!(matches!(busy, None | Some(OpKind::Fill)), "{meta:?} is in a {busy:?}");
            }
            for (first, count, in_pool) in pieces(line.mask, pooled) {
                let offset = first * SECTOR_BYTES as u32;
                let at = line.key.offset() + u64::from(offset);
                let place = match found {
                    Some(slot) if in_pool => Place::Slot { slot, offset },
                    _ => Place::Private { offset: (at - part.range.offset) as u32 },
                };
                let segment = Segment { place, len: count * SECTOR_BYTES as u32 };
                if !in_pool {
                    push_run(&mut runs, at, segment, 0);
                }
                segments.push(segment);
            }
        }
        for segment in segments.iter() {
            if let Place::Slot { slot, .. } = segment.place {
                self.lines.index.pin(slot);
            }
        }
        if runs.is_empty() {
            return ReadOutcome::Ready;
        }
        self.lines.volume.count_read();
        let op =
            LineOp::new(OpKind::DirectRead, part.volume, Few::new(), Some(part.id), runs.len());
        let id = self.lines.start(op);
        emit(out, id, (IoVerb::Read, IoCause::Demand), part.volume, Some(part.id), runs);
        ReadOutcome::Started
    }

    /// See [`crate::Shard::prefetch`].
    pub(crate) fn prefetch(
        &mut self,
        range: ByteRange,
        mark: Option<u64>,
        out: &mut Outbox,
    ) -> u64 {
        // The stream will soon read the resident lines too. If one of them were evicted now to make
        // room for the others, its read would queue behind the whole prefetch.
        for line in line_parts(self.lines.id, range) {
            // A line that waits for its first use keeps its place in the policy.
            if let Some(slot) = self.lines.index.find(line.key)
                && self.lines.index.get(slot).flags & FIRST_USE == 0
            {
                self.lines.index.touch(slot, Hint::Normal);
            }
        }
        let mut fill = Few::new();
        for line in line_parts(self.lines.id, range) {
            sample_prefetch(self.lines.index, line.key);
            let marked = mark == Some(line.key.line());
            if let Some(slot) = self.lines.index.find(line.key) {
                if marked {
                    self.lines.index.set_flags(slot, MARK);
                }
                continue;
            }
            if self.lines.ops.busy(line.key).is_some() {
                continue;
            }
            let Some(line) = self.fill_line(line.key, None, Hint::Stream, out) else { break };
            self.lines.index.set_flags(line.slot, PREFETCHED | if marked { MARK } else { 0 });
            fill.push(line);
        }
        debug_assert!(fill.len() as u64 <= LINES_PER_REGION);
        let lines = fill.len() as u64;
        if lines > 0 {
            self.lines.volume.counters_mut().prefetched_lines += lines;
            self.lines.volume.count_read();
            self.start_fill(fill, IoCause::Prefetch, out);
        }
        lines
    }

    /// See [`crate::Shard::preload`].
    pub(crate) fn preload(
        &mut self,
        part: &Part,
        mask: u32,
        kind: PreloadKind,
        out: &mut Outbox,
    ) -> PreloadOutcome {
        let mut fill = Few::new();
        let wanted = line_parts(part.volume, part.range)
            .filter(|line| mask & 1 << (line.key.line() % GRANULE_LINES) != 0);
        for line in wanted {
            if self.lines.ops.busy(line.key).is_some() {
                continue;
            }
            let filled = match kind {
                PreloadKind::Warm => self.preload_absent(line.key, Hint::Normal, out),
                PreloadKind::Hot => self.preload_absent(line.key, Hint::Hot, out),
                PreloadKind::Forecast => self.preload_forecast(line.key, out),
                PreloadKind::Pinned => self.preload_pinned(line.key, out),
            };
            match filled {
                Preload::Fill(line) => fill.push(line),
                Preload::Skip => {}
                Preload::NoRoom => break,
            }
        }
        let lines = fill.len() as u64;
        if lines == 0 {
            return PreloadOutcome::Done;
        }
        if kind == PreloadKind::Forecast {
            count_forecast(self.lines.index, part.volume, lines);
        }
        let counters = self.lines.volume.counters_mut();
        let (count, cause) = match kind {
            PreloadKind::Warm | PreloadKind::Hot | PreloadKind::Forecast => {
                (&mut counters.preloaded_lines, IoCause::Preload)
            }
            PreloadKind::Pinned => (&mut counters.pin_loaded_lines, IoCause::Pin),
        };
        *count += lines;
        let op = self.start_fill(fill, cause, out);
        // Not counted as a wait: no client waits.
        self.lines.ops.wait(op, part.id, WaitFor::Result);
        PreloadOutcome::Started
    }

    /// Prepares the fill of a line of a warm list, in a free slot.
    fn preload_absent(&mut self, key: LineKey, hint: Hint, out: &mut Outbox) -> Preload {
        if self.lines.index.find(key).is_some() {
            return Preload::Skip;
        }
        let index = &self.lines.index;
        if !index.warm().has_free_slot() || shares::is_full(index, self.lines.id, 0) {
            return Preload::NoRoom;
        }
        self.preload_into_slot(key, hint, out)
    }

    /// Prepares the fill of a line of a forecast. Without a free slot, it evicts another line, but
    /// not at the dirty limit, where the clean lines are few.
    fn preload_forecast(&mut self, key: LineKey, out: &mut Outbox) -> Preload {
        if let Some(slot) = self.lines.index.find(key) {
            forecast_again(self.lines.index, slot);
            return Preload::Skip;
        }
        if !self.lines.index.warm().has_free_slot() && !self.lines.quota.leaves_clean_lines() {
            return Preload::NoRoom;
        }
        self.preload_into_slot(key, Hint::Forecast, out)
    }

    fn preload_into_slot(&mut self, key: LineKey, hint: Hint, out: &mut Outbox) -> Preload {
        let Some(line) = self.fill_line(key, None, hint, out) else { return Preload::NoRoom };
        let there = self.lines.index.get(line.slot);
        assert!(there.valid | there.dirty == 0, "a preload would overwrite {there:?}");
        self.lines.index.set_flags(line.slot, PRELOADED);
        self.lines.volume.count_preload(key);
        sample_preload(self.lines.index, key, hint);
        Preload::Fill(line)
    }

    /// Prepares the fill of the sectors that a line of a pinned range lacks. Evicts another line if
    /// necessary, but not at the dirty limit, where few lines are clean.
    fn preload_pinned(&mut self, key: LineKey, out: &mut Outbox) -> Preload {
        if !is_pinned(self.lines.index, key) {
            // It was unpinned meanwhile.
            return Preload::Skip;
        }
        let found = self.lines.index.find(key);
        if let Some(slot) = found {
            // When it was pinned, the shard may have been at its limit of retained lines.
            follow_pins(self.lines.index, slot);
            if self.missing_sectors(key, self.lines.index.get(slot)) == 0 {
                return Preload::Skip;
            }
        }
        if !self.lines.quota.leaves_clean_lines() {
            return Preload::NoRoom;
        }
        self.fill_line(key, found, Hint::Normal, out).map_or(Preload::NoRoom, Preload::Fill)
    }
}

/// What a preload does with a line.
enum Preload {
    Fill(OpLine),
    Skip,
    NoRoom,
}
