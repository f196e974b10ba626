//! What a report says, computed from the counters of an analysis.

use super::comparison::{
    Comparison, Estimate, HELD_MIN, Interval, Pair, Times, Verdict, compare, compare_phases,
};
use forebay_api::{Analysis, AnalysisBatch, AnalysisPhase, AnalysisVolume, SizeTimes};
use std::collections::BTreeSet;

/// The classes of sizes, the first one up to 512 bytes.
const SIZES: usize = 17;

/// A report on an analysis.
pub(super) struct AnalysisReport {
    pub(super) analysis: Analysis,
    pub(super) volumes: Vec<VolumeReport>,
}

/// What the analysis says about a volume.
pub(super) struct VolumeReport {
    pub(super) name: String,
    /// All requests together.
    pub(super) all: Comparison,
    pub(super) reads: Comparison,
    pub(super) writes: Comparison,
    /// How many times faster the phase `accelerate` is than `measure`, if both have data.
    pub(super) phases: Option<Estimate>,
    /// When the worst interval began.
    pub(super) worst_at: Option<String>,
    /// Its figures in each phase.
    pub(super) sums: [Sums; 3],
    /// Its intervals, with the time of their middle from the beginning, in seconds.
    pub(super) points: Vec<CurvePoint>,
}

/// An interval of a volume.
pub(super) struct CurvePoint {
    pub(super) phase: AnalysisPhase,
    pub(super) middle_s: f64,
    pub(super) begun_at: String,
    pub(super) cpu_seconds: f64,
    pub(super) seconds: f64,
    pub(super) volume: AnalysisVolume,
}

/// The sums of a phase.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    pub(super) seconds: f64,
    /// The time in which requests were compared.
    pub(super) compared_seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) volume: AnalysisVolume,
    /// The sums of the response times in seconds.
    pub(super) read_seconds: f64,
    pub(super) write_seconds: f64,
}

impl CurvePoint {
    /// The part of the interval in which requests were compared: more than 0, up to 1.
    fn compared_part(&self) -> f64 {
        let seconds = self.volume.compared_seconds.filter(|seconds| *seconds > 0.0);
        seconds.map_or(1.0, |seconds| seconds / self.seconds).min(1.0)
    }
}

impl AnalysisReport {
    pub(super) fn of(analysis: Analysis) -> Self {
        let names: BTreeSet<&String> =
            analysis.batches.iter().flat_map(|b| b.volumes.iter().map(|v| &v.name)).collect();
        let share = f64::from(analysis.status.request.hold_out_percent) / 100.0;
        let volumes = names.into_iter();
        let volumes = volumes.map(|name| VolumeReport::of(name, &analysis.batches, share));
        let volumes = volumes.collect();
        Self { analysis, volumes }
    }

    /// When each phase ends, in seconds from the beginning.
    pub(super) fn ends(&self) -> Vec<(AnalysisPhase, f64)> {
        let mut end = 0.0;
        let ends = AnalysisPhase::ALL.map(|phase| {
            let of_phase = self.analysis.batches.iter().filter(|batch| batch.phase == phase);
            end += of_phase.map(|batch| batch.seconds).sum::<f64>();
            (phase, end)
        });
        ends.to_vec()
    }
}

impl VolumeReport {
    fn of(name: &str, batches: &[AnalysisBatch], share: f64) -> Self {
        let mut points = Vec::new();
        let mut begin_s = 0.0;
        for batch in batches {
            if let Some(volume) = batch.volumes.iter().find(|volume| volume.name == name) {
                points.push(CurvePoint {
                    phase: batch.phase,
                    middle_s: begin_s + batch.seconds / 2.0,
                    begun_at: batch.begun_at.clone(),
                    cpu_seconds: batch.cpu_seconds,
                    seconds: batch.seconds,
                    volume: volume.clone(),
                });
            }
            begin_s += batch.seconds;
        }
        let of_phase =
            |phase| points.iter().filter(move |point: &&CurvePoint| point.phase == phase);
        let intervals = |phase, strata: fn(&AnalysisVolume) -> Vec<Pair>| -> Vec<Interval> {
            let interval = |point: &CurvePoint| Interval {
                weight: 1.0 / point.compared_part(),
                pairs: strata(&point.volume),
            };
            of_phase(phase).map(interval).collect()
        };
        let with = |strata| compare(&intervals(AnalysisPhase::Accelerate, strata));
        let all = with(all_strata);
        let phases = compare_phases(
            &intervals(AnalysisPhase::Measure, all_strata),
            &intervals(AnalysisPhase::Accelerate, all_strata),
        );
        let worst = all.worst.and_then(|worst| of_phase(AnalysisPhase::Accelerate).nth(worst.at));
        let worst_at = worst.map(|point| point.begun_at.clone());
        let sums = AnalysisPhase::ALL.map(|phase| Sums::of(of_phase(phase)));
        let (reads, mut writes) = (with(read_strata), with(write_strata));
        // The server leaves the writes of some volumes out of the comparison.
        if writes.held == 0 && writes.served as f64 * share >= HELD_MIN as f64 {
            writes.verdict = Verdict::NotCompared;
        }
        Self { name: name.to_owned(), all, reads, writes, phases, worst_at, sums, points }
    }

    /// The verdict in words.
    pub(super) fn verdict(&self) -> String {
        verdict(&self.all)
    }
}

/// The verdict of a comparison in words.
pub(super) fn verdict(comparison: &Comparison) -> String {
    let ratio = comparison.ratio.unwrap_or(Estimate { value: 1.0, low: 1.0, high: 1.0 });
    let Estimate { value, low, high } = ratio;
    match comparison.verdict {
        Verdict::Faster => {
            let [value, low, high] = [value, low, high].map(times);
            format!("{value} times faster (95 % interval {low} to {high})")
        }
        Verdict::Slower => {
            // The reciprocal: "2 times slower" reads better than "0.5 times faster".
            let [value, low, high] = [1.0 / value, 1.0 / high, 1.0 / low].map(times);
            format!("{value} times slower (95 % interval {low} to {high})")
        }
        Verdict::NoMeasurableBenefit => {
            let [value, low, high] = [value, low, high].map(times);
            format!("no measurable benefit ({value} times as fast, 95 % interval {low} to {high})")
        }
        Verdict::TooLittleData => "too little data for a verdict".to_owned(),
        Verdict::NotCompared => {
            "not compared: a journal, a UPS or their order makes them wait for more than they \
             would without a cache"
                .to_owned()
        }
    }
}

/// A ratio with about three digits.
pub(super) fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 100.0 => format!("{ratio:.0}"),
        ratio if ratio >= 10.0 => format!("{ratio:.1}"),
        ratio => format!("{ratio:.2}"),
    }
}

impl Sums {
    fn of<'a>(points: impl Iterator<Item = &'a CurvePoint>) -> Self {
        let mut sums = Self::default();
        for point in points {
            let more = &point.volume;
            sums.seconds += point.seconds;
            sums.compared_seconds += point.seconds * point.compared_part();
            sums.cpu_seconds += point.cpu_seconds;
            sums.read_seconds += mean_seconds(&more.read_latency) * more.read_latency.count as f64;
            sums.write_seconds +=
                mean_seconds(&more.write_latency) * more.write_latency.count as f64;
            let sum = &mut sums.volume;
            sum.reads += more.reads;
            sum.writes += more.writes;
            sum.read_bytes += more.read_bytes;
            sum.write_bytes += more.write_bytes;
            sum.read_hits += more.read_hits;
            sum.deferred_writes += more.deferred_writes;
            sum.disk_reads += more.disk_reads;
            sum.disk_writes += more.disk_writes;
            sum.disk_read_bytes += more.disk_read_bytes;
            sum.disk_write_bytes += more.disk_write_bytes;
            sum.disk.busy_seconds += more.disk.busy_seconds;
            sum.disk.wait_seconds += more.disk.wait_seconds;
            sum.prefetch_used_bytes += more.prefetch_used_bytes;
            sum.preload_used_bytes += more.preload_used_bytes;
            sum.gathered_writes += more.gathered_writes;
            sum.gathered_ios += more.gathered_ios;
        }
        sums
    }

    /// The figures of the phase; `None` where there is nothing to divide by.
    pub(super) fn figures(&self) -> Figures {
        let requests = self.volume.reads + self.volume.writes;
        Figures::of(
            &self.volume,
            self.seconds,
            self.cpu_seconds,
            Waits { requests, read_seconds: self.read_seconds, write_seconds: self.write_seconds },
        )
    }
}

/// The response times that figures are computed from.
struct Waits {
    requests: u64,
    read_seconds: f64,
    write_seconds: f64,
}

/// Figures of an interval or a phase. `None` where there is nothing to divide by.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    /// Bytes per second of the clients.
    pub(super) throughput: Option<f64>,
    /// Requests per second of the clients.
    pub(super) iops: Option<f64>,
    /// Mean response times in seconds.
    pub(super) read_mean: Option<f64>,
    pub(super) write_mean: Option<f64>,
    /// The requests per second that a client with one request in flight would reach.
    pub(super) normalised_iops: Option<f64>,
    /// I/Os of the disk for each request.
    pub(super) disk_ios_per_request: Option<f64>,
    /// I/Os per second of the disk.
    pub(super) disk_iops: Option<f64>,
    /// The mean size of a request, and of an I/O of the disk, in bytes.
    pub(super) request_bytes: Option<f64>,
    pub(super) disk_io_bytes: Option<f64>,
    /// The used part of one processor, and of the disk's time.
    pub(super) cpu: Option<f64>,
    pub(super) disk_busy: Option<f64>,
    /// The mean number of the disk's I/Os in flight.
    pub(super) disk_queue: Option<f64>,
}

impl Figures {
    /// The figures of an interval.
    pub(super) fn of_point(point: &CurvePoint) -> Self {
        let volume = &point.volume;
        let seconds =
            |latency: &forebay_api::LatencySummary| mean_seconds(latency) * latency.count as f64;
        Self::of(
            volume,
            point.seconds,
            point.cpu_seconds,
            Waits {
                requests: volume.reads + volume.writes,
                read_seconds: seconds(&volume.read_latency),
                write_seconds: seconds(&volume.write_latency),
            },
        )
    }

    fn of(volume: &AnalysisVolume, seconds: f64, cpu_seconds: f64, waits: Waits) -> Self {
        let over = |a: f64, b: f64| (b > 0.0).then(|| a / b);
        let requests = waits.requests as f64;
        let bytes = (volume.read_bytes + volume.write_bytes) as f64;
        let ios = (volume.disk_reads + volume.disk_writes) as f64;
        Self {
            throughput: over(bytes, seconds),
            iops: over(requests, seconds),
            read_mean: over(waits.read_seconds, volume.reads as f64),
            write_mean: over(waits.write_seconds, volume.writes as f64),
            normalised_iops: over(requests, waits.read_seconds + waits.write_seconds),
            disk_ios_per_request: over(ios, requests),
            disk_iops: over(ios, seconds),
            request_bytes: over(bytes, requests),
            disk_io_bytes: over((volume.disk_read_bytes + volume.disk_write_bytes) as f64, ios),
            cpu: over(cpu_seconds, seconds),
            disk_busy: over(volume.disk.busy_seconds, seconds),
            disk_queue: over(volume.disk.wait_seconds, seconds),
        }
    }
}

/// The mean response time of both sides in an interval, in seconds: served, and held out.
pub(super) fn sides(volume: &AnalysisVolume) -> [Option<f64>; 2] {
    let mean = |lists: [&Vec<SizeTimes>; 2]| {
        let all = || lists.iter().flat_map(|list| list.iter());
        let requests: u64 = all().map(|class| class.requests).sum();
        (requests > 0).then(|| all().map(|class| class.seconds).sum::<f64>() / requests as f64)
    };
    [
        mean([&volume.served_reads, &volume.served_writes]),
        mean([&volume.held_reads, &volume.held_writes]),
    ]
}

fn mean_seconds(latency: &forebay_api::LatencySummary) -> f64 {
    latency.mean_us / 1e6
}

fn all_strata(volume: &AnalysisVolume) -> Vec<Pair> {
    let mut strata = read_strata(volume);
    strata.append(&mut write_strata(volume));
    strata
}

fn read_strata(volume: &AnalysisVolume) -> Vec<Pair> {
    strata(&volume.served_reads, &volume.held_reads)
}

fn write_strata(volume: &AnalysisVolume) -> Vec<Pair> {
    strata(&volume.served_writes, &volume.held_writes)
}

fn strata(served: &[SizeTimes], held: &[SizeTimes]) -> Vec<Pair> {
    let mut strata = vec![Pair::default(); SIZES];
    let times = |class: &SizeTimes| Times { requests: class.requests, seconds: class.seconds };
    for class in served {
        strata[stratum(class)].served = times(class);
    }
    for class in held {
        strata[stratum(class)].held = times(class);
    }
    strata
}

/// The number of a class of sizes.
fn stratum(class: &SizeTimes) -> usize {
    let halves = (class.up_to_bytes.max(512) / 512).ilog2();
    (halves as usize).min(SIZES - 1)
}
