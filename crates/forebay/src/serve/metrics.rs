//! The port at which metrics are served.

use super::listen::{bind_remedy, retry_while_in_use};
use crate::report::with_remedy;
use anyhow::Context;
use forebay_config::MetricsAddress;
use forebay_control::{Manager, MetricsServer};
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// Listens at an address. Retries one that is in use for up to `wait`.
///
/// # Errors
/// Fails if the address cannot be bound.
pub(super) fn bind(address: MetricsAddress, wait: Duration) -> anyhow::Result<MetricsServer> {
    let what = || format!("cannot serve metrics at {address}");
    let is_in_use = |error: &io::Error| error.kind() == ErrorKind::AddrInUse;
    let bound = retry_while_in_use(wait, is_in_use, || TcpListener::bind(address.get()));
    let socket = bound.map_err(|error| {
        let remedy = bind_remedy(error.kind(), "--metrics ADDRESS:PORT");
        with_remedy(anyhow::Error::new(error).context(what()), remedy)
    })?;
    MetricsServer::new(socket).with_context(what)
}

/// Serves metrics in the background, on a tokio runtime with I/O and time.
pub(super) fn serve(server: MetricsServer, manager: Arc<dyn Manager>) {
    match server.address() {
        Ok(address) => tracing::info!(%address, "serving metrics"),
        Err(error) => tracing::warn!(%error, "serving metrics at an unknown address"),
    }
    tokio::spawn(async move {
        let Err(error) = server.run(manager).await;
        tracing::error!(%error, "metrics are not served any more");
    });
}
