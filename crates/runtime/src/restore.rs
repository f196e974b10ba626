//! What a journal holds of a volume goes back into the pool before the volume is served.
//!
//! Each piece is a write that the journal is not told of: it becomes a dirty line, or goes to the
//! disk where too much is dirty already. The records stay in the journal until a checkpoint, so a
//! death half-way through loses nothing.

use crate::server::{Runtime, VolumeError};
use crate::shared::{JournalUse, Volume, lock};
use forebay_journal::{Extent, Source};
use forebay_types::{ByteRange, IoError, IoResult, REGION_BYTES, VolumeId};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that are on their way at once.
const BATCH_BYTES: u64 = 4 << 20;
/// How often a piece is tried that the disk does not take, and after which pause.
const TRIES_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

type Piece = (ByteRange, Option<Vec<u8>>);

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
                self.restore_batch(volume.id, std::mem::take(&mut batch)).map_err(failed)?;
                batch_bytes = 0;
            }
        }
        self.restore_batch(volume.id, batch).map_err(failed)?;
        finished(volume, used, bytes, begun)
    }

    fn restore_batch(&self, volume: VolumeId, pieces: Vec<Piece>) -> IoResult {
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
                    tasks.restore(volume, *range, content.as_deref(), tell);
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
