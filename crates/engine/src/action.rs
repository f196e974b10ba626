//! What the engine asks of its driver.
//!
//! The engine touches no data and waits for nothing. Each call leaves its wishes in an [`Outbox`]:
//! memory steps, which the driver carries out, and then says so by
//! [`crate::Shard::settle_steps`], before it lets go of the shard; I/Os, which it
//! starts and reports back through [`crate::Shard::complete`]; and answers to parts of requests.

use crate::index::key::mask_runs;
use crate::{LineKey, Seal, Slot};
use forebay_types::{ByteRange, IoError, IoResult, SECTOR_BYTES, VolumeId};

/// Names a part of a client's request; made and understood by the driver alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId(pub u64);

/// Names an operation of a shard to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId {
    pub(crate) op: u32,
    pub(crate) generation: u32,
}

/// The piece of a request that lies in one region of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Who to answer.
    pub id: PartId,
    /// The volume.
    pub volume: VolumeId,
    /// Sector-aligned, not empty, inside the volume and inside one region.
    pub range: ByteRange,
    /// It brings back what the volume's journal holds, so that the journal is not told of it.
    pub restores: bool,
}

/// How often a part has been tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// Tries before this one.
    pub count: u8,
    /// The operation the part waited for last has failed this way.
    pub error: Option<IoError>,
    /// Everything of the epochs before the part came is on the disk, so that it may follow. Without
    /// meaning where the volume is not ordered.
    pub in_order: bool,
}

/// Where some bytes of a request are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the pool.
    Slot {
        /// The line's slot.
        slot: Slot,
        /// First byte within the line.
        offset: u32,
    },
    /// In memory of the request itself: the payload of a write, or a buffer the driver provides
    /// for a read. The offset counts from the start of the part.
    Private {
        /// First byte within the part's memory.
        offset: u32,
    },
    /// Nowhere: the bytes are read to join two pieces of one I/O, and thrown away.
    Discard,
}

/// Consecutive bytes of a request, and where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where they are.
    pub place: Place,
    /// How many, in bytes.
    pub len: u32,
}

/// A change to the pool's memory, to be made before the shard is let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryStep {
    /// Copy from the payload of the write at hand into the pool.
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
    /// Copy from one slot to another, at the same place within the line.
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
    /// Look at a sealed line before it changes, put right what can be, and tell the shard with
    /// [`crate::Shard::damaged`] if anything was wrong.
    Verify {
        /// The line as it was before the change.
        seal: Seal,
        /// The sectors that the change keeps: only a verdict on those counts.
        kept: u8,
    },
}

impl MemoryStep {
    /// The copies of these sectors of a line.
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
    /// Write the segments; with `fua`, be done only when they are on stable storage.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Forget the range.
    Discard,
    /// Make the range read as zeroes.
    Zero {
        /// Whether a hole is acceptable.
        unmap: bool,
    },
}

/// An I/O to be started. The driver reports its end with [`crate::Shard::complete`]; until then
/// the slots in it are pinned, and private memory of `part` must stay where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoAction {
    /// To be handed back on completion.
    pub id: IoId,
    /// What to do.
    pub verb: IoVerb,
    /// The volume whose backend is meant.
    pub volume: VolumeId,
    /// The bytes of the volume.
    pub range: ByteRange,
    /// The memory, in order, covering `range` exactly; empty unless reading or writing.
    pub segments: Vec<Segment>,
    /// The part whose private memory the segments mean.
    pub part: Option<PartId>,
    /// The sealed lines among the segments of a write of dirty data. The driver looks at them
    /// before it starts the write, puts right what can be, and tells the shard with
    /// [`crate::Shard::damaged`]. A write of sectors that are lost is not started but completed
    /// with an error.
    pub seals: Vec<Seal>,
}

/// What the journal is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// The range has been written into the pool, from the payload of the write at hand or from
    /// these slots, one for each line. The part is answered when the record is durable, or has
    /// been answered already.
    Write {
        /// The slots, if the payload lay in slots.
        slots: Vec<Slot>,
        /// Whether the part waits for the record.
        wait: bool,
    },
    /// The range reads as zeroes.
    Zero {
        /// Whether a hole is acceptable.
        unmap: bool,
    },
    /// The content of the range is of no interest any more.
    Discard,
    /// The disk has the newest content of the range on stable storage.
    Forget,
}

/// A record for the volume's journal, to be made before the shard is let go of, so that records
/// of the same place come in the order of the changes. The part is answered when the record is
/// durable, unless that is said otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Who waits for it.
    pub part: PartId,
    /// The volume.
    pub volume: VolumeId,
    /// The bytes concerned.
    pub range: ByteRange,
    /// What happened to them.
    pub kind: NoteKind,
}

/// What a part learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done, well or badly.
    Done(IoResult),
    /// What it waited for is over: try again, with this error in the attempt if there is one.
    Retry(Option<IoError>),
    /// The epochs that it waited for are on the disk: try again, in order.
    InOrder,
    /// The journal has failed to keep what the part has changed, and keeps nothing more: the disk
    /// must have it before the part is answered.
    Unlogged,
}

/// An answer to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Which part.
    pub part: PartId,
    /// What it learns.
    pub outcome: Outcome,
}

/// Everything a call to a shard asks for. The driver empties it after each call and keeps it, so
/// that the hit path allocates nothing.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Carried out in order, before the shard is let go of.
    pub memory: Vec<MemoryStep>,
    /// Started after that.
    pub ios: Vec<IoAction>,
    /// Delivered after that.
    pub answers: Vec<Answer>,
    /// Recorded by the journal before the shard is let go of, after the memory steps.
    pub notes: Vec<Note>,
    /// Lines whose first use says that their stream should be fetched further.
    pub marks: Vec<LineKey>,
    /// Ordered volumes of which something is due to be destaged.
    pub orders: Vec<VolumeId>,
    /// Shards that are to go on with writing a volume back: to be told by [`crate::Shard::wake`],
    /// the last one first.
    pub wakes: Vec<(usize, VolumeId)>,
    /// Set by the driver: I/Os of one turn start together, neighbours joined, when it is over. Zero
    /// where each starts at once. No two drivers have the same.
    pub turn: u64,
}

impl Outbox {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
            && self.ios.is_empty()
            && self.answers.is_empty()
            && self.marks.is_empty()
            && self.orders.is_empty()
            && self.wakes.is_empty()
    }
}
