//! The statistics of a volume: counters, latencies, and the use of its disk. One unit everywhere:
//! requests are counted as clients sent them, data in bytes, and damage in lines.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Counters of a volume: since it was added, or in a period. A request is counted once, however
/// often it is retried; a huge write that is received in pieces counts once for each piece. Hits,
/// partial hits and misses add up to the reads and to the writes.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Counters {
    /// Reads by clients.
    pub reads: u64,
    /// Writes by clients.
    pub writes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Flushes by clients.
    pub flushes: u64,
    /// Trims by clients.
    pub trims: u64,
    /// Bytes of the trims.
    #[serde(default)]
    pub trim_bytes: u64,
    /// Writes of zeroes by clients.
    pub zeroes: u64,
    /// Bytes of the writes of zeroes.
    #[serde(default)]
    pub zero_bytes: u64,
    /// Prefetch requests by clients.
    #[serde(default)]
    pub prefetches: u64,
    /// Reads served completely from memory.
    pub read_hits: u64,
    /// Reads served partly from memory.
    pub read_partial_hits: u64,
    /// Reads with nothing in memory.
    pub read_misses: u64,
    /// Writes whose lines of 4 KiB were all in memory.
    pub write_hits: u64,
    /// Writes of which some lines were in memory.
    #[serde(default)]
    pub write_partial_hits: u64,
    /// Writes of which no line was in memory.
    pub write_misses: u64,
    /// Writes acknowledged from memory, with or without a journal: their I/O to the disk is
    /// deferred.
    #[serde(default)]
    pub deferred_writes: u64,
    /// Reads that are no hits, by reason. They add up to the partial hits and the misses.
    pub uncached_reads: BTreeMap<String, u64>,
    /// Writes that were not acknowledged from memory, by reason. With the deferred writes, they add
    /// up to the writes.
    pub uncached_writes: BTreeMap<String, u64>,
    /// Requests answered with an error.
    pub errors: u64,
    /// The part of `errors` that was refused at once. No other counter includes these requests.
    #[serde(default)]
    pub refused: u64,
    /// Requests that waited for `iops-limit` or `bandwidth-limit`.
    #[serde(default)]
    pub limited: u64,
    /// The sum of these waits, in microseconds. No latency includes them.
    #[serde(default)]
    pub limited_us: u64,
    /// The pattern of the reads and writes.
    #[serde(default)]
    pub pattern: IoPattern,
    /// Reads from the disk; coalesced I/Os count as one.
    pub backend_reads: u64,
    /// Writes to the disk; coalesced I/Os count as one.
    pub backend_writes: u64,
    /// Bytes read from the disk.
    pub backend_read_bytes: u64,
    /// Bytes written to the disk.
    pub backend_write_bytes: u64,
    /// Flushes of the disk.
    #[serde(default)]
    pub backend_flushes: u64,
    /// Discards of the disk, and writes of zeroes by the disk.
    #[serde(default)]
    pub backend_erases: u64,
    /// I/Os that the disk has failed.
    #[serde(default)]
    pub backend_errors: u64,
    /// Reads from the disk and writes to it by cause: `demand` (a client waits), `destage-urgent`,
    /// `destage`, `prefetch`, `preload` (warm-ups and forecasts), `pin`. And `internal`: what the
    /// server reads for itself, to measure the disk and to recognise it. No other counter has that.
    #[serde(default)]
    pub backend_causes: BTreeMap<String, BackendIos>,
    /// I/Os of clients minus I/Os of the disk: reads, writes, trims, writes of zeroes and flushes.
    /// Negative if the disk had more, as after much was read ahead.
    #[serde(default)]
    pub saved_ios: i64,
    /// Bytes of the reads and writes of clients minus those of the disk.
    #[serde(default)]
    pub saved_bytes: i64,
    /// Bytes that came into memory, in whole lines.
    #[serde(default)]
    pub admitted_bytes: u64,
    /// Bytes evicted from memory for others, in whole lines.
    #[serde(default)]
    pub evicted_bytes: u64,
    /// Bytes read ahead, in whole lines.
    pub prefetched_bytes: u64,
    /// Bytes read ahead that a client has read.
    pub prefetch_used_bytes: u64,
    /// Bytes read by the warm-up or for forecasts, in whole lines.
    #[serde(default)]
    pub preloaded_bytes: u64,
    /// Bytes read by the warm-up or for forecasts that a client has read.
    #[serde(default)]
    pub preload_used_bytes: u64,
    /// Bytes read by the warm-up or for forecasts that were evicted before a client read them.
    #[serde(default)]
    pub preload_in_vain_bytes: u64,
    /// Bytes of pinned ranges that were read because they are pinned, in whole lines.
    #[serde(default)]
    pub pin_loaded_bytes: u64,
    /// Destages for a FLUSH, a change of mode, throttled writers, or a write to the disk over dirty
    /// data. In an ordered volume: destages of the epochs that one of these waits for.
    #[serde(default)]
    pub destages_urgent: u64,
    /// Destages because of age or the amount of dirty data. In an ordered volume, all others.
    #[serde(default)]
    pub destages_normal: u64,
    /// Parts of writes throttled at the dirty limit.
    #[serde(default)]
    pub throttled_writes: u64,
    /// Lines found damaged in memory.
    #[serde(default)]
    pub damaged_lines: u64,
    /// Lines among these with dirty data that were repaired by parity.
    #[serde(default)]
    pub corrected_lines: u64,
    /// Lines among these that lost dirty data.
    #[serde(default)]
    pub lost_lines: u64,
}

impl Counters {
    /// The fraction of reads served completely from memory; `None` before the first read.
    pub fn read_hit_ratio(&self) -> Option<f64> {
        (self.reads > 0).then(|| self.read_hits as f64 / self.reads as f64)
    }

    /// The fraction of reads and writes served from memory alone; `None` before the first one.
    pub fn hit_ratio(&self) -> Option<f64> {
        let requests = self.reads + self.writes;
        let served = self.read_hits + self.deferred_writes;
        (requests > 0).then(|| served as f64 / requests as f64)
    }

    /// The fraction of reads among reads and writes; `None` before the first one.
    pub fn read_ratio(&self) -> Option<f64> {
        let requests = self.reads + self.writes;
        (requests > 0).then(|| self.reads as f64 / requests as f64)
    }
}

/// I/Os of a disk for one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct BackendIos {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// The pattern of the reads and writes of clients.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct IoPattern {
    /// Reads that begin where the previous read of the same connection ends.
    pub sequential_reads: u64,
    /// Writes that begin where the previous write of the same connection ends.
    pub sequential_writes: u64,
    /// Reads and writes whose offset or length is not a multiple of 4 KiB.
    pub unaligned: u64,
    /// Reads by size: each entry counts those above the size of the entry before it.
    pub read_sizes: Vec<SizeClass>,
    /// Writes by size.
    pub write_sizes: Vec<SizeClass>,
}

/// Requests of similar sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SizeClass {
    /// The largest size: a power of two. The class begins above half of it.
    pub up_to_bytes: u64,
    /// Requests of these sizes; classes without requests are left out.
    pub requests: u64,
}

/// How busy a disk is with the I/Os of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct DiskUse {
    /// I/Os in flight now.
    pub in_flight: u64,
    /// The time in which an I/O was in flight. For several volumes, the sum of their times.
    pub busy_seconds: f64,
    /// The sum of the latencies of the disk's I/Os. Divided by a time, it is the mean number of
    /// I/Os in flight.
    pub wait_seconds: f64,
}

/// Latencies. Those of requests run from the arrival of the complete request to the handover of its
/// reply for sending. They are measured once for each batch of requests that a worker receives
/// together, and include the whole batch. Those of the disk run from the start of an I/O to its
/// completion.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Latencies {
    /// Reads served completely from memory.
    pub read_hit: LatencySummary,
    /// All other reads.
    pub read_miss: LatencySummary,
    /// Writes.
    pub write: LatencySummary,
    /// Writes acknowledged from memory; with a journal, when it has recorded them.
    #[serde(default)]
    pub write_memory: LatencySummary,
    /// Writes acknowledged from the disk.
    #[serde(default)]
    pub write_disk: LatencySummary,
    /// Flushes.
    pub flush: LatencySummary,
    /// Trims and writes of zeroes.
    #[serde(default)]
    pub trim: LatencySummary,
    /// Reads from the disk.
    #[serde(default)]
    pub disk_read: LatencySummary,
    /// Writes to the disk.
    #[serde(default)]
    pub disk_write: LatencySummary,
    /// Flushes of the disk.
    #[serde(default)]
    pub disk_flush: LatencySummary,
    /// Discards of the disk, and writes of zeroes by the disk.
    #[serde(default)]
    pub disk_erase: LatencySummary,
}

/// The summary of a latency histogram, in microseconds; all zero while the count is zero. The mean
/// is exact; the quantiles and the maximum are accurate to one eighth.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct LatencySummary {
    /// Measured requests.
    pub count: u64,
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    #[serde(default)]
    pub p999_us: f64,
    /// The maximum.
    pub max_us: f64,
}

/// A latency histogram.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct LatencyHistogram {
    /// The sum of the latencies, in microseconds.
    pub sum_us: f64,
    /// Latencies by length, from short to long; buckets without latencies are left out.
    pub buckets: Vec<LatencyBucket>,
}

/// Similar latencies.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct LatencyBucket {
    /// The end of the bucket, in microseconds. Its start is at most an eighth of that shorter, or
    /// 0.128 us.
    pub up_to_us: f64,
    /// The number of latencies.
    pub count: u64,
}

/// The statistics of the server over time.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Statistics {
    /// The time since the server began to count; the totals reach back further.
    pub seconds: u64,
    /// All volumes that are served.
    pub all: Periods,
    /// Each volume, in the order of their names, without histograms.
    pub volumes: Vec<StatisticsOfVolume>,
}

/// The statistics of a volume over time.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct StatisticsOfVolume {
    /// The volume.
    pub name: String,
    /// What was counted, by period.
    #[serde(flatten)]
    pub periods: Periods,
}

/// What was counted in some periods.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Periods {
    /// Since the volume was first served; kept over restarts of the server, for the name and
    /// backing of the volume.
    pub total: PeriodStatistics,
    /// In the last five minutes, and up to one more.
    pub last_5_minutes: PeriodStatistics,
    /// In the last hour, and up to five more minutes.
    pub last_hour: PeriodStatistics,
    /// In the last day, and up to one more hour.
    pub last_day: PeriodStatistics,
}

/// What was counted in a period.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct PeriodStatistics {
    /// The length of the period: shorter than its name says while the volume has not been served
    /// for so long; zero for the total, whose age is not kept.
    pub seconds: u64,
    /// Counters.
    pub counters: Counters,
    /// Latencies.
    pub latency: Latencies,
    /// The use of the disk.
    pub disk: DiskUse,
    /// Latency histograms, where they are shown: those of the field `latency` but `write`, which is
    /// the sum of `write_memory` and `write_disk`. Histograms without latencies are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub histograms: BTreeMap<String, LatencyHistogram>,
}

impl Periods {
    /// Each period.
    pub const fn all_mut(&mut self) -> [&mut PeriodStatistics; 4] {
        [&mut self.total, &mut self.last_5_minutes, &mut self.last_hour, &mut self.last_day]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_unknown_before_the_first_request() {
        let mut counters = Counters::default();
        let ratios = |counters: &Counters| {
            [counters.read_hit_ratio(), counters.hit_ratio(), counters.read_ratio()]
        };
        assert_eq!(ratios(&counters), [None; 3]);
        (counters.writes, counters.deferred_writes) = (10, 5);
        assert_eq!(ratios(&counters), [None, Some(0.5), Some(0.0)]);
        (counters.reads, counters.read_hits) = (30, 27);
        assert_eq!(ratios(&counters), [Some(0.9), Some(0.8), Some(0.75)]);
    }
}
