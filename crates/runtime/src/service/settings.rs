//! What is needed to add a volume.

use crate::disk::DiskTrust;
use crate::journal::VolumeJournal;
use crate::protect::vault::VolumeVault;
use crate::shared::OnMeasured;
use forebay_backend::Backend;
use forebay_policy::SplitCost;
use forebay_types::{DiskGeometry, Mode, VolumeConfig};
use std::io;
use std::sync::Arc;

/// What is needed to add a volume. [`VolumeSettings::new`] gives the defaults.
pub struct VolumeSettings {
    /// The name under which clients find it.
    pub name: String,
    /// The disk.
    pub backend: Arc<dyn Backend>,
    /// Its settings, consistent. If its ranges may not be pinned, the volume is served without
    /// them, and its status says why.
    pub config: VolumeConfig,
    /// Its identity in its warm list and its access history: a checksum of its name and backing.
    pub identity: [u8; 32],
    /// The geometry to assume for the disk, in which [`Self::config`] overrides what it reports.
    pub geometry: DiskGeometry,
    /// A gather threshold in bytes that overrides the one of [`Self::config`].
    pub gather_below: Option<u64>,
    /// The cost of splitting a write on this disk, if it was measured earlier. It is then measured
    /// only on request.
    pub split_cost: Option<SplitCost>,
    /// Receives each new measurement.
    pub on_measured: Option<OnMeasured>,
    /// The journal that records its writes.
    pub journal: Option<VolumeJournal>,
    /// The vault that takes its dirty data when the battery runs low.
    pub vault: Option<VolumeVault>,
    /// Accept the disk although it differs from the one that pool or vault hold data for.
    pub accept_disk: bool,
    /// Whether another server has owned the disk since this host had it: what this host has of the
    /// volume in the pool, a journal of its own or the vault is older than the disk.
    pub has_other_owner: bool,
    /// Called once the volume has all of its data, before a client can write.
    pub on_recovered: Option<OnRecovered>,
}

/// Records durably that what former owners of a disk have left is void.
pub type OnRecovered = Box<dyn FnOnce() -> io::Result<()> + Send>;

impl VolumeSettings {
    /// The default settings in this mode, for a disk of unknown geometry, without journal and
    /// vault.
    pub fn new(name: impl Into<String>, backend: Arc<dyn Backend>, mode: Mode) -> Self {
        Self {
            name: name.into(),
            backend,
            config: VolumeConfig { mode, ..VolumeConfig::default() },
            identity: [0; 32],
            geometry: DiskGeometry::default(),
            gather_below: None,
            split_cost: None,
            on_measured: None,
            journal: None,
            vault: None,
            accept_disk: false,
            has_other_owner: false,
            on_recovered: None,
        }
    }

    /// What is known of the disk, besides its content.
    pub(super) const fn trust(&self) -> DiskTrust {
        DiskTrust { is_accepted: self.accept_disk, has_other_owner: self.has_other_owner }
    }
}
