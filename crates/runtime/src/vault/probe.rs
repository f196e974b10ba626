//! The patrol over a vault: whether its device would take a dump if power failed now.
//!
//! Once a minute, while it is empty, its superblocks are read, and a stretch of its free space;
//! every tenth time a small dump is written and read back as well. A device that fails, or that
//! does not answer, is not reckoned with from that moment, so that write-back under supplies ends
//! before power does. It is tried again every few seconds then, and counts again when it answers
//! and was measured.

use super::measure::Pattern;
use super::save::Saver;
use super::{Vault, VaultError, VaultPhase, fresh_id};
use forebay_backend::{AlignedBuffer, Blocking};
use forebay_format::journal::{LOG_OFFSET, SUPERBLOCK_BYTES, Superblock};
use forebay_journal::Dump;
use forebay_types::{Fault, IoError};
use std::time::{Duration, Instant};

/// From one look to the next, and while something is wrong.
const PROBE_EVERY: Duration = Duration::from_secs(60);
const PROBE_AGAIN: Duration = Duration::from_secs(5);
/// Every so many looks something is written, too.
const WRITE_EVERY: u64 = 10;
/// Bytes that are written then, and bytes of free space that are read each time.
const WRITTEN_BYTES: u64 = 4 << 20;
const READ_BYTES: u64 = 1 << 20;
/// A device that takes longer for a look, or for being measured, is not reckoned with.
pub(super) const PROBE_PATIENCE: Duration = Duration::from_secs(10);
pub(super) const MEASURE_PATIENCE: Duration = Duration::from_secs(300);

/// What is known of the device since it was looked at last.
#[derive(Debug)]
pub(super) struct Probe {
    /// When the next look is due.
    pub at: Instant,
    /// Looks that have ended well.
    pub good: u64,
    /// What is wrong, if something is.
    pub trouble: Option<String>,
    /// Until when what is under way should have ended.
    pub ends_by: Option<Instant>,
    /// Where free space is read next.
    place: u64,
}

impl Default for Probe {
    fn default() -> Self {
        let (at, good, trouble, ends_by) = (Instant::now() + PROBE_EVERY, 0, None, None);
        Self { at, good, trouble, ends_by, place: 0 }
    }
}

impl Probe {
    /// Why the device is not reckoned with, if so.
    pub(super) fn trouble(&self) -> Option<String> {
        let is_late = self.ends_by.is_some_and(|end| Instant::now() > end);
        let late = is_late.then(|| "it does not answer".to_owned());
        late.or_else(|| self.trouble.clone())
    }
}

impl Vault {
    /// Looks at the device soon, instead of when it is due.
    pub fn look_now(&self) {
        self.state().probe.at = Instant::now();
        self.bell.notify_all();
    }

    /// Looks at the device at once where it is not in its place any more.
    pub(crate) fn check_presence(&self) {
        let is_known = self.state().probe.trouble.is_some();
        if !is_known && self.is_in_place().is_err() {
            self.look_now();
        }
    }

    /// Whether a later start would find what is dumped now.
    ///
    /// # Errors
    /// When the device is not where it was opened.
    pub(super) fn is_in_place(&self) -> Result<(), VaultError> {
        self.backend.check_presence().map_err(|displaced| {
            let name = self.name.clone();
            VaultError::Displaced { name, displaced }
        })
    }

    /// Looks at the device. What comes of it is in the status from then on.
    pub(super) fn probe(&self) {
        let (writes, place) = {
            let mut state = self.state();
            let probe = &mut state.probe;
            let writes = probe.trouble.is_some() || (probe.good + 1).is_multiple_of(WRITE_EVERY);
            let place = probe.place;
            probe.place = (place + READ_BYTES) % self.geometry.log_bytes();
            probe.ends_by = Some(Instant::now() + PROBE_PATIENCE);
            (writes, place)
        };
        let looked = self.look(place).and_then(|()| match writes {
            true => self.write_some(),
            false => Ok(()),
        });
        let mut state = self.state();
        let was_late = state.probe.trouble();
        state.probe.ends_by = None;
        let before = state.probe.trouble.take().or(was_late);
        let name = &self.name;
        match looked {
            // A dump for real, or a battery, comes first.
            Err(VaultError::CalledOff(_) | VaultError::Occupied(_)) => {
                state.probe.trouble = before;
                state.probe.at = Instant::now() + PROBE_AGAIN;
            }
            Ok(()) => {
                state.probe.good += 1;
                state.probe.at = Instant::now() + PROBE_EVERY;
                if before.is_some() {
                    tracing::info!("vault {name} can be used again");
                    state.measure_at = Instant::now();
                }
            }
            Err(error) => {
                let told = error.with_causes();
                if before.as_ref() != Some(&told) {
                    tracing::error!(
                        "a dump would not be kept now: {told}; until that is mended, writes under \
                         supplies go to the disks"
                    );
                }
                state.probe.trouble = Some(told);
                state.measured = None;
                state.probe.at = Instant::now() + PROBE_AGAIN;
            }
        }
    }

    fn look(&self, place: u64) -> Result<(), VaultError> {
        // A dump or a drill shows more than a look.
        let occupied = || VaultError::Occupied(self.name.clone());
        let work = self.work.try_lock().ok_or_else(occupied)?;
        if self.state().phase != VaultPhase::Ready {
            return Err(occupied());
        }
        self.is_in_place()?;
        let failed = |error| VaultError::io(&self.name, error);
        let device = Blocking::new(&*self.backend);
        let mut head = AlignedBuffer::new(2 * SUPERBLOCK_BYTES);
        device.read(0, &mut head).map_err(failed)?;
        let (one, other) = head.split_at(SUPERBLOCK_BYTES);
        let newest = Superblock::newest([one, other]).ok();
        if newest.is_none_or(|superblock| superblock.journal != work.id) {
            return Err(VaultError::Overwritten(self.name.clone()));
        }
        let len = READ_BYTES.min(self.geometry.log_bytes() - place);
        let mut free = AlignedBuffer::new(len as usize);
        device.read(LOG_OFFSET + place, &mut free).map_err(failed)
    }

    /// Writes a small dump that is none, and reads it back.
    fn write_some(&self) -> Result<(), VaultError> {
        let occupied = || VaultError::Occupied(self.name.clone());
        let mut work = self.work.try_lock().ok_or_else(occupied)?;
        let is_free = {
            let state = self.state();
            state.phase == VaultPhase::Ready && !state.on_battery
        };
        if !is_free {
            return Err(occupied());
        }
        let pattern = Pattern::new(WRITTEN_BYTES.min(self.geometry.log_bytes() / 2));
        let id = fresh_id().map_err(|error| VaultError::io(&self.name, error))?;
        let dump = Dump::new(id, self.size_bytes, self.geometry, 0, Vec::new());
        let batches = std::mem::take(&mut work.batches);
        let mut saver = Saver::new(&*self.backend, batches, dump, &pattern, &self.is_wanted);
        let saved = saver.write(false).and_then(|()| saver.verify(false, None, None));
        let failures = saver.failures;
        work.batches = saver.into_batches().1;
        saved.map_err(|stop| self.stopped(stop))?;
        match failures {
            0 => Ok(()),
            // A dump goes elsewhere on the device then; one that begins to fail is not to be relied
            // upon all the same.
            _ => Err(VaultError::io(&self.name, IoError::Io)),
        }
    }
}
