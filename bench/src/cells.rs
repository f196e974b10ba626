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

/// Limits of Forebay's CPU time per request, as multiples of the bare server's, at depth 16 and 64.
/// What limits them is in `docs/performance.md`.
pub const CPU_RATIO_LIMITS: [CpuLimits; 4] = [
    CpuLimits { kind: CellKind::Read, ratios: [1.5, 1.3, 1.3] },
    // Into the store and into the pool, while the bare server copies once.
    CpuLimits { kind: CellKind::WriteThrough, ratios: [6.0, 4.0, 3.5] },
    CpuLimits { kind: CellKind::WriteBack, ratios: [3.0, 2.6, 2.3] },
    // Each line is also written to the store.
    CpuLimits { kind: CellKind::SustainedWriteBack, ratios: [4.0, 3.6, 3.2] },
];
/// The block sizes that have such limits.
const LIMITED_BLOCKS: [u32; 3] = [4096, 64 << 10, 1 << 20];
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

/// The limits of one kind of load, for 4 KiB, 64 KiB and 1 MiB.
#[derive(Clone, Copy, Debug)]
pub struct CpuLimits {
    /// The loads that they are for.
    pub kind: CellKind,
    /// The limits.
    pub ratios: [f64; 3],
}

/// What a request costs Forebay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    /// A hit.
    Read,
    /// A write to the store and to the pool.
    WriteThrough,
    /// A write to the pool, of a line that is dirty already.
    WriteBack,
    /// A write to the pool, in an area larger than what may be dirty.
    SustainedWriteBack,
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
    /// Whether Forebay's volume is in write-back.
    pub is_write_back: bool,
    /// Whether writes are spread over the whole volume, and not over a quarter, which may be dirty.
    pub is_sustained: bool,
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
        let sustained = if self.is_sustained { "sustained " } else { "" };
        format!("{client}{sustained}{op} {block} depth {} x{}", self.depth, self.connections)
    }

    /// What a request costs Forebay; `None` if it varies.
    pub const fn kind(&self) -> Option<CellKind> {
        match (self.op, self.is_write_back, self.is_sustained) {
            (LoadOp::Read, ..) => Some(CellKind::Read),
            (LoadOp::Write, false, _) => Some(CellKind::WriteThrough),
            (LoadOp::Write, true, false) => Some(CellKind::WriteBack),
            (LoadOp::Write, true, true) => Some(CellKind::SustainedWriteBack),
            (LoadOp::Randrw | LoadOp::Durable, ..) => None,
        }
    }

    /// The limit of its CPU time per request, as a multiple of the bare server's.
    fn cpu_ratio_max(&self) -> Option<f64> {
        let kind = self.kind()?;
        let limits = CPU_RATIO_LIMITS.iter().find(|limits| limits.kind == kind)?;
        let block = LIMITED_BLOCKS.iter().position(|block| *block == self.block_bytes)?;
        Some(limits.ratios[block])
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
                if self.op == LoadOp::Write && !self.is_sustained {
                    // Hits, so the dirty share stays below the dirty limit.
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
            // More connections are information.
            _ if self.cell.connections != 1 => return None,
            (_, 1) if self.cell.block_bytes == 4096 => {
                let ratio = self.ratio(ours, ServerKind::Bare, p50)?;
                ("p50 to bare", ratio, FigureLimit::AtMost(LATENCY_RATIO_MAX))
            }
            (_, 16 | 64) => {
                let limit = FigureLimit::AtMost(self.cell.cpu_ratio_max()?);
                ("CPU to bare", self.ratio(ours, ServerKind::Bare, cpu)?, limit)
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
            cell: Cell {
                client,
                op: LoadOp::Read,
                block_bytes: 4096,
                depth,
                connections: 1,
                is_write_back: false,
                is_sustained: false,
            },
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
    fn each_kind_of_load_and_block_size_has_a_limit_of_its_own() {
        let peer = sample(50.5, 30.0, 6.0);
        let kinds = [
            (LoadOp::Read, false, false),
            (LoadOp::Write, false, false),
            (LoadOp::Write, true, false),
            (LoadOp::Write, true, true),
        ];
        for ((op, is_write_back, is_sustained), limits) in kinds.into_iter().zip(CPU_RATIO_LIMITS) {
            for (block_bytes, ratio) in LIMITED_BLOCKS.into_iter().zip(limits.ratios) {
                for (cpu, met) in [(ratio - 0.01, true), (ratio + 0.01, false)] {
                    let ours = sample(90.0, 12.9, cpu);
                    let mut rounds = rounds(ClientProgram::Batch, 64, ours, peer);
                    let cell = Cell { op, block_bytes, is_write_back, is_sustained, ..rounds.cell };
                    rounds.cell = cell;
                    assert_eq!(rounds.verdict().unwrap().met, met, "{}", cell.name());
                }
            }
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
