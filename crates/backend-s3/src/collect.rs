//! Collection: what is left of objects that are mostly not in use is written again, so that they
//! can be deleted.
//!
//! One object at a time, and only while the buffer is less than half full: clients come first. It
//! begins when an object was stored, so nothing is collected, and no request is made, while nothing
//! is written.

use crate::read::{self, ReadError};
use crate::recover;
use crate::volume::{S3Volume, VolumeCore};
use forebay_objects::{LiveRun, ObjectName, frames};
use forebay_types::SECTOR_BYTES;
use std::sync::Arc;
use std::time::Duration;

/// Sectors that are read at once, with what is between them.
const READ_SECTORS_MAX: u64 = 8192;
/// Sectors between two runs that are read with them, at most: a request costs more than a MiB does.
const GAP_SECTORS: u64 = 2048;
/// How long to wait for room before looking again.
const ROOM_POLL: Duration = Duration::from_millis(100);

/// Starts to collect, if enough is wasted.
pub(crate) fn begin(volume: &Arc<S3Volume>, core: &mut VolumeCore) {
    if !core.is_collecting && !volume.read_only && core.log.collectable().is_some() {
        core.is_collecting = true;
        volume.executor.spawn(run(volume.clone()));
    }
}

async fn run(volume: Arc<S3Volume>) {
    loop {
        let next = {
            let mut core = volume.core();
            let next = core.log.collectable().filter(|_| volume.is_active());
            if next.is_none() {
                core.is_collecting = false;
            }
            next
        };
        let Some(name) = next else { return };
        match collect(&volume, name).await {
            Ok(()) => {}
            Err(ReadError::Ended) => return,
            // It stays, and so does what it has of the volume. Nothing more is collected: the next
            // object would be the same.
            Err(error) => {
                let (volume, object) = (&*volume.store.place, name.to_string());
                tracing::error!(volume, object, ?error, "collection has stopped at an object");
                return;
            }
        }
    }
}

async fn collect(volume: &Arc<S3Volume>, name: ObjectName) -> Result<(), ReadError> {
    let head = recover::read_head(&volume.store, name, || volume.is_active()).await;
    let (header, runs, small) = match head {
        None => return Err(ReadError::Ended),
        Some(Ok(Some(head))) => {
            let runs = head.runs(volume.size_sectors).map_err(|_| ReadError::Damaged)?;
            (head.header, runs, head.frames())
        }
        Some(Ok(None)) => return Err(ReadError::Missing),
        Some(Err(_)) => return Err(ReadError::Damaged),
    };
    let live = volume.core().log.live_runs(name.number, &runs);
    let object = (header.data_offset(), u64::from(header.sectors));
    for group in groups(&live) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let range = first.at..last.at + last.len;
        let (found, base) = match &small {
            Some(frames) => (frames.clone(), 0),
            None => {
                let found = read::sectors(volume, name, object, range.clone()).await?;
                (found.frames, range.start - found.first)
            }
        };
        for run in group {
            let mut data = vec![0; (run.len * SECTOR_BYTES) as usize];
            frames::load(&found, run.at - base, &mut data);
            write_again(volume, name, *run, &data).await?;
        }
    }
    volume.advance();
    Ok(())
}

async fn write_again(
    volume: &Arc<S3Volume>,
    name: ObjectName,
    run: LiveRun,
    data: &[u8],
) -> Result<(), ReadError> {
    loop {
        if !volume.is_active() {
            return Err(ReadError::Ended);
        }
        {
            let mut core = volume.core();
            // Half of the buffer is for clients.
            let buffered = core.log.buffered_sectors();
            if buffered == 0 || core.log.has_room(run.len + buffered) {
                core.log.relocate(name.number, run, data);
                break;
            }
        }
        volume.advance();
        let _ = tokio::time::timeout(ROOM_POLL, volume.progress.notified()).await;
    }
    volume.advance();
    Ok(())
}

/// Runs that are read at once: near each other, and not too many.
fn groups(runs: &[LiveRun]) -> Vec<&[LiveRun]> {
    let mut groups = Vec::new();
    let mut begin = 0;
    for index in 1..=runs.len() {
        let ends = index == runs.len() || {
            let (first, before, next) = (runs[begin], runs[index - 1], runs[index]);
            next.at > before.at + before.len + GAP_SECTORS
                || next.at + next.len - first.at > READ_SECTORS_MAX
        };
        if ends {
            groups.push(&runs[begin..index]);
            begin = index;
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_runs_are_read_at_once() {
        let run = |at, len| LiveRun { start: at, len, at };
        let runs = [run(0, 8), run(8, 8), run(3000, 8), run(3200, 9000), run(20_000, 8)];
        let groups: Vec<usize> = groups(&runs).iter().map(|group| group.len()).collect();
        assert_eq!(groups, [2, 1, 1, 1]);
        assert!(super::groups(&[]).is_empty());
    }
}
