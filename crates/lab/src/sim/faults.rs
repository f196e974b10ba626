//! The faults of a run, which permit failures of requests.

use crate::harness::io::Io;
use forebay_engine::{IoId, IoVerb};
use forebay_types::{ByteRange, IoResult, VolumeId};

/// The number of faults above which those older than every request in flight are dropped.
const FAULTS_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    Read,
    Write,
    Erase,
    Flush,
    /// The end of a loss of sectors in the pool: requests before it may have failed.
    Lost,
    /// A full journal could not record that the disk has a change.
    NoRoom,
}

impl FaultKind {
    const fn of(verb: IoVerb) -> Self {
        match verb {
            IoVerb::Read => Self::Read,
            IoVerb::Write { .. } => Self::Write,
            IoVerb::Discard | IoVerb::Zero { .. } => Self::Erase,
        }
    }
}

/// A fault; a request may fail only because of one.
#[derive(Clone, Copy, Debug)]
struct Fault {
    moment: u32,
    volume: VolumeId,
    kind: FaultKind,
    range: ByteRange,
}

/// All faults that a request in flight may have met.
#[derive(Default)]
pub(crate) struct Faults {
    met: Vec<Fault>,
    /// Faults of operations that have other I/Os in flight; they count again when the last of these
    /// ends.
    latched: Vec<(usize, IoId, Fault)>,
}

impl Faults {
    pub(crate) fn add(&mut self, moment: u32, volume: VolumeId, kind: FaultKind, range: ByteRange) {
        self.met.push(Fault { moment, volume, kind, range });
    }

    /// Records the end of an I/O: its own fault, and at the last I/O of an operation the earlier
    /// faults of that operation.
    pub(crate) fn end_io(
        &mut self,
        io: &Io,
        result: IoResult,
        moment: u32,
        is_last: impl FnOnce() -> bool,
    ) {
        let (shard, id) = (io.shard, io.action.id);
        if result.is_err() {
            let (volume, range) = (io.action.volume, io.action.range);
            let fault = Fault { moment, volume, kind: FaultKind::of(io.action.verb), range };
            self.met.push(fault);
            self.latched.push((shard, id, fault));
        }
        if self.latched.is_empty() || !is_last() {
            return;
        }
        let faults = &mut self.met;
        self.latched.retain(|&(its_shard, its_id, fault)| {
            let ours = its_shard == shard && its_id == id;
            if ours {
                faults.push(Fault { moment, ..fault });
            }
            !ours
        });
    }

    /// Handles the end of a process, and with it of its operations.
    pub(crate) fn end_operations(&mut self) {
        self.latched.clear();
    }

    /// Whether a volume has met such a fault at this moment or later.
    pub(crate) fn any_since(
        &self,
        moment: u32,
        volume: VolumeId,
        is_reason: impl Fn(FaultKind, ByteRange) -> bool,
    ) -> bool {
        self.met.iter().rev().any(|fault| {
            fault.moment >= moment && fault.volume == volume && is_reason(fault.kind, fault.range)
        })
    }

    /// Drops faults from before the oldest request, if there are many.
    pub(crate) fn prune(&mut self, oldest: impl FnOnce() -> u32) {
        if self.met.len() > FAULTS_MAX {
            let oldest = oldest();
            self.met.retain(|fault| fault.moment >= oldest);
        }
    }
}
