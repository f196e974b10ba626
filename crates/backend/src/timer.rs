//! Scheduled events, run by a thread as punctually as the system permits.
//!
//! The thread sets its timer slack to the minimum (the default of 50 µs is the latency of a fast
//! disk) and spins for the last few microseconds. The first event starts the thread, and dropping
//! the [`Timer`] ends it. Pending events are then dropped, which answers their I/O with an error.

use crate::sync::lock;
use crate::thread_pool::join_unless_self;
use forebay_threads::Thread;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long before an event the thread begins to spin instead of sleeping. A sleep overruns by
/// about this much on an idle machine; spinning longer would take the core from the thread that
/// handles the event.
const SPIN_NS: u64 = 5_000;

/// A scheduled action.
pub(crate) type TimerAction = Box<dyn FnOnce() + Send>;

/// Schedules events, and owns the thread that runs them.
pub(crate) struct Timer {
    handle: TimerHandle,
}

/// A non-owning handle, for example for events that schedule others.
#[derive(Clone)]
pub(crate) struct TimerHandle {
    shared: Arc<TimerShared>,
}

struct TimerShared {
    started: Instant,
    state: Mutex<TimerState>,
    wake: Condvar,
}

struct TimerState {
    events: BinaryHeap<TimerEntry>,
    /// The sequence number of the next event; events of the same time keep their order.
    next_number: u64,
    thread: Option<JoinHandle<()>>,
    is_stopping: bool,
}

struct TimerEntry {
    at_ns: u64,
    number: u64,
    event: TimerAction,
}

impl Ord for TimerEntry {
    /// Reversed: the heap pops the greatest entry, which must be the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.number).cmp(&(self.at_ns, self.number))
    }
}

impl PartialOrd for TimerEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for TimerEntry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for TimerEntry {}

impl Timer {
    /// A timer whose clock starts now at zero.
    pub(crate) fn new() -> Self {
        let state = TimerState {
            events: BinaryHeap::new(),
            next_number: 0,
            thread: None,
            is_stopping: false,
        };
        let shared =
            TimerShared { started: Instant::now(), state: Mutex::new(state), wake: Condvar::new() };
        Self { handle: TimerHandle { shared: Arc::new(shared) } }
    }

    /// A handle that does not keep the thread alive.
    pub(crate) fn handle(&self) -> &TimerHandle {
        &self.handle
    }
}

impl Timer {
    /// Drops all events, and waits for the running one.
    pub(crate) fn stop(&self) {
        let mut state = lock(&self.handle.shared.state);
        state.is_stopping = true;
        let (thread, events) = (state.thread.take(), std::mem::take(&mut state.events));
        drop(state);
        self.handle.shared.wake.notify_all();
        drop(events);
        if let Some(thread) = thread {
            join_unless_self(thread);
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl TimerHandle {
    /// The time since the timer was created, in nanoseconds.
    pub(crate) fn now_ns(&self) -> u64 {
        self.shared.started.elapsed().as_nanos() as u64
    }

    /// Schedules `event` for `at_ns`, or as soon as possible after it. Events run one at a time on
    /// the timer's thread and must not block. A stopped timer drops the event.
    pub(crate) fn schedule(&self, at_ns: u64, event: TimerAction) {
        let mut state = lock(&self.shared.state);
        if state.is_stopping {
            drop(state);
            return;
        }
        if state.thread.is_none() {
            let shared = self.shared.clone();
            let thread = Thread::named("timer").spawn(move || shared.serve());
            match thread {
                Ok(thread) => state.thread = Some(thread),
                Err(error) => {
                    drop(state);
                    tracing::error!(%error, "cannot start the timer thread");
                    return;
                }
            }
        }
        let number = state.next_number;
        state.next_number += 1;
        let is_earliest = state.events.peek().is_none_or(|first| at_ns < first.at_ns);
        state.events.push(TimerEntry { at_ns, number, event });
        drop(state);
        if is_earliest {
            self.shared.wake.notify_one();
        }
    }
}

impl TimerShared {
    fn serve(&self) {
        // On failure, sleeps are only less exact.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut state = lock(&self.state);
        while !state.is_stopping {
            let now_ns = self.started.elapsed().as_nanos() as u64;
            let wait_ns = state.events.peek().map(|first| first.at_ns.saturating_sub(now_ns));
            match wait_ns {
                None => state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(0) => {
                    let entry = state.events.pop();
                    drop(state);
                    if let Some(entry) = entry {
                        (entry.event)();
                    }
                    state = lock(&self.state);
                }
                Some(ns) if ns <= SPIN_NS => {
                    // An earlier event may arrive meanwhile: spin briefly, then check again.
                    drop(state);
                    std::hint::spin_loop();
                    state = lock(&self.state);
                }
                Some(ns) => {
                    let sleep = Duration::from_nanos(ns - SPIN_NS);
                    let woken = self.wake.wait_timeout(state, sleep);
                    state = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn events_come_in_the_order_of_their_times_and_never_early() {
        let timer = Timer::new();
        let (sender, receiver) = mpsc::channel();
        let start_ns = timer.handle().now_ns() + 2_000_000;
        // Scheduled in reverse order, in pairs of the same time.
        for number in (0..50u64).rev() {
            let at_ns = start_ns + number / 2 * 20_000;
            let (sender, handle) = (sender.clone(), timer.handle().clone());
            let event = move || {
                assert!(handle.now_ns() >= at_ns);
                sender.send(number / 2).unwrap();
            };
            timer.handle().schedule(at_ns, Box::new(event));
        }
        let order: Vec<u64> = receiver.iter().take(50).collect();
        assert_eq!(order, (0..50).map(|number| number / 2).collect::<Vec<u64>>());
    }

    #[test]
    fn a_dropped_timer_drops_its_events() {
        let timer = Timer::new();
        let handle = timer.handle().clone();
        let held = Arc::new(());
        for _ in 0..2 {
            let in_event = held.clone();
            handle.schedule(u64::MAX, Box::new(move || drop(in_event)));
        }
        assert_eq!(Arc::strong_count(&held), 3);
        drop(timer);
        let in_event = held.clone();
        handle.schedule(0, Box::new(move || drop(in_event)));
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
