//! The counters of an interval, in the types of the API.

use crate::serve::statistics::{disk_use, latency, writes_of};
use forebay_api::{AnalysisVolume, SizeTimes};
use forebay_runtime::{
    IoCause, LatencyClass, NamedStatistics, RequestCounters, ResponseTimes, VolumeStatistics,
    size_class_bytes,
};
use forebay_types::LINE_BYTES;

/// The counts of a volume between two observations; `None` if it is not the same volume.
pub(super) fn batch_volume(
    before: &NamedStatistics,
    after: &NamedStatistics,
    compared_seconds: f64,
) -> Option<AnalysisVolume> {
    if before.identity != after.identity {
        return None;
    }
    let statistics = difference(&before.statistics, &after.statistics);
    let VolumeStatistics { requests, engine, latencies, .. } = &statistics;
    let arms = after.arms.since(&before.arms);
    let mut reads = latencies.of(LatencyClass::ReadHit).clone();
    reads.merge(latencies.of(LatencyClass::ReadMiss));
    Some(AnalysisVolume {
        name: after.name.clone(),
        compared_seconds: Some(compared_seconds),
        served_reads: times(&arms.served_reads),
        held_reads: times(&arms.held_reads),
        served_writes: times(&arms.served_writes),
        held_writes: times(&arms.held_writes),
        reads: requests.reads(),
        writes: requests.writes(),
        read_bytes: requests.read_bytes,
        write_bytes: requests.write_bytes,
        read_hits: requests.read_hits,
        deferred_writes: requests.writes().saturating_sub(requests.uncached_writes.iter().sum()),
        read_latency: latency(&reads),
        write_latency: latency(&writes_of(latencies)),
        disk_reads: requests.backend_reads(),
        disk_writes: requests.backend_writes(),
        destages: destages(requests),
        disk_read_bytes: requests.backend_read_bytes(),
        disk_write_bytes: requests.backend_write_bytes(),
        disk: disk_use(&statistics, after.disk_in_flight),
        prefetch_used_bytes: engine.prefetch_used_lines * LINE_BYTES,
        preload_used_bytes: engine.preload_used_lines * LINE_BYTES,
        gathered_writes: engine.gathered_writes,
        gathered_ios: engine.gathered_ios,
    })
}

/// The counts between two observations. The counters are not read at the same instant, so one may
/// lag behind another.
fn difference(before: &VolumeStatistics, after: &VolumeStatistics) -> VolumeStatistics {
    let (before, mut after) = (before.clone().into_numbers(), after.clone().into_numbers());
    after.iter_mut().zip(before).for_each(|(after, before)| *after = after.saturating_sub(before));
    VolumeStatistics::from_numbers(&after)
}

fn destages(requests: &RequestCounters) -> u64 {
    let causes = [IoCause::Destage, IoCause::DestageUrgent];
    causes.into_iter().map(|cause| requests.backend_writes_by_cause[cause as usize]).sum()
}

fn times(times: &ResponseTimes) -> Vec<SizeTimes> {
    let classes = times.counts.iter().zip(&times.sums_ns).enumerate();
    let some = classes.filter(|(_, (count, _))| **count > 0);
    let one = some.map(|(class, (&requests, &ns))| SizeTimes {
        up_to_bytes: size_class_bytes(class),
        requests,
        seconds: ns as f64 / 1e9,
    });
    one.collect()
}
