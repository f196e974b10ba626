//! The writes that a server may keep in a volatile cache, and what a flush promises about them.
//!
//! A server that was unreachable for a moment may have been restarted, and its cache with it. So
//! the writes that it had answered, and that no flush had covered, may be lost.
//!
//! **Promise:** a flush succeeds only if each write answered before its submission is on stable
//! storage, or another flush that covers the write has failed and was answered before the
//! submission. So a client that flushes after its write learns that the write was lost.

use forebay_types::{IoError, IoResult};

/// The writes answered so far, numbered from one in the order of their answers.
#[derive(Debug, Default)]
pub(super) struct VolatileWrites {
    /// The number of writes answered.
    answered: u64,
    /// All writes up to this number are on stable storage, or a failed flush has reported them.
    settled: u64,
    /// Writes up to this number that are not settled may be lost.
    doubted: u64,
}

/// The writes that a flush covers: those answered before its submission.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cover {
    answered: u64,
    /// All writes up to this number were settled when the flush was submitted.
    settled: u64,
}

impl VolatileWrites {
    /// Records the answer to a write.
    pub(super) const fn record_answer(&mut self) {
        self.answered += 1;
    }

    /// The writes that a flush submitted now covers.
    pub(super) const fn cover(&self) -> Cover {
        Cover { answered: self.answered, settled: self.settled }
    }

    /// Records that the server may have been restarted. Returns whether writes may be lost.
    pub(super) const fn on_restart(&mut self) -> bool {
        let is_any_unsettled = self.answered > self.settled;
        if is_any_unsettled {
            self.doubted = self.answered;
        }
        is_any_unsettled
    }

    /// The result of a flush with this cover, which the server has answered with success.
    pub(super) fn end_flush(&mut self, cover: Cover) -> IoResult {
        assert!(cover.settled <= self.settled && cover.answered <= self.answered);
        self.settled = self.settled.max(cover.answered);
        let is_any_doubted = cover.answered.min(self.doubted) > cover.settled;
        if is_any_doubted { Err(IoError::Io) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A write in the model of the promise.
    #[derive(Clone, Copy)]
    struct Write {
        is_stable: bool,
        is_lost: bool,
        is_reported: bool,
    }

    /// A flush in flight, and the writes answered before it that were not reported yet.
    struct Flush {
        cover: Cover,
        unreported: Vec<usize>,
    }

    proptest! {
        #[test]
        fn no_flush_succeeds_while_a_write_that_it_covers_is_lost_and_unreported(
            steps in prop::collection::vec((0..4u8, any::<prop::sample::Index>()), 1..60)
        ) {
            let mut writes: Vec<Write> = Vec::new();
            let mut flushes: Vec<Flush> = Vec::new();
            let mut tracked = VolatileWrites::default();
            for (step, which) in steps {
                match step {
                    0 => {
                        let write = Write { is_stable: false, is_lost: false, is_reported: false };
                        writes.push(write);
                        tracked.record_answer();
                    }
                    1 => {
                        let is_unreported = |at: &usize| !writes[*at].is_reported;
                        let unreported = (0..writes.len()).filter(is_unreported).collect();
                        flushes.push(Flush { cover: tracked.cover(), unreported });
                    }
                    2 => {
                        // The cache ends with the server; flushes in flight are resent.
                        writes.iter_mut().for_each(|write| write.is_lost |= !write.is_stable);
                        tracked.on_restart();
                    }
                    _ if flushes.is_empty() => {}
                    _ => {
                        let at = which.index(flushes.len());
                        let Flush { cover, unreported } = flushes.remove(at);
                        let is_lost = unreported.iter().any(|at| writes[*at].is_lost);
                        let result = tracked.end_flush(cover);
                        prop_assert!(result.is_err() || !is_lost);
                        for (at, write) in writes.iter_mut().enumerate() {
                            // The server has everything in its cache on stable storage now.
                            write.is_stable |= !write.is_lost;
                            write.is_reported |= result.is_err() && unreported.contains(&at);
                        }
                    }
                }
            }
            // A loss is reported once: then a flush succeeds.
            let cover = tracked.cover();
            let _ = tracked.end_flush(cover);
            let cover = tracked.cover();
            prop_assert_eq!(tracked.end_flush(cover), Ok(()));
            prop_assert!(!tracked.on_restart());
        }
    }
}
