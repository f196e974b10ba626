//! A load of the batching client, and its results.

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::client::{BatchConn, ConnPlan};
use crate::content::LoadRandom;
use crate::cpu::CpuReading;
use crate::wire;

/// Direction of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadOp {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Seven reads to three writes.
    Randrw,
    /// A write, then a flush; complete with the flush.
    Durable,
}

/// Order of the offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OffsetPattern {
    /// Uniform over the span.
    Random,
    /// From the start of the span to its end and again; each connection has its own part.
    Sequential,
}

/// The parameters of a load.
#[derive(Clone, Debug, Args)]
pub struct LoadParams {
    /// Unix socket of the server.
    #[arg(long)]
    pub socket: PathBuf,
    /// Name of the export.
    #[arg(long, default_value = "")]
    pub export: String,
    /// Requests in flight per connection.
    #[arg(long, default_value_t = 64)]
    pub depth: u32,
    /// Connections, with one thread each.
    #[arg(long, default_value_t = 1)]
    pub connections: u32,
    /// Bytes per request: a multiple of 512, at most 32 MiB.
    #[arg(long = "block", default_value_t = 4096)]
    pub block_bytes: u32,
    /// Direction.
    #[arg(long, value_enum, default_value_t = LoadOp::Read)]
    pub op: LoadOp,
    /// Order of the offsets.
    #[arg(long, value_enum, default_value_t = OffsetPattern::Random)]
    pub pattern: OffsetPattern,
    /// Start of the used part of the volume.
    #[arg(long = "start", default_value_t = 0)]
    pub start_bytes: u64,
    /// Bytes of the used part; by default up to the end.
    #[arg(long = "span")]
    pub span_bytes: Option<u64>,
    /// Duration.
    #[arg(long, default_value_t = 5.0, conflicts_with = "count")]
    pub seconds: f64,
    /// Total number of requests, instead of a duration.
    #[arg(long)]
    pub count: Option<u64>,
    /// Seed of the offsets and of the content.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Verify every byte read. The span must have been written with the same seed.
    #[arg(long)]
    pub verify: bool,
    /// Look for answers again and again instead of sleeping, so that the server never has to wake
    /// the client: what that costs depends on how long the client's processor slept.
    #[arg(long)]
    pub busy: bool,
    /// Report the CPU time of this process and its children.
    #[arg(long)]
    pub server_pid: Option<u32>,
}

impl LoadParams {
    /// The default load on the server behind `socket`.
    pub fn new(socket: PathBuf, export: String) -> Self {
        Self {
            socket,
            export,
            depth: 64,
            connections: 1,
            block_bytes: 4096,
            op: LoadOp::Read,
            pattern: OffsetPattern::Random,
            start_bytes: 0,
            span_bytes: None,
            seconds: 5.0,
            count: None,
            seed: 1,
            verify: false,
            busy: false,
            server_pid: None,
        }
    }

    /// The load that writes the whole span once, sequentially, with the content of the seed.
    pub fn prefill(&self) -> Self {
        let mut fill = Self::new(self.socket.clone(), self.export.clone());
        fill.depth = 8;
        fill.block_bytes = 256 << 10;
        fill.op = LoadOp::Write;
        fill.pattern = OffsetPattern::Sequential;
        fill.start_bytes = self.start_bytes;
        fill.span_bytes = self.span_bytes;
        fill.seed = self.seed;
        // A span of at most one block is written in one piece.
        if let Some(span) = self.span_bytes
            && !span.is_multiple_of(u64::from(fill.block_bytes))
        {
            fill.block_bytes = self.block_bytes;
        }
        fill.count = Some(u64::MAX);
        fill
    }

    /// Runs it, from the first connection to the last answer.
    pub fn run(&self) -> Result<LoadResult> {
        let mut streams = Vec::new();
        let mut size_bytes = 0;
        for _ in 0..self.connections {
            let mut stream = UnixStream::connect(&self.socket)
                .with_context(|| format!("connecting to {}", self.socket.display()))?;
            size_bytes = wire::open_export(&mut stream, &self.export)?.size_bytes;
            streams.push(stream);
        }
        let plans = self.plans(size_bytes)?;
        let reading = self.server_pid.map(CpuReading::of).transpose()?;
        let barrier = Barrier::new(streams.len());
        let begin = Instant::now();
        let mut tallies = Vec::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = streams
                .iter()
                .zip(plans)
                .map(|(stream, plan)| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        let connection = BatchConn::new(stream, plan)?;
                        barrier.wait();
                        connection.run()
                    })
                })
                .collect();
            for thread in threads {
                tallies
                    .push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
        });
        let elapsed = begin.elapsed();
        let server_cpu_ns = reading.map(|reading| reading.elapsed_ns()).transpose()?;
        let mut total = LoadTally::new()?;
        for tally in tallies {
            total.add(&tally?)?;
        }
        // The connections stay open until here, so that a forked child per connection is counted
        // before it ends.
        drop(streams);
        Ok(self.outcome(&total, elapsed, server_cpu_ns))
    }

    /// The plan of each connection.
    fn plans(&self, size_bytes: u64) -> Result<Vec<ConnPlan>> {
        let block = u64::from(self.block_bytes);
        ensure!(
            self.block_bytes.is_multiple_of(512) && (512..=32 << 20).contains(&block),
            "--block {block} is not a multiple of 512 between 512 and 32 MiB"
        );
        ensure!(self.depth > 0 && self.connections > 0, "--depth and --connections start at 1");
        let span = self.span_bytes.unwrap_or(size_bytes.saturating_sub(self.start_bytes));
        let blocks = span / block;
        let end = self.start_bytes.checked_add(span);
        ensure!(
            blocks > 0 && end.is_some_and(|end| end <= size_bytes),
            "a span of {span} bytes from {} holds no block of {block} bytes inside the \
             {size_bytes} bytes of the export: check --span, --start and --block",
            self.start_bytes
        );
        let connections = u64::from(self.connections);
        let count = match self.count {
            Some(u64::MAX) => Some(blocks),
            other => other,
        };
        let mut random = LoadRandom::new(self.seed);
        Ok((0..connections)
            .map(|index| {
                let own = self.pattern == OffsetPattern::Sequential && blocks >= connections;
                let (first, last) = if own {
                    (index * blocks / connections, (index + 1) * blocks / connections)
                } else {
                    (0, blocks)
                };
                ConnPlan {
                    load: self.clone(),
                    start_bytes: self.start_bytes + first * block,
                    blocks: last - first,
                    count: count.map(|count| {
                        (index + 1) * count / connections - index * count / connections
                    }),
                    duration: Duration::from_secs_f64(self.seconds),
                    random: LoadRandom::new(random.next_u64()),
                }
            })
            .collect())
    }

    fn outcome(
        &self,
        tally: &LoadTally,
        elapsed: Duration,
        server_cpu_ns: Option<u64>,
    ) -> LoadResult {
        let seconds = elapsed.as_secs_f64();
        let us = |ns: u64| ns as f64 / 1000.0;
        LoadResult {
            requests: tally.requests,
            seconds,
            iops: tally.requests as f64 / seconds,
            bytes_per_second: tally.requests as f64 * f64::from(self.block_bytes) / seconds,
            latency_us_mean: tally.latency_ns.mean() / 1000.0,
            latency_us_p50: us(tally.latency_ns.value_at_quantile(0.50)),
            latency_us_p99: us(tally.latency_ns.value_at_quantile(0.99)),
            latency_us_max: us(tally.latency_ns.max()),
            server_cpu_us_per_request: server_cpu_ns
                .map(|ns| us(ns) / tally.requests.max(1) as f64),
        }
    }
}

/// Counters of one connection, or of all.
#[derive(Clone, Debug)]
pub struct LoadTally {
    /// Requests answered.
    pub requests: u64,
    /// Time from sending to answer, in nanoseconds.
    pub latency_ns: Histogram<u64>,
}

impl LoadTally {
    /// Empty counters.
    pub fn new() -> Result<Self> {
        Ok(Self { requests: 0, latency_ns: Histogram::new_with_max(60_000_000_000, 3)? })
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        self.requests += other.requests;
        Ok(self.latency_ns.add(&other.latency_ns)?)
    }
}

/// The result of a load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LoadResult {
    /// Requests answered.
    pub requests: u64,
    /// From the first request to the last answer.
    pub seconds: f64,
    /// Requests per second.
    pub iops: f64,
    /// Payload per second, in bytes.
    pub bytes_per_second: f64,
    /// Mean latency, in microseconds.
    pub latency_us_mean: f64,
    /// Median latency, in microseconds.
    pub latency_us_p50: f64,
    /// 99th percentile of the latency, in microseconds.
    pub latency_us_p99: f64,
    /// The longest, in microseconds.
    pub latency_us_max: f64,
    /// CPU time of the server per request, in microseconds, if its process was given.
    pub server_cpu_us_per_request: Option<f64>,
}
