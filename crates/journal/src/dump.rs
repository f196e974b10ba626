//! The writing side of a vault: where each batch of a dump goes, and what its superblock says.
//!
//! A dump is one life of a log with an identity of its own: batches are laid out one after the
//! other, each bound to the one before, and may be written several at once. When all of them are
//! on stable storage, the dump is sealed. A batch that the device did not take is written again
//! in a fresh segment, as the beginning of a new generation, together with those behind it; what
//! lies at the old places is void from then on.

use forebay_format::journal::{
    BATCH_BYTES_MAX, BatchHeader, GENERATIONS_MAX, GenerationStart, Geometry, Guard, JournalId,
    LogKind, Members, Record, Superblock, VolumeEntry, seal_batch,
};
use std::fmt;

/// A batch of a dump that has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its number.
    pub batch: u64,
    /// The segment it lies in.
    pub segment: u64,
    /// Its first byte within the segment.
    pub offset: u64,
    /// Bytes of it on the device.
    pub len: u64,
    /// What binds it to the batch before.
    chain: u32,
    /// The number of its first record.
    first_record: u64,
}

/// The vault has no room for another batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpFull;

impl fmt::Display for DumpFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the vault is full")
    }
}

impl std::error::Error for DumpFull {}

/// A dump that is being written.
#[derive(Clone, Debug)]
pub struct Dump {
    superblock: Superblock,
    segment: u64,
    offset: u64,
    chain: u32,
    next_record: u64,
    /// The first segment that nothing of this dump was ever placed in.
    fresh_segment: u64,
    placed: Vec<Placed>,
}

impl Dump {
    /// Begins a dump of `volumes`, whose superblocks follow the one with `sequence`.
    pub fn new(
        id: JournalId,
        size_bytes: u64,
        geometry: Geometry,
        sequence: u64,
        volumes: Vec<VolumeEntry>,
    ) -> Self {
        let next_volume = volumes.iter().map(|volume| volume.number + 1).max().unwrap_or(0);
        let superblock = Superblock {
            journal: id,
            kind: LogKind::Vault { sealed: None },
            sequence,
            size_bytes,
            geometry,
            clean: false,
            first_segment: 0,
            starts: vec![GenerationStart { generation: 1, batch: 0, segment: 0 }],
            next_volume,
            volumes,
            members: Members::default(),
        };
        Self {
            superblock,
            segment: 0,
            offset: 0,
            chain: 0,
            next_record: 0,
            fresh_segment: 1,
            placed: Vec::new(),
        }
    }

    /// The dump into the vault with this number. Zero is none.
    #[must_use]
    pub fn in_vault(mut self, number: u64) -> Self {
        self.superblock.members = Members { own: number, current: [number, 0] };
        self
    }

    /// Says in the next superblock what is known of a volume's disk.
    pub fn set_guard(&mut self, number: u16, guard: Guard) {
        let mut volumes = self.superblock.volumes.iter_mut();
        if let Some(volume) = volumes.find(|volume| volume.number == number) {
            volume.guard = guard;
        }
    }

    /// The superblock as it is now.
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The batches, in order.
    pub fn placed(&self) -> &[Placed] {
        &self.placed
    }

    /// The superblock to be written next, with where it goes. Each call takes the other place.
    pub fn write_superblock(&mut self) -> (u64, Vec<u8>) {
        self.superblock.sequence += 1;
        (self.superblock.position(), self.superblock.encode())
    }

    /// Where a batch begins on the device, in bytes.
    pub const fn position(&self, placed: &Placed) -> u64 {
        self.superblock.geometry.position(placed.segment) + placed.offset
    }

    /// Completes a batch whose payload lies in `buffer`, see [`seal_batch`], and places it.
    ///
    /// # Errors
    /// When there is no room for it; then nothing has changed.
    ///
    /// # Panics
    /// As [`seal_batch`].
    pub fn place(
        &mut self,
        payload_bytes: u32,
        records: &[Record],
        buffer: &mut [u8],
    ) -> Result<Placed, DumpFull> {
        let batch = self.placed.len() as u64;
        let geometry = self.superblock.geometry;
        let mut header = BatchHeader::new(
            self.superblock.generation(),
            batch,
            self.segment,
            self.offset,
            self.chain,
        );
        header.payload_bytes = payload_bytes;
        header.records = records.len() as u32;
        header.first_record = self.next_record;
        assert!(header.len_bytes() <= BATCH_BYTES_MAX.min(geometry.segment_bytes));
        if self.offset + header.len_bytes() > geometry.segment_bytes {
            (header.segment, header.offset) = (self.segment + 1, 0);
        }
        if header.segment - self.superblock.first_segment >= geometry.segments {
            return Err(DumpFull);
        }
        let (chain, first_record) = (self.chain, self.next_record);
        let header = seal_batch(self.superblock.journal, header, records, buffer);
        (self.segment, self.offset) = (header.segment, header.offset + header.len_bytes());
        self.fresh_segment = self.fresh_segment.max(header.segment + 1);
        self.chain = header.checksum;
        self.next_record += u64::from(header.records);
        let (segment, offset, len) = (header.segment, header.offset, header.len_bytes());
        let placed = Placed { batch, segment, offset, len, chain, first_record };
        self.placed.push(placed);
        Ok(placed)
    }

    /// Takes back a batch and all behind it: they are to be placed again, in a segment that nothing
    /// of this dump lies in. The superblock has to be written before the dump counts.
    ///
    /// # Errors
    /// When there is no such segment, or it was done too often; then nothing has changed.
    pub fn relocate(&mut self, batch: u64) -> Result<(), DumpFull> {
        let segment = self.fresh_segment;
        let Some(&first) = self.placed.get(batch as usize) else { return Ok(()) };
        let starts = &mut self.superblock.starts;
        let generation = starts.last().map_or(0, |start| start.generation) + 1;
        let kept = starts.iter().filter(|start| start.batch < batch).count();
        let first_segment = if kept == 0 { segment } else { self.superblock.first_segment };
        let has_room = segment - first_segment < self.superblock.geometry.segments;
        // The log may not run over its own beginning.
        let is_free = segment < self.superblock.geometry.segments;
        if kept >= GENERATIONS_MAX || !has_room || !is_free {
            return Err(DumpFull);
        }
        starts.truncate(kept);
        starts.push(GenerationStart { generation, batch, segment });
        self.superblock.first_segment = first_segment;
        self.superblock.kind = LogKind::Vault { sealed: None };
        self.placed.truncate(batch as usize);
        (self.segment, self.offset) = (segment, 0);
        self.fresh_segment = segment + 1;
        (self.chain, self.next_record) = (first.chain, first.first_record);
        Ok(())
    }

    /// Says in the next superblock that the dump is whole: all of it is on stable storage.
    pub fn seal(&mut self) {
        self.superblock.kind = LogKind::Vault { sealed: Some(self.placed.len() as u64) };
    }
}
