//! Reads a device in long pieces, of which the next ones are under way while one is used.

use forebay_backend::{AlignedBuffer, Backend, Blocking, Reading};
use forebay_format::journal::BLOCK_BYTES;
use forebay_types::{IoError, IoResult};
use std::collections::VecDeque;

/// Bytes of a piece. Pieces begin at multiples of it.
pub(super) const PIECE_BYTES: u64 = 2 << 20;
/// Pieces that are under way beside the one that is used: while the processor has other things to
/// do than to wake who waits, the device goes on.
const AHEAD: u64 = 2;

/// What was read of a device, and what is being read. Takes up to [`AHEAD`] + 1 pieces of memory.
pub(crate) struct Ahead<'a> {
    backend: &'a dyn Backend,
    /// Whole blocks of the device.
    size_bytes: u64,
    /// The piece at hand: its number and bytes.
    here: Option<(u64, AlignedBuffer)>,
    /// Those that follow on it, in order.
    coming: VecDeque<Reading>,
    /// Memory for the next one.
    spare: Option<AlignedBuffer>,
    /// The last piece that could not be read whole: it is not tried for each of its blocks.
    bad: Option<u64>,
}

impl<'a> Ahead<'a> {
    pub(crate) fn new(backend: &'a dyn Backend) -> Self {
        let size_bytes = backend.description().size_bytes / BLOCK_BYTES * BLOCK_BYTES;
        Self { backend, size_bytes, here: None, coming: VecDeque::new(), spare: None, bad: None }
    }

    /// Copies what lies at `position` into `into`, which is not empty and ends within the device.
    pub(crate) fn read(&mut self, mut position: u64, mut into: &mut [u8]) -> IoResult {
        while !into.is_empty() {
            let from = (position % PIECE_BYTES) as usize;
            let piece = self.piece(position / PIECE_BYTES)?;
            let len = piece.len().saturating_sub(from).min(into.len());
            if len == 0 {
                return Err(IoError::Io);
            }
            let (now, later) = into.split_at_mut(len);
            now.copy_from_slice(&piece[from..from + len]);
            (into, position) = (later, position + len as u64);
        }
        Ok(())
    }

    /// The bytes of a piece, while the next ones are on their way. A piece that fails is forgotten,
    /// and so is what was to follow.
    fn piece(&mut self, number: u64) -> Result<&[u8], IoError> {
        if self.bad == Some(number) {
            return Err(IoError::Io);
        }
        let at = self.here.as_ref().map(|(at, _)| *at);
        if at != Some(number) {
            let (_, used) = self.here.take().unzip();
            self.spare = self.spare.take().or(used);
            let reading = match at {
                Some(at) if at + 1 == number => self.coming.pop_front(),
                _ => None,
            };
            let reading = match reading {
                Some(reading) => reading,
                None => {
                    self.coming.clear();
                    self.begin(number).ok_or(IoError::Io)?
                }
            };
            let (bytes, result) = reading.end();
            if let Err(error) = result {
                self.coming.clear();
                (self.spare, self.bad) = (Some(bytes), Some(number));
                return Err(error);
            }
            self.here = Some((number, bytes));
            while (self.coming.len() as u64) < AHEAD {
                let next = number + 1 + self.coming.len() as u64;
                let Some(reading) = self.begin(next) else { break };
                self.coming.push_back(reading);
            }
        }
        Ok(self.here.as_ref().map_or(&[], |(_, bytes)| bytes))
    }

    /// Begins to read a piece, if there is one.
    fn begin(&mut self, number: u64) -> Option<Reading> {
        let position = number * PIECE_BYTES;
        let len = self.size_bytes.checked_sub(position)?.min(PIECE_BYTES) as usize;
        let spare = self.spare.take().filter(|spare| spare.len() == len);
        let bytes = spare.unwrap_or_else(|| AlignedBuffer::new(len));
        (len > 0).then(|| Blocking::new(self.backend).begin_read(position, bytes))
    }
}
