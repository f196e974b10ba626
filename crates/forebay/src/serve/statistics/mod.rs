//! The statistics of all volumes over time, and their totals over restarts.
//!
//! A thread observes the counters every half a minute, and so does each query. Totals belong to the
//! name and backing of a volume. They are kept in the state directory: written every five minutes
//! if they have changed, and when the server stops or is upgraded. A kill loses what was counted
//! since.

mod convert;
mod periods;

pub(super) use convert::{counters, disk_use, histograms, latencies, latency};

use super::periodic::Periodic;
use super::warm_lists::read_file;
use crate::marks;
use forebay_api::{PeriodStatistics, Periods, Statistics, StatisticsOfVolume};
use forebay_format::{Identity, STATISTICS_BYTES_MAX, StatisticsFile, pack, unpack};
use forebay_runtime::{NamedStatistics, VolumeStatistics};
use periods::Series;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The interval at which the counters are observed.
const OBSERVE: Duration = Duration::from_secs(30);
/// Observations between two writes of the totals.
const OBSERVATIONS_PER_WRITE: u32 = 10;
/// Volumes whose totals are kept although they are not served: the ones served last.
const UNSERVED_MAX: usize = 256;

/// The statistics of a daemon.
pub(super) struct History {
    file: TotalsFile,
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The volumes that are served, by name.
    served: BTreeMap<String, Entry>,
    /// Totals of volumes that are not served, packed. The last one was served last.
    unserved: Vec<(Identity, Vec<u8>)>,
}

struct Entry {
    identity: Identity,
    series: Series,
    disk_in_flight: u64,
}

impl History {
    /// Reads the totals in a state directory. If they are unusable, they begin at zero.
    pub(super) fn open(state_dir: &Path) -> Self {
        let (file, unserved) = TotalsFile::open(state_dir.join("statistics.totals"));
        let state = State { unserved, ..State::default() };
        Self { file, begun: Instant::now(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what has been counted since the last observation. `count` returns the counters.
    pub(super) fn observe(&self, count: impl FnOnce() -> Vec<NamedStatistics>) {
        let mut state = self.state();
        // Under the lock, so that no older counters follow newer ones.
        let volumes = count();
        state.observe(volumes, self.begun.elapsed().as_secs());
    }

    /// The statistics, as of the last observation.
    pub(super) fn statistics(&self) -> Statistics {
        self.state().statistics(self.begun.elapsed().as_secs())
    }

    /// The statistics of one volume, with histograms, as of the last observation.
    pub(super) fn volume_statistics(&self, name: &str) -> Option<StatisticsOfVolume> {
        let state = self.state();
        let entry = state.served.get(name)?;
        let numbers = entry.numbers(self.begun.elapsed().as_secs());
        let mut periods = shown(&numbers, entry.disk_in_flight);
        for (period, (_, numbers)) in periods.all_mut().into_iter().zip(&numbers) {
            let statistics = VolumeStatistics::from_numbers(numbers);
            period.histograms = histograms(&statistics.latencies);
        }
        Some(StatisticsOfVolume { name: name.to_owned(), periods })
    }

    /// Writes the totals if they have changed. Queries need not wait meanwhile.
    pub(super) fn save(&self) {
        let totals = self.state().totals();
        self.file.write(&totals);
    }
}

/// Starts the thread that observes. Dropping the result ends it.
pub(super) fn start(
    history: Arc<History>,
    count: impl Fn() -> Vec<NamedStatistics> + Send + 'static,
) -> std::io::Result<Periodic> {
    let mut observations = 0;
    Periodic::start("statistics", OBSERVE, move || {
        history.observe(&count);
        observations += 1;
        if observations % OBSERVATIONS_PER_WRITE == 0 {
            history.save();
        }
    })
}

impl State {
    fn observe(&mut self, volumes: Vec<NamedStatistics>, now_s: u64) {
        let identities: HashSet<Identity> = volumes.iter().map(|volume| volume.identity).collect();
        let gone = self.served.extract_if(.., |_, entry| !identities.contains(&entry.identity));
        let gone: Vec<_> = gone.map(|(_, entry)| entry).collect();
        self.unserved.extend(gone.iter().map(|gone| (gone.identity, pack(gone.series.total()))));
        for volume in volumes {
            let numbers = volume.statistics.into_numbers();
            let unserved = &mut self.unserved;
            let entry = self.served.entry(volume.name).or_insert_with(|| {
                let total = take(unserved, &volume.identity, numbers.len());
                let series = Series::new(total, now_s);
                Entry { identity: volume.identity, series, disk_in_flight: 0 }
            });
            entry.series.observe(u64::from(volume.id.0), numbers, now_s);
            entry.disk_in_flight = volume.disk_in_flight;
        }
        let excess = self.unserved.len().saturating_sub(UNSERVED_MAX);
        self.unserved.drain(..excess);
    }

    fn statistics(&self, now_s: u64) -> Statistics {
        let mut all: Option<PeriodNumbers> = None;
        let mut in_flight = 0;
        let mut volumes = Vec::new();
        for (name, entry) in &self.served {
            let numbers = entry.numbers(now_s);
            let periods = shown(&numbers, entry.disk_in_flight);
            volumes.push(StatisticsOfVolume { name: name.clone(), periods });
            in_flight += entry.disk_in_flight;
            match &mut all {
                None => all = Some(numbers),
                Some(all) => all.iter_mut().zip(numbers).for_each(|(sum, more)| {
                    sum.0 = sum.0.max(more.0);
                    sum.1.iter_mut().zip(more.1).for_each(|(sum, more)| *sum += more);
                }),
            }
        }
        let all = all.map(|all| {
            let mut periods = shown(&all, in_flight);
            for (period, (_, numbers)) in periods.all_mut().into_iter().zip(&all) {
                let statistics = VolumeStatistics::from_numbers(numbers);
                period.histograms = histograms(&statistics.latencies);
            }
            periods
        });
        Statistics { seconds: now_s, all: all.unwrap_or_default(), volumes }
    }

    fn totals(&self) -> StatisticsFile {
        let served = self.served.values();
        let served = served.map(|entry| (entry.identity, pack(entry.series.total())));
        let entries = self.unserved.iter().cloned().chain(served).collect();
        StatisticsFile { groups: VolumeStatistics::groups(), entries }
    }
}

/// The length of each period in seconds, the total's first, and its numbers.
type PeriodNumbers = [(u64, Vec<u64>); 4];

impl Entry {
    fn numbers(&self, now_s: u64) -> PeriodNumbers {
        let [minutes, hour, day] = self.series.periods(now_s);
        [(0, self.series.total().to_vec()), minutes, hour, day]
    }
}

/// The total of a volume that was not served, or zeroes.
fn take(unserved: &mut Vec<(Identity, Vec<u8>)>, wanted: &Identity, count: usize) -> Vec<u64> {
    let found = unserved.iter().rposition(|(identity, _)| identity == wanted);
    let packed = found.map(|at| unserved.remove(at).1);
    packed.and_then(|packed| unpack(&packed, count)).unwrap_or_else(|| vec![0; count])
}

fn shown(periods: &PeriodNumbers, disk_in_flight: u64) -> Periods {
    let [total, last_5_minutes, last_hour, last_day] =
        periods.each_ref().map(|(seconds, numbers)| {
            let statistics = VolumeStatistics::from_numbers(numbers);
            PeriodStatistics {
                seconds: *seconds,
                counters: counters(&statistics),
                latency: latencies(&statistics.latencies),
                disk: disk_use(&statistics, disk_in_flight),
                ..PeriodStatistics::default()
            }
        });
    Periods { total, last_5_minutes, last_hour, last_day }
}

/// The file of the totals.
struct TotalsFile {
    path: PathBuf,
    /// The last write; `None` if the file could not be read. Then it is not replaced, because its
    /// totals would be lost.
    writing: Mutex<Option<Written>>,
}

#[derive(Default)]
struct Written {
    /// The content, if the write succeeded.
    content: Option<StatisticsFile>,
    /// The write failed, which was logged.
    has_failed: bool,
}

impl TotalsFile {
    /// Reads the file. Returns the totals in the order of the numbers of this program.
    fn open(path: PathBuf) -> (Self, Vec<(Identity, Vec<u8>)>) {
        let (mut entries, mut written) = (Vec::new(), Some(Written::default()));
        match read_file(&path, STATISTICS_BYTES_MAX) {
            Ok(None) => {}
            Ok(Some(bytes)) => match StatisticsFile::decode(&bytes) {
                Ok(file) => entries = file.entries_for(&VolumeStatistics::groups()),
                Err(error) => put_aside(&path, &error),
            },
            Err(error) => {
                tracing::warn!(
                    file = %path.display(), %error,
                    "cannot read statistics, totals begin at zero and are not kept"
                );
                written = None;
            }
        }
        (Self { path, writing: Mutex::new(written) }, entries)
    }

    /// Replaces the file, unless it has this content already.
    fn write(&self, totals: &StatisticsFile) {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(written) = &mut *writing else { return };
        if written.content.as_ref() == Some(totals) {
            return;
        }
        let result = marks::replace(&self.path, totals.encode());
        if let Err(error) = &result
            && !written.has_failed
        {
            tracing::warn!(file = %self.path.display(), %error, "cannot keep statistics");
        }
        let has_failed = result.is_err();
        *written = Written { content: (!has_failed).then(|| totals.clone()), has_failed };
    }
}

/// Renames an unusable file, which a later version of the program may be able to read.
fn put_aside(path: &Path, error: &forebay_format::StatisticsError) {
    let aside = path.with_extension("unusable");
    let moved = std::fs::rename(path, &aside);
    tracing::warn!(
        file = %path.display(), %error,
        kept_as = moved.as_ref().map_or_else(|error| format!("none: {error}"), |()| {
            aside.display().to_string()
        }),
        "statistics are unusable, totals begin at zero"
    );
}

#[cfg(test)]
mod tests;
