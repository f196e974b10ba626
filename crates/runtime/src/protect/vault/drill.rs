//! A drill: everything that a dump does, except that the superblock is not written.
//!
//! The dirty data is written to the space of a dump and made durable, the disks are flushed, and
//! everything is read back and compared with the pool. On the device, the vault stays empty.
//! Clients are served meanwhile, and the effect on their latencies is measured.
//!
//! If nothing is dirty, test data is written instead: a drill that saves nothing shows nothing.

use super::dirty::DirtyLines;
use super::dump::DISKS_WAIT;
use super::measure::Pattern;
use super::report::rate;
use super::save::{Saver, Source, Stop};
use super::{Vault, VaultError, VaultPhase, Work, fresh_id};
use crate::stats::Latencies;
use forebay_format::journal::VolumeEntry;
use forebay_journal::Dump;
use forebay_types::VolumeId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// How long latencies are measured before the drill, for comparison.
const BASELINE: Duration = Duration::from_secs(2);

/// The outcome of a drill.
#[derive(Clone, Debug, PartialEq)]
pub struct DrillReport {
    /// When it began.
    pub begun_at: SystemTime,
    /// Bytes in dirty lines when it began.
    pub dirty_bytes: u64,
    /// Bytes saved: the dirty sectors of these lines, or test data.
    pub bytes: u64,
    /// Whether nothing was dirty, so that test data was saved.
    pub is_test: bool,
    /// Bytes written, with headers and records.
    pub written_bytes: u64,
    /// Milliseconds until everything was durable.
    pub write_ms: u64,
    /// Bytes made durable per second. The cache of a device takes a small amount faster than the
    /// larger one of a measurement.
    pub bytes_per_second: u64,
    /// Milliseconds until the disks were flushed as well.
    pub disks_ms: u64,
    /// Milliseconds until everything was read back and compared.
    pub total_ms: u64,
    /// Whether everything was read back and was intact.
    pub verified: bool,
    /// Batches that failed and were written at another place.
    pub failures: u32,
    /// Bytes that the pool still held dirty, with the same content, when they were read back.
    pub same_bytes: u64,
    /// Bytes that were written again or destaged before they were read back.
    pub changed_bytes: u64,
    /// Volumes whose disks did not confirm a flush.
    pub unflushed: Vec<String>,
    /// Latencies in the two seconds before the drill.
    pub before: Latencies,
    /// Latencies during the drill.
    pub during: Latencies,
}

impl Vault {
    /// Runs a drill for some of the attached volumes. If nothing is dirty, writes `test_bytes` of
    /// test data, in whole lines.
    ///
    /// # Errors
    /// When the vault is not ready, the machine is on battery, a dump cancels the drill, or the
    /// device fails.
    pub fn drill(&self, volumes: &[VolumeId], test_bytes: u64) -> Result<DrillReport, VaultError> {
        let start = self.latencies();
        std::thread::sleep(BASELINE);
        let before = self.latencies();
        let mut report = self.rehearse(volumes, None)?;
        if report.bytes == 0 && test_bytes > 0 {
            report = self.rehearse(volumes, Some(test_bytes))?;
        }
        report.before = before.since(&start);
        report.during = self.latencies().since(&before);
        self.measure_soon();
        Ok(report)
    }

    /// Does what a dump does, with the dirty data of the volumes or this much test data.
    fn rehearse(
        &self,
        volumes: &[VolumeId],
        test_bytes: Option<u64>,
    ) -> Result<DrillReport, VaultError> {
        let mut work = self.work();
        let (phase, on_battery) = {
            let state = self.state();
            (state.phase, state.on_battery)
        };
        match phase {
            VaultPhase::Ready if on_battery => {
                return Err(VaultError::CalledOff(self.name.clone()));
            }
            VaultPhase::Ready => {}
            phase => return Err(VaultError::in_phase(&self.name, phase)),
        }
        match test_bytes {
            None => {
                let (entries, lines, _) = self.list(volumes);
                self.rehearse_with(&mut work, volumes, entries, &lines, Some(&lines))
            }
            Some(bytes) => {
                let pattern = Pattern::new(bytes);
                let report = self.rehearse_with(&mut work, volumes, Vec::new(), &pattern, None)?;
                Ok(DrillReport { is_test: true, ..report })
            }
        }
    }

    /// As [`Vault::rehearse`], with the data of `source`. With `lines`, the data read back is
    /// compared with the pool.
    fn rehearse_with<S: Source>(
        &self,
        work: &mut Work,
        volumes: &[VolumeId],
        entries: Vec<VolumeEntry>,
        source: &S,
        lines: Option<&DirtyLines>,
    ) -> Result<DrillReport, VaultError> {
        let (begun, begun_at) = (Instant::now(), SystemTime::now());
        let elapsed_ms = || begun.elapsed().as_millis() as u64;
        let dirty_bytes = self.dirty_bytes(volumes);
        let id = fresh_id().map_err(|error| VaultError::io(&self.name, error))?;
        let dump = Dump::new(id, self.size_bytes, self.geometry, 0, entries);
        let batches = std::mem::take(&mut work.batches);
        let mut saver = Saver::new(&*self.backend, batches, dump, source, &self.cancelled);
        let written = saver.write(false);
        let write_time = begun.elapsed();
        let mut compared = BTreeMap::new();
        let checked = written.and_then(|()| {
            let flushes = self.flush_disks(volumes);
            let until = Instant::now() + DISKS_WAIT;
            let unflushed = flushes.wait_unless(&self.cancelled, until).ok_or(Stop::Cancelled)?;
            let disks_ms = elapsed_ms();
            let mut compare = |batch: u64, records: &[_], bytes: &[u8]| {
                compared.extend(lines.map(|lines| (batch, lines.compare(records, bytes))));
            };
            let verified = saver.verify(false, None, Some(&mut compare))?;
            Ok((unflushed, disks_ms, verified))
        });
        let (bytes, written_bytes) = (saver.saved_bytes(), saver.written_bytes());
        let failures = saver.failures();
        work.batches = saver.into_batches().1;
        let (unflushed, disks_ms, verified) = checked.map_err(|stop| self.stopped(stop))?;
        Ok(DrillReport {
            begun_at,
            dirty_bytes,
            bytes,
            is_test: false,
            written_bytes,
            write_ms: write_time.as_millis() as u64,
            bytes_per_second: rate(bytes, write_time),
            disks_ms,
            total_ms: elapsed_ms(),
            verified,
            failures,
            same_bytes: compared.values().map(|(same, _)| same).sum(),
            changed_bytes: compared.values().map(|(_, changed)| changed).sum(),
            unflushed,
            before: Latencies::default(),
            during: Latencies::default(),
        })
    }

    /// The latencies of all volumes since the start.
    fn latencies(&self) -> Latencies {
        let mut sum = Latencies::default();
        for volume in self.shared.volumes.all() {
            sum.add(&volume.stats);
        }
        sum
    }
}
