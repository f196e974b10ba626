//! Tests of volumes on the command line: valid specifications, typical mistakes and random text.

use super::*;
use forebay_types::{
    Auto, ByteRange, DiskFormat, Durability, Fault, Mode, PinnedRanges, Protection, TlsUse,
    UnsafeUps, VOLUME_KEYS, VOLUME_SETTINGS, VolumeConfig,
};
use proptest::prelude::*;

fn refused(text: &str) -> String {
    parse_volume_spec(text).unwrap_err().explained()
}

#[test]
fn a_disk_needs_only_a_name_and_a_path() {
    let spec = parse_volume_spec("disk=/dev/sdb").unwrap();
    assert_eq!(spec, VolumeSpec::new("disk", "/dev/sdb").unwrap());
    assert_eq!(
        (spec.config.mode, spec.config.prefetch, spec.config.read_only),
        (Mode::WriteThrough, true, false)
    );
    assert_eq!(spec.to_string(), "disk=/dev/sdb");
}

#[test]
fn every_setting_can_be_written() {
    let text = "db=/dev/sdb,mode=write-back,protection=journal,journal=/dev/nvme0n1,\
                journal-mirror=/dev/nvme1n1,durability=flush,ordered=yes,accept-loss=yes,\
                nofail=yes,standby=yes,takeover-after=1min,read-only=yes,reserve=yes,format=raw,\
                frozen=yes,share-min=10%,share-max=90%,prefetch=no,\
                warm=no,pin=0B+1MiB,1GiB+4KiB,learn=no,stripe=112KiB,chunk=16KiB,\
                stripe-offset=96KiB,rotational=no,gather-below=64KiB,read-latency=20ms,\
                write-back-rate=50MiB,write-back-iops=200,write-back-age=1h,loss-limit=64MiB,\
                iops-limit=500,\
                bandwidth-limit=50MiB/s,limit-burst=10s,slow=100ms,tls=required,\
                description=the books, all of them";
    let spec = parse_volume_spec(text).unwrap();
    assert_eq!(spec.config.mode, Mode::WriteBack);
    assert_eq!(spec.config.protection, Protection::Journal);
    assert_eq!(spec.config.journal.as_deref(), Some("/dev/nvme0n1"));
    assert_eq!(spec.config.journal_mirror.as_deref(), Some("/dev/nvme1n1"));
    assert_eq!(spec.config.durability, Durability::Flush);
    assert!(
        spec.config.ordered
            && spec.config.accept_loss
            && spec.config.nofail
            && spec.config.standby
            && spec.config.takeover_after_s == Some(60)
            && spec.config.read_only
            && spec.config.reserve
            && spec.config.frozen
    );
    assert_eq!(spec.config.format, DiskFormat::Raw);
    assert!(!spec.config.prefetch && !spec.config.warm && !spec.config.learn);
    assert_eq!(spec.config.pin.lines(), 256 + 1);
    let VolumeConfig { stripe, chunk, stripe_offset, rotational, .. } = spec.config;
    assert_eq!([stripe, chunk, stripe_offset], [112 << 10, 16 << 10, 96 << 10].map(Auto::Set));
    assert_eq!((rotational, spec.config.gather_below), (Auto::Set(false), Auto::Set(64 << 10)));
    assert_eq!((spec.config.slow_us, spec.config.tls), (Some(100_000), TlsUse::Required));
    assert_eq!(spec.config.description.as_deref(), Some("the books, all of them"));
    assert_eq!(spec.to_string(), text);
    let keys: Vec<_> = spec.settings().pairs().into_iter().map(|(key, _)| key).collect();
    // This one requires a UPS without a journal.
    let mut expected = VOLUME_KEYS.to_vec();
    expected.retain(|&key| key != "unsafe-supply");
    assert_eq!(keys, expected);
}

#[test]
fn a_volume_has_the_defaults_that_help_texts_show() {
    let spec = VolumeSpec::new("d", "/x").unwrap();
    for ((key, value), setting) in spec.all_settings().into_iter().zip(VOLUME_SETTINGS) {
        let is_unstated = key == "protection" && value == "unstated";
        assert!(is_unstated || value == setting.default, "{key}: {value}");
        assert_eq!(key, setting.key);
    }
}

#[test]
fn settings_take_the_values_that_help_texts_show() {
    for setting in VOLUME_SETTINGS {
        for shown in setting.values.split('|') {
            let value = match shown {
                "BACKING" => "file.img",
                "SIZE" => "1MiB",
                "TIME" => "20s",
                "NUMBER" => "100",
                "PERCENT" => "20%",
                "RANGES" => "0+1MiB,8MiB+4KiB",
                word => word,
            };
            let mut change = VolumeChange::default();
            change.set(setting.key, value).unwrap();
            let is_fixed = !setting.is_live || value.ends_with("ups");
            assert_eq!(change.has_fixed_settings(), is_fixed, "{}={value}", setting.key);
        }
    }
}

#[test]
fn backings_keep_their_commas_and_equals_signs() {
    for backing in [
        "memory:1GiB",
        "nbd://host:10809/disk",
        "nbd+unix:///disk?socket=/run/nbd.sock",
        "rbd:pool/image@/etc/ceph/ceph.conf?user=vm",
        "s3://bucket/disk?size=1GiB&endpoint=https://host:9000",
        "model:hdd?size=8GiB",
        "delay(read=5ms,write=5ms):/dev/sdb",
        "error(rate=1,mode=x):delay(read=5ms,write=(1,tls=2)ms):memory:1GiB",
        "/disks/one, two.img",
        "/disks/a,B=c",
        "/disks/a) b",
    ] {
        let spec = parse_volume_spec(&format!("v={backing},mode=bypass")).unwrap();
        assert_eq!((spec.backing.as_str(), spec.config.mode), (backing, Mode::Bypass));
        let text = format!("v=/x,protection=journal,journal={backing}");
        for text in [text.clone(), format!("{text},durability=flush")] {
            let spec = parse_volume_spec(&text).unwrap();
            assert_eq!(spec.config.journal.as_deref(), Some(backing));
            assert_eq!(spec.to_string(), text);
        }
        let text = format!("v=/x,protection=journal,journal=/j,journal-mirror={backing}");
        let spec = parse_volume_spec(&text).unwrap();
        assert_eq!(spec.config.journal_mirror.as_deref(), Some(backing));
    }
}

#[test]
fn mistakes_are_reported_with_a_remedy() {
    for (text, sentence) in [
        ("disk", "volume \"disk\" has no backing: write NAME=BACKING, as in disk=/dev/sdb"),
        ("=/x", "volume name \"\" is empty: give the volume a name, as in disk=/dev/sdb"),
        ("d=", "volume 'd': it has no backing: name a disk or file, as in disk=/dev/sdb, or a URL"),
        ("d=,mode=bypass", "volume 'd': it has no backing"),
        ("d,mode=/x", "volume name \"d,mode\" contains '=' or ','"),
        ("d=/x,mdoe=bypass", "volume 'd': unknown volume setting 'mdoe': did you mean 'mode'?"),
        (
            "d=/x,name=e",
            "volume 'd': unknown volume setting 'name': write a volume as NAME=BACKING,KEY=VALUE",
        ),
        ("d=/x,mode=bypass,mode=bypass", "volume 'd': setting 'mode' is given twice"),
        ("d=/x,mode=writeback", "volume 'd': unknown mode 'writeback': use write-back, "),
        ("d=/x,mode=", "volume 'd': unknown mode '': use"),
        ("d=/x,read-only=1", "volume 'd': read-only='1' is neither yes nor no"),
        ("d=/x,rotational=1", "volume 'd': invalid value '1' of rotational: use yes, no or auto"),
        ("d=/x,chunk=0", "volume 'd': chunk=0B is not a chunk size: write a size, or leave it"),
        ("d=/x,stripe=1KB", "volume 'd': stripe='1KB' is not a size: units are powers of 1024, "),
        ("d=/x,tls=on", "volume 'd': unknown tls value 'on': use optional or required"),
        ("d=delay(5ms:/x,mode=bypass", "volume 'd': a parenthesis is never closed: close it"),
        ("d=/x\n", "volume 'd': backing \"/x\\n\" contains a control character"),
        ("d=/x,protection=journal,journal=error(rate=1:/j", "volume 'd': a parenthesis is never"),
        ("d=/x,protection=journal,journal=/j,size=1", "volume 'd': unknown volume setting 'size'"),
        ("d=/x,description=a\tb", "volume 'd': the description contains a control character"),
    ] {
        assert!(refused(text).starts_with(sentence), "{text}: {}", refused(text));
    }
    let long = "n".repeat(257);
    assert!(refused(&format!("{long}=/x")).contains("has more than 256 bytes"));
    assert!(parse_volume_spec(&format!("{}=/x", &long[1..])).is_ok());
}

#[test]
fn a_disk_without_a_name_is_named_after_its_file() {
    for (path, name) in [
        ("/dev/sdb", "sdb"),
        ("/disks/books.img", "books"),
        ("books.qcow.img", "books.qcow"),
        ("/disks/.hidden", ".hidden"),
        ("./memory:1GiB", "memory:1GiB"),
        ("/by=path/x", "x"),
    ] {
        let spec = VolumeSpec::from_disk(path).unwrap();
        assert_eq!((spec.name.as_str(), spec.backing.as_str()), (name, path));
    }
    for (path, part) in [
        ("memory:1GiB", "set volume to NAME=memory:1GiB"),
        ("delay(5ms):/x", "set volume to NAME=delay(5ms):/x"),
        ("disk=/dev/sdb", "set volume to disk=/dev/sdb"),
        ("/", "is empty"),
        ("", "is empty"),
        ("/disks/a,b.img", "contains '=' or ','"),
    ] {
        let error = VolumeSpec::from_disk(path).unwrap_err().explained();
        assert!(error.contains(part), "{path}: {error}");
    }
}

#[test]
fn relative_paths_after_layers_are_resolved() {
    for (backing, absolute) in [
        ("x.img", "/base/x.img"),
        ("./a:b", "/base/./a:b"),
        ("/x.img", "/x.img"),
        ("memory:1GiB", "memory:1GiB"),
        ("delay(read=5ms,write=(1)):x.img", "delay(read=5ms,write=(1)):/base/x.img"),
        ("delay(5ms):error(1):/x.img", "delay(5ms):error(1):/x.img"),
        ("delay(5ms):memory:1GiB", "delay(5ms):memory:1GiB"),
        ("file:memory:1", "file:/base/memory:1"),
        ("trace(to=x):file:/x", "trace(to=x):file:/x"),
        ("delay(5ms", "delay(5ms"),
    ] {
        let mut spec = VolumeSpec::new("v", backing).unwrap();
        spec.config.journal = Some(backing.into());
        let spec = spec.from_directory(Path::new("/base"));
        assert_eq!(
            (spec.backing.as_str(), spec.config.journal.as_deref()),
            (absolute, Some(absolute))
        );
    }
}

#[test]
fn a_change_affects_only_its_settings() {
    let spec = parse_volume_spec("d=/x,prefetch=no,description=books").unwrap();
    let change = VolumeChange::parse(["mode=bypass", "description="]).unwrap();
    let changed = spec.with(&change).unwrap();
    assert_eq!(changed.to_string(), "d=/x,mode=bypass,prefetch=no");
    assert_eq!(spec.change_to(&changed), change);
    assert!(spec.change_to(&spec).is_empty());
    let error = VolumeChange::parse(["bypass"]).unwrap_err().explained();
    assert!(error.starts_with("'bypass' is not KEY=VALUE: write it like mode=bypass"), "{error}");
    let error = spec.with(&VolumeChange::parse(["mode=write-back"]).unwrap()).unwrap_err();
    assert_eq!(error.mistake(), Mistake::Protection);
}

/// Consistent protection, journal and durability.
fn any_protection() -> impl Strategy<Value = (Protection, Option<String>, Durability)> {
    let journal = "/j[a-z0-9:?=. )]{0,20}|delay\\(read=1ms,write=2ms\\):/j,k";
    prop_oneof![
        Just((Protection::Unstated, None, Durability::Ack)),
        Just((Protection::None, None, Durability::Ack)),
        (journal, proptest::sample::select(&Durability::ALL[..]))
            .prop_map(|(journal, durability)| (Protection::Journal, Some(journal), durability)),
    ]
}

/// Consistent stripes, chunks and offsets.
fn any_geometry() -> impl Strategy<Value = VolumeConfig> {
    let rotational = prop_oneof![Just(Auto::Auto), any::<bool>().prop_map(Auto::Set)];
    let chunked =
        (1u64..300, 1u64..20, any::<bool>(), 0u64..300).prop_map(|(chunk, n, all, at)| {
            let (chunk, stripe) = (chunk * 512, chunk * n * 512);
            let stripe_offset = Auto::Set(at * 512 % stripe);
            let (stripe, chunk) = (Auto::Set(stripe), Auto::Set(chunk));
            if all {
                VolumeConfig { stripe, chunk, stripe_offset, ..Default::default() }
            } else {
                VolumeConfig { chunk, ..Default::default() }
            }
        });
    let none = VolumeConfig { stripe: Auto::Set(0), ..Default::default() };
    let sizes = prop_oneof![Just(VolumeConfig::default()), Just(none), chunked];
    (sizes, rotational).prop_map(|(sizes, rotational)| VolumeConfig { rotational, ..sizes })
}

fn any_gather_below() -> impl Strategy<Value = Auto<u64>> {
    prop_oneof![Just(Auto::Auto), (0..=65536u64).prop_map(|sectors| Auto::Set(sectors * 512))]
}

/// Some ranges, or the whole volume.
fn any_pin() -> impl Strategy<Value = PinnedRanges> {
    let ranges = prop::collection::vec((0u64..1 << 40, 1u64..1 << 30), 0..4);
    prop_oneof![
        1 => Just(PinnedRanges::all()),
        6 => ranges.prop_map(|ranges| {
            let mut pins = PinnedRanges::default();
            ranges.into_iter().for_each(|(offset, len)| pins.add(ByteRange::new(offset, len)));
            pins
        }),
    ]
}

prop_compose! {
    fn any_spec()(
        name in "[a-zA-Z0-9 ./()ä-]{1,20}",
        backing in "[a-z]{0,6}(\\(x=1,mode=y\\):)?[/a-z0-9:?=. )]{1,20}",
        mode in proptest::sample::select(&Mode::ALL[..]),
        protected in any_protection(),
        geometry in any_geometry(),
        gather_below in any_gather_below(),
        is_mirrored: bool, accept_loss: bool, read_only: bool, prefetch: bool, required: bool,
        description in proptest::option::of("[a-zA-Z ,.ß]{1,20}"),
        pin in any_pin(),
    ) -> VolumeSpec {
        let (protection, journal, durability) = protected;
        let accept_loss = accept_loss || protection == Protection::None;
        let is_unstated = protection == Protection::Unstated;
        let mode = if is_unstated && mode == Mode::WriteBack { Mode::Bypass } else { mode };
        // The journal must not be the backing.
        let journal = journal
            .map(|journal| if journal == backing { "/jj".into() } else { journal });
        let journal_mirror = journal.as_ref().filter(|_| is_mirrored).map(|_| "/MIRROR".into());
        let config = VolumeConfig {
            mode, protection, journal, journal_mirror, durability, accept_loss,
            read_only, prefetch, gather_below, description,
            ordered: prefetch && accept_loss,
            frozen: prefetch && read_only,
            nofail: prefetch || required,
            warm: prefetch != read_only,
            pin: if mode == Mode::Bypass { PinnedRanges::default() } else { pin },
            learn: prefetch == accept_loss,
            unsafe_supply: match protection {
                Protection::Ups if read_only => UnsafeUps::DiskCache,
                _ => UnsafeUps::Stable,
            },
            format: if required { DiskFormat::Raw } else { DiskFormat::Auto },
            tls: if required { TlsUse::Required } else { TlsUse::Optional },
            ..geometry
        };
        VolumeSpec { name, backing, config }
    }
}

proptest! {
    #[test]
    fn every_text_is_refused_or_survives_a_round_trip(text in "\\PC{0,60}") {
        if let Ok(spec) = parse_volume_spec(&text) {
            prop_assert_eq!(parse_volume_spec(&spec.to_string()), Ok(spec));
        }
    }

    #[test]
    fn near_misses_are_refused_or_survive_a_round_trip(
        text in "[a-z]{0,2}=(([a-z(),=:/]|,mode=|,tls=|,read-only=|,description=|,journal=\
                |,protection=journal|,journal-mirror=|,durability=|flush|yes|bypass|,pin=\
                |0+1){0,8})"
    ) {
        if let Ok(spec) = parse_volume_spec(&text) {
            prop_assert_eq!(parse_volume_spec(&spec.to_string()), Ok(spec));
        }
    }

    #[test]
    fn every_volume_survives_a_round_trip(spec in any_spec()) {
        prop_assert_eq!(parse_volume_spec(&spec.to_string()), Ok(spec));
    }

    #[test]
    fn applying_the_change_between_two_volumes_yields_the_second(
        old in any_spec(),
        new in any_spec(),
    ) {
        let new = VolumeSpec { name: old.name.clone(), backing: old.backing.clone(), ..new };
        let change = old.change_to(&new);
        // A journal comes and goes with its durability.
        let has_both = old.config.journal.is_some() == new.config.journal.is_some();
        let is_fixed = VOLUME_SETTINGS.iter().any(|setting| {
            let is_exempt = setting.key == "durability" && !has_both;
            !setting.is_live && change.has(setting.key) && !is_exempt
        });
        if is_fixed {
            let mistake = old.with(&change).map_err(|error| error.mistake());
            prop_assert_eq!(mistake, Err(Mistake::Served));
        } else {
            prop_assert_eq!(old.with(&change), Ok(new));
        }
    }

    #[test]
    fn a_disk_without_a_name_never_panics(path in "\\PC{0,40}") {
        if let Ok(spec) = VolumeSpec::from_disk(&path) {
            let spec = spec.from_directory(Path::new("/base"));
            prop_assert!(spec.backing.starts_with('/'));
        }
    }
}

#[test]
fn a_disk_that_is_not_a_path_is_refused_with_a_remedy() {
    for (disk, message, remedy) in [
        ("model:hdd?size=1GiB", "has no name", "NAME=model:hdd?size=1GiB, or write ./model:"),
        ("memory:1GiB", "has no name", "set volume to NAME=memory:1GiB"),
        ("delay(read=1ms):/x", "has no name", "set volume to NAME=delay(read=1ms):/x"),
        ("nbd://host/x", "has no name", "set volume to NAME=nbd://host/x"),
        ("s3://bucket/disk", "has no name", "set volume to NAME=s3://bucket/disk"),
        ("gs://bucket/disk", "no backend 'gs:'", "nbdkit"),
        ("s3a://bucket/disk", "no backend 's3a:'", "s3://BUCKET/PREFIX"),
        ("rbd:pool/image", "has no name", "set volume to NAME=rbd:pool/image"),
        ("ceph:pool/image", "no backend 'ceph:'", "rbd:POOL/IMAGE"),
        ("iscsi://host/target", "no backend 'iscsi:'", "iscsiadm"),
        ("vhost-user:/run/x.sock", "no backend 'vhost-user:'", "over NBD"),
        ("foo:bar", "no backend 'foo:'", "memory:SIZE"),
        ("foo:bar", "no backend 'foo:'", "write ./foo:bar for a file"),
        ("disk=/dev/sdb", "not the path of a disk", "set volume to disk=/dev/sdb"),
    ] {
        let error = VolumeSpec::from_disk(disk).unwrap_err();
        assert!(error.message().contains(message), "{error}");
        assert!(error.remedy().to_string().contains(remedy), "{error}");
        assert!(!error.remedy().to_string().contains("set volume to s3:"), "{error}");
    }
}
