//! The control server: HTTP and JSON over a Unix socket, beside the data path.
//!
//! It owns the state directory (one daemon each, kept by a lock), the control socket in it and the
//! translation between requests and [`Manager`], which does what is asked. Requests are few and a
//! manager may block, so each runs on a thread of its own and none on the event loop; the data path
//! has no part in it. At most [`LONG_OPERATIONS_MAX`] operations that wait for disks run at once.
//!
//! What goes over the socket is described in [`forebay_api`].

mod answer;
mod convert;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod manager;
mod routes;
mod server;
mod socket;
mod state;
mod stream;

pub use convert::{
    add_request, geometry_status, settings_request, volume_change, volume_settings, volume_spec,
};
pub use manager::{Manager, ProgressFn};
pub use routes::{LONG_OPERATIONS_MAX, REQUEST_BODY_BYTES_MAX};
pub use server::Server;
pub use socket::{SocketError, SocketFile, listen_at};
pub use state::{ControlError, StateDir};
