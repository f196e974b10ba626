//! Trim and write zeroes: the disk does it, and the pool forgets the sectors.

use crate::index::key::line_parts;
use crate::index::meta::{LineTable, NO_SLOT};
use crate::ops::{Op, OpKind, OpLine, WaitFor};
use crate::sabotage::PlantedBug;
use crate::shard::emit;
use crate::{Attempt, IoVerb, NoteKind, Outbox, Part, Shard, modes::read::Run};

/// How sectors are erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EraseKind {
    /// Their content is no longer of interest.
    Discard,
    /// They read as zeroes afterwards.
    Zero {
        /// Whether a hole is acceptable.
        unmap: bool,
    },
}

/// What became of an erase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EraseOutcome {
    /// The part is told when it is done.
    Started,
    /// The part is told to try again.
    Waiting,
    /// As [`crate::WriteOutcome::Held`].
    Held {
        /// Something under it is dirty.
        dirty: bool,
    },
}

impl<M: LineTable> Shard<M> {
    /// Erases a part.
    ///
    /// Dirty data in the range stays dirty until the disk has done its part, so that nothing is
    /// lost if it fails. Clean sectors are forgotten at once.
    pub fn erase(
        &mut self,
        part: &Part,
        kind: EraseKind,
        attempt: Attempt,
        out: &mut Outbox,
    ) -> EraseOutcome {
        self.assert_part(part);
        if let Some(dirty) = self.is_held(part, attempt) {
            return EraseOutcome::Held { dirty };
        }
        let busy = line_parts(part.volume, part.range).find_map(|line| self.ops.busy(line.key));
        if let Some((op, _)) = busy {
            self.wait(op, part, WaitFor::End);
            return EraseOutcome::Waiting;
        }
        let lines: Vec<OpLine> = line_parts(part.volume, part.range)
            .map(|line| {
                let slot = self.index.find(line.key).unwrap_or(NO_SLOT);
                if slot != NO_SLOT {
                    self.index.pin(slot);
                    // The disk holds one or the other until it says which.
                    let keep = self.planted.is(PlantedBug::KeepValidInErase);
                    let meta = *self.index.get(slot);
                    let forgotten = if keep { 0 } else { line.mask & meta.valid & !meta.dirty };
                    if forgotten != 0 {
                        self.verify_before(slot, forgotten, out);
                        self.index.change(slot, meta.valid & !forgotten);
                    }
                }
                OpLine::new(line.key, slot, line.mask)
            })
            .collect();
        let verb = match kind {
            EraseKind::Discard => IoVerb::Discard,
            EraseKind::Zero { unmap } => IoVerb::Zero { unmap },
        };
        let mut op = Op::new(OpKind::Erase, part.volume, lines, Some(part.id), 1);
        op.note = self.note_for(
            part,
            match kind {
                EraseKind::Discard => NoteKind::Discard,
                EraseKind::Zero { unmap } => NoteKind::Zero { unmap },
            },
        );
        let id = self.start(op);
        let run = Run { range: part.range, segments: Vec::new(), seals: Vec::new() };
        emit(out, id, verb, part.volume, Some(part.id), [run]);
        EraseOutcome::Started
    }
}
