//! What a report says, computed from the counters of an analysis.

use super::comparison::{Interval, Pair, Times, Worst, compare};
use super::judgement::{Judgement, Terms, Whole};
use forebay_api::{
    Analysis, AnalysisBatch, AnalysisPhase, AnalysisVolume, AnalyzedVolume, SizeTimes,
};
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
    /// Its configuration; `None` if an earlier version has begun the analysis.
    pub(super) judged: Option<AnalyzedVolume>,
    /// All requests that are compared, together.
    pub(super) whole: Whole,
    pub(super) reads: Judgement,
    pub(super) writes: Judgement,
    /// The interval in which served requests were slowest compared with its held-out ones.
    pub(super) worst: Option<Worst>,
    /// When it began.
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
    /// Reads that were held out.
    held_reads: u64,
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
        let subject = analysis.status.subject.as_ref();
        let volumes = volumes.map(|name| VolumeReport {
            judged: subject.and_then(|subject| {
                subject.volumes.iter().find(|volume| volume.name == *name).cloned()
            }),
            ..VolumeReport::of(name, &analysis.batches, share)
        });
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

/// The most times of the clock on the axis of a chart.
const TIMES_MAX: usize = 6;
/// In a longer analysis, in seconds, the times of the clock need no seconds, or need a date.
const WITHOUT_SECONDS: f64 = 20.0 * 60.0;
const WITH_DATE: f64 = 20.0 * 3600.0;

impl AnalysisReport {
    /// Times of the clock at which intervals began, with the seconds from the beginning. The server
    /// may not have run between two of them, so they need not be at equal distances of the clock.
    pub(super) fn times(&self) -> Vec<(String, f64)> {
        let batches = &self.analysis.batches;
        let whole: f64 = batches.iter().map(|batch| batch.seconds).sum();
        let (mut times, mut at_s) = (Vec::<(String, f64)>::new(), 0.0);
        for batch in batches {
            if at_s >= whole * times.len() as f64 / TIMES_MAX as f64 {
                times.push((clock(&batch.begun_at, whole), at_s));
            }
            at_s += batch.seconds;
        }
        times
    }
}

/// The part of a time in UTC (`2026-02-28T13:00:00Z`) that is worth showing.
fn clock(at: &str, whole_s: f64) -> String {
    let (date, time) = at.split_once('T').unwrap_or_default();
    let (day, minute) = (date.get(5..).unwrap_or_default(), time.get(..5).unwrap_or_default());
    match whole_s {
        whole if whole < WITHOUT_SECONDS => time.trim_end_matches('Z').to_owned(),
        whole if whole < WITH_DATE => minute.to_owned(),
        _ => format!("{day} {minute}"),
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
        let accelerate = AnalysisPhase::Accelerate;
        let sums = AnalysisPhase::ALL.map(|phase| Sums::of(of_phase(phase)));
        let is_deferred = sums[2].volume.deferred_writes > 0;
        let terms = Terms {
            is_deferred: false,
            share,
            busy: sums[2].figures().disk_busy.unwrap_or_default().min(1.0),
            added_io: sums[2].added_io(),
        };
        let reads = judgement(&points, read_strata, terms);
        let writes = judgement(&points, write_strata, Terms { is_deferred, ..terms });
        let paired = if is_deferred { read_strata } else { all_strata };
        let worst = compare(&intervals(&points, accelerate, paired)).worst;
        let worst_at = worst.and_then(|worst| of_phase(accelerate).nth(worst.at));
        let worst_at = worst_at.map(|point| point.begun_at.clone());
        let whole = Whole::of(&reads, &writes);
        let (name, judged) = (name.to_owned(), None);
        Self { name, judged, whole, reads, writes, worst, worst_at, sums, points }
    }
}

/// The strata of an interval, of a kind of requests.
type Strata = fn(&AnalysisVolume) -> Vec<Pair>;

/// What the intervals say about a kind of requests.
fn judgement(points: &[CurvePoint], strata: Strata, terms: Terms) -> Judgement {
    let measure = intervals(points, AnalysisPhase::Measure, strata);
    Judgement::of(&measure, &intervals(points, AnalysisPhase::Accelerate, strata), terms)
}

/// The intervals of a phase. Those of `measure` in which older writes were destaged are left out.
fn intervals(points: &[CurvePoint], phase: AnalysisPhase, strata: Strata) -> Vec<Interval> {
    let of_phase = points.iter().filter(|point| point.phase == phase);
    let usable =
        of_phase.filter(|point| phase != AnalysisPhase::Measure || !point.volume.is_writing_back());
    usable
        .map(|point| Interval { weight: 1.0 / point.compared_part(), pairs: strata(&point.volume) })
        .collect()
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
            sums.held_reads += more.held_reads.iter().map(|class| class.requests).sum::<u64>();
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

    /// The part of the disk's I/Os that it had only because reads were held out that the cache
    /// would have served.
    fn added_io(&self) -> f64 {
        let Self { volume, .. } = self;
        let hit_part = volume.read_hits as f64 / volume.reads.max(1) as f64;
        let more = self.held_reads as f64 * hit_part;
        let ios = (volume.disk_reads + volume.disk_writes) as f64;
        (more / (ios * self.compared_seconds / self.seconds).max(1.0)).min(1.0)
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
