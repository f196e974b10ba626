//! Messages to the front ends of the workers.

use crate::inbox::RingKey;
use crate::memory::GuestMemory;
use crate::setup::RingSetup;
use forebay_frontend::Mailer;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The worker that distributes rings.
const DISTRIBUTING_WORKER: usize = 0;

/// A message to the front end of a worker.
pub struct VhostMessage(pub(crate) WorkerMessage);

pub(crate) enum WorkerMessage {
    /// Choose a worker for a ring.
    Distribute(Box<RingSetup>),
    /// Serve a ring, as the worker with this number.
    Serve(Box<RingSetup>, usize),
    /// Stop a ring once what was taken from it is answered.
    Stop(RingKey),
    /// Replace the interrupt of the guest.
    SetCall(RingKey, Option<Arc<OwnedFd>>),
    /// Replace the memory of the guest.
    SetMemory(RingKey, Arc<GuestMemory>),
}

/// Sends messages to workers.
#[derive(Clone)]
pub(crate) struct WorkerMail(Arc<Mailer<VhostMessage>>);

impl WorkerMail {
    pub(crate) fn new(mailer: Mailer<VhostMessage>) -> Self {
        Self(Arc::new(mailer))
    }

    pub(crate) fn post(&self, worker: usize, message: WorkerMessage) {
        self.0.post(worker, VhostMessage(message));
    }

    /// Has a worker serve a ring.
    pub(crate) fn serve(&self, setup: Box<RingSetup>) {
        self.post(DISTRIBUTING_WORKER, WorkerMessage::Distribute(setup));
    }
}
