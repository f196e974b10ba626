//! The dashboard: a page for browsers, and most of the control API, on a TCP port.
//!
//! A TCP port has no file permissions, and a browser sends requests on behalf of every page that it
//! shows. The modules divide the defence:
//!
//! - `access` checks each request: its `Host`, the page that it comes from, and its token.
//! - `tokens` has the tokens and their roles. A change always needs a token. If other machines can
//!   reach the dashboard, every request needs one, and the connection is encrypted.
//! - `cache` keeps answers for half a second, so that more readers do not cause more load on the
//!   data path.
//! - `pace` limits the rate of requests.
//! - `paced` ends connections whose clients stop reading.
//! - `assets` has the page, which loads nothing from elsewhere.
//!
//! Requests that open another file, give up data, end the server, or record the requests of clients
//! are only possible at the control socket: adding and removing volumes, trusting a disk again,
//! stopping, upgrading, and recording. An `operate` token allows any change of a volume's settings,
//! including those that weaken its protection (`protection=none,accept-loss=yes`).

mod access;
mod assets;
mod cache;
mod pace;
mod paced;
mod server;
mod tokens;

pub use server::{Dashboard, DashboardError, DashboardKeys};
pub use tokens::{TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, TokenError, Tokens};

use std::time::Duration;

/// Limit of concurrent connections. Ten browsers with six connections each stay below it.
pub const CONNECTIONS_MAX: usize = 64;
/// Beyond this number of connections, each is closed after its answer, so that waiting clients get
/// their turn.
const CONNECTIONS_KEPT_MAX: usize = CONNECTIONS_MAX / 2;
/// Largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long an answer of the API is kept.
const CACHED_FOR: Duration = Duration::from_millis(500);
/// Limit of different answers kept.
const CACHED_MAX: usize = 64;

/// Limit of requests in each [`WINDOW`], for the page and the API together. At 500 a second, the
/// dashboard takes a few percent of a processor, however many clients there are.
const REQUESTS_PER_WINDOW: u32 = 50;
const WINDOW: Duration = Duration::from_millis(100);

/// Time limits of a connection.
#[derive(Clone, Copy, Debug)]
struct ConnLimits {
    /// For the TLS handshake, the head of a request, and its body. An idle connection is closed
    /// after the same time.
    request: Duration,
    /// For a client that reads nothing of its answer.
    stall: Duration,
}

impl Default for ConnLimits {
    fn default() -> Self {
        Self { request: Duration::from_secs(10), stall: Duration::from_secs(20) }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
