//! The access history of a volume, as it is kept across restarts.
//!
//! It is a hint, like a warm list: one checksum over everything, and refused as a whole if anything
//! in it is wrong.
//!
//! | bytes | content |
//! | --- | --- |
//! | 80 | header: magic, version, confidence, counts of slots and regions, the disk |
//! | 16 each | observed slots in the order of the week: number, weeks, regions, last time |
//! | 20 each | the regions of all slots, in this order: number, parts, lines, weeks |
//! | 4 | CRC-32C of all preceding bytes |
//!
//! The file is replaced as a whole: written under another name, made durable, and renamed.

use crate::{WarmDisk, WarmListError, checksum};
use forebay_types::{HistoryRegion, HistorySlot, REGION_BYTES, SLOTS_PER_WEEK, TimeSlot};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"FOREBAYH";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 80;
const SLOT_RAW_BYTES: usize = 16;
const REGION_RAW_BYTES: usize = 20;
const CHECKSUM_BYTES: usize = 4;
/// The seed of the checksum. It is constant, because a history is a whole file and has no offset.
const SEED: u64 = u64::from_le_bytes(MAGIC);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHistoryHeader {
    magic: [u8; 8],
    version: U32,
    level: U32,
    slots: U32,
    reserved: U32,
    regions: U64,
    identity: [u8; 32],
    hardware: U64,
    size_bytes: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSlot {
    number: U16,
    weeks: u8,
    reserved: u8,
    regions: U32,
    last: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRegion {
    index: U64,
    parts: U64,
    lines: U16,
    weeks: u8,
    reserved: u8,
}

const _: () = assert!(size_of::<RawHistoryHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<RawSlot>() == SLOT_RAW_BYTES);
const _: () = assert!(size_of::<RawRegion>() == REGION_RAW_BYTES);

/// The access history of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryFile {
    /// The disk.
    pub disk: WarmDisk,
    /// The level of the policy's confidence, which determines how often a need must have repeated
    /// to be forecast.
    pub level: u8,
    /// All slots of the week, in order.
    pub slots: Vec<HistorySlot>,
}

/// Why a history is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryError {
    /// It is too short, or does not begin like one.
    NoHistory,
    /// It has another version of the format.
    Version(u32),
    /// Its length does not match its counts.
    Length,
    /// Its checksum is wrong.
    Checksum,
    /// A slot or a region is invalid or out of order, although the checksum is right.
    Entry,
    /// It belongs to another disk.
    Disk(WarmListError),
}

impl std::fmt::Display for HistoryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoHistory => f.write_str("it is not an access history"),
            Self::Version(version) => write!(f, "its version is {version}, not {VERSION}"),
            Self::Length => f.write_str("its length is wrong"),
            Self::Checksum => f.write_str("its checksum is wrong"),
            Self::Entry => f.write_str("an entry is invalid"),
            Self::Disk(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for HistoryError {}

/// The length of a history in bytes, with this many observed slots and regions.
pub const fn history_bytes(slots: u64, regions: u64) -> u64 {
    let regions_bytes = regions.saturating_mul(REGION_RAW_BYTES as u64);
    let slots_bytes = slots.saturating_mul(SLOT_RAW_BYTES as u64);
    regions_bytes.saturating_add(slots_bytes).saturating_add((HEADER_BYTES + CHECKSUM_BYTES) as u64)
}

impl HistoryFile {
    /// The bytes of the file.
    ///
    /// # Panics
    /// If there is not one entry for each slot of the week, or one breaks a rule of its type.
    pub fn encode(&self) -> Vec<u8> {
        assert_eq!(self.slots.len(), SLOTS_PER_WEEK as usize);
        let observed = || self.slots.iter().zip(0u16..).filter(|(slot, _)| slot.weeks != 0);
        let slots = observed().count() as u32;
        let regions: u64 = self.slots.iter().map(|slot| slot.regions.len() as u64).sum();
        let mut bytes = Vec::with_capacity(history_bytes(slots.into(), regions) as usize);
        let header = RawHistoryHeader {
            magic: MAGIC,
            version: VERSION.into(),
            level: u32::from(self.level).into(),
            slots: slots.into(),
            reserved: 0.into(),
            regions: regions.into(),
            identity: self.disk.identity,
            hardware: self.disk.hardware.into(),
            size_bytes: self.disk.size_bytes.into(),
        };
        bytes.extend_from_slice(header.as_bytes());
        for (slot, number) in observed() {
            assert!(is_valid_slot(slot, number, self.disk.size_bytes), "slot {number}");
            let raw = RawSlot {
                number: number.into(),
                weeks: slot.weeks,
                reserved: 0,
                regions: (slot.regions.len() as u32).into(),
                last: slot.last.0.into(),
            };
            bytes.extend_from_slice(raw.as_bytes());
        }
        for region in self.slots.iter().flat_map(|slot| &slot.regions) {
            let raw = RawRegion {
                index: region.index.into(),
                parts: region.parts.into(),
                lines: region.lines.into(),
                weeks: region.weeks,
                reserved: 0,
            };
            bytes.extend_from_slice(raw.as_bytes());
        }
        let sum = checksum(SEED, &bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses a history.
    ///
    /// # Errors
    /// If anything in it is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, HistoryError> {
        let Ok((header, rest)) = RawHistoryHeader::read_from_prefix(bytes) else {
            return Err(HistoryError::NoHistory);
        };
        if header.magic != MAGIC {
            return Err(HistoryError::NoHistory);
        }
        if header.version.get() != VERSION {
            return Err(HistoryError::Version(header.version.get()));
        }
        let slot_count = header.slots.get();
        if history_bytes(slot_count.into(), header.regions.get()) != bytes.len() as u64 {
            return Err(HistoryError::Length);
        }
        let Some((body, sum)) = rest.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err(HistoryError::Length);
        };
        if checksum(SEED, &bytes[..bytes.len() - CHECKSUM_BYTES]) != u32::from_le_bytes(*sum) {
            return Err(HistoryError::Checksum);
        }
        let disk = WarmDisk {
            identity: header.identity,
            hardware: header.hardware.get(),
            size_bytes: header.size_bytes.get(),
        };
        let (raw_slots, raw_regions) = body.split_at(slot_count as usize * SLOT_RAW_BYTES);
        let mut regions = raw_regions.chunks_exact(REGION_RAW_BYTES).map(region);
        let mut slots = vec![HistorySlot::default(); SLOTS_PER_WEEK as usize];
        let mut before = None;
        for raw in raw_slots.chunks_exact(SLOT_RAW_BYTES) {
            let raw = RawSlot::read_from_bytes(raw).map_err(|_| HistoryError::Length)?;
            let number = raw.number.get();
            let is_in_order = before.is_none_or(|before| before < number);
            let Some(slot) = slots.get_mut(usize::from(number)).filter(|_| is_in_order) else {
                return Err(HistoryError::Entry);
            };
            before = Some(number);
            (slot.last, slot.weeks) = (TimeSlot(raw.last.get()), raw.weeks);
            slot.regions = regions.by_ref().take(raw.regions.get() as usize).collect();
            let is_whole = slot.regions.len() == raw.regions.get() as usize;
            if !is_whole || !is_valid_slot(slot, number, disk.size_bytes) {
                return Err(HistoryError::Entry);
            }
        }
        let level = u8::try_from(header.level.get()).map_err(|_| HistoryError::Entry)?;
        if regions.next().is_some() {
            return Err(HistoryError::Entry);
        }
        Ok(Self { disk, level, slots })
    }

    /// Checks that the history is of this disk.
    ///
    /// # Errors
    /// If it belongs to another one. An unknown hardware identifier matches every other.
    pub fn check(&self, disk: &WarmDisk) -> Result<(), HistoryError> {
        self.disk.check(disk).map_err(HistoryError::Disk)
    }
}

fn region(raw: &[u8]) -> HistoryRegion {
    let raw = RawRegion::read_from_bytes(raw).expect("a chunk has this length");
    HistoryRegion {
        index: raw.index.get(),
        parts: raw.parts.get(),
        weeks: raw.weeks,
        lines: raw.lines.get(),
    }
}

/// Whether an observed slot satisfies the rules of its type.
fn is_valid_slot(slot: &HistorySlot, number: u16, size_bytes: u64) -> bool {
    let is_valid = |region: &HistoryRegion| {
        region.index < size_bytes.div_ceil(REGION_BYTES)
            && region.parts != 0
            && region.lines != 0
            && region.weeks != 0
            && region.weeks & !slot.weeks == 0
    };
    slot.weeks != 0
        && slot.last.of_week() == number
        && slot.regions.is_sorted_by(|a, b| a.index < b.index)
        && slot.regions.iter().all(is_valid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DISK: WarmDisk = WarmDisk { identity: [7; 32], hardware: 3, size_bytes: 1 << 30 };

    fn slots() -> impl Strategy<Value = Vec<HistorySlot>> {
        let region = (1u64.., 1u8.., 1u16..);
        let regions = prop::collection::btree_map(0u64..1 << 10, region, 0..20);
        let slot = (1u8.., 0u64..5_000, regions);
        prop::collection::btree_map(0u16..SLOTS_PER_WEEK as u16, slot, 0..12).prop_map(|some| {
            let mut slots = vec![HistorySlot::default(); SLOTS_PER_WEEK as usize];
            for (number, (weeks, week, regions)) in some {
                let regions = regions.into_iter().map(|(index, (parts, seen, lines))| {
                    let seen = if seen & weeks == 0 { weeks } else { seen & weeks };
                    HistoryRegion { index, parts, weeks: seen, lines }
                });
                slots[usize::from(number)] = HistorySlot {
                    last: TimeSlot(week * SLOTS_PER_WEEK + u64::from(number)),
                    weeks,
                    regions: regions.collect(),
                };
            }
            slots
        })
    }

    fn files() -> impl Strategy<Value = HistoryFile> {
        (slots(), any::<u8>()).prop_map(|(slots, level)| HistoryFile { disk: DISK, level, slots })
    }

    /// Bytes with a valid checksum, after a change.
    fn changed(file: &HistoryFile, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut bytes = file.encode();
        let body = bytes.len() - CHECKSUM_BYTES;
        change(&mut bytes[..body]);
        let sum = checksum(SEED, &bytes[..body]);
        bytes[body..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    proptest! {
        #[test]
        fn a_history_is_decoded_as_it_was_encoded(file in files()) {
            let observed = file.slots.iter().filter(|slot| slot.weeks != 0).count() as u64;
            let regions = file.slots.iter().map(|slot| slot.regions.len() as u64).sum();
            let bytes = file.encode();
            prop_assert_eq!(bytes.len() as u64, history_bytes(observed, regions));
            prop_assert_eq!(HistoryFile::decode(&bytes), Ok(file));
        }

        #[test]
        fn a_changed_or_truncated_history_is_refused(
            file in files(), at: prop::sample::Index, change in 1u8.., cut: prop::sample::Index,
        ) {
            let mut bytes = file.encode();
            let cut = cut.index(bytes.len());
            prop_assert!(HistoryFile::decode(&bytes[..cut]).is_err());
            let at = at.index(bytes.len());
            bytes[at] ^= change;
            prop_assert!(HistoryFile::decode(&bytes).is_err(), "byte {}", at);
        }

        #[test]
        fn decode_never_returns_an_invalid_history(
            file in files(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        ) {
            // With a valid checksum, so that the later checks are reached.
            let bytes = changed(&file, |bytes| {
                changes.iter().for_each(|(at, byte)| bytes[at.index(bytes.len())] = *byte);
            });
            if let Ok(file) = HistoryFile::decode(&bytes) {
                let all = file.slots.iter().zip(0u16..).filter(|(slot, _)| slot.weeks != 0);
                for (slot, number) in all {
                    prop_assert!(is_valid_slot(slot, number, file.disk.size_bytes));
                }
                prop_assert_eq!(file.encode().len(), bytes.len());
            }
        }

        #[test]
        fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(HistoryFile::decode(&bytes).is_err());
        }
    }

    #[test]
    fn each_cause_of_a_refusal_is_named() {
        let mut slots = vec![HistorySlot::default(); SLOTS_PER_WEEK as usize];
        let region = |index| HistoryRegion { index, parts: 3, weeks: 2, lines: 9 };
        for number in [5, 6] {
            let last = TimeSlot(9 * SLOTS_PER_WEEK + number);
            let regions = vec![region(1), region(2)];
            slots[number as usize] = HistorySlot { last, weeks: 3, regions };
        }
        let file = HistoryFile { disk: DISK, level: 1, slots };
        let refused = |at: usize, byte: u8| {
            HistoryFile::decode(&changed(&file, |bytes| bytes[at] = byte)).unwrap_err()
        };
        assert_eq!(HistoryFile::decode(b"").unwrap_err(), HistoryError::NoHistory);
        assert_eq!(refused(0, b'f'), HistoryError::NoHistory);
        assert_eq!(refused(8, 2), HistoryError::Version(2));
        assert_eq!(refused(16, 1), HistoryError::Length);
        assert_eq!(refused(31, 0xff), HistoryError::Length);
        let second_slot = HEADER_BYTES + SLOT_RAW_BYTES;
        let region = second_slot + SLOT_RAW_BYTES;
        let cases = [
            (13, 1, "the confidence"),
            (second_slot, 5, "the order of slots"),
            (second_slot + 1, 3, "the number of a slot"),
            (second_slot + 2, 1, "weeks that were not observed"),
            (second_slot + 4, 1, "fewer regions than there are"),
            (second_slot + 4, 9, "more regions than there are"),
            (second_slot + 8, 0, "another slot of the week"),
            (region, 2, "the order of regions"),
            (region + 7, 1, "a region beyond the disk"),
            (region + 8, 0, "no part"),
            (region + 16, 0, "no line"),
            (region + 18, 0, "no week"),
            (region + 18, 4, "a week that was not observed"),
        ];
        for (at, byte, what) in cases {
            assert_eq!(refused(at, byte), HistoryError::Entry, "{what}");
        }
        let mut bytes = file.encode();
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(HistoryFile::decode(&bytes).unwrap_err(), HistoryError::Checksum);
        let other = WarmDisk { size_bytes: 1, ..DISK };
        let error = HistoryError::Disk(WarmListError::OtherSize(1 << 30));
        assert_eq!((file.check(&DISK), file.check(&other)), (Ok(()), Err(error)));
    }
}
