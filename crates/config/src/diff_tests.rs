//! Tests of reloads: which changes take effect, which need a restart, and their order.

use super::*;
use crate::{Settings, SettingsSource, TlsMode, parse_volume_spec};

fn config(volumes: &[&str], change: impl FnOnce(&mut Settings)) -> Config {
    let volumes = volumes.iter().map(|text| parse_volume_spec(text).unwrap()).collect();
    let mut options = Settings { volumes, ..Settings::default() };
    change(&mut options);
    SettingsSource { file: None, options, state_default: Some("/s".into()) }.load().unwrap()
}

fn sentences(old: &Config, new: &Config) -> Vec<String> {
    diff(old, new).iter().map(ToString::to_string).collect()
}

#[test]
fn nothing_changes_without_a_difference() {
    let config = config(&["a=/a", "b=/b,mode=bypass"], |_| ());
    assert_eq!(diff(&config, &config), []);
}

#[test]
fn volumes_are_removed_replaced_and_changed_before_others_are_added() {
    let old = config(&["a=/a", "b=/b", "c=/c", "d=/d"], |_| ());
    let new = config(&["e=/a", "d=/d", "c=/c,mode=bypass,prefetch=no", "b=/other"], |_| ());
    assert_eq!(
        sentences(&old, &new),
        [
            "volume 'a' is removed",
            "volume 'c' is changed: mode=bypass,prefetch=no",
            "volume 'b' is replaced: its backing is now /other",
            "volume 'e' is added",
            "volume 'b' is added",
        ]
    );
}

#[test]
fn a_setting_left_out_returns_to_its_default() {
    let stated = "a=/a,mode=write-back,protection=none,accept-loss=yes,description=x";
    let (old, new) = (config(&[stated], |_| ()), config(&["a=/a"], |_| ()));
    let changes = diff(&old, &new);
    let [ConfigChange::VolumeChanged { change, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(old.volumes[0].with(change), Ok(new.volumes[0].clone()));
    assert_eq!(
        changes[0].to_string(),
        "volume 'a' has other settings: mode=write-through,protection=unstated,accept-loss=no,\
         description="
    );
}

#[test]
fn a_protection_that_ends_is_not_reported_as_changed() {
    let with_ups = |volume: &str| {
        config(&[volume], |settings| {
            settings.ups = vec!["u@h".parse().unwrap()];
            settings.vault = Some("/v".into());
        })
    };
    let old = with_ups("a=/a,mode=write-back,protection=ups");
    let new = with_ups("a=/a,mode=write-back,protection=none,accept-loss=yes");
    let expected = "volume 'a' has other settings: protection=none,accept-loss=yes";
    assert_eq!(sentences(&old, &new), [expected]);
}

#[test]
fn a_changed_journal_is_reported_and_taken_by_a_served_volume() {
    const JOURNALED: &str = "a=/a,mode=write-back,protection=journal,journal=/j";
    for (old, new, difference) in [
        ("a=/a", JOURNALED, "mode=write-back,protection=journal,journal=/j"),
        (JOURNALED, "a=/a", "mode=write-through,protection=unstated,journal="),
        (
            JOURNALED,
            "a=/a,mode=write-back,protection=journal,journal=/k,journal-mirror=/l",
            "journal=/k,journal-mirror=/l",
        ),
    ] {
        let (old, new) = (config(&[old], |_| ()), config(&[new], |_| ()));
        let changes = diff(&old, &new);
        let [ConfigChange::VolumeChanged { change, .. }] = &changes[..] else {
            panic!("{changes:?}")
        };
        assert!(changes[0].to_string().ends_with(difference), "{}", changes[0]);
        assert_eq!(old.volumes[0].with(change), Ok(new.volumes[0].clone()));
        // A volume that already has the new settings accepts the change.
        assert_eq!(new.volumes[0].with(change), Ok(new.volumes[0].clone()));
    }
    let (old, new) = (config(&[JOURNALED], |_| ()), config(&["a=/b"], |_| ()));
    assert_eq!(
        sentences(&old, &new),
        ["volume 'a' is replaced: its backing is now /b", "volume 'a' is added"]
    );
}

#[test]
fn volumes_that_exchange_their_disks_are_removed_before_one_is_added() {
    let (old, new) = (config(&["a=/a", "b=/b"], |_| ()), config(&["a=/b", "b=/a"], |_| ()));
    let changes = diff(&old, &new);
    let kinds = changes.iter().map(|change| match change {
        ConfigChange::VolumeReplaced { new } => format!("-{}", new.name),
        ConfigChange::VolumeAdded { new } => format!("+{}={}", new.name, new.backing),
        other => panic!("{other:?}"),
    });
    assert_eq!(kinds.collect::<Vec<_>>(), ["-a", "-b", "+a=/b", "+b=/a"]);
}

#[test]
fn a_reload_repeats_the_changes_that_failed_before() {
    let old = config(&["gone=/1", "moved=/2", "set=/3", "kept=/4"], |_| ());
    let new = config(&["moved=/5", "set=/3,mode=bypass", "kept=/4", "more=/6"], |_| ());
    let changes = diff(&old, &new);
    assert_eq!(changes.len(), 5);
    let left = |failed: &[ConfigChange], served: &[&str]| {
        let mut kept = old.clone();
        kept.apply_live(new.clone(), failed, |name| served.contains(&name));
        diff(&kept, &new)
    };
    let of = |name: &str| -> Vec<ConfigChange> {
        changes.iter().filter(|change| change.volume() == Some(name)).cloned().collect()
    };
    assert_eq!(left(&[], &[]), []);
    for (name, served) in [("gone", &["gone"][..]), ("set", &["set"][..]), ("more", &[][..])] {
        assert_eq!(left(&of(name), served), of(name), "{name}");
    }
    // More memory than the maximum of the server.
    let more = config(&["gone=/1", "moved=/2", "set=/3", "kept=/4"], |settings| {
        settings.memory = Some("1TiB".parse().unwrap());
    });
    let failed = diff(&old, &more);
    let mut kept = old.clone();
    kept.apply_live(more.clone(), &failed, |_| true);
    assert_eq!((failed.len(), &diff(&kept, &more)), (1, &failed));
    // Still served from its old disk, or removed without a successor.
    let moved = of("moved");
    assert_eq!(left(&moved[..1], &["moved"]), moved);
    assert_eq!(left(&moved[1..], &[]), moved[1..]);
    // A command has already made the change.
    for (name, served) in [("gone", &[][..]), ("set", &[][..]), ("more", &["more"][..])] {
        assert_eq!(left(&of(name), served), [], "{name}");
    }
}

/// Changes every setting but those of UPSes.
fn change_settings(settings: &mut Settings) {
    settings.memory = Some("1GiB".parse().unwrap());
    settings.memory_min = Some("64MiB".parse().unwrap());
    settings.memory_max = Some("2GiB".parse().unwrap());
    settings.memory_reserve = Some("1GiB".parse().unwrap());
    settings.cache_ratio = Some("25:75".parse().unwrap());
    settings.nbd = vec!["tcp:x:1".parse().unwrap(), "tcp:x:2".parse().unwrap()];
    settings.vhost_user = Some("/v,mode=0660".parse().unwrap());
    settings.state = Some("/t".into());
    settings.workers = Some("2".parse().unwrap());
    settings.io = Some("epoll".parse().unwrap());
    settings.keeper = Some("no".parse().unwrap());
    settings.background = Some("full".parse().unwrap());
    settings.log = Some("warn".parse().unwrap());
    settings.tls = Some(TlsMode::Forced);
    settings.tls_cert = Some("c".into());
    settings.tls_key = Some("k".into());
    settings.tls_client_ca = Some("a".into());
}

#[test]
fn every_other_setting_needs_a_restart() {
    let (old, new) = (config(&[], |_| ()), config(&[], change_settings));
    assert_eq!(
        sentences(&old, &new),
        [
            "settings are changed: memory=1GiB,memory-min=64MiB,memory-max=2GiB,\
             memory-reserve=1GiB,cache-ratio=25:75,background=full",
            "the log level is now warn",
            "nbd is now tcp:x:1, tcp:x:2, before unix:/s/nbd.sock",
            "vhost-user is now /v,mode=0660, before unset",
            "tls is now forced, before off",
            "tls-cert is now c, before unset",
            "tls-key is now k, before unset",
            "tls-client-ca is now a, before unset",
            "state stays /s: restart forebay to change it to /t",
            "workers stays auto: restart forebay to change it to 2",
            "io stays auto: restart forebay to change it to epoll",
            "keeper stays auto: restart forebay to change it to no",
        ]
    );
}

#[test]
fn a_reload_keeps_what_is_in_effect_and_reports_the_rest_again() {
    let (old, new) = (config(&["a=/a"], |_| ()), config(&["b=/b"], change_settings));
    let needs_restart = |change: &ConfigChange| matches!(change, ConfigChange::NeedsRestart { .. });
    let (waiting, applied): (Vec<_>, Vec<_>) =
        diff(&old, &new).into_iter().partition(needs_restart);
    let mut kept = old.clone();
    kept.apply_live(new.clone(), &[], |_| true);
    assert_eq!((diff(&old, &kept), diff(&kept, &new)), (applied, waiting));
    assert_eq!((&kept.nbd, &kept.tls, &kept.state), (&new.nbd, &new.tls, &old.state));
    assert_eq!(kept.vhost_user, new.vhost_user);
    assert_eq!((&kept.volumes, kept.log, kept.memory), (&new.volumes, new.log, new.memory));
}

#[test]
fn the_default_address_stays_while_another_state_directory_waits_for_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("forebay.toml");
    std::fs::write(&file, "state = '/s'").unwrap();
    let source = SettingsSource { file: Some(file.clone()), ..SettingsSource::default() };
    let old = source.load().unwrap();
    std::fs::write(&file, "state = '/t'").unwrap();
    let new = old.reload().unwrap();
    assert_eq!(sentences(&old, &new), ["state stays /s: restart forebay to change it to /t"]);
}

#[test]
fn changed_settings_of_upses_need_a_restart_and_no_password_is_shown() {
    let with = |changes: &[(&str, &str)]| {
        let all = [("ups", "a@x"), ("ups-user", "u"), ("ups-password", "old"), ("ups-ca", "/a")];
        let set = |settings: &mut Settings| {
            let mut set = |(key, text): &(&str, &str)| settings.set(key, text).unwrap();
            all.iter().chain(changes).for_each(&mut set);
        };
        config(&[], set)
    };
    let changes = [
        ("ups", "b@y"),
        ("ups-password", "new"),
        ("ups-ca", "/b"),
        ("ups-threshold", "80"),
        ("vault", "/v"),
    ];
    assert_eq!(
        sentences(&with(&[]), &with(&changes)),
        [
            "ups stays a@x: restart forebay to change it to a@x, b@y",
            "ups-password stays as it is: restart forebay to change it",
            "ups-ca stays /a: restart forebay to change it to /b",
            "ups-threshold stays 79: restart forebay to change it to 80",
            "vault stays unset: restart forebay to change it to /v",
        ]
    );
    let defaults = [("ups-threshold", "79"), ("ups-margin-seconds", "60"), ("log", "info")];
    assert_eq!(diff(&with(&[]), &with(&defaults)), []);
}
