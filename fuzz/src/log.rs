//! Small journals and vaults to be damaged, and functions that repair their checksums after the
//! damage.

use forebay_format::checksum;
use forebay_format::journal::{
    BLOCK_BYTES, Geometry, HEADER_BYTES, JournalId, LOG_OFFSET, RECORD_BYTES, Record, RecordKind,
    SUPERBLOCK_BYTES, VolumeEntry,
};
use forebay_journal::{Dump, Log, LogAdmission, LogEntry, ReadAt, RecordOutcome};
use forebay_types::{ByteRange, IoError};

/// Small segments, as in the lab.
pub const GEOMETRY: Geometry = Geometry { segment_bytes: 64 << 10, segments: 8 };
/// Bytes of the device.
pub const DEVICE_BYTES: u64 = LOG_OFFSET + GEOMETRY.segment_bytes * GEOMETRY.segments;
/// Bytes of the longest batch.
pub const BUFFER_BYTES: usize = 32 << 10;
const VOLUME_BYTES: u64 = 1 << 20;
const ID: JournalId = JournalId([7; 16]);

/// A device in memory.
#[derive(Clone)]
pub struct Device {
    /// Its content.
    pub bytes: Vec<u8>,
    /// Start of the log's batches.
    batches: Vec<usize>,
}

impl ReadAt for Device {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        let end = position.checked_add(buffer.len() as u64).ok_or(IoError::Io)?;
        assert!(position.is_multiple_of(BLOCK_BYTES) && end.is_multiple_of(BLOCK_BYTES));
        let bytes = self.bytes.get(position as usize..end as usize).ok_or(IoError::Io)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

fn ranges() -> impl Iterator<Item = ByteRange> {
    [(0, 8), (100, 3), (2, 1), (1000, 20), (2047, 1), (101, 1), (990, 30)]
        .into_iter()
        .map(|(sector, sectors)| ByteRange::new(sector * 512, sectors * 512))
}

impl Device {
    fn put(&mut self, position: u64, bytes: &[u8]) {
        let at = position as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A journal with writes and erases of two volumes, in several batches.
    pub fn journal() -> Self {
        let mut device = Self { bytes: vec![0; DEVICE_BYTES as usize], batches: Vec::new() };
        let buffers = vec![vec![0; BUFFER_BYTES]; 3];
        let mut log: Log<Vec<u8>, ()> = Log::format(ID, DEVICE_BYTES, GEOMETRY, buffers);
        let volumes = [b'a', b'b'].map(|name| {
            let text = char::from(name).to_string();
            log.add_volume(&text, VOLUME_BYTES, [name; 32]).expect("there is room for two")
        });
        for (at, range) in ranges().enumerate() {
            for volume in volumes {
                let entry = |kind| LogEntry { kind, volume, range };
                let bytes = vec![at as u8; range.len as usize];
                assert_eq!(log.admit(volume, range.len, ()), LogAdmission::Granted);
                assert!(log.append(entry(RecordKind::Write), [&bytes[..]].into_iter(), None));
                if at == 3 {
                    for kind in [RecordKind::Zero { unmap: true }, RecordKind::Forget] {
                        assert_eq!(log.record(entry(kind), None), RecordOutcome::Recorded);
                    }
                }
            }
            while let Some(write) = log.poll_write() {
                if write.batch().is_some() {
                    device.batches.push(write.position as usize);
                }
                device.put(write.position, write.bytes());
                log.complete(write, Ok(()), &mut Vec::new());
            }
        }
        device
    }

    /// A vault with a complete dump of two volumes.
    pub fn vault() -> Self {
        let mut device = Self { bytes: vec![0; DEVICE_BYTES as usize], batches: Vec::new() };
        let volumes = [b'a', b'b'].into_iter().enumerate().map(|(number, name)| VolumeEntry {
            number: number as u16,
            name: char::from(name).to_string(),
            size_bytes: VOLUME_BYTES,
            identity: [name; 32],
            disk: Default::default(),
            void_before: 0,
        });
        let mut dump = Dump::new(ID, DEVICE_BYTES, GEOMETRY, 0, volumes.collect());
        for _ in 0..2 {
            let (position, bytes) = dump.write_superblock();
            device.put(position, &bytes);
        }
        for (at, range) in ranges().enumerate() {
            let len = range.len as usize;
            let mut buffer = vec![at as u8; BUFFER_BYTES];
            let record = |volume, payload_offset| {
                let bytes = &vec![at as u8; len];
                let sum = Record::checksum_of(volume, range.offset, bytes);
                Record { kind: RecordKind::Write, volume, range, payload_offset, checksum: sum }
            };
            let records = [record(0, 0), record(1, len as u32)];
            let placed = dump.place(2 * len as u32, &records, &mut buffer).expect("there is room");
            let position = dump.position(&placed);
            device.batches.push(position as usize);
            device.put(position, &buffer[..placed.len as usize]);
        }
        dump.seal();
        let (position, bytes) = dump.write_superblock();
        device.put(position, &bytes);
        device
    }

    /// Changes one byte per four bytes of the input, in used areas.
    pub fn damage(&mut self, input: &[u8]) {
        for edit in input.as_chunks::<4>().0 {
            let at = usize::from(edit[1]) << 8 | usize::from(edit[2]);
            let batch = self.batches[usize::from(edit[0] >> 2) % self.batches.len()];
            let at = match edit[0] % 4 {
                0 => at % SUPERBLOCK_BYTES,
                1 => SUPERBLOCK_BYTES + at % SUPERBLOCK_BYTES,
                2 => batch + at % HEADER_BYTES,
                _ => batch + at % (8 << 10),
            };
            self.bytes[at] = edit[3];
        }
    }

    /// Recomputes the checksum of both copies of the superblock.
    pub fn reseal_superblocks(&mut self) {
        let (copies, _) = self.bytes.split_at_mut(LOG_OFFSET as usize);
        copies.chunks_mut(SUPERBLOCK_BYTES).for_each(reseal_superblock);
    }

    /// Recomputes and chains the checksums of all batches.
    pub fn reseal_batches(&mut self) {
        let mut chain = 0_u32;
        for &at in &self.batches {
            let bytes = &mut self.bytes[at..];
            let number = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
            let (payload_bytes, records) = (number(52) as usize, number(56) as usize);
            let from = HEADER_BYTES.saturating_add(payload_bytes);
            let to = from.saturating_add(records.saturating_mul(RECORD_BYTES));
            if let Some(records) = bytes.get(from..to) {
                let batch = bytes[24..32].try_into().map_or(0, u64::from_le_bytes);
                let sum = checksum(batch, records);
                bytes[12..16].copy_from_slice(&sum.to_le_bytes());
            }
            bytes[8..12].copy_from_slice(&chain.to_le_bytes());
            bytes[4..8].fill(0);
            chain = checksum(ID.seed(), &bytes[..HEADER_BYTES]);
            bytes[4..8].copy_from_slice(&chain.to_le_bytes());
        }
    }
}

/// Recomputes the checksum of one copy of the superblock.
pub fn reseal_superblock(copy: &mut [u8]) {
    let mut id = [0; 16];
    id.copy_from_slice(&copy[16..32]);
    copy[12..16].fill(0);
    let sum = checksum(JournalId(id).seed(), copy);
    copy[12..16].copy_from_slice(&sum.to_le_bytes());
}
