//! Adds a volume to a journal and removes it. Adding finds the records that the journal holds under
//! the volume's name, and decides whether its disk is the one that they belong to.

use super::{Journal, JournalError, volume_names};
use crate::disk::{DiskTrust, examine, hardware, places_to_compare, sample};
use crate::stats::InternalReads;
use forebay_backend::Backend;
use forebay_format::journal::{JournalId, VolumeEntry};
use forebay_journal::Image;
use forebay_journal::decision::{
    Decision, DiskIdentity, JournalState, PoolState, ServeInputs, ServeRefusal, VaultState, decide,
};
use forebay_journal::identity::{Evidence, SamplePlace, SizeEvidence, all_places, overlaps};
use forebay_types::{Fault, VolumeId};
use std::sync::Arc;

/// A volume to be attached to a journal.
pub(crate) struct Attachment<'a> {
    pub name: &'a str,
    pub id: VolumeId,
    pub identity: [u8; 32],
    pub disk: &'a Arc<dyn Backend>,
    /// Counts the reads of the disk by which it is recognised.
    pub internal_reads: &'a Arc<InternalReads>,
    pub trust: DiskTrust,
    /// What the pool and the vault hold of the volume.
    pub pool: PoolState,
    pub vault: VaultState,
}

/// The records that a journal holds for one volume.
struct Held {
    volume: VolumeEntry,
    places: Vec<SamplePlace>,
    bytes: u64,
    /// The end of the last recorded range.
    end: u64,
}

impl Journal {
    /// Attaches a volume: its writes can be recorded from now on. Returns its number in the
    /// journal.
    pub(crate) fn attach(&self, volume: &Attachment<'_>) -> Result<u16, JournalError> {
        let kept = self.find_records(volume)?;
        let Attachment { name, id, identity, disk, internal_reads, .. } = *volume;
        let size_bytes = disk.description().size_bytes();
        let number = match kept {
            Some((number, _)) => number,
            None => {
                let number = self.lock().core.log.add_volume(name, size_bytes, identity);
                number.map_err(|error| JournalError::Log { name: self.name.clone(), error })?
            }
        };
        // The volume is not served yet, so nothing writes to the disk meanwhile. A disk that was
        // recognised keeps the samples taken earlier.
        let samples = match kept {
            Some((_, true)) => None,
            _ => {
                let places = self.uncovered_places(number, size_bytes);
                Some(sample(&**disk, &places, internal_reads))
            }
        };
        {
            let mut state = self.lock();
            let named = (size_bytes, identity, hardware(&**disk));
            state.core.log.attach_disk(number, named, samples);
            let mut others = state.volumes.iter();
            let is_new = others.all(|&(other, volume)| other != number && volume != id);
            assert!(is_new, "a number is of one volume");
            state.volumes.push((number, id));
            state.disks.push((number, Arc::clone(disk), Arc::clone(internal_reads)));
        }
        self.wait_for_superblock().inspect_err(|_| leave(self, number))?;
        Ok(number)
    }

    /// Notes that the disk of a volume has grown to `size_bytes`, in a durable superblock. Waits
    /// for the journal's device.
    ///
    /// # Errors
    /// The journal has failed, or fails meanwhile.
    pub(crate) fn grow(&self, number: u16, size_bytes: u64) -> Result<(), JournalError> {
        loop {
            let mut state = self.lock();
            if state.core.is_abandoned() {
                return Ok(());
            }
            let has_grown = state.core.log.grow_disk(number, size_bytes);
            drop(state);
            self.wait_for_superblock()?;
            if has_grown {
                return Ok(());
            }
        }
    }

    /// Removes a volume that is no longer served and whose disk has all of its data. Whatever the
    /// result, its writes cannot be recorded from now on. If the journal has failed, or fails
    /// meanwhile, a record outside of the journal voids the journal's records of the volume.
    pub(crate) fn detach(&self, number: u16) -> Result<(), JournalError> {
        self.release_disks(Some(number));
        self.searches.forget(number);
        let (names, is_void) = {
            let mut state = self.lock();
            let names = volume_names(&state.core.log, &[number]);
            let is_void = state.core.withdraw_volume(number);
            state.volumes.retain(|(other, _)| *other != number);
            if state.core.log.failed().is_none() {
                state.core.log.mark_clean(number);
                let removed = state.core.log.remove_volume(number);
                removed.map_err(|error| JournalError::Log { name: self.name.clone(), error })?;
            }
            (names, is_void)
        };
        match self.wait_for_superblock() {
            Ok(()) => self.release(&names),
            Err(_) if is_void => {}
            Err(_) => self.record_failure_of_removed(&names)?,
        }
        Ok(())
    }

    /// Undoes [`Journal::attach`] for a volume that was not served. Its disk has everything except
    /// the records that were not restored; these stay in the journal. Returns whether there are
    /// any.
    pub(crate) fn take_back(&self, number: u16) -> bool {
        let is_held = self.holds(number);
        if is_held {
            leave(self, number)
        } else {
            self.detach_or_report(number)
        }
        is_held
    }

    /// As [`Journal::detach`], but only logs an error, for a caller that removes the volume in any
    /// case.
    pub(crate) fn detach_or_report(&self, number: u16) {
        let names = volume_names(&self.lock().core.log, &[number]);
        if let Err(error) = self.detach(number) {
            tracing::error!(
                journal = %self.name,
                volumes = ?names,
                error = error.with_causes(),
                "cannot record the removal of a volume from a failed journal; do not add it with \
                 that journal again"
            );
        }
    }

    /// The places of a volume's disk that a restore from the journal does not write.
    fn uncovered_places(&self, number: u16, size_bytes: u64) -> Vec<SamplePlace> {
        let found = self.found.lock();
        let mut places = all_places(found.superblock.journal, number, size_bytes);
        for found in found.records.iter().filter(|found| found.record.volume == number) {
            places.retain(|place| !overlaps(place, found.record.range));
        }
        places
    }

    /// Finds the records held for the volume, and compares its disk with the recorded one. Returns
    /// the volume's number, and whether the disk was recognised; `None` without records.
    fn find_records(&self, volume: &Attachment<'_>) -> Result<Option<(u16, bool)>, JournalError> {
        let (id, damaged, held) = self.held_for(volume.name);
        let is_clean = self.found.lock().superblock.is_clean;
        let mut kept = None;
        let state = |held: bool| match (held, damaged) {
            _ if self.abandoned.names(volume.name) => JournalState::Abandoned,
            (true, true) => JournalState::Damaged,
            (true, false) => JournalState::Records,
            (false, _) if is_clean => JournalState::Clean,
            (false, _) => JournalState::Empty,
        };
        // Refused before the disk is compared, because accepting the disk would not help.
        if !held.is_empty()
            && self.may_serve(volume, state(true), DiskIdentity::Same)?
                == Decision::Refuse(ServeRefusal::VaultAndJournal)
        {
            return Err(JournalError::AlsoInVault {
                name: self.name.clone(),
                volume: volume.name.to_owned(),
                bytes: held.iter().map(|held| held.bytes).sum(),
            });
        }
        self.may_serve(volume, state(false), DiskIdentity::Unknown)?;
        for held in &held {
            let evidence = examine(
                &held.volume,
                &held.places,
                &**volume.disk,
                volume.identity,
                volume.internal_reads,
            );
            let evidence = volume.trust.judge(evidence);
            let identity = evidence.identity();
            let fits = held.end <= volume.disk.description().size_bytes();
            let decision = self.may_serve(volume, state(true), identity)?;
            if decision == Decision::Quarantine || !fits || kept.is_some() {
                return Err(changed_disk(&self.name, volume, held, evidence));
            }
            let (name, disk) = (volume.name, &volume.disk.description().name);
            match identity {
                DiskIdentity::Same if evidence.size == SizeEvidence::Grown => {
                    tracing::info!(volume = %name, %disk, %evidence, "disk has grown");
                }
                DiskIdentity::Same => {}
                DiskIdentity::Renamed => tracing::warn!(
                    journal = %id,
                    volume = %name,
                    %disk,
                    %evidence,
                    "disk recognised under another name"
                ),
                DiskIdentity::Changed | DiskIdentity::Unknown => tracing::warn!(
                    journal = %id,
                    volume = %name,
                    %disk,
                    %evidence,
                    "disk not recognised, accepted by the operator"
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
        let decision = decide(ServeInputs {
            journal,
            pool: volume.pool,
            vault: volume.vault,
            disk,
            // The clean mark covers what the journal recorded. It says nothing about data in a pool
            // or vault.
            has_clean_mark: journal == JournalState::Clean
                && volume.pool == PoolState::New
                && matches!(volume.vault, VaultState::None | VaultState::Empty),
            // The loss was reported, and accepted, when the journal was opened.
            accept_loss: true,
            accept_disk: volume.trust.is_accepted,
        });
        match decision {
            // The data in the pool is newer, but its records in this journal would be void.
            _ if journal == JournalState::Abandoned => Err(self.abandoned_for(volume.name)),
            Decision::Refuse(ServeRefusal::Abandoned) => Err(self.abandoned_for(volume.name)),
            other => Ok(other),
        }
    }

    /// The bytes that the journal holds of a volume from an earlier use; `None` if it holds none.
    pub(super) fn bytes_held_for(&self, name: &str) -> Option<u64> {
        let (.., held) = self.held_for(name);
        (!held.is_empty()).then(|| held.iter().map(|held| held.bytes).sum())
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
}

/// Ends the use of a journal by a volume whose records stay in it.
pub(crate) fn leave(journal: &Journal, number: u16) {
    journal.release_disks(Some(number));
    journal.searches.forget(number);
    let mut state = journal.lock();
    state.volumes.retain(|(other, _)| *other != number);
    state.core.withdraw_volume(number);
}

fn changed_disk(
    journal: &str,
    volume: &Attachment<'_>,
    held: &Held,
    evidence: Evidence,
) -> JournalError {
    JournalError::ChangedDisk {
        name: journal.to_owned(),
        volume: volume.name.to_owned(),
        disk: volume.disk.description().name.clone(),
        bytes: held.bytes,
        evidence,
    }
}
