//! Failures of a journal and of its devices, which are recorded outside of the journal before any
//! write is acknowledged without it.

use super::{Journal, JournalError, State, volume_names};
use crate::locks::Locked;
use crate::protect::presence::Change;
use forebay_types::IoError;
use std::time::Duration;

/// The pause before an update outside of the journal is tried again.
const RECORD_PAUSE: Duration = Duration::from_secs(1);

impl Journal {
    /// Checks that the devices are where they were opened, and fails those that are not.
    pub(crate) fn check_presence(&self) {
        for device in 0..2 {
            let Some(backend) = self.devices.backend(device) else { continue };
            let Change::Gone(displaced) = self.presence[device].check(backend) else { continue };
            let name = self.devices.name_of(device);
            tracing::error!(
                journal = %self.name,
                device = %name,
                %displaced,
                "journal device displaced, counted as failed"
            );
            self.fail_device(device);
        }
    }

    /// Makes the thread mark a device as failed.
    fn fail_device(&self, device: usize) {
        let mut state = self.lock();
        state.gone[device] = true;
        self.unlock_and_wake(state);
    }

    /// Records a failure of the log, then posts the answers that waited for that.
    pub(super) fn record_if_failed<'a>(&'a self, state: Locked<'a, State>) -> Locked<'a, State> {
        let Some(error) = state.log.failed() else { return state };
        if state.serving.is_empty() || state.failure_recorded {
            return state;
        }
        let names = volume_names(&state.log, &state.serving);
        drop(state);
        self.record_failure(error, &names);
        let mut state = self.lock();
        state.failure_recorded = true;
        self.answer(std::mem::take(&mut state.deferred).into_iter());
        state
    }

    /// Records the failure, and retries until that has succeeded: writes wait for it.
    fn record_failure(&self, error: IoError, names: &[String]) {
        let id = self.lock().log.superblock().journal;
        tracing::error!(
            journal = %self.name,
            %error,
            "journal failed, its volumes write through and dirty data is flushed to their disks"
        );
        while let Err(error) = (self.on_failure)(id, error, names) {
            tracing::error!(
                journal = %self.name,
                %error,
                "cannot record the journal's failure, writes wait"
            );
            std::thread::sleep(RECORD_PAUSE);
        }
    }

    /// Adds a volume to the record of the journal's failure. Returns whether that has succeeded.
    pub(super) fn record_failure_for(&self, state: &State, number: u16) -> bool {
        let (id, names) = (state.log.superblock().journal, volume_names(&state.log, &[number]));
        let error = state.log.failed().unwrap_or(IoError::Io);
        (self.on_failure)(id, error, &names).is_ok()
    }

    /// Records the failure also for volumes that were removed while the journal failed: their
    /// removal may not be in the log.
    pub(super) fn record_failure_of_removed(&self, names: &[String]) -> Result<(), JournalError> {
        let (id, error) = {
            let state = self.lock();
            (state.log.superblock().journal, state.log.failed().unwrap_or(IoError::Io))
        };
        let recorded = (self.on_failure)(id, error, names);
        recorded.map_err(|error| JournalError::Record { name: self.name.clone(), error })
    }

    /// Records that a device is no longer a member, and retries until that has succeeded. Only then
    /// does the journal continue on the other device.
    pub(super) fn record_loss(&self, members: &[u64]) {
        let (id, reason) = {
            let state = self.lock();
            (state.log.superblock().journal, self.degraded(&state.log).unwrap_or_default())
        };
        let name = &self.name;
        tracing::error!(journal = %name, %reason, "journal degraded, continuing on one device");
        while let Err(error) = self.members.record(id, members) {
            tracing::error!(
                journal = %name,
                %error,
                "cannot record that the journal is degraded, writes wait"
            );
            std::thread::sleep(RECORD_PAUSE);
        }
    }

    pub(super) fn record_members(&self) -> Result<(), JournalError> {
        let state = self.lock();
        let superblock = state.log.superblock();
        let members = superblock.members.numbers();
        // The thread records the loss of a member itself.
        if members.is_empty() || state.log.unrecorded_loss().is_some() {
            return Ok(());
        }
        // The lock is held during this I/O. At a start, no volume is served yet; when the state
        // directory was recreated, writers wait meanwhile.
        let recorded = self.members.record(superblock.journal, &members);
        recorded.map_err(|error| JournalError::Record { name: self.name.clone(), error })
    }

    /// Rewrites the records outside of the journal: its members, and its failure.
    pub(crate) fn renew_records(&self) -> Result<(), JournalError> {
        self.record_members()?;
        let (id, error, names) = {
            let state = self.lock();
            let error = state.log.failed().filter(|_| state.failure_recorded);
            (state.log.superblock().journal, error, volume_names(&state.log, &state.serving))
        };
        let recorded = error.map_or(Ok(()), |error| (self.on_failure)(id, error, &names));
        recorded.map_err(|error| JournalError::Record { name: self.name.clone(), error })
    }

    /// The failure of the journal, while it is not recorded outside of the journal. Until then the
    /// journal's records are valid, and requests that wait for them wait for the record.
    pub(crate) fn unrecorded_failure(&self) -> Option<JournalError> {
        let state = self.lock();
        let error = state.log.failed().filter(|_| !state.failure_recorded)?;
        Some(JournalError::Io { name: self.name.clone(), error })
    }

    /// Whether the journal has failed and that is recorded: its records are void.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.lock().failure_recorded
    }

    /// The error for a volume that continued without this journal after the journal had failed.
    pub(crate) fn abandoned_for(&self, volume: &str) -> JournalError {
        let others: Vec<String> = self.unserved().into_iter().map(|(name, _)| name).collect();
        let (name, volume, others) = (self.name.clone(), volume.to_owned(), others.join(", "));
        JournalError::AbandonedFor { name, volume, others }
    }
}
