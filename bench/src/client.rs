//! One connection of the batching client.
//!
//! It keeps a fixed number of requests in flight, and sends and receives as much as possible per
//! call, so that its own cost is only about a microsecond per request. It never blocks on sending
//! without also receiving, because a server may stop reading until its replies are received.

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::content::{self, LoadRandom};
use crate::load::{LoadOp, LoadParams, LoadTally, OffsetPattern};
use crate::wire::{self, REPLY_BYTES, WireCommand, WireReply, WireRequest};

/// Requests are encoded ahead of the socket up to this many bytes.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Percentage of reads in a mixed load.
const MIXED_READ_PERCENT: u64 = 70;

/// The plan of one connection.
pub struct ConnPlan {
    pub load: LoadParams,
    /// Start of its part of the volume.
    pub start_bytes: u64,
    /// Blocks in its part of the volume, above zero.
    pub blocks: u64,
    /// Number of requests; without it, `duration` applies.
    pub count: Option<u64>,
    /// Duration, without a count.
    pub duration: Duration,
    /// Its own random numbers.
    pub random: LoadRandom,
}

/// A request in flight.
#[derive(Clone, Copy)]
struct RequestSlot {
    sent: Instant,
    offset: u64,
    read: bool,
    /// The write is answered, and its flush is in flight.
    flushing: bool,
    busy: bool,
}

/// A connection in the transmission phase.
pub struct BatchConn<'a> {
    stream: &'a UnixStream,
    plan: ConnPlan,
    slots: Vec<RequestSlot>,
    /// Free slots.
    idle: Vec<u32>,
    issued: u64,
    output: Vec<u8>,
    /// Bytes of `output` already sent.
    output_sent: usize,
    input: Vec<u8>,
    /// The received, unparsed part of `input`.
    input_taken: usize,
    input_filled: usize,
    /// Content of unverified writes.
    filler: Vec<u8>,
    tally: LoadTally,
}

impl<'a> BatchConn<'a> {
    /// Prepares `plan` for `stream`, after the handshake.
    pub fn new(stream: &'a UnixStream, plan: ConnPlan) -> Result<Self> {
        let depth = plan.load.depth;
        let reply_bytes = REPLY_BYTES + plan.load.block_bytes as usize;
        let input_bytes = (reply_bytes * depth as usize).min(4 << 20).max(2 * reply_bytes);
        let (sent, offset) = (Instant::now(), 0);
        let slot = RequestSlot { sent, offset, read: false, flushing: false, busy: false };
        let mut filler = vec![0; plan.load.block_bytes as usize];
        content::fill(&mut filler, 0, plan.load.seed);
        Ok(Self {
            stream,
            slots: vec![slot; depth as usize],
            idle: (0..depth).rev().collect(),
            issued: 0,
            output: Vec::new(),
            output_sent: 0,
            input: vec![0; input_bytes],
            input_taken: 0,
            input_filled: 0,
            filler,
            tally: LoadTally::new()?,
            plan,
        })
    }

    /// Sends and receives until the plan is done and everything is answered.
    ///
    /// # Errors
    /// If the server fails a request, sends an unexpected answer, disconnects, or returns wrong
    /// data to a verifying load.
    pub fn run(mut self) -> Result<LoadTally> {
        let deadline = match self.plan.count {
            Some(_) => None,
            None => Some(Instant::now() + self.plan.duration),
        };
        let mut now = Instant::now();
        loop {
            if deadline.is_none_or(|deadline| now < deadline) {
                self.issue(now);
            }
            self.push()?;
            if self.idle.len() == self.slots.len() {
                return Ok(self.tally);
            }
            self.pull()?;
            now = Instant::now();
            self.take_replies(now)?;
        }
    }

    /// Encodes as many requests as have a slot.
    fn issue(&mut self, now: Instant) {
        while self.output.len() < OUTPUT_BYTES_MAX
            && self.plan.count.is_none_or(|count| self.issued < count)
        {
            let Some(slot) = self.idle.pop() else { return };
            let read = match self.plan.load.op {
                LoadOp::Read => true,
                LoadOp::Write | LoadOp::Durable => false,
                LoadOp::Randrw => self.plan.random.below(100) < MIXED_READ_PERCENT,
            };
            let block = match self.plan.load.pattern {
                OffsetPattern::Random => self.plan.random.below(self.plan.blocks),
                OffsetPattern::Sequential => self.issued % self.plan.blocks,
            };
            let len = self.plan.load.block_bytes;
            let offset = self.plan.start_bytes + block * u64::from(len);
            let command = if read { WireCommand::Read } else { WireCommand::Write };
            let request = WireRequest { command, flags: 0, cookie: u64::from(slot), offset, len };
            self.output.extend(request.encode());
            if !read {
                self.append_payload(offset);
            }
            self.slots[slot as usize] =
                RequestSlot { sent: now, offset, read, flushing: false, busy: true };
            self.issued += 1;
        }
    }

    /// Appends the content for `offset`. A random load without verification skips the computation.
    fn append_payload(&mut self, offset: u64) {
        if self.plan.load.verify || self.plan.load.pattern == OffsetPattern::Sequential {
            let at = self.output.len();
            self.output.resize(at + self.filler.len(), 0);
            content::fill(&mut self.output[at..], offset, self.plan.load.seed);
        } else {
            self.output.extend_from_slice(&self.filler);
        }
    }

    /// Sends as much as the socket accepts without blocking.
    fn push(&mut self) -> Result<()> {
        while self.output_sent < self.output.len() {
            let rest = &self.output[self.output_sent..];
            match send(self.stream, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => self.output_sent += sent,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("sending: is the server still running?"),
            }
        }
        self.output.clear();
        self.output_sent = 0;
        Ok(())
    }

    /// Receives once. Waits until something arrives, or with data left to send for either
    /// direction; a busy client waits for nothing.
    fn pull(&mut self) -> Result<()> {
        let is_busy = self.plan.load.busy;
        let mut flags = if is_busy { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        if !is_busy && self.output_sent < self.output.len() {
            let mut wanted = [PollFd::new(self.stream, PollFlags::IN | PollFlags::OUT)];
            match poll(&mut wanted, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for the socket"),
            }
            flags = RecvFlags::DONTWAIT;
        }
        match recv(self.stream, &mut self.input[self.input_filled..], flags) {
            Ok((0, _)) => bail!("the server disconnected with requests in flight: see its log"),
            Ok((received, _)) => self.input_filled += received,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error).context("receiving: is the server still running?"),
        }
        Ok(())
    }

    fn take_replies(&mut self, now: Instant) -> Result<()> {
        loop {
            let arrived = &self.input[self.input_taken..self.input_filled];
            let Some(header) = arrived.first_chunk::<REPLY_BYTES>() else { break };
            let reply = WireReply::decode(header)?;
            let index = usize::try_from(reply.cookie).unwrap_or(usize::MAX);
            let slot = self.slots.get(index).copied().filter(|slot| slot.busy);
            let slot = slot.with_context(|| format!("a reply without a request: {reply:?}"))?;
            ensure!(
                reply.errno == 0,
                "the request at {} failed: errno {}",
                slot.offset,
                reply.errno
            );
            let payload = if slot.read { self.plan.load.block_bytes as usize } else { 0 };
            if arrived.len() < REPLY_BYTES + payload {
                break;
            }
            if self.plan.load.verify
                && let Some(at) = content::first_difference(
                    &arrived[REPLY_BYTES..REPLY_BYTES + payload],
                    slot.offset,
                    self.plan.load.seed,
                )
            {
                bail!("the read at {} returned wrong data from byte {at}", slot.offset);
            }
            self.input_taken += REPLY_BYTES + payload;
            if self.plan.load.op == LoadOp::Durable && !slot.flushing {
                let (command, cookie) = (WireCommand::Flush, u64::from(index as u32));
                self.output
                    .extend(WireRequest { command, flags: 0, cookie, offset: 0, len: 0 }.encode());
                self.slots[index].flushing = true;
                continue;
            }
            let latency = now.duration_since(slot.sent).as_nanos() as u64;
            self.tally.latency_ns.saturating_record(latency);
            self.tally.requests += 1;
            self.slots[index].busy = false;
            self.idle.push(index as u32);
        }
        self.make_room();
        Ok(())
    }

    /// Moves the rest to the front only if the buffer could not hold a whole reply behind it, to
    /// avoid large moves.
    fn make_room(&mut self) {
        if self.input_taken == self.input_filled {
            (self.input_taken, self.input_filled) = (0, 0);
        }
        let reply_bytes = REPLY_BYTES + self.plan.load.block_bytes as usize;
        if self.input_taken > 0 && self.input.len() - self.input_taken < 2 * reply_bytes {
            self.input.copy_within(self.input_taken..self.input_filled, 0);
            self.input_filled -= self.input_taken;
            self.input_taken = 0;
        }
    }
}

/// Flushes the server over a separate connection.
pub fn flush(socket: &Path, export: &str) -> Result<()> {
    let mut stream = UnixStream::connect(socket)
        .with_context(|| format!("connecting to {}", socket.display()))?;
    wire::open_export(&mut stream, export)?;
    let request =
        WireRequest { command: WireCommand::Flush, flags: 0, cookie: 1, offset: 0, len: 0 };
    stream.write_all(&request.encode())?;
    let mut reply = [0; REPLY_BYTES];
    stream.read_exact(&mut reply)?;
    let reply = WireReply::decode(&reply)?;
    ensure!(reply.errno == 0, "the flush failed: errno {}", reply.errno);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::area::SharedArea;
    use crate::bare;
    use crate::load::{LoadOp, LoadParams, OffsetPattern};
    use std::sync::Arc;

    /// Runs `serve` behind a socket in a directory that lives as long as the load's runs.
    fn with_bare_server(test: impl FnOnce(LoadParams)) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let area = Arc::new(SharedArea::new(8 << 20).unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let area = Arc::clone(&area);
                std::thread::spawn(move || bare::serve_connection(stream, &area));
            }
        });
        test(LoadParams::new(socket, String::new()));
    }

    #[test]
    fn what_is_filled_is_verified_at_every_size_and_depth() {
        with_bare_server(|mut load| {
            load.verify = true;
            assert_eq!(load.prefill().run().unwrap().requests, 32);
            super::flush(&load.socket, &load.export).unwrap();
            for (block, depth, connections) in
                [(4096, 64, 1), (512, 3, 2), (1 << 20, 4, 1), (65536, 16, 3)]
            {
                for pattern in [OffsetPattern::Random, OffsetPattern::Sequential] {
                    load.block_bytes = block;
                    load.depth = depth;
                    load.connections = connections;
                    load.pattern = pattern;
                    load.count = Some(100);
                    let outcome = load.run().unwrap();
                    assert_eq!(outcome.requests, 100);
                    assert!(outcome.latency_us_p50 <= outcome.latency_us_p99);
                }
            }
        });
    }

    #[test]
    fn a_deep_mix_of_large_reads_and_writes_does_not_lock_up() {
        with_bare_server(|mut load| {
            load.verify = true;
            load.prefill().run().unwrap();
            load.op = LoadOp::Randrw;
            load.block_bytes = 1 << 20;
            load.depth = 16;
            load.connections = 2;
            load.count = Some(200);
            assert_eq!(load.run().unwrap().requests, 200);
        });
    }

    #[test]
    fn a_durable_write_is_one_request_with_its_flush() {
        with_bare_server(|mut load| {
            load.op = LoadOp::Durable;
            load.depth = 7;
            load.count = Some(100);
            assert_eq!(load.run().unwrap().requests, 100);
        });
    }

    #[test]
    fn wrong_data_is_noticed() {
        with_bare_server(|mut load| {
            load.verify = true;
            load.prefill().run().unwrap();
            load.seed = 2;
            load.count = Some(1);
            let error = load.run().unwrap_err().to_string();
            assert!(error.contains("wrong data"), "{error}");
        });
    }

    #[test]
    fn a_span_outside_of_the_export_is_refused() {
        with_bare_server(|mut load| {
            load.start_bytes = 8 << 20;
            assert!(load.run().is_err());
            load.start_bytes = 0;
            load.span_bytes = Some(9 << 20);
            assert!(load.run().is_err());
        });
    }

    #[test]
    fn a_timed_load_counts_the_server_s_time() {
        with_bare_server(|mut load| {
            load.seconds = 0.05;
            load.server_pid = Some(std::process::id());
            let outcome = load.run().unwrap();
            assert!(outcome.requests > 0);
            assert!(outcome.server_cpu_us_per_request.unwrap() > 0.0);
        });
    }
}
