//! What is known of each line, kept beside the line's data so that it lives as long as the data.

use crate::LineKey;
use forebay_types::VolumeId;
use std::ops::DerefMut;

/// A line's place in its shard: an index into the table of lines and into the shard's data.
pub type Slot = u32;

/// Stands for "no slot".
pub(crate) const NO_SLOT: Slot = Slot::MAX;

/// More slots than this can't be indexed by one shard: 64 GiB of lines.
pub const SLOTS_MAX: usize = (1 << 24) - 2;

/// Sixteen bytes for each line of 4 KiB, 0.4 %. The layout is fixed because the table lies in
/// shared memory that outlives the process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineMeta {
    /// Which line of which volume; [`LineKey::NONE`] when the slot is free, and then `pins` links
    /// to the next free slot.
    pub(crate) key: LineKey,
    /// Operations and replies that use the data right now. A pinned slot keeps its place.
    pub(crate) pins: u32,
    /// Sectors whose content is the newest.
    pub(crate) valid: u8,
    /// Sectors whose content is newer than the disk's. Those that are not valid are lost. In a
    /// detached slot these are the sectors whose newest content is still here and not yet where
    /// the line is now.
    pub(crate) dirty: u8,
    /// See the constants below.
    pub(crate) flags: u8,
    /// Sectors that the call at hand has marked, and whose bytes are not there yet. Zero between
    /// calls; what is set when a process dies is not to be believed by the next one.
    pub(crate) filling: u8,
}

const _: () = assert!(size_of::<LineMeta>() == 16);

/// Fetched ahead and not asked for yet.
pub(crate) const PREFETCHED: u8 = 1;
/// The first use of this line tells the stream table that it is time to fetch further.
pub(crate) const MARK: u8 = 2;
/// The line is elsewhere or nowhere: a newer copy has taken its place, or this is a payload that
/// has not been written yet. The slot is freed with its last pin.
pub(crate) const DETACHED: u8 = 4;
/// The driver has a checksum of the valid sectors as they are. [`crate::index::Slots::change`]
/// takes it away, and the patrol sets it.
pub(crate) const SEALED: u8 = 8;
/// An older version of a line, which goes to the disk before what is newer (`writeback::epochs`).
/// Detached as well, and of no worth to a process that finds it.
pub(crate) const FROZEN: u8 = 16;

impl LineMeta {
    /// A slot that holds nothing.
    pub const FREE: Self =
        Self { key: LineKey::NONE, pins: 0, valid: 0, dirty: 0, flags: 0, filling: 0 };

    /// The volume whose line this is, if it is one.
    pub fn volume(&self) -> Option<VolumeId> {
        (self.key != LineKey::NONE).then(|| self.key.volume())
    }

    /// The same as a line of another volume: for tests that mix them up.
    #[must_use]
    pub const fn of_volume(self, volume: VolumeId) -> Self {
        Self { key: LineKey::new(volume, self.key.line()), ..self }
    }

    /// Lines with dirty sectors in a piece of a table as it lies in memory, whose length is a
    /// multiple of a line's. Some that a killed process was about to write are counted as well.
    pub fn dirty_in(table: &[u8]) -> u64 {
        const DIRTY: usize = std::mem::offset_of!(LineMeta, dirty);
        let lines = table.chunks_exact(size_of::<Self>());
        lines.filter(|line| line[DIRTY] != 0).count() as u64
    }

    pub(crate) const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Dirty sectors whose content is known: those that can be destaged.
    pub(crate) const fn destageable(&self) -> u8 {
        self.dirty & self.valid
    }

    /// Dirty sectors whose content was damaged beyond repair. What the disk has of them is older
    /// than what was acknowledged, so they fail until they are written again.
    pub(crate) const fn lost(&self) -> u8 {
        self.dirty & !self.valid
    }
}

/// What is written before this is in the table before what is written after it, also when the
/// process is killed in between. A killed thread has done its instructions up to one of them, and
/// memory that others share shows them in that order; only the compiler has to be told.
#[inline(always)]
pub(crate) fn in_order() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// Where a shard's table of lines lies: a plain vector in the lab, shared memory in the runtime.
pub trait LineTable: DerefMut<Target = [LineMeta]> + Send {}

impl<T: DerefMut<Target = [LineMeta]> + Send> LineTable for T {}
