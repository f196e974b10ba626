//! The ublk front end: volumes as block devices of this machine's kernel.
//!
//! Each hardware queue of a device is a client of one worker, and each tag of the queue a place for
//! one request. A worker fetches the requests of its queues with commands in its reactor, copies
//! data between the driver's pages and lines of the pool without a buffer between them, and answers
//! with the next command of the same tag.
//!
//! Who makes devices is not here: that takes rights that a server does not need. This crate opens a
//! device that has been made for it, and fetches from all of its queues; then its maker starts it.
//! A device outlives the server: requests that it has not answered are fetched again by the next
//! one.

mod copy;
mod device;
mod error;
mod queue;
mod server;

pub use device::{Device, DeviceError};
pub use error::ServeError;
pub use server::{UblkMessage, UblkServer};

use forebay_frontend::{
    ClientId, ClientRequest, ExtentQuery, FrontEnd, FrontEndEvent, Memory, Pins, WorkerContext,
};
use forebay_types::Extent;
use forebay_volume::Reply;
use queue::DeviceQueue;
use std::sync::Arc;

/// Bits of a command's key that are the tag; the others are the queue's place.
const TAG_BITS: u32 = 16;

/// The ublk front end of one worker.
pub struct UblkFrontEnd {
    server: Arc<UblkServer>,
    /// The queues that this worker serves. The kernel may report commands of a queue as long as it
    /// has fetched, so a place is reused after its last command only.
    queues: Vec<Option<DeviceQueue>>,
    /// The places of queues whose requests may continue.
    resumed: Vec<u16>,
    /// Memory that payloads of short writes pass through.
    scratch: Memory,
}

impl UblkFrontEnd {
    fn new(server: Arc<UblkServer>) -> Self {
        let scratch = Memory::new(queue::SHORT_BYTES_MAX);
        Self { server, queues: Vec::new(), resumed: Vec::new(), scratch }
    }

    /// The place of a client's queue.
    fn place(&self, client: ClientId) -> Option<usize> {
        self.queues
            .iter()
            .position(|queue| queue.as_ref().is_some_and(|queue| queue.client == client))
    }

    /// Serves a queue of a device.
    fn join<C: WorkerContext>(&mut self, cx: &mut C, device: Arc<Device>, number: u16) {
        let at = self.queues.iter().position(Option::is_none).unwrap_or_else(|| {
            self.queues.push(None);
            self.queues.len() - 1
        });
        let place = u16::try_from(at).expect("there are fewer queues than clients");
        match DeviceQueue::join(cx, device, number, place) {
            Ok(queue) => self.queues[at] = Some(queue),
            Err((device, error)) => device.report(Err(error)),
        }
    }

    /// Has the queue at a place do something. Removes it if it has ended.
    fn with<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        place: usize,
        act: impl FnOnce(&mut DeviceQueue, &mut C, &mut Memory),
    ) {
        let Some(Some(queue)) = self.queues.get_mut(place) else { return };
        act(queue, cx, &mut self.scratch);
        if queue.is_resumable() && !self.resumed.contains(&(place as u16)) {
            self.resumed.push(place as u16);
        }
        if queue.has_ended() {
            self.queues[place] = None;
        }
    }
}

impl FrontEnd for UblkFrontEnd {
    type Message = UblkMessage;

    fn serves(&self, client: ClientId) -> bool {
        !self.queues.is_empty() && self.place(client).is_some()
    }

    fn takes(event: &FrontEndEvent<'_>) -> bool {
        matches!(event, FrontEndEvent::Command { .. })
    }

    fn event<C: WorkerContext>(&mut self, cx: &mut C, event: FrontEndEvent<'_>) {
        let FrontEndEvent::Command { key, result } = event else { return };
        let (place, tag) = (key >> TAG_BITS, key as u16);
        self.with(cx, place as usize, |queue, cx, scratch| queue.fetched(cx, tag, result, scratch));
    }

    fn message<C: WorkerContext>(&mut self, cx: &mut C, message: UblkMessage) {
        match message {
            UblkMessage::Distribute { device } => self.server.distribute(cx, &device),
            UblkMessage::Serve { device, queue } => self.join(cx, device, queue),
        }
    }

    fn completed<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        request: &ClientRequest,
        reply: Reply<'_, Memory>,
    ) -> Pins {
        if let Some(place) = self.place(request.client) {
            self.with(cx, place, |queue, cx, _| queue.answer(cx, request, &reply));
        }
        Pins::Released
    }

    fn extents<C: WorkerContext>(&mut self, _cx: &mut C, _query: &ExtentQuery, _: &[Extent]) {
        unreachable!("a block device has no query for extents");
    }

    fn memory_free<C: WorkerContext>(&mut self, _cx: &mut C, client: ClientId) {
        if let Some(place) = self.place(client)
            && !self.resumed.contains(&(place as u16))
        {
            self.resumed.push(place as u16);
        }
    }

    fn resume_input<C: WorkerContext>(&mut self, cx: &mut C) {
        for place in std::mem::take(&mut self.resumed) {
            self.with(cx, usize::from(place), DeviceQueue::resume);
        }
    }

    fn has_input(&self) -> bool {
        !self.resumed.is_empty()
    }

    fn end_turn<C: WorkerContext>(&mut self, _cx: &mut C) {}

    fn tick<C: WorkerContext>(&mut self, cx: &mut C) {
        for place in 0..self.queues.len() {
            self.with(cx, place, DeviceQueue::tick);
        }
    }

    fn accept<C: WorkerContext>(&mut self, _cx: &mut C, _accepts: bool) {}

    fn drain_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        if let Some(place) = self.place(client) {
            self.with(cx, place, |queue, cx, _| queue.drain(cx));
        }
    }

    /// The kernel keeps the device, and its requests wait.
    fn hand_over_client<C: WorkerContext>(&mut self, _cx: &mut C, _client: ClientId) -> bool {
        false
    }

    fn drop_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        if let Some(place) = self.place(client) {
            self.with(cx, place, |queue, cx, _| queue.leave(cx));
        }
    }

    fn abandon_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        self.drop_client(cx, client);
    }
}
