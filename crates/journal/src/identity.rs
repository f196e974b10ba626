//! Whether a disk is the one that a journal's records are for.
//!
//! Words (name and backing as they are written) say which disk is meant; size, the hardware's own
//! name and the content of some blocks say which one it is. Where they disagree, the disk itself is
//! believed: a disk that was moved to another path is recognised, and another disk at the same path
//! is noticed.
//!
//! The price: the content of a blank disk tells nothing, so that one blank disk passes for another.

use crate::FoundRecord;
use forebay_format::journal::{
    BLOCK_BYTES, JournalId, LogKind, SAMPLES_MAX, Samples, Superblock, VolumeEntry, places,
    sample_of,
};
use forebay_types::ByteRange;
use std::fmt;

/// Blocks with content that have to agree where nothing but content says which disk it is. Two
/// disks made from one image agree in all; two that merely have the same kind of file system
/// agree in very few.
pub const TELLING_MIN: usize = 8;

/// What is known of a disk beside what a journal remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Name and backing are written as before.
    pub same_words: bool,
    /// It is as large as it was.
    pub same_size: bool,
    /// The hardware's own name is the same; `None` where one of the two is not known.
    pub same_hardware: Option<bool>,
    /// Blocks that could be compared: nothing that Forebay did can have changed them.
    pub compared: usize,
    /// Those of them that are different.
    pub differing: usize,
    /// Those of them that are the same, and not just zeroes.
    pub telling: usize,
}

/// Which disk it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskIdentity {
    /// The one that was there, as it was left.
    Same,
    /// The one that was there or an exact copy, under another name or on other hardware.
    Renamed,
    /// Another one, or one that somebody else has changed.
    Changed,
    /// Nothing says that it is the one, and nothing that it is not.
    Unknown,
}

impl Evidence {
    /// What follows from it.
    pub const fn identity(&self) -> DiskIdentity {
        let is_told_by_content = self.telling >= TELLING_MIN;
        if !self.same_size || self.differing > 0 {
            return DiskIdentity::Changed;
        }
        match (self.same_hardware, self.same_words) {
            (Some(false), _) if is_told_by_content => DiskIdentity::Renamed,
            (Some(false), _) => DiskIdentity::Changed,
            (_, true) => DiskIdentity::Same,
            (Some(true), false) => DiskIdentity::Renamed,
            (None, false) if is_told_by_content => DiskIdentity::Renamed,
            (None, false) => DiskIdentity::Unknown,
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.same_words {
            f.write_str("another name, ")?;
        }
        if !self.same_size {
            f.write_str("another size, ")?;
        }
        match self.same_hardware {
            Some(true) => f.write_str("the same hardware, ")?,
            Some(false) => f.write_str("other hardware, ")?,
            None => {}
        }
        match (self.compared, self.differing) {
            (0, _) => f.write_str("no sample that could be compared"),
            (compared, 0) => write!(f, "{compared} of {compared} samples the same"),
            (compared, differing) => write!(f, "{differing} of {compared} samples differ"),
        }
    }
}

/// A sample that may be compared: its number among the places, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which one.
    pub index: usize,
    /// Its first byte on the disk; it is [`BLOCK_BYTES`] long.
    pub offset: u64,
}

/// All places of a volume.
pub fn all_places(journal: JournalId, number: u16, size_bytes: u64) -> Vec<Place> {
    let places = places(journal, number, size_bytes).into_iter().enumerate();
    places.map(|(index, offset)| Place { index, offset }).collect()
}

/// The places of a disk that a vault remembers, known by its number. They have to be there before
/// a dump is begun, so they depend on nothing of it.
pub fn vault_places(vault: u64, size_bytes: u64) -> Vec<Place> {
    let [low, high] = [vault, !vault].map(u64::to_le_bytes);
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&low);
    seed[8..].copy_from_slice(&high);
    all_places(JournalId(seed), 0, size_bytes)
}

/// The places of a volume that its log remembers.
fn places_of(superblock: &Superblock, volume: &VolumeEntry) -> Vec<Place> {
    match superblock.kind {
        LogKind::Journal => all_places(superblock.journal, volume.number, volume.size_bytes),
        LogKind::Vault { .. } => vault_places(superblock.members.own, volume.size_bytes),
    }
}

/// The samples of a volume that tell whether somebody else has changed its disk: those that count
/// and that no record covers, so that neither a write nor its destage can have changed the block.
pub fn comparable(
    superblock: &Superblock,
    volume: &VolumeEntry,
    records: &[FoundRecord],
) -> Vec<Place> {
    not_written(places_of(superblock, volume), volume, records)
}

fn not_written(
    mut places: Vec<Place>,
    volume: &VolumeEntry,
    records: &[FoundRecord],
) -> Vec<Place> {
    places.retain(|place| volume.guard.samples.valid >> place.index & 1 == 1);
    for found in records.iter().filter(|found| found.record.volume == volume.number) {
        places.retain(|place| !overlaps(place, found.record.range));
    }
    places
}

/// Whether a sample lies in a range, wholly or in part.
pub fn overlaps(place: &Place, range: ByteRange) -> bool {
    place.offset < range.end() && range.offset < place.offset + BLOCK_BYTES
}

/// Compares blocks as they are now; those that can't be read tell nothing.
pub fn compare(samples: &Samples, blocks: &[(Place, Option<&[u8]>)]) -> Evidence {
    let mut evidence = Evidence::default();
    for &(Place { index, offset }, block) in blocks {
        let Some(block) = block else { continue };
        evidence.compared += 1;
        let is_same = sample_of(offset, block) == samples.sums[index];
        evidence.differing += usize::from(!is_same);
        evidence.telling += usize::from(is_same && block.iter().any(|&byte| byte != 0));
    }
    evidence
}

/// The samples of a disk whose blocks are these; those that can't be read don't count.
pub fn samples_of(blocks: &[(Place, Option<&[u8]>)]) -> Samples {
    let mut samples = Samples { valid: 0, sums: [0; SAMPLES_MAX] };
    for &(Place { index, offset }, block) in blocks {
        if let Some(block) = block {
            samples.valid |= 1 << index;
            samples.sums[index] = sample_of(offset, block);
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::journal::{Guard, Record, RecordKind};

    const JOURNAL: JournalId = JournalId([7; 16]);
    const SIZE: u64 = 1 << 30;

    fn block(place: &Place) -> Vec<u8> {
        (0..BLOCK_BYTES).map(|at| (at * 3 + place.offset / 4096) as u8).collect()
    }

    fn blocks(places: &[Place], content: impl Fn(&Place) -> Vec<u8>) -> Vec<(Place, Vec<u8>)> {
        places.iter().map(|place| (*place, content(place))).collect()
    }

    fn lent(blocks: &[(Place, Vec<u8>)]) -> Vec<(Place, Option<&[u8]>)> {
        blocks.iter().map(|(place, bytes)| (*place, Some(&bytes[..]))).collect()
    }

    fn volume(samples: Samples) -> VolumeEntry {
        let guard = Guard { samples, ..Guard::default() };
        VolumeEntry { number: 3, name: "a".into(), size_bytes: SIZE, identity: [1; 32], guard }
    }

    #[test]
    fn a_disk_is_compared_where_nothing_was_written() {
        let places = all_places(JOURNAL, 3, SIZE);
        let before = blocks(&places, block);
        let mut samples = samples_of(&lent(&before));
        assert_eq!(samples.valid.count_ones() as usize, places.len());
        samples.valid &= !1;
        let range = ByteRange::new(places[9].offset + 4095 / 512 * 512, 512);
        let record =
            Record { kind: RecordKind::Forget, volume: 3, range, payload_offset: 0, checksum: 0 };
        let others = Record { volume: 4, range: ByteRange::new(0, SIZE), ..record };
        let found = |record| FoundRecord { record, position: 0, is_damaged: false };
        let left = not_written(places.clone(), &volume(samples), &[found(record), found(others)]);
        assert_eq!(left.len(), places.len() - 2);
        assert!(!left.contains(&places[0]) && !left.contains(&places[9]));
        // The same disk, one in which a byte has changed, and one that can't be read there.
        let now = blocks(&left, block);
        let evidence = compare(&samples, &lent(&now));
        let count = left.len();
        assert_eq!((evidence.compared, evidence.differing, evidence.telling), (count, 0, count));
        let mut changed = now.clone();
        changed[5].1[4095] ^= 1;
        assert_eq!(compare(&samples, &lent(&changed)).differing, 1);
        let unread: Vec<_> = left.iter().map(|place| (*place, None)).collect();
        assert_eq!(compare(&samples, &unread).compared, 0);
        let blank = blocks(&left, |_| vec![0; BLOCK_BYTES as usize]);
        assert_eq!(compare(&samples, &lent(&blank)).differing, count);
        let of_blank = samples_of(&lent(&blank));
        let evidence = compare(&of_blank, &lent(&blank));
        assert_eq!((evidence.differing, evidence.telling), (0, 0), "zeroes tell nothing");
    }

    #[test]
    fn the_disk_itself_is_believed_before_words() {
        use DiskIdentity::{Changed, Renamed, Same, Unknown};
        let evidence = |same_words, same_hardware, telling| Evidence {
            same_words,
            same_size: true,
            same_hardware,
            compared: 60,
            differing: 0,
            telling,
        };
        for (words, hardware, telling, identity) in [
            (true, None, 0, Same),
            (true, Some(true), 0, Same),
            (true, Some(false), 0, Changed),
            (true, Some(false), TELLING_MIN, Renamed),
            (false, None, 0, Unknown),
            (false, None, TELLING_MIN - 1, Unknown),
            (false, None, TELLING_MIN, Renamed),
            (false, Some(true), 0, Renamed),
            (false, Some(false), 0, Changed),
            (false, Some(false), TELLING_MIN, Renamed),
        ] {
            let evidence = evidence(words, hardware, telling);
            assert_eq!(evidence.identity(), identity, "{evidence:?}");
            // Another size or content is another disk, whatever else agrees.
            assert_eq!(Evidence { differing: 1, ..evidence }.identity(), Changed);
            assert_eq!(Evidence { same_size: false, ..evidence }.identity(), Changed);
        }
    }
}
