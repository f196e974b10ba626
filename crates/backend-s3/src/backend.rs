//! A volume as a backend.

use crate::attach::{self, OpenEntry};
use crate::name::S3Name;
use crate::store::Store;
use crate::volume::S3Volume;
use crate::{S3Error, close, executor, read};
use forebay_backend::{
    Backend, Description, DiskSize, Displaced, Io, IoCount, IoCounter, IoKind, OpenOptions,
    StoreMedium, Tenure, TrialBackend, UNKNOWN_BYTES,
};
use forebay_types::{ByteRange, DiskGeometry, Extent, SECTOR_BYTES};
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long a close waits for the store.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// A volume in the objects of a store.
pub struct S3Backend {
    volume: Arc<S3Volume>,
    /// Taken when it is closed.
    entry: Option<OpenEntry>,
    tenure: Option<Tenure>,
    description: Description,
    count: IoCounter,
}

/// Opens a volume, or a stand-in after everything was checked that needs no request.
pub(crate) fn open(spec: &str, options: &OpenOptions) -> Result<Arc<dyn Backend>, S3Error> {
    let name = S3Name::parse(spec)?;
    let store = Store::new(&name)?;
    if options.is_trial {
        let size_bytes = name.size_bytes.unwrap_or(UNKNOWN_BYTES);
        let trial = TrialBackend::new(spec, size_bytes, store.identity(), StoreMedium::default());
        return Ok(Arc::new(trial));
    }
    Ok(Arc::new(S3Backend::open_over(store, spec, name, options)?))
}

impl S3Backend {
    pub(crate) fn open_over(
        store: Store,
        spec: &str,
        name: S3Name,
        options: &OpenOptions,
    ) -> Result<Self, S3Error> {
        let identity = store.identity();
        let executor = executor::handle().map_err(|source| S3Error::Threads { source })?;
        let attached =
            attach::attach((store, executor.clone()), (spec.to_owned(), name), options.clone());
        let attached = executor::wait_for(&executor, attached);
        let (volume, tenure, size_bytes, entry) =
            attached.map_err(|source| S3Error::Threads { source })??;
        let description = Description {
            name: spec.to_owned(),
            size: DiskSize::new(size_bytes),
            identity: Some(identity),
            read_only: options.read_only,
            geometry: DiskGeometry::default(),
            can_discard: true,
            can_zero_fast: true,
            alignment_bytes: SECTOR_BYTES as u32,
        };
        let entry = Some(entry);
        Ok(Self { volume, entry, tenure, description, count: IoCounter::default() })
    }
}

impl Backend for S3Backend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        let Some(io) = io.admit(&self.description) else { return };
        self.count.add(&io);
        match io.kind {
            IoKind::Flush => self.volume.change(io),
            _ if io.len == 0 => io.done.complete(Ok(())),
            IoKind::Read => read::begin(&self.volume, io),
            _ => self.volume.change(io),
        }
    }

    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        let first = range.offset / SECTOR_BYTES;
        let end = range.end().div_ceil(SECTOR_BYTES);
        let pieces = self.volume.core().log.pieces(first, end - first);
        let mut extents: Vec<Extent> = Vec::new();
        for piece in pieces {
            let (start, end) =
                (piece.start * SECTOR_BYTES, (piece.start + piece.len) * SECTOR_BYTES);
            let len = end.min(range.end()) - start.max(range.offset);
            let is_hole = piece.place.is_none();
            match extents.last_mut() {
                Some(last) if last.hole == is_hole => last.len += len,
                _ => extents.push(Extent { len, hole: is_hole, zero: is_hole }),
            }
        }
        extents
    }

    fn check_presence(&self) -> Result<(), Displaced> {
        if self.is_taken_over() { Err(Displaced::TakenOver) } else { Ok(()) }
    }

    fn ask_presence(&self) -> Result<(), Displaced> {
        // A store that does not answer says nothing.
        let _ = self.settle_tenure();
        self.check_presence()
    }

    fn is_taken_over(&self) -> bool {
        self.volume.is_fenced()
    }

    /// The nonces of owners are those of their tenures. The manifest has only one before the
    /// present one, so a server that has died between the opening and the first write counts as
    /// another owner: what its host has of the volume is then not used without being asked for.
    fn tenure(&self) -> Option<Tenure> {
        self.tenure.clone()
    }

    /// Asks the store whether the volume is still this process's, which may have slept since it was
    /// opened. There is nothing to forget.
    fn settle_tenure(&self) -> io::Result<()> {
        let volume = self.volume.clone();
        if !volume.read_only {
            executor::wait_for(&self.volume.executor, async move { volume.verify_owner().await })?;
        }
        if self.is_taken_over() {
            return Err(io::Error::other("another server has taken the volume over"));
        }
        Ok(())
    }

    fn is_shared(&self) -> bool {
        !self.description.read_only
    }

    fn io_count(&self) -> Option<IoCount> {
        Some(self.count.get())
    }
}

impl Drop for S3Backend {
    /// Stores what is in memory, and leaves the volume without an owner.
    fn drop(&mut self) {
        let (volume, entry) = (self.volume.clone(), self.entry.take());
        let (sender, receiver) = mpsc::channel();
        let closing = volume.clone();
        volume.executor.spawn(async move {
            close::run(&closing).await;
            drop(entry);
            let _ = sender.send(());
        });
        if receiver.recv_timeout(CLOSE_LIMIT).is_err() {
            let name = &*volume.store.place;
            tracing::warn!(volume = name, "the store does not answer, leaving the volume open");
        }
        volume.end();
    }
}
