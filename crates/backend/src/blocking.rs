//! Blocking calls for tools and tests: a call returns when the I/O is answered.

use crate::{AlignedBuffer, Backend, Buffer, CompletionSink, Io, IoKind, IoToken};
use forebay_types::{Few, IoResult, SECTOR_BYTES};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Blocking calls to a backend. Writes must consist of whole blocks, and buffers must have the
/// alignment that the backend's description requires; an [`AlignedBuffer`] has it.
/// [`Blocking::read`] and [`Blocking::read_many`] also accept parts of blocks, in whole sectors.
pub struct Blocking<'a> {
    backend: &'a dyn Backend,
}

impl<'a> Blocking<'a> {
    /// Wraps `backend`. Its calls must not be made on a thread on which the backend answers.
    pub fn new(backend: &'a dyn Backend) -> Self {
        Self { backend }
    }

    /// Fills `bytes` from `offset`.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> IoResult {
        let Some((start, mut blocks)) = self.blocks_around(offset, bytes.len()) else {
            return self.read_vectored(offset, &mut [bytes]);
        };
        self.read_vectored(start, &mut [&mut blocks])?;
        let from = (offset - start) as usize;
        bytes.copy_from_slice(&blocks[from..from + bytes.len()]);
        Ok(())
    }

    /// The start of the blocks around a range of sectors, and memory for them. `None` if the range
    /// consists of whole blocks, or is not sector-aligned, which the backend refuses.
    fn blocks_around(&self, offset: u64, len: usize) -> Option<(u64, AlignedBuffer)> {
        let block_bytes = u64::from(self.backend.description().alignment_bytes);
        let end = offset.checked_add(len as u64)?;
        let is_multiple_of = |bytes| (offset | end).is_multiple_of(bytes);
        if is_multiple_of(block_bytes) || !is_multiple_of(SECTOR_BYTES) {
            return None;
        }
        let start = offset / block_bytes * block_bytes;
        let end = end.checked_next_multiple_of(block_bytes)?;
        Some((start, AlignedBuffer::new((end - start) as usize)))
    }

    /// Fills several buffers from one range at `offset`.
    pub fn read_vectored(&self, offset: u64, slices: &mut [&mut [u8]]) -> IoResult {
        let buffers = slices
            .iter_mut()
            // SAFETY: the slice is borrowed exclusively until `run` returns, after the answer.
            .map(|slice| unsafe { Buffer::new(slice.as_mut_ptr(), slice.len()) })
            .collect();
        self.run(IoKind::Read, offset, 0, buffers)
    }

    /// Fills several buffers, each from its own offset: concurrently if all pieces are whole
    /// blocks, otherwise one after the other. Returns the answers in the order of the pieces.
    pub fn read_many(&self, pieces: &mut [(u64, AlignedBuffer)]) -> Vec<IoResult> {
        let mut is_whole = pieces.iter().map(|(at, b)| self.blocks_around(*at, b.len()).is_none());
        if !is_whole.all(|is_whole| is_whole) {
            return pieces.iter_mut().map(|(offset, bytes)| self.read(*offset, bytes)).collect();
        }
        let wait = IoWait::new(pieces.len());
        for (tag, (offset, bytes)) in pieces.iter_mut().enumerate() {
            // SAFETY: the buffer is borrowed exclusively until all answers have arrived, below.
            let buffers = Few::from_buf([unsafe { Buffer::new(bytes.as_mut_ptr(), bytes.len()) }]);
            let (offset, len) = (*offset, bytes.len() as u64);
            let done = IoToken::new(wait.clone(), tag as u64);
            self.backend.submit(Io { kind: IoKind::Read, offset, len, buffers, done });
        }
        wait.all()
    }

    /// Starts to fill `bytes` from `offset`.
    pub fn begin_read(&self, offset: u64, mut bytes: AlignedBuffer) -> PendingRead {
        let wait = IoWait::new(1);
        let len = bytes.len() as u64;
        // SAFETY: the returned value owns the memory, and neither exposes nor frees it before the
        // answer.
        let buffers = Few::from_buf([unsafe { Buffer::new(bytes.as_mut_ptr(), bytes.len()) }]);
        let done = IoToken::new(wait.clone(), 0);
        self.backend.submit(Io { kind: IoKind::Read, offset, len, buffers, done });
        PendingRead { bytes: Some(bytes), wait }
    }

    /// Stores `bytes` at `offset`, with `fua` on stable storage.
    pub fn write(&self, offset: u64, bytes: &[u8], fua: bool) -> IoResult {
        self.write_vectored(offset, &[bytes], fua)
    }

    /// Stores bytes at the same `offset` of several backends concurrently, with `fua` on stable
    /// storage, and waits for all of them. Returns the answers in the same order.
    pub fn write_each(writes: &[(&dyn Backend, &[u8])], offset: u64, fua: bool) -> Vec<IoResult> {
        let wait = IoWait::new(writes.len());
        for (tag, (backend, bytes)) in writes.iter().enumerate() {
            // SAFETY: the bytes are borrowed until the end of this function, which is after all
            // answers, and a write does not store into its buffers.
            let buffer = unsafe { Buffer::new(bytes.as_ptr().cast_mut(), bytes.len()) };
            let done = IoToken::new(wait.clone(), tag as u64);
            let (kind, len) = (IoKind::Write { fua }, bytes.len() as u64);
            let io = Io { kind, offset, len, buffers: Few::from_buf([buffer]), done };
            // The last one may run on this thread; the others are in flight by then.
            if tag + 1 == writes.len() { backend.submit_here(io) } else { backend.submit(io) }
        }
        wait.all()
    }

    /// Stores several buffers in one range at `offset`.
    pub fn write_vectored(&self, offset: u64, slices: &[&[u8]], fua: bool) -> IoResult {
        let buffers = slices
            .iter()
            // SAFETY: the slice is borrowed until `run` returns, which is after the answer, and a
            // write does not store into its buffers.
            .map(|slice| unsafe { Buffer::new(slice.as_ptr().cast_mut(), slice.len()) })
            .collect();
        self.run(IoKind::Write { fua }, offset, 0, buffers)
    }

    /// Waits until all I/O answered before is on stable storage.
    pub fn flush(&self) -> IoResult {
        self.run(IoKind::Flush, 0, 0, Few::new())
    }

    /// Discards `len` bytes at `offset`.
    pub fn discard(&self, offset: u64, len: u64) -> IoResult {
        self.run(IoKind::Discard, offset, len, Few::new())
    }

    /// Makes `len` bytes at `offset` read as zeroes.
    pub fn zero(&self, offset: u64, len: u64, unmap: bool) -> IoResult {
        self.run(IoKind::Zero { unmap }, offset, len, Few::new())
    }

    fn run(&self, kind: IoKind, offset: u64, len: u64, buffers: Few<Buffer>) -> IoResult {
        let wait = IoWait::new(1);
        let len = len + buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        let done = IoToken::new(wait.clone(), 0);
        self.backend.submit_here(Io { kind, offset, len, buffers, done });
        wait.all()[0]
    }
}

/// A read in flight, and the memory that it fills. Dropping it waits for the answer.
pub struct PendingRead {
    bytes: Option<AlignedBuffer>,
    wait: Arc<IoWait>,
}

impl PendingRead {
    /// Waits for the answer, and returns the memory and the answer.
    pub fn end(mut self) -> (AlignedBuffer, IoResult) {
        let result = self.wait.all()[0];
        (self.bytes.take().expect("the buffer is taken only here"), result)
    }
}

impl Drop for PendingRead {
    fn drop(&mut self) {
        self.wait.all();
    }
}

/// Waits for a number of I/Os, whose tags count from 0.
pub struct IoWait {
    answers: Mutex<WaitAnswers>,
    answered: Condvar,
}

struct WaitAnswers {
    results: Vec<Option<IoResult>>,
    missing: usize,
    /// Whether a thread waits, so that the last answer must wake it.
    is_awaited: bool,
}

impl IoWait {
    /// Waits for the tags below `count`.
    pub fn new(count: usize) -> Arc<Self> {
        let (results, missing) = (vec![None; count], count);
        let answers = Mutex::new(WaitAnswers { results, missing, is_awaited: false });
        Arc::new(Self { answers, answered: Condvar::new() })
    }

    /// Waits for the last answer, and returns all in the order of the tags.
    pub fn all(&self) -> Vec<IoResult> {
        let mut answers = crate::sync::lock(&self.answers);
        while answers.missing > 0 {
            answers.is_awaited = true;
            answers = self.answered.wait(answers).unwrap_or_else(PoisonError::into_inner);
        }
        answers.results.iter().flatten().copied().collect()
    }

    /// The answer to `tag`, if it has arrived.
    pub fn answer(&self, tag: u64) -> Option<IoResult> {
        crate::sync::lock(&self.answers).results[tag as usize]
    }
}

impl CompletionSink for IoWait {
    fn complete(&self, tag: u64, result: IoResult) {
        let mut answers = crate::sync::lock(&self.answers);
        let old = answers.results[tag as usize].replace(result);
        assert!(old.is_none(), "I/O {tag} was answered twice");
        answers.missing -= 1;
        if answers.missing == 0 && answers.is_awaited {
            self.answered.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryBackend;

    #[test]
    fn reads_run_concurrently() {
        let memory = MemoryBackend::new(1 << 20).unwrap();
        let device = Blocking::new(&memory);
        device.write(8192, &[7; 4096], false).unwrap();
        let reads = [4096, 8192, 1 << 20].map(|at| device.begin_read(at, AlignedBuffer::new(4096)));
        let [unwritten, written, past_the_end] = reads.map(PendingRead::end);
        assert_eq!((unwritten.1, unwritten.0[0]), (Ok(()), 0));
        assert_eq!((written.1, written.0[0], written.0[4095]), (Ok(()), 7, 7));
        assert!(past_the_end.1.is_err());
        drop(device.begin_read(0, AlignedBuffer::new(4096)));
    }

    #[test]
    fn sectors_are_read_from_larger_blocks() {
        let memory = Arc::new(MemoryBackend::new(1 << 20).unwrap());
        let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 512) as u8).collect();
        Blocking::new(&*memory).write(0, &bytes, false).unwrap();
        let disk = crate::layers::Blocks::new(memory, 64 << 10).unwrap();
        let device = Blocking::new(&disk);
        let mut sectors = [0; 1024];
        device.read(130_560, &mut sectors).unwrap();
        assert_eq!(sectors, bytes[130_560..130_560 + 1024]);
        let mut pieces = [(512, AlignedBuffer::new(512)), (65_536, AlignedBuffer::new(65_536))];
        assert_eq!(device.read_many(&mut pieces), [Ok(()), Ok(())]);
        assert_eq!((pieces[0].1[0], pieces[1].1[512]), (1, 129));
        let mut after_the_end = [0; 512];
        assert!(device.read(1 << 20, &mut after_the_end).is_err());
    }

    #[test]
    fn read_many_fills_each_buffer_from_its_offset() {
        let memory = MemoryBackend::new(1 << 20).unwrap();
        let device = Blocking::new(&memory);
        for at in 0..8 {
            device.write(at * 8192, &[at as u8; 4096], false).unwrap();
        }
        let mut pieces: Vec<_> =
            (0..9).map(|at| (at * 8192, AlignedBuffer::new(4096))).rev().collect();
        pieces[0].0 = 1 << 20;
        let results = device.read_many(&mut pieces);
        assert!(results[0].is_err(), "past the end");
        for ((offset, bytes), result) in pieces.iter().zip(&results).skip(1) {
            assert_eq!((*result, bytes[4095]), (Ok(()), (offset / 8192) as u8));
        }
        assert!(device.read_many(&mut []).is_empty());
    }
}
