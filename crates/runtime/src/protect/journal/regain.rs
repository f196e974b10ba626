//! Restores from the journal sectors that were lost in memory.
//!
//! Sectors damaged beyond repair are dirty, so their records are live, and none of them is
//! reclaimed while the sectors are lost: a flush of the volume fails until then. A thread reads the
//! log as at a start and puts the recorded bytes into the sectors' slots, unless they were written
//! again meanwhile.

use super::Journal;
use super::stuck::{StuckLine, stuck_lines};
use crate::protect::patrol::restore_sectors;
use crate::shared::Shared;
use forebay_engine::LineKey;
use forebay_format::journal::{BLOCK_BYTES, Record};
use forebay_journal::{Extent, FoundRecord, Image, Source};
use forebay_types::{IoError, LINE_BYTES, SECTOR_BYTES, VolumeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Attempts for lines that are in use, and the pause between two.
const TRIES_MAX: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// The restores from one journal.
#[derive(Debug, Default)]
pub(super) struct Regain {
    is_running: AtomicBool,
    /// How many losses of a volume the last complete search covered.
    searched_losses: AtomicU64,
}

/// Sectors of a line to be restored, and their bytes at their places.
struct Content {
    key: LineKey,
    /// A bit per sector.
    sectors: u8,
    bytes: Vec<u8>,
}

/// Starts to restore what was lost of a volume, unless a restore is running.
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
    if losses != journal.regain.searched_losses.load(Ordering::Relaxed) {
        start(journal, number, volume);
    }
}

/// Restores what the log holds. Returns whether nothing is left that could be restored.
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
        // Sectors lost since then may be newer than what was read.
        is_done &= is_same && {
            let Content { key, sectors, bytes } = content;
            restore_sectors(&shared, line.shard, &mut shard, key, &bytes, sectors)
        };
    }
    journal.regain.searched_losses.store(losses.iter().sum(), Ordering::Relaxed);
    // Sectors may have been lost meanwhile; their notification found this thread running.
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

/// The payload of a record, from whichever device returns it intact.
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
