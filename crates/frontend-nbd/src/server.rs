//! The state that the NBD front ends of all workers share: the listeners.

use crate::handover::GivenUp;
use crate::{Listener, NbdFrontEnd};
use forebay_frontend::{Mailer, Service};
use forebay_nbd::SessionRecord;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// The worker that accepts clients.
const ACCEPTING_WORKER: usize = 0;

/// A message to the front end of a worker.
pub enum NbdMessage {
    /// Count this client, and pass it to the worker that is to serve it.
    Assign {
        /// The client's socket.
        socket: OwnedFd,
        /// Where it comes from.
        origin: ConnectionOrigin,
    },
    /// Serve this client.
    Connection {
        /// The client's socket.
        socket: OwnedFd,
        /// Where it comes from.
        origin: ConnectionOrigin,
    },
    /// Accept clients at this listener.
    Listen {
        /// The number of the listener.
        listener: u32,
    },
    /// Close this listener to new clients.
    Close {
        /// The number of the listener.
        listener: u32,
    },
}

/// Where a connection comes from.
pub enum ConnectionOrigin {
    /// The listener with this number has accepted it.
    Listener(u32),
    /// Another server has handed it over, with its session.
    Session(Box<SessionRecord>),
}

/// A listener of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerId(u32);

/// The listeners of a server, each with a number, and the connections that have left it. A number
/// is not used again, so that a late event of a closed listener is not taken for one of another: a
/// closed one costs about 200 bytes.
#[derive(Default)]
pub struct NbdServer {
    listeners: RwLock<Vec<Arc<Listener>>>,
    pub(crate) is_handing_over: AtomicBool,
    pub(crate) given_up: Mutex<GivenUp>,
    mailer: OnceLock<Mailer<NbdMessage>>,
}

impl NbdServer {
    /// A server without listeners, to be passed to the runtime at its start.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds a listener. Worker 0 accepts its clients as soon as the workers exist.
    pub fn listen(&self, listener: Listener) -> ListenerId {
        let mut listeners = self.listeners.write().unwrap_or_else(PoisonError::into_inner);
        let number = listeners.len() as u32;
        listeners.push(Arc::new(listener));
        drop(listeners);
        self.post(ACCEPTING_WORKER, NbdMessage::Listen { listener: number });
        ListenerId(number)
    }

    /// Closes a listener to new clients. Those that are connected stay; returns how many there are.
    pub fn close(&self, ListenerId(number): ListenerId) -> u64 {
        let Some(listener) = self.listener(number) else { return 0 };
        let clients = listener.begin_closing();
        self.post(ACCEPTING_WORKER, NbdMessage::Close { listener: number });
        clients
    }

    pub(crate) fn listener(&self, number: u32) -> Option<Arc<Listener>> {
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        listeners.get(number as usize).cloned()
    }

    /// Calls `each` with the number and the socket of every listener that is not being closed.
    pub(crate) fn each_listener(&self, mut each: impl FnMut(u32, RawFd)) {
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        for (number, listener) in listeners.iter().enumerate() {
            if let Some(fd) = listener.open_fd() {
                each(number as u32, fd);
            }
        }
    }

    /// Passes an accepted client to the worker that is to serve it.
    pub(crate) fn pass_to(&self, worker: usize, socket: OwnedFd, origin: ConnectionOrigin) {
        self.post(worker, NbdMessage::Connection { socket, origin });
    }

    /// Has the worker that accepts clients assign a client to a worker.
    pub(crate) fn assign(&self, socket: OwnedFd, origin: ConnectionOrigin) {
        self.post(ACCEPTING_WORKER, NbdMessage::Assign { socket, origin });
    }

    /// The number of the newest listener at whose address a connection was accepted.
    pub(crate) fn listener_of(&self, connection: &OwnedFd) -> Option<u32> {
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        let at = listeners.iter().rposition(|listener| listener.has_accepted(connection));
        at.map(|at| at as u32)
    }

    fn post(&self, worker: usize, message: NbdMessage) {
        if let Some(mailer) = self.mailer.get() {
            mailer.post(worker, message);
        }
    }
}

impl Service for NbdServer {
    type FrontEnd = NbdFrontEnd;

    fn connect(&self, mailer: Mailer<NbdMessage>) {
        assert!(self.mailer.set(mailer).is_ok(), "a server belongs to one runtime");
        let count = self.listeners.read().unwrap_or_else(PoisonError::into_inner).len() as u32;
        for listener in 0..count {
            self.post(ACCEPTING_WORKER, NbdMessage::Listen { listener });
        }
    }

    fn front_end(self: &Arc<Self>) -> NbdFrontEnd {
        NbdFrontEnd::new(Arc::clone(self))
    }
}
