//! The disk of a machine: the timing of a model, and counters.

use crate::harness::slab::Slab;
use forebay_backend::model::{DiskModel, timing};
use forebay_backend::{IoKind, OpenError};
use forebay_types::{ByteRange, DiskGeometry};

/// Disks of experiments: name in tables, and model.
pub(super) const DISKS: [(&str, &str); 2] = [
    ("hard disk", "model:hdd?size=64GiB"),
    ("RAID 5 of 15", "model:raid5?drives=15&chunk=8KiB&drive=hdd&drive-size=8GiB"),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskTally {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    /// Time with an I/O in flight, in nanoseconds.
    pub busy_ns: u64,
    /// The sum of the times that all I/Os were in flight, in nanoseconds.
    pub in_flight_ns: u64,
}

/// A disturbance of a disk.
pub(crate) struct Disturbance {
    from_ns: u64,
    until_ns: u64,
    /// The slowdown during the disturbance; `None` if the disk makes no progress.
    factor: Option<u64>,
    /// The model that serves I/Os from `from_ns` on.
    replacement: Option<Box<dyn DiskModel>>,
}

impl Disturbance {
    /// Everything takes `factor` times as long.
    pub(crate) fn slow(from_ns: u64, until_ns: u64, factor: u64) -> Self {
        Self { from_ns, until_ns, factor: Some(factor), replacement: None }
    }

    /// The disk makes no progress.
    pub(crate) fn stopped(from_ns: u64, until_ns: u64) -> Self {
        Self { from_ns, until_ns, factor: None, replacement: None }
    }

    /// I/Os submitted from `from_ns` on go to the model `name`. Fails if it is invalid.
    pub(crate) fn replaced(from_ns: u64, name: &str) -> Result<Self, OpenError> {
        let (model, _) = timing(name)?;
        Ok(Self { from_ns, until_ns: from_ns, factor: None, replacement: Some(model) })
    }

    /// The progress of the disk's own clock during the disturbance.
    fn progress_ns(&self) -> u64 {
        self.factor.map_or(0, |factor| (self.until_ns - self.from_ns) / factor)
    }

    /// Converts a time to the disk's own clock.
    fn disk_ns(&self, now_ns: u64) -> u64 {
        if now_ns < self.from_ns {
            return now_ns;
        }
        match self.factor {
            Some(factor) if now_ns < self.until_ns => {
                self.from_ns + (now_ns - self.from_ns) / factor
            }
            _ => self.from_ns + self.progress_ns() + now_ns.saturating_sub(self.until_ns),
        }
    }

    /// Converts a time of the disk's own clock.
    fn real_ns(&self, disk_ns: u64) -> u64 {
        let Some(into_ns) = disk_ns.checked_sub(self.from_ns) else { return disk_ns };
        match self.factor {
            Some(factor) if into_ns < self.progress_ns() => self.from_ns + into_ns * factor,
            _ => self.until_ns + into_ns - self.progress_ns(),
        }
    }
}

/// A disk without data. Each I/O carries a `T`, its purpose.
pub(crate) struct Disk<T> {
    model: Box<dyn DiskModel>,
    size_bytes: u64,
    in_flight: Slab<T>,
    /// The start of the current busy period.
    busy_from_ns: u64,
    /// Up to when `in_flight_ns` is counted.
    counted_ns: u64,
    tally: DiskTally,
    disturbance: Option<Disturbance>,
}

impl<T> Disk<T> {
    /// An idle disk with the model `name`, such as `model:hdd?size=8GiB`. Fails if it is invalid.
    pub(crate) fn named(name: &str) -> Result<Self, OpenError> {
        let (model, size_bytes) = timing(name)?;
        let (in_flight, tally) = (Slab::default(), DiskTally::default());
        let (busy_from_ns, counted_ns) = (0, 0);
        let disturbance = None;
        Ok(Self { model, size_bytes, in_flight, busy_from_ns, counted_ns, tally, disturbance })
    }

    pub(crate) fn disturb(&mut self, disturbance: Disturbance) {
        self.disturbance = Some(disturbance);
    }

    fn disk_ns(&self, now_ns: u64) -> u64 {
        self.disturbance.as_ref().map_or(now_ns, |disturbance| disturbance.disk_ns(now_ns))
    }

    pub(crate) const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The stripes of the disk, if it has any.
    pub(crate) fn geometry(&self) -> DiskGeometry {
        self.model.geometry()
    }

    /// The time that all I/Os were in flight, up to now.
    fn in_flight_ns(&self, now_ns: u64) -> u64 {
        self.tally.in_flight_ns + (now_ns - self.counted_ns) * self.in_flight.len() as u64
    }

    fn count(&mut self, now_ns: u64) {
        self.tally.in_flight_ns = self.in_flight_ns(now_ns);
        self.counted_ns = now_ns;
    }

    pub(crate) fn start(&mut self, now_ns: u64, kind: IoKind, range: ByteRange, purpose: T) {
        self.count(now_ns);
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
        let disk_ns = self.disk_ns(now_ns);
        let model = match &mut self.disturbance {
            Some(Disturbance { from_ns, replacement: Some(replacement), .. })
                if now_ns >= *from_ns =>
            {
                replacement
            }
            _ => &mut self.model,
        };
        model.enqueue(disk_ns, u64::from(id), kind, range.offset, range.len);
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        let replacement =
            self.disturbance.as_ref().and_then(|disturbance| disturbance.replacement.as_ref());
        let models = [Some(&self.model), replacement].into_iter().flatten();
        let next_ns = models.filter_map(|model| model.next_completion()).min()?;
        Some(self.disturbance.as_ref().map_or(next_ns, |disturbance| disturbance.real_ns(next_ns)))
    }

    /// Removes an I/O that is complete by now.
    pub(crate) fn end(&mut self, now_ns: u64) -> Option<T> {
        self.count(now_ns);
        let disk_ns = self.disk_ns(now_ns);
        let replacement =
            self.disturbance.as_mut().and_then(|disturbance| disturbance.replacement.as_mut());
        let mut models = [Some(&mut self.model), replacement].into_iter().flatten();
        let id = models.find_map(|model| model.pop(disk_ns))?;
        let purpose = self.in_flight.remove(id as u32).expect("a model ends an I/O once");
        if self.in_flight.len() == 0 {
            self.tally.busy_ns += now_ns - self.busy_from_ns;
        }
        Some(purpose)
    }

    /// The counters up to now. I/Os in flight are included.
    pub(crate) fn tally(&self, now_ns: u64) -> DiskTally {
        let since_ns = if self.in_flight.len() > 0 { now_ns - self.busy_from_ns } else { 0 };
        let (busy_ns, in_flight_ns) = (self.tally.busy_ns + since_ns, self.in_flight_ns(now_ns));
        DiskTally { busy_ns, in_flight_ns, ..self.tally }
    }
}
