//! What splitting a write costs on a volume's disk, measured beside the path.
//!
//! A thread that lives while anything waits to be measured reads from one disk at a time, and one
//! range at a time: two disks may be files on a third. It goes straight to the backend, so nothing
//! of it is in the pool, in a counter of the volume, or in what is known of the disk's health: an
//! error ends the measurement, and nothing else. Which reads are made says
//! [`forebay_policy::Probing`].
//!
//! Clients come first. Before each read is asked whether anything of the volume is under way, and
//! if so the rest is left for later, with what is known by then. A request that comes during a read
//! waits behind that one at most.
//!
//! Another thread does the reads of a disk, and lives as long as they last: what it waits for, and
//! how long, is the disk alone. Who closes the disk waits for it. Where a read takes too long it is
//! left behind, and keeps the disk open until there is an answer: the price of memory that the disk
//! may still write to. No other read is begun on that disk before.

use crate::error::VolumeError;
use crate::locks::{LazyCondvar, Lock, Locked, order};
use crate::memory::Memory;
use crate::server::Runtime;
use crate::shared::{Message, Shared, Volume};
use forebay_backend::Blocking;
use forebay_policy::{Probing, READ_BYTES_MAX, SplitCost, ThresholdSource, Unclear, gather_below};
use forebay_types::{ByteRange, IoError, IoResult, Size};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a volume that was just added is left alone: whoever adds one is about to use it.
const FIRST_AFTER: Duration = Duration::from_secs(1);
/// When it is tried again after clients were in the way, and when somebody waits for it.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// How long one read may take.
const READ_PATIENCE: Duration = Duration::from_secs(1);
/// How long who asks for a measurement waits for it.
const ASKED_PATIENCE: Duration = Duration::from_secs(10);
/// How long who closes a disk waits for a read of it.
const LET_GO_PATIENCE: Duration = Duration::from_secs(5);

/// Why a disk could not be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationFailure {
    /// The disk has failed a read.
    #[error("I/O error at byte {offset} of its disk ({error})")]
    Io {
        /// Where.
        offset: u64,
        /// What the disk says.
        error: IoError,
    },
    /// The disk has not answered in time.
    #[error("its disk took more than a second for the read at byte {offset}")]
    Slow {
        /// Where.
        offset: u64,
    },
    /// The disk still has not answered.
    #[error("its disk has not answered a read of the last measurement")]
    Hanging,
    /// There is no thread for it.
    #[error("no thread can be started to read its disk")]
    NoThread,
    /// The times say nothing.
    #[error(transparent)]
    Unclear(#[from] Unclear),
}

/// Why a volume is not measured although somebody has asked for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// It can't be.
    #[error("volume '{name}' is not measured, and is served as before")]
    Failed {
        /// The volume.
        name: String,
        /// Why.
        #[source]
        failure: CalibrationFailure,
    },
    /// Clients have left it no moment.
    #[error(
        "volume '{0}' is not measured: its clients leave its disk no moment; it will be when they \
         do"
    )]
    Busy(String),
}

/// How the measurement of a disk stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calibration {
    /// Nobody needs it, as the operator says what is to be gathered.
    Unwanted,
    /// It waits for a moment without requests, or is under way.
    Waiting,
    /// It went well.
    Done,
    /// It did not, and is not tried again unless somebody asks for it.
    Failed(CalibrationFailure),
}

/// Which writes of a volume are worth gathering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherStatus {
    /// Those below this size, in bytes; none if it is zero.
    pub below_bytes: u64,
    /// Who says so.
    pub source: ThresholdSource,
    /// What was measured last, where anything was.
    pub measured: Option<SplitCost>,
    /// How the measurement stands.
    pub calibration: Calibration,
}

/// Which writes of a volume are worth gathering, and what is known of that.
pub(crate) struct Gather(Lock<GatherState>);

struct GatherState {
    /// What the operator says.
    set: Option<u64>,
    measured: Option<SplitCost>,
    calibration: Calibration,
    /// How many measurements have ended.
    ended: u64,
}

impl Gather {
    pub(crate) fn new(set: Option<u64>) -> Self {
        let calibration = Calibration::Unwanted;
        Self(Lock::new(GatherState { set, measured: None, calibration, ended: 0 }))
    }

    pub(crate) fn status(&self) -> GatherStatus {
        let state = self.0.lock();
        let (below_bytes, source) = gather_below(state.set, state.measured.as_ref());
        let GatherState { measured, calibration, .. } = *state;
        GatherStatus { below_bytes, source, measured, calibration }
    }

    /// Takes what the operator says. Says whether he has left it to the disk just now.
    pub(crate) fn set(&self, set: Option<u64>) -> bool {
        let old = std::mem::replace(&mut self.0.lock().set, set);
        old.is_some() && set.is_none()
    }

    fn is_set(&self) -> bool {
        self.0.lock().set.is_some()
    }

    /// Whether it is to be measured, and was not yet.
    fn is_open(&self) -> bool {
        let state = self.0.lock();
        state.set.is_none() && state.measured.is_none()
    }

    fn ended(&self) -> u64 {
        self.0.lock().ended
    }
}

/// A measurement that is not over.
struct Job {
    volume: Weak<Volume>,
    due: Instant,
    /// Until when somebody waits for it.
    asked_until: Option<Instant>,
    probing: Probing,
}

impl Job {
    fn is_asked(&self, now: Instant) -> bool {
        self.asked_until.is_some_and(|until| now < until)
    }
}

/// How a measurement goes on.
enum Outcome {
    Ended(Result<SplitCost, CalibrationFailure>),
    /// Clients are in the way.
    Later,
    /// The volume is going, or is told what to gather.
    Unwanted,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Job>,
    /// Whose disk is being read.
    current: Option<Weak<Volume>>,
    /// Whose disks somebody here has: to read, to wait for a read that was given up, to let go.
    held: Vec<Weak<Volume>>,
    has_thread: bool,
    is_closed: bool,
}

impl Queue {
    /// Whether the disk of this volume, or any, is in somebody's hands here.
    fn has_disk_of(&self, volume: Option<&Arc<Volume>>) -> bool {
        let mut held = self.current.iter().chain(&self.held);
        held.any(|other| volume.is_none_or(|volume| is_same(other, volume)))
    }
}

fn is_same(other: &Weak<Volume>, volume: &Arc<Volume>) -> bool {
    std::ptr::eq(other.as_ptr(), Arc::as_ptr(volume))
}

/// Who measures disks. See the module.
pub(crate) struct Calibrator {
    queue: Lock<Queue, { order::CALIBRATIONS }>,
    /// Rung with every change of the queue.
    bell: LazyCondvar,
    shared: Weak<Shared>,
}

impl Calibrator {
    pub(crate) fn new(shared: &Arc<Shared>) -> Arc<Self> {
        let (queue, bell) = (Lock::default(), LazyCondvar::default());
        Arc::new(Self { queue, bell, shared: Arc::downgrade(shared) })
    }

    fn queue(&self) -> Locked<'_, Queue> {
        self.queue.lock()
    }

    fn wait<'a>(&self, queue: Locked<'a, Queue>, time: Duration) -> Locked<'a, Queue> {
        self.bell.wait_timeout(queue, time)
    }

    /// Has the disk of a volume measured soon, unless it was, or the operator says what is to be
    /// gathered.
    pub(crate) fn want(self: &Arc<Self>, volume: &Arc<Volume>) {
        if volume.gather.is_open() {
            self.enqueue(volume, Instant::now() + FIRST_AFTER, None);
        }
    }

    fn enqueue(self: &Arc<Self>, volume: &Arc<Volume>, due: Instant, asked_until: Option<Instant>) {
        let mut queue = self.queue();
        volume.gather.0.lock().calibration = Calibration::Waiting;
        if let Some(job) = queue.waiting.iter_mut().find(|job| is_same(&job.volume, volume)) {
            (job.asked_until, job.due) = (job.asked_until.max(asked_until), job.due.min(due));
        } else if !queue.current.as_ref().is_some_and(|current| is_same(current, volume)) {
            // Other places each time: those of the last one may be in a cache of the disk.
            let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
            let disk_bytes = volume.backend.description().size_bytes;
            let probing = Probing::new(disk_bytes, seed as u64);
            queue.waiting.push(Job { volume: Arc::downgrade(volume), due, asked_until, probing });
        }
        if queue.is_closed || queue.has_thread {
            self.bell.notify_all();
            return;
        }
        queue.has_thread = true;
        drop(queue);
        let theirs = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("calibrate".into());
        if let Err(error) = spawned.spawn(move || theirs.run()) {
            tracing::warn!("nobody can measure disks: {error}");
            self.queue().has_thread = false;
        }
    }

    /// Measures until nothing waits.
    fn run(self: &Arc<Self>) {
        while let Some(mut job) = self.next_job() {
            let outcome = self.measure(&mut job);
            self.end(job, outcome);
        }
    }

    /// Waits for what is due next.
    fn next_job(&self) -> Option<Job> {
        let mut queue = self.queue();
        loop {
            let now = Instant::now();
            let soonest = queue.waiting.iter().map(|job| job.due).min();
            let Some(soonest) = soonest.filter(|_| !queue.is_closed && self.is_needed()) else {
                queue.has_thread = false;
                return None;
            };
            if soonest > now {
                queue = self.wait(queue, soonest - now);
                continue;
            }
            // Those that somebody waits for go first, and all that are not due go last.
            queue.waiting.sort_by_key(|job| (job.due > now, !job.is_asked(now), job.due));
            let job = queue.waiting.remove(0);
            queue.current = Some(job.volume.clone());
            return Some(job);
        }
    }

    /// Whether the runtime is still there.
    fn is_needed(&self) -> bool {
        self.shared.strong_count() > 0
    }

    /// Reads as long as there is anything to read and nobody else wants to.
    fn measure(self: &Arc<Self>, job: &mut Job) -> Outcome {
        let Some(volume) = job.volume.upgrade() else { return Outcome::Unwanted };
        if self.queue().held.iter().any(|other| is_same(other, &volume)) {
            return Outcome::Ended(Err(CalibrationFailure::Hanging));
        }
        // Threads and memory are not taken for nothing.
        if let Some(outcome) = self.obstacle(job, &volume) {
            return outcome;
        }
        let reader = match self.start_reader(&volume) {
            Ok(reader) => reader,
            Err(error) => {
                tracing::warn!("volume '{}': nobody can read its disk: {error}", volume.name);
                return Outcome::Ended(Err(CalibrationFailure::NoThread));
            }
        };
        let outcome = self.probe(job, &volume, &reader);
        if !matches!(outcome, Outcome::Ended(Err(CalibrationFailure::Slow { .. }))) {
            reader.end();
        }
        outcome
    }

    /// Why nothing is to be read now, if so.
    fn obstacle(&self, job: &Job, volume: &Volume) -> Option<Outcome> {
        let is_told = volume.gather.is_set() && !job.is_asked(Instant::now());
        if is_told || volume.leaving.load(Ordering::SeqCst) {
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
                return Outcome::Ended(job.probing.cost().map_err(Into::into));
            };
            match reader.read(range) {
                Ok(took) => job.probing.took(range.len, took.as_nanos() as u64),
                Err(failure) => return Outcome::Ended(Err(failure)),
            }
        }
    }

    /// Starts a thread that reads from a disk, and has the disk in its hands until it ends.
    fn start_reader(self: &Arc<Self>, volume: &Arc<Volume>) -> io::Result<Reader> {
        let (tell, wanted) = mpsc::channel::<ByteRange>();
        let (answer, told) = mpsc::channel();
        let (theirs, volume) = (Arc::clone(self), Arc::clone(volume));
        let weak = Arc::downgrade(&volume);
        self.queue().held.push(weak.clone());
        let work = move || {
            // A mapping of its own, which goes back to the system with the thread.
            let mut memory = Memory::new(READ_BYTES_MAX as usize);
            // No read is to pay for the first touch of it.
            memory.bytes_mut().fill(1);
            for range in wanted {
                let begun = Instant::now();
                let bytes = &mut memory.bytes_mut()[..range.len as usize];
                let result = Blocking::new(&*volume.backend).read(range.offset, bytes);
                if answer.send((begun.elapsed(), result)).is_err() {
                    break;
                }
            }
            let weak = Arc::downgrade(&volume);
            drop((memory, volume));
            theirs.let_go_of(&weak);
        };
        match std::thread::Builder::new().name("calibrate-read".into()).spawn(work) {
            Ok(thread) => Ok(Reader { tell, told, thread }),
            Err(error) => {
                self.let_go_of(&weak);
                Err(error)
            }
        }
    }

    /// A disk is in these hands no longer.
    fn let_go_of(&self, volume: &Weak<Volume>) {
        let mut queue = self.queue();
        if let Some(at) = queue.held.iter().position(|other| other.ptr_eq(volume)) {
            queue.held.swap_remove(at);
        }
        drop(queue);
        self.bell.notify_all();
    }

    /// Whether nothing of the volume is under way: no request, no I/O, no read a moment ago. And
    /// nobody waits for memory.
    fn is_idle(&self, volume: &Volume) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        let now_ms = shared.started.elapsed().as_millis() as u64;
        if shared.stopping.load(Ordering::Relaxed)
            || volume.power.is_halted()
            || shared.budget.is_wanted()
            || volume.reads.are_on(now_ms)
        {
            return false;
        }
        let id = volume.id;
        for shard in 0..shared.shards.len() {
            let shard = shared.shard(shard);
            if !shard.has_volume(id) || shard.operations(id) > 0 {
                return false;
            }
        }
        let (tell, told) = mpsc::channel();
        for inbox in &shared.inboxes {
            let tell = tell.clone();
            inbox.post(Message::Task(Box::new(move |tasks| {
                let _ = tell.send(tasks.requests(id));
            })));
        }
        drop(tell);
        // Workers that are gone say nothing, and then nothing is to be read any more.
        let counts: Vec<usize> = told.iter().collect();
        counts.len() == shared.inboxes.len() && counts.iter().all(|&count| count == 0)
    }

    /// Writes down what came of it, or puts it back.
    fn end(&self, mut job: Job, outcome: Outcome) {
        let is_later = matches!(outcome, Outcome::Later);
        let weak = job.volume.clone();
        let volume = weak.upgrade();
        let mut queue = self.queue();
        if let Some(volume) = &volume {
            conclude(volume, &job.probing, outcome);
        }
        // Who takes the volume away waits until the disk can be closed.
        queue.current = None;
        queue.held.push(weak.clone());
        if is_later {
            let after = if job.is_asked(Instant::now()) { ASKED_AGAIN_AFTER } else { AGAIN_AFTER };
            job.due = Instant::now() + after;
            queue.waiting.push(job);
        }
        drop(queue);
        drop(volume);
        self.let_go_of(&weak);
    }

    /// Has the disk of a volume measured now, and waits for that.
    fn measure_now(self: &Arc<Self>, volume: &Arc<Volume>) -> Result<SplitCost, VolumeError> {
        let before = volume.gather.ended();
        let now = Instant::now();
        let until = now + ASKED_PATIENCE;
        self.enqueue(volume, now, Some(until));
        let mut queue = self.queue();
        while volume.gather.ended() == before {
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
            _ if volume.leaving.load(Ordering::SeqCst) => Err(VolumeError::Leaving(name)),
            _ => Err(CalibrateError::Busy(name).into()),
        }
    }

    /// Waits until nobody reads the disk of this volume, which is leaving, for as long as a disk
    /// that is well may take.
    pub(crate) fn wait_until_free(&self, volume: &Arc<Volume>) {
        self.wait_for_reads(Some(volume));
    }

    /// Ends all measurements.
    pub(crate) fn close(&self) {
        self.queue().is_closed = true;
        self.bell.notify_all();
        self.wait_for_reads(None);
    }

    fn wait_for_reads(&self, volume: Option<&Arc<Volume>>) {
        let begun = Instant::now();
        let mut queue = self.queue();
        while queue.has_disk_of(volume) && begun.elapsed() < LET_GO_PATIENCE {
            queue = self.wait(queue, LET_GO_PATIENCE / 50);
        }
    }
}

/// A thread that reads from a disk, so that nobody hangs with it.
struct Reader {
    tell: mpsc::Sender<ByteRange>,
    told: mpsc::Receiver<(Duration, IoResult)>,
    thread: JoinHandle<()>,
}

impl Reader {
    /// How long a read takes.
    fn read(&self, range: ByteRange) -> Result<Duration, CalibrationFailure> {
        let offset = range.offset;
        let _ = self.tell.send(range);
        match self.told.recv_timeout(READ_PATIENCE) {
            Ok((took, Ok(()))) => Ok(took),
            Ok((_, Err(error))) => Err(CalibrationFailure::Io { offset, error }),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(CalibrationFailure::Slow { offset }),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(CalibrationFailure::Io { offset, error: IoError::Io })
            }
        }
    }

    /// Waits for the thread, which has nothing to read.
    fn end(self) {
        drop(self.tell);
        let _ = self.thread.join();
    }
}

/// Writes down what came of a measurement.
fn conclude(volume: &Volume, probing: &Probing, outcome: Outcome) {
    let name = &volume.name;
    let mut state = volume.gather.0.lock();
    state.calibration = match outcome {
        Outcome::Later => return,
        Outcome::Unwanted => Calibration::Unwanted,
        Outcome::Ended(Ok(cost)) => {
            state.measured = Some(cost);
            tracing::info!(
                "volume '{name}': splitting a write below {} costs {} us each time, say {} reads",
                Size(cost.threshold_bytes),
                cost.fixed_us().round(),
                probing.reads(),
            );
            Calibration::Done
        }
        Outcome::Ended(Err(failure)) => {
            tracing::info!("volume '{name}': what splitting a write costs is not known: {failure}");
            Calibration::Failed(failure)
        }
    };
    state.ended += 1;
}

impl Runtime {
    /// Measures what splitting a write costs on a volume's disk, with some reads. Waits for a
    /// moment without requests, but no longer than ten seconds.
    ///
    /// # Errors
    /// When there is no such volume, its clients leave no moment, or its disk can't be measured:
    /// it is served as before.
    pub fn calibrate_volume(&self, name: &str) -> Result<SplitCost, VolumeError> {
        let volume = self.named(name)?;
        if volume.leaving.load(Ordering::SeqCst) {
            return Err(VolumeError::Leaving(name.to_owned()));
        }
        self.calibrator.measure_now(&volume)
    }
}
