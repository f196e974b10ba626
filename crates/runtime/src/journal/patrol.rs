//! The patrol over a journal: reads back the live part of the log, so that damage is detected while
//! the pool and the disks still have all of its data.
//!
//! A thread reads the log from its start to where its end was when the walk began, at 16 MiB/s at
//! most. It reads more slowly while other programs wait for disks, and pauses while the log is
//! being written. Damage on one device of two is repaired from the other by the journal's thread,
//! between two writes. Data that no device can return is still in the pool or on the disk: a
//! checkpoint begins at once and destages all of it. After that, the log begins past the damage.
//!
//! Blocks that are reclaimed or rewritten during the walk look damaged. So damage counts only in
//! blocks that were written before the walk began and are still live after it.

use super::Journal;
use super::devices::{Device, Devices};
use crate::platform::locks::{Lock, order};
use forebay_backend::{AlignedBuffer, Blocking};
use forebay_journal::{CopyRange, ReadAt, inspect};
use forebay_threads::Thread;
use forebay_types::{BackgroundShare, IoError};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes between two pauses, and the length of a pause: 16 MiB/s at most.
const PIECE_BYTES: u64 = 1 << 20;
const PIECE_PAUSE: Duration = Duration::from_millis(62);
/// The maximum number of pauses per piece while the log is being written.
const BUSY_PAUSES_MAX: u32 = 16;
/// The time from the end of a walk to the start of the next one.
const WALK_INTERVAL: Duration = Duration::from_secs(60);
/// How often the thread checks whether it is to end.
const TICK: Duration = Duration::from_millis(100);

/// Counters of the patrol over a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalPatrol {
    /// Completed walks over the log.
    pub walks: u64,
    /// Bytes of the log that were read and verified.
    pub read_bytes: u64,
    /// Places that were damaged or unreadable on any device.
    pub damaged: u64,
    /// Damaged places that were repaired from the other device.
    pub healed: u64,
}

/// The patrol of one journal: its thread, its counters, and the repairs it asks for.
#[derive(Default)]
pub(super) struct Patrol {
    walks: AtomicU64,
    read_bytes: AtomicU64,
    damaged: AtomicU64,
    healed: AtomicU64,
    stops: AtomicBool,
    walks_now: AtomicBool,
    thread: Lock<Option<JoinHandle<()>>, { order::THREADS }>,
    /// Repairs to make, each with the end of the log at the start of the walk that found the
    /// damage.
    repairs: Lock<Vec<(CopyRange, (u64, u64))>>,
}

impl Patrol {
    /// Starts the thread of a journal's patrol. If that fails, the journal works without a patrol.
    pub(super) fn start(journal: &Arc<Journal>) {
        let weak = Arc::downgrade(journal);
        let thread = Thread::named("patrol").spawn(move || run(&weak));
        *journal.patrol.thread.lock() = thread.ok();
    }

    pub(super) fn status(&self) -> JournalPatrol {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        JournalPatrol {
            walks: of(&self.walks),
            read_bytes: of(&self.read_bytes),
            damaged: of(&self.damaged),
            healed: of(&self.healed),
        }
    }

    /// Makes the next walk begin at once.
    pub(super) fn wake(&self) {
        self.walks_now.store(true, Ordering::Relaxed);
    }

    /// Stops the thread and joins it.
    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take() {
            // It reads the journal's device, which may hang.
            forebay_threads::join_within_limit(thread);
        }
    }

    /// Whether the journal's thread has repairs to make.
    pub(super) fn wants_repair(&self) -> bool {
        !self.repairs.lock().is_empty()
    }

    fn is_stopped(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    /// Makes the repairs that were found. Called by the journal's thread, between two writes.
    pub(super) fn repair(journal: &Journal) {
        let Journal { patrol, devices, .. } = journal;
        let repairs = std::mem::take(&mut *patrol.repairs.lock());
        for (copy, head) in repairs {
            let is_due = {
                let state = journal.lock();
                state.core.log.devices() == [true; 2]
                    && state.core.log.is_needed(copy.position, head)
            };
            if !is_due {
                continue;
            }
            match copy_across(devices, &copy) {
                Ok(()) => {
                    patrol.healed.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    let device = devices.name_of(copy.to);
                    tracing::error!(journal = %journal.name, %device, %error, "repair failed");
                }
            }
        }
    }
}

fn copy_across(devices: &Devices, copy: &CopyRange) -> Result<(), IoError> {
    let bytes: AlignedBuffer = devices.read_on(copy.from, copy.position, copy.len)?;
    let backend = devices.backend(copy.to).ok_or(IoError::Io)?;
    Blocking::new(backend).write(copy.position, &bytes, true)
}

/// A device read at the patrol's rate.
struct Throttled<'a> {
    journal: &'a Journal,
    device: Device<'a>,
    bytes: u64,
}

/// Whether a piece has been followed by enough pauses.
const fn is_over(pauses: u32, share: BackgroundShare, is_busy: bool) -> bool {
    pauses >= BUSY_PAUSES_MAX || !is_busy && pauses >= share.divisor()
}

impl ReadAt for Throttled<'_> {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        self.bytes += buffer.len() as u64;
        let mut pauses = 0;
        while self.bytes >= PIECE_BYTES {
            if self.journal.patrol.is_stopped() {
                return Err(IoError::Shutdown);
            }
            std::thread::sleep(PIECE_PAUSE);
            pauses += 1;
            let share = self.journal.host.upgrade().map(|host| host.disk_share());
            let is_busy = !self.journal.lock().core.log.is_idle();
            if is_over(pauses, share.unwrap_or_default(), is_busy) {
                self.bytes = 0;
            }
        }
        self.device.read_at(position, buffer)
    }
}

/// The patrol's thread.
fn run(journal: &Weak<Journal>) {
    let mut walked = Instant::now();
    loop {
        std::thread::sleep(TICK);
        let Some(journal) = journal.upgrade() else { return };
        let patrol = &journal.patrol;
        if patrol.is_stopped() {
            return;
        }
        if walked.elapsed() >= WALK_INTERVAL || patrol.walks_now.swap(false, Ordering::Relaxed) {
            walk(&journal);
            walked = Instant::now();
        }
    }
}

/// One walk over the log.
fn walk(journal: &Journal) {
    let patrol = &journal.patrol;
    let (superblock, head, counts) = {
        let state = journal.lock();
        if state.core.log.failed().is_some() {
            return;
        }
        (state.core.log.superblock().clone(), state.core.log.head(), state.core.log.devices())
    };
    let mut devices = [0, 1].map(|device| {
        let backend = journal.devices.backend(device).filter(|_| counts[device])?;
        Some(Throttled { journal, device: Device::new(backend), bytes: 0 })
    });
    let readers =
        devices.each_mut().map(|device| device.as_mut().map(|device| device as &mut dyn ReadAt));
    let seen = inspect(readers, superblock);
    if patrol.is_stopped() {
        return;
    }
    patrol.read_bytes.fetch_add(seen.bytes, Ordering::Relaxed);
    let state = journal.lock();
    if state.core.log.failed().is_none() {
        let live =
            seen.lags.into_iter().filter(|copy| state.core.log.is_needed(copy.position, head));
        let repairs: Vec<_> = live.map(|copy| (copy, head)).collect();
        let is_live = |at: &&u64| state.core.log.is_needed(**at, head);
        let damaged = seen.damaged.iter().find(is_live).copied();
        drop(state);
        report(journal, repairs, damaged);
    }
    patrol.walks.fetch_add(1, Ordering::Relaxed);
}

/// Queues repairs. If a place is damaged on every device, requests a checkpoint.
fn report(journal: &Journal, repairs: Vec<(CopyRange, (u64, u64))>, damaged: Option<u64>) {
    let Journal { name, patrol, devices, .. } = journal;
    for (copy, _) in &repairs {
        let (device, position) = (devices.name_of(copy.to), copy.position);
        tracing::warn!(journal = %name, %device, position, "journal block damaged, repairing it");
    }
    patrol.damaged.fetch_add(repairs.len() as u64, Ordering::Relaxed);
    patrol.repairs.lock().extend(repairs);
    let mut state = journal.lock();
    if let Some(position) = damaged {
        patrol.damaged.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            journal = %name,
            position,
            "journal unreadable; flushing everything it holds to the disks: replace the device"
        );
        state.urgent.is_due = true;
    }
    journal.wake(&mut state);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_is_slower_while_others_need_the_disks_and_never_stops() {
        for share in BackgroundShare::ALL {
            let pauses = |is_busy| (1..).find(|&pauses| is_over(pauses, share, is_busy));
            assert_eq!(pauses(false), Some(share.divisor()), "{share}");
            assert_eq!(pauses(true), Some(BUSY_PAUSES_MAX), "{share}");
        }
    }
}
