//! The line table: 16 bytes of metadata per line, in memory that lives as long as the data.

use crate::LineKey;
use forebay_types::VolumeId;
use std::ops::DerefMut;

pub use forebay_policy::Slot;

pub(crate) const NO_SLOT: Slot = Slot::MAX;

/// The slots that one shard can index: 64 GiB of lines.
pub const SLOTS_MAX: usize = (1 << 24) - 2;

/// The metadata of a line: sixteen bytes for 4 KiB, 0.4 %. The layout is fixed, because the table
/// is in shared memory that outlives the process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LineMeta {
    /// The line in this slot. [`LineKey::NONE`] if the slot is free; then `pins` links to the next
    /// free slot. [`LineKey::AWAY`] if its memory is given back.
    pub(crate) key: LineKey,
    /// Operations and replies that use the data. A pinned slot keeps its place and its data.
    pub(crate) pins: u32,
    /// Sectors that hold the newest content.
    pub(crate) valid: u8,
    /// Sectors that are newer than the disk. Those that are not valid are lost. In a detached slot:
    /// sectors whose newest content may not have been copied to the line's new slot yet.
    pub(crate) dirty: u8,
    /// A combination of the flags below.
    pub(crate) flags: u8,
    /// Sectors marked by the current call while their bytes are still being copied. Zero between
    /// calls; recovery ignores these sectors.
    pub(crate) filling: u8,
}

const _: () = assert!(size_of::<LineMeta>() == 16);

/// Prefetched and not read yet.
pub(crate) const PREFETCHED: u8 = 1;
/// The first use of this line requests the stream's next window.
pub(crate) const MARK: u8 = 2;
/// The slot is not the place of its line, so readers do not find it: the line was relocated or
/// dropped, or the slot holds parity or a payload that has not been written yet. The slot is freed
/// with its last pin. Also set in slots whose memory is given back, which have no pin.
pub(crate) const DETACHED: u8 = 4;
/// The driver has a checksum of the valid sectors. The patrol sets this flag;
/// [`crate::index::Slots::change`] clears it.
pub(crate) const SEALED: u8 = 8;
/// An older version of a line, which must be destaged before the newer one (`writeback::epochs`).
/// Also detached. Recovery ignores it.
pub(crate) const FROZEN: u8 = 16;
/// Preloaded by a warm-up or for a forecast, and not read yet.
pub(crate) const PRELOADED: u8 = 32;
/// Of a pinned range, and unknown to the eviction policy (`index::retained`). Recovery ignores it.
pub(crate) const RETAINED: u8 = 64;
/// Brought into the pool by a write to a frozen volume, and dropped once it is clean and idle
/// (`index::buffered`). Recovery keeps the flag.
pub(crate) const BUFFERED: u8 = 128;

impl LineMeta {
    /// An empty slot.
    pub const FREE: Self =
        Self { key: LineKey::NONE, pins: 0, valid: 0, dirty: 0, flags: 0, filling: 0 };

    /// Whether the slot's memory is given back.
    pub fn is_away(&self) -> bool {
        self.key == LineKey::AWAY
    }

    /// The key of the line, if it is retained: of a pinned range, and unknown to the policy.
    pub fn retained_key(&self) -> Option<LineKey> {
        self.has(RETAINED).then_some(self.key)
    }

    /// The volume of the line, if the slot is neither free nor given back.
    pub fn volume(&self) -> Option<VolumeId> {
        (self.key != LineKey::NONE && !self.is_away()).then(|| self.key.volume())
    }

    /// The same line of another volume. For tests that mix up volumes.
    #[must_use]
    pub const fn of_volume(self, volume: VolumeId) -> Self {
        Self { key: LineKey::new(volume, self.key.line()), ..self }
    }

    /// Counts lines with dirty sectors in a piece of a table, given as raw bytes. Its length must
    /// be a multiple of the size of [`LineMeta`]. Sectors that were filling when the process was
    /// killed count as well.
    pub fn dirty_in(table: &[u8]) -> u64 {
        const DIRTY: usize = std::mem::offset_of!(LineMeta, dirty);
        let lines = table.chunks_exact(size_of::<Self>());
        lines.filter(|line| line[DIRTY] != 0).count() as u64
    }

    pub(crate) const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Sectors that hold the newest content.
    pub const fn valid(&self) -> u8 {
        self.valid
    }

    /// Whether an operation or a reply uses the slot.
    pub const fn is_pinned(&self) -> bool {
        self.pins > 0
    }

    /// Dirty sectors that are valid, and so can be destaged.
    pub const fn destageable(&self) -> u8 {
        self.dirty & self.valid
    }

    /// Dirty sectors damaged beyond repair. The disk has only older content, so reads of them fail
    /// until they are rewritten.
    pub const fn lost(&self) -> u8 {
        self.dirty & !self.valid
    }
}

/// Orders the stores to the table before and after this call, as seen by a process that adopts the
/// table. A killed thread has executed its instructions up to some point, and shared memory shows
/// their effects in program order; so only the compiler must be kept from reordering.
#[inline(always)]
pub(crate) fn in_order() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// The storage of a line table: a vector in the lab, shared memory in the runtime.
pub trait LineTable: DerefMut<Target = [LineMeta]> + Send {}

impl<T: DerefMut<Target = [LineMeta]> + Send> LineTable for T {}
