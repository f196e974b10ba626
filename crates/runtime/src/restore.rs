//! What a journal holds of a volume goes back into the pool before the volume is served.
//!
//! Each piece is a write that the journal is not told of: it becomes a dirty line, or goes to the
//! disk where too much is dirty already. The records stay in the journal until a checkpoint, so a
//! death half-way through loses nothing.

use crate::error::VolumeError;
use crate::locks::{LazyCondvar, Lock};
use crate::server::Runtime;
use crate::shared::{JournalUse, Message, Volume};
use crate::worker::Tasks;
use forebay_backend::{AlignedBuffer, Blocking};
use forebay_engine::LineKey;
use forebay_journal::Mark;
use forebay_types::{ByteRange, Durability, IoError, IoResult, LINE_BYTES, SECTOR_BYTES, VolumeId};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Bytes of a batch: it is sent when it has as many.
const BATCH_BYTES: u64 = 2 << 20;
/// Pieces of a batch, of which some may be zeroes.
const BATCH_PIECES: usize = 4096;
/// How often a piece is tried that the disk does not take, and after which pause.
const TRIES_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// Batches that a volume has been given and may not have taken.
const UNDER_WAY_MAX: usize = 3;

/// Where something belongs, and where its bytes begin in the batch; zeroes if `None`.
type Piece = (ByteRange, Option<usize>);

/// Pieces that go back to a volume together.
#[derive(Default)]
struct Batch {
    pieces: Vec<Piece>,
    bytes: Vec<u8>,
}

impl Batch {
    fn content(&self, piece: &Piece) -> Option<&[u8]> {
        let (range, at) = piece;
        at.map(|at| &self.bytes[at..at + range.len as usize])
    }
}

/// Counts the pieces that are under way.
#[derive(Default)]
struct Latch {
    state: Lock<(usize, Option<IoError>)>,
    done: LazyCondvar,
}

impl Latch {
    fn end(&self, count: usize, result: IoResult) {
        let mut state = self.state.lock();
        state.0 -= count;
        state.1 = state.1.or(result.err());
        if state.0 == 0 {
            self.done.notify_all();
        }
    }

    fn wait(&self) -> IoResult {
        let mut state = self.state.lock();
        while state.0 > 0 {
            state = self.done.wait(state);
        }
        state.1.take().map_or(Ok(()), Err)
    }
}

/// A batch whose pieces no worker has begun: one that ends before drops it.
struct Unbegun(Arc<Latch>, usize);

impl Unbegun {
    fn begin(mut self) -> Arc<Latch> {
        self.1 = 0;
        Arc::clone(&self.0)
    }
}

impl Drop for Unbegun {
    fn drop(&mut self) {
        if self.1 > 0 {
            self.0.end(self.1, Err(IoError::Shutdown));
        }
    }
}

/// Pieces on their way back to a volume, in batches, a few of which the workers carry out while the
/// next one is made. The pieces do not overlap.
pub(crate) struct Return<'a> {
    runtime: &'a Runtime,
    volume: VolumeId,
    /// The volume's journal is told of them.
    records: bool,
    growing: Batch,
    under_way: VecDeque<(Arc<Batch>, Arc<Latch>)>,
    /// Counts batches; each goes to the next worker.
    sent: usize,
    /// Batches whose memory may be used again.
    spare: Vec<Batch>,
}

impl<'a> Return<'a> {
    pub(crate) fn new(runtime: &'a Runtime, volume: VolumeId, records: bool) -> Self {
        let (growing, under_way, spare) = Default::default();
        Self { runtime, volume, records, growing, under_way, sent: 0, spare }
    }

    /// Gives a range back, which `fill` has the bytes of.
    ///
    /// # Errors
    /// When `fill` does, or the volume has not taken something.
    pub(crate) fn give(
        &mut self,
        range: ByteRange,
        fill: impl FnOnce(&mut [u8]) -> IoResult,
    ) -> IoResult {
        let Batch { pieces, bytes } = &mut self.growing;
        let at = bytes.len();
        bytes.resize(at + range.len as usize, 0);
        fill(&mut bytes[at..])?;
        pieces.push((range, Some(at)));
        self.send_if_full()
    }

    /// Gives a range of zeroes back.
    ///
    /// # Errors
    /// When the volume has not taken something.
    pub(crate) fn give_zeroes(&mut self, range: ByteRange) -> IoResult {
        self.growing.pieces.push((range, None));
        self.send_if_full()
    }

    fn send_if_full(&mut self) -> IoResult {
        let Batch { pieces, bytes } = &self.growing;
        let is_full = bytes.len() as u64 >= BATCH_BYTES || pieces.len() >= BATCH_PIECES;
        if !is_full {
            return Ok(());
        }
        if self.under_way.len() >= UNDER_WAY_MAX {
            self.end_one()?;
        }
        let next = self.spare.pop().unwrap_or_default();
        let batch = Arc::new(std::mem::replace(&mut self.growing, next));
        let latch = self.send(&batch);
        self.under_way.push_back((batch, latch));
        Ok(())
    }

    /// Has a worker begin with the pieces of a batch.
    fn send(&mut self, batch: &Arc<Batch>) -> Arc<Latch> {
        let latch = Arc::new(Latch::default());
        latch.state.lock().0 = batch.pieces.len();
        let unbegun = Unbegun(Arc::clone(&latch), batch.pieces.len());
        let (theirs, volume, records) = (Arc::clone(batch), self.volume, self.records);
        let inboxes = &self.runtime.shared.inboxes;
        let inbox = &inboxes[self.sent % inboxes.len()];
        self.sent += 1;
        inbox.post(Message::Task(Box::new(move |tasks: &mut dyn Tasks| {
            let latch = unbegun.begin();
            for piece in &theirs.pieces {
                let told = Arc::clone(&latch);
                let tell = Box::new(move |result| told.end(1, result));
                tasks.restore(volume, piece.0, theirs.content(piece), records, tell);
            }
        })));
        latch
    }

    /// Waits for the batch that was sent first; what the volume does not take is tried again.
    fn end_one(&mut self) -> IoResult {
        let Some((batch, latch)) = self.under_way.pop_front() else { return Ok(()) };
        let mut result = latch.wait();
        for _ in 1..TRIES_MAX {
            if matches!(result, Ok(()) | Err(IoError::Shutdown)) {
                break;
            }
            std::thread::sleep(PAUSE);
            result = self.send(&batch).wait();
        }
        if let Some(mut batch) = Arc::into_inner(batch) {
            batch.pieces.clear();
            batch.bytes.clear();
            self.spare.push(batch);
        }
        result
    }

    /// Waits until everything is in the pool or on the disk.
    ///
    /// # Errors
    /// When the volume has not taken something.
    pub(crate) fn finish(mut self) -> IoResult {
        let batch = Arc::new(std::mem::take(&mut self.growing));
        let latch = self.send(&batch);
        self.under_way.push_back((batch, latch));
        while !self.under_way.is_empty() {
            self.end_one()?;
        }
        Ok(())
    }
}

impl Drop for Return<'_> {
    fn drop(&mut self) {
        // Nobody is told that this failed while some of it is still to come.
        for (_, latch) in &self.under_way {
            let _ = latch.wait();
        }
    }
}

impl Runtime {
    /// Brings back what the volume's journal holds of it.
    pub(crate) fn restore(&self, volume: &Volume) -> Result<(), VolumeError> {
        let Some(used) = &volume.journal else { return Ok(()) };
        let failed = |error| VolumeError::Restore { name: volume.name.clone(), error };
        let begun = Instant::now();
        let mut reader = used.journal.reader();
        let mut way = Return::new(self, volume.id, false);
        let mut bytes = 0;
        for (range, origin) in used.journal.to_restore(used.number) {
            bytes += range.len;
            let given = match origin {
                Some(position) => way.give(range, |into| reader.read(position, into)),
                None => way.give_zeroes(range),
            };
            given.map_err(failed)?;
        }
        way.finish().map_err(failed)?;
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
        let _changing = self.changes.lock();
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
        let mut way = Return::new(self, volume.id, true);
        for (shard, key, mask) in places {
            let line = self.line_of(volume, shard, key, mask).map_err(failed)?;
            for range in runs_of(key, mask) {
                let from = (range.offset - key.offset()) as usize;
                let content = &line[from..from + range.len as usize];
                let fill = |into: &mut [u8]| {
                    into.copy_from_slice(content);
                    Ok(())
                };
                way.give(range, fill).map_err(failed)?;
                bytes += range.len;
            }
        }
        way.finish().map_err(failed)?;
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
    /// in old records only, so where anything is, those of it and of what is dirty stay.
    fn forget_older(
        &self,
        volume: &Volume,
        used: &JournalUse,
        mark: Mark,
        was_whole: bool,
    ) -> Result<(), VolumeError> {
        let failed = |error| VolumeError::Restore { name: volume.name.clone(), error };
        if !was_whole || self.has_lost(volume) {
            // Unless each write was recorded before it was acknowledged, what the journal has of
            // them may be older than what was lost.
            volume.forsaken.store(used.durability == Durability::Flush, Ordering::Relaxed);
            return used.journal.void_clean(used.number, volume.id).map_err(failed);
        }
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
}

/// These sectors of a line, in pieces.
fn runs_of(key: LineKey, mask: u8) -> Vec<ByteRange> {
    let sectors = (0..8).filter(move |sector| mask >> sector & 1 != 0);
    let mut runs: Vec<ByteRange> = Vec::new();
    for sector in sectors {
        let offset = key.offset() + sector * SECTOR_BYTES;
        match runs.last_mut() {
            Some(run) if run.end() == offset => run.len += SECTOR_BYTES,
            _ => runs.push(ByteRange::new(offset, SECTOR_BYTES)),
        }
    }
    runs
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
