//! A journal as its volumes use it, without its devices and threads.
//!
//! **A failure.** After the log has failed, no request is answered before the failure is recorded
//! outside of the journal. Otherwise a journal that is readable again at the next start would undo
//! writes that were acknowledged without it. Until then writes and flushes wait; afterwards the
//! journal is abandoned: its records are void, and its volumes continue without it.

use forebay_engine::{Answer, JournalOp, JournalRequest, Outcome, Part, PartId};
use forebay_format::journal::RecordKind;
use forebay_journal::{Log, LogAdmission, LogEntry, LogWrite, Notification, RecordOutcome};
use forebay_types::{IoError, IoResult};

/// Data that checkpoints left in the journal because a disk did not take it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptStatus {
    /// Bytes copied forward: recorded once more, at the end of the log.
    pub forward_bytes: u64,
    /// Checkpoints that found no space to copy forward, and kept the old records instead.
    pub fences: u64,
}

/// The state of an open journal.
#[derive(Debug)]
pub struct JournalState<B> {
    /// The log. The driver executes its writes, and reports them here.
    pub log: Log<B, PartId>,
    /// Counts what retentions left in the journal.
    kept: KeptStatus,
    /// Numbers of the volumes that are served. Once the log has failed, their writes may be
    /// acknowledged without it.
    serving: Vec<u16>,
    /// Numbers of the volumes that end without their disks.
    ended: Vec<u16>,
    /// The failure of the log is recorded outside of the journal.
    is_failure_recorded: bool,
    /// Answers to parts that waited for the log.
    answers: Vec<Answer>,
    notifications: Vec<(PartId, Notification)>,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> JournalState<B> {
    /// A journal with this log, which serves no volume yet.
    pub fn new(log: Log<B, PartId>) -> Self {
        let (serving, ended, answers, notifications, kept) = Default::default();
        Self { log, kept, serving, ended, is_failure_recorded: false, answers, notifications }
    }

    /// Data that checkpoints left in the journal because a disk did not take it.
    pub const fn kept(&self) -> KeptStatus {
        self.kept
    }

    /// The same, to be counted in.
    pub(crate) const fn kept_mut(&mut self) -> &mut KeptStatus {
        &mut self.kept
    }

    /// Whether the journal has failed and that is recorded: its records are void.
    pub const fn is_abandoned(&self) -> bool {
        self.is_failure_recorded
    }

    /// Whether the log has failed and that is not recorded: nothing may be answered.
    const fn is_undecided(&self) -> bool {
        self.log.failed().is_some() && !self.is_failure_recorded
    }

    /// Requests a permit to record a write. [`LogAdmission::Failed`] means that the journal is
    /// abandoned; until then, the part waits.
    pub fn admit(&mut self, number: u16, part: &Part) -> LogAdmission {
        if self.is_ended(number) {
            return LogAdmission::Failed;
        }
        if !self.log.invalidate_samples(number, part.range, part.id) {
            return LogAdmission::Wait;
        }
        match self.log.admit(number, part.range.len, part.id) {
            LogAdmission::Failed if self.is_undecided() => {
                self.answers.push(Answer { part: part.id, outcome: Outcome::Retry(None) });
                LogAdmission::Wait
            }
            other => other,
        }
    }

    /// Whether a range of the volume's disk may be erased now. If not, the part is retried later.
    pub fn admit_erase(&mut self, number: u16, part: &Part) -> bool {
        self.log.invalidate_samples(number, part.range, part.id)
            && self.log.admit_erase(number, part.id)
    }

    /// See [`forebay_volume::Host::barrier`].
    ///
    /// # Errors
    /// When the journal is abandoned.
    pub fn barrier(&mut self, part: PartId) -> Result<bool, IoError> {
        let is_durable = self.log.barrier(part);
        if is_durable.is_err() && self.is_undecided() {
            self.answers.push(Answer { part, outcome: Outcome::JournalFailed });
            return Ok(false);
        }
        is_durable
    }

    /// Carries out a request of a shard, with the bytes of a write in pieces. Must be called under
    /// the shard's lock. Returns the answer to its part, if it does not wait.
    pub fn record<'a>(
        &mut self,
        number: u16,
        request: &JournalRequest,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Answer> {
        let part = request.part;
        if self.is_ended(number) {
            if matches!(request.kind, JournalOp::Write { .. }) {
                self.log.withdraw();
            }
            return Some(Answer { part, outcome: Outcome::JournalFailed });
        }
        let entry = |kind| LogEntry { kind, volume: number, range: request.range };
        let kind = match request.kind {
            JournalOp::Write { wait, .. } => {
                let is_taken =
                    self.log.append(entry(RecordKind::Write), pieces, wait.then_some(part));
                // A write that does not wait is acknowledged after this call, whether or not the
                // log took it. Only a FLUSH guarantees that it is recorded.
                let is_refused = wait && !is_taken;
                let outcome =
                    if is_refused { RecordOutcome::Refused } else { RecordOutcome::Recorded };
                return self.answer_to_record(part, outcome);
            }
            JournalOp::Zero { unmap } => RecordKind::Zero { unmap },
            JournalOp::Discard => RecordKind::Discard,
            JournalOp::Forget => RecordKind::Forget,
        };
        let outcome = self.log.record(entry(kind), Some(part));
        self.answer_to_record(part, outcome)
    }

    fn answer_to_record(&mut self, part: PartId, outcome: RecordOutcome) -> Option<Answer> {
        let answer = |outcome| Some(Answer { part, outcome });
        match outcome {
            RecordOutcome::Recorded => None,
            RecordOutcome::Unneeded => answer(Outcome::Done(Ok(()))),
            RecordOutcome::NoSpace => answer(Outcome::Done(Err(IoError::NoSpace))),
            RecordOutcome::Refused if self.is_undecided() => {
                self.answers.push(Answer { part, outcome: Outcome::JournalFailed });
                None
            }
            RecordOutcome::Refused => answer(Outcome::JournalFailed),
        }
    }

    /// Handles the end of a write of the log, with the result of each device.
    pub fn handle_written(&mut self, write: LogWrite<B>, results: [IoResult; 2]) {
        self.log.complete_on(write, results, &mut self.notifications);
    }

    /// Counts a device as failed, although no write to it has.
    pub fn handle_device_gone(&mut self, device: usize) {
        self.log.fail_device(device, IoError::Io, &mut self.notifications);
    }

    /// Moves the answers that are due to `answers`: none while a failure is not recorded.
    pub fn poll_answers(&mut self, answers: &mut Vec<Answer>) {
        self.log.poll_notifications(&mut self.notifications);
        let answer_to = |(part, notification)| {
            let outcome = match notification {
                Notification::Durable => Outcome::Done(Ok(())),
                Notification::Lost(_) => Outcome::JournalFailed,
                Notification::Retry => Outcome::Retry(None),
            };
            Answer { part, outcome }
        };
        self.answers.extend(self.notifications.drain(..).map(answer_to));
        if !self.is_undecided() {
            answers.append(&mut self.answers);
        }
    }

    /// The failure that must be recorded now. Before any volume is served, none is: at the next
    /// start, the records still count.
    pub fn poll_failure(&self) -> Option<IoError> {
        self.log.failed().filter(|_| self.is_undecided() && !self.serving.is_empty())
    }

    /// The failure of the log, while it is not recorded: requests that wait for the journal wait
    /// for that.
    pub fn unrecorded_failure(&self) -> Option<IoError> {
        self.log.failed().filter(|_| self.is_undecided())
    }

    /// Handles the end of the failure's record: the journal is abandoned. The driver has to post
    /// the answers.
    pub fn handle_failure_recorded(&mut self) {
        assert!(self.log.failed().is_some(), "a failure was recorded");
        self.is_failure_recorded = true;
    }

    /// Serves a volume from now on: all that the log has of it is in the pool or on the disk. Once
    /// the journal is abandoned, the record of its failure must name the volume.
    pub fn serve(&mut self, number: u16) {
        assert!(!self.is_undecided(), "a volume is not served before a failure is recorded");
        self.withdraw_volume(number);
        self.serving.push(number);
        self.log.end_restore(number);
    }

    /// Records nothing more of a volume, and voids nothing: another host has its disk, and what
    /// this one still does goes nowhere. To the volume, the journal has failed.
    pub fn end(&mut self, number: u16) {
        self.ended.push(number);
    }

    /// Whether a volume ends without its disk.
    pub(crate) fn is_ended(&self, number: u16) -> bool {
        self.ended.contains(&number)
    }

    /// Ends a checkpoint of a volume. That of a volume that ends frees nothing.
    pub fn end_checkpoint(&mut self, number: u16, result: IoResult) {
        let result = if self.is_ended(number) { Err(IoError::Shutdown) } else { result };
        self.log.end_checkpoint(number, result);
    }

    /// Serves a volume no longer. Returns whether its records in the journal are void.
    pub fn withdraw_volume(&mut self, number: u16) -> bool {
        let is_void = self.is_failure_recorded && self.serving.contains(&number);
        self.serving.retain(|&other| other != number);
        self.ended.retain(|&other| other != number);
        is_void
    }

    /// Numbers of the volumes that are served.
    pub fn serving(&self) -> &[u16] {
        &self.serving
    }
}
