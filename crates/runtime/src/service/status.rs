//! Status snapshots of the runtime.

use super::pins::pinned_lines_max;
use super::{VolumeCondition, VolumeService};
use crate::disk::DiskStall;
use crate::error::VolumeError;
use crate::pool::{MappedLines, SUM_BYTES};
use crate::protect::patrol::PatrolStatus;
use crate::shared::{GatherStatus, LearnStatus, PinStatus, Volume, WarmUpStatus};
use crate::stats::{DiskUse, NamedStatistics, VolumeStatistics, add_up, add_up_arms};
use forebay_backend::{Description, Displaced, SaveState};
use forebay_engine::{Shard, ShardUsage, pool_share_lines, size_prediction};
use forebay_policy::{GovernorState, MemoryBounds, MissRatioCurve, SizePrediction};
use forebay_types::{DiskGeometry, IoError, LINE_BYTES, Mode, VolumeId};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Memory use, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStatus {
    /// The limit of the process, which can change while it runs.
    pub limit_bytes: u64,
    /// The least that it can be set to.
    pub limit_bytes_min: u64,
    /// The most that it can be set to.
    pub limit_bytes_max: u64,
    /// The part of the pool that may hold lines now. It follows the limit as fast as lines can be
    /// moved or destaged.
    pub pool_bytes: u64,
    /// Resident lines.
    pub used_bytes: u64,
    /// Dirty lines.
    pub dirty_bytes: u64,
    /// The dirty limit, at the present size of the pool and beside what is pinned.
    pub dirty_bytes_max: u64,
    /// Metadata of the pool.
    pub metadata_bytes: u64,
    /// Lines evicted since the start.
    pub evicted_lines: u64,
    /// Pinned ranges of all volumes, in memory or not.
    pub pinned_bytes: u64,
    /// The limit of [`MemoryStatus::pinned_bytes`].
    pub pinned_bytes_max: u64,
    /// The patrol over the pool.
    pub patrol: PatrolStatus,
}

/// A snapshot of a volume.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// Its number.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Its disk.
    pub backing: Description,
    /// Whether another host can take its disk over.
    pub is_shared: bool,
    /// The geometry in use for its disk.
    pub geometry: DiskGeometry,
    /// The gather threshold.
    pub gather: GatherStatus,
    /// The governor of its writeback.
    pub governor: GovernorState,
    /// Its cache mode.
    pub mode: Mode,
    /// Whether clients may only read it.
    pub read_only: bool,
    /// Whether it refuses clients, because it is being added, restored or removed.
    pub is_closed: bool,
    /// Whether its addition failed and could not be undone: it is not served, and must be removed.
    pub half_added: bool,
    /// The error of a failed flush of its disk, until the disk is trusted again.
    pub flush_failure: Option<IoError>,
    /// Its disk's oldest I/O, if that has not been answered for long.
    pub stall: Option<DiskStall>,
    /// The I/Os that its disk has failed lately; 0 when that is over.
    pub disk_errors: u64,
    /// How its disk is displaced, if it is not where it was opened.
    pub displaced: Option<Displaced>,
    /// Whether only the pool, under a UPS, holds its dirty data.
    pub is_ups_only: bool,
    /// Whether writes fail because power is failing.
    pub halted: bool,
    /// Bytes in resident lines.
    pub cached_bytes: u64,
    /// Its guaranteed share of the pool, in bytes.
    pub share_min_bytes: u64,
    /// Its largest share of the pool, in bytes; `None` if there is no limit.
    pub share_max_bytes: Option<u64>,
    /// Bytes in dirty lines.
    pub dirty_bytes: u64,
    /// No dirty data is older, to about a second. It begins with the runtime at the earliest.
    pub dirty_for: Duration,
    /// Connected clients.
    pub connections: u64,
    /// Its miss-ratio curve; `None` if there is no memory for it, or if curves were not requested.
    pub curve: Option<MissRatioCurve>,
    /// What it would miss with other sizes of the pool; `None` if it admits nothing into the pool,
    /// or if curves were not requested.
    pub sizes: Option<SizePrediction>,
    /// Its warm-up.
    pub warm_up: WarmUpStatus,
    /// Its pinned ranges.
    pub pins: PinStatus,
    /// The status of its access history.
    pub learn: LearnStatus,
    /// Dirty sectors damaged beyond repair and not written again since.
    pub lost_sectors: u64,
    /// Dirty lines that the disk refused the last time, and that it has not taken since: at most 64
    /// in each shard.
    pub refused_lines: u64,
    /// The file that it is loaded from and saved to, if its store is in memory.
    pub saved: Option<SaveState>,
    /// How busy its disk is.
    pub disk: DiskUse,
    /// What was counted since it was added. The status dereferences to it.
    pub statistics: VolumeStatistics,
}

impl Deref for VolumeStatus {
    type Target = VolumeStatistics;

    fn deref(&self) -> &VolumeStatistics {
        &self.statistics
    }
}

impl VolumeStatus {
    /// The part of the status that says whether it is served without errors.
    pub fn condition(&self) -> VolumeCondition {
        VolumeCondition {
            name: self.name.clone(),
            disk: self.backing.name.clone(),
            is_closed: self.is_closed,
            half_added: self.half_added,
            flush_failure: self.flush_failure,
            stall: self.stall.clone(),
            displaced: self.displaced,
            lost_sectors: self.lost_sectors,
            refused_lines: self.refused_lines,
        }
    }

    /// Adds the part of a shard.
    fn add(&mut self, shard: &Shard<MappedLines>, now: Duration, curves: Curves) {
        let (volume, id) = (shard.volume(self.id), self.id);
        add_shard(&mut self.statistics, shard, id);
        self.mode = volume.mode();
        self.refused_lines += volume.refused_lines() as u64;
        self.cached_bytes += shard.slots().resident_lines(id) * LINE_BYTES;
        let (min, max) = pool_share_lines(shard, id);
        self.share_min_bytes += min * LINE_BYTES;
        self.share_max_bytes = max.map(|max| self.share_max_bytes.unwrap_or(0) + max * LINE_BYTES);
        self.dirty_bytes += volume.dirty_lines() as u64 * LINE_BYTES;
        let since = volume.dirty_since_ms().map(Duration::from_millis);
        let dirty_for = since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.dirty_for = self.dirty_for.max(dirty_for);
        self.lost_sectors += volume.lost_sectors();
        self.pins.loaded_lines += shard.slots().warm().retained_lines(id);
        if curves == Curves::Copied {
            match (&mut self.curve, volume.curve()) {
                (Some(sum), Some(curve)) => sum.add(&curve),
                (sum, curve) => *sum = sum.take().or(curve),
            }
            if volume.admits_accesses() {
                self.sizes.get_or_insert_default().add(&size_prediction(shard, id));
            }
        }
    }
}

/// What the workers have counted of a volume.
fn worker_statistics(volume: &Volume, disk: &DiskUse) -> VolumeStatistics {
    let (requests, latencies) = add_up(&volume.stats);
    VolumeStatistics {
        requests,
        latencies,
        disk_busy_ns: disk.busy.as_nanos() as u64,
        internal: volume.disk.internal_reads.ios(),
        ..VolumeStatistics::default()
    }
}

/// Adds what a shard has counted of a volume.
fn add_shard(sum: &mut VolumeStatistics, shard: &Shard<MappedLines>, id: VolumeId) {
    let warm = shard.slots().warm();
    sum.engine.add(shard.volume(id).counters());
    sum.admitted_lines += warm.admitted_lines(id);
    sum.evicted_lines += warm.evicted_lines(id);
    sum.preloaded_in_vain_lines += warm.preloaded_in_vain(id);
}

/// A snapshot of the runtime.
#[derive(Clone, Debug)]
pub struct RuntimeStatus {
    /// `io_uring` or `epoll`.
    pub engine: &'static str,
    /// Worker threads.
    pub workers: usize,
    /// Shards of the pool.
    pub shards: usize,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// The time in which workers looked for events instead of sleeping, in microseconds, summed
    /// over them.
    pub polled_us: u64,
    /// Connected clients.
    pub connections: u64,
    /// Memory use.
    pub memory: MemoryStatus,
    /// Volumes in the order of their numbers.
    pub volumes: Vec<VolumeStatus>,
}

/// Volumes whose counters are copied under one acquisition of a shard's lock.
const VOLUMES_PER_LOCK: usize = 64;

/// Whether a status includes the miss-ratio curves, which take long to copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Curves {
    /// With them.
    Copied,
    /// Without.
    LeftOut,
}

impl VolumeService {
    /// The volume with this name, or all of them.
    fn selected(&self, name: Option<&str>) -> Result<Vec<Arc<Volume>>, VolumeError> {
        Ok(match name {
            Some(name) => vec![self.shared.volumes.named(name)?],
            None => self.shared.volumes.all(),
        })
    }

    /// See [`crate::Runtime::status`]. `name` is that of the one volume to include; `None` for all.
    pub(crate) fn status(
        &self,
        engine: &'static str,
        bounds: &MemoryBounds,
        curves: Curves,
        name: Option<&str>,
    ) -> Result<RuntimeStatus, VolumeError> {
        if self.shared.inboxes.iter().any(|inbox| inbox.is_closed()) {
            return Err(VolumeError::Stopping);
        }
        let volumes = self.selected(name)?;
        let now = self.shared.started.elapsed();
        let mut stalls = self.stalls();
        let status = |volume: &Arc<Volume>| {
            let disk = volume.disk.load.until(now);
            VolumeStatus {
                id: volume.id,
                name: volume.name.clone(),
                backing: volume.backend.description().clone(),
                geometry: volume.geometry,
                gather: volume.gather.status(),
                governor: volume.govern.status(),
                mode: Mode::default(),
                read_only: volume.read_only.load(Ordering::Relaxed),
                is_closed: volume.is_closed.load(Ordering::Relaxed),
                is_shared: volume.backend.is_shared(),
                half_added: volume.half_added.load(Ordering::Relaxed),
                flush_failure: volume.flush.failure(),
                stall: stalls.remove(&volume.id),
                disk_errors: volume.disk.errors.failures(),
                displaced: volume.disk.presence.displaced(),
                is_ups_only: volume.is_ups_only(),
                halted: volume.power.is_halted(),
                cached_bytes: 0,
                share_min_bytes: 0,
                share_max_bytes: None,
                dirty_bytes: 0,
                dirty_for: Duration::ZERO,
                connections: volume.connections.load(Ordering::Relaxed),
                curve: None,
                sizes: None,
                warm_up: volume.warm.status(),
                pins: volume.pins.status(0),
                learn: volume.learn.status(),
                lost_sectors: 0,
                refused_lines: 0,
                saved: volume.backend.saved(),
                statistics: worker_statistics(volume, &disk),
                disk,
            }
        };
        let mut volumes: Vec<VolumeStatus> = volumes.iter().map(status).collect();
        self.visit_shards(
            &mut volumes,
            |volume| volume.id,
            |volume, shard| {
                volume.add(shard, now, curves);
            },
        );
        Ok(RuntimeStatus {
            engine,
            workers: self.shared.inboxes.len(),
            shards: self.shared.shards.len(),
            uptime_seconds: now.as_secs(),
            polled_us: self.shared.background.polled_us(),
            connections: self.shared.connections.load(Ordering::Relaxed),
            memory: self.memory(bounds),
            volumes,
        })
    }

    /// Copies the statistics of each volume, in constant time for each. No worker is interrupted; a
    /// shard's lock is held while the counters of a few volumes are copied. Also possible while the
    /// runtime stops. After the stop, the list is empty.
    pub fn statistics(&self) -> Vec<NamedStatistics> {
        let volumes = self.shared.volumes.all();
        let now = self.shared.started.elapsed();
        let begin = |volume: &Arc<Volume>| {
            let disk = volume.disk.load.until(now);
            NamedStatistics {
                id: volume.id,
                name: volume.name.clone(),
                identity: volume.identity,
                disk_in_flight: disk.in_flight,
                dirty_lines: 0,
                cached_lines: 0,
                arms: add_up_arms(&volume.stats),
                statistics: worker_statistics(volume, &disk),
            }
        };
        let mut all: Vec<NamedStatistics> = volumes.iter().map(begin).collect();
        self.visit_shards(
            &mut all,
            |volume| volume.id,
            |volume, shard| {
                let id = volume.id;
                volume.dirty_lines += shard.volume(id).dirty_lines() as u64;
                volume.cached_lines += shard.slots().resident_lines(id);
                add_shard(&mut volume.statistics, shard, id);
            },
        );
        all
    }

    /// Visits some volumes in each shard, one shard after the other, for a moment each.
    fn visit_shards<T>(
        &self,
        volumes: &mut [T],
        id_of: impl Fn(&T) -> VolumeId,
        mut visit: impl FnMut(&mut T, &Shard<MappedLines>),
    ) {
        for number in 0..self.shared.shards.len() {
            for volumes in volumes.chunks_mut(VOLUMES_PER_LOCK) {
                let shard = self.shared.shard(number);
                let here = volumes.iter_mut().filter(|volume| shard.has_volume(id_of(volume)));
                here.for_each(|volume| visit(volume, &shard));
            }
        }
    }

    /// See [`crate::memory_status`].
    pub(crate) fn memory(&self, bounds: &MemoryBounds) -> MemoryStatus {
        let shards = 0..self.shared.shards.len();
        let shards: Vec<_> = shards.map(|number| self.shared.shard(number).usage()).collect();
        let mut memory = self.memory_status(bounds, &shards);
        for volume in self.shared.volumes.all() {
            memory.pinned_bytes += volume.pins.get().ranges.lines() * LINE_BYTES;
        }
        memory
    }

    /// The number of volumes in write-back mode, and of those among them that only a UPS protects.
    pub fn writers(&self) -> [usize; 2] {
        let mut volumes = self.shared.volumes.all();
        volumes.retain(|volume| volume.config.read().mode == Mode::WriteBack);
        [volumes.len(), volumes.iter().filter(|volume| volume.is_ups_only()).count()]
    }

    fn memory_status(&self, bounds: &MemoryBounds, shards: &[ShardUsage]) -> MemoryStatus {
        let mut memory = MemoryStatus {
            limit_bytes: bounds.now_bytes,
            limit_bytes_min: bounds.least_bytes,
            limit_bytes_max: bounds.most_bytes,
            pinned_bytes_max: pinned_lines_max(&self.shared.pool) * LINE_BYTES,
            patrol: self.patrol_status(shards),
            ..MemoryStatus::default()
        };
        let sums_bytes = self.shared.pool.shard_slots() as u64 * SUM_BYTES;
        for usage in shards {
            memory.pool_bytes += usage.capacity_lines * LINE_BYTES;
            memory.used_bytes += usage.resident_lines * LINE_BYTES;
            memory.dirty_bytes += usage.dirty_lines * LINE_BYTES;
            memory.dirty_bytes_max += usage.dirty_lines_max * LINE_BYTES;
            memory.metadata_bytes += usage.metadata_bytes + sums_bytes;
            memory.evicted_lines += usage.evicted_lines;
        }
        memory
    }

    fn patrol_status(&self, shards: &[ShardUsage]) -> PatrolStatus {
        let mut status = PatrolStatus { ecc: self.shared.ecc, ..PatrolStatus::default() };
        for usage in shards {
            status.sealed_lines += usage.patrol.sealed;
            status.verified_lines += usage.patrol.verified;
            status.unsealed_bytes += usage.unsealed_slots * LINE_BYTES;
            status.parity_bytes += usage.parity_lines * LINE_BYTES;
            status.parity_slot_bytes += usage.parity_slots * LINE_BYTES;
        }
        // A shard without sealed lines has nothing to walk over.
        let walked = shards.iter().map(|usage| usage.patrol).filter(|patrol| patrol.sealed > 0);
        status.walks = walked.map(|patrol| patrol.walks).min().unwrap_or(0);
        let walks = self.shared.walk_ms.iter().map(|walk| walk.load(Ordering::Relaxed));
        status.walk_ms = walks.max().unwrap_or(0);
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Runtime;
    use crate::rig::{MIB, quiet_config};
    use crate::shared::Message;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_status_does_not_wait_for_a_worker() {
        let server = forebay_frontend_nbd::NbdServer::new();
        let runtime = Runtime::start(quiet_config(64 * MIB), &server).unwrap();
        let (begun, began) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        // True if the test ended the task, false if the task gave up.
        let (end, ended) = mpsc::channel();
        runtime.shared().inboxes[0].post(Message::Task(Box::new(move |_| {
            begun.send(()).unwrap();
            end.send(released.recv_timeout(Duration::from_secs(60)).is_ok()).unwrap();
        })));
        began.recv().unwrap();
        assert_eq!(runtime.status().unwrap().workers, 1);
        release.send(()).unwrap();
        assert!(ended.recv().unwrap(), "the status waited for the worker");
        runtime.stop(|_| {}).unwrap();
        assert!(matches!(runtime.status(), Err(VolumeError::Stopping)));
    }
}
