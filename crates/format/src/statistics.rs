//! The totals of statistics, kept over restarts.
//!
//! Numbers are kept by name, so a later version may have more of them, or fewer: what it does not
//! know is dropped, and what the file lacks is zero. They are figures for people: a file that is
//! damaged is refused as a whole, and its totals begin again at zero.
//!
//! | bytes | content |
//! | --- | --- |
//! | 16 | header: magic, version, number of groups |
//! | | groups: length of the name (1), name, count of numbers (4) |
//! | 4 | number of entries |
//! | | entries: identity (32), bytes of the pairs (4), pairs |
//! | 4 | CRC-32C of all bytes before |
//!
//! A pair is the count of zeroes skipped since the pair before, and a number that is not zero; both
//! as LEB128. The numbers of an entry are those of all groups, one after the other. The file is
//! replaced as a whole.

use crate::checksum;
use std::collections::HashMap;

const MAGIC: [u8; 8] = *b"FOREBAYS";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 4;
/// The seed of the checksum: the totals are never in another place than their file.
const SEED: u64 = u64::from_le_bytes(MAGIC);
/// The most groups, and the most numbers of an entry.
const NUMBERS_MAX: usize = 1 << 14;
/// The most entries.
const ENTRIES_MAX: usize = 1 << 12;
const IDENTITY_BYTES: usize = 32;

/// The longest file that is read, in bytes.
pub const STATISTICS_BYTES_MAX: u64 = 64 << 20;

/// A name, and how many numbers it has.
pub type NumberGroup = (String, usize);

/// Identifies the volume of an entry: a checksum of its name and backing.
pub type Identity = [u8; IDENTITY_BYTES];

/// The totals of some volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatisticsFile {
    /// The names of the numbers, at most 255 bytes each.
    pub groups: Vec<NumberGroup>,
    /// For each volume its numbers in the order of the groups, packed with [`pack`]. At most 4096.
    pub entries: Vec<(Identity, Vec<u8>)>,
}

/// Why totals are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatisticsError {
    /// They are too short, or do not begin like a file of statistics.
    NoStatistics,
    /// They have another version of the format.
    Version(u32),
    /// Their checksum is wrong.
    Checksum,
    /// An entry is invalid, although the checksum is right.
    Entry,
}

impl std::fmt::Display for StatisticsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoStatistics => f.write_str("it is not a file of statistics"),
            Self::Version(version) => write!(f, "its version is {version}, not {VERSION}"),
            Self::Checksum => f.write_str("its checksum is wrong"),
            Self::Entry => f.write_str("an entry is invalid"),
        }
    }
}

impl std::error::Error for StatisticsError {}

impl StatisticsFile {
    /// The bytes of the file.
    ///
    /// # Panics
    /// If a name is too long.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.groups.len() as u32).to_le_bytes());
        assert_eq!(bytes.len(), HEADER_BYTES);
        for (name, count) in &self.groups {
            bytes.push(u8::try_from(name.len()).expect("names of groups are short"));
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(&(*count as u32).to_le_bytes());
        }
        bytes.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        for (identity, pairs) in &self.entries {
            bytes.extend_from_slice(identity);
            bytes.extend_from_slice(&(pairs.len() as u32).to_le_bytes());
            bytes.extend_from_slice(pairs);
        }
        let sum = checksum(SEED, &bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses a file.
    ///
    /// # Errors
    /// If anything in it is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, StatisticsError> {
        let Some((bytes, sum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err(StatisticsError::NoStatistics);
        };
        let mut rest = ByteReader(bytes);
        if rest.take(MAGIC.len()) != Some(&MAGIC[..]) {
            return Err(StatisticsError::NoStatistics);
        }
        let version = rest.u32().ok_or(StatisticsError::NoStatistics)?;
        if version != VERSION {
            return Err(StatisticsError::Version(version));
        }
        if checksum(SEED, bytes) != u32::from_le_bytes(*sum) {
            return Err(StatisticsError::Checksum);
        }
        rest.file().filter(|_| rest.0.is_empty()).ok_or(StatisticsError::Entry)
    }

    /// The entries with their numbers, packed, in the order of other groups: numbers of groups that
    /// the file lacks, or has with another count, are zero.
    pub fn entries_for(self, groups: &[NumberGroup]) -> Vec<(Identity, Vec<u8>)> {
        if self.groups == groups {
            return self.entries;
        }
        let mut numbers_count = 0;
        let mut known = HashMap::new();
        for (name, count) in &self.groups {
            known.insert((name.as_str(), *count), numbers_count);
            numbers_count += count;
        }
        let converted = |packed: &[u8]| {
            let numbers = unpack(packed, numbers_count).unwrap_or_default();
            let mut found = Vec::new();
            for (name, count) in groups {
                let from = known.get(&(name.as_str(), *count));
                match from.and_then(|&from| numbers.get(from..from + count)) {
                    Some(some) => found.extend_from_slice(some),
                    None => found.resize(found.len() + count, 0),
                }
            }
            pack(&found)
        };
        self.entries.iter().map(|(identity, packed)| (*identity, converted(packed))).collect()
    }
}

/// Packs numbers, most of which are zero.
pub fn pack(numbers: &[u64]) -> Vec<u8> {
    let mut packed = Vec::new();
    let mut next = 0;
    for (at, &number) in numbers.iter().enumerate().filter(|(_, number)| **number != 0) {
        push_leb128((at - next) as u64, &mut packed);
        push_leb128(number, &mut packed);
        next = at + 1;
    }
    packed
}

/// Unpacks `count` numbers; `None` if `packed` is not what [`pack`] returns for so many.
pub fn unpack(packed: &[u8], count: usize) -> Option<Vec<u64>> {
    let mut numbers = vec![0; count];
    let mut rest = ByteReader(packed);
    let mut next = 0_usize;
    while !rest.0.is_empty() {
        let at = next.checked_add(usize::try_from(rest.leb128()?).ok()?)?;
        let number = rest.leb128().filter(|number| *number != 0)?;
        *numbers.get_mut(at)? = number;
        next = at + 1;
    }
    Some(numbers)
}

fn push_leb128(mut number: u64, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Untrusted bytes that are left to read.
struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    /// A number that is at most `max`.
    fn count(&mut self, max: usize) -> Option<usize> {
        usize::try_from(self.u32()?).ok().filter(|count| *count <= max)
    }

    fn text(&mut self, length: usize) -> Option<String> {
        String::from_utf8(self.take(length)?.to_vec()).ok()
    }

    fn leb128(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.take(1)?[0];
            let bits = u64::from(byte & 0x7f);
            number |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn file(&mut self) -> Option<StatisticsFile> {
        let mut file = StatisticsFile::default();
        let mut numbers = 0;
        for _ in 0..self.count(NUMBERS_MAX)? {
            let length = usize::from(self.take(1)?[0]);
            let name = self.text(length)?;
            let count = self.count(NUMBERS_MAX)?;
            numbers += count;
            if numbers > NUMBERS_MAX {
                return None;
            }
            file.groups.push((name, count));
        }
        for _ in 0..self.count(ENTRIES_MAX)? {
            let identity = self.take(IDENTITY_BYTES)?.try_into().ok()?;
            let length = self.u32()? as usize;
            let pairs = self.take(length)?;
            unpack(pairs, numbers)?;
            file.entries.push((identity, pairs.to_vec()));
        }
        Some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file() -> StatisticsFile {
        let mut numbers = vec![0; 9];
        (numbers[0], numbers[3], numbers[8]) = (u64::MAX, 1, 300);
        StatisticsFile {
            groups: vec![("reads".into(), 1), ("latency".into(), 7), ("ü".into(), 1)],
            entries: vec![([7; 32], pack(&numbers)), ([0; 32], Vec::new())],
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_any_damage_is_noticed() {
        let bytes = file().encode();
        assert_eq!(StatisticsFile::decode(&bytes), Ok(file()));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(StatisticsFile::decode(&damaged).is_err(), "bit {bit} of byte {at}");
            }
            assert!(StatisticsFile::decode(&bytes[..at]).is_err(), "{at} bytes");
        }
        let mut newer = bytes;
        newer[8] = 2;
        // The version is checked before the checksum, which a newer format may compute differently.
        assert_eq!(StatisticsFile::decode(&newer), Err(StatisticsError::Version(2)));
        let empty = StatisticsFile::default();
        assert_eq!(StatisticsFile::decode(&empty.encode()), Ok(empty));
    }

    #[test]
    fn an_entry_with_more_numbers_than_the_groups_is_refused() {
        let mut file = file();
        file.entries[1].1 = pack(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(StatisticsFile::decode(&file.encode()), Err(StatisticsError::Entry));
    }

    #[test]
    fn another_version_of_the_program_finds_what_it_knows() {
        let groups =
            [("new".into(), 2), ("ü".into(), 1), ("latency".into(), 6), ("reads".into(), 1)];
        let file = file();
        let entries = file.entries_for(&groups);
        let numbers = |at: usize| unpack(&entries[at].1, 10).unwrap();
        assert_eq!(numbers(0), [0, 0, 300, 0, 0, 0, 0, 0, 0, u64::MAX]);
        assert_eq!((numbers(1), entries[0].0), (vec![0; 10], [7; 32]));
        assert_eq!(self::file().entries_for(&self::file().groups), self::file().entries);
    }

    proptest! {
        #[test]
        fn packed_numbers_are_unpacked_as_they_were(
            numbers in prop::collection::vec(prop_oneof![3 => Just(0), 1 => any::<u64>()], 0..80)
        ) {
            let packed = pack(&numbers);
            prop_assert_eq!(unpack(&packed, numbers.len()), Some(numbers.clone()));
            let is_full = numbers.last().is_some_and(|last| *last != 0);
            let fits_less = numbers.len().checked_sub(1).and_then(|less| unpack(&packed, less));
            prop_assert!(!is_full || fits_less.is_none());
        }

        #[test]
        fn no_bytes_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..400),
            valid in any::<bool>(),
        ) {
            if valid {
                // Past the checksum, into the entries.
                let mut whole = MAGIC.to_vec();
                whole.extend_from_slice(&VERSION.to_le_bytes());
                whole.append(&mut bytes);
                let sum = checksum(SEED, &whole);
                whole.extend_from_slice(&sum.to_le_bytes());
                bytes = whole;
            }
            let _ = StatisticsFile::decode(&bytes);
            let _ = unpack(&bytes, 100);
        }
    }
}
