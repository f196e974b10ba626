//! The journal of an experiment: the shipped log, on a device that takes no time.

use super::machine::{SECOND_NS, VOLUME};
use crate::harness::journal::{LabLog, admit, answer_to_notification, answer_to_record};
use forebay_engine::{Answer, Note, NoteKind, Part};
use forebay_format::journal::{Geometry, JournalId, LOG_OFFSET, RecordKind};
use forebay_journal::{Entry, Log, RecordOutcome};
use forebay_types::ByteRange;
use forebay_volume::{Admission, Request, RequestKind};

/// The runtime's interval of checkpoints.
const CHECKPOINT_EVERY_MS: u64 = 30 * SECOND_NS / 1_000_000;
const BUFFERS: usize = 4;
const BUFFER_BYTES: usize = 1 << 20;

/// Whether checkpoints destage at the pace of background writeback, as in the runtime, or at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checkpoints {
    Paced,
    AtOnce,
}

pub(crate) struct HostLog {
    log: LabLog,
    number: u16,
    checkpoints: Checkpoints,
    /// When the last checkpoint began, in milliseconds.
    begun_ms: u64,
    /// Answers to parts that waited for the log.
    answers: Vec<Answer>,
    zeroes: Vec<u8>,
}

impl HostLog {
    pub(crate) fn new(bytes: u64, volume_bytes: u64, checkpoints: Checkpoints) -> Self {
        let size_bytes = LOG_OFFSET + bytes;
        let geometry = Geometry::for_size(size_bytes).expect("the journal is large enough");
        let buffers = vec![vec![0; BUFFER_BYTES]; BUFFERS];
        let mut log = Log::format(JournalId([1; 16]), size_bytes, geometry, buffers);
        let number = log.add_volume("volume", volume_bytes, [0; 32]).expect("it is the first one");
        let (answers, zeroes) = Default::default();
        let mut log = Self { log, number, checkpoints, begun_ms: 0, answers, zeroes };
        log.commit();
        log
    }

    pub(crate) fn admit(&mut self, part: &Part) -> Admission {
        admit(&mut self.log, self.number, part, false)
    }

    pub(crate) fn withdraw(&mut self) {
        self.log.withdraw();
    }

    pub(crate) fn record(&mut self, note: &Note) {
        let entry = |kind| Entry { kind, volume: self.number, range: note.range };
        let outcome = match note.kind {
            NoteKind::Write { .. } => {
                self.zeroes.resize(self.zeroes.len().max(note.range.len as usize), 0);
                let bytes = &self.zeroes[..note.range.len as usize];
                let is_recorded =
                    self.log.append(entry(RecordKind::Write), [bytes].into_iter(), None);
                assert!(is_recorded, "the log never fails");
                RecordOutcome::Recorded
            }
            NoteKind::Forget => self.log.record(entry(RecordKind::Forget), Some(note.part)),
            _ => unreachable!("no experiment with a journal erases"),
        };
        self.answers.extend(answer_to_record(note.part, outcome));
    }

    /// Writes what was recorded; returns the answers to parts that waited for the log.
    pub(crate) fn commit(&mut self) -> Vec<Answer> {
        let mut notices = Vec::new();
        while let Some(write) = self.log.poll_write() {
            self.log.complete(write, Ok(()), &mut notices);
        }
        self.log.poll_notifications(&mut notices);
        self.answers.extend(notices.into_iter().map(answer_to_notification));
        std::mem::take(&mut self.answers)
    }

    /// Begins a checkpoint if one is due, as the runtime does. Returns the request that destages.
    pub(crate) fn begin_checkpoint(&mut self, now_ms: u64) -> Option<Request> {
        if !self.log.wants_checkpoint() && now_ms < self.begun_ms + CHECKPOINT_EVERY_MS {
            return None;
        }
        self.begun_ms = now_ms;
        let _: forebay_journal::Checkpoint = self.log.begin_checkpoint()?;
        let kind = RequestKind::Checkpoint { urgent: self.checkpoints == Checkpoints::AtOnce };
        Some(Request { volume: VOLUME, kind, range: ByteRange::new(0, 0) })
    }

    pub(crate) fn end_checkpoint(&mut self) {
        self.log.end_checkpoint(self.number, Ok(()));
    }

    pub(crate) fn distance(&self) -> (u64, u64) {
        match self.checkpoints {
            Checkpoints::Paced => forebay_journal::distance(&self.log, self.number),
            Checkpoints::AtOnce => (1, 1),
        }
    }

    /// The share of the log that is in use, from 0 to 1.
    pub(crate) fn used(&self) -> f64 {
        let usage = self.log.usage();
        usage.used_bytes as f64 / usage.capacity_bytes as f64
    }
}
