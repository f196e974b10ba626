//! The benefit of gathering on modelled arrays, in virtual time.

use super::disk::Disk;
use super::machine::{Clients, Machine, MachineStep, VOLUME};
use super::users::{KIB, MIB};
use crate::harness::dice::Dice;
use forebay_backend::IoKind;
use forebay_engine::VolumeCounters;
use forebay_types::{ByteRange, LINE_BYTES, Mode, Stripes};

/// Writes per run.
const WRITES: u64 = 24_000;
/// Arrays as Linux md drives them.
const HDD: &str = "model:raid5?drives=5&chunk=64KiB&drive=hdd&drive-size=4GiB";
const SSD: &str = "model:raid5?drives=5&chunk=64KiB&drive=ssd&drive-size=4GiB";
/// An array whose disks serve one I/O at a time, in a fixed time for any size.
const FIXED: &str =
    "model:raid5?drives=5&chunk=64KiB&drive=fixed&drive-latency=2ms&drive-size=4GiB";
/// A disk that serves two I/Os at a time, such as a tenant's share of a larger one.
const NARROW: &str = "model:ssd?size=4GiB&parallel=2&write-latency=1ms&bandwidth=200MiB/s";
const WIDE: &str = "model:raid5?drives=15&chunk=8KiB&drive=hdd&drive-size=4GiB";
const RAID6: &str = "model:raid6?drives=8&chunk=32KiB&drive=hdd&drive-size=4GiB";

/// Access patterns of many clients with one write in flight each.
#[derive(Clone, Copy, Debug)]
enum WriterKind {
    /// All clients share one sequential position: a program with a deep queue, which submits in
    /// batches.
    Together,
    /// The same, but each client pauses up to 2 ms before a write.
    Loose,
    /// Each client has its own sequential position.
    Apart,
    /// Random.
    Random,
    /// Random within a few stripes.
    Hot,
}

const KINDS: [WriterKind; 5] = [
    WriterKind::Together,
    WriterKind::Loose,
    WriterKind::Apart,
    WriterKind::Random,
    WriterKind::Hot,
];

#[derive(Clone, Copy, Debug)]
struct Load {
    kind: WriterKind,
    clients: u32,
    len: u64,
}

struct Writers {
    kind: WriterKind,
    len: u64,
    bytes: u64,
    at: Vec<u64>,
    left: u64,
    dice: Dice,
    thought: Vec<bool>,
}

impl Clients for Writers {
    fn next(&mut self, client: u32, _now_ns: u64) -> MachineStep {
        if self.left == 0 {
            return MachineStep::Leave;
        }
        let client = client as usize;
        if matches!(self.kind, WriterKind::Loose) && !self.thought[client] {
            self.thought[client] = true;
            return MachineStep::Think(self.dice.below(2_000_000));
        }
        self.thought[client] = false;
        self.left -= 1;
        let at = match self.kind {
            WriterKind::Together | WriterKind::Loose => &mut self.at[0],
            WriterKind::Apart => &mut self.at[client],
            WriterKind::Random | WriterKind::Hot => {
                let bytes = if matches!(self.kind, WriterKind::Hot) { 4 * MIB } else { self.bytes };
                let at = self.dice.below(bytes / self.len) * self.len;
                return MachineStep::Write(ByteRange::new(at, self.len));
            }
        };
        let range = ByteRange::new(*at % self.bytes, self.len);
        *at += self.len;
        MachineStep::Write(range)
    }
}

/// A machine whose cache writes through.
fn machine(disk: &str, gathers: bool) -> Machine {
    let mut machine = Machine::new(disk, 64 * MIB).unwrap();
    machine.configure(|shard| {
        let volume = shard.volume_mut(VOLUME);
        volume.set_mode(Mode::WriteThrough);
        volume.set_gather_below(if gathers { MIB } else { 0 });
        if disk == NARROW {
            volume.set_stripes(Stripes::new(256 * KIB, 0));
        }
    });
    machine
}

/// The throughput of writes through the cache in bytes per second, and the counters.
fn rate(disk: &str, load: Load, gathers: bool) -> (f64, VolumeCounters) {
    let Load { kind, clients, len } = load;
    let mut machine = machine(disk, gathers);
    let bytes = machine.disk_bytes() / MIB * MIB;
    let at = (0..u64::from(clients)).map(|client| client * 64 * MIB).collect();
    let (dice, thought) = (Dice::new(11), vec![false; clients as usize]);
    let mut writers = Writers { kind, len, bytes, at, left: WRITES, dice, thought };
    (0..clients).for_each(|client| machine.add_client(client, 0));
    machine.run(u64::MAX, &mut writers);
    let rate = (WRITES * len) as f64 * 1e9 / machine.now_ns() as f64;
    (rate, machine.cache().unwrap().counters())
}

/// The speedup of writes through the cache by gathering.
fn gain(disk: &str, load: Load) -> f64 {
    let (without, _) = rate(disk, load, false);
    let (with, counters) = rate(disk, load, true);
    println!(
        "{disk}: {load:?}: {:.2} -> {:.2} MB/s, {:.2}x; {} held back, {} gathered in {}",
        without / 1e6,
        with / 1e6,
        with / without,
        counters.writes_held,
        counters.gathered_writes,
        counters.gathered_ios
    );
    with / without
}

#[test]
fn gathering_speeds_up_disks_with_a_cost_per_io() {
    let load = Load { kind: WriterKind::Loose, clients: 32, len: 4 * KIB };
    assert!(gain(NARROW, load) > 3.0);
    assert!(gain(FIXED, load) > 1.1);
}

/// The trials alone slow writes down, by less than 5 %.
#[test]
fn gathering_stops_where_the_disk_coalesces() {
    let load = Load { kind: WriterKind::Loose, clients: 32, len: 4 * KIB };
    assert!(gain(HDD, load) > 0.95);
    assert!(gain(SSD, load) > 0.95);
    assert!(gain(HDD, Load { kind: WriterKind::Hot, ..load }) > 0.95);
    assert!((gain(HDD, Load { kind: WriterKind::Random, ..load }) - 1.0).abs() < 0.01);
}

#[test]
#[ignore = "prints a table"]
fn slow_table_of_gathering_gains() {
    for disk in [HDD, SSD, RAID6, FIXED, NARROW] {
        for kind in KINDS {
            for (clients, len) in [(4, 4 * KIB), (32, 4 * KIB), (32, 16 * KIB), (8, 64 * KIB)] {
                gain(disk, Load { kind, clients, len });
            }
        }
    }
}

/// The dirty lines of a stripe: runs of `dirty` lines with `hole` clean lines between them.
#[derive(Clone, Copy, Debug)]
struct Pattern {
    dirty: u64,
    hole: u64,
}

/// Ways to destage a stripe with holes.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Each run in an operation of its own.
    Apart,
    /// All runs in one operation.
    AtOnce,
    /// The holes are read, then the whole stripe is written.
    Filled,
}

/// I/Os in sequence: each list is submitted at once when the one before is complete.
type Steps = Vec<(IoKind, Vec<ByteRange>)>;

impl Pattern {
    /// The runs of dirty lines of a stripe, or of clean ones; runs closer than `bridge` are joined.
    fn runs(self, stripe: ByteRange, wanted: bool, bridge: u64) -> Vec<ByteRange> {
        let is_dirty = |line: u64| line % (self.dirty + self.hole) < self.dirty;
        let mut runs: Vec<ByteRange> = Vec::new();
        for line in (0..stripe.len / LINE_BYTES).filter(|&line| is_dirty(line) == wanted) {
            let at = stripe.offset + line * LINE_BYTES;
            match runs.last_mut() {
                Some(run) if at - run.end() <= bridge => run.len = at + LINE_BYTES - run.offset,
                _ => runs.push(ByteRange::new(at, LINE_BYTES)),
            }
        }
        runs
    }

    /// The I/Os that destage a stripe.
    fn steps(self, stripe: ByteRange, way: Way) -> Vec<Steps> {
        let write = IoKind::Write { fua: false };
        let dirty = self.runs(stripe, true, 0);
        match way {
            Way::Apart => dirty.into_iter().map(|run| vec![(write, vec![run])]).collect(),
            Way::AtOnce => vec![vec![(write, dirty)]],
            Way::Filled => {
                let holes = self.runs(stripe, false, 16 * KIB);
                vec![vec![(IoKind::Read, holes), (write, vec![stripe])]]
            }
        }
    }
}

/// Milliseconds per stripe to destage dirty lines to an array, with `at_once` operations in flight,
/// in ascending order.
fn stripe_ms(disk: &str, pattern: Pattern, at_once: usize, way: Way) -> f64 {
    let mut disk: Disk<usize> = Disk::named(disk).unwrap();
    let (width, count) = (disk.geometry().stripe_bytes, 400);
    let mut dice = Dice::new(3);
    let stripes = disk.size_bytes() / width;
    let mut stripes: Vec<u64> = (0..count).map(|_| dice.below(stripes) * width).collect();
    stripes.sort_unstable();
    stripes.dedup();
    let steps = |&at: &u64| pattern.steps(ByteRange::new(at, width), way);
    let mut waiting = stripes.iter().flat_map(steps);
    // The remaining steps of each operation in flight, and its outstanding I/Os.
    let mut places: Vec<(Steps, usize)> = (0..at_once).map(|_| (Vec::new(), 0)).collect();
    let mut now_ns = 0;
    loop {
        for (at, (rest, ios)) in places.iter_mut().enumerate().filter(|(_, (_, ios))| *ios == 0) {
            if rest.is_empty() {
                *rest = waiting.next().unwrap_or_default();
                rest.reverse();
            }
            if let Some((kind, ranges)) = rest.pop() {
                *ios = ranges.len();
                ranges.into_iter().for_each(|range| disk.start(now_ns, kind, range, at));
            }
        }
        let Some(next_ns) = disk.next_ns() else { break };
        now_ns = next_ns;
        while let Some(at) = disk.end(now_ns) {
            places[at].1 -= 1;
        }
    }
    now_ns as f64 / 1e6 / stripes.len() as f64
}

#[test]
fn destaging_the_runs_of_a_stripe_together_is_faster() {
    let pattern = Pattern { dirty: 3, hole: 1 };
    for (disk, operations) in [(HDD, 1), (HDD, 16), (SSD, 1), (SSD, 16), (RAID6, 16), (FIXED, 1)] {
        let apart = stripe_ms(disk, pattern, operations, Way::Apart);
        let at_once = stripe_ms(disk, pattern, operations, Way::AtOnce);
        assert!(at_once < 0.8 * apart, "{disk}: {apart} ms, {at_once} ms");
    }
}

#[test]
#[ignore = "prints a table"]
fn slow_table_of_hole_reading_gains() {
    for disk in [HDD, SSD, RAID6, FIXED, WIDE] {
        let lines = Disk::<usize>::named(disk).unwrap().geometry().stripe_bytes / LINE_BYTES;
        for (dirty, hole) in [
            (lines - 1, 1),
            (lines - lines / 4, lines / 4),
            (lines / 2, lines / 2),
            (7, 1),
            (3, 1),
            (1, 1),
            (1, 3),
        ] {
            for at_once in [1, 16] {
                let pattern = Pattern { dirty, hole };
                let ms = [Way::Apart, Way::AtOnce, Way::Filled]
                    .map(|way| stripe_ms(disk, pattern, at_once, way));
                println!(
                    "{disk}: {pattern:?}, {at_once} at once: {:.2} ms apart, {:.2} ms at once, \
                     {:.2} ms filled",
                    ms[0], ms[1], ms[2]
                );
            }
        }
    }
}
