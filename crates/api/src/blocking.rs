//! The client for programs without an async runtime, such as the command line.

use crate::{Client, ClientError, TraceRequest, TraceSummary};
use std::{io, path::PathBuf};
use tokio::runtime::{Builder, Runtime};

/// A [`Client`] whose requests block the calling thread. It panics inside an async runtime.
#[derive(Debug)]
pub struct BlockingClient {
    pub(crate) client: Client,
    pub(crate) runtime: Runtime,
}

type Result<T> = std::result::Result<T, ClientError>;

impl BlockingClient {
    /// A client for the control socket at this path. Each request opens the socket.
    ///
    /// # Errors
    /// The event loop cannot be created, for example for lack of descriptors.
    pub fn new(socket: impl Into<PathBuf>) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        Ok(Self { client: Client::new(socket), runtime })
    }

    /// See [`Client::record_trace`].
    pub fn record_trace<E>(
        &self,
        request: &TraceRequest,
        write: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> Result<std::result::Result<TraceSummary, E>> {
        self.runtime.block_on(self.client.record_trace(request, write))
    }
}
