//! The inbox of the thread that serves the sessions of monitors.

use forebay_vhost::block::GuestDisk;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Names a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingKey {
    pub(crate) session: u64,
    pub(crate) ring: u16,
}

/// Why a ring is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RingError {
    /// The volume is not there, or takes no more clients.
    #[error("the volume takes no clients")]
    Closed,
    /// The volume has `tls=required`.
    #[error("the volume has tls=required, and there is no TLS here: set tls=optional")]
    TlsOnly,
    /// There are too many clients.
    #[error("there are too many clients")]
    TooManyClients,
    /// The ring is not in the guest's memory.
    #[error("the ring is not in the memory of the guest")]
    Memory,
    /// The region for its requests in flight, which another program has made, is too small.
    #[error("the ring is longer than the monitor has asked space for: set its queue-size")]
    Inflight,
}

/// What a worker tells the thread of the sessions.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A ring is served by a worker, or is not.
    Started { key: RingKey, result: Result<usize, RingError> },
    /// A worker uses this version of the memory.
    MemoryChanged { key: RingKey, version: u64 },
    /// A ring is not served any more. The base is the index of the request that is next.
    Ended { key: RingKey, base: u16 },
}

/// An event for the thread.
#[derive(Debug)]
pub(crate) enum SessionsEvent {
    /// Serve a volume at a socket.
    Listen { volume: Arc<str>, listener: OwnedFd, device: GuestDisk },
    /// A volume has grown to this size in bytes.
    Grow { volume: Arc<str>, bytes: u64 },
    /// Close all sockets. Monitors that are connected stay.
    StopListening,
    /// Close the socket of a volume, and its connections.
    Close { volume: Arc<str> },
    /// From a worker.
    Notice(Notice),
    /// End the thread.
    End,
}

impl From<Notice> for SessionsEvent {
    fn from(notice: Notice) -> Self {
        Self::Notice(notice)
    }
}

/// The inbox of the thread.
#[derive(Debug)]
pub(crate) struct SessionsInbox {
    events: Mutex<Vec<SessionsEvent>>,
    wake: OwnedFd,
}

impl SessionsInbox {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { events: Mutex::default(), wake })
    }

    pub(crate) fn post(&self, event: SessionsEvent) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        // A counter at its limit wakes the thread as well.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Is readable while there are events.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The events that have been posted.
    pub(crate) fn take(&self) -> Vec<SessionsEvent> {
        let mut count = [0; 8];
        // Empty if the thread was woken by a socket.
        let _ = rustix::io::read(&self.wake, &mut count);
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
