//! Messages over the socket of a monitor. No call waits for it.

use forebay_vhost::message::{DESCRIPTORS_MAX, HEADER_BYTES, MessageError, MessageHead};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A message as it arrived.
pub(crate) struct Received {
    pub(crate) header: MessageHead,
    pub(crate) payload: Vec<u8>,
    pub(crate) files: Vec<OwnedFd>,
}

/// Why no more messages arrive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// The monitor has disconnected.
    #[error("disconnected")]
    Closed,
    /// It does not speak the protocol.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// It has sent more descriptors than a message can have.
    #[error("too many descriptors")]
    Descriptors,
    /// The system's error.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The socket of a monitor, and the bytes of an incomplete message.
pub(crate) struct MessageSocket {
    fd: OwnedFd,
    header: Option<MessageHead>,
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl MessageSocket {
    pub(crate) const fn new(fd: OwnedFd) -> Self {
        Self { fd, header: None, bytes: Vec::new(), files: Vec::new() }
    }

    pub(crate) const fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The next message; `None` if it has not arrived.
    ///
    /// # Errors
    /// See [`ReceiveError`]. The connection cannot continue.
    pub(crate) fn receive(&mut self) -> Result<Option<Received>, ReceiveError> {
        loop {
            let wanted = self.header.map_or(HEADER_BYTES, |header| header.payload_bytes());
            if self.bytes.len() < wanted {
                if !self.read(wanted - self.bytes.len())? {
                    return Ok(None);
                }
                continue;
            }
            let bytes = std::mem::take(&mut self.bytes);
            match self.header.take() {
                Some(header) => {
                    let files = std::mem::take(&mut self.files);
                    return Ok(Some(Received { header, payload: bytes, files }));
                }
                None => {
                    let bytes = bytes.try_into().expect("as many bytes as were wanted");
                    self.header = Some(MessageHead::parse(bytes)?);
                }
            }
        }
    }

    /// Reads up to `bytes`. Returns false if there are none yet.
    fn read(&mut self, bytes: usize) -> Result<bool, ReceiveError> {
        let at = self.bytes.len();
        self.bytes.resize(at + bytes, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = {
            let mut slices = [IoSliceMut::new(&mut self.bytes[at..])];
            recvmsg(&self.fd, &mut slices, &mut control, flags)
        };
        let read = received.as_ref().map_or(0, |message| message.bytes);
        self.bytes.truncate(at + read);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.files.extend(files);
            }
        }
        match received {
            Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {
                Err(ReceiveError::Descriptors)
            }
            Ok(_) if self.files.len() > DESCRIPTORS_MAX => Err(ReceiveError::Descriptors),
            Ok(message) if message.bytes == 0 => Err(ReceiveError::Closed),
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(ReceiveError::System(error.into())),
        }
    }
}

/// Sends a message, whole or not at all.
///
/// # Errors
/// The system's; also when the other side does not read.
pub(crate) fn send(
    socket: &OwnedFd,
    message: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file]);
    if let Some(files) = &files {
        let added = control.push(SendAncillaryMessage::ScmRights(files));
        debug_assert!(added, "there is space for one descriptor");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = sendmsg(socket, &[IoSlice::new(message)], &mut control, flags)?;
    if sent < message.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}
