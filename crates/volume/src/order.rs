//! Epochs of a volume that is destaged in order, for all its shards together.
//!
//! A FLUSH, or a write with FUA, *cuts*: from the number it draws on, what is written belongs to
//! another epoch. A write asks for the number at any moment between its arrival and its answer. So
//! what was answered before a flush came has a smaller number than the flush, and what came after
//! its answer has no smaller one; no shard has to be visited for it.
//!
//! One *run* at a time brings epochs to the disk, oldest first: what the disk was given before to
//! stable storage, then all of the epoch from all shards, and so on.

use forebay_engine::{Answer, Outcome, PartId};
use forebay_types::IoError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a part waits for an epoch for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// To be tried again, as one that is in order.
    Turn,
    /// To be answered.
    Verdict,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    /// Runs that have begun.
    runs: u64,
    waiting: Vec<Waiting>,
}

/// Somebody who waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    epoch: u64,
    part: PartId,
    want: Want,
    /// Runs that had begun when it came.
    runs: u64,
}

/// See the module's description. Shared by all who serve the volume.
#[derive(Debug)]
pub struct Order {
    current: AtomicU64,
    drained: AtomicU64,
    state: Mutex<State>,
}

impl Default for Order {
    fn default() -> Self {
        Self { current: AtomicU64::new(1), drained: AtomicU64::new(1), state: Mutex::default() }
    }
}

impl Order {
    /// The epoch that a write belongs to now.
    pub fn epoch(&self) -> u64 {
        self.current.load(Ordering::SeqCst)
    }

    /// Ends the epoch; returns the number of the new one.
    pub fn cut(&self) -> u64 {
        self.current.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Everything of the epochs below this number is on the disk's stable storage.
    pub fn drained(&self) -> u64 {
        self.drained.load(Ordering::SeqCst)
    }

    /// Waits until everything of the epochs before `epoch` is on stable storage. Returns whether it
    /// is; otherwise the part is told.
    pub(crate) fn wait(&self, epoch: u64, part: PartId, want: Want) -> bool {
        let mut state = self.state();
        let is_there = self.drained() >= epoch;
        if !is_there {
            let runs = state.runs;
            state.waiting.push(Waiting { epoch, part, want, runs });
        }
        is_there
    }

    /// Whether a run may begin, which it has then.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.state();
        let may = !state.is_running;
        state.is_running = true;
        state.runs += u64::from(may);
        may
    }

    /// Everything below `epoch` is on stable storage: tells who waited for that.
    pub(crate) fn advance(&self, epoch: u64, answers: &mut Vec<Answer>) {
        let mut state = self.state();
        self.drained.fetch_max(epoch, Ordering::SeqCst);
        state.waiting.retain(|waiting| {
            let outcome = match waiting.want {
                Want::Turn => Outcome::InOrder,
                Want::Verdict => Outcome::Done(Ok(())),
            };
            let is_there = waiting.epoch <= epoch;
            answers.extend(is_there.then_some(Answer { part: waiting.part, outcome }));
            !is_there
        });
    }

    /// The run is over. If it has failed, everybody is told who came before it began: the fault may
    /// be older than the others. Returns whether somebody waits for another one.
    pub(crate) fn end(&self, error: Option<IoError>, answers: &mut Vec<Answer>) -> bool {
        let mut state = self.state();
        state.is_running = false;
        let runs = state.runs;
        if let Some(error) = error {
            let outcome = Outcome::Done(Err(error));
            let failed = state.waiting.extract_if(.., |waiting| waiting.runs < runs);
            answers.extend(failed.map(|waiting| Answer { part: waiting.part, outcome }));
        }
        !state.waiting.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_when_everything_before_is_there() {
        let order = Order::default();
        assert_eq!(order.epoch(), 1);
        assert!(order.wait(1, PartId(1), Want::Turn), "there is nothing before the first epoch");
        assert_eq!(order.cut(), 2);
        assert!(!order.wait(2, PartId(2), Want::Turn));
        assert!(!order.wait(order.cut(), PartId(3), Want::Verdict));
        assert!(order.begin() && !order.begin());
        let mut answers = Vec::new();
        order.advance(2, &mut answers);
        assert_eq!(answers, [Answer { part: PartId(2), outcome: Outcome::InOrder }]);
        assert!(order.end(None, &mut answers), "somebody is left");
        assert!(order.begin());
        assert!(!order.wait(order.cut(), PartId(4), Want::Turn));
        assert!(order.end(Some(IoError::Io), &mut answers), "somebody came after it began");
        let failed = Outcome::Done(Err(IoError::Io));
        assert_eq!(answers[1..], [Answer { part: PartId(3), outcome: failed }]);
        assert_eq!(order.drained(), 2);
    }
}
