//! The settings of TLS, checked.

use crate::{ConfigError, ConfigResult, Mistake, Settings, TlsMode};
use std::path::PathBuf;

/// The TLS settings. The files are read at the start and at each reload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct TlsSettings {
    /// Whether connections are encrypted.
    pub mode: TlsMode,
    /// Whether the operator has set the mode to `off`, instead of leaving it out. Without an
    /// explicit `off`, unencrypted listeners for other machines are refused.
    pub off_stated: bool,
    /// The server's certificate chain, PEM. Present unless the mode is off.
    pub cert: Option<PathBuf>,
    /// The private key of the certificate, PEM. Present unless the mode is off.
    pub key: Option<PathBuf>,
    /// The authority whose clients are admitted, PEM. Without it, every client is.
    pub client_ca: Option<PathBuf>,
}

impl TlsSettings {
    /// Combines the settings, as given, and checks that they are consistent.
    ///
    /// # Errors
    /// Encryption without a certificate or key, or certificate files without a mode.
    pub(crate) fn checked(given: &Settings) -> ConfigResult<Self> {
        let Settings { tls: mode, tls_cert: cert, tls_key: key, tls_client_ca: client_ca, .. } =
            given.clone();
        let fail = |message: &str, remedy: &'static str| {
            Err(ConfigError::new(Mistake::Tls, format!("tls: {message}"), remedy))
        };
        let any_file = cert.is_some() || key.is_some() || client_ca.is_some();
        match mode {
            None if any_file => {
                fail("certificate files are given, but no mode", "add tls selective or tls forced")
            }
            // `off` with files is valid: the operator may switch TLS off for a while.
            None | Some(TlsMode::Off) => {
                let off_stated = mode.is_some();
                Ok(Self { mode: TlsMode::Off, off_stated, cert, key, client_ca })
            }
            Some(_) if cert.is_none() => {
                fail("there is no certificate", "add tls-cert FILE, or set tls off")
            }
            Some(_) if key.is_none() => {
                fail("there is no private key", "add tls-key FILE, or set tls off")
            }
            Some(mode) => Ok(Self { mode, off_stated: false, cert, key, client_ca }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    #[test]
    fn tls_files_and_mode_must_be_consistent() {
        let path = || Some(PathBuf::from("x.pem"));
        let check = |tls, tls_cert, tls_key, tls_client_ca| {
            let given = Settings { tls, tls_cert, tls_key, tls_client_ca, ..Settings::default() };
            TlsSettings::checked(&given)
        };
        assert!(!check(None, None, None, None).unwrap().off_stated);
        assert!(check(Some(TlsMode::Off), path(), path(), None).unwrap().off_stated);
        assert!(check(Some(TlsMode::Forced), path(), path(), None).is_ok());
        for (mode, cert, key, part) in [
            (None, path(), path(), "but no mode"),
            (Some(TlsMode::Forced), None, path(), "no certificate"),
            (Some(TlsMode::Selective), path(), None, "no private key"),
        ] {
            let error = check(mode, cert, key, None).unwrap_err();
            assert_eq!(error.mistake(), Mistake::Tls);
            assert!(error.explained().contains(part), "{error}");
        }
    }
}
