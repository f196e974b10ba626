//! The reading side of the journal: walks the log of a previous process.

mod error;
mod found;
mod walk;

pub use error::RecoverError;
pub use found::{Damage, Found, FoundRecord};
pub(crate) use walk::walk;
pub use walk::{CopyRange, LogInspection, inspect};

use forebay_format::journal::{LogKind, SUPERBLOCK_BYTES, Superblock};
use forebay_types::IoError;

/// A readable device.
pub trait ReadAt {
    /// Fills `buffer` from `position`; both are multiples of a block.
    ///
    /// # Errors
    /// If the device cannot be read there.
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> Result<(), IoError>;
}

/// Walks the journal on a device of `size_bytes`.
///
/// # Errors
/// If the device holds no valid journal. Damage within the log is not an error here: the caller
/// decides, depending on the other sources of the data.
pub fn recover(device: &mut dyn ReadAt, size_bytes: u64) -> Result<Found, RecoverError> {
    let found = recover_any(device, size_bytes)?;
    match found.superblock.kind {
        LogKind::Journal => Ok(found),
        kind => Err(RecoverError::Kind(kind)),
    }
}

/// Walks the vault on a device of `size_bytes`. Also returns the content of an unsealed vault; its
/// superblock says that it is unsealed.
///
/// # Errors
/// As [`recover`].
pub fn recover_vault(device: &mut dyn ReadAt, size_bytes: u64) -> Result<Found, RecoverError> {
    let found = recover_any(device, size_bytes)?;
    match found.superblock.kind {
        LogKind::Vault { .. } => Ok(found),
        kind => Err(RecoverError::Kind(kind)),
    }
}

/// Walks the log of either kind on a device of `size_bytes`.
///
/// # Errors
/// As [`recover`].
pub fn recover_any(device: &mut dyn ReadAt, size_bytes: u64) -> Result<Found, RecoverError> {
    let superblock = read_superblock(device)?;
    if size_bytes < superblock.size_bytes {
        let expected = superblock.size_bytes;
        return Err(RecoverError::Truncated { expected, found: size_bytes });
    }
    Ok(walk([Some(device), None], superblock).0)
}

fn read_superblock(device: &mut dyn ReadAt) -> Result<Superblock, RecoverError> {
    let mut copies = [vec![0; SUPERBLOCK_BYTES], vec![0; SUPERBLOCK_BYTES]];
    let mut failed = [None; 2];
    for (at, copy) in copies.iter_mut().enumerate() {
        failed[at] = device.read_at((at * SUPERBLOCK_BYTES) as u64, copy).err();
    }
    match Superblock::newest([&copies[0], &copies[1]]) {
        Ok(superblock) => Ok(superblock),
        Err(error) => {
            let io = failed[0].or(failed[1]).map(RecoverError::Io);
            Err(io.unwrap_or(RecoverError::Superblock(error)))
        }
    }
}
