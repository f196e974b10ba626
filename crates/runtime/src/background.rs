//! The shares of the processors and of the disks that background work may use.
//!
//! Background work is what no client waits for: the patrols, warm-ups, pins and preloads, the warm
//! lists, and writeback without urgency. The owner of the runtime measures what other programs need
//! and sets the shares ([`crate::Runtime::set_background`]); each user of a share slows itself
//! down. Reads of the disk heed both shares, because a read takes processor time, too. Background
//! threads do not run at a lower priority, because they hold locks that workers need, and because a
//! client may wait for a background read of the same line.

use forebay_types::BackgroundShare;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// The shares that background work may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackgroundShares {
    /// Of the processors.
    pub processors: BackgroundShare,
    /// Of the disks.
    pub disks: BackgroundShare,
}

impl BackgroundShares {
    /// Whether both are the full share.
    pub const fn are_full(self) -> bool {
        self.processors.is_full() && self.disks.is_full()
    }
}

/// The shares, as threads read them.
#[derive(Debug)]
pub(crate) struct Background {
    processors: AtomicU8,
    disks: AtomicU8,
    /// Whether processors are free, so that workers may look for events instead of sleeping.
    has_spare: AtomicBool,
    /// See [`Background::polled_us`].
    polled_us: AtomicU64,
}

impl Default for Background {
    fn default() -> Self {
        let full = BackgroundShare::Full as u8;
        let (processors, disks) = (AtomicU8::new(full), AtomicU8::new(full));
        Self { processors, disks, has_spare: AtomicBool::new(false), polled_us: AtomicU64::new(0) }
    }
}

impl Background {
    pub(crate) fn set(&self, shares: BackgroundShares) {
        self.processors.store(shares.processors as u8, Ordering::Relaxed);
        self.disks.store(shares.disks as u8, Ordering::Relaxed);
    }

    pub(crate) fn set_spare_processors(&self, has_spare: bool) {
        self.has_spare.store(has_spare, Ordering::Relaxed);
    }

    /// Whether processors are free.
    pub(crate) fn has_spare_processors(&self) -> bool {
        self.has_spare.load(Ordering::Relaxed)
    }

    /// Counts time in which a worker looked for events instead of sleeping.
    pub(crate) fn count_polling(&self, time: Duration) {
        self.polled_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// The time in which workers looked for events instead of sleeping, in microseconds.
    pub(crate) fn polled_us(&self) -> u64 {
        self.polled_us.load(Ordering::Relaxed)
    }

    /// The share of the processors.
    pub(crate) fn processors(&self) -> BackgroundShare {
        BackgroundShare::ALL[usize::from(self.processors.load(Ordering::Relaxed))]
    }

    /// The share of the disks.
    pub(crate) fn disks(&self) -> BackgroundShare {
        BackgroundShare::ALL[usize::from(self.disks.load(Ordering::Relaxed))]
    }

    /// The share for work that takes both, such as reads into the pool.
    pub(crate) fn both(&self) -> BackgroundShare {
        self.processors().min(self.disks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BackgroundShare::{Full, Least, Reduced};

    #[test]
    fn work_that_takes_both_has_the_smaller_share() {
        let background = Background::default();
        assert_eq!((background.processors(), background.both()), (Full, Full));
        for processors in BackgroundShare::ALL {
            for disks in BackgroundShare::ALL {
                let shares = BackgroundShares { processors, disks };
                background.set(shares);
                assert_eq!((background.processors(), background.disks()), (processors, disks));
                assert_eq!(background.both(), processors.min(disks));
                assert_eq!(shares.are_full(), background.both() == Full);
            }
        }
        assert!(Least < Reduced && Reduced < Full);
    }
}
