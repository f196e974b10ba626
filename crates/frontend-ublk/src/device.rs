//! A block device as its server has it: the character device, and the mapped descriptors.

use crate::ServeError;
use forebay_ublk::{DEPTH_MAX, DESCRIPTOR_BYTES, QUEUES_MAX, RequestDescriptor, descriptors_at};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

/// Why a device cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Its character device cannot be opened.
    #[error("cannot open {}: {error}", path.display())]
    Open {
        /// The character device.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Its descriptors cannot be mapped.
    #[error("cannot map the requests of {}: {error}", path.display())]
    Map {
        /// The character device.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It has no queue or tag, or too many.
    #[error("a device with {queues} queues of {depth} requests is not possible")]
    Shape {
        /// Its queues.
        queues: u16,
        /// The tags of each.
        depth: u16,
    },
}

/// The descriptors of a queue.
struct Descriptors {
    start: *mut libc::c_void,
    len: usize,
}

// SAFETY: only the driver writes there, and readers copy a descriptor whose request is theirs.
unsafe impl Send for Descriptors {}
// SAFETY: as above.
unsafe impl Sync for Descriptors {}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no longer referenced.
        let unmapped = unsafe { munmap(self.start, self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping is removed");
    }
}

/// A block device of the kernel, which this process serves.
pub struct Device {
    number: u32,
    file: OwnedFd,
    queues: Vec<Descriptors>,
    depth: u16,
    volume: String,
    /// Where workers report that they serve a queue.
    joined: Mutex<Option<Sender<Result<(), ServeError>>>>,
}

impl Device {
    /// Opens the character device of a device with this number that was made with as many queues
    /// and tags, to serve a volume on it.
    ///
    /// # Errors
    /// When it is not there, is in use by another process, or is not accessible.
    pub fn open(
        (path, number): (PathBuf, u32),
        (queues, depth): (u16, u16),
        volume: &str,
    ) -> Result<Self, DeviceError> {
        if !(1..=QUEUES_MAX).contains(&queues) || !(1..=DEPTH_MAX).contains(&depth) {
            return Err(DeviceError::Shape { queues, depth });
        }
        let file = match rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => file,
            Err(error) => return Err(DeviceError::Open { path, error: error.into() }),
        };
        let len =
            (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(rustix::param::page_size());
        let mut mapped = Vec::new();
        for queue in 0..queues {
            let (flags, at) = (MapFlags::SHARED | MapFlags::POPULATE, descriptors_at(queue));
            // SAFETY: a new mapping at an address of the kernel's choice.
            let start =
                unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, &file, at) };
            match start {
                Ok(start) => mapped.push(Descriptors { start, len }),
                Err(error) => return Err(DeviceError::Map { path, error: error.into() }),
            }
        }
        let (volume, joined) = (volume.to_owned(), Mutex::default());
        Ok(Self { number, file, queues: mapped, depth, volume, joined })
    }

    /// The device, whose workers report to this sender.
    pub(crate) fn reporting(self, sender: Sender<Result<(), ServeError>>) -> Self {
        Self { joined: Mutex::new(Some(sender)), ..self }
    }

    /// Reports that a queue is served, or why not.
    pub(crate) fn report(&self, result: Result<(), ServeError>) {
        let sender = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*sender {
            // Nobody waits any more after a timeout or the first error.
            let _ = sender.send(result);
        }
    }

    /// Its number.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// The name of its volume.
    pub fn volume(&self) -> &str {
        &self.volume
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub(crate) fn queues(&self) -> u16 {
        self.queues.len() as u16
    }

    pub(crate) const fn depth(&self) -> u16 {
        self.depth
    }

    /// The request of a tag that has been fetched.
    pub(crate) fn request(&self, queue: u16, tag: u16) -> RequestDescriptor {
        assert!(tag < self.depth, "a tag of the queue");
        let descriptors = &self.queues[usize::from(queue)];
        let first = descriptors.start.cast::<RequestDescriptor>();
        // SAFETY: within the mapping, as the tag is one of the queue. The driver has written it
        // before it reported the request, and writes it again after the answer only.
        unsafe { first.add(usize::from(tag)).read_volatile() }
    }
}
