//! The superblock: whose journal it is, how it is divided, and which volumes it knows.

use super::guard::{GUARD_BYTES, Guard, Released};
use super::{Geometry, JournalId, SUPERBLOCK_BYTES};
use crate::checksum;
use std::fmt;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"FOREBAYJ";
const VERSION: u32 = 1;
/// Volumes that one journal may know.
pub const VOLUMES_MAX: usize = 128;
/// Beginnings of generations that are remembered. More can't be in one log: a log that has seen so
/// many is brought to the disks and emptied before it is used again.
pub const GENERATIONS_MAX: usize = 16;
/// Devices that one log may be mirrored on.
pub const MEMBERS_MAX: usize = 2;
const NAME_BYTES: usize = 256;
/// Nothing is counted this far in the life of a journal, and sums of such counts don't overflow.
const COUNT_MAX: u64 = 1 << 56;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U32,
    /// Of all bytes of the copy with this field zero, seeded with the journal's identity.
    checksum: U32,
    journal: [u8; 16],
    sequence: U64,
    size_bytes: U64,
    segment_bytes: U32,
    volumes: U16,
    generations: U16,
    segments: U64,
    /// Not zero when the log holds nothing that a disk does not.
    clean: U64,
    first_segment: U64,
    next_volume: U16,
    reserved: [u8; 6],
    member: U64,
    members: [U64; MEMBERS_MAX],
    reserved_too: [u8; 3584],
    /// Zero for a journal, one for a vault.
    kind: U64,
    /// Zero for what is not a whole dump, otherwise one more than the batches of it.
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
struct Volume {
    identity: [u8; 32],
    size_bytes: U64,
    name_bytes: U16,
    number: U16,
    guard: [u8; GUARD_BYTES],
    name: [u8; NAME_BYTES],
}

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Image {
    head: Head,
    volumes: [Volume; VOLUMES_MAX],
    /// For each volume the number of the first record that may count.
    void_before: [U64; VOLUMES_MAX],
    reserved: [u8; 3072],
}

const _: () = assert!(size_of::<Head>() == 4096);
const _: () = assert!(size_of::<Volume>() == 448);
const _: () = assert!(size_of::<Image>() == SUPERBLOCK_BYTES);

/// Where a generation began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationStart {
    /// The generation, from 1 on.
    pub generation: u64,
    /// Its first batch.
    pub batch: u64,
    /// The segment that batch lies in.
    pub segment: u64,
}

/// A volume as its records mean it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Its number in the records of this journal; it stays while records of it may be there.
    pub number: u16,
    /// Its name when it was written down, at most 256 bytes.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// What names the disk behind it; made by whoever opens disks.
    pub identity: [u8; 32],
    /// What else is known of the disk.
    pub guard: Guard,
    /// Records of it with a lower number are void: its disk has what they say, or something newer.
    pub void_before: u64,
}

impl VolumeEntry {
    /// Whether its records count.
    pub fn counts(&self) -> bool {
        self.guard.released == Released::No
    }
}

/// The devices that hold the log. A device draws its number when it is made a member, and another
/// one each time it becomes one again, so that two histories never share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// The number of the device that this superblock lies on. Zero in a journal that has never been
    /// mirrored. A vault draws its number when it is made, and is its only member.
    pub own: u64,
    /// The numbers of those that hold everything that was acknowledged; zero for none.
    pub current: [u64; MEMBERS_MAX],
}

impl Members {
    /// Whether the device with this number holds everything.
    pub fn has(&self, number: u64) -> bool {
        number != 0 && self.current.contains(&number)
    }

    /// The numbers of those that hold everything.
    pub fn numbers(&self) -> Vec<u64> {
        self.current.into_iter().filter(|&number| number != 0).collect()
    }
}

/// What a log is for, and how far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogKind {
    /// It records writes as they come.
    #[default]
    Journal,
    /// It takes what is dirty, in one go, when the battery runs low.
    Vault {
        /// How many batches a whole dump has; `None` while it is being written.
        sealed: Option<u64>,
    },
}

impl LogKind {
    /// The word for it.
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

/// A superblock whose checks have passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Whose it is.
    pub journal: JournalId,
    /// What it is for.
    pub kind: LogKind,
    /// Which of two copies is newer; copy `sequence % 2` holds it.
    pub sequence: u64,
    /// Bytes of the device when the journal was made.
    pub size_bytes: u64,
    /// How it is divided.
    pub geometry: Geometry,
    /// Whether the log holds nothing that a disk does not.
    pub clean: bool,
    /// The oldest segment that is still needed.
    pub first_segment: u64,
    /// The last generations in ascending order; the last is the one that writes.
    pub starts: Vec<GenerationStart>,
    /// The number for the next volume. Numbers are not used again, so that a record of a volume
    /// that has been forgotten never counts for another.
    pub next_volume: u16,
    /// The volumes. Records of others are void.
    pub volumes: Vec<VolumeEntry>,
    /// The devices that hold the log.
    pub members: Members,
}

/// Why bytes are no superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuperblockInvalid {
    /// They do not begin like one.
    Foreign,
    /// They are of another version of the format.
    Version(u32),
    /// They have changed since they were written, or were not written wholly.
    Checksum,
    /// They contradict themselves, although the checksum agrees.
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
            Self::Contradiction(what) => write!(f, "has a superblock that is wrong: {what}"),
        }
    }
}

impl std::error::Error for SuperblockInvalid {}

impl Superblock {
    /// The bytes of the copy to be written at [`Superblock::position`].
    ///
    /// # Panics
    /// If there are more volumes or generations, or longer names, than there is room for.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.volumes.len() <= VOLUMES_MAX && self.starts.len() <= GENERATIONS_MAX);
        let mut image = zeroed();
        let (kind, sealed) = self.kind.encode();
        image.head = Head {
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
            clean: u64::from(self.clean).into(),
            first_segment: self.first_segment.into(),
            next_volume: self.next_volume.into(),
            member: self.members.own.into(),
            members: self.members.current.map(Into::into),
            ..image.head
        };
        for (to, from) in image.head.starts.iter_mut().zip(&self.starts) {
            to.generation = from.generation.into();
            to.batch = from.batch.into();
            to.segment = from.segment.into();
        }
        for (to, from) in image.volumes.iter_mut().zip(&self.volumes) {
            to.identity = from.identity;
            to.guard = from.guard.encode();
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

    /// The first block of a copy that is not there yet: a device that begins so is taken for a
    /// journal, and for one that can't be used. Only one sector of it matters, so it is there or
    /// it is not.
    pub fn unfinished() -> Vec<u8> {
        let mut block = vec![0; super::BLOCK_BYTES as usize];
        block[..MAGIC.len()].copy_from_slice(&MAGIC);
        block[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&VERSION.to_le_bytes());
        block
    }

    /// Where this copy lies on the device, in bytes.
    pub const fn position(&self) -> u64 {
        self.sequence % 2 * SUPERBLOCK_BYTES as u64
    }

    /// Reads a copy.
    ///
    /// # Errors
    /// When it is none, or may not be used.
    pub fn decode(bytes: &[u8]) -> Result<Self, SuperblockInvalid> {
        let Ok((image, _)) = Image::ref_from_prefix(bytes) else {
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
        let mut unsummed = image.clone();
        unsummed.head.checksum = 0.into();
        if checksum(journal.seed(), unsummed.as_bytes()) != head.checksum.get() {
            return Err(SuperblockInvalid::Checksum);
        }
        let geometry = Geometry {
            segment_bytes: head.segment_bytes.get().into(),
            segments: head.segments.get(),
        };
        if !geometry.is_sound(head.size_bytes.get()) {
            return Err(SuperblockInvalid::Contradiction("its segments do not fit"));
        }
        if [head.sequence, head.first_segment].iter().any(|count| count.get() > COUNT_MAX) {
            return Err(SuperblockInvalid::Contradiction("it counts further than a journal lives"));
        }
        let kind = LogKind::decode(head.kind.get(), head.sealed.get());
        let kind = kind.ok_or(SuperblockInvalid::Contradiction("it is for nothing known"))?;
        Ok(Self {
            journal,
            kind,
            sequence: head.sequence.get(),
            size_bytes: head.size_bytes.get(),
            geometry,
            clean: head.clean.get() != 0,
            first_segment: head.first_segment.get(),
            next_volume: head.next_volume.get(),
            starts: starts_of(head)?,
            volumes: volumes_of(image)?,
            members: members_of(head)?,
        })
    }

    /// The newer of two copies as read from the device.
    ///
    /// # Errors
    /// When neither may be used: what the one says that looks more like a superblock.
    pub fn newest(copies: [&[u8]; 2]) -> Result<Self, SuperblockInvalid> {
        match copies.map(Self::decode) {
            [Ok(a), Ok(b)] => Ok(if a.sequence > b.sequence { a } else { b }),
            [Ok(one), Err(_)] | [Err(_), Ok(one)] => Ok(one),
            [Err(SuperblockInvalid::Foreign), Err(error)] | [Err(error), Err(_)] => Err(error),
        }
    }

    /// The generation that writes, or wrote last.
    pub fn generation(&self) -> u64 {
        self.starts.last().map_or(0, |start| start.generation)
    }

    /// The volume that records of this number mean.
    pub fn volume(&self, number: u16) -> Option<&VolumeEntry> {
        self.volumes.iter().find(|volume| volume.number == number)
    }

    /// Whether a batch of this generation and number was ever acknowledged: those that a later
    /// generation has taken the number of were not.
    pub fn is_valid_batch(&self, generation: u64, batch: u64) -> bool {
        let known = self.starts.iter().any(|start| start.generation == generation);
        let later = self.starts.iter().find(|start| start.generation > generation);
        known && later.is_none_or(|start| batch < start.batch)
    }
}

fn zeroed() -> Box<Image> {
    let bytes = vec![0; size_of::<Image>()];
    Box::new(Image::read_from_bytes(&bytes).expect("the length is the image's own"))
}

fn starts_of(head: &Head) -> Result<Vec<GenerationStart>, SuperblockInvalid> {
    let wrong = SuperblockInvalid::Contradiction;
    let count = usize::from(head.generations.get());
    let starts = head.starts.get(..count).ok_or(wrong("it has too many generations"))?;
    let starts: Vec<_> = starts
        .iter()
        .map(|start| GenerationStart {
            generation: start.generation.get(),
            batch: start.batch.get(),
            segment: start.segment.get(),
        })
        .collect();
    let is_beyond =
        |start: &GenerationStart| start.generation.max(start.batch).max(start.segment) > COUNT_MAX;
    if starts.iter().any(is_beyond) {
        return Err(wrong("it counts further than a journal lives"));
    }
    let ascends = |pair: &[GenerationStart]| {
        pair[0].generation < pair[1].generation
            && pair[0].batch < pair[1].batch
            && pair[0].segment < pair[1].segment
    };
    if starts.is_empty() || !starts.windows(2).all(ascends) {
        return Err(wrong("its generations are not in order"));
    }
    Ok(starts)
}

fn members_of(head: &Head) -> Result<Members, SuperblockInvalid> {
    let members = Members { own: head.member.get(), current: head.members.map(U64::get) };
    let is_odd = if members.own == 0 {
        members.current != [0; MEMBERS_MAX]
    } else {
        !members.has(members.own) || members.current[0] == members.current[1]
    };
    if is_odd {
        return Err(SuperblockInvalid::Contradiction("it is no member of its own journal"));
    }
    Ok(members)
}

fn volumes_of(image: &Image) -> Result<Vec<VolumeEntry>, SuperblockInvalid> {
    let wrong = SuperblockInvalid::Contradiction;
    let count = usize::from(image.head.volumes.get());
    let volumes = image.volumes.get(..count).ok_or(wrong("it has too many volumes"))?;
    let mut entries: Vec<VolumeEntry> = Vec::with_capacity(count);
    for (volume, void_before) in volumes.iter().zip(&image.void_before) {
        let name = volume.name.get(..usize::from(volume.name_bytes.get()));
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        let number = volume.number.get();
        let known = entries.iter().any(|other| other.number == number);
        if known || number >= image.head.next_volume.get() {
            return Err(wrong("a volume has a number that is not its own"));
        }
        if void_before.get() > COUNT_MAX {
            return Err(wrong("it counts further than a journal lives"));
        }
        entries.push(VolumeEntry {
            number,
            name: name.ok_or(wrong("a volume has no name"))?.to_owned(),
            size_bytes: volume.size_bytes.get(),
            identity: volume.identity,
            guard: Guard::decode(&volume.guard).ok_or(wrong("a volume's guard is none"))?,
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
            clean: false,
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
                guard: Guard { hardware: 5, ..Guard::default() },
                void_before: 77,
            }],
            members: Members { own: 12, current: [11, 12] },
        }
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let superblock = example();
        let bytes = superblock.encode();
        assert_eq!(bytes.len(), SUPERBLOCK_BYTES);
        assert_eq!(Superblock::decode(&bytes), Ok(superblock));
    }

    #[test]
    fn every_changed_byte_is_seen() {
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
    fn the_newer_copy_counts_and_a_torn_one_does_not() {
        let old = example();
        let new = Superblock { sequence: 8, clean: true, ..example() };
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
    fn a_vault_is_told_from_a_journal_and_a_whole_dump_from_one_under_way() {
        for sealed in [None, Some(0), Some(1), Some(1 << 40)] {
            let kind = LogKind::Vault { sealed };
            let vault = Superblock { kind, ..example() };
            assert_eq!(Superblock::decode(&vault.encode()), Ok(vault));
        }
        assert_eq!(LogKind::decode(0, 1), None, "a journal is never sealed");
        assert_eq!(LogKind::decode(2, 0), None);
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = example().encode();
        bytes[8] = 9;
        let error = Superblock::decode(&bytes).unwrap_err();
        let text = "has journal format 9, this program reads format 1";
        assert_eq!((error.to_string().as_str(), error), (text, SuperblockInvalid::Version(9)));
    }

    #[test]
    fn a_device_is_a_member_or_has_never_had_a_mirror() {
        let with = |own, current| {
            let members = Members { own, current };
            Superblock::decode(&Superblock { members, ..example() }.encode()).is_ok()
        };
        assert!(with(0, [0, 0]) && with(5, [5, 0]) && with(5, [0, 5]) && with(6, [5, 6]));
        assert!(!with(5, [0, 0]) && !with(0, [5, 0]) && !with(7, [5, 6]) && !with(5, [5, 5]));
    }

    #[test]
    fn a_batch_that_a_later_generation_took_the_number_of_is_void() {
        let superblock = example();
        assert!(superblock.is_valid_batch(1, 39) && superblock.is_valid_batch(2, 40));
        assert!(!superblock.is_valid_batch(1, 40), "generation 2 began with batch 40");
        assert!(!superblock.is_valid_batch(3, 41), "nobody has written down generation 3");
    }
}
