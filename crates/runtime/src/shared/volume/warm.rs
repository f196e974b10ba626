//! The warm list and the warm-up of a volume, as its management sees them.

use crate::disk::hardware;
use crate::platform::locks::Lock;
use forebay_backend::Backend;
use forebay_format::WarmDisk;
use forebay_volume::{Loader, LoaderEnd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The state of a volume's warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WarmUpState {
    /// There was none since the volume was added: no list, or the pool was adopted.
    #[default]
    None,
    /// The list is being read, or the lines that it names.
    Loading,
    /// All lines of the list were read.
    Loaded,
    /// It ended because the pool was full.
    Full,
    /// It ended because the disk failed reads.
    Failing,
    /// It was ended by a change of settings.
    Cancelled,
    /// The list could not be used.
    Unusable,
}

impl From<LoaderEnd> for WarmUpState {
    fn from(end: LoaderEnd) -> Self {
        match end {
            LoaderEnd::Loaded => Self::Loaded,
            LoaderEnd::Full => Self::Full,
            LoaderEnd::Failing => Self::Failing,
            LoaderEnd::Cancelled => Self::Cancelled,
        }
    }
}

/// A snapshot of a volume's warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmUpStatus {
    /// Its state.
    pub state: WarmUpState,
    /// Lines that it reads, or would have read.
    pub planned_lines: u64,
    /// Lines that it has finished with, because they were read, or found in the pool or in use.
    pub done_lines: u64,
}

impl WarmUpStatus {
    pub(crate) fn of(state: WarmUpState, loader: &Loader) -> Self {
        let (planned_lines, done_lines) = (loader.planned_lines(), loader.done_lines());
        Self { state, planned_lines, done_lines }
    }
}

/// The warm list and the warm-up of a volume, as its management sees them.
pub(crate) struct Warm {
    /// Whether the list is kept.
    is_kept: AtomicBool,
    /// The list was read, or is not needed, so it may be replaced.
    is_replaceable: AtomicBool,
    disk: Lock<WarmDisk>,
    status: Lock<WarmUpStatus>,
}

impl Warm {
    pub(crate) fn new(is_kept: bool, disk: &dyn Backend, identity: [u8; 32]) -> Self {
        let size_bytes = disk.description().size_bytes();
        let disk = WarmDisk { identity, hardware: hardware(disk), size_bytes };
        let (is_kept, is_replaceable) = (AtomicBool::new(is_kept), AtomicBool::new(false));
        Self { is_kept, is_replaceable, disk: Lock::new(disk), status: Lock::default() }
    }

    /// Sets whether the list is kept. If not, the warm-up ends.
    pub(crate) fn set_kept(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::Relaxed);
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Relaxed)
    }

    pub(crate) fn is_replaceable(&self) -> bool {
        self.is_replaceable.load(Ordering::Relaxed)
    }

    pub(crate) fn set_replaceable(&self) {
        self.is_replaceable.store(true, Ordering::Relaxed);
    }

    pub(crate) fn status(&self) -> WarmUpStatus {
        *self.status.lock()
    }

    /// Whether the warm-up is in progress.
    pub(crate) fn is_loading(&self) -> bool {
        self.status().state == WarmUpState::Loading
    }

    /// The identity of the disk in the warm list and the access history.
    pub(crate) fn disk(&self) -> WarmDisk {
        *self.disk.lock()
    }

    /// Notes that the disk has grown.
    pub(crate) fn grow(&self, size_bytes: u64) {
        self.disk.lock().size_bytes = size_bytes;
    }

    pub(crate) fn set_status(&self, status: WarmUpStatus) {
        *self.status.lock() = status;
    }
}
