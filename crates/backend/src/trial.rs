//! A stand-in for a store that would be opened: everything that can be asked without opening it is
//! known, and nothing is locked, connected or written. It answers each I/O with an error.

use crate::{Backend, Description, DiskSize, Io, StoreMedium};
use forebay_types::{DiskGeometry, IoError, SECTOR_BYTES};

/// The size of a store whose size is known only once it is open.
pub const UNKNOWN_BYTES: u64 = 1 << 50;

/// The stand-in.
pub struct TrialBackend {
    description: Description,
    medium: StoreMedium,
}

impl TrialBackend {
    /// A stand-in for the store `name` of this size.
    pub fn new(name: &str, size_bytes: u64, identity: String, medium: StoreMedium) -> Self {
        let description = Description {
            name: name.to_owned(),
            size: DiskSize::new(size_bytes),
            identity: Some(identity),
            read_only: false,
            geometry: DiskGeometry::default(),
            can_discard: false,
            can_zero_fast: false,
            alignment_bytes: SECTOR_BYTES as u32,
        };
        Self { description, medium }
    }
}

impl Backend for TrialBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        io.done.complete(Err(IoError::Io));
    }

    fn medium(&self) -> StoreMedium {
        self.medium.clone()
    }
}
