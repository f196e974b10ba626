//! Sockets that a service manager has opened (systemd.socket(5)).

use crate::common::client::{Client, PATIENCE, config, connect};
use crate::common::wait_until;
use crate::handover::{STORED_QUEUE, Store, background};
use crate::process::{Daemon, make_file, on_one_line, run_forebay, wait_for_exit};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// `forebay serve` with descriptors from 3 on, as systemd passes them: up to two that are its
/// standard input and output first, and a third that is its standard error first.
fn serve(
    directory: &Path,
    (count, names): (&str, Option<&str>),
    arguments: &[&str],
    has_third: bool,
) -> Command {
    let third = match has_third {
        true => "exec 5<&2 2>>\"$LOG\"; ",
        false => "",
    };
    let script =
        format!("exec 3<&0 4<&1; {third}exec 0</dev/null 1>&2; export LISTEN_PID=$$; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_forebay")]);
    command.args(["serve", "--memory", "64MiB", "--workers", "2", "--log", "info"]);
    command.args(["--background", "full", "--state"]).arg(directory.join("state"));
    command.args(arguments).env("LISTEN_FDS", count).env("LOG", directory.join("log"));
    match names {
        Some(names) => command.env("LISTEN_FDNAMES", names),
        None => command.env_remove("LISTEN_FDNAMES"),
    };
    command
}

/// A service manager with a Unix socket at `nbd.sock` and a TCP socket.
struct Manager {
    directory: tempfile::TempDir,
    unix: OwnedFd,
    tcp: OwnedFd,
    port: u16,
}

impl Manager {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        make_file(directory.path().join("disk.img"), 1 << 20);
        let unix = UnixListener::bind(directory.path().join("nbd.sock")).unwrap().into();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        Self { directory, unix, tcp: tcp.into(), port }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn volume(&self) -> String {
        format!("disk={},mode=write-through", self.at("disk.img").display())
    }

    /// Writes the configuration with these addresses, and returns its path.
    fn configure(&self, nbd: &str) -> String {
        let (path, image) = (self.at("forebay.toml"), self.at("disk.img"));
        let volume = format!("[[volume]]\nname = 'disk'\nbacking = '{}'\n", image.display());
        fs::write(&path, format!("tls = 'off'\nnbd = [{nbd}]\n{volume}")).unwrap();
        path.into_os_string().into_string().unwrap()
    }

    /// Starts the service, and waits until it serves.
    fn start(&self, keeper: &str, arguments: &[&str]) -> Daemon {
        let names = Some("nbd:forebay-tcp.socket");
        let arguments = [&["--keeper", keeper], arguments].concat();
        let mut command = serve(self.directory.path(), ("2", names), &arguments, false);
        command.stdin(self.unix.try_clone().unwrap()).stdout(self.tcp.try_clone().unwrap());
        let mut daemon = Daemon::spawn(command, self.at("nbd.sock"));
        daemon.set_kept(keeper == "yes");
        wait_until("the server answers", PATIENCE, || daemon.run(&["status"]).0 == Some(0));
        daemon
    }

    fn connect(&self) -> (UnixStream, TcpStream) {
        let tcp = TcpStream::connect(("127.0.0.1", self.port)).expect("never refused");
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        (connect(&self.at("nbd.sock")), tcp)
    }

    fn addresses(&self) -> [String; 2] {
        let unix = format!("unix:{}", self.at("nbd.sock").display());
        [unix, format!("tcp:127.0.0.1:{}", self.port)]
    }

    fn file(&self) -> u64 {
        fs::symlink_metadata(self.at("nbd.sock")).unwrap().ino()
    }
}

fn listeners(daemon: &Daemon) -> Vec<String> {
    let listeners = daemon.status()["listeners"].clone();
    listeners.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// Serves both clients, and returns them.
fn enter(
    (unix, tcp): (UnixStream, TcpStream),
    byte: u8,
) -> (Client<UnixStream>, Client<TcpStream>) {
    let mut unix = Client::enter(unix, &config("disk")).unwrap();
    let mut tcp = Client::enter(tcp, &config("disk")).unwrap();
    unix.write(0, &[byte; 512]).unwrap();
    assert_eq!(tcp.read(0, 512).unwrap(), [byte; 512]);
    (unix, tcp)
}

#[test]
fn clients_that_connect_while_the_service_is_stopped_wait_and_are_served() {
    for keeper in ["no", "yes"] {
        let manager = Manager::new();
        let [unix, _] = manager.addresses();
        let volume = manager.volume();
        let file = manager.file();
        for byte in 1..4 {
            // Nothing runs.
            let waiting = manager.connect();
            // An address of the settings is that of a socket, and the other socket is added.
            let daemon = manager.start(keeper, &["--nbd", &unix, "--volume", &volume]);
            let clients = enter(waiting, byte);
            assert_eq!(listeners(&daemon), manager.addresses());
            drop(clients);
            daemon.stop();
            assert_eq!(manager.file(), file, "the file is the service manager's");
        }
    }
}

/// Whether a client that connects is served; one whose server is replaced may not be.
fn is_served(stream: impl Read + Write) -> bool {
    matches!(Client::try_enter(stream, &config("disk")), Some(Ok(_)))
}

#[test]
fn sockets_outlive_a_crash_and_an_upgrade_with_the_keeper() {
    let manager = Manager::new();
    let [unix, tcp] = manager.addresses();
    let file = manager.configure(&format!("'{unix}'"));
    let daemon = manager.start("yes", &["--config", &file]);
    let inode = manager.file();
    daemon.kill_server();
    wait_until("a client is served again", PATIENCE, || {
        let (unix, tcp) = manager.connect();
        is_served(unix) && is_served(tcp)
    });
    let (mut first, mut second) = enter(manager.connect(), 7);
    // The new program would refuse these rights, so the upgrade is refused.
    manager.configure(&format!("'{unix},mode=0606'"));
    let (code, said) = daemon.run(&["upgrade"]);
    let said = on_one_line(&said);
    assert!(code == Some(1) && said.contains("opened it with other rights"), "{said}");
    // Both addresses are those of sockets now.
    manager.configure(&format!("'{unix}', '{tcp}'"));
    let before = daemon.server();
    let (code, said) = daemon.run(&["upgrade"]);
    assert_eq!(code, Some(0), "{said}");
    assert_ne!(daemon.server(), before);
    assert_eq!(first.read(0, 512).unwrap(), [7; 512], "the client goes on");
    assert_eq!(second.read(0, 512).unwrap(), [7; 512]);
    enter(manager.connect(), 8);
    assert_eq!(listeners(&daemon), [unix, tcp]);
    assert_eq!(manager.file(), inode);
    drop((first, second));
    daemon.stop();
}

/// Starts a server that systemd passes a socket, and what it has stored.
fn start_beside(
    store: &Store,
    socket: &OwnedFd,
    names: &str,
    stored: Option<[&OwnedFd; 2]>,
) -> Daemon {
    let directory = store.directory.path();
    let nbd = format!("unix:{}", directory.join("nbd.sock").display());
    let count = names.split(':').count().to_string();
    let arguments = ["--nbd", &nbd, "--volume", &store.volume];
    let mut command = serve(directory, (&count, Some(names)), &arguments, stored.is_some());
    command.env("NOTIFY_SOCKET", directory.join("notify")).env("FDSTORE", "2");
    command.stdin(socket.try_clone().unwrap()).stdout(Stdio::null());
    let Some([pool, queue]) = stored else {
        return Daemon::spawn(command, directory.join("nbd.sock"));
    };
    command.stdout(pool.try_clone().unwrap());
    Daemon::spawn_logging_to(queue.try_clone().unwrap(), command, directory.join("nbd.sock"))
}

#[test]
fn sockets_and_the_descriptor_store_arrive_together() {
    let store = Store::new();
    let directory = store.directory.path();
    let unix: OwnedFd = UnixListener::bind(directory.join("activated.sock")).unwrap().into();
    let daemon = start_beside(&store, &unix, "nbd", None);
    let pool = store.receive("FDSTORE=1\nFDNAME=forebay-pool").unwrap();
    let mut client = Client::new(&directory.join("activated.sock"), "disk");
    client.write(0, &[4; 512]).unwrap();
    let mut upgrade = background(directory, &["upgrade"]);
    let queue = store.receive(STORED_QUEUE).unwrap();
    daemon.wait_for_code(83);
    let waiting = connect(&directory.join("activated.sock"));
    let names = "nbd:forebay-pool:forebay-connections";
    let daemon = start_beside(&store, &unix, names, Some([&pool, &queue]));
    store.receive("FDSTOREREMOVE=1\nFDNAME=forebay-connections");
    assert_eq!(client.read(0, 512).unwrap(), [4; 512], "the client goes on");
    let mut waiting = Client::enter(waiting, &config("disk")).unwrap();
    assert_eq!(waiting.read(0, 512).unwrap(), [4; 512], "and so does the pool");
    assert!(upgrade.wait().unwrap().success());
    drop((client, waiting));
    daemon.stop();
}

#[test]
fn a_reload_leaves_the_sockets_open() {
    let manager = Manager::new();
    let [unix, tcp] = manager.addresses();
    let file = manager.configure(&format!("'{unix}'"));
    let daemon = manager.start("no", &["--config", &file]);
    let (mut first, _second) = enter(manager.connect(), 1);
    symlink(manager.directory.path(), manager.at("link")).unwrap();
    let other = format!("unix:{}", manager.at("other.sock").display());
    let over_link = format!("unix:{}", manager.at("link/nbd.sock").display());
    for (nbd, has_other) in [
        (format!("'{other}'"), true),
        (format!("'{tcp}', '{over_link}'"), false),
        (format!("'{other}', '{unix}'"), true),
        (format!("'{unix}'"), false),
    ] {
        manager.configure(&nbd);
        let (code, said) = daemon.run(&["reload"]);
        assert_eq!(code, Some(0), "{said}");
        let mut expected = manager.addresses().to_vec();
        expected.extend(has_other.then(|| other.clone()));
        assert_eq!(listeners(&daemon), expected, "{nbd}");
        enter(manager.connect(), 2);
        assert_eq!(first.read(0, 512).unwrap(), [2; 512], "the client stays connected");
    }
    fs::set_permissions(manager.at("nbd.sock"), PermissionsExt::from_mode(0o660)).unwrap();
    manager.configure(&format!("'{unix},mode=0660'"));
    assert_eq!(daemon.run(&["reload"]).0, Some(0), "they are those of the file");
    for (nbd, said) in [
        (format!("{unix},mode=0600"), "set SocketMode=, SocketUser= and SocketGroup="),
        (format!("tcp:0.0.0.0:{}", manager.port), "name that in nbd instead of tcp:0.0.0.0"),
    ] {
        manager.configure(&format!("'{nbd}'"));
        let (code, text) = daemon.run(&["reload"]);
        let text = on_one_line(&text);
        assert!(code == Some(1) && text.contains(said), "{text}");
        enter(manager.connect(), 3);
    }
    drop(first);
    daemon.stop();
}

/// Runs the server with up to two descriptors, and returns its error.
fn refused(
    directory: &Path,
    (count, names): (&str, Option<&str>),
    passed: [Option<OwnedFd>; 2],
    arguments: &[&str],
) -> String {
    let mut command = serve(directory, (count, names), arguments, false);
    let [input, output] = passed.map(|it| it.map_or_else(Stdio::null, Stdio::from));
    command.stdin(input).stdout(output).stderr(Stdio::piped());
    let output = wait_for_exit(command.spawn().unwrap());
    let text = on_one_line(&String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{text}");
    text
}

/// A listening socket of a kind that is not a stream socket.
fn sequential(path: &Path) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 8).unwrap();
    socket
}

#[test]
fn descriptors_that_cannot_be_served_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let good: OwnedFd = UnixListener::bind(path.join("good.sock")).unwrap().into();
    let own = format!("unix:{}", path.join("own.sock").display());
    let fixed = ["--keeper", "no", "--nbd", &own];
    let datagram = UnixDatagram::bind(path.join("datagram.sock")).unwrap();
    let (connected, _other) = UnixStream::pair().unwrap();
    let without_path = SocketAddr::from_abstract_name(path.as_os_str().as_encoded_bytes()).unwrap();
    let without_path = UnixListener::bind_addr(&without_path).unwrap();
    let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
    let file = fs::File::create(path.join("file")).unwrap();
    for (socket, said) in [
        (datagram.into(), "it is a datagram socket: use ListenStream="),
        (sequential(&path.join("sequential.sock")), "it is a sequential-packet socket"),
        (file.into(), "it is not a socket"),
        (connected.into(), "it does not listen for connections: set Accept=no"),
        (without_path.into(), "it is a Unix socket without a path: name a path with ListenStream="),
        (everywhere.into(), "can be reached from other machines"),
    ] {
        let text = refused(path, ("1", Some("nbd")), [Some(socket), None], &fixed);
        assert!(text.contains(said), "{said}: {text}");
    }
    for (count, said) in [
        ("2", "descriptors 3 and 4 of the service manager both listen"),
        ("2", "name each address once, in one socket unit"),
        ("some", "LISTEN_FDS='some' is not a number of sockets"),
    ] {
        let passed = [&good, &good].map(|it| Some(it.try_clone().unwrap()));
        let text = refused(path, (count, None), passed, &fixed);
        assert!(text.contains(said), "{text}");
    }
    let text = refused(path, ("3", Some("nbd:stdout:x")), [Some(good), None], &fixed);
    assert!(
        text.contains("descriptor 4 ('stdout') of the service manager has an unknown"),
        "{text}"
    );
    assert!(text.contains("set FileDescriptorName=nbd"), "{text}");
    match rustix::net::socket(AddressFamily::VSOCK, SocketType::STREAM, None) {
        Ok(socket) => {
            let text = refused(path, ("1", None), [Some(socket), None], &fixed);
            assert!(text.contains("it is a socket of the address family 40"), "{text}");
        }
        Err(_) => println!("skipped: the system has no sockets of virtual machines"),
    }
}

#[test]
fn a_descriptor_that_is_missing_is_refused_also_with_the_keeper() {
    for keeper in ["no", "yes"] {
        let directory = tempfile::tempdir().unwrap();
        let good: OwnedFd = UnixListener::bind(directory.path().join("good.sock")).unwrap().into();
        let own = format!("unix:{}", directory.path().join("own.sock").display());
        let null = fs::File::open("/dev/null").unwrap();
        let arguments = ["--keeper", keeper, "--nbd", &own];
        let passed = [Some(good), Some(null.into())];
        let text = refused(directory.path(), ("3", Some("nbd:nbd:nbd")), passed, &arguments);
        assert!(text.contains("descriptor 4 ('nbd') of the service manager: it is not"), "{text}");
        // The processes have files of their own at such numbers.
        let good = UnixListener::bind(directory.path().join("also.sock")).unwrap().into();
        let other = UnixListener::bind(directory.path().join("other.sock")).unwrap().into();
        let passed = [Some(good), Some(other)];
        let text = refused(directory.path(), ("9", None), passed, &arguments);
        assert!(text.contains("descriptor 5 ('unknown')"), "{text}");
        assert!(text.contains("cannot be used") && text.contains("unset it"), "{text}");
    }
}

#[test]
fn variables_for_another_process_are_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let variables = [("LISTEN_PID", "1"), ("LISTEN_FDS", "some")];
    let volumes = ["disk=memory:1MiB".to_owned()];
    let daemon = Daemon::start_kept_among(directory.path(), &volumes, &variables);
    daemon.client("disk").read(0, 512).unwrap();
    daemon.stop();
}

#[test]
fn the_file_of_a_socket_that_is_deleted_is_missed_but_not_made_again() {
    let manager = Manager::new();
    let daemon = manager.start("no", &["--volume", &manager.volume()]);
    fs::remove_file(manager.at("nbd.sock")).unwrap();
    fs::remove_dir_all(manager.at("state")).unwrap();
    daemon.wait_for_log("the file of an activated socket was deleted");
    // It answers at the sockets that it makes again.
    wait_until("the server answers", PATIENCE, || {
        run_forebay(manager.directory.path(), &["status"]).0 == Some(0)
    });
    assert!(!manager.at("nbd.sock").exists());
    assert!(manager.at("state/nbd.sock").exists());
    let tcp = TcpStream::connect(("127.0.0.1", manager.port)).unwrap();
    Client::enter(tcp, &config("disk")).unwrap().read(0, 512).unwrap();
    daemon.stop();
}
