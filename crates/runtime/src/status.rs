//! What the runtime says of itself.

use crate::calibrate::GatherStatus;
use crate::error::VolumeError;
use crate::patrol::PatrolStatus;
use crate::pool::SUM_BYTES;
use crate::server::Runtime;
use crate::stats::{LatencySummary, RequestCounters, add_up};
use forebay_backend::{Description, Displaced};
use forebay_engine::{ShardUsage, VolumeCounters};
use forebay_policy::GovernorStatus;
use forebay_types::{DiskGeometry, IoError, LINE_BYTES, Mode, VolumeId};
use std::sync::atomic::Ordering;

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStatus {
    /// What was given for everything.
    pub limit_bytes: u64,
    /// What lines may take.
    pub pool_bytes: u64,
    /// What lines take.
    pub used_bytes: u64,
    /// What of it is not on the disks yet.
    pub dirty_bytes: u64,
    /// What is needed to know where everything is.
    pub metadata_bytes: u64,
    /// Lines that made room for others so far.
    pub evicted_lines: u64,
    /// The patrol over all of it.
    pub patrol: PatrolStatus,
}

/// A volume.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// Its number.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Its disk.
    pub backing: Description,
    /// What the geometry of its disk is taken to be.
    pub geometry: DiskGeometry,
    /// Which writes are worth gathering.
    pub gather: GatherStatus,
    /// What reads of its disk let write-back do.
    pub governor: GovernorStatus,
    /// How it is cached.
    pub mode: Mode,
    /// Whether clients may only read it.
    pub read_only: bool,
    /// Whether it is being removed.
    pub leaving: bool,
    /// How a flush of its disk has failed since the disk was trusted last.
    pub flush_failure: Option<IoError>,
    /// What has become of its disk, where it is not the one any more that its name leads to.
    pub displaced: Option<Displaced>,
    /// A supply and the pool alone keep what is dirty of it.
    pub kept_by_power: bool,
    /// Writes are refused, as power is failing.
    pub halted: bool,
    /// Bytes of it in the pool.
    pub cached_bytes: u64,
    /// Bytes of it in dirty lines.
    pub dirty_bytes: u64,
    /// Clients that entered it.
    pub connections: u64,
    /// Requests and bytes.
    pub requests: RequestCounters,
    /// What the engine did with them.
    pub engine: VolumeCounters,
    /// Sectors whose newest content was damaged beyond repair and not written again since.
    pub lost_sectors: u64,
    /// Latencies in the order of [`crate::LatencyClass::ALL`].
    pub latencies: [LatencySummary; 4],
}

/// Everything.
#[derive(Clone, Debug)]
pub struct RuntimeStatus {
    /// `io_uring` or `epoll`.
    pub engine: &'static str,
    /// Threads that serve clients.
    pub workers: usize,
    /// Parts of the pool that are locked on their own.
    pub shards: usize,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// Clients.
    pub connections: u64,
    /// Memory.
    pub memory: MemoryStatus,
    /// Volumes in the order of their numbers.
    pub volumes: Vec<VolumeStatus>,
}

/// A volume in one shard.
struct VolumeView {
    id: VolumeId,
    mode: Mode,
    resident_lines: u64,
    dirty_lines: u64,
    lost_sectors: u64,
    counters: VolumeCounters,
}

/// What one look at all shards brings.
struct ShardView {
    usage: Vec<ShardUsage>,
    volumes: Vec<VolumeView>,
}

impl Runtime {
    /// What is going on. Each shard is looked at for itself, one after the other.
    ///
    /// # Errors
    /// When the runtime is stopping.
    pub fn status(&self) -> Result<RuntimeStatus, VolumeError> {
        let volumes = self.shared.volumes.all();
        let ids: Vec<VolumeId> = volumes.iter().map(|volume| volume.id).collect();
        let view = self.ask(0, move |tasks| {
            let shared = tasks.shared();
            let mut view = ShardView { usage: Vec::new(), volumes: Vec::new() };
            for shard in 0..shared.shards.len() {
                let shard = shared.shard(shard);
                view.usage.push(shard.usage());
                for &id in ids.iter().filter(|&&id| shard.has_volume(id)) {
                    view.volumes.push(VolumeView {
                        id,
                        mode: shard.mode(id),
                        resident_lines: shard.resident_lines(id),
                        dirty_lines: shard.dirty_lines(id) as u64,
                        lost_sectors: shard.lost_sectors(id),
                        counters: *shard.counters(id),
                    });
                }
            }
            view
        })?;
        let memory = self.memory_status(&view.usage);
        let volumes = volumes.iter().map(|volume| {
            let (requests, latencies) = add_up(&volume.stats);
            let mut status = VolumeStatus {
                id: volume.id,
                name: volume.name.clone(),
                backing: volume.backend.description().clone(),
                geometry: volume.geometry,
                gather: volume.gather.status(),
                governor: volume.govern.status(),
                mode: Mode::default(),
                read_only: volume.read_only.load(Ordering::Relaxed),
                leaving: volume.leaving.load(Ordering::Relaxed),
                flush_failure: volume.flush.failure(),
                displaced: volume.sightings.displaced(),
                kept_by_power: volume.is_kept_by_power(),
                halted: volume.power.is_halted(),
                cached_bytes: 0,
                dirty_bytes: 0,
                lost_sectors: 0,
                connections: volume.connections.load(Ordering::Relaxed),
                requests,
                engine: VolumeCounters::default(),
                latencies,
            };
            for view in view.volumes.iter().filter(|view| view.id == volume.id) {
                status.mode = view.mode;
                status.cached_bytes += view.resident_lines * LINE_BYTES;
                status.dirty_bytes += view.dirty_lines * LINE_BYTES;
                status.lost_sectors += view.lost_sectors;
                status.engine.add(&view.counters);
            }
            status
        });
        Ok(RuntimeStatus {
            engine: self.engine(),
            workers: self.shared.inboxes.len(),
            shards: self.shared.shards.len(),
            uptime_seconds: self.shared.started.elapsed().as_secs(),
            connections: self.shared.connections.load(Ordering::Relaxed),
            memory,
            volumes: volumes.collect(),
        })
    }

    fn memory_status(&self, shards: &[ShardUsage]) -> MemoryStatus {
        let mut memory = MemoryStatus {
            limit_bytes: self.plan.limit_bytes,
            pool_bytes: self.shared.pool.data_bytes(),
            patrol: self.patrol_status(shards),
            ..MemoryStatus::default()
        };
        for usage in shards {
            memory.used_bytes += usage.resident_lines * LINE_BYTES;
            memory.dirty_bytes += usage.dirty_lines * LINE_BYTES;
            memory.metadata_bytes += usage.metadata_bytes + usage.capacity_lines * SUM_BYTES;
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
        status.walks = shards.iter().map(|usage| usage.patrol.walks).min().unwrap_or(0);
        let walks = self.shared.walk_ms.iter().map(|walk| walk.load(Ordering::Relaxed));
        status.walk_ms = walks.max().unwrap_or(0);
        status
    }
}
