//! Whether a volume's disk is the one that its journal knows.
//!
//! The log decides which samples of a disk count (`journal/src/log/samples.rs`), and what follows
//! from a comparison is decided in `forebay_journal::decision`; here the disk is read. That is 64
//! blocks at most, all at once: when a volume is attached, and after each checkpoint of it, by a
//! thread that lives as long as that takes, so that neither a worker nor the journal waits for it.

use forebay_backend::{AlignedBuffer, Backend, Blocking, hardware_name};
use forebay_format::journal::{BLOCK_BYTES, Samples, VolumeEntry, hardware_sum};
use forebay_journal::identity::{Evidence, Place, comparable, compare, samples_of};
use forebay_journal::{Damage, Found};
use forebay_types::ByteRange;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a disk says of itself, beside what a journal remembers of the volume's disk. `identity` is
/// what names the disk now.
pub fn examine_disk(
    found: &Found,
    volume: &VolumeEntry,
    disk: &dyn Backend,
    identity: [u8; 32],
) -> Evidence {
    let places = places_to_compare(found, volume);
    examine(volume, &places, disk, identity)
}

pub(crate) fn places_to_compare(found: &Found, volume: &VolumeEntry) -> Vec<Place> {
    // What records that are lost have written is not known, so differences tell nothing.
    let is_lost = |damage: &Damage| matches!(damage, Damage::Batches { .. });
    if found.damage.iter().any(is_lost) {
        return Vec::new();
    }
    comparable(&found.superblock, volume, &found.records)
}

pub(crate) fn examine(
    volume: &VolumeEntry,
    places: &[Place],
    disk: &dyn Backend,
    identity: [u8; 32],
) -> Evidence {
    let known = Some(volume.disk.hardware).filter(|&sum| sum != 0);
    let here = Some(hardware(disk)).filter(|&sum| sum != 0);
    let blocks = read(disk, places);
    Evidence {
        same_name: volume.identity == identity,
        same_size: disk.description().size_bytes == volume.size_bytes,
        same_hardware: known.zip(here).map(|(known, here)| known == here),
        ..compare(&volume.disk.samples, &lent(&blocks))
    }
}

pub(crate) fn hardware(disk: &dyn Backend) -> u64 {
    hardware_name(disk.description()).map_or(0, |name| hardware_sum(&name))
}

fn lent(blocks: &[(Place, Option<AlignedBuffer>)]) -> Vec<(Place, Option<&[u8]>)> {
    blocks.iter().map(|(place, bytes)| (*place, bytes.as_deref())).collect()
}

/// Reads blocks of a disk; those that it has not, or does not give, are `None`.
fn read(disk: &dyn Backend, places: &[Place]) -> Vec<(Place, Option<AlignedBuffer>)> {
    let size_bytes = disk.description().size_bytes;
    let block = |place: &Place| ByteRange::new(place.offset, BLOCK_BYTES);
    let inside = places.iter().filter(|place| block(place).fits(size_bytes));
    let inside: Vec<Place> = inside.copied().collect();
    let buffer = |place: &Place| (place.offset, AlignedBuffer::new(BLOCK_BYTES as usize));
    let mut pieces: Vec<_> = inside.iter().map(buffer).collect();
    let results = Blocking::new(disk).read_many(&mut pieces);
    let read = inside.into_iter().zip(pieces.into_iter().zip(results));
    read.map(|(place, ((_, bytes), result))| (place, result.is_ok().then_some(bytes))).collect()
}

pub(crate) fn sample(disk: &dyn Backend, places: &[Place]) -> Samples {
    samples_of(&lent(&read(disk, places)))
}

/// Samples of a disk that are kept in memory, and which of them count: those that nothing was let
/// at since. They are written down with a dump, when nothing is let at the disk any more.
pub(crate) struct KeptSamples {
    places: Vec<Place>,
    samples: Samples,
    valid: AtomicU64,
}

impl KeptSamples {
    /// Samples a disk at some places, ascending, where nothing is about to be written.
    pub(crate) fn of(disk: &dyn Backend, places: Vec<Place>) -> Self {
        let samples = sample(disk, &places);
        Self { places, valid: AtomicU64::new(samples.valid), samples }
    }

    /// Something is about to be let at a range of the disk.
    pub(crate) fn touch(&self, range: ByteRange) {
        let first = self.places.partition_point(|at| at.offset + BLOCK_BYTES <= range.offset);
        for place in self.places[first..].iter().take_while(|at| at.offset < range.end()) {
            self.valid.fetch_and(!(1 << place.index), Ordering::SeqCst);
        }
    }

    /// Those that count now.
    pub(crate) fn samples(&self) -> Samples {
        Samples { valid: self.valid.load(Ordering::SeqCst), ..self.samples }
    }
}
