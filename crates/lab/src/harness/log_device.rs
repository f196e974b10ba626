//! The device of a journal that can be inspected and copied at any moment.

use super::memory::read_stamp;
use forebay_journal::ReadAt;
use forebay_types::{IoError, IoResult, SECTOR_BYTES};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

const PAGE_BYTES: usize = 4096;

/// The journal's device. Copies share their unchanged pages.
#[derive(Clone, Debug)]
pub(crate) struct LogDevice {
    pages: Vec<Rc<[u8; PAGE_BYTES]>>,
    pub unreadable: Vec<u64>,
}

impl LogDevice {
    pub(crate) fn new(size_bytes: u64) -> Self {
        let page = Rc::new([0; PAGE_BYTES]);
        let pages = vec![page; size_bytes as usize / PAGE_BYTES];
        Self { pages, unreadable: Vec::new() }
    }

    pub(crate) const fn size_bytes(&self) -> u64 {
        (self.pages.len() * PAGE_BYTES) as u64
    }

    /// The indexes of those sectors of a write that differ from the device.
    pub(crate) fn changes(&self, position: u64, bytes: &[u8]) -> Vec<usize> {
        let sectors = bytes.chunks(SECTOR_BYTES as usize).enumerate();
        let changes = sectors.filter(|(at, sector)| {
            let place = position as usize + at * SECTOR_BYTES as usize;
            let page = &self.pages[place / PAGE_BYTES];
            page[place % PAGE_BYTES..][..sector.len()] != **sector
        });
        changes.map(|(at, _)| at).collect()
    }

    /// Writes those changed sectors of a write whose indexes `is_written` accepts.
    pub(crate) fn write_some(
        &mut self,
        position: u64,
        bytes: &[u8],
        is_written: impl Fn(usize) -> bool,
    ) {
        let changes = self.changes(position, bytes).into_iter();
        changes.filter(|&at| is_written(at)).for_each(|at| self.write(position, bytes, at));
    }

    /// Writes one sector of a write, given by its index.
    pub(crate) fn write(&mut self, position: u64, bytes: &[u8], sector: usize) {
        let from = sector * SECTOR_BYTES as usize;
        let place = position as usize + from;
        let page = Rc::make_mut(&mut self.pages[place / PAGE_BYTES]);
        let sector = &bytes[from..from + SECTOR_BYTES as usize];
        page[place % PAGE_BYTES..][..sector.len()].copy_from_slice(sector);
    }

    /// The first eight bytes of a sector.
    pub(crate) fn word(&self, position: u64) -> u64 {
        let page = &self.pages[position as usize / PAGE_BYTES];
        read_stamp(&page[..], position % PAGE_BYTES as u64)
    }

    pub(crate) fn flip(&mut self, position: u64, bits: u8) {
        let page = Rc::make_mut(&mut self.pages[position as usize / PAGE_BYTES]);
        page[position as usize % PAGE_BYTES] ^= bits;
    }

    /// The positions of pages that are not all zero.
    pub(crate) fn written(&self) -> impl Iterator<Item = u64> {
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
