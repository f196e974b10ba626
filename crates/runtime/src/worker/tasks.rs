//! The operations that other threads run on a worker, as tasks in its inbox.

use super::{Token, Worker};
use crate::reactor::Reactor;
use crate::recording::Recorder;
use crate::shared::{Shared, Volume};
use crate::slow::WaitingRequests;
use forebay_engine::PreloadKind;
use forebay_frontend::{FrontEnd, Peer};
use forebay_types::{ByteRange, Granule, IoError, IoResult, VolumeId};
use forebay_volume::{Payload, Request, RequestKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The connections, requests and I/Os of a volume, or of all that were not given up, that have not
/// ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outstanding {
    /// Connections, including those whose peer has disconnected.
    pub connections: usize,
    /// Unanswered requests, of clients and internal ones.
    pub requests: usize,
    /// The start of the oldest I/O that a backend has not completed.
    pub oldest_io: Option<Instant>,
}

impl Outstanding {
    pub(crate) const fn is_empty(&self) -> bool {
        !self.is_busy() && self.oldest_io.is_none()
    }

    /// Whether there are connections or requests.
    pub(crate) const fn is_busy(&self) -> bool {
        self.connections > 0 || self.requests > 0
    }

    /// Combines the values of two workers.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            connections: self.connections + other.connections,
            requests: self.requests + other.requests,
            oldest_io: self.oldest_io.into_iter().chain(other.oldest_io).min(),
        }
    }
}

/// Called with the result of an internal request.
pub(crate) type OnDone = Box<dyn FnOnce(IoResult) + Send>;

/// The operations that other threads run on a worker.
pub(crate) trait Tasks {
    /// The state that all workers share.
    fn shared(&self) -> &Shared;

    /// Starts or stops accepting clients.
    fn accept(&mut self, accepts: bool);

    /// Destages a volume's dirty data, and flushes its disk.
    fn flush(&mut self, volume: VolumeId, on_done: OnDone);

    /// Destages a volume's dirty data for a checkpoint of its journal, or for a drain, and flushes
    /// its disk: at once if it is urgent, otherwise at the pace of background writeback.
    fn checkpoint(&mut self, volume: VolumeId, urgent: bool, on_done: OnDone);

    /// Flushes the cache of a volume's disk.
    fn sync(&mut self, volume: VolumeId, on_done: OnDone);

    /// Writes a restored range of a volume; `None` stands for zeroes. The write is recorded in the
    /// volume's journal only if `records` is set.
    fn restore(
        &mut self,
        volume: VolumeId,
        range: ByteRange,
        bytes: Option<&[u8]>,
        records: bool,
        on_done: OnDone,
    );

    /// Reads a granule of a volume into the pool, unless the volume is being removed.
    fn preload(&mut self, volume: VolumeId, granule: Granule, kind: PreloadKind, on_done: OnDone);

    /// Reports to the volumes what clients needed since the last report.
    fn report_needs(&mut self);

    /// The volumes that clients of this worker have entered, each with the client's peer.
    fn entered(&self) -> Vec<(Arc<Volume>, Peer)>;

    /// Drains the clients of a volume, or all: answers their requests, then disconnects them.
    fn drain_clients(&mut self, volume: Option<VolumeId>);

    /// Disconnects the remaining clients without waiting for their requests.
    fn drop_clients(&mut self, volume: Option<VolumeId>);

    /// Closes the remaining connections, although the kernel has not finished I/O on them.
    fn abandon_clients(&mut self, volume: Option<VolumeId>);

    /// Unanswered requests of a volume.
    fn requests(&mut self, volume: VolumeId) -> usize;

    /// The connections, requests and I/Os of a volume, or of all, that have not ended.
    fn outstanding(&mut self, volume: Option<VolumeId>) -> Outstanding;

    /// The requests of clients, of one volume or of all, that have waited for as long as makes them
    /// slow, or for `limit`, at `now`.
    fn waiting(&self, volume: Option<&str>, now: Instant, limit: Duration) -> WaitingRequests;

    /// Ends the worker as soon as it has no I/O in flight and, unless unanswered requests are
    /// abandoned, no request.
    fn stop(&mut self, abandons_requests: bool);

    /// Drops cached references to volumes.
    fn forget_volumes(&mut self);

    /// The recorder of the requests of clients.
    fn recorder(&mut self) -> &mut Option<Box<Recorder>>;
}

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
        let size_bytes = served.backend.description().size_bytes;
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

    fn entered(&self) -> Vec<(Arc<Volume>, Peer)> {
        self.host.clients.entered()
    }

    fn drain_clients(&mut self, volume: Option<VolumeId>) {
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

    fn outstanding(&mut self, volume: Option<VolumeId>) -> Outstanding {
        let (connections, requests) = match volume {
            None => {
                let volumes = self.shared().volumes.all();
                let given_up = volumes.iter().filter(|volume| volume.is_given_up());
                let left: usize =
                    given_up.map(|volume| self.dispatcher.in_flight_of(volume.id)).sum();
                (self.host.clients.len(), self.dispatcher.in_flight() - left)
            }
            Some(id) => (self.host.clients.of(volume).len(), self.dispatcher.in_flight_of(id)),
        };
        Outstanding { connections, requests, oldest_io: self.host.ios.oldest(volume) }
    }

    fn waiting(&self, volume: Option<&str>, now: Instant, limit: Duration) -> WaitingRequests {
        let requests = (&self.host.clients, &self.host.in_flight);
        crate::clients::waiting(requests, volume, (now, limit))
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
