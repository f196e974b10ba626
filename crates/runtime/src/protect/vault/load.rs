//! Loads the dump of an earlier process.
//!
//! As in a restore from a journal, the pieces enter the pool as dirty lines and are destaged from
//! there. A dump cannot be updated by later writes. So before a client can connect, the volume is
//! flushed to its disk and then removed durably from the dump. If the process dies in between, the
//! dump is unchanged, and the next start loads it again.

use super::{Vault, VaultError, VaultPhase, VolumeVault};
use crate::disk::{DiskTrust, examine, places_to_compare};
use crate::journal::ReadAhead;
use crate::protect::restore::Restorer;
use crate::shared::{Shared, Volume};
use crate::stats::InternalReads;
use forebay_backend::Backend;
use forebay_format::journal::{LogKind, VolumeEntry};
use forebay_journal::decision::{
    Decision, DiskIdentity, JournalState, LoadSource, PoolState, ServeInputs, VaultState, decide,
};
use forebay_journal::identity::SamplePlace;
use forebay_journal::{Damage, Found, pieces_to_restore};
use forebay_types::IoError;
use std::sync::Arc;
use std::time::Instant;

/// Whether a dump is complete and undamaged.
pub(super) fn is_whole(found: &Found) -> bool {
    is_sealed(found) && found.damage.is_empty()
}

const fn is_sealed(found: &Found) -> bool {
    matches!(found.superblock.kind, LogKind::Vault { sealed: Some(_) })
}

/// The volumes of a dump, with the bytes held of each.
pub(super) fn held_bytes(found: &Found) -> Vec<(String, u64)> {
    let volumes = found.superblock.volumes.iter();
    volumes.map(|volume| (volume.name.clone(), bytes_of(found, volume.number))).collect()
}

fn bytes_of(found: &Found, number: u16) -> u64 {
    let records = found.records.iter().filter(|found| found.record.volume == number);
    records.map(|found| found.record.range.len).sum()
}

/// The end of the last range of the volume that is to be written.
fn end_of(found: &Found, number: u16) -> u64 {
    let records = found.records.iter().filter(|found| found.record.volume == number);
    records.map(|found| found.record.range.end()).max().unwrap_or(0)
}

/// Describes the data of a volume that a dump lacks, if any.
fn missing(found: &Found, number: u16) -> Option<String> {
    if !is_sealed(found) {
        return Some("the dump was not finished".to_owned());
    }
    let batches = found.damage.iter().find(|damage| matches!(damage, Damage::Batches { .. }));
    if let Some(damage) = batches {
        return Some(damage.to_string());
    }
    let mut records = found.records.iter().filter(|found| found.record.volume == number);
    let damaged = records.find(|found| found.is_damaged)?;
    Some(format!(
        "{} bytes at {} are damaged",
        damaged.record.range.len, damaged.record.range.offset
    ))
}

const fn state_of(lacks: Option<&String>, is_sealed: bool) -> VaultState {
    match lacks {
        None => VaultState::Whole,
        Some(_) if !is_sealed => VaultState::Incomplete,
        Some(_) => VaultState::Damaged,
    }
}

/// The data of one volume in a dump.
struct Held {
    entry: VolumeEntry,
    /// Where the volume's disk is compared with the dump's record of it.
    places: Vec<SamplePlace>,
    bytes: u64,
    /// The end of the last range of the volume that is to be written.
    end: u64,
    /// Describes the data that the dump lacks; `None` if it lacks none.
    lacks: Option<String>,
    /// The dump was finished.
    is_sealed: bool,
    /// The number of the vault that wrote the dump.
    number: u64,
}

impl Vault {
    /// Decides whether a volume may be served with its data in the vault. Refuses a volume whose
    /// dump belongs to another disk, is superseded, or is incomplete.
    pub(crate) fn check(
        &self,
        volume: &str,
        (disk, internal_reads): (&dyn Backend, &InternalReads),
        used: &VolumeVault,
        pool: PoolState,
        trust: DiskTrust,
    ) -> Result<VaultState, VaultError> {
        let Some(Held { entry, places, bytes, end, lacks, is_sealed, number }) =
            self.held_of(volume)
        else {
            return Ok(VaultState::Empty);
        };
        let is_void = self.record.is_superseded(number, volume);
        if is_void.map_err(|error| self.unrecorded(volume, error))? {
            let (name, volume) = (self.name.clone(), volume.to_owned());
            return Err(VaultError::Superseded { name, volume, bytes });
        }
        // No lock is held: the disk may hang.
        let evidence = examine(&entry, &places, disk, used.identity, internal_reads);
        let evidence = trust.judge(evidence);
        let vault = state_of(lacks.as_ref(), is_sealed);
        let decision = decide(ServeInputs {
            // The journal's records are checked when the volume is attached to the journal.
            journal: JournalState::None,
            pool,
            vault,
            disk: evidence.identity(),
            has_clean_mark: false,
            accept_loss: used.accept_loss,
            accept_disk: trust.is_accepted,
        });
        let (name, to) = (self.name.clone(), disk.description());
        let fits = end <= to.size_bytes();
        if decision == Decision::Quarantine || !fits {
            let (volume, disk) = (volume.to_owned(), to.name.clone());
            return Err(VaultError::OtherDisk { name, volume, disk, bytes, evidence });
        }
        if let (Decision::Refuse(_), Some(reason)) = (&decision, &lacks) {
            let (volume, reason) = (volume.to_owned(), reason.clone());
            return Err(VaultError::Incomplete { name, volume, reason });
        }
        if evidence.identity() != DiskIdentity::Same {
            tracing::warn!(
                vault = %name,
                volume,
                disk = %to.name,
                bytes,
                %evidence,
                "disk differs from the one that the dump belongs to, accepted"
            );
        }
        if let Some(reason) = lacks {
            tracing::error!(vault = %name, volume, reason, "dump incomplete, loss accepted");
        }
        Ok(vault)
    }

    /// Whether it has the newest data of a volume whose journal has failed, so that the volume can
    /// be served without the journal.
    pub fn replaces_journal(&self, volume: &str) -> bool {
        let Some(held) = self.held_of(volume) else { return false };
        let decision = decide(ServeInputs {
            journal: JournalState::Abandoned,
            pool: PoolState::New,
            vault: state_of(held.lacks.as_ref(), held.is_sealed),
            // Compared when the data is loaded.
            disk: DiskIdentity::Same,
            has_clean_mark: false,
            accept_loss: false,
            accept_disk: false,
        });
        decision == Decision::Serve(Some(LoadSource::Vault))
    }

    /// The data of a volume in the dump, if there is any.
    fn held_of(&self, volume: &str) -> Option<Held> {
        let state = self.state();
        let found = state.found.as_ref()?;
        let entry = found.superblock.volumes.iter().find(|entry| entry.name == volume)?;
        Some(Held {
            places: places_to_compare(found, entry),
            bytes: bytes_of(found, entry.number),
            end: end_of(found, entry.number),
            lacks: missing(found, entry.number),
            is_sealed: is_sealed(found),
            number: found.superblock.members.own,
            entry: entry.clone(),
        })
    }

    /// The entry of a volume in the dump.
    fn entry(&self, volume: &Volume) -> Option<VolumeEntry> {
        let state = self.state();
        let mut entries = state.found.as_ref()?.superblock.volumes.iter();
        entries.find(|entry| entry.name == volume.name).cloned()
    }

    /// Removes a volume from the dump: its disk has everything. With the last volume, the vault is
    /// empty.
    fn remove_loaded(&self, number: u16) -> Result<(), VaultError> {
        // Keeps other writers of the superblock away. The state is not locked during the write,
        // because a status needs it.
        let mut work = self.work();
        let kept = self.state().found.as_ref().map(|found| found.superblock.clone());
        let Some(mut superblock) = kept else { return Ok(()) };
        superblock.volumes.retain(|entry| entry.number != number);
        superblock.is_clean = superblock.volumes.is_empty();
        self.write_superblock(&mut work, &mut superblock)?;
        let mut state = self.state();
        if superblock.is_clean {
            tracing::info!(vault = %self.name, "vault emptied, all of its data is on the disks");
            state.found = None;
            state.change_phase(VaultPhase::Holding, VaultPhase::Ready);
            state.measure_at = Instant::now();
            self.wakeup.notify_all();
        } else if let Some(found) = &mut state.found {
            found.records.retain(|found| found.record.volume != number);
            found.superblock = superblock;
        }
        Ok(())
    }
}

impl VolumeVault {
    /// Writes the vault's data of a volume to the disk. `flush` flushes the volume, and `failed` is
    /// the error if disk or vault fails.
    pub(crate) fn load<E: From<VaultError>>(
        &self,
        shared: &Shared,
        volume: &Arc<Volume>,
        failed: impl Fn(IoError) -> E + Copy,
        flush: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let vault = &self.vault;
        let Some(entry) = vault.entry(volume) else { return Ok(()) };
        // Loading is harmless if the pool of the previous process was adopted: no write was
        // acknowledged since the dump, so both hold the same data.
        let pieces = {
            let state = vault.state();
            let found = state.found.as_ref();
            found.map(|found| pieces_to_restore(&found.records, entry.number)).unwrap_or_default()
        };
        let begun = Instant::now();
        let mut reader = ReadAhead::new(&*vault.backend);
        let (mut restorer, mut bytes) = (Restorer::new(shared, volume.id, false), 0);
        for piece in pieces {
            restorer.restore(piece, |at, into| reader.read(at, into)).map_err(failed)?;
            bytes += piece.range.len;
        }
        restorer.finish().map_err(failed)?;
        let loaded_ms = begun.elapsed().as_millis() as u64;
        // If the flush fails, the data is still in the vault.
        flush()?;
        vault.remove_loaded(entry.number)?;
        let total_ms = begun.elapsed().as_millis() as u64;
        tracing::info!(
            volume = %volume.name,
            bytes,
            loaded_ms,
            total_ms,
            "loaded from the vault and flushed to the disk"
        );
        Ok(())
    }
}
