//! The disk of a machine: a model's timing, and what it was asked for.

use crate::sim::slab::Slab;
use forebay_backend::model::{DiskModel, timing};
use forebay_backend::{IoKind, OpenError};
use forebay_types::{ByteRange, DiskGeometry};

/// What a disk has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskTally {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    /// How long anything was in flight, in nanoseconds.
    pub busy_ns: u64,
}

/// A disk without data. Each I/O carries a `T`, which says what it is for.
pub(crate) struct Disk<T> {
    model: Box<dyn DiskModel>,
    size_bytes: u64,
    in_flight: Slab<T>,
    /// Since when something is in flight.
    busy_from_ns: u64,
    tally: DiskTally,
}

impl<T> Disk<T> {
    /// The disk of this name, `model:hdd?size=8GiB`, idle.
    ///
    /// # Errors
    /// When there is no such disk.
    pub(crate) fn named(name: &str) -> Result<Self, OpenError> {
        let (model, size_bytes) = timing(name)?;
        let (in_flight, tally) = (Slab::default(), DiskTally::default());
        Ok(Self { model, size_bytes, in_flight, busy_from_ns: 0, tally })
    }

    /// In bytes.
    pub(crate) const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its stripes, if it has any.
    pub(crate) fn geometry(&self) -> DiskGeometry {
        self.model.geometry()
    }

    /// Starts an I/O.
    pub(crate) fn start(&mut self, now_ns: u64, kind: IoKind, range: ByteRange, purpose: T) {
        match kind {
            IoKind::Read => {
                self.tally.reads += 1;
                self.tally.read_bytes += range.len;
            }
            IoKind::Write { .. } | IoKind::Zero { .. } => {
                self.tally.writes += 1;
                self.tally.write_bytes += range.len;
            }
            IoKind::Flush | IoKind::Discard => {}
        }
        if self.in_flight.len() == 0 {
            self.busy_from_ns = now_ns;
        }
        let id = self.in_flight.insert(purpose);
        self.model.enqueue(now_ns, u64::from(id), kind, range.offset, range.len);
    }

    /// When the next I/O may be done.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.model.next_completion()
    }

    /// Takes the next I/O that is done by now.
    pub(crate) fn end(&mut self, now_ns: u64) -> Option<T> {
        let id = self.model.pop(now_ns)?;
        let purpose = self.in_flight.remove(id as u32).expect("a model ends an I/O once");
        if self.in_flight.len() == 0 {
            self.tally.busy_ns += now_ns - self.busy_from_ns;
        }
        Some(purpose)
    }

    /// What was done up to now. What is in flight counts as asked for.
    pub(crate) fn tally(&self, now_ns: u64) -> DiskTally {
        let since_ns = if self.in_flight.len() > 0 { now_ns - self.busy_from_ns } else { 0 };
        DiskTally { busy_ns: self.tally.busy_ns + since_ns, ..self.tally }
    }
}
