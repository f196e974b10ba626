//! The state that the ublk front ends of all workers share.

use crate::{Device, ServeError, UblkFrontEnd};
use forebay_frontend::{Mailer, Service, WorkerContext};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak, mpsc};
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

/// The devices of a server.
#[derive(Default)]
pub struct UblkServer {
    mailer: OnceLock<Mailer<UblkMessage>>,
    devices: Mutex<Vec<Weak<Device>>>,
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
        let mut devices = self.lock_devices();
        devices.retain(|device| device.strong_count() > 0);
        devices.push(Arc::downgrade(&device));
        drop(devices);
        let Some(mailer) = self.mailer.get() else { return Err(ServeError::Stopping) };
        mailer.post(DISTRIBUTING_WORKER, UblkMessage::Distribute { device });
        for _ in 0..queues {
            joined.recv_timeout(JOIN_TIME).map_err(|_| ServeError::Timeout)??;
        }
        Ok(())
    }

    /// The devices that are served: of each, its number and the name of its volume.
    pub fn devices(&self) -> Vec<(u32, String)> {
        let devices = self.lock_devices();
        let served = devices.iter().filter_map(Weak::upgrade);
        served.map(|device| (device.number(), device.volume().to_owned())).collect()
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

    fn lock_devices(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Device>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
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
