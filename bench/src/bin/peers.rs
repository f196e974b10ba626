//! `peers`: compares Forebay with the bare server and third-party servers, in interleaved rounds.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use forebay_bench::cells::{Cell, ClientProgram, HEAD, Rounds};
use forebay_bench::load::{LoadOp, LoadParams};
use forebay_bench::servers::{self, BenchServer, EXPORT, ServerKind, Setup};
use forebay_bench::table::{TextTable, size};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure NBD servers that hold their data in RAM, in interleaved rounds.
///
/// Default: 4 KiB reads and writes at depth 1, 16 and 64 on one connection, and fio at depth 1, 4,
/// 16 and 64; three rounds. Exits with 1 if a target was missed.
#[derive(Parser)]
struct PeersArgs {
    /// Servers.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = ServerKind::ALL)]
    servers: Vec<ServerKind>,
    /// Directions.
    #[arg(long, value_enum, value_delimiter = ',')]
    #[arg(default_values_t = [LoadOp::Read, LoadOp::Write])]
    ops: Vec<LoadOp>,
    /// Block sizes, in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [4096])]
    blocks: Vec<u32>,
    /// Depths of the batching client.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64])]
    depths: Vec<u32>,
    /// Numbers of connections of the batching client.
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    connections: Vec<u32>,
    /// Depths of fio (4 KiB random reads); none to leave fio out.
    #[arg(long, value_delimiter = ',', num_args = 0.., default_values_t = [1, 4, 16, 64])]
    fio_depths: Vec<u32>,
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of one measurement.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Bytes that each server serves.
    #[arg(long = "size", default_value_t = 256 << 20)]
    size_bytes: u64,
    /// Forebay's volume is in write-back, without protection. By default it is write-through, to
    /// the store and the pool: one copy more than the other servers.
    #[arg(long)]
    write_back: bool,
    /// Write over the whole volume: in write-back, more than may be dirty.
    #[arg(long)]
    sustained: bool,
    /// Run all block sizes and 1, 2 and 4 connections. Takes about a quarter of an hour.
    #[arg(long)]
    full: bool,
    /// Directory of the built programs; by default that of this one.
    #[arg(long)]
    programs: Option<PathBuf>,
}

/// Write-back without protection: if the server dies, dirty data is lost. The other servers lose
/// all data then.
const WRITE_BACK: &str = "mode=write-back,protection=none,accept-loss=yes";

fn main() -> Result<ExitCode> {
    let mut arguments = PeersArgs::parse();
    if arguments.full {
        arguments.blocks = vec![4096, 65536, 1 << 20];
        arguments.connections = vec![1, 2, 4];
    }
    ensure!(arguments.rounds > 0, "--rounds starts at 1");
    let dir = servers::work_dir()?;
    let programs = match &arguments.programs {
        Some(dir) => dir.clone(),
        None => servers::own_programs()?,
    };
    let setup = Setup {
        programs,
        dir: dir.path().to_path_buf(),
        size_bytes: arguments.size_bytes,
        forebay_options: if arguments.write_back { WRITE_BACK } else { "" }.to_owned(),
    };
    let servers = start(&arguments, &setup)?;
    let mut table = TextTable::new(HEAD);
    let mut missed = 0;
    for cell in cells(&arguments) {
        let rounds = measure(cell, &servers, &arguments)?;
        missed += u32::from(rounds.verdict().is_some_and(|verdict| !verdict.met));
        rounds.rows().into_iter().for_each(|row| table.row(row));
    }
    println!("{}", table.markdown());
    let (size, rounds, seconds) = (size(setup.size_bytes), arguments.rounds, arguments.seconds);
    println!("{size} of RAM each, {rounds} rounds of {seconds} s, medians; ratios within a round.");
    println!("{missed} targets missed.");
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts the available servers and fills each once. A missing peer is skipped with a message; the
/// baseline and Forebay must run.
fn start(arguments: &PeersArgs, setup: &Setup) -> Result<Vec<BenchServer>> {
    let mut servers = Vec::new();
    for kind in &arguments.servers {
        let server = match BenchServer::start(*kind, setup) {
            Ok(server) => server,
            Err(error) if kind.is_peer() => {
                eprintln!("peers: skipped: {error:#}");
                continue;
            }
            Err(error) => return Err(error),
        };
        let load = LoadParams::new(server.socket.clone(), EXPORT.to_owned());
        load.prefill().run().with_context(|| format!("filling {}", kind.name()))?;
        servers.push(server);
    }
    Ok(servers)
}

fn cells(arguments: &PeersArgs) -> Vec<Cell> {
    let mut cells = Vec::new();
    for op in &arguments.ops {
        for block_bytes in &arguments.blocks {
            for connections in &arguments.connections {
                for depth in &arguments.depths {
                    cells.push(Cell {
                        client: ClientProgram::Batch,
                        op: *op,
                        block_bytes: *block_bytes,
                        depth: *depth,
                        connections: *connections,
                        is_write_back: arguments.write_back,
                        is_sustained: arguments.sustained,
                    });
                }
            }
        }
    }
    for depth in &arguments.fio_depths {
        cells.push(Cell {
            client: ClientProgram::Fio,
            op: LoadOp::Read,
            block_bytes: 4096,
            depth: *depth,
            connections: 1,
            is_write_back: arguments.write_back,
            is_sustained: arguments.sustained,
        });
    }
    cells
}

fn measure(cell: Cell, servers: &[BenchServer], arguments: &PeersArgs) -> Result<Rounds> {
    let mut by_server: Vec<_> = servers.iter().map(|server| (server.kind, Vec::new())).collect();
    for _ in 0..arguments.rounds {
        for (server, (_, samples)) in servers.iter().zip(&mut by_server) {
            let sample = cell
                .run(server, arguments.seconds, arguments.size_bytes)
                .with_context(|| format!("{} against {}", cell.name(), server.kind.name()))?;
            samples.push(sample);
        }
    }
    eprintln!("peers: {} done", cell.name());
    Ok(Rounds { cell, by_server })
}
