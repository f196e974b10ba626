//! What a journal holds of a volume goes back into the pool before the volume is served.
//!
//! Each piece is a write that the journal is not told of: it becomes a dirty line, or goes to the
//! disk where too much is dirty already. The records stay in the journal until a checkpoint, so a
//! death half-way through loses nothing.

use crate::server::{Runtime, VolumeError};
use crate::shared::{JournalUse, Volume, lock};
use forebay_backend::{AlignedBuffer, Blocking};
use forebay_engine::LineKey;
use forebay_journal::{Extent, Mark, Source};
use forebay_types::{
    ByteRange, Durability, IoError, IoResult, LINE_BYTES, REGION_BYTES, SECTOR_BYTES, VolumeId,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Bytes that are on their way at once.
pub(crate) const BATCH_BYTES: u64 = 4 << 20;
/// How often a piece is tried that the disk does not take, and after which pause.
const TRIES_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// Where something belongs, and its bytes; zeroes if `None`.
pub(crate) type Piece = (ByteRange, Option<Vec<u8>>);

/// Counts the pieces that are under way.
#[derive(Default)]
struct Latch {
    state: Mutex<(usize, Option<IoError>)>,
    done: Condvar,
}

impl Latch {
    fn end(&self, result: IoResult) {
        let mut state = lock(&self.state);
        state.0 -= 1;
        state.1 = state.1.or(result.err());
        self.done.notify_one();
    }

    fn wait(&self) -> IoResult {
        let mut state = lock(&self.state);
        while state.0 > 0 {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.1.take().map_or(Ok(()), Err)
    }
}

impl Runtime {
    /// Brings back what the volume's journal holds of it.
    pub(crate) fn restore(&self, volume: &Volume) -> Result<(), VolumeError> {
        let Some(used) = &volume.journal else { return Ok(()) };
        // In the order of the log, so that it is read in long pieces; they do not overlap.
        let mut image = used.journal.image(used.number);
        image.sort_by_cached_key(|extent| used.journal.position(extent));
        let mut reader = used.journal.reader();
        let failed = |error| VolumeError::Restore { name: volume.name.clone(), error };
        let begun = Instant::now();
        let mut bytes = 0;
        let mut batch: Vec<Piece> = Vec::new();
        let mut batch_bytes = 0;
        for piece in image.iter().flat_map(pieces_of) {
            let (extent, range) = piece;
            let content = match (used.journal.position(extent), extent.source) {
                // Its loss was said to be accepted when the journal was opened.
                (Some(_), _) if used.journal.is_damaged(extent) => continue,
                (Some(start), _) => {
                    let position = start + range.offset - extent.range.offset;
                    Some(reader.read(position, range.len).map_err(failed)?.to_vec())
                }
                (None, Source::Discard) => continue,
                (None, _) => None,
            };
            batch_bytes += content.as_ref().map_or(4096, |content| content.len() as u64);
            bytes += range.len;
            batch.push((range, content));
            if batch_bytes >= BATCH_BYTES {
                let batch = std::mem::take(&mut batch);
                self.restore_batch(volume.id, batch, false).map_err(failed)?;
                batch_bytes = 0;
            }
        }
        self.restore_batch(volume.id, batch, false).map_err(failed)?;
        finished(volume, used, bytes, begun)
    }

    /// Puts what the volume's journal holds of it into the pool again, dirty, because its disk may
    /// have lost it. Clients are let go for that: the journal then has everything that the pool
    /// has, so whatever comes from it is the newest there is.
    pub(crate) fn rewrite(&self, volume: &Arc<Volume>) -> Result<(), VolumeError> {
        let Some(used) = &volume.journal else { return Ok(()) };
        if volume.flush.failure().is_none() || used.journal.status().failed.is_some() {
            return Ok(());
        }
        if volume.leaving.swap(true, Ordering::Relaxed) {
            return Err(VolumeError::Leaving(volume.name.clone()));
        }
        let written = self.dismiss_and_rewrite(volume, used);
        volume.leaving.store(false, Ordering::Relaxed);
        written
    }

    fn dismiss_and_rewrite(
        &self,
        volume: &Arc<Volume>,
        used: &JournalUse,
    ) -> Result<(), VolumeError> {
        let id = volume.id;
        self.ask_all(move |tasks| tasks.dismiss(Some(id)))?;
        self.wait_until_idle(Some(volume))?;
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |error| VolumeError::Restore { name: volume.name.clone(), error };
        used.journal.read_again(used.number).map_err(failed)?;
        self.restore(volume)
    }

    /// Has a volume's journal record all that is dirty in the pool of the process before: the
    /// record of something may have been in that process's memory.
    pub(crate) fn record_again(&self, volume: &Volume) -> Result<(), VolumeError> {
        let Some(used) = &volume.journal else { return Ok(()) };
        let failed = |error| VolumeError::Restore { name: volume.name.clone(), error };
        let begun = Instant::now();
        // Nobody is served before this is done. Records of what is found in the log count on.
        used.journal.restored(used.number)?;
        let mark = used.journal.mark();
        // What comes back from the old records from now on is in no new one.
        let was_whole = !self.has_lost(volume);
        let mut places = Vec::new();
        for number in 0..self.shared.shards.len() {
            let dirty = self.shared.shard(number).dirty_sectors(volume.id);
            places.extend(dirty.into_iter().map(|(key, mask)| (number, key, mask)));
        }
        let mut bytes = 0;
        for places in places.chunks((BATCH_BYTES / LINE_BYTES) as usize) {
            let mut batch: Vec<Piece> = Vec::new();
            for &(shard, key, mask) in places {
                let line = self.line_of(volume, shard, key, mask).map_err(failed)?;
                batch.extend(runs_of(key, mask, &line));
            }
            bytes += batch.iter().map(|(range, _)| range.len).sum::<u64>();
            self.restore_batch(volume.id, batch, true).map_err(failed)?;
        }
        self.forget_older(volume, used, mark, was_whole)?;
        if bytes > 0 {
            tracing::info!(
                "volume '{}': {bytes} bytes that its disk may lack are in the pool, and recorded \
                 in its journal once more, in {} ms",
                volume.name,
                begun.elapsed().as_millis()
            );
        }
        Ok(())
    }

    fn has_lost(&self, volume: &Volume) -> bool {
        let mut shards = 0..self.shared.shards.len();
        shards.any(|at| self.shared.shard(at).lost_sectors(volume.id) > 0)
    }

    /// Voids what the process before has recorded of a volume, now that disk and journal have
    /// everything again. The newest record of something may have been in that process's memory
    /// while the disk had it already; an older one would undo that. What is lost in the pool may be
    /// in old records only.
    fn forget_older(
        &self,
        volume: &Volume,
        used: &JournalUse,
        mark: Mark,
        was_whole: bool,
    ) -> Result<(), VolumeError> {
        if !was_whole || self.has_lost(volume) {
            // Unless each write was recorded before it was acknowledged, what the journal has of
            // them may be older than what was lost.
            volume.forsaken.store(used.durability == Durability::Flush, Ordering::Relaxed);
            return Ok(());
        }
        let failed = |error| VolumeError::Restore { name: volume.name.clone(), error };
        let (tell, told) = mpsc::channel();
        let id = volume.id;
        self.ask(0, move |tasks| tasks.sync(id, Box::new(move |result| _ = tell.send(result))))?;
        told.recv().unwrap_or(Err(IoError::Shutdown)).map_err(failed)?;
        Ok(used.journal.recorded_again(used.number, mark)?)
    }

    /// What a line holds in some of its sectors. A line that was dirty a moment ago is in the pool,
    /// or has been destaged and is on the disk.
    fn line_of(
        &self,
        volume: &Volume,
        shard: usize,
        key: LineKey,
        mask: u8,
    ) -> Result<AlignedBuffer, IoError> {
        let mut line = AlignedBuffer::new(LINE_BYTES as usize);
        {
            let guard = self.shared.shard(shard);
            if let Some(slot) = guard.slot_of(key, mask) {
                self.shared.pool.copy_line(shard, slot, &mut line);
                return Ok(line);
            }
        }
        let left = volume.backend.description().size_bytes - key.offset();
        let len = left.min(LINE_BYTES) as usize;
        let mut there = AlignedBuffer::new(len);
        Blocking::new(&*volume.backend).read(key.offset(), &mut there)?;
        line[..len].copy_from_slice(&there);
        Ok(line)
    }

    /// Gives pieces back to a volume and waits until they are in the pool or on the disk; whether
    /// its journal is told of them is said by `records`.
    pub(crate) fn restore_batch(
        &self,
        volume: VolumeId,
        pieces: Vec<Piece>,
        records: bool,
    ) -> IoResult {
        let pieces = Arc::new(pieces);
        let mut result = Ok(());
        for _ in 0..TRIES_MAX {
            let latch = Arc::new(Latch::default());
            lock(&latch.state).0 = pieces.len();
            let (theirs, told) = (Arc::clone(&pieces), Arc::clone(&latch));
            let asked = self.ask(0, move |tasks| {
                for (range, content) in theirs.iter() {
                    let told = Arc::clone(&told);
                    let tell = Box::new(move |result| told.end(result));
                    tasks.restore(volume, *range, content.as_deref(), records, tell);
                }
            });
            asked.map_err(|_| IoError::Shutdown)?;
            result = latch.wait();
            if result.is_ok() {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        result
    }
}

/// The pieces of an extent that are restored one by one.
fn pieces_of(extent: &Extent) -> impl Iterator<Item = (&Extent, ByteRange)> {
    let ByteRange { offset, len } = extent.range;
    let is_write = matches!(extent.source, Source::Write { .. });
    let step = if is_write { REGION_BYTES } else { len };
    (0..len)
        .step_by(step as usize)
        .map(move |from| (extent, ByteRange::new(offset + from, step.min(len - from))))
}

/// These sectors of a line, in pieces.
fn runs_of(key: LineKey, mask: u8, line: &[u8]) -> impl Iterator<Item = Piece> {
    let sectors = (0..8).filter(move |sector| mask >> sector & 1 != 0);
    let mut runs: Vec<ByteRange> = Vec::new();
    for sector in sectors {
        let offset = key.offset() + sector * SECTOR_BYTES;
        match runs.last_mut() {
            Some(run) if run.end() == offset => run.len += SECTOR_BYTES,
            _ => runs.push(ByteRange::new(offset, SECTOR_BYTES)),
        }
    }
    let bytes = |range: ByteRange| {
        let from = (range.offset - key.offset()) as usize;
        line[from..from + range.len as usize].to_vec()
    };
    let pieces: Vec<Piece> = runs.into_iter().map(|run| (run, Some(bytes(run)))).collect();
    pieces.into_iter()
}

fn finished(
    volume: &Volume,
    used: &JournalUse,
    bytes: u64,
    begun: Instant,
) -> Result<(), VolumeError> {
    used.journal.restored(used.number)?;
    if bytes > 0 {
        tracing::info!(
            "volume '{}': {bytes} bytes that its disk may lack are back from the journal, in {} ms",
            volume.name,
            begun.elapsed().as_millis()
        );
    }
    Ok(())
}
