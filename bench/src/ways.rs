//! Servers that take turns under the same load in different ways, so that other load on the machine
//! affects all of them. The first way is what the others are compared with.
//!
//! What can only be chosen at the start distinguishes servers ([`Ways::compare`]). Of two servers
//! with the same options one may be a tenth faster, by where its memory lies: to see less than
//! that, several are started under one name, and their turns are added up. What can be switched on
//! and off is compared on the same servers ([`Ways::compare_switched`]).

use crate::cpu::threads_ns;
use crate::figures::{Figures, Limit};
use crate::forebay::Forebay;
use crate::load::{Load, Op, Outcome};
use crate::table::median;
use anyhow::Result;
use std::path::Path;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// Bytes of the volume; the pool is large enough to avoid evictions and the dirty limit.
const VOLUME_BYTES: u64 = 64 * MIB;

/// How the servers are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Rounds, in each of which every server has a turn in each of its ways.
    pub rounds: usize,
    /// Seconds of a turn.
    pub seconds: f64,
    /// Requests in flight.
    pub depth: u32,
}

/// Running servers, each with the volume `v` in memory, in write-back, and filled.
pub struct Ways {
    servers: Vec<(&'static str, Forebay, TempDir)>,
    plan: Plan,
}

impl Ways {
    /// Starts no server yet.
    pub const fn new(plan: Plan) -> Self {
        Self { servers: Vec::new(), plan }
    }

    /// Starts a server of the program in `programs`, with options of the volume and of the server,
    /// and fills its volume.
    ///
    /// # Errors
    /// If it does not start, or fails a write.
    pub fn start(
        &mut self,
        programs: &Path,
        name: &'static str,
        volume_options: &str,
        options: &[&str],
    ) -> Result<&Forebay> {
        let dir = tempfile::tempdir()?;
        let mut volume =
            format!("v=memory:{VOLUME_BYTES},mode=write-back,protection=none,accept-loss=yes");
        volume.push_str(volume_options);
        let mut more = vec!["--workers", "1"];
        more.extend(options);
        let server = Forebay::start(programs, dir.path(), &[volume], 512 * MIB, &more)?;
        self.load(&server, Op::Write).prefill().run()?;
        self.servers.push((name, server, dir));
        Ok(&self.servers[self.servers.len() - 1].1)
    }

    fn load(&self, server: &Forebay, op: Op) -> Load {
        let mut load = Load::new(server.socket.clone(), "v".into());
        load.op = op;
        load.depth = self.plan.depth;
        load.seconds = self.plan.seconds;
        load.server_pid = Some(server.pid);
        load
    }

    /// Loads all servers in turn. Adds for each name the medians over the rounds: requests per
    /// second, the processor time of the whole server per request, and both relative to the first
    /// name in the same round; and so for the time of its workers, which is the cost of the data
    /// path without what other threads do. The relative rate of a name is at least its `share_min`.
    ///
    /// # Errors
    /// If a request fails.
    pub fn compare(
        &self,
        op: Op,
        share_min: impl Fn(&str) -> f64,
        figures: &mut Figures,
    ) -> Result<()> {
        let mut names: Vec<&str> = Vec::new();
        for (name, ..) in &self.servers {
            if !names.contains(name) {
                names.push(name);
            }
        }
        let mut rounds = Vec::new();
        for _ in 0..self.plan.rounds {
            let mut sums = vec![Sum::default(); names.len()];
            for (name, server, _) in &self.servers {
                let at = names.iter().position(|other| other == name).unwrap_or_default();
                self.turn(server, op, &mut sums[at])?;
            }
            rounds.push(sums);
        }
        let limits = |at: usize| (share_min(names[at]), Limit::Information);
        report(op, &names, &rounds, limits, figures);
        Ok(())
    }

    /// As [`Ways::compare`], but each server has a turn in each of these ways, in a round in one
    /// order and in the next one in the other. The time of the workers has a limit, too.
    ///
    /// # Errors
    /// If a request fails, or something cannot be switched.
    pub fn compare_switched(
        &self,
        op: Op,
        ways: &[Switch<'_>],
        figures: &mut Figures,
    ) -> Result<()> {
        let mut rounds = Vec::new();
        for round in 0..self.plan.rounds {
            let mut sums = vec![Sum::default(); ways.len()];
            for (_, server, _) in &self.servers {
                for turn in 0..ways.len() {
                    // Each way is the first of a server equally often: its memory is not in the
                    // processor's caches then.
                    let at = (round + turn) % ways.len();
                    let off = (ways[at].on)(server)?;
                    // While a way was switched on, lines have been written back, and writes to
                    // clean lines cost more. So all are dirty when a turn begins.
                    self.load(server, Op::Write).prefill().run()?;
                    self.turn(server, op, &mut sums[at])?;
                    off()?;
                }
            }
            rounds.push(sums);
        }
        let names: Vec<&str> = ways.iter().map(|way| way.name).collect();
        let limits = |at: usize| {
            let Switch { share_min, workers_more_max, .. } = ways[at];
            (share_min, Limit::AtMost(workers_more_max))
        };
        report(op, &names, &rounds, limits, figures);
        Ok(())
    }

    /// Loads a server for one turn, and adds it.
    fn turn(&self, server: &Forebay, op: Op, sum: &mut Sum) -> Result<()> {
        let workers_ns = threads_ns(server.pid, "worker-")?;
        let outcome = self.load(server, op).run()?;
        sum.add(&outcome, threads_ns(server.pid, "worker-")? - workers_ns);
        Ok(())
    }
}

/// A way that is switched on before a turn of a server.
pub struct Switch<'a> {
    /// Its name.
    pub name: &'static str,
    /// The minimum rate, relative to the first way.
    pub share_min: f64,
    /// How much more processor time of the workers than in the first way a request may take, in
    /// percent.
    pub workers_more_max: f64,
    /// Switches it on, and returns what switches it off after the turn.
    pub on: On<'a>,
}

/// Switches a way on for a server.
pub type On<'a> = Box<dyn Fn(&Forebay) -> Result<Off<'a>> + 'a>;

/// Switches off what a [`Switch`] has switched on.
pub type Off<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

/// Adds the figures of all ways. `limits` gives for each the minimum relative rate and the limit of
/// the additional time of the workers.
fn report(
    op: Op,
    names: &[&str],
    rounds: &[Vec<Sum>],
    limits: impl Fn(usize) -> (f64, Limit),
    figures: &mut Figures,
) {
    let first = names[0];
    let rate = |sum: &Sum| sum.requests / sum.turns;
    let cpu = |sum: &Sum| sum.cpu_us / sum.requests;
    let workers = |sum: &Sum| sum.workers_us / sum.requests;
    for (at, way) in names.iter().enumerate() {
        let median_of = |figure: &dyn Fn(&Sum, &Sum) -> f64| {
            let values: Vec<f64> = rounds.iter().map(|sums| figure(&sums[at], &sums[0])).collect();
            median(&values).unwrap_or(f64::NAN)
        };
        let name = |what: &str| format!("{op:?}, {way}, {what}");
        let share = median_of(&|sum, first| rate(sum) / rate(first));
        let workers_share = median_of(&|sum, first| workers(sum) / workers(first));
        let cpu_share = median_of(&|sum, first| cpu(sum) / cpu(first));
        let (iops, cpu_us) = (median_of(&|sum, _| rate(sum)), median_of(&|sum, _| cpu(sum)));
        figures.add(name("IOPS"), iops, Limit::Information);
        let (share_min, workers_limit) = limits(at);
        figures.add(name(&format!("IOPS / {first}")), share, Limit::AtLeast(share_min));
        figures.add(name("CPU us each"), cpu_us, Limit::Information);
        figures.add(name(&format!("CPU / {first}")), cpu_share, Limit::Information);
        let workers = name(&format!("CPU of workers, % above {first}"));
        figures.add(workers, (workers_share - 1.0) * 100.0, workers_limit);
    }
}

/// The turns of the servers of one name in a round.
#[derive(Clone, Copy, Default)]
struct Sum {
    turns: f64,
    /// The sum of the rates, in requests per second.
    requests: f64,
    /// The processor time of so many requests, in microseconds.
    cpu_us: f64,
    /// Of that, the time of workers.
    workers_us: f64,
}

impl Sum {
    fn add(&mut self, outcome: &Outcome, workers_ns: u64) {
        self.turns += 1.0;
        self.requests += outcome.iops;
        // The requests of one second.
        let workers_us = workers_ns as f64 / 1000.0;
        self.workers_us += workers_us * outcome.iops / outcome.requests as f64;
        self.cpu_us += outcome.iops * outcome.server_cpu_us_per_request.unwrap_or(f64::NAN);
    }
}
