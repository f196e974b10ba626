//! Which slabs of the pool have huge pages, or may get them now.

use crate::platform::locks::{Lock, order};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Which slabs have been prepared.
#[derive(Debug)]
pub(crate) struct HugePages {
    /// The first slab of each shard that has not been prepared.
    pub prepared: Vec<AtomicUsize>,
    /// Held while pages are made, and while memory is given back. Otherwise a page could be made
    /// for a slab just after its memory was given back.
    allocation: Lock<(), { order::ALLOCATION }>,
    /// The number of [`Hold`]s. The resizer has one during each of its passes: making a page takes
    /// a thousand times as long as giving one back, so a resize would wait long for pages, some of
    /// which it then gives back.
    holds: AtomicUsize,
}

/// While it exists, no huge page is begun.
#[must_use]
pub(crate) struct Hold<'a>(&'a AtomicUsize);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "each hold is counted once");
    }
}

impl HugePages {
    pub(crate) fn new(shards: usize) -> Self {
        let prepared = (0..shards).map(|_| AtomicUsize::new(0)).collect();
        Self { prepared, allocation: Lock::default(), holds: AtomicUsize::new(0) }
    }

    /// Makes the collapser wait. It completes at most the page that it is making.
    pub(crate) fn hold(&self) -> Hold<'_> {
        self.holds.fetch_add(1, Ordering::Relaxed);
        Hold(&self.holds)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holds.load(Ordering::Relaxed) > 0
    }

    /// Makes the collapser prepare the slabs of a shard again, from `slab` on, whose memory was
    /// given back and which is in use again.
    pub(crate) fn prepare_again(&self, shard: usize, slab: usize) {
        self.prepared[shard].fetch_min(slab, Ordering::Relaxed);
    }

    /// Calls a function, during which no huge page is made.
    pub(crate) fn while_not_collapsing<T>(&self, call: impl FnOnce() -> T) -> T {
        let _none = self.allocation.lock();
        call()
    }
}
