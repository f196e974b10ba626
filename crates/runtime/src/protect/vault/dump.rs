//! Dumps the dirty data of volumes, and empties the vault again.

use super::dirty::DirtyLines;
use super::flush::DiskFlushes;
use super::save::{Saver, Stop};
use super::{Attached, DumpReport, Vault, VaultError, VaultPhase, Work, fresh_id};
use crate::disk::{KeptSamples, hardware};
use crate::shared::Volume;
use forebay_backend::{AlignedBuffer, Blocking, Displaced};
use forebay_format::journal::{DiskInfo, Superblock, VolumeEntry};
use forebay_journal::Dump;
use forebay_types::VolumeId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// How long a dump without a deadline waits for the flushes of the disks.
pub(super) const DISKS_WAIT: Duration = Duration::from_secs(10);

impl Vault {
    /// Dumps all dirty data of some attached volumes: writes it, makes it durable, seals it,
    /// flushes the disks of the volumes, and reads the dump back until the deadline. The report
    /// says whether the dump was verified and which disks were not flushed. Writes to the volumes
    /// are halted before this call or by it, and stay halted: see the module's contracts. If there
    /// is already a complete dump of these volumes, its report is returned. The caller logs the
    /// outcome.
    ///
    /// # Errors
    /// Some data could not be saved. It stays dirty in the pool, so the dump can be repeated, or
    /// the data can be destaged. The next start loads the part of the dump that was written.
    pub fn dump(
        &self,
        volumes: &[VolumeId],
        deadline: Option<Instant>,
    ) -> Result<DumpReport, VaultError> {
        self.dump_after(volumes, deadline, || self.halt(volumes))
    }

    /// As [`Vault::dump`], and keeps the dump until the process exits.
    ///
    /// # Errors
    /// As [`Vault::dump`].
    pub(crate) fn leave(&self, volumes: &[VolumeId]) -> Result<DumpReport, VaultError> {
        self.is_left.store(true, Ordering::Relaxed);
        self.dump(volumes, None)
    }

    /// As [`Vault::dump`], and prepares the volumes with `prepare` instead of halting them.
    pub(super) fn dump_after(
        &self,
        volumes: &[VolumeId],
        deadline: Option<Instant>,
        prepare: impl FnOnce(),
    ) -> Result<DumpReport, VaultError> {
        self.cancelled.store(true, Ordering::Relaxed);
        let mut work = self.work();
        self.cancelled.store(false, Ordering::Relaxed);
        if let Err(error) = self.is_in_place()
            && matches!(
                error,
                VaultError::Displaced {
                    displaced: Displaced::Deleted | Displaced::Moved | Displaced::Replaced,
                    ..
                }
            )
        {
            return Err(error);
        }
        if let Some(report) = self.claim(volumes)? {
            return Ok(report);
        }
        prepare();
        let begun = Instant::now();
        let dumped = self.dump_with(&mut work, volumes, deadline, begun);
        let mut state = self.state();
        state.change_phase(VaultPhase::Dumping, VaultPhase::Dumped);
        state.dumped = dumped.is_ok().then(|| volumes.to_vec());
        if let Ok(report) = &dumped {
            state.last_dump = Some(report.clone());
        }
        dumped
    }

    fn halt(&self, volumes: &[VolumeId]) {
        for volume in volumes.iter().filter_map(|&id| self.shared.volume(id)) {
            if volume.power.has_ups() && volume.power.set_halted(true) {
                tracing::error!(volume = volume.name, "writes were not halted before the dump");
            }
        }
    }

    fn dump_with(
        &self,
        work: &mut Work,
        volumes: &[VolumeId],
        deadline: Option<Instant>,
        begun: Instant,
    ) -> Result<DumpReport, VaultError> {
        let id = fresh_id().map_err(|error| VaultError::io(&self.name, error))?;
        let (entries, lines, ids) = self.list(volumes);
        let dump = Dump::new(id, self.size_bytes, self.geometry, work.sequence, entries)
            .in_vault(self.number);
        let batches = std::mem::take(&mut work.batches);
        let never = AtomicBool::new(false);
        let mut saver = Saver::new(&*self.backend, batches, dump, &lines, &never);
        let mut report = DumpReport { begun_at: SystemTime::now(), ..DumpReport::default() };
        let written = saver.write_superblock().and_then(|()| saver.write(true));
        report.write_ms = begun.elapsed().as_millis() as u64;
        // Lines destaged before they were copied are not in the dump, so the disks are flushed.
        let disks = self.flush_disks(volumes);
        let sealed = written.and_then(|()| {
            // Writes were halted before the dump, so the valid samples no longer change.
            saver.seal(self.fingerprints(&ids))
        });
        report.sealed_ms = begun.elapsed().as_millis() as u64;
        let verified = sealed.and_then(|()| saver.verify(true, deadline, None));
        report.failures = saver.failures();
        report.bytes = saver.saved_bytes();
        report.written_bytes = saver.written_bytes();
        report.batches = saver.dump().placed().len() as u64;
        let (dump, batches) = saver.into_batches();
        work.batches = batches;
        (work.sequence, work.id) = (dump.superblock().sequence, id);
        report.verified = verified.map_err(|stop| VaultError::Dump {
            name: self.name.clone(),
            saved_bytes: report.bytes,
            reason: stop_reason(stop),
        })?;
        let until = deadline.unwrap_or_else(|| Instant::now() + DISKS_WAIT);
        report.unflushed = disks.wait(until);
        report.total_ms = begun.elapsed().as_millis() as u64;
        Ok(report)
    }

    /// Claims the vault for a dump. If there is already a complete dump of these volumes, returns
    /// its report.
    fn claim(&self, volumes: &[VolumeId]) -> Result<Option<DumpReport>, VaultError> {
        let mut state = self.state();
        match state.phase {
            phase @ (VaultPhase::Failed(_) | VaultPhase::Holding | VaultPhase::Dumping) => {
                return Err(VaultError::in_phase(&self.name, phase));
            }
            VaultPhase::Dumped => {
                let is_in = |dumped: &Vec<VolumeId>| volumes.iter().all(|id| dumped.contains(id));
                if state.dumped.as_ref().is_some_and(is_in) {
                    return Ok(state.last_dump.clone());
                }
            }
            VaultPhase::Ready => {}
        }
        state.phase = VaultPhase::Dumping;
        Ok(None)
    }

    /// Lists the dirty lines of some volumes, which are numbered from one in the dump.
    pub(super) fn list(
        &self,
        volumes: &[VolumeId],
    ) -> (Vec<VolumeEntry>, DirtyLines, Vec<(VolumeId, u16)>) {
        let mut entries: Vec<(VolumeId, VolumeEntry)> = {
            let state = self.state();
            let selected = state.volumes.iter().filter(|volume| volumes.contains(&volume.id));
            let entry = |(volume, number): (&Attached, u16)| VolumeEntry {
                number,
                name: volume.name.clone(),
                size_bytes: volume.size_bytes,
                identity: volume.identity,
                disk: DiskInfo::default(),
                void_before: 0,
            };
            selected.zip(1..).map(|numbered| (numbered.0.id, entry(numbered))).collect()
        };
        let ids: Vec<_> = entries.iter().map(|(id, entry)| (*id, entry.number)).collect();
        let lines = DirtyLines::of(&self.shared, &ids);
        entries.retain(|(id, _)| lines.has(*id));
        (entries.into_iter().map(|(_, entry)| entry).collect(), lines, ids)
    }

    /// The fingerprints of the disks of these volumes, which are given with their numbers in the
    /// dump.
    fn fingerprints(&self, volumes: &[(VolumeId, u16)]) -> Vec<(u16, DiskInfo)> {
        let fingerprint = |volume: &Volume| DiskInfo {
            hardware: hardware(&*volume.backend),
            samples: volume.disk.samples.get().map(KeptSamples::samples).unwrap_or_default(),
            ..DiskInfo::default()
        };
        let known = volumes.iter().filter_map(|&(id, number)| {
            self.shared.volume(id).map(|volume| (number, fingerprint(&volume)))
        });
        known.collect()
    }

    /// Starts to flush the disks of volumes: data that was destaged and is still in a disk's cache
    /// is not in the vault.
    pub(super) fn flush_disks(&self, ids: &[VolumeId]) -> DiskFlushes {
        DiskFlushes::start(ids.iter().filter_map(|&id| self.shared.volume(id)))
    }

    /// Empties the vault: the dumped data is on the disks, or still in the pool, which remains in
    /// use. No write may be acknowledged until this has succeeded.
    ///
    /// # Errors
    /// When neither the vault nor the record that its dump is void can be written. The caller must
    /// call this again.
    pub fn empty(&self) -> Result<(), VaultError> {
        let mut work = self.work();
        if self.is_left.load(Ordering::Relaxed) {
            return Err(VaultError::Dumping(self.name.clone()));
        }
        if self.state().phase != VaultPhase::Dumped {
            return Ok(());
        }
        let written = self.write_empty(&mut work);
        let Err(VaultError::Io { error, .. }) = written else {
            self.state().change_phase(VaultPhase::Dumped, VaultPhase::Ready);
            return written;
        };
        let recorded = (self.on_void)(work.id, error);
        if let Err(reason) = recorded {
            tracing::error!(
                vault = %self.name,
                error = %reason,
                "cannot record vault invalidation"
            );
            return Err(VaultError::io(&self.name, error));
        }
        tracing::error!(vault = %self.name, %error, "vault failed, no further dump is possible");
        let names: Vec<_> = self.state().volumes.iter().map(|v| v.name.clone()).collect();
        self.release(&names);
        self.state().change_phase(VaultPhase::Dumped, VaultPhase::Failed(error));
        Ok(())
    }

    pub(super) fn write_empty(&self, work: &mut Work) -> Result<(), VaultError> {
        let dump = Dump::new(work.id, self.size_bytes, self.geometry, work.sequence, Vec::new());
        let mut superblock = dump.in_vault(self.number).superblock().clone();
        superblock.is_clean = true;
        self.write_superblock(work, &mut superblock)
    }

    /// Writes the next superblock. If it cannot be written, writes its other copy.
    pub(super) fn write_superblock(
        &self,
        work: &mut Work,
        superblock: &mut Superblock,
    ) -> Result<(), VaultError> {
        let mut written = Ok(());
        for _ in 0..2 {
            work.sequence += 1;
            superblock.sequence = work.sequence;
            let bytes = AlignedBuffer::from(&*superblock.encode());
            written = Blocking::new(&*self.backend).write(superblock.position(), &bytes, true);
            if written.is_ok() {
                break;
            }
        }
        written.map_err(|error| VaultError::io(&self.name, error))
    }
}

fn stop_reason(stop: Stop) -> String {
    match stop {
        Stop::Io(error) => error.to_string(),
        Stop::Full => "the vault is full".to_owned(),
        Stop::Cancelled => "cancelled".to_owned(),
    }
}
