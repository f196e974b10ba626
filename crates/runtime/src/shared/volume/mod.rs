//! A volume, as the workers share it.

mod extents;
mod flush_gate;
mod gather;
mod govern;
mod learn;
mod limits;
mod pins;
mod slow;
mod warm;

pub(crate) use extents::{DirtyRanges, ExtentQueries, PendingQuery};
pub(crate) use flush_gate::{FLUSH_FAILED, FlushGate, FlushNeed};
pub(crate) use gather::Gather;
pub use gather::{CalibrateError, Calibration, CalibrationFailure, GatherStatus, OnMeasured};
pub(crate) use govern::{Govern, limits_of};
pub use learn::{ForecastScore, ForecastStatus, LearnState, LearnStatus};
pub(crate) use learn::{Learn, Need};
pub(crate) use limits::VolumeLimits;
pub use pins::{PinError, PinStatus};
pub(crate) use pins::{Pins, VolumePins};
pub(crate) use slow::SlowVolume;
pub use slow::{SlowRequest, SlowWait, VolumeSlow, WaitingRequest, WaitingRequests};
pub(crate) use warm::Warm;
pub use warm::{WarmUpState, WarmUpStatus};

use crate::disk::DiskState;
use crate::journal::Journal;
use crate::platform::locks::{Lock, SharedLock};
use crate::stats::{RequestCounters, WorkerStats, add_up_counters};
use forebay_backend::Backend;
use forebay_frontend::VolumeInfo;
use forebay_journal::Freshness;
use forebay_protect::VolumePower;
use forebay_types::{ByteRange, DiskGeometry, Durability, Stripes, VolumeConfig, VolumeId};
use forebay_volume::{BlockOwners, EpochOrder, Streams};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A volume, as the workers share it.
pub(crate) struct Volume {
    pub id: VolumeId,
    pub name: String,
    /// A checksum of its name and its backing, which tells it from another volume of the same name.
    pub identity: [u8; 32],
    /// Its description for clients.
    pub info: SharedLock<VolumeInfo>,
    pub backend: Arc<dyn Backend>,
    pub streams: Lock<Streams>,
    /// Its settings. What is needed for each request is beside them.
    pub config: SharedLock<VolumeConfig>,
    /// The assumed geometry of the disk.
    pub geometry: DiskGeometry,
    /// The division into regions: of the geometry, or of the adopted pool if it has the volume.
    pub stripes: Stripes,
    /// The gather threshold.
    pub gather: Gather,
    /// The governor of its writeback.
    pub govern: Govern,
    /// Whether writes are refused. Clients that entered earlier may have seen it as writable.
    pub read_only: AtomicBool,
    /// The limits of its requests.
    pub limits: VolumeLimits,
    pub flush: FlushGate,
    /// The blocks of its disk that transfers own.
    pub blocks: Lock<BlockOwners<TransferId>>,
    /// Its epochs, if it is destaged in order.
    pub order: Option<Arc<EpochOrder>>,
    /// Whether lost sectors may be restored from the journal.
    pub freshness: Freshness,
    /// The journal that records its writes.
    pub journal: JournalSlot,
    /// Its state with respect to the UPS.
    pub power: VolumePower,
    /// Its warm list and its warm-up.
    pub warm: Warm,
    /// Its pinned ranges.
    pub pins: VolumePins,
    /// What it needs at which time of the day.
    pub learn: Learn,
    /// Internal flushes in flight, including flushes whose caller has given up.
    pub internal_flushes: AtomicU64,
    pub extent_queries: ExtentQueries,
    pub disk: DiskState,
    /// Its slow requests.
    pub slow: SlowVolume,
    /// One per worker.
    pub stats: Vec<WorkerStats>,
    /// Clients that have entered the volume.
    pub connections: AtomicU64,
    /// Whether nothing of it is admitted into the pool, except pinned ranges and dirty data; for
    /// those who do not ask the shards.
    pub is_frozen: AtomicBool,
    /// Whether a share of its regions is held out.
    pub has_hold_out: AtomicBool,
    /// The volume is being added, restored or removed: new requests are refused.
    pub is_closed: AtomicBool,
    /// Its addition has failed and could not be undone. A removal tries again to undo it.
    pub half_added: AtomicBool,
    /// The operator has given up what its disk does not take: I/Os do not reach the disk any more,
    /// and a stop does not wait for those that have.
    pub given_up: AtomicBool,
    /// Its journal has failed, and it cannot continue without: its I/Os fail until it is removed.
    pub has_lost_journal: AtomicBool,
}

/// The journal of a volume, which another one may replace. Every method may be called under the
/// lock of a shard.
#[derive(Default)]
pub(crate) struct JournalSlot {
    /// For volumes without a journal, so that a request takes no lock.
    is_used: AtomicBool,
    used: SharedLock<Option<Arc<JournalUse>>>,
}

impl JournalSlot {
    pub(crate) fn new(used: Option<JournalUse>) -> Self {
        let slot = Self::default();
        slot.replace(used.map(Arc::new));
        slot
    }

    pub(crate) fn get(&self) -> Option<Arc<JournalUse>> {
        if self.is_used() { self.used.read().clone() } else { None }
    }

    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Replaces the journal. No request of the volume is in flight, and no worker handles an event.
    pub(crate) fn replace(&self, used: Option<Arc<JournalUse>>) {
        let mut current = self.used.write();
        self.is_used.store(used.is_some(), Ordering::Relaxed);
        *current = used;
    }
}

/// The use of a journal by a volume.
pub(crate) struct JournalUse {
    pub journal: Arc<Journal>,
    /// The volume's number in the journal.
    pub number: u16,
    pub durability: Durability,
}

/// Identifies a transfer to a disk among the transfers of all workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferId {
    pub worker: usize,
    pub tag: u32,
}

impl Volume {
    /// Its size in bytes, as clients see it. The disk may have grown beyond it.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.info.read().size_bytes
    }

    /// The block size of its disk, in bytes.
    pub(crate) fn block_bytes(&self) -> u64 {
        u64::from(self.backend.description().alignment_bytes)
    }

    /// Whether the operator has given up what its disk does not take.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Whether its journal has failed, and it cannot continue without.
    pub(crate) fn has_lost_journal(&self) -> bool {
        self.has_lost_journal.load(Ordering::Acquire)
    }

    /// Whether nothing of it is admitted into the pool, except pinned ranges and dirty data.
    pub(crate) fn is_frozen(&self) -> bool {
        self.is_frozen.load(Ordering::Relaxed)
    }

    /// Whether only the pool holds the volume's dirty data: it has a UPS, and no working journal.
    pub(crate) fn is_ups_only(&self) -> bool {
        let journal = self.journal.get();
        self.power.is_ups_only(journal.map(|used| move || used.journal.is_abandoned()))
    }

    /// The counters of its requests.
    pub(crate) fn request_counters(&self) -> RequestCounters {
        add_up_counters(&self.stats)
    }

    /// Invalidates the vault's samples of a range that is about to be changed on the disk.
    pub(crate) fn invalidate_samples(&self, range: ByteRange) {
        if let Some(samples) = self.disk.samples.get() {
            samples.invalidate(range);
        }
    }
}
