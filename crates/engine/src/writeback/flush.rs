//! The flushes of a volume, one group at a time.
//!
//! A flush makes every dirty line owed, and completes when none is owed any more. Rewriting a line
//! meanwhile does not delay the flush: pinned data never changes, so a destage that was in flight
//! when the flush arrived, or starts later, writes everything acknowledged before the flush.
//! Flushes that arrive while a group is running form the next group, like the commits of a file
//! system's journal; they could not complete before that group anyway.
//!
//! The owed marks are in the set of dirty lines, so a flush takes no memory per line.

use crate::{Answer, Outbox, Outcome, PartId};
use forebay_types::IoError;

/// The flushes of a volume.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    /// The running group, which waits for the owed lines.
    running: Vec<PartId>,
    /// The next group.
    next: Vec<PartId>,
    /// The first error of the running group.
    error: Option<IoError>,
}

impl Flushes {
    /// Whether a group is running.
    pub(crate) const fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Whether flushes wait for the running group.
    pub(crate) const fn has_next(&self) -> bool {
        !self.next.is_empty()
    }

    /// Adds a flush to the next group.
    pub(crate) fn push(&mut self, part: PartId) {
        self.next.push(part);
    }

    /// Starts the next group, unless one is running. Returns whether it did; the caller then makes
    /// all dirty lines owed.
    pub(crate) fn start_next(&mut self) -> bool {
        if self.is_running() || self.next.is_empty() {
            return false;
        }
        assert!(self.error.is_none(), "an error of flushes that were answered");
        std::mem::swap(&mut self.running, &mut self.next);
        true
    }

    /// Records an error for the running group, if there is one. The first error counts.
    pub(crate) const fn fail(&mut self, error: IoError) {
        if self.is_running() && self.error.is_none() {
            self.error = Some(error);
        }
    }

    /// Answers the running group. No line is owed any more.
    pub(crate) fn answer(&mut self, out: &mut Outbox) {
        assert!(self.is_running(), "no flush is running");
        let outcome = Outcome::Done(self.error.take().map_or(Ok(()), Err));
        out.answers.extend(self.running.drain(..).map(|part| Answer { part, outcome }));
    }
}
