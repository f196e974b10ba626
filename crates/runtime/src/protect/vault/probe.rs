//! Probes the vault's device, to know that a dump would succeed before the power fails.
//!
//! Once a minute, while the vault is empty, a probe reads the superblocks and some of the free
//! space; every tenth probe, and each probe after a failed one, also writes a small dump and reads
//! it back. If the device fails or does not respond, write-back under a UPS ends. The device is
//! then probed every few seconds, and is relied on again after a probe and a measurement have
//! succeeded.

use super::measure::Pattern;
use super::save::Saver;
use super::{Vault, VaultError, VaultPhase, fresh_id};
use forebay_backend::{AlignedBuffer, Blocking};
use forebay_format::journal::{LOG_OFFSET, SUPERBLOCK_BYTES, Superblock};
use forebay_journal::Dump;
use forebay_types::{Fault, IoError};
use std::time::{Duration, Instant};

/// The time from one probe to the next.
const PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// The time from a failed probe to the next.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Every tenth probe also writes.
const WRITE_EVERY: u64 = 10;
const WRITTEN_BYTES: u64 = 4 << 20;
/// Bytes of free space read by each probe.
const READ_BYTES: u64 = 1 << 20;
/// While a probe or measurement takes longer than this, the device is not relied on.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const MEASURE_TIMEOUT: Duration = Duration::from_secs(300);

/// The state of the probes.
#[derive(Debug)]
pub(super) struct Probe {
    /// When the next probe is due.
    pub at: Instant,
    /// Probes that have succeeded.
    pub succeeded: u64,
    /// Why the last probe failed.
    pub trouble: Option<String>,
    /// The deadline of the probe or measurement in progress.
    pub deadline: Option<Instant>,
    /// The offset in the free space that is read next.
    place: u64,
}

impl Default for Probe {
    fn default() -> Self {
        let at = Instant::now() + PROBE_INTERVAL;
        Self { at, succeeded: 0, trouble: None, deadline: None, place: 0 }
    }
}

impl Probe {
    /// Why the device is not relied on, if so.
    pub(super) fn trouble(&self) -> Option<String> {
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() > deadline);
        let late = is_late.then(|| "it does not respond".to_owned());
        late.or_else(|| self.trouble.clone())
    }
}

impl Vault {
    /// Makes the thread probe the device at once.
    pub fn probe_now(&self) {
        self.state().probe.at = Instant::now();
        self.wakeup.notify_all();
    }

    /// Requests a probe at once if the device is displaced.
    pub(crate) fn check_presence(&self) {
        let is_known = self.state().probe.trouble.is_some();
        if !is_known && self.is_in_place().is_err() {
            self.probe_now();
        }
    }

    /// Checks that the next start would find the device.
    pub(super) fn is_in_place(&self) -> Result<(), VaultError> {
        self.backend.check_presence().map_err(|displaced| {
            let name = self.name.clone();
            VaultError::Displaced { name, displaced }
        })
    }

    /// Probes the device, and stores the result for the status.
    pub(super) fn probe(&self) {
        let (writes, place) = {
            let mut state = self.state();
            let probe = &mut state.probe;
            let writes =
                probe.trouble.is_some() || (probe.succeeded + 1).is_multiple_of(WRITE_EVERY);
            let place = probe.place;
            probe.place = (place + READ_BYTES) % self.geometry.log_bytes();
            probe.deadline = Some(Instant::now() + PROBE_TIMEOUT);
            (writes, place)
        };
        let result = self.probe_reads(place).and_then(|()| match writes {
            true => self.probe_writes(),
            false => Ok(()),
        });
        let mut state = self.state();
        let was_late = state.probe.trouble();
        state.probe.deadline = None;
        let before = state.probe.trouble.take().or(was_late);
        let name = &self.name;
        match result {
            // Cancelled or prevented by a dump, a drill, or a power failure.
            Err(VaultError::CalledOff(_) | VaultError::Occupied(_)) => {
                state.probe.trouble = before;
                state.probe.at = Instant::now() + RETRY_INTERVAL;
            }
            Ok(()) => {
                state.probe.succeeded += 1;
                state.probe.at = Instant::now() + PROBE_INTERVAL;
                if before.is_some() {
                    tracing::info!(vault = %name, "vault usable again");
                    state.measure_at = Instant::now();
                }
            }
            Err(error) => {
                let trouble = error.explained();
                if before.as_ref() != Some(&trouble) {
                    tracing::error!(
                        vault = %name,
                        %error,
                        "vault cannot take a dump, volumes that rely on the UPS write through"
                    );
                }
                state.probe.trouble = Some(trouble);
                state.measured = None;
                state.probe.at = Instant::now() + RETRY_INTERVAL;
            }
        }
    }

    fn probe_reads(&self, place: u64) -> Result<(), VaultError> {
        // A dump or drill in progress proves more than a probe.
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

    /// Writes a small dump without a superblock, and reads it back.
    fn probe_writes(&self) -> Result<(), VaultError> {
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
        let mut saver = Saver::new(&*self.backend, batches, dump, &pattern, &self.cancelled);
        let saved = saver.write(false).and_then(|()| saver.verify(false, None, None));
        let failures = saver.failures();
        work.batches = saver.into_batches().1;
        saved.map_err(|stop| self.stopped(stop))?;
        match failures {
            0 => Ok(()),
            // A dump would relocate the batch, but a device that begins to fail is not relied on.
            _ => Err(VaultError::io(&self.name, IoError::Io)),
        }
    }
}
