//! The journal of an experiment: the shipped log, on a device that takes no time.

use super::machine::{SECOND_NS, VOLUME};
use forebay_engine::{Answer, JournalRequest, Part};
use forebay_format::journal::{Geometry, JournalId, LOG_OFFSET};
use forebay_journal::{Log, LogAdmission};
use forebay_protect::JournalState;
use forebay_types::{ByteRange, Durability};
use forebay_volume::{Request, RequestKind};

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
    state: JournalState<Vec<u8>>,
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
        let (answers, zeroes, state) = (Vec::new(), Vec::new(), JournalState::new(log));
        let mut host = Self { state, number, checkpoints, begun_ms: 0, answers, zeroes };
        host.state.serve(number);
        host.commit();
        host
    }

    pub(crate) fn admit(&mut self, part: &Part) -> (LogAdmission, Durability) {
        (self.state.admit(self.number, part), Durability::Flush)
    }

    pub(crate) fn withdraw(&mut self) {
        self.state.log.withdraw();
    }

    pub(crate) fn record(&mut self, request: &JournalRequest) {
        let len = request.range.len as usize;
        self.zeroes.resize(self.zeroes.len().max(len), 0);
        let bytes = std::iter::once(&self.zeroes[..len]);
        self.answers.extend(self.state.record(self.number, request, bytes));
    }

    /// Writes what was recorded; returns the answers to parts that waited for the log.
    pub(crate) fn commit(&mut self) -> Vec<Answer> {
        while let Some(write) = self.state.log.poll_write() {
            self.state.handle_written(write, [Ok(()); 2]);
        }
        self.state.poll_answers(&mut self.answers);
        std::mem::take(&mut self.answers)
    }

    /// Begins a checkpoint if one is due, as the runtime does. Returns the request that destages.
    pub(crate) fn begin_checkpoint(&mut self, now_ms: u64) -> Option<Request> {
        if !self.state.log.wants_checkpoint() && now_ms < self.begun_ms + CHECKPOINT_EVERY_MS {
            return None;
        }
        self.begun_ms = now_ms;
        let _: forebay_journal::Checkpoint = self.state.log.begin_checkpoint()?;
        let kind = RequestKind::Checkpoint { urgent: self.checkpoints == Checkpoints::AtOnce };
        Some(Request { volume: VOLUME, kind, range: ByteRange::new(0, 0) })
    }

    pub(crate) fn end_checkpoint(&mut self) {
        self.state.log.end_checkpoint(self.number, Ok(()));
    }

    pub(crate) fn distance(&self) -> (u64, u64) {
        match self.checkpoints {
            Checkpoints::Paced => forebay_journal::distance(&self.state.log, self.number),
            Checkpoints::AtOnce => (1, 1),
        }
    }

    /// The share of the log that is in use, from 0 to 1.
    pub(crate) fn used(&self) -> f64 {
        let usage = self.state.log.usage();
        usage.used_bytes as f64 / usage.capacity_bytes as f64
    }
}
