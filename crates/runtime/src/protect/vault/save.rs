//! Writing a dump, reading it back, and writing at another place what did not go well.

use super::batch::Batch;
use super::pipe::{Pipe, STALLED};
use forebay_backend::{AlignedBuffer, Backend, Blocking};
use forebay_format::journal::{BatchHeader, Record, check_batch};
use forebay_journal::{Dump, PlacedBatch};
use forebay_types::IoError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// How often something may fail, each time at another place, before the dump is given up.
const FAILURES_MAX: u32 = 4;

/// What is to be saved, in some order.
pub(super) trait Source {
    /// Places to go through, numbered from zero.
    fn len(&self) -> usize;

    /// Adds to a batch what is at a place and behind it, as long as it fits. Returns where it goes
    /// on. It may be asked again for what it has given already.
    fn fill(&self, at: usize, batch: &mut Batch) -> usize;
}

/// Why a dump did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The device fails, also at other places.
    Io(IoError),
    /// It is full.
    Full,
    /// Somebody else needs the device.
    Cancelled,
}

/// Told of each batch that was read back: its number, its records, and its bytes with the
/// header. A batch that was written elsewhere is told again.
pub(super) type Compare<'a> = &'a mut dyn FnMut(u64, &[Record], &[u8]);

/// A dump on its way.
pub(super) struct Saver<'a, S> {
    backend: &'a dyn Backend,
    pipe: Pipe<'a>,
    pub(super) dump: Dump,
    source: &'a S,
    /// Where in the source each batch begins, and how many bytes of it the batch has.
    starts: Vec<(usize, u64)>,
    /// Where the source goes on.
    at: usize,
    cancelled: &'a AtomicBool,
    /// How often something failed and was written elsewhere.
    pub(super) failures: u32,
}

impl<'a, S: Source> Saver<'a, S> {
    pub(super) fn new(
        backend: &'a dyn Backend,
        batches: Vec<Batch>,
        dump: Dump,
        source: &'a S,
        cancelled: &'a AtomicBool,
    ) -> Self {
        Self {
            backend,
            pipe: Pipe::new(backend, batches),
            dump,
            source,
            starts: Vec::new(),
            at: 0,
            cancelled,
            failures: 0,
        }
    }

    pub(super) fn into_batches(self) -> (Dump, Vec<Batch>) {
        (self.dump, self.pipe.into_batches())
    }

    /// Bytes of the source that were written so far.
    pub(super) fn saved_bytes(&self) -> u64 {
        self.starts.iter().map(|start| start.1).sum()
    }

    /// Bytes written for them.
    pub(super) fn written_bytes(&self) -> u64 {
        self.dump.placed().iter().map(|placed| placed.len).sum()
    }

    /// Writes everything and brings it to stable storage. With `is_real`, the superblock tells of
    /// batches that had to go elsewhere before those are written.
    pub(super) fn write(&mut self, is_real: bool) -> Result<(), Stop> {
        loop {
            let failed = match self.write_rest()? {
                Some(failed) => failed,
                None => match Blocking::new(self.backend).flush() {
                    Ok(()) => return Ok(()),
                    // Which of them the device has lost is not known.
                    Err(error) => (0, error),
                },
            };
            self.go_elsewhere(failed)?;
            if is_real {
                self.write_superblock()?;
            }
        }
    }

    /// Writes the superblock, at its other place if the first fails.
    pub(super) fn write_superblock(&mut self) -> Result<(), Stop> {
        let device = Blocking::new(self.backend);
        let mut tried = Ok(());
        for _ in 0..2 {
            let (position, bytes) = self.dump.write_superblock();
            tried = device.write(position, &AlignedBuffer::from(&*bytes), true);
            if tried.is_ok() {
                break;
            }
        }
        tried.map_err(Stop::Io)
    }

    /// Takes back a batch and those behind it.
    fn go_elsewhere(&mut self, (batch, error): (u64, IoError)) -> Result<(), Stop> {
        self.failures += 1;
        tracing::error!("batch {batch} of the dump failed ({error}); it is written elsewhere");
        if self.failures > FAILURES_MAX || self.dump.relocate(batch).is_err() {
            return Err(Stop::Io(error));
        }
        self.at = self.starts.get(batch as usize).map_or(self.at, |start| start.0);
        self.starts.truncate(batch as usize);
        Ok(())
    }

    /// Writes what the source has from where it goes on. Returns the first batch that failed.
    fn write_rest(&mut self) -> Result<Option<(u64, IoError)>, Stop> {
        let mut numbers = vec![0; self.pipe.batches.len()];
        let mut failed: Option<(u64, IoError)> = None;
        loop {
            let goes_on = failed.is_none() && self.at < self.source.len();
            if goes_on && self.cancelled.load(Ordering::Relaxed) {
                return Err(Stop::Cancelled);
            }
            if goes_on && let Some(buffer) = self.pipe.take() {
                let batch = &mut self.pipe.batches[buffer];
                batch.clear();
                let next = self.source.fill(self.at, batch);
                if batch.records.is_empty() {
                    self.at = next;
                    self.pipe.give_back(buffer);
                    continue;
                }
                batch.sum_up();
                let payload_bytes = batch.payload_bytes();
                let placed = self.dump.place(payload_bytes, &batch.records, &mut batch.bytes);
                let Ok(placed) = placed else {
                    self.pipe.give_back(buffer);
                    return Err(Stop::Full);
                };
                numbers[buffer] = placed.batch;
                self.starts.push((self.at, u64::from(payload_bytes)));
                self.at = next;
                self.pipe.start(buffer, self.dump.position(&placed), placed.len, true);
                continue;
            }
            if self.pipe.is_idle() {
                return Ok(failed);
            }
            let (buffer, result) = self.pipe.wait().ok_or(Stop::Io(STALLED))?;
            self.pipe.give_back(buffer);
            if let Err(error) = result {
                let batch = numbers[buffer];
                failed = Some(failed.filter(|first| first.0 < batch).unwrap_or((batch, error)));
            }
        }
    }

    /// Reads the batches back from `first` on, and checks them. Returns the first that is not what
    /// was written, and whether all were looked at before the deadline.
    pub(super) fn read_back(
        &mut self,
        first: u64,
        deadline: Option<Instant>,
        mut compare: Option<Compare<'_>>,
    ) -> Result<(Option<(u64, IoError)>, bool), Stop> {
        let mut under_way: Vec<Option<PlacedBatch>> = vec![None; self.pipe.batches.len()];
        let mut next = first as usize;
        let mut failed: Option<(u64, IoError)> = None;
        let mut records = Vec::new();
        let mut in_time = true;
        loop {
            in_time = in_time && deadline.is_none_or(|deadline| Instant::now() < deadline);
            let goes_on = failed.is_none() && in_time && next < self.dump.placed().len();
            if goes_on && self.cancelled.load(Ordering::Relaxed) {
                return Err(Stop::Cancelled);
            }
            if goes_on && let Some(buffer) = self.pipe.take() {
                let placed = self.dump.placed()[next];
                next += 1;
                under_way[buffer] = Some(placed);
                self.pipe.start(buffer, self.dump.position(&placed), placed.len, false);
                continue;
            }
            if self.pipe.is_idle() {
                return Ok((failed, in_time));
            }
            let (buffer, result) = self.pipe.wait().ok_or(Stop::Io(STALLED))?;
            let placed = under_way[buffer].take().expect("an answer is of what was asked");
            let result = result.and_then(|()| {
                records.clear();
                let bytes = &self.pipe.batches[buffer].bytes[..placed.len as usize];
                self.check(&placed, bytes, &mut records)
            });
            if let (Ok(()), Some(compare)) = (result, &mut compare) {
                compare(placed.batch, &records, &self.pipe.batches[buffer].bytes);
            }
            self.pipe.give_back(buffer);
            if let Err(error) = result {
                let batch = placed.batch;
                failed = Some(failed.filter(|first| first.0 < batch).unwrap_or((batch, error)));
            }
        }
    }

    fn check(
        &self,
        placed: &PlacedBatch,
        bytes: &[u8],
        records: &mut Vec<Record>,
    ) -> Result<(), IoError> {
        let superblock = self.dump.superblock();
        let (segment, offset) = (placed.segment, placed.offset);
        let header = BatchHeader::decode(superblock.journal, segment, offset, bytes);
        let header = header.map_err(|_| IoError::Io)?;
        let is_it = header.batch == placed.batch
            && header.len_bytes() == placed.len
            && superblock.is_valid_batch(header.generation, header.batch);
        if !is_it {
            return Err(IoError::Io);
        }
        check_batch(&header, bytes, records).map_err(|_| IoError::Io)
    }

    /// Reads everything back, and writes elsewhere what is not what was written, until all of it
    /// is. With `is_real`, the superblock says anew that the dump is whole. Returns whether all of
    /// it was read back before the deadline.
    pub(super) fn verify(
        &mut self,
        is_real: bool,
        deadline: Option<Instant>,
        mut compare: Option<Compare<'_>>,
    ) -> Result<bool, Stop> {
        let mut first = 0;
        loop {
            let compare = compare.as_mut().map(|compare| &mut **compare as Compare<'_>);
            let (failed, in_time) = self.read_back(first, deadline, compare)?;
            let Some(failed) = failed else { return Ok(in_time) };
            // What was sealed stays as it is until the rest is written elsewhere.
            self.go_elsewhere(failed)?;
            self.write(false)?;
            if is_real {
                self.dump.seal();
                self.write_superblock()?;
            }
            first = failed.0;
        }
    }
}

#[cfg(test)]
#[path = "save_tests.rs"]
mod tests;
