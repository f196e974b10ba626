//! An image of Ceph's block devices (RBD), over librbd.
//!
//! An image that is written is locked exclusively while it is open, so that one client writes it.
//! Another client may break the lock, such as the server that takes over a volume. The cluster then
//! shuts out this client, and the backend reads and writes nothing any more: what it has in memory
//! may be older than the image.
//!
//! A write is acknowledged when all OSDs of its object have stored it, because librbd's own cache
//! is off; a flush only waits for writes in flight. I/O waits for OSDs that are away, without a
//! limit. A timeout would leave open whether a write is carried out, and is answered as an error.
//!
//! Price: about 25 threads of librados for each connection, one of ours for each image, and some
//! microseconds of the calling thread for each I/O.

mod ceph;
mod connection;
mod error;
mod image;
mod lock;
mod name;
mod request;

#[cfg(test)]
mod tests;

pub use error::RbdError;

use crate::count::{IoCount, IoCounter};
use crate::sync::lock;
use crate::trial::{TrialBackend, UNKNOWN_BYTES};
use crate::{
    Backend, Description, DiskSize, Displaced, Io, IoKind, MeasureError, OpenOptions, StoreMedium,
    Tenure,
};
use connection::Connection;
use forebay_threads::{Thread, join_within_limit};
use forebay_types::{ByteRange, Extent, SECTOR_BYTES};
use image::Image;
use lock::ImageLock;
use name::RbdName;
use request::{Completer, Results};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest discard or zeroing that is handed to librbd at once, in bytes: it starts an
/// operation for each object.
const RANGE_BYTES_MAX: u64 = 1 << 30;
/// The interval at which the lock is checked.
const LOCK_INTERVAL: Duration = Duration::from_secs(2);

/// An open image.
pub struct RbdBackend {
    /// None only while it is being dropped.
    image: Option<Arc<Image>>,
    completer: Arc<Completer>,
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
    count: IoCounter,
    description: Description,
}

/// Opens an image, or a stand-in after everything was checked that needs no cluster.
pub(crate) fn open(spec: &str, options: &OpenOptions) -> Result<Arc<dyn Backend>, RbdError> {
    if options.is_trial {
        let name = RbdName::parse(spec)?;
        drop(Connection::configure(&name.cluster)?);
        let (identity, medium) = (spec.to_owned(), StoreMedium::default());
        return Ok(Arc::new(TrialBackend::new(spec, UNKNOWN_BYTES, identity, medium)));
    }
    Ok(Arc::new(RbdBackend::open(spec, options)?))
}

impl RbdBackend {
    /// Opens the image with the name `spec`.
    ///
    /// # Errors
    /// If the name is malformed, Ceph's libraries are missing, the cluster cannot be reached, or
    /// the image cannot be opened or locked.
    pub fn open(spec: &str, options: &OpenOptions) -> Result<Self, RbdError> {
        let name = RbdName::parse(spec)?;
        let connection = Connection::shared(&name, &options.connection)?;
        let image = Image::open(connection, &name, spec, options)?;
        let shape = image.shape()?;
        let description = Description {
            name: spec.to_owned(),
            size: DiskSize::new(shape.size_bytes),
            identity: Some(image.identity.clone()),
            read_only: options.read_only,
            geometry: shape.geometry,
            can_discard: true,
            can_zero_fast: true,
            alignment_bytes: SECTOR_BYTES as u32,
        };
        let completer = Arc::new(Completer {
            ceph: image.ceph,
            in_flight: image.in_flight.clone(),
            results: Results {
                fence: image.pool.connection.fence.clone(),
                place: image.place.clone(),
                error_limiter: Default::default(),
            },
        });
        let (image, watch) = (Arc::new(image), Arc::<Watch>::default());
        let mut thread = None;
        if !options.read_only {
            let (image, completer, watch) = (image.clone(), completer.clone(), watch.clone());
            let place = image.place.clone();
            let spawned = Thread::named("rbd-lock").spawn(move || watch.run(&image, &completer));
            thread = Some(spawned.map_err(|source| RbdError::Thread { place, source })?);
        }
        let (image, count) = (Some(image), IoCounter::default());
        Ok(Self { image, completer, watch, thread, count, description })
    }

    fn image(&self) -> &Arc<Image> {
        self.image.as_ref().expect("it is there until the drop")
    }
}

impl Backend for RbdBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        let Some(io) = io.admit(&self.description) else { return };
        self.count.add(&io);
        if io.len == 0 && io.kind != IoKind::Flush {
            return io.done.complete(Ok(()));
        }
        let bytes_max = match io.kind {
            IoKind::Read | IoKind::Write { .. } | IoKind::Flush => u64::MAX,
            IoKind::Discard | IoKind::Zero { .. } => RANGE_BYTES_MAX,
        };
        for piece in io.split(bytes_max) {
            self.completer.submit(self.image().handle, piece);
        }
    }

    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        if self.is_taken_over() {
            return vec![Extent { len: range.len, hole: false, zero: false }];
        }
        self.image().extents(range)
    }

    fn check_presence(&self) -> Result<(), Displaced> {
        if self.is_taken_over() { Err(Displaced::TakenOver) } else { Ok(()) }
    }

    fn ask_presence(&self) -> Result<(), Displaced> {
        check_lock(self.image(), &self.completer);
        self.check_presence()
    }

    fn is_taken_over(&self) -> bool {
        self.completer.results.fence.is_up()
    }

    fn tenure(&self) -> Option<Tenure> {
        self.image().tenure.get().cloned()
    }

    fn settle_tenure(&self) -> io::Result<()> {
        ImageLock(self.image()).settle_tenure()
    }

    /// An image that is served for reading only is not locked.
    fn is_shared(&self) -> bool {
        !self.description.read_only
    }

    fn measure(&self, block_bytes: u32) -> Result<u64, MeasureError> {
        let name = self.description.name.clone();
        let size_bytes = self
            .image()
            .size_bytes()
            .map_err(|source| MeasureError::Unknown { name: name.clone(), source })?;
        let (from, unit) = (self.description.size_bytes(), block_bytes.max(SECTOR_BYTES as u32));
        if size_bytes < from {
            return Err(MeasureError::Shrunk { name, from, to: size_bytes });
        }
        if !size_bytes.is_multiple_of(u64::from(unit)) {
            return Err(MeasureError::Blocks { name, size_bytes, block_bytes: unit });
        }
        Ok(size_bytes)
    }

    fn io_count(&self) -> Option<IoCount> {
        Some(self.count.get())
    }
}

impl Drop for RbdBackend {
    /// Closes the image on a thread of its own: closing waits for the I/O in flight and for OSDs,
    /// and the end of the process need not.
    fn drop(&mut self) {
        self.watch.stop();
        let (image, thread) = (self.image.take(), self.thread.take());
        let closing = Thread::named("rbd-close").spawn(move || {
            if let Some(thread) = thread {
                let _ = thread.join();
            }
            drop(image);
        });
        match closing {
            Ok(closing) => {
                if !join_within_limit(closing) {
                    let image = &*self.completer.results.place;
                    tracing::warn!(image, "the cluster does not answer, leaving the image open");
                }
            }
            Err(error) => tracing::warn!(%error, "cannot start a thread that closes an image"),
        }
    }
}

/// Checks that the lock of an image is not lost, also while there is no I/O that would tell, and
/// notices another size.
#[derive(Default)]
struct Watch {
    is_stopping: Mutex<bool>,
    wake: Condvar,
}

impl Watch {
    fn stop(&self) {
        *lock(&self.is_stopping) = true;
        self.wake.notify_all();
    }

    fn run(&self, image: &Image, completer: &Completer) {
        let mut size_bytes = image.size_bytes().unwrap_or_default();
        let mut is_stopping = lock(&self.is_stopping);
        while !*is_stopping && !completer.results.fence.is_up() {
            let woken = self.wake.wait_timeout(is_stopping, LOCK_INTERVAL);
            is_stopping = woken.unwrap_or_else(PoisonError::into_inner).0;
            if *is_stopping {
                return;
            }
            drop(is_stopping);
            check_lock(image, completer);
            if let Ok(now) = image.size_bytes() {
                report_size(&image.place, size_bytes, now);
                size_bytes = now;
            }
            is_stopping = lock(&self.is_stopping);
        }
    }
}

/// Asks the cluster whether the image is still locked, and fences it if not.
fn check_lock(image: &Image, completer: &Completer) {
    match ImageLock(image).has_lock() {
        Ok(true) => {}
        Ok(false) => completer.results.fence("the lock of the image is lost"),
        Err(error) if error.raw_os_error() == Some(libc::ESHUTDOWN) => {
            completer.results.fence("the cluster shuts this client out");
        }
        // The OSD is away: the lock is as it was.
        Err(_) => {}
    }
}

/// Reports that the size of an image has changed. The volume keeps its size until it is resized.
fn report_size(image: &str, before: u64, now: u64) {
    let (before_bytes, size_bytes) = (before, now);
    if now > before {
        tracing::info!(image, before_bytes, size_bytes, "the image has grown: resize the volume");
    } else if now < before {
        tracing::error!(
            image,
            before_bytes,
            size_bytes,
            "the image has shrunk: what was beyond its end is lost, and I/O there fails"
        );
    }
}
