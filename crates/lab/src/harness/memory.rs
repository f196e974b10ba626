//! The memory of requests.
//!
//! A sector of memory is represented by its stamp. The dispatcher splits payloads by bytes, so
//! payloads have their full length, with the stamp in the first eight bytes of each sector and the
//! rest unused. Buffers of reads are never split by bytes and hold stamps only.

use super::oracle::POISON;
use forebay_types::SECTOR_BYTES;
use std::cell::RefCell;
use std::rc::Rc;

/// Memory of one request, shared between its dispatcher and the I/Os that use it.
#[derive(Clone)]
pub(crate) struct Memory(Rc<Inner>);

struct Inner {
    payload: Vec<u8>,
    cells: RefCell<Vec<u64>>,
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0.payload
    }
}

impl Memory {
    /// Memory with this content.
    pub(crate) fn payload(bytes: &[u8]) -> Self {
        Self(Rc::new(Inner { payload: bytes.to_vec(), cells: RefCell::default() }))
    }

    /// Memory that has not been filled.
    pub(crate) fn buffer(len: u64) -> Self {
        let cells = RefCell::new(vec![POISON; (len / SECTOR_BYTES) as usize]);
        Self(Rc::new(Inner { payload: Vec::new(), cells }))
    }

    /// The stamp of the sector at `offset`, in bytes.
    pub(crate) fn get(&self, offset: u64) -> u64 {
        if self.0.payload.is_empty() {
            let cells = self.0.cells.borrow();
            return cells.get((offset / SECTOR_BYTES) as usize).copied().unwrap_or(POISON);
        }
        read_stamp(&self.0.payload, offset)
    }

    /// Sets the stamp of the sector at `offset`; returns false if there is no such sector.
    pub(crate) fn set(&self, offset: u64, stamp: u64) -> bool {
        let mut cells = self.0.cells.borrow_mut();
        match cells.get_mut((offset / SECTOR_BYTES) as usize) {
            Some(cell) => *cell = stamp,
            None => return false,
        }
        true
    }
}

/// The stamp of the sector at `offset` of a payload.
pub(crate) fn read_stamp(payload: &[u8], offset: u64) -> u64 {
    let at = offset as usize;
    let word = payload.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    word.map_or(POISON, u64::from_le_bytes)
}

/// Writes the stamp of the sector at `offset` of a payload.
pub(crate) fn write_stamp(payload: &mut [u8], offset: u64, stamp: u64) {
    let at = offset as usize;
    payload[at..at + 8].copy_from_slice(&stamp.to_le_bytes());
}

pub(crate) fn payload_of(stamps: impl ExactSizeIterator<Item = u64>) -> Vec<u8> {
    let mut bytes = vec![0; stamps.len() * SECTOR_BYTES as usize];
    (0..).step_by(SECTOR_BYTES as usize).zip(stamps).for_each(|(at, stamp)| {
        write_stamp(&mut bytes, at, stamp);
    });
    bytes
}
