//! Prefetch for clients and for streams of reads, and preload for warm-ups, pinned ranges and
//! forecasts.

use super::parts::PartStep;
use super::{Dispatcher, reply_done};
use crate::Wait;
use crate::host::Host;
use crate::merge::READ_BYTES_MAX;
use crate::split::split_at;
use crate::{PrefetchPlan, Request, shard_of};
use forebay_engine::{Attempt, LineHits, Part, PreloadKind, PreloadOutcome, Uncached};
use forebay_types::{ByteRange, LINE_BYTES, Mode, VolumeId};

/// First uses of prefetched lines are reported to the streams once there are this many.
const UNREPORTED_USES_MAX: u32 = 64;

impl<H: Host> Dispatcher<H> {
    pub(super) fn submit_prefetch(&mut self, host: &mut H, token: H::Token, request: Request) {
        for range in host.stripes(request.volume).split(request.range) {
            self.prefetch(host, request.volume, range, None);
        }
        // Answered before the fills end: a prefetch is a hint. A read that comes early waits for
        // its fill.
        reply_done(host, token);
    }

    /// Reads ahead after a read that missed, if the read belongs to a stream. Otherwise reports the
    /// range to the host as needed, for its forecasts. Nothing is read ahead of a frozen volume,
    /// and what is read while it is frozen is not typical for the time of the day.
    pub(super) fn on_miss(
        &mut self,
        host: &mut H,
        volume: VolumeId,
        range: ByteRange,
        line_hits: LineHits,
    ) {
        if line_hits.uncached == Some(Uncached::Frozen) {
            return;
        }
        self.report_prefetch_uses(host);
        let found = host.streams(volume, |streams| {
            let plan = streams.on_miss(range);
            (plan, streams.is_last_followed())
        });
        let (plan, is_stream) = found.unwrap_or_default();
        if !is_stream {
            host.record_need(volume, range, line_hits.misses.into());
        }
        self.read_ahead(host, volume, plan);
    }

    /// Counts prefetched lines that clients have read for the first time. They are reported to the
    /// streams in batches, so that few hits take the lock of the stream table.
    pub(super) fn add_prefetch_uses(&mut self, host: &mut H, volume: VolumeId, lines: u32) {
        if self.prefetch_uses.0 != volume {
            self.report_prefetch_uses(host);
        }
        let unreported = self.prefetch_uses.1 + lines;
        self.prefetch_uses = (volume, unreported);
        if unreported >= UNREPORTED_USES_MAX {
            self.report_prefetch_uses(host);
        }
    }

    fn report_prefetch_uses(&mut self, host: &mut H) {
        let (volume, lines) = self.prefetch_uses;
        if lines > 0 {
            self.prefetch_uses.1 = 0;
            let bytes = u64::from(lines) * LINE_BYTES;
            host.streams(volume, |streams| streams.on_use(bytes));
        }
    }

    pub(super) fn read_ahead(
        &mut self,
        host: &mut H,
        volume: VolumeId,
        plan: Option<PrefetchPlan>,
    ) {
        if let Some(plan) = plan {
            let stripes = host.stripes(volume);
            let pieces = plan.ranges().flat_map(|range| stripes.split(range));
            // The client waits for the last byte of its own read anyway.
            let bytes_max = plan.read_bytes.next_multiple_of(LINE_BYTES).max(READ_BYTES_MAX);
            for range in pieces.flat_map(|piece| split_at(piece, bytes_max)) {
                self.prefetch(host, volume, range, Some(plan.mark));
            }
        }
    }

    fn prefetch(&mut self, host: &mut H, volume: VolumeId, range: ByteRange, mark: Option<u64>) {
        let shard = shard_of(volume, host.stripes(volume), range.offset, host.shards());
        host.call(shard, &[], &mut self.out, |shard, out| {
            if shard.volume(volume).admits(range.offset) {
                shard.prefetch(volume, range, mark, out);
            }
        });
        self.drain_outbox(host, shard);
    }

    /// Attempts to preload a part. The part waits for its reads, and is then answered with their
    /// result.
    pub(super) fn try_preload(
        &mut self,
        host: &mut H,
        part: &Part,
        attempt: Attempt,
        lines: u32,
        kind: PreloadKind,
    ) -> PartStep {
        if attempt.count > 0 {
            return PartStep::Done(attempt.error.map_or(Ok(()), Err));
        }
        let shard =
            shard_of(part.volume, host.stripes(part.volume), part.range.offset, host.shards());
        let outcome = host.call(shard, &[], &mut self.out, |shard, out| {
            let state = shard.volume(part.volume);
            // Pinned lines are kept in memory, although no read uses those of a held-out region
            // until it is no longer held out.
            let is_admitted = match kind {
                PreloadKind::Pinned => state.mode() != Mode::Bypass,
                PreloadKind::Warm | PreloadKind::Hot | PreloadKind::Forecast => {
                    state.admits(part.range.offset)
                }
            };
            if !is_admitted {
                return PreloadOutcome::Done;
            }
            shard.preload(part, lines, kind, out)
        });
        match outcome {
            PreloadOutcome::Done => PartStep::Done(Ok(())),
            PreloadOutcome::Started => PartStep::Waiting(Wait::Disk),
        }
    }
}
