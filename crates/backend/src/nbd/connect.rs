//! Connecting and the handshake.

use super::socket::{NbdSocket, as_timeout};
use super::{NbdError, NbdUrl};
use forebay_nbd::client::{ClientHandshake, ClientStep, ExportConfig, OpenExport};
use forebay_nbd::proto::export_flag;
use forebay_types::SECTOR_BYTES;
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

/// A connection in the transmission phase.
pub(super) struct ConnectedExport {
    pub(super) socket: NbdSocket,
    pub(super) opened: OpenExport,
    /// Bytes received after the handshake.
    pub(super) input: Vec<u8>,
}

/// An export: address and name.
pub(super) struct ExportTarget {
    pub(super) url: NbdUrl,
    /// The address as typed.
    pub(super) name: String,
    pub(super) read_only: bool,
}

impl ExportTarget {
    /// Connects and opens the export within `time`. Name resolution may add to that.
    pub(super) fn connect(&self, time: Duration) -> Result<ConnectedExport, NbdError> {
        let fail = |source| NbdError::Connect { url: self.name.clone(), source };
        let deadline = Instant::now() + time;
        let mut socket = NbdSocket::connect(&self.url.address, deadline).map_err(fail)?;
        let mut handshake = ClientHandshake::new(ExportConfig {
            export: self.url.export.clone(),
            tls: self.url.tls.is_some(),
            simple: false,
            extended: true,
            base_allocation: true,
        });
        let (mut input, mut output) = (Vec::new(), Vec::new());
        loop {
            let (taken, step) = handshake.advance(&input, &mut output);
            input.drain(..taken);
            if !output.is_empty() {
                let sent = send(&socket, deadline, &output);
                sent.map_err(|error| self.explain(error, &socket, deadline))?;
                output.clear();
            }
            match step {
                ClientStep::NeedMore => {
                    let received = receive_more(&socket, deadline, &mut input);
                    received.map_err(|error| self.explain(error, &socket, deadline))?;
                }
                ClientStep::Enter(opened) => {
                    self.check(&opened)?;
                    socket.set_deadline(None).map_err(fail)?;
                    return Ok(ConnectedExport { socket, opened, input });
                }
                ClientStep::StartTls => {
                    self.start_tls(&mut socket, deadline)?;
                    handshake.tls_established(&mut output);
                }
                ClientStep::Fail(source) => {
                    return Err(NbdError::Handshake { url: self.name.clone(), source });
                }
            }
        }
    }

    /// Why a connection has failed in the handshake. Over TLS, a server says why it refuses the
    /// client's certificate only after its own handshake.
    fn explain(&self, error: io::Error, socket: &NbdSocket, deadline: Instant) -> NbdError {
        let url = self.name.clone();
        let mut rest = Vec::new();
        let source = match receive_more(socket, deadline, &mut rest) {
            _ if self.url.tls.is_none() || is_alert(&error) => error,
            Err(alert) if is_alert(&alert) => alert,
            _ => error,
        };
        match is_alert(&source) {
            true => NbdError::TlsEnded { url, source },
            false => NbdError::Connect { url, source },
        }
    }

    fn start_tls(&self, socket: &mut NbdSocket, deadline: Instant) -> Result<(), NbdError> {
        // The handshake asks for TLS only if the address does.
        let Some(tls) = &self.url.tls else { return Ok(()) };
        let session =
            tls.begin().map_err(|source| NbdError::TlsFiles { url: self.name.clone(), source })?;
        let established = socket.start_tls(session, deadline).map_err(as_timeout);
        established.map_err(|source| NbdError::Tls { url: self.name.clone(), source })
    }

    /// Checks that the export can be a backend.
    fn check(&self, opened: &OpenExport) -> Result<(), NbdError> {
        let url = self.name.clone();
        if opened.is_read_only() && !self.read_only {
            return Err(NbdError::ReadOnly { url });
        }
        let multiple = opened.block_min.max(SECTOR_BYTES as u32);
        let size_bytes = opened.size_bytes;
        if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(multiple)) {
            return Err(NbdError::Size { url, size_bytes, multiple });
        }
        Ok(())
    }

    /// Checks that a reconnected export can replace the one opened first.
    pub(super) fn check_same(&self, first: &OpenExport, now: &OpenExport) -> Result<(), NbdError> {
        let abilities = export_flag::SEND_FLUSH
            | export_flag::SEND_FUA
            | export_flag::SEND_TRIM
            | export_flag::SEND_WRITE_ZEROES
            | export_flag::SEND_FAST_ZERO;
        let lost = first.flags & abilities & !now.flags;
        let is_same = now.size_bytes == first.size_bytes
            && now.block_min <= first.block_min.max(SECTOR_BYTES as u32)
            && now.payload_max >= first.payload_max
            && lost == 0;
        if is_same { Ok(()) } else { Err(NbdError::Changed { url: self.name.clone() }) }
    }
}

/// Whether the peer has ended a TLS session, or violated its protocol.
fn is_alert(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

fn send(socket: &NbdSocket, deadline: Instant, output: &[u8]) -> io::Result<()> {
    socket.set_deadline(Some(deadline))?;
    socket.send_all(&mut [IoSlice::new(output)]).map_err(as_timeout)
}

fn receive_more(socket: &NbdSocket, deadline: Instant, input: &mut Vec<u8>) -> io::Result<()> {
    socket.set_deadline(Some(deadline))?;
    let mut bytes = [0; 4096];
    match socket.receive(&mut bytes) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => {
            input.extend_from_slice(&bytes[..count]);
            Ok(())
        }
        Err(error) => Err(as_timeout(error)),
    }
}
