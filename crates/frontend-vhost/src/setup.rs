//! What a worker has to know of a ring, and what it tells the thread of the sessions.

use crate::inbox::{Notice, RingError, RingKey, SessionsInbox};
use crate::memory::GuestMemory;
use crate::ring::{GuestRing, InflightPart};
use forebay_frontend::Peer;
use forebay_vhost::message::RingAddresses;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Reports of a ring's faults at most: a guest can make as many as it likes.
const REPORTS_MAX: u32 = 5;

/// A limit on messages about one session.
#[derive(Debug, Default)]
pub(crate) struct Reports(AtomicU32);

impl Reports {
    /// Calls `report`, unless there were too many.
    pub(crate) fn note(&self, report: impl FnOnce()) {
        if self.0.fetch_add(1, Ordering::Relaxed) < REPORTS_MAX {
            report();
        }
    }
}

/// A ring that a worker is to serve.
pub(crate) struct RingSetup {
    pub(crate) key: RingKey,
    pub(crate) control: Arc<SessionsInbox>,
    pub(crate) peer: Peer,
    pub(crate) volume: Arc<str>,
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) entries: u16,
    pub(crate) addresses: RingAddresses,
    pub(crate) base: u16,
    pub(crate) has_event_index: bool,
    pub(crate) inflight: Option<InflightPart>,
    pub(crate) kick: Arc<OwnedFd>,
    pub(crate) call: Option<Arc<OwnedFd>>,
    /// The size of the volume in bytes, which may grow.
    pub(crate) bytes: Arc<AtomicU64>,
    /// Whether writes may be acknowledged before they are durable.
    pub(crate) is_write_back: Arc<AtomicBool>,
    pub(crate) reports: Arc<Reports>,
    /// The name of the events of its kick on its worker.
    pub(crate) place: u32,
}

impl RingSetup {
    /// The ring.
    ///
    /// # Errors
    /// See [`GuestRing::new`].
    pub(crate) fn ring(&self, taken: &mut Vec<u16>) -> Result<GuestRing, RingError> {
        GuestRing::new(
            Arc::clone(&self.memory),
            (self.entries, &self.addresses),
            (self.base, self.has_event_index),
            self.inflight.clone(),
            taken,
        )
    }

    pub(crate) fn notify(&self, notice: Notice) {
        self.control.post(notice.into());
    }
}
