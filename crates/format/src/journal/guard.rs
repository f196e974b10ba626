//! What a journal remembers of a volume's disk, so that another one in its place is noticed, and
//! whether somebody has released the volume's records by hand.

use super::{BLOCK_BYTES, JournalId};
use crate::checksum;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Blocks of a disk that are sampled, at most.
pub const SAMPLES_MAX: usize = 64;
/// Bytes of the encoded form.
pub(super) const GUARD_BYTES: usize = 148;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    released: u8,
    reserved: [u8; 3],
    hardware: U64,
    valid: U64,
    sums: [U16; SAMPLES_MAX],
}

const _: () = assert!(size_of::<Raw>() == GUARD_BYTES);

/// What became of a volume's records, besides what the log says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Released {
    /// They count.
    #[default]
    No,
    /// Their content has been written to a disk by hand: they are void.
    Applied,
    /// They have been given up by hand: they are void.
    Discarded,
}

/// Sums of some blocks of a disk. With 16 bits a block that has changed goes unnoticed once in
/// 65,536 times; a disk that has changed differs in many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    /// Which of the places in [`places`] have a sum that counts, one bit each.
    pub valid: u64,
    /// The sums, from [`sample_of`].
    pub sums: [u16; SAMPLES_MAX],
}

impl Default for Samples {
    fn default() -> Self {
        Self { valid: 0, sums: [0; SAMPLES_MAX] }
    }
}

/// What is known of the disk behind a volume, and of the volume's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// A sum of the name that the hardware gives itself; zero where it has none.
    pub hardware: u64,
    /// What the disk held where nothing was written since.
    pub samples: Samples,
    /// Whether the records count.
    pub released: Released,
}

impl Guard {
    pub(super) fn encode(&self) -> [u8; GUARD_BYTES] {
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
        let mut bytes = [0; GUARD_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; GUARD_BYTES]) -> Option<Self> {
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

/// Where the volume with this number in a journal is sampled: first bytes of blocks of
/// [`BLOCK_BYTES`] on a disk of `size_bytes`, ascending, [`SAMPLES_MAX`] at most, fewer on a disk
/// of fewer blocks.
///
/// Where partition tables and file systems begin and end tells most disks apart; the other places
/// are spread over the disk, one in each stretch of equal length, so that no long stretch can be
/// exchanged unseen. Where in its stretch is another place for each journal and volume.
pub fn places(journal: JournalId, volume: u16, size_bytes: u64) -> Vec<u64> {
    let blocks = size_bytes / BLOCK_BYTES;
    let mut places: Vec<u64> = if blocks <= SAMPLES_MAX as u64 {
        (0..blocks).collect()
    } else {
        let fixed = [0, 1, 16, 256, blocks - 1];
        let stretches = (SAMPLES_MAX - fixed.len()) as u64;
        let seed = journal.seed() ^ u64::from(volume);
        let spread = (0..stretches).map(|at| {
            // In 128 bits, as the product of two counts may need more than 64.
            let edge = |at: u64| (u128::from(blocks) * u128::from(at) / 59) as u64;
            let (start, end) = (edge(at), edge(at + 1));
            start + mixed(seed.wrapping_add(at << 16)) % (end - start)
        });
        fixed.into_iter().filter(|&block| block < blocks).chain(spread).collect()
    };
    places.sort_unstable();
    places.dedup();
    places.iter_mut().for_each(|place| *place *= BLOCK_BYTES);
    places
}

/// The sum of the block at `place`.
pub fn sample_of(place: u64, block: &[u8]) -> u16 {
    let sum = checksum(place, block);
    (sum ^ sum >> 16) as u16
}

/// A sum of the name that hardware gives itself, for [`Guard::hardware`]; never zero.
pub fn hardware_sum(name: &str) -> u64 {
    let [low, high] = [1, 2].map(|seed| u64::from(checksum(seed, name.as_bytes())));
    (high << 32 | low).max(1)
}

/// The finisher of splitmix64 (Steele, Lea, Flood 2014): each bit of the input moves half of the
/// output's.
const fn mixed(value: u64) -> u64 {
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
        fn it_is_read_as_it_was_written(
            hardware: u64,
            valid: u64,
            seed: u16,
            released in 0_usize..3,
        ) {
            let released = [Released::No, Released::Applied, Released::Discarded][released];
            let sums = std::array::from_fn(|at| seed.wrapping_mul(at as u16 + 1));
            let guard = Guard { hardware, samples: Samples { valid, sums }, released };
            prop_assert_eq!(Guard::decode(&guard.encode()), Some(guard));
        }

        #[test]
        fn places_are_whole_blocks_of_the_disk_and_each_is_there_once(
            sectors in 1_u64..1 << 50,
            volume: u16,
        ) {
            let size = sectors * 512;
            let places = places(JOURNAL, volume, size);
            prop_assert!(places.len() <= SAMPLES_MAX);
            prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(places.iter().all(|at| at % BLOCK_BYTES == 0 && at + BLOCK_BYTES <= size));
            prop_assert_eq!(places.is_empty(), size < BLOCK_BYTES);
        }
    }

    #[test]
    fn no_long_stretch_of_a_disk_is_left_out_and_volumes_have_places_of_their_own() {
        let size = 10 << 40;
        let ours = places(JOURNAL, 1, size);
        assert!(ours.len() >= 62, "{}", ours.len());
        let longest = ours.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(longest <= 2 * size.div_ceil(59), "{longest}");
        let theirs = places(JOURNAL, 2, size);
        let shared = ours.iter().filter(|place| theirs.contains(place)).count();
        assert!(shared < 8, "the fixed ones, and hardly another: {shared}");
        assert_eq!(places(JOURNAL, 1, 64 * 4096).len(), 64);
    }

    #[test]
    fn a_word_of_another_version_is_no_guard() {
        let mut bytes = Guard::default().encode();
        bytes[0] = 3;
        assert_eq!(Guard::decode(&bytes), None);
        assert_ne!(hardware_sum("a"), hardware_sum("b"));
        assert_ne!(sample_of(0, &[0; 4096]), sample_of(4096, &[0; 4096]));
    }
}
