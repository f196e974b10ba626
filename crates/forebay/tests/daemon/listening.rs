//! Where the daemon listens, and where it refuses to; how it ends when a disk fails.

use crate::process::Daemon;
use std::process::Command;

fn serve(directory: &std::path::Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new("timeout")
        .args(["300", env!("CARGO_BIN_EXE_forebay"), "serve", "--memory", "64MiB"])
        .args(["--volume", "disk=memory:1MiB", "--state"])
        .arg(directory.join("state"))
        .args(arguments)
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn an_address_that_others_reach_is_refused_without_tls() {
    let directory = tempfile::tempdir().unwrap();
    for address in ["tcp:0.0.0.0:0", "tcp:[::]:0"] {
        let (code, text) = serve(directory.path(), &["--nbd", address]);
        if text.contains("can't listen at port") {
            // A machine without this family of addresses.
            continue;
        }
        assert_eq!(code, Some(1), "{address}: {text}");
        assert!(text.contains("can be reached from other machines"), "{address}: {text}");
        assert!(text.contains("--tls off"), "the remedy: {text}");
    }
}

#[test]
fn an_open_address_is_served_where_the_operator_says_so_and_a_loopback_address_always() {
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
