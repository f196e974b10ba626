//! The dashboard: a page for browsers and the control API on a TCP port, for looking and for
//! changes that cost no data.
//!
//! A TCP port has no file permissions, and a browser sends requests on behalf of every page that it
//! shows. The modules divide the defence:
//!
//! - `access` decides on each request: its `Host`, the page that it comes from, and its token.
//! - `tokens` has the tokens and their roles. Changes need one, always; off the machine, every
//!   request does, and the connection is encrypted.
//! - `cache` keeps answers for half a second, so that the number of readers does not reach the data
//!   path.
//! - `pace` limits the rate of requests.
//! - `paced` ends connections whose clients stop reading.
//! - `assets` has the page, which loads nothing from elsewhere.
//!
//! What would open another file, lose data or end the server remains with the control socket:
//! adding and removing volumes, trusting a disk again, stopping and upgrading.

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

/// Limit of concurrent connections. Two browsers of each of a dozen operators, with six connections
/// each, are fewer.
pub const CONNECTIONS_MAX: usize = 64;
/// Beyond this number of connections, each is closed after its answer, so that waiting clients get
/// their turn.
const CONNECTIONS_KEPT_MAX: usize = CONNECTIONS_MAX / 2;
/// Largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long an answer of the API is kept.
const CACHED_FOR: Duration = Duration::from_millis(500);
/// Limit of different answers kept. The page asks for one.
const CACHED_MAX: usize = 16;

/// Limit of requests in each [`WINDOW`], for the page and the API together. At 500 a second, the
/// dashboard takes a few percent of a processor, however many clients there are.
const REQUESTS_PER_WINDOW: u32 = 50;
const WINDOW: Duration = Duration::from_millis(100);

/// Time limits of a connection.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// For the TLS handshake, the head of a request, and its body. An idle connection is closed
    /// after the same time.
    request: Duration,
    /// For a client that reads nothing of its answer.
    stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request: Duration::from_secs(10), stall: Duration::from_secs(20) }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
