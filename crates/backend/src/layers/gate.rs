//! A gate that stops I/O at a known moment, for tests.
//!
//! An open gate passes everything. Closed for some kinds, it holds their I/O until the test
//! releases or fails it; held I/O does not reach the backend below. Extent queries, which block
//! their caller, can be held as well.

use super::{Kinds, describe};
use crate::sync::lock;
use crate::{Backend, Description, Extent, Io, IoKind};
use forebay_types::{ByteRange, IoError};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A backend whose I/O a test can hold.
pub struct Gate {
    state: Mutex<GateState>,
    arrived: Condvar,
    inner: Arc<dyn Backend>,
    description: Description,
}

struct GateState {
    closed: Kinds,
    held: VecDeque<Io>,
    are_extents_closed: bool,
    /// Extent queries that have arrived and have not been passed on.
    extents_held: usize,
}

/// A held I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldIo {
    pub kind: IoKind,
    /// Its range of the store.
    pub range: ByteRange,
}

impl Gate {
    /// An open gate in front of `inner`.
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        let state = GateState {
            closed: Kinds::NONE,
            held: VecDeque::new(),
            are_extents_closed: false,
            extents_held: 0,
        };
        let description = describe("gate", &*inner);
        let (state, arrived) = (Mutex::new(state), Condvar::new());
        Arc::new(Self { state, arrived, inner, description })
    }

    /// Holds I/O of `kinds` from now on, and passes all other kinds. I/O already held stays held.
    pub fn close(&self, kinds: Kinds) {
        lock(&self.state).closed = kinds;
    }

    /// Opens the gate: passes the held I/O, and everything that arrives from now on.
    pub fn open(&self) {
        loop {
            let mut state = lock(&self.state);
            if state.held.is_empty() {
                (state.closed, state.are_extents_closed) = (Kinds::NONE, false);
                break;
            }
            // Otherwise new I/O would overtake the held I/O.
            state.closed = Kinds::ALL;
            drop(state);
            self.release_all();
        }
        self.arrived.notify_all();
    }

    /// Holds extent queries until the gate is opened.
    pub fn close_extents(&self) {
        lock(&self.state).are_extents_closed = true;
    }

    /// The held I/O, in the order of arrival.
    pub fn held(&self) -> Vec<HeldIo> {
        let held = |io: &Io| HeldIo { kind: io.kind, range: io.range() };
        lock(&self.state).held.iter().map(held).collect()
    }

    /// Waits until at least `count` I/Os are held. Returns false after `time`.
    #[must_use]
    pub fn wait_held(&self, count: usize, time: Duration) -> bool {
        self.wait_for(time, |state| state.held.len() >= count)
    }

    /// Waits until at least `count` extent queries are held. Returns false after `time`.
    #[must_use]
    pub fn wait_extents_held(&self, count: usize, time: Duration) -> bool {
        self.wait_for(time, |state| state.extents_held >= count)
    }

    fn wait_for(&self, time: Duration, condition: impl Fn(&GateState) -> bool) -> bool {
        let deadline = Instant::now() + time;
        let mut state = lock(&self.state);
        while !condition(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.arrived.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Passes on the `index`th held I/O. Returns false if there is none.
    pub fn release(&self, index: usize) -> bool {
        let io = lock(&self.state).held.remove(index);
        io.map(|io| self.inner.submit(io)).is_some()
    }

    /// Passes on all held I/O, in the order of arrival. The gate stays closed.
    pub fn release_all(&self) {
        let held = std::mem::take(&mut lock(&self.state).held);
        held.into_iter().for_each(|io| self.inner.submit(io));
    }

    /// Fails the `index`th held I/O, which never reaches the backend below. Returns false if there
    /// is none.
    pub fn fail(&self, index: usize, error: IoError) -> bool {
        let io = lock(&self.state).held.remove(index);
        io.map(|io| io.done.complete(Err(error))).is_some()
    }

    /// Fails all held I/O.
    pub fn fail_all(&self, error: IoError) {
        let held = std::mem::take(&mut lock(&self.state).held);
        held.into_iter().for_each(|io| io.done.complete(Err(error)));
    }
}

impl Backend for Gate {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        let mut state = lock(&self.state);
        if state.closed.contains(io.kind) {
            state.held.push_back(io);
            drop(state);
            self.arrived.notify_all();
        } else {
            drop(state);
            self.inner.submit(io);
        }
    }

    fn below(&self) -> Option<&dyn Backend> {
        Some(&*self.inner)
    }

    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        let mut state = lock(&self.state);
        state.extents_held += 1;
        self.arrived.notify_all();
        while state.are_extents_closed {
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.extents_held -= 1;
        drop(state);
        self.inner.extents(range)
    }
}
