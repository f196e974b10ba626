//! The two devices of an enumerated machine.
//!
//! Sectors are atomic. Until a flush, the disk may keep any of the contents that a sector was given
//! since the last one, independently of other sectors: that covers every subset and every order of
//! its cache.

use super::work::SECTORS;
use crate::harness::oracle::stamp;
use forebay_journal::ReadAt;
use forebay_types::{IoError, IoResult, SECTOR_BYTES};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

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

const PAGE_BYTES: usize = 4096;

/// The journal's device. Copies share their unchanged pages.
#[derive(Clone, Debug)]
pub(super) struct LogDevice {
    pages: Vec<Rc<[u8; PAGE_BYTES]>>,
    pub unreadable: Vec<u64>,
}

impl LogDevice {
    pub(super) fn new(size_bytes: u64) -> Self {
        let page = Rc::new([0; PAGE_BYTES]);
        let pages = vec![page; size_bytes as usize / PAGE_BYTES];
        Self { pages, unreadable: Vec::new() }
    }

    pub(super) const fn size_bytes(&self) -> u64 {
        (self.pages.len() * PAGE_BYTES) as u64
    }

    /// The indexes of those sectors of a write that differ from the device.
    pub(super) fn changes(&self, position: u64, bytes: &[u8]) -> Vec<usize> {
        let sectors = bytes.chunks(SECTOR_BYTES as usize).enumerate();
        let changes = sectors.filter(|(at, sector)| {
            let place = position as usize + at * SECTOR_BYTES as usize;
            let page = &self.pages[place / PAGE_BYTES];
            page[place % PAGE_BYTES..][..sector.len()] != **sector
        });
        changes.map(|(at, _)| at).collect()
    }

    /// Writes those changed sectors of a write whose indexes `is_written` accepts.
    pub(super) fn write_some(
        &mut self,
        position: u64,
        bytes: &[u8],
        is_written: impl Fn(usize) -> bool,
    ) {
        let changes = self.changes(position, bytes).into_iter();
        changes.filter(|&at| is_written(at)).for_each(|at| self.write(position, bytes, at));
    }

    /// Writes one sector of a write, given by its index.
    pub(super) fn write(&mut self, position: u64, bytes: &[u8], sector: usize) {
        let from = sector * SECTOR_BYTES as usize;
        let place = position as usize + from;
        let page = Rc::make_mut(&mut self.pages[place / PAGE_BYTES]);
        let sector = &bytes[from..from + SECTOR_BYTES as usize];
        page[place % PAGE_BYTES..][..sector.len()].copy_from_slice(sector);
    }

    /// The first eight bytes of a sector.
    pub(super) fn word(&self, position: u64) -> u64 {
        let page = &self.pages[position as usize / PAGE_BYTES];
        crate::harness::memory::read_stamp(&page[..], position % PAGE_BYTES as u64)
    }

    pub(super) fn flip(&mut self, position: u64, bits: u8) {
        let page = Rc::make_mut(&mut self.pages[position as usize / PAGE_BYTES]);
        page[position as usize % PAGE_BYTES] ^= bits;
    }

    /// The positions of pages that are not all zero.
    pub(super) fn written(&self) -> impl Iterator<Item = u64> {
        let pages = self.pages.iter().enumerate();
        let written = pages.filter(|(_, page)| page.iter().any(|&byte| byte != 0));
        written.map(|(at, _)| (at * PAGE_BYTES) as u64)
    }
}

impl Hash for LogDevice {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for at in self.written() {
            at.hash(hasher);
            self.pages[at as usize / PAGE_BYTES].hash(hasher);
        }
        self.unreadable.hash(hasher);
    }
}

impl ReadAt for LogDevice {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> IoResult {
        let end = position + buffer.len() as u64;
        if self.unreadable.iter().any(|&sector| {
            let at = sector * SECTOR_BYTES;
            at < end && position < at + SECTOR_BYTES
        }) {
            return Err(IoError::Io);
        }
        let mut at = position as usize;
        let mut rest = buffer;
        while !rest.is_empty() {
            let page = self.pages.get(at / PAGE_BYTES).ok_or(IoError::Io)?;
            let from = at % PAGE_BYTES;
            let count = rest.len().min(PAGE_BYTES - from);
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(&page[from..from + count]);
            at += count;
            rest = later;
        }
        Ok(())
    }
}
