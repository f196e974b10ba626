//! Sector-granular reads and writes on devices with larger blocks.

use forebay_backend::{AlignedBuffer, Backend, Blocking};
use forebay_types::{IoError, IoResult};

/// Largest piece read into memory at once, in bytes.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// Rounds a range out to whole blocks; returns its start and end.
fn align_out(backend: &dyn Backend, offset: u64, len: u64) -> (u64, u64) {
    let description = backend.description();
    let alignment = u64::from(description.alignment_bytes);
    let end = (offset + len).next_multiple_of(alignment).min(description.size_bytes());
    (offset / alignment * alignment, end)
}

/// Reads `len` bytes at `offset`.
pub(super) fn read(backend: &dyn Backend, offset: u64, len: u64) -> Result<Vec<u8>, IoError> {
    let is_inside =
        offset.checked_add(len).is_some_and(|e| e <= backend.description().size_bytes());
    if !is_inside {
        return Err(IoError::Invalid);
    }
    let (start, end) = align_out(backend, offset, len);
    let mut bytes = AlignedBuffer::new((end - start) as usize);
    Blocking::new(backend).read(start, &mut bytes)?;
    let at = (offset - start) as usize;
    Ok(bytes[at..at + len as usize].to_vec())
}

/// Writes bytes at `offset`, with read-modify-write for partial blocks.
pub(super) fn write(backend: &dyn Backend, offset: u64, bytes: &[u8]) -> IoResult {
    let len = bytes.len() as u64;
    let (start, end) = align_out(backend, offset, len);
    let mut block = AlignedBuffer::new((end - start) as usize);
    let device = Blocking::new(backend);
    if (start, end) != (offset, offset + len) {
        device.read(start, &mut block)?;
    }
    let at = (offset - start) as usize;
    block[at..at + bytes.len()].copy_from_slice(bytes);
    device.write(start, &block, false)
}
