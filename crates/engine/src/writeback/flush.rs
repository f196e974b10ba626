//! The flushes of a volume, in groups.
//!
//! A group makes every dirty line owed that waits for a destage, and completes when these have been
//! destaged, and so have the lines that were in a destage when it began. Rewriting a line meanwhile
//! does not delay it: pinned data never changes, so a destage that was in flight when the group
//! began, or starts later, writes everything acknowledged before.
//!
//! A group begins as soon as all lines of the groups before it are in flight, so a flush does not
//! wait for destages in flight before its own ones start. Flushes that arrive earlier than that
//! form the next group, like the commits of a file system's journal.
//!
//! A *checkpoint* of a journal is a flush without urgency: its lines are destaged at the pace of
//! background writeback. Flushes do not wait until the lines of checkpoints are in flight: their
//! group begins at once, and makes everything urgent that is owed to checkpoints before it.
//!
//! Groups are numbered. A destage in flight carries the first group that needs it, and a group
//! counts the destages that it waits for, so a flush takes no memory per line.

use crate::ops::Serves;
use crate::{Answer, Outbox, Outcome, PartId};
use forebay_types::IoError;
use std::ops::RangeInclusive;

/// Flushes that began together.
#[derive(Debug)]
struct FlushGroup {
    number: u64,
    parts: Vec<PartId>,
    /// Whether it has a flush, and not only checkpoints.
    is_urgent: bool,
    /// The first error.
    error: Option<IoError>,
    /// Whether lines may be owed to it.
    is_owed: bool,
    /// The destages in flight that it waits for.
    in_flight: u32,
}

/// The flushes of a volume.
#[derive(Debug)]
pub(crate) struct Flushes {
    /// The groups that have begun, in ascending order. If lines are owed to one, they are to all
    /// that follow.
    groups: Vec<FlushGroup>,
    /// The next group, and whether it has a flush.
    next: Vec<PartId>,
    is_next_urgent: bool,
    /// The number of the last group. Above zero.
    begun: u64,
}

impl Default for Flushes {
    fn default() -> Self {
        Self { groups: Vec::new(), next: Vec::new(), is_next_urgent: false, begun: 1 }
    }
}

impl Flushes {
    /// Whether a group has begun that is not answered.
    pub(crate) const fn is_running(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Whether lines are owed to a group.
    pub(crate) fn is_owed(&self) -> bool {
        self.groups.last().is_some_and(|group| group.is_owed)
    }

    /// Whether lines are owed to a group with a flush.
    pub(crate) fn is_urgent(&self) -> bool {
        self.groups.iter().any(|group| group.is_owed && group.is_urgent)
    }

    /// Whether the next group may begin: no line is owed to an earlier one, or only checkpoints
    /// wait for owed lines, and it has a flush.
    pub(crate) fn may_begin(&self) -> bool {
        let is_free = !self.is_owed() || self.is_next_urgent && !self.is_urgent();
        self.has_next() && is_free
    }

    /// Whether flushes wait for the next group.
    pub(crate) const fn has_next(&self) -> bool {
        !self.next.is_empty()
    }

    /// The number of flushes that are not answered.
    pub(crate) fn len(&self) -> usize {
        self.groups.iter().map(|group| group.parts.len()).sum::<usize>() + self.next.len()
    }

    /// The number of the last group. Above zero.
    pub(crate) const fn begun(&self) -> u64 {
        self.begun
    }

    /// The first group with owed lines, or the one after the last group.
    pub(crate) fn owing(&self) -> u64 {
        let owing = self.groups.iter().find(|group| group.is_owed);
        owing.map_or(self.begun + 1, |group| group.number)
    }

    /// Adds a flush to the next group, or a checkpoint, which is not urgent.
    pub(crate) fn push(&mut self, part: PartId, is_urgent: bool) {
        self.next.push(part);
        self.is_next_urgent |= is_urgent;
    }

    /// Begins the next group if it may. It waits for the `in_flight` destages, and fails if there
    /// is an error. Returns whether it began; the caller then makes all waiting lines owed.
    pub(crate) fn begin_next(&mut self, in_flight: u32, error: Option<IoError>) -> bool {
        if !self.may_begin() {
            return false;
        }
        self.begun += 1;
        let parts = std::mem::take(&mut self.next);
        let is_urgent = std::mem::take(&mut self.is_next_urgent);
        let number = self.begun;
        self.groups.push(FlushGroup { number, parts, is_urgent, error, is_owed: true, in_flight });
        true
    }

    /// Records that no line is owed any more.
    pub(crate) fn end_owing(&mut self) {
        self.groups.iter_mut().for_each(|group| group.is_owed = false);
    }

    /// Whether one of these groups is not answered.
    pub(crate) fn has(&self, numbers: RangeInclusive<u64>) -> bool {
        self.groups.iter().any(|group| numbers.contains(&group.number))
    }

    fn groups_from(&mut self, number: u64) -> impl Iterator<Item = &mut FlushGroup> {
        self.groups.iter_mut().filter(move |group| group.number >= number)
    }

    /// Records that a line is owed to the groups from `number` on.
    pub(crate) fn owe_from(&mut self, number: u64) {
        self.groups_from(number).for_each(|group| group.is_owed = true);
    }

    /// Counts a destage that starts. `is_owed` says whether one of its lines was owed.
    pub(crate) fn count_start(&mut self, is_owed: bool) -> Serves {
        let first = if is_owed { self.owing() } else { self.begun + 1 };
        self.groups_from(first).for_each(|group| group.in_flight += 1);
        Serves { first, last: self.begun }
    }

    /// Counts a destage that has ended.
    pub(crate) fn count_end(&mut self, serves: Serves) {
        self.groups_from(serves.first).for_each(|group| {
            assert!(group.in_flight > 0, "a destage ends once");
            group.in_flight -= 1;
        });
    }

    /// Records an error for these groups. The first error counts.
    pub(crate) fn fail(&mut self, numbers: RangeInclusive<u64>, error: IoError) {
        let groups = self.groups.iter_mut().filter(|group| numbers.contains(&group.number));
        groups.for_each(|group| group.error = group.error.or(Some(error)));
    }

    /// Answers the groups of which no line is owed and no destage in flight.
    pub(crate) fn answer(&mut self, out: &mut Outbox) {
        let waits = |group: &FlushGroup| group.is_owed || group.in_flight > 0;
        let done = self.groups.iter().position(waits).unwrap_or(self.groups.len());
        for group in self.groups.drain(..done) {
            let outcome = Outcome::Done(group.error.map_or(Ok(()), Err));
            out.answers.extend(group.parts.into_iter().map(|part| Answer { part, outcome }));
        }
    }
}
