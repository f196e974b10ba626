//! The superblock: the journal's identity, geometry, generations, members and volumes.

use super::disk_info::{DISK_INFO_BYTES, DiskInfo, Released};
use super::{COUNT_MAX, Geometry, JournalId, SUPERBLOCK_BYTES};
use crate::checksum;
use std::fmt;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"FOREBAYJ";
const VERSION: u32 = 1;
/// Maximum number of volumes of one journal.
pub const VOLUMES_MAX: usize = 128;
/// Maximum number of generations in one log. A log that has reached it must be written to the disks
/// before it is resumed.
pub const GENERATIONS_MAX: usize = 16;
/// Maximum number of devices of one log.
pub const MEMBERS_MAX: usize = 2;
const NAME_BYTES: usize = 256;
const COUNTER_OUT_OF_RANGE: &str = "a counter is out of range";

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SuperblockHead {
    magic: [u8; 8],
    version: U32,
    /// Checksum of the whole copy with this field zero, seeded with the journal's identity.
    checksum: U32,
    journal: [u8; 16],
    sequence: U64,
    size_bytes: U64,
    segment_bytes: U32,
    volumes: U16,
    generations: U16,
    segments: U64,
    /// Nonzero if the disks have everything in the log.
    clean: U64,
    first_segment: U64,
    next_volume: U16,
    reserved: [u8; 2],
    beat_ms: U32,
    member: U64,
    members: [U64; MEMBERS_MAX],
    reserved_too: [u8; 3584],
    /// Zero for a journal, one for a vault.
    kind: U64,
    /// One more than the number of batches of a sealed dump, otherwise zero.
    sealed: U64,
    starts: [Start; GENERATIONS_MAX],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Start {
    generation: U64,
    batch: U64,
    segment: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct VolumeFields {
    identity: [u8; 32],
    size_bytes: U64,
    name_bytes: U16,
    number: U16,
    disk: [u8; DISK_INFO_BYTES],
    name: [u8; NAME_BYTES],
}

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    head: SuperblockHead,
    volumes: [VolumeFields; VOLUMES_MAX],
    /// For each volume, the number of the first record that may be valid.
    void_before: [U64; VOLUMES_MAX],
    reserved: [u8; 3072],
}

const _: () = assert!(size_of::<Start>() == 24);
const _: () = assert!(size_of::<SuperblockHead>() == 4096);
const _: () = assert!(size_of::<VolumeFields>() == 448);
const _: () = assert!(size_of::<RawSuperblock>() == SUPERBLOCK_BYTES);
const _: () = assert!(NAME_BYTES <= u16::MAX as usize);

/// The start of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationStart {
    /// The generation, from 1 on.
    pub generation: u64,
    /// Its first batch.
    pub batch: u64,
    /// The segment of that batch.
    pub segment: u64,
}

/// A volume that the journal has records of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Its number in the records of this journal, which stays the same while the log may have
    /// records of the volume.
    pub number: u16,
    /// Its name when it was added, at most 256 bytes.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Identifies the configured disk; computed by the backend.
    pub identity: [u8; 32],
    /// The fingerprint of the disk, and whether the operator has released the records.
    pub disk: DiskInfo,
    /// Records with a lower number are void: the disk has their content, or newer.
    pub void_before: u64,
}

impl VolumeEntry {
    /// Whether the volume's records are valid: the operator has not released them.
    pub fn has_valid_records(&self) -> bool {
        self.disk.released == Released::No
    }
}

/// The devices that hold the log. A device gets a new number when it becomes a member, and when it
/// is recovered without the other device, so that no older member list covers what is written to it
/// afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// The number of the device that holds this superblock. Zero in a journal that was never
    /// mirrored. A vault draws its number at creation, and is its only member.
    pub own: u64,
    /// The numbers of the members, which hold every acknowledged record; zero for none.
    pub current: [u64; MEMBERS_MAX],
}

impl Members {
    /// Whether the device with this number is a member.
    pub fn has(&self, number: u64) -> bool {
        number != 0 && self.current.contains(&number)
    }

    /// The numbers of the members.
    pub fn numbers(&self) -> Vec<u64> {
        self.current.into_iter().filter(|&number| number != 0).collect()
    }
}

/// The kind of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogKind {
    /// Records writes continuously.
    #[default]
    Journal,
    /// Takes all dirty data in one go, when the battery runs low.
    Vault {
        /// Number of batches of a sealed dump; `None` while the dump is written.
        sealed: Option<u64>,
    },
}

impl LogKind {
    /// The name of the kind.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Vault { .. } => "vault",
        }
    }

    const fn encode(self) -> (u64, u64) {
        match self {
            Self::Journal => (0, 0),
            Self::Vault { sealed: None } => (1, 0),
            Self::Vault { sealed: Some(batches) } => (1, batches + 1),
        }
    }

    const fn decode(kind: u64, sealed: u64) -> Option<Self> {
        match (kind, sealed) {
            (0, 0) => Some(Self::Journal),
            (1, sealed) => Some(Self::Vault { sealed: sealed.checked_sub(1) }),
            _ => None,
        }
    }
}

/// A valid superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The identity of the journal.
    pub journal: JournalId,
    /// The kind of log.
    pub kind: LogKind,
    /// The sequence number; copy `sequence % 2` holds the superblock.
    pub sequence: u64,
    /// Size of the device in bytes at the journal's creation.
    pub size_bytes: u64,
    /// The division into segments.
    pub geometry: Geometry,
    /// Whether the disks have everything in the log.
    pub is_clean: bool,
    /// The oldest segment still needed.
    pub first_segment: u64,
    /// The generations in the log, oldest first.
    pub starts: Vec<GenerationStart>,
    /// The number for the next volume. A number is not reused while the log may hold records with
    /// it, so that a record of a removed volume is never taken for one of another volume.
    pub next_volume: u16,
    /// The volumes. Records of other volumes are void.
    pub volumes: Vec<VolumeEntry>,
    /// The devices that hold the log.
    pub members: Members,
    /// How often its owner writes the superblock again while it lives, in milliseconds; zero if it
    /// promises none. Another host that reads the same sequence number for much longer may take
    /// over.
    pub beat_ms: u32,
}

/// Why bytes are not a valid superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuperblockInvalid {
    /// The magic is missing.
    Foreign,
    /// The format version is not supported.
    Version(u32),
    /// The checksum does not match: the superblock is damaged or torn.
    Checksum,
    /// The fields contradict each other, although the checksum matches.
    Contradiction(&'static str),
}

impl fmt::Display for SuperblockInvalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("holds no journal"),
            Self::Version(version) => {
                write!(f, "has journal format {version}, this program reads format {VERSION}")
            }
            Self::Checksum => f.write_str("has a damaged superblock"),
            Self::Contradiction(what) => write!(f, "has an invalid superblock: {what}"),
        }
    }
}

impl std::error::Error for SuperblockInvalid {}

impl Superblock {
    /// Encodes the copy to be written at [`Superblock::position`].
    ///
    /// # Panics
    /// If there are too many volumes or generations, if a name is too long, or if the fields
    /// contradict each other.
    pub fn encode(&self) -> Vec<u8> {
        self.check();
        self.encode_unchecked()
    }

    /// As [`Superblock::encode`], but encodes contradictory fields too. For tests that forge a
    /// superblock.
    ///
    /// # Panics
    /// If there are too many volumes or generations, or if a name is too long.
    pub fn encode_unchecked(&self) -> Vec<u8> {
        assert!(self.volumes.len() <= VOLUMES_MAX, "{} volumes", self.volumes.len());
        assert!(self.starts.len() <= GENERATIONS_MAX, "{} generations", self.starts.len());
        let mut image = zeroed();
        let (kind, sealed) = self.kind.encode();
        image.head = SuperblockHead {
            magic: MAGIC,
            version: VERSION.into(),
            kind: kind.into(),
            sealed: sealed.into(),
            journal: self.journal.0,
            sequence: self.sequence.into(),
            size_bytes: self.size_bytes.into(),
            segment_bytes: (self.geometry.segment_bytes as u32).into(),
            volumes: (self.volumes.len() as u16).into(),
            generations: (self.starts.len() as u16).into(),
            segments: self.geometry.segments.into(),
            clean: u64::from(self.is_clean).into(),
            first_segment: self.first_segment.into(),
            next_volume: self.next_volume.into(),
            member: self.members.own.into(),
            members: self.members.current.map(Into::into),
            beat_ms: self.beat_ms.into(),
            ..image.head
        };
        for (to, from) in image.head.starts.iter_mut().zip(&self.starts) {
            to.generation = from.generation.into();
            to.batch = from.batch.into();
            to.segment = from.segment.into();
        }
        for (to, from) in image.volumes.iter_mut().zip(&self.volumes) {
            to.identity = from.identity;
            to.disk = from.disk.encode();
            to.size_bytes = from.size_bytes.into();
            to.number = from.number.into();
            to.name_bytes = (from.name.len() as u16).into();
            to.name[..from.name.len()].copy_from_slice(from.name.as_bytes());
        }
        for (to, from) in image.void_before.iter_mut().zip(&self.volumes) {
            *to = from.void_before.into();
        }
        image.head.checksum = checksum(self.journal.seed(), image.as_bytes()).into();
        image.as_bytes().to_vec()
    }

    /// Panics if the fields contradict each other. Counters may be up to twice as large as
    /// [`Superblock::decode`] accepts.
    fn check(&self) {
        let Geometry { segment_bytes, segments } = self.geometry;
        assert!(
            self.geometry.is_valid(self.size_bytes),
            "{segments} segments of {segment_bytes} bytes do not fit {} bytes",
            self.size_bytes
        );
        assert!(self.volumes.len() <= VOLUMES_MAX, "{} volumes", self.volumes.len());
        assert!(!self.starts.is_empty(), "a log has a generation");
        assert!(self.starts.len() <= GENERATIONS_MAX, "{} generations", self.starts.len());
        assert!(self.starts.windows(2).all(ascends), "generations ascend: {:?}", self.starts);
        let is_inside = starts_inside(&self.starts, self.first_segment, segments);
        assert!(is_inside, "generations start within the log: {:?}", self.starts);
        let voided = self.volumes.iter().map(|volume| volume.void_before);
        let started = self.starts.iter().flat_map(|start| [start.generation, start.batch]);
        let counters = [self.sequence, self.first_segment].into_iter().chain(started).chain(voided);
        assert!(counters.max() < Some(2 * COUNT_MAX), "counters are in range: {self:?}");
        for (at, volume) in self.volumes.iter().enumerate() {
            let number = volume.number;
            assert!(number < self.next_volume, "volume number {number} is below the next one");
            let is_unique = self.volumes[..at].iter().all(|other| other.number != number);
            assert!(is_unique, "volume number {number} is assigned twice");
            assert!(volume.name.len() <= NAME_BYTES, "name of {} bytes", volume.name.len());
        }
        let Members { own, current } = self.members;
        assert!(own == 0 || self.members.has(own), "device {own} is a member of its own journal");
        assert!(own != 0 || current == [0; MEMBERS_MAX], "a device without a number lists members");
        assert!(own == 0 || current[0] != current[1], "the members have different numbers");
    }

    /// The first block of an unfinished superblock: a magic number and a version without a valid
    /// checksum. A device with it is recognised as a journal that cannot be used yet. Only the
    /// first sector has content, so the block cannot be torn.
    pub fn unfinished() -> Vec<u8> {
        let mut block = vec![0; super::BLOCK_BYTES as usize];
        block[..MAGIC.len()].copy_from_slice(&MAGIC);
        block[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&VERSION.to_le_bytes());
        block
    }

    /// The position of this copy on the device in bytes.
    pub const fn position(&self) -> u64 {
        self.sequence % 2 * SUPERBLOCK_BYTES as u64
    }

    /// Decodes a copy.
    ///
    /// # Errors
    /// If it is not a valid superblock.
    pub fn decode(bytes: &[u8]) -> Result<Self, SuperblockInvalid> {
        let Ok((image, _)) = RawSuperblock::ref_from_prefix(bytes) else {
            return Err(SuperblockInvalid::Foreign);
        };
        let head = &image.head;
        if head.magic != MAGIC {
            return Err(SuperblockInvalid::Foreign);
        }
        if head.version.get() != VERSION {
            return Err(SuperblockInvalid::Version(head.version.get()));
        }
        let journal = JournalId(head.journal);
        let mut covered = image.clone();
        covered.head.checksum = 0.into();
        if checksum(journal.seed(), covered.as_bytes()) != head.checksum.get() {
            return Err(SuperblockInvalid::Checksum);
        }
        let geometry = Geometry {
            segment_bytes: head.segment_bytes.get().into(),
            segments: head.segments.get(),
        };
        if !geometry.is_valid(head.size_bytes.get()) {
            return Err(SuperblockInvalid::Contradiction("segments do not fit the device"));
        }
        if [head.sequence, head.first_segment].iter().any(|count| count.get() > COUNT_MAX) {
            return Err(SuperblockInvalid::Contradiction(COUNTER_OUT_OF_RANGE));
        }
        let kind = LogKind::decode(head.kind.get(), head.sealed.get());
        let kind = kind.ok_or(SuperblockInvalid::Contradiction("unknown kind of log"))?;
        Ok(Self {
            journal,
            kind,
            sequence: head.sequence.get(),
            size_bytes: head.size_bytes.get(),
            geometry,
            is_clean: head.clean.get() != 0,
            first_segment: head.first_segment.get(),
            next_volume: head.next_volume.get(),
            starts: starts_of(head)?,
            volumes: volumes_of(image)?,
            members: members_of(head)?,
            beat_ms: head.beat_ms.get(),
        })
    }

    /// Decodes the newer of two copies.
    ///
    /// # Errors
    /// If neither is valid. An error other than [`SuperblockInvalid::Foreign`] takes precedence.
    pub fn newest(copies: [&[u8]; 2]) -> Result<Self, SuperblockInvalid> {
        match copies.map(Self::decode) {
            [Ok(a), Ok(b)] => Ok(if a.sequence > b.sequence { a } else { b }),
            [Ok(one), Err(_)] | [Err(_), Ok(one)] => Ok(one),
            [Err(SuperblockInvalid::Foreign), Err(error)] | [Err(error), Err(_)] => Err(error),
        }
    }

    /// The newest generation.
    pub fn generation(&self) -> u64 {
        self.starts.last().map_or(0, |start| start.generation)
    }

    /// The volume with this number.
    pub fn volume(&self, number: u16) -> Option<&VolumeEntry> {
        self.volumes.iter().find(|volume| volume.number == number)
    }

    /// Whether a batch of this generation and number is valid. A batch is void if a later
    /// generation reused its number: it was never acknowledged, or was lost.
    pub fn is_valid_batch(&self, generation: u64, batch: u64) -> bool {
        let is_known = self.starts.iter().any(|start| start.generation == generation);
        let later = self.starts.iter().find(|start| start.generation > generation);
        is_known && later.is_none_or(|start| batch < start.batch)
    }
}

fn zeroed() -> Box<RawSuperblock> {
    let bytes = vec![0; size_of::<RawSuperblock>()];
    Box::new(RawSuperblock::read_from_bytes(&bytes).expect("the length is that of the image"))
}

fn starts_of(head: &SuperblockHead) -> Result<Vec<GenerationStart>, SuperblockInvalid> {
    let invalid = SuperblockInvalid::Contradiction;
    let count = usize::from(head.generations.get());
    let starts = head.starts.get(..count).ok_or(invalid("too many generations"))?;
    let starts: Vec<_> = starts
        .iter()
        .map(|start| GenerationStart {
            generation: start.generation.get(),
            batch: start.batch.get(),
            segment: start.segment.get(),
        })
        .collect();
    let is_out_of_range =
        |start: &GenerationStart| start.generation.max(start.batch).max(start.segment) > COUNT_MAX;
    if starts.iter().any(is_out_of_range) {
        return Err(invalid(COUNTER_OUT_OF_RANGE));
    }
    if starts.is_empty() || !starts.windows(2).all(ascends) {
        return Err(invalid("generations are not in order"));
    }
    if !starts_inside(&starts, head.first_segment.get(), head.segments.get()) {
        return Err(invalid("a generation starts beyond the end of the log"));
    }
    Ok(starts)
}

/// Whether the newest generation, and therefore each one, starts before the end of the log.
fn starts_inside(starts: &[GenerationStart], first_segment: u64, segments: u64) -> bool {
    starts.last().is_some_and(|last| last.segment.saturating_sub(first_segment) < segments)
}

/// Whether the second generation starts after the first one.
const fn ascends(pair: &[GenerationStart]) -> bool {
    pair[0].generation < pair[1].generation
        && pair[0].batch < pair[1].batch
        && pair[0].segment < pair[1].segment
}

fn members_of(head: &SuperblockHead) -> Result<Members, SuperblockInvalid> {
    let members = Members { own: head.member.get(), current: head.members.map(U64::get) };
    let is_contradictory = if members.own == 0 {
        members.current != [0; MEMBERS_MAX]
    } else {
        !members.has(members.own) || members.current[0] == members.current[1]
    };
    if is_contradictory {
        return Err(SuperblockInvalid::Contradiction("the device is not a member of its journal"));
    }
    Ok(members)
}

fn volumes_of(image: &RawSuperblock) -> Result<Vec<VolumeEntry>, SuperblockInvalid> {
    let invalid = SuperblockInvalid::Contradiction;
    let count = usize::from(image.head.volumes.get());
    let volumes = image.volumes.get(..count).ok_or(invalid("too many volumes"))?;
    let mut entries: Vec<VolumeEntry> = Vec::with_capacity(count);
    for (volume, void_before) in volumes.iter().zip(&image.void_before) {
        let name = volume.name.get(..usize::from(volume.name_bytes.get()));
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        let number = volume.number.get();
        let is_duplicate = entries.iter().any(|other| other.number == number);
        if is_duplicate || number >= image.head.next_volume.get() {
            return Err(invalid("duplicate or unassigned volume number"));
        }
        if void_before.get() > COUNT_MAX {
            return Err(invalid(COUNTER_OUT_OF_RANGE));
        }
        entries.push(VolumeEntry {
            number,
            name: name.ok_or(invalid("invalid volume name"))?.to_owned(),
            size_bytes: volume.size_bytes.get(),
            identity: volume.identity,
            disk: DiskInfo::decode(&volume.disk).ok_or(invalid("invalid disk information"))?,
            void_before: void_before.get(),
        });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Superblock {
        Superblock {
            journal: JournalId(*b"0123456789abcdef"),
            kind: LogKind::Journal,
            sequence: 7,
            size_bytes: 1 << 30,
            geometry: Geometry::for_size(1 << 30).unwrap(),
            is_clean: false,
            first_segment: 3,
            starts: vec![
                GenerationStart { generation: 1, batch: 0, segment: 0 },
                GenerationStart { generation: 2, batch: 40, segment: 5 },
            ],
            next_volume: 10,
            volumes: vec![VolumeEntry {
                number: 9,
                name: "häuser".into(),
                size_bytes: 8 << 30,
                identity: [3; 32],
                disk: DiskInfo { hardware: 5, ..DiskInfo::default() },
                void_before: 77,
            }],
            members: Members { own: 12, current: [11, 12] },
            beat_ms: 1250,
        }
    }

    #[test]
    fn decodes_what_was_encoded() {
        let superblock = example();
        let bytes = superblock.encode();
        assert_eq!(bytes.len(), SUPERBLOCK_BYTES);
        assert_eq!(Superblock::decode(&bytes), Ok(superblock));
    }

    #[test]
    fn detects_every_changed_byte() {
        let bytes = example().encode();
        for at in (0..bytes.len()).step_by(7).chain(0..400) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(Superblock::decode(&damaged).is_err(), "byte {at}");
        }
        for len in [0, 1, 4095, bytes.len() - 1] {
            assert_eq!(Superblock::decode(&bytes[..len]), Err(SuperblockInvalid::Foreign));
        }
    }

    #[test]
    fn newest_ignores_a_torn_copy() {
        let old = example();
        let new = Superblock { sequence: 8, is_clean: true, ..example() };
        let (a, b) = (old.encode(), new.encode());
        assert_eq!(Superblock::newest([&b, &a]), Ok(new.clone()));
        let mut torn = b.clone();
        torn[512..].copy_from_slice(&vec![0; b.len() - 512]);
        assert_eq!(Superblock::newest([&torn, &a]), Ok(old));
        assert_eq!(Superblock::newest([&b, &[]]), Ok(new));
        assert_eq!(Superblock::newest([&[], &[]]), Err(SuperblockInvalid::Foreign));
        assert_eq!(Superblock::newest([&[], &torn]), Err(SuperblockInvalid::Checksum));
        let mut unfinished = vec![0; SUPERBLOCK_BYTES];
        unfinished[..4096].copy_from_slice(&Superblock::unfinished());
        assert_eq!(Superblock::newest([&unfinished, &[]]), Err(SuperblockInvalid::Checksum));
        assert_eq!(Superblock::newest([&[], &unfinished]), Err(SuperblockInvalid::Checksum));
        assert_ne!(Superblock { sequence: 8, ..example() }.position(), example().position());
    }

    #[test]
    fn kind_and_seal_survive_encoding() {
        for sealed in [None, Some(0), Some(1), Some(1 << 40)] {
            let kind = LogKind::Vault { sealed };
            let vault = Superblock { kind, ..example() };
            assert_eq!(Superblock::decode(&vault.encode()), Ok(vault));
        }
        assert_eq!(LogKind::decode(0, 1), None, "a journal is never sealed");
        assert_eq!(LogKind::decode(2, 0), None);
    }

    #[test]
    fn rejects_another_version() {
        let mut bytes = example().encode();
        bytes[8] = 9;
        let error = Superblock::decode(&bytes).unwrap_err();
        let text = "has journal format 9, this program reads format 1";
        assert_eq!((error.to_string().as_str(), error), (text, SuperblockInvalid::Version(9)));
    }

    /// Why a changed superblock is refused, although its checksum matches.
    fn refusal(change: impl FnOnce(&mut Superblock)) -> SuperblockInvalid {
        let mut superblock = example();
        change(&mut superblock);
        Superblock::decode(&superblock.encode_unchecked()).unwrap_err()
    }

    #[test]
    fn rejects_counters_that_no_journal_reaches() {
        for absurd in [COUNT_MAX + 1, u64::MAX] {
            let errors = [
                refusal(|superblock| superblock.sequence = absurd),
                refusal(|superblock| superblock.first_segment = absurd),
                refusal(|superblock| superblock.starts[1].generation = absurd),
                refusal(|superblock| superblock.starts[1].batch = absurd),
                refusal(|superblock| superblock.starts[1].segment = absurd),
                refusal(|superblock| superblock.volumes[0].void_before = absurd),
            ];
            let expected = SuperblockInvalid::Contradiction(COUNTER_OUT_OF_RANGE);
            assert!(errors.iter().all(|error| *error == expected), "{errors:?}");
        }
    }

    #[test]
    fn rejects_a_generation_that_starts_beyond_the_log() {
        let end = example().first_segment + example().geometry.segments;
        let error = refusal(|superblock| superblock.starts[1].segment = end);
        let text = "has an invalid superblock: a generation starts beyond the end of the log";
        assert_eq!(error.to_string(), text);
        let mut last = example();
        last.starts[1].segment = end - 1;
        assert_eq!(Superblock::decode(&last.encode()), Ok(last));
    }

    #[test]
    #[should_panic(expected = "counters are in range")]
    fn a_superblock_with_a_counter_out_of_range_is_not_written() {
        let mut superblock = example();
        superblock.volumes[0].void_before = u64::MAX;
        superblock.encode();
    }

    #[test]
    fn rejects_a_device_that_is_not_a_member() {
        let with = |own, current| {
            let members = Members { own, current };
            // Not `encode`, which refuses to write such members.
            let mut image = RawSuperblock::read_from_bytes(&example().encode()).unwrap();
            image.head.member = U64::new(own);
            image.head.members = current.map(U64::new);
            image.head.checksum = 0.into();
            image.head.checksum = checksum(example().journal.seed(), image.as_bytes()).into();
            Superblock::decode(image.as_bytes()).is_ok_and(|found| found.members == members)
        };
        assert!(with(0, [0, 0]) && with(5, [5, 0]) && with(5, [0, 5]) && with(6, [5, 6]));
        assert!(!with(5, [0, 0]) && !with(0, [5, 0]) && !with(7, [5, 6]) && !with(5, [5, 5]));
    }

    #[test]
    fn batch_is_void_if_a_later_generation_reused_its_number() {
        let superblock = example();
        assert!(superblock.is_valid_batch(1, 39) && superblock.is_valid_batch(2, 40));
        assert!(!superblock.is_valid_batch(1, 40), "generation 2 began with batch 40");
        assert!(!superblock.is_valid_batch(3, 41), "generation 3 is unknown");
    }
}
