//! Which records of each volume the log must keep.

use super::LogEntry;
use forebay_format::journal::{RecordKind, Superblock};
use forebay_types::ByteRange;

/// A position in the log: the number of the next record, and the first segment that may hold it.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pub(super) segment: u64,
    pub(super) record: u64,
}

/// The ranges of a volume whose records are still needed; the disk has everything else.
#[derive(Debug)]
pub(super) struct Fence {
    /// Sorted and disjoint.
    pub kept: Vec<ByteRange>,
    /// The fence is effective once all records before this number are durable.
    pub from: u64,
}

impl Fence {
    /// Whether it keeps the whole range.
    fn keeps(&self, range: ByteRange) -> bool {
        let covers = |kept: &ByteRange| kept.offset <= range.offset && range.end() <= kept.end();
        self.kept.iter().any(covers)
    }

    /// Removes a range, which a [`RecordKind::Forget`] record with the number `from - 1` covers.
    fn narrow(&mut self, forgotten: ByteRange, from: u64) {
        let (start, end) = (forgotten.offset, forgotten.end());
        let rest = self.kept.iter().flat_map(|kept| {
            let before =
                ByteRange::new(kept.offset, start.clamp(kept.offset, kept.end()) - kept.offset);
            let after = end.clamp(kept.offset, kept.end());
            [before, ByteRange::new(after, kept.end() - after)]
        });
        self.kept = rest.filter(|range| range.len > 0).collect();
        self.from = from;
    }
}

/// The records of one volume.
#[derive(Debug)]
pub(super) struct LogVolume {
    number: u16,
    /// The oldest segment that may hold a record which the disk lacks.
    pub needed: Option<u64>,
    /// One more than the number of the volume's newest record.
    pub records_end: u64,
    /// One more than the number of its newest record that is not a [`RecordKind::Forget`].
    pub changes_end: u64,
    /// Whether some recovered records are not in the pool yet, so that a flush does not cover them.
    pub is_restoring: bool,
    /// The start of the checkpoint in progress, if any.
    pub checkpoint: Option<Mark>,
    /// Whether the last checkpoint failed.
    pub is_failing: bool,
    /// Consecutive checkpoints of the volume that freed no log space.
    pub futile: u8,
    pub fence: Option<Fence>,
}

impl LogVolume {
    const fn new(number: u16) -> Self {
        Self {
            number,
            needed: None,
            records_end: 0,
            changes_end: 0,
            is_restoring: false,
            checkpoint: None,
            is_failing: false,
            futile: 0,
            fence: None,
        }
    }

    /// Whether a checkpoint of the volume may begin.
    const fn may_begin(&self) -> bool {
        self.needed.is_some() && !self.is_restoring && self.checkpoint.is_none()
    }

    /// Records before the mark are no longer needed. Later ones, if any, stay needed.
    pub(super) fn need_since(&mut self, mark: Mark, first_segment: u64) {
        let needed = mark.segment.max(first_segment);
        self.needed = (self.records_end > mark.record).then_some(needed);
    }
}

/// The volumes of a log, and the numbers of their records.
#[derive(Debug)]
pub(super) struct LogVolumes {
    volumes: Vec<LogVolume>,
    next_record: u64,
}

impl LogVolumes {
    /// The volumes of a superblock, none of which has records yet. `next_record` is the number of
    /// the next record.
    pub(super) fn new(superblock: &Superblock, next_record: u64) -> Self {
        let volumes = superblock.volumes.iter().map(|volume| LogVolume::new(volume.number));
        Self { volumes: volumes.collect(), next_record }
    }

    /// The number of the next record.
    pub(super) const fn next_record(&self) -> u64 {
        self.next_record
    }

    pub(super) fn add(&mut self, number: u16) {
        assert!(self.get(number).is_none(), "volume {number} is added once");
        self.volumes.push(LogVolume::new(number));
    }

    pub(super) fn remove(&mut self, number: u16) {
        self.volumes.retain(|volume| volume.number != number);
    }

    pub(super) const fn count(&self) -> usize {
        self.volumes.len()
    }

    pub(super) fn get(&self, number: u16) -> Option<&LogVolume> {
        self.volumes.iter().find(|volume| volume.number == number)
    }

    pub(super) fn get_mut(&mut self, number: u16) -> Option<&mut LogVolume> {
        self.volumes.iter_mut().find(|volume| volume.number == number)
    }

    /// The oldest segment with a needed record; `None` if the disks have everything.
    pub(super) fn needed(&self) -> Option<u64> {
        self.volumes.iter().filter_map(|volume| volume.needed).min()
    }

    /// The volumes of which the log needs records.
    pub(super) fn with_records(&self) -> impl Iterator<Item = &LogVolume> {
        self.volumes.iter().filter(|volume| volume.needed.is_some())
    }

    /// Whether the log begins with records of a volume that the checkpoint in progress would free.
    pub(super) fn pins_beginning(&self, number: u16) -> bool {
        self.get(number).is_some_and(|volume| {
            let needed_then = volume.checkpoint.map(|begun| begun.segment);
            volume.needed.is_some() && volume.needed == self.needed() && volume.needed < needed_then
        })
    }

    /// Whether the disk of a volume has everything that the log holds of it.
    pub(super) fn is_clean(&self, number: u16) -> bool {
        self.get(number).is_none_or(|volume| volume.needed.is_none())
    }

    /// Whether a failing or slow disk keeps the log from freeing a volume's records.
    pub(super) fn is_blocked(&self) -> bool {
        self.volumes.iter().any(|volume| volume.is_failing || volume.checkpoint.is_some())
    }

    /// Marks a volume as having recovered records to restore, in `first_segment` or later.
    pub(super) fn mark_recovered(&mut self, number: u16, first_segment: u64) {
        let end = self.next_record;
        let volume = self.get_mut(number).expect("recovery drops records of unknown volumes");
        volume.needed = Some(first_segment);
        (volume.records_end, volume.changes_end, volume.is_restoring) = (end, end, true);
    }

    /// Numbers a record that was just added to a batch, which goes to `segment` at the earliest.
    /// With `keeps_fence`, a write within the ranges that the volume's fence keeps does not void
    /// the fence.
    pub(super) fn count_record(&mut self, entry: &LogEntry, segment: u64, keeps_fence: bool) {
        let number = self.next_record;
        self.next_record += 1;
        let volume = self.get_mut(entry.volume).expect("the volume was added");
        volume.needed.get_or_insert(segment);
        assert!(volume.records_end <= number, "record numbers ascend");
        volume.records_end = number + 1;
        if entry.kind != RecordKind::Forget {
            volume.changes_end = number + 1;
            let may_keep = keeps_fence && entry.kind == RecordKind::Write;
            volume.fence = volume.fence.take().filter(|fence| may_keep && fence.keeps(entry.range));
        }
    }

    /// Removes a range from the fence of a volume, because the next record forgets it.
    pub(super) fn narrow_fence(&mut self, entry: &LogEntry) {
        let from = self.next_record + 1;
        let fence = self.get_mut(entry.volume).and_then(|volume| volume.fence.as_mut());
        if let Some(fence) = fence {
            fence.narrow(entry.range, from);
            let is_outside = !fence.kept.iter().any(|kept| kept.overlaps(entry.range));
            debug_assert!(is_outside, "a forgotten range is not kept");
        }
    }

    /// Whether all records of a volume are void.
    pub(super) fn is_void(&self, number: u16, superblock: &Superblock) -> bool {
        let void_before = superblock.volume(number).map_or(0, |entry| entry.void_before);
        self.get(number)
            .is_some_and(|volume| volume.needed.is_none() && volume.records_end <= void_before)
    }

    /// Whether the fence of a volume is effective and keeps no part of a range. All records before
    /// `durable_end` are durable.
    pub(super) fn is_fenced_off(&self, number: u16, range: ByteRange, durable_end: u64) -> bool {
        let fence = self.get(number).and_then(|volume| volume.fence.as_ref());
        fence.is_some_and(|fence| {
            fence.from <= durable_end && !fence.kept.iter().any(|kept| kept.overlaps(range))
        })
    }

    /// Whether there is a volume to checkpoint.
    pub(super) fn may_begin_checkpoint(&self) -> bool {
        self.volumes.iter().any(LogVolume::may_begin)
    }

    /// Begins a checkpoint of each volume that has records and no checkpoint in progress. Returns
    /// their numbers.
    pub(super) fn begin_checkpoint(&mut self, begun: Mark) -> Vec<u16> {
        let volumes = self.volumes.iter_mut().filter(|volume| volume.may_begin());
        let begin = |volume: &mut LogVolume| {
            volume.checkpoint = Some(begun);
            volume.number
        };
        volumes.map(begin).collect()
    }

    /// The numbers of the volumes with a checkpoint in progress.
    pub(super) fn checkpoints_in_progress(&self) -> impl Iterator<Item = u16> {
        let begun = self.volumes.iter().filter(|volume| volume.checkpoint.is_some());
        begun.map(|volume| volume.number)
    }

    /// Panics if a volume has records that were never counted, or an invalid fence.
    pub(super) fn self_check(&self) {
        for (at, volume) in self.volumes.iter().enumerate() {
            let is_unique = self.volumes[..at].iter().all(|other| other.number != volume.number);
            assert!(is_unique, "volume {} is tracked once", volume.number);
            if let Some(begun) = volume.checkpoint {
                assert!(begun.record <= self.next_record, "{volume:?}");
            }
            if let Some(Fence { kept, from }) = &volume.fence {
                assert!(*from <= self.next_record, "{volume:?}");
                let is_sorted = kept.windows(2).all(|pair| pair[0].end() <= pair[1].offset);
                assert!(is_sorted, "kept ranges are sorted and disjoint: {kept:?}");
            }
            assert!(volume.changes_end <= volume.records_end, "{volume:?}");
            assert!(volume.records_end <= self.next_record, "{volume:?}");
        }
    }
}
