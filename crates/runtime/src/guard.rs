//! Whether a volume's disk is the one that its journal knows.
//!
//! The log decides which samples of a disk count (`journal/src/log/samples.rs`), and what follows
//! from a comparison is decided in `forebay_journal::decision`; here the disk is read. That is 64
//! blocks at most, all at once: when a volume is attached, and after each checkpoint of it, by a
//! thread that lives as long as that takes, so that neither a worker nor the journal waits for it.

use crate::journal::{Journal, JournalError};
use forebay_backend::{AlignedBuffer, Backend, Blocking, hardware_name};
use forebay_format::journal::{BLOCK_BYTES, JournalId, Samples, VolumeEntry, hardware_sum};
use forebay_journal::decision::{
    Decision, DiskIdentity, Inputs, JournalState, PoolState, Refusal, VaultState, decide,
};
use forebay_journal::identity::{
    Evidence, Place, all_places, comparable, compare, overlaps, samples_of,
};
use forebay_journal::{Damage, Found, Image};
use forebay_types::{ByteRange, Durability, IoResult, VolumeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long who closes a disk waits for a thread that samples it.
const SAMPLING_PATIENCE: Duration = Duration::from_secs(5);

/// A volume that is to be recorded.
pub(crate) struct Attachment<'a> {
    pub name: &'a str,
    pub id: VolumeId,
    pub identity: [u8; 32],
    pub durability: Durability,
    pub disk: &'a Arc<dyn Backend>,
    pub accept_disk: bool,
    /// What else may hold its data.
    pub pool: PoolState,
    pub vault: VaultState,
}

/// What a journal holds for a volume of this name.
struct Held {
    volume: VolumeEntry,
    places: Vec<Place>,
    bytes: u64,
    /// The end of the last byte that is to be written.
    end: u64,
}

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

fn places_to_compare(found: &Found, volume: &VolumeEntry) -> Vec<Place> {
    // What records that are lost have written is not known, so differences tell nothing.
    let is_lost = |damage: &Damage| matches!(damage, Damage::Batches { .. });
    if found.damage.iter().any(is_lost) {
        return Vec::new();
    }
    comparable(&found.superblock, volume, &found.records)
}

fn examine(
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

fn sample(disk: &dyn Backend, places: &[Place]) -> Samples {
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

impl Journal {
    /// Begins to record a volume. Returns its number in the journal.
    pub(crate) fn attach(&self, volume: &Attachment<'_>) -> Result<u16, JournalError> {
        let kept = self.recognise(volume)?;
        let Attachment { name, id, identity, disk, .. } = *volume;
        let size_bytes = disk.description().size_bytes;
        let number = match kept {
            Some((number, _)) => number,
            None => {
                let number = self.lock().log.add_volume(name, size_bytes, identity);
                number.map_err(|error| JournalError::Log { name: self.name.clone(), error })?
            }
        };
        // Nobody is served yet, so nothing changes the disk while it is read. What is held of a
        // disk that is known goes with the samples that were taken before.
        let samples = match kept {
            Some((_, true)) => None,
            _ => Some(sample(&**disk, &self.uncovered_places(number, size_bytes))),
        };
        {
            let mut state = self.lock();
            let named = (size_bytes, identity, hardware(&**disk));
            state.log.attach_disk(number, named, samples);
            state.volumes.push((number, id));
            state.disks.push((number, Arc::clone(disk)));
        }
        self.wait_for_superblock()?;
        Ok(number)
    }

    /// Where the disk of a volume can be sampled while nothing of it is written but what is held.
    fn uncovered_places(&self, number: u16, size_bytes: u64) -> Vec<Place> {
        let found = self.found.lock();
        let mut places = all_places(found.superblock.journal, number, size_bytes);
        for found in found.records.iter().filter(|found| found.record.volume == number) {
            places.retain(|place| !overlaps(place, found.record.range));
        }
        places
    }

    /// Finds what is held for the volume, and whether its disk is the one it is for. Returns the
    /// number that it is known by, if anything is held, and whether the disk is known.
    fn recognise(&self, volume: &Attachment<'_>) -> Result<Option<(u16, bool)>, JournalError> {
        let (id, damaged, held) = self.held_for(volume.name);
        let is_clean = self.found.lock().superblock.clean;
        let mut kept = None;
        let state = |held: bool| match (held, damaged) {
            _ if self.given_up.names(volume.name) => JournalState::Abandoned,
            (true, true) => JournalState::Damaged,
            (true, false) => JournalState::Records,
            (false, _) if is_clean => JournalState::Clean,
            (false, _) => JournalState::Empty,
        };
        let is_in_vault =
            !matches!(volume.vault, VaultState::None | VaultState::Empty | VaultState::Missing);
        if is_in_vault && !held.is_empty() && volume.pool == PoolState::New {
            return Err(JournalError::AlsoInVault {
                name: self.name.clone(),
                volume: volume.name.to_owned(),
                bytes: held.iter().map(|held| held.bytes).sum(),
            });
        }
        self.may_serve(volume, state(false), DiskIdentity::Unknown)?;
        for held in &held {
            let evidence = examine(&held.volume, &held.places, &**volume.disk, volume.identity);
            let identity = evidence.identity();
            let fits = held.end <= volume.disk.description().size_bytes;
            let decision = self.may_serve(volume, state(true), identity)?;
            if decision == Decision::Quarantine || !fits || kept.is_some() {
                return Err(self.changed_disk(volume, held, evidence));
            }
            let (name, disk) = (volume.name, &volume.disk.description().name);
            match identity {
                DiskIdentity::Same => {}
                DiskIdentity::Renamed => tracing::warn!(
                    "{disk} is the disk that journal {id} holds writes of volume '{name}' for, \
                     under another name: {evidence}"
                ),
                DiskIdentity::Changed | DiskIdentity::Unknown => tracing::warn!(
                    "{disk} is not known to be the disk that journal {id} holds writes of volume \
                     '{name}' for ({evidence}); they go there on the operator's word"
                ),
            }
            let is_known = matches!(identity, DiskIdentity::Same | DiskIdentity::Renamed);
            kept = Some((held.volume.number, is_known));
        }
        Ok(kept)
    }

    fn may_serve(
        &self,
        volume: &Attachment<'_>,
        journal: JournalState,
        disk: DiskIdentity,
    ) -> Result<Decision, JournalError> {
        let decision = decide(Inputs {
            journal,
            each_write: volume.durability == Durability::Ack,
            pool: volume.pool,
            vault: volume.vault,
            disk,
            // A journal that was closed in order speaks of what was recorded, and of nothing that
            // a pool or a vault was given since.
            clean_mark: journal == JournalState::Clean
                && volume.pool == PoolState::New
                && matches!(volume.vault, VaultState::None | VaultState::Empty),
            // What was lost was said, and accepted, when the journal was opened.
            accept_loss: true,
            accept_disk: volume.accept_disk,
        });
        match decision {
            // What is in the pool is newer, and would be recorded where it is void.
            _ if journal == JournalState::Abandoned => Err(self.abandoned_for(volume.name)),
            Decision::Refuse(Refusal::Abandoned) => Err(self.abandoned_for(volume.name)),
            other => Ok(other),
        }
    }

    fn held_for(&self, name: &str) -> (JournalId, bool, Vec<Held>) {
        let found = self.found.lock();
        let volumes = found.superblock.volumes.iter().filter(|volume| volume.name == name);
        let held = volumes.filter_map(|volume| {
            let image = Image::of_volume(&found.records, volume.number);
            let end = image.extents().map(|extent| extent.range.end()).max();
            let is_named = found.records.iter().any(|f| f.record.volume == volume.number);
            is_named.then(|| Held {
                volume: volume.clone(),
                places: places_to_compare(&found, volume),
                bytes: image.write_bytes(),
                end: end.unwrap_or(0),
            })
        });
        (found.superblock.journal, !found.damage.is_empty(), held.collect())
    }

    fn changed_disk(
        &self,
        volume: &Attachment<'_>,
        held: &Held,
        evidence: Evidence,
    ) -> JournalError {
        JournalError::ChangedDisk {
            name: self.name.clone(),
            volume: volume.name.to_owned(),
            disk: volume.disk.description().name.clone(),
            bytes: held.bytes,
            evidence,
        }
    }

    /// Whether something may be let at a range of the volume's disk; otherwise the part is told
    /// when to ask again.
    pub(crate) fn may_erase(&self, number: u16, part: &forebay_engine::Part) -> bool {
        let mut state = self.lock();
        let log = &mut state.log;
        let may =
            log.invalidate_samples(number, part.range, part.id) && log.admit_erase(number, part.id);
        if !may {
            self.ring(state);
        }
        may
    }

    /// A volume's disk has everything that a checkpoint asked for, or could not take it. Then its
    /// disk is sampled where that is worth it.
    pub(crate) fn destaged(self: &Arc<Self>, number: u16, result: IoResult) {
        let mut state = self.lock();
        if state.log.failed().is_some() {
            return;
        }
        state.log.checkpointed(number, result);
        self.bell.notify_all();
        let (epoch, places) = state.log.stale_places(number);
        let disk = state.disks.iter().find(|(other, _)| *other == number);
        let is_worth_it = result.is_ok() && !places.is_empty() && !state.sampling.contains(&number);
        let Some(disk) = disk.filter(|_| is_worth_it).map(|(_, disk)| Arc::clone(disk)) else {
            return;
        };
        state.sampling.push(number);
        drop(state);
        let journal = Arc::clone(self);
        let work = move || {
            let samples = sample(&*disk, &places);
            drop(disk);
            journal.sampled(number, Some((epoch, samples)));
        };
        if std::thread::Builder::new().name("sample".into()).spawn(work).is_err() {
            self.sampled(number, None);
        }
    }

    fn sampled(&self, number: u16, samples: Option<(u64, Samples)>) {
        let mut state = self.lock();
        state.sampling.retain(|other| *other != number);
        if let Some((epoch, samples)) = samples
            && state.log.failed().is_none()
        {
            state.log.sampled(number, epoch, samples);
        }
        self.ring(state);
        self.written.notify_all();
    }

    /// Waits until nobody samples the disk of this volume, or of any, and forgets it: who opens it
    /// next finds it free.
    pub(crate) fn let_disks_go(&self, number: Option<u16>) {
        let is_meant = |other: &u16| number.is_none_or(|number| number == *other);
        let begun = Instant::now();
        let mut state = self.lock();
        state.disks.retain(|(other, _)| !is_meant(other));
        while state.sampling.iter().any(is_meant) && begun.elapsed() < SAMPLING_PATIENCE {
            state = self.written.wait_timeout(state, SAMPLING_PATIENCE / 50);
        }
    }
}
