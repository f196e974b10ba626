//! Whether journals, vault and disks are still where they were opened.
//!
//! A file that was deleted, replaced or cut short while it is open takes writes as before, and the
//! next process finds none of them. A system call on an open file says nothing of it, so
//! [`Runtime::check_presence`] looks at the names, off the data path.
//!
//! A journal device that has gone counts as failed, for good. A vault is looked into at once, which
//! ends write-back under UPSes as long as the vault is not there. A disk is named in log and
//! status, and served on: refusing its writes would save nothing.

use crate::error::VolumeError;
use crate::journal::Journal;
use crate::locks::Lock;
use crate::server::Runtime;
use crate::shared::Volume;
use forebay_backend::{Backend, Displaced};
use forebay_types::Mode;
use std::sync::Arc;

/// A device manager may take a name away for a moment and put it back.
const CHECKS_UNTIL_SURE: u8 = 2;

/// What the checks of one device have found.
#[derive(Debug, Default)]
pub(crate) struct Sightings(Lock<(Option<Displaced>, u8)>);

/// What a check has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// It is displaced for certain.
    Gone(Displaced),
    /// It is back.
    Back,
}

impl Sightings {
    /// Checks a device.
    pub(crate) fn check(&self, backend: &dyn Backend) -> Change {
        // Without the lock, as looking at a path may take long.
        let found = backend.check_presence().err();
        let mut state = self.0.lock();
        let was_sure = state.1 >= CHECKS_UNTIL_SURE;
        let Some(displaced) = found else {
            *state = (None, 0);
            return if was_sure { Change::Back } else { Change::None };
        };
        *state = (Some(displaced), state.1.saturating_add(1));
        match !was_sure && state.1 >= CHECKS_UNTIL_SURE {
            true => Change::Gone(displaced),
            false => Change::None,
        }
    }

    /// What has become of the device, if that is certain.
    pub(crate) fn displaced(&self) -> Option<Displaced> {
        let state = self.0.lock();
        state.0.filter(|_| state.1 >= CHECKS_UNTIL_SURE)
    }
}

impl Runtime {
    /// Looks whether journals, vault and disks are still where they were opened. To be called about
    /// once a second; two calls in a row have to find something gone before it counts. May block
    /// for as long as looking at a path can.
    pub fn check_presence(&self) {
        let journals = self.journals.lock().clone();
        journals.iter().for_each(|journal| journal.check_presence());
        if let Some(vault) = self.vault() {
            vault.check_presence();
        }
        self.shared.volumes.all().iter().for_each(|volume| volume.check_presence());
    }
}

impl Runtime {
    /// Puts on record again who relies on which journal and vault, and which journals have failed:
    /// the records are gone.
    ///
    /// # Errors
    /// When something can't be recorded.
    pub fn renew_records(&self) -> Result<(), VolumeError> {
        for volume in self.shared.volumes.all() {
            let mode = {
                let shard = self.shared.shard(0);
                if !shard.has_volume(volume.id) {
                    continue;
                }
                shard.mode(volume.id)
            };
            if let Some(vault) = &volume.vault {
                vault.rely(volume.id, mode)?;
            }
            if let (Some(used), Mode::WriteBack) = (&volume.journal, mode) {
                used.journal.rely(&volume.name)?;
            }
        }
        let journals = self.journals.lock().clone();
        journals.iter().try_for_each(|journal| journal.renew_records())?;
        Ok(())
    }
}

impl Volume {
    fn check_presence(&self) {
        let (name, disk) = (&self.name, &self.backend.description().name);
        match self.sightings.check(&*self.backend) {
            Change::None => {}
            Change::Gone(displaced) => tracing::error!(
                volume = %name,
                %disk,
                "the disk is not where it was opened: {displaced}; the volume is served from the \
                 open one, which the next start will not find: copy it elsewhere, or move it back"
            ),
            Change::Back => tracing::warn!(volume = %name, %disk, "the disk is back in its place"),
        }
    }
}

impl Journal {
    fn check_presence(self: &Arc<Self>) {
        for device in 0..2 {
            let Some(backend) = self.devices.backend(device) else { continue };
            let Change::Gone(displaced) = self.sightings[device].check(backend) else { continue };
            let name = self.devices.name_of(device);
            tracing::error!(journal = %self.name, device = %name, "journal device: {displaced}");
            self.give_up(device);
        }
    }
}
