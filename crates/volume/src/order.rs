//! The epochs of an ordered volume, across its shards.
//!
//! A FLUSH or a write with FUA *cuts*: it increments the epoch number, and later writes belong to
//! the new epoch. A write reads the current number at any moment between its arrival and its
//! answer. So a write answered before a flush arrived has a lower number than the one that the
//! flush sets, and a write that arrives after the flush's answer has that number or a higher one. A
//! cut calls no shard.
//!
//! At most one *run* per volume destages epochs, oldest first: it flushes the disk, destages the
//! epoch from all shards, and repeats.

use forebay_engine::{Answer, Outcome, PartId};
use forebay_types::IoError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What happens to a waiting part once all epochs before its own are on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterEpochs {
    /// Retry it with [`forebay_engine::Attempt::in_order`] set.
    Retry,
    Answer,
}

#[derive(Debug, Default)]
struct OrderState {
    is_running: bool,
    /// Runs begun so far.
    runs: u64,
    waiters: Vec<EpochWaiter>,
    /// The highest epoch of all urgent waiters so far.
    demanded: u64,
    /// The value of `demanded` when the shards were last notified.
    expedited: u64,
}

#[derive(Clone, Copy, Debug)]
struct EpochWaiter {
    epoch: u64,
    part: PartId,
    then: AfterEpochs,
    /// Runs begun when the part started to wait.
    runs: u64,
}

/// The epochs of one volume, shared by its workers. See the module's description.
#[derive(Debug)]
pub struct EpochOrder {
    current: AtomicU64,
    drained: AtomicU64,
    state: Mutex<OrderState>,
}

impl Default for EpochOrder {
    fn default() -> Self {
        Self { current: AtomicU64::new(1), drained: AtomicU64::new(1), state: Mutex::default() }
    }
}

impl EpochOrder {
    /// The open epoch.
    pub fn epoch(&self) -> u64 {
        self.current.load(Ordering::SeqCst)
    }

    /// Closes the open epoch and returns the number of the next one.
    pub fn cut(&self) -> u64 {
        self.current.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The epoch below which all epochs are on the disk's stable storage.
    pub fn drained(&self) -> u64 {
        self.drained.load(Ordering::SeqCst)
    }

    /// Returns whether all epochs before `epoch` are on stable storage. If not, the part waits for
    /// them.
    pub(crate) fn wait(
        &self,
        epoch: u64,
        part: PartId,
        then: AfterEpochs,
        is_urgent: bool,
    ) -> bool {
        assert!(epoch <= self.epoch(), "no run drains epoch {epoch}, as it has not begun");
        let mut state = self.state();
        let is_drained = self.drained() >= epoch;
        if !is_drained {
            let runs = state.runs;
            state.waiters.push(EpochWaiter { epoch, part, then, runs });
            if is_urgent {
                state.demanded = state.demanded.max(epoch);
            }
        }
        is_drained
    }

    /// The epoch below which the shards are to destage all epochs without delay, because urgent
    /// parts wait for them; `None` if the shards were already notified of it.
    pub(crate) fn take_demand(&self) -> Option<u64> {
        let mut state = self.state();
        let is_new = state.demanded > state.expedited;
        state.expedited = state.demanded;
        is_new.then_some(state.demanded)
    }

    /// Begins a run unless one is in progress. Returns whether it did.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.state();
        let is_new = !state.is_running;
        state.is_running = true;
        state.runs += u64::from(is_new);
        is_new
    }

    /// Records that all epochs below `epoch` are on stable storage, and answers the parts that
    /// waited for that.
    pub(crate) fn advance(&self, epoch: u64, answers: &mut Vec<Answer>) {
        assert!(epoch <= self.epoch(), "epoch {epoch} has not begun");
        let mut state = self.state();
        assert!(state.is_running, "only a run drains epochs");
        self.drained.fetch_max(epoch, Ordering::SeqCst);
        state.waiters.retain(|waiter| {
            let outcome = match waiter.then {
                AfterEpochs::Retry => Outcome::InOrder,
                AfterEpochs::Answer => Outcome::Done(Ok(())),
            };
            let is_drained = waiter.epoch <= epoch;
            answers.extend(is_drained.then_some(Answer { part: waiter.part, outcome }));
            !is_drained
        });
    }

    /// Ends the run. If it failed, the parts that waited before it began fail too. Parts that came
    /// later wait for another run: the error may concern only older writes. Returns whether any
    /// part waits.
    pub(crate) fn end(&self, error: Option<IoError>, answers: &mut Vec<Answer>) -> bool {
        let mut state = self.state();
        assert!(state.is_running, "a run ends once");
        state.is_running = false;
        let runs = state.runs;
        if let Some(error) = error {
            let outcome = Outcome::Done(Err(error));
            let failed = state.waiters.extract_if(.., |waiter| waiter.runs < runs);
            answers.extend(failed.map(|waiter| Answer { part: waiter.part, outcome }));
        }
        !state.waiters.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, OrderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_answered_when_all_epochs_before_it_are_drained() {
        let order = EpochOrder::default();
        assert_eq!(order.epoch(), 1);
        assert!(order.wait(1, PartId(1), AfterEpochs::Retry, true), "no epoch precedes the first");
        assert_eq!(order.cut(), 2);
        assert!(!order.wait(2, PartId(2), AfterEpochs::Retry, true));
        assert!(!order.wait(order.cut(), PartId(3), AfterEpochs::Answer, true));
        assert_eq!((order.take_demand(), order.take_demand()), (Some(3), None));
        assert!(order.begin() && !order.begin());
        let mut answers = Vec::new();
        order.advance(2, &mut answers);
        assert_eq!(answers, [Answer { part: PartId(2), outcome: Outcome::InOrder }]);
        assert!(order.end(None, &mut answers), "part 3 still waits");
        assert!(order.begin());
        assert!(!order.wait(order.cut(), PartId(4), AfterEpochs::Retry, true));
        assert!(order.end(Some(IoError::Io), &mut answers), "part 4 came after the run began");
        let failed = Outcome::Done(Err(IoError::Io));
        assert_eq!(answers[1..], [Answer { part: PartId(3), outcome: failed }]);
        assert_eq!(order.drained(), 2);
    }
}
