//! `blocks(size=4096):BACKING`: a disk whose blocks are larger than a sector.
//!
//! It accepts only whole blocks, and memory aligned for direct I/O; anything else fails with
//! EINVAL, as in the kernel.

use super::describe;
use crate::spec::{Fields, SpecError, size_bytes};
use crate::{Backend, Description, Io, MeasureError};
use forebay_types::{Blame, Fault, IoError, Remedy, SECTOR_BYTES};
use std::sync::Arc;

/// The largest block size, in bytes: the maximum of the NBD protocol.
const BLOCK_BYTES_MAX: u64 = 64 << 10;
/// The largest memory alignment, in bytes.
const MEMORY_ALIGNMENT_MAX: u64 = 4096;

/// The disk cannot have blocks of this size.
#[derive(Debug, thiserror::Error)]
#[error(
    "layer blocks: '{name}' has {size_bytes} bytes in blocks of {inner_bytes}, so it cannot have \
     blocks of {block_bytes}"
)]
pub struct BlocksError {
    name: String,
    size_bytes: u64,
    inner_bytes: u32,
    block_bytes: u32,
}

impl Fault for BlocksError {
    fn remedy(&self) -> Remedy {
        "give a block size that divides the disk's size and is not below its own block size".into()
    }

    fn blame(&self) -> Blame {
        Blame::Operator
    }
}

/// A backend with larger blocks than the one below it.
pub struct Blocks {
    inner: Arc<dyn Backend>,
    pub(super) description: Description,
}

/// Parses `size=4096`.
pub(super) fn parse(text: &str) -> Result<u32, SpecError> {
    const EXAMPLE: &str = "4096 (a power of two, 512 to 64KiB)";
    let fields = Fields::parse("blocks", text, ',', &["size"])?;
    let range = SECTOR_BYTES..=BLOCK_BYTES_MAX;
    let size = |text: &str| size_bytes(text).filter(|s| s.is_power_of_two() && range.contains(s));
    Ok(fields.get("size", EXAMPLE, size)?.unwrap_or(4096) as u32)
}

impl Blocks {
    /// Gives `inner` blocks of `block_bytes`, a power of two from 512 to 64 KiB.
    ///
    /// # Errors
    /// If the disk does not consist of whole blocks of this size.
    pub fn new(inner: Arc<dyn Backend>, block_bytes: u32) -> Result<Self, BlocksError> {
        let mut description = describe("blocks", &*inner);
        let inner_bytes = description.alignment_bytes;
        let size_bytes = description.size_bytes();
        if !size_bytes.is_multiple_of(u64::from(block_bytes)) || inner_bytes > block_bytes {
            let name = inner.description().name.clone();
            return Err(BlocksError { name, size_bytes, inner_bytes, block_bytes });
        }
        description.alignment_bytes = block_bytes;
        Ok(Self { inner, description })
    }

    fn accepts(&self, io: &Io) -> bool {
        let block_bytes = u64::from(self.description.alignment_bytes);
        let alignment = block_bytes.min(MEMORY_ALIGNMENT_MAX);
        let mut buffers = io.buffers.iter();
        (io.offset | io.len).is_multiple_of(block_bytes)
            && buffers.all(|buffer| {
                (buffer.as_ptr() as u64 | buffer.len() as u64).is_multiple_of(alignment)
            })
    }
}

impl Backend for Blocks {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        if self.accepts(&io) {
            self.inner.submit(io);
        } else {
            io.done.complete(Err(IoError::Invalid));
        }
    }

    fn measure(&self, block_bytes: u32) -> Result<u64, MeasureError> {
        self.inner.measure(block_bytes.max(self.description.alignment_bytes))
    }

    fn below(&self) -> Option<&dyn Backend> {
        Some(&*self.inner)
    }
}
