//! Failures of a journal and of its devices, which are recorded outside of the journal before any
//! write is acknowledged without it.

use super::{Journal, JournalError, State, volume_names};
use crate::disk::Change;
use crate::platform::locks::{Locked, assert_may_wait};
use forebay_backend::Backend;
use forebay_format::journal::JournalId;
use forebay_types::IoError;
use std::io;
use std::sync::Arc;
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

    /// Records a failure of the log. The answers that waited for that are due afterwards.
    pub(super) fn record_if_failed<'a>(&'a self, state: Locked<'a, State>) -> Locked<'a, State> {
        let Some(error) = state.core.poll_failure() else { return state };
        let names = volume_names(&state.core.log, state.core.serving());
        drop(state);
        let is_recorded = self.record_failure(error, &names);
        let mut state = self.lock();
        if is_recorded {
            state.core.handle_failure_recorded();
        }
        state
    }

    /// Records the failure, and retries until that has succeeded: writes wait for it. Returns false
    /// if the journal is closed meanwhile.
    fn record_failure(&self, error: IoError, names: &[String]) -> bool {
        let id = self.lock().core.log.superblock().journal;
        let effect = match is_shared(self) {
            true => "its volumes end, and its records count",
            false => {
                "its volumes write through, unless a UPS protects them, and dirty data is flushed \
                 to their disks"
            }
        };
        tracing::error!(journal = %self.name, %error, "journal failed: {effect}");
        record_until_closed(self, || mark_failure(self, id, error, names))
    }

    /// Locks the state to serve a volume from now on. If the log has failed, adds the volume to the
    /// record of the failure first, so that it may continue without the journal.
    ///
    /// # Errors
    /// The failure is not recorded yet, or the volume cannot be added.
    pub(super) fn lock_to_serve(&self, number: u16) -> Result<Locked<'_, State>, IoError> {
        let mut is_recorded = false;
        loop {
            let state = self.lock();
            let Some(error) = state.core.log.failed().filter(|_| !is_recorded) else {
                return Ok(state);
            };
            if is_shared(self) || !state.core.is_abandoned() {
                return Err(error);
            }
            let (id, names) =
                (state.core.log.superblock().journal, volume_names(&state.core.log, &[number]));
            // Recorded without the lock, because all writes wait for the lock.
            drop(state);
            (self.on_failure)(id, error, &names).map_err(|_| error)?;
            is_recorded = true;
        }
    }

    /// Records the failure also for volumes that were removed while the journal failed: their
    /// removal may not be in the log.
    pub(super) fn record_failure_of_removed(&self, names: &[String]) -> Result<(), JournalError> {
        let (id, error) = {
            let state = self.lock();
            (state.core.log.superblock().journal, state.core.log.failed().unwrap_or(IoError::Io))
        };
        let recorded = mark_failure(self, id, error, names);
        recorded.map_err(|error| JournalError::Record { name: self.name.clone(), error })
    }

    /// Records that a device is no longer a member, and retries until that has succeeded. Only then
    /// does the journal continue on the other device. Returns false if the journal is closed
    /// meanwhile.
    pub(super) fn record_loss(&self, members: &[u64]) -> bool {
        let (id, reason) = {
            let state = self.lock();
            (
                state.core.log.superblock().journal,
                self.degraded(&state.core.log).unwrap_or_default(),
            )
        };
        let name = &self.name;
        tracing::error!(journal = %name, %reason, "journal degraded, continuing on one device");
        record_until_closed(self, || self.members.lock().record(id, members))
    }

    pub(super) fn record_members(&self) -> Result<(), JournalError> {
        // Locked first: if a member is lost meanwhile, the journal's thread records the loss
        // afterwards.
        let record = self.members.lock();
        let (id, members) = {
            let state = self.lock();
            let superblock = state.core.log.superblock();
            let members = superblock.members.numbers();
            // The journal's thread records the loss of a member itself.
            if members.is_empty() || state.core.log.unrecorded_loss().is_some() {
                return Ok(());
            }
            (superblock.journal, members)
        };
        let recorded = record.record(id, &members);
        recorded.map_err(|error| JournalError::Record { name: self.name.clone(), error })
    }

    /// Rewrites the records outside of the journal: its members, and its failure.
    pub(crate) fn renew_records(&self) -> Result<(), JournalError> {
        self.record_members()?;
        let (id, error, names) = {
            let state = self.lock();
            let error = state.core.log.failed().filter(|_| state.core.is_abandoned());
            let names = volume_names(&state.core.log, state.core.serving());
            (state.core.log.superblock().journal, error, names)
        };
        let recorded = error.map_or(Ok(()), |error| mark_failure(self, id, error, &names));
        recorded.map_err(|error| JournalError::Record { name: self.name.clone(), error })
    }

    /// The failure of the journal, while it is not recorded outside of the journal. Until it is
    /// recorded, the journal's records are valid, and requests that wait for the journal wait for
    /// that record.
    pub(crate) fn unrecorded_failure(&self) -> Option<JournalError> {
        let error = self.lock().core.unrecorded_failure()?;
        Some(JournalError::Io { name: self.name.clone(), error })
    }

    /// Whether the journal has failed and that is recorded: its records are void.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.lock().core.is_abandoned()
    }

    /// The error for a volume that continued without this journal after the journal had failed.
    pub(crate) fn abandoned_for(&self, volume: &str) -> JournalError {
        let others: Vec<String> = self.unserved().into_iter().map(|(name, _)| name).collect();
        let (name, volume, others) = (self.name.clone(), volume.to_owned(), others.join(", "));
        JournalError::AbandonedFor { name, volume, others }
    }
}

/// The devices of a journal in use.
pub(crate) fn devices_of(journal: &Journal) -> impl Iterator<Item = &dyn Backend> {
    (0..2).filter_map(|device| journal.devices.backend(device))
}

/// Whether other hosts can take the records of a journal over.
pub fn is_shared(journal: &Journal) -> bool {
    devices_of(journal).any(Backend::is_shared)
}

/// Records nothing more of a volume, and voids nothing: another host has its disk.
pub(crate) fn end_records(journal: &Journal, number: u16) {
    journal.lock().core.end(number);
}

/// Lets go what waits for a journal that has failed while no volume was served. The failure is not
/// recorded: the records count.
pub(crate) fn release_unserved(journal: &Journal) {
    let mut state = journal.lock();
    if state.core.unrecorded_failure().is_some() && state.core.serving().is_empty() {
        state.core.handle_failure_recorded();
    }
    journal.unlock_and_wake(state);
}

/// Records the failure for those of the volumes that continue without the journal. One whose disk
/// another client has taken over does not, and with a shared journal none does: their records still
/// count, for a client that takes them over and for the next start. Neither knows of a record of
/// this host, so nothing may be acknowledged without the journal.
fn mark_failure(
    journal: &Journal,
    id: JournalId,
    error: IoError,
    names: &[String],
) -> io::Result<()> {
    let disks: Vec<_> = {
        let state = journal.lock();
        state.disks.iter().map(|(number, disk, _)| (*number, Arc::clone(disk))).collect()
    };
    let mut of_journal = (0..2).filter_map(|device| journal.devices.backend(device));
    if of_journal.any(|device| device.is_taken_over()) {
        // A disk that was taken over in the same moment may not know it yet.
        for (_, disk) in &disks {
            let _ = disk.check_presence();
        }
    }
    let is_shared = is_shared(journal);
    let ends = disks.iter().filter(|(_, disk)| disk.is_taken_over() || is_shared);
    let (taken_over, others): (Vec<_>, Vec<_>) = ends.partition(|(_, disk)| disk.is_taken_over());
    let [taken_over, others] = [taken_over, others].map(numbers_of);
    end_without(journal, &others);
    end_clients(journal, &[&taken_over[..], &others].concat());
    let [taken_over, others] =
        [taken_over, others].map(|numbers| volume_names(&journal.lock().core.log, &numbers));
    let (ended, names): (Vec<String>, Vec<String>) = names
        .iter()
        .cloned()
        .partition(|it| is_shared || taken_over.contains(it) || others.contains(it));
    if ended.is_empty() {
        return (journal.on_failure)(id, error, &names);
    }
    let (ended, lost): (Vec<String>, Vec<String>) =
        ended.into_iter().partition(|name| taken_over.contains(name));
    if !ended.is_empty() {
        tracing::error!(
            journal = %journal.name,
            volumes = ?ended,
            "another client has taken over disk and journal: the records of these volumes count"
        );
    }
    if !lost.is_empty() {
        tracing::error!(
            journal = %journal.name,
            volumes = ?lost,
            "volumes end with their journal, which other hosts can take over: its records count"
        );
    }
    if names.is_empty() { Ok(()) } else { (journal.on_failure)(id, error, &names) }
}

/// Disconnects the clients of volumes that end, before a write that waits for the journal
/// fails: it is in memory, and who reads it there would not find it again.
fn end_clients(journal: &Journal, numbers: &[u16]) {
    let Some(host) = journal.host.upgrade() else { return };
    let volumes = journal.lock().volumes.clone();
    let ended = volumes.into_iter().filter(|(number, _)| numbers.contains(number));
    ended.for_each(|(_, volume)| host.end_clients(volume));
}

fn numbers_of(disks: Vec<&(u16, Arc<dyn Backend>)>) -> Vec<u16> {
    disks.into_iter().map(|(number, _)| *number).collect()
}

/// Ends the I/O of volumes with these numbers, which cannot continue without the journal.
fn end_without(journal: &Journal, numbers: &[u16]) {
    let state = journal.lock();
    let all = state.volumes.iter().filter(|(number, _)| numbers.contains(number));
    let volumes: Vec<_> = all.map(|(_, volume)| *volume).collect();
    drop(state);
    if let Some(host) = journal.host.upgrade() {
        host.end_without_journal(&volumes);
    }
}

/// Repeats an update outside of the journal until it succeeds. Returns false if the journal is
/// closed meanwhile. Logged at doubling intervals.
fn record_until_closed(journal: &Journal, record: impl Fn() -> io::Result<()>) -> bool {
    assert_may_wait();
    let mut attempts = 0_u64;
    loop {
        let recorded = record();
        let mut state = journal.lock();
        state.waits_for = recorded.as_ref().err().map(ToString::to_string);
        let is_closed = state.stopping;
        drop(state);
        let Err(error) = recorded else { return true };
        if is_closed {
            return false;
        }
        attempts += 1;
        if attempts.is_power_of_two() {
            tracing::error!(
                journal = %journal.name,
                %error,
                attempts,
                "cannot record the failure of the journal or of its device, writes wait"
            );
        }
        std::thread::sleep(RECORD_PAUSE);
    }
}

// Only debug builds check the order of locks.
#[cfg(test)]
#[cfg(debug_assertions)]
mod tests {
    use super::super::{Attachment, JournalSettings, MemberRecord, OnFailure};
    use crate::disk::DiskTrust;
    use crate::platform::locks::{Lock, order};
    use crate::rig::common::client::PATIENCE;
    use crate::rig::common::wait_until;
    use crate::rig::{MIB, quiet_config, volume};
    use crate::{Journal, Runtime, RuntimeConfig, VoidRecords, VolumeJournal, VolumeSettings};
    use forebay_backend::{Backend, Description, Io, IoKind, MemoryBackend};
    use forebay_format::journal::JournalId;
    use forebay_frontend_nbd::NbdServer;
    use forebay_journal::decision::{PoolState, VaultState};
    use forebay_types::{Durability, VolumeId};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// Panics if this thread holds the lock of a journal's state, which writes wait for.
    fn assert_unlocked() {
        drop(Lock::<(), { order::JOURNAL }>::default().lock());
    }

    /// A record of members, which counts how often it is written.
    struct Unlocked(Arc<AtomicUsize>);

    impl MemberRecord for Unlocked {
        fn members(&self, _: JournalId) -> Vec<u64> {
            Vec::new()
        }

        fn record(&self, _: JournalId, members: &[u64]) -> std::io::Result<()> {
            assert_unlocked();
            assert_eq!(members.len(), 2);
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    fn memory(bytes: u64) -> Arc<dyn Backend> {
        Arc::new(MemoryBackend::new(bytes).unwrap())
    }

    /// A disk that answers no flush while `hangs`, and then at the next one all of them.
    struct HangingFlush {
        disk: MemoryBackend,
        hangs: AtomicBool,
        waiting: Lock<Vec<Io>>,
    }

    impl Backend for HangingFlush {
        fn description(&self) -> &Description {
            self.disk.description()
        }

        fn submit(&self, io: Io) {
            if matches!(io.kind, IoKind::Flush) && self.hangs.load(Ordering::Relaxed) {
                return self.waiting.lock().push(io);
            }
            self.disk.submit(io);
        }
    }

    fn settings(on_failure: OnFailure) -> JournalSettings {
        JournalSettings {
            backend: memory(64 * MIB),
            mirror: None,
            members: Box::new(Unlocked(Arc::default())),
            accept_loss: false,
            beat_every: None,
            is_abandoned: Box::new(|_| VoidRecords::None),
            on_failure,
        }
    }

    fn used(journal: &Arc<Journal>) -> VolumeJournal {
        let (journal, durability) = (Arc::clone(journal), Durability::Ack);
        VolumeJournal { journal, durability, identity: [1; 32], accept_disk: false }
    }

    /// A volume of which neither a pool nor a vault has anything.
    fn attachment<'a>(name: &'a str, disk: &'a Arc<dyn Backend>) -> Attachment<'a> {
        static READS: std::sync::LazyLock<Arc<crate::stats::InternalReads>> =
            std::sync::LazyLock::new(Arc::default);
        Attachment {
            name,
            id: VolumeId(9),
            identity: [2; 32],
            disk,
            internal_reads: &READS,
            trust: DiskTrust::default(),
            pool: PoolState::New,
            vault: VaultState::None,
        }
    }

    /// The requests of a volume in flight.
    fn requests(runtime: &Runtime, id: VolumeId) -> usize {
        let counts = runtime.shared().run_on_all(move |tasks| tasks.requests(id)).unwrap();
        counts.into_iter().sum()
    }

    fn start() -> Runtime {
        let config = RuntimeConfig { journals: 1, ..quiet_config(64 * MIB) };
        Runtime::start(config, &NbdServer::new()).unwrap()
    }

    /// Regression: the members were written while the state was locked.
    #[test]
    fn writes_do_not_wait_for_the_record_of_the_members() {
        let (runtime, count) = (start(), Arc::new(AtomicUsize::new(0)));
        let settings = JournalSettings {
            backend: memory(64 * MIB),
            mirror: Some(Ok(memory(64 * MIB))),
            members: Box::new(Unlocked(Arc::clone(&count))),
            accept_loss: false,
            beat_every: None,
            is_abandoned: Box::new(|_| VoidRecords::None),
            on_failure: Box::new(|_, _, _| Ok(())),
        };
        let journal = runtime.volumes().protectors().open_journal(settings).unwrap();
        let before = count.load(Ordering::Relaxed);
        journal.renew_records().unwrap();
        assert_eq!((before > 0, count.load(Ordering::Relaxed)), (true, before + 1));
        runtime.stop(|_| ()).unwrap();
    }

    /// Regression: the failure mark was written while the state was locked.
    #[test]
    fn writes_do_not_wait_for_the_record_of_a_volume_restored_after_a_failure() {
        let (runtime, recorded) = (start(), Arc::new(Lock::<Vec<String>>::default()));
        let record = Arc::clone(&recorded);
        let settings = settings(Box::new(move |_, _, names| {
            assert_unlocked();
            record.lock().extend_from_slice(names);
            Ok(())
        }));
        let journal = runtime.volumes().protectors().open_journal(settings).unwrap();
        let used = Some(used(&journal));
        let served = VolumeSettings { journal: used, ..volume("a", memory(16 * MIB)) };
        runtime.volumes().add(served).unwrap();
        let disk = memory(16 * MIB);
        let number = journal.attach(&attachment("b", &disk)).unwrap();
        journal.fail_device(0);
        wait_until("the failure is recorded", PATIENCE, || journal.is_abandoned());
        assert_eq!(*recorded.lock(), ["a"]);
        journal.restored(number).unwrap();
        assert_eq!(*recorded.lock(), ["a", "b"]);
        journal.detach_or_report(number);
        runtime.stop(|_| ()).unwrap();
    }

    /// A journal's device that other hosts can take over.
    struct SharedDevice(MemoryBackend);

    impl Backend for SharedDevice {
        fn description(&self) -> &Description {
            self.0.description()
        }

        fn submit(&self, io: Io) {
            self.0.submit(io);
        }

        fn is_shared(&self) -> bool {
            true
        }
    }

    /// Regression: this host then refused the journal for good, which another host was using.
    #[test]
    fn a_shared_journal_that_fails_while_a_volume_is_added_is_not_void() {
        let (runtime, recorded) = (start(), Arc::new(Lock::<Vec<String>>::default()));
        let record = Arc::clone(&recorded);
        let on_failure: OnFailure = Box::new(move |_, _, names| {
            record.lock().extend_from_slice(names);
            Ok(())
        });
        let device = Arc::new(SharedDevice(MemoryBackend::new(64 * MIB).unwrap()));
        let settings = JournalSettings { backend: device, ..settings(on_failure) };
        let journal = runtime.volumes().protectors().open_journal(settings).unwrap();
        let disk = memory(16 * MIB);
        let number = journal.attach(&attachment("a", &disk)).unwrap();
        journal.fail_device(0);
        wait_until("the journal has failed", PATIENCE, || journal.status().failed.is_some());
        assert!(!journal.take_back(number));
        assert_eq!(*recorded.lock(), [""; 0], "its records count");
        runtime.stop(|_| ()).unwrap();
    }

    /// Regression: each second asked a disk that hangs for another flush.
    #[test]
    fn a_disk_that_hangs_is_asked_once_after_a_failure() {
        let (runtime, settings) = (start(), settings(Box::new(|_, _, _| Ok(()))));
        let journal = runtime.volumes().protectors().open_journal(settings).unwrap();
        let disk = Arc::new(HangingFlush {
            disk: MemoryBackend::new(16 * MIB).unwrap(),
            hangs: AtomicBool::new(false),
            waiting: Lock::default(),
        });
        let used = Some(used(&journal));
        let served = VolumeSettings { journal: used, ..volume("a", disk.clone() as _) };
        let id = runtime.volumes().add(served).unwrap();
        disk.hangs.store(true, Ordering::Relaxed);
        runtime.named("a").unwrap().flush.record_write();
        journal.fail_device(0);
        wait_until("the disk is asked", PATIENCE, || requests(&runtime, id) == 1);
        let begun = std::time::Instant::now();
        while begun.elapsed() < std::time::Duration::from_millis(2500) {
            assert_eq!(requests(&runtime, id), 1);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        disk.hangs.store(false, Ordering::Relaxed);
        let waiting = std::mem::take(&mut *disk.waiting.lock());
        waiting.into_iter().for_each(|io| disk.submit(io));
        wait_until("it has answered", PATIENCE, || requests(&runtime, id) == 0);
        runtime.stop(|_| ()).unwrap();
    }
}
