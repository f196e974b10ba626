//! The RAM behind the bare server: one anonymous mapping, with huge pages if available.
//!
//! [`SharedArea`] owns it. Each mebibyte has its own lock, so that concurrent access to the same
//! bytes is safe; an uncontended lock costs about 20 ns of a request that takes a thousand.

use anyhow::{Context, Result, ensure};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::sync::{PoisonError, RwLock};

/// Bytes under one lock.
const REGION_BYTES: usize = 1 << 20;

/// Memory that many threads may read and write.
pub struct SharedArea {
    ptr: *mut u8,
    len: usize,
    locks: Vec<RwLock<()>>,
}

// SAFETY: this value owns the mapping exclusively, and it is accessed only under `locks`.
unsafe impl Send for SharedArea {}
// SAFETY: as above; `read` takes the shared lock and `write` the exclusive one.
unsafe impl Sync for SharedArea {}

impl SharedArea {
    /// Maps `len` bytes of zeroes.
    pub fn new(len: usize) -> Result<Self> {
        ensure!(len > 0, "cannot serve an empty area: give a --size above zero");
        // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
        let ptr = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .with_context(|| format!("mapping {len} bytes of memory"))?;
        // SAFETY: the range is the new mapping. The result is ignored: without huge pages the
        // figures are worse but valid.
        let _ = unsafe { madvise(ptr, len, Advice::LinuxHugepage) };
        let locks = (0..len.div_ceil(REGION_BYTES)).map(|_| RwLock::new(())).collect();
        Ok(Self { ptr: ptr.cast(), len, locks })
    }

    /// Its length in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.len as u64
    }

    /// All bytes, for exclusive use.
    pub const fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length, and `&mut self` excludes other access.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }

    /// Whether `len` bytes at `offset` are within the area.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len as u64)
    }

    /// Appends `len` bytes at `offset` to `out`.
    ///
    /// # Panics
    /// If the range is not inside, see [`SharedArea::contains`].
    pub fn read(&self, offset: u64, len: usize, out: &mut Vec<u8>) {
        assert!(self.contains(offset, len as u64), "{offset}+{len} is outside of the area");
        self.for_each_region(offset as usize, len, |lock, at, piece| {
            let _guard = lock.read().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: within the mapping (asserted above), and the guard excludes writers.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(self.ptr.add(at), piece) });
        });
    }

    /// Writes `data` at `offset`.
    ///
    /// # Panics
    /// If the range is not inside, see [`SharedArea::contains`].
    pub fn write(&self, offset: u64, data: &[u8]) {
        assert!(self.contains(offset, data.len() as u64), "a write outside of the area");
        let start = offset as usize;
        self.for_each_region(start, data.len(), |lock, at, piece| {
            let _guard = lock.write().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: within the mapping (asserted above), and the guard excludes all others.
            let target = unsafe { std::slice::from_raw_parts_mut(self.ptr.add(at), piece) };
            target.copy_from_slice(&data[at - start..at - start + piece]);
        });
    }

    fn for_each_region(
        &self,
        start: usize,
        len: usize,
        mut each: impl FnMut(&RwLock<()>, usize, usize),
    ) {
        let (mut at, end) = (start, start + len);
        while at < end {
            let region = at / REGION_BYTES;
            let piece = ((region + 1) * REGION_BYTES).min(end) - at;
            each(&self.locks[region], at, piece);
            at += piece;
        }
    }
}

impl Drop for SharedArea {
    fn drop(&mut self) {
        // SAFETY: `new` created the mapping with this length, and no pointer into it remains. The
        // call fails only for an invalid address.
        let _ = unsafe { munmap(self.ptr.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_across_regions_is_read_back() {
        let area = SharedArea::new(3 * REGION_BYTES).unwrap();
        let data: Vec<u8> = (0..REGION_BYTES + 4096).map(|i| (i / 7) as u8).collect();
        let offset = REGION_BYTES as u64 - 512;
        area.write(offset, &data);
        let mut out = vec![9];
        area.read(offset, data.len(), &mut out);
        assert_eq!(out[0], 9);
        assert!(out[1..] == data[..]);
        out.clear();
        area.read(0, 512, &mut out);
        assert!(out.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn the_end_is_where_it_should_be() {
        let area = SharedArea::new(8192).unwrap();
        assert!(area.contains(4096, 4096));
        assert!(!area.contains(4097, 4096));
        assert!(!area.contains(u64::MAX, 2));
        assert!(SharedArea::new(0).is_err());
    }
}
