//! Servers that take turns under the same load in different ways, so that other load on the machine
//! affects all of them.
//!
//! What can only be chosen at the start is compared between servers, each with the first
//! ([`Ways::compare`]). Of two servers with the same options one may be a tenth faster, by where
//! its memory lies. What can be switched on is switched on for one of two servers, and then for the
//! other ([`compare_switched`]).

use crate::content::LoadRandom;
use crate::cpu::{WORKERS, threads_ns};
use crate::figures::{FigureLimit, FigureList};
use crate::forebay::Forebay;
use crate::load::{LoadOp, LoadParams, LoadResult};
use crate::table::{Centre, median};
use anyhow::{Result, ensure};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How the servers are loaded.
#[derive(Clone, Copy, Debug)]
pub struct LoadPlan {
    /// Bytes of the volume. The pool has four times as many, so that nothing is evicted, and the
    /// dirty lines stay below where writeback begins.
    pub volume_bytes: u64,
    /// Requests in flight.
    pub depth: u32,
    /// See [`LoadParams::busy`].
    pub busy: bool,
}

/// A running server with the volume `v` in memory, in write-back, and filled.
pub struct Loaded {
    server: Forebay,
    plan: LoadPlan,
    _dir: TempDir,
}

impl Loaded {
    /// Starts a server of the program in `programs`, with options of the volume and of the server,
    /// and fills its volume.
    ///
    /// # Errors
    /// If it does not start, or fails a write.
    pub fn start(
        plan: LoadPlan,
        programs: &Path,
        volume_options: &str,
        options: &[&str],
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut volume = format!(
            "v=memory:{},mode=write-back,protection=none,accept-loss=yes",
            plan.volume_bytes
        );
        volume.push_str(volume_options);
        let mut more = vec!["--workers", "1"];
        more.extend(options);
        let server = Forebay::start(programs, dir.path(), &[volume], 4 * plan.volume_bytes, &more)?;
        let loaded = Self { server, plan, _dir: dir };
        loaded.fill()?;
        Ok(loaded)
    }

    /// Its process.
    pub const fn pid(&self) -> u32 {
        self.server.pid
    }

    fn load(&self, op: LoadOp) -> LoadParams {
        let mut load = LoadParams::new(self.server.socket.clone(), "v".into());
        load.op = op;
        load.depth = self.plan.depth;
        load.busy = self.plan.busy;
        load.server_pid = Some(self.server.pid);
        load
    }

    /// Writes the whole volume, so that all of its lines are dirty.
    fn fill(&self) -> Result<()> {
        self.load(LoadOp::Write).prefill().run().map(drop)
    }

    /// Loads it for one turn.
    fn turn(&self, op: LoadOp, seconds: f64) -> Result<LoadResult> {
        let mut load = self.load(op);
        load.seconds = seconds;
        load.run()
    }
}

/// Servers that are compared with the first one.
pub struct Ways {
    servers: Vec<(&'static str, Loaded)>,
    plan: LoadPlan,
}

impl Ways {
    /// Starts no server yet.
    pub const fn new(plan: LoadPlan) -> Self {
        Self { servers: Vec::new(), plan }
    }

    /// Starts a server: see [`Loaded::start`].
    ///
    /// # Errors
    /// If it does not start, or fails a write.
    pub fn start(
        &mut self,
        programs: &Path,
        name: &'static str,
        volume_options: &str,
        options: &[&str],
    ) -> Result<()> {
        let server = Loaded::start(self.plan, programs, volume_options, options)?;
        self.servers.push((name, server));
        Ok(())
    }

    /// In each round, loads all servers in turn, each for some seconds. Adds for each the medians
    /// over the rounds: requests per second, the processor time of the whole server per request,
    /// and both relative to the first server in the same round. The relative rate of a server is
    /// at least its `share_min`.
    ///
    /// # Errors
    /// If a request fails.
    pub fn compare(
        &self,
        rounds: usize,
        seconds: f64,
        op: LoadOp,
        share_min: impl Fn(&str) -> f64,
        figures: &mut FigureList,
    ) -> Result<()> {
        let round = || self.servers.iter().map(|(_, server)| server.turn(op, seconds)).collect();
        let rounds: Vec<Vec<LoadResult>> = (0..rounds).map(|_| round()).collect::<Result<_>>()?;
        for (at, (way, _)) in self.servers.iter().enumerate() {
            let median_of = |figure: &dyn Fn(&LoadResult, &LoadResult) -> f64| {
                let values: Vec<f64> = rounds.iter().map(|of| figure(&of[at], &of[0])).collect();
                median(&values).unwrap_or(f64::NAN)
            };
            let first = self.servers[0].0;
            let mut add = |what: String, value, limit| {
                figures.add(format!("{op:?}, {way}, {what}"), value, limit);
            };
            add("IOPS".to_owned(), median_of(&|turn, _| turn.iops), FigureLimit::Information);
            let share = median_of(&|turn, first| turn.iops / first.iops);
            add(format!("IOPS / {first}"), share, FigureLimit::AtLeast(share_min(way)));
            let cpu_us = |turn: &LoadResult| turn.server_cpu_us_per_request.unwrap_or(f64::NAN);
            let each = median_of(&|turn, _| cpu_us(turn));
            add("CPU us each".to_owned(), each, FigureLimit::Information);
            let cpu_share = median_of(&|turn, first| cpu_us(turn) / cpu_us(first));
            add(format!("CPU / {first}"), cpu_share, FigureLimit::Information);
        }
        Ok(())
    }
}

/// In each round, starts two servers with `start`, and loads them in turn, for 20 ms each.
/// Meanwhile each of these ways is switched on for the one, and then for the other. Adds for each
/// way the centre over the rounds, with its interval of 95 %, of the rate relative to the other
/// server, and of the additional processor time of the workers per request: the cost of the data
/// path, without what other threads do. What these do while the other server is loaded slows that
/// one too, so the relative rate shows less than the full cost.
///
/// On a machine shared with other virtual machines, what a request costs varies by some 6 %, as
/// much between turns of two seconds as between turns of 20 ms. So longer turns measure no better,
/// but many short ones do. That one server is faster than the other, by where its memory lies,
/// cancels out: each has the way on once.
///
/// # Errors
/// If a server does not start, a request fails, or something cannot be switched.
pub fn compare_switched(
    rounds: usize,
    start: impl Fn() -> Result<Loaded>,
    op: LoadOp,
    ways: &[Switch<'_>],
    figures: &mut FigureList,
) -> Result<()> {
    let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); ways.len()];
    for round in 0..rounds {
        let random = LoadRandom::new(round as u64);
        let mut pair = ServerPair { servers: [start()?, start()?], op, first: round % 2, random };
        pair.load(WARM_UP)?;
        for at in 0..ways.len() {
            // No way is the first of every pair.
            let at = (round + at) % ways.len();
            let cost = pair.cost(&ways[at])?;
            let Cost { rate, workers_more } = cost;
            let name = ways[at].name;
            eprintln!("{op:?}, round {round}, {name}: rate {rate:.3}, {workers_more:+.1} % CPU");
            costs[at].push(cost);
        }
    }
    for (way, costs) in ways.iter().zip(&costs) {
        let mut add = |what: &str, value, limit| {
            figures.add(format!("{op:?}, {}, {what}", way.name), value, limit);
        };
        let centre = |of: fn(&Cost) -> f64| Centre::of(&costs.iter().map(of).collect::<Vec<_>>());
        let Centre { value, low, high } = centre(|cost| cost.rate);
        add("rate", value, FigureLimit::Information);
        add("rate, at least", low, FigureLimit::Information);
        add("rate, at most", high, FigureLimit::AtLeast(way.share_min));
        let Centre { value, low, high } = centre(|cost| cost.workers_more);
        add("more CPU of workers, %", value, FigureLimit::Information);
        add("more CPU of workers, at least %", low, FigureLimit::AtMost(way.workers_more_max));
        add("more CPU of workers, at most %", high, FigureLimit::Information);
    }
    Ok(())
}

/// For how long one of two servers is loaded before it is the turn of the other.
const SLICE: Duration = Duration::from_millis(20);
/// After it is filled, a server first moves its pool into huge pages.
const WARM_UP: Duration = Duration::from_secs(5);

/// A way that is switched on while a server is loaded.
pub struct Switch<'a> {
    pub name: &'static str,
    /// How long it takes to have its full effect.
    pub settle: Duration,
    /// For how long its cost is measured on each of two servers, above zero.
    pub turn: Duration,
    /// The minimum rate, relative to the server as it is. It is missed if the whole interval of the
    /// measured one is below.
    pub share_min: f64,
    /// How much more processor time of the workers a request may take, in percent. It is missed if
    /// the whole interval is above.
    pub workers_more_max: f64,
    /// Switches it on, and returns what switches it off after the turn.
    pub on: On<'a>,
}

/// Switches a way on for a server.
pub type On<'a> = Box<dyn Fn(&Forebay) -> Result<Off<'a>> + 'a>;

/// Switches off what a [`Switch`] has switched on.
pub type Off<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

/// What a way costs.
#[derive(Clone, Copy)]
struct Cost {
    /// The rate relative to that of a server as it is.
    rate: f64,
    /// How much more processor time of the workers a request takes, in percent.
    workers_more: f64,
}

impl Cost {
    /// From the ratios while the way was on for the server in the numerator, and for the one in the
    /// denominator.
    fn of(numerator: Ratios, denominator: Ratios) -> Self {
        let cost = |of: fn(&Ratios) -> f64| f64::midpoint(of(&numerator), -of(&denominator)).exp();
        Self { rate: cost(|of| of.rate), workers_more: 100.0 * (cost(|of| of.workers) - 1.0) }
    }
}

/// Two servers that are loaded in turn.
struct ServerPair {
    servers: [Loaded; 2],
    op: LoadOp,
    /// Which of them has each way on first.
    first: usize,
    /// Chooses the order and the blocks of the slices.
    random: LoadRandom,
}

impl ServerPair {
    /// What a way costs, on the average of both servers.
    fn cost(&mut self, way: &Switch<'_>) -> Result<Cost> {
        let mut ratios = [Ratios::default(); 2];
        for server in [self.first, 1 - self.first] {
            ratios[server] = self.ratios_with(way, server)?;
        }
        let [numerator, denominator] = ratios;
        Ok(Cost::of(numerator, denominator))
    }

    /// Loads both while a way is on for one of them.
    fn ratios_with(&mut self, way: &Switch<'_>, server: usize) -> Result<Ratios> {
        let off = (way.on)(&self.servers[server].server)?;
        self.load(way.settle)?;
        let ratios = self.load(way.turn)?;
        off()?;
        Ok(ratios)
    }

    /// Loads both, slice by slice. What the workers of one do in slices of the other counts too.
    fn load(&mut self, duration: Duration) -> Result<Ratios> {
        let begun = Instant::now();
        let mut sums = [SliceSums::default(); 2];
        let before = self.workers_ns()?;
        while begun.elapsed() < duration {
            // The order is random, so that what takes a processor away at regular times affects
            // both alike.
            let first = self.random.below(2) as usize;
            for at in [first, 1 - first] {
                let outcome = self.slice(at)?;
                sums[at].requests += outcome.requests as f64;
                sums[at].seconds += outcome.seconds;
            }
        }
        let after = self.workers_ns()?;
        let workers = [0, 1].map(|at| (after[at] - before[at]) as f64 / sums[at].requests);
        let rates = sums.map(|of| of.requests / of.seconds);
        let [rate, workers] = [rates, workers].map(|[one, other]| (one / other).ln());
        ensure!(rate.is_finite() && workers.is_finite(), "nothing was done in {duration:?}");
        Ok(Ratios { rate, workers })
    }

    /// Loads one for one slice.
    fn slice(&mut self, at: usize) -> Result<LoadResult> {
        let mut load = self.servers[at].load(self.op);
        // Otherwise all slices would read and write the same blocks.
        load.seed = self.random.next_u64();
        load.seconds = SLICE.as_secs_f64();
        load.server_pid = None;
        load.run()
    }

    /// Processor time that the workers of each have used so far, in nanoseconds.
    fn workers_ns(&self) -> Result<[u64; 2]> {
        let [one, other] = &self.servers;
        Ok([threads_ns(one.pid(), WORKERS)?, threads_ns(other.pid(), WORKERS)?])
    }
}

/// The logarithms of what one server has, relative to the other.
#[derive(Clone, Copy, Default)]
struct Ratios {
    /// Requests per second.
    rate: f64,
    /// Processor time of the workers per request.
    workers: f64,
}

/// The sums over the slices of one server.
#[derive(Clone, Copy, Default)]
struct SliceSums {
    requests: f64,
    seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_one_server_is_slower_than_the_other_cancels_out() {
        // The first needs a tenth more time than the second, and the way a twentieth.
        let [slower, way] = [1.1_f64, 1.05];
        let ratios = |workers: f64| Ratios { rate: -workers.ln(), workers: workers.ln() };
        let cost = Cost::of(ratios(slower * way), ratios(slower / way));
        assert!((cost.workers_more - 5.0).abs() < 1e-9, "{}", cost.workers_more);
        assert!((cost.rate - 1.0 / way).abs() < 1e-9, "{}", cost.rate);
    }
}
