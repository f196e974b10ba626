//! What an earlier process dumped goes back to where it belongs.
//!
//! The same way as with a journal: pieces go into the pool as dirty lines and from there to the
//! disk. But a vault records nothing, so nobody may write beside it: the disk has everything and
//! is flushed, and the volume is taken off the vault's list durably, before the first client is
//! let in. A death half-way leaves the vault as it was, and the next start begins anew.

use super::{Vault, VaultError, VaultPhase, VolumeVault};
use crate::error::VolumeError;
use crate::guard::examine_disk;
use crate::journal::Ahead;
use crate::restore::Return;
use crate::server::Runtime;
use crate::shared::Volume;
use forebay_backend::{AlignedBuffer, Backend, Blocking};
use forebay_format::journal::{LogKind, VolumeEntry};
use forebay_journal::decision::{
    Decision, DiskIdentity, Inputs, JournalState, PoolState, VaultState, decide,
};
use forebay_journal::{Damage, Found, FoundRecord};
use forebay_types::{ByteRange, REGION_BYTES};
use std::sync::Arc;
use std::time::Instant;

/// Whether everything that was dirty is there.
pub(super) fn is_whole(found: &Found) -> bool {
    is_sealed(found) && found.damage.is_empty()
}

const fn is_sealed(found: &Found) -> bool {
    matches!(found.superblock.kind, LogKind::Vault { sealed: Some(_) })
}

/// The volumes of a dump that are not on their disks yet, with the bytes that are held of each.
pub(super) fn held_bytes(found: &Found) -> Vec<(String, u64)> {
    let volumes = found.superblock.volumes.iter();
    volumes.map(|volume| (volume.name.clone(), bytes_of(found, volume.number))).collect()
}

fn bytes_of(found: &Found, number: u16) -> u64 {
    let records = found.records.iter().filter(|found| found.record.volume == number);
    records.map(|found| found.record.range.len).sum()
}

/// The end of the last byte that is to be written.
fn end_of(found: &Found, number: u16) -> u64 {
    let records = found.records.iter().filter(|found| found.record.volume == number);
    records.map(|found| found.record.range.end()).max().unwrap_or(0)
}

/// What is missing of a volume, if anything is.
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

/// Records that lie one after the other, in the vault and in the volume, as one.
fn pieces(found: &Found, number: u16) -> Vec<(ByteRange, u64)> {
    let mut pieces: Vec<(ByteRange, u64)> = Vec::new();
    let ours = |found: &&FoundRecord| found.record.volume == number && !found.is_damaged;
    for FoundRecord { record, position, .. } in found.records.iter().filter(ours) {
        let range = record.range;
        if let Some((last, at)) = pieces.last_mut()
            && last.end() == range.offset
            && *at + last.len == *position
            && range.offset % REGION_BYTES != 0
        {
            last.len += range.len;
        } else {
            pieces.push((range, *position));
        }
    }
    pieces
}

impl Vault {
    /// Whether a volume may be served, as far as the vault goes, and what that has of it. One by
    /// whose name there is data of another disk would show old data, and so would one of whose
    /// data a part is lost.
    pub(crate) fn check(
        &self,
        volume: &str,
        disk: &dyn Backend,
        used: &VolumeVault,
        pool: PoolState,
        accept_disk: bool,
    ) -> Result<VaultState, VaultError> {
        let state = self.state();
        let Some(found) = &state.found else { return Ok(VaultState::Empty) };
        let entries = &found.superblock.volumes;
        let Some(entry) = entries.iter().find(|entry| entry.name == volume) else {
            return Ok(VaultState::Empty);
        };
        let bytes = bytes_of(found, entry.number);
        let is_void = self.record.is_superseded(found.superblock.members.own, volume);
        if is_void.map_err(|error| self.unrecorded(volume, error))? {
            let (name, volume) = (self.name.clone(), volume.to_owned());
            return Err(VaultError::Superseded { name, volume, bytes });
        }
        let evidence = examine_disk(found, entry, disk, used.identity);
        let lacks = missing(found, entry.number);
        let vault = match &lacks {
            None => VaultState::Whole,
            Some(_) if !is_sealed(found) => VaultState::Incomplete,
            Some(_) => VaultState::Damaged,
        };
        let decision = decide(Inputs {
            // What a journal holds besides is asked where the volume is attached to it.
            journal: JournalState::None,
            each_write: false,
            pool,
            vault,
            disk: evidence.identity(),
            clean_mark: false,
            accept_loss: used.accept_loss,
            accept_disk,
        });
        let (name, to) = (self.name.clone(), disk.description());
        let fits = end_of(found, entry.number) <= to.size_bytes;
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
                "{} is taken for the disk that vault {name} holds {bytes} bytes of volume \
                 '{volume}' for: {evidence}",
                to.name
            );
        }
        if let Some(reason) = lacks {
            tracing::error!(
                "vault {name} does not hold everything of volume '{volume}': {reason}; the loss \
                 is accepted"
            );
        }
        Ok(vault)
    }

    /// What is held of a volume, whose disk has been looked at.
    fn entry(&self, volume: &Volume) -> Option<VolumeEntry> {
        let state = self.state();
        let mut entries = state.found.as_ref()?.superblock.volumes.iter();
        entries.find(|entry| entry.name == volume.name).cloned()
    }

    /// A volume's disk has everything that the vault holds of it: it is taken off the list, and
    /// with the last one the vault is empty.
    fn settled(&self, number: u16) -> Result<(), VaultError> {
        let mut work = self.work();
        let mut state = self.state();
        let Some(found) = &mut state.found else { return Ok(()) };
        let mut superblock = found.superblock.clone();
        superblock.volumes.retain(|entry| entry.number != number);
        superblock.clean = superblock.volumes.is_empty();
        let mut written = Ok(());
        for _ in 0..2 {
            work.sequence += 1;
            superblock.sequence = work.sequence;
            let bytes = AlignedBuffer::from(&*superblock.encode());
            written = Blocking::new(&*self.backend).write(superblock.position(), &bytes, true);
            if written.is_ok() {
                break;
            }
        }
        written.map_err(|error| VaultError::io(&self.name, error))?;
        if superblock.clean {
            tracing::info!("vault {}: everything is on the disks; it is empty", self.name);
            state.found = None;
            state.phase = VaultPhase::Ready;
            state.measure_at = Instant::now();
            self.bell.notify_all();
        } else {
            found.records.retain(|found| found.record.volume != number);
            found.superblock = superblock;
        }
        Ok(())
    }
}

impl Runtime {
    /// Brings what the vault holds of a volume to its disk.
    pub(crate) fn load(&self, volume: &Arc<Volume>, used: &VolumeVault) -> Result<(), VolumeError> {
        let vault = &used.vault;
        let Some(entry) = vault.entry(volume) else { return Ok(()) };
        // Also where the pool of the process before is there: nothing was acknowledged since the
        // dump, so what the vault holds is what the pool had, and it does no harm.
        let pieces = {
            let state = vault.state();
            state.found.as_ref().map(|found| pieces(found, entry.number)).unwrap_or_default()
        };
        let begun = Instant::now();
        let failed = |error| VolumeError::Load { name: volume.name.clone(), error };
        let mut reader = Ahead::new(&*vault.backend);
        let (mut way, mut bytes) = (Return::new(self, volume.id, false), 0);
        for (range, position) in pieces {
            way.give(range, |into| reader.read(position, into)).map_err(failed)?;
            bytes += range.len;
        }
        way.finish().map_err(failed)?;
        let loaded_ms = begun.elapsed().as_millis();
        // What a flush of this gate has failed to keep is still in the vault.
        self.flush(volume, &mut |_| {})?;
        vault.settled(entry.number)?;
        tracing::info!(
            "volume '{}': {bytes} bytes are back from the vault after {loaded_ms} ms, and on the \
             disk after {} ms",
            volume.name,
            begun.elapsed().as_millis()
        );
        Ok(())
    }
}
