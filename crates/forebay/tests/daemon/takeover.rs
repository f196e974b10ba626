//! What a host still has of a volume whose disk another server has owned meanwhile. The other
//! server runs on the same machine, with a state directory of its own, while the first is frozen.

use crate::common::client::{Client, PATIENCE};
use crate::common::wait_until;
use crate::crash::content;
use crate::hosts::Hosts;
use crate::kept::reconnect;
use crate::process::{Daemon, MIB, UNPROTECTED, make_file, on_one_line, run_forebay};
use std::time::Duration;

const LINE_BYTES: usize = 4096;

/// Two hosts that reach a disk and a journal, which remember their owners.
fn disk_and_journal() -> Hosts {
    Hosts::new(&[("disk", 16), ("journal", 40)])
}

impl Hosts {
    fn volume(&self, settings: &str) -> String {
        format!("disk={},{settings}", self.owned_image("disk"))
    }

    fn journaled(&self) -> String {
        let journal = self.owned_image("journal");
        self.volume(&format!("mode=write-back,protection=journal,journal={journal}"))
    }

    /// A server with a keeper on the first host. Line 1 has content 1 on the disk, and content 2,
    /// which was acknowledged, in the pool. Line 2 is clean.
    fn start_here(&self, volume: String) -> Daemon {
        let daemon = Daemon::start_kept(self.here.path(), "auto", "64MiB", &[volume]);
        daemon.wait_for_volume("disk");
        let mut client = daemon.client("disk");
        write(&mut client, 1, 1);
        write(&mut client, 2, 1);
        assert_eq!(daemon.run(&["volume", "flush", "disk"]).0, Some(0));
        write(&mut client, 1, 2);
        daemon
    }

    /// While the first host's server is dead and its keeper sleeps, a server on the second host
    /// writes content 3 to line 2, after it has seen `seen` in line 1.
    fn serve_there(&self, here: &Daemon, volume: String, seen: u64) {
        here.freeze();
        let server = here.server();
        here.kill_server();
        wait_until("the disk is free", PATIENCE, || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.as_raw_nonzero()));
            stat.is_ok_and(|stat| stat.rsplit_once(')').unwrap().1.starts_with(" Z"))
        });
        let there = Daemon::start(self.there.path(), "auto", "64MiB", &[volume]);
        let mut client = there.client("disk");
        assert_eq!(read(&mut client, 1), content(1, seen));
        write(&mut client, 2, 3);
        drop(client);
        there.stop();
        here.thaw();
    }
}

fn write(client: &mut Client, line: u64, version: u64) {
    client.write(line * LINE_BYTES as u64, &content(line, version)).unwrap();
}

fn read(client: &mut Client, line: u64) -> Vec<u8> {
    client.read(line * LINE_BYTES as u64, LINE_BYTES as u64).unwrap()
}

#[test]
fn the_pool_of_a_former_owner_is_dropped_when_the_journal_was_with_the_disk() {
    let hosts = disk_and_journal();
    let here = hosts.start_here(hosts.journaled());
    hosts.serve_there(&here, hosts.journaled(), 2);
    let mut client = reconnect(&here);
    assert_eq!((read(&mut client, 1), read(&mut client, 2)), (content(1, 2), content(2, 3)));
    here.wait_for_log("another server has owned the disk");
    drop(client);
    here.stop();
    let disk = std::fs::read(hosts.image("disk")).unwrap();
    let line = |line: usize| &disk[line * LINE_BYTES..][..LINE_BYTES];
    assert_eq!((line(1), line(2)), (&*content(1, 2), &*content(2, 3)));
}

#[test]
fn dirty_data_in_the_pool_of_a_former_owner_is_not_written_over_newer_data() {
    let hosts = disk_and_journal();
    let volume = format!("{},nofail=yes", hosts.volume(UNPROTECTED));
    let here = hosts.start_here(volume);
    hosts.serve_there(&here, hosts.volume(UNPROTECTED), 1);
    let said = "another server has owned it since";
    wait_until("the next server says why it does not serve the volume", PATIENCE, || {
        on_one_line(&here.run(&["status"]).1).contains(said)
    });
    let disk = std::fs::read(hosts.image("disk")).unwrap();
    assert_eq!(&disk[LINE_BYTES..][..LINE_BYTES], content(1, 1));
    assert_eq!(&disk[2 * LINE_BYTES..][..LINE_BYTES], content(2, 3));
    // It holds data that no disk has, and would not stop.
    here.freeze();
    here.kill_server();
    here.kill();
}

#[test]
fn the_records_of_a_former_owners_own_journal_are_not_written_over_newer_data() {
    let hosts = disk_and_journal();
    let journal = hosts.here.path().join("journal.img");
    make_file(&journal, 40 * MIB);
    let settings =
        format!("mode=write-back,protection=journal,journal={},nofail=yes", journal.display());
    let here = Daemon::start(hosts.here.path(), "auto", "64MiB", &[hosts.volume(&settings)]);
    here.wait_for_volume("disk");
    let mut client = here.client("disk");
    write(&mut client, 1, 2);
    drop(client);
    here.kill();
    // The other server changes so little that no sample of the disk would show it.
    let there =
        Daemon::start(hosts.there.path(), "auto", "64MiB", &[hosts.volume("mode=write-through")]);
    write(&mut there.client("disk"), 1, 3);
    there.stop();
    let here = Daemon::start(hosts.here.path(), "auto", "64MiB", &[hosts.volume(&settings)]);
    let said = "another server has owned it since";
    wait_until("it says why it does not serve the volume", PATIENCE, || {
        on_one_line(&here.run(&["status"]).1).contains(said)
    });
    here.stop();
    let (state, journal) = (hosts.here.path().join("state"), journal.display().to_string());
    let (state, disk) = (state.display().to_string(), hosts.owned_image("disk"));
    let apply = ["rescue", "apply", "--state", &state, &journal, "--volume", "disk", "--to", &disk];
    let (code, text) = run_forebay(hosts.here.path(), &apply);
    assert!(code == Some(1) && text.contains(said), "{text}");
    let disk = std::fs::read(hosts.image("disk")).unwrap();
    assert_eq!(&disk[LINE_BYTES..][..LINE_BYTES], content(1, 3));
}

#[test]
fn a_server_that_nobody_followed_goes_on_with_its_pool_and_its_journal() {
    let hosts = disk_and_journal();
    let here = hosts.start_here(hosts.volume(UNPROTECTED));
    for _ in 0..2 {
        here.kill_server();
        assert_eq!(read(&mut reconnect(&here), 1), content(1, 2));
        // The keeper counts shorter runs as early exits and would give up.
        std::thread::sleep(Duration::from_millis(600));
    }
    here.stop();
    let hosts = disk_and_journal();
    let here = Daemon::start(hosts.here.path(), "auto", "64MiB", &[hosts.journaled()]);
    write(&mut here.client("disk"), 1, 2);
    here.kill();
    let here = Daemon::start(hosts.here.path(), "auto", "64MiB", &[hosts.journaled()]);
    assert_eq!(read(&mut here.client("disk"), 1), content(1, 2));
    here.stop();
}

#[test]
fn a_volume_on_standby_is_served_from_a_takeover_on_and_until_it_stands_by_again() {
    let hosts = disk_and_journal();
    let volume = format!("{},standby=yes", hosts.journaled());
    let here = Daemon::start(hosts.here.path(), "auto", "64MiB", &[volume]);
    let status = here.status();
    assert_eq!(status["missing"][0]["standby"], true, "{status}");
    assert!(!here.run(&["status"]).1.contains("not served"), "it is no problem");
    // Twice each: who calls it may not know what is so.
    for _ in 0..2 {
        let (code, text) = here.run(&["takeover", "disk"]);
        assert_eq!(code, Some(0), "{text}");
    }
    let mut client = here.client("disk");
    write(&mut client, 1, 2);
    assert_eq!(here.status()["volumes"][0]["class"], "shared");
    for _ in 0..2 {
        let (code, text) = here.run(&["standby", "disk"]);
        assert_eq!(code, Some(0), "{text}");
    }
    let disk = std::fs::read(hosts.image("disk")).unwrap();
    assert_eq!(&disk[LINE_BYTES..][..LINE_BYTES], content(1, 2));
    assert_eq!(here.status()["missing"][0]["standby"], true);
    // Another server may have it now.
    let there = Daemon::start(hosts.there.path(), "auto", "64MiB", &[hosts.journaled()]);
    assert_eq!(read(&mut there.client("disk"), 1), content(1, 2));
    there.stop();
    for (command, part) in [("takeover", "no volume 'other'"), ("standby", "no volume 'other'")] {
        let (code, text) = here.run(&[command, "other"]);
        assert!(code == Some(1) && text.contains(part), "{text}");
    }
    here.stop();
}

#[test]
fn a_volume_on_standby_that_was_taken_over_stays_served_by_the_next_server_on_the_pool() {
    let hosts = disk_and_journal();
    let volume = format!("{},standby=yes", hosts.journaled());
    let here = Daemon::start_kept(hosts.here.path(), "auto", "64MiB", &[volume]);
    assert_eq!(here.run(&["takeover", "disk"]).0, Some(0));
    write(&mut here.client("disk"), 1, 2);
    here.kill_server();
    assert_eq!(read(&mut reconnect(&here), 1), content(1, 2));
    // Also if another host has had it meanwhile, and left it.
    hosts.serve_there(&here, hosts.journaled(), 2);
    assert_eq!(read(&mut reconnect(&here), 2), content(2, 3));
    here.stop();
}

#[test]
fn a_disk_and_a_journal_that_follow_the_volume_without_a_fence_have_everything() {
    // As replicas of DRBD do, which is open on one host at a time.
    let hosts = disk_and_journal();
    let [disk, journal] = ["disk", "journal"].map(|it| hosts.image(it).display().to_string());
    let volume =
        format!("disk={disk},mode=write-back,protection=journal,journal={journal},standby=yes");
    let start = |host: &tempfile::TempDir| {
        let volumes = [volume.clone()];
        Daemon::start(host.path(), "auto", "64MiB", &volumes)
    };
    let [here, there] = [&hosts.here, &hosts.there].map(start);
    let takes_over = |daemon: &Daemon| {
        let (code, text) = daemon.run(&["takeover", "disk"]);
        assert_eq!(code, Some(0), "{text}");
    };
    takes_over(&here);
    assert_eq!(here.status()["volumes"][0]["class"], "local");
    write(&mut here.client("disk"), 1, 2);
    // A planned move, a crash, and the way back.
    assert_eq!(here.run(&["standby", "disk"]).0, Some(0));
    takes_over(&there);
    let mut client = there.client("disk");
    assert_eq!(read(&mut client, 1), content(1, 2));
    write(&mut client, 1, 3);
    drop(client);
    there.kill();
    takes_over(&here);
    let mut client = here.client("disk");
    assert_eq!(read(&mut client, 1), content(1, 3));
    write(&mut client, 1, 4);
    drop(client);
    here.kill();
    let there = start(&hosts.there);
    takes_over(&there);
    assert_eq!(read(&mut there.client("disk"), 1), content(1, 4));
    there.stop();
}

#[test]
fn a_server_whose_disk_has_another_owner_ends_the_volume() {
    let hosts = disk_and_journal();
    let volume = hosts.volume(UNPROTECTED);
    let here = Daemon::start(hosts.here.path(), "auto", "64MiB", &[volume]);
    write(&mut here.client("disk"), 1, 2);
    std::fs::write(hosts.at("disk.owners"), "77").unwrap();
    wait_until("the volume has ended", PATIENCE, || {
        on_one_line(&here.run(&["status"]).1).contains("another client has taken over its disk")
    });
    here.stop();
    let disk = std::fs::read(hosts.image("disk")).unwrap();
    assert_eq!(&disk[LINE_BYTES..][..LINE_BYTES], [0; LINE_BYTES]);
}

#[test]
fn a_volume_with_a_loss_limit_has_no_more_dirty_data_than_that() {
    let hosts = disk_and_journal();
    for (limit, is_bounded) in [("1MiB", true), ("off", false)] {
        let disk = hosts.image("disk").display().to_string();
        let volume = format!("disk=delay(write=20ms):{disk},{UNPROTECTED},loss-limit={limit}");
        let here = Daemon::start(hosts.here.path(), "auto", "64MiB", &[volume]);
        let mut client = here.client("disk");
        (0..2048).for_each(|line| write(&mut client, line, 1));
        let dirty_bytes = here.status()["volumes"][0]["dirty_bytes"].as_u64().unwrap();
        assert_eq!(dirty_bytes <= MIB, is_bounded, "{limit}: {dirty_bytes}");
        drop(client);
        here.stop();
    }
}

/// Runs the resource agent of Pacemaker. Returns its exit code.
fn agent(action: &str, volume: &str, state: &std::path::Path) -> Option<i32> {
    let agent = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/pacemaker/forebay");
    let mut command = std::process::Command::new(agent);
    command.arg(action).env("OCF_RESKEY_program", env!("CARGO_BIN_EXE_forebay"));
    command.env("OCF_RESKEY_volume", volume).env("OCF_RESKEY_state", state);
    let output = crate::process::output_of(&mut command);
    output.status.code()
}

#[test]
fn the_resource_agent_serves_a_volume_where_the_cluster_wants_it() {
    let hosts = disk_and_journal();
    let state = hosts.here.path().join("state");
    let [ok, failed, not_configured, not_running] = [0, 1, 6, 7].map(Some);
    assert_eq!(agent("monitor", "disk", &state), not_running, "no server");
    assert_eq!(agent("stop", "disk", &state), ok, "nothing is to be stopped");
    assert_eq!(agent("start", "disk", &state), failed);
    let volume = format!("{},standby=yes", hosts.journaled());
    let here = Daemon::start(hosts.here.path(), "auto", "64MiB", &[volume]);
    for (action, code) in [
        ("meta-data", ok),
        ("validate-all", ok),
        ("monitor", not_running),
        ("start", ok),
        ("start", ok),
        ("monitor", ok),
        ("stop", ok),
        ("stop", ok),
        ("monitor", not_running),
        ("promote", Some(3)),
    ] {
        assert_eq!(agent(action, "disk", &state), code, "{action}");
    }
    assert_eq!(agent("start", "other", &state), failed);
    assert_eq!(agent("validate-all", "", &state), not_configured);
    here.freeze();
    assert_eq!(agent("monitor", "disk", &state), failed, "a server that hangs");
    here.thaw();
    here.stop();
}

#[test]
fn a_journal_that_hangs_keeps_no_other_volume_from_being_taken_over() {
    let hosts = disk_and_journal();
    for name in ["slow", "slow-journal"] {
        make_file(hosts.image(name), 40 * MIB);
    }
    let settings = "standby=yes,mode=write-back,protection=journal,journal";
    let hanging = format!("delay(read=forever):{}", hosts.image("slow-journal").display());
    let slow = format!("slow={},{settings}={hanging}", hosts.image("slow").display());
    let volumes = [slow, hosts.volume(&format!("{settings}={}", hosts.owned_image("journal")))];
    let here = Daemon::start(hosts.here.path(), "auto", "96MiB", &volumes);
    let said = hosts.at("said");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["takeover", "slow", "--state"]).arg(hosts.here.path().join("state"));
    command.stderr(std::fs::File::create(&said).unwrap());
    let mut hanging = command.spawn().unwrap();
    here.wait_for_log("taking over a volume");
    let (code, text) = here.run(&["takeover", "disk"]);
    assert_eq!(code, Some(0), "{text}");
    write(&mut here.client("disk"), 1, 2);
    let waits = "forebay: waiting for volume 'slow': its disk and its journal have to answer, and \
                 the journal is read\n";
    wait_until("it says what it waits for", PATIENCE, || {
        std::fs::read_to_string(&said).unwrap() == waits
    });
    here.kill();
    assert!(!hanging.wait().unwrap().success());
}

/// Regression: the journal stayed open and failed, and the third takeover panicked.
#[test]
fn a_takeover_that_another_host_has_won_can_be_repeated() {
    let hosts = disk_and_journal();
    // The disk is so slow that the other host comes while the volume is being added.
    let slow = format!("delay(read=500ms):{}", hosts.image("disk").display());
    let record = hosts.at("disk.owners");
    let journal = hosts.owned_image("journal");
    let volume = format!(
        "disk=owned(record={}):{slow},standby=yes,mode=write-back,protection=journal,\
         journal={journal}",
        record.display()
    );
    let here = Daemon::start(hosts.here.path(), "auto", "64MiB", &[volume]);
    for attempt in 0..4 {
        std::thread::scope(|scope| {
            let takeover = scope.spawn(|| here.run(&["takeover", "disk"]));
            wait_until("the journal is open", PATIENCE, || {
                here.status()["journals"].as_array().is_some_and(|it| !it.is_empty())
            });
            for name in ["disk.owners", "journal.owners"] {
                std::fs::write(hosts.at(name), format!("{}", 1_000 * (attempt + 1))).unwrap();
            }
            let (code, text) = takeover.join().unwrap();
            assert!(code == Some(1) && text.contains("another host has taken"), "{text}");
        });
        assert_eq!(here.status()["journals"], serde_json::json!([]), "it is another host's");
    }
    assert_eq!(here.run(&["takeover", "disk"]).0, Some(0));
    write(&mut here.client("disk"), 1, 2);
    here.stop();
}

#[test]
fn a_host_that_is_shut_out_while_it_gives_a_volume_up_can_take_it_over_again() {
    let hosts = disk_and_journal();
    let volume = format!("{},standby=yes", hosts.journaled());
    let here = Daemon::start(hosts.here.path(), "auto", "64MiB", &[volume]);
    for owner in [1_000, 2_000, 3_000] {
        assert_eq!(here.run(&["takeover", "disk"]).0, Some(0));
        write(&mut here.client("disk"), 1, 2);
        // Before the server notices it by itself.
        std::fs::write(hosts.at("journal.owners"), owner.to_string()).unwrap();
        let (code, text) = here.run(&["standby", "disk"]);
        assert!(code.is_some(), "{text}");
        let marks = std::fs::read_dir(hosts.here.path().join("state")).unwrap();
        let marks: Vec<_> = marks.map(|it| it.unwrap().file_name()).collect();
        let failed = |it: &&std::ffi::OsString| it.to_string_lossy().ends_with(".failed");
        assert_eq!(marks.iter().find(failed), None, "its records count");
    }
    assert_eq!(here.run(&["takeover", "disk"]).0, Some(0));
    assert_eq!(read(&mut here.client("disk"), 1), content(1, 2));
    here.stop();
}

#[test]
fn a_volume_that_no_other_host_can_have_is_not_put_on_standby() {
    let hosts = disk_and_journal();
    let disk = hosts.image("disk").display().to_string();
    let here =
        Daemon::start(hosts.here.path(), "auto", "64MiB", &[format!("disk={disk},{UNPROTECTED}")]);
    let (code, text) = here.run(&["standby", "disk"]);
    let text = on_one_line(&text);
    assert!(code == Some(1) && text.contains("its disk is of this host alone"), "{text}");
    write(&mut here.client("disk"), 1, 2);
    here.stop();
}

#[test]
fn a_takeover_whose_client_gave_up_while_the_server_slept_is_not_carried_out() {
    let hosts = disk_and_journal();
    let volume = format!("{},standby=yes", hosts.journaled());
    let here = Daemon::start(hosts.here.path(), "auto", "64MiB", &[volume]);
    here.freeze();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["takeover", "disk", "--state"]).arg(hosts.here.path().join("state"));
    let mut command = command.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    command.kill().unwrap();
    command.wait().unwrap();
    here.thaw();
    // A request of another client, which comes later, is answered.
    assert_eq!(here.status()["missing"][0]["standby"], true);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(here.status()["missing"][0]["standby"], true, "{}", here.log_so_far());
    assert_eq!(here.run(&["takeover", "disk"]).0, Some(0));
    here.stop();
}

#[test]
fn a_host_that_was_just_shut_out_does_not_answer_that_it_serves_the_volume() {
    let hosts = disk_and_journal();
    let volume = format!("{},standby=yes", hosts.journaled());
    let here = Daemon::start(hosts.here.path(), "auto", "64MiB", &[volume]);
    assert_eq!(here.run(&["takeover", "disk"]).0, Some(0));
    for owner in [1_000, 2_000, 3_000] {
        write(&mut here.client("disk"), 1, owner);
        for name in ["disk.owners", "journal.owners"] {
            std::fs::write(hosts.at(name), owner.to_string()).unwrap();
        }
        // Before the server notices it by itself.
        let (code, text) = here.run(&["takeover", "disk"]);
        assert_eq!(code, Some(0), "{text}");
        assert_eq!(read(&mut here.client("disk"), 1), content(1, owner));
    }
    here.wait_for_log_times("taking over a volume", 4);
    here.stop();
}
