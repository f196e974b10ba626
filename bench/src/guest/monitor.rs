//! The messages of a monitor.

use super::{GUEST_BASE, GuestRam, GuestRing};
use anyhow::{Context, Result, ensure};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A silent server is an error after this time.
const PATIENCE: Duration = Duration::from_secs(20);

/// Features of the device: virtio 1, and those of the protocol.
const VERSION_1: u64 = 1 << 32;
const PROTOCOL: u64 = 1 << 30;
const EVENT_INDEX: u64 = 1 << 29;
const INDIRECT: u64 = 1 << 28;
const FLUSH: u64 = 1 << 9;
/// Features of the protocol: several rings, acknowledgements, properties, requests in flight.
const MQ: u64 = 1;
const REPLY_ACK: u64 = 1 << 3;
/// The server has a channel for messages.
const CHANNEL: u64 = 1 << 5;
const CONFIG: u64 = 1 << 9;
const INFLIGHT: u64 = 1 << 12;

const NEED_REPLY: u32 = 1 << 3;

/// A connection to the socket of a volume.
pub struct Monitor {
    socket: OwnedFd,
    /// The memory of requests in flight, which outlives a server.
    inflight: Option<(OwnedFd, Vec<u8>)>,
    has_inflight: bool,
    channel: Option<OwnedFd>,
}

impl Monitor {
    /// Connects, and chooses features. `inflight` is what an earlier connection has kept.
    ///
    /// # Errors
    /// The server does not answer, or lacks a feature.
    pub fn connect(path: &Path, inflight: Option<(OwnedFd, Vec<u8>)>) -> Result<Self> {
        let socket = Self::open(path)?;
        let mut monitor = Self { socket, inflight, has_inflight: false, channel: None };
        monitor.send(3, &[], &[])?;
        let wanted = VERSION_1 | PROTOCOL | EVENT_INDEX | INDIRECT | FLUSH;
        let features = monitor.ask_number(1)?;
        ensure!(features & wanted == wanted, "the features {features:#x} are too few");
        monitor.send(2, &wanted.to_le_bytes(), &[])?;
        let needed = MQ | REPLY_ACK | CONFIG;
        let offered = monitor.ask_number(15)?;
        ensure!(offered & needed == needed, "the protocol {offered:#x} is too old");
        // The storage daemon of QEMU keeps no record of requests in flight.
        monitor.has_inflight = offered & INFLIGHT != 0;
        let chosen = offered & (needed | INFLIGHT | CHANNEL);
        monitor.send(16, &chosen.to_le_bytes(), &[])?;
        if chosen & CHANNEL != 0 {
            let (ours, other) = rustix::net::socketpair(
                AddressFamily::UNIX,
                SocketType::STREAM,
                SocketFlags::CLOEXEC,
                None,
            )?;
            monitor.send(21, &[], &[other.as_fd()])?;
            let timeout = rustix::net::sockopt::Timeout::Recv;
            rustix::net::sockopt::set_socket_timeout(&ours, timeout, Some(PATIENCE))?;
            monitor.channel = Some(ours);
        }
        ensure!(monitor.ask_number(17)? >= 2, "there are several rings");
        Ok(monitor)
    }

    /// Connects without sending anything. Waits until a server listens.
    ///
    /// # Errors
    /// No server listens within 20 seconds.
    pub fn open(path: &Path) -> Result<OwnedFd> {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        let end = Instant::now() + PATIENCE;
        while let Err(error) = rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
            let shown = path.display();
            ensure!(Instant::now() < end, "connecting to {shown}: {error}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let timeout = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&socket, timeout, Some(PATIENCE))?;
        Ok(socket)
    }

    /// The size of the device in bytes.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn size_bytes(&self) -> Result<u64> {
        let mut payload = [0; 20];
        payload[4] = 8;
        let (reply, _) = self.ask(24, &payload)?;
        let sectors = reply.get(12..20).context("the properties are too short")?;
        Ok(u64::from_le_bytes(sectors.try_into()?) * 512)
    }

    /// Waits until the server says that the properties of the device have changed.
    ///
    /// # Errors
    /// It says nothing, or something else.
    pub fn wait_for_change(&self) -> Result<()> {
        let channel = self.channel.as_ref().context("the server has no channel")?;
        let mut message = [0; 12];
        let received = rustix::net::recv(channel, &mut message, RecvFlags::WAITALL)?;
        ensure!(
            received.0 == 12 && message == [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
            "{message:?} is no change of the device"
        );
        Ok(())
    }

    /// Shares the memory, and starts these rings. Waits until they have been accepted.
    ///
    /// # Errors
    /// The server disconnects.
    pub fn start(&mut self, ram: &Arc<GuestRam>, rings: &[&GuestRing]) -> Result<()> {
        let mut table = vec![1, 0, 0, 0, 0, 0, 0, 0];
        for number in [GUEST_BASE, ram.bytes() as u64, ram.at(0, 0) as u64, 0] {
            table.extend(number.to_le_bytes());
        }
        self.send(5, &table, &[ram.file.as_fd()])?;
        if self.has_inflight && self.inflight.is_none() {
            // Like QEMU 10.0, whose driver may make rings longer than the monitor has asked for.
            let entries = rings.first().map_or(0, |ring| ring.entries()) / 2;
            let mut shape = vec![0; 24];
            shape[16..18].copy_from_slice(&(rings.len() as u16).to_le_bytes());
            shape[18..20].copy_from_slice(&entries.to_le_bytes());
            let (shape, files) = self.ask(31, &shape)?;
            let file = files.into_iter().next().context("the region comes as a file")?;
            self.inflight = Some((file, shape));
        }
        if let Some((file, shape)) = &self.inflight {
            self.send(32, shape, &[file.as_fd()])?;
        }
        for (number, ring) in rings.iter().enumerate() {
            let number = number as u32;
            self.send_pair(8, number, u32::from(ring.entries()))?;
            self.send_pair(10, number, u32::from(ring.base()))?;
            let mut addresses = [number.to_le_bytes(), [0; 4]].concat();
            for address in ring.addresses() {
                addresses.extend(address.to_le_bytes());
            }
            addresses.extend([0; 8]);
            self.send(9, &addresses, &[])?;
            let name = u64::from(number).to_le_bytes();
            self.send(13, &name, &[ring.call.as_fd()])?;
            self.send(12, &name, &[ring.kick.as_fd()])?;
            self.acknowledged(18, &[number.to_le_bytes(), 1_u32.to_le_bytes()].concat())?;
        }
        Ok(())
    }

    /// Stops a ring, and returns the index of its next request.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn stop(&self, ring: u32) -> Result<u16> {
        let payload = [ring.to_le_bytes(), [0; 4]].concat();
        let (reply, _) = self.ask(11, &payload)?;
        Ok(u16::from_le_bytes(reply.get(4..6).context("the base is too short")?.try_into()?))
    }

    /// Disconnects, and keeps what is needed to connect again.
    pub fn leave(self) -> Option<(OwnedFd, Vec<u8>)> {
        self.inflight
    }

    /// Whether the server has closed the connection within the time that it may take.
    pub fn is_disconnected(&self) -> bool {
        let mut byte = [0];
        let received = rustix::net::recv(&self.socket, &mut byte, RecvFlags::empty());
        matches!(received, Ok((0, _)) | Err(rustix::io::Errno::CONNRESET))
    }

    fn send_pair(&self, request: u32, first: u32, second: u32) -> Result<()> {
        self.send(request, &[first.to_le_bytes(), second.to_le_bytes()].concat(), &[])
    }

    /// Sends a message, and waits until it has been handled.
    ///
    /// # Errors
    /// The server refuses it, or disconnects.
    pub fn acknowledged(&self, request: u32, payload: &[u8]) -> Result<()> {
        self.send_raw(request, 1 | NEED_REPLY, payload, &[])?;
        let (reply, _) = self.receive(request)?;
        ensure!(reply == [0; 8], "message {request} was refused");
        Ok(())
    }

    fn ask_number(&self, request: u32) -> Result<u64> {
        let (reply, _) = self.ask(request, &[])?;
        Ok(u64::from_le_bytes(reply.as_slice().try_into().context("a number is eight bytes")?))
    }

    fn ask(&self, request: u32, payload: &[u8]) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        self.send(request, payload, &[])?;
        self.receive(request)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The server has disconnected.
    pub fn send(&self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
        self.send_raw(request, 1, payload, files)
    }

    /// Sends a message with any flags.
    ///
    /// # Errors
    /// The server has disconnected.
    pub fn send_raw(
        &self,
        request: u32,
        flags: u32,
        payload: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let mut message = Vec::new();
        for number in [request, flags, payload.len() as u32] {
            message.extend(number.to_le_bytes());
        }
        message.extend(payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ensure!(control.push(SendAncillaryMessage::ScmRights(files)), "too many descriptors");
        }
        sendmsg(&self.socket, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    fn receive(&self, request: u32) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        let mut files = Vec::new();
        let head = self.receive_bytes(12, &mut files)?;
        let is_reply = word(&head, 0) == request && word(&head, 4) & 7 == 5;
        ensure!(is_reply, "{head:?} is no reply to {request}");
        let payload = self.receive_bytes(word(&head, 8) as usize, &mut files)?;
        Ok((payload, files))
    }

    fn receive_bytes(&self, len: usize, files: &mut Vec<OwnedFd>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = {
                let mut slices = [IoSliceMut::new(&mut bytes[done..])];
                recvmsg(&self.socket, &mut slices, &mut control, RecvFlags::empty())
            };
            let received = received.context("waiting for the server's reply")?;
            ensure!(received.bytes > 0, "the server has disconnected");
            done += received.bytes;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    files.extend(received);
                }
            }
        }
        Ok(bytes)
    }
}

fn word(head: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}
