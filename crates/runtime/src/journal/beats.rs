//! The beats of a journal: its superblock is written again every few seconds, so that a host which
//! reads it sees that the owner lives. The fence that keeps a former owner from writing the journal
//! also ends its beats.
//!
//! They come from the thread that writes the log, and so they end with whatever keeps that from
//! writing: a dead process, a device that hangs, a journal that has failed.

use super::{Journal, State};
use forebay_journal::{beat, promise_beats};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An interval in milliseconds, zero for none. The thread looks ten times a second.
pub(super) fn millis(every: Option<Duration>) -> u32 {
    every.map_or(0, |every| u32::try_from(every.as_millis()).unwrap_or(u32::MAX).max(1))
}

/// Sets the interval of a journal's beats, which another host learns from the journal; `None` ends
/// them.
pub fn beat_every(journal: &Journal, every: Option<Duration>) {
    journal.beat_every_ms.store(millis(every), Ordering::Relaxed);
}

pub(super) fn beat_if_due(journal: &Journal, state: &mut State) {
    let every_ms = journal.beat_every_ms.load(Ordering::Relaxed);
    promise_beats(&mut state.core.log, every_ms);
    let now = Instant::now();
    if every_ms > 0 && now - state.beat_at >= Duration::from_millis(every_ms.into()) {
        state.beat_at = now;
        beat(&mut state.core.log);
    }
}
