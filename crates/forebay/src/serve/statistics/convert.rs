//! Converts the runtime's statistics to the types of the control API.

use forebay_api::{
    BackendIos, Counters, DiskUse, IoPattern, Latencies, LatencyBucket, LatencySummary, SizeClass,
};
use forebay_runtime::{
    IoCause, Latencies as Histograms, LatencyClass, LatencyHistogram, RequestCounters, Uncached,
    VolumeStatistics, size_class_bytes,
};
use forebay_types::LINE_BYTES;
use std::collections::BTreeMap;

pub(in crate::serve) fn counters(figures: &VolumeStatistics) -> Counters {
    let (requests, engine) = (&figures.requests, &figures.engine);
    let saved = |clients: u64, disk: u64| clients.wrapping_sub(disk).cast_signed();
    let (reads, writes) = (requests.reads(), requests.writes());
    let (backend_reads, backend_writes) = (requests.backend_reads(), requests.backend_writes());
    let (read_bytes, written_bytes) =
        (requests.backend_read_bytes(), requests.backend_write_bytes());
    let erases = requests.trims + requests.zeroes;
    Counters {
        reads,
        writes,
        read_bytes: requests.read_bytes,
        write_bytes: requests.write_bytes,
        flushes: requests.flushes,
        trims: requests.trims,
        trim_bytes: requests.trim_bytes,
        zeroes: requests.zeroes,
        zero_bytes: requests.zero_bytes,
        prefetches: requests.prefetches,
        read_hits: requests.read_hits,
        read_partial_hits: requests.read_partial_hits,
        read_misses: requests.read_misses,
        write_hits: requests.write_hits,
        write_partial_hits: requests.write_partial_hits,
        write_misses: requests.write_misses,
        deferred_writes: writes.saturating_sub(requests.uncached_writes.iter().sum()),
        uncached_reads: reasons(&requests.uncached_reads),
        uncached_writes: reasons(&requests.uncached_writes),
        errors: requests.errors,
        refused: requests.refused,
        limited: requests.limited,
        limited_us: requests.limited_us,
        pattern: pattern(requests),
        backend_reads,
        backend_writes,
        backend_read_bytes: read_bytes,
        backend_write_bytes: written_bytes,
        backend_flushes: requests.backend_flushes,
        backend_erases: requests.backend_erases,
        backend_errors: requests.backend_errors,
        backend_causes: causes(figures),
        saved_ios: saved(
            reads + writes + erases + requests.flushes,
            backend_reads + backend_writes + requests.backend_erases + requests.backend_flushes,
        ),
        saved_bytes: saved(requests.read_bytes + requests.write_bytes, read_bytes + written_bytes),
        admitted_bytes: figures.admitted_lines * LINE_BYTES,
        evicted_bytes: figures.evicted_lines * LINE_BYTES,
        prefetched_bytes: engine.prefetched_lines * LINE_BYTES,
        prefetch_used_bytes: engine.prefetch_used_lines * LINE_BYTES,
        preloaded_bytes: engine.preloaded_lines * LINE_BYTES,
        preload_used_bytes: engine.preload_used_lines * LINE_BYTES,
        preload_in_vain_bytes: figures.preloaded_in_vain_lines * LINE_BYTES,
        pin_loaded_bytes: engine.pin_loaded_lines * LINE_BYTES,
        destages_urgent: engine.destages_urgent,
        destages_normal: engine.destages_background,
        throttled_writes: engine.throttled_writes,
        damaged_lines: engine.damaged_lines,
        corrected_lines: engine.corrected_lines,
        lost_lines: engine.lost_lines,
    }
}

/// The reasons that occurred, by name.
fn reasons(counts: &[u64; Uncached::ALL.len()]) -> BTreeMap<String, u64> {
    let some = Uncached::ALL.iter().zip(counts).filter(|(_, count)| **count > 0);
    some.map(|(reason, &count)| (reason.name().to_owned(), count)).collect()
}

/// The causes of I/Os that occurred, by name.
fn causes(figures: &VolumeStatistics) -> BTreeMap<String, BackendIos> {
    let VolumeStatistics { requests, internal, .. } = figures;
    let of_cause = |cause: IoCause| {
        let at = cause as usize;
        let ios = BackendIos {
            reads: requests.backend_reads_by_cause[at],
            read_bytes: requests.backend_read_bytes_by_cause[at],
            writes: requests.backend_writes_by_cause[at],
            write_bytes: requests.backend_write_bytes_by_cause[at],
        };
        (cause.name(), ios)
    };
    let internal =
        BackendIos { reads: internal.reads, read_bytes: internal.read_bytes, ..<_>::default() };
    let all = IoCause::ALL.into_iter().map(of_cause).chain([("internal", internal)]);
    let some = all.filter(|(_, ios)| ios.reads + ios.writes > 0);
    some.map(|(name, ios)| (name.to_owned(), ios)).collect()
}

fn pattern(requests: &RequestCounters) -> IoPattern {
    let sizes = |counts: &[u64]| {
        let some = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        let class =
            |(class, &requests)| SizeClass { up_to_bytes: size_class_bytes(class), requests };
        some.map(class).collect()
    };
    IoPattern {
        sequential_reads: requests.sequential_reads,
        sequential_writes: requests.sequential_writes,
        unaligned: requests.unaligned,
        read_sizes: sizes(&requests.read_sizes),
        write_sizes: sizes(&requests.write_sizes),
    }
}

pub(in crate::serve) fn disk_use(figures: &VolumeStatistics, in_flight: u64) -> DiskUse {
    let disk = [
        LatencyClass::DiskRead,
        LatencyClass::DiskWrite,
        LatencyClass::DiskFlush,
        LatencyClass::DiskErase,
    ];
    let waits_us = disk.map(|class| figures.latencies.of(class).sum_us());
    DiskUse {
        in_flight,
        busy_seconds: figures.disk_busy_ns as f64 / 1e9,
        wait_seconds: waits_us.iter().sum::<f64>() / 1e6,
    }
}

pub(in crate::serve) fn latencies(latencies: &Histograms) -> Latencies {
    let of = |class| latency(latencies.of(class));
    Latencies {
        read_hit: of(LatencyClass::ReadHit),
        read_miss: of(LatencyClass::ReadMiss),
        write: latency(&writes_of(latencies)),
        write_memory: of(LatencyClass::WriteMemory),
        write_disk: of(LatencyClass::WriteDisk),
        flush: of(LatencyClass::Flush),
        trim: of(LatencyClass::Trim),
        disk_read: of(LatencyClass::DiskRead),
        disk_write: of(LatencyClass::DiskWrite),
        disk_flush: of(LatencyClass::DiskFlush),
        disk_erase: of(LatencyClass::DiskErase),
    }
}

/// The latencies of all writes.
pub(in crate::serve) fn writes_of(latencies: &Histograms) -> LatencyHistogram {
    let mut writes = latencies.of(LatencyClass::WriteMemory).clone();
    writes.merge(latencies.of(LatencyClass::WriteDisk));
    writes
}

/// The histograms that have latencies, by the names of the fields of [`Latencies`].
pub(in crate::serve) fn histograms(
    latencies: &Histograms,
) -> BTreeMap<String, forebay_api::LatencyHistogram> {
    let some = LatencyClass::ALL.iter().filter_map(|&class| {
        let histogram = latencies.of(class);
        let buckets = histogram.buckets();
        let buckets = buckets.map(|(up_to_us, count)| LatencyBucket { up_to_us, count });
        let buckets: Vec<_> = buckets.collect();
        let sum_us = histogram.sum_us();
        let shown = forebay_api::LatencyHistogram { sum_us, buckets };
        (!shown.buckets.is_empty()).then(|| (class_name(class).to_owned(), shown))
    });
    some.collect()
}

/// The name of a class in the API.
const fn class_name(class: LatencyClass) -> &'static str {
    match class {
        LatencyClass::ReadHit => "read_hit",
        LatencyClass::ReadMiss => "read_miss",
        LatencyClass::WriteMemory => "write_memory",
        LatencyClass::WriteDisk => "write_disk",
        LatencyClass::Flush => "flush",
        LatencyClass::Trim => "trim",
        LatencyClass::DiskRead => "disk_read",
        LatencyClass::DiskWrite => "disk_write",
        LatencyClass::DiskFlush => "disk_flush",
        LatencyClass::DiskErase => "disk_erase",
    }
}

/// The summary of a histogram.
pub(in crate::serve) fn latency(histogram: &LatencyHistogram) -> LatencySummary {
    LatencySummary {
        count: histogram.count(),
        mean_us: histogram.mean_us(),
        p50_us: histogram.quantile_us(0.5),
        p99_us: histogram.quantile_us(0.99),
        p999_us: histogram.quantile_us(0.999),
        max_us: histogram.max_us(),
    }
}
