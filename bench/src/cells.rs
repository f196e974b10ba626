//! One cell of the comparison: a load against several servers, in interleaved rounds.
//!
//! The rounds are interleaved (A B C A B C ...), so that a slow minute of the machine affects all
//! servers. Ratios are taken within a round, and the median over the rounds is shown: it varies far
//! less than the ratio of two medians.

use crate::figures::FigureLimit;
use crate::fio;
use crate::load::{LoadOp, LoadParams, LoadResult};
use crate::servers::{BenchServer, EXPORT, ServerKind};
use crate::table::{median, number, size};
use anyhow::Result;
use serde::Serialize;

/// Limit of Forebay's CPU time per read, as a multiple of the bare server's, at depth 16 and 64.
pub const CPU_RATIO_MAX: f64 = 1.5;
/// The same for writes. The bare server copies once; Forebay copies into the store and into the
/// pool, keeps both consistent, and computes checksums.
pub const WRITE_CPU_RATIO_MAX: f64 = 6.0;
/// Limit of Forebay's median latency, as a multiple of the bare server's, at depth 1.
pub const LATENCY_RATIO_MAX: f64 = 1.3;
/// Minimum share of the best peer's rate under fio: 1, minus the variation between two runs.
pub const FIO_SHARE_MIN: f64 = 0.98;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientProgram {
    /// The batching client of this package.
    Batch,
    /// fio's NBD engine.
    Fio,
}

/// A load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cell {
    /// The client program.
    pub client: ClientProgram,
    /// Direction.
    pub op: LoadOp,
    /// Bytes of one request.
    pub block_bytes: u32,
    /// Requests in flight per connection.
    pub depth: u32,
    pub connections: u32,
}

/// The result of one server in one round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CellSample {
    /// Requests per second.
    pub iops: f64,
    /// Median latency, in microseconds.
    pub latency_us_p50: f64,
    /// 99th percentile, in microseconds.
    pub latency_us_p99: f64,
    /// CPU time of the server per request, in microseconds.
    pub cpu_us: Option<f64>,
}

impl From<LoadResult> for CellSample {
    fn from(outcome: LoadResult) -> Self {
        Self {
            iops: outcome.iops,
            latency_us_p50: outcome.latency_us_p50,
            latency_us_p99: outcome.latency_us_p99,
            cpu_us: outcome.server_cpu_us_per_request,
        }
    }
}

impl Cell {
    /// Its name in the table.
    pub fn name(&self) -> String {
        let op = match self.op {
            LoadOp::Read => "read",
            LoadOp::Write => "write",
            LoadOp::Randrw => "randrw",
            LoadOp::Durable => "durable write",
        };
        let client = match self.client {
            ClientProgram::Batch => "",
            ClientProgram::Fio => "fio ",
        };
        let block = size(u64::from(self.block_bytes));
        format!("{client}{op} {block} depth {} x{}", self.depth, self.connections)
    }

    /// Runs it once against `server`.
    pub fn run(&self, server: &BenchServer, seconds: f64, size_bytes: u64) -> Result<CellSample> {
        match self.client {
            ClientProgram::Batch => {
                let mut load = LoadParams::new(server.socket.clone(), EXPORT.to_owned());
                load.op = self.op;
                load.block_bytes = self.block_bytes;
                load.depth = self.depth;
                load.connections = self.connections;
                load.seconds = seconds;
                load.server_pid = Some(server.pid);
                if self.op == LoadOp::Write {
                    // The target is for hits, so the dirty share stays below the dirty limit.
                    load.span_bytes = Some(size_bytes / 4);
                }
                Ok(load.run()?.into())
            }
            ClientProgram::Fio => self.run_fio(server, seconds, size_bytes),
        }
    }

    fn run_fio(&self, server: &BenchServer, seconds: f64, size_bytes: u64) -> Result<CellSample> {
        let rw = match self.op {
            LoadOp::Read => "randread",
            LoadOp::Write | LoadOp::Durable => "randwrite",
            LoadOp::Randrw => "randrw",
        };
        let options = [
            format!("--rw={rw}"),
            format!("--bs={}", self.block_bytes),
            format!("--iodepth={}", self.depth),
            format!("--numjobs={}", self.connections),
            format!("--size={size_bytes}"),
            format!("--runtime={}ms", (seconds * 1000.0).ceil()),
            "--time_based".to_owned(),
            "--norandommap".to_owned(),
            format!("--fsync={}", u8::from(self.op == LoadOp::Durable)),
        ];
        let report = fio::run(&server.socket, EXPORT, &options)?;
        let writes = matches!(self.op, LoadOp::Write | LoadOp::Durable);
        let side = if writes { report.write } else { report.read };
        Ok(CellSample {
            iops: report.read.iops + report.write.iops,
            latency_us_p50: side.latency_us_p50,
            latency_us_p99: side.latency_us_p99,
            cpu_us: None,
        })
    }
}

/// All rounds of one cell: one sample per server and round.
#[derive(Clone, Debug)]
pub struct Rounds {
    /// The load.
    pub cell: Cell,
    /// The servers in the order of the table, with their samples.
    pub by_server: Vec<(ServerKind, Vec<CellSample>)>,
}

impl Rounds {
    fn samples(&self, kind: ServerKind) -> Option<&[CellSample]> {
        self.by_server.iter().find(|(of, _)| *of == kind).map(|(_, samples)| samples.as_slice())
    }

    /// The median over the rounds of one figure of one server.
    pub fn median(&self, kind: ServerKind, figure: fn(&CellSample) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.samples(kind)?.iter().filter_map(figure).collect();
        median(&values)
    }

    /// The median over the rounds of the ratio of one figure between two servers.
    pub fn ratio(
        &self,
        kind: ServerKind,
        to: ServerKind,
        figure: fn(&CellSample) -> Option<f64>,
    ) -> Option<f64> {
        let pairs = self.samples(kind)?.iter().zip(self.samples(to)?);
        let ratios: Vec<f64> =
            pairs.filter_map(|(one, other)| Some(figure(one)? / figure(other)?)).collect();
        median(&ratios)
    }

    /// The peer with the highest rate.
    pub fn best_peer(&self) -> Option<ServerKind> {
        let peers = self.by_server.iter().map(|(kind, _)| *kind).filter(|kind| kind.is_peer());
        let rate = |kind: &ServerKind| self.median(*kind, iops).unwrap_or(0.0);
        peers.max_by(|a, b| rate(a).total_cmp(&rate(b)))
    }

    /// The target of this cell, the result, and whether it is met. `None` without a target, or if
    /// the server to compare with did not run.
    pub fn verdict(&self) -> Option<TargetVerdict> {
        let ours = ServerKind::Forebay;
        let (name, value, limit) = match (self.cell.client, self.cell.depth) {
            (ClientProgram::Fio, _) => {
                let share = self.ratio(ours, self.best_peer()?, iops)?;
                ("IOPS to best peer", share, FigureLimit::AtLeast(FIO_SHARE_MIN))
            }
            // The targets are for one connection and one line; larger blocks and more connections
            // are information.
            _ if self.cell.connections != 1 || self.cell.block_bytes != 4096 => return None,
            (_, 1) => {
                let ratio = self.ratio(ours, ServerKind::Bare, p50)?;
                ("p50 to bare", ratio, FigureLimit::AtMost(LATENCY_RATIO_MAX))
            }
            (_, 16 | 64) => {
                let reads = self.cell.op == LoadOp::Read;
                let max = if reads { CPU_RATIO_MAX } else { WRITE_CPU_RATIO_MAX };
                ("CPU to bare", self.ratio(ours, ServerKind::Bare, cpu)?, FigureLimit::AtMost(max))
            }
            _ => return None,
        };
        let text = format!("{name} {value:.2} {}", limit.verdict(value));
        Some(TargetVerdict { text, met: limit.is_met(value) })
    }

    /// The rows of the table, one for each server.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let best = self.best_peer();
        self.by_server
            .iter()
            .map(|(kind, _)| {
                let verdict = (*kind == ServerKind::Forebay).then(|| self.verdict()).flatten();
                vec![
                    self.cell.name(),
                    kind.name().to_owned(),
                    number(self.median(*kind, iops)),
                    number(self.median(*kind, p50)),
                    number(self.median(*kind, p99)),
                    number(self.median(*kind, cpu)),
                    number(self.ratio(*kind, ServerKind::Bare, cpu)),
                    number(self.ratio(*kind, ServerKind::Bare, p50)),
                    number(best.and_then(|best| self.ratio(*kind, best, iops))),
                    verdict.map_or("information".to_owned(), |verdict| verdict.text),
                ]
            })
            .collect()
    }
}

/// The header of the table of [`Rounds::rows`].
pub const HEAD: [&str; 10] = [
    "load",
    "server",
    "IOPS",
    "p50 us",
    "p99 us",
    "CPU us",
    "CPU/bare",
    "p50/bare",
    "IOPS/best peer",
    "target",
];

/// A target and its result.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetVerdict {
    text: String,
    /// Whether it was met.
    pub met: bool,
}

fn iops(sample: &CellSample) -> Option<f64> {
    Some(sample.iops)
}

fn p50(sample: &CellSample) -> Option<f64> {
    Some(sample.latency_us_p50)
}

fn p99(sample: &CellSample) -> Option<f64> {
    Some(sample.latency_us_p99)
}

fn cpu(sample: &CellSample) -> Option<f64> {
    sample.cpu_us
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(client: ClientProgram, depth: u32, ours: CellSample, peer: CellSample) -> Rounds {
        let bare = sample(100.0, 10.0, 1.0);
        Rounds {
            cell: Cell { client, op: LoadOp::Read, block_bytes: 4096, depth, connections: 1 },
            by_server: vec![
                (ServerKind::Bare, vec![bare; 3]),
                (ServerKind::Forebay, vec![ours; 3]),
                (ServerKind::Nbdkit, vec![peer; 3]),
            ],
        }
    }

    fn sample(iops: f64, p50: f64, cpu: f64) -> CellSample {
        CellSample { iops, latency_us_p50: p50, latency_us_p99: 2.0 * p50, cpu_us: Some(cpu) }
    }

    #[test]
    fn each_target_can_be_met_and_missed() {
        let good = sample(90.0, 12.9, 1.5);
        let bad = sample(49.0, 13.1, 1.51);
        let peer = sample(50.5, 30.0, 6.0);
        for (client, depth) in
            [(ClientProgram::Batch, 1), (ClientProgram::Batch, 64), (ClientProgram::Fio, 4)]
        {
            assert!(rounds(client, depth, good, peer).verdict().unwrap().met);
            assert!(!rounds(client, depth, bad, peer).verdict().unwrap().met);
        }
        assert_eq!(rounds(ClientProgram::Batch, 4, bad, peer).verdict(), None);
    }

    #[test]
    fn a_write_has_a_limit_of_its_own() {
        let peer = sample(50.5, 30.0, 6.0);
        for (cpu, met) in [(1.51, true), (6.01, false)] {
            let mut rounds = rounds(ClientProgram::Batch, 64, sample(90.0, 12.9, cpu), peer);
            rounds.cell.op = LoadOp::Write;
            assert_eq!(rounds.verdict().unwrap().met, met);
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine is ten times slower in the second round: the ratio does not change.
        let mut rounds =
            rounds(ClientProgram::Batch, 64, sample(0.0, 0.0, 0.0), sample(1.0, 1.0, 1.0));
        rounds.by_server[0].1 = vec![sample(1.0, 1.0, 1.0), sample(1.0, 1.0, 10.0)];
        rounds.by_server[1].1 = vec![sample(1.0, 1.0, 1.2), sample(1.0, 1.0, 12.0)];
        assert!(
            (rounds.ratio(ServerKind::Forebay, ServerKind::Bare, cpu).unwrap() - 1.2).abs() < 1e-9
        );
    }

    #[test]
    fn a_missing_server_leaves_dashes() {
        let mut rounds =
            rounds(ClientProgram::Fio, 4, sample(1.0, 1.0, 1.0), sample(1.0, 1.0, 1.0));
        rounds.by_server.truncate(2);
        assert_eq!(rounds.best_peer(), None);
        assert_eq!(rounds.verdict(), None);
        assert_eq!(rounds.rows()[1][8], "-");
        assert_eq!(rounds.rows()[0].len(), HEAD.len());
    }
}
