//! An export of another NBD server, over one connection with many requests in flight.
//!
//! The server is not trusted: every reply is checked against its request, and the first mismatch
//! ends the connection. A lost connection is re-established, and requests in flight are resent;
//! those that wait longer than [`OpenOptions::reconnect_seconds`](crate::OpenOptions) fail. There
//! is no timeout for a connected, silent server, as there is none for a disk.
//!
//! Price: two threads per backend, and one system call per request.

mod connect;
mod error;
mod link;
mod socket;
mod threads;
mod tls;
mod url;
mod volatile;

#[cfg(test)]
mod tests;

pub use error::NbdError;
pub use tls::{NbdTls, NbdTlsError};
pub use url::{NbdAddress, NbdUrl};

use crate::count::{IoCount, IoCounter};
use crate::sync::lock;
use crate::thread_pool::join_unless_self;
use crate::trial::{TrialBackend, UNKNOWN_BYTES};
use crate::{Backend, Buffer, Description, DiskSize, Extent, Io, IoKind, OpenOptions, StoreMedium};
use connect::ExportTarget;
use forebay_nbd::client::OpenExport;
use forebay_nbd::proto::export_flag;
use forebay_threads::Thread;
use forebay_types::{ByteRange, DiskGeometry, SECTOR_BYTES};
use link::{LinkWork, NbdLink};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use threads::NbdShared;

/// Timeout for opening.
const OPEN_TIME: Duration = Duration::from_secs(10);
/// Longest discard, zeroing or status query, in bytes: compact headers allow less than 4 GiB.
const RANGE_BYTES_MAX: u64 = 1 << 30;
/// Zeroes for servers without WRITE_ZEROES.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// An export of an NBD server.
pub struct NbdBackend {
    shared: Arc<NbdShared>,
    /// First the sender, then the receiver.
    threads: Vec<JoinHandle<()>>,
    count: IoCounter,
    description: Description,
}

/// Opens an export.
pub(crate) fn open(spec: &str, options: &OpenOptions) -> Result<Arc<dyn Backend>, NbdError> {
    let url = NbdUrl::parse(spec)?;
    // What a start would refuse, a check refuses, which does not connect.
    if let Some(tls) = &url.tls {
        tls.begin().map_err(|source| NbdError::TlsFiles { url: spec.to_owned(), source })?;
    }
    if options.is_trial {
        let (identity, medium) = (url.identity(), StoreMedium::default());
        return Ok(Arc::new(TrialBackend::new(spec, UNKNOWN_BYTES, identity, medium)));
    }
    Ok(Arc::new(NbdBackend::open_export(url, spec, options)?))
}

impl NbdBackend {
    /// Opens the export at the URL `spec`.
    ///
    /// # Errors
    /// If the URL is malformed, the server cannot be reached or refuses the export, or the export
    /// cannot be a backend.
    pub fn open(spec: &str, options: &OpenOptions) -> Result<Self, NbdError> {
        Self::open_export(NbdUrl::parse(spec)?, spec, options)
    }

    /// Opens an export. Messages call it `name`.
    ///
    /// # Errors
    /// As [`NbdBackend::open`].
    pub fn open_export(url: NbdUrl, name: &str, options: &OpenOptions) -> Result<Self, NbdError> {
        let target = ExportTarget { url, name: name.to_owned(), read_only: options.read_only };
        let connected = target.connect(OPEN_TIME)?;
        let first = connected.opened;
        let description = describe(&target, &first);
        let (connection, input) = connected.into_connection();
        let reconnect_seconds = target.url.reconnect_seconds.unwrap_or(options.reconnect_seconds);
        let reconnect_time = Duration::from_secs(u64::from(reconnect_seconds));
        let link = NbdLink::new(connection, reconnect_time, target.url.keeps_writes);
        let shared = Arc::new(NbdShared::new(target, first, link));
        let mut backend = Self {
            shared: shared.clone(),
            threads: Vec::new(),
            count: IoCounter::default(),
            description,
        };
        let fail = |source| NbdError::Thread { url: name.to_owned(), source };
        // If the second thread cannot be started, dropping the backend ends the first.
        let sending = shared.clone();
        let sender = Thread::named("nbd-send").spawn(move || sending.send());
        backend.threads.push(sender.map_err(fail)?);
        let receiver = Thread::named("nbd-receive").spawn(move || shared.receive(input));
        backend.threads.push(receiver.map_err(fail)?);
        Ok(backend)
    }

    fn submit_work(&self, work: LinkWork) {
        let answers = lock(&self.shared.link).submit(work);
        answers.deliver();
        // The receiving thread waits on `wake` too, while it pauses before a reconnect.
        self.shared.wake.notify_all();
    }

    fn can(&self, flag: u16) -> bool {
        self.shared.first.can(flag)
    }
}

fn describe(target: &ExportTarget, opened: &OpenExport) -> Description {
    Description {
        name: target.name.clone(),
        size: DiskSize::new(opened.size_bytes),
        identity: Some(target.url.identity()),
        read_only: target.read_only,
        geometry: geometry(opened),
        can_discard: opened.can(export_flag::SEND_TRIM),
        can_zero_fast: opened.can(export_flag::SEND_FAST_ZERO),
        alignment_bytes: opened.block_min.max(SECTOR_BYTES as u32),
    }
}

/// The geometry that a server reports. Most servers do not support the rotational flag, so its
/// absence means unknown. The default preferred size is that of the protocol, 4 KiB.
fn geometry(opened: &OpenExport) -> DiskGeometry {
    DiskGeometry {
        optimal_bytes: u64::from(opened.block_preferred),
        rotational: opened.can(export_flag::ROTATIONAL).then_some(true),
        ..DiskGeometry::default()
    }
}

/// Replaces a zero request by a write of zeroes.
fn as_write(mut io: Io) -> Io {
    let mut left = io.len;
    while left > 0 {
        let len = left.min(ZEROES.len() as u64);
        // SAFETY: the zeroes are static, and a write does not store into its buffers.
        io.buffers.push(unsafe { Buffer::new(ZEROES.as_ptr().cast_mut(), len as usize) });
        left -= len;
    }
    io.kind = IoKind::Write { fua: false };
    io
}

impl Backend for NbdBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        let Some(mut io) = io.admit(&self.description) else { return };
        self.count.add(&io);
        let is_done_here = match io.kind {
            // A server without FLUSH has no volatile cache; a discard is only a hint.
            IoKind::Flush => !self.can(export_flag::SEND_FLUSH),
            IoKind::Discard => !self.can(export_flag::SEND_TRIM),
            IoKind::Read | IoKind::Write { .. } | IoKind::Zero { .. } => false,
        };
        if is_done_here || (io.len == 0 && io.kind != IoKind::Flush) {
            return io.done.complete(Ok(()));
        }
        if matches!(io.kind, IoKind::Zero { .. }) && !self.can(export_flag::SEND_WRITE_ZEROES) {
            io = as_write(io);
        }
        let payload_max = u64::from(self.shared.first.payload_max);
        let bytes_max = match io.kind {
            IoKind::Read | IoKind::Write { .. } => {
                payload_max - payload_max % u64::from(self.description.alignment_bytes)
            }
            IoKind::Flush | IoKind::Discard | IoKind::Zero { .. } => RANGE_BYTES_MAX,
        };
        for piece in io.split(bytes_max.max(SECTOR_BYTES)) {
            self.submit_work(LinkWork::Io(piece));
        }
    }

    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        let mut extents = Vec::new();
        // The server accepts only whole blocks.
        let unit = u64::from(self.description.alignment_bytes);
        let mut offset = range.offset / unit * unit;
        let before = range.offset - offset;
        let end = range.end().next_multiple_of(unit);
        let longest = RANGE_BYTES_MAX / unit * unit;
        while offset < end && self.shared.first.base_allocation.is_some() {
            let (sender, receiver) = mpsc::channel();
            let len = (end - offset).min(longest);
            self.submit_work(LinkWork::Status(ByteRange::new(offset, len), sender));
            // The sender is dropped if the request fails.
            let Ok(found) = receiver.recv() else { break };
            offset += found.iter().map(|extent| extent.len).sum::<u64>();
            extents.extend(found);
        }
        cut_extents(&extents, before, range.len)
    }

    fn io_count(&self) -> Option<IoCount> {
        Some(self.count.get())
    }
}

/// The `len` bytes of `extents` after `skip` bytes. Uncovered bytes count as allocated.
fn cut_extents(extents: &[Extent], skip: u64, len: u64) -> Vec<Extent> {
    let mut cut = Vec::new();
    let (mut start, mut covered) = (0, 0);
    for extent in extents {
        let end = start + extent.len;
        let len = end.min(skip + len).saturating_sub(start.max(skip));
        if len > 0 {
            cut.push(Extent { len, ..*extent });
            covered += len;
        }
        start = end;
    }
    if covered < len {
        cut.push(Extent { len: len - covered, hole: false, zero: false });
    }
    cut
}

impl Drop for NbdBackend {
    fn drop(&mut self) {
        let mut link = lock(&self.shared.link);
        link.is_stopping = true;
        // With nothing in flight, the sending thread sends a disconnect request; otherwise end the
        // connection now.
        if !link.in_flight.is_empty()
            && let Some(connection) = &link.connection
        {
            connection.socket.shutdown();
        }
        if link.connection.is_none() {
            // The receiver may be resolving a name, which no timeout limits. It accesses no buffer
            // until there is a connection, and there will be none: it ends on its own.
            self.threads.truncate(1);
        }
        drop(link);
        self.shared.wake.notify_all();
        self.threads.drain(..).for_each(join_unless_self);
        // Dropping unanswered requests answers them.
        let left = std::mem::take(&mut lock(&self.shared.link).in_flight);
        drop(left);
    }
}
