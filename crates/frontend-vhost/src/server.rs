//! The state that the vhost-user front ends of all workers share.

use crate::VhostFrontEnd;
use crate::inbox::{Notice, RingError, SessionsEvent, SessionsInbox};
use crate::sessions::Sessions;
use crate::setup::RingSetup;
use crate::workers::{VhostMessage, WorkerMail, WorkerMessage};
use forebay_frontend::{Mailer, Service, WorkerContext};
use forebay_threads::Thread;
use forebay_vhost::block::GuestDisk;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Why the sockets of virtual machines cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The thread or its event counter cannot be made.
    #[error("cannot start the thread for virtual machines: {0}")]
    Thread(#[from] io::Error),
    /// The runtime has not been started, or has ended.
    #[error("the server is stopping")]
    Stopping,
}

/// What serves the sockets of virtual machines.
#[derive(Default)]
pub struct VhostServer {
    workers: OnceLock<WorkerMail>,
    /// The thread's inbox, once there is a socket.
    control: Mutex<Option<Arc<SessionsInbox>>>,
}

impl VhostServer {
    /// A server without sockets, to be passed to the runtime at its start.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Serves a volume to the monitors that connect to a socket, as this device. A former socket of
    /// the volume is closed, and the monitors that have connected to it stay.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn listen(
        &self,
        volume: &str,
        listener: OwnedFd,
        device: GuestDisk,
    ) -> Result<(), ListenError> {
        let workers = self.workers.get().ok_or(ListenError::Stopping)?;
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        if control.is_none() {
            let inbox = Arc::new(SessionsInbox::new()?);
            let thread = Sessions::new(Arc::clone(&inbox), workers.clone());
            Thread::named("vhost").spawn(move || thread.run())?;
            *control = Some(inbox);
        }
        let volume = volume.into();
        if let Some(control) = &*control {
            control.post(SessionsEvent::Listen { volume, listener, device });
        }
        Ok(())
    }

    /// Tells the guests of a volume that it has grown to `bytes`. Guests that connect later see the
    /// new size in any case.
    pub fn grow(&self, volume: &str, bytes: u64) {
        self.post(SessionsEvent::Grow { volume: volume.into(), bytes });
    }

    /// Closes all sockets. The monitors that have connected stay.
    pub fn stop_listening(&self) {
        self.post(SessionsEvent::StopListening);
    }

    /// Closes the socket of a volume, and disconnects its monitors once what they have in flight is
    /// answered.
    pub fn close(&self, volume: &str) {
        self.post(SessionsEvent::Close { volume: volume.into() });
    }

    fn post(&self, event: SessionsEvent) {
        if let Some(control) = &*self.control.lock().unwrap_or_else(PoisonError::into_inner) {
            control.post(event);
        }
    }

    /// Gives a ring to the worker with the fewest clients.
    pub(crate) fn distribute<C: WorkerContext>(&self, cx: &mut C, setup: Box<RingSetup>) {
        let workers = self.workers.get().expect("a message was posted");
        match cx.accept(Some(setup.kick.as_fd())) {
            Some(worker) => workers.post(worker, WorkerMessage::Serve(setup, worker)),
            None => {
                let result = Err(RingError::TooManyClients);
                setup.notify(Notice::Started { key: setup.key, result });
            }
        }
    }
}

impl Drop for VhostServer {
    fn drop(&mut self) {
        self.post(SessionsEvent::End);
    }
}

impl Service for VhostServer {
    type FrontEnd = VhostFrontEnd;

    fn connect(&self, mailer: Mailer<VhostMessage>) {
        assert!(
            self.workers.set(WorkerMail::new(mailer)).is_ok(),
            "a server belongs to one runtime"
        );
    }

    fn front_end(self: &Arc<Self>) -> VhostFrontEnd {
        VhostFrontEnd::new(Arc::clone(self))
    }
}
