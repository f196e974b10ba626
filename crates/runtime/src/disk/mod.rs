//! The I/Os that disks have not answered yet, for any thread that asks.
//!
//! Each worker records the start and the end of its I/Os under a lock of its own, which is held for
//! no system call and no wait. So the thread that looks for a disk that does not answer waits
//! neither for a disk nor for a worker, and a request that is served from memory pays nothing.

mod error_log;
mod errors;
mod identity;
mod presence;
mod reads;

pub(crate) use error_log::ErrorLog;
pub(crate) use errors::DiskErrors;
pub use identity::examine_disk;
pub(crate) use identity::{DiskTrust, KeptSamples, examine, hardware, places_to_compare, sample};
pub(crate) use presence::{Change, Presence};
pub(crate) use reads::Reads;

use crate::platform::locks::Lock;
use crate::stats::{DiskLoad, InternalReads};
use forebay_engine::{IoCause, IoVerb};
use forebay_types::{ByteRange, VolumeId};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What is known of the disk of a volume.
#[derive(Default)]
pub(crate) struct DiskState {
    /// How busy it is.
    pub load: DiskLoad,
    pub errors: DiskErrors,
    /// Limits the log lines on I/Os that it fails.
    pub error_log: ErrorLog,
    pub reads: Reads,
    /// Whether it is where it was opened.
    pub presence: Presence,
    /// Samples of it, for the vault.
    pub samples: OnceLock<KeptSamples>,
    /// What the server reads from it for itself.
    pub internal_reads: Arc<InternalReads>,
}

/// An I/O that a disk has not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnansweredIo {
    pub volume: VolumeId,
    /// `None` for a flush.
    pub verb: Option<IoVerb>,
    pub cause: IoCause,
    pub range: ByteRange,
    pub began: Instant,
}

/// The I/Os in flight of all workers. See the module.
#[derive(Debug)]
pub(crate) struct UnansweredIos {
    /// By worker and tag.
    workers: Vec<Lock<Vec<Option<UnansweredIo>>>>,
}

/// A disk that does not answer: its oldest I/O in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskStall {
    /// `read`, `write`, `flush`, `trim` or `zero`.
    pub operation: &'static str,
    /// Why the I/O was issued.
    pub cause: IoCause,
    /// The range; `None` for a flush.
    pub range: Option<ByteRange>,
    /// How long the disk has not answered it.
    pub waited: Duration,
    /// The I/Os that have waited too long, this one included.
    pub ios: u64,
}

impl UnansweredIos {
    pub(crate) fn new(workers: usize) -> Self {
        Self { workers: (0..workers).map(|_| Lock::default()).collect() }
    }

    /// Records the start of an I/O. No other I/O of the worker in flight has this tag.
    pub(crate) fn begin(&self, worker: usize, tag: u32, io: UnansweredIo) {
        let mut ios = self.workers[worker].lock();
        let tag = tag as usize;
        if ios.len() <= tag {
            ios.resize(tag + 1, None);
        }
        assert!(ios[tag].is_none(), "a tag belongs to one I/O in flight");
        ios[tag] = Some(io);
    }

    /// Records the end of an I/O.
    pub(crate) fn end(&self, worker: usize, tag: u32) {
        let ended = self.workers[worker].lock()[tag as usize].take();
        assert!(ended.is_some(), "an I/O ends once, after it has begun");
    }

    /// The disks with an I/O in flight that began `limit` before `now` or earlier.
    pub(crate) fn stalls(&self, now: Instant, limit: Duration) -> HashMap<VolumeId, DiskStall> {
        let mut stalls: HashMap<VolumeId, DiskStall> = HashMap::new();
        for ios in &self.workers {
            for io in ios.lock().iter().flatten() {
                let waited = now.saturating_duration_since(io.began);
                if waited < limit {
                    continue;
                }
                let ios = stalls.get(&io.volume).map_or(0, |stall| stall.ios) + 1;
                let stall = stalls.entry(io.volume).or_insert_with(|| io.stall(waited));
                if waited > stall.waited {
                    *stall = io.stall(waited);
                }
                stall.ios = ios;
            }
        }
        stalls
    }
}

impl UnansweredIo {
    fn stall(&self, waited: Duration) -> DiskStall {
        let operation = operation(self.verb);
        let range = self.verb.map(|_| self.range);
        DiskStall { operation, cause: self.cause, range, waited, ios: 1 }
    }
}

/// The name of an I/O; without a verb, it is a flush.
pub(crate) const fn operation(verb: Option<IoVerb>) -> &'static str {
    match verb {
        None => "flush",
        Some(IoVerb::Read) => "read",
        Some(IoVerb::Write { .. }) => "write",
        Some(IoVerb::Discard) => "trim",
        Some(IoVerb::Zero { .. }) => "zero",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_oldest_io_of_each_disk_says_since_when_it_does_not_answer() {
        let (ios, start) = (UnansweredIos::new(2), Instant::now());
        let io = |volume, verb, at: u32| UnansweredIo {
            volume: VolumeId(volume),
            verb,
            cause: IoCause::Demand,
            range: ByteRange::new(4096, 512),
            began: start + SECOND * at,
        };
        ios.begin(0, 3, io(1, Some(IoVerb::Read), 2));
        ios.begin(1, 0, io(1, None, 1));
        ios.begin(1, 1, io(2, Some(IoVerb::Write { fua: true }), 3));
        ios.begin(0, 0, io(1, Some(IoVerb::Discard), 9));
        assert!(ios.stalls(start + SECOND * 5, SECOND * 5).is_empty());
        let stalls = ios.stalls(start + SECOND * 7, SECOND * 5);
        assert_eq!(stalls.len(), 1);
        let stall = &stalls[&VolumeId(1)];
        assert_eq!((stall.operation, stall.range, stall.ios), ("flush", None, 2));
        assert_eq!(stall.waited, SECOND * 6);
        let stalls = ios.stalls(start + SECOND * 8, SECOND * 5);
        assert_eq!(stalls[&VolumeId(2)].operation, "write");
        // The flush is answered.
        ios.end(1, 0);
        let stalls = ios.stalls(start + SECOND * 8, SECOND * 5);
        let stall = &stalls[&VolumeId(1)];
        assert_eq!((stall.operation, stall.ios, stall.waited), ("read", 1, SECOND * 6));
        ios.end(0, 3);
        assert!(!ios.stalls(start + SECOND * 8, SECOND * 5).contains_key(&VolumeId(1)));
    }
}
