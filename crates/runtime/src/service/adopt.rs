//! Adopts the pool of a previous process.
//!
//! The pool is at least as new as the journal: a change is made in the pool before it is recorded,
//! and a line that was evicted is on the disk, which survives the death of a process. So a volume
//! that is in the pool is not restored from its journal.
//!
//! But the pool may hold data without a durable record: of a write that was not acknowledged, or
//! whose record was still in the memory of the process. Such lines cannot be told from the others.
//! So all dirty data is recorded again before the volume is served. Otherwise a FLUSH, which waits
//! only for the journal, would not cover it. When the recording ends, the older records are voided:
//! they would undo lines that have become clean meanwhile. A process that finds it unfinished
//! starts over (`record_again`).

use super::VolumeSettings;
use crate::error::VolumeError;
use crate::pool::{MappedLines, Pool, PoolError, PoolVolume, Progress, checksum};
use crate::protect::patrol;
use crate::shared::Shared;
use forebay_backend::{AlignedBuffer, Backend, Blocking, Description};
use forebay_engine::{Fate, LineKey, MemoryStep, Outbox, Recovery, Shard, ShardConfig};
use forebay_format::journal::{JournalId, SAMPLES_MAX};
use forebay_journal::decision::{
    Decision, JournalState, PoolState, ServeInputs, VaultState, decide,
};
use forebay_journal::identity::{Evidence, SizeEvidence};
use forebay_policy::Weir;
use forebay_types::limits::VOLUMES_MAX;
use forebay_types::{LINE_BYTES, SECTOR_BYTES, Stripes, VolumeId};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The recovery of a volume before it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryPlan {
    /// There is no data to recover.
    Fresh,
    /// Restore its data from the journal.
    Restore,
    /// Keep its lines in the adopted pool.
    Keep,
    /// Keep its lines in the adopted pool, and record the dirty ones again.
    Record,
}

/// Decides how to recover a volume from pool and journal. `in_pool` is the volume's progress in the
/// adopted pool, if it is there.
pub(crate) const fn plan_recovery(has_journal: bool, in_pool: Option<Progress>) -> RecoveryPlan {
    match (has_journal, in_pool) {
        (false, None) => RecoveryPlan::Fresh,
        (false, Some(_)) => RecoveryPlan::Keep,
        // The lines already in the pool are a subset of the data in the journal.
        (true, None | Some(Progress::Restoring)) => RecoveryPlan::Restore,
        // An interrupted recording starts over: none of the older records is void yet.
        (true, Some(Progress::Recording | Progress::Whole)) => RecoveryPlan::Record,
    }
}

/// Makes the shards of a pool: empty ones, or with the lines of an adopted pool.
pub(crate) fn shards(
    pool: &Arc<Pool>,
    dirty_age: Duration,
) -> Result<Vec<Shard<MappedLines>>, PoolError> {
    let slots = pool.shard_slots();
    let dirty_age_ms = dirty_age.as_millis() as u64;
    let config = ShardConfig { dirty_age_ms, ..ShardConfig::for_slots(slots) }.among(pool.shards());
    let policy = || Box::new(Weir::new(slots));
    if !pool.is_adopted() {
        let shard = |shard| Shard::new(pool.table(shard), policy(), config);
        return Ok((0..pool.shards()).map(shard).collect());
    }
    let begun = Instant::now();
    // By number: the fate of each line is looked up.
    let mut lasts = [None; VOLUMES_MAX];
    for known in pool.volumes() {
        if let Some(lasts) = lasts.get_mut(usize::from(known.id.0)) {
            *lasts = Some(known.lasts);
        }
    }
    let fate = |volume: VolumeId| match lasts.get(usize::from(volume.0)).copied().flatten() {
        None => Fate::Unknown,
        Some(true) => Fate::Kept,
        Some(false) => Fate::Gone,
    };
    let mut found = Recovery::default();
    let mut shards = Vec::with_capacity(pool.shards());
    for number in 0..pool.shards() {
        let mut steps = Vec::new();
        let recovered = Shard::recover(pool.table(number), policy(), config, &fate, &mut steps);
        let (mut shard, recovered) =
            recovered.map_err(|damage| PoolError::Damaged(damage.to_string()))?;
        for step in steps {
            crate::worker::carry_out(pool, number, &[], step);
        }
        shard.finish_call();
        // The previous process may have been killed before it gave the memory of these slabs back.
        for slab in shard.slots().slabs().given_back() {
            if let Err(error) = pool.give_back(number, slab) {
                tracing::warn!(%error, shard = number, "cannot give memory back");
            }
        }
        found.add(&recovered);
        shards.push(shard);
    }
    pool.change_volumes(|volumes| volumes.retain(|volume| volume.lasts));
    tracing::info!(
        mib = (found.lines * LINE_BYTES) >> 20,
        dirty_mib = (found.dirty_lines * LINE_BYTES) >> 20,
        moving_lines = found.moving_lines,
        torn_sectors = found.torn_sectors,
        given_back_mib = (found.given_back_lines * LINE_BYTES) >> 20,
        ms = begun.elapsed().as_millis() as u64,
        "adopted the pool of the previous process"
    );
    Ok(shards)
}

/// Identifies a volume and its disk in the pool.
fn identity(name: &str, disk: &Description) -> u64 {
    let store = disk.identity.as_deref().unwrap_or_default();
    checksum(&[name, &disk.name, store].join("\0").into_bytes())
}

impl PoolVolume {
    /// Whether the lines belong to this volume name and disk. The disk may have grown.
    fn matches(&self, name: &str, disk: &Description) -> bool {
        self.identity == identity(name, disk) && self.size_bytes <= disk.size_bytes()
    }
}

/// The volumes that the pool has lines of, served or not.
pub(crate) struct PoolVolumes<'a> {
    shared: &'a Shared,
}

impl<'a> PoolVolumes<'a> {
    pub(crate) const fn of(shared: &'a Shared) -> Self {
        Self { shared }
    }

    /// Decides how to recover a volume that is being added.
    pub(crate) fn recovery_plan(&self, settings: &VolumeSettings) -> RecoveryPlan {
        let found = self.in_pool(&settings.name);
        let disk = settings.backend.description();
        let same = found.filter(|found| found.matches(&settings.name, disk));
        plan_recovery(settings.journal.is_some(), same.map(|found| found.progress))
    }

    /// Whether the pool has all data of a volume: not if the previous process was still restoring
    /// it from a journal.
    pub(crate) fn is_whole(&self, settings: &VolumeSettings) -> bool {
        let disk = settings.backend.description();
        let found = self.in_pool(&settings.name);
        let found = found.filter(|found| found.matches(&settings.name, disk));
        found.is_some_and(|found| found.progress != Progress::Restoring)
    }

    /// Whether the pool has all data of a volume with this name. Does not compare the disk.
    pub(crate) fn has_all_of(&self, name: &str) -> bool {
        self.in_pool(name).is_some_and(|found| found.progress != Progress::Restoring)
    }

    fn in_pool(&self, name: &str) -> Option<PoolVolume> {
        self.shared.pool.find_volume(|volume| volume.name == name)
    }

    /// Drops all clean data of a volume that is not served.
    fn forget_clean(&self, id: VolumeId) {
        for at in 0..self.shared.shards.len() {
            let mut shard = self.shared.shard(at);
            let mut out = Outbox::default();
            shard.forget_clean(id, &mut out);
            for step in out.memory {
                let MemoryStep::Verify { seal, kept } = step else {
                    unreachable!("no data is moved")
                };
                patrol::verify_before(self.shared, at, &mut shard, &seal, kept);
            }
        }
    }

    /// Compares a volume's lines in the adopted pool with its disk, which may have been changed
    /// while the volume was not served. If it was, clean lines are dropped. If there are dirty
    /// lines, they are kept and the volume is refused, unless the operator accepts the disk.
    pub(crate) fn compare(&self, settings: &VolumeSettings) -> Result<(), VolumeError> {
        let name = &settings.name;
        let Some(found) = self.in_pool(name) else { return Ok(()) };
        let disk = settings.backend.description();
        if !found.matches(name, disk) {
            return Ok(());
        }
        let evidence = settings.trust().judge(self.examine(found.id, &*settings.backend));
        if evidence.differing == 0 && !evidence.has_other_owner {
            return Ok(());
        }
        let dirty_bytes = self.shared.shards.unclaimed_bytes(found.id);
        let decision = decide(ServeInputs {
            journal: JournalState::None,
            pool: PoolState::Adopted,
            vault: VaultState::None,
            disk: evidence.identity(),
            // Without dirty lines, the pool has nothing that the disk needs.
            has_clean_mark: dirty_bytes == 0,
            accept_loss: false,
            accept_disk: settings.accept_disk,
        });
        let disk = disk.name.clone();
        if decision == Decision::Quarantine {
            return Err(VolumeError::ChangedDisk {
                name: name.clone(),
                disk,
                dirty_bytes,
                evidence,
            });
        }
        tracing::warn!(
            volume = %name,
            %disk,
            %evidence,
            dirty_bytes,
            "disk changed while the volume was not served, its clean lines are dropped"
        );
        self.forget_clean(found.id);
        if dirty_bytes == 0 {
            // With another identity, the volume does not match its lines in the pool, and is
            // recovered from its journal if that belongs to this disk.
            self.shared.pool.change_volumes(|volumes| {
                let changed = volumes.iter_mut().filter(|volume| volume.id == found.id);
                changed.for_each(|volume| volume.identity = !volume.identity);
            });
        }
        Ok(())
    }

    /// Compares clean lines of a volume in the pool with its disk: an undamaged clean line has the
    /// content that the disk had. At most as many lines are read as a journal has samples.
    fn examine(&self, id: VolumeId, disk: &dyn Backend) -> Evidence {
        let shards = self.shared.shards.len();
        let each = SAMPLES_MAX.div_ceil(shards);
        let mut kept = Vec::new();
        for at in 0..shards {
            let shard = self.shared.shard(at);
            for (key, slot, valid) in shard.slots().clean_lines(id, each) {
                let mut line = AlignedBuffer::new(LINE_BYTES as usize);
                self.shared.pool.copy_line(at, slot, &mut line);
                // A line that is not sealed, or damaged, proves nothing.
                if patrol::is_sealed_as(&self.shared.pool, at, key, slot, valid, &line) {
                    kept.push((key, valid, line));
                }
            }
        }
        let size_bytes = disk.description().size_bytes();
        let block = |key: LineKey| {
            let len = size_bytes.saturating_sub(key.offset()).min(LINE_BYTES);
            (key.offset(), AlignedBuffer::new(len as usize))
        };
        kept.retain(|(key, ..)| key.offset() < size_bytes);
        let mut there: Vec<_> = kept.iter().map(|(key, ..)| block(*key)).collect();
        let results = Blocking::new(disk).read_many(&mut there);
        let mut evidence =
            Evidence { has_same_name: true, size: SizeEvidence::Same, ..Evidence::default() };
        for ((_, valid, line), ((_, bytes), result)) in kept.iter().zip(there.iter().zip(results)) {
            if result.is_err() {
                continue;
            }
            let sectors =
                line.chunks(SECTOR_BYTES as usize).zip(bytes.chunks(SECTOR_BYTES as usize));
            let mut counting = sectors.enumerate().filter(|(sector, _)| valid >> sector & 1 == 1);
            let is_same = counting.all(|(_, (here, there))| here == there);
            evidence.compared += 1;
            evidence.differing += usize::from(!is_same);
            evidence.matching += usize::from(is_same && line.iter().any(|&byte| byte != 0));
        }
        evidence
    }

    /// Records a volume in the pool. Returns its number, and the stripes by which its lines are
    /// distributed over the shards. A volume of the adopted pool keeps both.
    pub(crate) fn enter(
        &self,
        settings: &VolumeSettings,
    ) -> Result<(VolumeId, Stripes), VolumeError> {
        let disk = settings.backend.description();
        let found = self.in_pool(&settings.name);
        let is_same = found.as_ref().is_some_and(|found| found.matches(&settings.name, disk));
        if let Some(found) = &found {
            let dirty_bytes = self.shared.shards.unclaimed_bytes(found.id);
            if !is_same && dirty_bytes > 0 {
                let (name, backing) = (settings.name.clone(), found.backing.clone());
                return Err(VolumeError::OtherDisk { name, backing, dirty_bytes });
            }
            if !is_same {
                self.shared.shards.drop_clean(found.id);
            }
        }
        let id = match &found {
            Some(found) => found.id,
            None => self.shared.pool.free_number().ok_or(VolumeError::TooMany)?,
        };
        let found = found.filter(|_| is_same);
        let stripes = found.as_ref().map_or(settings.geometry.stripes(), |found| found.stripes);
        let progress = found.as_ref().map(|found| found.progress);
        let plan = plan_recovery(settings.journal.is_some(), progress);
        // Without its journal, a volume's writes are not recorded.
        let keeps_record = plan == RecoveryPlan::Record;
        let recorded_in = found.filter(|_| keeps_record).and_then(|found| found.recorded_in);
        let progress = match (plan, progress) {
            (RecoveryPlan::Restore, _) => Progress::Restoring,
            (RecoveryPlan::Record, _) => Progress::Recording,
            // An unfinished restore or recording stays unfinished without the journal.
            (RecoveryPlan::Keep, Some(progress)) => progress,
            (RecoveryPlan::Keep | RecoveryPlan::Fresh, _) => Progress::Whole,
        };
        let entry = PoolVolume {
            id,
            name: settings.name.clone(),
            backing: disk.name.clone(),
            size_bytes: disk.size_bytes(),
            identity: identity(&settings.name, disk),
            lasts: disk.identity.is_some(),
            progress,
            stripes,
            recorded_in,
        };
        self.shared.pool.change_volumes(|volumes| {
            volumes.retain(|volume| volume.id != id);
            volumes.push(entry);
        });
        Ok((id, stripes))
    }

    /// Drops all data of a volume that is not served, dirty data too: its disk and its journal have
    /// newer data. Returns the dirty bytes.
    pub(crate) fn abandon(&self, name: &str) -> u64 {
        let found = self.in_pool(name).filter(|found| self.shared.volume(found.id).is_none());
        let Some(found) = found else { return 0 };
        let bytes = self.shared.shards.abandon_unclaimed(found.id);
        self.leave(found.id);
        bytes
    }

    /// Records in the pool that all data of a volume is in the pool, or on the disk. `recorded_in`
    /// is the journal that has a record of all acknowledged data that the disk may lack.
    pub(crate) fn mark_whole(&self, id: VolumeId, recorded_in: Option<JournalId>) {
        self.shared.pool.change_volumes(|volumes| {
            let mut volumes = volumes.iter_mut();
            if let Some(volume) = volumes.find(|volume| volume.id == id) {
                volume.progress = Progress::Whole;
                volume.recorded_in = recorded_in;
            }
        });
    }

    /// Notes that the disk of a volume has grown to `size_bytes`.
    pub(crate) fn grow(&self, id: VolumeId, size_bytes: u64) {
        self.shared.pool.change_volumes(|volumes| {
            if let Some(volume) = volumes.iter_mut().find(|volume| volume.id == id) {
                volume.size_bytes = volume.size_bytes.max(size_bytes);
            }
        });
    }

    /// Whether the pool's record of a volume says that pool and disk have all data of it.
    pub(crate) fn is_marked_whole(&self, id: VolumeId) -> bool {
        let found = self.shared.pool.find_volume(|volume| volume.id == id);
        found.is_none_or(|volume| volume.progress == Progress::Whole)
    }

    /// Whether this journal has a record of all data of a volume that a previous process has
    /// acknowledged and the disk may lack.
    pub(crate) fn is_all_in(&self, id: VolumeId, journal: JournalId) -> bool {
        let found = self.shared.pool.find_volume(|volume| volume.id == id);
        found.is_some_and(|volume| volume.recorded_in == Some(journal))
    }

    /// Removes the pool's record of a volume.
    pub(crate) fn leave(&self, id: VolumeId) {
        self.shared.pool.change_volumes(|volumes| volumes.retain(|volume| volume.id != id));
    }

    /// Removes the pool's records of all volumes that are served.
    pub(crate) fn leave_served(&self) {
        let served = self.shared.volumes.all();
        let served: HashSet<VolumeId> = served.iter().map(|volume| volume.id).collect();
        self.shared
            .pool
            .change_volumes(|volumes| volumes.retain(|volume| !served.contains(&volume.id)));
    }

    /// Drops the clean lines of volumes that are neither served nor being added, because other
    /// programs may change their disks. Dirty lines stay. Returns the volumes that have some, each
    /// as `name=backing`, with the bytes.
    pub(crate) fn drop_unserved(
        &self,
        is_being_added: impl Fn(&str) -> bool,
    ) -> Vec<(String, u64)> {
        let mut left = Vec::new();
        for found in self.shared.pool.volumes() {
            if self.shared.volume(found.id).is_some() || is_being_added(&found.name) {
                continue;
            }
            self.shared.shards.drop_clean(found.id);
            match self.shared.shards.unclaimed_bytes(found.id) {
                0 => self.leave(found.id),
                bytes => left.push((format!("{}={}", found.name, found.backing), bytes)),
            }
        }
        left
    }

    /// Volumes that have dirty lines in the adopted pool and are not served, with the bytes.
    pub(crate) fn unserved(&self) -> Vec<(String, u64)> {
        let found = self.shared.pool.volumes().into_iter();
        let bytes = found.map(|found| (self.shared.shards.unclaimed_bytes(found.id), found));
        let held = bytes.filter(|(bytes, _)| *bytes > 0);
        held.map(|(bytes, found)| (found.name, bytes)).collect()
    }
}

#[cfg(test)]
mod tests;
