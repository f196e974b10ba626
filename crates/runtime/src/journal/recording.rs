//! The calls with which workers record their writes. [`Journal::record`] is called under the lock
//! of the shard, the others without it.

use super::{Journal, State};
use crate::platform::locks::Locked;
use forebay_engine::{Answer, JournalRequest, Part, PartId};
use forebay_journal::LogAdmission;
use forebay_types::IoError;

impl Journal {
    /// Requests a permit to record a write.
    pub(crate) fn admit(&self, number: u16, part: &Part) -> LogAdmission {
        let mut state = self.lock();
        let admission = state.core.admit(number, part);
        if admission == LogAdmission::Wait {
            self.unlock_and_wake(state);
        }
        admission
    }

    /// Whether a range of the volume's disk may be erased now. If not, the part is retried later.
    pub(crate) fn admit_erase(&self, number: u16, part: &Part) -> bool {
        let mut state = self.lock();
        let may = state.core.admit_erase(number, part);
        if !may {
            self.unlock_and_wake(state);
        }
        may
    }

    /// Returns an unused permit.
    pub(crate) fn withdraw(&self) {
        let mut state = self.lock();
        state.core.log.withdraw();
        self.unlock_and_wake(state);
    }

    /// See [`forebay_volume::Host::barrier`].
    pub(crate) fn barrier(&self, part: PartId) -> Result<bool, IoError> {
        self.lock().core.barrier(part)
    }

    /// Carries out a request, with the bytes of a write in pieces. Returns the answer to its part,
    /// if it does not wait.
    pub(crate) fn record<'a>(
        &self,
        number: u16,
        request: &JournalRequest,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Answer> {
        let mut state = self.lock();
        let is_attached = state.volumes.iter().any(|&(other, _)| other == number);
        debug_assert!(is_attached, "a volume is detached after its last write");
        let answer = state.core.record(number, request, pieces);
        self.unlock_and_wake(state);
        answer
    }

    /// Releases the lock, then wakes the thread if it sleeps. In the other order the thread would
    /// block on the lock at once.
    pub(crate) fn unlock_and_wake(&self, mut state: Locked<'_, State>) {
        let is_asleep = std::mem::take(&mut state.is_asleep);
        drop(state);
        if is_asleep {
            self.wakeup.notify_all();
        }
    }

    /// Wakes the thread if it sleeps, for a caller that keeps the lock.
    pub(crate) fn wake(&self, state: &mut State) {
        if std::mem::take(&mut state.is_asleep) {
            self.wakeup.notify_all();
        }
    }
}
