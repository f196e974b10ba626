//! The flushes of a volume, one group at a time.
//!
//! A flush makes every dirty line owed, and completes when none is owed any more. Rewriting a line
//! meanwhile does not delay the flush: pinned data never changes, so a destage that was in flight
//! when the flush arrived, or starts later, writes everything acknowledged before the flush.
//! Flushes that arrive while a group is running form the next group, like the commits of a file
//! system's journal; they could not complete before that group anyway.
//!
//! A *checkpoint* of a journal is a flush without urgency: its lines are destaged at the pace of
//! background writeback. Flushes do not wait for a group of checkpoints, but join it, which makes
//! it urgent and starts it over with everything dirty by then.
//!
//! The owed marks are in the set of dirty lines, so a flush takes no memory per line.

use crate::{Answer, Outbox, Outcome, PartId};
use forebay_types::IoError;

/// The flushes of a volume.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    /// The running group, which waits for the owed lines.
    running: Vec<PartId>,
    /// Whether the running group has a flush, and not only checkpoints.
    is_urgent: bool,
    /// The next group, and whether it has a flush.
    next: Vec<PartId>,
    is_next_urgent: bool,
    /// The first error of the running group.
    error: Option<IoError>,
}

impl Flushes {
    /// Whether a group is running.
    pub(crate) const fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Whether a group with a flush is running.
    pub(crate) const fn is_urgent(&self) -> bool {
        self.is_running() && self.is_urgent
    }

    /// Whether a flush is about to join a running group of checkpoints that has failed. The group
    /// is answered before, because its error does not concern the flush.
    pub(crate) const fn has_failed_before_flush(&self) -> bool {
        self.may_join() && self.error.is_some()
    }

    /// Whether the next group, which has a flush, joins the running one, which has none.
    const fn may_join(&self) -> bool {
        self.is_running() && !self.is_urgent && self.is_next_urgent
    }

    /// Whether flushes wait for the running group.
    pub(crate) const fn has_next(&self) -> bool {
        !self.next.is_empty()
    }

    /// Adds a flush to the next group, or a checkpoint, which is not urgent.
    pub(crate) fn push(&mut self, part: PartId, is_urgent: bool) {
        self.next.push(part);
        self.is_next_urgent |= is_urgent;
    }

    /// Starts the next group, unless one is running that it may not join. Returns whether it did;
    /// the caller then makes all dirty lines owed.
    pub(crate) fn start_next(&mut self) -> bool {
        if self.next.is_empty() || self.is_running() && !self.may_join() {
            return false;
        }
        assert!(self.error.is_none(), "an error of flushes that were answered");
        self.running.append(&mut self.next);
        self.is_urgent = std::mem::take(&mut self.is_next_urgent);
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
