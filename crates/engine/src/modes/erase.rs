//! Trim and write zeroes: the disk erases the range, and the pool invalidates its sectors.

use super::PartWriter;
use crate::index::miniatures::sample_removal;
use crate::line::key::{line_parts, sector_mask};
use crate::line::meta::{LineTable, NO_SLOT};
use crate::ops::io_run::IoRun;
use crate::ops::{LineOp, OpKind, OpLine, emit};
use crate::sabotage::PlantedBug;
use crate::{Attempt, IoCause, IoId, IoVerb, JournalOp, LineKey, Outbox, Part, Slot};
use forebay_types::{Few, SECTORS_PER_LINE};

/// How sectors are erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EraseKind {
    /// The content is discarded; reads may return anything.
    Discard,
    /// They read as zeroes afterwards.
    Zero {
        /// Whether the disk may deallocate the range.
        unmap: bool,
    },
}

/// The result of an attempt to erase a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EraseOutcome {
    /// The erase has started; the part is answered when it completes.
    Started,
    /// The part waits, and is retried after [`crate::Outcome::Retry`].
    Waiting,
    /// See [`crate::WriteOutcome::Held`].
    Held {
        /// Sectors under the erase are dirty.
        dirty: bool,
    },
}

impl EraseKind {
    /// What the journal records of it.
    pub(super) const fn journal_op(self) -> JournalOp {
        match self {
            Self::Discard => JournalOp::Discard,
            Self::Zero { unmap } => JournalOp::Zero { unmap },
        }
    }
}

/// All sectors of a line.
pub(super) const WHOLE_LINE: u8 = sector_mask(0, SECTORS_PER_LINE as u64);

impl<M: LineTable> PartWriter<'_, M> {
    /// See [`crate::Shard::erase`].
    pub(crate) fn erase(
        &mut self,
        part: &Part,
        kind: EraseKind,
        attempt: Attempt,
        out: &mut Outbox,
    ) -> EraseOutcome {
        if let Some(dirty) = self.held_by_epoch(part, attempt) {
            return EraseOutcome::Held { dirty };
        }
        if self.wait_if_busy(part, |_| true, out) {
            return EraseOutcome::Waiting;
        }
        let lines: Few<OpLine> = line_parts(part.volume, part.range)
            .map(|line| {
                if line.mask == WHOLE_LINE {
                    sample_removal(self.lines.index, line.key);
                }
                let slot = self.lines.index.find(line.key).unwrap_or(NO_SLOT);
                self.begin_erase_line(line.key, slot, line.mask, out)
            })
            .collect();
        let mut op = LineOp::new(OpKind::Erase, part.volume, lines, Some(part.id), 1);
        op.journal_op = self.lines.journal_op(part, kind.journal_op());
        let id = self.lines.start(op);
        emit_erase(out, id, part, kind);
        EraseOutcome::Started
    }

    /// Invalidates the clean sectors of a line that is erased from now on. Its dirty ones stay
    /// until the disk has erased them.
    pub(super) fn begin_erase_line(
        &mut self,
        key: LineKey,
        slot: Slot,
        mask: u8,
        out: &mut Outbox,
    ) -> OpLine {
        if slot != NO_SLOT {
            self.lines.index.pin(slot);
            // Until the erase completes, the disk may have either content.
            let keep = self.lines.planted.is(PlantedBug::KeepValidInErase);
            let meta = *self.lines.index.get(slot);
            let forgotten = if keep { 0 } else { mask & meta.valid & !meta.dirty };
            if forgotten != 0 {
                self.lines.set_valid(slot, meta.valid & !forgotten, out);
            }
        }
        OpLine::new(key, slot, mask)
    }
}

/// Adds the I/O of an erase to the outbox.
pub(super) fn emit_erase(out: &mut Outbox, id: IoId, part: &Part, kind: EraseKind) {
    let verb = match kind {
        EraseKind::Discard => IoVerb::Discard,
        EraseKind::Zero { unmap } => IoVerb::Zero { unmap },
    };
    let run = IoRun { range: part.range, segments: Few::new(), seals: Vec::new() };
    emit(out, id, (verb, IoCause::Demand), part.volume, Some(part.id), [run]);
}
