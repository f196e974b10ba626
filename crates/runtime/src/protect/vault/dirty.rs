//! The dirty lines of the shards, as the source of a dump.
//!
//! Lines are listed first and copied later, a few at a time under their shard's lock, so each line
//! is copied consistently while clients write. A line that was destaged in between is left out. The
//! disks therefore have to be flushed after the last copy.

use super::batch::Batch;
use super::save::Source;
use crate::shared::Shared;
use forebay_engine::{DirtyLine, LineKey, Slot};
use forebay_format::journal::{HEADER_BYTES, Record};
use forebay_types::{LINE_BYTES, VolumeId};
use forebay_volume::shard_of;
use std::sync::Arc;

/// Lines copied per lock of a shard: 128 KiB take about as long as a request.
const LINES_AT_ONCE: usize = 32;

pub(super) struct DirtyLines {
    shared: Arc<Shared>,
    /// The lines, sorted by shard and key.
    keys: Vec<LineKey>,
    /// The index in `keys` after the last line of each shard.
    ends: Vec<usize>,
    /// The numbers of the volumes in the vault, indexed by their ids.
    numbers: Vec<u16>,
}

impl DirtyLines {
    /// Lists the dirty lines of volumes, each given with its number in the vault.
    pub(super) fn of(shared: &Arc<Shared>, volumes: &[(VolumeId, u16)]) -> Self {
        let mut numbers = Vec::new();
        for &(id, number) in volumes {
            let at = usize::from(id.0);
            numbers.resize(numbers.len().max(at + 1), 0);
            numbers[at] = number;
        }
        let (mut keys, mut ends) = (Vec::new(), Vec::new());
        for shard in 0..shared.shards.len() {
            let first = keys.len();
            {
                let shard = shared.shard(shard);
                for &(id, _) in volumes.iter().filter(|(id, _)| shard.has_volume(*id)) {
                    keys.extend(shard.volume(id).dirty_keys());
                }
            }
            keys[first..].sort_unstable();
            ends.push(keys.len());
        }
        Self { shared: Arc::clone(shared), keys, ends, numbers }
    }

    /// Whether a volume has dirty lines.
    pub(super) fn has(&self, volume: VolumeId) -> bool {
        self.keys.iter().any(|key| key.volume() == volume)
    }

    /// Adds the dirty sectors of one line. Returns false if they do not fit.
    fn add(&self, shard: usize, key: LineKey, line: &DirtyLine, batch: &mut Batch) -> bool {
        let (bytes, runs) =
            line.runs().fold((0, 0), |(bytes, runs), (_, len)| (bytes + len as usize, runs + 1));
        if !batch.has_room(bytes, runs) {
            return false;
        }
        let number = self.numbers[usize::from(key.volume().0)];
        assert!(number > 0, "the volume of a listed line takes part");
        for (offset, len) in line.runs() {
            let bytes = self.bytes(shard, line.slot, offset, len);
            batch.add(number, key.offset() + u64::from(offset), bytes);
        }
        true
    }

    /// Bytes of a dirty line. The caller must hold the lock of its shard as long as it uses them.
    fn bytes(&self, shard: usize, slot: Slot, offset: u32, len: u32) -> &[u8] {
        assert!(u64::from(offset) + u64::from(len) <= LINE_BYTES);
        let start = self.shared.pool.line(shard, slot);
        // SAFETY: the range is inside the line. The shard is locked and the sectors are dirty, so
        // nothing writes to them: clients' data is copied under that lock, and reads from a disk
        // fill only sectors that are not valid.
        unsafe { std::slice::from_raw_parts(start.add(offset as usize), len as usize) }
    }

    /// Compares a batch that was read back with the pool. Returns the bytes that the pool holds
    /// dirty with the same content, and the bytes that were written again or destaged meanwhile.
    pub(super) fn compare(&self, records: &[Record], bytes: &[u8]) -> (u64, u64) {
        let mut same = 0;
        let mut changed = 0;
        for record in records {
            let found = self.numbers.iter().position(|&number| number == record.volume);
            let id = VolumeId(found.unwrap_or(0) as u16);
            let offset = record.range.offset;
            let key = LineKey::new(id, offset / LINE_BYTES);
            let within = (offset % LINE_BYTES) as u32;
            let len = record.range.len as u32;
            let from = HEADER_BYTES + record.payload_offset as usize;
            let saved = &bytes[from..from + len as usize];
            let stripes = self.shared.stripes(id);
            let at = shard_of(id, stripes, offset, self.shared.shards.len());
            let shard = self.shared.shard(at);
            let line = shard.dirty_line(key).filter(|line| line.covers(within, len));
            let is_same = line.is_some_and(|line| self.bytes(at, line.slot, within, len) == saved);
            *(if is_same { &mut same } else { &mut changed }) += u64::from(len);
        }
        (same, changed)
    }
}

impl Source for DirtyLines {
    fn len(&self) -> usize {
        self.keys.len()
    }

    fn fill(&self, mut at: usize, batch: &mut Batch) -> usize {
        while at < self.keys.len() {
            let index = self.ends.partition_point(|&end| end <= at);
            let until = self.ends[index].min(at + LINES_AT_ONCE);
            let shard = self.shared.shard(index);
            for &key in &self.keys[at..until] {
                let line =
                    if shard.has_volume(key.volume()) { shard.dirty_line(key) } else { None };
                if let Some(line) = line
                    && !self.add(index, key, &line, batch)
                {
                    return at;
                }
                at += 1;
            }
        }
        at
    }
}
