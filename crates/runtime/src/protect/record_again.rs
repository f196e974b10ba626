//! Records the dirty data of an adopted pool in the volume's journal once more, before the volume
//! is served: some of its records may have been in the memory of the previous process only.
//!
//! Memory damage may be found before the recording, or while it is in progress. A lost sector has
//! no content that could be recorded: the disk has older data, and so may the journal. So it is
//! left out, and its older records are neither voided, nor used before it is known whether they are
//! the newest ([`forebay_journal::Freshness`]).
//!
//! If the process dies meanwhile, the next one starts over: until the older records are void, each
//! of them is valid, and the pool has the newest data.

use crate::error::VolumeError;
use crate::protect::adopt::PoolVolumes;
use crate::protect::patrol::verify_locked;
use crate::protect::restore::Restorer;
use crate::shared::{JournalUse, Shared, Volume};
use forebay_backend::{AlignedBuffer, Blocking};
use forebay_engine::{LineKey, Verdict};
use forebay_protect::runs_of;
use forebay_types::{IoError, IoResult, LINE_BYTES};
use std::sync::mpsc;
use std::time::Instant;

/// What a recording covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
enum Coverage {
    /// All data that was dirty when it began.
    Whole,
    /// All data that was dirty when it began, except sectors that were lost.
    WithoutLost,
}

/// The content of sectors that were dirty when the recording began.
struct Content {
    /// The line. Only the wanted sectors that are not lost have meaningful bytes.
    line: AlignedBuffer,
    /// The wanted sectors that are lost.
    lost: u8,
}

/// Records all dirty data of a volume in the adopted pool, and voids the older records.
pub(crate) fn record_again(shared: &Shared, volume: &Volume) -> Result<(), VolumeError> {
    let Some(used) = &volume.journal else { return Ok(()) };
    let failed = |error| VolumeError::Restore { name: volume.name.clone(), error };
    let begun = Instant::now();
    // No client is served yet. The records found in the log stay valid.
    used.journal.restored(used.number)?;
    let mark = used.journal.mark();
    let (bytes, coverage) = record_dirty(shared, volume).map_err(failed)?;
    match coverage {
        Coverage::Whole => {
            // The older records are voided: if the newest record of a sector was in the memory of
            // the previous process only, while the disk had the sector's data already, an older
            // record would undo that data. The flush comes first, because afterwards only the disk
            // has it.
            sync_disk(shared, volume)?;
            used.journal.recorded_again(used.number, mark)?;
            volume.freshness.end_recording(true);
        }
        Coverage::WithoutLost => {
            // The older records of lost and of dirty sectors stay, because there may be no newer
            // ones.
            used.journal.void_clean(used.number, volume.id).map_err(failed)?;
            let has_all = PoolVolumes::of(shared).is_all_in(volume.id, used.journal.id());
            volume.freshness.end_recording(has_all);
        }
    }
    restore_lost(shared, volume, used);
    if bytes > 0 {
        let ms = begun.elapsed().as_millis() as u64;
        tracing::info!(
            volume = %volume.name,
            bytes,
            ms,
            "dirty data of the adopted pool recorded in the journal again"
        );
    }
    Ok(())
}

/// Starts to restore lost sectors, if the records are the newest. This was not known earlier, so no
/// sector has been restored yet.
fn restore_lost(shared: &Shared, volume: &Volume, used: &JournalUse) {
    if shared.shards.has_lost(volume.id) {
        used.journal.regain(used.number, volume.id);
    }
}

/// Records all dirty data, and waits until the records are durable. Returns the recorded bytes.
fn record_dirty(shared: &Shared, volume: &Volume) -> Result<(u64, Coverage), IoError> {
    let mut coverage = Coverage::Whole;
    let mut places = Vec::new();
    for number in 0..shared.shards.len() {
        for (key, dirty, lost) in shared.shard(number).dirty_lines_of(volume.id) {
            if lost != 0 {
                coverage = Coverage::WithoutLost;
            }
            if dirty != 0 {
                places.push((number, key, dirty));
            }
        }
    }
    let mut bytes = 0;
    let mut restorer = Restorer::new(shared, volume.id, true);
    for (number, key, dirty) in places {
        let Content { line, lost } = content_of(shared, volume, number, key, dirty)?;
        if lost != 0 {
            coverage = Coverage::WithoutLost;
        }
        for range in runs_of(key, dirty & !lost) {
            let from = (range.offset - key.offset()) as usize;
            let content = &line[from..from + range.len as usize];
            let fill = |into: &mut [u8]| {
                into.copy_from_slice(content);
                Ok(())
            };
            restorer.write(range, fill)?;
            bytes += range.len;
        }
    }
    restorer.finish()?;
    Ok((bytes, coverage))
}

/// The content of some sectors of a line that were dirty a moment ago: from the pool or, where they
/// were destaged and left the pool meanwhile, from the disk. The line is verified first.
fn content_of(
    shared: &Shared,
    volume: &Volume,
    number: usize,
    key: LineKey,
    wanted: u8,
) -> Result<Content, IoError> {
    let mut line = AlignedBuffer::new(LINE_BYTES as usize);
    let (in_pool, lost) = {
        let mut shard = shared.shard(number);
        let slot = shard.slots().find_valid(key, 0);
        if let Some(sealed) = slot.and_then(|slot| shard.seal_of(slot)) {
            let _: Verdict = verify_locked(shared, number, &mut shard, &sealed);
        }
        // A damaged line may have left the pool.
        let found = shard.slots().line(key);
        if let Some(slot) = shard.slots().find_valid(key, 0) {
            shared.pool.copy_line(number, slot, &mut line);
        }
        (wanted & found.valid(), wanted & found.lost())
    };
    assert_eq!(in_pool & lost, 0, "a valid sector is not lost");
    // Nothing writes to the volume, so these sectors were destaged.
    let on_disk = wanted & !in_pool & !lost;
    if on_disk != 0 {
        read_sectors(volume, key, on_disk, &mut line)?;
    }
    Ok(Content { line, lost })
}

/// Reads some sectors of a line from the disk.
fn read_sectors(volume: &Volume, key: LineKey, sectors: u8, line: &mut [u8]) -> IoResult {
    let left = volume.backend.description().size_bytes - key.offset();
    let mut there = AlignedBuffer::new(left.min(LINE_BYTES) as usize);
    volume.internal_reads.add(1, there.len() as u64);
    Blocking::new(&*volume.backend).read(key.offset(), &mut there)?;
    for range in runs_of(key, sectors) {
        let from = (range.offset - key.offset()) as usize;
        let run = from..from + range.len as usize;
        line[run.clone()].copy_from_slice(&there[run]);
    }
    Ok(())
}

/// Flushes the cache of the volume's disk.
fn sync_disk(shared: &Shared, volume: &Volume) -> Result<(), VolumeError> {
    let failed = |error| VolumeError::Restore { name: volume.name.clone(), error };
    let (sender, result) = mpsc::channel();
    let id = volume.id;
    shared
        .run_on(0, move |tasks| tasks.sync(id, Box::new(move |result| _ = sender.send(result))))?;
    result.recv().unwrap_or(Err(IoError::Shutdown)).map_err(failed)
}
