//! Kills of the process, after which its pool remains.
//!
//! A kill may occur between any two memory steps of a call, or within a sector. The further effects
//! of the killed process are ignored.

use super::run::Run;
use crate::harness::shard::{PoolSnapshot, PooledShard};
use forebay_engine::{MemoryStep, Slot};
use forebay_types::SECTOR_BYTES;

/// The maximum number of sectors that are copied before a scheduled kill.
const SECTORS_MAX: u64 = 40;
/// A scheduled kill that has not interrupted a memory step after this number of events occurs
/// between two events.
const EVENTS_MAX: u64 = 100;

#[derive(Default)]
pub(crate) struct Kill {
    /// Sectors to be copied until a scheduled kill.
    sectors_left: Option<u64>,
    /// Events since the kill was scheduled.
    events: u64,
    /// What the process left, if it has been killed and the next one has not started.
    pool: Option<PoolSnapshot>,
}

impl Kill {
    pub(crate) fn schedule(&mut self, run: &mut Run) {
        self.sectors_left = Some(run.dice.below(SECTORS_MAX));
        self.events = 0;
    }

    pub(crate) const fn cancel(&mut self) {
        self.sectors_left = None;
    }

    /// Counts an event. Returns whether the kill occurs after it.
    pub(crate) fn is_due_after_event(&mut self) -> bool {
        self.events += 1;
        self.sectors_left.is_some() && self.events > EVENTS_MAX
    }

    /// Counts the sectors of a memory step. If the kill occurs in this step, returns the part of
    /// the step before it, and the slot and offset of the sector that it may tear.
    pub(crate) fn cut(&mut self, mut step: MemoryStep) -> Option<(MemoryStep, Slot, u32)> {
        let left = self.sectors_left?;
        let (slot, offset, len) = match &mut step {
            MemoryStep::Fill { slot: to, offset, len, .. }
            | MemoryStep::Copy { to, offset, len, .. } => (*to, *offset, len),
            MemoryStep::Verify { .. } => return None,
        };
        let sectors = u64::from(*len) / SECTOR_BYTES;
        if left >= sectors {
            self.sectors_left = Some(left - sectors);
            return None;
        }
        *len = left as u32 * SECTOR_BYTES as u32;
        let torn = offset + *len;
        self.sectors_left = None;
        Some((step, slot, torn))
    }

    /// Kills the process now.
    pub(crate) fn kill(&mut self, shards: &[PooledShard]) {
        self.pool = Some(shards.iter().map(PooledShard::snapshot).collect());
        self.sectors_left = None;
    }

    /// Whether the process has been killed, although the current call continues.
    pub(crate) const fn is_dead(&self) -> bool {
        self.pool.is_some()
    }

    /// Takes what the killed process left.
    pub(crate) fn take_pool(&mut self) -> PoolSnapshot {
        self.pool.take().expect("the process was killed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: u32 = SECTOR_BYTES as u32;

    const fn fill(offset: u32, len: u32) -> MemoryStep {
        MemoryStep::Fill { slot: 3, offset, payload_offset: 0, len }
    }

    #[test]
    fn a_kill_cuts_the_step_that_copies_its_last_sector() {
        let mut kill = Kill { sectors_left: Some(5), ..Kill::default() };
        assert_eq!(kill.cut(fill(0, 3 * SECTOR)), None);
        let cut = kill.cut(fill(2 * SECTOR, 4 * SECTOR));
        assert_eq!(cut, Some((fill(2 * SECTOR, 2 * SECTOR), 3, 4 * SECTOR)));
        assert_eq!(kill.cut(fill(0, 8 * SECTOR)), None);
    }

    #[test]
    fn a_kill_without_memory_steps_occurs_after_some_events() {
        let mut kill = Kill { sectors_left: Some(5), ..Kill::default() };
        assert!((0..EVENTS_MAX).all(|_| !kill.is_due_after_event()));
        assert!(kill.is_due_after_event());
        kill.kill(&[]);
        assert!(kill.is_dead() && !kill.is_due_after_event());
        assert!(kill.take_pool().is_empty());
        assert!(!kill.is_dead());
    }
}
