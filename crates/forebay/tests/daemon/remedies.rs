//! Error messages suggest a remedy that works and destroys nothing.

use crate::process::{make_file, run_forebay};
use std::net::TcpListener;
use std::path::Path;

/// A command that must fail, with texts that its last line must and must not contain.
struct Case<'a> {
    arguments: Vec<String>,
    said: &'a [&'a str],
    unsaid: &'a [&'a str],
}

fn check(directory: &Path, expected_code: i32, cases: &[Case<'_>]) {
    for Case { arguments, said, unsaid } in cases {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (code, text) = run_forebay(directory, &words);
        assert_eq!(code, Some(expected_code), "{arguments:?}: {text}");
        let last = text.lines().last().unwrap_or_default();
        assert!(last.starts_with("forebay: "), "{arguments:?}: {text}");
        for part in *said {
            assert!(last.contains(part), "{arguments:?}: no {part:?} in: {last}");
        }
        for part in *unsaid {
            assert!(!last.contains(part), "{arguments:?}: {part:?} in: {last}");
        }
    }
}

fn serve(arguments: &[&str]) -> Vec<String> {
    let fixed = ["serve", "--keeper", "no", "--memory", "64MiB", "--io", "epoll"];
    [&fixed, arguments].concat().into_iter().map(str::to_owned).collect()
}

#[test]
fn an_unknown_kind_of_backing_gets_a_working_alternative() {
    let directory = tempfile::tempdir().unwrap();
    let schemes = [
        ("gs://bucket/disk", "nbdkit"),
        ("ceph:pool/image", "rbd:POOL/IMAGE"),
        ("iscsi://host/target", "iscsiadm"),
        ("vhost-user:/run/x.sock", "over NBD"),
        ("https://host/disk.img", "nbdkit"),
        ("foo://x", "memory:SIZE"),
        ("foo:x", "memory:SIZE"),
    ];
    for (backing, remedy) in schemes {
        let said = &["there is no backend", backing, remedy][..];
        let unsaid = &["truncate", "--volume NAME"][..];
        let volume = serve(&["--volume", &format!("d={backing}")]);
        check(directory.path(), 1, &[Case { arguments: volume, said, unsaid }]);
        check(directory.path(), 2, &[Case { arguments: serve(&[backing]), said, unsaid }]);
    }
    let model = Case {
        arguments: serve(&["model:hdd?size=1GiB"]),
        said: &["has no name", "--volume NAME=model:hdd?size=1GiB"],
        unsaid: &["no path of a disk"],
    };
    check(directory.path(), 2, &[model]);
}

#[test]
fn no_remedy_suggests_extending_or_overwriting_another_programs_file() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    make_file(at("disk.img"), 16 << 20);
    std::fs::write(at("hostname"), "host\n").unwrap();
    std::fs::write(at("page"), vec![7; 4096]).unwrap();
    let disk = at("disk.img");
    for name in ["hostname", "page"] {
        let file = at(name);
        let before = std::fs::read(&file).unwrap();
        let journal = format!("d={disk},mode=write-back,protection=journal,journal={file}");
        let unsaid = &["truncate", "overwrite", "make it longer", "Give it"][..];
        let log = |arguments: &[&str]| {
            let said = if name == "page" {
                &["it needs", "nothing else uses"][..]
            } else {
                &["not a multiple"]
            };
            Case { arguments: serve(arguments), said, unsaid }
        };
        let plain = format!("d={disk}");
        check(
            directory.path(),
            1,
            &[log(&["--volume", &journal]), log(&["--volume", &plain, "--vault", &file])],
        );
        assert_eq!(std::fs::read(&file).unwrap(), before);
    }
    let arguments = serve(&["--volume", &format!("d={}", at("hostname"))]);
    let said = &["5 bytes, not a multiple of 512", "a disk image or a block device"];
    check(directory.path(), 1, &[Case { arguments, said, unsaid: &["truncate"] }]);
}

#[test]
fn an_unknown_command_gets_the_equivalent_command() {
    let directory = tempfile::tempdir().unwrap();
    for (command, remedy) in [
        ("monitor", "forebay top"),
        ("freeze", "forebay volume flush NAME"),
        ("evict", "forebay set memory=SIZE"),
        ("statuss", "did you mean 'status'?"),
        ("nonsense", "forebay --help"),
    ] {
        let arguments = vec![command.to_owned()];
        let unknown = format!("unrecognized subcommand '{command}'");
        let said = &[&unknown, remedy];
        check(directory.path(), 2, &[Case { arguments, said, unsaid: &["'stop'"] }]);
    }
}

#[test]
fn an_unusable_address_gets_the_cause_and_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("tcp:{}", taken.local_addr().unwrap());
    let missing = directory.path().join("none").display().to_string();
    let socket = format!("unix:{missing}/nbd.sock");
    let volume = ["--volume", "d=memory:1MiB", "--nbd"];
    let listen = |address| serve(&[&volume[..], &[address]].concat());
    let make = format!("mkdir -p {missing}");
    check(
        directory.path(),
        1,
        &[
            Case {
                arguments: listen(&port),
                said: &["cannot listen on port", "in use", "ss -ltnp", "choose another port"],
                unsaid: &[],
            },
            Case {
                arguments: listen("tcp:192.0.2.1:0"),
                said: &["cannot listen on port", "an address of this machine"],
                unsaid: &[],
            },
            Case { arguments: listen(&socket), said: &["no directory", &make], unsaid: &[] },
        ],
    );
}

#[test]
fn a_check_finds_what_would_prevent_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    make_file(at("disk"), 1 << 20);
    make_file(at("journal"), 40 << 20);
    std::fs::write(at("ca.toml"), "ups = ['a@host']\nups-ca = '/none.pem'\n").unwrap();
    let journaled =
        format!("d={},mode=write-back,protection=journal,journal={}", at("disk"), at("journal"));
    // Nothing is created there.
    let state = "/run/forebay-test";
    let check_of = |arguments: &[&str]| serve(&[&["--check"][..], arguments].concat());
    let case = |arguments, said| Case { arguments, said, unsaid: &[] };
    check(
        directory.path(),
        1,
        &[
            case(check_of(&["--volume", &journaled, "--state", state]), &["a journal needs"]),
            case(check_of(&["--vault", &at("vault"), "--state", state]), &["a vault needs"]),
            case(check_of(&["--vault", "/dev/none"]), &["'/dev/none' does not exist"]),
            case(check_of(&["--vault", "delay(write=1ms):none"]), &["'none' does not exist"]),
            case(check_of(&["--nbd", "tcp:0.0.0.0:0"]), &["nothing would be encrypted"]),
            case(check_of(&["--nbd", "unix:none/s"]), &["none/s does not exist"]),
            case(check_of(&["--config", &at("ca.toml")]), &["/none.pem"]),
        ],
    );
    assert!(!std::path::Path::new(state).exists());
    check(
        directory.path(),
        2,
        &[
            case(check_of(&["--ups", "a", "--ups-needed", "b"]), &["is not a configured UPS"]),
            case(check_of(&["--ups", "a", "--ups-needed", "a and"]), &["--ups-needed: column"]),
            case(check_of(&["--ups", "a@host:0"]), &["--ups a@host:0", "must be 1 to 65535"]),
        ],
    );
}

#[test]
fn a_check_does_not_miss_the_state_directory_that_the_start_creates() {
    let directory = tempfile::tempdir().unwrap();
    make_file(directory.path().join("disk.img"), 1 << 20);
    let (code, text) =
        run_forebay(directory.path(), &["serve", "--check", "--memory", "64MiB", "disk.img"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(!directory.path().join("state").exists());
}

#[test]
fn a_bad_certificate_or_key_gets_the_expected_format() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let pair = || rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
    let (one, other) = (pair(), pair());
    std::fs::write(at("cert"), one.cert.pem()).unwrap();
    std::fs::write(at("key"), one.signing_key.serialize_pem()).unwrap();
    std::fs::write(at("other-key"), other.signing_key.serialize_pem()).unwrap();
    std::fs::write(at("bad"), "no pem").unwrap();
    let tls = |cert: &str, key: &str, more: &[&str]| {
        let (cert, key) = (at(cert), at(key));
        let fixed = ["--volume", "d=memory:1MiB", "--nbd", "tcp:127.0.0.1:0", "--tls", "forced"];
        serve(&[&fixed, &["--tls-cert", &cert, "--tls-key", &key][..], more].concat())
    };
    let bad = at("bad");
    let case = |arguments, said| Case { arguments, said, unsaid: &[] };
    check(
        directory.path(),
        1,
        &[
            case(tls("bad", "key", &[]), &["bad holds no certificate", "-----BEGIN ... CERTIF"]),
            case(tls("none", "key", &[]), &["cannot read", "none", "check the path"]),
            case(tls("cert", "bad", &[]), &["bad holds no private key", "PRIVATE KEY-----"]),
            case(tls("cert", "none", &[]), &["cannot read", "none", "check the path"]),
            case(tls("cert", "other-key", &[]), &["do not belong together", "was made for"]),
            case(tls("cert", "key", &["--tls-client-ca", &bad]), &["bad holds no certificate"]),
        ],
    );
}
