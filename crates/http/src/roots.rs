//! The certificates of authorities that servers are checked against.

use forebay_types::{Blame, Fault, Remedy};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where distributions keep the certificates of authorities, after `SSL_CERT_FILE`.
const ROOT_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The authorities whose certificates are accepted. A clone shares them.
#[derive(Clone, Debug)]
pub struct Roots(Option<Arc<ClientConfig>>);

/// Why certificates of authorities cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot read certificates from {}", path.display())]
pub struct RootsError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub source: io::Error,
}

impl RootsError {
    fn new(path: &Path, text: String) -> Self {
        Self { path: path.to_owned(), source: io::Error::other(text) }
    }
}

impl Fault for RootsError {
    fn remedy(&self) -> Remedy {
        "name a file with certificates of authorities, in PEM".into()
    }

    fn blame(&self) -> Blame {
        Blame::Environment
    }
}

impl Roots {
    /// Those of the file `ca`, or those of the system.
    ///
    /// # Errors
    /// They cannot be read. If the system has none, only plain HTTP is possible.
    pub fn load(ca: Option<&Path>) -> Result<Self, RootsError> {
        let path = match ca {
            Some(path) => Some(path.to_owned()),
            None => std::env::var_os("SSL_CERT_FILE")
                .map(PathBuf::from)
                .or_else(|| ROOT_FILES.iter().map(PathBuf::from).find(|path| path.exists())),
        };
        let Some(path) = path else { return Ok(Self(None)) };
        let mut roots = RootCertStore::empty();
        let found = CertificateDer::pem_file_iter(&path)
            .map_err(|e| RootsError::new(&path, e.to_string()))?;
        roots.add_parsable_certificates(found.flatten());
        if roots.is_empty() {
            return Err(RootsError::new(&path, "it has no certificate".into()));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| RootsError::new(&path, error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Some(Arc::new(config))))
    }

    /// None: only plain HTTP is possible.
    pub const fn none() -> Self {
        Self(None)
    }

    pub(crate) fn tls(&self) -> io::Result<Arc<ClientConfig>> {
        self.0.clone().ok_or_else(|| io::Error::other("there are no certificates of authorities"))
    }
}
