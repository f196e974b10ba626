//! The connected clients, and what is known of them: a list, and those that a stop or a removal
//! would disconnect. A client in the kernel may have a file system mounted, which a disconnection
//! would damage.

use super::manager::problem;
use super::slow;
use super::vault::utc;
use forebay_api::{ConnectedClient, ConnectedClients, ErrorKind, Problem, SlowRequests};
use forebay_backend::{device_uses, names_in};
use forebay_control::ClientManager;
use forebay_frontend_nbd::user_name;
use forebay_runtime::{Peer, Runtime};
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// How long clients that have just disconnected may still count as connected.
const GRACE: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(10);
/// How many clients a message names.
const NAMED_MAX: usize = 8;

/// The clients of a volume, or of all, and the number of their connections: the name of the volume,
/// and the client.
struct Connected(BTreeMap<(String, String), usize>);

/// The clients of a runtime.
pub(super) struct ClientsOf {
    pub(super) runtime: Arc<Runtime>,
    /// The number of the server.
    pub(super) instance: Arc<AtomicU64>,
}

impl ClientManager for ClientsOf {
    fn list(&self) -> ConnectedClients {
        // After a stop, there are none.
        let clients = forebay_runtime::clients(&self.runtime).unwrap_or_default();
        let instance = self.instance.load(Ordering::Relaxed);
        ConnectedClients { instance, clients: clients.into_iter().map(listed).collect() }
    }

    fn disconnect(&self, id: u64) -> Result<ConnectedClient, Problem> {
        let clients = forebay_runtime::clients(&self.runtime).map_err(problem)?;
        let client = clients.into_iter().find(|client| client.id == id);
        if let Some(client) = client.filter(|client| matches!(client.peer, Peer::Ublk(_))) {
            let device = described(Path::new("/"), &client.peer);
            let message = format!("client {id} is a queue of {device}, whose requests would fail");
            let remedy = format!(
                "remove the device with `forebay detach {}`",
                client.volume.unwrap_or_default()
            );
            return Err(Problem::new(ErrorKind::InUse, message, remedy));
        }
        let found = forebay_runtime::disconnect(&self.runtime, id).map_err(problem)?;
        let client = listed(found.ok_or_else(|| Problem::unknown_client(id))?);
        tracing::warn!(id, volume = client.volume, client = client.client, "client disconnected");
        Ok(client)
    }

    fn slow_requests(&self, name: Option<&str>) -> Option<SlowRequests> {
        slow::report(&self.runtime, name)
    }
}

fn listed(client: forebay_runtime::ConnectedClient) -> ConnectedClient {
    let root = Path::new("/");
    let joined = client.joined.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (process, user, address) = match &client.peer {
        Peer::Process { id, user } => (Some(*id), Some(*user), None),
        Peer::Address(address) => (None, None, Some(address.to_string())),
        Peer::Ublk(_) | Peer::Unknown => (None, None, None),
    };
    ConnectedClient {
        id: client.id,
        volume: client.volume,
        client: described(root, &client.peer),
        address,
        process,
        program: process.and_then(|process| program(root, process)),
        user: user.map(|user| user_name(user).unwrap_or_else(|| user.to_string())),
        connected_at: utc(joined.as_secs()),
        tls: client.is_encrypted,
        requests_in_flight: client.requests as u64,
        read_bytes: client.read_bytes,
        written_bytes: client.written_bytes,
    }
}

/// Refuses to disconnect the clients of a volume, or of all.
///
/// # Errors
/// There are some. The problem names them.
pub(super) fn refuse_connected(runtime: &Runtime, volume: Option<&str>) -> Result<(), Problem> {
    let until = Instant::now() + GRACE;
    loop {
        let connected = Connected::find(runtime, volume);
        if connected.0.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(connected.problem(volume));
        }
        std::thread::sleep(POLL);
    }
}

/// Logs the clients of a volume, or of all, which are about to be disconnected.
pub(super) fn log_connected(runtime: &Runtime, volume: Option<&str>) {
    let Connected(clients) = Connected::find(runtime, volume);
    for ((volume, client), connections) in clients.iter().take(NAMED_MAX) {
        tracing::warn!(%volume, %client, connections, "disconnecting a client");
    }
    if let more @ 1.. = clients.len().saturating_sub(NAMED_MAX) {
        tracing::warn!(more, "disconnecting further clients");
    }
}

impl Connected {
    fn find(runtime: &Runtime, volume: Option<&str>) -> Self {
        // After a stop, there are none.
        let connected = forebay_runtime::clients(runtime).unwrap_or_default();
        let entered =
            connected.into_iter().filter_map(|client| Some((client.volume?, client.peer)));
        let mut clients = BTreeMap::new();
        for (name, peer) in entered.filter(|(name, _)| volume.is_none_or(|it| it == name)) {
            *clients.entry((name, described(Path::new("/"), &peer))).or_default() += 1;
        }
        Self(clients)
    }

    fn problem(&self, volume: Option<&str>) -> Problem {
        let described = self.0.iter().take(NAMED_MAX).map(|((name, client), connections)| {
            let to = if volume.is_none() { format!(" to '{name}'") } else { String::new() };
            match connections {
                1 => format!("{client}{to}"),
                _ => format!("{client}{to} ({connections} connections)"),
            }
        });
        let mut list = described.collect::<Vec<_>>().join("; ");
        if let more @ 1.. = self.0.len().saturating_sub(NAMED_MAX) {
            list += &format!("; and {more} more");
        }
        let (subject, command) = match volume {
            Some(name) => {
                let command = format!("forebay volume remove {name} --force");
                (format!("volume '{name}' has clients"), command)
            }
            None => ("clients are connected".to_owned(), "forebay stop --force".to_owned()),
        };
        let remedy = format!("unmount and disconnect them, or cut them off with `{command}`");
        Problem::new(ErrorKind::InUse, format!("{subject}: {list}"), remedy)
    }
}

/// A client with what the machine at `root` knows of it.
fn described(root: &Path, peer: &Peer) -> String {
    let process = match peer {
        Peer::Process { id, .. } => id,
        Peer::Ublk(device) => return device_in_use(root, &format!("ublkb{device}")),
        Peer::Unknown | Peer::Address(_) => return peer.to_string(),
    };
    let name = program(root, *process).map(|name| format!(" ({name})")).unwrap_or_default();
    let devices = kernel_devices(root, *process);
    let devices = devices.iter().map(|device| format!(", {device}")).collect::<String>();
    format!("{peer}{name}{devices}")
}

/// The name of a process's program, while it runs.
fn program(root: &Path, process: u32) -> Option<String> {
    let name = read_to_string(root.join(format!("proc/{process}/comm"))).ok()?;
    let name = name.trim_end();
    (!name.is_empty()).then(|| name.to_owned())
}

/// The devices of the kernel's client that a process has connected, and where they are in use.
fn kernel_devices(root: &Path, process: u32) -> Vec<String> {
    let names = names_in(&root.join("sys/block"));
    let process = process.to_string();
    let of_process = names.into_iter().filter(|name| {
        let owner = root.join("sys/block").join(name).join("pid");
        name.starts_with("nbd") && read_to_string(owner).is_ok_and(|pid| pid.trim() == process)
    });
    of_process.map(|name| device_in_use(root, &name)).collect()
}

/// A device of the kernel, and where it and its partitions are in use.
fn device_in_use(root: &Path, name: &str) -> String {
    let uses = device_uses(root, &root.join("sys/block").join(name));
    [format!("/dev/{name}"), uses.join(", ")].join(" ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_in_the_kernel_is_described_with_its_mounts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/812/comm", "nbd-client\n");
        write("proc/7/comm", "qemu-system-x86\n");
        for (device, pid, number) in [("nbd0", "812\n", "43:0\n"), ("nbd1", "9\n", "43:32\n")] {
            write(&format!("sys/block/{device}/pid"), pid);
            write(&format!("sys/block/{device}/dev"), number);
        }
        write("sys/block/nbd0/nbd0p1/dev", "43:1\n");
        write("sys/block/nbd0/nbd0p2/dev", "43:2\n");
        write("sys/block/nbd0/nbd0p2/holders/dm-3", "");
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      90 22 43:1 / /srv/my\\040files rw - ext4 /dev/nbd0p1 rw\n\
                      91 22 43:32 / /mnt rw - ext4 /dev/nbd1 rw\n\
                      92 22 259:4 / /srv rw - xfs /dev/forebay/db rw\n";
        write("proc/self/mountinfo", mounts);
        write("sys/block/ublkb3/dev", "259:4\n");
        let described = |peer| described(root.path(), &peer);
        let process = |id| Peer::Process { id, user: 0 };
        assert_eq!(
            described(process(812)),
            "process 812 (nbd-client), /dev/nbd0 mounted at /srv/my\\040files, used by dm-3"
        );
        assert_eq!(described(process(9)), "process 9, /dev/nbd1 mounted at /mnt");
        assert_eq!(described(Peer::Ublk(3)), "/dev/ublkb3 mounted at /srv");
        assert_eq!(described(process(7)), "process 7 (qemu-system-x86)");
        assert_eq!(described(Peer::Address("[::1]:10809".into())), "[::1]:10809");
        let clients = (0..10).map(|n| (("v".to_owned(), format!("process {n}")), 1 + n / 9));
        let connected = Connected(clients.collect());
        let problem = connected.problem(Some("v"));
        assert!(problem.message.starts_with("volume 'v' has clients: process 0; process 1; "));
        assert!(problem.message.ends_with("; process 7; and 2 more"), "{problem}");
        let all = Connected([(("v".to_owned(), "process 9".to_owned()), 2)].into());
        let all = all.problem(None).message;
        assert_eq!(all, "clients are connected: process 9 to 'v' (2 connections)");
    }
}
