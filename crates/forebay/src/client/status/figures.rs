//! What the cache did: the figures of volumes since the start, or between two statuses.

use forebay_api::{BackendIos, LatencySummary, Status, VolumeStatus};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How often something was measured, and the sum of the times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Times {
    pub(crate) count: u64,
    sum_us: f64,
}

impl Times {
    fn of(summaries: &[&LatencySummary]) -> Self {
        summaries.iter().fold(Self::default(), |all, summary| {
            let sum_us = summary.mean_us * summary.count as f64;
            all.plus(&Self { count: summary.count, sum_us })
        })
    }

    /// The mean time in microseconds; `None` if nothing was measured.
    pub(crate) fn mean_us(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_us / self.count as f64)
    }

    fn plus(&self, other: &Self) -> Self {
        Self { count: self.count.saturating_add(other.count), sum_us: self.sum_us + other.sum_us }
    }

    fn less(&self, before: &Self) -> Self {
        Self {
            count: self.count.saturating_sub(before.count),
            sum_us: (self.sum_us - before.sum_us).max(0.0),
        }
    }
}

/// The figures of a volume, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// Reads and writes of clients.
    pub(crate) requests: u64,
    /// Those that were served from memory alone.
    pub(crate) hits: u64,
    /// All requests of clients that a disk would have had to serve.
    pub(crate) client_ios: u64,
    /// Bytes of the reads and writes.
    pub(crate) bytes: u64,
    /// I/Os of clients minus those of the disks.
    pub(crate) saved_ios: i64,
    /// Bytes of clients minus those of the disks.
    pub(crate) saved_bytes: i64,
    /// Reads of the disks that came before requests: read ahead, warm-ups, forecasts and pins.
    pub(crate) early_ios: u64,
    /// Bytes of these reads.
    pub(crate) early_bytes: u64,
    /// Latencies of reads and writes that were served from memory.
    pub(crate) hit: Times,
    /// Latencies of reads and writes that waited for the disk.
    pub(crate) miss: Times,
    /// Latencies of reads.
    pub(crate) read: Times,
    /// Latencies of writes.
    pub(crate) write: Times,
    /// Latencies of the disk's reads.
    pub(crate) disk_read: Times,
    /// Latencies of the disk's writes.
    pub(crate) disk_write: Times,
}

impl Figures {
    /// The figures of a volume since it was added.
    pub(crate) fn of(volume: &VolumeStatus) -> Self {
        let (counters, latency) = (&volume.counters, &volume.latency);
        let sum = |counts: &[u64]| counts.iter().fold(0, |sum: u64, &n| sum.saturating_add(n));
        let (reads, writes) = (counters.reads, counters.writes);
        let early = |part: fn(&BackendIos) -> u64| {
            let causes = ["prefetch", "preload", "pin"].map(|it| counters.backend_causes.get(it));
            sum(&causes.map(|ios| ios.map_or(0, part)))
        };
        let others = [counters.trims, counters.zeroes, counters.flushes];
        Self {
            requests: sum(&[reads, writes]),
            hits: sum(&[counters.read_hits, counters.deferred_writes]),
            client_ios: sum(&[reads, writes, sum(&others)]),
            bytes: sum(&[counters.read_bytes, counters.write_bytes]),
            saved_ios: counters.saved_ios,
            saved_bytes: counters.saved_bytes,
            early_ios: early(|ios| ios.reads),
            early_bytes: early(|ios| ios.read_bytes),
            hit: Times::of(&[&latency.read_hit, &latency.write_memory]),
            miss: Times::of(&[&latency.read_miss, &latency.write_disk]),
            read: Times::of(&[&latency.read_hit, &latency.read_miss]),
            write: Times::of(&[&latency.write]),
            disk_read: Times::of(&[&latency.disk_read]),
            disk_write: Times::of(&[&latency.disk_write]),
        }
    }

    fn plus(&self, other: &Self) -> Self {
        self.with(other, u64::saturating_add, i64::saturating_add, Times::plus)
    }

    /// The difference from earlier figures. If those are larger, the volume was removed and added
    /// again since then, so the present figures are returned.
    fn less(&self, before: &Self) -> Self {
        if self.client_ios < before.client_ios || self.bytes < before.bytes {
            return *self;
        }
        self.with(before, u64::saturating_sub, i64::saturating_sub, Times::less)
    }

    /// Combines each figure with the same figure of `other`.
    fn with(
        &self,
        other: &Self,
        counts: fn(u64, u64) -> u64,
        signed: fn(i64, i64) -> i64,
        times: fn(&Times, &Times) -> Times,
    ) -> Self {
        Self {
            requests: counts(self.requests, other.requests),
            hits: counts(self.hits, other.hits),
            client_ios: counts(self.client_ios, other.client_ios),
            bytes: counts(self.bytes, other.bytes),
            saved_ios: signed(self.saved_ios, other.saved_ios),
            saved_bytes: signed(self.saved_bytes, other.saved_bytes),
            early_ios: counts(self.early_ios, other.early_ios),
            early_bytes: counts(self.early_bytes, other.early_bytes),
            hit: times(&self.hit, &other.hit),
            miss: times(&self.miss, &other.miss),
            read: times(&self.read, &other.read),
            write: times(&self.write, &other.write),
            disk_read: times(&self.disk_read, &other.disk_read),
            disk_write: times(&self.disk_write, &other.disk_write),
        }
    }

    /// The part of the reads and writes that were served from memory alone.
    pub(crate) fn hit_ratio(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.hits as f64 / self.requests as f64)
    }
}

/// A status, and the figures of its volumes in a period.
#[derive(Clone, Debug)]
pub(crate) struct View<'a> {
    pub(crate) status: &'a Status,
    /// The length of the period; `None` if it began when each volume was added.
    pub(crate) period: Option<Duration>,
    /// The figures of each volume, in the order of the status.
    pub(crate) figures: Vec<Figures>,
}

impl<'a> View<'a> {
    pub(crate) fn since_start(status: &'a Status) -> Self {
        Self { status, period: None, figures: status.volumes.iter().map(Figures::of).collect() }
    }

    /// The figures since an earlier status of the same process. If another process answered then,
    /// or no time has passed, the figures since the start.
    pub(crate) fn between(before: &Status, status: &'a Status, period: Duration) -> Self {
        let is_same = before.pid == status.pid && before.uptime_seconds <= status.uptime_seconds;
        if !is_same || period.is_zero() {
            return Self::since_start(status);
        }
        let earlier: HashMap<_, _> =
            before.volumes.iter().map(|volume| (&*volume.name, volume)).collect();
        let figures = status.volumes.iter().map(|volume| {
            let before = earlier.get(&*volume.name).map(|before| Figures::of(before));
            Figures::of(volume).less(&before.unwrap_or_default())
        });
        Self { status, period: Some(period), figures: figures.collect() }
    }

    /// The figures of all volumes together.
    pub(crate) fn total(&self) -> Figures {
        self.figures.iter().fold(Figures::default(), |all, figures| all.plus(figures))
    }

    /// The volumes with their figures.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = (&'a VolumeStatus, &Figures)> {
        self.status.volumes.iter().zip(&self.figures)
    }
}

/// The last two answers of the server.
#[derive(Default)]
pub(crate) struct Readings {
    before: Option<(Instant, Status)>,
    now: Option<(Instant, Status)>,
}

impl Readings {
    pub(crate) fn add(&mut self, at: Instant, status: Status) {
        self.before = self.now.replace((at, status));
    }

    /// The last answer, with the figures since the one before it; `None` before the first.
    pub(crate) fn view(&self) -> Option<View<'_>> {
        let (at, status) = self.now.as_ref()?;
        Some(match &self.before {
            Some((before, earlier)) => View::between(earlier, status, at.duration_since(*before)),
            None => View::since_start(status),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::{Counters, Latencies};

    fn volume(name: &str, reads: u64, read_hits: u64, mean_us: f64) -> VolumeStatus {
        let summary = |count, mean_us| LatencySummary { count, mean_us, ..Default::default() };
        VolumeStatus {
            name: name.into(),
            counters: Counters {
                reads,
                read_hits,
                saved_ios: read_hits as i64,
                ..Counters::default()
            },
            latency: Latencies { read_hit: summary(read_hits, mean_us), ..Latencies::default() },
            ..VolumeStatus::default()
        }
    }

    fn status(volumes: Vec<VolumeStatus>) -> Status {
        Status { volumes, ..Status::default() }
    }

    #[test]
    fn figures_of_an_interval_are_the_differences() {
        let before = status(vec![volume("a", 100, 50, 10.0), volume("again", 900, 0, 0.0)]);
        let now = status(vec![
            volume("new", 7, 7, 1.0),
            volume("a", 300, 150, 30.0),
            volume("again", 5, 0, 0.0),
        ]);
        let view = View::between(&before, &now, Duration::from_secs(2));
        let figures: Vec<_> =
            view.figures.iter().map(|it| (it.requests, it.hits, it.saved_ios)).collect();
        assert_eq!(figures, [(7, 7, 7), (200, 100, 100), (5, 0, 0)]);
        // 150 hits of 30 us, of which 50 took 10 us.
        assert_eq!(view.figures[1].hit.mean_us(), Some(40.0));
        assert_eq!(view.figures[2].hit.mean_us(), None);
        assert_eq!(view.total().hit_ratio(), Some(107.0 / 212.0));
        assert_eq!(view.period, Some(Duration::from_secs(2)));
    }

    #[test]
    fn after_a_restart_the_figures_are_those_since_the_start() {
        let mut before = status(vec![volume("a", 100, 50, 10.0)]);
        before.pid = 1;
        let now = status(vec![volume("a", 300, 150, 30.0)]);
        let view = View::between(&before, &now, Duration::from_secs(2));
        assert_eq!((view.period, view.figures[0].requests), (None, 300));
    }
}
