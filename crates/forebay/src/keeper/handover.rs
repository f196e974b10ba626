//! The queue of sockets from one server to the next.
//!
//! A pair of connected sockets: a server that is being replaced sends its listeners and the
//! connections that have left it into one end, as descriptors, and exits. The kernel keeps them in
//! the queue as long as the other end is open, which the keeper or the service manager holds. The
//! next server receives them; whatever a server has received ends with it. A server that does not
//! get that far leaves them to the following one.
//!
//! A message has up to [`DESCRIPTORS_MAX`] sockets, and before them a memory file with what each
//! is. Both are checked as foreign input: a message that cannot be read is dropped, and its sockets
//! are closed.

use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, sendmsg, socketpair,
};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The version of the messages. A server hands over only to a program that knows it.
pub(crate) const VERSION: u32 = 1;
/// How long sockets wait for a server that takes them. Their clients wait as long.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The most sockets of a message. The kernel takes 253 descriptors.
const DESCRIPTORS_MAX: usize = 252;
/// The most bytes of descriptions in one hand-over: what clients have sent and no server has read.
const BYTES_MAX: usize = 64 << 20;
/// The most bytes of the description of one socket.
const ITEM_BYTES_MAX: usize = 2 << 20;
const MAGIC: [u8; 8] = *b"FBSOCKET";
/// Magic, version, and the time of the hand-over.
const HEADER_BYTES: usize = 20;

/// How long sockets wait for a server. A test may shorten it.
pub(super) fn wait_max() -> Duration {
    #[cfg(debug_assertions)]
    if let Some(seconds) =
        std::env::var("FOREBAY_HANDOVER_SECONDS").ok().and_then(|it| it.parse().ok())
    {
        return Duration::from_secs(seconds);
    }
    WAIT_MAX
}

/// What identifies a server, and continues with its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerSerial {
    /// Identifies it among those that have served.
    pub instance: u64,
    /// The number of its clients so far.
    pub clients_joined: u64,
}

/// What a socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// A connection to which nothing has been sent.
    Accepted,
    /// A connection with the record of its session.
    Session(Vec<u8>),
    /// A listener, as it was configured, and the device and number of its socket file.
    Listener { configured: String, file: Option<(u64, u64)> },
}

/// The sockets of one message.
#[derive(Debug, Default)]
pub(crate) struct Bundle {
    pub serial: ServerSerial,
    /// The time since the hand-over.
    pub since: Duration,
    pub sockets: Vec<(OwnedFd, Handed)>,
}

/// Makes a queue: the end that receives, and the one that sends.
pub(super) fn queue() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends sockets, and returns how many were sent. Those that do not fit are left out.
pub(super) fn send(
    sender: BorrowedFd<'_>,
    serial: ServerSerial,
    sockets: &[(OwnedFd, Handed)],
) -> io::Result<usize> {
    let mut left = BYTES_MAX;
    let described = sockets.iter().filter_map(|(socket, handed)| {
        let bytes = handed.encoded();
        left = left.checked_sub(bytes.len()).filter(|_| bytes.len() <= ITEM_BYTES_MAX)?;
        Some((socket.as_fd(), bytes))
    });
    let described: Vec<_> = described.collect();
    for message in described.chunks(DESCRIPTORS_MAX) {
        let mut file =
            File::from(rustix::fs::memfd_create("forebay-handover", MemfdFlags::CLOEXEC)?);
        let mut content = Vec::new();
        content.extend_from_slice(&serial.instance.to_le_bytes());
        content.extend_from_slice(&serial.clients_joined.to_le_bytes());
        for (_, bytes) in message {
            content.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            content.extend_from_slice(bytes);
        }
        file.write_all(&content)?;
        let file = OwnedFd::from(file);
        let passed = message.iter().map(|(socket, _)| *socket);
        let passed: Vec<BorrowedFd<'_>> = std::iter::once(file.as_fd()).chain(passed).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&passed)), "the space is for 253");
        let header = header(now_ns());
        sendmsg(sender, &[IoSlice::new(&header)], &mut control, SendFlags::NOSIGNAL)?;
    }
    Ok(described.len())
}

/// Receives the next message; `None` if there is none. One that cannot be read has no sockets.
pub(super) fn receive(receiver: BorrowedFd<'_>) -> Option<Bundle> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut header = [0; HEADER_BYTES];
    let mut bytes = [IoSliceMut::new(&mut header)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(receiver, &mut bytes, &mut control, flags).ok()?.bytes;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    if received == 0 && descriptors.is_empty() {
        // The other end is closed, and the queue is empty.
        return None;
    }
    let bundle = handed_ns(&header[..received]).and_then(|handed_ns| {
        let since = Duration::from_nanos(now_ns().saturating_sub(handed_ns));
        let mut descriptors = descriptors.into_iter();
        let (serial, handed) = described(descriptors.next()?)?;
        Some(Bundle { serial, since, sockets: descriptors.zip(handed).collect() })
    });
    Some(bundle.unwrap_or_default())
}

/// Closes all sockets in the queue, and returns how many messages it had.
pub(super) fn discard(receiver: BorrowedFd<'_>) -> usize {
    std::iter::from_fn(|| receive(receiver)).count()
}

/// How long the first message of the queue has waited; `None` if there is none.
pub(super) fn waiting_since(receiver: BorrowedFd<'_>) -> Option<Duration> {
    let mut header = [0; HEADER_BYTES];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let (len, _) = recv(receiver, &mut header[..], flags).ok()?;
    let since = handed_ns(&header[..len]).map(|handed_ns| now_ns().saturating_sub(handed_ns));
    (len > 0).then(|| since.map_or(Duration::MAX, Duration::from_nanos))
}

fn header(handed_ns: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..].copy_from_slice(&handed_ns.to_le_bytes());
    header
}

/// The time in the header of a message of this version.
fn handed_ns(header: &[u8]) -> Option<u64> {
    let rest = header.strip_prefix(&MAGIC)?.strip_prefix(&VERSION.to_le_bytes())?;
    Some(u64::from_le_bytes(rest.try_into().ok()?))
}

/// Reads what the sockets of a message are.
fn described(file: OwnedFd) -> Option<(ServerSerial, Vec<Handed>)> {
    let mut file = File::from(file);
    // A descriptor that is no regular file has no size, or could not be read for ever.
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let bytes_max = (BYTES_MAX + DESCRIPTORS_MAX * 4 + 16) as u64;
    if metadata.len() > bytes_max || file.rewind().is_err() {
        return None;
    }
    let mut content = Vec::new();
    file.take(bytes_max).read_to_end(&mut content).ok()?;
    parse(&content)
}

fn parse(content: &[u8]) -> Option<(ServerSerial, Vec<Handed>)> {
    let (instance, rest) = content.split_first_chunk::<8>()?;
    let (clients_joined, mut rest) = rest.split_first_chunk::<8>()?;
    let serial = ServerSerial {
        instance: u64::from_le_bytes(*instance),
        clients_joined: u64::from_le_bytes(*clients_joined),
    };
    let mut handed = Vec::new();
    while let Some((len, after)) = rest.split_first_chunk::<4>() {
        let len = u32::from_le_bytes(*len) as usize;
        let (bytes, after) = after.split_at_checked(len)?;
        if len > ITEM_BYTES_MAX || handed.len() == DESCRIPTORS_MAX {
            return None;
        }
        handed.push(Handed::decoded(bytes)?);
        rest = after;
    }
    rest.is_empty().then_some((serial, handed))
}

impl Handed {
    fn encoded(&self) -> Vec<u8> {
        match self {
            Self::Accepted => vec![b'A'],
            Self::Session(record) => [b"S", &record[..]].concat(),
            Self::Listener { configured, file } => {
                let (device, number) = file.unwrap_or_default();
                let mut bytes = vec![b'L'];
                bytes.extend_from_slice(&device.to_le_bytes());
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(configured.as_bytes());
                bytes
            }
        }
    }

    fn decoded(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        match kind {
            b'A' => rest.is_empty().then_some(Self::Accepted),
            b'S' => Some(Self::Session(rest.to_vec())),
            b'L' => {
                let (device, rest) = rest.split_first_chunk::<8>()?;
                let (number, text) = rest.split_first_chunk::<8>()?;
                let file = (u64::from_le_bytes(*device), u64::from_le_bytes(*number));
                let configured = String::from_utf8(text.to_vec()).ok()?;
                Some(Self::Listener { configured, file: (file != (0, 0)).then_some(file) })
            }
            _ => None,
        }
    }
}

/// The time since the machine has started.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let since = Duration::try_from(now).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::net::UnixStream;

    const SERIAL: ServerSerial = ServerSerial { instance: 77, clients_joined: 9 };

    /// Pairs of connected sockets, one end of each to be handed over.
    fn pairs(count: usize) -> (Vec<(OwnedFd, Handed)>, Vec<UnixStream>) {
        let pairs = (0..count).map(|number| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let record = format!("session {number}").into_bytes();
            ((ours.into(), Handed::Session(record)), theirs)
        });
        pairs.unzip()
    }

    #[test]
    fn sockets_outlive_their_sender_and_keep_their_descriptions() {
        let (receiver, sender) = queue().unwrap();
        let (mut sockets, mut peers) = pairs(300);
        let file = Some((5, 6));
        let listener = Handed::Listener { configured: "unix:/run/é.sock".into(), file };
        sockets[1].1 = listener;
        sockets[2].1 = Handed::Accepted;
        assert_eq!(send(sender.as_fd(), SERIAL, &sockets).unwrap(), 300);
        let expected: Vec<Handed> = sockets.into_iter().map(|(_, handed)| handed).collect();
        drop(sender);
        assert!(waiting_since(receiver.as_fd()).unwrap() < Duration::from_secs(60));
        let mut found = Vec::new();
        while let Some(bundle) = receive(receiver.as_fd()) {
            assert_eq!(bundle.serial, SERIAL);
            found.extend(bundle.sockets);
        }
        assert!(waiting_since(receiver.as_fd()).is_none());
        assert!(found.iter().map(|(_, handed)| handed).eq(&expected));
        for ((socket, _), peer) in found.into_iter().zip(&mut peers) {
            UnixStream::from(socket).write_all(b"x").unwrap();
            peer.read_exact(&mut [0]).unwrap();
        }
    }

    #[test]
    fn sockets_that_are_discarded_are_closed() {
        let (receiver, sender) = queue().unwrap();
        let (sockets, mut peers) = pairs(3);
        send(sender.as_fd(), SERIAL, &sockets).unwrap();
        drop(sockets);
        assert_eq!(discard(receiver.as_fd()), 1);
        assert!(peers.iter_mut().all(|peer| peer.read(&mut [0]).unwrap() == 0));
        assert_eq!(discard(receiver.as_fd()), 0);
    }

    /// Sends a message as another program could.
    fn send_foreign(sender: &OwnedFd, header: &[u8], passed: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !passed.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(passed));
        }
        sendmsg(sender, &[IoSlice::new(header)], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn foreign_messages_are_dropped_with_their_sockets() {
        let (receiver, sender) = queue().unwrap();
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let mut newer = header(0);
        newer[8] += 1;
        let text = File::from(rustix::fs::memfd_create("text", MemfdFlags::CLOEXEC).unwrap());
        (&text).write_all(b"no description").unwrap();
        let good = header(now_ns());
        for (header, passed) in [
            (&b"hello"[..], &[socket.as_fd()][..]),
            (&newer, &[text.as_fd(), socket.as_fd()]),
            (&good, &[]),
            (&good, &[socket.as_fd(), socket.as_fd()]),
            (&good, &[text.as_fd(), socket.as_fd()]),
        ] {
            send_foreign(&sender, header, passed);
            assert!(receive(receiver.as_fd()).unwrap().sockets.is_empty());
        }
        drop(socket);
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        assert!(receive(receiver.as_fd()).is_none());
    }

    proptest! {
        #[test]
        fn any_description_is_read_without_a_panic(
            content in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            if let Some((_, handed)) = parse(&content) {
                prop_assert!(handed.len() <= content.len());
            }
        }
    }
}
