//! The warmer: gives the pool huge pages shortly before its lines are used.
//!
//! A random hit on small pages costs 1.7 times one on huge pages, mostly in TLB misses. In their
//! usual configuration, kernels give shared memory no huge pages by themselves, but collapse small
//! pages into huge ones on request. That takes a fraction of a millisecond per slab, so a thread
//! does it, a few slabs ahead of the slots in use. Memory that is not about to be used is not
//! allocated.

use crate::locks::{Lock, order};
use crate::pool::SLAB_BYTES;
use crate::shared::Shared;
use forebay_types::LINE_BYTES;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Slabs prepared ahead of each shard: 16 MiB, more than a shard fills between two passes.
const SLABS_AHEAD: usize = 8;
const LINES_PER_SLAB: usize = (SLAB_BYTES / LINE_BYTES) as usize;
/// The pause between two passes: while the pool fills, and otherwise.
const PAUSE_BUSY: Duration = Duration::from_millis(10);
const PAUSE_IDLE: Duration = Duration::from_millis(250);

/// The warmer's thread.
pub(crate) struct Warmer {
    stops: Arc<AtomicBool>,
    thread: Lock<Option<JoinHandle<()>>, { order::THREADS }>,
}

impl Warmer {
    /// Starts the thread. It ends by itself when the whole pool is warm, when the kernel supports
    /// no huge pages for it, or when the runtime is dropped.
    pub(crate) fn start(shared: &Arc<Shared>) -> Self {
        let weak = Arc::downgrade(shared);
        let stops = Arc::new(AtomicBool::new(false));
        let thread_stops = Arc::clone(&stops);
        let thread = std::thread::Builder::new()
            .name("pool-warmer".into())
            .spawn(move || run(&weak, &thread_stops));
        if let Err(error) = &thread {
            tracing::debug!(%error, "cannot start the warmer, the pool stays on small pages");
        }
        Self { stops, thread: Lock::new(thread.ok()) }
    }

    /// Stops the thread and joins it. The pool may be truncated by its next user afterwards.
    pub(crate) fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn run(shared: &Weak<Shared>, stops: &AtomicBool) {
    let mut prepared = Vec::new();
    while !stops.load(Ordering::Relaxed) {
        let Some(shared) = shared.upgrade() else { return };
        prepared.resize(shared.shards.len(), 0);
        let mut busy = false;
        let mut done = true;
        for (shard, prepared) in prepared.iter_mut().enumerate() {
            let used = shared.shard(shard).slots().used() as usize / LINES_PER_SLAB;
            let wanted = (used + 1 + SLABS_AHEAD).min(shared.pool.shard_slabs());
            while *prepared < wanted && !stops.load(Ordering::Relaxed) {
                match shared.pool.make_huge(shard, *prepared) {
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                        tracing::debug!(%error, "no huge pages available for the pool");
                        return;
                    }
                    // After another error the slab stays on small pages.
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
