//! Long erases: trims and writes of zeroes of many regions with one I/O of the disk.
//!
//! The regions of a long range belong to different shards. Each of these shards begins an operation
//! for its regions; one of them, the first, has the I/O of the whole range and its journal record.
//! The driver ends the other operations when that one has ended, before it answers the request. So
//! no line of the range takes part in another operation meanwhile, and the record precedes every
//! later one of the range.
//!
//! An operation names the lines that are in the pool, and has the other lines of the shard as a
//! range. So the work follows the lines in the pool, and the number of shards, not the length of
//! the range.
//!
//! A long erase never waits: where lines are busy, where an ordered volume has dirty ones, or where
//! there are too many, it ends before them. The driver erases the next region as one part, which
//! may wait.
//!
//! Only lines in the pool are removed from the miniatures of the policy. The miniature of a larger
//! pool keeps the others until it evicts them or they are written again: removing each line of a
//! long range took four fifths of the time of an erase.

use super::PartWriter;
use super::erase::{EraseKind, WHOLE_LINE, emit_erase};
use crate::index::miniatures::sample_removal;
use crate::index::{exceeding, resident_in};
use crate::line::key::LineKey;
use crate::line::meta::LineTable;
use crate::ops::{LineOp, OpKind, OpLine};
use crate::sabotage::PlantedBug;
use crate::{IoId, Outbox, Part};
use forebay_types::{ByteRange, Few, LINE_BYTES};

/// Limit of the resident lines of one long erase in a shard. They are pinned until it ends, and
/// the shard is locked while they are changed: for about a millisecond.
const LINES_MAX: usize = 4096;

impl<M: LineTable> PartWriter<'_, M> {
    /// See [`crate::erasable_until`].
    pub(crate) fn erasable_until(&self, part: &Part, regions: &[ByteRange]) -> u64 {
        let [first, end] = ends(part, part.range);
        let mut until = self.lines.ops.first_busy(first, end).unwrap_or(end);
        let writeback = self.lines.volume.writeback();
        if writeback.epochs().is_some() && !self.lines.planted.is(PlantedBug::PassEpochs) {
            if writeback.frozen_lines() > 0 {
                return part.range.offset;
            }
            let dirty = writeback.dirty().iter_from(first.line()).next();
            until = until.min(dirty.map_or(end, |line| LineKey::new(part.volume, line)));
        }
        let mut lines_max = LINES_MAX;
        for &region in regions.iter().take_while(|region| region.offset < until.offset()) {
            if let Some(at) = exceeding(self.lines.index, ends(part, region), &mut lines_max) {
                until = until.min(at);
                break;
            }
        }
        until.offset()
    }

    /// See [`crate::erase_long`].
    pub(crate) fn erase_long(
        &mut self,
        part: &Part,
        regions: &[ByteRange],
        leads: Option<EraseKind>,
        out: &mut Outbox,
    ) -> Option<IoId> {
        if self.erasable_until(part, regions) < part.range.end() {
            return None;
        }
        let ranges: Vec<_> = regions.iter().map(|&region| ends(part, region)).collect();
        let resident = resident_in(self.lines.index, &ranges);
        let lines: Few<OpLine> = resident
            .into_iter()
            .map(|(key, slot)| {
                sample_removal(self.lines.index, key);
                self.begin_erase_line(key, slot, WHOLE_LINE, out)
            })
            .collect();
        let mut op = LineOp::new(OpKind::Erase, part.volume, lines, leads.map(|_| part.id), 1);
        op.journal_op = leads.and_then(|kind| self.lines.journal_op(part, kind.journal_op()));
        let [first, end] = ends(part, part.range);
        let id = self.lines.start_long_erase(op, first, end);
        if let Some(kind) = leads {
            emit_erase(out, id, part, kind);
        }
        Some(id)
    }
}

/// The first line of a range, and the one after its last.
fn ends(part: &Part, range: ByteRange) -> [LineKey; 2] {
    let is_whole = range.offset.is_multiple_of(LINE_BYTES) && range.len.is_multiple_of(LINE_BYTES);
    assert!(is_whole && range.len > 0, "{range} of a long erase is not whole lines");
    [range.offset, range.end()].map(|at| LineKey::new(part.volume, at / LINE_BYTES))
}
