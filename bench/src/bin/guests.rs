//! Volumes as disks of guests over vhost-user, without a virtual machine: this program is the
//! monitor and the guest.
//!
//! `check` compares every read with a model, while the server is killed, stopped in order, and its
//! rings are; then has guests that break everything that they can, beside one that behaves. At the
//! end the disk must contain what was written. `cost` measures the server's processor time per
//! request of 4 KiB that memory serves, beside the storage daemon of QEMU.

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use forebay_bench::content::LoadRandom;
use forebay_bench::cpu::CpuReading;
use forebay_bench::forebay::Forebay;
use forebay_bench::guest::{GUEST_BASE, GuestRam, GuestRing, Monitor, Used, Verb};
use forebay_bench::table::{TextTable, median};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, memfd_create};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug, Parser)]
struct GuestsArgs {
    /// Directory of the built programs.
    #[arg(long, default_value = "target/release", global = true)]
    programs: PathBuf,
    #[command(subcommand)]
    command: GuestsCommand,
}

#[derive(Debug, Subcommand)]
enum GuestsCommand {
    /// Compares every byte, through kills, stops and hostile guests.
    Check {
        /// Rounds, each with a server that ends in another way.
        #[arg(long, default_value_t = 12)]
        rounds: u64,
        /// Requests of a round.
        #[arg(long, default_value_t = 3000)]
        requests: u64,
        /// Seed of the first round.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Measures the processor time of a hit.
    Cost {
        /// Interleaved runs of each server.
        #[arg(long, default_value_t = 3)]
        runs: usize,
        /// Requests of a run.
        #[arg(long, default_value_t = 1_000_000)]
        requests: u64,
        /// Nanoseconds of server time per request at depth 64 that must not be exceeded.
        #[arg(long)]
        limit_ns: Option<f64>,
    },
}

const MIB: usize = 1 << 20;
/// Bytes of the disk of the check.
const DISK_BYTES: usize = 64 * MIB;
const RINGS: usize = 2;
const PLACES: u16 = 16;
/// Each place of each ring has a part of the disk, so that its content is certain.
const AREA_BYTES: usize = DISK_BYTES / RINGS / PLACES as usize;
const REQUEST_BYTES_MAX: usize = MIB;
/// An unanswered request is an error after this time.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let GuestsArgs { programs, command } = GuestsArgs::parse();
    match command {
        GuestsCommand::Check { rounds, requests, seed } => check(&programs, rounds, requests, seed),
        GuestsCommand::Cost { runs, requests, limit_ns } => {
            cost(&programs, runs, requests, limit_ns)
        }
    }
}

/// Starts a server over an image, with a socket for guests.
fn serve(programs: &Path, dir: &Path, seed: u64) -> Result<Forebay> {
    let image = dir.join("disk.img");
    let backing = match seed % 3 {
        0 => format!("disk={}", image.display()),
        1 => format!("disk=blocks(size=4096):{}", image.display()),
        _ => format!("disk=delay(write=3ms,read=1ms):{}", image.display()),
    };
    let io = if seed.is_multiple_of(2) { "io_uring" } else { "epoll" };
    let sockets = dir.join("vhost");
    let sockets = sockets.to_str().context("a path of text")?;
    Forebay::start(programs, dir, &[backing], 96 << 20, &["--io", io, "--vhost-user", sockets])
}

/// What a place is doing.
#[derive(Clone)]
struct Pending {
    verb: Verb,
    /// The bytes of the disk.
    offset: usize,
    len: usize,
    data: Vec<u8>,
}

/// A guest with a model of its disk.
struct CheckedGuest {
    ram: Arc<GuestRam>,
    rings: Vec<GuestRing>,
    model: Vec<u8>,
    pending: Vec<Vec<Option<Pending>>>,
    /// What is at a place after a discard is not certain until it is written.
    discarded: Vec<Vec<Option<(usize, usize)>>>,
    random: LoadRandom,
    answered: u64,
}

impl CheckedGuest {
    fn new(seed: u64) -> Result<Self> {
        let each = GuestRing::bytes(PLACES, REQUEST_BYTES_MAX);
        let ram = GuestRam::new(RINGS * each)?;
        let rings =
            (0..RINGS).map(|ring| GuestRing::new(&ram, ring * each, PLACES, REQUEST_BYTES_MAX));
        let rings = rings.collect::<Result<Vec<_>>>()?;
        let pending = vec![vec![None; usize::from(PLACES)]; RINGS];
        let random = LoadRandom::new(seed);
        let discarded = vec![vec![None; usize::from(PLACES)]; RINGS];
        let model = vec![0; DISK_BYTES];
        Ok(Self { ram, rings, model, pending, discarded, random, answered: 0 })
    }

    /// Starts a request in each place that has none, of one ring.
    fn fill(&mut self, ring: usize) {
        for place in 0..PLACES {
            if self.pending[ring][usize::from(place)].is_none() {
                self.begin(ring, place);
            }
        }
        self.rings[ring].kick();
    }

    fn begin(&mut self, ring: usize, place: u16) {
        let random = &mut self.random;
        let area = (ring * usize::from(PLACES) + usize::from(place)) * AREA_BYTES;
        let len_max = match random.below(4) {
            0 => 1,
            1 => 8,
            2 => 64,
            _ => REQUEST_BYTES_MAX as u64 / 512,
        };
        let len = (random.below(len_max) as usize + 1) * 512;
        let offset = area + random.below(((AREA_BYTES - len) / 512 + 1) as u64) as usize * 512;
        let discarded = self.discarded[ring][usize::from(place)].take();
        let (offset, len) = discarded.unwrap_or((offset, len));
        let verb = match random.below(16) {
            _ if discarded.is_some() => Verb::Write,
            0 => Verb::Flush,
            1 => Verb::Zero,
            2 => Verb::Discard,
            3..10 => Verb::Read,
            _ => Verb::Write,
        };
        let shape = (random.below(6) as usize + 1, random.below(2) == 0);
        let sector = (offset / 512) as u64;
        let data_at = self.rings[ring].data_at(place);
        let (mut data, mut request) = (Vec::new(), (sector, len as u32));
        match verb {
            Verb::Write => {
                let pattern = self.random.next_u64();
                data =
                    (0..len).map(|at| (pattern >> (at % 8 * 8)) as u8 ^ (at >> 9) as u8).collect();
                self.ram.write(data_at, &data);
            }
            Verb::Read => self.ram.write(data_at, &vec![0xee; len]),
            Verb::Zero | Verb::Discard => {
                let mut erase = [0; 16];
                erase[..8].copy_from_slice(&sector.to_le_bytes());
                erase[8..12].copy_from_slice(&((len / 512) as u32).to_le_bytes());
                self.ram.write(data_at, &erase);
                request = (0, 16);
            }
            _ => request = (0, 0),
        }
        self.rings[ring].add(place, verb, request, shape);
        self.pending[ring][usize::from(place)] = Some(Pending { verb, offset, len, data });
    }

    /// Waits for an answer, and compares it.
    fn expect(&mut self, ring: usize) -> Result<()> {
        let used = self.rings[ring].wait(PATIENCE).context("a request is not answered")?;
        let Used { place, status, bytes } = used;
        let pending = self.pending[ring].get_mut(usize::from(place)).and_then(Option::take);
        let Some(Pending { verb, offset, len, data }) = pending else {
            bail!("{used:?} answers no request");
        };
        ensure!(status == 0, "{verb:?} of {len} at {offset} failed with {status}");
        let written = if verb == Verb::Read { len as u32 + 1 } else { 1 };
        ensure!(bytes == written, "{verb:?} has written {bytes} bytes, and not {written}");
        let model = &mut self.model[offset..offset + len];
        match verb {
            Verb::Write => model.copy_from_slice(&data),
            Verb::Zero => model.fill(0),
            Verb::Discard => self.discarded[ring][usize::from(place)] = Some((offset, len)),
            Verb::Read => {
                let mut read = vec![0; len];
                self.ram.read(self.rings[ring].data_at(place), &mut read);
                let differs = read.iter().zip(&*model).position(|(read, model)| read != model);
                if let Some(at) = differs {
                    bail!("a read of {len} at {offset} differs from byte {at} on");
                }
            }
            _ => {}
        }
        self.answered += 1;
        Ok(())
    }

    /// Lets all requests end, and writes what was discarded.
    fn settle(&mut self) -> Result<()> {
        for ring in 0..RINGS {
            loop {
                let discarded = self.discarded[ring].iter().position(Option::is_some);
                match discarded {
                    Some(place) if self.pending[ring][place].is_none() => {
                        self.begin(ring, place as u16);
                        self.rings[ring].kick();
                    }
                    None if self.pending[ring].iter().all(Option::is_none) => break,
                    _ => self.expect(ring)?,
                }
            }
        }
        Ok(())
    }

    fn start(&self, monitor: &mut Monitor) -> Result<()> {
        // An earlier server may owe an interrupt.
        let rings = self.rings.iter().collect::<Vec<_>>();
        self.rings[0].interrupted(|| monitor.start(&self.ram, &rings))?;
        self.rings.iter().for_each(GuestRing::kick_anyway);
        Ok(())
    }
}

fn check(programs: &Path, rounds: u64, requests: u64, seed: u64) -> Result<()> {
    grow(programs).context("a disk grows")?;
    let dir = tempfile::tempdir()?;
    let checked = check_in(programs, &dir, (rounds, requests), seed);
    checked.with_context(|| {
        let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        let last = log.lines().rev().take(20).collect::<Vec<_>>();
        format!("the log of the server, last line first:\n{}", last.join("\n"))
    })
}

fn check_in(
    programs: &Path,
    dir: &tempfile::TempDir,
    (rounds, requests): (u64, u64),
    seed: u64,
) -> Result<()> {
    let image = File::create(dir.path().join("disk.img"))?;
    image.set_len(DISK_BYTES as u64)?;
    let mut guest = CheckedGuest::new(seed)?;
    let socket = dir.path().join("vhost/disk.sock");
    let mut inflight = None;
    let mut resumed = 0;
    for round in 0..rounds {
        let server = serve(programs, dir.path(), seed + round)?;
        let mut monitor = Monitor::connect(&socket, inflight.take())?;
        ensure!(monitor.size_bytes()? == DISK_BYTES as u64, "the guest sees the size");
        guest.start(&mut monitor).with_context(|| format!("round {round}"))?;
        let until = guest.answered + requests;
        let run = run_until(&mut guest, until);
        run.with_context(|| format!("round {round} of seed {}", seed + round))?;
        match round % 4 {
            // With requests in flight, which the next server takes again.
            0 | 2 => {
                (0..RINGS).for_each(|ring| guest.fill(ring));
                resumed += guest.pending.iter().flatten().flatten().count();
                server.kill()?;
                inflight = monitor.leave();
            }
            1 => {
                (0..RINGS).for_each(|ring| guest.fill(ring));
                server.stop()?;
                inflight = monitor.leave();
            }
            // The monitor stops the rings first.
            _ => {
                (0..RINGS).for_each(|ring| guest.fill(ring));
                for ring in 0..RINGS {
                    let base = monitor.stop(ring as u32)?;
                    while guest.rings[ring].base() != base {
                        guest.expect(ring)?;
                    }
                }
                guest.start(&mut monitor)?;
                guest.settle()?;
                break_everything(&socket, &mut guest, seed + round)?;
                inflight = monitor.leave();
                server.stop()?;
            }
        }
    }
    let server = serve(programs, dir.path(), 0)?;
    let mut monitor = Monitor::connect(&socket, inflight)?;
    guest.start(&mut monitor)?;
    guest.settle()?;
    server.stop()?;
    let mut content = vec![0; DISK_BYTES];
    image_of(dir.path())?.read_exact_at(&mut content, 0)?;
    let differs = content.iter().zip(&guest.model).position(|(disk, model)| disk != model);
    ensure!(differs.is_none(), "the disk differs from byte {differs:?} on");
    println!(
        "guests: {} requests compared, up to {resumed} taken by two servers; the disk has all",
        guest.answered
    );
    Ok(())
}

/// A disk that grows under its guest: the guest is told, and reaches the new part. One that has its
/// own idea of the size is refused. A monitor that connects again and does not ask for the size is
/// told, too: it may have grown meanwhile.
fn grow(programs: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = File::create(dir.path().join("disk.img"))?;
    image.set_len(DISK_BYTES as u64)?;
    let server = serve(programs, dir.path(), 1)?;
    let (monitor, _ram, mut ring) = small_guest(&dir.path().join("vhost/disk.sock"))?;
    monitor.wait_for_change().context("a monitor that has not asked for the size")?;
    let mut size = DISK_BYTES as u64;
    for step in 1..=20_u64 {
        for (is_grown, wanted) in [(false, 1), (true, 0)] {
            if is_grown {
                image.set_len(size + DISK_BYTES as u64)?;
                server.command(&["volume", "resize", "disk"])?;
                monitor.wait_for_change()?;
                size += DISK_BYTES as u64;
                ensure!(monitor.size_bytes()? == size, "the guest sees the new size");
            }
            // Across the end, or at the end.
            let sector = if is_grown { size / 512 - 8 } else { size / 512 - 1 };
            ring.add(step as u16 % PLACES, Verb::Write, (sector, 4096), (1, false));
            ring.kick();
            let used = ring.wait(PATIENCE).context("the write is not answered")?;
            ensure!(used.status == wanted, "step {step}: {used:?} at sector {sector}");
        }
    }
    drop(monitor);
    server.stop()
}

fn image_of(dir: &Path) -> Result<File> {
    Ok(File::open(dir.join("disk.img"))?)
}

fn run_until(guest: &mut CheckedGuest, until: u64) -> Result<()> {
    while guest.answered < until {
        for ring in 0..RINGS {
            guest.fill(ring);
            guest.expect(ring)?;
        }
    }
    Ok(())
}

/// Guests and monitors that break what they can. The one that behaves is served all the time.
fn break_everything(socket: &Path, guest: &mut CheckedGuest, seed: u64) -> Result<()> {
    let mut random = LoadRandom::new(seed);
    for kind in 0..HOSTILE.len() * 3 {
        let (what, hostile) = HOSTILE[kind % HOSTILE.len()];
        hostile(socket, &mut random).with_context(|| format!("hostile: {what}"))?;
        for ring in 0..RINGS {
            guest.fill(ring);
            guest.expect(ring).with_context(|| format!("beside a hostile client: {what}"))?;
        }
    }
    guest.settle()
}

type Hostile = fn(&Path, &mut LoadRandom) -> Result<()>;
const HOSTILE: [(&str, Hostile); 11] = [
    ("bytes that are no message", garbage),
    ("a message of the wrong length", wrong_length),
    ("a counter that is none", no_counter),
    ("rings outside of the memory", ring_outside),
    ("descriptors that are not possible", broken_descriptors),
    ("an index that is not possible", broken_index),
    ("memory that is taken away", lost_memory),
    ("data that is taken away before it is written", lost_data),
    ("a region in flight that may shrink", shrinking_inflight),
    ("a region in flight that is shorter than it says", short_inflight),
    ("more descriptors than a message has", many_files),
];

fn garbage(socket: &Path, random: &mut LoadRandom) -> Result<()> {
    let stream = Monitor::open(socket)?;
    let bytes: Vec<u8> = (0..random.below(400)).map(|_| random.next_u64() as u8).collect();
    // The server may have closed already.
    let _ = rustix::io::write(&stream, &bytes);
    Ok(())
}

fn wrong_length(socket: &Path, random: &mut LoadRandom) -> Result<()> {
    let monitor = Monitor::connect(socket, None)?;
    let bytes = vec![0; random.below(7) as usize + 1];
    monitor.send(8, &bytes, &[])?;
    ensure!(monitor.is_disconnected(), "the server goes on");
    Ok(())
}

fn no_counter(socket: &Path, _: &mut LoadRandom) -> Result<()> {
    let monitor = Monitor::connect(socket, None)?;
    let file = File::open("/dev/zero")?;
    monitor.send(12, &0_u64.to_le_bytes(), &[file.as_fd()])?;
    ensure!(monitor.is_disconnected(), "the server goes on");
    Ok(())
}

/// A small guest with one ring.
fn small_guest(socket: &Path) -> Result<(Monitor, Arc<GuestRam>, GuestRing)> {
    let ram = GuestRam::new(GuestRing::bytes(PLACES, 4096))?;
    let ring = GuestRing::new(&ram, 0, PLACES, 4096)?;
    let mut monitor = Monitor::connect(socket, None)?;
    monitor.start(&ram, &[&ring])?;
    Ok((monitor, ram, ring))
}

fn ring_outside(socket: &Path, random: &mut LoadRandom) -> Result<()> {
    let (monitor, ram, ring) = small_guest(socket)?;
    monitor.stop(0)?;
    let end = ram.at(0, 0) as u64 + ram.bytes() as u64;
    let mut addresses = [0_u32.to_le_bytes(), [0; 4]].concat();
    for _ in 0..3 {
        addresses.extend((end - random.below(64) * 16).to_le_bytes());
    }
    addresses.extend([0; 8]);
    monitor.send(9, &addresses, &[])?;
    monitor.send(12, &0_u64.to_le_bytes(), &[ring.kick.as_fd()])?;
    ensure!(monitor.is_disconnected(), "the server goes on");
    Ok(())
}

fn broken_descriptors(socket: &Path, random: &mut LoadRandom) -> Result<()> {
    let (_monitor, ram, mut ring) = small_guest(socket)?;
    for _ in 0..40 {
        for at in 0..8 {
            let address = match random.below(4) {
                0 => random.next_u64(),
                1 => GUEST_BASE + ram.bytes() as u64 - random.below(64),
                _ => GUEST_BASE + random.below(ram.bytes() as u64),
            };
            let bytes = if random.below(3) == 0 { random.next_u64() } else { random.below(4096) };
            let flags = random.below(8) as u16;
            ring.put_descriptor(at, (address, bytes as u32, flags, random.below(9) as u16));
        }
        ring.put_available(random.below(8) as u16, 1);
    }
    std::thread::sleep(Duration::from_millis(5));
    Ok(())
}

fn broken_index(socket: &Path, random: &mut LoadRandom) -> Result<()> {
    let (monitor, _ram, mut ring) = small_guest(socket)?;
    ring.put_available(0xffff, random.below(2000) as u16 + 2);
    // It is still stopped in order.
    monitor.stop(0)?;
    Ok(())
}

fn lost_memory(socket: &Path, random: &mut LoadRandom) -> Result<()> {
    let (_monitor, ram, mut ring) = small_guest(socket)?;
    for place in 0..PLACES {
        let verb = if place % 2 == 0 { Verb::Read } else { Verb::Flush };
        ring.add(place, verb, (u64::from(place) * 8, 4096), (1, false));
    }
    ring.kick();
    std::thread::sleep(Duration::from_micros(random.below(2000)));
    rustix::fs::ftruncate(&ram.file, 0)?;
    let _ = rustix::io::write(&ring.kick, &1_u64.to_ne_bytes());
    std::thread::sleep(Duration::from_millis(20));
    // Not touched again here either.
    std::mem::forget(ring);
    Ok(())
}

/// The write must fail, and leave what the guest that behaves has there.
fn lost_data(socket: &Path, random: &mut LoadRandom) -> Result<()> {
    const BYTES: usize = 64 << 10;
    let (monitor, _ram, mut ring) = small_guest(socket)?;
    let data = GuestRam::new(BYTES)?;
    let address = GUEST_BASE << 1;
    let mut region = vec![0; 8];
    for number in [address, BYTES as u64, data.at(0, 0) as u64, 0] {
        region.extend(number.to_le_bytes());
    }
    monitor.send(37, &region, &[data.file.as_fd()])?;
    // It is used from when the next message is answered.
    monitor.size_bytes()?;
    let sector = random.below((DISK_BYTES - BYTES) as u64 / 512);
    ring.add(0, Verb::Write, (sector, 4096), (1, false));
    // The second descriptor of the place is the data, and more follow.
    ring.put_descriptor(1, (address, BYTES as u32, 1, 2));
    rustix::fs::ftruncate(&data.file, 0)?;
    ring.kick();
    let used = ring.wait(PATIENCE).context("the write is not answered")?;
    ensure!(used.status == 1, "a write of lost data ended with {}", used.status);
    Ok(())
}

fn shrinking_inflight(socket: &Path, _: &mut LoadRandom) -> Result<()> {
    let file = memfd_create("region", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, 1 << 16)?;
    refused_inflight(socket, &file)
}

/// Long enough for what the monitor has asked for, and not for the length that it states.
fn short_inflight(socket: &Path, _: &mut LoadRandom) -> Result<()> {
    let file = memfd_create("region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, 4096)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
    refused_inflight(socket, &file)
}

/// Gives a region for a ring of 128 entries that is said to be 64 KiB long.
fn refused_inflight(socket: &Path, file: &OwnedFd) -> Result<()> {
    let monitor = Monitor::connect(socket, None)?;
    let mut shape = vec![0; 24];
    shape[..8].copy_from_slice(&(1_u64 << 16).to_le_bytes());
    shape[16..20].copy_from_slice(&[1, 0, 128, 0]);
    monitor.send(32, &shape, &[file.as_fd()])?;
    ensure!(monitor.is_disconnected(), "the server goes on");
    Ok(())
}

fn many_files(socket: &Path, _: &mut LoadRandom) -> Result<()> {
    let monitor = Monitor::connect(socket, None)?;
    let counter = eventfd(0, EventfdFlags::CLOEXEC)?;
    monitor.send(12, &0_u64.to_le_bytes(), &[counter.as_fd(); 16])?;
    ensure!(monitor.is_disconnected(), "the server goes on");
    Ok(())
}

/// Bytes that the cost is measured over; all of them are in memory.
const HOT_BYTES: usize = 64 * MIB;
const HOT_BLOCKS: u64 = (HOT_BYTES / 4096) as u64;

/// A server of which the cost is measured.
enum Measured {
    Forebay(Forebay),
    Qemu(Child),
}

impl Measured {
    fn pid(&self) -> u32 {
        match self {
            Self::Forebay(server) => server.pid,
            Self::Qemu(child) => child.id(),
        }
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        if let Self::Qemu(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn cost(programs: &Path, runs: usize, requests: u64, limit_ns: Option<f64>) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = File::create(dir.path().join("disk.img"))?;
    image.set_len(HOT_BYTES as u64)?;
    let forebay = Measured::Forebay(serve(programs, dir.path(), 0)?);
    // It refuses an image that another program has.
    let copy = dir.path().join("copy.img");
    File::create(&copy)?.set_len(HOT_BYTES as u64)?;
    let qemu_socket = dir.path().join("qemu.sock");
    let qemu = Measured::Qemu(storage_daemon(&copy, &qemu_socket)?);
    let servers = [
        ("forebay", &forebay, dir.path().join("vhost/disk.sock")),
        ("qemu-storage-daemon", &qemu, qemu_socket),
    ];
    let mut table = TextTable::new(["server", "depth", "ns of server per request", "IOPS"]);
    let mut of_forebay = f64::NAN;
    for depth in [1, 16, 64] {
        let mut figures = vec![(Vec::new(), Vec::new()); servers.len()];
        for _ in 0..runs {
            for ((name, server, socket), (ns, iops)) in servers.iter().zip(&mut figures) {
                let share = if depth == 1 { 10 } else { 1 };
                let figure = measure(socket, server.pid(), depth, requests / share);
                let (server_ns, rate) = figure.with_context(|| format!("measuring {name}"))?;
                ns.push(server_ns);
                iops.push(rate);
            }
        }
        for ((name, ..), (ns, iops)) in servers.iter().zip(&figures) {
            let (ns, iops) = (median(ns).unwrap_or(f64::NAN), median(iops).unwrap_or(f64::NAN));
            if depth == 64 && *name == "forebay" {
                of_forebay = ns;
            }
            table.row([
                (*name).to_owned(),
                depth.to_string(),
                format!("{ns:.0}"),
                format!("{iops:.0}"),
            ]);
        }
    }
    println!("{}", table.markdown());
    if let Some(limit) = limit_ns {
        ensure!(of_forebay <= limit, "{of_forebay:.0} ns at depth 64 are more than {limit:.0}");
    }
    Ok(())
}

fn storage_daemon(image: &Path, socket: &Path) -> Result<Child> {
    let blockdev = format!(
        "driver=file,filename={},node-name=disk,aio=io_uring,cache.direct=off",
        image.display()
    );
    let export = format!(
        "type=vhost-user-blk,id=disk,node-name=disk,addr.type=unix,addr.path={},writable=on,\
         num-queues=2",
        socket.display()
    );
    let child = Command::new("qemu-storage-daemon")
        .args(["--blockdev", &blockdev, "--export", &export])
        .stdin(Stdio::null())
        .spawn()
        .context("starting qemu-storage-daemon")?;
    let end = Instant::now() + PATIENCE;
    while !socket.exists() {
        ensure!(Instant::now() < end, "qemu-storage-daemon does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(child)
}

/// Reads 4 KiB blocks at random, with as many requests in flight. Returns the server's nanoseconds
/// per request, and the requests per second.
fn measure(socket: &Path, pid: u32, depth: u16, requests: u64) -> Result<(f64, f64)> {
    let ram = GuestRam::new(GuestRing::bytes(depth, 4096))?;
    let mut ring = GuestRing::new(&ram, 0, depth, 4096)?;
    let mut monitor = Monitor::connect(socket, None)?;
    monitor.start(&ram, &[&ring])?;
    let mut random = LoadRandom::new(7);
    // Each block once, so that all are in memory.
    read_blocks(&mut ring, depth, HOT_BLOCKS, |begun| begun % HOT_BLOCKS)?;
    let (reading, begin) = (CpuReading::of(pid)?, Instant::now());
    read_blocks(&mut ring, depth, requests, |_| random.below(HOT_BLOCKS))?;
    let seconds = begin.elapsed().as_secs_f64();
    let ns = reading.elapsed_ns()? as f64 / requests as f64;
    Ok((ns, requests as f64 / seconds))
}

/// Reads blocks that `choose` names, with as many requests in flight.
fn read_blocks(
    ring: &mut GuestRing,
    depth: u16,
    count: u64,
    mut choose: impl FnMut(u64) -> u64,
) -> Result<()> {
    let (mut begun, mut ended) = (0, 0);
    let mut free: Vec<u16> = (0..depth).collect();
    while ended < count {
        while begun < count
            && let Some(place) = free.pop()
        {
            ring.add(place, Verb::Read, (choose(begun) * 8, 4096), (1, false));
            begun += 1;
        }
        ring.kick();
        let mut used = Some(ring.wait(PATIENCE).context("a request is not answered")?);
        while let Some(Used { place, status, .. }) = used {
            ensure!(status == 0, "a read failed with {status}");
            free.push(place);
            ended += 1;
            used = ring.take();
        }
    }
    Ok(())
}
