//! What a pool that another process has left means for this one.
//!
//! The pool is at least as new as the journal in all it holds: a change is made in the pool before
//! it is recorded, and what has left the pool is on the disk, which the death of a process takes
//! nothing from. So nothing of a journal is brought back for a volume that is in the pool. But the
//! pool may hold what no record tells of: a write that was not answered, or one whose record was in
//! the memory of the process. Such lines look like others, so everything dirty is recorded once
//! more before the volume is served; only then is a FLUSH that waits for the journal worth what it
//! says. Until that is done the head of the pool says so: a process that finds it half done brings
//! everything to the disk and voids the records, because lines may be clean by then that an older
//! record would undo.

use crate::error::VolumeError;
use crate::patrol;
use crate::pool::{MappedLines, Pool, PoolError, PoolVolume, Progress, checksum};
use crate::server::{Runtime, VolumeSettings};
use forebay_backend::{AlignedBuffer, Backend, Blocking, Description};
use forebay_engine::{Fate, LineKey, Recovery, Shard, ShardConfig};
use forebay_format::journal::SAMPLES_MAX;
use forebay_journal::decision::{Decision, Inputs, JournalState, PoolState, VaultState, decide};
use forebay_journal::identity::Evidence;
use forebay_policy::PolicyKind;
use forebay_types::limits::VOLUMES_MAX;
use forebay_types::{LINE_BYTES, Mode, SECTOR_BYTES, Stripes, VolumeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Slots that are looked at under one lock when the clean lines of a volume are dropped: a fraction
/// of a millisecond.
const DROP_SLOTS: u32 = 2048;

/// How a volume begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// There is nothing to bring back.
    Fresh,
    /// With what its journal holds.
    Restore,
    /// With what the pool holds.
    Keep,
    /// The same, and its dirty lines are recorded once more.
    Record,
    /// Everything goes to the disk first, and the journal's records are void.
    Settle,
}

/// The one place where pool and journal are weighed against each other. `in_pool` is how far the
/// volume had come in the pool that was found, if it was there.
pub(crate) const fn beginning(has_journal: bool, in_pool: Option<Progress>) -> Beginning {
    match (has_journal, in_pool) {
        (false, None) => Beginning::Fresh,
        (false, Some(_)) => Beginning::Keep,
        // What is there of it already is a part of the same.
        (true, None | Some(Progress::Restoring)) => Beginning::Restore,
        (true, Some(Progress::Whole)) => Beginning::Record,
        (true, Some(Progress::Recording)) => Beginning::Settle,
    }
}

/// The shards of a pool: empty ones, or with what was found.
pub(crate) fn shards(
    pool: &Arc<Pool>,
    policy: PolicyKind,
    dirty_age: Duration,
) -> Result<Vec<Shard<MappedLines>>, PoolError> {
    let slots = pool.shard_slots();
    let dirty_age_ms = dirty_age.as_millis() as u64;
    let config = ShardConfig { dirty_age_ms, ..ShardConfig::for_slots(slots) }.among(pool.shards());
    if !pool.is_adopted() {
        let shard = |shard| Shard::new(pool.table(shard), policy.build(slots), config);
        return Ok((0..pool.shards()).map(shard).collect());
    }
    let begun = Instant::now();
    let volumes = pool.volumes();
    let fate = |volume: VolumeId| match volumes.iter().find(|known| known.id == volume) {
        None => Fate::Unknown,
        Some(known) if known.lasts => Fate::Kept,
        Some(_) => Fate::Gone,
    };
    let mut found = Recovery::default();
    let mut shards = Vec::with_capacity(pool.shards());
    for number in 0..pool.shards() {
        let mut steps = Vec::new();
        let recovered =
            Shard::recover(pool.table(number), policy.build(slots), config, &fate, &mut steps);
        let (mut shard, theirs) =
            recovered.map_err(|damage| PoolError::Damaged(damage.to_string()))?;
        for step in steps {
            crate::worker::carry_out(pool, number, &[], step);
        }
        shard.settle_steps();
        found.add(&theirs);
        shards.push(shard);
    }
    pool.change_volumes(|volumes| volumes.retain(|volume| volume.lasts));
    tracing::info!(
        "the pool of the process before goes on: {} MiB of lines, {} MiB of them dirty, {} lines \
         moving, {} sectors cut short; {} ms",
        (found.lines * LINE_BYTES) >> 20,
        (found.dirty_lines * LINE_BYTES) >> 20,
        found.moving_lines,
        found.torn_sectors,
        begun.elapsed().as_millis()
    );
    Ok(shards)
}

/// Names a volume's disk: lines of another name or backing are not its own.
fn identity(name: &str, disk: &Description) -> u64 {
    let store = disk.identity.as_deref().unwrap_or_default();
    checksum(&[name, &disk.name, store].join("\0").into_bytes())
}

impl PoolVolume {
    /// Whether this is the disk whose lines are in the pool. It may have grown.
    fn is_on(&self, name: &str, disk: &Description) -> bool {
        self.identity == identity(name, disk) && self.size_bytes <= disk.size_bytes
    }
}

impl Runtime {
    /// How a volume that is being added begins.
    pub(crate) fn beginning_of(&self, settings: &VolumeSettings) -> Beginning {
        let found = self.in_pool(&settings.name);
        let disk = settings.backend.description();
        let same = found.filter(|found| found.is_on(&settings.name, disk));
        beginning(settings.journal.is_some(), same.map(|found| found.progress))
    }

    /// Whether the pool has all that the last server of a volume had: not where that server was
    /// still loading a journal into it.
    pub(crate) fn pool_is_whole(&self, settings: &VolumeSettings) -> bool {
        let disk = settings.backend.description();
        let found = self.in_pool(&settings.name);
        let found = found.filter(|found| found.is_on(&settings.name, disk));
        found.is_some_and(|found| found.progress != Progress::Restoring)
    }

    /// Whether the pool has all there is of a volume of this name, as far as the name goes.
    pub fn is_in_pool(&self, name: &str) -> bool {
        self.in_pool(name).is_some_and(|found| found.progress != Progress::Restoring)
    }

    fn in_pool(&self, name: &str) -> Option<PoolVolume> {
        self.shared.pool.volumes().into_iter().find(|volume| volume.name == name)
    }

    /// Dirty bytes that were found of a volume that is not served.
    fn unclaimed_bytes(&self, id: VolumeId) -> u64 {
        let shards = 0..self.shared.shards.len();
        shards.map(|shard| self.shared.shard(shard).unclaimed(id)).sum::<u64>() * LINE_BYTES
    }

    /// Takes all clean lines of a volume out of the pool, few at a time: workers wait for a shard
    /// meanwhile.
    pub(crate) fn drop_clean(&self, id: VolumeId) {
        for shard in 0..self.shared.shards.len() {
            let mut next = Some(0);
            while let Some(first) = next {
                next = self.shared.shard(shard).drop_clean(id, first, DROP_SLOTS);
            }
        }
    }

    /// Compares what the pool holds of a volume with its disk, which somebody may have changed
    /// while nobody served it. Of a disk that was changed, clean lines are forgotten; dirty ones
    /// are kept and the volume refused, unless the operator says that the disk is the one.
    pub(crate) fn compare_pool(&self, settings: &VolumeSettings) -> Result<(), VolumeError> {
        let name = &settings.name;
        let Some(found) = self.in_pool(name) else { return Ok(()) };
        let disk = settings.backend.description();
        let is_served = self.shared.volume(found.id).is_some();
        if is_served || !found.is_on(name, disk) {
            return Ok(());
        }
        let evidence = self.examine_pool(found.id, &*settings.backend);
        if evidence.differing == 0 {
            return Ok(());
        }
        let dirty_bytes = self.unclaimed_bytes(found.id);
        let decision = decide(Inputs {
            journal: JournalState::None,
            each_write: false,
            pool: PoolState::Adopted,
            vault: VaultState::None,
            disk: evidence.identity(),
            // What is clean is not needed.
            clean_mark: dirty_bytes == 0,
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
            "{disk} has changed while volume '{name}' was not served ({evidence}): what was cached \
             of it is forgotten, and {dirty_bytes} bytes that the pool holds go there"
        );
        (0..self.shared.shards.len()).for_each(|at| self.shared.shard(at).forget_clean(found.id));
        if dirty_bytes == 0 {
            // It begins anew, with what its journal has, if that is for this disk.
            self.shared.pool.change_volumes(|volumes| {
                let ours = volumes.iter_mut().filter(|volume| volume.id == found.id);
                ours.for_each(|volume| volume.identity = !volume.identity);
            });
        }
        Ok(())
    }

    /// What the clean lines of a volume that is in the pool say of its disk: what is clean, and
    /// not damaged, is what the disk held. Up to as many are looked at as a journal has samples.
    fn examine_pool(&self, id: VolumeId, disk: &dyn Backend) -> Evidence {
        let shards = self.shared.shards.len();
        let each = SAMPLES_MAX.div_ceil(shards);
        let mut kept = Vec::new();
        for at in 0..shards {
            let shard = self.shared.shard(at);
            for (key, slot, valid) in shard.clean_lines(id, each) {
                let mut line = AlignedBuffer::new(LINE_BYTES as usize);
                self.shared.pool.copy_line(at, slot, &mut line);
                // One that was not sealed, or is damaged, tells nothing.
                if patrol::is_sealed_as(&self.shared.pool, at, key, slot, valid, &line) {
                    kept.push((key, valid, line));
                }
            }
        }
        let size_bytes = disk.description().size_bytes;
        let block = |key: LineKey| {
            let len = size_bytes.saturating_sub(key.offset()).min(LINE_BYTES);
            (key.offset(), AlignedBuffer::new(len as usize))
        };
        kept.retain(|(key, ..)| key.offset() < size_bytes);
        let mut there: Vec<_> = kept.iter().map(|(key, ..)| block(*key)).collect();
        let results = Blocking::new(disk).read_many(&mut there);
        let mut evidence = Evidence { same_words: true, same_size: true, ..Evidence::default() };
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
            evidence.telling += usize::from(is_same && line.iter().any(|&byte| byte != 0));
        }
        evidence
    }

    /// Puts a volume on record in the pool, and gives it the number that its lines have there, and
    /// the stripes by which they found their places.
    pub(crate) fn enter_pool(
        &self,
        settings: &VolumeSettings,
    ) -> Result<(VolumeId, Stripes), VolumeError> {
        let disk = settings.backend.description();
        let found = self.in_pool(&settings.name);
        let is_same = found.as_ref().is_some_and(|found| found.is_on(&settings.name, disk));
        if let Some(found) = &found {
            let dirty_bytes = self.unclaimed_bytes(found.id);
            if !is_same && dirty_bytes > 0 {
                let (name, backing) = (settings.name.clone(), found.backing.clone());
                return Err(VolumeError::OtherDisk { name, backing, dirty_bytes });
            }
            if !is_same {
                self.drop_clean(found.id);
            }
        }
        let id = match &found {
            Some(found) => found.id,
            None => self.free_number()?,
        };
        let found = found.filter(|_| is_same);
        let stripes = found.as_ref().map_or(settings.geometry.stripes(), |found| found.stripes);
        let progress = found.map(|found| found.progress);
        let progress = match (beginning(settings.journal.is_some(), progress), progress) {
            (Beginning::Restore, _) => Progress::Restoring,
            (Beginning::Record | Beginning::Settle, _) => Progress::Recording,
            // What a journal had begun is not done by leaving the journal out.
            (Beginning::Keep, Some(progress)) => progress,
            (Beginning::Keep | Beginning::Fresh, _) => Progress::Whole,
        };
        let entry = PoolVolume {
            id,
            name: settings.name.clone(),
            backing: disk.name.clone(),
            size_bytes: disk.size_bytes,
            identity: identity(&settings.name, disk),
            lasts: disk.identity.is_some(),
            progress,
            stripes,
        };
        self.shared.pool.change_volumes(|volumes| {
            volumes.retain(|volume| volume.id != id);
            volumes.push(entry);
        });
        Ok((id, stripes))
    }

    /// A number that no volume has, served or in the pool.
    fn free_number(&self) -> Result<VolumeId, VolumeError> {
        let in_pool = self.shared.pool.volumes();
        let is_free = |id: &VolumeId| {
            self.shared.volumes.get(*id).is_none() && in_pool.iter().all(|volume| volume.id != *id)
        };
        (0..VOLUMES_MAX as u16).map(VolumeId).find(is_free).ok_or(VolumeError::TooMany)
    }

    /// Everything that was to be brought back of a volume has been.
    pub(crate) fn is_whole(&self, id: VolumeId) {
        self.shared.pool.change_volumes(|volumes| {
            let mut volumes = volumes.iter_mut();
            if let Some(volume) = volumes.find(|volume| volume.id == id) {
                volume.progress = Progress::Whole;
            }
        });
    }

    /// Has nothing more of a volume in the pool.
    pub(crate) fn leave_pool(&self, id: VolumeId) {
        self.shared.pool.change_volumes(|volumes| volumes.retain(|volume| volume.id != id));
    }

    /// Brings everything dirty of a volume to its disk and takes it out of the pool, and what its
    /// journal has of it is void.
    pub(crate) fn settle_first(&self, settings: &VolumeSettings) -> Result<(), VolumeError> {
        tracing::warn!(
            "volume '{}': a start was cut short, so its dirty data goes to its disk first",
            settings.name
        );
        let Some(used) = &settings.journal else { return Ok(()) };
        let name = &settings.name;
        self.add_hidden(VolumeSettings {
            name: name.clone(),
            description: String::new(),
            backend: Arc::clone(&settings.backend),
            mode: Mode::WriteThrough,
            read_only: settings.read_only,
            prefetch: false,
            geometry: settings.geometry,
            gather_below: settings.gather_below,
            write_back: settings.write_back,
            ordered: false,
            tls_only: settings.tls_only,
            journal: None,
            vault: None,
            accept_disk: settings.accept_disk,
            ups: false,
        })?;
        self.flush_volume(name, |_| ())?;
        // While the pool still says that this is to be done, and before anybody is served.
        let size = settings.backend.description().size_bytes;
        used.journal.void(name, size, used.identity)?;
        self.named(name)?.leaving.store(false, Ordering::Relaxed);
        self.remove_volume(name, |_| ())
    }

    /// To be called when the volumes of a start have been added. Of volumes that were found and
    /// are not served, clean lines are let go, as nobody keeps others from their disks; dirty ones
    /// stay. Returns the names of those with dirty lines, and the bytes.
    pub fn close_adoption(&self) -> Vec<(String, u64)> {
        let _changing = self.changes.lock();
        let mut left = Vec::new();
        for found in self.shared.pool.volumes() {
            if self.shared.volume(found.id).is_some() {
                continue;
            }
            self.drop_clean(found.id);
            match self.unclaimed_bytes(found.id) {
                0 => self.leave_pool(found.id),
                bytes => left.push((format!("{}={}", found.name, found.backing), bytes)),
            }
        }
        left
    }

    /// Volumes whose dirty lines were found in the pool and that are not served, with the bytes.
    pub fn unserved(&self) -> Vec<(String, u64)> {
        let found = self.shared.pool.volumes().into_iter();
        let bytes = found.map(|found| (self.unclaimed_bytes(found.id), found));
        let held = bytes.filter(|(bytes, _)| *bytes > 0);
        held.map(|(bytes, found)| (found.name, bytes)).collect()
    }
}

#[cfg(test)]
mod tests;
