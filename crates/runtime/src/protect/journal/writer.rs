//! The thread of a journal: writes batches, answers the parts that wait for them, and begins
//! checkpoints.

use super::{Journal, TICK, patrol};
use crate::shared::Message;
use forebay_engine::{Answer, Outcome, PartId};
use forebay_journal::Notification;
use forebay_types::IoError;
use forebay_volume::worker_of;
use std::sync::Arc;
use std::time::Instant;

impl Journal {
    /// The journal's thread.
    pub(super) fn run(self: &Arc<Self>) {
        let mut notices = Vec::new();
        let mut state = self.lock();
        loop {
            state.log.poll_notifications(&mut notices);
            self.answer(notices.drain(..).map(|(part, notice)| answer_of(part, notice)));
            if let Some(members) = state.log.unrecorded_loss() {
                drop(state);
                let is_recorded = self.record_loss(&members);
                state = self.lock();
                if !is_recorded {
                    return;
                }
                state.log.confirm_loss_recorded();
                continue;
            }
            let gone = std::mem::take(&mut state.gone);
            if gone != [false; 2] {
                for device in (0..2).filter(|&device| gone[device]) {
                    state.log.fail_device(device, IoError::Io, &mut notices);
                }
                state = self.record_if_failed(state);
                self.written.notify_all();
                continue;
            }
            if self.patrol.wants_repair() {
                drop(state);
                patrol::Patrol::repair(self);
                state = self.lock();
            }
            if let Some(write) = state.log.poll_write() {
                drop(state);
                let began = Instant::now();
                let results = self.devices.write(&write);
                self.commits.record(began.elapsed().as_nanos() as u64, 1);
                state = self.lock();
                state.log.complete_on(write, results, &mut notices);
                state = self.record_if_failed(state);
                self.checkpoint_if_due(&mut state);
                // Answered without the lock, because the workers take it for their next write.
                drop(state);
                self.answer(notices.drain(..).map(|(part, notice)| answer_of(part, notice)));
                self.written.notify_all();
                state = self.lock();
                continue;
            }
            if state.stopping {
                return;
            }
            self.checkpoint_if_due(&mut state);
            // There is nothing to write, or no space until a checkpoint ends.
            state.is_asleep = true;
            state = self.wakeup.wait_timeout(state, TICK);
            state.is_asleep = false;
        }
    }

    pub(super) fn answer(&self, answers: impl Iterator<Item = Answer>) {
        for answer in answers {
            let worker = usize::from(worker_of(answer.part));
            self.inboxes[worker].post(Message::Answer(answer));
        }
    }
}

fn answer_of(part: PartId, notice: Notification) -> Answer {
    let outcome = match notice {
        Notification::Durable => Outcome::Done(Ok(())),
        Notification::Lost(_) => Outcome::JournalFailed,
        Notification::Retry => Outcome::Retry(None),
    };
    Answer { part, outcome }
}
