//! The size of a store, which may grow while the store is open.

use crate::FileError;
use forebay_types::{Fault, Remedy, Size};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of a store in bytes, a multiple of 512. It never shrinks. Clones are of the same store,
/// and grow with it.
#[derive(Clone)]
pub struct DiskSize(Arc<AtomicU64>);

impl DiskSize {
    /// A size of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(AtomicU64::new(bytes)))
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Makes the size larger for all users of the store, which has grown to `bytes`; see
    /// [`crate::Backend::measure`]. A smaller size has no effect.
    pub fn grow(&self, bytes: u64) {
        self.0.fetch_max(bytes, Ordering::AcqRel);
    }
}

impl fmt::Debug for DiskSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

impl PartialEq for DiskSize {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for DiskSize {}

/// Why a store cannot be measured again.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The size of this kind of store is read when it is opened.
    #[error("the size of '{name}' is read only when it is opened")]
    Fixed {
        /// The store's name.
        name: String,
    },
    /// It has become smaller.
    #[error("'{name}' has shrunk from {} to {}", Size(*.from), Size(*.to))]
    Shrunk {
        /// The store's name.
        name: String,
        /// Its size before, in bytes.
        from: u64,
        /// Its size now, in bytes.
        to: u64,
    },
    /// Its size does not consist of whole blocks.
    #[error("'{name}' has {size_bytes} bytes now, which are not whole blocks of {block_bytes}")]
    Blocks {
        /// The store's name.
        name: String,
        /// Its size, in bytes.
        size_bytes: u64,
        /// Its block size, in bytes.
        block_bytes: u32,
    },
    /// Its server does not tell its size.
    #[error("cannot read the size of '{name}'")]
    Unknown {
        /// The store's name.
        name: String,
        /// The error of its library.
        source: std::io::Error,
    },
    /// It would not be opened with this size, or the system does not tell its size.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Fault for MeasureError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Fixed { .. } => "upgrade or restart the server, which opens it again".into(),
            Self::Shrunk { .. } => {
                "make it as large as before: what was beyond its end is lost".into()
            }
            Self::Blocks { .. } => "grow it by whole blocks".into(),
            Self::Unknown { .. } => "check that its cluster is healthy".into(),
            Self::File(error) => error.remedy(),
        }
    }
}
