//! The parts of systemd's notification protocol that Forebay uses. With `FileDescriptorStoreMax=`,
//! systemd stores descriptors for a service and passes them to its next process.

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType, sendmsg_addr, socket,
};
use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// The pool's name in the descriptor store.
const NAME: &str = "forebay-pool";
/// The name of the queue of connections there.
const QUEUE_NAME: &str = "forebay-connections";
/// The first passed descriptor (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;
/// The environment variable with the address for notifications.
pub(super) const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// How long a start or a stop may then go on without progress: `TimeoutStartSec=` of the unit, and
/// less than its `TimeoutStopSec=`.
pub(crate) const EXTENSION: Duration = Duration::from_secs(180);

/// Returns true if the service manager stores descriptors for this service.
pub(crate) fn keeps_descriptors() -> bool {
    let is_there = std::env::var_os(SOCKET_VARIABLE).is_some();
    is_there && (slots() > 0 || stored_pool().is_some())
}

/// The number of descriptors that the service manager stores, if it says so.
fn slots() -> u32 {
    std::env::var("FDSTORE").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns true if the service manager stores a queue of connections beside the pool.
pub(super) fn keeps_queue() -> bool {
    slots() > 1
}

/// The number of the stored descriptor of the pool, if an earlier process stored one.
pub(crate) fn stored_pool() -> Option<RawFd> {
    stored(NAME)
}

/// The number of the stored queue of connections.
pub(super) fn stored_queue() -> Option<RawFd> {
    stored(QUEUE_NAME)
}

fn stored(name: &str) -> Option<RawFd> {
    let variable = |name| std::env::var(name).ok();
    if variable("LISTEN_PID")? != std::process::id().to_string() {
        return None;
    }
    find(&variable("LISTEN_FDS")?, &variable("LISTEN_FDNAMES")?, name)
}

fn find(count: &str, names: &str, wanted: &str) -> Option<RawFd> {
    let count: usize = count.parse().ok()?;
    let at = names.split(':').take(count).position(|name| name == wanted)?;
    Some(FIRST + at as RawFd)
}

/// Stores the pool's descriptor with the service manager.
pub(super) fn store(pool: BorrowedFd<'_>) -> io::Result<()> {
    notify(&format!("FDSTORE=1\nFDNAME={NAME}"), Some(pool))
}

/// Stores the queue of connections. Otherwise the service manager would drop it at once, because
/// its other end is closed.
pub(super) fn store_queue(queue: BorrowedFd<'_>) -> io::Result<()> {
    notify(&format!("FDSTORE=1\nFDNAME={QUEUE_NAME}\nFDPOLL=0"), Some(queue))
}

/// Removes the queue of connections from the store.
pub(super) fn remove_queue() {
    notify_or_log(&format!("FDSTOREREMOVE=1\nFDNAME={QUEUE_NAME}"));
}

/// Removes the pool's descriptor from the store. Otherwise, the pool would take its memory while
/// the service is stopped.
pub(super) fn remove() {
    if let Err(error) = notify(&format!("FDSTOREREMOVE=1\nFDNAME={NAME}"), None) {
        tracing::warn!(%error, "cannot remove the pool from the service manager");
    }
}

/// Notifies the service manager, if there is one, that the server accepts clients.
pub(crate) fn notify_ready() {
    notify_or_log("READY=1");
}

/// How long the service manager waits for a sign of life of this service, if it does.
pub(crate) fn watchdog_timeout() -> Option<Duration> {
    let us = std::env::var("WATCHDOG_USEC").ok()?.parse().ok().filter(|&us| us > 0)?;
    // A keeper does not pass the address on, because it notifies in place of its server.
    let is_told = std::env::var_os(SOCKET_VARIABLE).is_some() || super::KeeperLink::is_child();
    is_told.then(|| Duration::from_micros(us))
}

/// Notifies the service manager that this process lives. Does not wait for it.
pub(super) fn notify_alive() {
    let Some(address) = std::env::var_os(SOCKET_VARIABLE) else { return };
    if let Err(error) = notify_at(&address, "WATCHDOG=1", None, SendFlags::DONTWAIT) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

/// Notifies the service manager, if there is one, that a start or a stop makes progress.
pub(super) fn notify_progress() {
    notify_or_log(&format!("EXTEND_TIMEOUT_USEC={}", EXTENSION.as_micros()));
}

fn notify_or_log(text: &str) {
    if let Err(error) = notify(text, None) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

fn notify(text: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    match std::env::var_os(SOCKET_VARIABLE) {
        Some(address) => notify_at(&address, text, descriptor, SendFlags::empty()),
        None => Ok(()),
    }
}

fn notify_at(
    address: &OsString,
    text: &str,
    descriptor: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> io::Result<()> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        path => SocketAddrUnix::new(path)?,
    };
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed = descriptor.map(|descriptor| [descriptor]);
    if let Some(passed) = &passed {
        control.push(SendAncillaryMessage::ScmRights(passed));
    }
    let bytes = [IoSlice::new(text.as_bytes())];
    sendmsg_addr(&socket, &address, &bytes, &mut control, SendFlags::NOSIGNAL | flags)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn the_stored_pool_is_found_by_name() {
        assert_eq!(find("1", NAME, NAME), Some(3));
        assert_eq!(find("2", "http.socket:forebay-pool", NAME), Some(4));
        assert_eq!(find("1", "http.socket:forebay-pool", NAME), None, "not passed");
        assert_eq!(find("2", "forebay-connections:forebay-pool", QUEUE_NAME), Some(3));
        assert_eq!(find("0", "", NAME), None);
        assert_eq!(find("x", NAME, NAME), None);
    }

    #[test]
    fn notifications_and_descriptors_arrive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let file = forebay_runtime::new_pool_file().unwrap();
        let none = SendFlags::empty();
        notify_at(&path.clone().into(), "FDSTORE=1\nFDNAME=x", Some(file.as_fd()), none).unwrap();
        let mut text = [0; 64];
        let len = manager.recv(&mut text).unwrap();
        assert_eq!(&text[..len], b"FDSTORE=1\nFDNAME=x");
        notify_at(&path.into(), "READY=1", None, none).unwrap();
        let len = manager.recv(&mut text).unwrap();
        assert_eq!(&text[..len], b"READY=1");
    }
}
