//! The glue between the dispatcher and the shipped log, as in the runtime.

use super::shard::PooledShard;
use forebay_engine::{Answer, Note, NoteKind, Outcome, Part, PartId};
use forebay_format::journal::RecordKind;
use forebay_journal::{
    Admission as LogAdmission, Entry, Extent, Log, Notification, RecordOutcome, Source,
};
use forebay_types::{ByteRange, IoError, SECTOR_BYTES, Stripes};
use forebay_volume::{Admission, RequestKind};

pub(crate) type LabLog = Log<Vec<u8>, PartId>;

/// Whether a write may begin; if it `waits`, it is answered when its record is durable.
pub(crate) fn admit(log: &mut LabLog, number: u16, part: &Part, waits: bool) -> Admission {
    match log.admit(number, part.range.len, part.id) {
        LogAdmission::Granted => Admission::Logged { is_awaited: waits },
        LogAdmission::Wait => Admission::Wait,
        LogAdmission::Full | LogAdmission::Failed => Admission::Through,
    }
}

/// Records a note about volume `number`, as the runtime does under the shard's lock.
pub(crate) fn record(
    log: &mut LabLog,
    number: u16,
    note: &Note,
    payload: &[u8],
    shard: &PooledShard,
) -> RecordOutcome {
    let entry = |kind| Entry { kind, volume: number, range: note.range };
    let kind = match &note.kind {
        NoteKind::Write { slots, wait } => {
            let in_slots;
            let bytes = match slots.is_empty() {
                true => payload,
                false => {
                    in_slots = shard.bytes_of(slots, note.range);
                    &in_slots
                }
            };
            let waiter = wait.then_some(note.part);
            // A part that does not wait has been answered already.
            return match log.append(entry(RecordKind::Write), [bytes].into_iter(), waiter) {
                false if *wait => RecordOutcome::Refused,
                _ => RecordOutcome::Recorded,
            };
        }
        NoteKind::Zero { unmap } => RecordKind::Zero { unmap: *unmap },
        NoteKind::Discard => RecordKind::Discard,
        NoteKind::Forget => RecordKind::Forget,
    };
    log.record(entry(kind), Some(note.part))
}

/// The answer to a part after its note was recorded, unless the answer follows later.
pub(crate) fn answer_to_record(part: PartId, outcome: RecordOutcome) -> Option<Answer> {
    let outcome = match outcome {
        RecordOutcome::Recorded => return None,
        RecordOutcome::Unneeded => Outcome::Done(Ok(())),
        RecordOutcome::Refused => Outcome::JournalFailed,
        RecordOutcome::NoSpace => Outcome::Done(Err(IoError::NoSpace)),
    };
    Some(Answer { part, outcome })
}

/// The answer that a notification of the log gives to its part.
pub(crate) const fn answer_to_notification((part, notification): (PartId, Notification)) -> Answer {
    let outcome = match notification {
        Notification::Durable => Outcome::Done(Ok(())),
        Notification::Lost(_) => Outcome::JournalFailed,
        Notification::Retry => Outcome::Retry(None),
    };
    Answer { part, outcome }
}

/// A part of an extent that one request restores.
pub(crate) struct Piece {
    pub kind: RequestKind,
    pub range: ByteRange,
    pub stamps: Vec<u64>,
}

/// The pieces of an extent with this content, split at stripes.
pub(crate) fn pieces(extent: &Extent, mut stamps: &[u64], stripes: Stripes) -> Vec<Piece> {
    let kind = match extent.source {
        Source::Write { .. } => RequestKind::Restore,
        Source::Zero { unmap } => RequestKind::RestoreZero { unmap },
        // A trim guarantees nothing that would have to be restored.
        Source::Discard => return Vec::new(),
    };
    let piece = |range: ByteRange| {
        let (now, later) = stamps.split_at((range.len / SECTOR_BYTES) as usize);
        stamps = later;
        Piece { kind, range, stamps: now.to_vec() }
    };
    stripes.split(extent.range).map(piece).collect()
}
