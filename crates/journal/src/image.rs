//! What a disk lacks, after all records of the journal have had their say in order.

use crate::FoundRecord;
use forebay_format::journal::RecordKind;
use forebay_types::ByteRange;
use std::collections::BTreeMap;

/// Where the newest content of a range comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From the payload of a write.
    Write {
        /// Which of the records found.
        record: usize,
        /// Where in that record's payload, in bytes.
        offset: u64,
    },
    /// It is zeroes.
    Zero {
        /// Whether a hole is acceptable.
        unmap: bool,
    },
    /// It is of no interest.
    Discard,
}

/// A range whose newest content the disk may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The range.
    pub range: ByteRange,
    /// Its content.
    pub source: Source,
}

/// The ranges of one volume that its disk may lack: disjoint and in order.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// By their first byte: the first byte behind them, and where they come from.
    extents: BTreeMap<u64, (u64, Source)>,
}

impl Image {
    /// What the records say of the volume that they know by this number.
    pub fn of_volume(records: &[FoundRecord], number: u16) -> Self {
        let mut image = Self::default();
        for (at, found) in records.iter().enumerate() {
            if found.record.volume != number {
                continue;
            }
            let range = found.record.range;
            match found.record.kind {
                RecordKind::Write => image.put(range, Source::Write { record: at, offset: 0 }),
                RecordKind::Zero { unmap } => image.put(range, Source::Zero { unmap }),
                RecordKind::Discard => image.put(range, Source::Discard),
                RecordKind::Forget => image.forget(range),
            }
        }
        image
    }

    /// The ranges in order.
    pub fn extents(&self) -> impl Iterator<Item = Extent> {
        self.extents.iter().map(|(&start, &(end, source))| Extent {
            range: ByteRange::new(start, end - start),
            source,
        })
    }

    /// Bytes of writes in it.
    pub fn write_bytes(&self) -> u64 {
        let writes = self.extents().filter(|extent| matches!(extent.source, Source::Write { .. }));
        writes.map(|extent| extent.range.len).sum()
    }

    fn put(&mut self, range: ByteRange, source: Source) {
        self.forget(range);
        self.extents.insert(range.offset, (range.end(), source));
    }

    fn forget(&mut self, range: ByteRange) {
        let (start, end) = (range.offset, range.end());
        // What begins before the range may reach into it, or beyond.
        if let Some((&before, &(before_end, source))) = self.extents.range(..start).next_back()
            && before_end > start
        {
            self.extents.insert(before, (start, source));
            if before_end > end {
                self.extents.insert(end, (before_end, moved(source, end - before)));
            }
        }
        while let Some((&inner, &(inner_end, source))) = self.extents.range(start..end).next() {
            self.extents.remove(&inner);
            if inner_end > end {
                self.extents.insert(end, (inner_end, moved(source, end - inner)));
            }
        }
    }
}

/// The source of what begins `bytes` later.
const fn moved(source: Source, bytes: u64) -> Source {
    match source {
        Source::Write { record, offset } => Source::Write { record, offset: offset + bytes },
        other => other,
    }
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

    proptest! {
        #[test]
        fn each_sector_has_what_came_last(
            says in proptest::collection::vec((kind(), 0_u64..40, 1_u64..20, 0_u16..2), 0..40),
        ) {
            let record = |&(kind, sector, sectors, volume): &(RecordKind, u64, u64, u16)| {
                let range = ByteRange::new(sector * 512, sectors * 512);
                let record = Record { kind, volume, range, payload_offset: 0, checksum: 0 };
                FoundRecord { record, position: 0, is_damaged: false }
            };
            let records: Vec<FoundRecord> = says.iter().map(record).collect();
            let mut sectors = vec![None; 64];
            for (at, &(kind, sector, count, volume)) in says.iter().enumerate() {
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
                    found[at] = Some(moved(extent.source, index * 512));
                }
            }
            prop_assert_eq!(found, sectors);
        }
    }
}
