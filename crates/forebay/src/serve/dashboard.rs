//! The dashboard: its address, certificate and tokens, and the file with its link.
//!
//! The connection is encrypted where other machines can reach the address, and not encrypted on
//! loopback addresses.

use super::listen::{TakenPort, bind_tcp, resolve};
use super::tls;
use crate::report::with_remedy;
use anyhow::Context;
use forebay_config::{Config, TcpAddress, TlsMode};
use forebay_control::{Dashboard, DashboardKeys, Tokens};
use forebay_state::StateFile;
use rustls::ServerConfig;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// The name of the file with the link, in the state directory.
const LINK_FILE: &str = "dashboard.url";

/// Listens at the configured address, if there is one. Retries an address that is in use for up to
/// `wait`. Sockets that are to be `replaced` do not count.
///
/// # Errors
/// Fails if the address cannot be bound, if a file cannot be read, or if other machines could reach
/// the address and the configuration lacks TLS or tokens.
fn open(
    config: &Config,
    wait: Duration,
    replaced: &[TakenPort],
) -> anyhow::Result<Option<(Dashboard, TakenPort)>> {
    let Some(TcpAddress { host, port }) = &config.dashboard else { return Ok(None) };
    let (listener, bound) = bind_tcp(host, *port, wait, "--dashboard HOST:PORT", replaced)?;
    let port = TakenPort::of(&listener, bound)?;
    let (tls, tokens) = (encryption(config, bound.ip())?, tokens(config)?);
    Ok(Some((Dashboard::new(listener, host, tls, tokens)?, port)))
}

/// A dashboard that does not answer yet.
pub(super) struct BoundDashboard {
    pub(super) dashboard: Dashboard,
    pub(super) link: LinkFile,
    pub(super) port: TakenPort,
}

/// As [`open`], with the file for the dashboard's link. Without a dashboard, removes the link that
/// a killed daemon has left.
///
/// # Errors
/// As [`open`]; or the link cannot be written.
pub(super) fn open_with_link(
    config: &Config,
    state: &Path,
    wait: Duration,
    replaced: &[TakenPort],
) -> anyhow::Result<Option<BoundDashboard>> {
    match open(config, wait, replaced)? {
        Some((dashboard, port)) => {
            let link = LinkFile::create(state, dashboard.link())?;
            let (address, file) = (dashboard.url(), link.file.path().display());
            tracing::info!(address, link = %file, "dashboard started");
            Ok(Some(BoundDashboard { dashboard, link, port }))
        }
        None => {
            // Usually there is none.
            let _ = link_file(state).remove();
            Ok(None)
        }
    }
}

/// Checks the configuration of the dashboard without binding its address.
///
/// # Errors
/// As [`open`].
pub(super) fn check(config: &Config) -> anyhow::Result<()> {
    let Some(TcpAddress { host, port }) = &config.dashboard else { return Ok(()) };
    let tokens = tokens(config)?;
    let Some(address) = resolve(host, *port)?.first().copied() else { return Ok(()) };
    let address: SocketAddr = address;
    let has_tls = encryption(config, address.ip())?.is_some();
    Ok(Dashboard::check(address, has_tls, tokens.is_some())?)
}

/// Reads certificate, key and tokens again, for new connections and requests.
///
/// # Errors
/// A file cannot be read. The old ones then stay in use.
pub(super) fn reload(keys: &DashboardKeys, config: &Config) -> anyhow::Result<()> {
    let tls = match config.tls.mode {
        TlsMode::Off => None,
        _ => tls::without_client_certificates(&config.tls)?,
    };
    keys.replace(tls, tokens(config)?);
    Ok(())
}

/// The tokens for a dashboard whose address stays and whose token file changes.
///
/// # Errors
/// They cannot be read, or other machines can reach the dashboard and there is no file any more.
pub(super) fn other_tokens(config: &Config) -> anyhow::Result<Option<Tokens>> {
    let found = tokens(config)?;
    if let Some(TcpAddress { host, port }) = &config.dashboard
        && let Some(address) = resolve(host, *port)?.first()
    {
        Dashboard::check(*address, true, found.is_some())?;
    }
    Ok(found)
}

fn encryption(config: &Config, address: IpAddr) -> anyhow::Result<Option<ServerConfig>> {
    match address.is_loopback() {
        true => Ok(None),
        false => tls::without_client_certificates(&config.tls),
    }
}

fn tokens(config: &Config) -> anyhow::Result<Option<Tokens>> {
    Ok(config.dashboard_tokens.as_deref().map(Tokens::read).transpose()?)
}

/// The file with the dashboard's link, for the daemon's user. The link may hold a token. Removed
/// when dropped.
pub(super) struct LinkFile {
    file: StateFile,
    link: String,
    /// The file has the link of another dashboard now, which removes it.
    is_left: bool,
}

impl LinkFile {
    /// Creates the file in the state directory.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn create(state: &Path, link: String) -> anyhow::Result<Self> {
        let link = Self { file: link_file(state), link, is_left: false };
        link.write().context("cannot write the link of the dashboard").map_err(|error| {
            with_remedy(error, "check that this user may write to the state directory")
        })?;
        Ok(link)
    }

    /// Leaves the file to the dashboard that replaces this one and has written it.
    pub(super) fn leave(mut self) {
        self.is_left = true;
    }

    /// Writes another link.
    pub(super) fn change(&mut self, link: String) {
        self.link = link;
        self.write_again();
    }

    /// Writes the file again, after the state directory was recreated, or after another dashboard
    /// has written its link and is not served.
    pub(super) fn write_again(&self) {
        if let Err(error) = self.write() {
            tracing::warn!(%error, "cannot write the link of the dashboard");
        }
    }

    fn write(&self) -> io::Result<()> {
        self.file.replace(format!("{}\n", self.link))
    }
}

fn link_file(state: &Path) -> StateFile {
    StateFile::private(state.join(LINK_FILE))
}

impl Drop for LinkFile {
    fn drop(&mut self) {
        if !self.is_left {
            // The state directory may be gone.
            let _ = self.file.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sentence;
    use forebay_config::{Settings, SettingsSource};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn config(settings: &[(&str, &str)], state: &Path) -> Config {
        let mut options = Settings::default();
        for (key, text) in settings {
            options.set(key, text).unwrap();
        }
        let state_default = Some(state.to_owned());
        SettingsSource { file: None, options, state_default }.load().unwrap()
    }

    #[test]
    fn an_address_for_other_machines_needs_encryption_and_tokens() {
        let directory = tempfile::tempdir().unwrap();
        let everywhere = [("dashboard", "0.0.0.0:0")];
        let config = config(&everywhere, directory.path());
        for error in
            [open(&config, Duration::ZERO, &[]).err().unwrap(), check(&config).unwrap_err()]
        {
            let text = sentence(&error);
            assert!(text.contains("can be reached from other machines"), "{text}");
            assert!(text.contains("tls-cert"), "{text}");
        }
    }

    #[test]
    fn the_link_is_for_the_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(&[("dashboard", "127.0.0.1:0")], directory.path());
        check(&config).unwrap();
        let (dashboard, _) = open(&config, Duration::ZERO, &[]).unwrap().unwrap();
        let file = LinkFile::create(directory.path(), dashboard.link()).unwrap();
        let path = directory.path().join(LINK_FILE);
        let link = fs::read_to_string(&path).unwrap();
        assert!(link.starts_with(&dashboard.url()) && link.contains("#token="), "{link}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_file(&path).unwrap();
        file.write_again();
        assert_eq!(fs::read_to_string(&path).unwrap(), link);
        drop(file);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_address_in_use_names_the_option() {
        let directory = tempfile::tempdir().unwrap();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let config = config(&[("dashboard", &address)], directory.path());
        let text = sentence(&open(&config, Duration::ZERO, &[]).err().unwrap());
        assert!(text.contains("--dashboard HOST:PORT"), "{text}");
    }

    #[test]
    fn a_token_file_that_cannot_be_used_prevents_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        fs::write(&path, "operate 0123456789abcdef0123").unwrap();
        let settings = [("dashboard", "127.0.0.1:0"), ("dashboard-tokens", path.to_str().unwrap())];
        let config = config(&settings, directory.path());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(sentence(&check(&config).unwrap_err()).contains("chmod 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let (dashboard, _) = open(&config, Duration::ZERO, &[]).unwrap().unwrap();
        assert_eq!(dashboard.link(), dashboard.url(), "tokens of a file are not written elsewhere");
        reload(&dashboard.keys(), &config).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(reload(&dashboard.keys(), &config).is_err());
    }
}
