//! The connections of a worker, by number, and the replies that come for them.

use super::Conn;
use crate::memory::Memory;
use crate::shared::{Shared, Volume};
use crate::stats::LatencyClass;
use crate::worker::ClientToken;
use forebay_nbd::Negotiated;
use forebay_types::IoError;
use forebay_volume::{Reply, RequestKind};
use std::sync::Arc;
use std::time::Instant;

use super::Phase;

/// Latencies of a turn that are the same: those of one batch of hits.
struct Tally {
    volume: Arc<Volume>,
    class: LatencyClass,
    arrived: Instant,
    count: u64,
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct Connections {
    conns: Vec<Option<Box<Conn>>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    /// Numbers that are not used again.
    retired: usize,
    /// Connections with something to send or to close at the end of the turn.
    pub touched: Vec<u32>,
    /// Connections whose input may go on.
    pub resumed: Vec<u32>,
    tallies: Vec<Tally>,
}

impl Connections {
    pub(crate) fn insert(&mut self, mut conn: Conn) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.generations.push(0);
            (self.conns.len() - 1) as u32
        });
        conn.generation = self.generations[index as usize];
        self.conns[index as usize] = Some(Box::new(conn));
        index
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<Box<Conn>> {
        let conn = self.conns[index as usize].take()?;
        self.generations[index as usize] = conn.generation.wrapping_add(1);
        self.free.push(index);
        Some(conn)
    }

    /// Takes out a connection of which something may still be reported: no other one gets its
    /// number.
    pub(crate) fn retire(&mut self, index: u32) -> Option<Box<Conn>> {
        let conn = self.conns[index as usize].take()?;
        self.retired += 1;
        Some(conn)
    }

    pub(crate) fn get(&mut self, index: u32) -> Option<&mut Conn> {
        self.conns.get_mut(index as usize)?.as_deref_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.conns.len() - self.free.len() - self.retired
    }

    /// The numbers of all connections.
    pub(crate) fn all(&self) -> Vec<u32> {
        let numbered = self.conns.iter().enumerate();
        numbered.filter(|(_, conn)| conn.is_some()).map(|(index, _)| index as u32).collect()
    }

    /// Has the connection looked after at the end of the turn.
    pub(crate) fn touch(&mut self, index: u32) {
        if let Some(conn) = self.conns[index as usize].as_deref_mut()
            && !conn.listed
        {
            conn.listed = true;
            self.touched.push(index);
        }
    }

    /// Whether writes to the volume that a client has entered are halted.
    pub(crate) fn is_halted(&self, conn: u32) -> bool {
        let conn = self.conns.get(conn as usize).and_then(Option::as_deref);
        conn.and_then(|conn| conn.volume.as_ref()).is_some_and(|volume| volume.power.is_halted())
    }

    /// Queues the reply to a request. Returns whether the client is still there to have it.
    pub(crate) fn reply(
        &mut self,
        shared: &Shared,
        worker: usize,
        token: &ClientToken,
        reply: &Reply<'_, Memory>,
    ) -> bool {
        let Some(conn) = self.conns.get_mut(token.conn as usize).and_then(Option::as_deref_mut)
        else {
            return false;
        };
        if conn.generation != token.generation {
            return false;
        }
        conn.requests_in_flight -= 1;
        conn.bytes_in_flight -= u64::from(token.len);
        if conn.paused && !conn.is_full(shared.share()) {
            conn.paused = false;
            self.resumed.push(token.conn);
        }
        if !conn.listed {
            conn.listed = true;
            self.touched.push(token.conn);
        }
        let volume = conn.volume.as_ref().expect("a client with requests has entered a volume");
        let class = count(volume, worker, token, reply);
        match self.tallies.last_mut() {
            Some(last)
                if last.class == class
                    && last.arrived == token.arrived
                    && Arc::ptr_eq(&last.volume, volume) =>
            {
                last.count += 1;
            }
            _ => {
                let (volume, arrived) = (Arc::clone(volume), token.arrived);
                self.tallies.push(Tally { volume, class, arrived, count: 1 });
            }
        }
        if conn.broken {
            return false;
        }
        let Some(terms) = conn.terms else { return false };
        conn.write_reply(shared, &terms, token, reply);
        true
    }

    /// Keeps the memory that a reply's data is in until it is sent.
    pub(crate) fn keep(&mut self, index: u32, memory: Option<Memory>) {
        if let Some(memory) = memory
            && let Some(conn) = self.get(index)
        {
            conn.queued.keep(memory);
        }
    }

    /// Records the latencies of the turn.
    pub(crate) fn record_latencies(&mut self, worker: usize) {
        if self.tallies.is_empty() {
            return;
        }
        let now = Instant::now();
        for tally in self.tallies.drain(..) {
            let ns = now.saturating_duration_since(tally.arrived).as_nanos() as u64;
            let latencies = &tally.volume.stats[worker].latencies;
            let mut latencies = latencies.lock();
            latencies.record(tally.class, ns, tally.count);
        }
    }
}

impl Conn {
    fn write_reply(
        &mut self,
        shared: &Shared,
        terms: &Negotiated,
        token: &ClientToken,
        reply: &Reply<'_, Memory>,
    ) {
        match reply.result {
            Err(error) => {
                self.queued.push_header(|out| {
                    terms.reply_error(token.to, error, explain(error, token.kind), out);
                });
            }
            Ok(()) if token.kind == RequestKind::Read => {
                self.queued.push_header(|out| terms.reply_read_header(token.to, token.len, out));
                self.queued.push_data(shared, reply.segments, reply.memory.as_ref());
            }
            Ok(()) => self.queued.push_header(|out| terms.reply_ok(token.to, out)),
        }
    }

    /// Nothing is read any more; what is in flight is answered, and then the connection ends.
    pub(crate) fn drain(&mut self) {
        if !matches!(self.phase, Phase::Draining) {
            self.phase = Phase::Draining;
            self.input = Vec::new();
            // Memory that the kernel may write to stays until it says that it won't.
            if !self.filling {
                self.partial = None;
            }
            self.skip = None;
            self.deadline = None;
        }
    }
}

/// Counts an answer and says what its latency is a latency of.
fn count(
    volume: &Volume,
    worker: usize,
    token: &ClientToken,
    reply: &Reply<'_, Memory>,
) -> LatencyClass {
    let counts = &volume.stats[worker].counts;
    let bytes = u64::from(token.len);
    if reply.result.is_err() {
        counts.errors.add(1);
    }
    match token.kind {
        RequestKind::Read => {
            counts.reads.add(1);
            counts.read_bytes.add(bytes);
            match (reply.touched.hits, reply.touched.misses) {
                (_, 0) => {
                    counts.read_hits.add(1);
                    return LatencyClass::Hit;
                }
                (0, _) => counts.read_misses.add(1),
                _ => counts.read_partial_hits.add(1),
            }
            LatencyClass::Miss
        }
        RequestKind::Write { .. } => {
            counts.writes.add(1);
            counts.write_bytes.add(bytes);
            LatencyClass::Write
        }
        RequestKind::Flush => {
            counts.flushes.add(1);
            LatencyClass::Flush
        }
        RequestKind::Trim { .. } => {
            counts.trims.add(1);
            LatencyClass::Write
        }
        RequestKind::Zero { .. } => {
            counts.zeroes.add(1);
            LatencyClass::Write
        }
        RequestKind::Prefetch => {
            counts.prefetches.add(1);
            LatencyClass::Hit
        }
        RequestKind::Destage
        | RequestKind::Checkpoint
        | RequestKind::Sync
        | RequestKind::Order
        | RequestKind::Restore
        | RequestKind::Record
        | RequestKind::RestoreZero { .. } => unreachable!("clients have no words for these"),
    }
}

/// What a client is told along with an error.
const fn explain(error: IoError, kind: RequestKind) -> &'static str {
    match (error, kind) {
        (IoError::Shutdown, _) => "the server is stopping",
        (IoError::NoSpace, _) => "the backing store is full",
        (IoError::Io, RequestKind::Read) => "the backing store failed to read",
        (IoError::Io, RequestKind::Flush) => {
            "the backing store failed to write; what it did not take is still kept"
        }
        (IoError::Io, _) => "the backing store failed to write",
        _ => "",
    }
}
