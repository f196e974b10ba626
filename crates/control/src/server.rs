//! The control server: serves the control socket until it is stopped.

use crate::{
    ControlError, Manager, SocketError, SocketFile, SocketRights, StateDir, listen_at,
    routes::router,
};
use rustix::fs::Mode;
use std::{future::Future, io, os::unix::net::UnixListener, sync::Arc, time::Duration};
use tokio::sync::oneshot;

/// Time limit for answers still being sent when the server stops. The answer to `stop` is one line.
const DRAIN_SECONDS_MAX: u64 = 2;

/// A listening control server. Connections wait until [`ControlServer::run`] accepts them.
#[derive(Debug)]
pub struct ControlServer {
    listener: UnixListener,
    file: SocketFile,
}

impl ControlServer {
    /// Listens at the control socket of `state`, which only the daemon's user may open. The stale
    /// socket of a killed daemon is replaced.
    pub fn bind(state: &StateDir) -> Result<Self, ControlError> {
        let mode = Some(Mode::RUSR | Mode::WUSR);
        let rights = SocketRights { mode, ..SocketRights::default() };
        let listening = listen_at(&state.control_socket(), rights);
        let (listener, file) = listening.map_err(ControlError::Socket)?;
        Ok(Self { listener, file })
    }

    /// Serves until `end`, then completes the answers being sent, within two seconds, and removes
    /// the socket. Requires a tokio runtime with I/O and time.
    pub async fn run(
        self,
        manager: Arc<dyn Manager>,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let listener = tokio::net::UnixListener::from_std(self.listener)?;
        let (stopping, stopped) = oneshot::channel();
        let serving = axum::serve(listener, router(manager)).with_graceful_shutdown(async {
            end.await;
            // The receiver is gone if the server has already ended.
            let _ = stopping.send(());
        });
        let drain_timeout = async {
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_secs(DRAIN_SECONDS_MAX)).await;
        };
        let result = tokio::select! {
            result = serving => result,
            () = drain_timeout => Ok(()),
        };
        match self.file.remove() {
            // Another server of this daemon may listen there, in a recreated state directory.
            Ok(()) | Err(SocketError::Replaced { .. }) => {}
            Err(error) => tracing::warn!(%error, "cannot remove the control socket"),
        }
        result
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
