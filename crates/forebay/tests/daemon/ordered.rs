//! Ordered volumes: after a kill, the disk alone is consistent as of some flush.

use crate::common::random::Random;
use crate::crash::{LINES, SIZE_BYTES, content};
use crate::process::{Daemon, MIB, make_file};
use forebay_nbd::NbdCommand;

/// Writes between two flushes.
const BATCH: u64 = 12;
/// Lines that get half of all writes, so that they are rewritten during their destage.
const HOT: u64 = 6;

/// For each line, the batches that wrote it.
type History = Vec<Vec<u64>>;

/// The newest batch found on the disk. Panics unless all earlier batches are complete there.
fn newest_on(disk: &[u8], history: &History) -> u64 {
    let found = |line: usize| {
        let bytes = &disk[line * 4096..][..4096];
        let newest = history[line].iter().rev().find(|&&at| content(line as u64, at) == bytes);
        newest.copied().unwrap_or(0)
    };
    let found: Vec<u64> = (0..history.len()).map(found).collect();
    let newest = found.iter().copied().max().unwrap_or(0);
    for (line, batches) in history.iter().enumerate() {
        let due = batches.iter().rev().find(|&&at| at < newest).copied().unwrap_or(0);
        assert!(
            found[line] >= due,
            "line {line} has batch {} instead of {due}, but the disk has data of {newest}",
            found[line]
        );
    }
    newest
}

fn kill_and_check_order(io: &str, protection: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let mut random = Random::new(17);
    // Rounds in which the disk lagged the client. Other rounds prove nothing.
    let mut behind = 0;
    for _ in 0..5 {
        let (disk, journal) = (path("disk.img"), path("journal.img"));
        for (file, bytes) in [(&disk, SIZE_BYTES), (&journal, 40 * MIB)] {
            let _ = std::fs::remove_file(file);
            make_file(file, bytes);
        }
        let _ = std::fs::remove_dir_all(path("state"));
        let _ = std::fs::remove_file(path("nbd.sock"));
        let protection = protection.replace("JOURNAL", &journal.display().to_string());
        let volume = format!("disk={},mode=write-back,ordered=yes,{protection}", disk.display());
        let daemon = Daemon::start(directory.path(), io, "64MiB", &[volume]);
        let mut client = daemon.client("disk");
        let mut history: History = vec![Vec::new(); LINES as usize];
        let batches = 40 + random.below(40);
        for batch in 1..=batches {
            let mut lines = std::collections::BTreeSet::new();
            for _ in 0..BATCH {
                let below = if random.one_in(2) { HOT } else { LINES };
                lines.insert(random.below(below));
            }
            let mut sent = Vec::new();
            for &line in &lines {
                let data = content(line, batch);
                sent.push(client.send(NbdCommand::Write, 0, line * 4096, 4096, &data));
                history[line as usize].push(batch);
            }
            sent.into_iter().for_each(|cookie| client.wait(cookie).result.unwrap());
            client.flush().unwrap();
        }
        daemon.kill();
        let newest = newest_on(&std::fs::read(&disk).unwrap(), &history);
        behind += u64::from(newest < batches);
    }
    assert!(behind > 0 || protection.contains("none"), "the disk never lagged");
}

#[test]
fn the_disk_of_an_ordered_volume_is_consistent_without_its_journal_on_io_uring() {
    kill_and_check_order("io_uring", "protection=journal,journal=JOURNAL");
}

#[test]
fn the_disk_of_an_ordered_volume_is_consistent_without_its_journal_on_epoll() {
    kill_and_check_order("epoll", "protection=journal,journal=JOURNAL,durability=flush");
}

#[test]
fn the_disk_of_an_unprotected_ordered_volume_has_every_flushed_write() {
    kill_and_check_order("io_uring", "protection=none,accept-loss=yes");
}
