//! The certificate authority for TLS connections to NUT servers.

use forebay_types::{Fault, Remedy};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A trusted certificate authority. With an authority, the source sends nothing to a server before
/// TLS is active and the server's certificate is verified.
#[derive(Clone, Debug)]
pub struct Authority(pub(super) Arc<ClientConfig>);

/// An invalid CA file.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The file cannot be read as PEM.
    #[error("cannot read certificates in PEM form from {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rustls::pki_types::pem::Error,
    },
    /// The file has no certificate.
    #[error("no certificate in PEM form in {path}")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The certificate is not a CA certificate, or TLS cannot be set up.
    #[error("certificate in {path} is not usable as a CA")]
    Unfit {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
}

impl Fault for AuthorityError {
    fn remedy(&self) -> Remedy {
        "give a PEM file with the CA certificate".into()
    }
}

impl Authority {
    /// Reads the CA certificates from a PEM file.
    pub fn from_pem_file(path: &Path) -> Result<Self, AuthorityError> {
        let read = |source| AuthorityError::Read { path: path.to_owned(), source };
        let unfit = |source| AuthorityError::Unfit { path: path.to_owned(), source };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(path).map_err(read)? {
            roots.add(certificate.map_err(read)?).map_err(unfit)?;
        }
        if roots.is_empty() {
            return Err(AuthorityError::Empty { path: path.to_owned() });
        }
        let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .map_err(unfit)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}
