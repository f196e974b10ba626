//! The statistics of all volumes over time, and their totals over restarts.
//!
//! A thread observes the counters every 5 s, or every 30 s if there are many volumes, and so does
//! each query. Totals belong to the
//! name and backing of a volume, and so does its past. They are kept in the state directory: totals
//! are written every five minutes if they have changed, the past every hour, and both when the
//! server stops or is upgraded. A kill loses what was counted since.

mod convert;
mod past;
mod periods;

pub(super) use convert::{counters, disk_use, histograms, latencies, latency, writes_of};

use super::periodic::Periodic;
use forebay_api::{PeriodStatistics, Periods, Statistics, StatisticsOfVolume};
use forebay_control::StatisticsManager;
use forebay_format::{Identity, NumberGroup, STATISTICS_BYTES_MAX, StatisticsFile, pack, unpack};
use forebay_runtime::{NamedStatistics, Runtime, VolumeStatistics};
use forebay_state::StateFile;
use forebay_threads::Thread;
use forebay_types::LINE_BYTES;
use past::{FINE_VOLUMES, Past, PastContent};
use periods::Series;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// The interval at which the counters are observed.
const OBSERVE: Duration = Duration::from_secs(5);
/// Every which observation takes place with more volumes than have intervals of five seconds.
const OBSERVATIONS_OF_MANY: u32 = 6;
/// Observations between two writes of the totals.
const OBSERVATIONS_PER_WRITE: u32 = 60;
/// The same for the past: it is written once an hour.
const OBSERVATIONS_PER_WRITE_OF_PAST: u32 = 720;
/// Volumes whose totals are kept although they are not served: the ones served last.
const UNSERVED_MAX: usize = 256;

/// The statistics of a daemon.
pub(super) struct History {
    file: KeptFile,
    past_file: KeptFile,
    begun: Instant,
    state: Mutex<PeriodsState>,
}

#[derive(Default)]
struct PeriodsState {
    /// The volumes that are served, by name.
    served: BTreeMap<String, KeptEntry>,
    /// Volumes that are not served. The last one was served last.
    unserved: Vec<Unserved>,
}

/// What is kept of a volume that is not served.
struct Unserved {
    identity: Identity,
    /// Its total, packed.
    total: Vec<u8>,
    /// Its past, as [`Past::kept`] returned it.
    past: Option<Vec<u8>>,
}

struct KeptEntry {
    identity: Identity,
    series: Series,
    past: Past,
    disk_in_flight: u64,
}

impl History {
    /// Reads the totals in a state directory. If they are unusable, they begin at zero.
    pub(super) fn open(state_dir: &Path) -> Self {
        let groups = VolumeStatistics::groups();
        let (file, totals) = KeptFile::open(&state_dir.join("statistics.totals"), groups);
        let path = state_dir.join("past.statistics");
        let (past_file, pasts) = KeptFile::open(&path, past::groups());
        let mut pasts: HashMap<_, _> = pasts.into_iter().collect();
        let unserved = totals.into_iter().map(|(identity, total)| {
            let past = pasts.remove(&identity);
            Unserved { identity, total, past }
        });
        let state = PeriodsState { unserved: unserved.collect(), ..PeriodsState::default() };
        Self { file, past_file, begun: Instant::now(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, PeriodsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what has been counted since the last observation. `count` returns the counters.
    pub(super) fn observe(&self, count: impl FnOnce() -> Vec<NamedStatistics>) {
        let mut state = self.state();
        // Under the lock, so that no older counters follow newer ones.
        let volumes = count();
        state.observe(volumes, self.begun.elapsed().as_secs(), clock_s());
    }

    /// The past of one volume, or of all together, as of the last observation; `None` if there is
    /// no such volume.
    pub(super) fn past(&self, name: Option<&str>, is_fine: bool) -> Option<forebay_api::History> {
        let (state, now) = (self.state(), clock_s());
        let pasts = state.served.values().map(|entry| &entry.past);
        Some(match name {
            None => past::history(pasts, now, is_fine),
            Some(name) => {
                past::history(std::iter::once(&state.served.get(name)?.past), now, is_fine)
            }
        })
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

    /// Writes totals and past if they have changed. Queries need not wait meanwhile.
    pub(super) fn save(&self) {
        self.save_totals();
        let past = self.state().pasts();
        self.past_file.write(&past);
    }

    fn save_totals(&self) {
        let totals = self.state().totals();
        self.file.write(&totals);
    }
}

/// The statistics of a server: the runtime, whose counters are observed, and their history.
pub(super) struct Observer {
    runtime: Arc<Runtime>,
    history: History,
}

impl Observer {
    /// See [`History::open`].
    pub(super) fn open(state_dir: &Path, runtime: &Arc<Runtime>) -> Self {
        Self { runtime: Arc::clone(runtime), history: History::open(state_dir) }
    }

    /// Adds what has been counted since the last time.
    pub(super) fn observe(&self) {
        self.history.observe(|| self.runtime.volumes().statistics());
    }

    /// See [`History::save`].
    pub(super) fn save(&self) {
        self.history.save();
    }
}

impl StatisticsManager for Observer {
    fn all(&self) -> Statistics {
        self.observe();
        self.history.statistics()
    }

    fn of_volume(&self, name: &str) -> Option<StatisticsOfVolume> {
        self.observe();
        self.history.volume_statistics(name)
    }

    fn history(&self, name: Option<&str>, is_fine: bool) -> Option<forebay_api::History> {
        self.observe();
        self.history.past(name, is_fine)
    }
}

/// Starts the thread that observes. Dropping the result ends it.
pub(super) fn start(observer: &Arc<Observer>) -> std::io::Result<Periodic> {
    let observer = Arc::clone(observer);
    let mut observations = 0;
    Periodic::start(Thread::named("statistics"), OBSERVE, move || {
        observations += 1;
        let is_many = observer.history.state().served.len() > FINE_VOLUMES;
        if !is_many || observations % OBSERVATIONS_OF_MANY == 0 {
            observer.observe();
        }
        if observations % OBSERVATIONS_PER_WRITE_OF_PAST == 0 {
            observer.history.save();
        } else if observations % OBSERVATIONS_PER_WRITE == 0 {
            observer.history.save_totals();
        }
    })
}

impl PeriodsState {
    /// `now_s` is the time since the start, `clock_s` the system's clock, in seconds since 1970.
    fn observe(&mut self, volumes: Vec<NamedStatistics>, now_s: u64, clock_s: u64) {
        let identities: HashSet<Identity> = volumes.iter().map(|volume| volume.identity).collect();
        let gone = self.served.extract_if(.., |_, entry| !identities.contains(&entry.identity));
        let gone: Vec<_> = gone.map(|(_, entry)| entry).collect();
        self.unserved.extend(gone.iter().map(KeptEntry::unserved));
        for volume in volumes {
            let content = PastContent {
                dirty_bytes: volume.dirty_lines * LINE_BYTES,
                cached_bytes: volume.cached_lines * LINE_BYTES,
            };
            let numbers = volume.statistics.into_numbers();
            let unserved = &mut self.unserved;
            let is_fine = self.served.len() < FINE_VOLUMES;
            let entry = self.served.entry(volume.name).or_insert_with(|| {
                let (total, past) = take(unserved, &volume.identity, numbers.len());
                let past = Past::new(past.as_deref(), &total, clock_s, is_fine);
                let series = Series::new(total, now_s);
                KeptEntry { identity: volume.identity, series, past, disk_in_flight: 0 }
            });
            entry.series.observe(u64::from(volume.id.0), numbers, now_s);
            entry.past.observe(entry.series.total(), content, clock_s);
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
        let unserved = self.unserved.iter().map(|it| (it.identity, it.total.clone()));
        StatisticsFile {
            groups: VolumeStatistics::groups(),
            entries: unserved.chain(served).collect(),
        }
    }

    fn pasts(&self) -> StatisticsFile {
        let served = self.served.values().map(|entry| (entry.identity, entry.past.kept()));
        let unserved = self.unserved.iter();
        let unserved = unserved.filter_map(|it| Some((it.identity, it.past.clone()?)));
        StatisticsFile { groups: past::groups(), entries: unserved.chain(served).collect() }
    }
}

/// The system's clock, in seconds since 1970.
fn clock_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The length of each period in seconds, the total's first, and its numbers.
type PeriodNumbers = [(u64, Vec<u64>); 4];

impl KeptEntry {
    fn unserved(&self) -> Unserved {
        let (total, past) = (pack(self.series.total()), Some(self.past.kept()));
        Unserved { identity: self.identity, total, past }
    }

    fn numbers(&self, now_s: u64) -> PeriodNumbers {
        let [minutes, hour, day] = self.series.periods(now_s);
        [(0, self.series.total().to_vec()), minutes, hour, day]
    }
}

/// The total of a volume that was not served, or zeroes, and its past.
fn take(
    unserved: &mut Vec<Unserved>,
    wanted: &Identity,
    count: usize,
) -> (Vec<u64>, Option<Vec<u8>>) {
    let found = unserved.iter().rposition(|volume| volume.identity == *wanted);
    let found = found.map(|at| unserved.remove(at));
    let total = found.as_ref().and_then(|volume| unpack(&volume.total, count));
    (total.unwrap_or_else(|| vec![0; count]), found.and_then(|volume| volume.past))
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

/// A file with numbers of each volume.
struct KeptFile {
    file: StateFile,
    /// The last write; `None` if the file could not be read. Then it is not replaced, because its
    /// numbers would be lost.
    writing: Mutex<Option<Written>>,
}

#[derive(Default)]
struct Written {
    /// The content, if the write succeeded.
    content: Option<StatisticsFile>,
    /// The write failed, which was logged.
    has_failed: bool,
}

impl KeptFile {
    /// Reads the file. Returns its entries with the numbers of these groups.
    fn open(path: &Path, groups: Vec<NumberGroup>) -> (Self, Vec<(Identity, Vec<u8>)>) {
        let file = StateFile::new(path.to_owned());
        let (mut entries, mut written) = (Vec::new(), Some(Written::default()));
        match file.read(STATISTICS_BYTES_MAX) {
            Ok(None) => {}
            Ok(Some(bytes)) => match StatisticsFile::decode(&bytes) {
                Ok(kept) => entries = kept.entries_for(&groups),
                Err(error) => put_aside(&file, &error),
            },
            Err(error) => {
                tracing::warn!(
                    %error,
                    "cannot read statistics, they begin at zero and are not kept"
                );
                written = None;
            }
        }
        (Self { file, writing: Mutex::new(written) }, entries)
    }

    /// Replaces the file, unless it has this content already.
    fn write(&self, kept: &StatisticsFile) {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(written) = &mut *writing else { return };
        if written.content.as_ref() == Some(kept) {
            return;
        }
        let result = self.file.replace(kept.encode());
        if let Err(error) = &result
            && !written.has_failed
        {
            tracing::warn!(%error, "cannot keep statistics");
        }
        let has_failed = result.is_err();
        *written = Written { content: (!has_failed).then(|| kept.clone()), has_failed };
    }
}

/// Puts an unusable file aside.
fn put_aside(file: &StateFile, error: &forebay_format::StatisticsError) {
    let aside = match file.put_aside() {
        Ok(aside) => aside.display().to_string(),
        Err(error) => format!("none: {error}"),
    };
    tracing::warn!(
        file = %file.path().display(), %error, kept_as = aside,
        "statistics are unusable, they begin at zero"
    );
}

#[cfg(test)]
mod tests;
