//! The gather threshold of a volume: set by hand, or measured by the calibration of its disk.

use crate::platform::locks::Lock;
use forebay_policy::{SplitCost, ThresholdSource, Unclear, gather_below};
use forebay_types::{Fault, IoError, Remedy};
use std::sync::Arc;

/// Why a disk could not be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationFailure {
    /// The disk has failed a read.
    #[error("I/O error at byte {offset} of its disk ({error})")]
    Io {
        /// The offset of the read.
        offset: u64,
        /// The error of the disk.
        error: IoError,
    },
    /// A read has timed out.
    #[error("the read of its disk at byte {offset} took more than a second")]
    Slow {
        /// The offset of the read.
        offset: u64,
    },
    /// A read of the previous measurement has still not completed.
    #[error("a read of the previous measurement is still pending on its disk")]
    Hanging,
    /// The reading thread could not be started.
    #[error("cannot start a thread to read its disk")]
    NoThread,
    /// The measured times are inconclusive.
    #[error(transparent)]
    Unclear(#[from] Unclear),
}

/// Why a requested measurement has failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The disk could not be measured.
    #[error("the disk of volume '{name}' was not measured; the volume is served as before")]
    Failed {
        /// The volume.
        name: String,
        /// The reason.
        #[source]
        failure: CalibrationFailure,
    },
    /// The volume was not idle.
    #[error(
        "the disk of volume '{0}' was not measured, because clients were using it all the time; it \
         is measured once it is idle"
    )]
    Busy(String),
}

const SET_THRESHOLD: &str = "set gather-below=SIZE for the volume";

impl Fault for CalibrateError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Failed { failure: CalibrationFailure::Unclear(_), .. } => {
                Remedy::from("measure it again when the disk is idle").or(SET_THRESHOLD)
            }
            Self::Failed { failure: CalibrationFailure::NoThread, .. } => {
                Remedy::from("raise the process's limit of threads").or(SET_THRESHOLD)
            }
            Self::Failed { .. } => {
                Remedy::from("check the kernel log for its disk").or(SET_THRESHOLD)
            }
            Self::Busy(_) => Remedy::from("wait until its clients pause").or(SET_THRESHOLD),
        }
    }
}

/// The state of a disk's measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calibration {
    /// None is due: the threshold is set by hand, a measurement is not scheduled yet, or the volume
    /// is being removed.
    Unwanted,
    /// It waits until the volume is idle, or is in progress.
    Waiting,
    /// It has succeeded, now or earlier.
    Done,
    /// It has failed. It is repeated only on request.
    Failed(CalibrationFailure),
}

/// The gather threshold of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherStatus {
    /// Writes below this size, in bytes, are gathered; at zero none are.
    pub below_bytes: u64,
    /// Where the threshold comes from.
    pub source: ThresholdSource,
    /// The last measurement that has succeeded.
    pub measured: Option<SplitCost>,
    /// The state of the measurement.
    pub calibration: Calibration,
}

/// Receives each new measurement of a disk, on the calibration thread.
pub type OnMeasured = Arc<dyn Fn(SplitCost) + Send + Sync>;

/// The gather threshold of a volume, and its measurement.
pub(crate) struct Gather {
    state: Lock<GatherState>,
    on_measured: Option<OnMeasured>,
}

struct GatherState {
    /// The threshold set by hand.
    set: Option<u64>,
    measured: Option<SplitCost>,
    calibration: Calibration,
    /// Counts completed measurements.
    completed: u64,
}

impl Gather {
    /// A threshold set by hand, or measured now or earlier.
    pub(crate) fn new(
        set: Option<u64>,
        measured: Option<SplitCost>,
        on_measured: Option<OnMeasured>,
    ) -> Self {
        let calibration =
            if measured.is_some() { Calibration::Done } else { Calibration::Unwanted };
        let state = Lock::new(GatherState { set, measured, calibration, completed: 0 });
        Self { state, on_measured }
    }

    /// The receiver of each new measurement.
    pub(crate) fn on_measured(&self) -> Option<OnMeasured> {
        self.on_measured.clone()
    }

    pub(crate) fn status(&self) -> GatherStatus {
        let state = self.state.lock();
        let (below_bytes, source) = gather_below(state.set, state.measured.as_ref());
        let GatherState { measured, calibration, .. } = *state;
        GatherStatus { below_bytes, source, measured, calibration }
    }

    /// Sets the threshold, or leaves it to the measurement. Returns whether it was set before and
    /// no longer is.
    pub(crate) fn set(&self, set: Option<u64>) -> bool {
        let old = std::mem::replace(&mut self.state.lock().set, set);
        old.is_some() && set.is_none()
    }

    pub(crate) fn is_set(&self) -> bool {
        self.state.lock().set.is_some()
    }

    /// Whether the disk has to be measured.
    pub(crate) fn needs_measurement(&self) -> bool {
        let state = self.state.lock();
        state.set.is_none() && state.measured.is_none()
    }

    /// Records that a measurement is queued.
    pub(crate) fn begin_measurement(&self) {
        self.state.lock().calibration = Calibration::Waiting;
    }

    /// Ends a measurement; without a result if it is no longer wanted.
    pub(crate) fn end_measurement(&self, result: Option<Result<SplitCost, CalibrationFailure>>) {
        let mut state = self.state.lock();
        assert_eq!(state.calibration, Calibration::Waiting, "a measurement ends after it began");
        state.calibration = match result {
            None => Calibration::Unwanted,
            Some(Ok(cost)) => {
                state.measured = Some(cost);
                Calibration::Done
            }
            Some(Err(failure)) => Calibration::Failed(failure),
        };
        state.completed += 1;
    }

    /// How many measurements have ended.
    pub(crate) fn completed(&self) -> u64 {
        self.state.lock().completed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_that_failed_has_the_remedy_of_its_reason() {
        let remedy =
            |failure| CalibrateError::Failed { name: "v".to_owned(), failure }.remedy().to_string();
        assert!(remedy(CalibrationFailure::NoThread).contains("limit of threads"));
        assert!(remedy(CalibrationFailure::Hanging).contains("kernel log"));
        let busy = CalibrateError::Busy("v".to_owned()).remedy().to_string();
        assert_eq!(busy, "wait until its clients pause, or set gather-below=SIZE for the volume");
    }
}
