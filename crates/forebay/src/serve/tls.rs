//! The server's certificate and whom it lets in.

use anyhow::{Context, bail};
use forebay_config::{TlsMode, TlsSettings};
use forebay_runtime::TlsSetup;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, crypto::aws_lc_rs};
use std::path::Path;
use std::sync::Arc;

/// Sets up TLS, if it is wanted.
///
/// # Errors
/// A file can't be read or does not hold what it should.
pub(super) fn load(settings: &TlsSettings) -> anyhow::Result<Option<TlsSetup>> {
    Ok(configure(settings)?.map(TlsSetup::new))
}

/// Reads the files again, for connections made from now on.
///
/// # Errors
/// As [`load`]; then the old certificate stays in use.
pub(super) fn reload(setup: &TlsSetup, settings: &TlsSettings) -> anyhow::Result<()> {
    if let Some(config) = configure(settings)? {
        setup.replace(config);
    }
    Ok(())
}

fn configure(settings: &TlsSettings) -> anyhow::Result<Option<ServerConfig>> {
    if settings.mode == TlsMode::Off {
        return Ok(None);
    }
    let (Some(cert), Some(key)) = (&settings.cert, &settings.key) else {
        bail!("tls is {}, but certificate or key are not named", settings.mode);
    };
    let chain = certificates(cert)?;
    let key_der = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("{} holds no private key in PEM form", key.display()))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)?;
    let builder = match &settings.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).with_context(|| {
                    format!("{} holds a certificate that can't be an authority", path.display())
                })?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder.with_single_cert(chain, key_der).with_context(|| {
        format!("{} and {} do not belong together", cert.display(), key.display())
    })?;
    Ok(Some(config))
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let read = || -> Result<Vec<_>, rustls::pki_types::pem::Error> {
        CertificateDer::pem_file_iter(path)?.collect()
    };
    let chain = read().with_context(|| format!("{} can't be read", path.display()))?;
    if chain.is_empty() {
        bail!("{} holds no certificate in PEM form", path.display());
    }
    Ok(chain)
}
