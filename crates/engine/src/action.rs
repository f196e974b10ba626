//! What the engine requests from its driver.
//!
//! The engine touches no data and never blocks. Each call leaves its requests in an [`Outbox`]:
//! - memory steps, which the driver carries out and confirms with [`crate::Shard::finish_call`]
//!   before it unlocks the shard;
//! - journal records, which the driver passes to the journal before it unlocks the shard;
//! - I/Os, which the driver starts and reports back through [`crate::Shard::complete`];
//! - answers to parts of requests.

use crate::line::key::mask_runs;
use crate::{LineHits, LineKey, Seal, Slot};
use forebay_types::{ByteRange, Few, IoError, IoResult, SECTOR_BYTES, VolumeId};

/// Identifies a part of a client's request. Chosen by the driver, and opaque to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId(pub u64);

/// Identifies an operation of a shard to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId {
    pub(crate) op: u32,
    pub(crate) generation: u32,
}

/// The piece of a request that lies in one region of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Identifies the part in its answer.
    pub id: PartId,
    pub volume: VolumeId,
    /// Sector-aligned, not empty and inside the volume. Inside one region, except for a long erase
    /// ([`crate::erase_long`]).
    pub range: ByteRange,
    /// The part restores data from the volume's journal, so the journal does not record it.
    pub restores: bool,
}

/// How often a part has been tried, and how its waits ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// Tries before this one.
    pub count: u8,
    /// The last error of an operation that the part waited for. It is kept over further waits, so
    /// that a part that has to wait for other operations again and again still fails.
    pub error: Option<IoError>,
    /// All epochs before the part's arrival are on the disk, so the part may proceed. Meaningless
    /// for a volume that is not ordered.
    pub in_order: bool,
}

/// The location of some bytes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the pool.
    Slot {
        /// The line's slot.
        slot: Slot,
        /// First byte within the line.
        offset: u32,
    },
    /// In the request's own memory: the payload of a write, or a read buffer provided by the
    /// driver. The offset counts from the start of the part.
    Private {
        /// First byte within the part's memory.
        offset: u32,
    },
    /// A discard buffer: the bytes are read only to join two ranges into one I/O.
    Discard,
}

/// Consecutive bytes of a request, with their location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Their location.
    pub place: Place,
    /// Length in bytes.
    pub len: u32,
}

/// A change to the pool's memory, carried out before the driver unlocks the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryStep {
    /// Copy from the payload of the current write into the pool.
    Fill {
        /// The slot to write to.
        slot: Slot,
        /// First byte within the line.
        offset: u32,
        /// First byte within the part's payload.
        payload_offset: u32,
        /// Bytes to copy.
        len: u32,
    },
    /// Copy from one slot to another, at the same offset.
    Copy {
        /// The slot to read.
        from: Slot,
        /// The slot to write.
        to: Slot,
        /// First byte within the line.
        offset: u32,
        /// Bytes to copy.
        len: u32,
    },
    /// Verify a sealed line before it changes, repair it if possible, and report any damage with
    /// [`crate::Shard::damaged_before`].
    Verify {
        /// The seal of the line before the change.
        seal: Seal,
        /// The sectors that the change keeps: only damage to these matters.
        kept: u8,
    },
}

impl MemoryStep {
    /// The copy steps for the sectors in `mask`.
    pub(crate) fn copies(from: Slot, to: Slot, mask: u8) -> impl Iterator<Item = Self> {
        mask_runs(mask).map(move |(sector, sectors)| {
            let (offset, len) = (sector * SECTOR_BYTES as u32, sectors * SECTOR_BYTES as u32);
            Self::Copy { from, to, offset, len }
        })
    }
}

/// What an I/O does to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoVerb {
    /// Read into the segments.
    Read,
    /// Write the segments. With `fua`, complete only when they are on stable storage.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Discard the range.
    Discard,
    /// Make the range read as zeroes.
    Zero {
        /// Whether the disk may deallocate the range.
        unmap: bool,
    },
}

/// Why an I/O is started. Coalesced I/Os count under the first of their causes in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoCause {
    /// A client waits for it: a read that missed, a write to the disk, an erase.
    Demand,
    /// Dirty data is written because something waits for it: see
    /// [`crate::VolumeCounters::destages_urgent`].
    DestageUrgent,
    /// Dirty data is written because of its age or amount.
    Destage,
    /// A stream is read ahead.
    Prefetch,
    /// A warm-up or a forecast.
    Preload,
    /// A pinned range is read into memory.
    Pin,
}

impl IoCause {
    /// All causes, in order.
    pub const ALL: [Self; 6] = [
        Self::Demand,
        Self::DestageUrgent,
        Self::Destage,
        Self::Prefetch,
        Self::Preload,
        Self::Pin,
    ];

    /// Its name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Demand => "demand",
            Self::DestageUrgent => "destage-urgent",
            Self::Destage => "destage",
            Self::Prefetch => "prefetch",
            Self::Preload => "preload",
            Self::Pin => "pin",
        }
    }

    /// Whether it is a read that no client waits for, unless a client happens to need its lines.
    pub const fn is_background(self) -> bool {
        matches!(self, Self::Preload | Self::Pin)
    }
}

/// An I/O to start. The driver reports its completion with [`crate::Shard::complete`]. Until then
/// its slots are pinned, and the driver keeps the private memory of `part` in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoAction {
    /// To be passed to [`crate::Shard::complete`].
    pub id: IoId,
    /// What to do.
    pub verb: IoVerb,
    /// The volume on whose backend it runs.
    pub volume: VolumeId,
    /// The byte range within the volume.
    pub range: ByteRange,
    /// The memory, in order, covering `range` exactly. Empty for a discard or zero.
    pub segments: Few<Segment>,
    /// The part that owns the private memory in the segments.
    pub part: Option<PartId>,
    /// The seals of the sealed lines in a write of dirty data. The driver verifies these lines
    /// before it starts the write, repairs them if possible, and reports damage with
    /// [`crate::Shard::damaged`]. If a sector is lost, the driver does not start the write, but
    /// completes it with an error.
    pub seals: Vec<Seal>,
    /// Why it is started.
    pub cause: IoCause,
}

impl IoAction {
    /// Whether it is a read that no client waits for, unless a client happens to need its lines.
    /// The driver does not count it among the reads for clients.
    pub const fn is_background(&self) -> bool {
        self.cause.is_background()
    }
}

/// The kind of a journal record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalOp {
    /// The range was written into the pool. Its data is the payload of the current write, or is in
    /// these slots, one per line.
    Write {
        /// The slots, if the payload is in slots.
        slots: Vec<Slot>,
        /// Whether the part is answered only when the record is durable. If not, it is answered at
        /// once.
        wait: bool,
    },
    /// The range reads as zeroes.
    Zero {
        /// Whether the disk may deallocate the range.
        unmap: bool,
    },
    /// The content of the range was discarded.
    Discard,
    /// The disk has the newest content of the range on stable storage.
    Forget,
}

/// A record for the volume's journal. The driver passes it to the journal before it unlocks the
/// shard, so that records of one range are in the order of the changes. The part is answered when
/// the record is durable, unless the kind says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRequest {
    /// The part that made the change.
    pub part: PartId,
    pub volume: VolumeId,
    /// The byte range.
    pub range: ByteRange,
    /// The change.
    pub kind: JournalOp,
}

/// The result delivered to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The part is complete, with success or an error.
    Done(IoResult),
    /// The operation it waited for has completed: try again, with this error in the attempt.
    Retry(Option<IoError>),
    /// The epochs it waited for are on the disk: try again, with `in_order` set.
    InOrder,
    /// The journal failed to record the part's change and records nothing more: the data must reach
    /// the disk before the part is answered.
    JournalFailed,
}

/// An answer to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The answered part.
    pub part: PartId,
    /// The result.
    pub outcome: Outcome,
}

/// What a part that has to wait waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WaitsFor {
    /// A read of the disk that the part has started.
    #[default]
    OwnRead,
    /// A read of the disk that another request has started.
    Read,
    /// A read of the disk that no client waits for: a stream is read ahead, or lines are
    /// preloaded.
    ReadAhead,
    /// A write to the disk that another request has started.
    Write,
    /// A trim or a write of zeroes that another request has started.
    Erase,
    /// A destage of its lines.
    Destage,
    /// Any destage: the dirty limit is reached, or there is no free slot.
    Throttle,
}

/// Everything a call to a shard requests. The driver empties it after each call and reuses it, so
/// that the hit path allocates nothing.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Carried out in order, before the shard is unlocked.
    pub memory: Vec<MemoryStep>,
    /// Started after the memory steps.
    pub ios: Vec<IoAction>,
    /// Delivered after the memory steps.
    pub answers: Vec<Answer>,
    /// Recorded by the journal after the memory steps, before the shard is unlocked.
    pub journal_requests: Vec<JournalRequest>,
    /// Marked lines that were read for the first time, each of which requests its stream's next
    /// window.
    pub marks: Vec<LineKey>,
    /// Prefetched lines of a volume that clients have read for the first time.
    pub prefetch_uses: Option<(VolumeId, u32)>,
    /// Preloaded lines that were read for the first time.
    pub preloads_used: Vec<LineKey>,
    /// Ordered volumes with a destage due.
    pub orders: Vec<VolumeId>,
    /// Shards in which the elevator of a volume continues. The driver calls [`crate::Shard::wake`]
    /// for each, starting with the last entry.
    pub wakes: Vec<(usize, VolumeId)>,
    /// How the write was served, set by the call that carries it out. Not a request: the driver
    /// takes it after each write call.
    pub write_hits: LineHits,
    /// What the part waits for, if the call has made it wait. Not a request either.
    pub waits_for: WaitsFor,
    /// The number of the current turn, set by the driver and unique across drivers. The I/Os of one
    /// turn start together when it ends, with adjacent ones coalesced. Zero if each I/O starts at
    /// once.
    pub turn: u64,
}

impl Outbox {
    /// Adds a prefetched line that a client has read for the first time. All uses in one call are
    /// of the same volume.
    pub(crate) fn add_prefetch_use(&mut self, volume: VolumeId) {
        let (of, lines) = self.prefetch_uses.get_or_insert((volume, 0));
        assert_eq!(*of, volume, "the driver empties the outbox after each call");
        *lines += 1;
    }

    /// Whether nothing is requested.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
            && self.ios.is_empty()
            && self.answers.is_empty()
            && self.journal_requests.is_empty()
            && self.marks.is_empty()
            && self.prefetch_uses.is_none()
            && self.preloads_used.is_empty()
            && self.orders.is_empty()
            && self.wakes.is_empty()
    }
}
