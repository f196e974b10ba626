//! TLS to a server: the files with the certificates, and a session over a socket.
//!
//! The files have the names that libnbd and QEMU give them, in one folder: `ca-cert.pem`, and for
//! servers that ask for a certificate `client-cert.pem` and `client-key.pem`. They are read for
//! each connection, so a renewed certificate counts from the next one on.

use crate::sync::lock;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::aws_lc_rs};
use std::io::{self, IoSlice, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Plaintext that becomes one message, in bytes: the limit of what a session buffers.
const MESSAGE_BYTES: usize = 32 << 10;
/// Ciphertext received at a time, in bytes.
const RECEIVE_BYTES: usize = 64 << 10;

/// How to reach a server over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdTls {
    /// The folder with the certificates.
    pub certificates: PathBuf,
    /// The name in the certificate of the server.
    pub hostname: String,
}

/// Why a TLS session cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdTlsError {
    /// A file cannot be read, or holds no certificate or key in PEM form.
    #[error("cannot read {what} from {}", path.display())]
    File {
        /// What the file should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: pem::Error,
    },
    /// The certificate of the client has no key, or the key no certificate.
    #[error("{} is missing beside the other one of certificate and key", path.display())]
    Half {
        /// The missing file.
        path: PathBuf,
    },
    /// The certificates cannot be used.
    #[error("the certificates in {} cannot be used", path.display())]
    Unfit {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
    /// The name of the server cannot be in a certificate.
    #[error("'{name}' is not the name of a server in a certificate")]
    Name {
        /// The name, as given.
        name: String,
    },
}

impl NbdTls {
    /// Reads the files, and begins a session.
    pub(super) fn begin(&self) -> Result<ClientConnection, NbdTlsError> {
        let folder = &self.certificates;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&folder.join("ca-cert.pem"))? {
            roots.add(certificate).map_err(|error| self.unfit(error))?;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| self.unfit(error))?
            .with_root_certificates(roots);
        let (cert, key) = (folder.join("client-cert.pem"), folder.join("client-key.pem"));
        let config = match (cert.exists(), key.exists()) {
            (false, false) => builder.with_no_client_auth(),
            (true, false) => return Err(NbdTlsError::Half { path: key }),
            (false, true) => return Err(NbdTlsError::Half { path: cert }),
            (true, true) => {
                let chain = certificates(&cert)?;
                let key = PrivateKeyDer::from_pem_file(&key).map_err(|source| {
                    NbdTlsError::File { what: "a private key", path: key, source }
                })?;
                let built = builder.with_client_auth_cert(chain, key);
                built.map_err(|error| self.unfit(error))?
            }
        };
        let name = ServerName::try_from(self.hostname.clone())
            .map_err(|_| NbdTlsError::Name { name: self.hostname.clone() })?;
        ClientConnection::new(Arc::new(config), name).map_err(|error| self.unfit(error))
    }

    fn unfit(&self, source: rustls::Error) -> NbdTlsError {
        NbdTlsError::Unfit { path: self.certificates.clone(), source }
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, NbdTlsError> {
    let found: Result<Vec<_>, pem::Error> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found = match found {
        Ok(found) if found.is_empty() => Err(pem::Error::NoItemsFound),
        found => found,
    };
    let (what, path) = ("certificates", path.to_owned());
    found.map_err(|source| NbdTlsError::File { what, path, source })
}

/// A session, which one thread uses to send while another one receives.
pub(super) struct TlsSession {
    /// Locked for moments, never while the socket is used.
    session: Mutex<ClientConnection>,
    /// Ciphertext to send. Locked while plaintext is encrypted and sent, so that records are sent
    /// in order.
    outgoing: Mutex<Vec<u8>>,
    /// Ciphertext that was received. Only the receiver locks it.
    incoming: Mutex<Incoming>,
}

struct Incoming {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl TlsSession {
    /// Performs the handshake of a session that was begun. `send` sends all of a message, `receive`
    /// receives some bytes.
    pub(super) fn establish(
        mut session: ClientConnection,
        mut send: impl FnMut(&[u8]) -> io::Result<()>,
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Self> {
        let (mut outgoing, mut bytes) = (Vec::new(), vec![0; RECEIVE_BYTES].into_boxed_slice());
        let (mut start, mut end) = (0, 0);
        let mut result = Ok(());
        loop {
            drain(&mut session, &mut outgoing)?;
            if !outgoing.is_empty() {
                send(&outgoing)?;
            }
            // The server is told why a handshake fails.
            result?;
            if !session.is_handshaking() {
                break;
            }
            if start == end {
                (start, end) = (0, receive(&mut bytes)?);
            }
            if end == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            result = process(&mut session, &bytes[start..end]).map(|taken| start += taken);
        }
        let incoming = Mutex::new(Incoming { bytes, start, end });
        Ok(Self { session: Mutex::new(session), outgoing: Mutex::new(outgoing), incoming })
    }

    /// Encrypts all slices, and sends them.
    pub(super) fn send_all(
        &self,
        slices: &[IoSlice<'_>],
        send: impl Fn(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut outgoing = lock(&self.outgoing);
        let mut buffered = 0;
        for slice in slices {
            for chunk in slice.chunks(MESSAGE_BYTES) {
                if buffered + chunk.len() > MESSAGE_BYTES {
                    self.send_buffered(&mut outgoing, &send)?;
                    buffered = 0;
                }
                lock(&self.session).writer().write_all(chunk)?;
                buffered += chunk.len();
            }
        }
        self.send_buffered(&mut outgoing, &send)
    }

    fn send_buffered(
        &self,
        outgoing: &mut Vec<u8>,
        send: &impl Fn(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        drain(&mut lock(&self.session), outgoing)?;
        send(outgoing)
    }

    /// Sends the notice that the session ends.
    pub(super) fn close(&self, send: impl Fn(&[u8]) -> io::Result<()>) -> io::Result<()> {
        lock(&self.session).send_close_notify();
        self.send_all(&[], send)
    }

    /// Fills a part of `bytes`; none of it at the end of the session. `receive` receives some bytes
    /// of ciphertext. What the session has to answer is sent with the next message.
    pub(super) fn receive(
        &self,
        bytes: &mut [u8],
        receive: impl Fn(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        loop {
            match lock(&self.session).reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if incoming.start == incoming.end {
                (incoming.start, incoming.end) = (0, receive(&mut incoming.bytes)?);
                if incoming.end == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            let received = &incoming.bytes[incoming.start..incoming.end];
            incoming.start += process(&mut lock(&self.session), received)?;
        }
    }
}

/// Moves the ciphertext to send out of a session.
fn drain(session: &mut ClientConnection, outgoing: &mut Vec<u8>) -> io::Result<()> {
    outgoing.clear();
    while session.wants_write() {
        session.write_tls(outgoing)?;
    }
    Ok(())
}

/// Decrypts some of `received`. Returns how many bytes.
fn process(session: &mut ClientConnection, mut received: &[u8]) -> io::Result<usize> {
    let taken = session.read_tls(&mut received)?;
    let processed = session.process_new_packets();
    processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(taken)
}
