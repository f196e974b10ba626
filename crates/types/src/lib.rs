//! The types that all crates of Forebay share: identities, ranges, units, errors and limits.
//!
//! The crate is pure.

#![deny(missing_docs)]

mod background;
pub mod backing;
mod bytes;
mod disk;
mod error;
mod extent;
mod fault;
mod few;
mod geometry;
mod granule;
mod history;
mod hold_out;
pub mod limits;

mod pinned;
mod pool_share;
mod settings;
mod shown;
mod size;
mod stripes;
mod volume_config;
mod words;
mod write_share;

pub use background::BackgroundShare;
pub use bytes::Bytes;
pub use disk::DiskGeometry;
pub use error::{IoError, IoResult};
pub use extent::Extent;
pub use fault::{Action, Alternative, Blame, Fault, Listed, Remedy};
pub use few::Few;
pub use geometry::{
    ByteRange, LINE_BYTES, LINES_PER_REGION, REGION_BYTES, SECTOR_BYTES, SECTORS_PER_LINE, VolumeId,
};
pub use granule::{GRANULE_BYTES, GRANULE_LINES, Granule, LINE_VALUE_HOT, LINE_VALUE_MAX};
pub use history::{
    HistoryRegion, HistorySlot, PART_BYTES, PART_LINES, SLOT_SECONDS, SLOTS_PER_DAY,
    SLOTS_PER_WEEK, TimeSlot,
};
pub use hold_out::HoldOut;
pub use pinned::PinnedRanges;
pub use pool_share::{PoolShare, SHARE_MIN_SUM_MAX, ShareSum};
pub use settings::{PROGRAM_SETTINGS, Setting};
pub use shown::Shown;
pub use size::{ParseSizeError, Size};
pub use stripes::Stripes;
pub use volume_config::{VOLUME_KEYS, VOLUME_SETTINGS, VolumeConfig};
pub use words::{Auto, DiskFormat, Durability, Mode, Protection, ReadLatency, TlsUse, UnsafeUps};
pub use write_share::WriteShare;
