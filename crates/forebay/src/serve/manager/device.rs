//! Serves volumes on block devices that the kernel has made for them.

use super::Daemon;
use forebay_api::{ConnectDevice, ConnectedDevice, ErrorKind, Problem, ServeDevice, ServedDevice};
use forebay_config::{Listen, TlsMode};
use forebay_control::{ClientManager, DeviceManager};
use forebay_frontend::check_can_serve_io;
use forebay_frontend_ublk::{Device, DeviceError};
use forebay_types::{SECTOR_BYTES, TlsUse};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// The block devices of a server.
pub(super) struct ServedDevices<'a>(pub(super) &'a Daemon);

impl DeviceManager for ServedDevices<'_> {
    fn serve(&self, volume: &str, request: &ServeDevice) -> Result<ServedDevice, Problem> {
        serve(self.0, volume, request)
    }

    fn connect(&self, volume: &str, request: &ConnectDevice) -> Result<ConnectedDevice, Problem> {
        connect(self.0, volume, request)
    }
}

/// Serves a volume on a device, and returns what the device's maker has to tell the kernel.
fn serve(daemon: &Daemon, name: &str, request: &ServeDevice) -> Result<ServedDevice, Problem> {
    let served = describe(daemon, name)?;
    let path = PathBuf::from(format!("/dev/ublkc{}", request.ublk));
    let shape = (request.queues, request.depth);
    let device = Device::open((path, request.ublk), shape, name).map_err(|error| {
        let remedy = match &error {
            DeviceError::Open { .. } => "attach the volume with `forebay attach`, as root",
            DeviceError::Map { .. } => "check that the device has as many queues and requests",
            DeviceError::Shape { .. } => "use up to 64 queues with up to 4096 requests each",
        };
        Problem::new(ErrorKind::Invalid, error.to_string(), remedy)
    })?;
    daemon.ublk.serve(device).map_err(|error| {
        let message = format!("volume '{name}' cannot be served on a block device: {error}");
        Problem::new(ErrorKind::Busy, message, "try again, or start the server with io=io_uring")
    })?;
    tracing::info!(volume = %name, ublk = request.ublk, "volume served on a block device");
    Ok(served)
}

/// Says where the kernel's NBD client connects a block device to a volume.
fn connect(
    daemon: &Daemon,
    name: &str,
    request: &ConnectDevice,
) -> Result<ConnectedDevice, Problem> {
    let device = describe(daemon, name)?;
    check_plain(daemon, name)?;
    check_replaceable(daemon, name, request)?;
    let listeners: Vec<_> =
        daemon.state().listeners.iter().map(|listener| listener.address.clone()).collect();
    let (unix, tcp) = local_address(&listeners).ok_or_else(|| {
        let message = "the server has no NBD listener that a block device could be connected to";
        let remedy = "give it one, as in nbd = [\"unix:/run/forebay/nbd.sock\"], or use ublk";
        Problem::new(ErrorKind::Invalid, message, remedy)
    })?;
    if let Err(error) = check_can_serve_io() {
        tracing::warn!(
            volume = %name,
            %error,
            "workers cannot be marked as ones that serve I/O: without CAP_SYS_RESOURCE, a shortage \
             of memory may make them wait for the block device that they serve"
        );
    }
    Ok(ConnectedDevice { device, instance: instance(daemon), unix, tcp })
}

/// Identifies this server, and those whose clients it has taken over.
fn instance(daemon: &Daemon) -> u64 {
    daemon.to_next.instance().load(Ordering::Relaxed)
}

/// Refuses a volume that is available over TLS only.
fn check_plain(daemon: &Daemon, name: &str) -> Result<(), Problem> {
    let mode = daemon.state().config.tls.mode;
    let setting = match mode {
        TlsMode::Forced => "the server has tls=forced".to_owned(),
        _ if daemon.spec_of(name)?.config.tls == TlsUse::Required => {
            format!("volume '{name}' has tls=required")
        }
        _ => return Ok(()),
    };
    let message = format!("{setting}, which the kernel's NBD client does not support");
    let remedy = "attach it with --as ublk, which uses no socket, or relax the setting";
    Err(Problem::new(ErrorKind::Invalid, message, remedy))
}

/// Refuses another connection while requests of an earlier one are in flight: a write of them would
/// be carried out after its repetition, and after newer ones.
fn check_replaceable(daemon: &Daemon, name: &str, request: &ConnectDevice) -> Result<(), Problem> {
    let Some(earlier) = request.replaces.filter(|it| it.instance == instance(daemon)) else {
        return Ok(());
    };
    let is_there = daemon.clients.list().clients.iter().any(|it| it.id == earlier.client);
    let left = forebay_runtime::has_left_requests(&daemon.runtime, name);
    if !is_there && !left.map_err(super::problem)? {
        return Ok(());
    }
    let message = format!("requests of an earlier connection to volume '{name}' are in flight");
    let remedy = "try again when the disk has answered: see `forebay slow`";
    Err(Problem::new(ErrorKind::Busy, message, remedy))
}

/// The path of the first Unix socket, or else the first TCP address as this machine reaches it.
fn local_address(listeners: &[String]) -> Option<(Option<String>, Option<String>)> {
    let listeners: Vec<Listen> = listeners.iter().filter_map(|text| text.parse().ok()).collect();
    let unix = listeners.iter().find_map(|it| match it {
        Listen::Unix { path, .. } => Some(std::path::absolute(path).ok()?.display().to_string()),
        Listen::Tcp { .. } => None,
    });
    let tcp = listeners.iter().find_map(|it| match it {
        Listen::Tcp { host, port } => Some(reachable(host, *port)),
        Listen::Unix { .. } => None,
    });
    match (unix, tcp) {
        (None, None) => None,
        (Some(unix), _) => Some((Some(unix), None)),
        (None, tcp) => Some((None, tcp)),
    }
}

/// An address to connect to, of one to listen at.
fn reachable(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) if ip.is_unspecified() => format!("{}:{port}", Ipv4Addr::LOCALHOST),
        Ok(IpAddr::V6(ip)) if ip.is_unspecified() => format!("[{}]:{port}", Ipv6Addr::LOCALHOST),
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}

/// What the kernel has to know of a volume.
pub(super) fn describe(daemon: &Daemon, name: &str) -> Result<ServedDevice, Problem> {
    daemon.spec_of(name)?;
    let figures = daemon.runtime.status_of(name).map_err(super::problem)?;
    let volume = &figures.volumes[0];
    let disk = &volume.backing;
    let block_bytes = disk.alignment_bytes.next_power_of_two().max(SECTOR_BYTES as u32);
    // What is on an image counts in sectors, whatever its file system needs.
    let logical_block_bytes = if is_block_device(&disk.name) { block_bytes } else { 512 };
    let stripe = u32::try_from(volume.geometry.stripe_bytes).unwrap_or(0);
    Ok(ServedDevice {
        pid: std::process::id(),
        size_bytes: disk.size_bytes(),
        read_only: volume.read_only,
        rotational: volume.geometry.rotational == Some(true),
        logical_block_bytes,
        physical_block_bytes: block_bytes.max(4096),
        optimal_bytes: if stripe.is_power_of_two() { stripe } else { 0 },
        can_discard: disk.can_discard,
    })
}

fn is_block_device(path: &str) -> bool {
    std::fs::metadata(Path::new(path)).is_ok_and(|file| file.file_type().is_block_device())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_connected_to_a_unix_socket_or_else_over_tcp() {
        let of = |listeners: &[&str]| {
            let listeners: Vec<String> = listeners.iter().map(|it| (*it).to_owned()).collect();
            local_address(&listeners).map(|(unix, tcp)| unix.or(tcp).unwrap_or_default())
        };
        assert_eq!(of(&[]), None);
        let unix = "unix:/run/nbd.sock,mode=0660,group=disk";
        assert_eq!(of(&["tcp:0.0.0.0:7", unix]).unwrap(), "/run/nbd.sock");
        assert_eq!(of(&["tcp:0.0.0.0:7"]).unwrap(), "127.0.0.1:7");
        assert_eq!(of(&["tcp:[::]:7"]).unwrap(), "[::1]:7");
        assert_eq!(of(&["tcp:[fe80::1]:7"]).unwrap(), "[fe80::1]:7");
        assert_eq!(of(&["tcp:db.example:7", "tcp:[::1]:8"]).unwrap(), "db.example:7");
    }
}
