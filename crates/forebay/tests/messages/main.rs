//! The exact error messages for invalid input, kept as pages in this directory. `UPDATE_GOLDEN=1`
//! rewrites the pages; review the differences.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use forebay_api::{AddVolume, BlockingClient, ClientError};
use forebay_control::{ControlServer, StateDir, fake::FakeManager};
use std::fmt::Write;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Compares the output with the page of this name.
fn compare(page: &str, output: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/messages").join(page);
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::write(&path, output).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    for (old, new) in golden.lines().zip(output.lines()) {
        assert_eq!(old, new, "{page} differs: run this test with UPDATE_GOLDEN=1");
    }
    assert_eq!(golden.lines().count(), output.lines().count(), "the length of {page} differs");
}

/// Makes `directory` a machine with 8 GiB of memory, of which 6 GiB are available.
fn make_machine(directory: &Path) {
    let folder = directory.join("machine/proc");
    fs::create_dir_all(&folder).unwrap();
    let text = "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n";
    fs::write(folder.join("meminfo"), text).unwrap();
}

/// Runs the program in `directory`, which must fail. Returns the arguments, its standard error with
/// `DIR` for the directory, and its exit code.
fn run(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(arguments)
        .env_remove("XDG_RUNTIME_DIR")
        .env("FOREBAY_STATE", directory.join("state"))
        .env("FOREBAY_MEMORY_ROOT", directory.join("machine"))
        .current_dir(directory)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let text = text.replace(&directory.display().to_string(), "DIR");
    let code = output.status.code().unwrap_or(-1);
    assert_ne!(code, 0, "{arguments:?} is accepted");
    format!("$ forebay {}\n{}[{code}]\n\n", arguments.join(" "), text)
}

#[test]
fn command_line_errors() {
    let directory = tempfile::tempdir().unwrap();
    make_machine(directory.path());
    let mut page = String::new();
    for arguments in [
        &["sevre"][..],
        &["monitor"],
        &["freeze"],
        &["list"],
        &["clients", "disconnect"],
        &["clients", "disconnect", "db"],
        &["attach", "disk"],
        &["resize", "disk"],
        &["volume", "rename", "a", "b"],
        &["volume", "remvoe", "a"],
        &["volume", "remove"],
        &["serve", "d.img,mode=write-back"],
        &["serve", "d.img,mode=bypass"],
        &["serve", "--listen", "x"],
        &["serve", "--mode", "bypass"],
        &["serve", "--writeback"],
        &["serve", "-c", "f.toml"],
        &["serve", "-m", "2g"],
        &["serve", "--read-only"],
        &["serve", "--memroy", "2g"],
        &["serve", "--memory"],
        &["serve", "--state", "~/x", "d.img"],
        &["serve", "disk=/dev/sdb"],
        &["serve", "memory:1GiB"],
        &["serve", "s3://bucket/disk"],
        &["serve", "a/x.img", "b/x.img"],
        &["serve", "--volume", "d"],
        &["serve", "--volume", "d="],
        &["serve", "--volume", "=x"],
        &["serve", "--volume", "d=x,mdoe=bypass"],
        &["serve", "--volume", "d=x,mode=writeback"],
        &["serve", "--volume", "d=x,mode=write-back"],
        &["serve", "--volume", "d=x,mode=bypass,mode=bypass"],
        &["serve", "--volume", "d=x,protection=vault"],
        &["serve", "--volume", "d=x,protection=journal"],
        &["serve", "--volume", "d=x,protection=journal,journal=x"],
        &["serve", "--volume", "d=x,journal=j"],
        &["serve", "--volume", "d=x,durability=ack"],
        &["serve", "--volume", "d=x,unsafe-supply=stable"],
        &["serve", "--volume", "d=x,prefetch=1"],
        &["serve", "--volume", "d=x,warm=cold"],
        &["serve", "--volume", "d=x,stripe=1KB"],
        &["serve", "--volume", "d=x,rotational=1"],
        &["serve", "--volume", "d=x,gather-below=33MiB"],
        &["serve", "--volume", "d=x,read-latency=fast"],
        &["serve", "--volume", "d=x,write-back-rate=1KiB"],
        &["serve", "--volume", "d=x,write-back-iops=0"],
        &["serve", "--volume", "d=x,write-back-age=5s"],
        &["slow", "-n", "few"],
        &["slow", "-n", "0"],
        &["serve", "--volume", "d=x,slow=-1"],
        &["serve", "--volume", "d=x,slow=abc"],
        &["serve", "--volume", "d=x,slow=10us"],
        &["serve", "--volume", "d=x,slow=99999999999999999999h"],
        &["serve", "--volume", "d=x,tls=required"],
        &["serve", "--volume", "d=x,mode=write-back,protection=ups"],
        &["serve", "--ups", "a", "--volume", "d=x,mode=write-back,protection=ups"],
        &["serve", "--ups", "@x"],
        &["serve", "--ups-threshold", "79"],
        &["serve", "--memory", "1GB"],
        &["serve", "--memory", "1MiB"],
        &["serve", "--memory", "8388607TiB"],
        &["serve", "--memory", "6GiB"],
        &["serve", "--memory-reserve", "6GiB"],
        &["serve", "--memory-reserve", "500MB"],
        &["serve", "--memory", "64MiB", "--memory-min", "65MiB"],
        &["serve", "--workers", "65"],
        &["serve", "--io", "kqueue"],
        &["serve", "--nbd", "tcp:x"],
        &["serve", "--nbd", "udp:x:1"],
        &["serve", "--nbd", "tcp:[::1]:0,mode=0660"],
        &["serve", "--nbd", "unix:s,mode=0668"],
        &["serve", "--nbd", "unix:s,mode=1660"],
        &["serve", "--nbd", "unix:s,user=qemu"],
        &["serve", "--nbd", "unix:s,group=kvm,group=disk"],
        &["serve", "--vhost-user", ""],
        &["serve", "--vhost-user", "d,mode=0990"],
        &["serve", "--metrics", "9101"],
        &["serve", "--metrics", "0.0.0.0:9101"],
        &["serve", "--tls", "forced"],
        &["serve", "--vault", "x", "x"],
        &["serve", "--config", "none.toml"],
        &["volume", "set", "d", "mode"],
        &["volume", "set", "d", "colour=blue"],
        &["set", "memory"],
        &["set", "memory=much"],
        &["set", "cache-ratio=75/25"],
        &["set", "cache-ratio=60:50"],
        &["set", "cache-ratio=10:90"],
        &["set", "workers=2"],
        &["set", "colour=blue"],
        &["rescue", "list", "none.img"],
        &["rescue", "verify", "s3:bucket/journal"],
        &["status"],
        &["status", "--watch", "disk"],
        &["status", "--watch=0"],
        &["status", "--watch", "inf"],
        &["status", "--watch", "--json"],
        &["status", "disk", "--all"],
        &["status", "--color", "blue"],
        &["advise"],
        &["advise", "--time", "60s"],
        &["advise", "none"],
        &["advise", "/dev/null"],
        &["advise", "sdb", "--all"],
        &["advise", "sdb", "--time", "0s"],
        &["advise", "sdb", "--time", "10d"],
        &["advise", "sdb", "--memory", "1KiB"],
        &["top", "--interval", "0"],
        &["top"],
    ] {
        page += &run(directory.path(), arguments);
    }
    compare("command-line.txt", &page);
}

#[test]
fn configuration_file_errors() {
    let directory = tempfile::tempdir().unwrap();
    make_machine(directory.path());
    let mut page = String::new();
    for text in [
        "memory = \n",
        "memroy = '1GiB'\n",
        "memory = 1.5\n",
        "workers = 'many'\n",
        "volume = 'disk'\n",
        "[[volume]]\nbacking = '/x'\n",
        "[[volume]]\nname = 'a'\nbakcing = '/x'\n",
        "[[volume]]\nname = 'a,b'\nbacking = '/x'\n",
        "[[volume]]\nname = 'a'\nbacking = '/x'\nprefetch = 'maybe'\n",
        "[[volume]]\nname = 'a'\nbacking = '/x'\nread-only = 'true'\n",
        "[[volume]]\nname = 'a'\nbacking = '/x'\nmemory = '2GiB'\n",
        "mode = 'bypass'\n",
        "state = '~/x'\n",
        "[[volume]]\nname = 'a'\nbacking = '/x'\nmode = 'write-back'\nprotection = 'ups'\n",
        "[[volume]]\nname = 'a'\nbacking = '/x'\nmode = 'write-back'\n",
        "[[volume]]\nname = 'a'\nbacking = '/x'\n[[volume]]\nname = 'a'\nbacking = '/y'\n",
        "vault = '/v'\n[[volume]]\nname = 'a'\nbacking = '/v'\n",
        "tls-cert = 'cert.pem'\n",
    ] {
        fs::write(directory.path().join("f.toml"), text).unwrap();
        for line in text.lines() {
            writeln!(page, "| {line}").unwrap();
        }
        page += &run(directory.path(), &["serve", "--config", "f.toml"]);
    }
    fs::write(directory.path().join("f.toml"), [0xff, 0xfe]).unwrap();
    page += "| (bytes that are not text)\n";
    page += &run(directory.path(), &["serve", "--config", "f.toml"]);
    compare("configuration.txt", &page);
}

#[test]
fn device_errors() {
    let directory = tempfile::tempdir().unwrap();
    make_machine(directory.path());
    let path = directory.path();
    File::create(path.join("disk.img")).unwrap().set_len(1 << 20).unwrap();
    File::create(path.join("empty.img")).unwrap();
    fs::write(path.join("text"), "host\n").unwrap();
    fs::create_dir(path.join("folder")).unwrap();
    let serve = ["serve", "--memory", "64MiB", "--keeper", "no", "--io", "epoll", "--log", "error"];
    let mut page = String::new();
    for backing in [
        "none.img",
        "/dev/none",
        "empty.img",
        "text",
        "folder",
        "/dev/null",
        "gs://bucket/disk",
        "s3:bucket/disk",
        "s3://bucket",
        "s3://bucket/disk?sise=1GiB",
        "s3://bucket/disk?endpoint=host",
        "s3://bucket/disk?endpoint=http://127.0.0.1:1&credentials=/none/keys",
        "ceph:pool/image",
        "rbd:image",
        "rbd:pool/image@ceph.conf",
        "rbd:pool/image@/none/ceph.conf",
        "foo:bar",
        "memory:1GB",
        "memory:700",
        "model:tape?size=1GiB",
        "model:hdd",
        "model:hdd?size=1GiB&rpm=fast",
        "model:raid5?size=1GiB&drives=2",
        "delay(raed=1ms):disk.img",
        "delay(read=soon):disk.img",
        "rate(iops=1,iops=2):disk.img",
        "trace():disk.img",
        "blocks(size=4096):memory:512",
        "delay()",
        "nbd:h",
        "nbds://host/x",
        "nbd+unix:///x?socket=none.sock",
        "nbd://%zz/x",
    ] {
        page += &run(path, &[&serve[..], &["--volume", &format!("d={backing}")]].concat());
    }
    for volume in [
        "d=disk.img,protection=journal,journal=none.img",
        "d=disk.img,protection=journal,journal=memory:64MiB",
    ] {
        page += &run(path, &[&serve[..], &["--volume", volume]].concat());
    }
    page += &run(path, &[&serve[..], &["disk.img", "--vault", "text"]].concat());
    page += &run(path, &[&serve[..], &["--check", "none.img"]].concat());
    page += &run(path, &[&serve[..], &["--check", "disk.img", "--nbd", "unix:none/s"]].concat());
    for account in ["owner", "group"] {
        let address = format!("unix:s,{account}=no-such-account");
        page += &run(path, &[&serve[..], &["disk.img", "--nbd", &address]].concat());
        page += &run(path, &[&serve[..], &["--check", "disk.img", "--nbd", &address]].concat());
    }
    // A file where the directory should be, a group that there is not, and a path that is too long.
    for directory in ["text", "sockets,group=no-such-account", &"long".repeat(30)] {
        page += &run(path, &[&serve[..], &["disk.img", "--vhost-user", directory]].concat());
    }
    compare("devices.txt", &page);
}

#[test]
fn api_errors() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::take(directory.path()).unwrap();
    let server = ControlServer::bind(&state).unwrap();
    let manager = Arc::new(FakeManager::new(&["disk=/dev/sdb", "broken=/x"]));
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let serving = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(server.run(manager, async { drop(ended.await) })).unwrap();
    });
    let client = BlockingClient::new(directory.path().join("control.sock")).unwrap();
    let mut page = String::new();
    let mut note = |input: &str, error: ClientError| {
        let ClientError::Refused(problem) = error else { panic!("{input}: {error}") };
        let answer = serde_json::to_string_pretty(&problem).unwrap();
        writeln!(page, "{input}\n{} {answer}\n", problem.kind.http_status()).unwrap();
    };
    for text in [
        r#"{"name":"disk","backing":"/x","settings":{}}"#,
        r#"{"name":"","backing":"/x","settings":{}}"#,
        r#"{"name":"a","backing":"","settings":{}}"#,
        r#"{"name":"a","backing":"/x","settings":{"mode":"fast"}}"#,
        r#"{"name":"a","backing":"/x","settings":{"mode":"write-back"}}"#,
        r#"{"name":"a","backing":"/x","settings":{"write_back_iops":"0"}}"#,
        r#"{"name":"a","backing":"/x","settings":{"journal":"/j"}}"#,
    ] {
        let request: AddVolume = serde_json::from_str(text).unwrap();
        note(&format!("POST /v1/volumes {text}"), client.add_volume(&request).unwrap_err());
    }
    for text in [r#"{"protection":"ups"}"#, r#"{"stripe":"64KiB"}"#, r#"{"ordered":true}"#] {
        let change = serde_json::from_str(text).unwrap();
        let error = client.set_volume("disk", &change).unwrap_err();
        note(&format!("PATCH /v1/volumes/disk {text}"), error);
    }
    note("GET /v1/volumes/nix", client.volume("nix").unwrap_err());
    note("POST /v1/volumes/broken/flush", client.flush_volume("broken", |_| ()).unwrap_err());
    note("DELETE /v1/clients/9", client.disconnect_client(9).unwrap_err());
    note("POST /v1/stop", client.stop(false, |_| ()).unwrap_err());
    drop(end);
    serving.join().unwrap();
    compare("api.txt", &page);
}
