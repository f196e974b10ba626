//! The control server: HTTP and JSON over a Unix socket, beside the data path; and the dashboard, a
//! page for browsers with the same API on a TCP port.
//!
//! The crate owns the state directory, which a lock reserves for one daemon, and the control socket
//! in it. It translates the requests of [`forebay_api`] into calls of a [`Manager`]. Requests are
//! few and a manager may block, so each call of it runs on its own thread, never on the event loop,
//! and the data path is not involved. Of the requests that may wait for disks, the socket and the
//! dashboard each run at most [`LONG_OPERATIONS_MAX`] that are answered with a stream at once, and
//! as many others.

mod answer;
mod convert;
mod dashboard;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod manager;
mod metrics;
mod recording;
mod routes;
mod server;
mod socket;
mod state;
mod stream;

pub use convert::{
    add_request, configured_status, geometry_status, pin_request, pinned_ranges, server_change,
    server_request, settings_request, volume_change, volume_spec, with_settings,
};
pub use dashboard::{
    Dashboard, DashboardError, DashboardKeys, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, TokenError, Tokens,
};
pub use manager::{
    AnalysisManager, ClientManager, DeviceManager, DiskManager, Manager, ProgressFn,
    StatisticsManager, TraceSink,
};
pub use metrics::{METRICS_TYPE, Measurements, metrics, server::MetricsServer};
pub use routes::{LONG_OPERATIONS_MAX, REQUEST_BODY_BYTES_MAX, openapi};
pub use server::ControlServer;
pub use socket::{SocketError, SocketFile, SocketRights, listen_at};
pub use state::{ControlError, StateDir};

forebay_types::faults! { ControlError, DashboardError, SocketError, TokenError }
