//! The journal of an enumerated machine: the shipped log on a device that can be inspected at any
//! moment.

use super::faults::{FaultKind, Faults};
use super::machine::{EnumeratedMachine, Journal, Writing};
use super::work::ProtectedBy;
use crate::harness::Sabotage;
use crate::harness::journal::{GEOMETRY, Restored, SIZE_BYTES, buffers, read_piece, record};
use crate::harness::log_device::LogDevice;
use crate::harness::memory::payload_of;
use crate::harness::places::{SECTORS, VOLUME_BYTES, places, sectors};
use forebay_engine::{Answer, JournalRequest, Outcome, PartId};
use forebay_format::journal::{JournalId, RecordKind};
use forebay_journal::{Found, Log, LogAdmission, LogEntry, ReadAt, pieces_to_restore, recover};
use forebay_protect::JournalState;
use forebay_types::{IoResult, SECTOR_BYTES};

const IDENTITY: [u8; 32] = [1; 32];

/// The log that a start finds on the journal's device.
#[derive(Clone)]
pub(super) struct Recovered {
    pub device: LogDevice,
    pub found: Found,
    /// The data that the disk may lack.
    pub pieces: Vec<Restored>,
}

/// Why a start refuses a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The device is unreadable or holds no journal.
    Unusable(String),
    /// Durable data is missing.
    Damaged(String),
}

/// A device with faults.
struct Reader<'a>(&'a mut LogDevice, &'a mut Faults);

impl ReadAt for Reader<'_> {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> IoResult {
        self.1.next_result(FaultKind::JournalRead)?;
        self.0.read_at(position, buffer)
    }
}

impl Recovered {
    /// Reads the log like a start. With `accepts_loss`, damaged records are skipped.
    pub(super) fn read(
        mut device: LogDevice,
        faults: &mut Faults,
        accepts_loss: bool,
    ) -> Result<Self, Refused> {
        let size = device.size_bytes();
        let found = recover(&mut Reader(&mut device, faults), size);
        let found = found.map_err(|error| Refused::Unusable(error.to_string()))?;
        if let Some(damage) = found.damage.first().filter(|_| !accepts_loss) {
            return Err(Refused::Damaged(damage.to_string()));
        }
        let volumes = &found.superblock.volumes;
        let number = volumes.iter().find(|v| v.identity == IDENTITY).map(|volume| volume.number);
        let pieces = number.map(|number| pieces_to_restore(&found.records, number));
        let mut restored = Vec::new();
        for piece in pieces.unwrap_or_default() {
            if let Some(position) = piece.position {
                let first = position / SECTOR_BYTES;
                let mut sectors = first..first + piece.range.len / SECTOR_BYTES;
                if faults.next_result(FaultKind::JournalRead).is_err()
                    || sectors.any(|sector| device.unreadable.contains(&sector))
                {
                    return Err(Refused::Unusable("a record is unreadable".into()));
                }
            }
            restored.push(read_piece(piece, |at| device.word(at)));
        }
        Ok(Self { device, found, pieces: restored })
    }

    /// The restored content of each sector, if it is restored.
    pub(super) fn overlay(&self) -> [Option<u64>; SECTORS] {
        let mut overlay = [None; SECTORS];
        for (piece, stamps) in &self.pieces {
            for (place, &stamp) in places(piece.range).zip(stamps) {
                overlay[place] = Some(stamp);
            }
        }
        overlay
    }
}

/// Executes all writes that the log has to do.
fn write_all(state: &mut JournalState<Vec<u8>>, device: &mut LogDevice) {
    while let Some(write) = state.log.poll_write() {
        let (position, bytes) = (write.position, write.bytes_for(0));
        // A sector that has been written is readable again.
        let first = position / SECTOR_BYTES;
        let written = first..first + bytes.len() as u64 / SECTOR_BYTES;
        device.unreadable.retain(|sector| !written.contains(sector));
        device.write_some(position, bytes, |_| true);
        state.handle_written(write, [Ok(()); 2]);
    }
}

impl Journal {
    /// A new journal on an empty device; `made` is the number of journals made before it.
    pub(super) fn make(protected_by: ProtectedBy, made: u8) -> Self {
        let id = JournalId([made; 16]);
        let mut state = JournalState::new(Log::format(id, SIZE_BYTES, GEOMETRY, buffers()));
        // A journal is durable before a volume is added to it.
        let mut device = LogDevice::new(SIZE_BYTES);
        write_all(&mut state, &mut device);
        Self::with(state, device, protected_by)
    }

    /// Resumes the log; `None` if it must be drained to the disk first.
    pub(super) fn resume(recovered: &Recovered, protected_by: ProtectedBy) -> Option<Self> {
        let log = Log::resume(&recovered.found, buffers()).ok()?;
        Some(Self::with(JournalState::new(log), recovered.device.clone(), protected_by))
    }

    /// Records a sector and waits until the record is durable.
    pub(super) fn write_durably(&mut self, place: usize, stamp: u64) {
        let bytes = payload_of([stamp].into_iter());
        let granted = self.state.log.admit(self.number, SECTOR_BYTES, PartId(0));
        assert_eq!(granted, LogAdmission::Granted, "a nearly empty log has space");
        let range = sectors(place as u64, 1);
        let entry = LogEntry { kind: RecordKind::Write, volume: self.number, range };
        assert!(self.state.log.append(entry, [&bytes[..]].into_iter(), None));
        write_all(&mut self.state, &mut self.device);
    }

    fn with(
        mut state: JournalState<Vec<u8>>,
        device: LogDevice,
        protected_by: ProtectedBy,
    ) -> Self {
        let number = state.log.add_volume("volume", VOLUME_BYTES, IDENTITY);
        Self {
            number: number.expect("there is one volume"),
            state,
            device,
            writing: None,
            durability: protected_by.journal().expect("the volume has a journal"),
            checkpoint: false,
            is_marked: false,
            failed_at: 0,
            undrained: false,
        }
    }
}

/// Takes the answers of the journal that are due.
fn answers_due(journal: &mut Journal) -> Vec<Answer> {
    let mut answers = Vec::new();
    journal.state.poll_answers(&mut answers);
    answers
}

impl EnumeratedMachine {
    /// Carries out a request, as the runtime does under the shard's lock.
    pub(super) fn take_request(
        &mut self,
        shard: usize,
        request: &JournalRequest,
        payload: &[u8],
    ) -> Option<Answer> {
        if Sabotage::skipping_record(&request.kind).is_some_and(|bug| self.strikes(bug)) {
            return Some(Answer { part: request.part, outcome: Outcome::Done(Ok(())) });
        }
        self.log_event(|| format!("journal: {:?} {}", request.kind, request.range));
        let journal = self.journal.as_mut().expect("the volume has one");
        let shard = &self.shards[shard];
        record(&mut journal.state, journal.number, request, payload, shard)
    }

    /// Starts the next write of the journal.
    pub(super) fn pump_journal(&mut self) {
        let Some(journal) = self.journal.as_mut().filter(|j| j.writing.is_none()) else { return };
        if journal.state.poll_failure().is_some() {
            journal.writing = Some(Writing::Mark);
            self.log_event(|| "journal: the failure mark begins".into());
            return;
        }
        let Some(write) = journal.state.log.poll_write() else { return };
        let result = self.faults.next_result(FaultKind::JournalWrite);
        let (position, len) = (write.position, write.len);
        journal.writing = Some(Writing::Log(write, result));
        self.log_event(|| format!("journal: write of {len} bytes at {position} begins"));
    }

    pub(super) fn end_journal_write(&mut self) {
        let [lose_batch, tear_batch, lose_superblock, skips_mark] = [
            Sabotage::LoseBatch,
            Sabotage::TearBatch,
            Sabotage::LoseSuperblock,
            Sabotage::SkipMark,
        ]
        .map(|bug| self.strikes(bug));
        let moment = self.moment;
        let journal = self.journal.as_mut().expect("a write is in flight");
        let text = match journal.writing.take().expect("a write is in flight") {
            Writing::Log(write, result) => {
                let is_batch = write.batch().is_some();
                let half = write.len / SECTOR_BYTES as usize / 2;
                let lost = if is_batch { lose_batch } else { lose_superblock };
                let torn = is_batch && tear_batch || result.is_err();
                let is_lost = |sector: usize| lost || torn && sector >= half;
                journal.device.write_some(write.position, write.bytes_for(0), |at| !is_lost(at));
                journal.state.handle_written(write, [result; 2]);
                format!("journal: write ends: {result:?}")
            }
            Writing::Mark => {
                journal.is_marked = !skips_mark;
                journal.failed_at = moment;
                journal.checkpoint = false;
                journal.undrained = true;
                journal.state.handle_failure_recorded();
                "journal: the failure mark is durable".into()
            }
        };
        self.answers.extend(answers_due(journal));
        self.log_event(|| text);
    }

    /// Handles the end of a checkpoint's destage.
    pub(super) fn checkpoint_ended(&mut self, submitted: u32, result: IoResult) {
        let Some(journal) = &mut self.journal else { return };
        if journal.state.log.failed().is_some() {
            // A destage that began before the failure does not cover everything that the journal
            // held.
            journal.undrained &= result.is_err() || submitted <= journal.failed_at;
            return;
        }
        if std::mem::take(&mut journal.checkpoint) {
            journal.state.log.end_checkpoint(journal.number, result);
            self.answers.extend(answers_due(journal));
        }
    }

    /// Begins a checkpoint; returns whether the disk must be destaged for it.
    pub(super) fn begin_checkpoint(&mut self) -> bool {
        let early = self.strikes(Sabotage::CheckpointEarly);
        let Some(journal) = &mut self.journal else { return false };
        if journal.state.log.failed().is_some() {
            return journal.undrained;
        }
        if journal.state.log.begin_checkpoint().is_none() {
            return false;
        }
        if early {
            journal.state.log.end_checkpoint(journal.number, Ok(()));
            return false;
        }
        journal.checkpoint = true;
        true
    }
}
