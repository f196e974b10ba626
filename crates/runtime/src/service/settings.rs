//! The settings of a volume.

use crate::gather::OnMeasured;
use crate::protect::journal::VolumeJournal;
use crate::protect::vault::VolumeVault;
use forebay_backend::Backend;
use forebay_policy::{Limits, SplitCost};
use forebay_types::{DiskGeometry, Mode, PinnedRanges, UnsafeUps};
use std::sync::Arc;
use std::time::Duration;

/// The settings of a volume that is added. [`VolumeSettings::new`] gives the defaults.
pub struct VolumeSettings {
    /// The name under which clients find it.
    pub name: String,
    /// A description for people; may be empty.
    pub description: String,
    /// The disk.
    pub backend: Arc<dyn Backend>,
    /// The cache mode.
    pub mode: Mode,
    /// Whether clients may only read it.
    pub read_only: bool,
    /// Whether nothing is admitted into the pool except pinned ranges and dirty data.
    pub frozen: bool,
    /// Whether sequential streams are read ahead.
    pub prefetch: bool,
    /// Whether its warm list is kept, and read into the pool after a restart.
    pub warm: bool,
    /// The ranges that stay in the pool. If they may not be pinned, the volume is served without
    /// them, and its status says why.
    pub pins: PinnedRanges,
    /// Whether to learn what is needed at which time of day, and to preload it.
    pub learn: bool,
    /// Its identity in its warm list and its access history: a checksum of its name and backing.
    pub identity: [u8; 32],
    /// The geometry to assume for the disk.
    pub geometry: DiskGeometry,
    /// The gather threshold in bytes, zero to gather nothing; `None` to measure it.
    pub gather_below: Option<u64>,
    /// The cost of splitting a write on this disk, if it was measured earlier. It is then measured
    /// only on request.
    pub split_cost: Option<SplitCost>,
    /// Receives each new measurement.
    pub on_measured: Option<OnMeasured>,
    /// The limits of writeback.
    pub write_back: Limits,
    /// The latency that makes a request slow; `None` if none is.
    pub slow: Option<Duration>,
    /// Whether dirty data is destaged in order, so that the disk alone is always consistent.
    pub ordered: bool,
    /// Whether it is served over TLS only.
    pub tls_only: bool,
    /// The journal that records its writes.
    pub journal: Option<VolumeJournal>,
    /// Whether a UPS protects its writes: alone, or once its journal has failed.
    pub ups: bool,
    /// When a write is acknowledged while the UPS does not cover it, if only a UPS protects the
    /// volume.
    pub unsafe_ups: UnsafeUps,
    /// The vault that takes its dirty data when the battery runs low.
    pub vault: Option<VolumeVault>,
    /// Accept the disk although it differs from the one that pool or vault hold data for.
    pub accept_disk: bool,
}

impl VolumeSettings {
    /// The defaults of the configuration: a writable volume with prefetch and a measured gather
    /// threshold, of unknown geometry, without journal, UPS and vault.
    pub fn new(name: impl Into<String>, backend: Arc<dyn Backend>, mode: Mode) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            backend,
            mode,
            read_only: false,
            frozen: false,
            prefetch: true,
            warm: true,
            pins: PinnedRanges::default(),
            learn: true,
            identity: [0; 32],
            geometry: DiskGeometry::default(),
            gather_below: None,
            split_cost: None,
            on_measured: None,
            write_back: Limits::default(),
            slow: None,
            ordered: false,
            tls_only: false,
            journal: None,
            ups: false,
            unsafe_ups: UnsafeUps::default(),
            vault: None,
            accept_disk: false,
        }
    }
}

/// The settings of a volume that can change while it is served. [`VolumeChange::new`] gives the
/// defaults.
pub struct VolumeChange {
    /// A description for people; may be empty.
    pub description: String,
    /// The cache mode.
    pub mode: Mode,
    /// Whether clients may only read it.
    pub read_only: bool,
    /// Whether nothing is admitted into the pool except pinned ranges and dirty data.
    pub frozen: bool,
    /// Whether sequential streams are read ahead.
    pub prefetch: bool,
    /// Whether its warm list is kept. If not, its warm-up ends.
    pub warm: bool,
    /// Whether an access history is kept. If not, its preload ends.
    pub learn: bool,
    /// The gather threshold in bytes, zero to gather nothing; `None` to measure it.
    pub gather_below: Option<u64>,
    /// The limits of writeback.
    pub write_back: Limits,
    /// The minimum latency of a slow request; `None` if none is slow.
    pub slow: Option<Duration>,
    /// Whether it is served over TLS only.
    pub tls_only: bool,
    /// When a write is acknowledged while the UPS does not cover it, if only a UPS protects the
    /// volume.
    pub unsafe_ups: UnsafeUps,
    /// The ranges that stay in the pool; `None` if they do not change.
    pub pins: Option<PinnedRanges>,
}

impl VolumeChange {
    /// The defaults of [`VolumeSettings::new`].
    pub fn new(mode: Mode) -> Self {
        Self {
            description: String::new(),
            mode,
            read_only: false,
            frozen: false,
            prefetch: true,
            warm: true,
            learn: true,
            gather_below: None,
            write_back: Limits::default(),
            slow: None,
            tls_only: false,
            unsafe_ups: UnsafeUps::default(),
            pins: None,
        }
    }
}
