//! The parts of systemd's notification protocol that Forebay uses. With `FileDescriptorStoreMax=`,
//! systemd stores descriptors for a service and passes them to its next process, together with the
//! sockets of its socket units. Their names tell them apart.

use crate::report::with_remedy;
use anyhow::anyhow;
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
/// What all names in the descriptor store begin with, also those of other versions.
const STORE_PREFIX: &str = "forebay-";
/// What the default names of sockets end with, which are those of their units.
pub(crate) const UNIT_SUFFIX: &str = ".socket";
/// The name of a descriptor without one, as `sd_listen_fds_with_names` gives it.
pub(crate) const NO_NAME: &str = "unknown";
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

/// A descriptor that the service manager has passed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PassedDescriptor {
    pub number: RawFd,
    pub name: String,
}

/// The environment variables of `sd_listen_fds(3)`.
#[derive(Debug, Default)]
struct ListenVariables {
    pid: Option<String>,
    count: Option<String>,
    names: Option<String>,
}

/// The descriptors that the service manager has passed, other than those of the descriptor store:
/// to this process, or to its keeper, whose servers inherit them at the same numbers.
///
/// # Errors
/// The variables of the environment contradict each other or cannot be read.
pub(crate) fn passed_descriptors() -> anyhow::Result<Vec<PassedDescriptor>> {
    let keeper = super::KeeperLink::is_child().then(rustix::process::getppid).flatten();
    let keeper = keeper.map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    ListenVariables::read().passed(&[Some(std::process::id()), keeper])
}

impl ListenVariables {
    fn read() -> Self {
        let [pid, count, names] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"].map(|name| {
            let text = std::env::var_os(name)?.to_string_lossy().into_owned();
            (!text.is_empty()).then_some(text)
        });
        Self { pid, count, names }
    }

    fn passed(self, own: &[Option<u32>]) -> anyhow::Result<Vec<PassedDescriptor>> {
        let (Some(pid), Some(count)) = (self.pid, self.count) else { return Ok(Vec::new()) };
        let Ok(number) = pid.parse() else {
            return wrong(format!("LISTEN_PID='{pid}' is not the number of a process"));
        };
        if !own.contains(&Some(number)) {
            return Ok(Vec::new());
        }
        let count = match count.parse::<u16>() {
            Ok(count) => usize::from(count),
            Err(_) => return wrong(format!("LISTEN_FDS='{count}' is not a number of sockets")),
        };
        let mut names = vec![NO_NAME.to_owned(); count];
        if let Some(text) = self.names.filter(|_| count > 0) {
            names = text.split(':').map(str::to_owned).collect();
        }
        if names.len() != count {
            let found = names.len();
            return wrong(format!("LISTEN_FDS={count}, but LISTEN_FDNAMES has {found} names"));
        }
        let numbered = (FIRST..).zip(names);
        let passed = numbered.map(|(number, name)| PassedDescriptor { number, name });
        Ok(passed.filter(|it| !is_stored(&it.name)).collect())
    }
}

/// Whether a name is one of the descriptor store.
fn is_stored(name: &str) -> bool {
    name.starts_with(STORE_PREFIX) && !name.ends_with(UNIT_SUFFIX)
}

fn wrong<T>(message: String) -> anyhow::Result<T> {
    let remedy =
        "let the service manager set LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, or unset them";
    Err(with_remedy(anyhow!(message), remedy))
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

    fn passed(pid: &str, count: &str, names: Option<&str>) -> anyhow::Result<Vec<(RawFd, String)>> {
        let [pid, count] = [pid, count].map(|text| Some(text.to_owned()));
        let variables = ListenVariables { pid, count, names: names.map(str::to_owned) };
        let passed = variables.passed(&[Some(70), Some(9)])?;
        Ok(passed.into_iter().map(|it| (it.number, it.name)).collect())
    }

    #[test]
    fn sockets_are_told_from_stored_descriptors_by_name() {
        for (pid, count, names, found) in [
            ("70", "1", Some("nbd"), &[(3, "nbd")][..]),
            ("9", "1", Some("nbd"), &[(3, "nbd")][..]),
            ("71", "1", Some("nbd"), &[][..]),
            ("71", "x", None, &[][..]),
            ("70", "0", Some(""), &[][..]),
            ("70", "2", None, &[(3, "unknown"), (4, "unknown")][..]),
            (
                "70",
                "2",
                Some("nbd:forebay-tcp.socket"),
                &[(3, "nbd"), (4, "forebay-tcp.socket")][..],
            ),
            ("70", "3", Some("forebay-pool:nbd:forebay-connections"), &[(4, "nbd")][..]),
            ("70", "2", Some("nbd:forebay-of-a-later-version"), &[(3, "nbd")][..]),
        ] {
            let passed = passed(pid, count, names).unwrap();
            let passed: Vec<_> = passed.iter().map(|(number, name)| (*number, &**name)).collect();
            assert_eq!(passed, found, "{pid} {count} {names:?}");
        }
        assert!(ListenVariables::default().passed(&[None, None]).unwrap().is_empty());
    }

    #[test]
    fn variables_that_cannot_be_meant_are_refused() {
        for (pid, count, names, said) in [
            ("me", "1", None, "LISTEN_PID='me' is not the number of a process"),
            ("70", "some", None, "LISTEN_FDS='some' is not a number of sockets"),
            ("70", "-1", None, "LISTEN_FDS='-1'"),
            ("70", "70000", None, "LISTEN_FDS='70000'"),
            ("70", "1", Some("a:b"), "LISTEN_FDS=1, but LISTEN_FDNAMES has 2 names"),
            ("70", "2", Some("a"), "LISTEN_FDS=2, but LISTEN_FDNAMES has 1 names"),
        ] {
            let error = passed(pid, count, names).unwrap_err();
            let text = crate::report::sentence(&error);
            assert!(text.contains(said) && text.contains("or unset them"), "{text}");
        }
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
