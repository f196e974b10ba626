//! Tests of the rules for protection, journal, durability and UPS.

use crate::{Mistake, Settings, UpsSettings, VolumeChange, VolumeSpec, parse_volume_spec};
use forebay_types::Fault;
use forebay_types::{Durability, Mode, Protection, UnsafeUps};

const JOURNALED: &str = "d=/x,mode=write-back,protection=journal,journal=/j";

fn refused(text: &str) -> (Mistake, String) {
    let error = parse_volume_spec(text).unwrap_err();
    (error.mistake(), error.explained())
}

fn change(words: &[&str]) -> VolumeChange {
    VolumeChange::parse(words.iter().copied()).unwrap()
}

#[test]
fn write_back_needs_a_protection_or_explicit_acceptance_of_loss() {
    for text in [
        "d=/x,mode=write-back",
        "d=/x,mode=write-back,protection=none",
        "d=/x,mode=write-back,accept-loss=yes",
    ] {
        let sentence = "volume 'd': write-back without a protection loses acknowledged writes \
                        when the power fails or the program is killed: write \
                        protection=journal,journal=PATH or protection=ups to keep them, \
                        protection=none,accept-loss=yes to accept that, or use \
                        mode=write-through";
        assert_eq!(refused(text), (Mistake::Protection, sentence.into()));
    }
    assert!(parse_volume_spec("d=/x,accept-loss=yes,protection=none,mode=write-back").is_ok());
    let spec = parse_volume_spec(JOURNALED).unwrap();
    assert_eq!((spec.config.mode, spec.config.protection), (Mode::WriteBack, Protection::Journal));
    assert_eq!(
        (spec.config.journal.as_deref(), spec.config.durability),
        (Some("/j"), Durability::Ack)
    );
    assert_eq!(spec.to_string(), JOURNALED);
}

#[test]
fn a_journal_is_valid_in_every_mode_and_with_accept_loss() {
    for text in [
        "d=/x,protection=journal,journal=/j",
        "d=/x,mode=bypass,protection=journal,journal=/j,durability=flush",
        "d=/x,mode=write-back,protection=journal,journal=/j,accept-loss=yes",
    ] {
        assert_eq!(parse_volume_spec(text).unwrap().to_string(), text);
    }
    let explicit = parse_volume_spec(&format!("{JOURNALED},durability=ack")).unwrap();
    assert_eq!(explicit.to_string(), JOURNALED);
}

#[test]
fn an_unknown_protection_is_refused_with_a_list_of_the_known_ones() {
    let remedy = "write protection=journal with journal=PATH, protection=ups with a UPS, \
                  protection=journal+ups with both, protection=none with accept-loss=yes, or use \
                  mode=write-through";
    for word in ["unstated", "", "Journal", "jounral", "vault", "both", "replica", "ups+journal"] {
        let sentence = format!("volume 'd': unknown protection '{word}': {remedy}");
        assert_eq!(refused(&format!("d=/x,protection={word}")), (Mistake::Protection, sentence));
    }
}

#[test]
fn a_protection_by_ups_needs_a_configured_ups() {
    let alone = parse_volume_spec("d=/x,mode=write-back,protection=ups").unwrap();
    let beside = "d=/x,mode=write-back,protection=journal+ups,journal=/j";
    let beside = parse_volume_spec(beside).unwrap();
    assert_eq!(beside.config.journal.as_deref(), Some("/j"));
    let watched = Settings { ups: vec!["lab@nas".parse().unwrap()], ..Settings::defaults() };
    let watched = UpsSettings::checked(&watched).unwrap();
    let nothing = UpsSettings::checked(&Settings::defaults()).unwrap();
    for spec in [&alone, &beside] {
        spec.check_ups(&watched.upses, true).unwrap();
        let error = spec.check_ups(&nothing.upses, true).unwrap_err().explained();
        assert!(error.contains("no UPS is configured: set ups to NAME@HOST:PORT"), "{error}");
    }
    let (mistake, sentence) = refused("d=/x,mode=write-back,protection=journal+ups");
    assert_eq!(mistake, Mistake::Protection);
    assert!(sentence.contains("protection=journal+ups, but no journal is named"), "{sentence}");
    let other = alone.with(&change(&["protection=none", "accept-loss=yes"])).unwrap_err();
    assert!(other.to_string().contains("protection cannot change from ups to none"), "{other}");
}

#[test]
fn a_ups_needs_a_vault_unless_there_is_a_journal() {
    let watched = Settings { ups: vec!["lab@nas".parse().unwrap()], ..Settings::defaults() };
    let watched = UpsSettings::checked(&watched).unwrap();
    for mode in ["write-back", "write-through"] {
        let alone = parse_volume_spec(&format!("d=/x,mode={mode},protection=ups")).unwrap();
        let error = alone.check_ups(&watched.upses, false).unwrap_err();
        assert_eq!(error.mistake(), Mistake::Protection);
        assert_eq!(
            error.explained(),
            "volume 'd': protection=ups, but there is no vault for dirty data when the battery \
             runs low: set vault to PATH, or write \
             protection=journal,journal=PATH"
        );
    }
    let beside = "d=/x,mode=write-back,protection=journal+ups,journal=/j";
    parse_volume_spec(beside).unwrap().check_ups(&watched.upses, false).unwrap();
}

#[test]
fn an_invalid_journal_is_refused_with_a_remedy() {
    let long = format!("d=/x,protection=journal,journal=/{}", "j".repeat(8192));
    for (text, mistake, sentence) in [
        (
            "d=/x,mode=write-back,protection=journal",
            Mistake::Protection,
            "protection=journal, but no journal is named: add journal=PATH, a file or device \
             without another use",
        ),
        (
            "d=/x,protection=journal,durability=flush",
            Mistake::Protection,
            "durability=flush needs a journal, and none is named: add protection=journal,\
             journal=PATH, or leave durability out",
        ),
        (
            "d=/x,mode=write-back,protection=none,accept-loss=yes,journal=/j",
            Mistake::Protection,
            "journal is set, but the protection does not include one: add protection=journal, or \
             leave journal out",
        ),
        (
            "d=/x,mode=write-back,journal=/j",
            Mistake::Protection,
            "journal is set, but the protection does not include one: add protection=journal, or \
             leave journal out",
        ),
        (
            "d=/x,durability=ack",
            Mistake::Protection,
            "durability=ack needs a journal, and none is named: add protection=journal,\
             journal=PATH, or leave durability out",
        ),
        ("d=/x,durability=fsync", Mistake::Value, "unknown durability 'fsync': use ack or flush"),
        (
            "d=/x,protection=journal,journal=/x",
            Mistake::Duplicate,
            "journal /x is also its backing: name another file or device, which only \
             journals use",
        ),
        (
            "d=/x,journal-mirror=/k",
            Mistake::Protection,
            "journal-mirror is set, but journal is not: add protection=journal,\
             journal=PATH, or leave journal-mirror out",
        ),
        (
            "d=/x,protection=journal,journal=/j,journal-mirror=/j",
            Mistake::Duplicate,
            "journal mirror /j is also its journal: name another file or device, \
             which only journals use",
        ),
        (
            "d=/x,protection=journal,journal=/j,journal-mirror=/x",
            Mistake::Duplicate,
            "journal mirror /x is also its backing: name another file or device, \
             which only journals use",
        ),
        (
            "d=/x,protection=journal,journal=",
            Mistake::Value,
            "journal= is empty: name a file or device, as in journal=/dev/nvme0n1, or \
             leave journal out",
        ),
        (
            "d=/x,protection=journal,journal=/j\t",
            Mistake::Value,
            "journal \"/j\\t\" contains a control character: name the disk by another path",
        ),
        (
            &long,
            Mistake::Limit,
            "the journal has more than 8192 bytes: name the disk by a shorter path",
        ),
        (
            "d=/x,journal=/a,journal=/b",
            Mistake::Duplicate,
            "setting 'journal' is given twice: keep one of them",
        ),
    ] {
        assert_eq!(refused(text), (mistake, format!("volume 'd': {sentence}")), "{text}");
    }
}

#[test]
fn a_served_volume_keeps_durability_and_ups_and_changes_its_journal() {
    let bare = parse_volume_spec("d=/x").unwrap();
    let journaled = parse_volume_spec(JOURNALED).unwrap();
    let flushed = ["mode=write-back", "protection=journal", "journal=/j", "durability=flush"];
    let with_journal = bare.with(&change(&flushed)).unwrap();
    assert_eq!(with_journal.config.journal.as_deref(), Some("/j"));
    assert_eq!(with_journal.with(&with_journal.change_to(&bare)), Ok(bare.clone()));
    let mirrored = journaled.with(&change(&["journal=/k", "journal-mirror=/l"])).unwrap();
    assert_eq!(mirrored.config.journal_mirror.as_deref(), Some("/l"));
    for (spec, change, what) in [
        (&journaled, change(&["durability=flush"]), "durability cannot change from ack to flush"),
        (
            &journaled,
            change(&["protection=journal+ups"]),
            "protection cannot change from journal to journal+ups",
        ),
        (
            &bare,
            change(&["protection=ups", "mode=write-back"]),
            "protection cannot change from unstated to ups",
        ),
    ] {
        let error = spec.with(&change).unwrap_err();
        assert_eq!(error.mistake(), Mistake::Served);
        assert_eq!(
            error.explained(),
            format!(
                "volume 'd': {what} while the volume is served: remove the volume, and add it \
                 again with the new settings"
            )
        );
    }
}

#[test]
fn a_served_volume_with_a_journal_can_change_its_live_settings() {
    let spec = parse_volume_spec(JOURNALED).unwrap();
    let through = spec.with(&change(&["mode=write-through", "accept-loss=yes"])).unwrap();
    assert_eq!(through.config.journal, spec.config.journal);
    let back = through.with(&change(&["mode=write-back", "accept-loss=no"]));
    assert_eq!(back, Ok(spec.clone()));
    // A fixed setting may be set to its present value.
    let same = ["protection=journal", "journal=/j", "durability=ack"];
    assert_eq!(spec.with(&change(&same)), Ok(spec));
    // An explicit `none` is the same kind of protection as none at all.
    let bare = VolumeSpec::new("d", "/x").unwrap();
    assert!(bare.with(&change(&["protection=none", "accept-loss=yes", "mode=write-back"])).is_ok());
}

#[test]
fn unsafe_supply_requires_a_ups_without_a_journal() {
    let parse = parse_volume_spec;
    let spec = parse("vm=/x,mode=write-back,protection=ups").unwrap();
    assert_eq!(spec.config.unsafe_supply, UnsafeUps::Stable);
    let lax = parse("vm=/x,mode=write-back,protection=ups,unsafe-supply=disk-cache").unwrap();
    assert_eq!(lax.config.unsafe_supply, UnsafeUps::DiskCache);
    let change = VolumeChange::parse(["unsafe-supply=stable"]).unwrap();
    assert_eq!(lax.with(&change), Ok(spec), "the setting is live");
    for (text, sentence) in [
        (
            "vm=/x,protection=ups,unsafe-supply=off",
            "volume 'vm': unknown unsafe-supply 'off': use stable or disk-cache",
        ),
        (
            "vm=/x,unsafe-supply=stable",
            "volume 'vm': unsafe-supply=stable needs protection=ups, and the protection is \
             unstated: add protection=ups, or leave unsafe-supply out",
        ),
        (
            "vm=/x,protection=journal+ups,journal=/j,unsafe-supply=disk-cache",
            "volume 'vm': unsafe-supply=disk-cache needs protection=ups, and the protection is \
             journal+ups: add protection=ups, or leave unsafe-supply out",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err().explained(), sentence);
    }
}
