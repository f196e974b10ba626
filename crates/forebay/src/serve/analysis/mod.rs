//! The analysis of the benefit: three phases, divided into intervals with different regions held
//! out. The counters of each interval are kept in the state directory, so that a restart continues
//! the analysis. The client computes the results from them (`client/analyze`).
//!
//! In the phase `measure`, all regions are held out: the whole volume is served as if there were no
//! cache, without a change of its settings. Unless the request says how long, a volume gets its
//! cache back as soon as it has had enough requests. In the other phases, a share of the regions is
//! held out, in a busy volume not all the time (`pace`).

mod convert;
mod file;
mod machine;
mod pace;

use super::periodic::Periodic;
use super::vault::utc;
use crate::client::analyze::INTERVALS_MIN;
use convert::batch_volume;
use file::AnalysisFile;
use forebay_api::{
    Analysis, AnalysisBatch, AnalysisInterruption, AnalysisPhase, AnalysisRequest, AnalysisState,
    AnalysisStatus, AnalysisSubject, CacheOff, ErrorKind, Problem,
};
use forebay_control::AnalysisManager;
use forebay_runtime::{NamedStatistics, Runtime};
use forebay_state::StateFile;
use forebay_threads::Thread;
use forebay_types::HoldOut;
use machine::{Machine, Server};
use pace::{HELD_ENOUGH, Pace, part_of_time, requests};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How often the thread checks whether an interval is over.
const POLL: Duration = Duration::from_millis(250);
/// The number of intervals in a phase, unless they would be shorter than [`INTERVAL_MIN`]. An
/// estimate needs a few dozen intervals. In a phase of a day, each has half an hour, in which the
/// lines of a region are used again.
const INTERVALS: f64 = 48.0;
/// The shortest interval.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// The longest phase, in seconds.
const PHASE_SECONDS_MAX: u64 = 7 * 24 * 60 * 60;
/// The most volumes of an analysis. With [`INTERVALS`], this bounds the memory that it takes.
const VOLUMES_MAX: usize = 32;
/// The largest share of the regions that is held out, in percent.
const HOLD_OUT_PERCENT_MAX: u32 = 50;
/// One percent in parts per million.
const PPM_PER_PERCENT: u32 = 10_000;

/// A record of an analysis. All records in order determine its state.
#[derive(Clone, Debug, PartialEq)]
enum Record {
    Begin { at: String, request: AnalysisRequest, subject: Option<AnalysisSubject> },
    Batch(AnalysisBatch),
    Interrupted(AnalysisInterruption),
    End { at: String, state: AnalysisState },
}

/// The analyses of a daemon, one at a time.
struct Analyses {
    state: Mutex<AnalysisRun>,
    /// Locked before the state, which is not locked during a write, so that a file system that
    /// hangs delays no query.
    file: Mutex<AnalysisFile>,
}

#[derive(Default)]
struct AnalysisRun {
    analysis: Analysis,
    /// The interval in progress.
    interval: Option<Interval>,
    /// Records that are not in the file yet.
    unwritten: Vec<Record>,
    /// Volumes whose regions may be held out.
    held_out: Vec<String>,
}

/// Volumes that are served as if there were no cache.
pub(super) struct VolumesOff {
    pub(super) names: Vec<String>,
    pub(super) off: CacheOff,
}

struct Interval {
    phase: AnalysisPhase,
    begun_at: String,
    begun: Duration,
    length: Duration,
    cpu_seconds: f64,
    volumes: Vec<NamedStatistics>,
    paces: Vec<Pace>,
}

impl Analyses {
    /// Reads the analysis in a state directory. One that was running continues with the next call
    /// of [`Analyses::advance`].
    fn open(state_dir: &Path, now: u64) -> Self {
        let (file, records) = AnalysisFile::open(StateFile::new(state_dir.join("analysis.jsonl")));
        let mut state = AnalysisRun::default();
        records.into_iter().for_each(|record| state.apply(record));
        if let Some(phase) = state.phase() {
            tracing::info!(%phase, "continuing the analysis of the benefit");
            let resumed_at = utc(now);
            state.add(Record::Interrupted(AnalysisInterruption { resumed_at, phase }));
        }
        Self { state: Mutex::new(state), file: Mutex::new(file) }
    }

    fn state(&self) -> MutexGuard<'_, AnalysisRun> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its progress.
    fn status(&self, machine: &impl Machine) -> AnalysisStatus {
        self.state().status(machine)
    }

    /// The volumes whose cache is off now; `None` without any.
    fn cache_off(&self, machine: &impl Machine) -> Option<VolumesOff> {
        self.state().cache_off(machine)
    }

    /// All that it has counted.
    fn result(&self, machine: &impl Machine) -> Analysis {
        let state = self.state();
        Analysis { status: state.status(machine), batches: state.analysis.batches.clone() }
    }

    /// Starts an analysis of a server and its volumes, which `subject` describes.
    ///
    /// # Errors
    /// See [`AnalysisManager::start`].
    fn start(
        &self,
        request: AnalysisRequest,
        mut subject: Option<AnalysisSubject>,
        machine: &impl Machine,
    ) -> Result<AnalysisStatus, Problem> {
        check(&request)?;
        let volumes = chosen_volumes(&request.volumes, machine)?;
        if let Some(subject) = &mut subject {
            subject.volumes.retain(|volume| volumes.contains(&volume.name));
        }
        let request = AnalysisRequest { volumes, ..request };
        // Held throughout, so that no other analysis starts meanwhile.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(phase) = self.state().phase() {
            return Err(Problem::new(
                ErrorKind::Busy,
                format!("an analysis is running, in the phase '{phase}'"),
                "wait until it is complete, or stop it with `forebay analyze stop`",
            ));
        }
        let at = utc(machine.unix_seconds());
        let begin = Record::Begin { at, request, subject };
        file.begin(&begin).map_err(|error| unwritable(&error))?;
        let mut state = self.state();
        *state = AnalysisRun::default();
        state.apply(begin);
        state.begin_interval(machine);
        tracing::info!("analysis of the benefit started");
        Ok(state.status(machine))
    }

    /// Stops the analysis before its end.
    ///
    /// # Errors
    /// None is running.
    fn stop(&self, machine: &impl Machine) -> Result<AnalysisStatus, Problem> {
        let mut state = self.state();
        if state.phase().is_none() {
            return Err(Problem::new(
                ErrorKind::Invalid,
                "no analysis is running",
                "start one with `forebay analyze start`",
            ));
        }
        state.end(AnalysisState::Stopped, machine);
        let status = state.status(machine);
        drop(state);
        self.write();
        Ok(status)
    }

    /// Ends an interval that is over, and begins the next one. Writes new records.
    fn advance(&self, machine: &impl Machine) {
        let mut state = self.state();
        if state.analysis.status.state == AnalysisState::Running {
            state.advance(machine);
        }
        let is_written = state.unwritten.is_empty();
        drop(state);
        if !is_written {
            self.write();
        }
    }

    /// Appends new records to the file. If that fails, the next call of [`Self::advance`] repeats
    /// it.
    fn write(&self) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let records = self.state().unwritten.clone();
        let result = file.append(&records);
        let mut state = self.state();
        match result {
            // Records are only removed while the file is locked, so these are still the first ones.
            Ok(()) => drop(state.unwritten.drain(..records.len())),
            Err(error) if state.analysis.status.problem.is_none() => {
                tracing::warn!(%error, "cannot keep the analysis of the benefit over a restart");
            }
            Err(_) => {}
        }
        let is_kept = state.unwritten.is_empty();
        state.analysis.status.problem = (!is_kept)
            .then(|| "the state directory cannot be written, see the server's log".to_owned());
    }
}

/// Starts the thread that ends intervals. Dropping the result ends it.
pub(super) fn start(analyzer: &Arc<Analyzer>) -> io::Result<Periodic> {
    let analyzer = Arc::clone(analyzer);
    Periodic::start(Thread::named("analysis"), POLL, move || {
        analyzer.analyses.advance(&analyzer.server)
    })
}

/// The analysis of the volumes of this server.
pub(super) struct Analyzer {
    analyses: Analyses,
    server: Server,
    subject: OnceLock<Box<Subject>>,
}

/// Describes the server and its volumes; `None` while it stops.
type Subject = dyn Fn() -> Option<AnalysisSubject> + Send + Sync;

impl Analyzer {
    /// See [`Analyses::open`].
    pub(super) fn open(state_dir: &Path, runtime: &Arc<Runtime>) -> Self {
        let server = Server::new(runtime);
        let analyses = Analyses::open(state_dir, server.unix_seconds());
        Self { analyses, server, subject: OnceLock::new() }
    }

    /// See [`Analyses::cache_off`].
    pub(super) fn cache_off(&self) -> Option<VolumesOff> {
        self.analyses.cache_off(&self.server)
    }

    /// Sets what describes the server and its volumes at the start of an analysis.
    pub(super) fn describe_by(
        &self,
        subject: impl Fn() -> Option<AnalysisSubject> + Send + Sync + 'static,
    ) {
        let is_first = self.subject.set(Box::new(subject)).is_ok();
        assert!(is_first, "the server is described by one function");
    }
}

impl AnalysisManager for Analyzer {
    fn status(&self) -> AnalysisStatus {
        self.analyses.status(&self.server)
    }

    fn result(&self) -> Analysis {
        self.analyses.result(&self.server)
    }

    fn start(&self, request: AnalysisRequest) -> Result<AnalysisStatus, Problem> {
        let subject = self.subject.get().and_then(|subject| subject());
        self.analyses.start(request, subject, &self.server)
    }

    fn stop(&self) -> Result<AnalysisStatus, Problem> {
        self.analyses.stop(&self.server)
    }
}

impl AnalysisRun {
    /// Changes the state by a record, and has it written.
    fn add(&mut self, record: Record) {
        self.unwritten.push(record.clone());
        self.apply(record);
    }

    /// Changes the state by a record. No other function changes what is kept over a restart.
    fn apply(&mut self, record: Record) {
        let Analysis { status, batches } = &mut self.analysis;
        match record {
            Record::Begin { at, request, subject } => {
                *status = AnalysisStatus {
                    state: AnalysisState::Running,
                    begun_at: at,
                    request,
                    subject,
                    ..AnalysisStatus::default()
                };
                batches.clear();
            }
            Record::Batch(batch) => batches.push(batch),
            Record::Interrupted(interruption) => status.interruptions.push(interruption),
            Record::End { at, state } => (status.state, status.ended_at) = (state, Some(at)),
        }
    }

    /// The part of a phase that complete intervals cover.
    fn done(&self, phase: AnalysisPhase) -> Duration {
        let batches = self.analysis.batches.iter().filter(|batch| batch.phase == phase);
        Duration::from_secs_f64(batches.map(|batch| batch.seconds).sum())
    }

    /// The time that is left of a phase, at most.
    fn left(&self, phase: AnalysisPhase) -> Duration {
        let request = &self.analysis.status.request;
        let mut volumes = request.volumes.iter();
        match phase == AnalysisPhase::Measure && volumes.all(|name| self.is_measured(name)) {
            true => Duration::ZERO,
            false => length(request, phase).saturating_sub(self.done(phase)),
        }
    }

    /// Whether a volume gets its cache back before the phase `measure` has its full length: it has
    /// had enough intervals for an estimate, and enough requests in them.
    fn is_measured(&self, name: &str) -> bool {
        let Analysis { status, batches } = &self.analysis;
        let measured = batches.iter().filter(|batch| batch.phase == AnalysisPhase::Measure);
        let volumes = measured.flat_map(|batch| &batch.volumes);
        let usable = volumes.filter(|it| it.name == name && !it.is_writing_back());
        let counts: Vec<u64> = usable.map(requests).collect();
        status.request.measure_seconds.is_none()
            && counts.len() >= INTERVALS_MIN
            && counts.iter().sum::<u64>() as f64 >= INTERVALS_MIN as f64 * HELD_ENOUGH
    }

    /// The phase of the next interval, and the time that is left of that phase; `None` if there is
    /// no next interval.
    fn next(&self) -> Option<(AnalysisPhase, Duration)> {
        if self.analysis.status.state != AnalysisState::Running {
            return None;
        }
        AnalysisPhase::ALL.into_iter().find_map(|phase| {
            // A shorter remainder gets no interval of its own.
            Some((phase, self.left(phase))).filter(|(_, left)| *left > POLL / 2)
        })
    }

    /// The phase; `None` if no analysis runs.
    fn phase(&self) -> Option<AnalysisPhase> {
        self.next().map(|(phase, _)| phase)
    }

    fn status(&self, machine: &impl Machine) -> AnalysisStatus {
        let Analysis { status, batches } = &self.analysis;
        let begun = self.interval.as_ref().map(|interval| interval.begun);
        let current = begun.map_or(Duration::ZERO, |begun| machine.elapsed().saturating_sub(begun));
        let done: Duration = AnalysisPhase::ALL.iter().map(|&phase| self.done(phase)).sum();
        let left: Duration = AnalysisPhase::ALL.iter().map(|&phase| self.left(phase)).sum();
        let is_running = status.state == AnalysisState::Running;
        let left = if is_running { left.saturating_sub(current) } else { Duration::ZERO };
        AnalysisStatus {
            phase: self.phase(),
            analyzed_seconds: (done + current).as_secs_f64(),
            remaining_seconds: left.as_secs_f64(),
            batches: batches.len() as u64,
            ..status.clone()
        }
    }

    fn cache_off(&self, machine: &impl Machine) -> Option<VolumesOff> {
        let interval = self.interval.as_ref()?;
        let is_off = interval.phase == AnalysisPhase::Measure;
        let elapsed = machine.elapsed().saturating_sub(interval.begun);
        is_off.then(|| VolumesOff {
            names: interval.paces.iter().map(|pace| pace.name().to_owned()).collect(),
            off: CacheOff {
                since: self.analysis.status.begun_at.clone(),
                seconds_left: self.left(interval.phase).saturating_sub(elapsed).as_secs(),
            },
        })
    }

    /// Begins an interval, with other regions held out than in the one before.
    fn begin_interval(&mut self, machine: &impl Machine) {
        let Some((phase, left)) = self.next() else { return };
        let AnalysisRequest { volumes, hold_out_percent, .. } = &self.analysis.status.request;
        let whole = length(&self.analysis.status.request, phase).div_f64(INTERVALS);
        let length = whole.max(INTERVAL_MIN);
        // This interval takes the whole remainder of the phase, if the next one would be too short.
        let length = if left < length + length / 2 { left } else { length };
        let random = machine.random();
        let is_over = |name: &str| phase == AnalysisPhase::Measure && self.is_measured(name);
        let (over, analyzed): (Vec<_>, Vec<_>) = volumes.iter().partition(|name| is_over(name));
        over.into_iter().for_each(|name| machine.set_hold_out(name, HoldOut::NONE));
        let paces = analyzed.into_iter().zip(0..).map(|(name, number)| {
            let random = random.wrapping_add(number);
            let (hold_out, part) = match phase {
                AnalysisPhase::Measure => (HoldOut::ALL, 1.0),
                _ => (
                    HoldOut::new(hold_out_percent * PPM_PER_PERCENT, random),
                    self.part_of_time(name, length),
                ),
            };
            Pace::begin(name, hold_out, (length, part), random, machine)
        });
        let paces = paces.collect();
        self.held_out.clone_from(volumes);
        let statistics = machine.statistics();
        self.interval = Some(Interval {
            phase,
            begun_at: utc(machine.unix_seconds()),
            begun: machine.elapsed(),
            length,
            cpu_seconds: machine.cpu_seconds(),
            volumes: statistics.into_iter().filter(|one| volumes.contains(&one.name)).collect(),
            paces,
        });
    }

    /// The part of an interval in which regions of a volume are to be held out.
    fn part_of_time(&self, name: &str, length: Duration) -> f64 {
        let share = f64::from(self.analysis.status.request.hold_out_percent) / 100.0;
        let last = self.analysis.batches.last().and_then(|batch| {
            Some((batch.volumes.iter().find(|volume| volume.name == name)?, batch.seconds))
        });
        last.map_or(1.0, |(volume, seconds)| part_of_time(volume, seconds, share, length))
    }

    /// Ends the interval if it is over. Then begins the next one, or ends the analysis.
    fn advance(&mut self, machine: &impl Machine) {
        let now = machine.elapsed();
        if let Some(interval) = &mut self.interval {
            let elapsed = now.saturating_sub(interval.begun);
            if elapsed < interval.length {
                interval.paces.iter_mut().for_each(|pace| pace.advance(elapsed, machine));
                return;
            }
            let batch = interval.end(machine, now);
            self.interval = None;
            self.add(Record::Batch(batch));
        }
        match self.next() {
            Some(_) => self.begin_interval(machine),
            None => self.end(AnalysisState::Complete, machine),
        }
    }

    /// Ends the analysis: nothing is held out any more.
    fn end(&mut self, state: AnalysisState, machine: &impl Machine) {
        self.interval = None;
        for name in self.held_out.drain(..) {
            machine.set_hold_out(&name, HoldOut::NONE);
        }
        self.add(Record::End { at: utc(machine.unix_seconds()), state });
        tracing::info!(%state, "analysis of the benefit ended");
    }
}

impl Interval {
    /// The counts of the interval.
    fn end(&self, machine: &impl Machine, now: Duration) -> AnalysisBatch {
        let statistics = machine.statistics();
        let elapsed = now.saturating_sub(self.begun);
        // A volume that was removed and added again begins to count at zero.
        let volumes = self.volumes.iter().filter_map(|before| {
            let same = |one: &&NamedStatistics| one.name == before.name && one.id == before.id;
            let pace = self.paces.iter().find(|pace| pace.name() == before.name)?;
            let compared_seconds = pace.held_out_for(elapsed).as_secs_f64();
            batch_volume(before, statistics.iter().find(same)?, compared_seconds)
        });
        AnalysisBatch {
            phase: self.phase,
            begun_at: self.begun_at.clone(),
            seconds: elapsed.as_secs_f64(),
            cpu_seconds: (machine.cpu_seconds() - self.cpu_seconds).max(0.0),
            volumes: volumes.collect(),
        }
    }
}

/// The length of a phase.
fn length(request: &AnalysisRequest, phase: AnalysisPhase) -> Duration {
    Duration::from_secs(match phase {
        AnalysisPhase::Measure => request.measure_seconds_max(),
        AnalysisPhase::Learn => request.learn_seconds,
        AnalysisPhase::Accelerate => request.accelerate_seconds,
    })
}

fn check(request: &AnalysisRequest) -> Result<(), Problem> {
    let lengths = AnalysisPhase::ALL.map(|phase| (phase, length(request, phase).as_secs()));
    for (phase, seconds) in lengths {
        if !(1..=PHASE_SECONDS_MAX).contains(&seconds) {
            return Err(Problem::new(
                ErrorKind::Invalid,
                format!("the phase '{phase}' cannot take {seconds} s"),
                "choose a second to seven days",
            ));
        }
    }
    if !(1..=HOLD_OUT_PERCENT_MAX).contains(&request.hold_out_percent) {
        return Err(Problem::new(
            ErrorKind::Invalid,
            format!("{} percent cannot be held out", request.hold_out_percent),
            format!("choose 1 to {HOLD_OUT_PERCENT_MAX} percent"),
        ));
    }
    Ok(())
}

/// The volumes to analyze: those named, or all that are not in bypass.
fn chosen_volumes(named: &[String], machine: &impl Machine) -> Result<Vec<String>, Problem> {
    let served = machine.volumes();
    for name in named {
        match served.iter().find(|(served, _)| served == name) {
            None => return Err(Problem::unknown_volume(name)),
            Some((_, true)) => {}
            Some((_, false)) => {
                return Err(Problem::new(
                    ErrorKind::Invalid,
                    format!("volume '{name}' is in bypass, so no cache can be compared"),
                    "set another mode with `forebay volume set NAME mode=MODE`",
                ));
            }
        }
    }
    let cached = served.into_iter().filter(|(_, is_cached)| *is_cached).map(|(name, _)| name);
    let chosen: Vec<String> =
        cached.filter(|name| named.is_empty() || named.contains(name)).collect();
    match chosen.len() {
        0 => Err(Problem::new(
            ErrorKind::Invalid,
            "no volume is served with a cache",
            "add one with `forebay volume add`",
        )),
        1..=VOLUMES_MAX => Ok(chosen),
        count => Err(Problem::new(
            ErrorKind::Invalid,
            format!("{count} volumes are too many for an analysis"),
            format!("name at most {VOLUMES_MAX}"),
        )),
    }
}

fn unwritable(error: &io::Error) -> Problem {
    Problem::new(
        ErrorKind::Failed,
        format!("the analysis cannot be kept in the state directory: {error}"),
        "free space there, or check its permissions",
    )
}

#[cfg(test)]
mod tests;
