//! A block log with group commit, as a plain program would have it: the baseline for journal
//! acknowledgements.
//!
//! The file is preallocated with zeroes, so that no commit waits for block allocation. Writers
//! append one block each, and share the durable operation: those that arrive while it is in
//! progress form the next group, with one of them as its leader.

use anyhow::{Context, Result};
use clap::ValueEnum;
use hdrhistogram::Histogram;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fdatasync};
use rustix::io::{ReadWriteFlags, pwrite, pwritev2};
use std::fs::File;
use std::io::{IoSlice, Write};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Maximum blocks of a combined group.
const GROUP_MAX: usize = 256;

/// How a group is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Commit {
    /// Each writer writes its block into the page cache; a group shares one `fdatasync`.
    Fdatasync,
    /// The leader writes the blocks of the group with one durable call, past the page cache.
    Direct,
}

/// A log on a file.
pub struct GroupLog {
    file: File,
    blocks: u64,
    commit: Commit,
    state: Mutex<CommitState>,
    turn: Condvar,
}

struct CommitState {
    /// Blocks with an assigned position.
    placed: u64,
    /// Blocks written or combined.
    written: u64,
    /// Durable blocks.
    durable: u64,
    is_committing: bool,
    /// Blocks waiting for their leader.
    gathered: Aligned,
    /// The previous group's memory, for reuse.
    spare: Option<Aligned>,
    /// The first error: nothing is durable after it.
    failed: Option<rustix::io::Errno>,
}

/// Results of the writers of a log.
#[derive(Clone, Copy, Debug)]
pub struct CommitFigures {
    /// Durable blocks per second.
    pub iops: f64,
    /// Median time until a block was durable, in microseconds.
    pub latency_us_p50: f64,
    /// 99th percentile.
    pub latency_us_p99: f64,
}

impl GroupLog {
    /// Creates a preallocated log of `bytes` at `path`.
    ///
    /// # Errors
    /// If the file cannot be created, or lacks the requested direct I/O.
    pub fn create(path: &Path, bytes: u64, commit: Commit) -> Result<Self> {
        fill(path, bytes)?;
        let file = File::options().write(true).open(path)?;
        if commit == Commit::Direct {
            fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::DIRECT)
                .with_context(|| format!("{} does not support direct I/O", path.display()))?;
        }
        let state = CommitState {
            placed: 0,
            written: 0,
            durable: 0,
            is_committing: false,
            gathered: Aligned::new(),
            spare: Some(Aligned::new()),
            failed: None,
        };
        let blocks = bytes / BLOCK_BYTES as u64;
        Ok(Self { file, blocks, commit, state: Mutex::new(state), turn: Condvar::new() })
    }

    /// Appends from `writers` threads for `duration`. Each appends its next block once the last one
    /// is durable.
    pub fn run(&self, writers: u32, duration: Duration) -> Result<CommitFigures> {
        let begin = Instant::now();
        let mut total = Histogram::<u64>::new_with_max(60_000_000_000, 3)?;
        std::thread::scope(|scope| {
            let write = |seed| move || self.write_until(begin + duration, seed);
            let threads: Vec<_> = (0..writers).map(|seed| scope.spawn(write(seed))).collect();
            for thread in threads {
                let seen = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                total.add(&seen?)?;
            }
            anyhow::Ok(())
        })?;
        let us = |quantile| total.value_at_quantile(quantile) as f64 / 1000.0;
        Ok(CommitFigures {
            iops: total.len() as f64 / begin.elapsed().as_secs_f64(),
            latency_us_p50: us(0.5),
            latency_us_p99: us(0.99),
        })
    }

    fn write_until(&self, deadline: Instant, seed: u32) -> Result<Histogram<u64>> {
        let mut seen = Histogram::new_with_max(60_000_000_000, 3)?;
        let mut block = [0; BLOCK_BYTES];
        crate::content::fill(&mut block, 0, u64::from(seed));
        let mut now = Instant::now();
        while now < deadline {
            self.append(&block)?;
            let then = std::mem::replace(&mut now, Instant::now());
            seen.saturating_record(now.duration_since(then).as_nanos() as u64);
        }
        Ok(seen)
    }

    /// Appends a block; returns when it is durable.
    ///
    /// # Errors
    /// When this or an earlier commit failed.
    pub fn append(&self, block: &[u8; BLOCK_BYTES]) -> Result<()> {
        let mut state = self.lock();
        if self.commit == Commit::Fdatasync {
            let place = state.placed;
            state.placed += 1;
            drop(state);
            pwrite(&self.file, block, self.position(place))?;
            state = self.lock();
        } else {
            state.gathered.push(block);
        }
        state.written += 1;
        let mine = state.written;
        while state.durable < mine {
            if let Some(error) = state.failed {
                return Err(error).context("cannot write the log");
            }
            state = if state.is_committing {
                self.turn.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.lead(state)
            };
        }
        Ok(())
    }

    /// Makes all written blocks durable.
    fn lead<'a>(&'a self, mut state: MutexGuard<'a, CommitState>) -> MutexGuard<'a, CommitState> {
        state.is_committing = true;
        let mut upto = state.written;
        let mut group = None;
        if self.commit == Commit::Direct {
            // A group ends at the end of the file, or when its memory is full.
            let room = self.blocks - state.durable % self.blocks;
            let count = (upto - state.durable).min(room).min(GROUP_MAX as u64);
            upto = state.durable + count;
            let spare = state.spare.take().unwrap_or_else(Aligned::new);
            let mut blocks = std::mem::replace(&mut state.gathered, spare);
            state.gathered.take_rest(&mut blocks, count as usize);
            group = Some((blocks, self.position(state.durable)));
        }
        drop(state);
        let result = match &group {
            None => fdatasync(&self.file),
            Some((blocks, position)) => {
                let bytes = [IoSlice::new(blocks.bytes())];
                pwritev2(&self.file, &bytes, *position, ReadWriteFlags::DSYNC).and_then(|written| {
                    let whole = written == blocks.bytes().len();
                    if whole { Ok(()) } else { Err(rustix::io::Errno::IO) }
                })
            }
        };
        state = self.lock();
        state.is_committing = false;
        if let Some((mut blocks, _)) = group {
            blocks.clear();
            state.spare = Some(blocks);
        }
        match result {
            Ok(()) => state.durable = upto,
            Err(error) => state.failed = Some(error),
        }
        self.turn.notify_all();
        state
    }

    const fn position(&self, block: u64) -> u64 {
        block % self.blocks * BLOCK_BYTES as u64
    }

    fn lock(&self) -> MutexGuard<'_, CommitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fills a file with zeroes, durably, so that later writes need no allocation.
pub fn fill(path: &Path, bytes: u64) -> Result<()> {
    let context = || format!("writing {bytes} bytes to {}", path.display());
    let mut file = File::create(path).with_context(context)?;
    let zeroes = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(zeroes.len() as u64);
        file.write_all(&zeroes[..piece as usize]).with_context(context)?;
        left -= piece;
    }
    file.sync_all().with_context(context)
}

/// Aligned memory for direct I/O, filled block by block.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new() -> Self {
        let memory = vec![0; (GROUP_MAX + 1) * BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        Self { memory, start, len: 0 }
    }

    /// Adds a block; there is space for all writers.
    fn push(&mut self, block: &[u8]) {
        let at = self.start + self.len;
        self.memory[at..at + block.len()].copy_from_slice(block);
        self.len += block.len();
    }

    /// Takes all blocks but the first `count` of `group`.
    fn take_rest(&mut self, group: &mut Self, count: usize) {
        for block in group.bytes()[count * BLOCK_BYTES..].chunks(BLOCK_BYTES) {
            self.push(block);
        }
        group.len = count * BLOCK_BYTES;
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    const fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A directory with direct I/O, which tmpfs lacks.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
    }

    #[test]
    fn what_is_appended_is_in_the_file_whoever_leads() {
        for commit in [Commit::Fdatasync, Commit::Direct] {
            let dir = folder();
            let path = dir.path().join("log");
            let log = Arc::new(GroupLog::create(&path, 64 * BLOCK_BYTES as u64, commit).unwrap());
            // Three times around, each block with its writer's number.
            std::thread::scope(|scope| {
                for writer in 1..=16 {
                    let log = Arc::clone(&log);
                    scope.spawn(move || {
                        (0..12).for_each(|_| log.append(&[writer; BLOCK_BYTES]).unwrap());
                    });
                }
            });
            let found = std::fs::read(&path).unwrap();
            let whole = |block: &[u8]| block[0] > 0 && block.iter().all(|&byte| byte == block[0]);
            assert!(found.chunks(BLOCK_BYTES).all(whole), "{commit:?}");
            assert_eq!(log.lock().durable, 16 * 12);
        }
    }
}
