//! The addresses at which the daemon listens or refuses to listen.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use crate::process::{Daemon, failed_start, greets, is_served};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

const VOLUME: &str = "disk=memory:1MiB";

#[test]
fn a_non_loopback_address_is_refused_without_tls() {
    let directory = tempfile::tempdir().unwrap();
    for address in ["tcp:0.0.0.0:0", "tcp:[::]:0"] {
        let text = failed_start(directory.path(), &["--volume", VOLUME, "--nbd", address]);
        if text.contains("cannot listen on port") {
            // This machine lacks the address family.
            continue;
        }
        assert!(text.contains("can be reached from other machines"), "{address}: {text}");
        assert!(text.contains("--tls off"), "{address}: {text}");
    }
}

#[test]
fn without_tls_a_loopback_address_is_served_and_any_address_with_tls_off() {
    for arguments in
        [&["--nbd", "tcp:127.0.0.1:0"][..], &["--nbd", "tcp:0.0.0.0:0", "--tls", "off"]]
    {
        let directory = tempfile::tempdir().unwrap();
        let volumes = ["disk=memory:1MiB".to_owned()];
        let daemon = Daemon::start_with(directory.path(), "epoll", "64MiB", &volumes, arguments);
        assert_eq!(daemon.client("disk").read(0, 512), Ok(vec![0; 512]));
        daemon.stop();
    }
}

#[test]
fn a_unix_socket_has_the_mode_and_group_that_are_set() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("guests.sock");
    // A group that this user may give a file to, by its number.
    let group = std::fs::metadata(directory.path()).unwrap().gid();
    let address = format!("unix:{},mode=0666,group={group}", path.display());
    let volumes = ["disk=memory:1MiB".to_owned()];
    let arguments = ["--nbd", &*address];
    let daemon = Daemon::start_with(directory.path(), "epoll", "64MiB", &volumes, &arguments);
    wait_until("the socket is served", PATIENCE, || is_served(&path));
    let found = std::fs::symlink_metadata(&path).unwrap();
    assert_eq!((found.mode() & 0o7777, found.gid()), (0o666, group));
    let listeners = daemon.status()["listeners"].to_string();
    assert!(listeners.contains(&address), "{listeners}");
    assert_eq!(Client::new(&path, "disk").read(0, 512), Ok(vec![0; 512]));
    daemon.stop();
    assert!(!path.exists());
}

/// Starts a daemon while a path and a port are in use, which are released after `held`, and waits
/// until they are served.
fn start_while_in_use(directory: &Path, held: Duration) {
    let path = directory.join("other.sock");
    let unix = UnixListener::bind(&path).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let (at_path, at_port) = (format!("unix:{}", path.display()), format!("tcp:{address}"));
    let volumes = ["disk=memory:1MiB".to_owned()];
    let arguments = ["--nbd", &at_path, "--nbd", &at_port];
    let holder = thread::spawn(move || {
        thread::sleep(held);
        drop((unix, tcp));
    });
    let daemon = Daemon::start_with(directory, "epoll", "64MiB", &volumes, &arguments);
    holder.join().unwrap();
    // What another test starts has the listeners of this process for a moment, before it is another
    // program, and a port may be connected to itself.
    wait_until("the port is served", PATIENCE, || {
        TcpStream::connect(address).is_ok_and(|stream| {
            stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            greets(stream)
        })
    });
    wait_until("the path is served", PATIENCE, || is_served(&path));
    assert_eq!(Client::new(&path, "disk").read(0, 512), Ok(vec![0; 512]));
    daemon.stop();
}

/// After a kill, the kernel keeps the process's sockets open until its io_uring is torn down.
#[test]
fn a_start_waits_for_addresses_still_held_by_a_killed_predecessor() {
    let directory = tempfile::tempdir().unwrap();
    start_while_in_use(directory.path(), Duration::from_millis(300));
    let volumes = ["disk=memory:1MiB".to_owned()];
    Daemon::start(directory.path(), "epoll", "64MiB", &volumes).kill();
    // A start after an orderly stop would have given up.
    start_while_in_use(directory.path(), Duration::from_secs(7));
}

#[test]
fn no_client_is_served_before_every_address_is_bound() {
    let directory = tempfile::tempdir().unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let in_use = format!("tcp:{}", other.local_addr().unwrap());
    let here = directory.path().to_owned();
    // It gives up after 5 seconds.
    let start = thread::spawn(move || failed_start(&here, &["--volume", VOLUME, "--nbd", &in_use]));
    let mut client = None;
    wait_until("the socket is bound", PATIENCE, || {
        client = UnixStream::connect(directory.path().join("refused.sock")).ok();
        client.is_some()
    });
    let mut client = client.unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut greeting = Vec::new();
    // The end of the server may reset the connection.
    let _ = client.read_to_end(&mut greeting);
    assert!(greeting.is_empty(), "a write would have been acknowledged, and lost");
    assert!(start.join().unwrap().contains("cannot listen on port"));
}

#[test]
fn a_listener_replaces_only_a_stale_socket() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("file"), "precious").unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    std::fs::write(at("disk.img"), vec![7; 1 << 20]).unwrap();
    drop(UnixListener::bind(at("stale")).unwrap());
    let live = UnixListener::bind(at("live")).unwrap();
    for (link, to) in [("to-file", "file"), ("to-stale", "stale"), ("to-none", "none")] {
        std::os::unix::fs::symlink(at(to), at(link)).unwrap();
    }
    let disk = format!("served={}", at("disk.img").display());
    for (name, said) in [
        ("file", "is a regular file, not a socket"),
        ("disk.img", "is a regular file, not a socket"),
        ("directory", "is a directory, not a socket"),
        ("to-file", "is a symbolic link, not a socket"),
        ("to-stale", "is a symbolic link, not a socket"),
        ("to-none", "is a symbolic link, not a socket"),
        ("live", "another program listens at"),
    ] {
        let before = std::fs::symlink_metadata(at(name)).unwrap();
        let address = format!("unix:{}", at(name).display());
        let text = failed_start(directory.path(), &["--nbd", &address, "--volume", &disk]);
        assert!(text.contains(said) && text.contains("choose another path"), "{name}: {text}");
        let after = std::fs::symlink_metadata(at(name)).unwrap();
        assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()), "{name}");
    }
    assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "precious");
    assert_eq!(std::fs::read(at("disk.img")).unwrap(), vec![7; 1 << 20]);
    drop(live);
    std::fs::rename(at("stale"), at("nbd.sock")).unwrap();
    let volumes = ["disk=memory:1MiB".to_owned()];
    let daemon = Daemon::start(directory.path(), "epoll", "64MiB", &volumes);
    // A file that replaced the socket while the daemon ran is not removed at shutdown.
    std::fs::remove_file(at("nbd.sock")).unwrap();
    std::fs::write(at("nbd.sock"), "precious").unwrap();
    daemon.stop();
    assert_eq!(std::fs::read_to_string(at("nbd.sock")).unwrap(), "precious");
    std::fs::remove_file(at("nbd.sock")).unwrap();
    Daemon::start(directory.path(), "epoll", "64MiB", &volumes).stop();
    assert!(!at("nbd.sock").exists(), "the daemon removes its own socket");
}
