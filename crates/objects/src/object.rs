//! What an object begins with: its header, and the runs that were written.
//!
//! ```text
//! header   68 bytes: see `ObjectHeader::encode`
//! table    16 bytes for each run, and the checksum of the table
//! data     frames (`frames`)
//! ```
//!
//! Runs are in the order in which they were written: a later one replaces what an earlier one has
//! at the same sectors. The data of all runs is one sequence of sectors, in the same order.

use crate::codec::{Damaged, begin, checksum, seal, verified};
use crate::{ObjectName, frames};

/// Sectors of data in one object, at most: their numbers have 16 bits in the map.
pub const SECTORS_MAX: u64 = u16::MAX as u64;
/// Size of the header.
pub const HEADER_BYTES: u64 = 68;
/// Runs of one object, at most: each has at least a sector, and so many erased ones are enough.
const RUNS_MAX: u32 = 1 << 18;
const RUN_BYTES: u64 = 16;
const MAGIC: &[u8; 4] = b"FBob";
const VERSION: u32 = 1;
/// The flag of an erased run, in its length.
const ERASED: u64 = 1 << 63;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Runs of a volume.
    Data,
    /// The end of an epoch.
    Tombstone,
}

/// A change of consecutive sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorRun {
    /// The first sector of the volume.
    pub start: u64,
    /// How many.
    pub len: u64,
    /// Whether they read as zeroes from now on; otherwise the object has their data.
    pub is_erased: bool,
}

impl SectorRun {
    /// Sectors of data that the object has for it.
    pub const fn data_sectors(&self) -> u64 {
        if self.is_erased { 0 } else { self.len }
    }
}

/// The header of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectHeader {
    /// The volume.
    pub volume: [u8; 16],
    /// Epoch and number.
    pub name: ObjectName,
    /// Drawn by the process that wrote it: with it, a process recognises its own object after the
    /// answer to its request was lost.
    pub nonce: u64,
    /// What it is.
    pub kind: ObjectKind,
    /// The number of runs.
    pub run_count: u32,
    /// Sectors of data of all runs.
    pub sectors: u32,
}

impl ObjectHeader {
    /// The place of the first frame, in bytes.
    pub const fn data_offset(&self) -> u64 {
        data_offset(self.run_count)
    }

    /// The size of the table of runs with its checksum.
    pub const fn table_bytes(&self) -> u64 {
        self.run_count as u64 * RUN_BYTES + 4
    }

    /// The size of the whole object.
    pub const fn object_bytes(&self) -> u64 {
        self.data_offset() + frames::bytes_of(self.sectors as u64)
    }

    /// The header and the table of `runs`, whose counts are those in the header.
    pub fn encode(&self, runs: &[SectorRun]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.data_offset() as usize);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.volume);
        bytes.extend(self.name.epoch.to_le_bytes());
        bytes.extend(self.name.number.to_le_bytes());
        bytes.extend(self.nonce.to_le_bytes());
        bytes.extend(u64::from(self.kind == ObjectKind::Tombstone).to_le_bytes());
        bytes.extend(self.run_count.to_le_bytes());
        bytes.extend(self.sectors.to_le_bytes());
        seal(&mut bytes);
        debug_assert_eq!(bytes.len() as u64, HEADER_BYTES);
        let table = bytes.len();
        for run in runs {
            bytes.extend(run.start.to_le_bytes());
            bytes.extend((run.len | if run.is_erased { ERASED } else { 0 }).to_le_bytes());
        }
        let sum = checksum(&bytes[table..]);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// Reads a header from the front of an object.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let bytes = bytes.get(..HEADER_BYTES as usize).ok_or(Damaged::Short)?;
        begin(bytes, MAGIC, VERSION)?;
        let mut reader = begin(verified(bytes)?, MAGIC, VERSION)?;
        let volume = reader.array()?;
        let name = ObjectName { epoch: reader.u64()?, number: reader.u64()? };
        let nonce = reader.u64()?;
        let kind = match reader.u64()? {
            0 => ObjectKind::Data,
            1 => ObjectKind::Tombstone,
            _ => return Err(Damaged::Value("kind")),
        };
        let (run_count, sectors) = (reader.u32()?, reader.u32()?);
        if run_count > RUNS_MAX {
            return Err(Damaged::Value("number of runs"));
        }
        if u64::from(sectors) > SECTORS_MAX {
            return Err(Damaged::Value("number of sectors"));
        }
        Ok(Self { volume, name, nonce, kind, run_count, sectors })
    }

    /// Reads the table of runs, which follows the header, of a volume of `volume_sectors`.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn decode_runs(
        &self,
        table: &[u8],
        volume_sectors: u64,
    ) -> Result<Vec<SectorRun>, Damaged> {
        let table = table.get(..self.table_bytes() as usize).ok_or(Damaged::Short)?;
        let table = verified(table)?;
        let mut runs = Vec::with_capacity(self.run_count as usize);
        for entry in table.chunks_exact(RUN_BYTES as usize) {
            let mut reader = crate::codec::NumberReader(entry);
            let (start, len) = (reader.u64()?, reader.u64()?);
            let run = SectorRun { start, len: len & !ERASED, is_erased: len & ERASED != 0 };
            let end = run.start.checked_add(run.len);
            if run.len == 0 || end.is_none_or(|end| end > volume_sectors) {
                return Err(Damaged::Value("run"));
            }
            runs.push(run);
        }
        let mut sectors = 0u64;
        for run in &runs {
            sectors = sectors.checked_add(run.data_sectors()).ok_or(Damaged::Value("run"))?;
        }
        if sectors != u64::from(self.sectors) {
            return Err(Damaged::Value("number of sectors"));
        }
        Ok(runs)
    }
}

/// The place of the first frame of an object with so many runs, in bytes.
pub(crate) const fn data_offset(run_count: u32) -> u64 {
    HEADER_BYTES + run_count as u64 * RUN_BYTES + 4
}

/// Whether another run fits into the table of an object.
pub(crate) const fn has_room(run_count: usize) -> bool {
    run_count < RUNS_MAX as usize
}
