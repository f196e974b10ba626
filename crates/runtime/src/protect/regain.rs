//! Restores from the journal sectors that were lost in memory.
//!
//! Sectors damaged beyond repair are dirty, so their records are live. While the sectors are lost,
//! flushes of the volume fail, so these records are not reclaimed. If they are the newest
//! ([`forebay_journal::Freshness`]), a thread reads the log as at a start and puts the recorded
//! bytes into the sectors' slots, unless they were written again meanwhile.

use super::patrol::restore_sectors;
use super::retention::stuck_lines;
use crate::journal::{Journal, LostContent, lost_content};
use crate::shared::Shared;
use forebay_journal::Image;
use forebay_threads::Thread;
use forebay_types::{IoError, VolumeId};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Attempts for lines that are in use, and the pause between two.
const TRIES_MAX: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Starts to restore the lost sectors of a volume, at once or after the searches for other volumes.
pub(super) fn start(shared: Weak<Shared>, journal: &Arc<Journal>, number: u16, volume: VolumeId) {
    if !journal.searches().request(number, volume) {
        return;
    }
    let owned = Arc::clone(journal);
    let work = move || {
        while let Some((number, volume)) = owned.searches().next() {
            // The previous search may have covered these losses, too.
            if !is_searched(&shared, &owned, number, volume) {
                restore(&shared, &owned, number, volume);
            }
        }
    };
    if Thread::named("regain").spawn(work).is_err() {
        // At the latest, a failed checkpoint makes the next request.
        journal.searches().handle_no_thread();
    }
}

/// Starts another restore if sectors of the volume were lost since the last search.
pub(super) fn retry(shared: &Weak<Shared>, journal: &Arc<Journal>, number: u16, volume: VolumeId) {
    if !is_searched(shared, journal, number, volume) {
        start(Weak::clone(shared), journal, number, volume);
    }
}

/// Whether the last search for a volume covered all of its losses.
fn is_searched(shared: &Weak<Shared>, journal: &Journal, number: u16, volume: VolumeId) -> bool {
    let losses = shared.upgrade().and_then(|shared| losses_of(&shared, volume));
    journal.searches().has_searched(number, losses.iter().flatten().sum())
}

/// Searches for the lost sectors of a volume, and repeats the search while lines are in use.
fn restore(shared: &Weak<Shared>, journal: &Journal, number: u16, volume: VolumeId) {
    for _ in 0..TRIES_MAX {
        match search(shared, journal, number, volume) {
            Ok(true) => return,
            Ok(false) => std::thread::sleep(PAUSE),
            Err(error) => {
                let name = journal.name();
                tracing::error!(
                    journal = %name,
                    %error,
                    "cannot search the journal for lost sectors"
                );
                return;
            }
        }
    }
}

/// Restores the lost sectors that the log holds. Returns whether nothing is left to restore.
fn search(
    shared: &Weak<Shared>,
    journal: &Journal,
    number: u16,
    volume: VolumeId,
) -> Result<bool, IoError> {
    let Some(shared) = shared.upgrade() else { return Ok(true) };
    if !journal.lock().has_volume(number, volume) {
        // The volume has left the journal, and its id may be another volume's by now.
        return Ok(true);
    }
    let served = shared.volume(volume);
    let Some(newest) = served.and_then(|volume| volume.freshness.newest()) else {
        return Ok(true);
    };
    let Some(losses) = losses_of(&shared, volume) else { return Ok(true) };
    let mut lost = stuck_lines(&shared, volume).unwrap_or_default();
    lost.retain(|line| line.lost != 0);
    if lost.is_empty() {
        return Ok(true);
    }
    let records = journal.records_of(number)?;
    let image: Vec<_> = Image::of_volume(&records, number).extents().collect();
    let mut is_done = true;
    for line in lost {
        let Some(content) = lost_content(journal, line, &image, &records) else { continue };
        let mut shard = shared.shard(line.shard);
        let is_same = shard.has_volume(volume)
            && shard.volume(volume).counters().lost_lines == losses[line.shard];
        // Sectors that were lost since the losses were counted may be newer than the records that
        // were read.
        is_done &= is_same && {
            let LostContent { key, sectors, bytes } = content;
            restore_sectors(&shared, line.shard, &mut shard, key, &bytes, sectors, newest)
        };
    }
    if !is_done {
        return Ok(false);
    }
    journal.searches().record_search(number, losses.iter().sum());
    // Sectors may have been lost meanwhile.
    Ok(losses_of(&shared, volume).is_none_or(|now| now == losses))
}

/// How often sectors of a volume were lost, in each shard.
fn losses_of(shared: &Shared, volume: VolumeId) -> Option<Vec<u64>> {
    let of = |number| {
        let shard = shared.shard(number);
        shard.has_volume(volume).then(|| shard.volume(volume).counters().lost_lines)
    };
    (0..shared.shards.len()).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::common::client::PATIENCE;
    use crate::rig::common::{GATHERS_ALL, before_lines_are_old, wait_until};
    use crate::rig::{MIB, begin_write, config, lose, lose_sectors, open_journal, volume, write};
    use crate::{Runtime, RuntimeConfig, VolumeJournal, VolumeSettings};
    use forebay_backend::layers::{Gate, Kinds};
    use forebay_backend::{Backend, MemoryBackend};
    use forebay_frontend_nbd::NbdServer;
    use forebay_types::Durability;

    /// Less than the time until a checkpoint fails because of lost sectors, which is 30 s.
    const BEFORE_A_CHECKPOINT: Duration = Duration::from_secs(20);

    fn memory(bytes: u64) -> Arc<dyn Backend> {
        Arc::new(MemoryBackend::new(bytes).unwrap())
    }

    /// A runtime with the volumes "a" and "b", which share a journal on `device`.
    fn start_runtime(device: Arc<dyn Backend>) -> Runtime {
        start_over(device, [memory(4 * MIB), memory(4 * MIB)])
    }

    /// As [`start_runtime`], with the disks of the volumes.
    fn start_over(device: Arc<dyn Backend>, disks: [Arc<dyn Backend>; 2]) -> Runtime {
        start_with(Durability::Ack, device, disks)
    }

    fn start_with(
        durability: Durability,
        device: Arc<dyn Backend>,
        disks: [Arc<dyn Backend>; 2],
    ) -> Runtime {
        let config = RuntimeConfig { journals: 1, ..config(64 * MIB) };
        let runtime = Runtime::start(config, &NbdServer::new()).unwrap();
        let journal = open_journal(&runtime, device).journal;
        for ((name, number), disk) in [("a", 7), ("b", 8)].into_iter().zip(disks) {
            let journal = Some(VolumeJournal {
                journal: Arc::clone(&journal),
                durability,
                identity: [number; 32],
                accept_disk: false,
            });
            let gather_below = GATHERS_ALL;
            let settings = VolumeSettings { gather_below, journal, ..volume(name, disk) };
            runtime.volumes().add(settings).unwrap();
        }
        runtime
    }

    fn lost_sectors(runtime: &Runtime, id: VolumeId) -> u64 {
        let shards = 0..runtime.shared().shards.len();
        shards.map(|number| runtime.shared().shard(number).volume(id).lost_sectors()).sum()
    }

    #[test]
    fn a_search_for_one_volume_does_not_cover_the_losses_of_another() {
        before_lines_are_old(|| {
            let runtime = start_runtime(memory(40 * MIB));
            for name in ["a", "b"] {
                let volume = runtime.named(name).unwrap();
                write(&runtime, volume.id, 0, 1, true);
                lose(&runtime, volume.id, 0);
                assert_eq!(lost_sectors(&runtime, volume.id), 8);
                // As if no thread could be started when the line was lost: only a failed checkpoint
                // starts one for this volume.
                let used = volume.journal.get().unwrap();
                wait_until("the line is restored", PATIENCE, || {
                    retry(&Arc::downgrade(runtime.shared()), &used.journal, used.number, volume.id);
                    lost_sectors(&runtime, volume.id) == 0
                });
            }
            runtime.stop(|_| ()).unwrap();
        });
    }

    /// Fails if a request is dropped during a search: only a failed checkpoint repeats it.
    #[test]
    fn sectors_lost_during_the_search_for_another_volume_are_restored() {
        before_lines_are_old(|| {
            let gate = Gate::new(memory(40 * MIB));
            let runtime = start_runtime(Arc::clone(&gate) as _);
            let volumes = ["a", "b"].map(|name| runtime.named(name).unwrap());
            for volume in &volumes {
                write(&runtime, volume.id, 0, 1, true);
                lose(&runtime, volume.id, 0);
            }
            gate.close(Kinds::READ);
            for volume in &volumes {
                let used = volume.journal.get().unwrap();
                used.journal.regain(used.number, volume.id);
            }
            gate.open();
            for volume in &volumes {
                wait_until("the line is restored", BEFORE_A_CHECKPOINT, || {
                    lost_sectors(&runtime, volume.id) == 0
                });
            }
            runtime.stop(|_| ()).unwrap();
        });
    }

    #[test]
    fn a_search_that_found_a_line_in_use_is_repeated_later() {
        before_lines_are_old(|| {
            let disk = Gate::new(memory(4 * MIB));
            let disks = [Arc::clone(&disk) as Arc<dyn Backend>, memory(4 * MIB)];
            let runtime = start_over(memory(40 * MIB), disks);
            let volume = runtime.named("a").unwrap();
            let (id, used) = (volume.id, volume.journal.get().unwrap());
            write(&runtime, id, 0, 1, true);
            lose_sectors(&runtime, id, 0, 0x0f);
            // The destage of the other sectors keeps the line in use.
            disk.close(Kinds::WRITE);
            runtime.run_on(0, move |tasks| tasks.checkpoint(id, true, Box::new(|_| ()))).unwrap();
            assert!(disk.wait_held(1, PATIENCE));
            assert_eq!(
                search(&Arc::downgrade(runtime.shared()), &used.journal, used.number, id),
                Ok(false)
            );
            assert!(!is_searched(
                &Arc::downgrade(runtime.shared()),
                &used.journal,
                used.number,
                id
            ));
            disk.open();
            wait_until("the line is restored", BEFORE_A_CHECKPOINT, || {
                retry(&Arc::downgrade(runtime.shared()), &used.journal, used.number, id);
                lost_sectors(&runtime, id) == 0
            });
            runtime.stop(|_| ()).unwrap();
        });
    }

    /// The newest record is lost with the journal; the one before it has older data.
    #[test]
    fn nothing_is_restored_from_a_journal_that_has_failed() {
        before_lines_are_old(|| {
            let device = Gate::new(memory(40 * MIB));
            let disks = [memory(4 * MIB), memory(4 * MIB)];
            let runtime = start_with(Durability::Flush, Arc::clone(&device) as _, disks);
            let volume = runtime.named("a").unwrap();
            let (id, used) = (volume.id, volume.journal.get().unwrap());
            write(&runtime, id, 0, 1, true);
            assert_eq!(used.journal.records_of(used.number).map(|records| records.len()), Ok(1));
            device.close(Kinds::WRITE);
            let second = begin_write(&runtime, id, 0, 2, true);
            assert!(device.wait_held(1, PATIENCE));
            assert_eq!(lose(&runtime, id, 0), 8);
            device.fail_all(IoError::Io);
            let failed = || used.journal.lock().core.log.failed().is_some();
            wait_until("the journal has failed", PATIENCE, failed);
            device.open();
            assert_eq!(
                search(&Arc::downgrade(runtime.shared()), &used.journal, used.number, id),
                Err(IoError::Io)
            );
            assert_eq!(lost_sectors(&runtime, id), 8);
            // Only a write ends the loss.
            write(&runtime, id, 0, 3, false);
            assert_eq!((lost_sectors(&runtime, id), second.recv()), (0, Ok(Ok(()))));
            runtime.stop(|_| ()).unwrap();
        });
    }
}
