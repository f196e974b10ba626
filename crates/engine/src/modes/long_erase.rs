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
//! The miniatures of the policy are told of the lines in the pool alone. That of a larger pool
//! keeps the others until it evicts them, or until they are written again: to ask for each line of
//! a long range took four fifths of the time of an erase.

use super::PartWriter;
use super::erase::{EraseKind, WHOLE_LINE, emit_erase};
use crate::index::miniatures::sample_removal;
use crate::index::resident_in;
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
        let epochs = self.lines.volume.writeback();
        let is_ordered =
            epochs.epochs().is_some() && !self.lines.planted.is(PlantedBug::PassEpochs);
        if is_ordered && epochs.frozen_lines() > 0 {
            return part.range.offset;
        }
        let [first, end] = ends(part, part.range);
        let busy = self.lines.ops.first_busy(first, end);
        let until = busy.map_or(part.range.end(), LineKey::offset);
        let mut lines = 0;
        for &region in regions.iter().take_while(|region| region.offset < until) {
            let [first, end] = ends(part, region);
            for (key, slot) in resident_in(self.lines.index, first, end) {
                let is_held = is_ordered && self.lines.index.get(slot).dirty != 0;
                if is_held || lines == LINES_MAX {
                    return until.min(key.offset());
                }
                lines += 1;
            }
        }
        until
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
        let index = &*self.lines.index;
        let ranges = regions.iter().map(|&region| ends(part, region));
        let resident: Vec<_> =
            ranges.flat_map(|[first, end]| resident_in(index, first, end)).collect();
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
