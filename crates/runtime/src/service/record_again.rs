//! Records the dirty data of an adopted pool in the volume's journal once more: carries out the
//! steps of a [`RecordAgain`].

use super::adopt::PoolVolumes;
use crate::error::VolumeError;
use crate::journal::JournalError;
use crate::protect::patrol::verify_locked;
use crate::protect::restore::Restorer;
use crate::protect::retention::stuck_lines;
use crate::shared::{JournalUse, Shared, Tasks, Volume};
use forebay_backend::{AlignedBuffer, Blocking};
use forebay_engine::{LineKey, SealVerdict};
use forebay_protect::{RecordAgain, RecordAgainStep, StuckLine, runs_of};
use forebay_types::{IoError, IoResult, LINE_BYTES};
use std::sync::mpsc;
use std::time::Instant;

/// Attempts to record a fence: about five seconds.
const FENCE_TRIES_MAX: u32 = 250;

/// The content of sectors that were dirty when the recording began.
struct Content {
    /// The line. Only the wanted sectors that are not lost have meaningful bytes.
    line: AlignedBuffer,
    /// The wanted sectors that are lost.
    lost: u8,
}

/// Records all dirty data of a volume in the adopted pool, and voids the older records.
pub(crate) fn record_again(shared: &Shared, volume: &Volume) -> Result<(), VolumeError> {
    let Some(used) = volume.journal.get() else { return Ok(()) };
    let failed = |error| VolumeError::Restore { name: volume.name.clone(), error };
    let begun = Instant::now();
    // No client is served yet. The records found in the log stay valid.
    used.journal.restored(used.number)?;
    let (bytes, result, is_whole) = record_dirty(shared, volume, &used).map_err(failed)?;
    let name = used.journal.name().to_owned();
    result.map_err(|error| JournalError::Io { name, error })?;
    let has_all = is_whole || PoolVolumes::of(shared).is_all_in(volume.id, used.journal.id());
    volume.freshness.end_recording(has_all);
    restore_lost(shared, volume, &used);
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

/// Records all dirty data, and voids the older records. Returns the recorded bytes, the result of
/// the journal, and whether nothing was lost.
fn record_dirty(
    shared: &Shared,
    volume: &Volume,
    used: &JournalUse,
) -> Result<(u64, IoResult, bool), IoError> {
    let journal = &used.journal;
    let stuck = stuck_lines(shared, volume.id).ok_or(IoError::Shutdown)?;
    let mut recording = RecordAgain::new(&journal.lock().core, used.number, stuck);
    let (mut bytes, mut tries) = (0, 0);
    let mut restorer = Some(Restorer::new(shared, volume.id, true));
    loop {
        let step = recording.poll(&journal.lock().core);
        match step {
            RecordAgainStep::RecordLine(line) => {
                let restorer = restorer.as_mut().expect("lines come first");
                let (recorded, lost) = record_line(shared, volume, restorer, &line)?;
                recording.handle_line(lost);
                bytes += recorded;
            }
            RecordAgainStep::FlushDisk => {
                if let Some(restorer) = restorer.take() {
                    restorer.finish()?;
                }
                tries += 1;
                if tries > FENCE_TRIES_MAX {
                    return Err(IoError::NoSpace);
                }
                let since = journal.lock().core.log.next_record();
                let stuck = stuck_lines(shared, volume.id).ok_or(IoError::Shutdown)?;
                sync_disk(shared, volume)?;
                let mut state = journal.lock();
                recording.handle_flush(&mut state.core, since, &stuck);
                journal.unlock_and_wake(state);
            }
            RecordAgainStep::Wait => journal.wait_for_progress(),
            RecordAgainStep::End { result, is_whole } => return Ok((bytes, result, is_whole)),
        }
    }
}

/// Records the dirty sectors of a line. Returns the recorded bytes, and the sectors that are lost.
fn record_line(
    shared: &Shared,
    volume: &Volume,
    restorer: &mut Restorer<'_>,
    line: &StuckLine,
) -> Result<(u64, u8), IoError> {
    let StuckLine { shard, key, dirty, .. } = *line;
    let Content { line, lost } = content_of(shared, volume, shard, key, dirty)?;
    let mut bytes = 0;
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
    Ok((bytes, lost))
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
            let _: SealVerdict = verify_locked(shared, number, &mut shard, &sealed);
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
    let left = volume.backend.description().size_bytes() - key.offset();
    let mut there = AlignedBuffer::new(left.min(LINE_BYTES) as usize);
    volume.disk.internal_reads.add(1, there.len() as u64);
    Blocking::new(&*volume.backend).read(key.offset(), &mut there)?;
    for range in runs_of(key, sectors) {
        let from = (range.offset - key.offset()) as usize;
        let run = from..from + range.len as usize;
        line[run.clone()].copy_from_slice(&there[run]);
    }
    Ok(())
}

/// Flushes the cache of the volume's disk.
fn sync_disk(shared: &Shared, volume: &Volume) -> IoResult {
    let (sender, result) = mpsc::channel();
    let id = volume.id;
    let task = move |tasks: &mut dyn Tasks| {
        tasks.sync(id, Box::new(move |result| _ = sender.send(result)));
    };
    shared.run_on(0, task).map_err(|_| IoError::Shutdown)?;
    result.recv().unwrap_or(Err(IoError::Shutdown))
}
