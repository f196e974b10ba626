//! The volumes that take part in dumps, and the record of which of them rely on the vault.

use super::{Attached, Vault, VaultError};
use crate::disk::KeptSamples;
use crate::platform::locks::assert_may_wait;
use crate::shared::Volume;
use forebay_format::journal::VOLUMES_MAX;
use forebay_journal::identity::vault_places;
use forebay_types::{Mode, VolumeId};

impl Vault {
    /// Attaches a volume, which takes part in dumps from now on. If it is served in write-back, it
    /// is recorded as relying on the vault.
    pub(crate) fn attach(
        &self,
        volume: &Volume,
        size_bytes: u64,
        identity: [u8; 32],
        mode: Mode,
    ) -> Result<(), VaultError> {
        let mut state = self.state();
        if state.volumes.len() >= VOLUMES_MAX {
            return Err(VaultError::Volumes(self.name.clone()));
        }
        let (id, name) = (volume.id, volume.name.clone());
        let (relies, has_journal) = (volume.power.has_ups(), volume.journal.is_used());
        state.volumes.push(Attached { id, relies, has_journal, name, size_bytes, identity });
        drop(state);
        if relies {
            self.sample(volume, size_bytes);
        }
        self.rely(id, mode)
    }

    /// Records that a volume about to be served in `mode` relies on the vault: in write-back under
    /// a UPS, its newest data may later be in this vault alone.
    pub(crate) fn rely(&self, id: VolumeId, mode: Mode) -> Result<(), VaultError> {
        let relying = {
            let state = self.state();
            let volume = state.volumes.iter().find(|volume| volume.id == id && volume.relies);
            volume.map(|volume| (volume.name.clone(), volume.has_journal))
        };
        let Some((name, has_journal)) = relying.filter(|_| mode == Mode::WriteBack) else {
            return Ok(());
        };
        // Without the lock, which the dump of a power failure needs.
        assert_may_wait();
        let recorded = self.record.rely(self.number, &name, has_journal);
        recorded.map_err(|error| self.unrecorded(&name, error))
    }

    /// Notes that the disk of a volume has grown to `size_bytes`. Until the next start, a dump has
    /// no samples of it: they are taken while nothing is written.
    pub(crate) fn grow(&self, volume: &Volume, size_bytes: u64) {
        let mut state = self.state();
        if let Some(attached) = state.volumes.iter_mut().find(|it| it.id == volume.id) {
            // The places of samples depend on the size.
            if let Some(samples) = volume.disk.samples.get() {
                samples.invalidate_all();
            }
            attached.size_bytes = attached.size_bytes.max(size_bytes);
        }
    }

    /// Removes a volume that is no longer served and whose disk has all of its data.
    pub(crate) fn detach(&self, id: VolumeId) {
        let mut left = Vec::new();
        let mut state = self.state();
        state.volumes.retain(|volume| {
            let stays = volume.id != id;
            if !stays {
                left.push(volume.name.clone());
            }
            stays
        });
        // Its number is given to a new volume, which is not in the dump.
        if let Some(dumped) = &mut state.dumped {
            dumped.retain(|&other| other != id);
        }
        drop(state);
        self.release(&left);
    }

    /// Removes the records of volumes whose disks have everything.
    pub(super) fn release(&self, names: &[String]) {
        assert_may_wait();
        for name in names {
            if let Err(error) = self.record.release(self.number, name) {
                tracing::error!(
                    vault = %self.name,
                    volume = %name,
                    %error,
                    "cannot record that the volume no longer relies on the vault; a start without \
                     the vault refuses the volume"
                );
            }
        }
    }

    pub(super) fn unrecorded(&self, volume: &str, error: std::io::Error) -> VaultError {
        let (name, volume) = (self.name.clone(), volume.to_owned());
        VaultError::Record { name, volume, error }
    }

    /// Samples a volume's disk before the volume is served, except where it has dirty lines.
    fn sample(&self, volume: &Volume, size_bytes: u64) {
        let mut dirty = Vec::new();
        for shard in 0..self.shared.shards.len() {
            dirty.extend(self.shared.shard(shard).volume(volume.id).dirty_keys());
        }
        let mut places = vault_places(self.number, size_bytes);
        places.retain(|place| !dirty.iter().any(|key| key.offset() == place.offset));
        let _ = volume.disk.samples.set(KeptSamples::of(
            &*volume.backend,
            places,
            &volume.disk.internal_reads,
        ));
    }
}
