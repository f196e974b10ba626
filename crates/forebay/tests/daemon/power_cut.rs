//! Power cuts under load: the disk and the journal device lose all or some of their unflushed
//! sectors. Every write that the mode and protection promise is present afterwards, and data read
//! after one cut does not change at the next.

use crate::common::client::Client;
use crate::common::random::Random;
use crate::process::{Daemon, MIB, UNPROTECTED, make_file};
use forebay_nbd::NbdCommand;
use forebay_nbd::proto::command_flag::FUA;
use std::path::Path;

const SECTORS: u64 = 8 * MIB / 512;
const SECTORS_AT_ONCE: u64 = 24;
const IN_FLIGHT: usize = 16;

/// The event from which on a write must survive a power cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Promised {
    /// Its acknowledgement.
    Acked,
    /// The acknowledgement of a later flush, or its own if it has FUA.
    Flushed,
}

/// The versions that a sector may hold, oldest first. A version determines the content.
#[derive(Clone)]
struct Sector(Vec<u64>);

impl Sector {
    /// Disallows versions older than `version`.
    fn promise(&mut self, version: u64) {
        if let Some(at) = self.0.iter().position(|&other| other == version) {
            self.0.drain(..at);
        }
    }

    /// Asserts that the content is of an allowed version, and allows only that one from now on.
    fn check(&mut self, number: u64, found: &[u8]) {
        let version = self.0.iter().rev().find(|&&version| content(number, version) == found);
        let version = *version.unwrap_or_else(|| {
            panic!("sector {number} lost a promised write: allowed versions {:?}", self.0)
        });
        self.0 = vec![version];
    }
}

/// Every sixteenth version is zeroes.
const fn is_zero(version: u64) -> bool {
    version.is_multiple_of(16)
}

fn content(sector: u64, version: u64) -> Vec<u8> {
    if is_zero(version) { vec![0; 512] } else { Random::new(sector << 32 | version).bytes(512) }
}

struct Sent {
    cookie: u64,
    first: u64,
    count: u64,
    version: u64,
    fua: bool,
}

/// The allowed content of each sector, and the writes in flight.
struct Oracle {
    sectors: Vec<Sector>,
    /// The newest acknowledged version of each sector.
    acked: Vec<u64>,
    in_flight: Vec<Sent>,
    version: u64,
    promised: Promised,
    random: Random,
}

impl Oracle {
    fn new(promised: Promised, seed: u64) -> Self {
        Self {
            sectors: vec![Sector(vec![0]); SECTORS as usize],
            acked: vec![0; SECTORS as usize],
            in_flight: Vec::new(),
            version: 0,
            promised,
            random: Random::new(seed),
        }
    }

    /// Waits for the acknowledgement of a write in flight.
    fn wait_for(&mut self, client: &mut Client, index: usize) {
        let sent = self.in_flight.remove(index);
        client.wait(sent.cookie).result.unwrap();
        for sector in sent.first..sent.first + sent.count {
            self.acked[sector as usize] = sent.version;
            if sent.fua || self.promised == Promised::Acked {
                self.sectors[sector as usize].promise(sent.version);
            }
        }
    }

    fn wait_for_all(&mut self, client: &mut Client) {
        while !self.in_flight.is_empty() {
            self.wait_for(client, 0);
        }
    }

    /// Sends a write or a zeroing of random sectors, some with FUA.
    fn change(&mut self, client: &mut Client) {
        let count = 1 + self.random.below(SECTORS_AT_ONCE);
        let first = self.random.below(SECTORS - count);
        let overlaps = |sent: &Sent| sent.first < first + count && first < sent.first + sent.count;
        while let Some(index) = self.in_flight.iter().position(overlaps) {
            self.wait_for(client, index);
        }
        if self.in_flight.len() >= IN_FLIGHT {
            self.wait_for(client, 0);
        }
        self.version += 1;
        let (version, fua) = (self.version, self.random.one_in(10));
        let flags = if fua { FUA } else { 0 };
        let range = first..first + count;
        let data: Vec<u8> = range.clone().flat_map(|sector| content(sector, version)).collect();
        let (command, data) = match is_zero(version) {
            true => (NbdCommand::WriteZeroes, &[][..]),
            false => (NbdCommand::Write, &data[..]),
        };
        let cookie = client.send(command, flags, first * 512, count * 512, data);
        range.for_each(|sector| self.sectors[sector as usize].0.push(version));
        self.in_flight.push(Sent { cookie, first, count, version, fua });
    }

    /// Flushes with writes in flight: only earlier acknowledged writes become promised.
    fn flush(&mut self, client: &mut Client) {
        let acked = self.acked.clone();
        client.flush().unwrap();
        for (sector, version) in self.sectors.iter_mut().zip(acked) {
            sector.promise(version);
        }
    }

    /// Sends a few hundred writes, the last ones unacknowledged. Sometimes sends none, so that the
    /// next cut hits the recovery from the previous one.
    fn load(&mut self, client: &mut Client) {
        if self.random.one_in(4) {
            return;
        }
        for _ in 0..100 + self.random.below(400) {
            self.change(client);
            if self.random.one_in(60) {
                self.flush(client);
            }
        }
        // Unacknowledged writes are not promised.
        self.in_flight.clear();
    }

    /// Checks every sector after a cut or a shutdown.
    fn check(&mut self, disk: &[u8]) {
        for (number, (sector, found)) in (0..).zip(self.sectors.iter_mut().zip(disk.chunks(512))) {
            sector.check(number, found);
            self.acked[number as usize] = sector.0[0];
        }
    }
}

fn read_all(client: &mut Client) -> Vec<u8> {
    client.read(0, SECTORS * 512).unwrap()
}

/// Creates the devices of a volume, each under a `volatile` layer with the given options. In
/// `settings`, `{journal}` and `{mirror}` stand for the journal devices.
fn volume(directory: &Path, volatile: &str, settings: &str) -> String {
    let lossy = |name: &str, bytes: u64| {
        let path = directory.join(name);
        make_file(&path, bytes);
        format!("volatile({volatile}):{}", path.display())
    };
    let mut volume = format!("disk={},{settings}", lossy("disk.img", SECTORS * 512));
    for name in ["journal", "mirror"] {
        volume = volume.replace(&format!("{{{name}}}"), &lossy(name, 40 * MIB));
    }
    volume
}

fn start(directory: &Path, io: &str, volume: &str) -> Daemon {
    Daemon::start(directory, io, "64MiB", std::slice::from_ref(&volume.to_owned()))
}

/// Cuts the power `cuts` times with each kind of loss, then shuts down cleanly.
fn cut_power(io: &str, settings: &str, promised: Promised, cuts: usize) {
    for (seed, volatile) in (1..).zip(["", "keep=0.5,limit=1MiB", "keep=0.9"]) {
        let directory = tempfile::tempdir().unwrap();
        let volume = volume(directory.path(), volatile, settings);
        let mut oracle = Oracle::new(promised, seed);
        for _ in 0..cuts {
            let daemon = start(directory.path(), io, &volume);
            let mut client = daemon.client("disk");
            oracle.check(&read_all(&mut client));
            oracle.load(&mut client);
            daemon.kill();
        }
        let daemon = start(directory.path(), io, &volume);
        let mut client = daemon.client("disk");
        oracle.check(&read_all(&mut client));
        (0..200).for_each(|_| oracle.change(&mut client));
        oracle.wait_for_all(&mut client);
        drop(client);
        daemon.stop();
        // A clean shutdown keeps all acknowledged writes in every mode.
        let acked = oracle.acked.clone();
        oracle.sectors.iter_mut().zip(acked).for_each(|(sector, at)| sector.promise(at));
        oracle.check(&std::fs::read(directory.path().join("disk.img")).unwrap());
    }
}

const ACK: &str = "mode=write-back,protection=journal,journal={journal}";
const FLUSH: &str = "mode=write-back,protection=journal,journal={journal},durability=flush";
const MIRRORED: &str =
    "mode=write-back,protection=journal,journal={journal},journal-mirror={mirror}";

#[test]
fn a_power_cut_in_write_through_keeps_flushed_writes() {
    cut_power("io_uring", "mode=write-through", Promised::Flushed, 3);
}

#[test]
fn a_power_cut_in_bypass_keeps_flushed_writes() {
    cut_power("epoll", "mode=bypass", Promised::Flushed, 3);
}

#[test]
fn a_power_cut_without_protection_keeps_flushed_writes() {
    cut_power("io_uring", UNPROTECTED, Promised::Flushed, 3);
}

#[test]
fn a_power_cut_with_a_journal_keeps_acknowledged_writes_on_io_uring() {
    cut_power("io_uring", ACK, Promised::Acked, 4);
}

#[test]
fn a_power_cut_with_a_journal_keeps_acknowledged_writes_on_epoll() {
    cut_power("epoll", ACK, Promised::Acked, 4);
}

#[test]
fn a_power_cut_with_a_mirrored_journal_keeps_acknowledged_writes() {
    cut_power("io_uring", MIRRORED, Promised::Acked, 4);
}

#[test]
fn a_power_cut_with_a_journal_and_flush_durability_keeps_flushed_writes() {
    cut_power("io_uring", FLUSH, Promised::Flushed, 4);
}

/// Shows that the `volatile` layer loses data, without which the other tests prove nothing.
#[test]
fn a_power_cut_loses_unpromised_writes() {
    for (settings, kept) in
        [("mode=write-through", 0), ("mode=bypass", 0), (UNPROTECTED, 0), (FLUSH, 0), (ACK, 7)]
    {
        let directory = tempfile::tempdir().unwrap();
        let volume = volume(directory.path(), "", settings);
        let daemon = start(directory.path(), "auto", &volume);
        let mut client = daemon.client("disk");
        client.write(4096, &[8; 4096]).unwrap();
        client.flush().unwrap();
        // The journal may commit this write before the kill.
        client.write(0, &[7; 4096]).unwrap();
        daemon.kill();
        let daemon = start(directory.path(), "auto", &volume);
        let found = daemon.client("disk").read(0, 8192).unwrap();
        assert_eq!(found[4096..], [8; 4096], "{settings}");
        if settings != FLUSH {
            assert_eq!(found[..4096], [kept; 4096], "{settings}");
        }
    }
}

/// `FOREBAY_CUTS` sets the number of cuts for each kind of loss.
#[test]
#[ignore = "takes some minutes"]
fn slow_power_cuts_in_every_mode_and_protection() {
    let cuts = std::env::var("FOREBAY_CUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    for io in ["io_uring", "epoll"] {
        cut_power(io, "mode=write-through", Promised::Flushed, cuts);
        cut_power(io, "mode=bypass", Promised::Flushed, cuts);
        cut_power(io, UNPROTECTED, Promised::Flushed, cuts);
        cut_power(io, ACK, Promised::Acked, cuts);
        cut_power(io, MIRRORED, Promised::Acked, cuts);
        cut_power(io, FLUSH, Promised::Flushed, cuts);
    }
}
