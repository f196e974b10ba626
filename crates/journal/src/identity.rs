//! Checks whether a disk is the one that a journal's records belong to.
//!
//! The size, the hardware identifier and the content of some blocks take precedence over the
//! configured name and backing: a disk that moved to another path is recognised, and another disk
//! at the same path is detected.
//!
//! The price: two blank disks of the same size cannot be told apart by content.

use crate::FoundRecord;
use forebay_format::journal::{
    BLOCK_BYTES, JournalId, LogKind, SAMPLES_MAX, Samples, Superblock, VolumeEntry, sample_of,
    sample_places,
};
use forebay_types::ByteRange;
use std::fmt;

/// Number of non-zero blocks that must match if only content identifies the disk. Two disks made
/// from one image match in all blocks; two disks that merely have the same kind of file system
/// match in very few.
pub const MATCHES_MIN: usize = 8;

/// How a disk compares with what a journal recorded about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Whether the configured name and backing are unchanged.
    pub has_same_name: bool,
    /// The size.
    pub size: SizeEvidence,
    /// Whether the hardware identifier is unchanged; `None` if either one is unknown.
    pub has_same_hardware: Option<bool>,
    /// Whether another server has owned the disk since, as the disk itself remembers.
    pub has_other_owner: bool,
    /// Number of compared blocks: those that Forebay cannot have changed.
    pub compared: usize,
    /// Number of compared blocks that differ.
    pub differing: usize,
    /// Number of compared blocks that match and are not all zeroes.
    pub matching: usize,
}

/// The size of a disk, compared with the recorded one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SizeEvidence {
    /// The same size.
    Same,
    /// A larger disk. The same disk may have grown.
    Grown,
    /// A smaller disk.
    #[default]
    Smaller,
}

impl SizeEvidence {
    /// Compares the present size of a disk with the recorded one, both in bytes.
    pub const fn of(present: u64, recorded: u64) -> Self {
        if present == recorded {
            Self::Same
        } else if present > recorded {
            Self::Grown
        } else {
            Self::Smaller
        }
    }
}

/// The identity of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskIdentity {
    /// The same disk, unchanged.
    Same,
    /// The same disk or an exact copy, under another name or on other hardware.
    Renamed,
    /// Another disk, or the same disk changed by another program.
    Changed,
    /// Not enough evidence either way.
    Unknown,
}

impl Evidence {
    /// The conclusion from the evidence.
    pub const fn identity(&self) -> DiskIdentity {
        let content_matches = self.matching >= MATCHES_MIN;
        let is_recognised = content_matches || matches!(self.has_same_hardware, Some(true));
        match self.size {
            _ if self.has_other_owner || self.differing > 0 => return DiskIdentity::Changed,
            SizeEvidence::Smaller => return DiskIdentity::Changed,
            // Its name is not enough: a larger disk may have taken the place of this one.
            SizeEvidence::Grown if !is_recognised => return DiskIdentity::Changed,
            SizeEvidence::Grown | SizeEvidence::Same => {}
        }
        match (self.has_same_hardware, self.has_same_name) {
            (Some(false), _) if content_matches => DiskIdentity::Renamed,
            (Some(false), _) => DiskIdentity::Changed,
            (_, true) => DiskIdentity::Same,
            (Some(true), false) => DiskIdentity::Renamed,
            (None, false) if content_matches => DiskIdentity::Renamed,
            (None, false) => DiskIdentity::Unknown,
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.has_same_name {
            f.write_str("another name, ")?;
        }
        if self.has_other_owner {
            f.write_str("another server has owned it since, ")?;
        }
        f.write_str(match self.size {
            SizeEvidence::Same => "",
            SizeEvidence::Grown => "larger, ",
            SizeEvidence::Smaller => "smaller, ",
        })?;
        match self.has_same_hardware {
            Some(true) => f.write_str("the same hardware, ")?,
            Some(false) => f.write_str("other hardware, ")?,
            None => {}
        }
        match (self.compared, self.differing) {
            (0, _) => f.write_str("no comparable samples"),
            (compared, 0) => write!(f, "{compared} of {compared} samples match"),
            (compared, differing) => write!(f, "{differing} of {compared} samples differ"),
        }
    }
}

/// A sampled block of a disk, [`BLOCK_BYTES`] long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplePlace {
    /// The index of its sample.
    pub index: usize,
    /// Its position on the disk in bytes.
    pub offset: u64,
}

/// All sampled blocks of a volume's disk.
pub fn all_places(journal: JournalId, number: u16, size_bytes: u64) -> Vec<SamplePlace> {
    let offsets = sample_places(journal, number, size_bytes).into_iter().enumerate();
    offsets.map(|(index, offset)| SamplePlace { index, offset }).collect()
}

/// The sampled blocks of a disk for the vault with this number. They are read before a dump begins,
/// so they do not depend on the dump's identity.
pub fn vault_places(vault: u64, size_bytes: u64) -> Vec<SamplePlace> {
    let [low, high] = [vault, !vault].map(u64::to_le_bytes);
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&low);
    seed[8..].copy_from_slice(&high);
    all_places(JournalId(seed), 0, size_bytes)
}

/// The sampled blocks of a volume's disk, for either kind of log.
fn places_of(superblock: &Superblock, volume: &VolumeEntry) -> Vec<SamplePlace> {
    match superblock.kind {
        LogKind::Journal => all_places(superblock.journal, volume.number, volume.size_bytes),
        LogKind::Vault { .. } => vault_places(superblock.members.own, volume.size_bytes),
    }
}

/// The samples that show whether another program has changed a volume's disk: the valid samples
/// that no record covers. No write of a client, and no destage, can have changed those blocks.
pub fn comparable_places(
    superblock: &Superblock,
    volume: &VolumeEntry,
    records: &[FoundRecord],
) -> Vec<SamplePlace> {
    unrecorded(places_of(superblock, volume), volume, records)
}

/// The places that have a valid sample and are covered by no record.
fn unrecorded(
    mut places: Vec<SamplePlace>,
    volume: &VolumeEntry,
    records: &[FoundRecord],
) -> Vec<SamplePlace> {
    places.retain(|place| volume.disk.samples.valid >> place.index & 1 == 1);
    for found in records.iter().filter(|found| found.record.volume == volume.number) {
        places.retain(|place| !overlaps(place, found.record.range));
    }
    places
}

/// Whether a sampled block overlaps a range.
pub fn overlaps(place: &SamplePlace, range: ByteRange) -> bool {
    place.offset < range.end() && range.offset < place.offset + BLOCK_BYTES
}

/// Compares the current blocks with their samples; skips unreadable blocks.
pub fn compare(samples: &Samples, blocks: &[(SamplePlace, Option<&[u8]>)]) -> Evidence {
    let mut evidence = Evidence::default();
    for &(SamplePlace { index, offset }, block) in blocks {
        let Some(block) = block else { continue };
        evidence.compared += 1;
        let is_same = sample_of(offset, block) == samples.sums[index];
        evidence.differing += usize::from(!is_same);
        evidence.matching += usize::from(is_same && block.iter().any(|&byte| byte != 0));
    }
    assert!(evidence.differing + evidence.matching <= evidence.compared, "{evidence:?}");
    evidence
}

/// Computes the samples of these blocks; unreadable blocks get no valid sample.
pub fn samples_of(blocks: &[(SamplePlace, Option<&[u8]>)]) -> Samples {
    let mut samples = Samples { valid: 0, sums: [0; SAMPLES_MAX] };
    for &(SamplePlace { index, offset }, block) in blocks {
        assert!(index < SAMPLES_MAX, "sample {index}: a disk has at most {SAMPLES_MAX}");
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
    use forebay_format::journal::{DiskInfo, Record, RecordKind};

    const JOURNAL: JournalId = JournalId([7; 16]);
    const SIZE: u64 = 1 << 30;

    fn block(place: &SamplePlace) -> Vec<u8> {
        (0..BLOCK_BYTES).map(|at| (at * 3 + place.offset / 4096) as u8).collect()
    }

    fn blocks(
        places: &[SamplePlace],
        content: impl Fn(&SamplePlace) -> Vec<u8>,
    ) -> Vec<(SamplePlace, Vec<u8>)> {
        places.iter().map(|place| (*place, content(place))).collect()
    }

    fn borrowed(blocks: &[(SamplePlace, Vec<u8>)]) -> Vec<(SamplePlace, Option<&[u8]>)> {
        blocks.iter().map(|(place, bytes)| (*place, Some(&bytes[..]))).collect()
    }

    fn volume(samples: Samples) -> VolumeEntry {
        let disk = DiskInfo { samples, ..DiskInfo::default() };
        let (name, identity, void_before) = ("a".into(), [1; 32], 0);
        VolumeEntry { number: 3, name, size_bytes: SIZE, identity, disk, void_before }
    }

    #[test]
    fn compares_only_blocks_that_no_record_covers() {
        let places = all_places(JOURNAL, 3, SIZE);
        let before = blocks(&places, block);
        let mut samples = samples_of(&borrowed(&before));
        assert_eq!(samples.valid.count_ones() as usize, places.len());
        samples.valid &= !1;
        let range = ByteRange::new(places[9].offset + 4095 / 512 * 512, 512);
        let record =
            Record { kind: RecordKind::Forget, volume: 3, range, payload_offset: 0, checksum: 0 };
        let others = Record { volume: 4, range: ByteRange::new(0, SIZE), ..record };
        let found = |record| FoundRecord { record, position: 0, is_damaged: false };
        let left = unrecorded(places.clone(), &volume(samples), &[found(record), found(others)]);
        assert_eq!(left.len(), places.len() - 2);
        assert!(!left.contains(&places[0]) && !left.contains(&places[9]));
        // The same disk, a disk with one changed byte, and an unreadable disk.
        let now = blocks(&left, block);
        let evidence = compare(&samples, &borrowed(&now));
        let count = left.len();
        assert_eq!((evidence.compared, evidence.differing, evidence.matching), (count, 0, count));
        let mut changed = now.clone();
        changed[5].1[4095] ^= 1;
        assert_eq!(compare(&samples, &borrowed(&changed)).differing, 1);
        let unread: Vec<_> = left.iter().map(|place| (*place, None)).collect();
        assert_eq!(compare(&samples, &unread).compared, 0);
        let blank = blocks(&left, |_| vec![0; BLOCK_BYTES as usize]);
        assert_eq!(compare(&samples, &borrowed(&blank)).differing, count);
        let of_blank = samples_of(&borrowed(&blank));
        let evidence = compare(&of_blank, &borrowed(&blank));
        assert_eq!(
            (evidence.differing, evidence.matching),
            (0, 0),
            "zeroes do not count as a match"
        );
    }

    #[test]
    fn hardware_and_content_take_precedence_over_the_name() {
        use DiskIdentity::{Changed, Renamed, Same, Unknown};
        let evidence = |has_same_name, has_same_hardware, matching| Evidence {
            has_other_owner: false,
            has_same_name,
            size: SizeEvidence::Same,
            has_same_hardware,
            compared: 60,
            differing: 0,
            matching,
        };
        for (name, hardware, matching, identity) in [
            (true, None, 0, Same),
            (true, Some(true), 0, Same),
            (true, Some(false), 0, Changed),
            (true, Some(false), MATCHES_MIN, Renamed),
            (false, None, 0, Unknown),
            (false, None, MATCHES_MIN - 1, Unknown),
            (false, None, MATCHES_MIN, Renamed),
            (false, Some(true), 0, Renamed),
            (false, Some(false), 0, Changed),
            (false, Some(false), MATCHES_MIN, Renamed),
        ] {
            let evidence = evidence(name, hardware, matching);
            assert_eq!(evidence.identity(), identity, "{evidence:?}");
            // A different size or content always means another disk.
            assert_eq!(Evidence { differing: 1, ..evidence }.identity(), Changed);
            assert_eq!(Evidence { has_other_owner: true, ..evidence }.identity(), Changed);
            assert_eq!(Evidence { size: SizeEvidence::Smaller, ..evidence }.identity(), Changed);
            // A larger one is the same only if more than its name says so.
            let is_recognised = matching == MATCHES_MIN || hardware == Some(true);
            let grown = Evidence { size: SizeEvidence::Grown, ..evidence }.identity();
            assert_eq!(grown, if is_recognised { identity } else { Changed }, "{evidence:?}");
        }
    }
}
