//! The server's certificate, and the authority that client certificates must come from.

use crate::report::with_remedy;
use anyhow::anyhow;
use forebay_config::{TlsMode, TlsSettings};
use forebay_frontend_nbd::Tls;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, crypto::aws_lc_rs};
use std::path::Path;
use std::sync::Arc;

/// Reads the files of TLS, unless it is off: what clients have to do, and the configuration.
///
/// # Errors
/// Fails if a file cannot be read or does not hold a usable certificate or key.
pub(super) fn load(settings: &TlsSettings) -> anyhow::Result<Option<(Tls, ServerConfig)>> {
    let policy = match settings.mode {
        TlsMode::Off => return Ok(None),
        TlsMode::Selective => Tls::Selective,
        TlsMode::Forced => Tls::Forced,
    };
    Ok(configure(settings, settings.client_ca.as_deref())?.map(|config| (policy, config)))
}

/// Sets up TLS for clients that present no certificate, such as browsers, unless it is off.
///
/// # Errors
/// As [`load`].
pub(super) fn without_client_certificates(
    settings: &TlsSettings,
) -> anyhow::Result<Option<ServerConfig>> {
    configure(settings, None)
}

fn configure(
    settings: &TlsSettings,
    client_ca: Option<&Path>,
) -> anyhow::Result<Option<ServerConfig>> {
    if settings.mode == TlsMode::Off {
        return Ok(None);
    }
    let (Some(cert), Some(key)) = (&settings.cert, &settings.key) else {
        let error = anyhow!("tls is {}, but tls-cert or tls-key is not set", settings.mode);
        return Err(with_remedy(error, "set both, or set tls off"));
    };
    let chain = certificates(cert)?;
    let key_der =
        PrivateKeyDer::from_pem_file(key).map_err(|error| unread(key, "private key", error))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| {
                    let what = format!(
                        "{} holds a certificate that cannot be an authority",
                        path.display()
                    );
                    let remedy = "name the certificate that signed the clients' certificates";
                    with_remedy(anyhow::Error::new(error).context(what), remedy)
                })?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder.with_single_cert(chain, key_der).map_err(|error| {
        let what = format!("{} and {} do not belong together", cert.display(), key.display());
        let remedy = "name the key that this certificate was made for";
        with_remedy(anyhow::Error::new(error).context(what), remedy)
    })?;
    Ok(Some(config))
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let read = || -> Result<Vec<_>, pem::Error> { CertificateDer::pem_file_iter(path)?.collect() };
    match read() {
        Ok(chain) if chain.is_empty() => Err(unread(path, "certificate", pem::Error::NoItemsFound)),
        Ok(chain) => Ok(chain),
        Err(error) => Err(unread(path, "certificate", error)),
    }
}

/// The error for a PEM file that cannot be read or holds no `what`.
fn unread(path: &Path, what: &str, error: pem::Error) -> anyhow::Error {
    let path = path.display();
    match error {
        pem::Error::Io(error) => with_remedy(
            anyhow::Error::new(error).context(format!("cannot read {what} {path}")),
            "check the path and the permissions of the file",
        ),
        error => with_remedy(
            anyhow!("{path} holds no {what} in PEM form ({error})"),
            format!(
                "name a file with a line '-----BEGIN ... {}-----'; `openssl` writes one from a DER \
                 file with `-inform der -outform pem`",
                what.to_uppercase()
            ),
        ),
    }
}
