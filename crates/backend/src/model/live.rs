//! A modelled disk in real time: data from a store, timing from the model.
//!
//! An I/O is submitted to the model and to the store together, and answered when both have
//! completed, so that the modelled time hides the time of the store. The I/O therefore takes effect
//! when it starts rather than when it ends; for a caller, that looks like a fast I/O with a slow
//! answer.

use super::{ArraySpec, DiskModel};
use crate::count::{IoCount, IoCounter};
use crate::sync::lock;
use crate::timer::{Timer, TimerHandle};
use crate::{Backend, Description, DiskSize, Io, IoToken};
use forebay_types::IoResult;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A store with the timing of a modelled disk.
pub struct ModelBackend {
    driver: Arc<ModelDriver>,
    inner: Arc<dyn Backend>,
    count: IoCounter,
    description: Description,
    array: Option<ArraySpec>,
    timer: Timer,
}

struct ModelDriver {
    state: Mutex<ModelState>,
    timer: TimerHandle,
}

struct ModelState {
    model: Box<dyn DiskModel>,
    in_flight: HashMap<u64, ModelIo>,
    next_id: u64,
    /// The earliest time at which the timer polls the model.
    armed_ns: Option<u64>,
}

/// An I/O that waits for model, store or both.
enum ModelIo {
    /// Waits for both.
    Both,
    /// Waits for the store.
    Store,
    /// Waits for the model; the store has answered.
    Model(IoToken, IoResult),
}

impl ModelBackend {
    /// Gives the store `inner` the timing of `model`. The store must be at least as large as the
    /// modelled disk, and should be faster. Messages use `name`; `size_bytes` is the size of the
    /// disk.
    pub fn new(
        name: &str,
        inner: Arc<dyn Backend>,
        model: Box<dyn DiskModel>,
        size_bytes: u64,
    ) -> Self {
        let mut description = inner.description().clone();
        assert!(size_bytes <= description.size_bytes(), "the store is smaller than the disk");
        description.name = name.to_owned();
        description.size = DiskSize::new(size_bytes);
        let array = model.array().copied();
        description.geometry = model.geometry();
        let timer = Timer::new();
        let state = ModelState { model, in_flight: HashMap::new(), next_id: 0, armed_ns: None };
        let driver = ModelDriver { state: Mutex::new(state), timer: timer.handle().clone() };
        let driver = Arc::new(driver);
        Self { driver, inner, count: IoCounter::default(), description, array, timer }
    }

    /// The layout of the array, if the disk is one.
    pub const fn array(&self) -> Option<&ArraySpec> {
        self.array.as_ref()
    }
}

impl Backend for ModelBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        let Some(mut io) = io.admit(&self.description) else { return };
        self.count.add(&io);
        let id = self.driver.start(self.timer.handle().now_ns(), &io);
        let driver = self.driver.clone();
        io.done = io.done.then(move |result, done| driver.on_store_done(id, done, result));
        self.inner.submit(io);
    }

    fn below(&self) -> Option<&dyn Backend> {
        Some(&*self.inner)
    }

    fn io_count(&self) -> Option<IoCount> {
        Some(self.count.get())
    }
}

impl ModelDriver {
    /// Submits an I/O to the model.
    fn start(self: &Arc<Self>, now_ns: u64, io: &Io) -> u64 {
        let mut state = lock(&self.state);
        let id = state.next_id;
        state.next_id += 1;
        state.in_flight.insert(id, ModelIo::Both);
        state.model.enqueue(now_ns, id, io.kind, io.offset, io.len);
        self.arm(&mut state);
        id
    }

    /// Schedules the timer for the next completion, unless it fires earlier anyway.
    fn arm(self: &Arc<Self>, state: &mut ModelState) {
        let Some(next_ns) = state.model.next_completion() else { return };
        if state.armed_ns.is_none_or(|armed_ns| next_ns < armed_ns) {
            state.armed_ns = Some(next_ns);
            let driver = self.clone();
            self.timer.schedule(next_ns, Box::new(move || driver.tick()));
        }
    }

    /// Polls the model, and answers the I/Os that the store has completed too.
    fn tick(self: &Arc<Self>) {
        let mut answers = Vec::new();
        let mut state = lock(&self.state);
        let now_ns = self.timer.now_ns();
        if state.armed_ns.is_some_and(|armed_ns| armed_ns <= now_ns) {
            state.armed_ns = None;
        }
        while let Some(id) = state.model.pop(now_ns) {
            match state.in_flight.remove(&id) {
                Some(ModelIo::Model(done, result)) => answers.push((done, result)),
                Some(ModelIo::Both) => drop(state.in_flight.insert(id, ModelIo::Store)),
                Some(ModelIo::Store) | None => unreachable!("the model completed an I/O twice"),
            }
        }
        self.arm(&mut state);
        drop(state);
        answers.into_iter().for_each(|(done, result)| done.complete(result));
    }

    /// Handles an I/O that the store has completed.
    fn on_store_done(&self, id: u64, done: IoToken, result: IoResult) {
        let mut state = lock(&self.state);
        if let Some(ModelIo::Store) = state.in_flight.remove(&id) {
            drop(state);
            done.complete(result);
        } else {
            state.in_flight.insert(id, ModelIo::Model(done, result));
        }
    }
}

impl Drop for ModelBackend {
    fn drop(&mut self) {
        // Without the timer, I/Os that wait for the model would wait forever. Dropping them answers
        // them; the timer is stopped first, so that no event accesses them meanwhile.
        self.timer.stop();
        let in_flight = std::mem::take(&mut lock(&self.driver.state).in_flight);
        drop(in_flight);
    }
}
