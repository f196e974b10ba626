//! The permitted content of the disk of an ordered volume, without pool and journal.
//!
//! The rule is that of a disk with a volatile cache after a power failure: if a write is there,
//! then everything that had been flushed before its submission is there as well. The history knows
//! when requests were submitted and answered, but not the epochs.

use crate::harness::dice::{Dice, Ppm};
use crate::harness::oracle::{ZERO, describe_stamp};
use std::collections::{BTreeMap, BTreeSet};

/// The end of a request that is in flight or has failed.
const NEVER: u32 = u32::MAX;
/// The maximum number of changes kept. After more, the volume is not checked until the next process
/// starts.
const ENTRIES_MAX: usize = 400_000;

#[derive(Clone, Copy, Debug)]
struct Change {
    /// `None` for a trim: any content is possible.
    stamp: Option<u64>,
    submitted: u32,
    ended: u32,
    fua: bool,
}

/// All changes of one volume since its process started.
#[derive(Debug, Default)]
pub(crate) struct History {
    sectors: BTreeMap<u64, Vec<Change>>,
    /// Acknowledged flushes: submission and answer.
    flushes: Vec<(u32, u32)>,
    /// Sectors with content damaged in memory: the rule does not apply to them.
    damaged: BTreeSet<u64>,
    entries: usize,
}

impl History {
    pub(crate) fn submit(&mut self, sector: u64, stamp: Option<u64>, fua: bool, now: u32) {
        self.entries += 1;
        if self.entries <= ENTRIES_MAX {
            let change = Change { stamp, submitted: now, ended: NEVER, fua };
            self.sectors.entry(sector).or_default().push(change);
        }
    }

    /// Records the acknowledgement of a change.
    pub(crate) fn end(&mut self, sector: u64, submitted: u32, now: u32) {
        let changes = self.sectors.get_mut(&sector).into_iter().flatten();
        changes.filter(|change| change.submitted == submitted).for_each(|c| c.ended = now);
    }

    pub(crate) fn flush(&mut self, submitted: u32, now: u32) {
        self.flushes.push((submitted, now));
    }

    pub(crate) fn damage(&mut self, sector: u64) {
        self.damaged.insert(sector);
    }

    /// A sector whose content breaks the rule, and a message.
    pub(crate) fn first_violation(&self, disk: &[u64]) -> Option<(u64, String)> {
        if self.entries > ENTRIES_MAX {
            return None;
        }
        // Zeroes may have been written before, or more than once: they prove nothing.
        let is = |change: &Change, found: u64| match change.stamp {
            Some(stamp) => stamp == found,
            None => found == ZERO,
        };
        let newest = self.sectors.iter().filter_map(|(&sector, changes)| {
            let found = disk[sector as usize];
            let change = changes.iter().find(|change| found != ZERO && is(change, found))?;
            Some((change.submitted, sector))
        });
        let (newest, witness) = newest.max()?;
        let before = self.flushes.iter().filter(|(_, ended)| *ended < newest);
        let barrier = before.map(|(submitted, _)| *submitted).max().unwrap_or(0);
        let sound = self.sectors.iter().filter(|(sector, _)| !self.damaged.contains(sector));
        for (&sector, changes) in sound {
            let found = disk[sector as usize];
            let there = changes.iter().filter(|change| is(change, found));
            let ended = there.map(|change| change.ended).max().unwrap_or(0);
            // After a trim, any content is permitted.
            let trimmed = |at: u32| changes.iter().any(|c| c.stamp.is_none() && c.ended >= at);
            let missing = changes.iter().find(|change| {
                let due = change.ended < barrier || change.fua && change.ended < newest;
                due && change.submitted > ended && !trimmed(change.submitted)
            });
            if let Some(change) = missing {
                let message = format!(
                    "the disk alone has {} in sector {sector}, not the change submitted at {}, \
                     answered at {} and flushed at {barrier}, although sector {witness} has the \
                     change submitted at {newest}",
                    describe_stamp(found),
                    change.submitted,
                    change.ended
                );
                return Some((sector, message));
            }
        }
        None
    }
}

/// The content of a disk after a power failure: each sector of its cache survives or not.
pub(crate) fn crash_image(
    stable: &[u64],
    content: &[u64],
    survive: Ppm,
    dice: &mut Dice,
) -> Vec<u64> {
    let pick = |(&stable, &content): (&u64, &u64)| {
        if stable != content && dice.chance(survive) { content } else { stable }
    };
    stable.iter().zip(content).map(pick).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_flushed_before_a_present_write_are_present() {
        let mut history = History::default();
        history.submit(0, Some(10), false, 1);
        history.end(0, 1, 2);
        history.submit(1, Some(11), false, 3);
        history.end(1, 3, 4);
        history.flush(5, 6);
        history.submit(2, Some(12), false, 7);
        for (disk, is_right) in [
            ([0, 0, 0], true),
            ([10, 0, 0], true),
            ([0, 11, 0], true),
            ([10, 11, 12], true),
            ([10, 0, 12], false),
            ([0, 0, 12], false),
        ] {
            assert_eq!(history.first_violation(&disk).is_none(), is_right, "{disk:?}");
        }
    }

    #[test]
    fn a_fua_write_precedes_later_writes_and_implies_no_others() {
        let mut history = History::default();
        history.submit(0, Some(10), false, 1);
        history.end(0, 1, 2);
        history.submit(1, Some(11), true, 3);
        history.end(1, 3, 4);
        history.submit(2, Some(12), false, 5);
        assert_eq!(history.first_violation(&[0, 11, 12]), None);
        assert_eq!(history.first_violation(&[10, 0, 12]).map(|(sector, _)| sector), Some(1));
    }
}
