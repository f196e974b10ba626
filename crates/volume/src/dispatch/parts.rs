//! One attempt at a part: one call to its shard.

use super::{Dispatcher, PartName, PartState};
use crate::erase::erase_kind;
use crate::host::{Admission, Host};
use crate::{JobId, Request, RequestKind, Wait, WaitBreakdown};
use forebay_engine::{
    Attempt, EraseOutcome, IoCause, JournalRecording, LineHits, Outbox, Part, ReadOutcome, Segment,
    Slot, WaitsFor, WriteOutcome, WriteTerms,
};
use forebay_types::{ByteRange, IoResult, LINE_BYTES};

/// The result of one attempt at a part.
pub(super) enum PartStep {
    Done(IoResult),
    Waiting(Wait),
    /// The part waits for all earlier epochs, and for the open one if its range is dirty.
    Held {
        dirty: bool,
    },
    Started,
    /// The part is answered when its journal record is durable.
    Logged,
}

impl PartStep {
    fn of(outcome: WriteOutcome, waits_for: WaitsFor) -> Self {
        match outcome {
            WriteOutcome::Done => Self::Done(Ok(())),
            WriteOutcome::Failed(error) => Self::Done(Err(error)),
            WriteOutcome::Waiting => Self::Waiting(waits_for.into()),
            WriteOutcome::Started => Self::Started,
            WriteOutcome::Held { dirty } => Self::Held { dirty },
        }
    }

    /// Adds what the part waits for after this step to its breakdown, and the I/Os that the step
    /// has left in the outbox.
    pub(super) fn record(&self, trail: &mut WaitBreakdown, out: &Outbox, now_us: u64) {
        trail.add_ios(out.ios.iter().filter(|io| io.cause == IoCause::Demand).count());
        let wait = match self {
            Self::Done(_) => return trail.end(now_us),
            Self::Waiting(wait) => *wait,
            Self::Held { .. } => Wait::Order,
            Self::Started => Wait::Disk,
            Self::Logged => Wait::Journal,
        };
        trail.begin(wait, now_us);
    }
}

/// The data of a part that writes, in one of the two fields.
#[derive(Clone, Copy)]
pub(super) struct PartData<'a> {
    pub payload: &'a [u8],
    pub staged: &'a [Slot],
}

/// One attempt at a part. For the fields see [`PartState`].
pub(super) struct PartRun {
    pub range: ByteRange,
    pub shard: usize,
    pub attempt: Attempt,
    pub is_applied: bool,
}

impl<H: Host> Dispatcher<H> {
    /// Attempts or retries a part of a job.
    pub(super) fn run_part(&mut self, host: &mut H, id: JobId, part: u8) {
        let job = self.jobs.get_mut(id);
        if job.long.as_ref().is_some_and(|long| long.part == part && !long.has_begun) {
            return self.run_long(host, id, part);
        }
        let request = job.request;
        let state = &mut job.parts[usize::from(part)];
        let PartState { range, shard, attempt, is_applied, .. } = *state;
        let run = PartRun { range, shard, attempt, is_applied };
        let mut segments = std::mem::take(&mut state.segments);
        segments.clear();
        let (memory, staged) = (job.memory.take(), std::mem::take(&mut job.staged));
        let from = (run.range.offset - request.range.offset) as usize;
        let payload = match (&memory, request.kind) {
            (
                Some(memory),
                RequestKind::Write { .. } | RequestKind::Restore | RequestKind::Record,
            ) => &memory.as_ref()[from..from + run.range.len as usize],
            _ => &[],
        };
        let name = PartName { worker: self.worker, part, job: id };
        let bytes = PartData { payload, staged: staged_part(&staged, request.range, run.range) };
        let (step, line_hits) = self.try_part(host, name, request, &run, bytes, &mut segments);
        let job = self.jobs.get_mut(id);
        job.memory = memory;
        job.staged = staged;
        job.line_hits.add(line_hits);
        let state = &mut job.parts[usize::from(part)];
        state.segments = segments;
        // Once the change is applied, the shard owns the slots of a staged payload.
        state.is_waiting = matches!(step, PartStep::Waiting(_)) && !run.is_applied;
        step.record(&mut state.trail, &self.out, host.now_us());
        self.drain_outbox(host, run.shard);
        if let PartStep::Done(result) = step {
            self.finish_part(host, name, result);
        }
    }

    /// Attempts a part with one call to a shard. The caller drains the outbox.
    pub(super) fn try_part(
        &mut self,
        host: &mut H,
        name: PartName,
        request: Request,
        run: &PartRun,
        bytes: PartData<'_>,
        segments: &mut Vec<Segment>,
    ) -> (PartStep, LineHits) {
        let restores =
            matches!(request.kind, RequestKind::Restore | RequestKind::RestoreZero { .. });
        let (id, volume) = (name.pack(), request.volume);
        let part = Part { id, volume, range: run.range, restores };
        let attempt = run.attempt;
        let step = match request.kind {
            _ if run.is_applied => host.call(run.shard, &[], &mut self.out, |shard, out| {
                PartStep::of(shard.destage_part(&part, attempt, out), out.waits_for)
            }),
            RequestKind::Read => {
                return host.call(run.shard, &[], &mut self.out, |shard, out| {
                    let (outcome, line_hits) = shard.read(&part, attempt, segments, out);
                    let step = match outcome {
                        ReadOutcome::Ready => PartStep::Done(Ok(())),
                        ReadOutcome::Waiting => PartStep::Waiting(out.waits_for.into()),
                        ReadOutcome::Started => PartStep::Started,
                        ReadOutcome::Failed(error) => PartStep::Done(Err(error)),
                    };
                    (step, line_hits)
                });
            }
            RequestKind::Preload { lines, kind } => {
                self.try_preload(host, &part, attempt, lines, kind)
            }
            RequestKind::Write { .. } | RequestKind::Record => {
                let fua = request.kind != RequestKind::Write { fua: false };
                let admission = host.admit(&part, fua);
                self.try_write(host, &part, fua, admission, run, bytes)
            }
            RequestKind::Restore => self.try_write(host, &part, false, Admission::Free, run, bytes),
            _ if !restores && !host.admit_erase(&part) => PartStep::Waiting(Wait::JournalAdmission),
            kind => {
                let kind = erase_kind(kind).expect("flush and prefetch have no parts");
                let outcome = host.call(run.shard, &[], &mut self.out, |shard, out| {
                    shard.erase(&part, kind, attempt, out)
                });
                match outcome {
                    EraseOutcome::Started => PartStep::Started,
                    EraseOutcome::Waiting => PartStep::Waiting(self.out.waits_for.into()),
                    EraseOutcome::Held { dirty } => PartStep::Held { dirty },
                }
            }
        };
        let step = match step {
            PartStep::Held { dirty } => self.hold_until_in_order(host, volume, id, dirty),
            step => step,
        };
        (step, std::mem::take(&mut self.out.write_hits))
    }

    fn try_write(
        &mut self,
        host: &mut H,
        part: &Part,
        fua: bool,
        admission: Admission,
        run: &PartRun,
        bytes: PartData<'_>,
    ) -> PartStep {
        if admission == Admission::Wait {
            return PartStep::Waiting(Wait::JournalAdmission);
        }
        let order = host.order(part.volume);
        let epoch = order.as_ref().map_or(0, |order| order.epoch());
        let through = admission == Admission::Through;
        // Recorded under the shard's lock, so that records of overlapping writes are in order.
        let record = match admission {
            Admission::Logged { is_awaited: true } => JournalRecording::Answers,
            Admission::Logged { is_awaited: false } => JournalRecording::Answered,
            _ => JournalRecording::No,
        };
        let terms = WriteTerms { fua, through, epoch, now_ms: host.now_ms(), record };
        self.out.turn = host.batch();
        let outcome =
            host.call(run.shard, bytes.payload, &mut self.out, |shard, out| match bytes.staged {
                [] => shard.write(part, terms, run.attempt, out),
                staged => shard.write_staged(part, terms, run.attempt, staged, out),
            });
        if let (true, WriteOutcome::Done, Some(order)) = (fua, outcome, &order) {
            // A write after this answer may depend on this one, so it belongs to a later epoch.
            order.cut();
        }
        match (admission, outcome) {
            (Admission::Logged { is_awaited: true }, WriteOutcome::Done) => {
                return PartStep::Logged;
            }
            (Admission::Logged { is_awaited: false }, WriteOutcome::Done) => {}
            (Admission::Logged { .. }, _) => host.withdraw(part.volume),
            _ => {}
        }
        PartStep::of(outcome, self.out.waits_for)
    }
}

/// The slots of a part, given the slots of its request.
pub(super) fn staged_part(staged: &[Slot], request: ByteRange, part: ByteRange) -> &[Slot] {
    if staged.is_empty() {
        return &[];
    }
    let line = |offset: u64| (offset / LINE_BYTES - request.offset / LINE_BYTES) as usize;
    &staged[line(part.offset)..=line(part.end() - 1)]
}
