//! The state that the ublk front ends of all workers share.

use crate::{Device, ServeError, UblkFrontEnd};
use forebay_frontend::{Mailer, Service, WorkerContext};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// The worker that distributes the queues of a device.
const DISTRIBUTING_WORKER: usize = 0;

/// How long the workers may take to fetch from a device.
const JOIN_TIME: Duration = Duration::from_secs(20);

/// A message to the front end of a worker.
pub enum UblkMessage {
    /// Have the workers serve the queues of a device.
    Distribute {
        /// The device.
        device: Arc<Device>,
    },
    /// Serve a queue.
    Serve {
        /// Its device.
        device: Arc<Device>,
        /// Its number.
        queue: u16,
    },
}

/// What gives devices to the workers.
#[derive(Default)]
pub struct UblkServer {
    mailer: OnceLock<Mailer<UblkMessage>>,
}

impl UblkServer {
    /// A server without devices, to be passed to the runtime at its start.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Serves a device: each of its tags has been fetched from when this returns, so that it can be
    /// started. Waits for the workers, some milliseconds.
    ///
    /// # Errors
    /// See [`ServeError`]. Some queues may be served nevertheless, until the device is removed.
    pub fn serve(&self, device: Device) -> Result<(), ServeError> {
        let (sender, joined) = mpsc::channel();
        let device = Arc::new(device.reporting(sender));
        let queues = device.queues();
        let Some(mailer) = self.mailer.get() else { return Err(ServeError::Stopping) };
        mailer.post(DISTRIBUTING_WORKER, UblkMessage::Distribute { device });
        for _ in 0..queues {
            joined.recv_timeout(JOIN_TIME).map_err(|_| ServeError::Timeout)??;
        }
        Ok(())
    }

    /// Gives each queue of a device to the worker with the fewest clients.
    pub(crate) fn distribute<C: WorkerContext>(&self, cx: &mut C, device: &Arc<Device>) {
        let mailer = self.mailer.get().expect("a message was posted");
        for queue in 0..device.queues() {
            match cx.accept(None) {
                Some(worker) => {
                    let device = Arc::clone(device);
                    mailer.post(worker, UblkMessage::Serve { device, queue });
                }
                None => device.report(Err(ServeError::TooManyClients)),
            }
        }
    }
}

impl Service for UblkServer {
    type FrontEnd = UblkFrontEnd;

    fn connect(&self, mailer: Mailer<UblkMessage>) {
        assert!(self.mailer.set(mailer).is_ok(), "a server belongs to one runtime");
    }

    fn front_end(self: &Arc<Self>) -> UblkFrontEnd {
        UblkFrontEnd::new(Arc::clone(self))
    }
}
