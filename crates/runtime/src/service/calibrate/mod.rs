//! Calibration: measures the write-split cost of a volume's disk, off the data path.
//!
//! One thread, which exists while measurements are queued, reads one range of one disk at a time,
//! because two volumes may be files on one disk. The reads go directly to the backend. They do not
//! appear in the pool or in the health of the disk, where an error only ends the measurement; the
//! volume counts them as internal reads. [`forebay_policy::Probing`] chooses the reads.
//!
//! Clients have priority. Before each read, the thread checks that the volume is idle; if it is
//! not, the measurement is continued later. So a request waits for at most one of these reads.
//!
//! A second thread performs the reads of one measurement, so that a disk that hangs blocks nothing
//! else. Closing the disk waits for that thread. After a timeout, the thread is abandoned, and the
//! disk stays open until the read completes, because the disk may still write to its buffer. Until
//! then the disk is not measured again.

mod reader;

use crate::error::VolumeError;
use crate::platform::locks::{LazyCondvar, Lock, Locked, order};
use crate::shared::{
    CalibrateError, Calibration, CalibrationFailure, GatherStatus, Message, Shared, Volume,
};
use forebay_policy::{Probing, SplitCost};
use forebay_threads::Thread;
use forebay_types::Size;
use reader::Reader;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The delay after a volume was added: it is likely to be used at once, and at a start more volumes
/// follow, which the reads would slow down.
const INITIAL_DELAY: Duration = Duration::from_secs(1);
/// The delay after clients were active: of a measurement in the background, and of a requested one.
const RETRY_DELAY: Duration = Duration::from_secs(5);
const REQUESTED_RETRY_DELAY: Duration = Duration::from_millis(20);
/// The timeout of a requested measurement.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long closing a disk waits for a read of it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A queued measurement.
struct Job {
    volume: Weak<Volume>,
    due: Instant,
    /// The deadline of the request for it, if it was requested.
    requested_until: Option<Instant>,
    probing: Probing,
}

impl Job {
    fn is_requested(&self, now: Instant) -> bool {
        self.requested_until.is_some_and(|until| now < until)
    }
}

/// The result of an attempt to measure.
enum Outcome {
    Completed(Result<SplitCost, CalibrationFailure>),
    /// The volume is not idle.
    Later,
    /// The volume is being removed, or its threshold was set.
    Unwanted,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Job>,
    /// Until then only requested measurements begin, as volumes are being added.
    quiet_until: Option<Instant>,
    /// The volume being measured.
    current: Option<Weak<Volume>>,
    /// The volumes whose disks the calibrator keeps open, one entry per reference: of a reading
    /// thread, possibly an abandoned one, or of the end of a measurement.
    open: Vec<Weak<Volume>>,
    has_thread: bool,
    is_closed: bool,
}

impl Queue {
    /// The position of the next measurement, and when it may begin: requested ones come first among
    /// those that are due.
    fn next(&self, now: Instant) -> Option<(usize, Instant)> {
        let jobs = self.waiting.iter().enumerate().map(|(at, job)| {
            let is_requested = job.is_requested(now);
            let quiet_until = self.quiet_until.filter(|_| !is_requested);
            (at, job.due.max(quiet_until.unwrap_or(job.due)), is_requested)
        });
        let next = jobs.min_by_key(|&(_, due, is_requested)| (due.max(now), !is_requested, due));
        next.map(|(at, due, _)| (at, due))
    }

    /// Whether the calibrator keeps open the disk of this volume, or of any.
    fn has_disk_of(&self, volume: Option<&Arc<Volume>>) -> bool {
        let mut open = self.current.iter().chain(&self.open);
        open.any(|other| volume.is_none_or(|volume| is_same(other, volume)))
    }
}

fn is_same(other: &Weak<Volume>, volume: &Arc<Volume>) -> bool {
    std::ptr::eq(other.as_ptr(), Arc::as_ptr(volume))
}

/// Queues and runs the measurements. See the module.
pub(crate) struct Calibrator {
    queue: Lock<Queue, { order::CALIBRATIONS }>,
    /// Notified of every change of the queue.
    changed: LazyCondvar,
    shared: Weak<Shared>,
}

impl Calibrator {
    pub(crate) fn new(shared: &Arc<Shared>) -> Arc<Self> {
        let (queue, changed) = (Lock::default(), LazyCondvar::default());
        Arc::new(Self { queue, changed, shared: Arc::downgrade(shared) })
    }

    fn queue(&self) -> Locked<'_, Queue> {
        self.queue.lock()
    }

    fn wait<'a>(&self, queue: Locked<'a, Queue>, time: Duration) -> Locked<'a, Queue> {
        self.changed.wait_timeout(queue, time)
    }

    /// Queues a measurement of a volume's disk, unless it was measured or its threshold is set.
    pub(crate) fn schedule(self: &Arc<Self>, volume: &Arc<Volume>) {
        if volume.gather.needs_measurement() {
            let due = Instant::now() + INITIAL_DELAY;
            self.queue().quiet_until = Some(due);
            self.enqueue(volume, due, None);
        }
    }

    fn enqueue(self: &Arc<Self>, volume: &Arc<Volume>, due: Instant, until: Option<Instant>) {
        let mut queue = self.queue();
        volume.gather.begin_measurement();
        if let Some(job) = queue.waiting.iter_mut().find(|job| is_same(&job.volume, volume)) {
            (job.requested_until, job.due) = (job.requested_until.max(until), job.due.min(due));
        } else if !queue.current.as_ref().is_some_and(|current| is_same(current, volume)) {
            // Each measurement reads at other offsets, because those of the last one may be in the
            // disk's cache.
            let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
            let disk_bytes = volume.backend.description().size_bytes();
            let probing = Probing::new(disk_bytes, seed as u64);
            let (volume, requested_until) = (Arc::downgrade(volume), until);
            queue.waiting.push(Job { volume, due, requested_until, probing });
        }
        if queue.is_closed || queue.has_thread {
            self.changed.notify_all();
            return;
        }
        queue.has_thread = true;
        drop(queue);
        let calibrator = Arc::clone(self);
        if let Err(error) = Thread::named("calibrate").spawn(move || calibrator.run()) {
            tracing::warn!(%error, "calibration unavailable, cannot start its thread");
            self.queue().has_thread = false;
        }
    }

    /// The calibration thread: measures until the queue is empty.
    fn run(self: &Arc<Self>) {
        while let Some(mut job) = self.next_job() {
            let outcome = self.measure(&mut job);
            self.end(job, outcome);
        }
    }

    /// Waits until a job is due.
    fn next_job(&self) -> Option<Job> {
        let mut queue = self.queue();
        loop {
            let now = Instant::now();
            let next = queue.next(now).filter(|_| !queue.is_closed && self.is_needed());
            let Some((at, due)) = next else {
                queue.has_thread = false;
                self.changed.notify_all();
                return None;
            };
            if due > now {
                queue = self.wait(queue, due - now);
                continue;
            }
            let job = queue.waiting.remove(at);
            assert!(queue.current.is_none(), "one disk is measured at a time");
            queue.current = Some(job.volume.clone());
            return Some(job);
        }
    }

    /// Whether the runtime still exists.
    fn is_needed(&self) -> bool {
        self.shared.strong_count() > 0
    }

    /// Runs a measurement as long as the volume is idle.
    fn measure(self: &Arc<Self>, job: &mut Job) -> Outcome {
        let Some(volume) = job.volume.upgrade() else { return Outcome::Unwanted };
        if self.queue().open.iter().any(|other| is_same(other, &volume)) {
            return Outcome::Completed(Err(CalibrationFailure::Hanging));
        }
        // Checked before a thread is started.
        if let Some(outcome) = self.obstacle(job, &volume) {
            return outcome;
        }
        let reader = match self.start_reader(&volume) {
            Ok(reader) => reader,
            Err(error) => {
                tracing::warn!(volume = %volume.name, %error, "cannot start a calibration read");
                return Outcome::Completed(Err(CalibrationFailure::NoThread));
            }
        };
        let outcome = self.probe(job, &volume, &reader);
        if !matches!(outcome, Outcome::Completed(Err(CalibrationFailure::Slow { .. }))) {
            reader.join();
        }
        outcome
    }

    /// The outcome if the disk must not be read now.
    fn obstacle(&self, job: &Job, volume: &Volume) -> Option<Outcome> {
        let is_needless = volume.gather.is_set() && !job.is_requested(Instant::now());
        if is_needless || volume.is_closed.load(Ordering::SeqCst) {
            return Some(Outcome::Unwanted);
        }
        (!self.is_idle(volume)).then_some(Outcome::Later)
    }

    fn probe(&self, job: &mut Job, volume: &Volume, reader: &Reader) -> Outcome {
        loop {
            if let Some(outcome) = self.obstacle(job, volume) {
                return outcome;
            }
            let Some(range) = job.probing.next_read() else {
                return Outcome::Completed(job.probing.cost().map_err(Into::into));
            };
            match reader.read(range) {
                Ok(took) => job.probing.record_read(range.len, took.as_nanos() as u64),
                Err(failure) => return Outcome::Completed(Err(failure)),
            }
        }
    }

    /// Starts a thread that reads from a disk, and keeps the disk open until it ends.
    fn start_reader(self: &Arc<Self>, volume: &Arc<Volume>) -> io::Result<Reader> {
        let weak = Arc::downgrade(volume);
        self.queue().open.push(weak.clone());
        let (calibrator, open) = (Arc::clone(self), weak.clone());
        let started = Reader::start(Arc::clone(volume), move || calibrator.release(&open));
        if started.is_err() {
            self.release(&weak);
        }
        started
    }

    /// Releases a disk.
    fn release(&self, volume: &Weak<Volume>) {
        let mut queue = self.queue();
        let at = queue.open.iter().position(|other| other.ptr_eq(volume));
        queue.open.swap_remove(at.expect("a disk is released once, after it was opened"));
        drop(queue);
        self.changed.notify_all();
    }

    /// Whether the volume is idle: no request or I/O is in flight, none of its reads was recent,
    /// and no request waits for memory.
    fn is_idle(&self, volume: &Volume) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        let now_ms = shared.started.elapsed().as_millis() as u64;
        if shared.stopping.load(Ordering::Relaxed)
            || volume.power.is_halted()
            || shared.budget.has_waiters()
            || volume.disk.reads.is_reading(now_ms)
        {
            return false;
        }
        let id = volume.id;
        for shard in 0..shared.shards.len() {
            let shard = shared.shard(shard);
            if !shard.has_volume(id) || shard.volume(id).operations() > 0 {
                return false;
            }
        }
        let (sender, counts) = mpsc::channel();
        for inbox in &shared.inboxes {
            let sender = sender.clone();
            inbox.post(Message::Task(Box::new(move |tasks| {
                let _ = sender.send(tasks.requests(id));
            })));
        }
        drop(sender);
        // A worker that has stopped does not reply; the runtime is stopping then.
        let counts: Vec<usize> = counts.iter().collect();
        counts.len() == shared.inboxes.len() && counts.iter().all(|&count| count == 0)
    }

    /// Stores the result of a measurement, or queues it again.
    fn end(&self, mut job: Job, outcome: Outcome) {
        let is_later = matches!(outcome, Outcome::Later);
        let new = if let Outcome::Completed(Ok(cost)) = outcome { Some(cost) } else { None };
        let weak = job.volume.clone();
        let volume = weak.upgrade();
        let on_measured = volume.as_ref().and_then(|volume| volume.gather.on_measured());
        let mut queue = self.queue();
        if let Some(volume) = &volume {
            store_result(volume, &job.probing, outcome);
        }
        // The removal of a volume waits until this reference to its disk is dropped, too.
        let current = queue.current.take();
        assert!(current.is_some_and(|current| current.ptr_eq(&weak)), "it was being measured");
        queue.open.push(weak.clone());
        if is_later {
            let is_requested = job.is_requested(Instant::now());
            let delay = if is_requested { REQUESTED_RETRY_DELAY } else { RETRY_DELAY };
            job.due = Instant::now() + delay;
            queue.waiting.push(job);
        }
        drop(queue);
        drop(volume);
        self.release(&weak);
        // After the disk was released, as the receiver may take long.
        if let Some((on_measured, cost)) = on_measured.zip(new) {
            on_measured(cost);
        }
    }

    /// Measures the disk of a volume now, and waits for the result.
    pub(super) fn measure_now(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
    ) -> Result<SplitCost, VolumeError> {
        let before = volume.gather.completed();
        let now = Instant::now();
        let until = now + REQUEST_TIMEOUT;
        self.enqueue(volume, now, Some(until));
        let mut queue = self.queue();
        while volume.gather.completed() == before {
            let left = until.saturating_duration_since(Instant::now());
            if queue.is_closed || self.shared.strong_count() == 0 {
                return Err(VolumeError::Stopping);
            }
            if left.is_zero() {
                return Err(CalibrateError::Busy(volume.name.clone()).into());
            }
            queue = self.wait(queue, left);
        }
        drop(queue);
        let GatherStatus { calibration, measured, .. } = volume.gather.status();
        let name = volume.name.clone();
        match (calibration, measured) {
            (Calibration::Done, Some(cost)) => Ok(cost),
            (Calibration::Failed(failure), _) => {
                Err(CalibrateError::Failed { name, failure }.into())
            }
            _ if volume.is_closed.load(Ordering::SeqCst) => Err(VolumeError::Leaving(name)),
            _ => Err(CalibrateError::Busy(name).into()),
        }
    }

    /// Waits until the disk of a volume that is being removed is no longer read, or until a
    /// timeout.
    pub(crate) fn wait_until_free(&self, volume: &Arc<Volume>) {
        self.wait_while(|queue| queue.has_disk_of(Some(volume)));
    }

    /// Ends all measurements, and waits until the last result is delivered, or until a timeout.
    pub(crate) fn close(&self) {
        self.queue().is_closed = true;
        self.changed.notify_all();
        self.wait_while(|queue| queue.has_thread || queue.has_disk_of(None));
    }

    fn wait_while(&self, is_busy: impl Fn(&Queue) -> bool) {
        let begun = Instant::now();
        let mut queue = self.queue();
        while is_busy(&queue) && begun.elapsed() < CLOSE_TIMEOUT {
            queue = self.wait(queue, CLOSE_TIMEOUT / 50);
        }
    }
}

/// Ends the measurement of a volume, unless it is continued later.
fn store_result(volume: &Volume, probing: &Probing, outcome: Outcome) {
    let name = &volume.name;
    let result = match outcome {
        Outcome::Later => return,
        Outcome::Unwanted => None,
        Outcome::Completed(result) => Some(result),
    };
    match &result {
        None => {}
        Some(Ok(cost)) => {
            volume.streams.lock().set_split_cost(cost);
            tracing::info!(
                volume = %name,
                split_cost_us = cost.fixed_us().round(),
                below = %Size(cost.threshold_bytes),
                reads = probing.reads(),
                "calibrated the write-split cost"
            );
        }
        Some(Err(failure)) => {
            tracing::info!(volume = %name, error = %failure, "calibration failed");
        }
    }
    volume.gather.end_measurement(result);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_measurements_come_first_and_others_wait_for_additions() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let job = |due, requested_until| Job {
            volume: Weak::new(),
            due,
            requested_until,
            probing: Probing::new(1 << 30, 1),
        };
        let mut queue = Queue::default();
        assert_eq!(queue.next(now), None);
        queue.waiting = vec![job(at(3), None), job(at(1), None)];
        assert_eq!(queue.next(now), Some((1, at(1))));
        assert_eq!(queue.next(at(3)), Some((1, at(1))));
        queue.quiet_until = Some(at(5));
        assert_eq!(queue.next(at(3)).map(|(_, due)| due), Some(at(5)), "volumes are being added");
        queue.waiting.push(job(at(2), Some(at(9))));
        assert_eq!(queue.next(now), Some((2, at(2))));
        assert_eq!(queue.next(at(6)), Some((2, at(2))), "all are due");
        assert_ne!(queue.next(at(9)).map(|(at, _)| at), Some(2), "the request has timed out");
    }
}
