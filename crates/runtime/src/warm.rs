//! The warmer: gives the pool huge pages shortly before its lines are used.
//!
//! A random hit on small pages costs 1.7 times one on huge pages, most of it for looking addresses
//! up. Kernels give shared memory no huge pages by themselves as they are usually set up, but join
//! small ones when told to. That takes a fraction of a millisecond for each slab, so it is done by
//! a thread of its own, a few slabs ahead of where the shards have got to. Memory that is not used
//! soon is still not taken.

use crate::locks::{Lock, order};
use crate::pool::SLAB_BYTES;
use crate::shared::Shared;
use forebay_types::LINE_BYTES;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Slabs prepared ahead of each shard: 16 MiB, what a shard can use up between two looks.
const SLABS_AHEAD: usize = 8;
const LINES_PER_SLAB: usize = (SLAB_BYTES / LINE_BYTES) as usize;
/// Between two looks: while the pool fills, and when it does not.
const PAUSE_BUSY: Duration = Duration::from_millis(10);
const PAUSE_IDLE: Duration = Duration::from_millis(250);

/// The thread, until its runtime ends it.
pub(crate) struct Warmer {
    ends: Arc<AtomicBool>,
    thread: Lock<Option<JoinHandle<()>>, { order::THREADS }>,
}

impl Warmer {
    /// Starts it. It ends by itself when the pool is warm, when the machine has no huge pages to
    /// give, or when the runtime is gone.
    pub(crate) fn start(shared: &Arc<Shared>) -> Self {
        let weak = Arc::downgrade(shared);
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let thread =
            std::thread::Builder::new().name("pool-warmer".into()).spawn(move || run(&weak, &told));
        if let Err(error) = &thread {
            tracing::debug!("the pool stays on small pages: {error}");
        }
        Self { ends, thread: Lock::new(thread.ok()) }
    }

    /// Ends it, and waits until it is no longer in the pool, which another runtime may take over
    /// and cut to another size.
    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn run(shared: &Weak<Shared>, ends: &AtomicBool) {
    let mut prepared = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let Some(shared) = shared.upgrade() else { return };
        prepared.resize(shared.shards.len(), 0);
        let mut busy = false;
        let mut done = true;
        for (shard, prepared) in prepared.iter_mut().enumerate() {
            let used = shared.shard(shard).used_slots() as usize / LINES_PER_SLAB;
            let wanted = (used + 1 + SLABS_AHEAD).min(shared.pool.shard_slabs());
            while *prepared < wanted && !ends.load(Ordering::Relaxed) {
                match shared.pool.make_huge(shard, *prepared) {
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                        tracing::debug!("the machine gives no huge pages for the pool: {error}");
                        return;
                    }
                    // A slab that can't be had now stays on small pages.
                    Ok(()) | Err(_) => *prepared += 1,
                }
                busy = true;
            }
            done &= *prepared == shared.pool.shard_slabs();
        }
        if done {
            return;
        }
        drop(shared);
        std::thread::park_timeout(if busy { PAUSE_BUSY } else { PAUSE_IDLE });
    }
}
