//! Adds a volume to a journal: finds the records that the journal holds under its name, and decides
//! whether its disk is the one that they belong to.

use super::{Journal, JournalError};
use crate::protect::guard::{examine, hardware, places_to_compare, sample};
use forebay_backend::Backend;
use forebay_format::journal::{JournalId, VolumeEntry};
use forebay_journal::Image;
use forebay_journal::decision::{
    Decision, DiskIdentity, Inputs, JournalState, PoolState, Refusal, VaultState, decide,
};
use forebay_journal::identity::{Evidence, Place, all_places, overlaps};
use forebay_types::{Durability, VolumeId};
use std::sync::Arc;

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
}
