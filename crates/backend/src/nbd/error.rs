//! Errors of opening an export of another server.

use super::NbdTlsError;
use crate::SpecError;
use forebay_nbd::client::OpenFailure;
use forebay_nbd::proto::option_reply;
use forebay_types::{Blame, Fault, Remedy};
use std::io;

/// Why an export cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// The address is malformed.
    #[error("'{url}' is not the address of an export")]
    Address {
        /// The address, as given.
        url: String,
    },
    /// The protocol has no names as long as that of the export.
    #[error("the name of the export has {bytes} bytes, and the NBD protocol allows {max}")]
    LongName {
        /// Bytes in the name.
        bytes: usize,
        /// The protocol's limit.
        max: usize,
    },
    /// The options of the address are invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The files for TLS, or the name of the server, cannot be used.
    #[error("cannot set up TLS to '{url}'")]
    TlsFiles {
        /// The address, as given.
        url: String,
        /// The cause.
        source: NbdTlsError,
    },
    /// The TLS handshake failed.
    #[error("cannot establish TLS to the server of '{url}'")]
    Tls {
        /// The address, as given.
        url: String,
        /// The cause.
        source: io::Error,
    },
    /// The connection failed.
    #[error("cannot reach the server of '{url}'")]
    Connect {
        /// The address, as given.
        url: String,
        /// The system's error.
        source: io::Error,
    },
    /// The server has ended the TLS session.
    #[error("the server of '{url}' refuses this client")]
    TlsEnded {
        /// The address, as given.
        url: String,
        /// The server's alert.
        source: io::Error,
    },
    /// The server has no such export, or does not speak the protocol.
    #[error("{} '{url}'{}", if is_refusal(source) { "the server refuses to open" } else {
        "cannot open" }, if is_refusal(source) { "" } else { ": the NBD handshake failed" })]
    Handshake {
        /// The address, as given.
        url: String,
        /// The failure of the handshake.
        source: OpenFailure,
    },
    /// The export is read-only.
    #[error("the server of '{url}' refuses writes")]
    ReadOnly {
        /// The address, as given.
        url: String,
    },
    /// The size is zero, or not a multiple of the block size.
    #[error("the export '{url}' is {size_bytes} bytes, not a multiple of {multiple} above zero")]
    Size {
        /// The address, as given.
        url: String,
        size_bytes: u64,
        /// The block size, in bytes.
        multiple: u32,
    },
    /// The export has changed since it was opened.
    #[error("the export '{url}' has another size or fewer capabilities after a reconnect")]
    Changed {
        /// The address, as given.
        url: String,
    },
    /// A thread of the connection cannot be started.
    #[error("cannot start a thread for '{url}'")]
    Thread {
        /// The address, as given.
        url: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Whether the server refused an option, such as to open the export.
const fn is_refusal(failure: &OpenFailure) -> bool {
    matches!(failure, OpenFailure::Refused { .. })
}

/// Whether the server demands TLS.
const fn needs_tls(failure: &OpenFailure) -> bool {
    matches!(failure, OpenFailure::Refused { reply: option_reply::ERR_TLS_REQD, .. })
}

impl Fault for NbdError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Address { .. } => {
                Remedy::from("write nbd://HOST[:PORT]/EXPORT").or("nbd+unix:///EXPORT?socket=PATH")
            }
            Self::LongName { .. } => "give the export a shorter name on its server".into(),
            Self::Spec(error) => error.remedy(),
            Self::TlsFiles { source: NbdTlsError::Name { .. }, .. } => {
                "give the name in the server's certificate as tls-hostname=NAME".into()
            }
            Self::TlsFiles { .. } => "put ca-cert.pem, the certificate of the server's authority, \
                                      into the folder, and client-cert.pem and client-key.pem if \
                                      the server asks for a certificate"
                .into(),
            Self::Tls { .. } => {
                Remedy::from("check that ca-cert.pem signed the server's certificate")
                    .or("give the name in it as tls-hostname=NAME")
            }
            Self::TlsEnded { .. } => {
                "put a certificate that the server accepts into the folder, as \
                                      client-cert.pem and client-key.pem"
                    .into()
            }
            Self::Connect { .. } => "check that it runs and listens there".into(),
            Self::Handshake { source, .. } if needs_tls(source) => {
                "write nbds:// or nbds+unix://, with tls-certificates=FOLDER".into()
            }
            Self::Handshake { source, .. } if is_refusal(source) => {
                Remedy::from("check the name of the export")
                    .or("list them with nbdinfo, which comes with libnbd")
            }
            Self::Handshake { .. } => "check that the address is that of an NBD server".into(),
            Self::ReadOnly { .. } => {
                Remedy::from("serve it read-only").or("allow writes on the server")
            }
            Self::Size { .. } => "round the size on the server".into(),
            Self::Changed { .. } => {
                Remedy::from("restore the export").or("remove the volume and add it again")
            }
            Self::Thread { .. } => "raise the limit of processes or threads".into(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::Address { .. }
            | Self::LongName { .. }
            | Self::Spec(_)
            | Self::TlsFiles { .. } => Blame::Operator,
            _ => Blame::Environment,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_and_another_failure_of_the_handshake_are_told_apart() {
        let text = |source| NbdError::Handshake { url: "nbd://h/x".into(), source }.explained();
        let refused = OpenFailure::Refused { option: 7, reply: 0x8000_0006, text: "no x".into() };
        let refused = text(refused);
        assert!(refused.starts_with("the server refuses to open 'nbd://h/x': "), "{refused}");
        assert!(refused.contains("check the name of the export"), "{refused}");
        let other = text(OpenFailure::Greeting(1, 2));
        let start = "cannot open 'nbd://h/x': the NBD handshake failed: not an NBD server";
        assert!(other.starts_with(start), "{other}");
        assert!(other.ends_with("check that the address is that of an NBD server"), "{other}");
    }
}
