//! Writes a dump, reads it back, and relocates batches that failed.

use super::batch::Batch;
use super::pipe::{Pipe, STALLED};
use forebay_backend::{AlignedBuffer, Backend, Blocking};
use forebay_format::journal::{BatchHeader, DiskInfo, Record, check_batch};
use forebay_journal::{Dump, PlacedBatch};
use forebay_types::IoError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The maximum number of relocations in a dump.
const FAILURES_MAX: u32 = 4;

/// The data of a dump, as a sequence of items.
pub(super) trait Source {
    /// The number of items.
    fn len(&self) -> usize;

    /// Adds items to a batch, from `at` on, as long as they fit. Returns the next item. The same
    /// items may be requested again.
    fn fill(&self, at: usize, batch: &mut Batch) -> usize;
}

/// Why a dump was not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The device failed, even after relocations, or has stalled.
    Io(IoError),
    /// The vault is full.
    Full,
    /// A measurement, drill or probe was cancelled: by a real dump, a power failure, or the stop of
    /// the server.
    Cancelled,
}

/// Called for each batch read back, with its number, its records, and its bytes including the
/// header. Called again for a relocated batch.
pub(super) type Compare<'a> = &'a mut dyn FnMut(u64, &[Record], &[u8]);

/// A dump in progress.
pub(super) struct Saver<'a, S> {
    backend: &'a dyn Backend,
    pipe: Pipe<'a>,
    dump: Dump,
    source: &'a S,
    /// The first item of each batch, and its payload bytes.
    starts: Vec<(usize, u64)>,
    /// The next item of the source.
    at: usize,
    cancelled: &'a AtomicBool,
    failures: u32,
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

    pub(super) const fn dump(&self) -> &Dump {
        &self.dump
    }

    /// Relocations so far.
    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    /// Stores the fingerprints of the disks, given by the volumes' numbers in the dump, and seals
    /// the dump.
    pub(super) fn seal(&mut self, fingerprints: Vec<(u16, DiskInfo)>) -> Result<(), Stop> {
        for (number, fingerprint) in fingerprints {
            self.dump.set_disk_info(number, fingerprint);
        }
        self.dump.seal();
        self.write_superblock()
    }

    /// Bytes of the source written so far.
    pub(super) fn saved_bytes(&self) -> u64 {
        self.starts.iter().map(|start| start.1).sum()
    }

    /// Bytes written so far, with headers and records.
    pub(super) fn written_bytes(&self) -> u64 {
        self.dump.placed().iter().map(|placed| placed.len).sum()
    }

    /// Writes everything and flushes the device. With `is_real`, the superblock records relocations
    /// before the relocated batches are written.
    pub(super) fn write(&mut self, is_real: bool) -> Result<(), Stop> {
        loop {
            let failed = match self.write_rest()? {
                Some(failed) => failed,
                None => match Blocking::new(self.backend).flush() {
                    Ok(()) => return Ok(()),
                    // The flush does not say which batches were lost.
                    Err(error) => (0, error),
                },
            };
            self.relocate(failed)?;
            if is_real {
                self.write_superblock()?;
            }
        }
    }

    /// Writes the superblock; if that fails, its second copy.
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

    /// Relocates a batch, and all batches after it.
    fn relocate(&mut self, (batch, error): (u64, IoError)) -> Result<(), Stop> {
        self.failures += 1;
        tracing::error!(batch, %error, "batch of a dump failed, relocating it");
        if self.failures > FAILURES_MAX || self.dump.relocate(batch).is_err() {
            return Err(Stop::Io(error));
        }
        assert!(batch as usize <= self.starts.len(), "a batch that failed was placed");
        self.at = self.starts.get(batch as usize).map_or(self.at, |start| start.0);
        self.starts.truncate(batch as usize);
        Ok(())
    }

    /// Writes the rest of the source. Returns the first batch that failed.
    fn write_rest(&mut self) -> Result<Option<(u64, IoError)>, Stop> {
        let mut numbers = vec![0; self.pipe.len()];
        let mut failed: Option<(u64, IoError)> = None;
        loop {
            let has_next = failed.is_none() && self.at < self.source.len();
            if has_next && self.cancelled.load(Ordering::Relaxed) {
                return Err(Stop::Cancelled);
            }
            if has_next && let Some(buffer) = self.pipe.take() {
                let batch = self.pipe.batch_mut(buffer);
                batch.clear();
                let next = self.source.fill(self.at, batch);
                if batch.records.is_empty() {
                    assert!(next > self.at, "the largest line fits an empty batch");
                    self.at = next;
                    self.pipe.give_back(buffer);
                    continue;
                }
                batch.compute_checksums();
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
                let is_whole = failed.is_some() || self.at >= self.source.len();
                assert!(is_whole, "a dump ends after its last line");
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

    /// Reads back and verifies the batches from `first` on. Returns the first that failed, and
    /// whether all were read before the deadline.
    pub(super) fn read_back(
        &mut self,
        first: u64,
        deadline: Option<Instant>,
        mut compare: Option<Compare<'_>>,
    ) -> Result<(Option<(u64, IoError)>, bool), Stop> {
        let mut in_flight: Vec<Option<PlacedBatch>> = vec![None; self.pipe.len()];
        let mut next = first as usize;
        let mut failed: Option<(u64, IoError)> = None;
        let mut records = Vec::new();
        let mut in_time = true;
        loop {
            in_time = in_time && deadline.is_none_or(|deadline| Instant::now() < deadline);
            let has_next = failed.is_none() && in_time && next < self.dump.placed().len();
            if has_next && self.cancelled.load(Ordering::Relaxed) {
                return Err(Stop::Cancelled);
            }
            if has_next && let Some(buffer) = self.pipe.take() {
                let placed = self.dump.placed()[next];
                next += 1;
                in_flight[buffer] = Some(placed);
                self.pipe.start(buffer, self.dump.position(&placed), placed.len, false);
                continue;
            }
            if self.pipe.is_idle() {
                return Ok((failed, in_time));
            }
            let (buffer, result) = self.pipe.wait().ok_or(Stop::Io(STALLED))?;
            let placed = in_flight[buffer].take().expect("each completion has its request");
            let result = result.and_then(|()| {
                records.clear();
                let bytes = &self.pipe.batch(buffer).bytes[..placed.len as usize];
                self.check(&placed, bytes, &mut records)
            });
            if let (Ok(()), Some(compare)) = (result, &mut compare) {
                compare(placed.batch, &records, &self.pipe.batch(buffer).bytes);
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

    /// Reads everything back, and relocates failed batches until all are intact. With `is_real`,
    /// the dump is sealed again afterwards. Returns whether everything was read back before the
    /// deadline.
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
            // The sealed superblock stays valid until the relocated batches are durable.
            self.relocate(failed)?;
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
