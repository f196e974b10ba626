//! Restores from the journal sectors that were lost in memory.
//!
//! Sectors damaged beyond repair are dirty, so their records are live. While the sectors are lost,
//! flushes of the volume fail, so these records are not reclaimed. A thread reads the log as at a
//! start and puts the recorded bytes into the sectors' slots, unless they were written again
//! meanwhile.

use super::Journal;
use super::stuck::{StuckLine, stuck_lines};
use crate::locks::Lock;
use crate::protect::patrol::restore_sectors;
use crate::shared::Shared;
use forebay_engine::LineKey;
use forebay_format::journal::{BLOCK_BYTES, Record};
use forebay_journal::{Extent, FoundRecord, Image, Source};
use forebay_types::{IoError, LINE_BYTES, SECTOR_BYTES, VolumeId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Attempts for lines that are in use, and the pause between two.
const TRIES_MAX: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// The restores from one journal.
#[derive(Debug, Default)]
pub(super) struct Regain {
    /// A search is running, for any of the volumes: each search reads the whole log, so there is
    /// one at a time.
    is_running: AtomicBool,
    /// By a volume's number in the journal: how many losses its last complete search covered.
    searched_losses: Lock<BTreeMap<u16, u64>>,
}

impl Regain {
    /// Whether the last complete search for the volume covered this many losses.
    fn has_searched(&self, number: u16, losses: u64) -> bool {
        self.searched_losses.lock().get(&number).copied().unwrap_or(0) == losses
    }

    fn record_search(&self, number: u16, losses: u64) {
        self.searched_losses.lock().insert(number, losses);
    }

    /// Forgets a volume that leaves the journal: the next volume with its number counts its losses
    /// from zero.
    pub(super) fn forget(&self, number: u16) {
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

/// Starts to restore the lost sectors of a volume, unless a search is running. The next failed
/// checkpoint of the volume tries again ([`retry`]).
pub(super) fn start(journal: &Arc<Journal>, number: u16, volume: VolumeId) {
    if journal.regain.is_running.swap(true, Ordering::AcqRel) {
        return;
    }
    let owned = Arc::clone(journal);
    let work = move || {
        for _ in 0..TRIES_MAX {
            match search(&owned, number, volume) {
                Ok(true) => break,
                Ok(false) => std::thread::sleep(PAUSE),
                Err(error) => {
                    let name = &owned.name;
                    tracing::error!(journal = %name, %error, "lost sectors: log unreadable");
                    break;
                }
            }
        }
        owned.regain.is_running.store(false, Ordering::Release);
    };
    if std::thread::Builder::new().name("regain".into()).spawn(work).is_err() {
        journal.regain.is_running.store(false, Ordering::Release);
    }
}

/// Starts again if sectors of the volume were lost since the last search.
pub(super) fn retry(journal: &Arc<Journal>, number: u16, volume: VolumeId) {
    let losses = journal.shared.upgrade().and_then(|shared| losses_of(&shared, volume));
    let losses: u64 = losses.iter().flatten().sum();
    if !journal.regain.has_searched(number, losses) {
        start(journal, number, volume);
    }
}

/// Restores the lost sectors that the log holds. Returns false if another attempt may restore more.
fn search(journal: &Journal, number: u16, volume: VolumeId) -> Result<bool, IoError> {
    let Some(shared) = journal.shared.upgrade() else { return Ok(true) };
    let served = shared.volume(volume);
    if served.is_some_and(|volume| volume.journal_is_stale.load(Ordering::Relaxed)) {
        return Ok(true);
    }
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
        // Sectors lost since then may be newer than the records that were read.
        is_done &= is_same && {
            let Content { key, sectors, bytes } = content;
            restore_sectors(&shared, line.shard, &mut shard, key, &bytes, sectors)
        };
    }
    journal.regain.record_search(number, losses.iter().sum());
    // Sectors lost meanwhile did not start a search, because this one was running.
    Ok(is_done && losses_of(&shared, volume).is_none_or(|now| now == losses))
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
    use crate::rig::{MIB, config, open_journal, volume};
    use crate::{Runtime, RuntimeConfig, VolumeJournal, VolumeSettings};
    use forebay_backend::{Backend, MemoryBackend};
    use forebay_engine::Verdict;
    use forebay_frontend_nbd::NbdServer;
    use forebay_types::{ByteRange, Durability, IoResult};
    use std::sync::mpsc;

    fn memory(bytes: u64) -> Arc<dyn Backend> {
        Arc::new(MemoryBackend::new(bytes).unwrap())
    }

    /// A runtime with the volumes "a" and "b", which share a journal.
    fn start_runtime() -> Runtime {
        let config = RuntimeConfig { journals: 1, ..config(64 * MIB) };
        let runtime = Runtime::start(config, &NbdServer::new()).unwrap();
        let journal = open_journal(&runtime, memory(40 * MIB)).journal;
        for (name, number) in [("a", 7), ("b", 8)] {
            let journal = Some(VolumeJournal {
                journal: Arc::clone(&journal),
                durability: Durability::Ack,
                identity: [number; 32],
                accept_disk: false,
            });
            let (gather_below, disk) = (GATHERS_ALL, memory(4 * MIB));
            let settings = VolumeSettings { gather_below, journal, ..volume(name, disk) };
            runtime.add_volume(settings).unwrap();
        }
        runtime
    }

    /// Writes the first line of a volume, and records it in the journal.
    fn write(runtime: &Runtime, id: VolumeId) {
        let (sender, result) = mpsc::channel();
        let asked = runtime.run_on(0, move |tasks| {
            let range = ByteRange::new(0, LINE_BYTES);
            let on_done = Box::new(move |result: IoResult| sender.send(result).unwrap());
            tasks.restore(id, range, Some(&[1; LINE_BYTES as usize]), true, on_done);
        });
        asked.unwrap();
        result.recv().unwrap().unwrap();
    }

    /// Reports the first line of a volume as damaged beyond repair, once the line is sealed.
    fn lose(runtime: &Runtime, id: VolumeId) {
        let key = LineKey::new(id, 0);
        wait_until("the line is sealed", PATIENCE, || {
            (0..runtime.shared().shards.len()).any(|number| {
                let mut shard = runtime.shared().shard(number);
                let seal = shard.slots().find_valid(key, 0).and_then(|slot| shard.seal_of(slot));
                let Some(seal) = seal else { return false };
                shard.damaged(&seal, Verdict::Lost { sectors: 0xff });
                true
            })
        });
    }

    fn lost_sectors(runtime: &Runtime, id: VolumeId) -> u64 {
        let shards = 0..runtime.shared().shards.len();
        shards.map(|number| runtime.shared().shard(number).volume(id).lost_sectors()).sum()
    }

    #[test]
    fn a_search_for_one_volume_does_not_cover_the_losses_of_another() {
        before_lines_are_old(|| {
            let runtime = start_runtime();
            for name in ["a", "b"] {
                let volume = runtime.named(name).unwrap();
                write(&runtime, volume.id);
                lose(&runtime, volume.id);
                assert_eq!(lost_sectors(&runtime, volume.id), 8);
                // As if a search for the other volume had been running when the line was lost: only
                // a failed checkpoint starts one for this volume.
                let used = volume.journal.as_ref().unwrap();
                wait_until("the line is restored", PATIENCE, || {
                    retry(&used.journal, used.number, volume.id);
                    lost_sectors(&runtime, volume.id) == 0
                });
            }
            runtime.stop(|_| ()).unwrap();
        });
    }

    #[test]
    fn the_losses_of_a_volume_that_left_do_not_count_for_the_next_one_with_its_number() {
        let regain = Regain::default();
        regain.record_search(3, 1);
        assert!(regain.has_searched(3, 1) && !regain.has_searched(3, 2));
        regain.forget(3);
        assert!(!regain.has_searched(3, 1) && regain.has_searched(3, 0));
    }
}
