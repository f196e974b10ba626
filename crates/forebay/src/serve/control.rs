//! The servers beside the clients' front ends: the control servers, one from the start on and
//! another one after each recreation of the state directory; the dashboard; and the metrics. They
//! are independent: the failure of one does not affect the others or the daemon.

use super::dashboard::{BoundDashboard, LinkFile};
use super::listen::TakenPort;
use super::metrics::BoundMetrics;
use forebay_control::{ControlError, ControlServer, DashboardKeys, Manager, StateDir, Tokens};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};

/// The control servers of a daemon.
pub(super) struct ControlServers {
    tokio: Handle,
    manager: Arc<dyn Manager>,
    has_ended: watch::Sender<bool>,
    running: Mutex<Vec<JoinHandle<()>>>,
    dashboard: Mutex<Option<ServedDashboard>>,
    metrics: Mutex<Option<ServedMetrics>>,
}

/// The dashboard. It ends when this is dropped.
struct ServedDashboard {
    keys: DashboardKeys,
    /// Its address for a browser.
    url: String,
    link: LinkFile,
    port: TakenPort,
    _end: oneshot::Sender<()>,
}

/// The server of metrics. It ends when this is dropped.
struct ServedMetrics {
    task: AbortHandle,
    port: TakenPort,
}

impl Drop for ServedMetrics {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ControlServers {
    /// No server yet. `tokio` is a runtime with I/O and time.
    pub(super) fn new(tokio: Handle, manager: Arc<dyn Manager>) -> Self {
        let (has_ended, running) = (watch::Sender::new(false), Mutex::default());
        let (dashboard, metrics) = (Mutex::default(), Mutex::default());
        Self { tokio, manager, has_ended, running, dashboard, metrics }
    }

    /// Starts a server on a bound socket.
    pub(super) fn serve(&self, control: ControlServer) {
        let server = control.run(Arc::clone(&self.manager), self.end_of_servers());
        self.spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "control server failed");
            }
        });
    }

    /// Starts the dashboard in place of the present one. The file with its link is removed at the
    /// end.
    pub(super) fn serve_dashboard(&self, bound: BoundDashboard) {
        let BoundDashboard { dashboard, link, port } = bound;
        let (keys, url) = (dashboard.keys(), dashboard.url());
        let (all, (end, own)) = (self.end_of_servers(), oneshot::channel());
        let server = dashboard.run(Arc::clone(&self.manager), async move {
            tokio::select! {
                () = all => {}
                // The sender is dropped.
                _ = own => {}
            }
        });
        self.spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "dashboard failed");
            }
        });
        let served = ServedDashboard { keys, url, link, port, _end: end };
        if let Some(former) = lock(&self.dashboard).replace(served) {
            tracing::info!(address = former.url, "dashboard ended");
            former.link.leave();
        }
    }

    /// Ends the dashboard.
    pub(super) fn end_dashboard(&self) {
        if let Some(former) = lock(&self.dashboard).take() {
            tracing::info!(address = former.url, "dashboard ended");
        }
    }

    /// The certificate and tokens of the dashboard.
    pub(super) fn dashboard_keys(&self) -> Option<DashboardKeys> {
        lock(&self.dashboard).as_ref().map(|served| served.keys.clone())
    }

    /// Replaces the tokens of the dashboard, by a generated one with `None`.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub(super) fn set_tokens(&self, tokens: Option<Tokens>) -> io::Result<()> {
        if let Some(served) = &mut *lock(&self.dashboard) {
            served.keys.set_tokens(tokens)?;
            served.link.change(served.keys.link(&served.url));
        }
        Ok(())
    }

    /// Writes the link of the present dashboard again, if there is one.
    pub(super) fn write_link_again(&self) {
        if let Some(served) = &*lock(&self.dashboard) {
            served.link.write_again();
        }
    }

    /// Serves metrics, in place of the present server.
    pub(super) fn serve_metrics(&self, (server, port): BoundMetrics) {
        match server.address() {
            Ok(address) => tracing::info!(%address, "serving metrics"),
            Err(error) => tracing::warn!(%error, "serving metrics at an unknown address"),
        }
        let manager = Arc::clone(&self.manager);
        let task = self.tokio.spawn(async move {
            let Err(error) = server.run(manager).await;
            tracing::error!(%error, "metrics are not served any more");
        });
        let served = ServedMetrics { task: task.abort_handle(), port };
        drop(lock(&self.metrics).replace(served));
    }

    /// Ends the server of metrics. Answers being sent are completed.
    pub(super) fn end_metrics(&self) {
        if lock(&self.metrics).take().is_some() {
            tracing::info!("metrics are not served any more");
        }
    }

    /// The ports of the server of metrics and of the dashboard, if they are to be replaced.
    pub(super) fn taken_ports(&self, metrics: bool, dashboard: bool) -> io::Result<Vec<TakenPort>> {
        let metrics = metrics
            .then(|| lock(&self.metrics).as_ref().map(|served| served.port.try_clone()))
            .flatten();
        let dashboard = dashboard
            .then(|| lock(&self.dashboard).as_ref().map(|served| served.port.try_clone()))
            .flatten();
        metrics.into_iter().chain(dashboard).collect()
    }

    /// Completes when the servers are to end.
    fn end_of_servers(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut has_ended = self.has_ended.subscribe();
        async move {
            // Fails only if the servers are dropped, which also ends them.
            let _ = has_ended.wait_for(|has_ended| *has_ended).await;
        }
    }

    fn spawn(&self, server: impl Future<Output = ()> + Send + 'static) {
        let server = self.tokio.spawn(server);
        let mut running = lock(&self.running);
        running.retain(|server| !server.is_finished());
        running.push(server);
    }

    /// Starts a server in a recreated state directory.
    ///
    /// # Errors
    /// The control socket is in use or cannot be created.
    pub(super) fn serve_again(&self, state: &StateDir) -> Result<(), ControlError> {
        self.serve(ControlServer::bind(state)?);
        self.write_link_again();
        Ok(())
    }

    /// Ends the servers, and waits until they have completed the answers being sent.
    pub(super) async fn end(&self) {
        self.has_ended.send_replace(true);
        let running = std::mem::take(&mut *lock(&self.running));
        for server in running {
            // Fails only if the server panicked, which was logged.
            let _ = server.await;
        }
        drop((lock(&self.dashboard).take(), lock(&self.metrics).take()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_control::fake::FakeManager;

    #[test]
    fn a_control_server_that_fails_does_not_prevent_an_orderly_end() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::take(directory.path()).unwrap();
        let manager = Arc::new(FakeManager::default());
        // Without I/O, which each server needs at once.
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let servers = ControlServers::new(tokio.handle().clone(), manager);
        servers.serve_again(&state).unwrap();
        tokio.block_on(servers.end());
    }
}
