//! Servers that take turns under the same load in different ways, so that other load on the machine
//! affects all of them.
//!
//! What can only be chosen at the start distinguishes servers, and the first is what the others are
//! compared with ([`Ways::compare`]). Of two servers with the same options one may be a tenth
//! faster, by where its memory lies. What can be switched on is compared with the turns of the same
//! server before and after it, without it ([`compare_switched`]).

use crate::cpu::{WORKERS, threads_ns};
use crate::figures::{Figures, Limit};
use crate::forebay::Forebay;
use crate::load::{Load, Op, Outcome};
use crate::table::{Centre, median};
use anyhow::{Result, ensure};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How the servers are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes of the volume. The pool has four times as many, so that nothing is evicted, and the
    /// dirty lines stay below where writeback begins.
    pub volume_bytes: u64,
    /// Seconds of a turn.
    pub seconds: f64,
    /// Requests in flight.
    pub depth: u32,
    /// See [`Load::busy`].
    pub busy: bool,
}

/// A running server with the volume `v` in memory, in write-back, and filled.
pub struct Loaded {
    server: Forebay,
    plan: Plan,
    _dir: TempDir,
}

impl Loaded {
    /// Starts a server of the program in `programs`, with options of the volume and of the server,
    /// and fills its volume.
    ///
    /// # Errors
    /// If it does not start, or fails a write.
    pub fn start(
        plan: Plan,
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

    fn load(&self, op: Op) -> Load {
        let mut load = Load::new(self.server.socket.clone(), "v".into());
        load.op = op;
        load.depth = self.plan.depth;
        load.seconds = self.plan.seconds;
        load.busy = self.plan.busy;
        load.server_pid = Some(self.server.pid);
        load
    }

    /// Writes the whole volume, so that all of its lines are dirty.
    fn fill(&self) -> Result<()> {
        self.load(Op::Write).prefill().run().map(drop)
    }

    /// Loads it for one turn.
    fn turn(&self, op: Op) -> Result<Turn> {
        let workers_ns = threads_ns(self.server.pid, WORKERS)?;
        let outcome = self.load(op).run()?;
        let workers_ns = threads_ns(self.server.pid, WORKERS)? - workers_ns;
        Ok(Turn::new(&outcome, workers_ns))
    }

    /// One turn in a way, or as it is. In both cases it is loaded for the same time before, because
    /// that alone changes what a request costs afterwards.
    fn switched_turn(&self, op: Op, way: Option<&Switch<'_>>) -> Result<Turn> {
        let begun = Instant::now();
        let off = way.map(|way| (way.on)(&self.server)).transpose()?;
        let took = begun.elapsed();
        ensure!(took < SWITCH_TIME, "{took:?} to switch a way on");
        let mut load = self.load(op);
        load.seconds = (SWITCH_TIME - took).as_secs_f64();
        load.run()?;
        // Writes to clean lines cost more.
        self.fill()?;
        let turn = self.turn(op)?;
        off.map_or(Ok(()), |off| off())?;
        Ok(turn)
    }
}

/// Servers that are compared with the first one.
pub struct Ways {
    servers: Vec<(&'static str, Loaded)>,
    plan: Plan,
}

impl Ways {
    /// Starts no server yet.
    pub const fn new(plan: Plan) -> Self {
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

    /// In each round, loads all servers in turn. Adds for each the medians over the rounds:
    /// requests per second, the processor time of the whole server per request, and both relative
    /// to the first server in the same round. The relative rate of a server is at least its
    /// `share_min`.
    ///
    /// # Errors
    /// If a request fails.
    pub fn compare(
        &self,
        rounds: usize,
        op: Op,
        share_min: impl Fn(&str) -> f64,
        figures: &mut Figures,
    ) -> Result<()> {
        let round = || self.servers.iter().map(|(_, server)| server.turn(op)).collect();
        let rounds: Vec<Vec<Turn>> = (0..rounds).map(|_| round()).collect::<Result<_>>()?;
        for (at, (way, _)) in self.servers.iter().enumerate() {
            let median_of = |figure: &dyn Fn(&Turn, &Turn) -> f64| {
                let values: Vec<f64> = rounds.iter().map(|of| figure(&of[at], &of[0])).collect();
                median(&values).unwrap_or(f64::NAN)
            };
            let first = self.servers[0].0;
            let mut add = |what: String, value, limit| {
                figures.add(format!("{op:?}, {way}, {what}"), value, limit);
            };
            add("IOPS".to_owned(), median_of(&|turn, _| turn.rate), Limit::Information);
            let share = median_of(&|turn, first| turn.rate / first.rate);
            add(format!("IOPS / {first}"), share, Limit::AtLeast(share_min(way)));
            add("CPU us each".to_owned(), median_of(&|turn, _| turn.cpu_us), Limit::Information);
            let cpu_share = median_of(&|turn, first| turn.cpu_us / first.cpu_us);
            add(format!("CPU / {first}"), cpu_share, Limit::Information);
        }
        Ok(())
    }
}

/// In each round, starts a server with `start`, and loads it in each of these ways, and before and
/// after each as it is. Adds for each way the centre over the rounds, with its interval of 95 %, of
/// the rate relative to the turns before and after it, and of the additional processor time of the
/// workers per request: the cost of the data path, without what other threads do.
///
/// What a way costs depends on where the memory of a server lies, so one server would not do.
///
/// # Errors
/// If a server does not start, a request fails, or something cannot be switched.
pub fn compare_switched(
    rounds: usize,
    start: impl Fn() -> Result<Loaded>,
    op: Op,
    ways: &[Switch<'_>],
    figures: &mut Figures,
) -> Result<()> {
    let mut shares = vec![(Vec::new(), Vec::new()); ways.len()];
    for round in 0..rounds {
        let server = start()?;
        // The first turn of a server is not like the others.
        server.switched_turn(op, None)?;
        let mut before = server.switched_turn(op, None)?;
        for at in 0..ways.len() {
            // No way is the first of every server.
            let at = (round + at) % ways.len();
            let with = server.switched_turn(op, Some(&ways[at]))?;
            let after = server.switched_turn(op, None)?;
            let without = |figure: fn(&Turn) -> f64| f64::midpoint(figure(&before), figure(&after));
            let (rates, workers) = &mut shares[at];
            rates.push(with.rate / without(|turn| turn.rate));
            workers.push(100.0 * (with.workers_us / without(|turn| turn.workers_us) - 1.0));
            before = after;
        }
    }
    for (way, (rates, workers)) in ways.iter().zip(&shares) {
        let mut add = |what: &str, value, limit| {
            figures.add(format!("{op:?}, {}, {what}", way.name), value, limit);
        };
        let Centre { value, low, high } = Centre::of(rates);
        add("rate", value, Limit::Information);
        add("rate, at least", low, Limit::Information);
        add("rate, at most", high, Limit::AtLeast(way.share_min));
        let Centre { value, low, high } = Centre::of(workers);
        add("more CPU of workers, %", value, Limit::Information);
        add("more CPU of workers, at least %", low, Limit::AtMost(way.workers_more_max));
        add("more CPU of workers, at most %", high, Limit::Information);
    }
    Ok(())
}

/// The time between a turn and the filling for the next. A way is switched on at its beginning; an
/// analysis with two phases of a second is in its last one at its end, and knows the load.
pub const SWITCH_TIME: Duration = Duration::from_millis(2_600);

/// A way that is switched on before a turn of a server.
pub struct Switch<'a> {
    /// Its name.
    pub name: &'static str,
    /// The minimum rate, relative to the server as it is. It is missed if the whole interval of the
    /// measured one is below.
    pub share_min: f64,
    /// How much more processor time of the workers a request may take, in percent. It is missed if
    /// the whole interval is above.
    pub workers_more_max: f64,
    /// Switches it on, and returns what switches it off after the turn.
    pub on: On<'a>,
}

/// Switches a way on for a server. It takes less than [`SWITCH_TIME`].
pub type On<'a> = Box<dyn Fn(&Forebay) -> Result<Off<'a>> + 'a>;

/// Switches off what a [`Switch`] has switched on.
pub type Off<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

/// What was measured in one turn.
#[derive(Clone, Copy)]
struct Turn {
    /// Requests per second.
    rate: f64,
    /// Processor time of the whole server per request, in microseconds.
    cpu_us: f64,
    /// Of that, the time of workers.
    workers_us: f64,
}

impl Turn {
    fn new(outcome: &Outcome, workers_ns: u64) -> Self {
        Self {
            rate: outcome.iops,
            cpu_us: outcome.server_cpu_us_per_request.unwrap_or(f64::NAN),
            workers_us: workers_ns as f64 / 1000.0 / outcome.requests as f64,
        }
    }
}
