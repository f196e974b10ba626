//! The port at which metrics are served.

use super::listen::{TakenPort, bind_tcp};
use anyhow::Context;
use forebay_config::MetricsAddress;
use forebay_control::MetricsServer;
use std::time::Duration;

/// A server of metrics, which does not answer yet, and its port.
pub(super) type BoundMetrics = (MetricsServer, TakenPort);

/// Listens at an address. Retries one that is in use for up to `wait`. Sockets that are to be
/// `replaced` do not count.
///
/// # Errors
/// Fails if the address cannot be bound.
pub(super) fn bind(
    address: MetricsAddress,
    wait: Duration,
    replaced: &[TakenPort],
) -> anyhow::Result<BoundMetrics> {
    let what = || format!("cannot serve metrics at {address}");
    let (host, port) = (address.get().ip().to_string(), address.get().port());
    let (socket, bound) =
        bind_tcp(&host, port, wait, "--metrics ADDRESS:PORT", replaced).with_context(what)?;
    let port = TakenPort::of(&socket, bound).with_context(what)?;
    Ok((MetricsServer::new(socket).with_context(what)?, port))
}
