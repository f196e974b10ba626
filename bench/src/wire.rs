//! The part of the NBD protocol that these programs need: the fixed newstyle handshake with block
//! sizes, optional structured replies and `base:allocation`; requests and simple replies.
//!
//! Both sides of the handshake are here, for the bare server and the batching client. All integers
//! are big-endian.

use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};

const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic of a simple reply.
pub const REPLY_MAGIC: u32 = 0x6744_6698;

const HANDSHAKE_FLAGS: u16 = 0b11; // fixed newstyle, no zeroes
const OPTION_EXPORT_NAME: u32 = 1;
const OPTION_ABORT: u32 = 2;
const OPTION_GO: u32 = 7;
const OPTION_STRUCTURED_REPLY: u32 = 8;
const OPTION_SET_META_CONTEXT: u32 = 10;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_META_CONTEXT: u32 = 4;
const REPLY_ERROR_UNSUPPORTED: u32 = 0x8000_0001;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

/// The metadata context for allocation.
const BASE_ALLOCATION: &[u8] = b"base:allocation";

/// Transmission flags.
pub mod export_flag {
    /// A write with [`FUA`](super::request_flag::FUA) is on stable storage when it is answered.
    pub const FUA: u16 = 1 << 3;
    /// TRIM is supported.
    pub const TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is supported.
    pub const WRITE_ZEROES: u16 = 1 << 6;
    /// A FLUSH on one connection covers what was answered on all.
    pub const MULTI_CONN: u16 = 1 << 8;
    /// CACHE is supported.
    pub const CACHE: u16 = 1 << 10;
    /// FAST_ZERO is supported.
    pub const FAST_ZERO: u16 = 1 << 11;
}

/// Flags of a request.
pub mod request_flag {
    /// Answer when it is on stable storage.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes are to be allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Block status: one extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail at once with ENOTSUP if zeroes would be as slow as a write.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// The longest option that the bare server reads, in bytes; a name is at most 4096.
const OPTION_BYTES_MAX: u32 = 8192;

/// Flags of the bare server's export: flags are valid, flush is supported, and several connections
/// see the same data.
const EXPORT_FLAGS: u16 = 1 | 1 << 2 | 1 << 8;

/// Length of a request without its payload, in bytes.
pub const REQUEST_BYTES: usize = 28;
/// Length of a simple reply without its payload, in bytes.
pub const REPLY_BYTES: usize = 16;

/// Commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireCommand {
    Read,
    /// Write; the payload follows.
    Write,
    /// Disconnect; there is no reply.
    Disconnect,
    /// Answer when all answered writes are on stable storage.
    Flush,
    /// Discard this range.
    Trim,
    /// Prefetch this range; no data is sent.
    Cache,
    /// Fill this range with zeroes.
    WriteZeroes,
    /// Report the allocation.
    BlockStatus,
    /// Anything else, by its number.
    Other(u16),
}

impl WireCommand {
    const fn number(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Disconnect => 2,
            Self::Flush => 3,
            Self::Trim => 4,
            Self::Cache => 5,
            Self::WriteZeroes => 6,
            Self::BlockStatus => 7,
            Self::Other(number) => number,
        }
    }

    const fn from_number(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            other => Self::Other(other),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireRequest {
    pub command: WireCommand,
    /// Flags from [`request_flag`].
    pub flags: u16,
    /// Returned in the reply.
    pub cookie: u64,
    /// First byte of the export.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

impl WireRequest {
    /// Encodes the request.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.number().to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Decodes a request.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self> {
        let magic = u32::from_be_bytes(part(bytes, 0));
        ensure!(
            magic == REQUEST_MAGIC,
            "a request began with {magic:#x}: the stream is out of sync"
        );
        Ok(Self {
            command: WireCommand::from_number(u16::from_be_bytes(part(bytes, 6))),
            flags: u16::from_be_bytes(part(bytes, 4)),
            cookie: u64::from_be_bytes(part(bytes, 8)),
            offset: u64::from_be_bytes(part(bytes, 16)),
            len: u32::from_be_bytes(part(bytes, 24)),
        })
    }
}

/// One simple reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireReply {
    /// Zero, or the error number.
    pub errno: u32,
    /// The cookie of the request.
    pub cookie: u64,
}

impl WireReply {
    /// Encodes the reply.
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        let mut bytes = [0; REPLY_BYTES];
        bytes[0..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.errno.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes
    }

    /// Decodes a reply.
    pub fn decode(bytes: &[u8; REPLY_BYTES]) -> Result<Self> {
        let magic = u32::from_be_bytes(part(bytes, 0));
        ensure!(magic == REPLY_MAGIC, "a reply began with {magic:#x}: the stream is out of sync");
        Ok(Self {
            errno: u32::from_be_bytes(part(bytes, 4)),
            cookie: u64::from_be_bytes(part(bytes, 8)),
        })
    }
}

/// `N` bytes at `at`. The callers' offsets are constants inside arrays of fixed length.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Optional features that a client requests. A server may refuse each of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestedFeatures {
    /// The sizes of its blocks.
    pub block_sizes: bool,
    /// Structured replies.
    pub structured: bool,
    /// Answers to block status. Needs structured replies.
    pub allocation: bool,
}

/// The server's description of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Size in bytes.
    pub size_bytes: u64,
    /// The transmission flags of the protocol, some of which are in [`export_flag`].
    pub flags: u16,
    /// Alignment of offsets and lengths, in bytes; 1 if not given.
    pub block_min: u32,
    /// Whether replies are structured.
    pub structured: bool,
    /// The id of the context `base:allocation`, if block status is supported.
    pub allocation: Option<u32>,
}

/// The client's side of the handshake: opens `name` and leaves the stream ready for requests.
pub fn open_export(stream: &mut (impl Read + Write), name: &str) -> Result<Export> {
    open_export_with(stream, name, RequestedFeatures::default())
}

/// Like [`open_export`], with optional features.
pub fn open_export_with(
    stream: &mut (impl Read + Write),
    name: &str,
    requested: RequestedFeatures,
) -> Result<Export> {
    let greeting = read_u64(stream).context("the server closed before its greeting")?;
    ensure!(greeting == GREETING_MAGIC, "not an NBD server: it greeted with {greeting:#x}");
    let second = read_u64(stream)?;
    ensure!(second == OPTION_MAGIC, "an oldstyle NBD server, which is not supported");
    let flags = u32::from(read_u16(stream)? & HANDSHAKE_FLAGS);
    stream.write_all(&flags.to_be_bytes())?;

    let mut structured = false;
    if requested.structured {
        write_option(stream, OPTION_STRUCTURED_REPLY, &[])?;
        structured = read_option_reply(stream)?.kind == REPLY_ACK;
    }
    let mut allocation = None;
    if structured && requested.allocation {
        allocation = select_allocation(stream, name)?;
    }
    let mut data = sized(name.as_bytes())?;
    if requested.block_sizes {
        data.extend(1u16.to_be_bytes());
        data.extend(INFO_BLOCK_SIZE.to_be_bytes());
    } else {
        data.extend(0u16.to_be_bytes());
    }
    write_option(stream, OPTION_GO, &data)?;
    read_go_replies(stream, name, structured, allocation)
}

/// The server's id of `base:allocation`, if supported.
fn select_allocation(stream: &mut (impl Read + Write), name: &str) -> Result<Option<u32>> {
    let mut data = sized(name.as_bytes())?;
    data.extend(1u32.to_be_bytes());
    data.extend(sized(BASE_ALLOCATION)?);
    write_option(stream, OPTION_SET_META_CONTEXT, &data)?;
    let mut number = None;
    loop {
        let reply = read_option_reply(stream)?;
        match reply.kind {
            REPLY_META_CONTEXT if reply.data.len() >= 4 && reply.data[4..] == *BASE_ALLOCATION => {
                number = Some(u32::from_be_bytes(part(&reply.data, 0)));
            }
            REPLY_META_CONTEXT => {}
            REPLY_ACK => return Ok(number),
            _ => return Ok(None),
        }
    }
}

fn read_go_replies(
    stream: &mut impl Read,
    name: &str,
    structured: bool,
    allocation: Option<u32>,
) -> Result<Export> {
    let (mut export, mut block_min) = (None, 1);
    loop {
        let WireOptionReply { kind, data } = read_option_reply(stream)?;
        let info = data.first_chunk().map(|info| u16::from_be_bytes(*info));
        match (kind, info) {
            (REPLY_ACK, _) => {
                let (size_bytes, flags) =
                    export.context("the server opened the export without its size")?;
                return Ok(Export { size_bytes, flags, block_min, structured, allocation });
            }
            (REPLY_INFO, Some(INFO_EXPORT)) if data.len() == 12 => {
                let size_bytes = u64::from_be_bytes(part(&data, 2));
                export = Some((size_bytes, u16::from_be_bytes(part(&data, 10))));
            }
            (REPLY_INFO, Some(INFO_BLOCK_SIZE)) if data.len() == 14 => {
                block_min = u32::from_be_bytes(part(&data, 2));
            }
            (REPLY_INFO, _) => {}
            (error, _) => bail!(
                "the server refused export {name:?} with {error:#x} ({}): check --export",
                String::from_utf8_lossy(&data)
            ),
        }
    }
}

struct WireOptionReply {
    kind: u32,
    data: Vec<u8>,
}

fn read_option_reply(stream: &mut impl Read) -> Result<WireOptionReply> {
    let magic = read_u64(stream)?;
    ensure!(magic == OPTION_REPLY_MAGIC, "an option reply began with {magic:#x}");
    let _option = read_u32(stream)?;
    let kind = read_u32(stream)?;
    let len = read_u32(stream)?;
    ensure!(len <= OPTION_BYTES_MAX, "an option reply of {len} bytes is too long");
    let mut data = vec![0; len as usize];
    stream.read_exact(&mut data)?;
    Ok(WireOptionReply { kind, data })
}

fn write_option(stream: &mut impl Write, option: u32, data: &[u8]) -> Result<()> {
    let mut bytes = Vec::with_capacity(16 + data.len());
    bytes.extend(OPTION_MAGIC.to_be_bytes());
    bytes.extend(option.to_be_bytes());
    bytes.extend(u32::try_from(data.len())?.to_be_bytes());
    bytes.extend(data);
    Ok(stream.write_all(&bytes)?)
}

/// `text` with its length before it.
fn sized(text: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = u32::try_from(text.len())?.to_be_bytes().to_vec();
    bytes.extend(text);
    Ok(bytes)
}

/// The server's side of the handshake, for any export name. Returns whether the client enters
/// transmission.
pub fn accept_client(stream: &mut (impl Read + Write), size_bytes: u64) -> Result<bool> {
    let mut greeting = Vec::with_capacity(18);
    greeting.extend(GREETING_MAGIC.to_be_bytes());
    greeting.extend(OPTION_MAGIC.to_be_bytes());
    greeting.extend(HANDSHAKE_FLAGS.to_be_bytes());
    stream.write_all(&greeting)?;
    let no_zeroes = read_u32(stream)? & 2 != 0;
    loop {
        let magic = read_u64(stream)?;
        ensure!(magic == OPTION_MAGIC, "an option began with {magic:#x}");
        let option = read_u32(stream)?;
        let len = read_u32(stream)?;
        ensure!(len <= OPTION_BYTES_MAX, "an option of {len} bytes is too long");
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data)?;
        match option {
            OPTION_EXPORT_NAME => {
                let mut answer = export_answer(size_bytes);
                answer.resize(if no_zeroes { 10 } else { 134 }, 0);
                stream.write_all(&answer)?;
                return Ok(true);
            }
            OPTION_GO => {
                let mut info = INFO_EXPORT.to_be_bytes().to_vec();
                info.extend(export_answer(size_bytes));
                write_option_reply(stream, option, REPLY_INFO, &info)?;
                write_option_reply(stream, option, REPLY_ACK, &[])?;
                return Ok(true);
            }
            OPTION_ABORT => {
                write_option_reply(stream, option, REPLY_ACK, &[])?;
                return Ok(false);
            }
            _ => write_option_reply(stream, option, REPLY_ERROR_UNSUPPORTED, &[])?,
        }
    }
}

fn export_answer(size_bytes: u64) -> Vec<u8> {
    let mut answer = size_bytes.to_be_bytes().to_vec();
    answer.extend(EXPORT_FLAGS.to_be_bytes());
    answer
}

fn write_option_reply(stream: &mut impl Write, option: u32, kind: u32, data: &[u8]) -> Result<()> {
    let mut reply = Vec::with_capacity(20 + data.len());
    reply.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    reply.extend(option.to_be_bytes());
    reply.extend(kind.to_be_bytes());
    reply.extend(u32::try_from(data.len())?.to_be_bytes());
    reply.extend(data);
    Ok(stream.write_all(&reply)?)
}

fn read_u16(stream: &mut impl Read) -> Result<u16> {
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes)?;
    Ok(u16::from_be_bytes(bytes))
}

fn read_u32(stream: &mut impl Read) -> Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

fn read_u64(stream: &mut impl Read) -> Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn requests_and_replies_come_back_as_they_went() {
        for command in
            [WireCommand::Read, WireCommand::Write, WireCommand::Flush, WireCommand::Other(9)]
        {
            let (cookie, offset) = (u64::MAX - 3, 1 << 40);
            let request = WireRequest { command, flags: 0x8001, cookie, offset, len: 4096 };
            assert_eq!(WireRequest::decode(&request.encode()).unwrap(), request);
        }
        let reply = WireReply { errno: 28, cookie: 77 };
        assert_eq!(WireReply::decode(&reply.encode()).unwrap(), reply);
    }

    #[test]
    fn a_stream_out_of_step_is_noticed() {
        let mut bytes = WireReply { errno: 0, cookie: 1 }.encode();
        bytes[0] ^= 1;
        assert!(WireReply::decode(&bytes).is_err());
        assert!(WireRequest::decode(&[0; REQUEST_BYTES]).is_err());
    }

    #[test]
    fn the_two_ends_agree_on_the_size() {
        let (mut client, mut server) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || accept_client(&mut server, 1 << 30).unwrap());
        let requested = RequestedFeatures { block_sizes: true, structured: true, allocation: true };
        let export = open_export_with(&mut client, "any name", requested).unwrap();
        // The bare server supports none of them.
        assert_eq!((export.block_min, export.structured, export.allocation), (1, false, None));
        assert_eq!((export.size_bytes, export.flags), (1 << 30, EXPORT_FLAGS));
        assert!(thread.join().unwrap());
    }

    #[test]
    fn a_refusal_names_the_export() {
        let (mut client, mut server) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let mut hello = GREETING_MAGIC.to_be_bytes().to_vec();
            hello.extend(OPTION_MAGIC.to_be_bytes());
            hello.extend(3u16.to_be_bytes());
            server.write_all(&hello).unwrap();
            let mut request = [0; 4 + 16 + 6 + 3];
            server.read_exact(&mut request).unwrap();
            write_option_reply(&mut server, OPTION_GO, 0x8000_0006, b"unknown").unwrap();
        });
        let error = open_export(&mut client, "two").unwrap_err().to_string();
        assert!(error.contains("\"two\"") && error.contains("unknown"), "{error}");
        thread.join().unwrap();
    }
}
