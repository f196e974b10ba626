//! A server of etcd, for tests that need one.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use std::fs::File;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

/// The server; killed when dropped.
pub struct Etcd {
    child: Child,
    /// The address of its clients.
    pub endpoint: String,
    _data: tempfile::TempDir,
}

impl Etcd {
    /// `None` if it is not installed.
    pub fn start() -> Option<Self> {
        for program in ["etcd", "etcdctl"] {
            if Command::new(program).arg("--help").output().is_err() {
                println!("skipped: {program} is not installed");
                return None;
            }
        }
        let data = tempfile::tempdir().unwrap();
        // Both at once, so that they differ.
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [endpoint, peer] = ports.map(|it| format!("http://{}", it.local_addr().unwrap()));
        let log = File::create(data.path().join("log")).unwrap();
        let child = Command::new("etcd")
            .args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}"), "--data-dir"])
            .arg(data.path().join("data"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let etcd = Self { child, endpoint, _data: data };
        wait_until("etcd answers", PATIENCE, || {
            let mut command = etcd.command();
            command.args(["endpoint", "health"]).output().unwrap().status.success()
        });
        Some(etcd)
    }

    /// A command of its client.
    pub fn command(&self) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", &self.endpoint);
        command
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
