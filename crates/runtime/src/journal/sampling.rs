//! Samples the disks of a journal's volumes after checkpoints, so that the next start recognises
//! them.

use super::Journal;
use crate::disk::sample;
use forebay_format::journal::Samples;
use forebay_threads::Thread;
use forebay_types::IoResult;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long closing a disk waits for a thread that samples it.
const SAMPLING_TIMEOUT: Duration = Duration::from_secs(5);

impl Journal {
    /// Ends a checkpoint of a volume. If it has succeeded, starts a thread that renews the stale
    /// samples of the volume's disk.
    pub(crate) fn destaged(self: &Arc<Self>, number: u16, result: IoResult) {
        let mut state = self.lock();
        if state.core.log.failed().is_some() {
            return;
        }
        state.core.end_checkpoint(number, result);
        let waits_for = &mut state.urgent.waits_for;
        if let Some(at) = waits_for.iter().position(|&other| other == number) {
            waits_for.remove(at);
            state.urgent.is_due = true;
        }
        self.wakeup.notify_all();
        let (epoch, places) = state.core.log.stale_places(number);
        let disk = state.disks.iter().find(|(other, ..)| *other == number);
        let is_worth_it = result.is_ok() && !places.is_empty() && !state.sampling.contains(&number);
        let Some((_, disk, reads)) = disk.filter(|_| is_worth_it).cloned() else {
            return;
        };
        state.sampling.push(number);
        drop(state);
        let journal = Arc::clone(self);
        let work = move || {
            let samples = sample(&*disk, &places, &reads);
            drop(disk);
            journal.sampled(number, Some((epoch, samples)));
        };
        if Thread::named("sample").spawn(work).is_err() {
            self.sampled(number, None);
        }
    }

    fn sampled(&self, number: u16, samples: Option<(u64, Samples)>) {
        let mut state = self.lock();
        let at = state.sampling.iter().position(|&other| other == number);
        state.sampling.swap_remove(at.expect("a disk is sampled by one thread at a time"));
        if let Some((epoch, samples)) = samples
            && state.core.log.failed().is_none()
        {
            state.core.log.store_samples(number, epoch, samples);
        }
        self.unlock_and_wake(state);
        self.written.notify_all();
    }

    /// Closes the disk of a volume, or of all, and waits until no thread samples it, but not for
    /// a disk that hangs. It can then be opened elsewhere.
    pub(crate) fn release_disks(&self, number: Option<u16>) {
        let is_selected = |other: &u16| number.is_none_or(|number| number == *other);
        let begun = Instant::now();
        let mut state = self.lock();
        state.disks.retain(|(other, ..)| !is_selected(other));
        while state.sampling.iter().any(is_selected) && begun.elapsed() < SAMPLING_TIMEOUT {
            state = self.written.wait_timeout(state, SAMPLING_TIMEOUT / 50);
        }
    }
}
