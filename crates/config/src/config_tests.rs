//! Tests of the complete configuration: options over file over defaults.

use super::*;
use crate::{MemorySetting, TlsMode, parse_volume_spec};
use forebay_types::Fault;

fn options(volumes: &[&str]) -> Settings {
    let volumes = volumes.iter().map(|text| parse_volume_spec(text).unwrap()).collect();
    Settings { volumes, ..Settings::default() }
}

fn load(options: Settings) -> ConfigResult<Config> {
    SettingsSource { file: None, options, state_default: Some("/run/forebay".into()) }.load()
}

#[test]
fn one_disk_is_a_complete_configuration() {
    let config = load(options(&["disk=/dev/sdb"])).unwrap();
    let auto = MemorySetting::Auto;
    let memory =
        MemorySettings { memory: auto, min: auto, max: auto, reserve: crate::MemoryReserve::Auto };
    assert_eq!(config.memory, memory);
    assert_eq!(config.nbd, [Listen::unix("/run/forebay/nbd.sock").unwrap()]);
    assert_eq!(config.state, Path::new("/run/forebay"));
    assert_eq!((config.workers, config.io), (Workers::Auto, IoEngine::Auto));
    assert_eq!(config.tls, TlsSettings::default());
    assert!(load(options(&[])).unwrap().volumes.is_empty(), "volumes can be added later");
}

#[test]
fn options_win_over_the_file_and_volumes_add_up() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("forebay.toml");
    let text = "memory = '1GiB'\nlog = 'debug'\nnbd = 'tcp:x:1'\nstate = '/s'\n\
                [[volume]]\nname = 'a'\nbacking = '/a'\n";
    fs::write(&file, text).unwrap();
    let mut options = options(&["b=/b"]);
    options.memory = Some(MemorySetting::Auto);
    options.nbd = vec!["tcp:y:2".parse().unwrap()];
    let source = SettingsSource { file: Some(file.clone()), options, state_default: None };
    let config = source.load().unwrap();
    assert_eq!(config.memory.memory, MemorySetting::Auto);
    assert_eq!(config.log, crate::LogLevel::Debug);
    assert_eq!(config.nbd, source.options.nbd);
    let names: Vec<_> = config.volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);

    fs::write(&file, "state = '/s'\n").unwrap();
    let again = config.reload().unwrap();
    assert_eq!((again.volumes.len(), again.log), (1, crate::LogLevel::Info));

    fs::write(&file, "[[volume]]\nname = 'b'\nbacking = '/c'\n").unwrap();
    let error = config.reload().unwrap_err();
    assert_eq!(error.mistake(), Mistake::Duplicate);
    assert!(error.explained().starts_with("two volumes are called 'b'"), "{error}");
}

#[test]
fn a_vault_must_have_no_other_use() {
    let vault = |text: &str, volume: &str| {
        load(Settings { vault: Some(text.into()), ..options(&[volume]) })
    };
    assert_eq!(vault("/v", "a=/a").unwrap().vault.as_deref(), Some("/v"));
    let journal = "a=/a,mode=write-back,protection=journal,journal=/v";
    let mirror = "a=/a,protection=journal,journal=/j,journal-mirror=/v";
    for (text, volume, part) in [
        ("", "a=/a", "is empty or contains a control character"),
        ("/v\n", "a=/a", "is empty or contains a control character"),
        ("/v", "a=/v", "backing or journal of volume 'a'"),
        ("/v", journal, "backing or journal of volume 'a'"),
        ("/v", mirror, "backing or journal of volume 'a'"),
    ] {
        let error = vault(text, volume).unwrap_err().explained();
        assert!(
            error.contains(part) && error.contains("without another use as the vault"),
            "{error}"
        );
    }
}

#[test]
fn a_ups_without_a_vault_is_refused_in_file_and_options() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("forebay.toml");
    let text = "ups = 'nas'\n[[volume]]\nname = 'a'\nbacking = '/a'\nprotection = 'ups'\n";
    fs::write(&file, text).unwrap();
    let from_file = SettingsSource {
        file: Some(file),
        options: options(&[]),
        state_default: Some("/s".into()),
    };
    let mut from_options = options(&["a=/a,protection=ups"]);
    from_options.ups = vec!["nas".parse().unwrap()];
    for source in
        [from_file, SettingsSource { options: from_options, file: None, ..Default::default() }]
    {
        let mut source = SettingsSource { state_default: Some("/s".into()), ..source };
        let error = source.load().unwrap_err().explained();
        assert!(error.starts_with("volume 'a': protection=ups, but there is no vault"), "{error}");
        source.options.vault = Some("/v".into());
        source.load().unwrap();
    }
}

#[test]
fn the_error_of_an_unreadable_file_names_it() {
    let source =
        SettingsSource { file: Some("/nowhere/f.toml".into()), ..SettingsSource::default() };
    let error = source.load().unwrap_err();
    assert_eq!(error.mistake(), Mistake::Unreadable);
    assert!(error.explained().contains("/nowhere/f.toml"), "{error}");
}

#[test]
fn inconsistent_settings_are_refused() {
    let refused = |change: &dyn Fn(&mut Settings)| {
        let mut options = options(&["a=/a,tls=required"]);
        options.tls = Some(TlsMode::Selective);
        (options.tls_cert, options.tls_key) = (Some("c".into()), Some("k".into()));
        assert!(load(options.clone()).is_ok());
        change(&mut options);
        load(options).unwrap_err().explained()
    };
    for (error, part) in [
        (refused(&|options| options.tls = Some(TlsMode::Off)), "'a': tls=required, but TLS is off"),
        (refused(&|options| options.tls_key = None), "no private key"),
        (refused(&|options| options.volumes.push(options.volumes[0].clone())), "two volumes"),
        (
            refused(&|options| options.nbd = vec!["tcp:x:1".parse().unwrap(); 2]),
            "listener tcp:x:1 is given twice",
        ),
        (
            refused(&|options| {
                let listeners = ["unix:/x", "unix:/x,mode=0660"];
                options.nbd = listeners.map(|it| it.parse().unwrap()).to_vec();
            }),
            "listener unix:/x,mode=0660 is given twice",
        ),
        (
            refused(&|options| options.state = Some(format!("/{}", "x".repeat(100)).into())),
            "choose a shorter path, or set state to DIR",
        ),
        (
            refused(&|options| {
                let volume = |n| VolumeSpec::new(format!("v{n}"), "/x").unwrap();
                options.volumes = (0..=limits::VOLUMES_MAX).map(volume).collect();
            }),
            "1025 volumes exceed the limit of 1024",
        ),
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn several_listeners_may_ask_for_any_port() {
    let mut options = options(&[]);
    options.nbd = vec!["tcp:[::1]:0".parse().unwrap(); 2];
    assert_eq!(load(options).unwrap().nbd.len(), 2);
}

#[test]
fn a_missing_state_directory_is_an_error_with_a_remedy() {
    let source = SettingsSource { options: options(&["a=/a"]), ..SettingsSource::default() };
    let error = source.load().unwrap_err().explained();
    assert!(error.ends_with(": set state to DIR"), "{error}");
    assert_eq!(default_state(true), Some("/run/forebay".into()));
}
