//! The disk of an enumerated machine.
//!
//! Sectors are atomic. Until a flush, the disk may keep any of the contents that a sector was given
//! since the last one, independently of other sectors: that covers every subset and every order of
//! its cache.

use crate::harness::oracle::stamp;
use crate::harness::places::SECTORS;

#[derive(Clone, Copy, Debug)]
struct Cached {
    sector: usize,
    stamp: u64,
    number: u32,
}

/// A disk with a volatile cache.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    stable: [u64; SECTORS],
    /// Writes since the last flush, in order.
    cached: Vec<Cached>,
    /// The number of writes so far.
    written: u32,
}

impl Disk {
    pub(super) fn new() -> Self {
        let stable = std::array::from_fn(|at| stamp(0, at as u64, 0));
        Self { stable, cached: Vec::new(), written: 0 }
    }

    /// A disk with this content and an empty cache.
    pub(super) const fn with(stable: [u64; SECTORS]) -> Self {
        Self { stable, cached: Vec::new(), written: 0 }
    }

    pub(super) fn write(&mut self, sector: usize, stamp: u64) {
        self.written += 1;
        self.cached.push(Cached { sector, stamp, number: self.written });
    }

    /// Writes to stable storage.
    pub(super) fn write_through(&mut self, sector: usize, stamp: u64) {
        self.cached.retain(|cached| cached.sector != sector);
        self.stable[sector] = stamp;
    }

    /// The position of a flush that begins now.
    pub(super) const fn mark(&self) -> u32 {
        self.written
    }

    /// Ends a flush that began at `mark`.
    pub(super) fn flush(&mut self, mark: u32) {
        let stable = &mut self.stable;
        self.cached.retain(|cached| {
            let ends = cached.number <= mark;
            if ends {
                stable[cached.sector] = cached.stamp;
            }
            !ends
        });
    }

    /// The content as reads see it.
    pub(super) fn content(&self) -> [u64; SECTORS] {
        let mut content = self.stable;
        self.cached.iter().for_each(|cached| content[cached.sector] = cached.stamp);
        content
    }

    pub(super) const fn stable(&self) -> &[u64; SECTORS] {
        &self.stable
    }

    /// The contents that each sector may have after a power failure.
    pub(super) fn possible(&self) -> [Vec<u64>; SECTORS] {
        let mut possible = self.stable.map(|stamp| vec![stamp]);
        for cached in &self.cached {
            let contents = &mut possible[cached.sector];
            if !contents.contains(&cached.stamp) {
                contents.push(cached.stamp);
            }
        }
        possible
    }
}
