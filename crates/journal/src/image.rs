//! Replays the records of a journal: the ranges that a disk may lack, with their newest content.

use crate::FoundRecord;
use forebay_format::journal::RecordKind;
use forebay_types::ByteRange;
use std::collections::BinaryHeap;

/// The newest content of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The payload of a write.
    Write {
        /// Index of the record.
        record: usize,
        /// Offset in the record's payload, in bytes.
        offset: u64,
    },
    Zero {
        /// Whether a hole is acceptable.
        unmap: bool,
    },
    /// Undefined: the range was discarded.
    Discard,
}

/// A range whose newest content the disk may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub range: ByteRange,
    /// Its content.
    pub source: Source,
}

/// The ranges of one volume that its disk may lack: disjoint and in order. Takes 40 bytes per
/// range, plus 16 bytes per record during construction.
#[derive(Clone, Debug, Default)]
pub struct Image {
    extents: Vec<Extent>,
}

impl Image {
    /// Replays the records of the volume with this number.
    pub fn of_volume(records: &[FoundRecord], number: u16) -> Self {
        let count = records.iter().filter(|found| found.record.volume == number).count();
        // There are rarely more ranges than records.
        let mut image = Self { extents: Vec::with_capacity(count) };
        newest(records, number, |range, at| {
            let (record, begin) = (at as usize, records[at as usize].record.range.offset);
            let source = match records[record].record.kind {
                RecordKind::Write => Source::Write { record, offset: range.offset - begin },
                RecordKind::Zero { unmap } => Source::Zero { unmap },
                RecordKind::Discard => Source::Discard,
                RecordKind::Forget => return,
            };
            let last = image.extents.last();
            assert!(
                last.is_none_or(|last| last.range.end() <= range.offset),
                "extents are disjoint and in order: {range} after {last:?}"
            );
            image.extents.push(Extent { range, source });
        });
        image
    }

    /// The ranges in order.
    pub fn extents(&self) -> impl ExactSizeIterator<Item = Extent> {
        self.extents.iter().copied()
    }

    /// Total length of the written ranges in bytes.
    pub fn write_bytes(&self) -> u64 {
        let writes = self.extents().filter(|extent| matches!(extent.source, Source::Write { .. }));
        writes.map(|extent| extent.range.len).sum()
    }
}

/// Calls `visit` with each range of a volume, in ascending order, and the index of the newest
/// record of that range. A partly overwritten record is visited once for each piece left.
pub(crate) fn newest(records: &[FoundRecord], number: u16, mut visit: impl FnMut(ByteRange, u32)) {
    assert!(u32::try_from(records.len()).is_ok(), "{} records need longer indices", records.len());
    let range = |at: u32| records[at as usize].record.range;
    let is_ours = |found: &FoundRecord| found.record.volume == number;
    let mut order = Vec::with_capacity(records.iter().filter(|found| is_ours(found)).count());
    let ours = records.iter().zip(0_u32..).filter(|(found, _)| is_ours(found));
    order.extend(ours.map(|(found, at)| (found.record.range.offset, at)));
    order.sort_unstable();
    // Records that start at or before `place` and may extend past it, newest first.
    let mut open = BinaryHeap::new();
    let mut growing: Option<(ByteRange, u32)> = None;
    let mut place = 0;
    let mut next = order.into_iter().peekable();
    loop {
        while open.peek().is_some_and(|&at| range(at).end() <= place) {
            open.pop();
        }
        if open.is_empty() {
            let Some(&(first, _)) = next.peek() else { break };
            place = first;
        }
        while let Some((_, at)) = next.next_if(|&(first, _)| first <= place) {
            open.push(at);
        }
        let Some(&top) = open.peek() else { continue };
        let begin = next.peek().map_or(u64::MAX, |&(first, _)| first);
        let end = range(top).end().min(begin);
        debug_assert!(end > place, "the visit advances: {place} to {end}");
        match &mut growing {
            Some((piece, at)) if *at == top && piece.end() == place => piece.len += end - place,
            _ => {
                let piece = ByteRange::new(place, end - place);
                if let Some((piece, at)) = growing.replace((piece, top)) {
                    visit(piece, at);
                }
            }
        }
        place = end;
    }
    if let Some((piece, at)) = growing {
        visit(piece, at);
    }
}

/// Removes records that later records have overwritten completely. The image of the remaining
/// records is the same.
pub(crate) fn retain_newest(records: &mut Vec<FoundRecord>) {
    let mut numbers: Vec<u16> = Vec::new();
    for found in &*records {
        if !numbers.contains(&found.record.volume) {
            numbers.push(found.record.volume);
        }
    }
    let mut is_newest = vec![false; records.len()];
    for number in numbers {
        newest(records, number, |_, at| is_newest[at as usize] = true);
    }
    let mut retained = is_newest.into_iter();
    records.retain(|_| retained.next().expect("there is a flag for each record"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::journal::Record;
    use proptest::prelude::*;

    fn kind() -> impl Strategy<Value = RecordKind> {
        prop_oneof![
            4 => Just(RecordKind::Write),
            1 => any::<bool>().prop_map(|unmap| RecordKind::Zero { unmap }),
            1 => Just(RecordKind::Discard),
            1 => Just(RecordKind::Forget),
        ]
    }

    /// The source of the data that follows after `bytes`.
    const fn advanced(source: Source, bytes: u64) -> Source {
        match source {
            Source::Write { record, offset } => Source::Write { record, offset: offset + bytes },
            other => other,
        }
    }

    proptest! {
        #[test]
        fn each_sector_has_its_newest_record(
            changes in proptest::collection::vec((kind(), 0_u64..40, 1_u64..20, 0_u16..2), 0..40),
        ) {
            let record = |&(kind, sector, sectors, volume): &(RecordKind, u64, u64, u16)| {
                let range = ByteRange::new(sector * 512, sectors * 512);
                let record = Record { kind, volume, range, payload_offset: 0, checksum: 0 };
                FoundRecord { record, position: 0, is_damaged: false }
            };
            let records: Vec<FoundRecord> = changes.iter().map(record).collect();
            let mut sectors = vec![None; 64];
            for (at, &(kind, sector, count, volume)) in changes.iter().enumerate() {
                for index in 0..count {
                    let source = match kind {
                        RecordKind::Write => {
                            Some(Source::Write { record: at, offset: index * 512 })
                        }
                        RecordKind::Zero { unmap } => Some(Source::Zero { unmap }),
                        RecordKind::Discard => Some(Source::Discard),
                        RecordKind::Forget => None,
                    };
                    if volume == 1 {
                        sectors[(sector + index) as usize] = source;
                    }
                }
            }
            let image = Image::of_volume(&records, 1);
            let mut found = vec![None; 64];
            for extent in image.extents() {
                prop_assert!(extent.range.len > 0);
                for index in 0..extent.range.len / 512 {
                    let at = (extent.range.offset / 512 + index) as usize;
                    prop_assert!(found[at].is_none(), "extents are disjoint");
                    found[at] = Some(advanced(extent.source, index * 512));
                }
            }
            prop_assert_eq!(found, sectors);
        }

        #[test]
        fn image_is_the_same_without_overwritten_records(
            changes in proptest::collection::vec((kind(), 0_u64..40, 1_u64..20, 0_u16..3), 0..60),
        ) {
            let record = |(at, &(kind, sector, sectors, volume)): (usize, &(_, u64, u64, _))| {
                let range = ByteRange::new(sector * 512, sectors * 512);
                let record = Record { kind, volume, range, payload_offset: 0, checksum: 0 };
                FoundRecord { record, position: at as u64, is_damaged: false }
            };
            let records: Vec<FoundRecord> = changes.iter().enumerate().map(record).collect();
            let mut kept = records.clone();
            retain_newest(&mut kept);
            // Every remaining record is the newest of at least one sector.
            let mut newest = std::collections::BTreeMap::new();
            for (at, &(_, sector, sectors, volume)) in changes.iter().enumerate() {
                newest.extend((sector..sector + sectors).map(|sector| ((volume, sector), at)));
            }
            let expected: std::collections::BTreeSet<usize> = newest.into_values().collect();
            let left: Vec<usize> = kept.iter().map(|found| found.position as usize).collect();
            prop_assert_eq!(left, expected.into_iter().collect::<Vec<_>>());
            for number in 0..3 {
                // Record indices change, so compare positions.
                let image = |records: &[FoundRecord]| -> Vec<_> {
                    let extents = Image::of_volume(records, number).extents().collect::<Vec<_>>();
                    let place = |extent: &Extent| match extent.source {
                        Source::Write { record: at, offset } => {
                            Some((records[at].position, offset))
                        }
                        _ => None,
                    };
                    let erased = |extent: &Extent| match extent.source {
                        Source::Write { .. } => None,
                        other => Some(other),
                    };
                    extents.iter().map(|at| (at.range, place(at), erased(at))).collect()
                };
                prop_assert_eq!(image(&kept), image(&records));
            }
        }
    }
}
