//! Volumes whose disk is an export of another server: over TLS, and while that server restarts.

use crate::common::random::Random;
use crate::libnbd::write_certificates;
use crate::process::{Daemon, MIB, failed_start, make_file};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// A server whose clients must present a certificate, with one volume over a file.
struct Node {
    directory: tempfile::TempDir,
    certificates: PathBuf,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        make_file(directory.path().join("disk.img"), 16 * MIB);
        let certificates = directory.path().join("pki");
        fs::create_dir(&certificates).unwrap();
        write_certificates(&certificates);
        Self { directory, certificates }
    }

    fn start(&self) -> Daemon {
        let [cert, key, ca] = ["server-cert.pem", "server-key.pem", "ca-cert.pem"]
            .map(|name| self.certificates.join(name).display().to_string());
        let arguments =
            ["--tls", "forced", "--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
        let volume = format!("disk={}", self.disk().display());
        Daemon::start_with(self.directory.path(), "auto", "64MiB", &[volume], &arguments)
    }

    fn disk(&self) -> PathBuf {
        self.directory.path().join("disk.img")
    }

    /// The address of the volume over TLS, with the certificates of a folder.
    fn url(&self, certificates: &Path) -> String {
        let socket = self.directory.path().join("nbd.sock");
        let (socket, certificates) = (socket.display(), certificates.display());
        format!("nbds+unix:///disk?socket={socket}&tls-certificates={certificates}")
    }
}

/// Starts a server over that address, in which every write goes to the disk.
fn start_cache(directory: &Path, io: &str, url: &str) -> Daemon {
    Daemon::start(directory, io, "64MiB", &[format!("far={url},mode=write-through")])
}

fn data_arrives_over_tls(io: &str) {
    let (node, directory) = (Node::new(), tempfile::tempdir().unwrap());
    let behind = node.start();
    let content = Random::new(3).bytes(16 << 20);
    let cache = start_cache(directory.path(), io, &node.url(&node.certificates));
    let mut client = cache.client("far");
    for (at, piece) in content.chunks(1 << 20).enumerate() {
        client.write(at as u64 * MIB, piece).unwrap();
    }
    client.flush().unwrap();
    // Through an empty cache, in pieces of other sizes.
    cache.stop();
    let cache = start_cache(directory.path(), io, &node.url(&node.certificates));
    let mut client = cache.client("far");
    let mut read = Vec::new();
    while read.len() < content.len() {
        let len = (read.len() % 300_000 + 4_096) / 512 * 512;
        let len = len.min(content.len() - read.len());
        read.extend(client.read(read.len() as u64, len as u64).unwrap());
    }
    assert!(read == content);
    cache.stop();
    behind.stop();
    assert!(fs::read(node.disk()).unwrap() == content);
}

#[test]
fn data_arrives_over_tls_on_io_uring() {
    data_arrives_over_tls("io_uring");
}

#[test]
fn data_arrives_over_tls_on_epoll() {
    data_arrives_over_tls("epoll");
}

#[test]
fn a_restart_of_the_server_of_a_disk_is_a_pause() {
    let (node, directory) = (Node::new(), tempfile::tempdir().unwrap());
    let behind = node.start();
    let url = format!("{}&reconnect-delay=5min", node.url(&node.certificates));
    let cache = start_cache(directory.path(), "auto", &url);
    let mut client = cache.client("far");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    behind.kill();
    let waiting = thread::spawn(move || {
        for line in 1..64u64 {
            client.write(line * 4096, &[line as u8; 4096]).unwrap();
        }
        client.flush().unwrap();
        client
    });
    thread::sleep(Duration::from_millis(500));
    assert!(!waiting.is_finished(), "no write can reach the disk");
    let behind = node.start();
    let mut client = waiting.join().unwrap();
    assert_eq!(client.read(63 * 4096, 4096).unwrap(), [63; 4096]);
    cache.stop();
    behind.stop();
    let disk = fs::read(node.disk()).unwrap();
    assert!(disk[..4096] == [1; 4096] && disk[63 * 4096..64 * 4096] == [63; 4096]);
}

#[test]
fn what_is_wrong_with_tls_is_said() {
    let (node, directory) = (Node::new(), tempfile::tempdir().unwrap());
    let behind = node.start();
    let folders = [
        ("other", &[][..]),
        ("anonymous", &["ca-cert.pem"]),
        ("half", &["ca-cert.pem", "client-cert.pem"]),
        ("none", &[]),
    ];
    let [other, anonymous, half, none] = folders.map(|(name, files)| {
        let folder = directory.path().join(name);
        fs::create_dir(&folder).unwrap();
        for file in files {
            fs::copy(node.certificates.join(file), folder.join(file)).unwrap();
        }
        folder
    });
    write_certificates(&other);
    let plain = format!("nbd+unix:///disk?socket={}", behind.socket.display());
    let elsewhere = format!("{}&tls-hostname=elsewhere", node.url(&node.certificates));
    for (url, expected) in [
        (node.url(&other), "cannot establish TLS to the server of"),
        (elsewhere, "tls-hostname=NAME"),
        (node.url(&anonymous), "CertificateRequired"),
        (node.url(&half), "client-key.pem is missing"),
        (node.url(&none), "cannot read certificates from"),
        (plain, "write nbds"),
    ] {
        let arguments = ["--volume", &format!("far={url}")];
        let said = failed_start(directory.path(), &arguments);
        assert!(said.contains(expected), "{url}: {said}");
    }
    behind.stop();
}
