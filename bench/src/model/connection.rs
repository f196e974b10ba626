//! One connection with many requests in flight, over simple or structured replies.
//!
//! It handles the protocol, not the content: it assembles the chunks of a reply and returns each
//! request with its complete answer. It never blocks on sending while the server may wait for it to
//! receive.

use super::plan::ModelRequest;
use super::stamp::SECTOR_BYTES;
use crate::wire::{
    self, Export, REPLY_BYTES, REPLY_MAGIC, RequestedFeatures, WireCommand, WireReply, WireRequest,
};
use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const STRUCTURED_MAGIC: u32 = 0x668e_33ef;
const STRUCTURED_BYTES: usize = 20;
/// Bytes per receive.
const RECEIVE_BYTES: usize = 256 << 10;
/// Timeout of the handshake.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(60);

/// Chunk types of structured replies.
mod chunk {
    pub const NONE: u16 = 0;
    pub const DATA: u16 = 1;
    pub const HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR_FIRST: u16 = 1 << 15;
}

/// A request, and the part of its answer received so far.
pub struct Exchange {
    /// The request.
    pub operation: ModelRequest,
    /// Its time in the oracle.
    pub begun: u64,
    /// Zero, or the error number.
    pub errno: u32,
    /// The data read.
    pub data: Vec<u8>,
    /// Received bytes of `data`.
    filled: usize,
    /// Block status extents: length in bytes, flags.
    pub extents: Vec<(u32, u32)>,
}

/// A connection in the transmission phase.
pub struct ModelConn {
    stream: UnixStream,
    /// The export as described by the server.
    pub export: Export,
    slots: Vec<Option<Exchange>>,
    output: Vec<u8>,
    /// Bytes of `output` already sent.
    sent: usize,
    input: Vec<u8>,
    /// Parsed bytes of `input`.
    taken: usize,
    /// Whether the server has disconnected.
    pub is_closed: bool,
}

impl ModelConn {
    /// Connects, for up to `depth` requests in flight.
    pub fn open(socket: &Path, export: &str, depth: usize, structured: bool) -> Result<Self> {
        let mut stream = UnixStream::connect(socket)
            .with_context(|| format!("connecting to {}", socket.display()))?;
        stream.set_read_timeout(Some(HANDSHAKE_PATIENCE))?;
        let requested = RequestedFeatures { block_sizes: true, structured, allocation: structured };
        let export = wire::open_export_with(&mut stream, export, requested)?;
        ensure!(export.structured == structured, "the server refuses structured replies");
        Ok(Self {
            stream,
            export,
            slots: (0..depth).map(|_| None).collect(),
            output: Vec::new(),
            sent: 0,
            input: Vec::new(),
            taken: 0,
            is_closed: false,
        })
    }

    /// A free slot, if any.
    pub fn free_slot(&self) -> Option<usize> {
        self.slots.iter().position(Option::is_none)
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// Encodes a request into a free slot. Returns its zeroed payload, to be filled.
    pub fn queue(&mut self, slot: usize, operation: ModelRequest, begun: u64) -> &mut [u8] {
        let len = operation.sectors.len() * SECTOR_BYTES;
        let request = WireRequest {
            command: operation.command,
            flags: operation.flags,
            cookie: slot as u64,
            offset: u64::from(operation.sectors.start) * SECTOR_BYTES as u64,
            len: len as u32,
        };
        self.output.extend(request.encode());
        let payload = self.output.len();
        if operation.command == WireCommand::Write {
            self.output.resize(payload + len, 0);
        }
        let data = if operation.command == WireCommand::Read { vec![0; len] } else { Vec::new() };
        let exchange =
            Exchange { operation, begun, errno: 0, data, filled: 0, extents: Vec::new() };
        assert!(self.slots[slot].replace(exchange).is_none(), "the slot was free");
        &mut self.output[payload..]
    }

    /// The poll events to wait for.
    pub fn poll_fd(&self) -> PollFd<'_> {
        let writes =
            if self.sent < self.output.len() { PollFlags::OUT } else { PollFlags::empty() };
        PollFd::new(&self.stream, PollFlags::IN | writes)
    }

    /// Sends as much as the socket accepts without blocking.
    ///
    /// # Errors
    /// If the socket fails for another reason than a disconnect.
    pub fn push(&mut self) -> Result<()> {
        while self.sent < self.output.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.stream, &self.output[self.sent..], flags) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    self.is_closed = true;
                    return Ok(());
                }
                Err(error) => return Err(error).context("sending"),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// Receives available data without blocking. Returns whether there was any.
    ///
    /// # Errors
    /// If the socket fails for another reason than a disconnect.
    pub fn pull(&mut self) -> Result<bool> {
        if self.taken * 2 >= self.input.len() {
            self.input.drain(..self.taken);
            self.taken = 0;
        }
        let filled = self.input.len();
        self.input.resize(filled + RECEIVE_BYTES, 0);
        let received = recv(&self.stream, &mut self.input[filled..], RecvFlags::DONTWAIT);
        let count = match received {
            Ok((count, _)) => count,
            Err(_) => 0,
        };
        self.input.truncate(filled + count);
        match received {
            Ok((0, _)) | Err(Errno::CONNRESET) => self.is_closed = true,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error).context("receiving"),
        }
        Ok(count > 0)
    }

    /// The next request with a complete answer.
    pub fn take_answer(&mut self) -> Result<Option<Exchange>> {
        loop {
            let arrived = &self.input[self.taken..];
            let Some(magic) = arrived.first_chunk() else { return Ok(None) };
            let took = match u32::from_be_bytes(*magic) {
                REPLY_MAGIC => take_simple(&mut self.slots, arrived, self.export.structured)?,
                STRUCTURED_MAGIC => take_chunk(&mut self.slots, arrived, self.export.allocation)?,
                magic => bail!("a reply begins with {magic:#x}: the stream is out of sync"),
            };
            let Some((used, slot, is_last)) = took else { return Ok(None) };
            self.taken += used;
            if is_last {
                let exchange = self.slots[slot].take().expect("it was found a moment ago");
                let is_whole = exchange.filled == exchange.data.len() || exchange.errno != 0;
                ensure!(
                    is_whole,
                    "only {} bytes were received for {:?}",
                    exchange.filled,
                    exchange.operation
                );
                return Ok(Some(exchange));
            }
        }
    }
}

/// The bytes consumed, the slot, and whether the answer is complete.
type Took = Option<(usize, usize, bool)>;

fn exchange_of(slots: &mut [Option<Exchange>], cookie: u64) -> Result<(usize, &mut Exchange)> {
    let slot = usize::try_from(cookie).unwrap_or(usize::MAX);
    let exchange = slots.get_mut(slot).and_then(Option::as_mut);
    Ok((slot, exchange.with_context(|| format!("a reply without a request, cookie {cookie:#x}"))?))
}

fn take_simple(slots: &mut [Option<Exchange>], arrived: &[u8], structured: bool) -> Result<Took> {
    let Some(header) = arrived.first_chunk::<REPLY_BYTES>() else { return Ok(None) };
    let reply = WireReply::decode(header)?;
    let (slot, exchange) = exchange_of(slots, reply.cookie)?;
    let is_read = exchange.operation.command == WireCommand::Read;
    ensure!(!(structured && is_read), "a read has a simple reply among structured ones");
    let payload = if reply.errno == 0 { exchange.data.len() } else { 0 };
    let Some(data) = arrived[REPLY_BYTES..].get(..payload) else { return Ok(None) };
    exchange.data[..payload].copy_from_slice(data);
    (exchange.filled, exchange.errno) = (payload, reply.errno);
    Ok(Some((REPLY_BYTES + payload, slot, true)))
}

fn take_chunk(
    slots: &mut [Option<Exchange>],
    arrived: &[u8],
    allocation: Option<u32>,
) -> Result<Took> {
    if arrived.len() < STRUCTURED_BYTES {
        return Ok(None);
    }
    let (header, rest) = arrived.split_at(STRUCTURED_BYTES);
    let mut number = BigEndianNumbers(&header[4..]);
    let (flags, kind) = (number.u16()?, number.u16()?);
    let (cookie, len) = (number.u64()?, number.u32()? as usize);
    let Some(payload) = rest.get(..len) else { return Ok(None) };
    let (slot, exchange) = exchange_of(slots, cookie)?;
    let mut payload = BigEndianNumbers(payload);
    match kind {
        chunk::NONE => ensure!(flags & 1 != 0 && len == 0, "an empty chunk that is not the last"),
        chunk::DATA => {
            let offset = payload.u64()?;
            exchange.part(offset, payload.0.len())?.copy_from_slice(payload.0);
        }
        chunk::HOLE => {
            let (offset, len) = (payload.u64()?, payload.u32()?);
            exchange.part(offset, len as usize)?.fill(0);
        }
        chunk::BLOCK_STATUS => {
            ensure!(Some(payload.u32()?) == allocation, "block status of another context");
            while !payload.0.is_empty() {
                exchange.extents.push((payload.u32()?, payload.u32()?));
            }
        }
        kind if kind >= chunk::ERROR_FIRST => exchange.errno = payload.u32()?,
        kind => bail!("a chunk of a reply has the unknown type {kind}"),
    }
    Ok(Some((STRUCTURED_BYTES + len, slot, flags & 1 != 0)))
}

impl Exchange {
    /// The part of the read data at `offset` of the export.
    fn part(&mut self, offset: u64, len: usize) -> Result<&mut [u8]> {
        let start = u64::from(self.operation.sectors.start) * SECTOR_BYTES as u64;
        self.filled += len;
        let place = usize::try_from(offset.wrapping_sub(start)).unwrap_or(usize::MAX);
        let part = place.checked_add(len).and_then(|end| self.data.get_mut(place..end));
        part.with_context(|| format!("{len} bytes at {offset} are outside of the read"))
    }
}

/// Big-endian numbers, one after the other.
struct BigEndianNumbers<'a>(&'a [u8]);

impl BigEndianNumbers<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (number, rest) =
            self.0.split_first_chunk().context("a chunk of a reply is too short")?;
        self.0 = rest;
        Ok(*number)
    }

    fn u16(&mut self) -> Result<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_be_bytes)
    }
}
