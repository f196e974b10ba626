//! The manifest: the root of a volume, and the only object of it that is replaced.

use crate::SECTOR_BYTES;
use crate::checkpoint::{CheckpointRef, PART_BYTES_MAX, PartRef};
use crate::codec::{Damaged, NumberReader, begin, seal, verified};

/// Size of a manifest, at most.
pub const MANIFEST_BYTES_MAX: u64 = 1 << 20;
const MAGIC: &[u8; 4] = b"FBmf";
const VERSION: u32 = 1;
/// Length of the record of the owner, at most.
const OWNER_BYTES_MAX: usize = 4096;
/// Epochs since the last checkpoint, at most. Each open of a volume adds one.
const REPLAY_MAX: usize = 4096;
/// Epochs since the last checkpoint that make one due: an open reads the end of each.
const REPLAY_MANY: usize = 8;
const PARTS_MAX: usize = 16_384;

/// The root of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The volume, drawn when it is created.
    pub volume: [u8; 16],
    /// The size of the volume, in bytes: a multiple of 512 above zero.
    pub size_bytes: u64,
    /// The present epoch. Each open for writing begins one.
    pub epoch: u64,
    /// The nonce of the owner.
    pub nonce: u64,
    /// That of the owner before; 0 if there was none.
    pub former: u64,
    /// Counts the manifests that an owner has written.
    pub serial: u64,
    /// Who has the volume open for writing: a record of the driver, empty if nobody has.
    pub owner: String,
    /// The first object that is not in the checkpoint.
    pub first: u64,
    /// The epochs whose objects follow the checkpoint, in order. The last one is the present one.
    pub replay: Vec<u64>,
    /// The map, if there is a checkpoint.
    pub checkpoint: Option<CheckpointRef>,
}

impl Manifest {
    /// Its bytes.
    ///
    /// # Panics
    /// If a list has more than can be read back.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.volume);
        for number in
            [self.size_bytes, self.epoch, self.nonce, self.former, self.serial, self.first]
        {
            bytes.extend(number.to_le_bytes());
        }
        assert!(self.owner.len() <= OWNER_BYTES_MAX, "the record of the owner is short");
        bytes.extend((self.owner.len() as u32).to_le_bytes());
        bytes.extend(self.owner.as_bytes());
        assert!(self.replay.len() <= REPLAY_MAX, "a checkpoint ends the list of epochs");
        bytes.extend((self.replay.len() as u32).to_le_bytes());
        self.replay.iter().for_each(|epoch| bytes.extend(epoch.to_le_bytes()));
        bytes.push(u8::from(self.checkpoint.is_some()));
        if let Some(CheckpointRef { epoch, covers, parts }) = &self.checkpoint {
            bytes.extend(epoch.to_le_bytes());
            bytes.extend(covers.to_le_bytes());
            assert!(parts.len() <= PARTS_MAX, "the parts of a checkpoint are large");
            bytes.extend((parts.len() as u32).to_le_bytes());
            for part in parts {
                bytes.extend(part.bytes.to_le_bytes());
                bytes.extend(part.checksum.to_le_bytes());
            }
        }
        seal(&mut bytes);
        bytes
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        begin(bytes, MAGIC, VERSION)?;
        let mut reader = begin(verified(bytes)?, MAGIC, VERSION)?;
        let volume = reader.array()?;
        let size_bytes = reader.u64()?;
        if size_bytes == 0 || !size_bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(Damaged::Value("size"));
        }
        let (epoch, nonce, former) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let serial = reader.u64()?;
        let first = reader.u64()?;
        // Numbers have 48 bits in the map, and are counted up from here.
        if first == 0 || first >> 47 != 0 || epoch >> 47 != 0 {
            return Err(Damaged::Value("epoch"));
        }
        let length = reader.u32()? as usize;
        if length > OWNER_BYTES_MAX {
            return Err(Damaged::Value("owner"));
        }
        let owner = std::str::from_utf8(reader.bytes(length)?);
        let owner = owner.map_err(|_| Damaged::Value("owner"))?.to_owned();
        let replay = read_epochs(&mut reader, epoch)?;
        let checkpoint = match reader.u8()? {
            0 => None,
            1 => Some(read_checkpoint(&mut reader)?),
            _ => return Err(Damaged::Value("checkpoint")),
        };
        if checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.covers >= first) {
            return Err(Damaged::Value("checkpoint"));
        }
        if !reader.0.is_empty() {
            return Err(Damaged::Value("length"));
        }
        Ok(Self {
            volume,
            size_bytes,
            epoch,
            nonce,
            former,
            serial,
            owner,
            first,
            replay,
            checkpoint,
        })
    }

    /// Whether there are so many epochs since the last checkpoint that one is due.
    pub fn has_many_epochs(&self) -> bool {
        self.replay.len() > REPLAY_MANY
    }

    /// The size of the volume in sectors.
    pub fn sectors(&self) -> u64 {
        self.size_bytes / SECTOR_BYTES
    }
}

fn read_epochs(reader: &mut NumberReader<'_>, present: u64) -> Result<Vec<u64>, Damaged> {
    let count = reader.u32()? as usize;
    if count > REPLAY_MAX {
        return Err(Damaged::Value("number of epochs"));
    }
    let mut epochs = Vec::new();
    for _ in 0..count {
        epochs.push(reader.u64()?);
    }
    let is_ascending = epochs.windows(2).all(|pair| pair[0] < pair[1]);
    match epochs.last() {
        Some(last) if *last == present && is_ascending => Ok(epochs),
        _ => Err(Damaged::Value("list of epochs")),
    }
}

fn read_checkpoint(reader: &mut NumberReader<'_>) -> Result<CheckpointRef, Damaged> {
    let (epoch, covers) = (reader.u64()?, reader.u64()?);
    let count = reader.u32()? as usize;
    if count > PARTS_MAX {
        return Err(Damaged::Value("number of parts"));
    }
    let mut parts = Vec::new();
    for _ in 0..count {
        let (bytes, checksum) = (reader.u32()?, reader.u32()?);
        if bytes > PART_BYTES_MAX {
            return Err(Damaged::Value("size of a part"));
        }
        parts.push(PartRef { bytes, checksum });
    }
    Ok(CheckpointRef { epoch, covers, parts })
}
