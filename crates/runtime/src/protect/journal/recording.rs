//! The calls with which workers record their writes. [`Journal::record`] is called under the lock
//! of the shard, the others without it.

use super::{Journal, State};
use crate::locks::Locked;
use forebay_engine::{Answer, Note, NoteKind, Outcome, Part, PartId};
use forebay_format::journal::RecordKind;
use forebay_journal::{Admission as LogAdmission, Entry, RecordOutcome};
use forebay_types::{Durability, IoError};
use forebay_volume::Admission;

impl Journal {
    /// Requests a permit to record a write.
    pub(crate) fn admit(
        &self,
        number: u16,
        part: &Part,
        fua: bool,
        durability: Durability,
    ) -> Admission {
        let mut state = self.lock();
        if !state.log.invalidate_samples(number, part.range, part.id) {
            self.unlock_and_wake(state);
            return Admission::Wait;
        }
        match state.log.admit(number, part.range.len, part.id) {
            LogAdmission::Granted => {
                Admission::Logged { is_awaited: fua || durability == Durability::Ack }
            }
            LogAdmission::Wait => Admission::Wait,
            LogAdmission::Failed if !state.failure_recorded => {
                state.deferred.push(Answer { part: part.id, outcome: Outcome::Retry(None) });
                Admission::Wait
            }
            LogAdmission::Full | LogAdmission::Failed => Admission::Through,
        }
    }

    /// Returns an unused permit.
    pub(crate) fn withdraw(&self) {
        let mut state = self.lock();
        state.log.withdraw();
        self.unlock_and_wake(state);
    }

    /// See [`forebay_volume::Host::barrier`].
    pub(crate) fn barrier(&self, part: PartId) -> Result<bool, IoError> {
        let mut state = self.lock();
        let waits = state.log.barrier(part);
        if waits.is_err() && !state.failure_recorded {
            state.deferred.push(Answer { part, outcome: Outcome::JournalFailed });
            return Ok(false);
        }
        waits
    }

    /// Records a note, with the bytes of a write in pieces. Returns the answer to its part, if it
    /// does not wait.
    pub(crate) fn record<'a>(
        &self,
        number: u16,
        note: &Note,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Answer> {
        let mut state = self.lock();
        let part = note.part;
        let entry = |kind| Entry { kind, volume: number, range: note.range };
        let kind = match note.kind {
            NoteKind::Write { .. } => RecordKind::Write,
            NoteKind::Zero { unmap } => RecordKind::Zero { unmap },
            NoteKind::Discard => RecordKind::Discard,
            NoteKind::Forget => RecordKind::Forget,
        };
        let noted = match note.kind {
            NoteKind::Write { wait, .. } => {
                match state.log.append(entry(kind), pieces, wait.then_some(part)) {
                    // A write that does not wait is acknowledged after this call, whether or not
                    // the log took it. Only a FLUSH guarantees that it is recorded.
                    false if wait => RecordOutcome::Refused,
                    _ => RecordOutcome::Recorded,
                }
            }
            _ => state.log.record(entry(kind), Some(part)),
        };
        let mut answer = match noted {
            RecordOutcome::Recorded => None,
            RecordOutcome::Unneeded => Some(Answer { part, outcome: Outcome::Done(Ok(())) }),
            RecordOutcome::Refused => Some(Answer { part, outcome: Outcome::JournalFailed }),
            RecordOutcome::NoSpace => {
                let result = Err(IoError::NoSpace);
                Some(Answer { part, outcome: Outcome::Done(result) })
            }
        };
        let is_known = state.failure_recorded || state.log.failed().is_none();
        if noted == RecordOutcome::Refused && !is_known {
            state.deferred.extend(answer.take());
        }
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
