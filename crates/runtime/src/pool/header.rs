//! The header of the pool's file: the layout, and the numbers of the volumes.
//!
//! There are two copies, written in turn, each with a sequence number and a checksum. A process
//! that is killed while it writes one copy leaves the other intact. A copy with a wrong checksum or
//! of another version is ignored.
//!
//! A volume is recorded before it gets its first line, so the header names the volume of every
//! line.

use forebay_engine::LineMeta;
use forebay_format::journal::JournalId;
use forebay_types::limits::VOLUMES_MAX;
use forebay_types::{LINE_BYTES, Stripes, VolumeId};

/// The size of one copy: space for the maximum number of volumes with the longest names.
pub(super) const COPY_BYTES: usize = 1 << 20;
/// The size of both copies.
pub(super) const HEADER_BYTES: usize = 2 * COPY_BYTES;
/// Changes with every incompatible layout, and with every change to the mapping of lines to shards.
const VERSION: u32 = 4;
const MAGIC: [u8; 8] = *b"FBAYPOOL";
/// Magic, version, length of the body, checksum of the body.
const PREFIX_BYTES: usize = 24;
/// The longest stored name of a backing store; a longer one is truncated.
const BACKING_BYTES_MAX: usize = 512;

/// The layout of the rest of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub shards: usize,
    /// Lines per shard.
    pub shard_slots: usize,
}

impl Layout {
    /// Where a shard's line table begins.
    pub(crate) const fn table_offset(&self, shard: usize) -> usize {
        HEADER_BYTES + shard * self.shard_slots * size_of::<LineMeta>()
    }

    /// Where the checksums of all lines begin.
    pub(crate) const fn sums_offset(&self) -> usize {
        self.table_offset(self.shards)
    }

    /// Where the data begins, at a multiple of `slab_bytes`.
    pub(crate) const fn data_offset(&self, slab_bytes: usize) -> usize {
        let sums_bytes = self.slots() * size_of::<u32>();
        (self.sums_offset() + sums_bytes).next_multiple_of(slab_bytes)
    }

    /// Lines in all shards.
    pub(crate) const fn slots(&self) -> usize {
        self.shards * self.shard_slots
    }
}

/// A volume that may have lines in the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolVolume {
    /// Its number in the keys of lines.
    pub id: VolumeId,
    pub name: String,
    /// The name of its backing store, for messages.
    pub backing: String,
    pub size_bytes: u64,
    /// Identifies the volume and its disk.
    pub identity: u64,
    /// Whether the backing store outlives the process.
    pub lasts: bool,
    /// The progress of its start.
    pub progress: Progress,
    /// The stripes by which its lines are spread over the shards.
    pub stripes: Stripes,
    /// The journal that has a record of all acknowledged data that the disk may lack, as with
    /// `durability=ack`. Its newest record of a lost sector has the lost data.
    pub recorded_in: Option<JournalId>,
}

/// The progress of a volume that is being added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It is being restored from its journal.
    Restoring,
    /// Its lines in the pool are being recorded in its journal.
    Recording,
    /// All data that its journal held is in the pool or on its disk.
    Whole,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Counts the writes of the header.
    pub sequence: u64,
    pub layout: Layout,
    /// A clean stop has flushed everything to the disks: the lines are void.
    pub is_closed: bool,
    pub volumes: Vec<PoolVolume>,
    /// The memory of the process that created the pool, in bytes; 0 if it was not recorded.
    pub limit_bytes: u64,
    /// Lines that each shard may hold; 0 for all.
    pub shard_lines: u64,
    /// Settings of the process's memory that were changed while it ran, in an encoding of the
    /// program; 0 if unchanged.
    pub memory_settings: MemoryWords,
    /// The memory with which the process that created the pool began, in bytes; 0 if that is the
    /// limit.
    pub start_bytes: u64,
    /// The setting of the share for writes, if it was changed while the process ran, in an encoding
    /// of the program; 0 if unchanged.
    pub share_setting: u64,
}

/// Settings of a process's memory, in an encoding of the program.
pub type MemoryWords = [u64; 4];

impl Header {
    /// The header of an empty pool.
    pub(crate) const fn new(layout: Layout) -> Self {
        Self {
            sequence: 0,
            layout,
            is_closed: false,
            volumes: Vec::new(),
            limit_bytes: 0,
            shard_lines: 0,
            memory_settings: [0; 4],
            start_bytes: 0,
            share_setting: 0,
        }
    }

    /// The copy that it is written to.
    pub(super) const fn copy(&self) -> usize {
        (self.sequence % 2) as usize
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let layout = &self.layout;
        let words = [
            self.sequence,
            layout.shards as u64,
            layout.shard_slots as u64,
            size_of::<LineMeta>() as u64,
            LINE_BYTES,
            u64::from(self.is_closed),
            self.volumes.len() as u64,
        ];
        words.iter().for_each(|word| body.extend(word.to_le_bytes()));
        for volume in &self.volumes {
            let flags = u64::from(volume.lasts) | (volume.progress as u64) << 1;
            let stripes = (volume.stripes.width(), volume.stripes.offset());
            let id = u64::from(volume.id.0);
            let words = [id, volume.size_bytes, volume.identity, flags, stripes.0, stripes.1];
            words.iter().for_each(|word| body.extend(word.to_le_bytes()));
            for text in [&volume.name, &volume.backing] {
                let text = shortened(text);
                body.extend((text.len() as u64).to_le_bytes());
                body.extend(text.bytes());
            }
        }
        body.extend(self.limit_bytes.to_le_bytes());
        for volume in &self.volumes {
            body.extend(u64::from(volume.recorded_in.is_some()).to_le_bytes());
            body.extend(volume.recorded_in.map_or([0; 16], |journal| journal.0));
        }
        body.extend(self.shard_lines.to_le_bytes());
        self.memory_settings.iter().for_each(|word| body.extend(word.to_le_bytes()));
        body.extend(self.start_bytes.to_le_bytes());
        body.extend(self.share_setting.to_le_bytes());
        let mut bytes = Vec::with_capacity(PREFIX_BYTES + body.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(checksum(&body).to_le_bytes());
        bytes.extend(body);
        assert!(bytes.len() <= COPY_BYTES, "the limits of volumes and names keep it short");
        bytes
    }

    /// Decodes a copy, if it is intact and of this version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let prefix = bytes.get(..PREFIX_BYTES)?;
        let len = u32::from_le_bytes(prefix[12..16].try_into().ok()?) as usize;
        let body = bytes.get(PREFIX_BYTES..PREFIX_BYTES.checked_add(len)?)?;
        let version = u32::from_le_bytes(prefix[8..12].try_into().ok()?);
        let is_ours = prefix[..8] == MAGIC
            && version == VERSION
            && prefix[16..24] == checksum(body).to_le_bytes();
        if !is_ours {
            return None;
        }
        let mut body = Body(body);
        let sequence = body.word()?;
        let layout = Layout { shards: body.count()?, shard_slots: body.count()? };
        let same = body.word()? == size_of::<LineMeta>() as u64 && body.word()? == LINE_BYTES;
        let is_closed = body.word()? != 0;
        let count = body.count().filter(|&count| same && count <= VOLUMES_MAX)?;
        let mut volumes = Vec::with_capacity(count);
        for _ in 0..count {
            let id = VolumeId(u16::try_from(body.word()?).ok()?);
            let (size_bytes, identity, flags) = (body.word()?, body.word()?, body.word()?);
            let lasts = flags & 1 != 0;
            let progress = match flags >> 1 {
                0 => Progress::Restoring,
                1 => Progress::Recording,
                2 => Progress::Whole,
                _ => return None,
            };
            let stripes = Stripes::new(body.word()?, body.word()?);
            volumes.push(PoolVolume {
                id,
                name: body.text()?,
                backing: body.text()?,
                size_bytes,
                identity,
                lasts,
                progress,
                stripes,
                recorded_in: None,
            });
        }
        // Earlier programs of this version end the body here, or after one of the fields below.
        let limit_bytes = body.word().unwrap_or(0);
        for volume in &mut volumes {
            let is_recorded = body.word() == Some(1);
            let journal = body.take(16).and_then(|bytes| bytes.try_into().ok()).map(JournalId);
            volume.recorded_in = journal.filter(|_| is_recorded);
        }
        let shard_lines = body.word().unwrap_or(0);
        let memory_settings = std::array::from_fn(|_| body.word().unwrap_or(0));
        let start_bytes = body.word().unwrap_or(0);
        let share_setting = body.word().unwrap_or(0);
        Some(Self {
            sequence,
            layout,
            is_closed,
            volumes,
            limit_bytes,
            shard_lines,
            memory_settings,
            start_bytes,
            share_setting,
        })
    }

    /// The newest intact copy.
    pub(super) fn newest(copies: [&[u8]; 2]) -> Option<Self> {
        let whole = copies.into_iter().filter_map(Self::decode);
        whole.max_by_key(|header| header.sequence)
    }

    /// Whether a copy is the header of a pool of any version.
    pub(super) fn is_pool(copies: [&[u8]; 2]) -> bool {
        copies.iter().any(|copy| copy.starts_with(&MAGIC))
    }
}

fn shortened(text: &str) -> &str {
    let mut end = text.len().min(BACKING_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The undecoded rest of the body.
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn take(&mut self, len: usize) -> Option<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn word(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn count(&mut self) -> Option<usize> {
        usize::try_from(self.word()?).ok()
    }

    fn text(&mut self) -> Option<String> {
        let len = self.count()?;
        String::from_utf8(self.take(len)?.to_vec()).ok()
    }
}

/// FNV-1a (Fowler, Noll, Vo). It must detect torn writes, not forgery.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(sequence: u64, volumes: u16) -> Header {
        let volume = |id| PoolVolume {
            id: VolumeId(id),
            name: format!("v{id}"),
            backing: "/dev/sdb".into(),
            size_bytes: 1 << 40,
            identity: 7,
            lasts: id % 2 == 0,
            progress: if id % 3 == 0 { Progress::Recording } else { Progress::Whole },
            stripes: if id % 2 == 0 { Stripes::NONE } else { Stripes::new(7 << 16, 4096) },
            recorded_in: (id % 4 < 2).then_some(JournalId([id as u8; 16])),
        };
        let layout = Layout { shards: 4, shard_slots: 512 };
        let volumes = (0..volumes).map(volume).collect();
        Header {
            sequence,
            layout,
            is_closed: sequence % 2 == 1,
            volumes,
            limit_bytes: sequence << 20,
            shard_lines: sequence << 9,
            memory_settings: [0, sequence, u64::MAX, 7],
            start_bytes: sequence << 18,
            share_setting: sequence + 50,
        }
    }

    #[test]
    fn a_header_survives_encoding() {
        for volumes in [0, 1, 7] {
            let header = header(3, volumes);
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
    }

    /// Decodes a header as an earlier program writes it: with a body that is shorter by `words`.
    fn shortened_by(words: usize, header: &Header) -> Option<Header> {
        let mut bytes = header.encode();
        bytes.truncate(bytes.len() - 8 * words);
        let body = &bytes[PREFIX_BYTES..];
        let (len, sum) = (body.len() as u32, checksum(body));
        bytes[12..16].copy_from_slice(&len.to_le_bytes());
        bytes[16..24].copy_from_slice(&sum.to_le_bytes());
        Header::decode(&bytes)
    }

    #[test]
    fn the_headers_of_earlier_programs_are_read() {
        let mut header = header(3, 2);
        assert!(header.volumes.iter().all(|volume| volume.recorded_in.is_some()));
        let found = shortened_by(1, &header).unwrap();
        header.share_setting = 0;
        assert_eq!(found, header, "without the share for writes");
        let found = shortened_by(6, &header).unwrap();
        (header.memory_settings, header.start_bytes) = ([0; 4], 0);
        assert_eq!(found, header, "without the settings of its memory");
        let found = shortened_by(7, &header).unwrap();
        header.shard_lines = 0;
        assert_eq!(found, header, "without the size of shards");
        let found = shortened_by(13, &header).unwrap();
        header.volumes.iter_mut().for_each(|volume| volume.recorded_in = None);
        assert_eq!(found, header, "without what their journals have");
        let found = shortened_by(14, &header).unwrap();
        assert_eq!(found, Header { limit_bytes: 0, ..header }, "nor the memory of their process");
    }

    #[test]
    fn the_longest_names_of_all_volumes_fit() {
        let mut header = header(1, VOLUMES_MAX as u16);
        for volume in &mut header.volumes {
            volume.name = "ä".repeat(forebay_types::limits::VOLUME_NAME_BYTES_MAX / 2);
            volume.backing = "/".repeat(5000);
        }
        let read = Header::decode(&header.encode()).unwrap();
        assert_eq!(read.volumes.len(), VOLUMES_MAX);
        assert_eq!(read.volumes[5].name, header.volumes[5].name);
        assert_eq!(read.volumes[5].backing.len(), BACKING_BYTES_MAX);
    }

    #[test]
    fn a_torn_copy_leaves_the_other() {
        let (old, new) = (header(4, 3), header(5, 2));
        let (old_bytes, new_bytes) = (old.encode(), new.encode());
        assert_eq!(Header::newest([&old_bytes, &new_bytes]), Some(new.clone()));
        for cut in 0..new_bytes.len() {
            // The torn write overwrites the older copy.
            let mut torn = header(3, 6).encode();
            torn[..cut].copy_from_slice(&new_bytes[..cut]);
            let found = Header::newest([&old_bytes, &torn]).unwrap();
            assert!(found == old || found == new, "cut at {cut}");
        }
        assert!(Header::is_pool([&old_bytes, &[]]) && !Header::is_pool([&[0; 64], &[]]));
    }

    #[test]
    fn every_changed_byte_of_a_copy_is_detected() {
        let bytes = header(4, 2).encode();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            assert_eq!(Header::decode(&changed), None, "byte {at}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Header::decode(&bytes[..len]), None);
        }
    }
}
