//! The resizer: shrinks and grows the pool while it is in use.
//!
//! A thread, started with the first resize, carries out the steps of each shard. It holds the
//! shard's lock for one step of bounded work. To give the memory of an empty slab back, it punches
//! a hole into the pool's file, without the lock: the shard does not use the slab until
//! [`forebay_engine::Shard::gave_back`] is called. If slabs cannot be emptied yet, because lines
//! are pinned, in an operation or not destaged, the thread retries after a pause. Otherwise it
//! sleeps until the next resize.
//!
//! The size is recorded in the header of the pool, so that a process that adopts the pool continues
//! with it, and completes a resize that its predecessor has begun.

use crate::memory_plan::MemoryPlan;
use crate::platform::locks::{Lock, order};
use crate::pool::{Pool, SLAB_BYTES};
use crate::protect::patrol;
use crate::shared::Shared;
use forebay_engine::{MemoryStep, Outbox, ResizeStep, Slab};
use forebay_policy::{MemoryBounds, MemoryUse};
use forebay_threads::Thread;
use forebay_types::{Blame, Fault, LINE_BYTES, Remedy, Size};
use std::cmp::Reverse;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The shortest and the longest pause before waiting slabs are examined again.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The pause as a multiple of the duration of the last examination, which takes milliseconds if
/// thousands of slabs wait for a slow disk.
const PAUSE_SHARE: u32 = 9;

/// Why the memory of a process cannot be set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// The size is below the minimum.
    #[error(
        "memory {} is less than the {} that a server with a maximum of {} needs",
        Size(*memory_bytes), Size(*least_bytes), Size(*most_bytes)
    )]
    TooSmall {
        /// The size.
        memory_bytes: u64,
        /// The minimum: everything but lines, and one slab for each shard.
        least_bytes: u64,
        /// The maximum.
        most_bytes: u64,
    },
    /// The size is too small for the ranges that are pinned.
    #[error(
        "memory {} is too small for the pinned ranges: {}", Size(*memory_bytes), listed(pinned)
    )]
    Pinned {
        /// The size.
        memory_bytes: u64,
        /// The volumes with pinned ranges, and the bytes of these.
        pinned: Vec<(String, u64)>,
        /// The minimum for them.
        least_bytes: u64,
    },
    /// The size is above the maximum.
    #[error(
        "memory {} exceeds the maximum of {}, which is fixed at the start",
        Size(*memory_bytes), Size(*most_bytes)
    )]
    TooLarge {
        /// The size.
        memory_bytes: u64,
        /// The maximum.
        most_bytes: u64,
    },
    /// The system refuses a thread.
    #[error("cannot start the thread that resizes the pool")]
    Thread(#[from] io::Error),
    /// The server is stopping, or another process continues with the pool.
    #[error("the server is stopping")]
    Stopping,
}

impl Fault for ResizeError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::TooSmall { least_bytes, .. } => {
                let least = Size(*least_bytes);
                format!("set memory to {least} or more, or restart the server with less").into()
            }
            Self::Pinned { least_bytes, .. } => {
                let least = Size(*least_bytes);
                Remedy::from(format!("set memory to {least} or more")).or("unpin ranges first")
            }
            Self::TooLarge { most_bytes, .. } => {
                let most = Size(*most_bytes);
                format!("set memory to {most} or less, or restart the server with more").into()
            }
            Self::Thread(_) => "raise the limit of threads".into(),
            Self::Stopping => "repeat the command when the server serves again".into(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::TooSmall { .. } | Self::Pinned { .. } | Self::TooLarge { .. } => Blame::Operator,
            Self::Thread(_) | Self::Stopping => Blame::Environment,
        }
    }
}

/// Lists the volumes with the most bytes, and the sum of the others.
fn listed(pinned: &[(String, u64)]) -> String {
    const LISTED_MAX: usize = 4;
    let mut pinned: Vec<_> = pinned.iter().collect();
    pinned.sort_by_key(|(_, bytes)| Reverse(*bytes));
    let others = pinned.split_off(pinned.len().min(LISTED_MAX));
    let mut listed = pinned
        .into_iter()
        .map(|(name, bytes)| format!("{} of volume '{name}'", Size(*bytes)))
        .collect::<Vec<_>>()
        .join(", ");
    if !others.is_empty() {
        let bytes = others.into_iter().map(|(_, bytes)| bytes).sum();
        listed += &format!(" and {} of others", Size(bytes));
    }
    listed
}

/// The bounds of a process with this memory plan. An adopted pool may have another size than the
/// planned one; the memory for everything else is the planned one in any case.
pub(crate) fn bounds_of(pool: &Pool, plan: &MemoryPlan) -> MemoryBounds {
    let around_bytes = plan.limit_bytes.saturating_sub(plan.pool_bytes);
    let most_bytes = match pool.is_of_size(plan.pool_bytes, plan.shards) {
        true => plan.limit_bytes.max(around_bytes + pool.data_bytes()),
        false => around_bytes + pool.data_bytes(),
    };
    let shards = pool.shards() as u64;
    let missing = pool.shard_slots().checked_sub(pool.recorded_lines());
    let missing = missing.expect("no more lines are recorded than there are slots") as u64;
    let missing_bytes = missing * shards * LINE_BYTES;
    MemoryBounds::new(most_bytes, pool.data_bytes(), missing_bytes, shards * SLAB_BYTES)
}

/// The memory that the process has taken within its bounds.
pub(crate) fn memory_use(bounds: MemoryBounds, pool: &Pool) -> MemoryUse {
    bounds.memory_use(pool.data_bytes(), pool.lines_used_bytes())
}

/// The bounds, with a minimum at which each shard can keep `shard_lines` lines, in whole slabs.
pub(crate) fn with_shard_lines(
    bounds: MemoryBounds,
    pool: &Pool,
    shard_lines: usize,
) -> MemoryBounds {
    assert!(shard_lines <= pool.shard_slots(), "the pool has these lines");
    let removable_lines = (pool.shard_slots() - shard_lines) as u64 * pool.shards() as u64;
    let least_bytes = bounds.least_bytes.max(bounds.most_bytes - removable_lines * LINE_BYTES);
    MemoryBounds { least_bytes, ..bounds }
}

/// Checks that the memory can be set to this size.
///
/// # Errors
/// It is out of bounds.
pub(crate) const fn check(bounds: &MemoryBounds, memory_bytes: u64) -> Result<(), ResizeError> {
    let MemoryBounds { least_bytes, most_bytes, .. } = *bounds;
    if memory_bytes > most_bytes {
        return Err(ResizeError::TooLarge { memory_bytes, most_bytes });
    }
    if memory_bytes < least_bytes {
        return Err(ResizeError::TooSmall { memory_bytes, least_bytes, most_bytes });
    }
    Ok(())
}

/// The lines of each shard with this memory, in whole slabs.
pub(crate) fn shard_lines(
    bounds: &MemoryBounds,
    pool: &Pool,
    memory_bytes: u64,
) -> Result<usize, ResizeError> {
    check(bounds, memory_bytes)?;
    let data_bytes = pool.data_bytes().checked_sub(bounds.most_bytes - memory_bytes);
    let data_bytes = data_bytes.expect("what is given back is in the pool");
    let slabs = data_bytes / pool.shards() as u64 / SLAB_BYTES;
    Ok((slabs * (SLAB_BYTES / LINE_BYTES)) as usize)
}

/// The resizer.
#[derive(Debug, Default)]
pub(crate) struct Resizer {
    stops: Arc<AtomicBool>,
    /// Its thread. The lock also serializes resizes.
    thread: Lock<Option<JoinHandle<()>>, { order::THREADS }>,
}

impl Resizer {
    /// Gives the process this memory, from now on.
    ///
    /// # Errors
    /// When it is out of bounds, the resizer was stopped, or the system refuses a thread. In the
    /// last case the size is changed, but memory is given back only by the next resize.
    pub(crate) fn resize(
        &self,
        shared: &Arc<Shared>,
        bounds: &MemoryBounds,
        memory_bytes: u64,
    ) -> Result<(), ResizeError> {
        let lines = shard_lines(bounds, &shared.pool, memory_bytes)?;
        if !self.set_lines(shared, lines)? {
            return Err(ResizeError::Stopping);
        }
        let pool_bytes = shared.pool.lines_bytes();
        for volume in shared.volumes.all() {
            volume.streams.lock().set_pool(pool_bytes);
        }
        Ok(())
    }

    /// Completes the resize of a previous process, whose pool was adopted.
    pub(crate) fn continue_adopted(&self, shared: &Arc<Shared>) -> io::Result<()> {
        self.set_lines(shared, shared.pool.recorded_lines()).map(|_| ())
    }

    /// Sets the size of each shard. Returns false, and changes nothing, after [`Resizer::stop`]:
    /// another process may use the pool by then, and its header.
    fn set_lines(&self, shared: &Arc<Shared>, lines: usize) -> io::Result<bool> {
        let mut thread = self.thread.lock();
        if self.stops.load(Ordering::Relaxed) {
            return Ok(false);
        }
        assert!(lines <= shared.pool.shard_slots(), "the size was checked");
        shared.pool.record_lines(lines);
        let mut is_resizing = false;
        for mut shard in shared.shards.each() {
            shard.resize(lines);
            is_resizing |= shard.slots().slabs().is_resizing();
        }
        match &*thread {
            _ if !is_resizing => {}
            Some(running) => running.thread().unpark(),
            None => {
                let (weak, stops) = (Arc::downgrade(shared), Arc::clone(&self.stops));
                let resizer = Thread::named("pool-resizer");
                *thread = Some(resizer.spawn(move || run(&weak, &stops))?);
            }
        }
        Ok(true)
    }

    /// Stops the thread and joins it. A resize in progress stays incomplete.
    pub(crate) fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for Resizer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(shared: &Weak<Shared>, stops: &AtomicBool) {
    let mut begun = None;
    while !stops.load(Ordering::Relaxed) {
        let Some(shared) = shared.upgrade() else { return };
        let now = Instant::now();
        let since = *begun.get_or_insert(now);
        let shards = 0..shared.shards.len();
        let hold = shared.huge_pages.hold();
        let waiting = shards.filter(|&shard| resize_shard(&shared, shard, stops)).count();
        drop(hold);
        if waiting > 0 {
            drop(shared);
            std::thread::park_timeout((now.elapsed() * PAUSE_SHARE).clamp(PAUSE, PAUSE_MAX));
            continue;
        }
        let lines: u64 = shared.shards.each().map(|shard| shard.usage().capacity_lines).sum();
        drop(shared);
        let (pool, ms) = (Size(lines * LINE_BYTES), since.elapsed().as_millis() as u64);
        tracing::info!(%pool, ms, "pool resized");
        begun = None;
        std::thread::park();
    }
}

/// Carries out the resize of a shard as far as possible. Returns true if the resize is not
/// complete: a slab cannot be emptied yet, or the resizer stops.
fn resize_shard(shared: &Shared, number: usize, stops: &AtomicBool) -> bool {
    let mut out = Outbox::default();
    while !stops.load(Ordering::Relaxed) {
        let mut shard = shared.shard(number);
        let step = shard.step_resize(&mut out);
        for step in out.memory.drain(..) {
            if let MemoryStep::Verify { seal, kept } = step {
                patrol::verify_before(shared, number, &mut shard, &seal, kept);
            } else {
                crate::worker::carry_out(&shared.pool, number, &[], step);
            }
        }
        shard.finish_call();
        drop(shard);
        match step {
            ResizeStep::Done => return false,
            ResizeStep::Waiting => return true,
            ResizeStep::More => shared.shards.give_way(number),
            ResizeStep::TakenBack(slab) => {
                shared.huge_pages.prepare_again(number, slab.number);
                shared.shards.give_way(number);
            }
            // Others can have the shard while memory is given back.
            ResizeStep::Empty(slab) => {
                give_back(shared, number, slab);
                shared.shard(number).gave_back(slab);
            }
        }
    }
    true
}

/// Gives the memory of a slab back. If the system refuses, the slab stays allocated, and unused
/// until a growth takes it back.
fn give_back(shared: &Shared, number: usize, slab: Slab) {
    let result = shared.huge_pages.while_not_collapsing(|| shared.pool.give_back(number, slab));
    if let Err(error) = result {
        tracing::warn!(%error, shard = number, slab = slab.number, "cannot give memory back");
    }
}

#[cfg(test)]
mod tests;
