//! The metrics and their figures.

use super::Measurements;
use super::text::{MetricKind, MetricsText};
use MetricKind::{Counter, Gauge, Histogram, Summary};
use forebay_api::{
    BackendIos, BackgroundShare, JournalStatus, LatencyHistogram, MemoryState, PowerStatus,
    Severity, SizeClass, Status, UpsStatus, VolumeStatus,
};

/// The upper bounds of the buckets of latencies, in microseconds: doublings from 4 us to 17 s. Each
/// is also the end of one of the finer buckets that are counted.
fn latency_ends_us() -> impl Iterator<Item = f64> {
    (0..23).map(|doubling| 4.096 * f64::from(1 << doubling))
}

/// The upper bounds of the buckets of sizes, in bytes: from a sector to the largest request.
fn size_ends() -> impl Iterator<Item = u64> {
    (9..=25).map(|power| 1 << power)
}

fn flag(is_set: bool) -> u8 {
    u8::from(is_set)
}

/// The server, its memory and its background work.
pub(super) fn program(text: &mut MetricsText, status: &Status) {
    text.family(Gauge, "build_info", "The running version.")
        .sample(&[("version", &status.version), ("io_engine", &status.io_engine)], 1);
    text.one(Gauge, "uptime_seconds", "Time since the start.", status.uptime_seconds);
    text.one(Gauge, "workers", "Threads of the data path.", status.workers);
    let help = "Time in which workers looked for requests instead of sleeping.";
    text.one(Counter, "polling_seconds_total", help, status.polled_ms as f64 / 1e3);
    text.one(Gauge, "connections", "Connected clients.", status.connections);
    let help = "Lines of the log that were dropped, because the log was not read in time.";
    text.one(Counter, "log_dropped_lines_total", help, status.log.dropped_lines);
    let help = "How long a line of the log has been waiting for the log's reader.";
    text.one(Gauge, "log_waiting_seconds", help, status.log.waiting_seconds);
    let mut family = text.family(Gauge, "alerts", "What is wrong now, see forebay status.");
    for severity in Severity::ALL {
        let alerts = status.alerts.iter().filter(|alert| alert.severity == severity);
        family.sample(&[("severity", severity.as_str())], alerts.count());
    }
    if let Some(site) = &status.site {
        for (name, help, count) in [
            ("site_hosts", "Hosts of the site.", site.hosts),
            ("site_hosts_answering", "Those that answer.", site.answering),
            ("site_volumes", "Volumes of the site.", site.volumes),
            ("site_volumes_unserved", "Those that no host serves.", site.unserved),
        ] {
            text.one(Gauge, name, help, count);
        }
    }
    let memory = &status.memory;
    for (name, help, bytes) in [
        ("memory_limit_bytes", "Limit of the memory of the cache.", memory.limit_bytes),
        ("memory_pool_bytes", "The part of the pool that may hold data.", memory.pool_bytes),
        ("memory_used_bytes", "The part of the pool that holds data.", memory.used_bytes),
        ("memory_dirty_bytes", "Data in the pool that is not on the disks.", memory.dirty_bytes),
        ("memory_metadata_bytes", "Index and other metadata.", memory.metadata_bytes),
        ("memory_pinned_bytes", "Pinned ranges, in memory or not.", memory.pinned_bytes),
        ("memory_pinned_limit_bytes", "The most that can be pinned.", memory.pinned_bytes_max),
    ] {
        text.one(Gauge, name, help, bytes);
    }
    if let Some(ratio) = &memory.cache_ratio {
        let help = "The dirty limit: the most data in the pool that is not on the disks.";
        text.one(Gauge, "memory_dirty_limit_bytes", help, ratio.write_bytes);
    }
    if let Some(sizing) = &memory.sizing {
        let help = "Memory that programs of this machine or container can have.";
        text.one(Gauge, "memory_available_bytes", help, sizing.available_bytes);
        let help = "Memory that is left to the system.";
        text.one(Gauge, "memory_reserve_bytes", help, sizing.reserve_bytes);
        let is_short = flag(sizing.state == MemoryState::Short);
        text.one(Gauge, "memory_short", "1 while memory is short.", is_short);
    }
    let background = &status.background;
    let mut shares =
        text.family(Gauge, "background_share", "The part of a resource for background work.");
    for (resource, share) in [("processors", background.processors), ("disks", background.disks)] {
        let share = match share {
            BackgroundShare::Full => 1.0,
            BackgroundShare::Reduced => 0.25,
            BackgroundShare::Least => 0.0625,
        };
        shares.sample(&[("resource", resource)], share);
    }
    patrol(text, status);
}

fn patrol(text: &mut MetricsText, status: &Status) {
    let patrol = &status.patrol;
    for (name, help, count) in [
        ("patrol_sealed_lines_total", "Lines whose checksums were computed.", patrol.sealed_lines),
        ("patrol_verified_lines_total", "Lines verified in memory.", patrol.verified_lines),
        ("patrol_walks_total", "Walks over the whole pool.", patrol.walks),
    ] {
        text.one(Counter, name, help, count);
    }
    let help = "Changed data without a checksum yet.";
    text.one(Gauge, "patrol_unsealed_bytes", help, patrol.unsealed_bytes);
    let help = "Dirty data that can be corrected from parity.";
    text.one(Gauge, "patrol_parity_bytes", help, patrol.parity_bytes);
    let help = "Duration of the last walk over the pool.";
    text.one(Gauge, "patrol_walk_seconds", help, patrol.walk_seconds);
}

/// A figure of a volume: kind, name, help, value.
type Figure = (MetricKind, &'static str, &'static str, fn(&VolumeStatus) -> f64);

/// The figures of a volume with no label but its name. Integers below 2^53 are exact.
#[rustfmt::skip]
const FIGURES: &[Figure] = &[
    (Gauge, "volume_size_bytes", "Size of the volume.", |v| v.size_bytes as f64),
    (Gauge, "volume_cached_bytes", "Data in memory.", |v| v.cached_bytes as f64),
    (Gauge, "volume_share_min_bytes", "Memory that other volumes do not take from it (share-min).",
        |v| v.share_min_bytes as f64),
    (Gauge, "volume_share_max_bytes", "The most memory that it may have (share-max), or 0.",
        |v| v.share_max_bytes.unwrap_or(0) as f64),
    (Gauge, "volume_dirty_bytes", "Data that is not on the disk.", |v| v.dirty_bytes as f64),
    (Gauge, "volume_frozen", "Whether nothing is admitted into memory.",
        |v| f64::from(u8::from(v.frozen))),
    (Gauge, "volume_cache_off_seconds_left", "How long an analysis keeps the cache off, at most.",
        |v| v.cache_off.as_ref().map_or(0.0, |off| off.seconds_left as f64)),
    (Gauge, "volume_mean_dirty_seconds", "How long data was dirty on average, or has been.",
        |v| v.write_back.mean_dirty_ms as f64 / 1e3),
    (Gauge, "volume_dirty_for_seconds", "No dirty data is older than this.",
        |v| v.write_back.dirty_for_ms as f64 / 1e3),
    (Gauge, "volume_pinned_bytes", "Pinned ranges, in memory or not.",
        |v| v.pins.pinned_bytes as f64),
    (Gauge, "volume_pinned_loaded_bytes", "Pinned ranges in memory.",
        |v| v.pins.loaded_bytes as f64),
    (Gauge, "volume_warm_up_planned_bytes", "Data that the warm-up is to read.",
        |v| v.warm_up.planned_bytes as f64),
    (Gauge, "volume_warm_up_done_bytes", "Data of the warm-up that is in memory.",
        |v| v.warm_up.done_bytes as f64),
    (Counter, "volume_deferred_writes_total", "Writes acknowledged from memory.",
        |v| v.counters.deferred_writes as f64),
    (Counter, "volume_unaligned_requests_total",
        "Reads and writes whose offset or length is no multiple of 4 KiB.",
        |v| v.counters.pattern.unaligned as f64),
    (Counter, "volume_request_errors_total", "Requests answered with an error.",
        |v| v.counters.errors as f64),
    (Counter, "volume_refused_requests_total", "Requests refused at once.",
        |v| v.counters.refused as f64),
    (Counter, "volume_limited_requests_total", "Requests that waited for a limit of their volume.",
        |v| v.counters.limited as f64),
    (Counter, "volume_limited_seconds_total", "The sum of these waits.",
        |v| v.counters.limited_us as f64 / 1e6),
    (Counter, "volume_disk_errors_total", "I/Os that the disk failed.",
        |v| v.counters.backend_errors as f64),
    (Gauge, "volume_disk_in_flight", "I/Os of the disk in flight.",
        |v| v.disk.in_flight as f64),
    (Gauge, "volume_disk_unanswered_seconds",
        "How long the disk has not answered an I/O; 0 while it answers all within seconds.",
        |v| v.stall.as_ref().map_or(0.0, |stall| stall.waited_ms as f64 / 1e3)),
    (Counter, "volume_disk_busy_seconds_total", "Time in which the disk had I/Os in flight.",
        |v| v.disk.busy_seconds),
    (Counter, "volume_disk_wait_seconds_total", "Sum of the latencies of the disk's I/Os.",
        |v| v.disk.wait_seconds),
    (Gauge, "volume_saved_ios", "I/Os of clients less those of the disk.",
        |v| v.counters.saved_ios as f64),
    (Gauge, "volume_saved_bytes", "Data read and written by clients less that of the disk.",
        |v| v.counters.saved_bytes as f64),
    (Counter, "volume_admitted_bytes_total", "Data that came into memory.",
        |v| v.counters.admitted_bytes as f64),
    (Counter, "volume_evicted_bytes_total", "Data evicted for other data.",
        |v| v.counters.evicted_bytes as f64),
    (Counter, "volume_prefetched_bytes_total", "Data read ahead.",
        |v| v.counters.prefetched_bytes as f64),
    (Counter, "volume_prefetch_used_bytes_total", "Data read ahead that a client read.",
        |v| v.counters.prefetch_used_bytes as f64),
    (Counter, "volume_preloaded_bytes_total", "Data read by the warm-up or for forecasts.",
        |v| v.counters.preloaded_bytes as f64),
    (Counter, "volume_preload_used_bytes_total", "Preloaded data that a client read.",
        |v| v.counters.preload_used_bytes as f64),
    (Counter, "volume_preload_wasted_bytes_total", "Preloaded data evicted before a read.",
        |v| v.counters.preload_in_vain_bytes as f64),
    (Counter, "volume_pin_loaded_bytes_total", "Data read because it is pinned.",
        |v| v.counters.pin_loaded_bytes as f64),
    (Counter, "volume_destaged_bytes_total", "Data written to the disk by writeback.",
        |v| v.write_back.bytes as f64),
    (Counter, "volume_destage_errors_total", "Failed destages, which are retried.",
        |v| v.write_back.errors as f64),
    (Counter, "volume_throttled_writes_total", "Parts of writes throttled at the dirty limit.",
        |v| v.write_back.waits as f64),
    (Counter, "volume_whole_stripes_total", "Destages of a whole stripe.",
        |v| v.write_back.whole_stripes as f64),
    (Counter, "volume_gathered_writes_total", "Writes that went to the disk with another one.",
        |v| v.write_back.gathered as f64),
    (Counter, "volume_gathered_ios_total", "Writes to the disk that contain gathered writes.",
        |v| v.write_back.gathered_into as f64),
    (Counter, "volume_damaged_lines_total", "Lines found damaged in memory.",
        |v| v.damage.found_lines as f64),
    (Counter, "volume_corrected_lines_total", "Damaged lines repaired by parity.",
        |v| v.damage.corrected_lines as f64),
    (Counter, "volume_refetched_lines_total", "Damaged clean lines read again.",
        |v| v.damage.fetched_again_lines as f64),
    (Counter, "volume_lost_lines_total", "Damaged lines with dirty data beyond repair.",
        |v| v.damage.lost_lines as f64),
    (Counter, "volume_journal_restored_lines_total", "Lost lines restored from the journal.",
        |v| v.damage.back_from_journal_lines as f64),
    (Gauge, "volume_lost_bytes", "Lost data that has not been written again.",
        |v| v.damage.lost_bytes as f64),
];

pub(super) fn volumes(text: &mut MetricsText, measured: &Measurements) {
    let volumes = &measured.status.volumes;
    volume_states(text, volumes);
    for (kind, name, help, value) in FIGURES {
        let mut family = text.family(*kind, name, help);
        for volume in volumes {
            let (labels, value) = ([("volume", &*volume.name)], value(volume));
            // Integers are formatted faster as such, to the same text.
            match value.fract() == 0.0 && value.abs() < (1u64 << 53) as f64 {
                true => family.sample(&labels, value as i64),
                false => family.sample(&labels, value),
            }
        }
    }
    requests(text, volumes);
    disk(text, volumes);
    sizes(text, volumes);
    latencies(text, measured);
}

fn volume_states(text: &mut MetricsText, volumes: &[VolumeStatus]) {
    let mut family = text.family(Gauge, "volume_info", "The configuration of a volume.");
    for volume in volumes {
        let (mode, backing) = (volume.mode.to_string(), volume.backing.as_str());
        let labels = [
            ("volume", volume.name.as_str()),
            ("backing", backing),
            ("mode", &mode),
            ("protection", &volume.protection),
        ];
        family.sample(&labels, 1);
    }
    let mut family = text.family(Gauge, "volume_state", "1 for the state of the volume.");
    for volume in volumes {
        let now = volume.state.to_string();
        let all = ["serving", "flushing", "failing", "stalled"];
        family.states(&[("volume", &volume.name)], "state", &now, &all);
    }
    let mut family = text.family(Gauge, "volume_effective_mode", "1 for the mode that applies.");
    for volume in volumes {
        let now = volume.effective_mode.to_string();
        let all = ["write-back", "write-through", "bypass"];
        family.states(&[("volume", &volume.name)], "mode", &now, &all);
    }
}

/// Requests of clients, and how they were served.
fn requests(text: &mut MetricsText, volumes: &[VolumeStatus]) {
    let mut family = text.family(Counter, "volume_requests_total", "Requests answered.");
    for VolumeStatus { name, counters, .. } in volumes {
        for (op, count) in [
            ("read", counters.reads),
            ("write", counters.writes),
            ("flush", counters.flushes),
            ("trim", counters.trims),
            ("zero", counters.zeroes),
            ("prefetch", counters.prefetches),
        ] {
            family.sample(&[("volume", name), ("op", op)], count);
        }
    }
    let mut family = text.family(Counter, "volume_request_bytes_total", "Data of requests.");
    for VolumeStatus { name, counters, .. } in volumes {
        for (op, count) in [
            ("read", counters.read_bytes),
            ("write", counters.write_bytes),
            ("trim", counters.trim_bytes),
            ("zero", counters.zero_bytes),
        ] {
            family.sample(&[("volume", name), ("op", op)], count);
        }
    }
    let help = "Reads and writes by how much of their data was in memory: all, some, nothing.";
    let mut family = text.family(Counter, "volume_lookups_total", help);
    for VolumeStatus { name, counters, .. } in volumes {
        for (op, result, count) in [
            ("read", "hit", counters.read_hits),
            ("read", "partial", counters.read_partial_hits),
            ("read", "miss", counters.read_misses),
            ("write", "hit", counters.write_hits),
            ("write", "partial", counters.write_partial_hits),
            ("write", "miss", counters.write_misses),
        ] {
            family.sample(&[("volume", name), ("op", op), ("result", result)], count);
        }
    }
    let help = "Reads and writes that memory alone did not serve, by reason.";
    let mut family = text.family(Counter, "volume_uncached_requests_total", help);
    for VolumeStatus { name, counters, .. } in volumes {
        for (op, reasons) in
            [("read", &counters.uncached_reads), ("write", &counters.uncached_writes)]
        {
            for (reason, count) in reasons {
                family.sample(&[("volume", name), ("op", op), ("reason", reason)], count);
            }
        }
    }
    let help = "Requests that begin where the previous one of the connection ends.";
    let mut family = text.family(Counter, "volume_sequential_requests_total", help);
    for VolumeStatus { name, counters, .. } in volumes {
        let pattern = &counters.pattern;
        family.sample(&[("volume", name), ("op", "read")], pattern.sequential_reads);
        family.sample(&[("volume", name), ("op", "write")], pattern.sequential_writes);
    }
    let mut family = text.family(Counter, "volume_destages_total", "Operations of writeback.");
    for VolumeStatus { name, write_back, .. } in volumes {
        family.sample(&[("volume", name), ("urgency", "urgent")], write_back.urgent);
        family.sample(&[("volume", name), ("urgency", "normal")], write_back.normal);
    }
}

/// I/Os of the disks.
fn disk(text: &mut MetricsText, volumes: &[VolumeStatus]) {
    let mut family = text.family(Counter, "volume_disk_ios_total", "I/Os sent to the disk.");
    for VolumeStatus { name, counters, .. } in volumes {
        for (op, count) in [
            ("read", counters.backend_reads),
            ("write", counters.backend_writes),
            ("flush", counters.backend_flushes),
            ("erase", counters.backend_erases),
        ] {
            family.sample(&[("volume", name), ("op", op)], count);
        }
    }
    let help = "Data read from the disk and written to it.";
    let mut family = text.family(Counter, "volume_disk_bytes_total", help);
    for VolumeStatus { name, counters, .. } in volumes {
        family.sample(&[("volume", name), ("op", "read")], counters.backend_read_bytes);
        family.sample(&[("volume", name), ("op", "write")], counters.backend_write_bytes);
    }
    let ios: fn(&BackendIos) -> [u64; 2] = |ios| [ios.reads, ios.writes];
    let bytes: fn(&BackendIos) -> [u64; 2] = |ios| [ios.read_bytes, ios.write_bytes];
    for (metric, help, figures) in [
        ("volume_disk_cause_ios_total", "Reads and writes of the disk by cause.", ios),
        ("volume_disk_cause_bytes_total", "Data of the disk's reads and writes by cause.", bytes),
    ] {
        let mut family = text.family(Counter, metric, help);
        for VolumeStatus { name, counters, .. } in volumes {
            for (cause, ios) in &counters.backend_causes {
                for (op, count) in ["read", "write"].into_iter().zip(figures(ios)) {
                    family.sample(&[("volume", name), ("op", op), ("cause", cause)], count);
                }
            }
        }
    }
}

fn sizes(text: &mut MetricsText, volumes: &[VolumeStatus]) {
    let ends: Vec<_> = size_ends().map(|end| end.to_string()).collect();
    let mut family = text.family(Histogram, "volume_request_size_bytes", "Sizes of requests.");
    for VolumeStatus { name, counters, .. } in volumes {
        let pattern = &counters.pattern;
        for (op, classes, sum) in [
            ("read", &pattern.read_sizes, counters.read_bytes),
            ("write", &pattern.write_sizes, counters.write_bytes),
        ] {
            let up_to = |end: u64| -> u64 {
                let below = classes.iter().filter(|class| class.up_to_bytes <= end);
                below.map(|class: &SizeClass| class.requests).sum()
            };
            let labels = [("volume", name.as_str()), ("op", op)];
            family.histogram(&labels, &ends, size_ends().map(up_to), sum as f64, up_to(u64::MAX));
        }
    }
}

/// A class of latencies in the metrics: the name of the histogram, and its label.
type HistogramClass = (&'static str, &'static str);

fn latencies(text: &mut MetricsText, measured: &Measurements) {
    const REQUESTS: &[HistogramClass] = &[
        ("read_hit", "read_hit"),
        ("read_miss", "read_miss"),
        ("write_memory", "write_memory"),
        ("write_disk", "write_disk"),
        ("flush", "flush"),
        ("trim", "trim"),
    ];
    const DISK: &[HistogramClass] = &[
        ("disk_read", "read"),
        ("disk_write", "write"),
        ("disk_flush", "flush"),
        ("disk_erase", "erase"),
    ];
    let ends: Vec<_> =
        latency_ends_us().map(|end_us| ((end_us * 1e3).round() / 1e9).to_string()).collect();
    for (metric, help, label, classes) in [
        (
            "volume_request_duration_seconds",
            "Latencies of requests. read_hit, write_memory: served from memory alone.",
            "kind",
            REQUESTS,
        ),
        ("volume_disk_duration_seconds", "Latencies of the disk's I/Os.", "op", DISK),
    ] {
        let mut family = text.family(Histogram, metric, help);
        for (volume, histograms) in measured.status.volumes.iter().zip(&measured.histograms) {
            for (class, value) in classes {
                let Some(histogram) = histograms.get(*class) else { continue };
                let labels = [("volume", volume.name.as_str()), (label, *value)];
                let counts = latency_counts(histogram);
                let count = histogram.buckets.iter().map(|bucket| bucket.count).sum();
                family.histogram(&labels, &ends, counts, histogram.sum_us / 1e6, count);
            }
        }
    }
}

/// The cumulative counts at the upper bounds of the buckets.
fn latency_counts(histogram: &LatencyHistogram) -> Vec<u64> {
    let mut finer = histogram.buckets.iter().peekable();
    let mut up_to = 0;
    let to_here = |end_us: f64| {
        // Each upper bound is the end of a finer bucket, apart from rounding.
        while let Some(bucket) = finer.next_if(|bucket| bucket.up_to_us <= end_us * 1.000_001) {
            up_to += bucket.count;
        }
        up_to
    };
    latency_ends_us().map(to_here).collect()
}

/// A figure of a journal: kind, name, help, value.
type JournalFigure = (MetricKind, &'static str, &'static str, fn(&JournalStatus) -> u64);

#[rustfmt::skip]
const JOURNAL_FIGURES: &[JournalFigure] = &[
    (Gauge, "journal_capacity_bytes", "Size of the log.", |j| j.capacity_bytes),
    (Gauge, "journal_used_bytes", "The used part of the log.", |j| j.used_bytes),
    (Counter, "journal_records_total", "Records made durable.", |j| j.records),
    (Counter, "journal_batches_total", "Batches made durable.", |j| j.batches),
    (Counter, "journal_written_bytes_total", "Data written to the device.", |j| j.written_bytes),
    (Counter, "journal_payload_bytes_total", "Data of clients in batches.", |j| j.payload_bytes),
    (Counter, "journal_checkpoints_total", "Checkpoints begun.", |j| j.checkpoints),
    (Counter, "journal_kept_bytes_total", "Data recorded again because a disk refused it.",
        |j| j.kept_bytes),
    (Counter, "journal_walks_total", "Verifications of the whole log.", |j| j.walks),
    (Counter, "journal_walked_bytes_total", "Data verified as intact.", |j| j.walked_bytes),
    (Counter, "journal_damaged_places_total", "Places in the log found damaged.",
        |j| j.damaged_places),
    (Counter, "journal_healed_places_total", "Damaged places rewritten from the other device.",
        |j| j.healed_places),
    (Gauge, "journal_unserved_bytes", "Writes of volumes that are not served.",
        |j| j.unserved.iter().map(|unserved| unserved.bytes).sum()),
];

/// The journals. Two journals never have the same name.
pub(super) fn journals(text: &mut MetricsText, journals: &[JournalStatus]) {
    if journals.is_empty() {
        return;
    }
    let mut family = text.family(Gauge, "journal_state", "1 for the state of the journal.");
    for journal in journals {
        let now = journal.state.to_string();
        let all = ["working", "degraded", "failed"];
        family.states(&[("journal", &journal.name)], "state", &now, &all);
    }
    for (kind, name, help, value) in JOURNAL_FIGURES {
        let mut family = text.family(*kind, name, help);
        for journal in journals {
            family.sample(&[("journal", &journal.name)], value(journal));
        }
    }
    let help = "Latencies of batches, until they are durable.";
    let mut family = text.family(Summary, "journal_commit_duration_seconds", help);
    for JournalStatus { name, commit, .. } in journals {
        let quantiles = [
            ("0.5", commit.p50_us / 1e6),
            ("0.99", commit.p99_us / 1e6),
            ("0.999", commit.p999_us / 1e6),
        ];
        let sum = commit.mean_us * commit.count as f64 / 1e6;
        family.summary(&[("journal", name)], &quantiles, sum, commit.count);
    }
}

/// The UPSes and the vault.
pub(super) fn protection(text: &mut MetricsText, status: &Status) {
    if let Some(power) = &status.power {
        let help = "1 while a UPS allows write-back.";
        text.one(Gauge, "power_write_back_allowed", help, flag(power.write_back_allowed));
        let help = "How often power_write_back_allowed has changed.";
        text.one(Counter, "power_changes_total", help, power.changes);
        let help = "1 while writes are halted because power is failing.";
        text.one(Gauge, "power_halted", help, flag(power.halted));
        let help = "Dirty data that only UPSes protect.";
        text.one(Gauge, "power_dirty_bytes", help, power.dirty_bytes);
        let help =
            "The limit of power_dirty_bytes: what the vault can take while the battery lasts.";
        text.one(Gauge, "power_dirty_limit_bytes", help, power.dirty_bytes_max);
        if let Some(seconds) = power.dump_seconds {
            let help = "How long a dump to the vault would take now.";
            text.one(Gauge, "power_dump_seconds", help, seconds);
        }
        if let Some(seconds) = power.battery_seconds {
            let help = "How long the battery would last.";
            text.one(Gauge, "power_battery_seconds", help, seconds);
        }
        supplies(text, power);
    }
    if let Some(vault) = &status.vault {
        let all = ["ready", "holding", "dumping", "dumped", "failed"];
        let mut family = text.family(Gauge, "vault_state", "1 for the state of the vault.");
        family.states(&[], "state", &vault.state.to_string(), &all);
        text.one(Gauge, "vault_capacity_bytes", "The largest dump.", vault.capacity_bytes);
        let held: u64 = vault.held.iter().map(|held| held.bytes).sum();
        text.one(Gauge, "vault_held_bytes", "Data of an earlier server.", held);
        if let Some(speed) = vault.write_bytes_per_second {
            let help = "How fast the vault is written, as last measured.";
            text.one(Gauge, "vault_write_bytes_per_second", help, speed);
        }
    }
}

fn supplies(text: &mut MetricsText, power: &PowerStatus) {
    let charge: fn(&UpsStatus) -> Option<f64> = |ups| Some(ups.charge_percent? / 100.0);
    let load: fn(&UpsStatus) -> Option<f64> = |ups| Some(ups.load_percent? / 100.0);
    let runtime: fn(&UpsStatus) -> Option<f64> = |ups| ups.runtime_seconds.map(f64::from);
    for (name, help, value) in [
        ("ups_charge_ratio", "Charge of the battery.", charge),
        ("ups_load_ratio", "Load of the UPS.", load),
        ("ups_runtime_seconds", "Runtime on battery, as reported.", runtime),
    ] {
        let mut family = text.family(Gauge, name, help);
        for ups in &power.supplies {
            if let Some(value) = value(ups) {
                family.sample(&[("ups", &ups.name)], value);
            }
        }
    }
}
