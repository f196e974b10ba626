//! Tests of the configuration file: every key, mistakes with their positions, and random text.

use super::*;
use crate::{IoEngine, LogLevel, MemorySetting, Percent, Seconds, TlsMode, UpsSource, Workers};
use forebay_types::Fault;
use forebay_types::{Durability, Mode, Protection};
use proptest::prelude::*;

const EVERYTHING: &str = r#"
memory = "2GiB"
memory-min = "64MiB"
memory-max = "3GiB"
memory-reserve = "100MiB"
cache-ratio = "30:70"
nbd = ["unix:/run/nbd.sock", "tcp:[::1]:10809"]
state = "/run/forebay"
workers = 3
io = "epoll"
keeper = "yes"
log = "debug"
tls = "selective"
tls-cert = "/etc/cert.pem"
tls-key = "/etc/key.pem"
tls-client-ca = "/etc/ca.pem"
ups = ["left@nas", "right=file:/run/right"]
ups-needed = "left or right"
ups-user = "watch"
ups-ca = "/etc/nut.pem"
ups-threshold = "80%"
ups-settle-seconds = 5
ups-margin-seconds = 90

[[volume]]
name = "disk"
backing = "/dev/sdb"

[[volume]]
name = "db"
backing = "/disks/a,mode=(b"
mode = "write-back"
protection = "none"
accept-loss = true
read-only = "no"
prefetch = false
tls = "required"
description = "the books"

[[volume]]
name = "vm"
backing = "/dev/sdc"
mode = "write-back"
protection = "journal"
journal = "error(rate=0,kind=all):/disks/j,size=(1"
journal-mirror = "/disks/k,size=(1"
durability = "flush"
"#;

fn refused(text: &str) -> String {
    parse_toml(text, "f.toml").unwrap_err().explained()
}

#[test]
fn every_setting_can_be_written() {
    let settings = parse_toml(EVERYTHING, "f.toml").unwrap();
    assert_eq!(settings.memory, Some(MemorySetting::Bytes(2 << 30)));
    assert_eq!(settings.memory_min, Some(MemorySetting::Bytes(64 << 20)));
    assert_eq!(settings.memory_max, Some(MemorySetting::Bytes(3 << 30)));
    assert_eq!(settings.memory_reserve, Some(crate::MemoryReserve::Bytes(100 << 20)));
    assert_eq!(settings.cache_ratio, Some("30:70".parse().unwrap()));
    assert_eq!(settings.nbd.len(), 2);
    assert_eq!(settings.state, Some("/run/forebay".into()));
    assert_eq!(settings.workers, Some(Workers::Count(3)));
    assert_eq!(settings.io, Some(IoEngine::Epoll));
    assert_eq!(settings.keeper, Some(crate::KeeperMode::Yes));
    assert_eq!(settings.log, Some(LogLevel::Debug));
    assert_eq!(settings.tls, Some(TlsMode::Selective));
    assert_eq!(settings.tls_client_ca, Some("/etc/ca.pem".into()));
    assert_eq!(settings.ups[1].source, UpsSource::File("/run/right".into()));
    assert_eq!(settings.ups_threshold, Some(Percent(80)));
    assert_eq!(settings.ups_margin_seconds, Some(Seconds(90)));
    assert_eq!(settings.volumes[0], VolumeSpec::new("disk", "/dev/sdb").unwrap());
    let db = &settings.volumes[1];
    assert_eq!((db.backing.as_str(), db.config.mode), ("/disks/a,mode=(b", Mode::WriteBack));
    assert!(db.config.accept_loss && !db.config.prefetch && !db.config.read_only);
    let vm = &settings.volumes[2];
    assert_eq!(vm.config.journal.as_deref(), Some("error(rate=0,kind=all):/disks/j,size=(1"));
    assert_eq!(vm.config.journal_mirror.as_deref(), Some("/disks/k,size=(1"));
    assert_eq!(
        (vm.config.protection, vm.config.durability),
        (Protection::Journal, Durability::Flush)
    );
    assert_eq!(parse_toml(&settings.to_string(), "again"), Ok(settings));
}

#[test]
fn every_listed_key_is_known() {
    for key in PROGRAM_SETTINGS.iter().map(|setting| setting.key).chain(["volume"]) {
        let error = refused(&format!("{key} = 1.5"));
        assert!(!error.contains("unknown setting"), "{key}: {error}");
    }
    for key in VOLUME_KEYS {
        let error = refused(&format!("[[volume]]\nname='a'\nbacking='b'\n{key} = 1.5"));
        assert!(error.contains("cannot be of the type float"), "{key}: {error}");
    }
}

#[test]
fn a_single_listener_needs_no_brackets() {
    let settings = parse_toml("nbd = 'tcp:[::]:10809'", "f").unwrap();
    assert_eq!(settings.nbd, ["tcp:[::]:10809".parse().unwrap()]);
}

#[test]
fn mistakes_are_reported_with_position_and_remedy() {
    let volume = "[[volume]]\nname = 'a'\nbacking = '/x'\n";
    for (text, sentence) in [
        (
            "memory = '1GiB'\nmemry = 1",
            "f.toml:2:1: unknown setting 'memry': did you mean 'memory'?",
        ),
        ("memory =", "f.toml:1:9: "),
        ("memory = '1GiB'\nmemory = '2GiB'", "f.toml:2:1: duplicate key"),
        ("  memory = '1GB'", "f.toml:1:12: invalid memory size '1GB': units are powers of 1024"),
        ("memory = 1.5", "f.toml:1:10: memory cannot be of the type float: write it as text"),
        ("memory = 5", "f.toml:1:10: memory 5B is too little for a cache: give at least 32MiB"),
        ("workers = 0x10", "f.toml:1:11: workers cannot be of the type integer"),
        ("nbd = [\n 'tcp:x:1',\n 'tcp:x']", "f.toml:3:2: listener 'tcp:x' has no port"),
        ("io = ['auto']", "f.toml:1:6: io cannot be of the type array: write it as text, io ="),
        ("state = ''", "f.toml:1:9: state \"\" is not a path"),
        ("state = '~/x'", "f.toml:1:9: state \"~/x\" begins with ~, which only a shell replaces"),
        ("mode = 'bypass'", "f.toml:1:1: unknown setting 'mode': it is a setting of a volume"),
        ("volume = 3", "f.toml:1:10: volume is not a list: write a section [[volume]]"),
        ("volume = [3]", "f.toml:1:11: not a volume section"),
        ("[[volume]]\nname = 'a'", "f.toml:1:1: the volume has no backing: add backing = "),
        ("[[volume]]\nbacking = 'a'", "f.toml:1:1: the volume has no name"),
        (
            "[[volume]]\nname = 'a'\nbakcing = '/x'",
            "f.toml:3:1: volume 'a': unknown volume setting 'bakcing': did you mean 'backing'?",
        ),
        (
            "[[volume]]\nnmae = 'a'",
            "f.toml:2:1: unknown volume setting 'nmae': did you mean 'name'?",
        ),
        ("[[volume]]\nname = ''\nbacking = '/x'", "f.toml:2:8: volume name \"\" is empty"),
        ("[[volume]]\nname = 'a'\nbacking = ''", "f.toml:3:11: volume 'a': it has no backing"),
    ] {
        assert!(refused(text).starts_with(sentence), "{text}: {}", refused(text));
    }
    for (text, sentence) in [
        ("mdoe = 'bypass'", "f.toml:4:1: volume 'a': unknown volume setting 'mdoe': did "),
        ("mode = 'fast'", "f.toml:4:8: volume 'a': unknown mode 'fast': use write-back, "),
        ("mode = 'write-back'", "f.toml:2:8: volume 'a': write-back without a protection"),
        ("protection = 'vault'", "f.toml:4:14: volume 'a': unknown protection 'vault': write"),
        ("protection = 'journal'", "f.toml:2:8: volume 'a': protection=journal, but no journal is"),
        ("journal = '/j'", "f.toml:2:8: volume 'a': journal is set, but the protection does not"),
        ("journal = ''", "f.toml:4:11: volume 'a': journal= is empty: name a file or device"),
        ("durability = 'ack'", "f.toml:2:8: volume 'a': durability=ack needs a journal, and none"),
        ("durability = 'x'", "f.toml:4:14: volume 'a': unknown durability 'x': use ack or flush"),
        (
            "protection = 'journal'\njournal = '/x'",
            "f.toml:2:8: volume 'a': journal /x is also its backing: name another file",
        ),
        (
            "read-only = 'true'",
            "f.toml:4:13: volume 'a': read-only='true' is neither yes nor no: write read-only = \
             true or read-only = false",
        ),
        ("memory = '2GiB'", "f.toml:4:1: volume 'a': unknown volume setting 'memory': it is a "),
        (volume, "f.toml:5:8: two volumes are called 'a'"),
    ] {
        let text = format!("{volume}{text}");
        assert!(refused(&text).starts_with(sentence), "{text}: {}", refused(&text));
    }
}

proptest! {
    #[test]
    fn every_text_is_refused_or_survives_a_round_trip(text in "\\PC{0,80}") {
        if let Ok(settings) = parse_toml(&text, "f") {
            prop_assert_eq!(parse_toml(&settings.to_string(), "f"), Ok(settings));
        }
    }

    #[test]
    fn near_misses_are_refused_or_survive_a_round_trip(
        lines in proptest::collection::vec(
            "(\\[\\[volume\\]\\]|\\[volume\\]|[a-z-]{1,4} = 1|(memory|nbd|state|io|tls|name|\
             backing|mode|description|prefetch|accept-loss|protection|journal|durability|\
             workers) = \
             ('(auto|a|b|c|none|journal|ack|flush|tcp:x:1|bypass|write-back|[a-z\\\\]{1,3})'|\
             \"[a-zü\\\\\"]{0,3}\"|true|[0-9]{1,9}|\\[\\]))",
            0..8,
        )
    ) {
        if let Ok(settings) = parse_toml(&lines.join("\n"), "f") {
            prop_assert_eq!(parse_toml(&settings.to_string(), "f"), Ok(settings));
        }
    }

    #[test]
    fn every_truncated_or_damaged_file_is_refused_or_survives_a_round_trip(
        cut in 0..EVERYTHING.len(),
        at in 0..EVERYTHING.len(),
        byte in 0x20u8..0x7f,
    ) {
        let mut bytes = EVERYTHING.as_bytes().to_vec();
        bytes[at] = byte;
        bytes.truncate(cut);
        let text = String::from_utf8(bytes).unwrap();
        if let Ok(settings) = parse_toml(&text, "f") {
            prop_assert_eq!(parse_toml(&settings.to_string(), "f"), Ok(settings));
        }
    }
}
