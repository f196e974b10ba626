//! Reads samples of a volume's disk, to recognise the disk at the next start.
//!
//! The log decides which samples count (`journal/src/log/samples.rs`), and
//! `forebay_journal::decision` decides what follows from a comparison. At most 64 blocks are read,
//! all in parallel: when a volume is attached, and after its checkpoints, by a short-lived thread,
//! so that neither a worker nor the journal waits.

use crate::stats::InternalReads;
use forebay_backend::{AlignedBuffer, Backend, Blocking, hardware_name};
use forebay_format::journal::{BLOCK_BYTES, Samples, VolumeEntry, hardware_sum};
use forebay_journal::identity::{
    Evidence, SamplePlace, SizeEvidence, comparable_places, compare, samples_of,
};
use forebay_journal::{Damage, Found};
use forebay_types::ByteRange;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is known of a disk, besides its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskTrust {
    /// The operator says that it is the right one.
    pub is_accepted: bool,
    /// Another server has owned it since this host had it.
    pub has_other_owner: bool,
}

impl DiskTrust {
    /// Adds it to what a comparison has shown.
    pub(crate) fn judge(self, evidence: Evidence) -> Evidence {
        Evidence { has_other_owner: self.has_other_owner, ..evidence }
    }
}

/// Compares a disk with a journal's record of the volume's disk. `identity` is the current identity
/// of the disk.
pub fn examine_disk(
    found: &Found,
    volume: &VolumeEntry,
    disk: &dyn Backend,
    identity: [u8; 32],
) -> Evidence {
    let places = places_to_compare(found, volume);
    examine(volume, &places, disk, identity, &InternalReads::default())
}

pub(crate) fn places_to_compare(found: &Found, volume: &VolumeEntry) -> Vec<SamplePlace> {
    // Lost records may have written anywhere, so a difference would prove nothing.
    let is_lost = |damage: &Damage| matches!(damage, Damage::Batches { .. });
    if found.damage.iter().any(is_lost) {
        return Vec::new();
    }
    comparable_places(&found.superblock, volume, &found.records)
}

pub(crate) fn examine(
    volume: &VolumeEntry,
    places: &[SamplePlace],
    disk: &dyn Backend,
    identity: [u8; 32],
    reads: &InternalReads,
) -> Evidence {
    let known = Some(volume.disk.hardware).filter(|&sum| sum != 0);
    let here = Some(hardware(disk)).filter(|&sum| sum != 0);
    let blocks = read_blocks(disk, places, reads);
    Evidence {
        has_same_name: volume.identity == identity,
        size: SizeEvidence::of(disk.description().size_bytes(), volume.size_bytes),
        has_same_hardware: known.zip(here).map(|(known, here)| known == here),
        ..compare(&volume.disk.samples, &borrowed(&blocks))
    }
}

pub(crate) fn hardware(disk: &dyn Backend) -> u64 {
    hardware_name(disk.description()).map_or(0, |name| hardware_sum(&name))
}

fn borrowed(blocks: &[(SamplePlace, Option<AlignedBuffer>)]) -> Vec<(SamplePlace, Option<&[u8]>)> {
    blocks.iter().map(|(place, bytes)| (*place, bytes.as_deref())).collect()
}

/// Reads blocks of a disk. A block that cannot be read is `None`, and one past the end of the disk
/// is left out.
fn read_blocks(
    disk: &dyn Backend,
    places: &[SamplePlace],
    reads: &InternalReads,
) -> Vec<(SamplePlace, Option<AlignedBuffer>)> {
    let size_bytes = disk.description().size_bytes();
    let block = |place: &SamplePlace| ByteRange::new(place.offset, BLOCK_BYTES);
    let inside = places.iter().filter(|place| block(place).fits(size_bytes));
    let inside: Vec<SamplePlace> = inside.copied().collect();
    let buffer = |place: &SamplePlace| (place.offset, AlignedBuffer::new(BLOCK_BYTES as usize));
    let mut pieces: Vec<_> = inside.iter().map(buffer).collect();
    reads.add(pieces.len() as u64, pieces.len() as u64 * BLOCK_BYTES);
    let results = Blocking::new(disk).read_many(&mut pieces);
    let read = inside.into_iter().zip(pieces.into_iter().zip(results));
    read.map(|(place, ((_, bytes), result))| (place, result.is_ok().then_some(bytes))).collect()
}

pub(crate) fn sample(disk: &dyn Backend, places: &[SamplePlace], reads: &InternalReads) -> Samples {
    samples_of(&borrowed(&read_blocks(disk, places, reads)))
}

/// Samples of a disk kept in memory. A sample is valid until its block may have been written. A
/// dump stores the valid ones, after all writes to the disk have stopped.
pub(crate) struct KeptSamples {
    places: Vec<SamplePlace>,
    samples: Samples,
    valid: AtomicU64,
}

impl KeptSamples {
    /// Samples a disk at `places`, which are in ascending order.
    pub(crate) fn of(disk: &dyn Backend, places: Vec<SamplePlace>, reads: &InternalReads) -> Self {
        let samples = sample(disk, &places, reads);
        Self { places, valid: AtomicU64::new(samples.valid), samples }
    }

    /// Invalidates the samples in a range that is about to be written.
    pub(crate) fn invalidate(&self, range: ByteRange) {
        let first = self.places.partition_point(|at| at.offset + BLOCK_BYTES <= range.offset);
        for place in self.places[first..].iter().take_while(|at| at.offset < range.end()) {
            self.valid.fetch_and(!(1 << place.index), Ordering::SeqCst);
        }
    }

    /// Invalidates all samples.
    pub(crate) fn invalidate_all(&self) {
        self.valid.store(0, Ordering::SeqCst);
    }

    /// The samples, with the valid ones marked.
    pub(crate) fn samples(&self) -> Samples {
        Samples { valid: self.valid.load(Ordering::SeqCst), ..self.samples }
    }
}
