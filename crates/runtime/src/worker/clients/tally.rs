//! Counts answered requests, and records their latencies once per turn.

use super::Submitted;
use crate::shared::{SlowRequest, Volume};
use crate::stats::{Compared, Count, Counts, LatencyClass, SIZE_CLASSES, size_class};
use forebay_engine::{LineHits, Uncached};
use forebay_types::{ByteRange, IoResult, LINE_BYTES};
use forebay_volume::RequestKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Requests of a turn with the same latency, such as a batch of hits.
struct Tally {
    volume: Arc<Volume>,
    class: LatencyClass,
    /// Its counters in the comparison with a hold-out.
    compared: Option<Compared>,
    arrived: Instant,
    count: u64,
    /// Those among them of which it has been decided whether they were slow.
    judged: u64,
}

/// The latencies of a turn.
#[derive(Default)]
pub(super) struct Tallies(Vec<Tally>);

impl Tallies {
    /// Adds an answered request.
    pub(super) fn add(
        &mut self,
        volume: &Arc<Volume>,
        (class, compared): (LatencyClass, Option<Compared>),
        arrived: Instant,
        is_judged: bool,
    ) {
        match self.0.last_mut() {
            Some(last)
                if last.class == class
                    && last.compared == compared
                    && last.arrived == arrived
                    && Arc::ptr_eq(&last.volume, volume) =>
            {
                last.count += 1;
                last.judged += u64::from(is_judged);
            }
            _ => {
                let (volume, judged) = (Arc::clone(volume), u64::from(is_judged));
                self.0.push(Tally { volume, class, compared, arrived, count: 1, judged });
            }
        }
    }

    /// Records the latencies, with the current time as the end of all requests. Returns that time.
    pub(super) fn record(&mut self, worker: usize) -> Option<Instant> {
        if self.0.is_empty() {
            return None;
        }
        let now = Instant::now();
        for tally in self.0.drain(..) {
            let ns = now.saturating_duration_since(tally.arrived).as_nanos() as u64;
            let stats = &tally.volume.stats[worker];
            stats.counts.latency_us.add(ns * tally.count / 1_000);
            stats.record(tally.class, ns, tally.count);
            if let Some(compared) = tally.compared {
                stats.record_compared(compared, ns, tally.count);
            }
            let slow = &tally.volume.slow;
            if slow.is_passed_by_ns(ns) && tally.count > tally.judged {
                let (operation, requests) = (tally.class.operation(), tally.count - tally.judged);
                slow.add(SlowRequest::of_turn(operation, requests, Duration::from_nanos(ns)));
            }
        }
        Some(now)
    }
}

/// The counters of an answer in the comparison with a hold-out, if the volume has one.
pub(super) fn compared(
    volume: &Volume,
    submitted: &Submitted,
    result: IoResult,
    line_hits: LineHits,
) -> Option<Compared> {
    if !volume.has_hold_out.load(Ordering::Relaxed) || result.is_err() {
        return None;
    }
    Compared::of(submitted.request.kind, submitted.request.range, line_hits)
}

/// Counts an answer. Returns the class of its latency; `None` if it is not recorded.
pub(super) fn count(
    volume: &Volume,
    worker: usize,
    submitted: &Submitted,
    result: IoResult,
    line_hits: LineHits,
) -> Option<LatencyClass> {
    let counts = &volume.stats[worker].counts;
    let Submitted { request, is_sequential, .. } = submitted;
    let bytes = request.range.len;
    // A failed request was not served from the pool, even if all of its lines are there.
    let uncached = line_hits.uncached.or_else(|| result.is_err().then_some(Uncached::Failed));
    if result.is_err() {
        counts.errors.add(1);
    }
    match request.kind {
        RequestKind::Read => {
            counts.read_bytes.add(bytes);
            count_pattern(counts, &counts.read_sizes, request.range);
            if *is_sequential {
                counts.sequential_reads.add(1);
            }
            Some(count_read(counts, line_hits, uncached))
        }
        RequestKind::Write { .. } => {
            counts.write_bytes.add(bytes);
            count_pattern(counts, &counts.write_sizes, request.range);
            if *is_sequential {
                counts.sequential_writes.add(1);
            }
            Some(count_write(counts, line_hits, uncached))
        }
        RequestKind::Flush => {
            counts.flushes.add(1);
            Some(LatencyClass::Flush)
        }
        RequestKind::Trim { .. } => {
            counts.trims.add(1);
            counts.trim_bytes.add(bytes);
            Some(LatencyClass::Trim)
        }
        RequestKind::Zero { .. } => {
            counts.zeroes.add(1);
            counts.zero_bytes.add(bytes);
            Some(LatencyClass::Trim)
        }
        RequestKind::Prefetch => {
            counts.prefetches.add(1);
            None
        }
        RequestKind::Destage
        | RequestKind::Checkpoint { .. }
        | RequestKind::Sync
        | RequestKind::Order
        | RequestKind::Restore
        | RequestKind::Record
        | RequestKind::Preload { .. }
        | RequestKind::RestoreZero { .. } => unreachable!("clients cannot send these"),
    }
}

/// Counts a read by what was in the pool.
fn count_read(counts: &Counts, line_hits: LineHits, uncached: Option<Uncached>) -> LatencyClass {
    let Some(reason) = uncached else {
        counts.read_hits.add(1);
        return LatencyClass::ReadHit;
    };
    counts.uncached_reads[reason as usize].add(1);
    let is_partial = line_hits.hits > 0;
    (if is_partial { &counts.read_partial_hits } else { &counts.read_misses }).add(1);
    LatencyClass::ReadMiss
}

/// Counts a write by what was in the pool.
fn count_write(counts: &Counts, line_hits: LineHits, uncached: Option<Uncached>) -> LatencyClass {
    let of_class = match (line_hits.hits, line_hits.misses) {
        (0, _) => &counts.write_misses,
        (_, 0) => &counts.write_hits,
        _ => &counts.write_partial_hits,
    };
    of_class.add(1);
    let Some(reason) = uncached else { return LatencyClass::WriteMemory };
    counts.uncached_writes[reason as usize].add(1);
    LatencyClass::WriteDisk
}

/// Counts the size and the alignment of a read or write.
fn count_pattern(counts: &Counts, sizes: &[Count; SIZE_CLASSES], range: ByteRange) {
    sizes[size_class(range.len)].add(1);
    if !(range.offset | range.len).is_multiple_of(LINE_BYTES) {
        counts.unaligned.add(1);
    }
}
