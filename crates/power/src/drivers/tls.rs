//! Whom we believe that a NUT server is what it says.

use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The authority whose certificates are accepted. With one, nothing is said to a server before
/// the connection is encrypted and its certificate has been checked.
#[derive(Clone, Debug)]
pub struct Authority(pub(super) Arc<ClientConfig>);

/// A file that names no authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// It can't be read as certificates.
    #[error("{path} can't be read as certificates in PEM form: name the authority's file")]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::pki_types::pem::Error,
    },
    /// There is none in it.
    #[error("{path} holds no certificate in PEM form: name the authority's file")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It is a certificate of another sort, or this TLS can't be set up.
    #[error("{path} holds a certificate that can't be an authority: name the authority's file")]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
}

impl Authority {
    /// Reads the authority's certificates from a PEM file.
    ///
    /// # Errors
    /// The file can't be read, or holds none.
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
