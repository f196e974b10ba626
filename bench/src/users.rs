//! Users of a volume: clients that wait for each answer and think before the next request, as
//! programs do. What they measure is what a cache is worth.

use crate::content::LoadRandom;
use crate::wire::{self, REPLY_BYTES, WireCommand, WireReply, WireRequest};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Requests of the load with bursts that follow one another.
const BURST: u64 = 24;

/// A load of several users. The pool has 64 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UserLoad {
    /// Reads of 16 KiB, 256 MiB of them, by Zipf's law.
    Zipf,
    /// A database: 70 % reads and 30 % writes of 8 KiB, by Zipf's law.
    Oltp,
    /// Reads of 16 KiB anywhere in 96 MiB.
    Random,
    /// Reads of 16 KiB anywhere on the disk: a cache cannot help.
    NoBenefit,
    /// Reads of 64 KiB one after another, each once.
    Scan,
    /// The same, of 96 MiB again and again.
    ScanAgain,
    /// Overwrites of 4 KiB in 8 MiB, deferred.
    Overwrite,
    /// Reads of 16 KiB in bursts, most of 32 MiB.
    Bursts,
    /// A mail server: reads and deferred writes of several sizes.
    Mail,
    /// Two users of the load `zipf`, one that scans, and one that writes.
    Mixed,
}

/// A request of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserRequest {
    pub is_write: bool,
    pub offset: u64,
    pub len: u32,
}

impl UserLoad {
    /// Its name, as on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().expect("no value is skipped").get_name().to_owned()
    }

    /// Whether its writes are acknowledged from memory.
    pub const fn is_deferred(self) -> bool {
        matches!(self, Self::Overwrite | Self::Mail)
    }

    /// Users at the same time.
    pub const fn users(self) -> u64 {
        match self {
            Self::Scan => 1,
            Self::ScanAgain => 2,
            Self::Overwrite => 3,
            _ => 4,
        }
    }

    /// The mean time between an answer and the next request.
    fn think(self, number: u64) -> Duration {
        Duration::from_micros(match self {
            Self::Scan | Self::ScanAgain => 500,
            Self::Mixed if number == 2 => 2_000,
            Self::Overwrite => 3_000,
            Self::Mail => 8_000,
            _ => 2_000,
        })
    }

    /// What is read most often, the most frequent first, to fill the pool.
    pub fn favourites(self, disk_bytes: u64) -> Vec<UserRequest> {
        let (mib, len) = match self {
            Self::Zipf | Self::Mixed => (48, 16 * KIB),
            Self::Oltp => (48, 8 * KIB),
            Self::Random => (56, 16 * KIB),
            Self::Bursts | Self::Mail => (32, 16 * KIB),
            Self::NoBenefit | Self::Scan | Self::ScanAgain | Self::Overwrite => return Vec::new(),
        };
        (0..mib * MIB / len).map(|place| scattered(false, place, len, disk_bytes)).collect()
    }
}

/// A request to a place. Places are spread over the whole disk, so that they are in all regions.
fn scattered(is_write: bool, place: u64, len: u64, disk_bytes: u64) -> UserRequest {
    let offset = LoadRandom::new(place ^ 0x5eed).below(disk_bytes / len) * len;
    UserRequest { is_write, offset, len: len as u32 }
}

/// A user's generator of requests.
pub struct User {
    load: UserLoad,
    number: u64,
    disk_bytes: u64,
    random: LoadRandom,
    position: u64,
    sent: u64,
}

impl User {
    pub fn new(load: UserLoad, number: u64, disk_bytes: u64, seed: u64) -> Self {
        let random = LoadRandom::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number << 48);
        let part = match load {
            UserLoad::ScanAgain => 48 * MIB,
            _ => disk_bytes / load.users().max(1),
        };
        let position = (number * part) / MIB * MIB;
        Self { load, number, disk_bytes, random, position, sent: 0 }
    }

    fn unit(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A rank below `count` by Zipf's law with the exponent 1, near enough.
    fn rank(&mut self, count: u64) -> u64 {
        let rank = ((count as f64 + 1.0).ln() * self.unit()).exp() - 1.0;
        (rank as u64).min(count - 1)
    }

    /// The next request.
    pub fn next_request(&mut self) -> UserRequest {
        self.sent += 1;
        let (disk, len) = (self.disk_bytes, 16 * KIB);
        match self.load {
            UserLoad::Zipf => scattered(false, self.rank(256 * MIB / len), len, disk),
            UserLoad::Oltp => {
                let is_write = self.random.below(10) < 3;
                scattered(is_write, self.rank(128 * MIB / (8 * KIB)), 8 * KIB, disk)
            }
            UserLoad::Random => scattered(false, self.random.below(96 * MIB / len), len, disk),
            UserLoad::NoBenefit => {
                let offset = self.random.below(disk / len) * len;
                UserRequest { is_write: false, offset, len: len as u32 }
            }
            UserLoad::Scan => self.scan(disk),
            UserLoad::ScanAgain => self.scan(96 * MIB),
            UserLoad::Overwrite => {
                scattered(true, self.random.below(8 * MIB / (4 * KIB)), 4 * KIB, disk)
            }
            UserLoad::Bursts => {
                let hot = self.random.below(100) < 90;
                let places = if hot { (0, 32 * MIB / len) } else { (1 << 20, 8192 * MIB / len) };
                let place = places.0 + self.random.below(places.1);
                scattered(false, place, len, disk)
            }
            UserLoad::Mail => {
                let len = (4 * KIB) << self.random.below(4);
                let is_write = self.random.below(2) == 0;
                let places = 64 * MIB / (16 * KIB);
                scattered(is_write, self.rank(places), len, disk)
            }
            UserLoad::Mixed if self.number == 2 => self.scan(disk),
            UserLoad::Mixed => scattered(self.number == 3, self.rank(256 * MIB / len), len, disk),
        }
    }

    fn scan(&mut self, bytes: u64) -> UserRequest {
        let offset = self.position % bytes;
        self.position += 64 * KIB;
        UserRequest { is_write: false, offset, len: 64 << 10 }
    }

    /// The time until the next request is sent.
    pub fn pause(&mut self) -> Duration {
        let mean = self.load.think(self.number);
        match self.load {
            UserLoad::Bursts if self.sent.is_multiple_of(BURST) => Duration::from_millis(150),
            UserLoad::Bursts => Duration::ZERO,
            // Exponential, so that users do not keep step.
            _ => mean.mul_f64(-(1.0 - self.unit()).ln()),
        }
    }
}

/// Requests and the sums of their times, of reads and of writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct UserTimes {
    pub requests: [u64; 2],
    pub seconds: [f64; 2],
}

impl UserTimes {
    pub fn add(&mut self, other: &Self) {
        for kind in 0..2 {
            self.requests[kind] += other.requests[kind];
            self.seconds[kind] += other.seconds[kind];
        }
    }

    /// The mean time of a kind of requests, in seconds.
    pub fn mean(&self, kind: usize) -> f64 {
        self.seconds[kind] / self.requests[kind] as f64
    }
}

/// The times of each stage of a measurement, in slices of a second.
pub type Stages = Vec<Vec<UserTimes>>;

/// Opens a connection to an export.
pub fn open(socket: &Path, export: &str) -> Result<(UnixStream, u64)> {
    let mut stream = UnixStream::connect(socket).context("connecting to the server")?;
    let size = wire::open_export(&mut stream, export)?.size_bytes;
    Ok((stream, size))
}

/// Sends a request and waits for its answer.
pub fn send(stream: &mut UnixStream, request: UserRequest, buffer: &mut Vec<u8>) -> Result<()> {
    let UserRequest { is_write, offset, len } = request;
    let command = if is_write { WireCommand::Write } else { WireCommand::Read };
    let head = WireRequest { command, flags: 0, cookie: 7, offset, len };
    buffer.clear();
    buffer.extend(head.encode());
    if is_write {
        buffer.resize(buffer.len() + len as usize, 0x5a);
    }
    stream.write_all(buffer)?;
    let mut reply = [0; REPLY_BYTES];
    stream.read_exact(&mut reply)?;
    let reply = WireReply::decode(&reply)?;
    ensure!(reply.errno == 0, "a request failed with error {}", reply.errno);
    if !is_write {
        buffer.resize(len as usize, 0);
        stream.read_exact(buffer)?;
    }
    Ok(())
}

/// Sends a user's requests until `stage` is `usize::MAX`. Each request counts in the stage in which
/// it was sent, if it was answered in the same one.
pub fn run(
    stream: &mut UnixStream,
    mut user: User,
    stage: &AtomicUsize,
    stages: usize,
) -> Result<Stages> {
    let mut times: Stages = vec![Vec::new(); stages];
    let (mut buffer, mut last, mut begun_stage) = (Vec::new(), usize::MAX, Instant::now());
    loop {
        let now = stage.load(Ordering::Relaxed);
        if now == usize::MAX {
            return Ok(times);
        }
        if now != last {
            (last, begun_stage) = (now, Instant::now());
        }
        let request = user.next_request();
        let begun = Instant::now();
        send(stream, request, &mut buffer)?;
        let seconds = begun.elapsed().as_secs_f64();
        if stage.load(Ordering::Relaxed) == now {
            let slice = begun.duration_since(begun_stage).as_secs() as usize;
            let slices = &mut times[now];
            if slices.len() <= slice {
                slices.resize(slice + 1, UserTimes::default());
            }
            slices[slice].requests[usize::from(request.is_write)] += 1;
            slices[slice].seconds[usize::from(request.is_write)] += seconds;
        }
        let pause = user.pause();
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_inside_the_disk() {
        let disk = 1 << 30;
        for load in UserLoad::value_variants() {
            for number in 0..load.users() {
                let mut user = User::new(*load, number, disk, 3);
                for _ in 0..20_000 {
                    let request = user.next_request();
                    assert!(request.offset + u64::from(request.len) <= disk, "{load:?}");
                    assert!(user.pause() < Duration::from_secs(1));
                }
            }
        }
    }

    #[test]
    fn half_of_the_requests_by_zipfs_law_go_to_a_hundredth_of_the_places() {
        let mut user = User::new(UserLoad::Zipf, 0, 1 << 30, 1);
        let few = (0..100_000).filter(|_| user.rank(16_384) < 164).count();
        assert!((50_000..56_000).contains(&few), "{few}");
    }
}
