//! A client that writes its blocks one request at a time, and looks for the present owner when it
//! gets no answer.

use super::register::{self, BLOCK_BYTES, BlockRegister};
use crate::content::LoadRandom;
use crate::wire::{self, REPLY_BYTES, WireCommand, WireReply, WireRequest};
use anyhow::{Context, Result};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a client waits for bytes before it looks whether there is another owner.
const LOOK: Duration = Duration::from_millis(100);
/// How long a client waits for an answer of the present owner.
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// The pause before another attempt to connect.
const RETRY: Duration = Duration::from_millis(10);

/// What all clients of a volume share.
pub struct SiteClients {
    /// The seed of the contents.
    pub seed: u32,
    /// The name of the volume.
    pub volume: String,
    /// The sockets of the servers.
    pub sockets: Vec<PathBuf>,
    /// Whether each socket leads to the present owner, whoever that is, and so each answer counts.
    /// Otherwise there is one socket for each owner.
    pub all_lead_to_owner: bool,
    /// Counts takeovers; the owner is this, modulo the number of servers.
    pub tenure: AtomicU64,
    /// The time from which messages count.
    pub started: Instant,
    /// Set at the end.
    pub is_over: AtomicBool,
    /// The last tenure in which the owner has answered through each socket, and when first.
    pub answered: Mutex<Vec<(u64, Instant)>>,
    /// Requests that were answered with an error, or not at all.
    pub failed: AtomicU64,
    /// Reads from a former owner's memory that were older than an acknowledged write.
    pub stale_reads: AtomicU64,
    /// Writes that were acknowledged.
    pub acknowledged: AtomicU64,
}

/// One client, with the blocks that it alone writes.
pub struct SiteClient<'a> {
    site: &'a SiteClients,
    random: LoadRandom,
    blocks: Vec<(u32, BlockRegister)>,
    /// For each socket, with the tenure in which it was opened.
    connections: Vec<Option<(u64, UnixStream)>>,
}

/// Who has answered a request.
#[derive(Clone, Copy)]
struct Answerer {
    tenure: u64,
    /// The index of the socket.
    socket: usize,
}

/// Why a request has no answer.
enum Gap {
    /// The connection has ended, or another server has taken over.
    Lost,
    /// The server has answered with an error.
    Refused,
}

impl<'a> SiteClient<'a> {
    /// A client of the blocks with these numbers.
    pub fn new(site: &'a SiteClients, seed: u64, blocks: impl Iterator<Item = u32>) -> Self {
        let blocks = blocks.map(|block| (block, BlockRegister::default())).collect();
        let connections = site.sockets.iter().map(|_| None).collect();
        Self { site, random: LoadRandom::new(seed), blocks, connections }
    }

    /// Reads and writes until the end. Returns the blocks.
    ///
    /// # Errors
    /// If a block has something that it cannot have.
    pub fn run(mut self) -> Result<Vec<(u32, BlockRegister)>> {
        while !self.site.is_over.load(Ordering::Acquire) {
            let at = self.random.below(self.blocks.len() as u64) as usize;
            if self.random.below(10) < 6 {
                self.write(at);
            } else {
                self.read(at).with_context(|| format!("block {}", self.blocks[at].0))?;
            }
        }
        // What is open must be decided by the last owner.
        for at in 0..self.blocks.len() {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !self.read(at).with_context(|| format!("block {}", self.blocks[at].0))? {
                anyhow::ensure!(Instant::now() < deadline, "no server answers at the end");
            }
        }
        Ok(self.blocks)
    }

    fn write(&mut self, at: usize) {
        let (number, register) = &mut self.blocks[at];
        let (number, generation) = (*number, register.begin());
        let mut bytes = vec![0; BLOCK_BYTES];
        register::fill(&mut bytes, self.site.seed, number, generation);
        match self.request(WireCommand::Write, number, &mut bytes) {
            Ok(answerer) => {
                let how = self.how("acknowledged", answerer);
                self.blocks[at].1.acknowledge(how);
                self.site.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => self.blocks[at].1.leave_open(),
        }
    }

    /// Reads a block. Returns whether the present owner has answered.
    fn read(&mut self, at: usize) -> Result<bool> {
        let number = self.blocks[at].0;
        let mut bytes = vec![0; BLOCK_BYTES];
        let Ok(answerer) = self.request(WireCommand::Read, number, &mut bytes) else {
            return Ok(false);
        };
        let Answerer { tenure, socket } = answerer;
        let found = register::generations(&bytes, self.site.seed, number)?;
        let register = &self.blocks[at].1;
        let is_of_owner = tenure == self.site.tenure.load(Ordering::Acquire);
        if !is_of_owner && !self.site.all_lead_to_owner {
            let is_stale = !register.allows(&found);
            self.site.stale_reads.fetch_add(u64::from(is_stale), Ordering::Relaxed);
            return Ok(false);
        }
        let how = self.how("read", answerer);
        self.blocks[at].1.read(&found, how)?;
        let mut answered = self.site.answered.lock().unwrap_or_else(|it| it.into_inner());
        if answered[socket].0 < tenure {
            answered[socket] = (tenure, Instant::now());
        }
        Ok(true)
    }

    /// How and when a request was answered.
    fn how(&self, what: &str, by: Answerer) -> String {
        let Answerer { tenure, socket } = by;
        let now = self.site.tenure.load(Ordering::Acquire);
        let ms = self.site.started.elapsed().as_millis();
        format!("{what} by tenure {tenure} in {now} at {ms} ms through socket {socket}")
    }

    /// Sends a request and waits for the answer.
    fn request(
        &mut self,
        command: WireCommand,
        block: u32,
        data: &mut [u8],
    ) -> Result<Answerer, Gap> {
        let (site, offset) = (self.site, u64::from(block) * BLOCK_BYTES as u64);
        let socket = self.next_socket();
        let (mut tenure, stream) = self.connected(socket)?;
        if site.all_lead_to_owner {
            tenure = site.tenure.load(Ordering::Acquire);
        }
        let request = WireRequest { command, flags: 0, cookie: 1, offset, len: data.len() as u32 };
        let exchanged = exchange(site, (tenure, stream), &request, data);
        if matches!(exchanged, Ok(0)) {
            return Ok(Answerer { tenure, socket });
        }
        site.failed.fetch_add(1, Ordering::Relaxed);
        if site.all_lead_to_owner {
            let ms = site.started.elapsed().as_millis();
            println!("{ms} ms: through socket {socket}: {command:?}: {exchanged:?}");
        }
        if exchanged.is_err() {
            self.connections[socket] = None;
            return Err(Gap::Lost);
        }
        std::thread::sleep(RETRY);
        Err(Gap::Refused)
    }

    /// The socket for the next request: if there is one for each owner, the last one as long as it
    /// answers.
    fn next_socket(&mut self) -> usize {
        let count = self.connections.len() as u64;
        if self.site.all_lead_to_owner {
            return self.random.below(count) as usize;
        }
        let open = self.connections.iter().position(Option::is_some);
        open.unwrap_or_else(|| (self.site.tenure.load(Ordering::Acquire) % count) as usize)
    }

    /// The connection to a server, and the tenure in which it was opened.
    fn connected(&mut self, socket: usize) -> Result<(u64, &mut UnixStream), Gap> {
        let (site, connection) = (self.site, &mut self.connections[socket]);
        if connection.is_none() {
            let tenure = site.tenure.load(Ordering::Acquire);
            let opened = UnixStream::connect(&site.sockets[socket]).ok().and_then(|mut stream| {
                stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
                wire::open_export(&mut stream, &site.volume).ok()?;
                stream.set_read_timeout(Some(LOOK)).ok()?;
                stream.set_write_timeout(Some(Duration::from_secs(2))).ok()?;
                Some(stream)
            });
            if opened.is_none() {
                std::thread::sleep(RETRY);
            }
            *connection = opened.map(|stream| (tenure, stream));
        }
        let connection = connection.as_mut().ok_or(Gap::Lost)?;
        Ok((connection.0, &mut connection.1))
    }
}

/// Sends a request and receives its answer: zero, or the error.
fn exchange(
    site: &SiteClients,
    (tenure, stream): (u64, &mut UnixStream),
    request: &WireRequest,
    data: &mut [u8],
) -> io::Result<u32> {
    let mut message = request.encode().to_vec();
    if request.command == WireCommand::Write {
        message.extend_from_slice(data);
    }
    stream.write_all(&message)?;
    let mut reply = [0; REPLY_BYTES];
    receive(site, tenure, stream, &mut reply)?;
    let reply = WireReply::decode(&reply).map_err(io::Error::other)?;
    if request.command == WireCommand::Read && reply.errno == 0 {
        receive(site, tenure, stream, data)?;
    }
    Ok(reply.errno)
}

/// Receives all of `bytes`. Gives up a silent server once there is another owner, or after long.
fn receive(
    site: &SiteClients,
    tenure: u64,
    stream: &mut UnixStream,
    bytes: &mut [u8],
) -> io::Result<()> {
    let (mut filled, begun) = (0, Instant::now());
    while filled < bytes.len() {
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let has_successor =
                    !site.all_lead_to_owner && site.tenure.load(Ordering::Acquire) != tenure;
                if has_successor || begun.elapsed() >= SILENCE_MAX {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
