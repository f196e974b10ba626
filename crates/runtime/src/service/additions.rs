//! The volumes that are being added.
//!
//! An addition reads the disk of its volume, and may write all data of a journal or a vault to it.
//! It holds no lock meanwhile. Instead it reserves the volume's name and its disk, so that no other
//! addition takes them before the volume is in the table, and so that the lines that an adopted
//! pool has under this name are kept.

use super::{VolumeService, VolumeSettings};
use crate::error::{VolumeError, VolumeResult};
use crate::shared::Shared;
use forebay_types::limits::VOLUME_NAME_BYTES_MAX;
use forebay_types::{PoolShare, ShareSum};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// The volumes that are being added: their names, disks and guaranteed shares.
#[derive(Default)]
pub(super) struct Additions(Vec<Reservation>);

struct Reservation {
    name: String,
    /// The disk's identity; `None` if no other volume can have the same disk.
    disk: Option<String>,
    share_min_percent: u8,
}

impl Additions {
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|reserved| reserved.name == name)
    }

    /// Reserves a volume's name and disk, unless another volume has one of them.
    fn reserve(&mut self, shared: &Shared, settings: &VolumeSettings) -> VolumeResult {
        let (name, disk) = (&settings.name, settings.backend.description());
        let in_use = |volume: &str| {
            let (backing, volume) = (disk.name.clone(), volume.to_owned());
            Err(VolumeError::BackingInUse { backing, volume })
        };
        for volume in shared.volumes.all() {
            if volume.name == *name {
                return Err(match volume.half_added.load(Ordering::Relaxed) {
                    true => VolumeError::HalfAdded(name.clone()),
                    false => VolumeError::NameInUse(name.clone()),
                });
            }
            if disk.identity.is_some() && disk.identity == volume.backend.description().identity {
                return in_use(&volume.name);
            }
        }
        for other in &self.0 {
            if other.name == *name {
                return Err(VolumeError::NameInUse(name.clone()));
            }
            if disk.identity.is_some() && disk.identity == other.disk {
                return in_use(&other.name);
            }
        }
        let share_min_percent = PoolShare::of_config(&settings.config).min_percent();
        self.check_shares(shared, name, share_min_percent)?;
        let disk = disk.identity.clone();
        self.0.push(Reservation { name: name.clone(), disk, share_min_percent });
        Ok(())
    }

    /// Checks that the guaranteed shares of all volumes leave room if that of one becomes `percent`
    /// of the pool.
    pub(super) fn check_shares(&self, shared: &Shared, name: &str, percent: u8) -> VolumeResult {
        if percent == 0 {
            return Ok(());
        }
        let mut shares = vec![(name.to_owned(), percent)];
        for volume in shared.volumes.all() {
            let share = PoolShare::of_config(&volume.config.read());
            shares.push((volume.name.clone(), share.min_percent()));
        }
        shares.extend(self.0.iter().map(|added| (added.name.clone(), added.share_min_percent)));
        // A volume that is being added may be among those that are served already.
        let mut seen = HashSet::new();
        shares.retain(|(name, _)| seen.insert(name.clone()));
        let shares = shares.iter().map(|(name, percent)| (&name[..], *percent));
        ShareSum::of(shares).check().map_err(VolumeError::Shares)
    }
}

/// An addition in progress. Dropping it ends the reservation.
#[must_use]
pub(super) struct Addition<'a> {
    service: &'a VolumeService,
    name: String,
}

impl VolumeService {
    /// Begins the addition of a volume.
    ///
    /// # Errors
    /// When its name is invalid, another volume, served or being added, has its name or disk, or
    /// the guaranteed shares of all volumes leave no room.
    pub(super) fn begin_addition(
        &self,
        settings: &VolumeSettings,
    ) -> Result<Addition<'_>, VolumeError> {
        let name = &settings.name;
        let is_text = !name.chars().any(char::is_control);
        if name.is_empty() || name.len() > VOLUME_NAME_BYTES_MAX || !is_text {
            return Err(VolumeError::Name(name.clone()));
        }
        self.changes.lock().reserve(&self.shared, settings)?;
        Ok(Addition { service: self, name: name.clone() })
    }
}

impl Drop for Addition<'_> {
    fn drop(&mut self) {
        self.service.changes.lock().0.retain(|reserved| reserved.name != self.name);
    }
}
