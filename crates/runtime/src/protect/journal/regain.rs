//! Restores from the journal sectors that were lost in memory.
//!
//! Sectors damaged beyond repair are dirty, so their records are live. While the sectors are lost,
//! flushes of the volume fail, so these records are not reclaimed. If they are the newest
//! ([`forebay_journal::Freshness`]), a thread reads the log as at a start and puts the recorded
//! bytes into the sectors' slots, unless they were written again meanwhile.

use super::Journal;
use super::stuck::stuck_lines;
use crate::locks::Lock;
use crate::protect::patrol::restore_sectors;
use crate::shared::Shared;
use forebay_engine::LineKey;
use forebay_format::journal::{BLOCK_BYTES, Record};
use forebay_journal::{Extent, FoundRecord, Image, Source};
use forebay_protect::StuckLine;
use forebay_threads::Thread;
use forebay_types::{IoError, LINE_BYTES, SECTOR_BYTES, VolumeId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Attempts for lines that are in use, and the pause between two.
const TRIES_MAX: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// The restores from one journal.
#[derive(Debug, Default)]
pub(super) struct Regain {
    requests: Lock<Requests>,
    /// By a volume's number in the journal: how many losses its last complete search covered.
    /// Losses that an adopted pool contains are not counted, so a search may have covered zero.
    searched_losses: Lock<BTreeMap<u16, u64>>,
}

/// Volumes to search for. Each search reads the whole log, so one thread does them one by one.
#[derive(Debug, Default)]
struct Requests {
    /// The thread is running.
    is_running: bool,
    /// Volumes that wait for their search, with their numbers in the journal.
    waiting: VecDeque<(u16, VolumeId)>,
}

impl Regain {
    /// Requests a search for a volume. Returns whether the caller has to start the thread.
    fn request(&self, number: u16, volume: VolumeId) -> bool {
        let mut requests = self.requests.lock();
        if !requests.waiting.contains(&(number, volume)) {
            requests.waiting.push_back((number, volume));
        }
        !std::mem::replace(&mut requests.is_running, true)
    }

    /// The next volume to search for. `None` ends the thread.
    fn next(&self) -> Option<(u16, VolumeId)> {
        let mut requests = self.requests.lock();
        let next = requests.waiting.pop_front();
        requests.is_running = next.is_some();
        next
    }

    /// Whether the last complete search for the volume covered this many losses.
    fn has_searched(&self, number: u16, losses: u64) -> bool {
        self.searched_losses.lock().get(&number) == Some(&losses)
    }

    fn record_search(&self, number: u16, losses: u64) {
        self.searched_losses.lock().insert(number, losses);
    }

    /// Forgets a volume that leaves the journal: the next volume with its number counts its losses
    /// from zero.
    pub(super) fn forget(&self, number: u16) {
        self.requests.lock().waiting.retain(|(other, _)| *other != number);
        self.searched_losses.lock().remove(&number);
    }
}

/// Sectors of a line to be restored, and their bytes at their places.
struct Content {
    key: LineKey,
    /// A bit per sector.
    sectors: u8,
    bytes: Vec<u8>,
}

/// Starts to restore the lost sectors of a volume, at once or after the searches for other volumes.
pub(super) fn start(journal: &Arc<Journal>, number: u16, volume: VolumeId) {
    if !journal.regain.request(number, volume) {
        return;
    }
    let owned = Arc::clone(journal);
    let work = move || {
        while let Some((number, volume)) = owned.regain.next() {
            // The previous search may have covered these losses, too.
            if !is_searched(&owned, number, volume) {
                restore(&owned, number, volume);
            }
        }
    };
    if Thread::named("regain").spawn(work).is_err() {
        // The next request starts the thread. At the latest, a failed checkpoint makes one.
        journal.regain.requests.lock().is_running = false;
    }
}

/// Starts another restore if sectors of the volume were lost since the last search.
pub(super) fn retry(journal: &Arc<Journal>, number: u16, volume: VolumeId) {
    if !is_searched(journal, number, volume) {
        start(journal, number, volume);
    }
}

/// Whether the last search for a volume covered all of its losses.
fn is_searched(journal: &Journal, number: u16, volume: VolumeId) -> bool {
    let losses = journal.shared.upgrade().and_then(|shared| losses_of(&shared, volume));
    journal.regain.has_searched(number, losses.iter().flatten().sum())
}

/// Searches for the lost sectors of a volume, and repeats the search while lines are in use.
fn restore(journal: &Journal, number: u16, volume: VolumeId) {
    for _ in 0..TRIES_MAX {
        match search(journal, number, volume) {
            Ok(true) => return,
            Ok(false) => std::thread::sleep(PAUSE),
            Err(error) => {
                let name = &journal.name;
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
fn search(journal: &Journal, number: u16, volume: VolumeId) -> Result<bool, IoError> {
    let Some(shared) = journal.shared.upgrade() else { return Ok(true) };
    if !journal.lock().volumes.contains(&(number, volume)) {
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
        let Some(content) = content_of(journal, line, &image, &records) else { continue };
        let mut shard = shared.shard(line.shard);
        let is_same = shard.has_volume(volume)
            && shard.volume(volume).counters().lost_lines == losses[line.shard];
        // Sectors that were lost since the losses were counted may be newer than the records that
        // were read.
        is_done &= is_same && {
            let Content { key, sectors, bytes } = content;
            restore_sectors(&shared, line.shard, &mut shard, key, &bytes, sectors, newest)
        };
    }
    if !is_done {
        return Ok(false);
    }
    journal.regain.record_search(number, losses.iter().sum());
    // Sectors may have been lost meanwhile.
    Ok(losses_of(&shared, volume).is_none_or(|now| now == losses))
}

/// Reads the lost sectors of a line from the log; `None` if the log has none of them.
fn content_of(
    journal: &Journal,
    line: StuckLine,
    image: &[Extent],
    records: &[FoundRecord],
) -> Option<Content> {
    let mut content = Content { key: line.key, sectors: 0, bytes: vec![0; LINE_BYTES as usize] };
    for sector in (0..8).filter(|sector| line.lost >> sector & 1 != 0) {
        let offset = line.key.offset() + sector * SECTOR_BYTES;
        let at = image.partition_point(|extent| extent.range.end() <= offset);
        let Some(extent) = image.get(at).filter(|extent| extent.range.offset <= offset) else {
            continue;
        };
        let to = (sector * SECTOR_BYTES) as usize;
        let to = &mut content.bytes[to..to + SECTOR_BYTES as usize];
        match extent.source {
            Source::Write { record, offset: from } => {
                let Some(bytes) = payload_of(journal, &records[record]) else { continue };
                let from = (from + offset - extent.range.offset) as usize;
                to.copy_from_slice(&bytes[from..from + SECTOR_BYTES as usize]);
            }
            Source::Zero { .. } => to.fill(0),
            Source::Discard => continue,
        }
        content.sectors |= 1 << sector;
    }
    (content.sectors != 0).then_some(content)
}

/// The payload of a record, from the first device that returns it intact.
fn payload_of(journal: &Journal, found: &FoundRecord) -> Option<Vec<u8>> {
    let Record { volume, range, checksum, .. } = found.record;
    let start = found.position / BLOCK_BYTES * BLOCK_BYTES;
    let from = (found.position - start) as usize;
    let len = (from as u64 + range.len).next_multiple_of(BLOCK_BYTES);
    (0..2).find_map(|device| {
        let bytes = journal.devices.read_on(device, start, len).ok()?;
        let payload = &bytes[from..from + range.len as usize];
        (Record::checksum_of(volume, range.offset, payload) == checksum).then(|| payload.to_vec())
    })
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
                let used = volume.journal.as_ref().unwrap();
                wait_until("the line is restored", PATIENCE, || {
                    retry(&used.journal, used.number, volume.id);
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
                let used = volume.journal.as_ref().unwrap();
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
            let (id, used) = (volume.id, volume.journal.as_ref().unwrap());
            write(&runtime, id, 0, 1, true);
            lose_sectors(&runtime, id, 0, 0x0f);
            // The destage of the other sectors keeps the line in use.
            disk.close(Kinds::WRITE);
            runtime.run_on(0, move |tasks| tasks.checkpoint(id, true, Box::new(|_| ()))).unwrap();
            assert!(disk.wait_held(1, PATIENCE));
            assert_eq!(search(&used.journal, used.number, id), Ok(false));
            assert!(!is_searched(&used.journal, used.number, id));
            disk.open();
            wait_until("the line is restored", BEFORE_A_CHECKPOINT, || {
                retry(&used.journal, used.number, id);
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
            let (id, used) = (volume.id, volume.journal.as_ref().unwrap());
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
            assert_eq!(search(&used.journal, used.number, id), Err(IoError::Io));
            assert_eq!(lost_sectors(&runtime, id), 8);
            // Only a write ends the loss.
            write(&runtime, id, 0, 3, false);
            assert_eq!((lost_sectors(&runtime, id), second.recv()), (0, Ok(Ok(()))));
            runtime.stop(|_| ()).unwrap();
        });
    }

    #[test]
    fn a_request_during_a_search_waits_for_its_end() {
        let regain = Regain::default();
        let (a, b) = ((7, VolumeId(0)), (8, VolumeId(1)));
        assert!(regain.request(a.0, a.1), "no thread is running");
        assert_eq!(regain.next(), Some(a));
        for (number, volume) in [b, a, b] {
            assert!(!regain.request(number, volume), "the thread is running");
        }
        assert_eq!((regain.next(), regain.next(), regain.next()), (Some(b), Some(a), None));
        assert!(regain.request(b.0, b.1), "the thread has ended");
        regain.forget(8);
        assert_eq!(regain.next(), None, "the volume has left the journal");
    }

    #[test]
    fn the_losses_of_a_volume_that_left_do_not_count_for_the_next_one_with_its_number() {
        let regain = Regain::default();
        regain.record_search(3, 1);
        assert!(regain.has_searched(3, 1) && !regain.has_searched(3, 2));
        regain.forget(3);
        assert!(!regain.has_searched(3, 1));
    }

    #[test]
    fn a_volume_without_counted_losses_is_searched_once() {
        let regain = Regain::default();
        assert!(!regain.has_searched(3, 0), "its lines in an adopted pool may be lost");
        regain.record_search(3, 0);
        assert!(regain.has_searched(3, 0));
    }
}
