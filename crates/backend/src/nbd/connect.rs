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
        let socket = NbdSocket::connect(&self.url.address, deadline).map_err(fail)?;
        let mut handshake = ClientHandshake::new(ExportConfig {
            export: self.url.export.clone(),
            tls: false,
            simple: false,
            extended: true,
            base_allocation: true,
        });
        let (mut input, mut output) = (Vec::new(), Vec::new());
        loop {
            let (taken, step) = handshake.advance(&input, &mut output);
            input.drain(..taken);
            if !output.is_empty() {
                socket.set_deadline(Some(deadline)).map_err(fail)?;
                let sent = socket.send_all(&mut [IoSlice::new(&output)]);
                sent.map_err(|error| fail(as_timeout(error)))?;
                output.clear();
            }
            match step {
                ClientStep::NeedMore => {
                    receive_more(&socket, deadline, &mut input).map_err(fail)?
                }
                ClientStep::Enter(opened) => {
                    self.check(&opened)?;
                    socket.set_deadline(None).map_err(fail)?;
                    return Ok(ConnectedExport { socket, opened, input });
                }
                ClientStep::StartTls => return Err(NbdError::Tls { url: self.name.clone() }),
                ClientStep::Fail(source) => {
                    return Err(NbdError::Handshake { url: self.name.clone(), source });
                }
            }
        }
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
