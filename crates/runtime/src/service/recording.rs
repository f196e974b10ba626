//! Recordings of the requests of clients, for traces.
//!
//! While a recording is on, each worker writes every read and write that it accepts into a ring of
//! its own, and completes the entry when the request is answered. One thread reads the rings and
//! merges them in the order of arrival. A worker never waits for it: if a ring is full, requests
//! are dropped and counted. While no recording is on, a request costs two branches.
//!
//! What Forebay reads itself (preloads, calibrations, patrols) is not accepted from a client, so no
//! recording has it.

use crate::error::VolumeError;
use crate::shared::{Recorded, Recorder, Ring, Shared};
use forebay_types::{Action, Blame, Fault, Remedy};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Entries of all rings together: 8 MiB.
const SLOTS_MAX: usize = 256 << 10;
/// Entries of one ring at most: the requests of a busy worker in a tenth of a second.
const RING_SLOTS_MAX: usize = 64 << 10;
/// A request is given out this long after its arrival, so that every worker has published what
/// arrived before it. If a worker's turn takes longer, its requests may follow later ones of other
/// workers. Not longer, so that few entries are in use: see [`ring`].
const LAG: Duration = Duration::from_millis(5);
/// How long the end of a recording waits for the answers to requests in flight.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Why a recording cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Another one is on.
    #[error("another recording is in progress")]
    Busy,
    /// There is no such volume, or the runtime stops.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl Fault for RecordError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Busy => "wait until it ends".into(),
            Self::Volume(VolumeError::Unknown(_)) => Action::ListVolumes.into(),
            Self::Volume(error) => error.remedy(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::Busy => Blame::Environment,
            Self::Volume(error) => error.blame(),
        }
    }
}

/// A recording of the requests to some volumes. It ends when it is dropped.
pub struct Recording {
    shared: Arc<Shared>,
    rings: Vec<Arc<Ring>>,
    /// When [`Recording::close`] was called.
    closed: Option<Instant>,
    /// The last reading of the clock, as the time since the start of the runtime.
    now: Duration,
}

impl Recording {
    /// Begins to record the requests to these volumes, in this order. When a volume is removed,
    /// nothing more is recorded under its name, even if another volume of that name is added.
    pub(crate) fn start(shared: &Arc<Shared>, names: &[String]) -> Result<Self, RecordError> {
        let volumes: Result<Vec<_>, _> = names
            .iter()
            .map(|name| shared.volumes.named(name).map_err(VolumeError::from))
            .collect();
        // A recording must not keep the disk of a removed volume open.
        let volumes: Arc<[_]> = volumes?.iter().map(Arc::downgrade).collect();
        if shared.is_recording.swap(true, Ordering::Relaxed) {
            return Err(RecordError::Busy);
        }
        let workers = shared.inboxes.len();
        let slots = (SLOTS_MAX / workers).min(RING_SLOTS_MAX);
        let rings = (0..workers).map(|_| Arc::new(Ring::new(slots))).collect();
        let recording =
            Self { shared: Arc::clone(shared), rings, closed: None, now: Duration::ZERO };
        for (worker, ring) in recording.rings.iter().enumerate() {
            let recorder = Recorder::new(Arc::clone(ring), Arc::clone(&volumes), shared.started);
            shared
                .run_on(worker, move |tasks| *tasks.recorder() = Some(Box::new(recorder)))
                .map_err(VolumeError::from)?;
        }
        Ok(recording)
    }

    /// Takes the next request in the order of arrival. `None` if there is none at the moment: the
    /// next one may have to wait for its answer.
    pub fn next_request(&mut self) -> Option<Recorded> {
        let next = self.rings.iter().filter_map(|ring| Some((ring.first_arrived()?, ring)));
        let (arrived, ring) = next.min_by_key(|(arrived, _)| *arrived)?;
        let until = arrived + LAG;
        // The clock is read when the last reading does not suffice, not for each request.
        if self.now < until {
            self.now = self.shared.started.elapsed();
        }
        let is_settled = ring.is_first_answered() && until <= self.now;
        // An unanswered request must not hold up the others until their rings are full.
        let is_over = || self.closed.is_some_and(|closed| closed.elapsed() >= ANSWER_WAIT);
        if !is_settled && !is_over() && !self.rings.iter().any(|ring| ring.is_half_full()) {
            return None;
        }
        ring.take_first()
    }

    /// Ends the recording of further requests. [`Recording::next_request`] goes on until
    /// [`Recording::is_drained`].
    pub fn close(&mut self) {
        if self.closed.is_none() {
            self.closed = Some(Instant::now());
            // This fails only if the workers have ended, and then nothing is recorded any more.
            let _ = self.shared.run_on_all(|tasks| {
                if let Some(recorder) = tasks.recorder() {
                    recorder.close();
                }
            });
        }
    }

    /// Whether the recording is closed and every request was taken.
    pub fn is_drained(&self) -> bool {
        self.closed.is_some() && self.rings.iter().all(|ring| ring.first_arrived().is_none())
    }

    /// Whether the runtime is stopping, so that no further requests will arrive.
    pub fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Relaxed)
    }

    /// Requests that are missing because a ring was full.
    pub fn dropped(&self) -> u64 {
        self.rings.iter().map(|ring| ring.dropped()).sum()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.shared.run_on_all(|tasks| *tasks.recorder() = None);
        self.shared.is_recording.store(false, Ordering::Relaxed);
    }
}
