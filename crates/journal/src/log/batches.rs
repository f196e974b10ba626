//! The batches that wait for the device, and the buffers they are built in.
//!
//! A batch grows at the end of the queue until it is written. Each admitted write holds a permit,
//! which reserves a spare buffer until the write is appended, because the write may have to open a
//! batch.

use super::LogEntry;
use forebay_format::journal::{BLOCK_BYTES, HEADER_BYTES, RECORD_BYTES, Record, batch_bytes};
use forebay_types::SECTOR_BYTES;
use std::collections::VecDeque;

/// The capacity of a batch.
#[derive(Clone, Copy, Debug)]
struct BatchLimits {
    payload_bytes: usize,
    records: usize,
    /// Maximum number of writes; the rest is reserved for records that cannot be refused.
    writes: usize,
}

impl BatchLimits {
    fn new(buffer_bytes: usize) -> Self {
        let batch = buffer_bytes - HEADER_BYTES;
        let payload_bytes = batch / 16 * 15 / SECTOR_BYTES as usize * SECTOR_BYTES as usize;
        let records = (batch - payload_bytes) / RECORD_BYTES;
        let writes = records / 2;
        assert!(writes > 0 && payload_bytes > 0, "no write fits a buffer of {buffer_bytes} bytes");
        let longest = batch_bytes(payload_bytes as u64, records as u64);
        assert!(longest <= buffer_bytes as u64, "a full batch fits a buffer");
        Self { payload_bytes, records, writes }
    }
}

/// A queued batch.
#[derive(Debug)]
pub(super) struct QueuedBatch<B, W> {
    /// `None` while the batch has no payload.
    buffer: Option<B>,
    pub payload_bytes: usize,
    pub records: Vec<Record>,
    writes: usize,
    pub waiters: Vec<W>,
}

impl<B, W> QueuedBatch<B, W> {
    fn len_bytes(&self) -> u64 {
        batch_bytes(self.payload_bytes as u64, self.records.len() as u64)
    }
}

/// The queue of batches.
#[derive(Debug)]
pub(super) struct Batches<B, W> {
    limits: BatchLimits,
    queue: VecDeque<QueuedBatch<B, W>>,
    /// Records and bytes of the batch that is being written.
    writing: (u64, u64),
    spare: Vec<B>,
    /// Number of buffers, spare or not.
    buffers: usize,
    permits: usize,
    /// Waiters for a free buffer.
    waiters: Vec<W>,
    /// Empty vectors, reused for their capacity.
    old_records: Vec<Vec<Record>>,
    old_waiters: Vec<Vec<W>>,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, W> Batches<B, W> {
    /// An empty queue with these spare buffers, which all have the same length in whole blocks.
    pub(super) fn new(buffers: Vec<B>) -> Self {
        assert!(buffers.len() > 1, "one batch grows while another is written");
        let len = buffers[0].as_ref().len();
        let are_alike = buffers.iter().all(|buffer| buffer.as_ref().len() == len);
        assert!(are_alike, "buffers differ in length");
        let is_whole = (len as u64).is_multiple_of(BLOCK_BYTES);
        assert!(is_whole, "a buffer of {len} bytes is not whole blocks");
        Self {
            limits: BatchLimits::new(len),
            queue: VecDeque::new(),
            writing: (0, 0),
            buffers: buffers.len(),
            spare: buffers,
            permits: 0,
            waiters: Vec::new(),
            old_records: Vec::new(),
            old_waiters: Vec::new(),
        }
    }

    /// Maximum length of a write in bytes.
    pub(super) const fn write_bytes_max(&self) -> u64 {
        self.limits.payload_bytes as u64
    }

    /// The space in the log for a fence with this number of kept ranges, in bytes.
    pub(super) fn fence_bytes(&self, kept: usize) -> u64 {
        let (records, batch) = (kept as u64 + 1, self.limits.records as u64);
        let begun = if self.queue.is_empty() { 0 } else { batch_bytes(0, 1) };
        let last = batch_bytes(0, records % batch);
        records / batch * batch_bytes(0, batch) + last + begun
    }

    /// Whether there is a spare buffer that no permit reserves.
    pub(super) const fn has_buffer(&self) -> bool {
        self.spare.len() > self.permits
    }

    /// Whether admitted writes are not appended yet.
    pub(super) const fn has_permits(&self) -> bool {
        self.permits > 0
    }

    /// Takes a permit. Returns false if no buffer is free.
    pub(super) const fn take_permit(&mut self) -> bool {
        let granted = self.has_buffer();
        self.permits += granted as usize;
        granted
    }

    /// Returns a permit.
    ///
    /// # Panics
    /// If no permit is in use.
    pub(super) fn return_permit(&mut self) {
        self.permits = self.permits.checked_sub(1).expect("a permit is in use");
    }

    /// Makes a waiter wait for a free buffer.
    pub(super) fn wait_for_buffer(&mut self, waiter: W) {
        self.waiters.push(waiter);
    }

    /// Takes the waiters for a buffer, because one is free or the log has failed.
    pub(super) fn take_waiters(&mut self) -> impl Iterator<Item = W> + '_ {
        self.waiters.drain(..)
    }

    /// Opens an empty batch at the end of the queue.
    fn open(&mut self) {
        self.queue.push_back(QueuedBatch {
            buffer: None,
            payload_bytes: 0,
            records: self.old_records.pop().unwrap_or_default(),
            writes: 0,
            waiters: self.old_waiters.pop().unwrap_or_default(),
        });
    }

    /// Appends a write, whose permit has been returned, with its data in pieces.
    pub(super) fn append_write<'a>(
        &mut self,
        entry: LogEntry,
        pieces: impl Iterator<Item = &'a [u8]>,
        waiter: Option<W>,
    ) {
        let len = entry.range.len as usize;
        assert!(
            len > 0 && len <= self.limits.payload_bytes,
            "write of {len} bytes was not admitted"
        );
        let fits = self.queue.back().is_some_and(|batch| {
            batch.payload_bytes + len <= self.limits.payload_bytes
                && batch.writes < self.limits.writes
        });
        if !fits {
            self.open();
        }
        let batch = self.queue.back_mut().expect("a batch is open");
        if batch.buffer.is_none() {
            let buffer = self.spare.pop();
            batch.buffer = Some(buffer.expect("each permit reserves a spare buffer"));
        }
        let buffer = batch.buffer.as_mut().expect("the batch has a buffer").as_mut();
        let start = HEADER_BYTES + batch.payload_bytes;
        let mut at = start;
        for piece in pieces {
            buffer[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        assert_eq!(at - start, len, "the pieces add up to the range");
        let checksum = Record::checksum_of(entry.volume, entry.range.offset, &buffer[start..at]);
        batch.records.push(Record {
            kind: entry.kind,
            volume: entry.volume,
            range: entry.range,
            payload_offset: batch.payload_bytes as u32,
            checksum,
        });
        batch.payload_bytes += len;
        batch.writes += 1;
        batch.waiters.extend(waiter);
        assert!(batch.records.len() <= self.limits.records, "{} records", batch.records.len());
        debug_assert!(self.permits <= self.spare.len(), "each permit reserves a spare buffer");
    }

    /// Appends a record without payload.
    pub(super) fn append_record(&mut self, entry: &LogEntry, waiter: Option<W>) {
        if self.queue.back().is_none_or(|batch| batch.records.len() == self.limits.records) {
            self.open();
        }
        let batch = self.queue.back_mut().expect("a batch is open");
        let LogEntry { kind, volume, range } = *entry;
        batch.records.push(Record { kind, volume, range, payload_offset: 0, checksum: 0 });
        batch.waiters.extend(waiter);
        assert!(batch.records.len() <= self.limits.records, "{} records", batch.records.len());
    }

    /// The waiters of the newest batch.
    pub(super) fn newest_waiters(&mut self) -> Option<&mut Vec<W>> {
        self.queue.back_mut().map(|batch| &mut batch.waiters)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Number of records that are queued or being written.
    pub(super) fn record_count(&self) -> u64 {
        let queued = self.queue.iter().map(|batch| batch.records.len() as u64);
        self.writing.0 + queued.sum::<u64>()
    }

    /// The space in the log for all batches that are queued or being written, in bytes.
    pub(super) fn len_bytes(&self) -> u64 {
        self.writing.1 + self.queue.iter().map(QueuedBatch::len_bytes).sum::<u64>()
    }

    /// Length of the oldest batch in bytes, if there is one.
    pub(super) fn next_len(&self) -> Option<u64> {
        self.queue.front().map(QueuedBatch::len_bytes)
    }

    /// Takes the oldest batch and its buffer, to be written. `None` if there is no batch, or if it
    /// has no payload and every spare buffer is reserved by a permit.
    pub(super) fn pop(&mut self) -> Option<(QueuedBatch<B, W>, B)> {
        let has_buffer = self.has_buffer();
        assert!(self.writing == (0, 0), "one batch is written at a time");
        let mut batch = self.queue.pop_front_if(|batch| batch.buffer.is_some() || has_buffer)?;
        let buffer = batch.buffer.take().or_else(|| self.spare.pop());
        assert!(
            batch.payload_bytes <= self.limits.payload_bytes
                && batch.records.len() <= self.limits.records,
            "the batch exceeds its limits"
        );
        assert!(!batch.records.is_empty(), "a queued batch has a record");
        assert_eq!(batch.writes > 0, batch.payload_bytes > 0, "payload is the data of writes");
        self.writing = (batch.records.len() as u64, batch.len_bytes());
        Some((batch, buffer.expect("a spare buffer beyond the permits")))
    }

    /// Returns the buffer of a batch that was taken.
    pub(super) fn return_buffer(&mut self, buffer: B) {
        self.spare.push(buffer);
        assert!(self.spare.len() <= self.buffers, "a buffer was returned twice");
    }

    /// Ends the write of a batch, and keeps its vectors for another one.
    pub(super) fn complete_batch(&mut self, mut records: Vec<Record>, waiters: Vec<W>) {
        assert!(waiters.is_empty(), "the waiters have been notified");
        assert_eq!(self.writing.0, records.len() as u64, "the batch is the one being written");
        records.clear();
        self.writing = (0, 0);
        self.old_records.push(records);
        self.old_waiters.push(waiters);
    }

    /// Drops all batches, and returns the waiters of those that are queued.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = W> + '_ {
        self.writing = (0, 0);
        let spare = &mut self.spare;
        self.queue.drain(..).flat_map(|batch| {
            spare.extend(batch.buffer);
            batch.waiters
        })
    }

    /// Panics if a buffer is missing. `writing` is the number of batches being written.
    pub(super) fn self_check(&self, writing: usize) {
        let queued = self.queue.iter().filter(|batch| batch.buffer.is_some()).count();
        assert_eq!(queued + writing + self.spare.len(), self.buffers, "a buffer is missing");
        assert!(self.permits <= self.spare.len(), "each permit reserves a spare buffer");
        assert_eq!(self.writing != (0, 0), writing > 0, "a batch is being written");
        for batch in &self.queue {
            assert!(!batch.records.is_empty(), "a queued batch has a record");
            assert!(batch.records.len() <= self.limits.records, "a batch exceeds its records");
            let payload_bytes = batch.payload_bytes;
            assert!(payload_bytes <= self.limits.payload_bytes, "payload of {payload_bytes} bytes");
            assert!(batch.writes <= batch.records.len(), "each write has a record");
            let has_payload = payload_bytes > 0;
            assert_eq!(batch.buffer.is_some(), has_payload, "a batch with payload has a buffer");
        }
    }
}
