//! Sequential reads of a device in long pieces, with read-ahead.

use forebay_backend::{AlignedBuffer, Backend, Blocking, PendingRead};
use forebay_format::journal::BLOCK_BYTES;
use forebay_types::{IoError, IoResult};
use std::collections::VecDeque;

/// The size of a piece, and its alignment.
pub(super) const PIECE_BYTES: u64 = 2 << 20;
/// Pieces being read ahead. With two, the device stays busy while the reading thread is woken.
const AHEAD: u64 = 2;

/// A sequential reader. Takes up to [`AHEAD`] + 1 pieces of memory.
pub(crate) struct ReadAhead<'a> {
    backend: &'a dyn Backend,
    /// The size of the device, in whole blocks.
    size_bytes: u64,
    /// The number and the bytes of the current piece.
    current: Option<(u64, AlignedBuffer)>,
    /// Reads of the following pieces, in order.
    in_flight: VecDeque<PendingRead>,
    /// A buffer to reuse.
    spare: Option<AlignedBuffer>,
    /// The last piece whose read failed. It is not read again for each of its blocks.
    bad: Option<u64>,
}

impl<'a> ReadAhead<'a> {
    pub(crate) fn new(backend: &'a dyn Backend) -> Self {
        let size_bytes = backend.description().size_bytes() / BLOCK_BYTES * BLOCK_BYTES;
        let in_flight = VecDeque::new();
        Self { backend, size_bytes, current: None, in_flight, spare: None, bad: None }
    }

    /// Fills `into` from `position`. The range must lie within the device.
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

    /// Returns the bytes of a piece, and starts to read the next ones. After a failed read, the
    /// read-ahead starts over.
    fn piece(&mut self, number: u64) -> Result<&[u8], IoError> {
        if self.bad == Some(number) {
            return Err(IoError::Io);
        }
        let at = self.current.as_ref().map(|(at, _)| *at);
        if at != Some(number) {
            let (_, used) = self.current.take().unzip();
            self.spare = self.spare.take().or(used);
            let reading = match at {
                Some(at) if at + 1 == number => self.in_flight.pop_front(),
                _ => None,
            };
            let reading = match reading {
                Some(reading) => reading,
                None => {
                    self.in_flight.clear();
                    self.begin(number).ok_or(IoError::Io)?
                }
            };
            let (bytes, result) = reading.end();
            if let Err(error) = result {
                self.in_flight.clear();
                (self.spare, self.bad) = (Some(bytes), Some(number));
                return Err(error);
            }
            self.current = Some((number, bytes));
            while (self.in_flight.len() as u64) < AHEAD {
                let next = number + 1 + self.in_flight.len() as u64;
                let Some(reading) = self.begin(next) else { break };
                self.in_flight.push_back(reading);
                assert!(self.in_flight.len() as u64 <= AHEAD, "the memory for reads is bounded");
            }
        }
        Ok(self.current.as_ref().map_or(&[], |(_, bytes)| bytes))
    }

    /// Starts to read a piece; `None` past the end of the device.
    fn begin(&mut self, number: u64) -> Option<PendingRead> {
        let position = number * PIECE_BYTES;
        let len = self.size_bytes.checked_sub(position)?.min(PIECE_BYTES) as usize;
        let spare = self.spare.take().filter(|spare| spare.len() == len);
        let bytes = spare.unwrap_or_else(|| AlignedBuffer::new(len));
        (len > 0).then(|| Blocking::new(self.backend).begin_read(position, bytes))
    }
}
