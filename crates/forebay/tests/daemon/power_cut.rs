//! The power is cut at any moment: disk and journal lose what was not flushed on them, all of it
//! or a share of its sectors. What the mode and the protection promise is there afterwards, and
//! what a client has read after a cut does not change at the next one.

use crate::common::client::Client;
use crate::common::random::Random;
use crate::process::Daemon;
use forebay_nbd::Command;
use forebay_nbd::proto::command_flag::FUA;
use std::path::Path;

const MIB: u64 = 1 << 20;
const SECTORS: u64 = 8 * MIB / 512;
const SECTORS_AT_ONCE: u64 = 24;
const IN_FLIGHT: usize = 16;

/// When a write is promised to be there after a cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Promised {
    /// When it is answered.
    Answered,
    /// When a flush that came after its answer is answered, or itself with FUA.
    Flushed,
}

/// What a sector may hold, oldest first: versions that each name their content.
#[derive(Clone)]
struct Sector(Vec<u64>);

impl Sector {
    /// Nothing older than `version` may be there any more.
    fn promise(&mut self, version: u64) {
        if let Some(at) = self.0.iter().position(|&other| other == version) {
            self.0.drain(..at);
        }
    }

    /// Finds out which one is there; from then on it is what there is.
    fn settle(&mut self, number: u64, found: &[u8]) {
        let version = self.0.iter().rev().find(|&&version| content(number, version) == found);
        let version = *version.unwrap_or_else(|| {
            panic!("sector {number} lost what was promised: it may hold one of {:?}", self.0)
        });
        self.0 = vec![version];
    }
}

/// Every sixteenth version is one of zeroes.
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

/// The sectors, what was promised of them, and what is under way.
struct Oracle {
    sectors: Vec<Sector>,
    /// The newest version that was answered.
    answered: Vec<u64>,
    in_flight: Vec<Sent>,
    version: u64,
    promised: Promised,
    random: Random,
}

impl Oracle {
    fn new(promised: Promised, seed: u64) -> Self {
        Self {
            sectors: vec![Sector(vec![0]); SECTORS as usize],
            answered: vec![0; SECTORS as usize],
            in_flight: Vec::new(),
            version: 0,
            promised,
            random: Random::new(seed),
        }
    }

    fn settle(&mut self, client: &mut Client, index: usize) {
        let sent = self.in_flight.remove(index);
        client.wait(sent.cookie).result.unwrap();
        for sector in sent.first..sent.first + sent.count {
            self.answered[sector as usize] = sent.version;
            if sent.fua || self.promised == Promised::Answered {
                self.sectors[sector as usize].promise(sent.version);
            }
        }
    }

    fn settle_all(&mut self, client: &mut Client) {
        while !self.in_flight.is_empty() {
            self.settle(client, 0);
        }
    }

    /// Writes or zeroes somewhere, now and then with FUA.
    fn change(&mut self, client: &mut Client) {
        let count = 1 + self.random.below(SECTORS_AT_ONCE);
        let first = self.random.below(SECTORS - count);
        let overlaps = |sent: &Sent| sent.first < first + count && first < sent.first + sent.count;
        while let Some(index) = self.in_flight.iter().position(overlaps) {
            self.settle(client, index);
        }
        if self.in_flight.len() >= IN_FLIGHT {
            self.settle(client, 0);
        }
        self.version += 1;
        let (version, fua) = (self.version, self.random.one_in(10));
        let flags = if fua { FUA } else { 0 };
        let range = first..first + count;
        let data: Vec<u8> = range.clone().flat_map(|sector| content(sector, version)).collect();
        let (command, data) = match is_zero(version) {
            true => (Command::WriteZeroes, &[][..]),
            false => (Command::Write, &data[..]),
        };
        let cookie = client.send(command, flags, first * 512, count * 512, data);
        range.for_each(|sector| self.sectors[sector as usize].0.push(version));
        self.in_flight.push(Sent { cookie, first, count, version, fua });
    }

    /// Flushes what was answered before, while other writes are under way.
    fn flush(&mut self, client: &mut Client) {
        let answered = self.answered.clone();
        client.flush().unwrap();
        for (sector, version) in self.sectors.iter_mut().zip(answered) {
            sector.promise(version);
        }
    }

    /// Some hundred writes, the last of them not answered yet; now and then none at all, so that
    /// the power fails while the last failure is being dealt with.
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
        // What was never answered is not promised.
        self.in_flight.clear();
    }

    /// Compares with what is there after a cut.
    fn check(&mut self, client: &mut Client) {
        let disk = client.read(0, SECTORS * 512).unwrap();
        for (number, (sector, found)) in (0..).zip(self.sectors.iter_mut().zip(disk.chunks(512))) {
            sector.settle(number, found);
            self.answered[number as usize] = sector.0[0];
        }
    }
}

fn file(path: &Path, bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
}

/// `volatile` are the options of the layer, `settings` those of the volume, with a name in braces
/// for each device of a journal.
fn volume(directory: &Path, volatile: &str, settings: &str) -> String {
    let lossy = |name: &str, bytes: u64| {
        let path = directory.join(name);
        file(&path, bytes);
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

/// Cuts the power `cuts` times with each kind of loss, then stops in order.
fn cut(io: &str, settings: &str, promised: Promised, cuts: usize) {
    for (seed, volatile) in (1..).zip(["", "keep=0.5,limit=1MiB", "keep=0.9"]) {
        let directory = tempfile::tempdir().unwrap();
        let volume = volume(directory.path(), volatile, settings);
        let mut oracle = Oracle::new(promised, seed);
        for _ in 0..cuts {
            let daemon = start(directory.path(), io, &volume);
            let mut client = daemon.client("disk");
            oracle.check(&mut client);
            oracle.load(&mut client);
            daemon.kill();
        }
        let daemon = start(directory.path(), io, &volume);
        let mut client = daemon.client("disk");
        oracle.check(&mut client);
        (0..200).for_each(|_| oracle.change(&mut client));
        oracle.settle_all(&mut client);
        drop(client);
        daemon.stop();
        // An orderly stop keeps what was answered, whatever the mode.
        let answered = oracle.answered.clone();
        oracle.sectors.iter_mut().zip(answered).for_each(|(sector, at)| sector.promise(at));
        let disk = std::fs::read(directory.path().join("disk.img")).unwrap();
        for (number, (sector, found)) in (0..).zip(oracle.sectors.iter_mut().zip(disk.chunks(512)))
        {
            sector.settle(number, found);
        }
    }
}

const NONE: &str = "mode=write-back,protection=none,accept-loss=yes";
const ACK: &str = "mode=write-back,protection=journal,journal={journal}";
const FLUSH: &str = "mode=write-back,protection=journal,journal={journal},durability=flush";
const MIRRORED: &str =
    "mode=write-back,protection=journal,journal={journal},journal-mirror={mirror}";

#[test]
fn a_power_cut_in_write_through_keeps_what_was_flushed() {
    cut("io_uring", "mode=write-through", Promised::Flushed, 3);
}

#[test]
fn a_power_cut_in_bypass_keeps_what_was_flushed() {
    cut("epoll", "mode=bypass", Promised::Flushed, 3);
}

#[test]
fn a_power_cut_without_protection_keeps_what_was_flushed() {
    cut("io_uring", NONE, Promised::Flushed, 3);
}

#[test]
fn a_power_cut_with_a_journal_keeps_what_was_answered_on_io_uring() {
    cut("io_uring", ACK, Promised::Answered, 4);
}

#[test]
fn a_power_cut_with_a_journal_keeps_what_was_answered_on_epoll() {
    cut("epoll", ACK, Promised::Answered, 4);
}

#[test]
fn a_power_cut_with_a_journal_on_two_devices_keeps_what_was_answered() {
    cut("io_uring", MIRRORED, Promised::Answered, 4);
}

#[test]
fn a_power_cut_with_a_journal_that_is_flushed_keeps_what_was_flushed() {
    cut("io_uring", FLUSH, Promised::Flushed, 4);
}

/// The cuts above would prove nothing over a disk that loses nothing.
#[test]
fn a_power_cut_does_lose_what_nothing_promises() {
    for (settings, kept) in
        [("mode=write-through", 0), ("mode=bypass", 0), (NONE, 0), (FLUSH, 0), (ACK, 7)]
    {
        let directory = tempfile::tempdir().unwrap();
        let volume = volume(directory.path(), "", settings);
        let daemon = start(directory.path(), "auto", &volume);
        let mut client = daemon.client("disk");
        client.write(4096, &[8; 4096]).unwrap();
        client.flush().unwrap();
        // Recorded by itself it might be made durable, unless the client is quick.
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

/// How often for each kind of loss, `FOREBAY_CUTS` says.
#[test]
#[ignore = "takes some minutes"]
fn slow_power_cuts_in_every_mode_and_protection() {
    let cuts = std::env::var("FOREBAY_CUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    for io in ["io_uring", "epoll"] {
        cut(io, "mode=write-through", Promised::Flushed, cuts);
        cut(io, "mode=bypass", Promised::Flushed, cuts);
        cut(io, NONE, Promised::Flushed, cuts);
        cut(io, ACK, Promised::Answered, cuts);
        cut(io, MIRRORED, Promised::Answered, cuts);
        cut(io, FLUSH, Promised::Flushed, cuts);
    }
}
