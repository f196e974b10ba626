//! Reloads of the configuration file.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::process::Daemon;
use rustix::process::Signal;

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
