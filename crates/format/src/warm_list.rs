//! The warm list of a volume: what was valuable in the pool, to be read again after a restart.
//!
//! It is a hint: a wrong list costs some reads at most. So it has one checksum over everything, and
//! is refused as a whole if anything in it is wrong.
//!
//! | bytes | content |
//! | --- | --- |
//! | 88 | header: magic, version, granule count, identity and size of the disk, size of the pool |
//! | 12 each | granules in ascending order: number and value, mask of lines |
//! | 4 | CRC-32C of all preceding bytes |
//!
//! The file is replaced as a whole: written under another name, made durable, and renamed.

use crate::checksum;
use forebay_types::{Bytes, GRANULE_BYTES, Granule, LINE_VALUE_MAX};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"FOREBAYW";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 88;
const GRANULE_RAW_BYTES: usize = 12;
const CHECKSUM_BYTES: usize = 4;
/// The seed of the checksum. It is constant, because a list is a whole file and has no offset.
const SEED: u64 = u64::from_le_bytes(MAGIC);
/// The bits of [`RawGranule::index_and_value`] that hold the value; the others hold the number.
const VALUE_BITS: u32 = 8;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawWarmListHeader {
    magic: [u8; 8],
    version: U32,
    reserved: U32,
    granules: U64,
    identity: [u8; 32],
    hardware: U64,
    size_bytes: U64,
    pool_lines: U64,
    reserved_2: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawGranule {
    index_and_value: U64,
    lines: U32,
}

const _: () = assert!(size_of::<RawWarmListHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<RawGranule>() == GRANULE_RAW_BYTES);
const _: () = assert!((u64::MAX / GRANULE_BYTES) >> (u64::BITS - VALUE_BITS) == 0);

/// The identity of a volume's disk in its warm list and its access history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmDisk {
    /// The identity of the volume: a checksum of its name and backing.
    pub identity: [u8; 32],
    /// The checksum of the disk's hardware identifier; zero if it has none.
    pub hardware: u64,
    /// The size of the disk.
    pub size_bytes: u64,
}

impl WarmDisk {
    /// Checks that this disk, read from a file, is `disk`, which may have grown since.
    ///
    /// # Errors
    /// If it is another one. An unknown hardware identifier matches every other.
    pub fn check(&self, disk: &Self) -> Result<(), WarmListError> {
        let is_known = self.hardware != 0 && disk.hardware != 0;
        if self.identity != disk.identity {
            return Err(WarmListError::OtherVolume);
        }
        if is_known && self.hardware != disk.hardware {
            return Err(WarmListError::OtherHardware);
        }
        if self.size_bytes > disk.size_bytes {
            return Err(WarmListError::OtherSize(self.size_bytes));
        }
        Ok(())
    }
}

/// The warm list of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmList {
    /// The disk.
    pub disk: WarmDisk,
    /// The size of the pool when the list was written, in lines.
    pub pool_lines: u64,
    /// The granules, in ascending order of their numbers.
    pub granules: Vec<Granule>,
}

/// Why a warm list is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmListError {
    /// It is too short, or does not begin like one.
    NoList,
    /// It has another version of the format.
    Version(u32),
    /// Its length does not match the number of its granules.
    Length,
    /// Its checksum is wrong.
    Checksum,
    /// A granule is invalid or out of order, although the checksum is right.
    Granule,
    /// It belongs to another volume, or to one with another backing.
    OtherVolume,
    /// It belongs to a disk with another hardware identifier.
    OtherHardware,
    /// It belongs to a disk with another size in bytes.
    OtherSize(u64),
}

impl std::fmt::Display for WarmListError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoList => f.write_str("it is not a warm list"),
            Self::Version(version) => write!(f, "its version is {version}, not {VERSION}"),
            Self::Length => f.write_str("its length is wrong"),
            Self::Checksum => f.write_str("its checksum is wrong"),
            Self::Granule => f.write_str("an entry is invalid"),
            Self::OtherVolume => f.write_str("it belongs to another volume or backing"),
            Self::OtherHardware => f.write_str("it belongs to another disk"),
            Self::OtherSize(size) => write!(f, "it belongs to a disk of {:#}", Bytes(*size)),
        }
    }
}

impl std::error::Error for WarmListError {}

/// The length of a warm list in bytes.
pub const fn warm_list_bytes(granules: u64) -> u64 {
    granules
        .saturating_mul(GRANULE_RAW_BYTES as u64)
        .saturating_add((HEADER_BYTES + CHECKSUM_BYTES) as u64)
}

impl WarmList {
    /// The bytes of the file.
    ///
    /// # Panics
    /// If the granules are not in ascending order, or one of them is invalid.
    pub fn encode(&self) -> Vec<u8> {
        let count = self.granules.len();
        let mut bytes = Vec::with_capacity(warm_list_bytes(count as u64) as usize);
        let header = RawWarmListHeader {
            magic: MAGIC,
            version: VERSION.into(),
            reserved: 0.into(),
            granules: (count as u64).into(),
            identity: self.disk.identity,
            hardware: self.disk.hardware.into(),
            size_bytes: self.disk.size_bytes.into(),
            pool_lines: self.pool_lines.into(),
            reserved_2: 0.into(),
        };
        bytes.extend_from_slice(header.as_bytes());
        let mut before = None;
        for granule in &self.granules {
            let is_valid = is_valid(granule, before, self.disk.size_bytes);
            assert!(is_valid, "{granule:?} after number {before:?}");
            let packed = granule.index << VALUE_BITS | u64::from(granule.value);
            let raw = RawGranule { index_and_value: packed.into(), lines: granule.lines.into() };
            bytes.extend_from_slice(raw.as_bytes());
            before = Some(granule.index);
        }
        let sum = checksum(SEED, &bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses a list.
    ///
    /// # Errors
    /// If anything in it is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, WarmListError> {
        let Ok((header, rest)) = RawWarmListHeader::read_from_prefix(bytes) else {
            return Err(WarmListError::NoList);
        };
        if header.magic != MAGIC {
            return Err(WarmListError::NoList);
        }
        if header.version.get() != VERSION {
            return Err(WarmListError::Version(header.version.get()));
        }
        if warm_list_bytes(header.granules.get()) != bytes.len() as u64 {
            return Err(WarmListError::Length);
        }
        let Some((raws, sum)) = rest.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err(WarmListError::Length);
        };
        if checksum(SEED, &bytes[..bytes.len() - CHECKSUM_BYTES]) != u32::from_le_bytes(*sum) {
            return Err(WarmListError::Checksum);
        }
        let disk = WarmDisk {
            identity: header.identity,
            hardware: header.hardware.get(),
            size_bytes: header.size_bytes.get(),
        };
        let mut granules = Vec::with_capacity(raws.len() / GRANULE_RAW_BYTES);
        let mut before = None;
        for raw in raws.chunks_exact(GRANULE_RAW_BYTES) {
            let raw = RawGranule::read_from_bytes(raw).map_err(|_| WarmListError::Length)?;
            let packed = raw.index_and_value.get();
            let (index, value) = (packed >> VALUE_BITS, packed as u8);
            let granule = Granule { index, lines: raw.lines.get(), value };
            if !is_valid(&granule, before, disk.size_bytes) {
                return Err(WarmListError::Granule);
            }
            before = Some(granule.index);
            granules.push(granule);
        }
        Ok(Self { disk, pool_lines: header.pool_lines.get(), granules })
    }

    /// Checks that the list is of this disk.
    ///
    /// # Errors
    /// If it belongs to another one. An unknown hardware identifier matches every other.
    pub fn check(&self, disk: &WarmDisk) -> Result<(), WarmListError> {
        self.disk.check(disk)
    }
}

/// Whether a granule may follow the granule number `before` in the list of a disk.
fn is_valid(granule: &Granule, before: Option<u64>, size_bytes: u64) -> bool {
    let is_in_order = before.is_none_or(|before| before < granule.index);
    let is_inside = granule.index < size_bytes.div_ceil(GRANULE_BYTES);
    let value_max = granule.line_count() * u32::from(LINE_VALUE_MAX);
    is_in_order && is_inside && granule.lines != 0 && u32::from(granule.value) <= value_max
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DISK: WarmDisk = WarmDisk { identity: [7; 32], hardware: 3, size_bytes: 1 << 40 };

    fn lists() -> impl Strategy<Value = WarmList> {
        let granule = (1u32.., 0u8..=100);
        let granules = prop::collection::btree_map(0u64..1 << 23, granule, 0..100);
        (granules, any::<u64>()).prop_map(|(granules, pool_lines)| {
            let granules = granules.into_iter().map(|(index, (lines, value))| {
                let value_max = lines.count_ones() as u8 * LINE_VALUE_MAX;
                Granule { index, lines, value: value.min(value_max) }
            });
            WarmList { disk: DISK, pool_lines, granules: granules.collect() }
        })
    }

    proptest! {
        #[test]
        fn a_list_is_decoded_as_it_was_encoded(list in lists()) {
            let bytes = list.encode();
            prop_assert_eq!(bytes.len() as u64, warm_list_bytes(list.granules.len() as u64));
            prop_assert_eq!(WarmList::decode(&bytes), Ok(list));
        }

        #[test]
        fn a_changed_or_truncated_list_is_refused(
            list in lists(), at: prop::sample::Index, change in 1u8.., cut: prop::sample::Index,
        ) {
            let mut bytes = list.encode();
            let cut = cut.index(bytes.len());
            prop_assert!(WarmList::decode(&bytes[..cut]).is_err());
            let at = at.index(bytes.len());
            bytes[at] ^= change;
            prop_assert!(WarmList::decode(&bytes).is_err(), "byte {}", at);
        }

        #[test]
        fn decode_never_returns_an_invalid_list(
            list in lists(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        ) {
            // With a valid checksum, so that the later checks are reached.
            let mut bytes = list.encode();
            let body = bytes.len() - CHECKSUM_BYTES;
            changes.iter().for_each(|(at, byte)| bytes[at.index(body)] = *byte);
            let sum = checksum(SEED, &bytes[..body]);
            bytes[body..].copy_from_slice(&sum.to_le_bytes());
            if let Ok(list) = WarmList::decode(&bytes) {
                prop_assert!(list.granules.is_sorted_by(|a, b| a.index < b.index));
                let is_valid = |granule: &Granule| {
                    granule.lines > 0 && granule.range().offset < list.disk.size_bytes
                };
                prop_assert!(list.granules.iter().all(is_valid));
                let again = list.encode();
                // Only reserved fields are not kept.
                prop_assert_eq!(&again[HEADER_BYTES..body], &bytes[HEADER_BYTES..body]);
            }
        }

        #[test]
        fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(WarmList::decode(&bytes).is_err());
        }
    }

    /// A list with a valid checksum, after a change of its bytes.
    fn changed(list: &WarmList, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut bytes = list.encode();
        let body = bytes.len() - CHECKSUM_BYTES;
        change(&mut bytes[..body]);
        let sum = checksum(SEED, &bytes[..body]);
        bytes[body..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[test]
    fn each_cause_of_a_refusal_is_named() {
        let granule = |index, lines, value| Granule { index, lines, value };
        let granules = vec![granule(1, 1, 7), granule(2, 3, 14)];
        let list = WarmList { disk: DISK, pool_lines: 9, granules };
        let refused = |change: &dyn Fn(&mut [u8])| {
            WarmList::decode(&changed(&list, |bytes| change(bytes))).unwrap_err()
        };
        assert_eq!(WarmList::decode(b"").unwrap_err(), WarmListError::NoList);
        assert_eq!(refused(&|bytes| bytes[0] = b'f'), WarmListError::NoList);
        assert_eq!(refused(&|bytes| bytes[8] = 2), WarmListError::Version(2));
        assert_eq!(refused(&|bytes| bytes[16] = 1), WarmListError::Length);
        assert_eq!(refused(&|bytes| bytes[23] = 0xff), WarmListError::Length);
        let second = HEADER_BYTES + GRANULE_RAW_BYTES;
        assert_eq!(refused(&|bytes| bytes[second] = 15), WarmListError::Granule, "the value");
        assert_eq!(refused(&|bytes| bytes[second + 1] = 1), WarmListError::Granule, "the order");
        assert_eq!(refused(&|bytes| bytes[second + 7] = 1), WarmListError::Granule, "the size");
        assert_eq!(refused(&|bytes| bytes[second + 8] = 0), WarmListError::Granule, "no line");
        let mut bytes = list.encode();
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(WarmList::decode(&bytes).unwrap_err(), WarmListError::Checksum);
    }

    #[test]
    fn a_list_is_refused_for_another_disk() {
        let list = WarmList { disk: DISK, pool_lines: 9, granules: Vec::new() };
        assert_eq!(list.check(&DISK), Ok(()));
        assert_eq!(list.check(&WarmDisk { hardware: 0, ..DISK }), Ok(()));
        let other = |disk| list.check(&disk).unwrap_err();
        assert_eq!(other(WarmDisk { identity: [8; 32], ..DISK }), WarmListError::OtherVolume);
        assert_eq!(other(WarmDisk { hardware: 4, ..DISK }), WarmListError::OtherHardware);
        let smaller = WarmDisk { size_bytes: 1 << 39, ..DISK };
        assert_eq!(other(smaller), WarmListError::OtherSize(1 << 40));
        assert_eq!(list.check(&WarmDisk { size_bytes: 2 << 40, ..DISK }), Ok(()));
    }
}
