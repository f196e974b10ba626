//! The end of a volume whose disk does not take its data: what the disk lacks is written to a file
//! if wanted, and given up.

use super::VolumeService;
use super::drain::wait_until_idle;
use crate::error::{VolumeError, VolumeResult};
use crate::protect::vault::{copy_dirty, vault_bytes_for};
use crate::shared::Volume;
use forebay_backend::{FileBackend, OpenOptions};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What was given up with a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Acknowledged data that the disk may lack, in bytes. Exact if it was saved, otherwise whole
    /// lines. Zero if the disk took everything after all.
    pub bytes: u64,
    /// The file that has this data; `None` if it was not to be saved, or there was none.
    pub saved_to: Option<PathBuf>,
    /// Whether further data may be missing from the disk: it was written there before a flush
    /// failed, and is no longer in memory.
    pub may_lack_more: bool,
}

impl VolumeService {
    /// Removes a volume as [`VolumeService::remove`] does, even if its disk does not take its data:
    /// disconnects the clients, gives up what the disk lacks, and, with `save_to`, first writes
    /// that to a new file in the format of a vault, with its space allocated. The disk gets no
    /// further I/O.
    ///
    /// # Errors
    /// When there is no such volume, the file exists or cannot be written: the volume is still
    /// served then. Or when the disk does not complete the I/O that has reached it: then the data
    /// is given up, a stop does not wait for the disk, and [`VolumeService::remove`] succeeds once
    /// the disk does.
    pub fn discard(&self, name: &str, save_to: Option<&Path>) -> Result<Discarded, VolumeError> {
        let volume = self.shared.volumes.named(name)?;
        let error = match self.remove(name, &mut |_| {}) {
            Ok(()) => return Ok(Discarded::default()),
            Err(error) if volume.is_given_up() || !is_refused(&error) => return Err(error),
            Err(error) => error,
        };
        tracing::warn!(
            volume = name,
            error = error.to_string(),
            "removing the volume without the data that its disk does not take"
        );
        let hangs = matches!(error, VolumeError::Hanging { .. });
        let discarded = self.give_up(&volume, save_to, hangs)?;
        tracing::warn!(
            volume = name,
            bytes = discarded.bytes,
            saved_to = discarded.saved_to.as_ref().map(|path| path.display().to_string()),
            may_lack_more = discarded.may_lack_more,
            "dirty data given up"
        );
        self.end_given_up(&volume)?;
        Ok(discarded)
    }

    /// Disconnects the clients, saves the dirty data, and lets no further I/O reach the disk. If
    /// the data cannot be saved, the volume is served as before.
    pub(super) fn give_up(
        &self,
        volume: &Arc<Volume>,
        save_to: Option<&Path>,
        hangs: bool,
    ) -> Result<Discarded, VolumeError> {
        // It is closed already if its addition has failed.
        let was_open = !volume.is_closed.swap(true, Ordering::Relaxed);
        let saved = self.disconnect(volume, hangs).and_then(|may_lack_more| {
            let dirty_bytes = self.shared.shards.dirty_bytes(volume.id);
            let save_to = save_to.filter(|_| dirty_bytes > 0);
            let bytes = save_to.map(|path| self.save_dirty(volume, path)).transpose()?;
            let (bytes, saved_to) = (bytes.unwrap_or(dirty_bytes), save_to.map(Path::to_owned));
            Ok(Discarded { bytes, saved_to, may_lack_more })
        });
        match &saved {
            Ok(_) => volume.given_up.store(true, Ordering::Release),
            Err(_) => volume.is_closed.store(!was_open, Ordering::Relaxed),
        }
        saved
    }

    /// Disconnects the clients of a volume. If a flush has failed, makes what the journal holds
    /// dirty again; returns whether that was not possible.
    fn disconnect(&self, volume: &Arc<Volume>, hangs: bool) -> Result<bool, VolumeError> {
        let (shared, id) = (&self.shared, volume.id);
        shared.run_on_all(move |tasks| tasks.drain_clients(Some(id)))?;
        let is_idle = !hangs && wait_until_idle(shared, Some(volume)).is_ok();
        shared.run_on_all(move |tasks| {
            tasks.drop_clients(Some(id));
            tasks.abandon_clients(Some(id));
        })?;
        if volume.flush.failure().is_none() {
            return Ok(false);
        }
        let journal = volume.journal.get();
        let working = journal.filter(|used| used.journal.status().failed.is_none());
        let restored = working.filter(|_| is_idle).map(|it| self.restore_drained(volume, &it));
        Ok(!matches!(restored, Some(Ok(()))))
    }

    /// Writes the dirty data of a volume without clients to a new file. Returns the bytes.
    fn save_dirty(&self, volume: &Volume, path: &Path) -> Result<u64, VolumeError> {
        let dirty_bytes = self.shared.shards.dirty_bytes(volume.id);
        let failed = |source| {
            let (name, path) = (volume.name.clone(), path.display().to_string());
            VolumeError::Copy { name, path, source }
        };
        let file = create(path, vault_bytes_for(dirty_bytes)).map_err(failed)?;
        let device = FileBackend::open(path, &OpenOptions::default()).map_err(io::Error::other);
        let copied = device
            .map_err(failed)
            .and_then(|device| Ok(copy_dirty(&self.shared, volume, Arc::new(device))?))
            .and_then(|report| match sync(&file, path) {
                Ok(()) => Ok(report.bytes),
                Err(error) => Err(failed(error)),
            });
        if copied.is_err() {
            // An incomplete copy is useless.
            let _ = fs::remove_file(path);
        }
        copied
    }

    /// Removes a volume that was given up.
    ///
    /// # Errors
    /// Its disk has not completed the I/O that had reached it.
    pub(super) fn end_given_up(&self, volume: &Arc<Volume>) -> VolumeResult {
        volume.flush.trust();
        if self.abandon_lost(volume).is_err() {
            // The journal has failed; its removal is recorded below.
            self.shared.shards.abandon_lost(volume.id);
        }
        let quiet = &mut |_| {};
        let ended = match volume.half_added.swap(false, Ordering::Relaxed) {
            true => self.retract(volume, quiet),
            false => self.settle(volume, quiet).and_then(|()| self.finish_removal(volume)),
        };
        ended.map_err(|error| match error {
            VolumeError::Hanging { name, seconds, .. } => VolumeError::GivenUp { name, seconds },
            error => error,
        })?;
        self.forget(&volume.name);
        Ok(())
    }
}

/// Whether a removal has failed because the disk, or the image of a volume in memory, does not take
/// the data. After any other failure, such as a journal that hangs, the disk may still take it.
const fn is_refused(error: &VolumeError) -> bool {
    use VolumeError::{Dirty, FlushFailed, Hanging, Save};
    matches!(error, Dirty { .. } | Hanging { .. } | FlushFailed { .. } | Save { .. })
}

/// Creates a file of zeroes that its owner alone can read, with its space allocated.
fn create(path: &Path, bytes: u64) -> io::Result<File> {
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    let allocated =
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            // Without this ability, the copy shows whether there is space.
            Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes),
            allocated => allocated.map_err(io::Error::from),
        };
    if allocated.is_err() {
        let _ = fs::remove_file(path);
    }
    allocated.map(|()| file)
}

/// Makes a file and its name durable.
fn sync(file: &File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
