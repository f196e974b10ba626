//! Writes the warm lists.
//!
//! One walk over the pool collects the lines of all volumes, shard by shard, a few slots for each
//! lock of a shard. It takes 16 bytes per line of one shard, and 28 per granule of the lists, with
//! its encoded form. There is at most one granule for four slots: together less than a hundredth of
//! the pool.

use super::WarmLists;
use crate::shared::{Shared, Volume};
use forebay_engine::LineKey;
use forebay_format::{WarmDisk, WarmList};
use forebay_types::{Granule, LINE_BYTES, VolumeId};
use forebay_volume::{collect_granules, keep_most_valuable, merge_granules};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Slots examined per lock of a shard: some ten microseconds.
const SLOTS_PER_LOCK: u32 = 1_024;
/// The pause between two locks at [`Pace::Slow`]: 64 GiB take half a minute.
const PAUSE: Duration = Duration::from_millis(2);
/// Slots of the pool for each granule of the lists.
const SLOTS_PER_GRANULE: usize = 4;
/// The length of the checksum at the end of a list. With the length of the list, it identifies the
/// content.
const TAIL_BYTES: usize = 4;

/// How fast the pool is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// With pauses, beside clients.
    Slow,
    /// Without pauses, because a caller waits for the lists.
    Fast,
}

/// The granules of each volume, in ascending order.
type Found = BTreeMap<VolumeId, Vec<Granule>>;

/// A volume whose list is written or removed. It has no reference to the volume, which would keep
/// the disk open.
struct Target {
    id: VolumeId,
    name: String,
    disk: WarmDisk,
    is_kept: bool,
}

/// Writes the warm lists that have changed.
pub(super) struct Saver {
    lists: Arc<dyn WarmLists>,
    /// Length and checksum of the stored lists, by volume.
    written: HashMap<String, (usize, [u8; TAIL_BYTES])>,
    /// Volumes whose lists could not be written, which was logged.
    failed: HashSet<String>,
}

impl Saver {
    pub(super) fn new(lists: Arc<dyn WarmLists>) -> Self {
        Self { lists, written: HashMap::new(), failed: HashSet::new() }
    }

    /// Records the list that a volume has now.
    pub(super) fn remember(&mut self, volume: &str, list: &[u8]) {
        self.written.insert(volume.to_owned(), fingerprint(list));
    }

    /// Removes the list of a volume that was removed.
    pub(super) fn forget(&mut self, volume: &str) {
        self.written.remove(volume);
        self.failed.remove(volume);
        if let Err(error) = self.lists.remove(volume) {
            tracing::warn!(volume, %error, "cannot remove the warm list");
        }
    }

    /// Writes the lists of all volumes. `remaining` says what the warm-up of a volume has not read
    /// yet. A list that cannot be written is logged once.
    pub(super) fn save(
        &mut self,
        shared: &Shared,
        remaining: impl Fn(VolumeId) -> Vec<Granule>,
        pace: Pace,
    ) {
        let pool_lines = shared.pool.data_bytes() / LINE_BYTES;
        let granules_max = pool_lines as usize / SLOTS_PER_GRANULE;
        let before: Vec<Weak<Volume>> = shared.volumes.all().iter().map(Arc::downgrade).collect();
        let mut found = collect(shared, pace);
        for target in targets(shared, &before) {
            let result = if target.is_kept {
                let resident = found.remove(&target.id).unwrap_or_default();
                let mut granules = merge_granules(&resident, &remaining(target.id));
                // An adopted pool may have lines past the end of a disk that has shrunk.
                granules.retain(|granule| granule.range().offset < target.disk.size_bytes);
                keep_most_valuable(&mut granules, granules_max);
                let list = WarmList { disk: target.disk, pool_lines, granules };
                self.write(&target.name, &list.encode())
            } else {
                self.written.remove(&target.name);
                self.lists.remove(&target.name)
            };
            match result {
                Ok(()) => {
                    self.failed.remove(&target.name);
                }
                Err(error) => {
                    if self.failed.insert(target.name.clone()) {
                        tracing::warn!(volume = target.name, %error, "cannot write the warm list");
                    }
                }
            }
        }
    }

    fn write(&mut self, name: &str, list: &[u8]) -> std::io::Result<()> {
        let fingerprint = fingerprint(list);
        if self.written.get(name) == Some(&fingerprint) {
            return Ok(());
        }
        self.lists.write(name, list)?;
        self.written.insert(name.to_owned(), fingerprint);
        Ok(())
    }
}

fn fingerprint(list: &[u8]) -> (usize, [u8; TAIL_BYTES]) {
    (list.len(), list.last_chunk().copied().unwrap_or_default())
}

/// The volumes whose lists are written or removed after a collection. A volume that was added since
/// `before` is left out: the collection may lack some of its lines, or include lines of a removed
/// volume that had the same number. A volume that bypasses the cache keeps its list for a later
/// start.
fn targets(shared: &Shared, before: &[Weak<Volume>]) -> Vec<Target> {
    let volumes = shared.volumes.all();
    let is_target = |volume: &&Arc<Volume>| {
        before.iter().any(|other| other.as_ptr() == Arc::as_ptr(volume))
            && volume.warm.is_replaceable()
            && !volume.is_closed.load(Ordering::Relaxed)
            && !shared.shards.is_bypass(volume.id)
    };
    let targets = volumes.iter().filter(is_target).map(|volume| Target {
        id: volume.id,
        name: volume.name.clone(),
        disk: volume.warm.disk(),
        is_kept: volume.warm.is_kept(),
    });
    targets.collect()
}

/// Collects the granules of all volumes.
fn collect(shared: &Shared, pace: Pace) -> Found {
    let mut found = Found::new();
    let granules_max = shared.pool.shard_slots() / SLOTS_PER_GRANULE;
    for shard in 0..shared.shards.len() {
        for (volume, granules) in collect_shard(shared, shard, granules_max, pace) {
            let before = found.entry(volume).or_default();
            *before = merge_granules(before, &granules);
        }
    }
    found
}

/// Collects the most valuable granules of a shard.
fn collect_shard(shared: &Shared, shard: usize, granules_max: usize, pace: Pace) -> Found {
    let mut lines: Vec<(LineKey, u8)> = Vec::new();
    let mut next = Some(0);
    while let Some(first) = next {
        let locked = shared.shard(shard);
        next = locked.slots().warm().values(first, SLOTS_PER_LOCK, |key, value| {
            if value > 0 {
                lines.push((key, value));
            }
        });
        drop(locked);
        // A stop waits until this walk has ended: no pauses then.
        if pace == Pace::Slow && !shared.stopping.load(Ordering::Relaxed) {
            std::thread::sleep(PAUSE);
        }
    }
    lines.sort_unstable();
    // A line that has moved during the walk may be there twice.
    lines.dedup_by_key(|(key, _)| *key);
    let of_volumes = lines.chunk_by(|a, b| a.0.volume() == b.0.volume());
    let mut all: Vec<(VolumeId, Granule)> = Vec::new();
    for lines in of_volumes {
        let id = lines[0].0.volume();
        let granules = collect_granules(lines.iter().map(|(key, value)| (key.line(), *value)));
        all.extend(granules.into_iter().map(|granule| (id, granule)));
    }
    if all.len() > granules_max {
        all.sort_unstable_by(|a, b| a.1.by_value(&b.1));
        all.truncate(granules_max);
        all.sort_unstable_by_key(|(id, granule)| (*id, granule.index));
    }
    let mut found = Found::new();
    for (id, granule) in all {
        found.entry(id).or_default().push(granule);
    }
    found
}
