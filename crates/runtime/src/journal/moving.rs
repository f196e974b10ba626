//! A served volume enters a journal, which is to record its writes instead of another one, or
//! leaves one.

use super::{Journal, JournalError};
use crate::disk::hardware;
use crate::platform::locks::assert_may_wait;
use crate::stats::InternalReads;
use forebay_backend::Backend;
use forebay_format::journal::Samples;
use forebay_types::VolumeId;
use std::sync::Arc;

/// Attaches a served volume that is about to record its writes in a journal, which must hold
/// nothing of it. Its disk is not sampled before [`sample_from_now_on`], because it is being
/// written. Returns its number. Waits for the journal's device.
pub(crate) fn enter(
    journal: &Journal,
    (name, id): (&str, VolumeId),
    identity: [u8; 32],
    disk: &Arc<dyn Backend>,
) -> Result<u16, JournalError> {
    if journal.abandoned.names(name) {
        return Err(journal.abandoned_for(name));
    }
    if let Some(bytes) = journal.bytes_held_for(name) {
        let volume = name.to_owned();
        return Err(JournalError::Holds { name: journal.name.clone(), volume, bytes });
    }
    let size_bytes = disk.description().size_bytes();
    let number = {
        let mut state = journal.lock();
        if state.volumes.iter().any(|&(_, other)| other == id) {
            // An earlier move waits for the journal's device, on a thread of its own.
            let volume = name.to_owned();
            return Err(JournalError::Pending { name: journal.name.clone(), volume });
        }
        let number = state
            .core
            .log
            .add_volume(name, size_bytes, identity)
            .map_err(|error| JournalError::Log { name: journal.name.clone(), error })?;
        let named = (size_bytes, identity, hardware(&**disk));
        state.core.log.attach_disk(number, named, Some(Samples::default()));
        let is_new = state.volumes.iter().all(|&(other, _)| other != number);
        assert!(is_new, "a number is of one volume");
        state.volumes.push((number, id));
        number
    };
    let entered = journal.wait_for_superblock().and_then(|()| journal.restored(number));
    if entered.is_err() {
        journal.detach_or_report(number);
    }
    entered.map(|()| number)
}

/// Samples the disk of a volume after checkpoints: each of its writes is recorded in this journal
/// from now on.
pub(crate) fn sample_from_now_on(
    journal: &Journal,
    number: u16,
    disk: &Arc<dyn Backend>,
    internal_reads: &Arc<InternalReads>,
) {
    let mut state = journal.lock();
    if state.volumes.iter().any(|(other, _)| *other == number) {
        state.disks.push((number, Arc::clone(disk), Arc::clone(internal_reads)));
    }
}

/// Voids all that a journal has of a volume, whose disk has everything on stable storage and which
/// records nothing meanwhile; then records that the volume relies on the journal no longer. Waits
/// for the journal's device.
///
/// # Errors
/// The journal has failed, or fails meanwhile; or the record cannot be written.
pub(crate) fn let_go(journal: &Journal, number: u16, volume: &str) -> Result<(), JournalError> {
    assert_may_wait();
    {
        let log = &mut journal.lock().core.log;
        if log.failed().is_none() && !forebay_journal::is_void(log, number) {
            log.void_all_records(number);
        }
    }
    journal.wait_for_superblock()?;
    let released = journal.record.release(journal.id(), volume);
    released.map_err(|error| JournalError::Record { name: journal.name.clone(), error })
}

/// Whether nothing that a journal holds of a volume counts.
pub(crate) fn holds_nothing(journal: &Journal, number: u16) -> bool {
    let state = journal.lock();
    state.core.is_abandoned() || forebay_journal::is_void(&state.core.log, number)
}
