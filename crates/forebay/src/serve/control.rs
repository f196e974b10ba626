//! The control servers: one from the start on, and another one after each recreation of the state
//! directory. They are independent: the failure of one does not affect the others or the daemon.

use super::dashboard::LinkFile;
use forebay_control::{ControlError, ControlServer, Dashboard, Manager, StateDir};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The control servers of a daemon.
pub(super) struct ControlServers {
    tokio: Handle,
    manager: Arc<dyn Manager>,
    has_ended: watch::Sender<bool>,
    running: Mutex<Vec<JoinHandle<()>>>,
    /// The file with the link of the dashboard.
    link: Mutex<Option<LinkFile>>,
}

impl ControlServers {
    /// No server yet. `tokio` is a runtime with I/O and time.
    pub(super) fn new(tokio: Handle, manager: Arc<dyn Manager>) -> Self {
        let (has_ended, running) = (watch::Sender::new(false), Mutex::default());
        Self { tokio, manager, has_ended, running, link: Mutex::default() }
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

    /// Starts the dashboard. The file `link`, with the dashboard's link, is removed at the end.
    pub(super) fn serve_dashboard(&self, dashboard: Dashboard, link: LinkFile) {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(link);
        let server = dashboard.run(Arc::clone(&self.manager), self.end_of_servers());
        self.spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "dashboard failed");
            }
        });
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
        self.running.lock().unwrap_or_else(PoisonError::into_inner).push(server);
    }

    /// Starts a server in a recreated state directory.
    ///
    /// # Errors
    /// The control socket is in use or cannot be created.
    pub(super) fn serve_again(&self, state: &StateDir) -> Result<(), ControlError> {
        self.serve(ControlServer::bind(state)?);
        if let Some(link) = &*self.link.lock().unwrap_or_else(PoisonError::into_inner) {
            link.write_again();
        }
        Ok(())
    }

    /// Ends the servers, and waits until they have completed the answers being sent.
    pub(super) async fn end(&self) {
        self.has_ended.send_replace(true);
        let running = {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *running)
        };
        for server in running {
            // Fails only if the server panicked, which was logged.
            let _ = server.await;
        }
        drop(self.link.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
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
