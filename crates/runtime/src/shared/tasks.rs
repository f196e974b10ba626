//! The operations that other threads run on a worker, as tasks in its inbox.

use super::{Recorder, Shared, WaitingRequests};
use forebay_engine::PreloadKind;
use forebay_frontend::Peer;
use forebay_types::{ByteRange, Granule, IoResult, VolumeId};
use std::time::{Duration, Instant, SystemTime};

/// A client of any front end, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedClient {
    /// Identifies it among all clients of this process, and is not reused.
    pub id: u64,
    /// The name of the volume that it has entered; none during its handshake.
    pub volume: Option<String>,
    pub peer: Peer,
    pub is_encrypted: bool,
    /// When it has connected, by the clock of that moment.
    pub joined: SystemTime,
    /// Requests in flight.
    pub requests: usize,
    /// Bytes that it has read successfully.
    pub read_bytes: u64,
    /// Bytes that it has written successfully.
    pub written_bytes: u64,
}

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

    /// The clients of this worker.
    fn clients(&self) -> Vec<ConnectedClient>;

    /// Disconnects one client without waiting for its requests, and returns what it was; `None` if
    /// it is not one of this worker.
    fn disconnect(&mut self, id: u64) -> Option<ConnectedClient>;

    /// Drains the clients of a volume, or all: answers their requests, then disconnects them.
    fn drain_clients(&mut self, volume: Option<VolumeId>);

    /// Has the clients leave for the next process that their front ends can hand over.
    fn hand_over_clients(&mut self);

    /// The number of clients that have to leave, and have not yet.
    fn leaving_clients(&self) -> usize;

    /// Disconnects the remaining clients without waiting for their requests.
    fn drop_clients(&mut self, volume: Option<VolumeId>);

    /// Closes the remaining connections, although the kernel has not finished I/O on them.
    fn abandon_clients(&mut self, volume: Option<VolumeId>);

    /// Unanswered requests of a volume.
    fn requests(&mut self, volume: VolumeId) -> usize;

    /// Whether the volume has unanswered requests, and a client of this worker has left some.
    fn has_left_requests(&mut self, volume: VolumeId) -> bool;

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
