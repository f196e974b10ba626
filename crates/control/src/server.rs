//! The server: accepts at the control socket until it is told to end.

use crate::{ControlError, Manager, SocketFile, StateDir, listen_at, routes::router};
use rustix::fs::Mode;
use std::{future::Future, io, os::unix::net::UnixListener, sync::Arc, time::Duration};
use tokio::sync::oneshot;

/// How long answers may still take once the server ends. The answer to `stop` is one line.
const FAREWELL_SECONDS_MAX: u64 = 2;

/// A control server that listens; connections wait until [`Server::run`] takes them.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    file: SocketFile,
}

impl Server {
    /// Listens at the control socket of `state`, for the user that runs the daemon alone. A socket
    /// left behind by a daemon that was killed is replaced.
    ///
    /// # Errors
    /// The socket is in use or can't be made.
    pub fn bind(state: &StateDir) -> Result<Self, ControlError> {
        let mode = Mode::RUSR | Mode::WUSR;
        let listening = listen_at(&state.control_socket(), Some(mode));
        let (listener, file) = listening.map_err(ControlError::Socket)?;
        Ok(Self { listener, file })
    }

    /// Serves until `end`, then finishes the answers that are being sent, for two seconds at most,
    /// and takes the socket away. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// The socket can't be used by the event loop.
    pub async fn run(
        self,
        manager: Arc<dyn Manager>,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let listener = tokio::net::UnixListener::from_std(self.listener)?;
        let (ended, farewell) = oneshot::channel();
        let serving = axum::serve(listener, router(manager)).with_graceful_shutdown(async {
            end.await;
            // Nobody waits any more if the server has ended by itself.
            let _ = ended.send(());
        });
        let too_long = async {
            if farewell.await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_secs(FAREWELL_SECONDS_MAX)).await;
        };
        let result = tokio::select! {
            result = serving => result,
            () = too_long => Ok(()),
        };
        if let Err(error) = self.file.remove() {
            tracing::warn!(%error, "the control socket is not removed");
        }
        result
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
