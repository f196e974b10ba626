//! Clients that wait for the limits of their volume.
//!
//! The limits are shared by all workers, see [`RequestLimiter`]. A client that waits holds no
//! memory: it is asked for before memory is. The worker of the client that has the turn knows when
//! that may try again, and wakes it with a timer of the reactor; the others are woken by the client
//! before them.
//!
//! [`RequestLimiter`]: forebay_policy::RequestLimiter

use super::{Client, ClientTable, Context};
use crate::platform::reactor::Reactor;
use crate::shared::Shared;
use crate::worker::WorkerHost;
use forebay_frontend::{ClientId, FrontEnd};
use forebay_policy::Passage;
use forebay_volume::RequestKind;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What a client's state is with respect to the limits of its volume.
#[derive(Default)]
pub(super) struct LimitedClient {
    /// Since when its next request has waited. While it is set, the client is in the queue.
    since: Option<Instant>,
    /// Its next request has passed, and may wait for memory.
    has_passed: bool,
    /// The turn is its own, until the end of the worker's turn at the latest.
    has_turn: bool,
}

impl LimitedClient {
    pub(super) const fn is_waiting(&self) -> bool {
        self.since.is_some()
    }

    /// Notes that the next request is another one.
    pub(super) const fn submitted(&mut self) {
        self.has_passed = false;
    }
}

/// The clients of a worker that a limit concerns now.
#[derive(Default)]
pub(super) struct LimitedClients {
    /// When a client may try again. Few: one for each volume with a limit.
    timers: Vec<(Instant, ClientId)>,
    /// Clients that may have the turn.
    turns: Vec<ClientId>,
}

impl LimitedClients {
    fn set_timer(&mut self, at: Instant, id: ClientId) {
        match self.timers.iter_mut().find(|(_, client)| *client == id) {
            Some(timer) => timer.0 = at,
            None => self.timers.push((at, id)),
        }
    }

    /// Takes a client whose time has come.
    fn take_due(&mut self, now: Instant) -> Option<ClientId> {
        let due = self.timers.iter().position(|(at, _)| *at <= now)?;
        Some(self.timers.swap_remove(due).1)
    }
}

impl ClientTable {
    /// When the first client may try again.
    pub(crate) fn next_limited(&self) -> Option<Instant> {
        self.limited.timers.iter().map(|(at, _)| *at).min()
    }
}

impl Client {
    /// Leaves the queue for the limits of its volume, if it is in it, and gives up its turn.
    pub(super) fn leave_limits(&mut self, shared: &Shared, waiter: crate::budget::Waiter) {
        let was_waiting = self.limited.since.take().is_some();
        let had_turn = std::mem::take(&mut self.limited.has_turn);
        if (was_waiting || had_turn)
            && let Some(volume) = &self.volume
        {
            shared.wake_waiter(volume.limits.cancel(waiter));
        }
    }
}

/// The bytes of a request that a limit counts; `None` for a request that it does not count.
const fn counted_bytes(kind: RequestKind, len: u64) -> Option<u64> {
    match kind {
        RequestKind::Flush => None,
        RequestKind::Read | RequestKind::Write { .. } => Some(len),
        _ => Some(0),
    }
}

impl<R: Reactor> Context<'_, R> {
    /// Whether the limits of its volume let the next request of a client pass. If not, the client
    /// is woken.
    // Inlined: without limits, it is a load.
    #[inline(always)]
    pub(super) fn passes_limits(&mut self, id: ClientId, kind: RequestKind, len: u64) -> bool {
        let Some(client) = self.host.clients.get(id) else { return true };
        let Some(volume) = &client.volume else { return true };
        if !volume.limits.are_set() && !client.limited.is_waiting() {
            return true;
        }
        self.pass_limits(id, kind, len)
    }

    #[cold]
    fn pass_limits(&mut self, id: ClientId, kind: RequestKind, len: u64) -> bool {
        let waiter = (self.host.worker, id.number, id.generation);
        let WorkerHost { shared, clients, worker, now, .. } = &mut *self.host;
        let Some(client) = clients.get_mut(id) else { return true };
        let Some(volume) = &client.volume else { return true };
        let bytes = match counted_bytes(kind, len) {
            Some(bytes) => bytes,
            None if volume.limits.is_held() => 0,
            None => return true,
        };
        let is_ending =
            shared.stopping.load(Ordering::Relaxed) || volume.is_closed.load(Ordering::Relaxed);
        if client.limited.has_passed {
            return true;
        }
        if is_ending {
            // The request is refused, or left to the next server. Nothing waits for it.
            client.leave_limits(shared, waiter);
            return true;
        }
        match volume.limits.pass(waiter, bytes, *now) {
            Passage::Passes { has_turn, wakes } => {
                if let Some(since) = client.limited.since.take() {
                    let counts = &volume.stats[*worker].counts;
                    counts.limited.add(1);
                    counts.limited_us.add(now.saturating_duration_since(since).as_micros() as u64);
                }
                client.limited.has_passed = true;
                client.limited.has_turn = has_turn;
                shared.wake_waiter(wakes);
                if has_turn {
                    clients.limited.turns.push(id);
                }
                true
            }
            Passage::Waits { ns } => {
                client.limited.since.get_or_insert(*now);
                client.limited.has_turn = false;
                if let Some(ns) = ns {
                    clients.limited.set_timer(*now + Duration::from_nanos(ns), id);
                }
                false
            }
        }
    }

    /// Wakes the clients whose time has come.
    pub(crate) fn wake_limited<F: FrontEnd>(&mut self, front: &mut F) {
        while let Some(client) = self.host.clients.limited.take_due(self.host.now) {
            if self.host.clients.is_waiting(client) {
                front.memory_free(self, client);
            }
        }
    }

    /// Ends the turns of clients that have submitted what they have.
    pub(crate) fn end_limited_turns(&mut self) {
        let WorkerHost { shared, clients, worker, .. } = &mut *self.host;
        while let Some(id) = clients.limited.turns.pop() {
            let Some(client) = clients.get_mut(id) else { continue };
            if std::mem::take(&mut client.limited.has_turn)
                && let Some(volume) = &client.volume
            {
                let waiter = (*worker, id.number, id.generation);
                shared.wake_waiter(volume.limits.end_turn(waiter));
            }
        }
    }
}
