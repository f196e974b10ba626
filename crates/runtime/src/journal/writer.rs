//! The thread of a journal: writes batches, answers the parts that wait for them, and begins
//! checkpoints.

use super::beats::beat_if_due;
use super::{Journal, TICK, patrol};
use forebay_engine::Answer;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest commit after which the next one is held back.
const SLOW_COMMIT: Duration = Duration::from_millis(1);
/// How long it is held back at most.
const GATHERING_MAX: Duration = Duration::from_millis(1);

impl Journal {
    /// The journal's thread.
    pub(super) fn run(self: &Arc<Self>) {
        let mut answers = Vec::new();
        let mut state = self.lock();
        loop {
            state.core.poll_answers(&mut answers);
            self.post(&mut answers);
            if let Some(members) = state.core.log.unrecorded_loss() {
                drop(state);
                let is_recorded = self.record_loss(&members);
                state = self.lock();
                if !is_recorded {
                    return;
                }
                state.core.log.confirm_loss_recorded();
                continue;
            }
            let gone = std::mem::take(&mut state.gone);
            if gone != [false; 2] {
                for device in (0..2).filter(|&device| gone[device]) {
                    state.core.handle_device_gone(device);
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
            if !state.stopping {
                beat_if_due(self, &mut state);
            }
            if let Some(write) = state.core.log.poll_write() {
                drop(state);
                let began = Instant::now();
                let results = self.devices.write(&write);
                let took = began.elapsed();
                self.commits.record(took.as_nanos() as u64, 1);
                state = self.lock();
                state.core.handle_written(write, results);
                state = self.record_if_failed(state);
                self.checkpoint_if_due(&mut state);
                state.core.poll_answers(&mut answers);
                let is_queued = !answers.is_empty() && !state.core.log.is_idle();
                // Answered without the lock, because the workers take it for their next write.
                drop(state);
                self.post(&mut answers);
                self.written.notify_all();
                if is_queued {
                    std::thread::sleep(gathering_pause(took));
                }
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

    fn post(&self, answers: &mut Vec<Answer>) {
        // Without a host, no worker waits for them.
        let host = self.host.upgrade();
        for answer in answers.drain(..) {
            host.iter().for_each(|host| host.answer(answer));
        }
    }
}

/// How long the next batch is held back after a commit that took this long, for the next writes of
/// the clients that were just answered. Without a pause, the clients split into two halves that
/// take turns, and each commit has the writes of one.
fn gathering_pause(took: Duration) -> Duration {
    match took < SLOW_COMMIT {
        true => Duration::ZERO,
        false => (took / 8).min(GATHERING_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_device_waits_for_no_further_writes_and_a_slow_one_for_an_eighth_of_a_commit() {
        for (took_us, pause_us) in [(0, 0), (999, 0), (1000, 125), (4000, 500), (80_000, 1000)] {
            let pause = gathering_pause(Duration::from_micros(took_us));
            assert_eq!(pause, Duration::from_micros(pause_us), "{took_us}");
        }
    }
}
