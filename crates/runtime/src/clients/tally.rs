//! Counts answered requests, and records their latencies once per turn.

use crate::shared::Volume;
use crate::stats::LatencyClass;
use forebay_engine::LineHits;
use forebay_frontend::ClientRequest;
use forebay_types::IoResult;
use forebay_volume::RequestKind;
use std::sync::Arc;
use std::time::Instant;

/// Requests of a turn with the same latency, such as a batch of hits.
struct Tally {
    volume: Arc<Volume>,
    class: LatencyClass,
    arrived: Instant,
    count: u64,
}

/// The latencies of a turn.
#[derive(Default)]
pub(super) struct Tallies(Vec<Tally>);

impl Tallies {
    /// Adds an answered request.
    pub(super) fn add(&mut self, volume: &Arc<Volume>, class: LatencyClass, arrived: Instant) {
        match self.0.last_mut() {
            Some(last)
                if last.class == class
                    && last.arrived == arrived
                    && Arc::ptr_eq(&last.volume, volume) =>
            {
                last.count += 1;
            }
            _ => self.0.push(Tally { volume: Arc::clone(volume), class, arrived, count: 1 }),
        }
    }

    /// Records the latencies, with the current time as the end of all requests.
    pub(super) fn record(&mut self, worker: usize) {
        if self.0.is_empty() {
            return;
        }
        let now = Instant::now();
        for tally in self.0.drain(..) {
            let ns = now.saturating_duration_since(tally.arrived).as_nanos() as u64;
            let stats = &tally.volume.stats[worker];
            stats.counts.waited_us.add(ns * tally.count / 1_000);
            stats.latencies.lock().record(tally.class, ns, tally.count);
        }
    }
}

/// Counts an answer. Returns the class of its latency.
pub(super) fn count(
    volume: &Volume,
    worker: usize,
    request: &ClientRequest,
    result: IoResult,
    line_hits: LineHits,
) -> LatencyClass {
    let counts = &volume.stats[worker].counts;
    let bytes = request.range.len;
    if result.is_err() {
        counts.errors.add(1);
    }
    match request.kind {
        RequestKind::Read => {
            counts.reads.add(1);
            counts.read_bytes.add(bytes);
            match (line_hits.hits, line_hits.misses) {
                (_, 0) => {
                    counts.read_hits.add(1);
                    return LatencyClass::Hit;
                }
                (0, _) => counts.read_misses.add(1),
                _ => counts.read_partial_hits.add(1),
            }
            LatencyClass::Miss
        }
        RequestKind::Write { .. } => {
            counts.writes.add(1);
            counts.write_bytes.add(bytes);
            LatencyClass::Write
        }
        RequestKind::Flush => {
            counts.flushes.add(1);
            LatencyClass::Flush
        }
        RequestKind::Trim { .. } => {
            counts.trims.add(1);
            LatencyClass::Write
        }
        RequestKind::Zero { .. } => {
            counts.zeroes.add(1);
            LatencyClass::Write
        }
        RequestKind::Prefetch => {
            counts.prefetches.add(1);
            LatencyClass::Hit
        }
        RequestKind::Destage
        | RequestKind::Checkpoint
        | RequestKind::Sync
        | RequestKind::Order
        | RequestKind::Restore
        | RequestKind::Record
        | RequestKind::Preload { .. }
        | RequestKind::RestoreZero { .. } => unreachable!("clients cannot send these"),
    }
}
