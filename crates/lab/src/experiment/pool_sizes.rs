//! `pool-sizes`: the share of accesses that miss with half the pool, the present one and twice the
//! pool, as the cache predicts it, and as a pool of that size then measures it.

use super::machine::{Clients, Machine, MachineStep, size_prediction_of};
use super::report::{Report, Table};
use crate::harness::dice::Dice;
use forebay_backend::OpenError;
use forebay_engine::VolumeCounters;
use forebay_policy::PoolSize;
use forebay_types::{ByteRange, LINE_BYTES, Size};

/// The sizes that are compared.
pub(super) const SIZES: [PoolSize; 3] = [PoolSize::Half, PoolSize::Now, PoolSize::Twice];

#[derive(Clone, Copy, Debug)]
pub(super) struct PoolSizesPlan {
    pub pool_bytes: u64,
    /// Lines that are accessed per line of the pool. The last third of the accesses counts.
    pub accesses_per_line: u64,
}

impl PoolSizesPlan {
    pub(super) const FULL: Self = Self { pool_bytes: 64 << 20, accesses_per_line: 90 };
}

/// What clients do. Sizes are in lines of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Zipf's law with this exponent in hundredths, over four pools. So many percent are writes.
    Zipf(u64, u64),
    /// 80 % of the accesses go to a tenth of four pools.
    HotSet,
    /// The lines of one and a half pools again and again, in one order without a pattern.
    ShuffledLoop,
    /// The same, for so many percent of a pool, in ascending order.
    Loop(u64),
    /// Anywhere in three pools.
    Uniform,
    /// Every other access is to a hot set of three quarters of a pool, the others scan ten pools.
    ScanAndHotSet,
    /// Streams of 16 KiB through ten pools, from a new place after each MiB.
    Streams,
}

/// Names in tables.
pub(super) const LOADS: [(&str, Load); 10] = [
    ("zipf 0.8", Load::Zipf(80, 0)),
    ("zipf 1.1", Load::Zipf(110, 0)),
    ("hot set 80:10", Load::HotSet),
    ("shuffled loop", Load::ShuffledLoop),
    ("loop of 1.2 pools", Load::Loop(120)),
    ("loop of 0.8 pools", Load::Loop(80)),
    ("uniform", Load::Uniform),
    ("scan and hot set", Load::ScanAndHotSet),
    ("streams", Load::Streams),
    ("zipf 0.9, 30 % writes", Load::Zipf(90, 30)),
];

/// A load at one size: the miss ratios with half, all and twice the pool.
#[derive(Clone, Debug)]
pub(super) struct SizesRow {
    pub load: &'static str,
    pub predicted: [f64; 3],
    pub measured: [f64; 3],
}

impl SizesRow {
    /// The largest difference.
    pub(super) fn error_max(&self) -> f64 {
        let errors = self.predicted.iter().zip(self.measured).map(|(one, other)| one - other);
        errors.map(f64::abs).fold(0.0, f64::max)
    }
}

/// Runs the experiment.
pub(super) fn run(plan: &PoolSizesPlan, seed: u64) -> Result<Report, OpenError> {
    let rows: Result<Vec<SizesRow>, OpenError> =
        LOADS.iter().map(|&(name, load)| row(plan, name, load, seed)).collect();
    let rows = rows?;
    let table = Table::of(
        "misses per line read or written with half the pool, the present one and twice the pool",
        &rows,
        &[
            ("load", &|row: &SizesRow| row.load.to_owned()),
            ("predicted", &|row| ratios(row.predicted)),
            ("measured", &|row| ratios(row.measured)),
            ("largest difference", &|row| format!("{:.3}", row.error_max())),
        ],
    );
    Ok(Report {
        title: "What less or more memory would bring: predicted and measured".to_owned(),
        model: vec![format!(
            "A pool of {} predicts what pools of half and twice the size miss. These then serve \
             the same requests from the beginning. Four clients on an SSD; the last third of the \
             requests counts.",
            Size(plan.pool_bytes)
        )],
        tables: vec![table],
        plots: Vec::new(),
        remarks: Vec::new(),
    })
}

fn ratios(of: [f64; 3]) -> String {
    of.map(|ratio| format!("{ratio:.3}")).join(" / ")
}

/// The prediction of one pool, and the figures of the others.
pub(super) fn row(
    plan: &PoolSizesPlan,
    name: &'static str,
    load: Load,
    seed: u64,
) -> Result<SizesRow, OpenError> {
    let (mut predicted, mut measured) = ([0.0; 3], [0.0; 3]);
    for (at, size) in SIZES.into_iter().enumerate() {
        let disk = "model:ssd?size=4GiB&parallel=16";
        let mut machine = Machine::new(disk, size.of(plan.pool_bytes))?;
        let mut clients = LoadClients::new(load, plan, seed);
        (0..CLIENTS).for_each(|client| machine.add_client(client, 0));
        clients.limit = clients.limit * 2 / 3;
        machine.run(u64::MAX, &mut clients);
        let before = counters(&machine);
        clients.limit = clients.limit * 3 / 2;
        (0..CLIENTS).for_each(|client| machine.add_client(client, 0));
        machine.run(u64::MAX, &mut clients);
        measured[at] = miss_ratio(&before, &counters(&machine));
        if size == PoolSize::Now {
            let prediction = size_prediction_of(&machine);
            predicted = SIZES.map(|size| prediction.miss_ratio(size).unwrap_or(1.0));
        }
    }
    Ok(SizesRow { load: name, predicted, measured })
}

const CLIENTS: u32 = 4;

fn counters(machine: &Machine) -> VolumeCounters {
    machine.cache().map(|cache| cache.counters()).unwrap_or_default()
}

fn miss_ratio(before: &VolumeCounters, after: &VolumeCounters) -> f64 {
    let hits = after.read_hit_lines + after.write_hit_lines;
    let hits = (hits - before.read_hit_lines - before.write_hit_lines) as f64;
    let misses = after.read_miss_lines + after.write_miss_lines;
    let misses = (misses - before.read_miss_lines - before.write_miss_lines) as f64;
    misses / (misses + hits)
}

struct LoadClients {
    load: Load,
    dice: Dice,
    /// Lines of the pool.
    pool: u64,
    /// The lines of a shuffled loop.
    order: Vec<u64>,
    /// The next place in a loop or scan, and in the stream of each client.
    next: u64,
    streams: [u64; CLIENTS as usize],
    done: u64,
    /// Accesses after which clients leave.
    limit: u64,
}

impl LoadClients {
    fn new(load: Load, plan: &PoolSizesPlan, seed: u64) -> Self {
        let (mut dice, pool) = (Dice::new(seed), plan.pool_bytes / LINE_BYTES);
        let mut order: Vec<u64> = (0..pool * 3 / 2).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, dice.below(at as u64 + 1) as usize);
        }
        let limit = pool * plan.accesses_per_line;
        Self { load, dice, pool, order, next: 0, streams: [0; 4], done: 0, limit }
    }

    /// A line of four pools, by Zipf's law; neighbours in rank are not neighbours on the disk.
    fn zipf(&mut self, hundredths: u64) -> u64 {
        let (lines, exponent) = (self.pool * 4, 1.0 - hundredths as f64 / 100.0);
        let share = self.dice.below(1 << 32) as f64 / (1u64 << 32) as f64;
        let rank = (share * ((lines as f64).powf(exponent) - 1.0) + 1.0).powf(exponent.recip());
        // An odd factor: each rank has its line.
        (rank as u64 - 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % lines.next_power_of_two() % lines
    }

    fn next_of(&mut self, lines: u64) -> u64 {
        self.next = (self.next + 1) % lines;
        self.next
    }
}

impl Clients for LoadClients {
    fn next(&mut self, client: u32, _now_ns: u64) -> MachineStep {
        if self.done >= self.limit {
            return MachineStep::Leave;
        }
        let (pool, mut len) = (self.pool, 1);
        let mut is_write = false;
        let line = match self.load {
            Load::Zipf(exponent, writes) => {
                is_write = self.dice.below(100) < writes;
                self.zipf(exponent)
            }
            Load::HotSet => {
                let (hot, all) = (pool * 4 / 10, pool * 4);
                let is_hot = self.dice.below(100) < 80;
                // Lines of the hot set are everywhere.
                if is_hot { self.dice.below(hot) * 10 } else { self.dice.below(all) }
            }
            Load::ShuffledLoop => {
                let at = self.next_of(self.order.len() as u64);
                self.order[at as usize]
            }
            Load::Loop(percent) => self.next_of(pool * percent / 100),
            Load::Uniform => self.dice.below(pool * 3),
            Load::ScanAndHotSet => match self.dice.below(2) {
                0 => self.dice.below(pool * 3 / 4) * 2,
                _ => pool * 4 + self.next_of(pool * 10),
            },
            Load::Streams => {
                len = 4;
                let at = &mut self.streams[client as usize];
                if at.is_multiple_of(256) {
                    *at = self.dice.below(pool * 10 / 256) * 256;
                }
                *at += len;
                *at - len
            }
        };
        self.done += len;
        let range = ByteRange::new(line * LINE_BYTES, len * LINE_BYTES);
        if is_write { MachineStep::Write(range) } else { MachineStep::Read(range) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_are_within_five_points_of_what_other_sizes_measure() {
        let plan = PoolSizesPlan { pool_bytes: 32 << 20, accesses_per_line: 36 };
        for (name, load) in LOADS {
            let row = row(&plan, name, load, 1).unwrap();
            println!("{row:?}");
            // Dirty data that the disk is slow to take displaces more in half the pool, and there
            // the windows of streams of 1 MiB are smaller.
            let is_hard = name.contains("writes") || load == Load::Streams;
            let error_max = if is_hard { 0.1 } else { 0.05 };
            assert!(row.error_max() < error_max, "{row:?}");
        }
    }
}
