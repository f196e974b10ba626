//! Which flushes go to the backend of a volume, and how flushes are answered after one has failed.

use crate::platform::locks::Lock;
use forebay_types::{IoError, IoResult};

/// The error message for clients once a flush of the backing store has failed.
pub(crate) const FLUSH_FAILED: &str = "a flush of the backing store failed; flushes and FUA writes \
                                       fail until the operator trusts the disk again";

/// Decides whether a flush has to go to the backend, and latches a failed flush.
///
/// The kernel reports a failed writeback once, and drops the data. A later flush succeeds although
/// that data is missing. So once a flush has failed, every flush fails until the operator trusts
/// the disk again.
#[derive(Debug, Default)]
pub(crate) struct FlushGate(Lock<FlushState>);

#[derive(Debug, Default)]
struct FlushState {
    /// Data was written since the last flush began, or that flush failed.
    unflushed: bool,
    in_flight: u32,
    /// The error of the first failed flush.
    failure: Option<IoError>,
}

/// The action for a flush request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushNeed {
    /// Flush the backend.
    Flush,
    /// Answer without a flush.
    Known(IoResult),
}

impl FlushGate {
    /// Records that data was written.
    pub(crate) fn record_write(&self) {
        self.0.lock().unflushed = true;
    }

    /// Begins a flush. It has to go to the backend even if another flush is in flight, because that
    /// one may have begun before the data was written, or may still fail.
    pub(crate) fn begin(&self) -> FlushNeed {
        let mut state = self.0.lock();
        if let Some(error) = state.failure {
            return FlushNeed::Known(Err(error));
        }
        if !state.unflushed && state.in_flight == 0 {
            return FlushNeed::Known(Ok(()));
        }
        state.unflushed = false;
        state.in_flight += 1;
        FlushNeed::Flush
    }

    /// Ends a flush of the backend. Returns the result for the request, and whether this is the
    /// first failure.
    pub(crate) fn end(&self, result: IoResult) -> (IoResult, bool) {
        let mut state = self.0.lock();
        let left = state.in_flight.checked_sub(1);
        state.in_flight = left.expect("a flush ends once, after it has begun");
        state.unflushed |= result.is_err();
        let is_first = state.failure.is_none() && result.is_err();
        // The kernel may have reported the failure to a concurrent flush instead of this one.
        state.failure = state.failure.or(result.err());
        (state.failure.map_or(Ok(()), Err), is_first)
    }

    /// The error of a failed flush, until the disk is trusted again.
    pub(crate) fn failure(&self) -> Option<IoError> {
        self.0.lock().failure
    }

    /// Clears the failure. The next flush goes to the backend.
    pub(crate) fn trust(&self) {
        let mut state = self.0.lock();
        state.unflushed |= state.failure.take().is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_skipped_only_when_nothing_can_be_unflushed() {
        let gate = FlushGate::default();
        assert_eq!(gate.begin(), FlushNeed::Known(Ok(())), "nothing was written");
        gate.record_write();
        assert_eq!(gate.begin(), FlushNeed::Flush);
        assert_eq!(gate.begin(), FlushNeed::Flush, "the first one is in flight");
        assert_eq!(gate.end(Ok(())).0, Ok(()));
        gate.record_write();
        assert_eq!(gate.end(Ok(())).0, Ok(()));
        assert_eq!(gate.begin(), FlushNeed::Flush, "written while the others were in flight");
        assert_eq!(gate.end(Ok(())).0, Ok(()));
        assert_eq!(gate.begin(), FlushNeed::Known(Ok(())));
    }

    #[test]
    fn a_failed_flush_stays_until_the_disk_is_trusted_again() {
        let failed = FlushNeed::Known(Err(IoError::Io));
        let gate = FlushGate::default();
        gate.record_write();
        assert_eq!((gate.begin(), gate.begin()), (FlushNeed::Flush, FlushNeed::Flush));
        assert_eq!(gate.end(Err(IoError::Io)), (Err(IoError::Io), true));
        assert_eq!(gate.end(Ok(())), (Err(IoError::Io), false), "it proves nothing any more");
        assert_eq!((gate.begin(), gate.failure()), (failed, Some(IoError::Io)));
        gate.trust();
        assert_eq!(gate.failure(), None);
        assert_eq!(gate.begin(), FlushNeed::Flush, "although nothing was written since");
        assert_eq!(gate.end(Ok(())), (Ok(()), false));
        gate.trust();
        assert_eq!(gate.begin(), FlushNeed::Known(Ok(())), "trust alone is nothing to flush");
    }
}
