//! The patrol over a journal: reads back what is still needed of the log, so that a device that
//! loses it is noticed while everything that it holds is in memory as well.
//!
//! A thread reads at 16 MiB/s at most, and only while nothing is being written, from the beginning
//! of the log to where its end was when it began; then it rests. What one device of two lacks
//! is copied to it from the other, by the journal's thread, between two writes. What nobody has any
//! more is in the pool, or on the disk: a checkpoint begins at once that brings all of it to the
//! disks, and the log begins behind the damage from then on.
//!
//! What is reclaimed or written meanwhile looks like damage, so only places count that were written
//! before the walk began and are still needed after it.

use super::Journal;
use super::devices::Device;
use crate::locks::{Lock, order};
use forebay_backend::{AlignedBuffer, Blocking};
use forebay_journal::{CopyRange, ReadAt, inspect};
use forebay_types::IoError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes after which it rests, and for how long.
const PIECE_BYTES: u64 = 1 << 20;
const PIECE_PAUSE: Duration = Duration::from_millis(62);
/// Rests that are added at most while something is being written.
const BUSY_RESTS_MAX: u32 = 16;
/// From one walk to the next.
const REST: Duration = Duration::from_secs(60);
/// How often it looks whether it is to end.
const TICK: Duration = Duration::from_millis(100);

/// What the patrol over a journal has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalPatrol {
    /// Walks over the log that have ended.
    pub walks: u64,
    /// Bytes of the log that they have read and found good.
    pub read_bytes: u64,
    /// Places that could not be read as they were written, on any device.
    pub damaged: u64,
    /// Of those, places that were written anew from the other device.
    pub healed: u64,
}

/// The same while it is being counted, and how it is ended.
#[derive(Default)]
pub(crate) struct Look {
    walks: AtomicU64,
    read_bytes: AtomicU64,
    damaged: AtomicU64,
    healed: AtomicU64,
    ends: AtomicBool,
    thread: Lock<Option<JoinHandle<()>>, { order::THREADS }>,
    /// What is to be written anew, and where the log ended when that was found.
    pub(super) lags: Lock<Vec<(CopyRange, (u64, u64))>>,
    /// A walk is to begin at once.
    now: AtomicBool,
}

impl Look {
    pub(super) fn status(&self) -> JournalPatrol {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        JournalPatrol {
            walks: of(&self.walks),
            read_bytes: of(&self.read_bytes),
            damaged: of(&self.damaged),
            healed: of(&self.healed),
        }
    }

    /// Ends the thread, wherever it is.
    pub(super) fn end(&self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

/// A device that is read slowly.
struct Slowly<'a> {
    journal: &'a Journal,
    device: Device<'a>,
    bytes: u64,
}

impl ReadAt for Slowly<'_> {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        self.bytes += buffer.len() as u64;
        let mut rests = 0;
        while self.bytes >= PIECE_BYTES {
            if self.journal.look.ends.load(Ordering::Relaxed) {
                return Err(IoError::Shutdown);
            }
            std::thread::sleep(PIECE_PAUSE);
            rests += 1;
            let is_busy = !self.journal.lock().log.is_idle();
            if !is_busy || rests >= BUSY_RESTS_MAX {
                self.bytes = 0;
            }
        }
        self.device.read_at(position, buffer)
    }
}

impl Journal {
    /// Begins to look after the log.
    pub(super) fn begin_to_look(self: &Arc<Self>) {
        let journal = Arc::downgrade(self);
        let work = move || look_on(&journal);
        // Without a thread to spare nobody looks.
        *self.look.thread.lock() = std::thread::Builder::new().name("look".into()).spawn(work).ok();
    }

    /// Looks at once, instead of after a rest.
    pub fn look_now(&self) {
        self.look.now.store(true, Ordering::Relaxed);
    }

    /// One walk over the log.
    fn look(&self) {
        let (superblock, head, counts) = {
            let state = self.lock();
            if state.log.failed().is_some() {
                return;
            }
            (state.log.superblock().clone(), state.log.head(), state.log.devices())
        };
        let mut devices = [0, 1].map(|device| {
            let backend = self.devices.backend(device).filter(|_| counts[device])?;
            Some(Slowly { journal: self, device: Device::new(backend), bytes: 0 })
        });
        let readers = devices
            .each_mut()
            .map(|device| device.as_mut().map(|device| device as &mut dyn ReadAt));
        let seen = inspect(readers, superblock);
        if self.look.ends.load(Ordering::Relaxed) {
            return;
        }
        self.look.read_bytes.fetch_add(seen.bytes, Ordering::Relaxed);
        let state = self.lock();
        if state.log.failed().is_none() {
            let lags = seen.lags.into_iter().filter(|lag| state.log.is_needed(lag.position, head));
            let lags: Vec<_> = lags.map(|lag| (lag, head)).collect();
            let is_damage = |at: &&u64| state.log.is_needed(**at, head);
            let damaged = seen.damaged.iter().find(is_damage).copied();
            drop(state);
            self.react(lags, damaged);
        }
        self.look.walks.fetch_add(1, Ordering::Relaxed);
    }

    fn react(&self, lags: Vec<(CopyRange, (u64, u64))>, damaged: Option<u64>) {
        let name = &self.name;
        for (lag, _) in &lags {
            tracing::warn!(
                "journal {name}: {} has lost what it was given at byte {}; it is written anew",
                self.devices.name_of(lag.to),
                lag.position
            );
        }
        self.look.damaged.fetch_add(lags.len() as u64, Ordering::Relaxed);
        self.look.lags.lock().extend(lags);
        let mut state = self.lock();
        if let Some(position) = damaged {
            self.look.damaged.fetch_add(1, Ordering::Relaxed);
            tracing::error!(
                "journal {name} can't be read any more at byte {position}; all that it holds is in \
                 memory, and is brought to the disks now. Replace the device"
            );
            state.checkpoint_now = true;
        }
        self.rouse(&mut state);
    }

    /// Copies what one device lacks. Called by the one thread that writes, between two writes.
    pub(super) fn heal(&self) {
        let lags = std::mem::take(&mut *self.look.lags.lock());
        for (lag, head) in lags {
            let devices = self.lock().log.devices();
            if !self.lock().log.is_needed(lag.position, head) || devices != [true; 2] {
                continue;
            }
            let copied = self
                .devices
                .read_on(lag.from, lag.position, lag.len)
                .and_then(|bytes| self.devices.write_on(lag.to, lag.position, &bytes));
            match copied {
                Ok(()) => {
                    self.look.healed.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    let name = self.devices.name_of(lag.to);
                    tracing::error!("journal device {name} can't be healed: {error}");
                }
            }
        }
    }
}

fn look_on(journal: &Weak<Journal>) {
    let mut rested = Instant::now();
    loop {
        std::thread::sleep(TICK);
        let Some(journal) = journal.upgrade() else { return };
        if journal.look.ends.load(Ordering::Relaxed) {
            return;
        }
        if rested.elapsed() >= REST || journal.look.now.swap(false, Ordering::Relaxed) {
            journal.look();
            rested = Instant::now();
        }
    }
}

impl super::Devices {
    pub(super) fn write_on(
        &self,
        device: usize,
        position: u64,
        bytes: &AlignedBuffer,
    ) -> Result<(), IoError> {
        let backend = self.backend(device).ok_or(IoError::Io)?;
        Blocking::new(backend).write(position, bytes, true)
    }
}
