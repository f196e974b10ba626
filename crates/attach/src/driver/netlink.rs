//! The kernel's NBD client over generic netlink, as in `linux/nbd-netlink.h`.
//!
//! Messages are built and parsed here by hand: five commands with a handful of attributes. Numbers
//! are in the machine's byte order, and attributes begin at multiples of four bytes.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::io;
use std::os::fd::OwnedFd;

/// Types of messages.
const MESSAGE_ERROR: u16 = 2;
/// Flags of a message.
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
/// Bytes of the headers: of netlink, of generic netlink, of an attribute.
const HEADER_BYTES: usize = 16;
const GENERIC_BYTES: usize = 4;
const ATTRIBUTE_BYTES: usize = 4;

/// The family that names the other families.
const CONTROL_FAMILY: u16 = 0x10;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;

const NBD_FAMILY: &str = "nbd";
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;

const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONNECTION_TIMEOUT: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

/// A message under construction.
pub(super) struct NetlinkMessage(Vec<u8>);

impl NetlinkMessage {
    fn new(family: u16, command: u8) -> Self {
        let mut bytes = vec![0; HEADER_BYTES + GENERIC_BYTES];
        bytes[4..6].copy_from_slice(&family.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(REQUEST | ACKNOWLEDGE).to_ne_bytes());
        bytes[HEADER_BYTES] = command;
        // The version of the family.
        bytes[HEADER_BYTES + 1] = 1;
        Self(bytes)
    }

    fn put(&mut self, kind: u16, value: &[u8]) {
        let len = ATTRIBUTE_BYTES + value.len();
        self.0.extend_from_slice(&(len as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn put_number(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_ne_bytes());
    }

    fn put_text(&mut self, kind: u16, value: &str) {
        self.put(kind, &[value.as_bytes(), &[0]].concat());
    }

    /// One socket, in two levels of attributes.
    fn put_socket(&mut self, socket: i32) {
        let mut fd = Self(Vec::new());
        fd.put(SOCKET_FD, &socket.to_ne_bytes());
        let mut item = Self(Vec::new());
        item.put(SOCKET_ITEM, &fd.0);
        self.put(SOCKETS, &item.0);
    }

    /// The message with its length and number.
    fn finish(mut self, number: u32) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0[8..12].copy_from_slice(&number.to_ne_bytes());
        self.0
    }
}

/// What the kernel has to know of a new device.
pub(super) struct NewDevice<'a> {
    pub size_bytes: u64,
    pub block_bytes: u32,
    /// The transmission flags of the server.
    pub flags: u16,
    /// How long requests wait for another connection, in seconds.
    pub wait_seconds: u64,
    /// What identifies the device; the kernel shows it.
    pub identity: &'a str,
    pub socket: i32,
}

/// A change of a device. What is `None` stays.
#[derive(Default)]
pub(super) struct Change {
    /// After how many seconds requests are taken from their connection; 0 for those only whose
    /// connection has been replaced.
    pub timeout: Option<u64>,
    pub wait_seconds: Option<u64>,
    pub socket: Option<i32>,
    pub size_bytes: Option<u64>,
}

/// The kernel's NBD client. Each call waits for its answer.
pub(super) struct NbdNetlink {
    socket: OwnedFd,
    family: u16,
    number: u32,
}

impl NbdNetlink {
    /// # Errors
    /// `NotFound` if the kernel has no NBD client, or its module is not loaded.
    pub(super) fn open() -> io::Result<Self> {
        let protocol = Some(netlink::GENERIC);
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        let mut netlink = Self { socket, family: CONTROL_FAMILY, number: 0 };
        let mut message = NetlinkMessage::new(CONTROL_FAMILY, CONTROL_GET_FAMILY);
        message.put_text(CONTROL_FAMILY_NAME, NBD_FAMILY);
        let answer = netlink.request(message)?;
        let id = answer.as_deref().and_then(|answer| number_in(answer, CONTROL_FAMILY_ID));
        netlink.family = id.ok_or(io::ErrorKind::NotFound)? as u16;
        Ok(netlink)
    }

    /// Makes a device, and returns its number. The kernel makes further ones if all are in use.
    pub(super) fn connect(&mut self, device: &NewDevice<'_>) -> io::Result<u32> {
        let mut message = NetlinkMessage::new(self.family, CONNECT);
        message.put_number(SIZE_BYTES, device.size_bytes);
        message.put_number(BLOCK_SIZE_BYTES, u64::from(device.block_bytes));
        message.put_number(SERVER_FLAGS, u64::from(device.flags));
        message.put_number(DEAD_CONNECTION_TIMEOUT, device.wait_seconds);
        message.put_text(BACKEND_IDENTIFIER, device.identity);
        message.put_socket(device.socket);
        let answer = self.request(message)?;
        let index = answer.as_deref().and_then(|answer| number_in(answer, INDEX));
        index.ok_or_else(|| io::Error::other("the kernel does not say which device it has made"))
    }

    /// Changes a device.
    ///
    /// # Errors
    /// `InvalidInput` if the device is not connected any more, or another one.
    pub(super) fn reconfigure(
        &mut self,
        index: u32,
        identity: &str,
        change: &Change,
    ) -> io::Result<()> {
        let mut message = NetlinkMessage::new(self.family, RECONFIGURE);
        message.put(INDEX, &index.to_ne_bytes());
        message.put_text(BACKEND_IDENTIFIER, identity);
        if let Some(seconds) = change.timeout {
            message.put_number(TIMEOUT, seconds);
        }
        if let Some(seconds) = change.wait_seconds {
            message.put_number(DEAD_CONNECTION_TIMEOUT, seconds);
        }
        if let Some(socket) = change.socket {
            message.put_socket(socket);
        }
        if let Some(bytes) = change.size_bytes {
            message.put_number(SIZE_BYTES, bytes);
        }
        self.request(message).map(drop)
    }

    /// Disconnects a device: its requests fail, and it has no size any more.
    pub(super) fn disconnect(&mut self, index: u32) -> io::Result<()> {
        let mut message = NetlinkMessage::new(self.family, DISCONNECT);
        message.put(INDEX, &index.to_ne_bytes());
        self.request(message).map(drop)
    }

    /// Sends a message, and waits for its acknowledgement. Returns the attributes of the answer, if
    /// there was one before that.
    fn request(&mut self, message: NetlinkMessage) -> io::Result<Option<Vec<u8>>> {
        self.number = self.number.wrapping_add(1);
        rustix::net::send(&self.socket, &message.finish(self.number), SendFlags::empty())?;
        let mut answer = None;
        let mut bytes = [0; 8192];
        loop {
            let received = rustix::io::retry_on_intr(|| {
                rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty())
            });
            let (len, _) = received?;
            for (kind, number, payload) in messages(&bytes[..len]) {
                if number != self.number {
                    continue;
                }
                if kind != MESSAGE_ERROR {
                    answer = Some(payload.get(GENERIC_BYTES..).unwrap_or_default().to_vec());
                    continue;
                }
                let code =
                    payload.first_chunk().map_or(-libc::EIO, |code| i32::from_ne_bytes(*code));
                return match code {
                    0 => Ok(answer),
                    _ => Err(io::Error::from_raw_os_error(-code)),
                };
            }
        }
    }
}

/// The messages in a datagram: type, number and what follows the header.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let message = bytes.get(..len).filter(|_| len >= HEADER_BYTES)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        let kind = u16::from_ne_bytes([message[4], message[5]]);
        let number = u32::from_ne_bytes(*message[8..].first_chunk()?);
        Some((kind, number, &message[HEADER_BYTES..]))
    })
}

/// The value of a numeric attribute of 16 or 32 bits.
fn number_in(mut bytes: &[u8], wanted: u16) -> Option<u32> {
    loop {
        let (len, kind) = (bytes.first_chunk::<2>()?, bytes.get(2..)?.first_chunk::<2>()?);
        let (len, kind) = (usize::from(u16::from_ne_bytes(*len)), u16::from_ne_bytes(*kind));
        let value = bytes.get(ATTRIBUTE_BYTES..len)?;
        if kind == wanted {
            return match value {
                [a, b] => Some(u32::from(u16::from_ne_bytes([*a, *b]))),
                [a, b, c, d] => Some(u32::from_ne_bytes([*a, *b, *c, *d])),
                _ => None,
            };
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_headers_and_aligned_attributes() {
        let mut message = NetlinkMessage::new(0x1c, RECONFIGURE);
        message.put(INDEX, &7u32.to_ne_bytes());
        message.put_text(BACKEND_IDENTIFIER, "name");
        message.put_socket(5);
        let bytes = message.finish(9);
        let number = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap());
        assert_eq!((number(0) as usize, number(8)), (bytes.len(), 9));
        assert_eq!(&bytes[4..8], [0x1cu16.to_ne_bytes(), 5u16.to_ne_bytes()].concat());
        assert_eq!(&bytes[16..20], [RECONFIGURE, 1, 0, 0]);
        let pair = |len: u16, kind: u16| [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        assert_eq!(bytes[20..28], [pair(8, 1), vec![7, 0, 0, 0]].concat());
        assert_eq!(bytes[28..40], [pair(9, 10), b"name\0\0\0\0".to_vec()].concat());
        let fd = [pair(8, 1), vec![5, 0, 0, 0]].concat();
        assert_eq!(bytes[40..], [pair(16, 7), pair(12, 1), fd].concat());
    }

    #[test]
    fn answers_are_found_and_broken_ones_are_none() {
        let mut message = NetlinkMessage::new(0x1c, CONNECT);
        message.put_text(BACKEND_IDENTIFIER, "x");
        message.put(INDEX, &17u32.to_ne_bytes());
        let mut bytes = message.finish(3);
        bytes.extend(NetlinkMessage::new(MESSAGE_ERROR, 0).finish(3));
        let found: Vec<_> = messages(&bytes).collect();
        assert_eq!(found.len(), 2);
        let (kind, number, payload) = found[0];
        assert_eq!((kind, number), (0x1c, 3));
        assert_eq!(number_in(&payload[GENERIC_BYTES..], INDEX), Some(17));
        assert_eq!(number_in(&payload[GENERIC_BYTES..], TIMEOUT), None);
        assert_eq!(found[1].0, MESSAGE_ERROR);
        for len in 0..bytes.len() {
            assert!(messages(&bytes[..len]).count() < 2);
        }
        // A length below that of the header.
        assert_eq!(messages(&[4, 0, 0, 0]).count(), 0);
        assert_eq!(number_in(&[0; 8], INDEX), None);
        assert_eq!(number_in(&[2, 0, 1, 0, 0, 0, 0, 0], INDEX), None);
    }
}
