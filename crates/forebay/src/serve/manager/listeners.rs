//! The addresses at which the server listens, and their changes by a reload.
//!
//! A reload first does all that can fail: it opens the new addresses and changes the rights of
//! sockets that stay. If anything fails, it is undone, and nothing else of the reload happens. Then
//! the new addresses take clients, and the removed ones are closed. Clients that are connected stay
//! connected. Activated sockets stay open, whether `nbd` names them or not. New settings of TLS are
//! for new connections at all addresses.

use super::Daemon;
use super::monitors::PreparedMonitors;
use crate::report::{problem_in, sentence};
use crate::serve::activated::{ActivatedAddresses, ActivatedSocket};
use crate::serve::control::ControlServers;
use crate::serve::dashboard::{self, BoundDashboard};
use crate::serve::handover::FromPrevious;
use crate::serve::listen::{self, BoundListener, KeptListener, TakenPort};
use crate::serve::metrics::{self, BoundMetrics};
use crate::serve::tls;
use forebay_api::Problem;
use forebay_config::{Config, Listen, TlsSettings};
use forebay_control::{SocketFile, SocketRights, Tokens};
use forebay_frontend_nbd::{ListenerId, Tls};
use rustls::ServerConfig;
use std::sync::Arc;
use std::time::Duration;

/// An address at which the server accepts NBD clients.
pub(super) struct OpenListener {
    id: ListenerId,
    configured: Listen,
    /// With the port that the system has chosen.
    pub(super) address: String,
    /// The file of a Unix socket, removed at the end.
    file: Option<Arc<SocketFile>>,
    port: Option<TakenPort>,
}

impl Daemon {
    /// Binds an address. Its clients wait until [`Self::accept`].
    /// Sockets that were handed over are used where they fit.
    pub(in crate::serve) fn bind(
        &self,
        address: &Listen,
        handed: &mut Vec<KeptListener>,
    ) -> anyhow::Result<BoundListener> {
        let settings = self.state().config.tls.clone();
        listen::bind(address, &settings, &self.tls, self.in_use_wait, handed, &[])
            .map_err(|error| self.activated.explain(address, error))
    }

    /// Accepts clients at a bound address, in place of an earlier socket of the same path.
    pub(in crate::serve) fn accept(&self, bound: BoundListener) {
        let BoundListener { listener, configured, address, file, port, kept } = bound;
        let file = file.map(Arc::new);
        let mut state = self.state();
        if state.has_stopped {
            drop(state);
            remove_file(file.as_deref());
            return;
        }
        let id = self.nbd.listen(listener);
        tracing::info!(address, "listening for NBD clients");
        let former = state.listeners.iter().position(|it| {
            matches!(configured, Listen::Unix { .. }) && it.configured.is_at(&configured)
        });
        let former = former.map(|at| state.listeners.remove(at));
        state.listeners.push(OpenListener { id, configured, address, file, port });
        drop(state);
        if let Some(kept) = kept {
            self.to_next.keep(kept);
        }
        if let Some(former) = former {
            // Its file is gone, so no client can connect to it.
            self.nbd.close(former.id);
        }
    }
}

/// Binds all addresses at the start: those of activated sockets, and those of `nbd` that none of
/// these serves. Sockets that the previous server has handed over are used where they fit.
///
/// # Errors
/// An address cannot be bound, or an activated socket cannot be served.
pub(in crate::serve) fn bind_all(
    daemon: &mut Daemon,
    activated: Vec<ActivatedSocket>,
    previous: &mut FromPrevious,
) -> anyhow::Result<Vec<BoundListener>> {
    daemon.activated = ActivatedAddresses::of(&activated);
    let daemon = &*daemon;
    let Config { nbd, tls, .. } = daemon.state().config.clone();
    daemon.activated.check_rights(&nbd)?;
    let others = daemon.activated.others(&nbd);
    let configured: Vec<String> = others.iter().map(ToString::to_string).collect();
    let mut handed = previous.listeners(&configured);
    let activated = activated.into_iter().map(|socket| socket.bind(&tls, &daemon.tls));
    let others = others.iter().map(|address| daemon.bind(address, &mut handed));
    activated.chain(others).collect()
}

/// Listens again at the Unix sockets whose files were deleted. The service manager has made those
/// of activated sockets.
///
/// # Errors
/// A path cannot be bound.
pub(in crate::serve) fn listen_again(daemon: &Daemon) -> anyhow::Result<()> {
    let addresses: Vec<Listen> =
        daemon.state().listeners.iter().map(|it| it.configured.clone()).collect();
    for address in addresses {
        if let Listen::Unix { path, .. } = &address
            && path.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
        {
            if daemon.activated.has(&address) {
                tracing::error!(
                    %address,
                    "the file of an activated socket was deleted, so no client can connect there: \
                     stop the service, restart its socket unit, and start the service"
                );
                continue;
            }
            daemon.accept(daemon.bind(&address, &mut Vec::new())?);
        }
    }
    Ok(())
}

/// Binds an address. Sockets that are to be `replaced` do not count.
fn bind_beside(
    daemon: &Daemon,
    address: &Listen,
    settings: &TlsSettings,
    replaced: &[TakenPort],
) -> anyhow::Result<BoundListener> {
    listen::bind(address, settings, &daemon.tls, Duration::ZERO, &mut Vec::new(), replaced)
        .map_err(|error| daemon.activated.explain(address, error))
}

/// Checks that the addresses which stay open may have the new settings of TLS.
///
/// # Errors
/// Other machines could reach one of them without encryption, and TLS is not off explicitly.
fn check_tls(daemon: &Daemon, old: &Config, new: &Config) -> anyhow::Result<()> {
    daemon.activated.check_encryption(&new.tls)?;
    let tcp = new.nbd.iter().filter(|address| matches!(address, Listen::Tcp { .. }));
    for address in tcp {
        listen::check(address, &new.tls, &old.state)?;
    }
    if old.dashboard == new.dashboard { dashboard::check(new) } else { Ok(()) }
}

/// Closes the listener at an address to new clients.
fn close(daemon: &Daemon, address: &Listen) {
    let mut state = daemon.state();
    let at = state.listeners.iter().position(|it| it.configured == *address);
    let closed = at.map(|at| state.listeners.remove(at));
    drop(state);
    let Some(OpenListener { id, configured, address, file, .. }) = closed else { return };
    daemon.to_next.forget(&configured.to_string());
    // Before the socket, so that a client finds either a listening socket or none.
    remove_file(file.as_deref());
    let clients = daemon.nbd.close(id);
    tracing::info!(address, clients, "listener closed, its clients stay connected");
}

fn file_of(daemon: &Daemon, address: &Listen) -> Option<Arc<SocketFile>> {
    let state = daemon.state();
    state.listeners.iter().find(|it| it.configured == *address)?.file.clone()
}

/// Removes the files of all listeners, when the server has stopped.
pub(super) fn remove_files(listeners: &mut [OpenListener]) {
    for listener in listeners {
        remove_file(listener.file.take().as_deref());
    }
}

fn remove_file(file: Option<&SocketFile>) {
    if let Some(Err(error)) = file.map(SocketFile::remove) {
        tracing::warn!(%error, "cannot remove socket file");
    }
}

/// The differences between two lists of addresses.
#[derive(Debug, Default, PartialEq, Eq)]
struct Differences {
    opened: Vec<Listen>,
    removed: Vec<Listen>,
    /// Unix sockets that stay, with other rights: the old and the new address.
    changed: Vec<(Listen, Listen)>,
}

impl Differences {
    fn between(old: &[Listen], new: &[Listen]) -> Self {
        let mut found = Self { removed: old.to_vec(), ..Self::default() };
        for address in new {
            let same = found.removed.iter().position(|it| it == address);
            let at = same.or_else(|| found.removed.iter().position(|it| it.is_at(address)));
            match at.map(|at| found.removed.remove(at)) {
                Some(former) if former == *address => {}
                Some(former) => found.changed.push((former, address.clone())),
                None => found.opened.push(address.clone()),
            }
        }
        found
    }
}

/// A Unix socket whose rights were changed.
struct ChangedRights {
    file: Option<Arc<SocketFile>>,
    former_rights: SocketRights,
    former: Listen,
    address: Listen,
}

/// What becomes of a server beside the NBD listeners.
#[derive(Default)]
enum Page<T> {
    #[default]
    Stays,
    Ends,
    Opens(T),
}

/// Changes of the addresses that can be applied without an error. Dropped without that, they are
/// undone.
pub(super) struct PreparedListeners<'a> {
    daemon: &'a Daemon,
    control: Option<Arc<ControlServers>>,
    opened: Vec<BoundListener>,
    removed: Vec<Listen>,
    changed: Vec<ChangedRights>,
    metrics: Page<BoundMetrics>,
    dashboard: Page<BoundDashboard>,
    /// The tokens of a dashboard that stays; `Some(None)` generates one.
    tokens: Option<Option<Tokens>>,
    monitors: Option<PreparedMonitors<'a>>,
    /// Changed settings of TLS, with what they name.
    tls: Option<(TlsSettings, Option<(Tls, ServerConfig)>)>,
}

impl<'a> PreparedListeners<'a> {
    /// Opens the addresses of `new` that `old` does not have.
    ///
    /// # Errors
    /// One of them cannot be opened. Nothing has changed then.
    pub(super) fn prepare(daemon: &'a Daemon, old: &Config, new: &Config) -> Result<Self, Problem> {
        let mut prepared = Self {
            daemon,
            control: daemon.control(),
            opened: Vec::new(),
            removed: Vec::new(),
            changed: Vec::new(),
            metrics: Page::Stays,
            dashboard: Page::Stays,
            tokens: None,
            monitors: None,
            tls: None,
        };
        // After an error, dropping the value undoes what was done.
        prepared.open(old, new).map_err(|error| problem_in(&error))?;
        Ok(prepared)
    }

    fn open(&mut self, old: &Config, new: &Config) -> anyhow::Result<()> {
        let daemon = self.daemon;
        if old.tls != new.tls {
            self.tls = Some((new.tls.clone(), tls::load(&new.tls)?));
            check_tls(daemon, old, new)?;
        }
        daemon.activated.check_rights(&new.nbd)?;
        let [old_nbd, new_nbd] = [old, new].map(|config| daemon.activated.others(&config.nbd));
        let Differences { opened, removed, changed } = Differences::between(&old_nbd, &new_nbd);
        let (has_metrics, has_dashboard) =
            (old.metrics != new.metrics, old.dashboard != new.dashboard);
        let ports = self.taken_ports(&removed, has_metrics, has_dashboard)?;
        for address in &opened {
            self.opened.push(bind_beside(daemon, address, &new.tls, &ports)?);
        }
        if has_metrics {
            let bound = new.metrics.map(|at| metrics::bind(at, Duration::ZERO, &ports));
            self.metrics = bound.transpose()?.map_or(Page::Ends, Page::Opens);
        }
        for (former, address) in changed {
            self.change_rights(former, address)?;
        }
        self.monitors = Some(PreparedMonitors::prepare(daemon, old, new)?);
        if has_dashboard {
            // Last, because it overwrites the file with the link.
            let bound = dashboard::open_with_link(new, &old.state, Duration::ZERO, &ports)?;
            self.dashboard = bound.map_or(Page::Ends, Page::Opens);
        } else if old.dashboard_tokens != new.dashboard_tokens {
            self.tokens = Some(dashboard::other_tokens(new)?);
        }
        self.removed = removed;
        Ok(())
    }

    /// The ports of the sockets that are to be closed.
    fn taken_ports(
        &self,
        removed: &[Listen],
        metrics: bool,
        dashboard: bool,
    ) -> std::io::Result<Vec<TakenPort>> {
        let mut ports = match &self.control {
            Some(control) => control.taken_ports(metrics, dashboard)?,
            None => Vec::new(),
        };
        let state = self.daemon.state();
        let closed = state.listeners.iter().filter(|it| removed.contains(&it.configured));
        for port in closed.filter_map(|it| it.port.as_ref()) {
            ports.push(port.try_clone()?);
        }
        Ok(ports)
    }

    fn change_rights(&mut self, former: Listen, address: Listen) -> anyhow::Result<()> {
        let Listen::Unix { access, .. } = &address else { return Ok(()) };
        let rights = listen::rights(&address, access)?;
        let file = file_of(self.daemon, &former);
        let former_rights = file.as_ref().map(|file| file.rights()).transpose()?;
        if let Some(file) = &file {
            file.change_rights(rights)?;
        }
        let former_rights = former_rights.unwrap_or_default();
        self.changed.push(ChangedRights { file, former_rights, former, address });
        Ok(())
    }

    /// Accepts clients at the new addresses, and closes the removed ones.
    pub(super) fn apply(mut self) {
        let daemon = self.daemon;
        // First, so that no client of a new address follows the former settings.
        if let Some((settings, setup)) = self.tls.take() {
            daemon.tls.replace(setup);
            daemon.state().config.tls = settings;
        }
        for bound in std::mem::take(&mut self.opened) {
            daemon.accept(bound);
        }
        for ChangedRights { former, address, .. } in std::mem::take(&mut self.changed) {
            let mut state = daemon.state();
            for listener in state.listeners.iter_mut().filter(|it| it.configured == former) {
                (listener.address, listener.configured) = (address.to_string(), address.clone());
            }
            drop(state);
            daemon.to_next.rename(&former.to_string(), &address.to_string());
            tracing::info!(%address, "rights of the socket changed, its clients stay connected");
        }
        for address in &self.removed {
            close(daemon, address);
        }
        if let Some(monitors) = self.monitors.take() {
            monitors.apply();
        }
        let (metrics, dashboard, tokens) = (
            std::mem::take(&mut self.metrics),
            std::mem::take(&mut self.dashboard),
            self.tokens.take(),
        );
        let Some(control) = &self.control else { return };
        match metrics {
            Page::Stays => {}
            Page::Ends => control.end_metrics(),
            Page::Opens(bound) => control.serve_metrics(bound),
        }
        match dashboard {
            Page::Stays => {}
            Page::Ends => control.end_dashboard(),
            Page::Opens(bound) => control.serve_dashboard(bound),
        }
        if let Some(tokens) = tokens
            && let Err(error) = control.set_tokens(tokens)
        {
            tracing::error!(%error, "tokens of the dashboard unchanged");
        }
    }
}

impl Drop for PreparedListeners<'_> {
    fn drop(&mut self) {
        for bound in self.opened.drain(..) {
            remove_file(bound.file.as_ref());
        }
        for ChangedRights { file, former_rights, former, .. } in self.changed.drain(..) {
            if let Some(Err(error)) = file.map(|file| file.change_rights(former_rights)) {
                let error = sentence(&error.into());
                tracing::error!(address = %former, error, "cannot restore the socket's rights");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<Listen> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn an_address_stays_is_opened_is_removed_or_has_other_rights() {
        let old = addresses(&["unix:/a", "unix:/b,mode=0600", "tcp:h:1", "tcp:h:0", "tcp:h:0"]);
        let new = addresses(&["tcp:h:2", "unix:/b,group=g", "tcp:h:0", "unix:/a"]);
        let found = Differences::between(&old, &new);
        assert_eq!(found.opened, addresses(&["tcp:h:2"]));
        assert_eq!(found.removed, addresses(&["tcp:h:1", "tcp:h:0"]));
        let changed = addresses(&["unix:/b,mode=0600", "unix:/b,group=g"]);
        assert_eq!(found.changed, [(changed[0].clone(), changed[1].clone())]);
        assert_eq!(Differences::between(&old, &old), Differences::default());
    }
}
