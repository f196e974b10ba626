//! What is lost in memory comes back from the journal, where that still holds it.
//!
//! Sectors that were damaged beyond repair are dirty, so their records are still needed, and none
//! of them is let go while they are lost: a flush of the volume fails for as long. The log is read
//! as at a start, and what it says of the lost sectors is put into their slots, unless they were
//! written again meanwhile. A thread does it that lives as long as that takes.

use crate::journal::Journal;
use crate::patrol::put_back;
use crate::pool::MappedLines;
use crate::shared::Shared;
use forebay_engine::{LineKey, Shard};
use forebay_format::journal::{BLOCK_BYTES, Record};
use forebay_journal::{FoundRecord, Image, Source};
use forebay_types::{IoError, LINE_BYTES, SECTOR_BYTES, VolumeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often it is tried for lines that are in use, and the pause between.
const TRIES_MAX: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// What is to come back of a line: its sectors, and their bytes at their places.
struct Content {
    shard: usize,
    key: LineKey,
    sectors: u8,
    bytes: Vec<u8>,
}

impl Content {
    fn put_back(&self, shared: &Shared, shard: &mut Shard<MappedLines>) -> bool {
        put_back(shared, self.shard, shard, self.key, &self.bytes, self.sectors)
    }
}

impl Journal {
    /// Something was lost of a volume.
    pub(crate) fn regain(self: &Arc<Self>, number: u16, volume: VolumeId) {
        if self.kept.is_regaining.swap(true, Ordering::AcqRel) {
            return;
        }
        let journal = Arc::clone(self);
        let work = move || {
            for _ in 0..TRIES_MAX {
                match journal.try_to_regain(number, volume) {
                    Ok(true) => break,
                    Ok(false) => std::thread::sleep(PAUSE),
                    Err(error) => {
                        let name = &journal.name;
                        tracing::error!(
                            "journal {name} can't be read for what was lost in memory: {error}"
                        );
                        break;
                    }
                }
            }
            journal.kept.is_regaining.store(false, Ordering::Release);
        };
        if std::thread::Builder::new().name("regain".into()).spawn(work).is_err() {
            self.kept.is_regaining.store(false, Ordering::Release);
        }
    }

    /// Something is still lost of a volume; maybe it was not looked for yet.
    pub(crate) fn regain_again(self: &Arc<Self>, number: u16, volume: VolumeId) {
        let losses = self.shared.upgrade().and_then(|shared| losses_of(&shared, volume));
        let losses: u64 = losses.iter().flatten().sum();
        if losses != self.kept.looked_for.load(Ordering::Relaxed) {
            self.regain(number, volume);
        }
    }

    /// Says whether nothing is left that could come back.
    fn try_to_regain(&self, number: u16, volume: VolumeId) -> Result<bool, IoError> {
        let Some(shared) = self.shared.upgrade() else { return Ok(true) };
        let found = shared.volume(volume);
        if found.is_some_and(|volume| volume.forsaken.load(Ordering::Relaxed)) {
            return Ok(true);
        }
        let Some(losses) = losses_of(&shared, volume) else { return Ok(true) };
        let lost = self.stuck_lines(volume).unwrap_or_default();
        let lost: Vec<_> = lost.into_iter().filter(|line| line.lost != 0).collect();
        if lost.is_empty() {
            return Ok(true);
        }
        let records = self.records_of(number)?;
        let image: Vec<_> = Image::of_volume(&records, number).extents().collect();
        let mut is_done = true;
        for line in lost {
            let content = Content {
                shard: line.shard,
                key: line.key,
                sectors: 0,
                bytes: vec![0; LINE_BYTES as usize],
            };
            let Some(content) = self.content_of(content, line.lost, &image, &records) else {
                continue;
            };
            let mut shard = shared.shard(content.shard);
            let is_same = shard.has_volume(volume)
                && shard.counters(volume).lost_lines == losses[content.shard];
            // What was lost since may be newer than what was read.
            is_done &= is_same && content.put_back(&shared, &mut shard);
        }
        self.kept.looked_for.store(losses.iter().sum(), Ordering::Relaxed);
        // More may have been lost meanwhile, whose news found this at work.
        Ok(is_done && losses_of(&shared, volume).is_none_or(|now| now == losses))
    }

    /// What the log says of some sectors of a line; `None` if nothing.
    fn content_of(
        &self,
        mut content: Content,
        lost: u8,
        image: &[forebay_journal::Extent],
        records: &[FoundRecord],
    ) -> Option<Content> {
        for sector in (0..8).filter(|sector| lost >> sector & 1 != 0) {
            let offset = content.key.offset() + sector * SECTOR_BYTES;
            let at = image.partition_point(|extent| extent.range.end() <= offset);
            let Some(extent) = image.get(at).filter(|extent| extent.range.offset <= offset) else {
                continue;
            };
            let to = (sector * SECTOR_BYTES) as usize;
            let to = &mut content.bytes[to..to + SECTOR_BYTES as usize];
            match extent.source {
                Source::Write { record, offset: from } => {
                    let Some(bytes) = self.record_bytes(&records[record]) else { continue };
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

    /// The payload of a record, from whichever device has it as it was written.
    fn record_bytes(&self, found: &FoundRecord) -> Option<Vec<u8>> {
        let Record { volume, range, checksum, .. } = found.record;
        let start = found.position / BLOCK_BYTES * BLOCK_BYTES;
        let from = (found.position - start) as usize;
        let len = (from as u64 + range.len).next_multiple_of(BLOCK_BYTES);
        (0..2).find_map(|device| {
            let bytes = self.devices.read_on(device, start, len).ok()?;
            let payload = &bytes[from..from + range.len as usize];
            (Record::checksum_of(volume, range.offset, payload) == checksum)
                .then(|| payload.to_vec())
        })
    }
}

/// How often something was lost of a volume in each shard.
fn losses_of(shared: &Shared, volume: VolumeId) -> Option<Vec<u64>> {
    let of = |number| {
        let shard = shared.shard(number);
        shard.has_volume(volume).then(|| shard.counters(volume).lost_lines)
    };
    (0..shared.shards.len()).map(of).collect()
}
