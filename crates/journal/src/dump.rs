//! The writing side of a vault: places the batches of a dump, and encodes its superblock.
//!
//! A dump is a log with an identity of its own. Batches are placed one after the other, each
//! chained to its predecessor; several may be in flight. The dump is sealed once all batches are
//! on stable storage. If the device fails to write a batch, that batch and its successors are
//! written again in a fresh segment, as a new generation, which voids the old places.

use forebay_format::journal::{
    BATCH_BYTES_MAX, BatchHeader, DiskInfo, GENERATIONS_MAX, GenerationStart, Geometry, JournalId,
    LogKind, Members, Record, Superblock, VolumeEntry, seal_batch,
};
use std::fmt;

/// A batch of a dump, with its place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedBatch {
    /// The batch number.
    pub batch: u64,
    /// The segment of the batch.
    pub segment: u64,
    /// The offset within the segment, in bytes.
    pub offset: u64,
    /// Length on the device in bytes.
    pub len: u64,
    /// The header checksum of the previous batch.
    chain: u32,
    /// The number of the first record.
    first_record: u64,
}

/// The vault has no space for another batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpFull;

impl fmt::Display for DumpFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the vault is full")
    }
}

impl std::error::Error for DumpFull {}

/// A dump in progress.
#[derive(Clone, Debug)]
pub struct Dump {
    superblock: Superblock,
    segment: u64,
    offset: u64,
    chain: u32,
    next_record: u64,
    /// The first of the segments that this dump has not used.
    fresh_segment: u64,
    placed: Vec<PlacedBatch>,
}

impl Dump {
    /// Begins a dump of `volumes`. `sequence` is the sequence number of the last superblock.
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
            is_clean: false,
            first_segment: 0,
            starts: vec![GenerationStart { generation: 1, batch: 0, segment: 0 }],
            next_volume,
            volumes,
            members: Members::default(),
            beat_ms: 0,
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

    /// Sets the number of the vault that the dump is written to; zero for none.
    #[must_use]
    pub fn in_vault(mut self, number: u64) -> Self {
        self.superblock.members = Members { own: number, current: [number, 0] };
        self
    }

    /// Sets the fingerprint of a volume's disk in the next superblock.
    pub fn set_disk_info(&mut self, number: u16, disk: DiskInfo) {
        let mut volumes = self.superblock.volumes.iter_mut();
        if let Some(volume) = volumes.find(|volume| volume.number == number) {
            volume.disk = disk;
        }
    }

    /// The current superblock.
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// All placed batches, in order.
    pub fn placed(&self) -> &[PlacedBatch] {
        &self.placed
    }

    /// Encodes the next superblock, and returns its position and bytes. Calls alternate between the
    /// two copies.
    pub fn write_superblock(&mut self) -> (u64, Vec<u8>) {
        self.superblock.sequence += 1;
        (self.superblock.position(), self.superblock.encode())
    }

    /// The position of a batch on the device, in bytes.
    pub const fn position(&self, placed: &PlacedBatch) -> u64 {
        self.superblock.geometry.position(placed.segment) + placed.offset
    }

    /// Seals a batch whose payload lies in `buffer`, see [`seal_batch`], and places it.
    ///
    /// # Errors
    /// If the vault has no space for the batch; then nothing has changed.
    ///
    /// # Panics
    /// As [`seal_batch`].
    pub fn place(
        &mut self,
        payload_bytes: u32,
        records: &[Record],
        buffer: &mut [u8],
    ) -> Result<PlacedBatch, DumpFull> {
        let is_unsealed = self.superblock.kind == LogKind::Vault { sealed: None };
        assert!(is_unsealed, "a sealed dump takes no batch");
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
        assert!(
            header.len_bytes() <= BATCH_BYTES_MAX.min(geometry.segment_bytes),
            "batch of {} bytes in a segment of {}",
            header.len_bytes(),
            geometry.segment_bytes
        );
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
        assert!(self.offset <= geometry.segment_bytes, "a batch lies in one segment");
        assert_eq!(header.records as usize, records.len(), "every record is in the batch");
        assert!(self.superblock.is_valid_batch(header.generation, batch), "batch {batch} is void");
        let (segment, offset, len) = (header.segment, header.offset, header.len_bytes());
        let placed = PlacedBatch { batch, segment, offset, len, chain, first_record };
        assert!(self.position(&placed) + len <= self.superblock.size_bytes, "{placed:?}");
        self.placed.push(placed);
        Ok(placed)
    }

    /// Removes a batch and its successors, which the caller then places again in a fresh segment.
    /// The dump is valid only once the new superblock is durable.
    ///
    /// # Errors
    /// If there is no fresh segment, or there were too many relocations; then nothing has changed.
    pub fn relocate(&mut self, batch: u64) -> Result<(), DumpFull> {
        let segment = self.fresh_segment;
        let Some(&first) = self.placed.get(batch as usize) else { return Ok(()) };
        let starts = &mut self.superblock.starts;
        let generation = starts.last().map_or(0, |start| start.generation) + 1;
        let kept = starts.iter().filter(|start| start.batch < batch).count();
        let first_segment = if kept == 0 { segment } else { self.superblock.first_segment };
        let fits = segment - first_segment < self.superblock.geometry.segments;
        // The dump must not overwrite its own beginning.
        let is_unused = segment < self.superblock.geometry.segments;
        if kept >= GENERATIONS_MAX || !fits || !is_unused {
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
        assert_eq!(self.placed.len() as u64, batch, "batches are numbered without gaps");
        assert!(self.superblock.first_segment <= segment, "the dump begins at or before its head");
        Ok(())
    }

    /// Marks the dump as complete in the next superblock. The caller guarantees that every batch is
    /// on stable storage.
    pub fn seal(&mut self) {
        self.superblock.kind = LogKind::Vault { sealed: Some(self.placed.len() as u64) };
    }
}
