//! Reloads of the configuration file.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::process::{Daemon, MIB, make_file};
use rustix::process::Signal;
use std::path::Path;

/// A volume in a configuration file.
fn volume(name: &str, backing: &str) -> String {
    format!(
        "[[volume]]\nname = '{name}'\nbacking = '{backing}'\nmode = 'write-back'\n\
         protection = 'none'\naccept-loss = true\n"
    )
}

/// Writes the configuration file.
fn configure(directory: &Path, volumes: &[String]) {
    std::fs::write(directory.join("forebay.toml"), volumes.concat()).unwrap();
}

/// Creates a disk, and returns its path.
fn disk(directory: &Path, name: &str) -> String {
    make_file(directory.join(name), MIB);
    directory.join(name).display().to_string()
}

/// Starts a daemon with the configuration file.
fn start(directory: &Path) -> Daemon {
    let file = directory.join("forebay.toml").display().to_string();
    Daemon::start_with(directory, "epoll", "64MiB", &[], &["--config", &file])
}

/// Waits until the log contains a text this many times.
fn wait_for_log(daemon: &Daemon, text: &str, times: usize) {
    wait_until(text, PATIENCE, || daemon.log().matches(text).count() == times);
}

#[test]
fn a_reload_does_not_read_certificates_at_paths_that_wait_for_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let pair = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
    std::fs::write(at("cert"), pair.cert.pem()).unwrap();
    std::fs::write(at("key"), pair.signing_key.serialize_pem()).unwrap();
    let configure = |cert: &str| {
        let (cert, key) = (at(cert), at("key"));
        let files = format!("tls-cert = '{}'\ntls-key = '{}'\n", cert.display(), key.display());
        std::fs::write(at("forebay.toml"), format!("tls = 'selective'\n{files}")).unwrap();
    };
    configure("cert");
    let file = at("forebay.toml").display().to_string();
    let daemon = Daemon::start_with(directory.path(), "epoll", "64MiB", &[], &["--config", &file]);
    configure("none");
    for reload in 1..=2 {
        daemon.signal(Signal::HUP);
        wait_until("each reload names the setting", PATIENCE, || {
            daemon.log().matches("tls-cert stays").count() == reload
        });
    }
    daemon.stop();
    let log = std::fs::read_to_string(at("log")).unwrap();
    assert!(!log.contains("reload failed"), "{log}");
}

#[test]
fn a_stop_begins_while_a_reload_waits_for_a_disk() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let hanging = format!("delay(write=forever):{}", disk(there, "disk.img"));
    configure(there, &[volume("disk", &hanging)]);
    let daemon = start(there);
    daemon.client("disk").write(0, &[7; 4096]).unwrap();
    configure(there, &[]);
    daemon.signal(Signal::HUP);
    wait_for_log(&daemon, "volume 'disk' is removed", 1);
    daemon.terminate();
    wait_for_log(&daemon, "flushing dirty data before shutdown", 1);
    let log = daemon.log();
    assert!(!log.contains("configuration change failed"), "the reload has ended: {log}");
}
