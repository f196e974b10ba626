//! Interoperability with libnbd's tools, which use GnuTLS. Without them the tests print a note and
//! pass.

use crate::common::random::Random;
use crate::process::Daemon;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::path::Path;
use std::process::{Command, Output};

/// Runs a tool; returns `None` if it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: {program} is not installed");
            None
        }
        output => Some(output.unwrap()),
    }
}

/// Writes a CA certificate, and certificates and keys for a server and a client.
pub(crate) fn write_certificates(directory: &Path) {
    let write = |name: &str, text: String| std::fs::write(directory.join(name), text).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    write("ca-cert.pem", params.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(params, key);
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        write(&format!("{name}-cert.pem"), params.signed_by(&key, &issuer).unwrap().pem());
        write(&format!("{name}-key.pem"), key.serialize_pem());
    }
}

fn libnbd_agrees_on_tls(io: &str) {
    let directory = tempfile::tempdir().unwrap();
    let certificates = directory.path().join("pki");
    let other_ca = directory.path().join("other-ca");
    for directory in [&certificates, &other_ca] {
        std::fs::create_dir(directory).unwrap();
        write_certificates(directory);
    }
    let disk = directory.path().join("disk.img");
    let content = Random::new(11).bytes(8 << 20);
    std::fs::write(&disk, &content).unwrap();
    let file = |name: &str| certificates.join(name).display().to_string();
    let (cert, key, ca) = (file("server-cert.pem"), file("server-key.pem"), file("ca-cert.pem"));
    let arguments =
        ["--tls", "forced", "--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    let volume = format!("disk={}", disk.display());
    let daemon = Daemon::start_with(directory.path(), io, "64MiB", &[volume], &arguments);
    let uri = |scheme: &str, pki: &Path| {
        let socket = daemon.socket.display();
        format!("{scheme}+unix://localhost/disk?socket={socket}&tls-certificates={}", pki.display())
    };
    let Some(info) = run("nbdinfo", &["--size", &uri("nbds", &certificates)]) else { return };
    assert_eq!(String::from_utf8_lossy(&info.stdout).trim(), "8388608", "{info:?}");
    for refused in [uri("nbd", &certificates), uri("nbds", &other_ca)] {
        assert!(!run("nbdinfo", &["--size", &refused]).unwrap().status.success(), "{refused}");
    }
    let copy = directory.path().join("copy.img").display().to_string();
    let copied = run("nbdcopy", &[&uri("nbds", &certificates), &copy]).unwrap();
    assert!(copied.status.success(), "{copied:?}");
    assert!(std::fs::read(&copy).unwrap() == content);
    let other = Random::new(12).bytes(8 << 20);
    std::fs::write(&copy, &other).unwrap();
    let copied = run("nbdcopy", &["--flush", &copy, &uri("nbds", &certificates)]).unwrap();
    assert!(copied.status.success(), "{copied:?}");
    assert!(std::fs::read(&disk).unwrap() == other);
}

#[test]
fn libnbd_agrees_on_tls_on_io_uring() {
    libnbd_agrees_on_tls("io_uring");
}

#[test]
fn libnbd_agrees_on_tls_on_epoll() {
    libnbd_agrees_on_tls("epoll");
}
