//! Shards, each with the memory of its part of the pool.

use super::memory::{Memory, read_stamp, write_stamp};
use super::oracle::POISON;
use forebay_engine::{
    Elevator, Fate, LineKey, LineMeta, MemoryStep, Place, Protection, Recovery, Segment, Shard,
    ShardConfig, Slab, Slot,
};
use forebay_policy::Eviction;
use forebay_types::{
    ByteRange, LINE_BYTES, Mode, SECTOR_BYTES, SECTORS_PER_LINE, Stripes, VolumeId,
};
use forebay_volume::{ReplySegment, shard_of};
use std::sync::Arc;

pub(crate) type LabShard = Shard<Vec<LineMeta>>;

pub(crate) fn empty_shard(
    slots: usize,
    policy: Box<dyn Eviction>,
    config: ShardConfig,
) -> LabShard {
    Shard::new(vec![LineMeta::FREE; slots], policy, config)
}

/// The settings of a volume for the shards.
pub(crate) struct VolumeSetup {
    pub id: VolumeId,
    pub bytes: u64,
    pub mode: Mode,
    pub stripes: Stripes,
    pub elevator: Option<Arc<Elevator>>,
    /// Writes below this size are gathered; `None` keeps the shard's default.
    pub gather_below: Option<u64>,
    pub protection: Protection,
    pub is_ordered: bool,
}

impl VolumeSetup {
    /// A plain volume in write-back.
    pub(crate) const fn write_back(id: VolumeId, bytes: u64, stripes: Stripes) -> Self {
        Self {
            id,
            bytes,
            mode: Mode::WriteBack,
            stripes,
            elevator: None,
            gather_below: None,
            protection: Protection::None,
            is_ordered: false,
        }
    }

    pub(crate) fn add_to(&self, shard: &mut LabShard, number: usize) {
        shard.add_volume(self.id, self.bytes, self.mode);
        let volume = shard.volume_mut(self.id);
        volume.set_stripes(self.stripes);
        if let Some(elevator) = &self.elevator {
            volume.set_elevator(Arc::clone(elevator), number);
        }
        if let Some(bytes) = self.gather_below {
            volume.set_gather_below(bytes);
        }
        volume.set_protection(self.protection);
        if self.is_ordered {
            volume.set_ordered();
        }
    }
}

/// The tables and the data of the shards of a killed process.
pub(crate) type PoolSnapshot = Vec<(Vec<LineMeta>, Vec<u64>)>;

pub(crate) struct PooledShard {
    pub shard: LabShard,
    /// Eight stamps per slot.
    pool: Vec<u64>,
}

impl PooledShard {
    /// An empty shard over memory that has not been filled.
    pub(crate) fn new(slots: usize, policy: Box<dyn Eviction>, config: ShardConfig) -> Self {
        let pool = vec![POISON; slots * SECTORS_PER_LINE as usize];
        Self { shard: empty_shard(slots, policy, config), pool }
    }

    /// A shard over the table and the data of a killed process.
    pub(crate) fn recover(
        (table, pool): (Vec<LineMeta>, Vec<u64>),
        policy: Box<dyn Eviction>,
        config: ShardConfig,
    ) -> (Self, Recovery) {
        let mut steps = Vec::new();
        let recovered = Shard::recover(table, policy, config, &|_| Fate::Kept, &mut steps);
        let (shard, found) = recovered.expect("a killed process leaves a valid table");
        let mut world = Self { shard, pool };
        steps.into_iter().for_each(|step| world.apply_step(step, &[]));
        world.shard.finish_call();
        (world, found)
    }

    /// Copies of the table and the data, as a killed process leaves them.
    pub(crate) fn snapshot(&self) -> (Vec<LineMeta>, Vec<u64>) {
        (self.shard.slots().table().to_vec(), self.pool.clone())
    }

    /// Executes a memory step that the shard requested.
    pub(crate) fn apply_step(&mut self, step: MemoryStep, payload: &[u8]) {
        match step {
            MemoryStep::Fill { slot, offset, payload_offset, len } => {
                for at in (0..len).step_by(SECTOR_BYTES as usize) {
                    let stamp = read_stamp(payload, u64::from(payload_offset + at));
                    self.set_stamp(slot, offset + at, stamp);
                }
            }
            MemoryStep::Copy { from, to, offset, len } => {
                let (from, to) = (index(from, offset), index(to, offset));
                self.pool.copy_within(from..from + count(len), to);
            }
            MemoryStep::Verify { .. } => {}
        }
    }

    /// The stamp of the sector at `offset` of a slot, in bytes.
    pub(crate) fn stamp(&self, slot: Slot, offset: u32) -> u64 {
        self.pool[index(slot, offset)]
    }

    pub(crate) fn set_stamp(&mut self, slot: Slot, offset: u32, stamp: u64) {
        self.pool[index(slot, offset)] = stamp;
    }

    /// The eight stamps of a slot.
    pub(crate) fn line(&self, slot: Slot) -> &[u64] {
        let at = index(slot, 0);
        &self.pool[at..at + SECTORS_PER_LINE as usize]
    }

    pub(crate) fn set_line(&mut self, slot: Slot, stamps: &[u64]) {
        let at = index(slot, 0);
        self.pool[at..at + SECTORS_PER_LINE as usize].copy_from_slice(stamps);
    }

    /// Forgets the content of a slab whose memory is given back. Real memory would read as zeroes;
    /// this content is never right.
    pub(crate) fn forget(&mut self, slab: Slab) {
        self.pool[index(slab.first, 0)..index(slab.first + slab.count, 0)].fill(POISON);
    }

    /// Lines whose memory is taken. As in real memory, one that was filled stays taken until it is
    /// given back.
    pub(crate) fn taken_lines(&self) -> u64 {
        let is_taken = |line: &&[u64]| line.iter().any(|&stamp| stamp != POISON);
        self.pool.chunks(SECTORS_PER_LINE as usize).filter(is_taken).count() as u64
    }

    /// The stamps in the segments of an I/O or an answer. `memory` is the request's memory, with
    /// the offset of the part in it.
    pub(crate) fn stamps<'a>(
        &self,
        segments: impl IntoIterator<Item = &'a Segment>,
        memory: Option<(&Memory, u64)>,
        stamps: &mut Vec<u64>,
    ) {
        for segment in segments {
            match (segment.place, memory) {
                (Place::Slot { slot, offset }, _) => {
                    let at = index(slot, offset);
                    stamps.extend_from_slice(&self.pool[at..at + count(segment.len)]);
                }
                (Place::Private { offset }, Some((memory, base))) => {
                    let first = base + u64::from(offset);
                    let offsets =
                        (0..count(segment.len) as u64).map(|at| first + at * SECTOR_BYTES);
                    stamps.extend(offsets.map(|offset| memory.get(offset)));
                }
                _ => stamps.extend((0..count(segment.len)).map(|_| POISON)),
            }
        }
    }

    /// Copies the result of a read to its segments. Returns false if a segment has no memory or
    /// exceeds it.
    pub(crate) fn fill(
        &mut self,
        segments: &[Segment],
        mut stamps: &[u64],
        memory: Option<(&Memory, u64)>,
    ) -> bool {
        let mut fits = true;
        for segment in segments {
            let (now, later) = stamps.split_at(count(segment.len));
            stamps = later;
            match (segment.place, memory) {
                (Place::Slot { slot, offset }, _) => {
                    let to = index(slot, offset);
                    self.pool[to..to + now.len()].copy_from_slice(now);
                }
                (Place::Private { offset }, Some((memory, base))) => {
                    let places = (base + u64::from(offset)..).step_by(SECTOR_BYTES as usize);
                    fits &= now.iter().zip(places).all(|(&stamp, to)| memory.set(to, stamp));
                }
                (Place::Private { .. }, None) => fits = false,
                (Place::Discard, _) => {}
            }
        }
        fits
    }

    /// The bytes of a range whose lines are in these slots.
    pub(crate) fn bytes_of(&self, slots: &[Slot], range: ByteRange) -> Vec<u8> {
        let mut bytes = vec![0; range.len as usize];
        for at in (0..range.len).step_by(SECTOR_BYTES as usize) {
            let byte = range.offset % LINE_BYTES + at;
            let slot = slots[(byte / LINE_BYTES) as usize];
            write_stamp(&mut bytes, at, self.stamp(slot, (byte % LINE_BYTES) as u32));
        }
        bytes
    }

    /// A message with the remaining operations, dirty lines and pins, if there are any.
    pub(crate) fn leaks(&self) -> Option<String> {
        self.shard.self_check();
        let usage = self.shard.usage();
        let left = [usage.operations, usage.dirty_lines, self.shard.pins()];
        let message = "resources are still in use: operations, dirty lines and pins are";
        (left != [0; 3]).then(|| format!("{message} {left:?}"))
    }
}

pub(crate) fn reply_stamps(
    shards: &[PooledShard],
    segments: &[ReplySegment],
    memory: Option<&Memory>,
) -> Vec<u64> {
    let mut stamps = Vec::new();
    for ReplySegment { shard, segment } in segments {
        let memory = memory.map(|memory| (memory, 0));
        shards[usize::from(*shard)].stamps([segment], memory, &mut stamps);
    }
    stamps
}

/// The content of a sector in the pool, as readers see it; `None` if only the disk has it.
pub(crate) fn pooled_stamp(
    shards: &[PooledShard],
    (volume, stripes): (VolumeId, Stripes),
    sector: u64,
) -> Option<u64> {
    let number = shard_of(volume, stripes, sector * SECTOR_BYTES, shards.len());
    let one = &shards[number];
    let (line, at) = (sector / u64::from(SECTORS_PER_LINE), sector as u32 % SECTORS_PER_LINE);
    let slot = one.shard.slots().find_valid(LineKey::new(volume, line), 1 << at)?;
    Some(one.stamp(slot, at * SECTOR_BYTES as u32))
}

/// Releases the pins of an answer whose bytes have been sent.
pub(crate) fn release_pins(segments: &[ReplySegment], mut release: impl FnMut(usize, Slot)) {
    for ReplySegment { shard, segment } in segments {
        if let Place::Slot { slot, .. } = segment.place {
            release(usize::from(*shard), slot);
        }
    }
}

/// The index in the pool of the stamp for a byte of a slot.
const fn index(slot: Slot, offset: u32) -> usize {
    (slot * SECTORS_PER_LINE + offset / SECTOR_BYTES as u32) as usize
}

const fn count(len: u32) -> usize {
    len as usize / SECTOR_BYTES as usize
}
