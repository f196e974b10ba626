//! Whether the journal's records of a volume are as new as the data in the pool.
//!
//! A sector that is lost in memory is restored from its newest record. A process that serves a
//! volume records each change, so the newest record of a sector has the lost data. An adopted pool
//! is different: with `durability=flush`, the newest records may have been lost with the previous
//! process, and an older record would bring back overwritten data. So nothing is restored until the
//! adopted data has been recorded again and, if sectors were lost before that, until no sector is
//! lost any more. A restore needs [`NewestRecords`] as proof, and only this module makes one.

use std::sync::atomic::{AtomicU8, Ordering};

/// Adopted data is being recorded again.
const RECORDING: u8 = 0;
/// Sectors were lost before they were recorded again, and older records of them may exist.
const STALE: u8 = 1;
/// The newest record of each lost sector has the data that was lost.
const NEWEST: u8 = 2;

/// Proof that the journal's newest record of each lost sector of a volume has the lost data.
#[derive(Clone, Copy, Debug)]
pub struct NewestRecords(());

/// Whether the records of a volume are as new as its data in the pool.
#[derive(Debug)]
pub struct Freshness(AtomicU8);

impl Freshness {
    /// The state of a volume that is being added. `is_recording` says that its data in the adopted
    /// pool will be recorded again.
    pub const fn new(is_recording: bool) -> Self {
        Self(AtomicU8::new(if is_recording { RECORDING } else { NEWEST }))
    }

    /// Ends the recording of adopted data. `is_newest` says whether the newest record of each
    /// sector that is lost now, if it has one, has the lost data.
    ///
    /// # Panics
    /// If no recording is in progress.
    pub fn end_recording(&self, is_newest: bool) {
        let next = if is_newest { NEWEST } else { STALE };
        let before = self.0.swap(next, Ordering::AcqRel);
        assert_eq!(before, RECORDING, "a recording is in progress");
    }

    /// The proof that lost sectors may be restored. It stays valid: once records are the newest,
    /// they stay so.
    pub fn newest(&self) -> Option<NewestRecords> {
        (self.0.load(Ordering::Acquire) == NEWEST).then_some(NewestRecords(()))
    }

    /// Whether a flush must not rely on the journal, because it may lack records of lost sectors.
    /// `has_lost` says whether sectors are lost now: once there are none, the records are the
    /// newest.
    pub fn is_stale(&self, has_lost: impl FnOnce() -> bool) -> bool {
        if self.0.load(Ordering::Acquire) != STALE {
            return false;
        }
        let is_stale = has_lost();
        if !is_stale {
            self.0.store(NEWEST, Ordering::Release);
        }
        is_stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_the_newest_once_nothing_older_can_be_restored() {
        assert!(Freshness::new(false).newest().is_some());
        for is_newest in [false, true] {
            let freshness = Freshness::new(true);
            assert!(!freshness.is_stale(|| false) && freshness.newest().is_none());
            freshness.end_recording(is_newest);
            assert_eq!(freshness.newest().is_some(), is_newest);
            assert_eq!(freshness.is_stale(|| true), !is_newest);
            assert_eq!(freshness.newest().is_some(), is_newest);
            assert!(!freshness.is_stale(|| false) && freshness.newest().is_some());
            assert!(!freshness.is_stale(|| true));
        }
    }
}
