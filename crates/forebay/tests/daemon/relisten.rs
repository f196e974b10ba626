//! Changes of the addresses by a reload.

use crate::common::client::{Client, PATIENCE, config};
use crate::common::wait_until;
use crate::process::{Daemon, is_served, on_one_line};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// A daemon with a configuration file, and its directory.
pub struct Configured {
    directory: tempfile::TempDir,
    daemon: Option<Daemon>,
}

impl Configured {
    pub fn start(io: &str, settings: &str) -> Self {
        Self::start_with(io, "no", settings)
    }

    fn start_with(io: &str, keeper: &str, settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let this = Self { directory, daemon: None };
        this.write(settings);
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args([
            "serve",
            "--io",
            io,
            "--memory",
            "64MiB",
            "--workers",
            "2",
            "--keeper",
            keeper,
        ]);
        command.arg("--state").arg(this.at("state")).stdin(Stdio::null());
        command.arg("--config").arg(this.at("forebay.toml"));
        let mut daemon = Daemon::spawn(command, this.at("first.sock"));
        daemon.set_kept(keeper == "yes");
        Self { daemon: Some(daemon), ..this }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the file. `DIR` in it is the directory.
    pub fn write(&self, settings: &str) {
        let volume = "[[volume]]\nname = 'disk'\nbacking = 'memory:1MiB'\n";
        let settings = settings.replace("DIR", self.directory.path().to_str().unwrap());
        fs::write(self.at("forebay.toml"), format!("{settings}\n{volume}")).unwrap();
    }

    pub fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    pub fn reload(&self, settings: &str) {
        self.write(settings);
        let (code, said) = self.daemon().run(&["reload"]);
        assert_eq!(code, Some(0), "{said}");
    }

    /// Why a reload fails.
    pub fn refused(&self, settings: &str) -> String {
        self.write(settings);
        let (code, said) = self.daemon().run(&["reload"]);
        assert_eq!(code, Some(1), "{said}");
        on_one_line(&said)
    }

    fn listeners(&self) -> Vec<String> {
        let listeners = self.daemon().status()["listeners"].clone();
        listeners.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    }

    pub fn stop(mut self) {
        self.daemon.take().unwrap().stop();
        let sockets = fs::read_dir(self.directory.path()).unwrap();
        let left = sockets
            .filter(|it| it.as_ref().unwrap().path().extension().is_some_and(|it| it == "sock"));
        assert_eq!(left.count(), 0, "the files of sockets are removed");
    }
}

/// The next server has the sockets that the reload has opened and changed, and their clients, and
/// not the one that the reload has closed.
#[test]
fn addresses_that_a_reload_has_changed_go_to_the_next_server() {
    let (removed, opened) = (free_port(), free_port());
    let nbd = |port: u16, access: &str| {
        format!("nbd = ['unix:DIR/first.sock{access}', 'tcp:127.0.0.1:{port}']")
    };
    let on = Configured::start_with("auto", "yes", &nbd(removed, ""));
    let mut stays = over_tcp(removed);
    let server = on.daemon().server().as_raw_nonzero();
    // Opened, closed and opened again.
    let mut closed = vec![listener_at(removed)];
    on.reload(&nbd(opened, ""));
    closed.push(listener_at(opened));
    on.reload(&nbd(removed, ""));
    closed.push(listener_at(removed));
    on.reload(&nbd(opened, ",mode=0600"));
    wait_until("the closed sockets are let go", PATIENCE, || {
        let held = sockets_of(server);
        assert!(held.contains(&listener_at(opened)), "the open one is held");
        !closed.iter().any(|it| held.contains(it))
    });
    let mut local = on.daemon().client("disk");
    let mut new = over_tcp(opened);
    assert!(TcpStream::connect(("127.0.0.1", removed)).is_err(), "it is closed at the reload");
    let inode = fs::metadata(on.at("first.sock")).unwrap().ino();
    let (code, said) = on.daemon().run(&["upgrade"]);
    assert_eq!(code, Some(0), "{said}");
    for (client, byte) in [(&mut stays, 1), (&mut new, 2)] {
        client.write(4096, &[byte; 512]).unwrap();
        assert_eq!(client.read(4096, 512).unwrap(), [byte; 512]);
    }
    assert_eq!(local.read(4096, 512).unwrap(), [2; 512]);
    assert_eq!(fs::metadata(on.at("first.sock")).unwrap().ino(), inode, "the same socket");
    assert_eq!(mode_of(&on.at("first.sock")), 0o600);
    over_tcp(opened).read(0, 512).unwrap();
    assert!(TcpStream::connect(("127.0.0.1", removed)).is_err(), "it does not come back");
    drop((stays, new, local));
    on.stop();
}

/// A port that is free now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The inode of the socket that listens at the port, as the kernel names it in descriptors.
fn listener_at(port: u16) -> String {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let inode = table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let listens = fields[1] == format!("0100007F:{port:04X}") && fields[3] == "0A";
        listens.then(|| format!("socket:[{}]", fields[9]))
    });
    inode.unwrap_or_else(|| panic!("nothing listens at port {port}: {table}"))
}

/// The sockets that the process holds.
fn sockets_of(process: impl std::fmt::Display) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let targets =
        files.filter_map(|it| fs::read_link(it.path()).ok()?.into_os_string().into_string().ok());
    targets.filter(|it| it.starts_with("socket:")).collect()
}

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

/// A client of the volume over TCP.
fn over_tcp(port: u16) -> Client<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Client::enter(stream, &config("disk")).unwrap()
}

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn addresses_are_opened_and_closed_and_clients_stay_connected() {
    for io in ["epoll", "auto"] {
        let served = Configured::start(io, "nbd = ['unix:DIR/first.sock']");
        let mut client = Client::new(&served.at("first.sock"), "disk");
        client.write(0, &[7; 4096]).unwrap();
        let port = free_port();
        served.reload(&format!("nbd = ['unix:DIR/second.sock', 'tcp:127.0.0.1:{port}']"));
        assert!(!served.at("first.sock").exists());
        assert_eq!(client.read(0, 4096), Ok(vec![7; 4096]), "the client stays connected");
        assert_eq!(Client::new(&served.at("second.sock"), "disk").read(0, 4096), Ok(vec![7; 4096]));
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
        assert_eq!(served.listeners().len(), 2);
        served.daemon().wait_for_log("listener closed");
        let log = served.daemon().log_so_far();
        let closed = log.lines().find(|line| line.contains("listener closed")).unwrap();
        assert!(closed.contains("first.sock") && closed.contains("clients=1"), "{closed}");
        // The port is closed at once, and can be opened again.
        for _ in 0..3 {
            served.reload("nbd = ['unix:DIR/second.sock']");
            wait_until("the port is closed", PATIENCE, || {
                TcpStream::connect(("127.0.0.1", port)).is_err()
            });
            served.reload(&format!("nbd = ['unix:DIR/second.sock', 'tcp:127.0.0.1:{port}']"));
            TcpStream::connect(("127.0.0.1", port)).unwrap();
        }
        served.reload("nbd = ['unix:DIR/first.sock']");
        assert_eq!(Client::new(&served.at("first.sock"), "disk").read(0, 4096), Ok(vec![7; 4096]));
        assert_eq!(client.read(0, 4096), Ok(vec![7; 4096]));
        served.stop();
    }
}

#[test]
fn no_client_fails_that_connects_while_the_addresses_change() {
    for io in ["epoll", "auto"] {
        let served = Configured::start(io, "nbd = ['unix:DIR/first.sock']");
        let (first, second) = (served.at("first.sock"), served.at("second.sock"));
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !has_ended.load(Ordering::Relaxed) {
                        // Who finds a socket is served, also while it is being closed.
                        for path in [&first, &second] {
                            if let Ok(stream) = UnixStream::connect(path) {
                                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                                let mut client = Client::enter(stream, &config("disk")).unwrap();
                                assert!(client.read(0, 4096).is_ok());
                            }
                        }
                    }
                });
            }
            for change in 0..20 {
                let name = ["second", "first"][change % 2];
                served.reload(&format!("nbd = ['unix:DIR/{name}.sock']"));
            }
            has_ended.store(true, Ordering::Relaxed);
        });
        served.stop();
    }
}

#[test]
fn an_address_that_cannot_be_opened_refuses_the_whole_reload() {
    let served = Configured::start("auto", "nbd = ['unix:DIR/first.sock,mode=0600']");
    let before = served.listeners();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    fs::write(served.at("file"), "precious").unwrap();
    for (nbd, said) in [
        (format!("'unix:DIR/new.sock', 'tcp:127.0.0.1:{port}'"), "stop the program that listens"),
        ("'unix:DIR/new.sock', 'unix:DIR/file'".to_owned(), "is a regular file, not a socket"),
        ("'unix:DIR/new.sock', 'unix:DIR/none/new.sock'".to_owned(), "there is no directory"),
        ("'unix:DIR/new.sock', 'tcp:0.0.0.0:0'".to_owned(), "can be reached from other machines"),
        (
            "'unix:DIR/new.sock', 'unix:DIR/first.sock,group=no-such-group'".to_owned(),
            "there is no group 'no-such-group'",
        ),
    ] {
        let text = served.refused(&format!("nbd = [{nbd}]\nlog = 'warn'"));
        assert!(text.contains("configuration unchanged") && text.contains(said), "{text}");
        assert!(!served.at("new.sock").exists(), "{nbd}");
    }
    // Neither the others of its addresses, nor the ports of metrics and the dashboard.
    let settings = format!("nbd = ['unix:DIR/first.sock,mode=0666']\nmetrics = '127.0.0.1:{port}'");
    let text = served.refused(&settings);
    assert!(text.contains("cannot serve metrics"), "{text}");
    let settings =
        format!("nbd = ['unix:DIR/first.sock,mode=0666']\ndashboard = '127.0.0.1:{port}'");
    let text = served.refused(&settings);
    assert!(text.contains("--dashboard HOST:PORT"), "{text}");
    assert_eq!(mode_of(&served.at("first.sock")), 0o600, "the rights are restored");
    assert_eq!(served.listeners(), before);
    assert_eq!(Client::new(&served.at("first.sock"), "disk").read(0, 512), Ok(vec![0; 512]));
    assert_eq!(fs::read_to_string(served.at("file")).unwrap(), "precious");
    served.stop();
}

#[test]
fn a_socket_whose_rights_change_stays_the_same() {
    let served = Configured::start("auto", "nbd = ['unix:DIR/first.sock']");
    let path = served.at("first.sock");
    let (default_mode, inode) = (mode_of(&path), fs::symlink_metadata(&path).unwrap().ino());
    let mut client = Client::new(&path, "disk");
    let group = fs::metadata(served.directory.path()).unwrap().gid();
    served.reload(&format!("nbd = ['unix:DIR/first.sock,mode=0606,group={group}']"));
    let found = fs::symlink_metadata(&path).unwrap();
    assert_eq!((mode_of(&path), found.gid(), found.ino()), (0o606, group, inode));
    assert!(served.listeners()[0].ends_with(&format!("first.sock,mode=0606,group={group}")));
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
    served.reload("nbd = ['unix:DIR/first.sock']");
    let found = fs::symlink_metadata(&path).unwrap();
    assert_eq!((mode_of(&path), found.ino()), (default_mode, inode));
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
    assert!(!served.daemon().log_so_far().contains("listener closed"));
    // The file is deleted with the state directory, or by mistake, and made again as configured.
    served.reload("nbd = ['unix:DIR/first.sock,mode=0600']");
    served.stop();
}

#[test]
fn an_address_may_include_one_that_it_replaces() {
    let port = free_port();
    let at =
        |host: &str| format!("nbd = ['unix:DIR/first.sock', 'tcp:{host}:{port}']\ntls = 'off'");
    let served = Configured::start("auto", &at("127.0.0.1"));
    let mut client = over_tcp(port);
    for host in ["0.0.0.0", "127.0.0.1", "localhost", "127.0.0.1"] {
        served.reload(&at(host));
        assert_eq!(over_tcp(port).read(0, 512), Ok(vec![0; 512]), "{host}");
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
        // The port is not shared with other programs.
        assert!(TcpListener::bind(("127.0.0.1", port)).is_err());
    }
    // The port of one server may become that of another.
    served.reload(&format!("nbd = ['unix:DIR/first.sock']\nmetrics = '127.0.0.1:{port}'"));
    assert!(get(port, "/metrics").starts_with("HTTP/1.1 200"));
    served.reload(&format!("nbd = ['unix:DIR/first.sock']\ndashboard = '127.0.0.1:{port}'"));
    assert!(get(port, "/").starts_with("HTTP/1.1 200"));
    served.stop();
}

#[test]
fn metrics_and_the_dashboard_are_opened_moved_and_closed() {
    let served = Configured::start("auto", "nbd = ['unix:DIR/first.sock']");
    let link = served.at("state").join("dashboard.url");
    let base = "nbd = ['unix:DIR/first.sock']\n";
    let mut former = None;
    for _ in 0..2 {
        let (metrics, dashboard) = (free_port(), free_port());
        served.reload(&format!(
            "{base}metrics = '127.0.0.1:{metrics}'\ndashboard = '127.0.0.1:{dashboard}'"
        ));
        assert!(get(metrics, "/metrics").starts_with("HTTP/1.1 200"));
        assert!(get(dashboard, "/").starts_with("HTTP/1.1 200"));
        let text = fs::read_to_string(&link).unwrap();
        assert!(text.contains(&format!(":{dashboard}/#token=")), "{text}");
        if let Some(ports) = former.replace([metrics, dashboard]) {
            wait_until("the former ports are closed", PATIENCE, || {
                ports.iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_err())
            });
        }
        assert!(link.exists());
    }
    let [_, dashboard] = former.unwrap();
    let tokens = served.at("tokens");
    fs::write(&tokens, "operate 0123456789abcdef0123\n").unwrap();
    fs::set_permissions(&tokens, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let dashboard = format!("dashboard = '127.0.0.1:{dashboard}'");
    served.reload(&format!("{base}{dashboard}\ndashboard-tokens = 'DIR/tokens'"));
    assert!(!fs::read_to_string(&link).unwrap().contains("#token="), "the file has the tokens");
    served.reload(&format!("{base}{dashboard}"));
    assert!(fs::read_to_string(&link).unwrap().contains("#token="));
    served.reload(base);
    assert!(!link.exists());
    served.stop();
}

#[test]
fn a_socket_that_is_deleted_is_made_again_at_its_new_address_only() {
    let served = Configured::start("auto", "nbd = ['unix:DIR/first.sock']");
    served.reload("nbd = ['unix:DIR/second.sock,mode=0600']");
    // The server makes the state directory and all its sockets again.
    fs::remove_file(served.at("second.sock")).unwrap();
    fs::remove_dir_all(served.at("state")).unwrap();
    wait_until("the socket is made again", PATIENCE, || is_served(&served.at("second.sock")));
    assert_eq!(mode_of(&served.at("second.sock")), 0o600);
    assert!(!served.at("first.sock").exists());
    assert_eq!(served.listeners().len(), 1);
    served.stop();
}

/// A virtual machine monitor that is connected to the socket of a volume.
struct Monitor(UnixStream);

impl Monitor {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Asks for the features of the device (`VHOST_USER_GET_FEATURES`).
    fn is_served(&mut self) -> bool {
        let [request, version, len] = [1u32, 1, 0].map(u32::to_le_bytes);
        let mut answer = [0; 20];
        self.0.write_all(&[request, version, len].concat()).is_ok()
            && self.0.read_exact(&mut answer).is_ok()
    }
}

#[test]
fn sockets_for_virtual_machines_change_and_monitors_stay_connected() {
    let base = "nbd = ['unix:DIR/first.sock']";
    let served = Configured::start("auto", base);
    let (guests, others) = (served.at("guests/disk.sock"), served.at("others/disk.sock"));
    served.reload(&format!("{base}\nvhost-user = 'DIR/guests'"));
    let mut first = Monitor::connect(&guests);
    assert!(first.is_served());
    // A client that can connect to a socket is served.
    let mut waiting = Monitor::connect(&guests);
    served.reload(&format!("{base}\nvhost-user = 'DIR/others,mode=0600'"));
    assert!(!guests.exists());
    assert_eq!(mode_of(&others), 0o600);
    let mut second = Monitor::connect(&others);
    assert!(first.is_served() && waiting.is_served() && second.is_served());
    let inode = fs::metadata(&others).unwrap().ino();
    served.reload(&format!("{base}\nvhost-user = 'DIR/others,mode=0660'"));
    assert_eq!((mode_of(&others), fs::metadata(&others).unwrap().ino()), (0o660, inode));
    // A reload without a change makes what was deleted again.
    fs::remove_dir_all(served.at("others")).unwrap();
    served.reload(&format!("{base}\nvhost-user = 'DIR/others,mode=0660'"));
    assert_eq!(mode_of(&others), 0o660);
    assert!(Monitor::connect(&others).is_served());
    served.reload(base);
    assert!(!others.exists());
    assert!(first.is_served() && waiting.is_served() && second.is_served());
    // A volume that is added has a socket in the present directory.
    served.reload(&format!("{base}\nvhost-user = 'DIR/guests'"));
    let (code, said) = served.daemon().run(&["volume", "add", "more=memory:1MiB"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(Monitor::connect(&served.at("guests/more.sock")).is_served());
    assert!(Monitor::connect(&guests).is_served());
    served.stop();
}

#[test]
fn a_directory_for_virtual_machines_that_cannot_be_used_refuses_the_reload() {
    let base = "nbd = ['unix:DIR/first.sock']";
    let guests = "vhost-user = 'DIR/guests,mode=0600'";
    let served = Configured::start("auto", &format!("{base}\n{guests}"));
    let socket = served.at("guests/disk.sock");
    wait_until("the socket for monitors is there", PATIENCE, || socket.exists());
    let mut monitor = Monitor::connect(&socket);
    assert!(monitor.is_served());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    fs::write(served.at("file"), "precious").unwrap();
    fs::create_dir(served.at("blocked")).unwrap();
    fs::write(served.at("blocked/disk.sock"), "precious").unwrap();
    for (settings, said) in [
        ("vhost-user = 'DIR/file'".to_owned(), "choose another directory"),
        ("vhost-user = 'DIR/blocked'".to_owned(), "is a regular file, not a socket"),
        // The dashboard comes later, and everything before it is undone.
        (
            format!("vhost-user = 'DIR/fresh'\ndashboard = '127.0.0.1:{port}'"),
            "--dashboard HOST:PORT",
        ),
        (
            format!("vhost-user = 'DIR/guests,mode=0666'\ndashboard = '127.0.0.1:{port}'"),
            "--dashboard HOST:PORT",
        ),
        (format!("dashboard = '127.0.0.1:{port}'"), "--dashboard HOST:PORT"),
    ] {
        let text = served.refused(&format!("{base}\n{settings}"));
        assert!(text.contains("configuration unchanged") && text.contains(said), "{text}");
        assert!(!served.at("fresh").exists());
        assert_eq!(mode_of(&socket), 0o600);
        assert!(monitor.is_served() && Monitor::connect(&socket).is_served());
    }
    assert_eq!(fs::read_to_string(served.at("blocked/disk.sock")).unwrap(), "precious");
    served.stop();
}
