//! One run of a server: its connections, with each answer checked by the oracle.

use super::connection::{Exchange, ModelConn};
use super::oracle::{SectorChange, Sectors, VolumeOracle};
use super::plan::{ModelRequest, RequestPlan};
use super::stamp::{self, SECTOR_BYTES, SectorContent};
use crate::wire::{Export, WireCommand, export_flag, request_flag};
use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use std::path::Path;
use std::time::{Duration, Instant};

/// Timeout without any answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// ENOTSUP on the wire.
const NOT_SUPPORTED: u32 = 95;
/// The block status flag for zeroes.
const STATE_ZERO: u32 = 2;
/// Sectors per read of a full scan.
const SCAN_SECTORS: u32 = 1024;

/// The connections to one server.
pub struct ModelSession<'a> {
    connections: Vec<ModelConn>,
    oracle: &'a mut VolumeOracle,
    /// Whether trimmed ranges may have any content.
    pub trim_leaves_anything: bool,
    /// Requests answered.
    pub answered: u64,
}

impl<'a> ModelSession<'a> {
    /// Opens `count` connections, every other one with structured replies.
    pub fn open(
        socket: &Path,
        export: &str,
        (count, depth): (u32, u32),
        oracle: &'a mut VolumeOracle,
    ) -> Result<Self> {
        let connections: Vec<ModelConn> = (0..count)
            .map(|number| ModelConn::open(socket, export, depth as usize, number % 2 == 0))
            .collect::<Result<_>>()?;
        for connection in &connections {
            let export = &connection.export;
            let bytes = u64::from(oracle.sectors()) * SECTOR_BYTES as u64;
            ensure!(export.size_bytes == bytes, "the export has {} bytes", export.size_bytes);
            let has = export.flags & export_flag::MULTI_CONN != 0;
            ensure!(has || count == 1, "flushes cover one connection only: --connections 1");
        }
        Ok(Self { connections, oracle, trim_leaves_anything: false, answered: 0 })
    }

    /// The export as described by the server.
    pub fn export(&self) -> Export {
        self.connections[0].export
    }

    /// Sends `count` requests of `plan`; the last of them are still in flight when it returns.
    pub fn run(&mut self, plan: &mut RequestPlan, count: u64) -> Result<()> {
        let mut sent = 0;
        let end = self.answered + count;
        while sent < count && self.answered < end {
            for number in 0..self.connections.len() {
                while sent < count
                    && let Some(slot) = self.connections[number].free_slot()
                {
                    let has_status = self.connections[number].export.allocation.is_some();
                    let operation = plan.next(number as u32, has_status);
                    if is_change(operation.command)
                        && self.oracle.is_changing(operation.sectors.clone())
                    {
                        break;
                    }
                    self.send(number, slot, operation);
                    sent += 1;
                }
            }
            self.turn()?;
        }
        Ok(())
    }

    /// Waits until everything is answered.
    pub fn drain(&mut self) -> Result<()> {
        while !self.connections.iter().all(ModelConn::is_idle) {
            self.turn()?;
        }
        Ok(())
    }

    /// Flushes, and waits for the answer.
    pub fn flush(&mut self) -> Result<()> {
        self.drain()?;
        self.send(0, 0, ModelRequest { command: WireCommand::Flush, flags: 0, sectors: 0..0 });
        self.drain()
    }

    /// Reads the whole volume. With `settle` (after a crash), adopts the content; otherwise checks
    /// it like any read.
    pub fn scan(&mut self, settle: Option<&str>) -> Result<()> {
        self.drain()?;
        let mut next = 0;
        while next < self.oracle.sectors() || !self.connections.iter().all(ModelConn::is_idle) {
            for number in 0..self.connections.len() {
                while next < self.oracle.sectors()
                    && let Some(slot) = self.connections[number].free_slot()
                {
                    let sectors = next..(next + SCAN_SECTORS).min(self.oracle.sectors());
                    next = sectors.end;
                    self.send(
                        number,
                        slot,
                        ModelRequest { command: WireCommand::Read, flags: 0, sectors },
                    );
                }
            }
            self.receive()?;
            for exchange in self.answers()? {
                match settle {
                    Some(from) => {
                        ensure_ok(&exchange)?;
                        let first = exchange.operation.sectors.start;
                        self.oracle.settle(first, &exchange.data, from)?;
                        self.oracle.end_read(exchange.begun);
                    }
                    None => self.judge(&exchange)?,
                }
            }
        }
        Ok(())
    }

    /// After the server was killed: receives the answers that it had sent.
    pub fn take_last_answers(mut self) -> Result<u64> {
        for number in 0..self.connections.len() {
            while !self.connections[number].is_closed && self.connections[number].pull()? {}
        }
        for exchange in self.answers()? {
            self.judge(&exchange)?;
        }
        Ok(self.answered)
    }

    fn send(&mut self, number: usize, slot: usize, operation: ModelRequest) {
        let sectors = operation.sectors.clone();
        let change = match operation.command {
            WireCommand::Write => Some((SectorChange::Write, "write")),
            WireCommand::WriteZeroes => Some((SectorChange::Zero, "write zeroes")),
            WireCommand::Trim if self.trim_leaves_anything => {
                Some((SectorChange::Scramble, "trim"))
            }
            WireCommand::Trim => Some((SectorChange::Trim, "trim")),
            _ => None,
        };
        let connection = &mut self.connections[number];
        if let Some((change, what)) = change {
            let generation = self.oracle.begin_change(change, sectors.clone(), what);
            let payload = connection.queue(slot, operation, 0);
            for (sector, bytes) in sectors.zip(payload.chunks_exact_mut(SECTOR_BYTES)) {
                stamp::fill(bytes, self.oracle.seed(), sector, SectorContent::Stamp(generation));
            }
        } else {
            let begun = match operation.command {
                WireCommand::Flush => self.oracle.begin_flush(),
                _ => self.oracle.begin_read(),
            };
            connection.queue(slot, operation, begun);
        }
    }

    /// Sends and receives once, and checks the answers.
    fn turn(&mut self) -> Result<()> {
        self.receive()?;
        for exchange in self.answers()? {
            self.judge(&exchange)?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        let begin = Instant::now();
        loop {
            for connection in &mut self.connections {
                connection.push()?;
            }
            let mut fds: Vec<PollFd> = self.connections.iter().map(ModelConn::poll_fd).collect();
            let second = Timespec { tv_sec: 1, tv_nsec: 0 };
            match poll(&mut fds, Some(&second)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break,
                Err(error) => return Err(error).context("waiting for the sockets"),
            }
            ensure!(begin.elapsed() < PATIENCE, "no answer within {PATIENCE:?}");
        }
        for connection in &mut self.connections {
            connection.push()?;
            connection.pull()?;
            ensure!(!connection.is_closed, "the server disconnected with requests in flight");
        }
        Ok(())
    }

    /// Checks all complete answers.
    fn answers(&mut self) -> Result<Vec<Exchange>> {
        let mut answers = Vec::new();
        for connection in &mut self.connections {
            while let Some(exchange) = connection.take_answer()? {
                answers.push(exchange);
            }
        }
        self.answered += answers.len() as u64;
        Ok(answers)
    }

    fn judge(&mut self, exchange: &Exchange) -> Result<()> {
        let operation = &exchange.operation;
        let sectors = operation.sectors.clone();
        if operation.flags & request_flag::FAST_ZERO != 0 && exchange.errno == NOT_SUPPORTED {
            self.oracle.fail_change(sectors);
            return Ok(());
        }
        ensure_ok(exchange)?;
        match operation.command {
            WireCommand::Write | WireCommand::WriteZeroes | WireCommand::Trim => {
                self.oracle.end_change(sectors, operation.flags & request_flag::FUA != 0);
            }
            WireCommand::Flush => self.oracle.end_flush(exchange.begun),
            WireCommand::Read => {
                self.oracle.check_read(sectors.start, &exchange.data, exchange.begun)?;
                self.oracle.end_read(exchange.begun);
            }
            WireCommand::BlockStatus => {
                self.check_status(sectors, exchange)?;
                self.oracle.end_read(exchange.begun);
            }
            _ => self.oracle.end_read(exchange.begun),
        }
        Ok(())
    }

    fn check_status(&self, sectors: Sectors, exchange: &Exchange) -> Result<()> {
        ensure!(!exchange.extents.is_empty(), "block status without an extent");
        let mut start = u64::from(sectors.start) * SECTOR_BYTES as u64;
        for &(len, flags) in &exchange.extents {
            let end = start + u64::from(len);
            ensure!(len > 0, "block status has an extent of no bytes");
            if flags & STATE_ZERO != 0 {
                let sector = |byte: u64| u32::try_from(byte / SECTOR_BYTES as u64);
                let last = sector(end.next_multiple_of(SECTOR_BYTES as u64))?.min(sectors.end);
                self.oracle.check_zero(sector(start)?..last, exchange.begun)?;
            }
            start = end;
        }
        Ok(())
    }
}

fn is_change(command: WireCommand) -> bool {
    matches!(command, WireCommand::Write | WireCommand::WriteZeroes | WireCommand::Trim)
}

fn ensure_ok(exchange: &Exchange) -> Result<()> {
    if exchange.errno != 0 {
        let ModelRequest { command, flags, sectors } = &exchange.operation;
        bail!(
            "ERROR: {command:?} of sectors {sectors:?}, flags {flags:#x}, failed: {}",
            std::io::Error::from_raw_os_error(exchange.errno as i32)
        );
    }
    Ok(())
}
