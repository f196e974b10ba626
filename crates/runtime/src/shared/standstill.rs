//! A moment in which no worker handles an event.

use super::{Message, Shared, Tasks};
use crate::platform::locks::{LazyCondvar, Lock, assert_may_wait};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest wait for the last worker. The others handle nothing meanwhile.
const GATHER_MAX: Duration = Duration::from_millis(200);

/// The workers that stand still.
#[derive(Default)]
struct Standstill {
    state: Lock<StandstillState>,
    changed: LazyCondvar,
}

#[derive(Default)]
struct StandstillState {
    arrived: usize,
    /// Workers that do not agree.
    against: usize,
    is_over: bool,
}

impl Standstill {
    /// Called by a worker. Returns at the end of the standstill.
    fn join(&self, agrees: bool) {
        let mut state = self.state.lock();
        if state.is_over {
            return;
        }
        state.arrived += 1;
        state.against += usize::from(!agrees);
        self.changed.notify_all();
        while !state.is_over {
            state = self.changed.wait(state);
        }
    }

    /// Waits for the workers. Returns whether all of them stand still and agree.
    fn gather(&self, workers: usize) -> bool {
        let begun = Instant::now();
        let mut state = self.state.lock();
        while state.arrived < workers && state.against == 0 {
            let left = GATHER_MAX.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left);
        }
        state.against == 0
    }
}

/// Ends a standstill when it is dropped.
struct Ending<'a>(&'a Standstill);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    /// Calls `act` while no worker handles an event, if all workers agree. It must be quick, and
    /// wait for nothing but locks. Returns `None` if a worker does not agree, or is busy with one
    /// event for too long.
    pub(crate) fn at_standstill<T>(
        &self,
        agrees: impl Fn(&mut dyn Tasks) -> bool + Clone + Send + 'static,
        act: impl FnOnce() -> T,
    ) -> Option<T> {
        assert_may_wait();
        let standstill = Arc::new(Standstill::default());
        let _ending = Ending(&standstill);
        for inbox in &self.inboxes {
            let (standstill, agrees) = (Arc::clone(&standstill), agrees.clone());
            inbox.post(Message::Task(Box::new(move |tasks: &mut dyn Tasks| {
                standstill.join(agrees(tasks));
            })));
        }
        standstill.gather(self.inboxes.len()).then(act)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{MIB, quiet_config};
    use crate::{Runtime, RuntimeConfig};
    use forebay_frontend_nbd::NbdServer;

    #[test]
    fn all_workers_stand_still_or_nothing_is_done() {
        let config = RuntimeConfig { workers: 3, ..quiet_config(64 * MIB) };
        let runtime = Runtime::start(config, &NbdServer::new()).unwrap();
        let shared = runtime.shared();
        let answers = || shared.answers_within(Duration::from_millis(20));
        assert_eq!(shared.at_standstill(|_| true, answers), Some(false));
        assert!(answers(), "the workers continue");
        assert_eq!(shared.at_standstill(|_| false, || ()), None);
        assert!(answers(), "the workers continue");
        // One worker is busy.
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let busy = move |_: &mut dyn Tasks| assert!(receiver.recv().is_err());
        shared.inboxes[1].post(Message::Task(Box::new(busy)));
        assert_eq!(shared.at_standstill(|_| true, || ()), None);
        drop(sender);
        assert_eq!(shared.at_standstill(|_| true, || ()), Some(()));
        runtime.stop(|_| ()).unwrap();
    }
}
