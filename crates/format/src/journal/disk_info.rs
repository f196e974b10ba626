//! What a journal stores about a volume: samples of its disk, to detect that the disk was replaced
//! or changed, and whether the operator has released the volume's records.

use super::{BLOCK_BYTES, JournalId};
use crate::checksum;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum number of sampled blocks of a disk.
pub const SAMPLES_MAX: usize = 64;
/// Length of the encoded form in bytes.
pub(super) const DISK_INFO_BYTES: usize = 148;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    released: u8,
    reserved: [u8; 3],
    hardware: U64,
    valid: U64,
    sums: [U16; SAMPLES_MAX],
}

const _: () = assert!(size_of::<Raw>() == DISK_INFO_BYTES);
const _: () = assert!(SAMPLES_MAX == u64::BITS as usize, "one bit of the mask for each sample");

/// Whether the operator has released a volume's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Released {
    /// The records are valid.
    #[default]
    No,
    /// The operator has written the records to a disk: they are void.
    Applied,
    /// The operator has discarded the records: they are void.
    Discarded,
}

/// Checksums of some blocks of a disk. A 16-bit checksum misses one in 65,536 changed blocks;
/// another disk differs in many blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    /// Bit mask of the valid samples, in the order of [`sample_places`].
    pub valid: u64,
    /// The checksums, from [`sample_of`].
    pub sums: [u16; SAMPLES_MAX],
}

impl Default for Samples {
    fn default() -> Self {
        Self { valid: 0, sums: [0; SAMPLES_MAX] }
    }
}

/// What a journal stores about a volume's disk and records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskInfo {
    /// Checksum of the hardware identifier, from [`hardware_sum`]; zero if it has none.
    pub hardware: u64,
    /// Checksums of blocks that have not been written since they were sampled.
    pub samples: Samples,
    /// Whether the operator has released the records.
    pub released: Released,
}

impl DiskInfo {
    pub(super) fn encode(&self) -> [u8; DISK_INFO_BYTES] {
        let raw = Raw {
            released: match self.released {
                Released::No => 0,
                Released::Applied => 1,
                Released::Discarded => 2,
            },
            reserved: [0; 3],
            hardware: self.hardware.into(),
            valid: self.samples.valid.into(),
            sums: self.samples.sums.map(Into::into),
        };
        let mut bytes = [0; DISK_INFO_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; DISK_INFO_BYTES]) -> Option<Self> {
        let raw = Raw::read_from_bytes(bytes).ok()?;
        let released = match raw.released {
            0 => Released::No,
            1 => Released::Applied,
            2 => Released::Discarded,
            _ => return None,
        };
        let samples = Samples { valid: raw.valid.get(), sums: raw.sums.map(U16::get) };
        Some(Self { hardware: raw.hardware.get(), samples, released })
    }
}

/// The offsets of the sampled blocks on the disk of a volume, in ascending order. `volume` is the
/// volume's number in the journal, `size_bytes` the size of the disk. There are at most
/// [`SAMPLES_MAX`] blocks of [`BLOCK_BYTES`], fewer on a small disk.
///
/// Five places are fixed, where partition tables and file systems begin and end; their content
/// differs between most disks. The disk is divided into 59 stretches of equal length, and one block
/// is sampled in each, so that every run as long as two stretches contains a sampled block. The
/// place within a stretch differs for each journal and volume.
pub fn sample_places(journal: JournalId, volume: u16, size_bytes: u64) -> Vec<u64> {
    let blocks = size_bytes / BLOCK_BYTES;
    let mut places: Vec<u64> = if blocks <= SAMPLES_MAX as u64 {
        (0..blocks).collect()
    } else {
        let fixed = [0, 1, 16, 256, blocks - 1];
        let stretches = (SAMPLES_MAX - fixed.len()) as u64;
        let seed = journal.seed() ^ u64::from(volume);
        let spread = (0..stretches).map(|at| {
            // The product may need more than 64 bits.
            let edge =
                |at: u64| (u128::from(blocks) * u128::from(at) / u128::from(stretches)) as u64;
            let (start, end) = (edge(at), edge(at + 1));
            start + mix(seed.wrapping_add(at << 16)) % (end - start)
        });
        fixed.into_iter().filter(|&block| block < blocks).chain(spread).collect()
    };
    places.sort_unstable();
    places.dedup();
    places.iter_mut().for_each(|place| *place *= BLOCK_BYTES);
    assert!(places.len() <= SAMPLES_MAX, "{} places", places.len());
    let is_inside = places.last().is_none_or(|last| last + BLOCK_BYTES <= size_bytes);
    assert!(is_inside, "a sampled block lies within its disk of {size_bytes} bytes");
    places
}

/// The checksum of the block at `place`.
pub fn sample_of(place: u64, block: &[u8]) -> u16 {
    let sum = checksum(place, block);
    (sum ^ sum >> 16) as u16
}

/// A checksum of a hardware identifier, for [`DiskInfo::hardware`]; never zero.
pub fn hardware_sum(name: &str) -> u64 {
    let [low, high] = [1, 2].map(|seed| u64::from(checksum(seed, name.as_bytes())));
    (high << 32 | low).max(1)
}

/// The finalizer of SplitMix64 (Steele et al., OOPSLA 2014): each input bit flips half of the
/// output bits on average. Part of the format: it determines the sampled places.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const JOURNAL: JournalId = JournalId(*b"0123456789abcdef");

    proptest! {
        #[test]
        fn decodes_what_was_encoded(
            hardware: u64,
            valid: u64,
            seed: u16,
            released in 0_usize..3,
        ) {
            let released = [Released::No, Released::Applied, Released::Discarded][released];
            let sums = std::array::from_fn(|at| seed.wrapping_mul(at as u16 + 1));
            let info = DiskInfo { hardware, samples: Samples { valid, sums }, released };
            prop_assert_eq!(DiskInfo::decode(&info.encode()), Some(info));
        }

        #[test]
        fn places_are_distinct_whole_blocks_of_the_disk(
            sectors in 1_u64..1 << 50,
            volume: u16,
        ) {
            let size = sectors * 512;
            let places = sample_places(JOURNAL, volume, size);
            prop_assert!(places.len() <= SAMPLES_MAX);
            prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(places.iter().all(|at| at % BLOCK_BYTES == 0 && at + BLOCK_BYTES <= size));
            prop_assert_eq!(places.is_empty(), size < BLOCK_BYTES);
        }
    }

    #[test]
    fn places_cover_the_disk_and_differ_between_volumes() {
        let size = 10 << 40;
        let ours = sample_places(JOURNAL, 1, size);
        assert!(ours.len() >= 62, "{}", ours.len());
        let longest = ours.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(longest <= 2 * size.div_ceil(59), "{longest}");
        let theirs = sample_places(JOURNAL, 2, size);
        let shared = ours.iter().filter(|place| theirs.contains(place)).count();
        assert!(shared < 8, "volumes share {shared} places: the five fixed ones and few others");
        assert_eq!(sample_places(JOURNAL, 1, 64 * 4096).len(), 64);
    }

    #[test]
    fn rejects_an_unknown_released_state() {
        let mut bytes = DiskInfo::default().encode();
        bytes[0] = 3;
        assert_eq!(DiskInfo::decode(&bytes), None);
    }

    #[test]
    fn checksums_depend_on_name_and_place() {
        assert_ne!(hardware_sum("a"), hardware_sum("b"));
        assert_ne!(sample_of(0, &[0; 4096]), sample_of(4096, &[0; 4096]));
    }
}
