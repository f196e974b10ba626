//! The client for programs without an async runtime, such as the command line.

use crate::{Client, TraceRequest, TraceSummary, client::ClientResult};
use std::{io, path::PathBuf};
use tokio::runtime::{Builder, Runtime};

/// A [`Client`] whose requests block the calling thread. It panics inside an async runtime.
#[derive(Debug)]
pub struct BlockingClient {
    pub(crate) client: Client,
    pub(crate) runtime: Runtime,
}

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
        write: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> ClientResult<Result<TraceSummary, E>> {
        self.runtime.block_on(self.client.record_trace(request, write))
    }
}
