//! How a worker carries out the tasks of other threads.

use super::{Token, Worker};
use crate::platform::reactor::Reactor;
use crate::shared::{
    ConnectedClient, OnDone, Outstanding, Recorder, Shared, Tasks, WaitingRequests,
};
use forebay_engine::PreloadKind;
use forebay_frontend::FrontEnd;
use forebay_types::{ByteRange, Granule, IoError, VolumeId};
use forebay_volume::{Payload, Request, RequestKind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl<R: Reactor, F: FrontEnd> Tasks for Worker<R, F> {
    fn shared(&self) -> &Shared {
        &self.host.shared
    }

    fn accept(&mut self, accepts: bool) {
        let (front, mut context) = self.parts();
        front.accept(&mut context, accepts);
    }

    fn flush(&mut self, volume: VolumeId, on_done: OnDone) {
        self.submit_internal(volume, RequestKind::Destage, on_done);
    }

    fn checkpoint(&mut self, volume: VolumeId, urgent: bool, on_done: OnDone) {
        // The volume may have been removed meanwhile.
        if self.host.shared.volume(volume).is_none() {
            return on_done(Err(IoError::Shutdown));
        }
        self.submit_internal(volume, RequestKind::Checkpoint { urgent }, on_done);
    }

    fn sync(&mut self, volume: VolumeId, on_done: OnDone) {
        if self.host.shared.volume(volume).is_none() {
            return on_done(Err(IoError::Shutdown));
        }
        self.submit_internal(volume, RequestKind::Sync, on_done);
    }

    fn restore(
        &mut self,
        volume: VolumeId,
        range: ByteRange,
        bytes: Option<&[u8]>,
        records: bool,
        on_done: OnDone,
    ) {
        match bytes {
            Some(bytes) => assert_eq!(bytes.len() as u64, range.len, "the bytes of the range"),
            None => assert!(!records, "only bytes are recorded again"),
        }
        let (kind, payload) = match bytes {
            Some(bytes) if records => (RequestKind::Record, Payload::Borrowed(bytes)),
            Some(bytes) => (RequestKind::Restore, Payload::Borrowed(bytes)),
            None => (RequestKind::RestoreZero { unmap: true }, Payload::None),
        };
        let request = Request { volume, kind, range };
        self.dispatcher.submit(&mut self.host, Token::Internal(on_done), request, payload);
    }

    fn preload(&mut self, volume: VolumeId, granule: Granule, kind: PreloadKind, on_done: OnDone) {
        let served = self.host.shared.volume(volume);
        // A removal sets the flag before it drains the clients on this worker, so no preload begins
        // after that.
        let Some(served) = served.filter(|served| !served.is_closed.load(Ordering::Relaxed)) else {
            return on_done(Ok(()));
        };
        let ByteRange { offset, len } = granule.range();
        let size_bytes = served.size_bytes();
        let range = ByteRange::new(offset, len.min(size_bytes.saturating_sub(offset)));
        if range.len == 0 {
            return on_done(Ok(()));
        }
        let kind = RequestKind::Preload { lines: granule.lines, kind };
        let request = Request { volume, kind, range };
        self.dispatcher.submit(&mut self.host, Token::Internal(on_done), request, Payload::None);
    }

    fn report_needs(&mut self) {
        self.host.report_needs();
    }

    fn clients(&self) -> Vec<ConnectedClient> {
        self.host.clients.list().map(|(_, client)| client).collect()
    }

    fn disconnect(&mut self, id: u64) -> Option<ConnectedClient> {
        let (client, listed) = self.host.clients.list().find(|(_, client)| client.id == id)?;
        let (front, mut context) = self.parts();
        front.drop_client(&mut context, client);
        Some(listed)
    }

    fn drain_clients(&mut self, volume: Option<VolumeId>) {
        for client in self.host.clients.of(volume) {
            let (front, mut context) = self.parts();
            front.drain_client(&mut context, client);
        }
    }

    fn hand_over_clients(&mut self) {
        let mut clients = self.host.clients.of(None);
        clients.retain(|&client| {
            let (front, mut context) = self.parts();
            front.hand_over_client(&mut context, client)
        });
        self.leaving = clients;
    }

    fn leaving_clients(&self) -> usize {
        self.leaving.iter().filter(|&&client| self.host.clients.has(client)).count()
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

    fn has_left_requests(&mut self, volume: VolumeId) -> bool {
        let (clients, in_flight) = (&self.host.clients, &self.host.in_flight);
        crate::worker::clients::has_left(clients, in_flight)
            && self.dispatcher.in_flight_of(volume) > 0
    }

    fn outstanding(&mut self, volume: Option<VolumeId>) -> Outstanding {
        let (connections, requests) = match volume {
            None => {
                let volumes = self.shared().volumes.all();
                let given_up = volumes.iter().filter(|volume| volume.is_given_up());
                let left: usize =
                    given_up.map(|volume| self.dispatcher.in_flight_of(volume.id)).sum();
                let requests = self.dispatcher.in_flight().checked_sub(left);
                (self.host.clients.len(), requests.expect("each request has one volume"))
            }
            Some(id) => (self.host.clients.of(volume).len(), self.dispatcher.in_flight_of(id)),
        };
        Outstanding { connections, requests, oldest_io: self.host.ios.oldest(volume) }
    }

    fn waiting(&self, volume: Option<&str>, now: Instant, limit: Duration) -> WaitingRequests {
        let requests = (&self.host.clients, &self.host.in_flight);
        crate::worker::clients::waiting(requests, volume, (now, limit))
    }

    fn stop(&mut self, abandons_requests: bool) {
        self.abandons_requests = abandons_requests;
        self.stopping = true;
    }

    fn forget_volumes(&mut self) {
        self.host.volume = None;
    }

    fn recorder(&mut self) -> &mut Option<Box<Recorder>> {
        &mut self.host.recorder
    }
}

impl<R: Reactor, F: FrontEnd> Worker<R, F> {
    fn submit_internal(&mut self, volume: VolumeId, kind: RequestKind, on_done: OnDone) {
        let request = Request { volume, kind, range: ByteRange::new(0, 0) };
        self.dispatcher.submit(&mut self.host, Token::Internal(on_done), request, Payload::None);
    }
}
