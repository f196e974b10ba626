//! The collapser: gives the pool huge pages shortly before its lines are used.
//!
//! A random hit on small pages costs 1.7 times one on huge pages, mostly in TLB misses. In their
//! usual configuration, kernels give shared memory no huge pages by themselves, but collapse small
//! pages into huge ones on request. That takes a fraction of a millisecond per slab, so a thread
//! does it, a few slabs ahead of the slots in use. Memory that is not about to be used is not
//! allocated. A slab whose memory is given back is left out, and prepared again when its shard
//! takes it back.

use crate::platform::locks::{Lock, order};
use crate::pool::SLAB_BYTES;
use crate::shared::Shared;
use forebay_threads::Thread;
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

/// The thread that collapses small pages into huge ones.
pub(crate) struct Collapser {
    stops: Arc<AtomicBool>,
    thread: Lock<Option<JoinHandle<()>>, { order::THREADS }>,
}

impl Collapser {
    /// Starts the thread. It ends by itself when the kernel supports no huge pages for the pool, or
    /// when the runtime is dropped.
    pub(crate) fn start(shared: &Arc<Shared>) -> Self {
        let weak = Arc::downgrade(shared);
        let stops = Arc::new(AtomicBool::new(false));
        let thread_stops = Arc::clone(&stops);
        let thread = Thread::named("pool-collapser").spawn(move || run(&weak, &thread_stops));
        if let Err(error) = &thread {
            tracing::debug!(%error, "cannot start the collapser, the pool stays on small pages");
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
    while !stops.load(Ordering::Relaxed) {
        let Some(shared) = shared.upgrade() else { return };
        let pass = pass(&shared, stops);
        drop(shared);
        match pass {
            Ok(is_busy) => std::thread::park_timeout(if is_busy { PAUSE_BUSY } else { PAUSE_IDLE }),
            Err(error) => {
                tracing::debug!(%error, "no huge pages available for the pool");
                return;
            }
        }
    }
}

/// Prepares the slabs that are about to be used. Returns whether there were any.
///
/// # Errors
/// The kernel does not support huge pages for the pool.
fn pass(shared: &Shared, stops: &AtomicBool) -> std::io::Result<bool> {
    let mut is_busy = false;
    for (shard, prepared) in shared.huge_pages.prepared.iter().enumerate() {
        let used = shared.shard(shard).slots().used() as usize / LINES_PER_SLAB;
        let wanted = (used + 1 + SLABS_AHEAD).min(shared.pool.shard_slabs());
        let next = || Some(prepared.load(Ordering::Relaxed)).filter(|&slab| slab < wanted);
        while let Some(slab) = next()
            && !stops.load(Ordering::Relaxed)
        {
            is_busy = true;
            if shared.huge_pages.is_held() {
                return Ok(is_busy);
            }
            // Advanced before the page is made, because the resizer may set `prepared` back to this
            // slab meanwhile.
            let (order, or) = (Ordering::Relaxed, Ordering::Relaxed);
            if prepared.compare_exchange(slab, slab + 1, order, or).is_err() {
                continue;
            }
            match prepare(shared, shard, slab) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Err(error),
                // After another error the slab stays on small pages.
                Ok(()) | Err(_) => {}
            }
        }
    }
    Ok(is_busy)
}

/// Backs a slab with a huge page, unless its memory is given back.
fn prepare(shared: &Shared, shard: usize, slab: usize) -> std::io::Result<()> {
    shared.huge_pages.while_not_collapsing(|| {
        if shared.shard(shard).slots().slabs().is_given_back(slab) {
            return Ok(());
        }
        shared.pool.make_huge(shard, slab)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Runtime;
    use crate::rig::{MIB, quiet_config};

    #[test]
    fn no_huge_page_is_made_while_the_pool_is_resized() {
        let server = forebay_frontend_nbd::NbdServer::new();
        let runtime = Runtime::start(quiet_config(64 * MIB), &server).unwrap();
        runtime.stop_collapser();
        let shared = runtime.shared();
        let (pages, stops) = (&shared.huge_pages, AtomicBool::new(false));
        let prepared =
            || -> usize { pages.prepared.iter().map(|slabs| slabs.load(Ordering::Relaxed)).sum() };
        pages.prepare_again(0, 0);
        let before = prepared();
        let hold = pages.hold();
        assert!(pass(shared, &stops).unwrap_or(true), "the slab is still to be prepared");
        assert_eq!(prepared(), before);
        drop(hold);
        // Without huge pages, the first attempt fails.
        let _ = pass(shared, &stops);
        assert!(prepared() > before);
        runtime.stop(|_| {}).unwrap();
    }
}
