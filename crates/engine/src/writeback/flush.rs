//! FLUSH: brings to the disk what was dirty when it came.
//!
//! One flush at a time makes every dirty line owed, and is done when none is owed any more. A line
//! that clients write again meanwhile does not hold it up: data of an operation never changes, so
//! a destage that was current when the flush came, or began later, carries all that was
//! acknowledged before. Flushes that come while one is under way form the next group, as in the
//! commit of a file system's journal: they could not end before it anyway.
//!
//! The marks lie in the set of dirty lines, so a flush takes no memory for each line.

use crate::{Answer, Outbox, Outcome, PartId};
use forebay_types::IoError;

/// The flushes of a volume.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    /// Those that wait for what is owed.
    running: Vec<PartId>,
    /// Those that came since.
    next: Vec<PartId>,
    /// What went wrong for those that run.
    error: Option<IoError>,
}

impl Flushes {
    /// Whether anything waits for what is owed.
    pub(crate) const fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Whether any wait for those that run.
    pub(crate) const fn has_next(&self) -> bool {
        !self.next.is_empty()
    }

    /// Takes a flush in. It starts with the next call of [`Flushes::start_next`].
    pub(crate) fn push(&mut self, part: PartId) {
        self.next.push(part);
    }

    /// Starts those that wait for others, when those are done. Whether there are any: then all
    /// that is dirty is owed.
    pub(crate) fn start_next(&mut self) -> bool {
        if self.is_running() || self.next.is_empty() {
            return false;
        }
        std::mem::swap(&mut self.running, &mut self.next);
        self.error = None;
        true
    }

    /// A line that they wait for can't be brought to the disk.
    pub(crate) const fn fail(&mut self, error: IoError) {
        if self.is_running() && self.error.is_none() {
            self.error = Some(error);
        }
    }

    /// Nothing is owed any more: answers those that waited for that.
    pub(crate) fn answer(&mut self, out: &mut Outbox) {
        assert!(self.is_running(), "flushes are answered that do not run");
        let outcome = Outcome::Done(self.error.take().map_or(Ok(()), Err));
        out.answers.extend(self.running.drain(..).map(|part| Answer { part, outcome }));
    }
}
