//! Servers with different options that take turns under the same load, so that other load on the
//! machine affects all of them. The first one is what the others are compared with. Of two servers
//! with the same options one may be a tenth faster, by where its memory lies: to see less than
//! that, several are started under one name, and their turns are added up.

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
    /// Rounds, in each of which every server has its turn.
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
                let workers_ns = threads_ns(server.pid, "worker-")?;
                let outcome = self.load(server, op).run()?;
                let workers_ns = threads_ns(server.pid, "worker-")? - workers_ns;
                sums[at].add(&outcome, workers_ns);
            }
            rounds.push(sums);
        }
        for (at, way) in names.iter().enumerate() {
            let median_of = |figure: &dyn Fn(&Sum, &Sum) -> f64| {
                let values: Vec<f64> =
                    rounds.iter().map(|sums| figure(&sums[at], &sums[0])).collect();
                median(&values).unwrap_or(f64::NAN)
            };
            let first = names[0];
            let name = |what: &str| format!("{op:?}, {way}, {what}");
            let rate = |sum: &Sum| sum.requests / sum.turns;
            let cpu = |sum: &Sum| sum.cpu_us / sum.requests;
            let share = median_of(&|sum, first| rate(sum) / rate(first));
            let workers = |sum: &Sum| sum.workers_us / sum.requests;
            let workers_share = median_of(&|sum, first| workers(sum) / workers(first));
            let cpu_share = median_of(&|sum, first| cpu(sum) / cpu(first));
            let (iops, cpu_us) = (median_of(&|sum, _| rate(sum)), median_of(&|sum, _| cpu(sum)));
            figures.add(name("IOPS"), iops, Limit::Information);
            figures.add(name(&format!("IOPS / {first}")), share, Limit::AtLeast(share_min(way)));
            figures.add(name("CPU us each"), cpu_us, Limit::Information);
            figures.add(name(&format!("CPU / {first}")), cpu_share, Limit::Information);
            let workers = name(&format!("CPU of workers / {first}"));
            figures.add(workers, workers_share, Limit::Information);
        }
        Ok(())
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
