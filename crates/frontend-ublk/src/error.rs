//! Why a device is not served.

/// Why a device is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// The reactor has no commands to drivers.
    #[error("the server uses epoll, and ublk needs io_uring")]
    NoCommands,
    /// There are too many clients.
    #[error("the server has as many clients as it may have")]
    TooManyClients,
    /// The volume is not there, or is being added or removed.
    #[error("the volume takes no clients now: it is being added or removed")]
    Closed,
    /// A worker did not answer.
    #[error("the server's workers did not fetch from the device in time")]
    Timeout,
    /// The program is stopping.
    #[error("the server is stopping")]
    Stopping,
}
