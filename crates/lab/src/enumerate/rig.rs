//! One machine from its first start: its possible next steps, and their effects.
//!
//! While the machine serves, any I/O in flight may end next, or the next operation may begin; the
//! caller chooses. A start and a stop are sequential. After each step, the caller can inspect the
//! machine as a crash would leave it.

use super::Bug;
use super::journal::Recovered;
use super::machine::{EnumeratedMachine, Journal, Origin, VOLUME, Writing};
use super::store::Disk;
use super::ups::{Left, Ups};
use super::work::{Operation, Workload};
use crate::harness::journal::{Restored, request_of};
use crate::harness::memory::{Memory, payload_of};
use crate::harness::oracle::{Crash, Oracle, stamp};
use crate::harness::places::{SECTORS, all_sectors, places};
use crate::harness::{Sabotage, WHOLE};
use forebay_types::ByteRange;
use forebay_volume::{Dispatcher, Payload, Request, RequestKind};
use std::collections::VecDeque;

/// The number of ways in which I/Os in flight end when the machine dies: not done, done, every
/// other sector done.
const VARIANTS: usize = 3;
/// The number of ticks after which a request that waits is never answered.
const TICKS_MAX: usize = 200;
/// The number of steps within which all requests must be answered.
const STEPS_MAX: usize = 10_000;
/// Attempts to restore one piece, as in the runtime.
const RESTORES_MAX: u32 = 5;
/// The clock's advance per tick: more than the longest pause after a failed destage.
const TICK_MS: u64 = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    Starting,
    Stopping(Stop),
    /// A start was refused or abandoned.
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Answering,
    Destaging,
    Closing,
}

/// A machine and its remaining operations.
pub(super) struct Rig {
    pub machine: EnumeratedMachine,
    dispatcher: Dispatcher<EnumeratedMachine>,
    operations: Vec<Operation>,
    next: usize,
    phase: Phase,
    restoring: VecDeque<Restored>,
    /// The content of the vault is being destaged.
    is_destaging: bool,
    tries: u32,
    journals_made: u8,
    pub refused_starts: u64,
}

impl Rig {
    pub(super) fn new(workload: &Workload, bug: Option<Bug>) -> Self {
        let mut machine = EnumeratedMachine::new(workload.protected_by, workload.tight, bug);
        machine.make_shards(None);
        if workload.protected_by.journal().is_some() {
            machine.journal = Some(Journal::make(workload.protected_by, 0));
        }
        let mut rig = Self::with(machine, workload.operations.clone());
        rig.deliver_answers();
        rig
    }

    fn with(machine: EnumeratedMachine, operations: Vec<Operation>) -> Self {
        Self {
            machine,
            dispatcher: Dispatcher::new(0),
            operations,
            next: 0,
            phase: Phase::Starting,
            restoring: VecDeque::new(),
            is_destaging: false,
            tries: 0,
            journals_made: 0,
            refused_starts: 0,
        }
    }

    /// A machine like this one, without operations, that starts on these devices.
    pub(super) fn after(
        machine: &EnumeratedMachine,
        disk: Disk,
        recovered: Option<&Recovered>,
        left: Left,
    ) -> Self {
        let machine = EnumeratedMachine::new(machine.protected_by, machine.tight, machine.bug);
        let mut rig = Self::with(machine, Vec::new());
        rig.machine.disk = disk;
        rig.start(recovered, left);
        rig
    }

    /// The number of I/Os in flight.
    fn pending(&self) -> usize {
        let writing = self.machine.journal.as_ref().is_some_and(|j| j.writing.is_some());
        self.machine.ios.len() + self.machine.flushes.len() + usize::from(writing)
    }

    /// The number of ways in which the next operation can begin.
    fn variants(&self) -> usize {
        let quiet = self.pending() == 0;
        match self.operations.get(self.next) {
            None => 0,
            Some(Operation::Kill) if !quiet => VARIANTS,
            Some(Operation::Power) if !quiet || self.is_volatile() => VARIANTS,
            Some(_) => 1,
        }
    }

    fn is_volatile(&self) -> bool {
        self.machine.disk.content() != *self.machine.disk.stable()
    }

    /// The number of possible next steps; zero at the end.
    pub(super) fn choices(&self) -> usize {
        match self.phase {
            Phase::Serving => self.pending() + self.variants(),
            Phase::Starting | Phase::Stopping(_) => 1,
            Phase::Down => 0,
        }
    }

    /// Executes one of the possible next steps.
    pub(super) fn step(&mut self, choice: usize) {
        match self.phase {
            Phase::Serving if choice < self.pending() => self.complete(choice),
            Phase::Serving => self.begin(choice - self.pending()),
            Phase::Starting | Phase::Stopping(_) if self.pending() > 0 => self.complete(0),
            Phase::Starting => self.continue_start(),
            Phase::Stopping(stop) => self.continue_stop(stop),
            Phase::Down => {}
        }
        self.deliver_answers();
        if self.is_stuck() {
            self.wait_for_ticks();
        }
    }

    /// Whether requests wait although nothing is in flight and no operation follows.
    fn is_stuck(&self) -> bool {
        self.choices() == 0 && self.phase == Phase::Serving && self.machine.waiting() > 0
    }

    /// Lets time pass: a checkpoint that is not urgent goes on at ticks.
    fn wait_for_ticks(&mut self) {
        for _ in 0..TICKS_MAX {
            self.tick();
            self.deliver_answers();
            if !self.is_stuck() {
                return;
            }
        }
        self.machine.violate("a request is never answered".into());
    }

    /// Whether a start was refused or abandoned.
    pub(super) fn is_down(&self) -> bool {
        self.phase == Phase::Down
    }

    /// Whether the next operation ends the process.
    pub(super) fn ends_next(&self) -> bool {
        let next = self.operations.get(self.next);
        self.phase == Phase::Serving
            && matches!(next, Some(Operation::Kill | Operation::Power | Operation::Restart))
    }

    /// Whether the journal has failed, and its records count until that is recorded.
    pub(super) fn has_unrecorded_failure(&self) -> bool {
        let journal = self.machine.journal.as_ref();
        journal.is_some_and(|journal| journal.state.poll_failure().is_some())
    }

    /// Whether the disk lacks data that a failed journal held.
    pub(super) fn is_draining(&self) -> bool {
        self.machine.journal.as_ref().is_some_and(|journal| journal.undrained)
    }

    /// Ends all I/Os in flight, and those that follow from them.
    pub(super) fn run_pending(&mut self) {
        for _ in 0..STEPS_MAX {
            if self.pending() == 0 || self.machine.violation.is_some() {
                return;
            }
            self.complete(0);
            self.deliver_answers();
        }
        self.machine.violate("the machine never becomes idle".into());
    }

    fn complete(&mut self, which: usize) {
        let (ios, flushes) = (self.machine.ios.len(), self.machine.flushes.len());
        if which < ios {
            let (shard, id, result) = self.machine.end_io(which);
            self.dispatcher.complete(&mut self.machine, shard, id, result);
        } else if which < ios + flushes {
            let (job, result) = self.machine.end_flush(which - ios);
            self.dispatcher.flushed(&mut self.machine, job, result);
        } else {
            self.machine.end_journal_write();
        }
    }

    /// Delivers answers to the dispatcher and starts the next write of the journal.
    fn deliver_answers(&mut self) {
        self.machine.pump_journal();
        while let Some(answer) = self.machine.answers.pop_front() {
            self.dispatcher.answer(&mut self.machine, answer);
            self.machine.pump_journal();
        }
    }

    fn submit(&mut self, origin: Origin, kind: RequestKind, range: ByteRange) {
        let request = Request { volume: VOLUME, kind, range };
        self.machine.ended = None;
        let (token, version) = self.machine.register(origin, request);
        let bytes = match kind {
            RequestKind::Write { .. } => {
                payload_of(places(range).map(|place| stamp(0, place as u64, version)))
            }
            _ => Vec::new(),
        };
        let payload = match kind {
            RequestKind::Write { .. } => Payload::Borrowed(&bytes[..]),
            _ => Payload::None,
        };
        self.dispatcher.submit(&mut self.machine, token, request, payload);
        self.deliver_answers();
    }

    /// Begins the next operation, in the way that `variant` selects.
    fn begin(&mut self, variant: usize) {
        let operation = self.operations[self.next];
        self.next += 1;
        self.machine.log_event(|| format!("operation: {operation}, variant {variant}"));
        match operation {
            Operation::Request(kind, range) => self.submit(Origin::Client, kind, range),
            Operation::Tick => self.tick(),
            Operation::Checkpoint => self.checkpoint(),
            Operation::Kill => self.crash(self.machine.crashes()[0], variant),
            Operation::Power => self.crash(self.machine.crashes()[1], variant),
            Operation::Restart => self.phase = Phase::Stopping(Stop::Answering),
        }
    }

    pub(super) fn tick(&mut self) {
        for _ in 0..3 {
            self.machine.now_ms += TICK_MS;
            for shard in 0..2 {
                self.dispatcher.tick(&mut self.machine, shard);
            }
        }
        self.machine.maintain_ups();
        let wants = |journal: &Journal| {
            journal.state.log.wants_checkpoint()
                || journal.state.log.failed().is_some() && journal.undrained
        };
        if self.machine.journal.as_ref().is_some_and(wants) {
            self.checkpoint();
        }
    }

    fn checkpoint(&mut self) {
        if self.machine.begin_checkpoint() {
            self.submit(Origin::Machine, RequestKind::Checkpoint { urgent: false }, WHOLE);
        }
    }

    /// Kills the machine or cuts its power, and starts it again; `variant` decides how I/Os in
    /// flight end.
    fn crash(&mut self, crash: Crash, variant: usize) {
        let survives = |at: usize| variant == 1 || variant == 2 && at.is_multiple_of(2);
        let left = self.machine.left_by(crash);
        let machine = &mut self.machine;
        let possible = machine.disk_after(crash);
        let mut content = machine.disk.content();
        for (at, content) in content.iter_mut().enumerate().filter(|&(at, _)| !survives(at)) {
            *content = possible[at][0];
        }
        for (place, stamp) in machine.changes_under_way() {
            if survives(place) {
                content[place] = stamp;
            }
        }
        // The disk writes its cache before the next crash.
        machine.disk = Disk::with(content);
        if let Some(journal) = &mut machine.journal
            && let Some(Writing::Log(write, _)) = journal.writing.take()
        {
            journal.device.write_some(write.position, write.bytes_for(0), survives);
        }
        self.start_on(left, crash);
    }

    /// Starts the next process after one whose pool is lost.
    pub(super) fn start_again(&mut self) {
        self.start_on(self.machine.left_by(Crash::Process), Crash::Process);
    }

    /// Starts the next process on the devices and on what a crash has left beside them.
    fn start_on(&mut self, left: Left, crash: Crash) {
        self.machine.die();
        let recovered = match self.machine.journal.take() {
            None => None,
            Some(journal) if journal.is_marked => {
                self.journals_made += 1;
                None
            }
            Some(journal) => {
                let device = journal.device.clone();
                match Recovered::read(device, &mut self.machine.faults, false) {
                    Ok(recovered) => Some(recovered),
                    Err(refused) => {
                        if !self.machine.faults.has_failed() {
                            self.machine
                                .violate(format!("a crash is reported as damage: {refused:?}"));
                        }
                        self.machine.journal = Some(journal);
                        self.fail_start();
                        return;
                    }
                }
            }
        };
        self.start(recovered.as_ref(), left);
        let content = self.found_content();
        self.check_content("after a crash", &content, crash);
        for (place, &found) in content.iter().enumerate() {
            self.machine.oracle.restart(place as u64, found);
        }
    }

    /// The content that a process which starts has found.
    pub(super) fn found_content(&self) -> [u64; SECTORS] {
        overlaid(self.machine.visible_content(), &self.restoring)
    }

    fn check_content(&mut self, when: &str, content: &[u64; SECTORS], crash: Crash) {
        let contents = (0..).zip(content.iter().copied());
        let is_right = |it: &mut Oracle, at, found| it.check_crash(at, found, crash);
        if let Some((place, text)) = self.machine.oracle.first_mismatch(contents, is_right) {
            self.machine.violate(format!("{when}, sector {place} {text}"));
        }
    }

    fn start(&mut self, recovered: Option<&Recovered>, left: Left) {
        self.phase = Phase::Starting;
        (self.tries, self.is_destaging) = (0, false);
        self.machine.make_shards(left.pool);
        self.dispatcher = Dispatcher::new(0);
        self.restoring = left.vault.image().into();
        let protected_by = self.machine.protected_by;
        match recovered {
            None if protected_by.journal().is_none() => {}
            None => self.machine.journal = Some(Journal::make(protected_by, self.journals_made)),
            Some(recovered) => match Journal::resume(recovered, protected_by) {
                Some(journal) => {
                    self.machine.journal = Some(journal);
                    if left.vault.is_empty() {
                        self.restoring = recovered.pieces.iter().cloned().collect();
                    }
                }
                None => self.drain(recovered),
            },
        }
        if let Some(ups) = &mut self.machine.ups {
            *ups = Ups::new(left.vault);
        }
        if self.machine.strikes(Sabotage::LoseGeneration)
            && recovered.is_some()
            && let Some(journal) = &mut self.machine.journal
        {
            while let Some(write) = journal.state.log.poll_write() {
                journal.state.handle_written(write, [Ok(()); 2]);
            }
        }
        self.deliver_answers();
    }

    /// Writes the log's data to the disk directly, because the log has no space for another start.
    fn drain(&mut self, recovered: &Recovered) {
        let content = overlaid(self.machine.disk.content(), &recovered.pieces);
        self.machine.disk = Disk::with(content);
        let mut recovered = recovered.clone();
        recovered.found.drop_records();
        let journal = Journal::resume(&recovered, self.machine.protected_by);
        self.machine.journal = Some(journal.expect("an empty log can be resumed"));
    }

    fn fail_start(&mut self) {
        self.refused_starts += 1;
        self.phase = Phase::Down;
    }

    fn continue_start(&mut self) {
        if self.machine.ended.is_some_and(|result| result.is_ok()) {
            match std::mem::take(&mut self.is_destaging) {
                true => self.empty_vault(),
                false => drop(self.restoring.pop_front()),
            }
            self.tries = 0;
        }
        self.machine.ended = None;
        if self.tries == RESTORES_MAX {
            self.fail_start();
            return;
        }
        let Some((piece, stamps)) = self.restoring.front() else {
            if self.machine.ups.as_ref().is_some_and(|ups| !ups.vault.is_empty()) {
                self.destage_vault();
                return;
            }
            if let Some(journal) = &mut self.machine.journal {
                if journal.state.unrecorded_failure().is_some() {
                    self.fail_start();
                    return;
                }
                journal.state.serve(journal.number);
            }
            self.machine.maintain_ups();
            self.phase = Phase::Serving;
            return;
        };
        self.tries += 1;
        if self.machine.strikes(Sabotage::SkipRestore) {
            self.machine.ended = Some(Ok(()));
            return;
        }
        let kind = request_of(piece);
        let request = Request { volume: VOLUME, kind, range: piece.range };
        let bytes = payload_of(stamps.iter().copied());
        let payload = match kind {
            RequestKind::Restore => Payload::Owned(Memory::payload(&bytes)),
            _ => Payload::None,
        };
        let (token, _) = self.machine.register(Origin::Machine, request);
        self.dispatcher.submit(&mut self.machine, token, request, payload);
    }

    fn destage_vault(&mut self) {
        if self.machine.strikes(Sabotage::EmptyVaultEarly) {
            self.empty_vault();
        }
        (self.tries, self.is_destaging) = (self.tries + 1, true);
        self.submit(Origin::Machine, RequestKind::Destage, WHOLE);
    }

    fn empty_vault(&mut self) {
        self.machine.ups.as_mut().expect("there is a UPS").vault.clear();
    }

    fn continue_stop(&mut self, stop: Stop) {
        match stop {
            Stop::Answering => {
                if self.machine.waiting() > 0 {
                    self.machine.violate("a request is never answered before a stop".into());
                }
                self.submit(Origin::Machine, RequestKind::Destage, WHOLE);
                self.phase = Phase::Stopping(Stop::Destaging);
            }
            Stop::Destaging => {
                let clean = self.machine.ended == Some(Ok(()));
                if self.machine.ended.is_none() {
                    self.machine.violate("a stop never ends".into());
                }
                if !clean {
                    // The command fails, and the process continues to serve.
                    self.phase = Phase::Serving;
                    return;
                }
                if let Some(journal) = &mut self.machine.journal
                    && journal.state.log.failed().is_none()
                {
                    journal.state.log.mark_clean(journal.number);
                    let removed = journal.state.log.remove_volume(journal.number);
                    removed.expect("the volume has no records left");
                    journal.state.log.close();
                }
                self.phase = Phase::Stopping(Stop::Closing);
            }
            Stop::Closing => self.start_again(),
        }
    }

    /// Executes the first possible step until none is left.
    pub(super) fn run_to_completion(&mut self) {
        for _ in 0..STEPS_MAX {
            if self.choices() == 0 || self.machine.violation.is_some() {
                return;
            }
            self.step(0);
        }
        self.machine.violate("the machine never becomes idle".into());
    }

    /// Submits a request and waits for its answer.
    pub(super) fn request_and_wait(&mut self, kind: RequestKind, range: ByteRange) {
        self.submit(Origin::Machine, kind, range);
        while self.machine.ended.is_none() && self.machine.violation.is_none() {
            if self.pending() == 0 {
                self.machine.violate(format!("{kind:?} is never answered"));
                return;
            }
            self.complete(0);
            self.deliver_answers();
        }
    }

    pub(super) fn read_all(&mut self) {
        self.request_and_wait(RequestKind::Read, all_sectors());
    }

    /// The final checks: all reads are right, a flush and a destage bring everything to the disk's
    /// stable storage, and no resources are in use.
    pub(super) fn verify(&mut self) {
        self.read_all();
        self.request_and_wait(RequestKind::Flush, WHOLE);
        self.request_and_wait(RequestKind::Destage, WHOLE);
        let now = self.machine.moment + 1;
        let content = self.machine.disk.content();
        let contents = (0..).zip(content);
        let is_right = |it: &mut Oracle, at, found| it.check_read(at, found, now);
        if let Some((place, text)) = self.machine.oracle.first_mismatch(contents, is_right) {
            self.machine
                .violate(format!("after the final flush, sector {place} of the disk {text}"));
        }
        if self.is_volatile() {
            self.machine.violate("after a destage, the disk has unstable data".into());
        }
        self.machine.check_leaks();
    }
}

/// The content with these pieces restored to it.
pub(super) fn overlaid<'a>(
    mut content: [u64; SECTORS],
    pieces: impl IntoIterator<Item = &'a Restored>,
) -> [u64; SECTORS] {
    for (piece, stamps) in pieces {
        content[places(piece.range)].copy_from_slice(stamps);
    }
    content
}
