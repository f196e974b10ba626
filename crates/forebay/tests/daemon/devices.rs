//! What a block device of the kernel's NBD client asks of the server. The devices themselves are
//! tested by scripts/attach.sh.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::libnbd::write_certificates;
use crate::process::Daemon;
use forebay_api::{BlockingClient, ConnectDevice, DeviceConnection};
use std::path::Path;

fn control(directory: &Path) -> BlockingClient {
    BlockingClient::new(directory.join("state/control.sock")).unwrap()
}

#[test]
fn a_device_is_connected_again_when_its_last_connection_has_no_requests() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = ["disk=memory:64MiB".to_owned()];
    let daemon = Daemon::start(directory.path(), "epoll", "64MiB", &volumes);
    let server = control(directory.path());
    let connect = |replaces| server.connect_device("disk", &ConnectDevice { replaces });
    let first = connect(None).unwrap();
    assert_eq!(first.unix.as_deref(), daemon.socket.to_str());
    assert_eq!((first.tcp, first.device.size_bytes), (None, 64 << 20));
    assert_eq!(first.device.pid, server.status().unwrap().pid);
    let client = daemon.client("disk");
    let number = server.clients().unwrap().clients[0].id;
    let last = |instance| Some(DeviceConnection { instance, client: number });
    let refused = connect(last(first.instance)).unwrap_err().to_string();
    assert!(refused.contains("requests of an earlier connection"), "{refused}");
    assert!(connect(last(first.instance + 1)).is_ok(), "that server has ended");
    drop(client);
    wait_until("it may be replaced", PATIENCE, || connect(last(first.instance)).is_ok());
    let unknown = server.connect_device("none", &ConnectDevice::default()).unwrap_err();
    assert!(unknown.to_string().contains("no volume 'none'"), "{unknown}");
}

#[test]
fn a_volume_over_tls_is_not_offered_to_the_kernel() {
    let directory = tempfile::tempdir().unwrap();
    write_certificates(directory.path());
    let file = |name: &str| directory.path().join(name).display().to_string();
    let (cert, key) = (file("server-cert.pem"), file("server-key.pem"));
    let connect = |volume| control(directory.path()).connect_device(volume, &Default::default());
    for (mode, settings) in [("forced", ""), ("selective", ",tls=required")] {
        let volumes = [format!("disk=memory:1MiB{settings}"), "open=memory:1MiB".to_owned()];
        let tls = ["--tls", mode, "--tls-cert", &cert, "--tls-key", &key];
        let daemon = Daemon::start_with(directory.path(), "epoll", "64MiB", &volumes, &tls);
        let refused = connect("disk").unwrap_err().to_string();
        assert!(refused.contains("kernel's NBD client does not support"), "{refused}");
        assert_eq!(connect("open").is_ok(), mode == "selective");
        daemon.stop();
    }
}
