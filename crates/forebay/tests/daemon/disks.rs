//! Disks that fail or do not answer: what the status, the metrics and the log say, and that they
//! say so no longer when it is over.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::process::{Daemon, MIB, UNPROTECTED, make_file, status};
use forebay_nbd::NbdCommand;
use forebay_types::IoError;
use std::path::Path;

fn state(daemon: &Daemon, volume: &str) -> String {
    let status = daemon.status();
    let volumes = status["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|it| it["name"] == volume).unwrap();
    volume["state"].as_str().unwrap().to_owned()
}

fn lines(daemon: &Daemon, parts: &[&str]) -> usize {
    let log = daemon.log_so_far();
    log.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count()
}

/// The disk is another server, which is frozen.
#[test]
fn a_disk_that_does_not_answer_is_reported_until_it_does() {
    let directory = tempfile::tempdir().unwrap();
    let (there, behind) = (directory.path(), directory.path().join("behind"));
    std::fs::create_dir(&behind).unwrap();
    let disk = Daemon::start(&behind, "auto", "64MiB", &["disk=memory:16MiB".to_owned()]);
    let url = format!("nbd+unix:///disk?socket={}", disk.socket.display());
    let volumes = [format!("a={url}"), "b=memory:1MiB".to_owned()];
    let daemon = Daemon::start(there, "auto", "64MiB", &volumes);
    let mut client = daemon.client("a");
    assert!(client.read(0, 4096).is_ok());
    let check = |name: &str| daemon.run(&["status", name, "--check"]).0;
    assert_eq!((check("--all"), check("a")), (Some(0), Some(0)));
    disk.freeze();
    let cookie = client.send(NbdCommand::Read, 0, MIB, 4096, &[]);
    wait_until("the volume is stalled", PATIENCE, || state(&daemon, "a") == "stalled");
    assert_eq!(state(&daemon, "b"), "serving");
    assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]), "hits are served");
    let volume = &status(there)["volumes"][0];
    assert_eq!(
        (&volume["stall"]["operation"], &volume["stall"]["ios"]),
        (&"read".into(), &1.into())
    );
    assert_eq!((check("--all"), check("a"), check("b")), (Some(4), Some(4), Some(0)));
    let (code, text) = daemon.run(&["status"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("volume a: stalled: the disk has not answered a read for"), "{text}");
    assert!(text.contains("-> check the disk"), "{text}");
    let (_, text) = daemon.run(&["slow"]);
    assert!(text.contains("not answered: a: read of 4.0 KiB at 1048576 waits for "), "{text}");
    wait_until("the log has it", PATIENCE, || {
        lines(&daemon, &["disk does not answer volume=\"a\"", "operation=\"read\""]) == 1
            && lines(&daemon, &["volume state changed volume=\"a\"", "to=stalled"]) == 1
    });
    wait_until("the log has it again", PATIENCE, || {
        lines(&daemon, &["disk still does not answer volume=\"a\""]) > 0
    });
    disk.thaw();
    assert!(client.wait(cookie).result.is_ok());
    wait_until("the volume is served", PATIENCE, || state(&daemon, "a") == "serving");
    assert_eq!((check("a"), check("no-such-volume")), (Some(0), Some(1)));
    wait_until("the log has the end", PATIENCE, || {
        lines(&daemon, &["disk answers again volume=\"a\"", "took_s="]) == 1
            && lines(&daemon, &["volume state changed volume=\"a\"", "to=serving"]) == 1
    });
    daemon.stop();
    disk.stop();
}

/// The disk fails nine of ten writes: the log has them, and the volume fails until its disk takes
/// what it refused.
fn errors_are_logged_and_end(there: &Path, backing: &str) {
    let volumes = [format!("a={backing},{UNPROTECTED}")];
    let daemon = Daemon::start(there, "auto", "64MiB", &volumes);
    let mut client = daemon.client("a");
    assert_eq!(client.write(0, &[1; 4096]), Ok(()));
    assert!(client.flush().is_err());
    wait_until("the log has the error", PATIENCE, || {
        lines(&daemon, &["disk I/O failed volume=\"a\"", "operation=\"write\"", "length=4096"]) > 0
    });
    assert_eq!(state(&daemon, "a"), "failing");
    wait_until("the log has the state", PATIENCE, || {
        lines(&daemon, &["volume state changed volume=\"a\"", "to=failing"]) > 0
    });
    wait_until("the disk takes the data", PATIENCE, || client.flush() == Ok(()));
    // More dirty data: the errors of earlier data are none of it.
    wait_until("the volume is served", PATIENCE, || {
        assert_eq!(client.write(MIB, &[2; 4096]), Ok(()));
        let volume = &daemon.status()["volumes"][0];
        volume["state"] == "serving" && volume["dirty_bytes"] == 4096
    });
    wait_until("the log has the end", PATIENCE, || {
        lines(&daemon, &["volume state changed volume=\"a\"", "to=serving"]) > 0
    });
}

#[test]
fn errors_of_a_layer_are_logged_and_end() {
    let directory = tempfile::tempdir().unwrap();
    errors_are_logged_and_end(directory.path(), "error(rate=0.9,kind=write):memory:16MiB");
}

#[test]
fn errors_of_an_nbd_server_are_logged_and_end() {
    let directory = tempfile::tempdir().unwrap();
    let behind = directory.path().join("behind");
    std::fs::create_dir(&behind).unwrap();
    let volume = "disk=error(rate=0.9,kind=write):memory:16MiB".to_owned();
    let disk = Daemon::start(&behind, "auto", "64MiB", &[volume]);
    let url = format!("nbd+unix:///disk?socket={}", disk.socket.display());
    errors_are_logged_and_end(directory.path(), &url);
}

#[test]
fn a_read_that_fails_is_logged_for_every_backing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.img");
    make_file(&path, MIB);
    let volumes = [
        format!("file={}", path.display()),
        "layer=error(kind=read,errno=EIO):memory:1MiB".to_owned(),
    ];
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &volumes);
    make_file(&path, 0);
    for volume in ["file", "layer"] {
        assert_eq!(daemon.client(volume).read(0, 4096), Err(IoError::Io));
        let line = format!("disk I/O failed volume=\"{volume}\"");
        wait_until("the log has it", PATIENCE, || {
            lines(&daemon, &[&line, "operation=\"read\"", "offset=0"]) == 1
        });
        // The disk has failed I/Os, which is a warning.
        assert_eq!(daemon.run(&["status", volume, "--check"]).0, Some(3));
    }
}
