//! The content of a store in memory at one moment, while clients write.
//!
//! A save takes the chunks of the store one by one. Before a write changes a chunk that the save
//! has not taken yet, the chunk is copied. The memory for copies is limited; a write that would
//! exceed it waits until the save has taken more chunks. So the duration of a save depends on its
//! file alone, not on the clients, and no write waits longer than the save takes.

use super::{CHUNK_BYTES, MemoryBackend, chunks};
use crate::Io;
use crate::sync::lock;
use forebay_types::ByteRange;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// One in this many chunks of the store may be copied.
const COPIES_SHARE: u64 = 8;
/// At least this many chunks may be copied.
const COPIES_MIN: u64 = 64;

/// The snapshot that a save takes.
pub(super) struct Snapshot {
    state: Mutex<SnapshotState>,
}

/// The outcome of [`Snapshot::prepare`].
pub(super) enum Prepared {
    /// The write may be carried out now.
    Ready(Io),
    /// The write waits for [`Snapshot::take`].
    Waiting {
        /// Whether the caller must begin to watch the progress, with [`Snapshot::watch`].
        begins_watch: bool,
        /// The number of chunks taken so far.
        taken: u64,
    },
}

struct SnapshotState {
    size_bytes: u64,
    /// Chunks below this one are taken.
    next: u64,
    /// Whether each chunk is taken.
    taken: Box<[bool]>,
    /// The number of chunks that are taken.
    count: u64,
    /// The content of chunks that were changed before they were taken.
    copies: BTreeMap<u64, Box<[u8]>>,
    copies_max: u64,
    /// Writes that wait, in order of arrival.
    waiting: VecDeque<Io>,
    /// Whether the progress is watched: writes wait, or have waited since the last check.
    is_watched: bool,
}

impl Snapshot {
    /// Begins a snapshot of the current content of a store. Until the save ends, each write must
    /// call [`Snapshot::prepare`] first.
    pub(super) fn new(size_bytes: u64) -> Self {
        let chunks = size_bytes.div_ceil(CHUNK_BYTES);
        let state = SnapshotState {
            size_bytes,
            next: 0,
            taken: vec![false; chunks as usize].into(),
            count: 0,
            copies: BTreeMap::new(),
            copies_max: (chunks / COPIES_SHARE).max(COPIES_MIN),
            waiting: VecDeque::new(),
            is_watched: false,
        };
        Self { state: Mutex::new(state) }
    }

    /// Copies the chunks that a write is about to change. Writes may be prepared and carried out
    /// concurrently with each other, but not with [`Snapshot::take`].
    pub(super) fn prepare(&self, memory: &MemoryBackend, io: Io) -> Prepared {
        let mut state = lock(&self.state);
        if state.copy(memory, io.range()) {
            return Prepared::Ready(io);
        }
        state.waiting.push_back(io);
        let begins_watch = !std::mem::replace(&mut state.is_watched, true);
        Prepared::Waiting { begins_watch, taken: state.count }
    }

    /// The number of chunks taken so far; `None` if no write waits, which ends the watch.
    pub(super) fn watch(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        state.is_watched = !state.waiting.is_empty();
        state.is_watched.then_some(state.count)
    }

    /// Takes the next chunk into `buffer`. Returns its number; `None` at the end. Carries out the
    /// waiting writes that have room for their copies now, and moves them to `ready`, for the
    /// caller to answer. No other write may be carried out meanwhile.
    pub(super) fn take(
        &mut self,
        memory: &MemoryBackend,
        buffer: &mut [u8],
        ready: &mut Vec<Io>,
    ) -> Option<u64> {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let number = state.take(memory, buffer)?;
        while let Some(io) = state.waiting.pop_front() {
            if !state.copy(memory, io.range()) {
                state.waiting.push_front(io);
                break;
            }
            // Before the next one is examined: it may need the copy of what this one changes.
            memory.run(&io);
            ready.push(io);
        }
        Some(number)
    }

    /// The writes that still wait, at the end of the save.
    pub(super) fn into_waiting(self) -> VecDeque<Io> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).waiting
    }
}

impl SnapshotState {
    /// Copies the chunks of a range that are not taken yet. Returns false, and copies nothing, if
    /// there is not enough room for the copies.
    fn copy(&mut self, memory: &MemoryBackend, range: ByteRange) -> bool {
        let needs_copy = |state: &Self, number: &u64| {
            !state.taken[*number as usize] && !state.copies.contains_key(number)
        };
        let numbers = || chunks(range).map(|part| part.offset / CHUNK_BYTES);
        let needed = numbers().filter(|number| needs_copy(self, number)).count() as u64;
        if self.copies.len() as u64 + needed > self.copies_max {
            return false;
        }
        if needed > 0 {
            let missing: Vec<u64> = numbers().filter(|number| needs_copy(self, number)).collect();
            for number in missing {
                let mut bytes = vec![0; self.len(number)].into_boxed_slice();
                memory.read_part(number * CHUNK_BYTES, &mut bytes);
                self.copies.insert(number, bytes);
            }
        }
        true
    }

    fn take(&mut self, memory: &MemoryBackend, buffer: &mut [u8]) -> Option<u64> {
        let is_copied = !self.waiting.is_empty();
        let (number, copy) = match is_copied.then(|| self.copies.pop_first()).flatten() {
            // Makes room for the writes that wait.
            Some((number, copy)) => (number, Some(copy)),
            None => {
                while *self.taken.get(self.next as usize)? {
                    self.next += 1;
                }
                (self.next, self.copies.remove(&self.next))
            }
        };
        let bytes = &mut buffer[..self.len(number)];
        match copy {
            Some(copy) => bytes.copy_from_slice(&copy),
            None => memory.read_part(number * CHUNK_BYTES, bytes),
        }
        self.taken[number as usize] = true;
        self.count += 1;
        Some(number)
    }

    /// The bytes of a chunk, which is shorter at the end.
    fn len(&self, number: u64) -> usize {
        (self.size_bytes - number * CHUNK_BYTES).min(CHUNK_BYTES) as usize
    }
}
