//! The session of a monitor: what it has said of its guest, and the rings that are served.

use crate::inbox::{Notice, RingKey, SessionsInbox};
use crate::memory::{GuestMemory, GuestMemoryError, SharedMapping};
use crate::ring::InflightPart;
use crate::setup::{Reports, RingSetup};
use crate::socket::{MessageSocket, ReceiveError, Received, send};
use crate::workers::{WorkerMail, WorkerMessage};
use forebay_frontend::Peer;
use forebay_vhost::RING_ENTRIES_MAX;
use forebay_vhost::block::{GuestDisk, PROPERTIES_BYTES, WRITE_BACK_AT, feature};
use forebay_vhost::inflight::{entries_within, region_bytes, ring_bytes};
use forebay_vhost::message::{
    ConfigPart, InflightShape, MEMORY_REGIONS_MAX, MessageError, MessageHead, MonitorMessage,
    PROTOCOL_FEATURES, RingAddresses, config_changed, protocol, ring_base,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// Messages of one monitor that are handled before those of the others.
const MESSAGES_PER_TURN: usize = 32;

/// Whether a ring is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RingStage {
    Idle,
    /// A worker has been asked to serve it. With `stops`, it is to stop again.
    Starting {
        stops: bool,
    },
    Running {
        worker: usize,
    },
    /// Its worker has been asked to stop.
    Ending,
}

/// What is known of a ring.
struct SessionRing {
    entries: u16,
    addresses: Option<RingAddresses>,
    base: u16,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    is_enabled: bool,
    stage: RingStage,
    /// The memory has changed, and its worker may not know yet.
    has_old_memory: bool,
}

impl SessionRing {
    const fn new() -> Self {
        Self {
            entries: 0,
            addresses: None,
            base: 0,
            kick: None,
            call: None,
            is_enabled: false,
            stage: RingStage::Idle,
            has_old_memory: false,
        }
    }

    /// Whether it is not about to stop, or to use other memory.
    const fn is_settled(&self) -> bool {
        !matches!(self.stage, RingStage::Ending | RingStage::Starting { stops: true })
            && !self.has_old_memory
    }
}

/// A message that is answered once rings are settled.
struct PendingMessage {
    header: MessageHead,
    /// The ring whose base is asked for.
    base_of: Option<u16>,
}

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// Its messages have ended.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// The guest's memory cannot be used.
    #[error(transparent)]
    Memory(#[from] GuestMemoryError),
    /// A message came without the file that belongs to it, or with another one.
    #[error("{0}")]
    File(&'static str),
    /// The system's error.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<MessageError> for SessionError {
    fn from(error: MessageError) -> Self {
        Self::Receive(error.into())
    }
}

/// What a message is answered with.
enum SessionAnswer {
    /// Nothing, or an acknowledgement if the monitor asks for one.
    Done,
    Number(u64),
    Bytes(Vec<u8>),
    WithFile(Vec<u8>, OwnedFd),
    /// Later, when rings are settled.
    Later {
        base_of: Option<u16>,
    },
}

/// The session of a monitor.
pub(crate) struct MonitorSession {
    id: u64,
    volume: Arc<str>,
    socket: MessageSocket,
    peer: Peer,
    device: GuestDisk,
    /// The size of the volume, for its rings.
    bytes: Arc<AtomicU64>,
    /// Where the monitor is told that the device has changed.
    channel: Option<OwnedFd>,
    /// Whether the monitor has been told the present size, or that there is another one.
    knows_size: bool,
    inbox: Arc<SessionsInbox>,
    features: u64,
    protocol: u64,
    memory: GuestMemory,
    shared_memory: Arc<GuestMemory>,
    rings: Vec<SessionRing>,
    inflight: Option<(Arc<SharedMapping>, InflightShape)>,
    /// The guest's wish, and what follows from it for the rings.
    wants_write_back: bool,
    is_write_back: Arc<AtomicBool>,
    pending: Option<PendingMessage>,
    reports: Arc<Reports>,
    is_closing: bool,
}

impl MonitorSession {
    pub(crate) fn new(
        (id, volume): (u64, Arc<str>),
        (socket, peer): (OwnedFd, Peer),
        device: GuestDisk,
        inbox: Arc<SessionsInbox>,
    ) -> Self {
        Self {
            id,
            volume,
            socket: MessageSocket::new(socket),
            peer,
            device,
            bytes: Arc::new(AtomicU64::new(device.bytes)),
            channel: None,
            knows_size: false,
            inbox,
            features: 0,
            protocol: 0,
            memory: GuestMemory::default(),
            shared_memory: Arc::default(),
            rings: std::iter::repeat_with(SessionRing::new)
                .take(usize::from(device.rings))
                .collect(),
            inflight: None,
            wants_write_back: true,
            is_write_back: Arc::new(AtomicBool::new(false)),
            pending: None,
            reports: Arc::default(),
            is_closing: false,
        }
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn volume(&self) -> &str {
        &self.volume
    }

    pub(crate) const fn socket(&self) -> &OwnedFd {
        self.socket.fd()
    }

    /// Whether messages are received now.
    pub(crate) const fn listens(&self) -> bool {
        self.pending.is_none() && !self.is_closing
    }

    /// Whether the connection can be closed.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_closing && self.rings.iter().all(|ring| ring.stage == RingStage::Idle)
    }

    /// Receives and handles messages.
    pub(crate) fn receive(&mut self, workers: &WorkerMail) {
        for _ in 0..MESSAGES_PER_TURN {
            if !self.listens() {
                return;
            }
            let result = match self.socket.receive() {
                Ok(Some(received)) => self.handle(workers, received),
                Ok(None) => return,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = result {
                let (volume, client) = (&self.volume, &self.peer);
                match error {
                    SessionError::Receive(ReceiveError::Closed) => {
                        tracing::info!(%volume, %client, "a virtual machine monitor has left");
                    }
                    error => {
                        tracing::warn!(%volume, %client, %error, "a monitor is disconnected");
                    }
                }
                self.close(workers);
            }
        }
    }

    /// Tells the monitor that the volume has grown to `bytes`, if it wants to know. Its guest can
    /// reach the new part from now on.
    pub(crate) fn grow(&mut self, bytes: u64) {
        self.device.bytes = bytes;
        self.bytes.store(bytes, Ordering::Relaxed);
        self.knows_size = false;
        self.tell_size();
    }

    /// Tells the monitor that the size may be another one, if it does not know.
    fn tell_size(&mut self) {
        let Some(channel) = self.channel.as_ref().filter(|_| !self.knows_size) else { return };
        self.knows_size = true;
        if let Err(error) = send(channel, &config_changed(), None) {
            let (volume, client) = (&self.volume, &self.peer);
            tracing::warn!(%volume, %client, %error, "cannot tell a monitor of the new size");
        }
    }

    /// Disconnects once what is in flight is answered.
    pub(crate) fn close(&mut self, workers: &WorkerMail) {
        self.is_closing = true;
        self.pending = None;
        for ring in 0..self.rings.len() {
            self.stop_ring(workers, ring as u16);
        }
    }

    /// Handles what a worker has to say of a ring.
    pub(crate) fn notice(&mut self, workers: &WorkerMail, notice: &Notice) {
        match *notice {
            Notice::Started { key, result } => {
                let stage = &mut self.rings[usize::from(key.ring)].stage;
                match (result, *stage) {
                    (Ok(worker), RingStage::Starting { stops: true }) => {
                        *stage = RingStage::Ending;
                        workers.post(worker, WorkerMessage::Stop(key));
                    }
                    // It may have ended already, which comes in another order.
                    (Ok(worker), RingStage::Starting { stops: false }) => {
                        *stage = RingStage::Running { worker };
                        self.tell_all(workers, key.ring);
                        // QEMU does not ask again after a reconnection, and the volume may have
                        // grown meanwhile. It listens to this when the rings have started.
                        self.tell_size();
                    }
                    (Ok(_), _) => {}
                    (Err(error), _) => {
                        *stage = RingStage::Idle;
                        self.rings[usize::from(key.ring)].has_old_memory = false;
                        let (volume, ring) = (&self.volume, key.ring);
                        self.reports.note(|| {
                            tracing::warn!(%volume, ring, %error, "a ring is not served");
                        });
                        self.close(workers);
                    }
                }
            }
            Notice::MemoryChanged { key, version } => {
                let is_newest = version == self.memory.version();
                self.rings[usize::from(key.ring)].has_old_memory &= !is_newest;
            }
            Notice::Ended { key, base } => {
                let ring = &mut self.rings[usize::from(key.ring)];
                ring.has_old_memory = false;
                let was_asked = matches!(ring.stage, RingStage::Ending);
                (ring.stage, ring.base) = (RingStage::Idle, base);
                if !was_asked {
                    // The server stops, or the client was disconnected.
                    self.close(workers);
                }
            }
        }
        if let Err(error) = self.answer_pending() {
            let volume = &self.volume;
            tracing::warn!(%volume, %error, "a monitor is disconnected");
            self.close(workers);
        }
    }

    /// Answers a message that waited for rings.
    fn answer_pending(&mut self) -> Result<(), SessionError> {
        if !self.rings.iter().all(SessionRing::is_settled) {
            return Ok(());
        }
        let Some(PendingMessage { header, base_of }) = self.pending.take() else { return Ok(()) };
        let answer = match base_of {
            Some(ring) => {
                SessionAnswer::Bytes(ring_base(ring, self.rings[usize::from(ring)].base).to_vec())
            }
            None => SessionAnswer::Done,
        };
        self.answer(&header, answer)
    }

    fn handle(&mut self, workers: &WorkerMail, received: Received) -> Result<(), SessionError> {
        let Received { header, payload, files } = received;
        let message = MonitorMessage::parse(&header, &payload)?;
        let answer = match message {
            MonitorMessage::GetFeatures => SessionAnswer::Number(self.device.features()),
            MonitorMessage::SetFeatures(features) => {
                self.features = features;
                self.choose_write_back();
                SessionAnswer::Done
            }
            MonitorMessage::GetProtocolFeatures => SessionAnswer::Number(protocol::ALL),
            MonitorMessage::SetProtocolFeatures(features) => {
                self.protocol = features & protocol::ALL;
                SessionAnswer::Done
            }
            MonitorMessage::SetOwner | MonitorMessage::SetRingError => SessionAnswer::Done,
            MonitorMessage::GetRings => SessionAnswer::Number(u64::from(self.device.rings)),
            MonitorMessage::GetMemorySlots => SessionAnswer::Number(MEMORY_REGIONS_MAX as u64),
            MonitorMessage::SetChannel => {
                self.channel = Some(one_file(files)?);
                SessionAnswer::Done
            }
            MonitorMessage::GetConfig(part) => {
                self.knows_size = true;
                SessionAnswer::Bytes(self.properties(part))
            }
            MonitorMessage::SetConfig { part, bytes } => {
                if let (WRITE_BACK_AT, [value]) = (part.offset, &bytes[..]) {
                    self.wants_write_back = *value != 0;
                    self.choose_write_back();
                }
                SessionAnswer::Done
            }
            MonitorMessage::GetInflight(shape) => self.make_inflight(shape)?,
            MonitorMessage::SetInflight(shape) => {
                self.take_inflight(shape, one_file(files)?)?;
                SessionAnswer::Done
            }
            MonitorMessage::SetMemory(_)
            | MonitorMessage::AddMemory(_)
            | MonitorMessage::RemoveMemory(_) => {
                self.change_memory(workers, message, files)?;
                SessionAnswer::Later { base_of: None }
            }
            MonitorMessage::ResetDevice => {
                for ring in 0..self.rings.len() {
                    self.stop_ring(workers, ring as u16);
                }
                SessionAnswer::Later { base_of: None }
            }
            message => self.handle_ring(workers, message, files)?,
        };
        self.answer(&header, answer)?;
        // Rings may be settled already.
        self.answer_pending()
    }

    /// Handles a message about a ring.
    fn handle_ring(
        &mut self,
        workers: &WorkerMail,
        message: MonitorMessage,
        files: Vec<OwnedFd>,
    ) -> Result<SessionAnswer, SessionError> {
        match message {
            MonitorMessage::SetRingEntries { ring, entries } => self.ring(ring)?.entries = entries,
            MonitorMessage::SetRingAddresses { ring, addresses } => {
                self.ring(ring)?.addresses = Some(addresses);
            }
            MonitorMessage::SetRingBase { ring, base } => self.ring(ring)?.base = base,
            MonitorMessage::GetRingBase { ring } => {
                self.ring(ring)?.kick = None;
                self.stop_ring(workers, ring);
                return Ok(SessionAnswer::Later { base_of: Some(ring) });
            }
            MonitorMessage::SetRingKick { ring, has_file } => {
                if !has_file {
                    return Err(SessionError::File("a guest that is polled is not supported"));
                }
                self.ring(ring)?.kick = Some(counter(one_file(files)?)?);
                self.start_ring(workers, ring);
            }
            MonitorMessage::SetRingCall { ring, has_file } => {
                let call = match has_file {
                    true => Some(counter(one_file(files)?)?),
                    false => None,
                };
                self.ring(ring)?.call.clone_from(&call);
                self.tell(workers, ring, |key| WorkerMessage::SetCall(key, call));
            }
            MonitorMessage::EnableRing { ring, is_enabled } => {
                self.ring(ring)?.is_enabled = is_enabled;
                match is_enabled {
                    true => self.start_ring(workers, ring),
                    false => {
                        self.stop_ring(workers, ring);
                        return Ok(SessionAnswer::Later { base_of: None });
                    }
                }
            }
            _ => unreachable!("the other messages are handled before"),
        }
        Ok(SessionAnswer::Done)
    }

    fn ring(&mut self, ring: u16) -> Result<&mut SessionRing, SessionError> {
        let there_is_none = SessionError::File("the device has no such ring");
        self.rings.get_mut(usize::from(ring)).ok_or(there_is_none)
    }

    /// Answers a message.
    fn answer(&mut self, header: &MessageHead, answer: SessionAnswer) -> Result<(), SessionError> {
        let acknowledges = header.needs_reply() && self.protocol & protocol::REPLY_ACK != 0;
        let (bytes, file) = match answer {
            SessionAnswer::Done if acknowledges => (0_u64.to_le_bytes().to_vec(), None),
            SessionAnswer::Done => return Ok(()),
            SessionAnswer::Number(number) => (number.to_le_bytes().to_vec(), None),
            SessionAnswer::Bytes(bytes) => (bytes, None),
            SessionAnswer::WithFile(bytes, file) => (bytes, Some(file)),
            SessionAnswer::Later { base_of } => {
                self.pending = Some(PendingMessage { header: *header, base_of });
                return Ok(());
            }
        };
        let message = header.reply(&bytes);
        Ok(send(self.socket.fd(), &message, file.as_ref().map(AsFd::as_fd))?)
    }

    /// A guest that cannot flush gets write-through, whatever it wants.
    fn choose_write_back(&self) {
        let is_write_back = self.wants_write_back && self.features & feature::FLUSH != 0;
        self.is_write_back.store(is_write_back, Ordering::Relaxed);
    }

    /// A part of the device's properties. What is beyond them is zero.
    fn properties(&self, part: ConfigPart) -> Vec<u8> {
        let mut properties = self.device.properties();
        properties.is_write_back = u8::from(self.wants_write_back);
        let all: [u8; PROPERTIES_BYTES] = zerocopy::transmute!(properties);
        let mut bytes = part.as_bytes().to_vec();
        let wanted = part.offset as usize..part.offset as usize + part.bytes as usize;
        bytes.extend(wanted.map(|at| all.get(at).copied().unwrap_or(0)));
        bytes
    }

    /// Makes a region for requests in flight, with space for the longest rings. It cannot shrink,
    /// so that no monitor takes it away.
    fn make_inflight(&mut self, shape: InflightShape) -> Result<SessionAnswer, SessionError> {
        let bytes = region_bytes(shape.rings, RING_ENTRIES_MAX);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("forebay-vhost-inflight", flags).map_err(io::Error::from)?;
        rustix::fs::ftruncate(&file, bytes).map_err(io::Error::from)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(io::Error::from)?;
        let shape = InflightShape::new(bytes, shape.rings, shape.entries);
        self.inflight = Some((Arc::new(SharedMapping::fixed(&file, 0, bytes as usize)?), shape));
        Ok(SessionAnswer::WithFile(shape.as_bytes().to_vec(), file))
    }

    /// Takes the region of an earlier server.
    fn take_inflight(&mut self, shape: InflightShape, file: OwnedFd) -> Result<(), SessionError> {
        let entries = entries_within(shape.bytes, shape.rings, shape.entries);
        let needed = region_bytes(shape.rings, entries);
        let seals = fcntl_get_seals(&file).map_err(io::Error::from)?;
        let size = rustix::fs::fstat(&file).map_err(io::Error::from)?.st_size;
        if !seals.contains(SealFlags::SHRINK)
            || shape.bytes < needed
            || shape.file_offset.checked_add(needed).is_none_or(|end| end > size as u64)
        {
            return Err(SessionError::File("the memory for requests in flight may go away"));
        }
        let mapping = SharedMapping::fixed(&file, shape.file_offset, needed as usize)?;
        self.inflight = Some((Arc::new(mapping), shape));
        Ok(())
    }

    fn change_memory(
        &mut self,
        workers: &WorkerMail,
        message: MonitorMessage,
        files: Vec<OwnedFd>,
    ) -> Result<(), SessionError> {
        match message {
            MonitorMessage::SetMemory(regions) => {
                if regions.len() != files.len() {
                    return Err(SessionError::File("a piece of memory has no file"));
                }
                self.memory.clear();
                for (region, file) in regions.into_iter().zip(&files) {
                    self.memory.add(region, file)?;
                }
            }
            MonitorMessage::AddMemory(region) => self.memory.add(region, &one_file(files)?)?,
            MonitorMessage::RemoveMemory(region) if self.memory.remove(&region) => {}
            _ => return Err(SessionError::File("there is no such piece of memory")),
        }
        self.shared_memory = self.memory.changed();
        for ring in 0..self.rings.len() {
            self.rings[ring].has_old_memory = self.rings[ring].stage != RingStage::Idle;
            let memory = Arc::clone(&self.shared_memory);
            self.tell(workers, ring as u16, |key| WorkerMessage::SetMemory(key, memory));
        }
        Ok(())
    }

    /// Tells the worker of a ring what may have changed while it began to serve it.
    fn tell_all(&self, workers: &WorkerMail, ring: u16) {
        let call = self.rings[usize::from(ring)].call.clone();
        let memory = Arc::clone(&self.shared_memory);
        self.tell(workers, ring, |key| WorkerMessage::SetCall(key, call));
        self.tell(workers, ring, |key| WorkerMessage::SetMemory(key, memory));
    }

    /// Tells the worker of a ring something, if there is one.
    fn tell(
        &self,
        workers: &WorkerMail,
        ring: u16,
        message: impl FnOnce(RingKey) -> WorkerMessage,
    ) {
        if let RingStage::Running { worker } = self.rings[usize::from(ring)].stage {
            workers.post(worker, message(RingKey { session: self.id, ring }));
        }
    }

    /// Has a ring served, if all is known of it.
    fn start_ring(&mut self, workers: &WorkerMail, ring: u16) {
        let has_enable = self.features & PROTOCOL_FEATURES != 0;
        let key = RingKey { session: self.id, ring };
        let inflight = self.inflight.as_ref().map(|(region, shape)| {
            let entries = entries_within(shape.bytes, shape.rings, shape.entries);
            let offset = u64::from(ring) * ring_bytes(entries);
            InflightPart { region: Arc::clone(region), offset, entries }
        });
        let state = &mut self.rings[usize::from(ring)];
        let is_ready = state.entries > 0
            && state.stage == RingStage::Idle
            && (state.is_enabled || !has_enable);
        let (Some(addresses), Some(kick), true) = (state.addresses, state.kick.clone(), is_ready)
        else {
            return;
        };
        state.stage = RingStage::Starting { stops: false };
        workers.serve(Box::new(RingSetup {
            key,
            control: Arc::clone(&self.inbox),
            peer: self.peer.clone(),
            volume: Arc::clone(&self.volume),
            memory: Arc::clone(&self.shared_memory),
            entries: state.entries,
            addresses,
            base: state.base,
            has_event_index: self.features & feature::EVENT_INDEX != 0,
            inflight,
            kick,
            call: state.call.clone(),
            bytes: Arc::clone(&self.bytes),
            is_write_back: Arc::clone(&self.is_write_back),
            reports: Arc::clone(&self.reports),
            place: 0,
        }));
    }

    /// Stops a ring. Its end is reported later.
    fn stop_ring(&mut self, workers: &WorkerMail, ring: u16) {
        let stage = &mut self.rings[usize::from(ring)].stage;
        match *stage {
            RingStage::Idle | RingStage::Ending => {}
            RingStage::Starting { .. } => *stage = RingStage::Starting { stops: true },
            RingStage::Running { worker } => {
                *stage = RingStage::Ending;
                workers.post(worker, WorkerMessage::Stop(RingKey { session: self.id, ring }));
            }
        }
    }
}

/// The only file of a message.
fn one_file(files: Vec<OwnedFd>) -> Result<OwnedFd, SessionError> {
    let mut files = files.into_iter();
    match (files.next(), files.next()) {
        (Some(file), None) => Ok(file),
        _ => Err(SessionError::File("a message needs one descriptor")),
    }
}

/// An event counter of the monitor, whose use never waits.
fn counter(file: OwnedFd) -> Result<Arc<OwnedFd>, SessionError> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let target = std::fs::read_link(link)?;
    if target.to_str() != Some("anon_inode:[eventfd]") {
        return Err(SessionError::File("a descriptor is no event counter"));
    }
    let flags = rustix::fs::fcntl_getfl(&file).map_err(io::Error::from)?;
    let flags = flags | rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&file, flags).map_err(io::Error::from)?;
    Ok(Arc::new(file))
}
