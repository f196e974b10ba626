//! Measures the speed of the vault with the I/O of a dump: at the start, after a load, once a day,
//! after each drill, and when a failing device has recovered.

use super::batch::Batch;
use super::probe::MEASURE_TIMEOUT;
use super::report::{Measured, rate};
use super::save::{Saver, Source, Stop};
use super::{Vault, VaultError, VaultPhase, fresh_id};
use forebay_journal::Dump;
use forebay_threads::Thread;
use forebay_types::{Fault, IoError};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Bytes written by a measurement, at most half of the vault: enough to average out a disk that
/// starts slowly.
const MEASURED_BYTES: u64 = 256 << 20;
const MEASURE_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// The interval after a measurement that failed or was not possible.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Bytes of one record: a whole line.
const RECORD_BYTES: usize = 4096;
const PATTERN_BYTES: usize = 1 << 20;

/// Incompressible data that does not deduplicate.
pub(super) struct Pattern {
    bytes: Vec<u8>,
    records: usize,
}

impl Pattern {
    pub(super) fn new(bytes: u64) -> Self {
        // Xorshift (Marsaglia, 2003); any sequence with a long period would do.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let words = (0..PATTERN_BYTES / 8).flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        Self { bytes: words.collect(), records: (bytes / RECORD_BYTES as u64) as usize }
    }
}

impl Source for Pattern {
    fn len(&self) -> usize {
        self.records
    }

    fn fill(&self, mut at: usize, batch: &mut Batch) -> usize {
        while at < self.records && batch.has_room(RECORD_BYTES, 1) {
            // Each record begins at a different place of the pattern, so that no two are equal.
            let from = at * 1031 % (PATTERN_BYTES - RECORD_BYTES);
            batch.add(0, (at * RECORD_BYTES) as u64, &self.bytes[from..from + RECORD_BYTES]);
            at += 1;
        }
        at
    }
}

impl Vault {
    /// Measures the speed of the vault: writes up to 256 MiB to the space of a dump, and reads them
    /// back.
    ///
    /// # Errors
    /// When the vault is not ready, the machine is on battery, or the device fails.
    pub fn measure(&self) -> Result<Measured, VaultError> {
        let mut work = self.work();
        {
            let state = self.state();
            match state.phase {
                VaultPhase::Ready => {}
                phase => return Err(VaultError::in_phase(&self.name, phase)),
            }
            if state.on_battery {
                return Err(VaultError::CalledOff(self.name.clone()));
            }
        }
        let pattern = Pattern::new(MEASURED_BYTES.min(self.geometry.log_bytes() / 2));
        let id = fresh_id().map_err(|error| VaultError::io(&self.name, error))?;
        let dump = Dump::new(id, self.size_bytes, self.geometry, 0, Vec::new());
        let batches = std::mem::take(&mut work.batches);
        let mut saver = Saver::new(&*self.backend, batches, dump, &pattern, &self.cancelled);
        let begun = Instant::now();
        let written = saver.write(false);
        let write_time = begun.elapsed();
        let read = written.and_then(|()| saver.verify(false, None, None));
        let read_time = begun.elapsed() - write_time;
        let bytes = saver.saved_bytes();
        work.batches = saver.into_batches().1;
        read.map_err(|stop| self.stopped(stop))?;
        let measured = Measured {
            write_bytes_per_second: rate(bytes, write_time),
            read_bytes_per_second: rate(bytes, read_time),
            at: SystemTime::now(),
        };
        tracing::info!(
            vault = %self.name,
            write_mib_per_second = measured.write_bytes_per_second >> 20,
            read_mib_per_second = measured.read_bytes_per_second >> 20,
            "vault measured"
        );
        self.state().measured = Some(measured);
        Ok(measured)
    }

    pub(super) fn stopped(&self, stop: Stop) -> VaultError {
        match stop {
            Stop::Io(error) => VaultError::io(&self.name, error),
            Stop::Full => VaultError::io(&self.name, IoError::NoSpace),
            Stop::Cancelled => VaultError::CalledOff(self.name.clone()),
        }
    }

    /// Starts the thread that measures and probes the vault.
    pub(super) fn start_thread(self: &Arc<Self>) -> Result<(), VaultError> {
        let vault = Arc::clone(self);
        let spawned = Thread::named("vault").spawn(move || vault.run());
        let no_thread = |_| VaultError::io(&self.name, forebay_types::IoError::NoMemory);
        *self.thread.lock() = Some(spawned.map_err(no_thread)?);
        Ok(())
    }

    /// Makes the thread measure at once.
    pub(super) fn measure_soon(&self) {
        self.state().measure_at = Instant::now();
        self.wakeup.notify_all();
    }

    fn run(&self) {
        let mut state = self.state();
        while !state.stopping {
            let now = Instant::now();
            let is_ready = state.phase == VaultPhase::Ready;
            if is_ready && state.probe.at <= now && state.measure_at > now {
                drop(state);
                self.probe();
                state = self.state();
                continue;
            }
            let next =
                if is_ready { state.probe.at.min(state.measure_at) } else { state.measure_at };
            let left = next.saturating_duration_since(now);
            if left > Duration::ZERO {
                state = self.wakeup.wait_timeout(state, left);
                continue;
            }
            if state.phase != VaultPhase::Ready {
                // A load that empties the vault sets `measure_at`.
                state.measure_at = Instant::now() + RETRY_INTERVAL;
                continue;
            }
            state.measure_at = Instant::now() + MEASURE_INTERVAL;
            state.probe.deadline = Some(Instant::now() + MEASURE_TIMEOUT);
            drop(state);
            let measured = self.measure();
            state = self.state();
            state.probe.deadline = None;
            if let Err(error) = measured {
                let (vault, causes) = (&self.name, error.with_causes());
                tracing::warn!(%vault, error = causes, "vault measurement failed");
                if matches!(error, VaultError::Io { .. }) {
                    // The device may not accept a dump at the earlier speed.
                    state.measured = None;
                }
                state.measure_at = Instant::now() + RETRY_INTERVAL;
            }
        }
    }
}
