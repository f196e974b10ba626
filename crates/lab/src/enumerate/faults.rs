//! Faults: the n-th I/O of a kind fails, once or permanently.

use crate::named::named;
use forebay_types::{IoError, IoResult};
use forebay_volume::RequestKind;

named! {
    /// The kind of an I/O.
    "kind of I/O" enum FaultKind {
        /// Reads of the disk.
        Read = "read",
        /// Writes to the disk.
        Write = "write",
        /// Flushes of the disk.
        Flush = "flush",
        /// Trims of the disk, and zeroing.
        Erase = "erase",
        /// Reads of the journal's device.
        JournalRead = "journal read",
        /// Writes to the journal's device.
        JournalWrite = "journal write",
    }
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// The number of the I/O among those of its kind, from 0.
    pub number: u64,
    /// Whether all following ones fail, too.
    pub lasts: bool,
}

/// Counts I/Os and fails some.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    pub fault: Option<Fault>,
    counts: [u64; FaultKind::ALL.len()],
    /// The kind of the I/O that failed, if any did.
    failed_kind: Option<FaultKind>,
}

impl Faults {
    /// The result of the next I/O of this kind.
    pub(super) fn next_result(&mut self, kind: FaultKind) -> IoResult {
        let count = &mut self.counts[kind as usize];
        let number = *count;
        *count += 1;
        let fails = self.fault.is_some_and(|fault| {
            fault.kind == kind
                && if fault.lasts { number >= fault.number } else { number == fault.number }
        });
        if fails {
            self.failed_kind = Some(kind);
            return Err(IoError::Io);
        }
        Ok(())
    }

    /// Lets all further I/Os succeed.
    pub(super) const fn heal(&mut self) {
        self.fault = None;
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.failed_kind.is_some()
    }

    /// The number of I/Os of this kind so far.
    pub(super) const fn count(&self, kind: FaultKind) -> u64 {
        self.counts[kind as usize]
    }

    /// Whether the fault can be the reason why a request of this kind failed, whatever its range
    /// and time. A fault of the journal is never the reason.
    pub(super) const fn explains(&self, kind: RequestKind) -> bool {
        let is_read = matches!(kind, RequestKind::Read);
        let is_erase = matches!(
            kind,
            RequestKind::Trim { .. } | RequestKind::Zero { .. } | RequestKind::RestoreZero { .. }
        );
        match self.failed_kind {
            Some(FaultKind::Read) => is_read,
            Some(FaultKind::Write | FaultKind::Flush) => !is_read,
            Some(FaultKind::Erase) => is_erase,
            Some(FaultKind::JournalRead | FaultKind::JournalWrite) | None => false,
        }
    }
}
