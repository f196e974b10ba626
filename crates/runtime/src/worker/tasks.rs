//! What others may ask of a worker between two turns.

use super::{Token, Worker};
use crate::reactor::Reactor;
use crate::shared::Shared;
use forebay_frontend::FrontEnd;
use forebay_types::{ByteRange, IoError, IoResult, VolumeId};
use forebay_volume::{Payload, Request, RequestKind};
use std::time::Instant;

/// What is left of a volume, or of all, when its clients are to go.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Left {
    /// Connections, of clients or of peers that are gone.
    pub connections: usize,
    /// Requests that are not answered, of clients and from inside.
    pub requests: usize,
    /// When the oldest I/O began that a backend has not answered.
    pub oldest_io: Option<Instant>,
}

impl Left {
    /// Whether nothing is.
    pub(crate) const fn is_nothing(&self) -> bool {
        !self.is_busy() && self.oldest_io.is_none()
    }

    /// Whether anything was asked for that is not answered, or anybody is there to ask.
    pub(crate) const fn is_busy(&self) -> bool {
        self.connections > 0 || self.requests > 0
    }

    /// What is left here and there.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            connections: self.connections + other.connections,
            requests: self.requests + other.requests,
            oldest_io: self.oldest_io.into_iter().chain(other.oldest_io).min(),
        }
    }
}

/// A worker as the control side sees it.
pub(crate) trait Tasks {
    /// What all workers share.
    fn shared(&self) -> &Shared;

    /// Accepts clients from now on, or no more.
    fn accept(&mut self, accepts: bool);

    /// Brings everything dirty of a volume to its disk, and to stable storage there.
    fn flush(&mut self, volume: VolumeId, tell: Box<dyn FnOnce(IoResult) + Send>);

    /// The same for a checkpoint of the volume's journal.
    fn checkpoint(&mut self, volume: VolumeId, tell: Box<dyn FnOnce(IoResult) + Send>);

    /// Brings what a volume's disk has been given to stable storage there.
    fn sync(&mut self, volume: VolumeId, tell: Box<dyn FnOnce(IoResult) + Send>);

    /// Gives a piece of what a journal holds back to its volume: bytes, or zeroes if `None`; or
    /// bytes that the volume has to its journal, if it `records`.
    fn restore(
        &mut self,
        volume: VolumeId,
        range: ByteRange,
        bytes: Option<&[u8]>,
        records: bool,
        tell: Box<dyn FnOnce(IoResult) + Send>,
    );

    /// Lets the clients of a volume go, or of all, once what they asked for is answered.
    fn dismiss(&mut self, volume: Option<VolumeId>);

    /// Drops the clients that are left, whatever they still want.
    fn drop_clients(&mut self, volume: Option<VolumeId>);

    /// Closes the connections that are left by force.
    fn abandon_clients(&mut self, volume: Option<VolumeId>);

    /// Requests of a volume that are not answered yet.
    fn requests(&mut self, volume: VolumeId) -> usize;

    /// What is left of a volume or in all.
    fn left(&mut self, volume: Option<VolumeId>) -> Left;

    /// Ends the worker as soon as nothing is in flight.
    fn leave(&mut self);

    /// Has it end, once it is to, although requests are not answered.
    fn abandon_requests(&mut self);

    /// Forgets what it knows of volumes.
    fn forget_volumes(&mut self);
}

impl<R: Reactor, F: FrontEnd> Tasks for Worker<R, F> {
    fn shared(&self) -> &Shared {
        &self.host.shared
    }

    fn accept(&mut self, accepts: bool) {
        let (front, mut context) = self.parts();
        front.accept(&mut context, accepts);
    }

    fn flush(&mut self, volume: VolumeId, tell: Box<dyn FnOnce(IoResult) + Send>) {
        self.submit_inside(volume, RequestKind::Destage, tell);
    }

    fn checkpoint(&mut self, volume: VolumeId, tell: Box<dyn FnOnce(IoResult) + Send>) {
        // It may have been removed since the journal asked.
        if self.host.shared.volume(volume).is_none() {
            return tell(Err(IoError::Shutdown));
        }
        self.submit_inside(volume, RequestKind::Checkpoint, tell);
    }

    fn sync(&mut self, volume: VolumeId, tell: Box<dyn FnOnce(IoResult) + Send>) {
        if self.host.shared.volume(volume).is_none() {
            return tell(Err(IoError::Shutdown));
        }
        self.submit_inside(volume, RequestKind::Sync, tell);
    }

    fn restore(
        &mut self,
        volume: VolumeId,
        range: ByteRange,
        bytes: Option<&[u8]>,
        records: bool,
        tell: Box<dyn FnOnce(IoResult) + Send>,
    ) {
        let (kind, payload) = match bytes {
            Some(bytes) if records => (RequestKind::Record, Payload::Borrowed(bytes)),
            Some(bytes) => (RequestKind::Restore, Payload::Borrowed(bytes)),
            None => (RequestKind::RestoreZero { unmap: true }, Payload::None),
        };
        let request = Request { volume, kind, range };
        self.dispatcher.submit(&mut self.host, Token::Inside(tell), request, payload);
    }

    fn dismiss(&mut self, volume: Option<VolumeId>) {
        for client in self.host.clients.of(volume) {
            let (front, mut context) = self.parts();
            front.drain_client(&mut context, client);
        }
    }

    fn drop_clients(&mut self, volume: Option<VolumeId>) {
        for client in self.host.clients.of(volume) {
            let (front, mut context) = self.parts();
            front.drop_client(&mut context, client);
        }
    }

    fn abandon_clients(&mut self, volume: Option<VolumeId>) {
        for client in self.host.clients.of(volume) {
            let (front, mut context) = self.parts();
            front.abandon_client(&mut context, client);
        }
    }

    fn requests(&mut self, volume: VolumeId) -> usize {
        self.dispatcher.in_flight_of(volume)
    }

    fn left(&mut self, volume: Option<VolumeId>) -> Left {
        let (connections, requests) = match volume {
            None => (self.host.clients.len(), self.dispatcher.in_flight()),
            Some(id) => (self.host.clients.of(volume).len(), self.dispatcher.in_flight_of(id)),
        };
        Left { connections, requests, oldest_io: self.host.ios.oldest(volume) }
    }

    fn leave(&mut self) {
        self.leaving = true;
    }

    fn abandon_requests(&mut self) {
        self.abandons_requests = true;
    }

    fn forget_volumes(&mut self) {
        self.host.volume = None;
    }
}

impl<R: Reactor, F: FrontEnd> Worker<R, F> {
    fn submit_inside(
        &mut self,
        volume: VolumeId,
        kind: RequestKind,
        tell: Box<dyn FnOnce(IoResult) + Send>,
    ) {
        let request = Request { volume, kind, range: ByteRange::new(0, 0) };
        self.dispatcher.submit(&mut self.host, Token::Inside(tell), request, Payload::None);
    }
}
