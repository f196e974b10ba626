//! Activated sockets: listening sockets that the service manager has opened, and passes to each
//! server (systemd.socket(5)). Clients that connect while no server runs wait in their queues.
//!
//! All of them are served, whatever `nbd` says: the service manager holds them as well, so clients
//! could connect to one that the server has closed, and would wait for ever. An address of `nbd` at
//! which one listens is served by it. The server neither changes nor removes their files, and never
//! shuts one down, which would also end it for the service manager.

use super::listen::{self, BoundListener};
use crate::keeper::systemd::{self, PassedDescriptor};
use crate::report::with_remedy;
use anyhow::{Context, anyhow};
use forebay_config::{Listen, TlsSettings};
use forebay_control::SocketRights;
use forebay_frontend_nbd::{Listener, TlsSetup};
use rustix::fs::{FileType, Gid, Mode, Uid, stat};
use rustix::io::ioctl_fionbio;
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, getsockname};
use std::ffi::OsStr;
use std::fmt::Write;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The name of sockets for NBD clients (`FileDescriptorName=`).
const NAME: &str = "nbd";

/// An activated socket.
#[derive(Debug)]
pub(super) struct ActivatedSocket {
    number: RawFd,
    socket: OwnedFd,
    address: Listen,
}

/// Takes the sockets that the service manager has passed to this process or to its keeper.
///
/// # Errors
/// The variables of the environment are wrong, or a descriptor is not a listening stream socket at
/// an address that NBD clients can be served at.
pub(super) fn take() -> anyhow::Result<Vec<ActivatedSocket>> {
    let mut taken: Vec<ActivatedSocket> = Vec::new();
    for PassedDescriptor { number, name } in systemd::passed_descriptors()? {
        let what = format!("descriptor {number} ('{name}') of the service manager");
        if name != NAME && name != systemd::NO_NAME && !name.ends_with(systemd::UNIT_SUFFIX) {
            return Err(with_remedy(
                anyhow!("{what} has an unknown name"),
                format!("set FileDescriptorName={NAME} in the socket unit, or remove the line"),
            ));
        }
        let socket = forebay_runtime::inherit(number).map_err(|error| {
            let error = anyhow::Error::new(error).context(format!("{what} cannot be used"));
            with_remedy(error, "let the service manager set LISTEN_FDS, or unset it")
        })?;
        let address = address_of(&socket).context(what)?;
        if let Some(other) = taken.iter().find(|other| is_same(&other.address, &address)) {
            return Err(with_remedy(
                anyhow!(
                    "descriptors {} and {number} of the service manager both listen at {address}",
                    other.number
                ),
                "name each address once, in one socket unit",
            ));
        }
        taken.push(ActivatedSocket { number, socket, address });
    }
    Ok(taken)
}

impl ActivatedSocket {
    /// Prepares the socket for clients, who wait in its queue.
    ///
    /// # Errors
    /// Other machines could reach it without encryption, and TLS is not off explicitly.
    pub(super) fn bind(
        self,
        settings: &TlsSettings,
        tls: &TlsSetup,
    ) -> anyhow::Result<BoundListener> {
        let Self { socket, address, .. } = self;
        check_encryption(&address, settings)?;
        // It is for the service manager, which shares this flag, as well.
        ioctl_fionbio(&socket, true).with_context(|| format!("cannot listen at {address}"))?;
        let is_tcp = matches!(address, Listen::Tcp { .. });
        let listener = Listener::new(socket, is_tcp, tls.clone());
        let (configured, address) = (address.clone(), address.to_string());
        tracing::info!(address, "socket taken from the service manager");
        Ok(BoundListener { listener, configured, address, file: None, port: None, kept: None })
    }
}

/// The addresses of a server's activated sockets.
#[derive(Debug, Default)]
pub(super) struct ActivatedAddresses(Vec<Listen>);

impl ActivatedAddresses {
    pub(super) fn of(sockets: &[ActivatedSocket]) -> Self {
        Self(sockets.iter().map(|socket| socket.address.clone()).collect())
    }

    /// Reads what [`Self::to_text`] has written. Leaves out what cannot be read.
    pub(super) fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    pub(super) fn to_text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, address| {
            // Cannot fail for a text.
            let _ = writeln!(text, "{address}");
            text
        })
    }

    /// Whether this is the address of an activated socket as it is listed.
    pub(super) fn has(&self, address: &Listen) -> bool {
        self.0.contains(address)
    }

    /// The addresses that no activated socket serves.
    pub(super) fn others(&self, nbd: &[Listen]) -> Vec<Listen> {
        nbd.iter().filter(|address| !self.serves(address)).cloned().collect()
    }

    fn serves(&self, address: &Listen) -> bool {
        self.0.iter().any(|activated| is_same(activated, address))
    }

    /// Checks what a start with these settings requires of activated sockets.
    ///
    /// # Errors
    /// As [`Self::check_rights`], and as [`ActivatedSocket::bind`].
    pub(super) fn check(&self, nbd: &[Listen], settings: &TlsSettings) -> anyhow::Result<()> {
        self.check_encryption(settings)?;
        self.check_rights(nbd)
    }

    /// Checks that no other machine can reach one without encryption, unless TLS is off explicitly.
    ///
    /// # Errors
    /// One can.
    pub(super) fn check_encryption(&self, settings: &TlsSettings) -> anyhow::Result<()> {
        self.0.iter().try_for_each(|address| check_encryption(address, settings))
    }

    /// Checks that activated sockets have the rights that `nbd` demands.
    ///
    /// # Errors
    /// One has others, or `nbd` names an unknown user or group.
    pub(super) fn check_rights(&self, nbd: &[Listen]) -> anyhow::Result<()> {
        for address in nbd.iter().filter(|address| self.serves(address)) {
            let Listen::Unix { path, access } = address else { continue };
            let wanted = listen::rights(address, access)?;
            // Without its file, there is nothing that the rights would be of.
            if stat(path).is_ok_and(|found| !has_rights(&found, wanted)) {
                return Err(with_remedy(
                    anyhow!("{address}: the service manager has opened it with other rights"),
                    "set SocketMode=, SocketUser= and SocketGroup= in the socket unit, or remove \
                     mode, owner and group from nbd",
                ));
            }
        }
        Ok(())
    }

    /// Gives the error of an address that is in use a better remedy, if an activated socket is at
    /// its port.
    pub(super) fn explain(&self, address: &Listen, error: anyhow::Error) -> anyhow::Error {
        let is_in_use = error.chain().any(|cause| {
            let cause = cause.downcast_ref::<io::Error>();
            cause.is_some_and(|it| it.kind() == ErrorKind::AddrInUse)
        });
        let Listen::Tcp { port, .. } = address else { return error };
        let has_port =
            |it: &&Listen| matches!(it, Listen::Tcp { port: other, .. } if other == port);
        match self.0.iter().find(has_port).filter(|_| is_in_use) {
            None => error,
            Some(activated) => with_remedy(
                error,
                format!(
                    "the service manager has opened {activated}: name that in nbd instead of \
                     {address}, or neither"
                ),
            ),
        }
    }
}

/// Whether an address of `nbd`, or of another activated socket, is that of an activated one. Paths
/// may lead to the same file over a link.
fn is_same(activated: &Listen, address: &Listen) -> bool {
    match (activated, address) {
        (Listen::Unix { path, .. }, Listen::Unix { path: other, .. }) => {
            path == other || socket_at(path).is_some_and(|found| socket_at(other) == Some(found))
        }
        (Listen::Tcp { host, port }, Listen::Tcp { host: name, port: other }) if port == other => {
            let Ok(ip) = host.parse::<IpAddr>() else { return false };
            // An unknown name is reported when it is bound.
            let found = listen::resolve(name, *other).unwrap_or_default();
            found.iter().any(|found| found.ip() == ip)
        }
        _ => false,
    }
}

/// The device and number of the socket's file at a path.
fn socket_at(path: &Path) -> Option<(u64, u64)> {
    let found = stat(path).ok()?;
    let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    is_socket.then_some((found.st_dev, found.st_ino))
}

fn has_rights(found: &rustix::fs::Stat, wanted: SocketRights) -> bool {
    let SocketRights { mode, owner, group } = wanted;
    mode.is_none_or(|mode| mode == Mode::from_raw_mode(found.st_mode))
        && owner.is_none_or(|owner| owner == Uid::from_raw(found.st_uid))
        && group.is_none_or(|group| group == Gid::from_raw(found.st_gid))
}

fn check_encryption(address: &Listen, settings: &TlsSettings) -> anyhow::Result<()> {
    let Listen::Tcp { host, .. } = address else { return Ok(()) };
    host.parse().map_or(Ok(()), |ip| listen::check_encryption(address, ip, settings))
}

/// The address at which a socket listens, if it is one for NBD clients.
fn address_of(socket: &OwnedFd) -> anyhow::Result<Listen> {
    let stream = "use ListenStream= and no other option that begins with Listen";
    match socket_type(socket) {
        Ok(SocketType::STREAM) => {}
        Ok(SocketType::DGRAM) => return refuse("it is a datagram socket", stream),
        Ok(SocketType::SEQPACKET) => return refuse("it is a sequential-packet socket", stream),
        Ok(_) => return refuse("it is not a stream socket", stream),
        Err(_) => return refuse("it is not a socket", stream),
    }
    let family = socket_domain(socket)?;
    if ![AddressFamily::UNIX, AddressFamily::INET, AddressFamily::INET6].contains(&family) {
        let message = format!("it is a socket of the address family {}", family.as_raw());
        return refuse(&message, "name a path, or an IP address and port, with ListenStream=");
    }
    if !socket_acceptconn(socket)? {
        return refuse("it does not listen for connections", "set Accept=no");
    }
    let local = getsockname(socket.as_fd())?;
    if let Ok(address) = SocketAddr::try_from(local.clone()) {
        return Ok(Listen::Tcp { host: address.ip().to_string(), port: address.port() });
    }
    let local = SocketAddrUnix::try_from(local)?;
    match local.path_bytes() {
        Some(path) => Ok(Listen::unix(OsStr::from_bytes(path))?),
        None => refuse("it is a Unix socket without a path", "name a path with ListenStream="),
    }
}

fn refuse<T>(message: &str, remedy: &str) -> anyhow::Result<T> {
    Err(with_remedy(anyhow!("{message}"), format!("{remedy} in the socket unit")))
}
