//! The order in which a start restores what a log holds of a volume.

use crate::{Extent, FoundRecord, Image, Source};
use forebay_types::{ByteRange, REGION_BYTES, Stripes};

/// A range of a volume to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The range.
    pub range: ByteRange,
    /// The position of its bytes on the log's device; `None` for zeroes.
    pub position: Option<u64>,
}

/// What a disk may lack of the volume with this number, in disjoint pieces within one region each.
/// They are sorted by position, so that the log is read sequentially. What is damaged is left out:
/// its loss was accepted when the log was opened. A discard guarantees nothing that would have to
/// be restored.
pub fn pieces_to_restore(records: &[FoundRecord], number: u16) -> Vec<Piece> {
    let image = Image::of_volume(records, number);
    let mut pieces = Vec::with_capacity(image.extents().len());
    for Extent { range, source } in image.extents() {
        let begin = match source {
            Source::Discard => continue,
            Source::Write { record, .. } if records[record].is_damaged => continue,
            Source::Write { record, offset } => Some(records[record].position + offset),
            Source::Zero { .. } => None,
        };
        let piece = |part: ByteRange| Piece {
            range: part,
            position: begin.map(|begin| begin + part.offset - range.offset),
        };
        match begin {
            Some(_) => pieces.extend(Stripes::NONE.split(range).map(piece)),
            None => pieces.push(piece(range)),
        }
    }
    pieces.sort_unstable_by_key(|piece| (piece.position, piece.range.offset));
    // Join pieces that are adjacent in the volume and in the log.
    pieces.dedup_by(|next, last| {
        let end = last.position.map(|position| position + last.range.len);
        let follows = end.is_some() && end == next.position;
        let joins = follows
            && last.range.end() == next.range.offset
            && !next.range.offset.is_multiple_of(REGION_BYTES);
        last.range.len += if joins { next.range.len } else { 0 };
        joins
    });
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::journal::{Record, RecordKind};

    fn found(kind: RecordKind, sector: u64, sectors: u64, position: u64) -> FoundRecord {
        let range = ByteRange::new(sector * 512, sectors * 512);
        let record = Record { kind, volume: 1, range, payload_offset: 0, checksum: 0 };
        FoundRecord { record, position, is_damaged: false }
    }

    fn piece(sector: u64, sectors: u64, position: Option<u64>) -> Piece {
        Piece { range: ByteRange::new(sector * 512, sectors * 512), position }
    }

    #[test]
    fn pieces_follow_the_log_and_are_joined_within_a_region() {
        let region = REGION_BYTES / 512;
        let records = [
            found(RecordKind::Write, 20, 4, 8192),
            found(RecordKind::Write, region - 2, 2, 2048),
            found(RecordKind::Write, region, 2, 3072),
            found(RecordKind::Write, 8, 2, 4096),
            found(RecordKind::Write, 10, 2, 5120),
            found(RecordKind::Zero { unmap: true }, 22, 100, 0),
            found(RecordKind::Discard, 11, 1, 0),
        ];
        let expected = [
            piece(22, 100, None),
            piece(region - 2, 2, Some(2048)),
            piece(region, 2, Some(3072)),
            piece(8, 3, Some(4096)),
            piece(20, 2, Some(8192)),
        ];
        assert_eq!(pieces_to_restore(&records, 1), expected);
        assert_eq!(pieces_to_restore(&records, 2), []);
    }

    #[test]
    fn damaged_records_are_left_out() {
        let mut records = [
            found(RecordKind::Write, 0, 8, 4096),
            found(RecordKind::Write, 2, 2, 16384),
            found(RecordKind::Write, 20, 1, 20480),
        ];
        records[1].is_damaged = true;
        let expected =
            [piece(0, 2, Some(4096)), piece(4, 4, Some(6144)), piece(20, 1, Some(20480))];
        assert_eq!(pieces_to_restore(&records, 1), expected);
    }
}
