//! `takeover-after`: a host that has volumes on standby watches the journal of their owner. The
//! disks and the journal are exports of a third server.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use crate::crash::content;
use crate::hosts::Exports;
use crate::process::{Daemon, MIB, failed_start, make_file, on_one_line};
use serde_json::Value;
use std::time::Duration;
use tempfile::TempDir;

const AFTER: &str = "takeover-after=2s";
/// Long enough for two takeovers.
const IN_VAIN: Duration = Duration::from_secs(6);

/// Two hosts that reach two disks and the journal that they share.
fn two_disks() -> Exports {
    Exports::new(&[("one", 16), ("two", 16), ("journal", 40)])
}

/// A host with both volumes on standby.
fn start(hosts: &Exports, host: &TempDir, settings: &str) -> Daemon {
    let journal = hosts.owned_export("journal");
    let volumes = ["one", "two"].map(|name| {
        format!(
            "{name}={},mode=write-back,protection=journal,journal={journal},standby=yes{}",
            hosts.owned_export(name),
            if settings.is_empty() { String::new() } else { format!(",{settings}") }
        )
    });
    Daemon::start(host.path(), "auto", "64MiB", &volumes)
}

fn wait_until_served(host: &Daemon) {
    host.wait_for_volume("one");
    host.wait_for_volume("two");
}

/// What the status of a host says of a volume on standby.
fn standby(host: &Daemon, name: &str) -> Value {
    let status = host.status();
    let mut missing = status["missing"].as_array().into_iter().flatten();
    missing.find(|missing| missing["name"] == name).cloned().unwrap_or_default()
}

fn write(client: &mut Client, version: u64) {
    client.write(4096, &content(1, version)).unwrap();
}

fn read(host: &Daemon, volume: &str) -> Vec<u8> {
    host.client(volume).read(4096, 4096).unwrap()
}

#[test]
fn all_volumes_of_a_journal_are_taken_over_when_their_owner_is_silent() {
    let hosts = two_disks();
    // Nobody has had the journal: the first host that is there begins.
    let here = start(&hosts, &hosts.here, AFTER);
    wait_until_served(&here);
    let [mut one, mut two] = ["one", "two"].map(|name| here.client(name));
    write(&mut one, 1);
    write(&mut two, 2);
    // Not for long beside a living owner: on a busy machine, that may be silent for two seconds.
    let there = start(&hosts, &hosts.there, AFTER);
    wait_until("the owner is watched", PATIENCE, || {
        standby(&there, "one")["owner_silent_seconds"].is_u64()
    });
    let seen = standby(&there, "one");
    assert!(
        seen["reason"].as_str().unwrap().contains("or a silence of its owner of 2 s"),
        "{seen}"
    );
    write(&mut one, 3);
    here.kill();
    wait_until_served(&there);
    assert_eq!((read(&there, "one"), read(&there, "two")), (content(1, 3), content(1, 2)));
    there.wait_for_log("the owner is silent, taking over");

    // On the way back by command, the former owner rests, until another host has had the volume.
    for volume in ["one", "two"] {
        assert_eq!(there.run(&["standby", volume]).0, Some(0));
    }
    let text = on_one_line(&there.run(&["status"]).1);
    assert!(text.contains("on standby by command: `forebay takeover one`"), "{text}");
    std::thread::sleep(IN_VAIN);
    assert_eq!(there.status()["volumes"], Value::Array(Vec::new()), "the operator decides");
    let here = start(&hosts, &hosts.here, AFTER);
    wait_until_served(&here);
    wait_until("the other host watches again", PATIENCE, || {
        standby(&there, "one")["reason"].as_str().is_some_and(|it| it.contains("or a silence"))
    });
    // An orderly stop says nothing of the future: the other host has it after the same time.
    here.stop();
    wait_until_served(&there);
    assert_eq!((read(&there, "one"), read(&there, "two")), (content(1, 3), content(1, 2)));
    there.stop();
    hosts.server.stop();
}

#[test]
fn an_owner_that_promises_no_beats_is_not_taken_over() {
    let hosts = two_disks();
    let here = start(&hosts, &hosts.here, "");
    for volume in ["one", "two"] {
        assert_eq!(here.run(&["takeover", volume]).0, Some(0));
    }
    let there = start(&hosts, &hosts.there, AFTER);
    let said = "its owner does not say that it lives: set takeover-after=2s there too";
    wait_until("the other host warns", PATIENCE, || {
        let text = on_one_line(&there.run(&["status"]).1);
        text.contains(&format!("on standby, and not taken over by itself: {said}"))
    });
    std::thread::sleep(IN_VAIN);
    assert_eq!(there.status()["volumes"], Value::Array(Vec::new()));
    let (code, text) = there.run(&["volume", "set", "one", "mode=bypass"]);
    let said_of_one = "volume 'one' is not served: on standby: `forebay takeover one` serves it";
    assert!(code == Some(1) && on_one_line(&text).contains(said_of_one), "{text}");
    // From now on it does.
    let (code, text) = here.run(&["volume", "set", "one", "takeover-after=2s"]);
    assert_eq!(code, Some(0), "{text}");
    wait_until("the owner is heard", PATIENCE, || {
        standby(&there, "two")["owner_silent_seconds"].is_u64()
    });
    // Its last volume with beats leaves, and so does the promise.
    assert_eq!(here.run(&["volume", "set", "one", "takeover-after=off"]).0, Some(0));
    wait_until("the other host warns again", PATIENCE, || {
        standby(&there, "one")["unwatched"] == said
    });
    here.stop();
    there.stop();
    hosts.server.stop();
}

#[test]
fn volumes_that_are_put_on_standby_on_all_hosts_stay_down() {
    let hosts = two_disks();
    let here = start(&hosts, &hosts.here, AFTER);
    wait_until_served(&here);
    let there = start(&hosts, &hosts.there, AFTER);
    let stand_by = |host: &Daemon| {
        for volume in ["one", "two"] {
            assert_eq!(host.run(&["standby", volume]).0, Some(0));
        }
    };
    // The owner first, and last.
    for order in [[&here, &there], [&there, &here]] {
        for volume in ["one", "two"] {
            assert_eq!(here.run(&["takeover", volume]).0, Some(0));
        }
        wait_until("the other host watches", PATIENCE, || {
            standby(&there, "one")["reason"].as_str().is_some_and(|it| it.contains("or a silence"))
                && standby(&there, "one")["owner_silent_seconds"].is_u64()
        });
        order.into_iter().for_each(stand_by);
        std::thread::sleep(IN_VAIN);
        for host in order {
            assert_eq!(host.status()["volumes"], Value::Array(Vec::new()), "{}", host.log_so_far());
        }
    }
    here.stop();
    there.stop();
    hosts.server.stop();
}

#[test]
fn a_takeover_that_fails_is_repeated_and_says_why() {
    let hosts = two_disks();
    let here = start(&hosts, &hosts.here, AFTER);
    wait_until_served(&here);
    write(&mut here.client("two"), 5);
    here.kill();
    // The journal is there, and one of the disks is not.
    assert_eq!(hosts.server.run(&["volume", "remove", "two", "--force"]).0, Some(0));
    let there = start(&hosts, &hosts.there, AFTER);
    wait_until("one is served, and the other one says why not", PATIENCE, || {
        let is_served = there.status()["volumes"].as_array().is_some_and(|it| it.len() == 1);
        let why = standby(&there, "two")["reason"].to_string();
        is_served && why.contains("export")
    });
    let alerts = there.status()["alerts"].to_string();
    assert!(alerts.contains("on standby, and not taken over by itself: the server"), "{alerts}");
    let image = hosts.image("two");
    let volume = format!("two={},mode=write-through", image.display());
    assert_eq!(hosts.server.run(&["volume", "add", &volume]).0, Some(0));
    wait_until_served(&there);
    assert_eq!(read(&there, "two"), content(1, 5));
    there.stop();
    hosts.server.stop();
}

#[test]
fn takeover_after_is_refused_where_nothing_shuts_a_former_owner_out() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    for name in ["disk", "journal"] {
        make_file(at(name), 40 * MIB);
    }
    let volume = format!(
        "v={},mode=write-back,protection=journal,journal={},standby=yes,{AFTER}",
        at("disk"),
        at("journal")
    );
    let said = on_one_line(&failed_start(directory.path(), &["--volume", &volume]));
    assert!(
        said.contains("must shut out a former owner") && said.contains("reserve=yes"),
        "{said}"
    );
}
