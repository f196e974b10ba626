//! The thread of the warm-ups: polls its jobs (warm-ups, pinned ranges and forecasts), passes their
//! reads to the workers, and writes the lists when they are due.

use super::pins::{Pass, PinnedVolumes};
use super::save::{Pace, Saver};
use super::{LastSave, WarmLists};
use crate::shared::Timeouts;
use crate::shared::{Calibration, Message, Shared, Volume, WarmUpState, WarmUpStatus};
use forebay_engine::PreloadKind;
use forebay_format::{WarmList, WarmListError, warm_list_bytes};
use forebay_types::{Granule, IoResult, LINE_BYTES, Size, VolumeId};
use forebay_volume::{Conditions, Loader, LoaderEnd, LoaderStep, granules_of, shrink_to_pool};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

/// How long a warm-up waits for the calibration of its disk, which needs an idle disk.
const CALIBRATION_WAIT: Duration = Duration::from_secs(10);
/// The interval of polls while a warm-up waits for something that sends no event.
const POLL: Duration = Duration::from_millis(100);
/// The interval of polls while the volume of a warm-up is frozen, which may last.
const FROZEN_POLL: Duration = Duration::from_secs(1);

/// An event for the thread.
pub(super) enum Event {
    /// Begin the warm-up of a volume.
    Load(Weak<Volume>),
    /// The pinned ranges of a volume have changed.
    Pin(Weak<Volume>),
    /// Begin the preload of a forecast, which replaces an earlier one.
    Preload(Weak<Volume>, Vec<Granule>),
    /// A read of a job has ended.
    Ended { job: u64, granule: Granule, is_ok: bool },
    /// Remove the list of a volume that was removed.
    Forget(String),
    /// Write the lists now, and drop the sender.
    Save(mpsc::Sender<()>),
    /// End the thread.
    Stop(LastSave),
}

/// What a job reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The lines of a warm list.
    WarmUp,
    /// Pinned ranges.
    Pins,
    /// The forecast of an access history.
    Forecast,
}

/// The warm-up of a volume, a pass over its pinned ranges, or the preload of a forecast.
struct Job {
    number: u64,
    purpose: Purpose,
    volume: Weak<Volume>,
    begun: Instant,
    loader: Loader,
}

/// Reports the end of a read on drop, so also if its worker has ended and drops the task.
struct ReadEnd {
    events: mpsc::Sender<Event>,
    job: u64,
    granule: Granule,
    is_ok: bool,
}

impl Drop for ReadEnd {
    fn drop(&mut self) {
        let Self { job, granule, is_ok, .. } = *self;
        let _ = self.events.send(Event::Ended { job, granule, is_ok });
    }
}

struct Thread {
    shared: Weak<Shared>,
    lists: Arc<dyn WarmLists>,
    sender: mpsc::Sender<Event>,
    saver: Saver,
    jobs: Vec<Job>,
    pinned: PinnedVolumes,
    /// The number of the next job, and the worker of the next read.
    next_job: u64,
    next_worker: usize,
}

/// Runs until the runtime stops or is gone.
pub(super) fn run(
    shared: Weak<Shared>,
    lists: Arc<dyn WarmLists>,
    sender: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
) {
    let Some(interval) = shared.upgrade().map(|shared| interval(&shared.timeouts)) else { return };
    let mut next_save = Instant::now() + interval;
    let saver = Saver::new(Arc::clone(&lists));
    let (jobs, pinned, next_job, next_worker) = (Vec::new(), PinnedVolumes::default(), 0, 0);
    let mut thread = Thread { shared, lists, sender, saver, jobs, pinned, next_job, next_worker };
    loop {
        let now = Instant::now();
        let Some(shared) = thread.shared.upgrade() else { return };
        // While other programs wait for processors or disks, the lists are written up to an
        // interval later.
        let due = match shared.background.both().is_full() {
            true => next_save,
            false => next_save + interval,
        };
        if now >= due {
            thread.save(&shared, Pace::Slow);
            next_save = Instant::now() + interval;
        }
        let wait = thread.poll(&shared).min(due.saturating_duration_since(now)).min(interval);
        drop(shared);
        // All pending events are handled before the next poll.
        let mut event = events.recv_timeout(wait).ok();
        while let Some(next) = event {
            match next {
                Event::Load(volume) => thread.begin(volume),
                Event::Pin(volume) => thread.pin(volume),
                Event::Preload(volume, granules) => thread.preload(volume, granules),
                Event::Ended { job, granule, is_ok } => thread.end_read(job, granule, is_ok),
                Event::Forget(volume) => thread.saver.forget(&volume),
                Event::Save(_done) => {
                    let Some(shared) = thread.shared.upgrade() else { return };
                    thread.save(&shared, Pace::Fast);
                }
                Event::Stop(last_save) => {
                    if let (LastSave::Yes, Some(shared)) = (last_save, thread.shared.upgrade()) {
                        thread.save(&shared, Pace::Fast);
                    }
                    return;
                }
            }
            event = events.try_recv().ok();
        }
    }
}

/// The interval between two writes of the lists, with a minimum.
fn interval(timeouts: &Timeouts) -> Duration {
    timeouts.warm_lists.max(POLL)
}

impl Thread {
    /// Begins the warm-up of a volume.
    fn begin(&mut self, weak: Weak<Volume>) {
        if let (Some(shared), Some(volume)) = (self.shared.upgrade(), weak.upgrade()) {
            self.load(&shared, &volume, weak);
            volume.warm.set_replaceable();
        }
    }

    /// Reads the list of a volume, and makes it a job.
    fn load(&mut self, shared: &Shared, volume: &Volume, weak: Weak<Volume>) {
        let name = volume.name.clone();
        let pool_lines = shared.pool.data_bytes() / LINE_BYTES;
        let mut list = match self.read_list(volume, pool_lines) {
            Ok(Some(list)) => list,
            Ok(None) => return volume.warm.set_status(WarmUpStatus::default()),
            Err(error) => {
                let state = WarmUpState::Unusable;
                volume.warm.set_status(WarmUpStatus { state, ..WarmUpStatus::default() });
                tracing::warn!(volume = name, error, "warm list ignored, the pool starts cold");
                return;
            }
        };
        shrink_to_pool(&mut list.granules, list.pool_lines, pool_lines);
        let loader = Loader::new(list.granules);
        volume.warm.set_status(WarmUpStatus::of(WarmUpState::Loading, &loader));
        let planned = Size(loader.planned_lines() * LINE_BYTES);
        tracing::info!(volume = name, %planned, "warm-up started");
        self.push_job(Purpose::WarmUp, weak, loader);
    }

    fn push_job(&mut self, purpose: Purpose, volume: Weak<Volume>, loader: Loader) {
        self.next_job += 1;
        let (number, begun) = (self.next_job, Instant::now());
        self.jobs.push(Job { number, purpose, volume, begun, loader });
    }

    /// Reads the pinned ranges of a volume as they are now.
    fn pin(&mut self, volume: Weak<Volume>) {
        let is_old = |job: &&mut Job| job.purpose == Purpose::Pins && job.volume.ptr_eq(&volume);
        self.jobs.iter_mut().filter(is_old).for_each(|job| job.loader.cancel());
        self.pinned.changed(volume, Instant::now());
    }

    /// Begins the preload of a forecast, which may be empty. An earlier one ends.
    fn preload(&mut self, volume: Weak<Volume>, granules: Vec<Granule>) {
        let is_old =
            |job: &&mut Job| job.purpose == Purpose::Forecast && job.volume.ptr_eq(&volume);
        self.jobs.iter_mut().filter(is_old).for_each(|job| job.loader.cancel());
        if !granules.is_empty() {
            self.push_job(Purpose::Forecast, volume, Loader::new(granules));
        }
    }

    /// Begins the passes over pinned ranges that are due. Returns when to call this again.
    fn begin_passes(&mut self, shared: &Shared) -> Duration {
        let jobs = &self.jobs;
        let is_busy = |volume: &Arc<Volume>| {
            let is_of = |job: &Job| job.volume.as_ptr() == Arc::as_ptr(volume);
            jobs.iter().any(|job| job.purpose == Purpose::Pins && is_of(job))
        };
        let (passes, wait) = self.pinned.due(shared, is_busy, Instant::now());
        for Pass { volume, ranges, is_first } in passes {
            let loader = Loader::new(granules_of(&ranges));
            if is_first {
                let planned = Size(loader.planned_lines() * LINE_BYTES);
                tracing::info!(volume = volume.name, %planned, "reading pinned ranges");
            }
            self.push_job(Purpose::Pins, Arc::downgrade(&volume), loader);
        }
        wait
    }

    /// Reads the list of a volume and checks it. `None` if there is none.
    fn read_list(&mut self, volume: &Volume, pool_lines: u64) -> Result<Option<WarmList>, String> {
        // A list of this pool has at most a quarter of this length.
        let bytes_max = warm_list_bytes(pool_lines);
        let bytes = self.lists.read(&volume.name, bytes_max).map_err(|error| error.to_string())?;
        let Some(bytes) = bytes else { return Ok(None) };
        let invalid = |error: WarmListError| error.to_string();
        let list = WarmList::decode(&bytes).map_err(invalid)?;
        list.check(&volume.warm.disk()).map_err(invalid)?;
        self.saver.remember(&volume.name, &bytes);
        Ok(Some(list))
    }

    fn end_read(&mut self, job: u64, granule: Granule, is_ok: bool) {
        assert!((1..=self.next_job).contains(&job), "a read ends after its job began");
        if let Some(job) = self.jobs.iter_mut().find(|other| other.number == job) {
            job.loader.complete(granule, is_ok);
        }
    }

    /// Polls all jobs. Returns when to poll them again if no event comes before.
    fn poll(&mut self, shared: &Arc<Shared>) -> Duration {
        let mut wait = self.begin_passes(shared);
        let mut jobs = std::mem::take(&mut self.jobs);
        jobs.retain_mut(|job| {
            let next = self.poll_job(shared, job);
            wait = next.map_or(wait, |next| wait.min(next));
            next.is_some()
        });
        assert!(self.jobs.is_empty(), "jobs begin before they are polled");
        self.jobs = jobs;
        wait
    }

    /// Polls a job. Returns when to poll it again; `None` once it has ended.
    fn poll_job(&mut self, shared: &Arc<Shared>, job: &mut Job) -> Option<Duration> {
        let volume = job.volume.upgrade()?;
        let is_served =
            shared.volume(volume.id).is_some_and(|served| Arc::ptr_eq(&served, &volume));
        if !is_served {
            return None;
        }
        let is_waiting = volume.gather.status().calibration == Calibration::Waiting
            && job.begun.elapsed() < CALIBRATION_WAIT;
        let is_paused = shared.stopping.load(Ordering::Relaxed)
            || volume.is_closed.load(Ordering::Relaxed)
            || volume.power.is_halted();
        if is_paused || is_waiting {
            return Some(POLL);
        }
        let is_wanted = match job.purpose {
            Purpose::WarmUp => volume.warm.is_kept(),
            Purpose::Pins => true,
            Purpose::Forecast => volume.learn.is_on() && !volume.is_frozen(),
        };
        if !is_wanted || shared.shards.is_bypass(volume.id) {
            job.loader.cancel();
        } else if job.purpose == Purpose::WarmUp && volume.is_frozen() {
            return Some(FROZEN_POLL);
        }
        let conditions = conditions(shared, &volume, job.purpose);
        let next = loop {
            match job.loader.poll(&conditions) {
                LoaderStep::Read(granule) => self.start_read(shared, volume.id, job, granule),
                LoaderStep::Wait(ms) => break Some(Duration::from_millis(ms)),
                LoaderStep::Ended(end) => {
                    end_job(&volume, job, end);
                    return None;
                }
            }
        };
        if job.purpose == Purpose::WarmUp {
            volume.warm.set_status(WarmUpStatus::of(WarmUpState::Loading, &job.loader));
        }
        next
    }

    /// Passes a read to a worker.
    fn start_read(&mut self, shared: &Shared, id: VolumeId, job: &Job, granule: Granule) {
        let kind = match job.purpose {
            Purpose::Pins => PreloadKind::Pinned,
            Purpose::WarmUp if granule.is_hot() => PreloadKind::Hot,
            Purpose::WarmUp => PreloadKind::Warm,
            Purpose::Forecast => PreloadKind::Forecast,
        };
        let end = ReadEnd { events: self.sender.clone(), job: job.number, granule, is_ok: false };
        let on_done = Box::new(move |result: IoResult| {
            let mut end = end;
            end.is_ok = result.is_ok();
        });
        self.next_worker = (self.next_worker + 1) % shared.inboxes.len();
        let task = Box::new(move |tasks: &mut dyn crate::shared::Tasks| {
            tasks.preload(id, granule, kind, on_done);
        });
        shared.inboxes[self.next_worker].post(Message::Task(task));
    }

    fn save(&mut self, shared: &Arc<Shared>, pace: Pace) {
        let remaining = |id: VolumeId| {
            let is_of = |job: &&Job| {
                let volume = job.volume.upgrade();
                job.purpose == Purpose::WarmUp && volume.is_some_and(|volume| volume.id == id)
            };
            self.jobs.iter().find(is_of).map(|job| job.loader.remaining()).unwrap_or_default()
        };
        self.saver.save(shared, remaining, pace);
    }
}

/// Reports the end of a job.
fn end_job(volume: &Volume, job: &Job, end: LoaderEnd) {
    let done = Size(job.loader.done_lines() * LINE_BYTES);
    match job.purpose {
        Purpose::WarmUp => {
            volume.warm.set_status(WarmUpStatus::of(end.into(), &job.loader));
            tracing::info!(volume = volume.name, %done, ?end, "warm-up ended");
        }
        Purpose::Pins => {
            volume.pins.set_failing(end == LoaderEnd::Failing);
            tracing::debug!(volume = volume.name, %done, ?end, "pinned ranges read");
        }
        Purpose::Forecast => {
            tracing::info!(volume = volume.name, %done, ?end, "preload ended");
        }
    }
}

fn conditions(shared: &Shared, volume: &Volume, purpose: Purpose) -> Conditions {
    let now_ms = shared.started.elapsed().as_millis() as u64;
    let (alone, beside) = volume.disk.reads.demand();
    let has_room = purpose != Purpose::WarmUp || shared.shards.has_room();
    let is_read = volume.disk.reads.is_reading(now_ms);
    let share = shared.background.both();
    Conditions { now_ms, is_read, alone, beside, has_room, share }
}
