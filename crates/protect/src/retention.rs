//! Keeps in the journal the data that a volume's disk did not take.
//!
//! A bad sector, or memory damaged beyond repair, leaves lines dirty permanently, and the records
//! that hold them would keep every later record from being reclaimed. So when a checkpoint has
//! failed, the disk is flushed; it then has everything that is not still dirty. The rest is
//! recorded once more at the end of the log (copied forward), and the checkpoint succeeds. Where
//! the log has no space for that, or data is lost, a fence records which of the older records are
//! still live (`journal/src/log/space.rs`).

use crate::JournalState;
use forebay_engine::{LineKey, LineTable, Shard};
use forebay_format::journal::RecordKind;
use forebay_journal::{LogAdmission, LogEntry, is_durable_before};
use forebay_types::{ByteRange, IoError, IoResult, SECTOR_BYTES, VolumeId};

/// A line whose data is not on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StuckLine {
    /// The number of its shard.
    pub shard: usize,
    /// Its place in the volume.
    pub key: LineKey,
    /// The sectors that can be written to the disk, a bit for each.
    pub dirty: u8,
    /// The other ones, which are damaged beyond repair.
    pub lost: u8,
}

impl StuckLine {
    /// Appends the lines of a volume in a shard to `lines`. Returns false if the shard does not
    /// have the volume.
    pub fn collect<T: LineTable>(
        lines: &mut Vec<Self>,
        number: usize,
        shard: &Shard<T>,
        volume: VolumeId,
    ) -> bool {
        if !shard.has_volume(volume) {
            return false;
        }
        let found = shard.dirty_lines_of(volume).into_iter();
        lines.extend(found.map(|(key, dirty, lost)| Self { shard: number, key, dirty, lost }));
        true
    }
}

/// The runs of the sectors in `mask`, in order.
pub fn runs_of(key: LineKey, mask: u8) -> impl Iterator<Item = ByteRange> {
    let is_set = move |sector: u64| mask >> sector & 1 != 0;
    let starts = (0..8).filter(move |&at| is_set(at) && (at == 0 || !is_set(at - 1)));
    starts.map(move |start| {
        let end = (start..8).find(|&at| !is_set(at)).unwrap_or(8);
        ByteRange::new(key.offset() + start * SECTOR_BYTES, (end - start) * SECTOR_BYTES)
    })
}

/// Records that, of all records of a volume before `since`, only those of the `stuck` sectors are
/// still live: its disk has the rest. Returns false if the log has no space for that.
pub fn fence<B: AsRef<[u8]> + AsMut<[u8]>>(
    journal: &mut JournalState<B>,
    number: u16,
    since: u64,
    stuck: &[StuckLine],
) -> bool {
    let mut live: Vec<ByteRange> = Vec::new();
    for range in stuck.iter().flat_map(|line| runs_of(line.key, line.dirty | line.lost)) {
        match live.last_mut() {
            Some(last) if last.end() == range.offset => last.len += range.len,
            _ => live.push(range),
        }
    }
    let is_last = stuck.iter().all(|line| line.dirty == 0);
    journal.log.fence(number, since, &live, is_last)
}

/// What the driver of a [`Retention`] has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RetentionStep {
    /// Flush the volume's disk, and report the result to [`Retention::handle_flush`].
    FlushDisk,
    /// Copy this line, and pass it to [`Retention::handle_line`] under its shard's lock.
    CopyLine(StuckLine),
    /// Poll again when the log has made progress.
    Wait,
    /// The checkpoint ends with this result.
    End(IoResult),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The disk must flush: afterwards, it has everything that is not stuck.
    Flush,
    /// The lines from this one on must be recorded; with `waits` when the log has space again.
    Copy {
        next: usize,
        waits: bool,
    },
    /// All records before this one must become durable.
    Durable {
        end: u64,
    },
    /// Some of the data has been destaged meanwhile, and the disk must flush again.
    FlushAgain,
    Ended(IoResult),
}

/// What a failed checkpoint of a volume left dirty, until the journal has retained it.
#[derive(Debug)]
pub struct Retention {
    number: u16,
    /// The first record made after the lines were listed.
    since: u64,
    lines: Vec<StuckLine>,
    /// Whether all of the data is still dirty.
    is_all: bool,
    stage: Stage,
    /// The driver has been asked to flush.
    is_flushing: bool,
}

impl Retention {
    /// Retains `lines` of the volume with this number. `since` is the log's next record at a moment
    /// before the lines were listed.
    pub fn new(number: u16, since: u64, mut lines: Vec<StuckLine>) -> Self {
        lines.sort_unstable_by_key(|line| line.key);
        Self { number, since, lines, is_all: true, stage: Stage::Flush, is_flushing: false }
    }

    /// The volume's number in the journal.
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Decides what to do next.
    pub fn poll<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        journal: &JournalState<B>,
    ) -> RetentionStep {
        // The records of a failed log are void, or count as they are.
        if let Some(error) = journal.log.failed() {
            self.stage = Stage::Ended(Err(error));
        }
        // What the disk seems to have taken went nowhere.
        if journal.is_ended(self.number) {
            self.stage = Stage::Ended(Err(IoError::Shutdown));
        }
        if let Stage::Durable { end } = self.stage
            && is_durable_before(&journal.log, end) == Ok(true)
            && journal.log.is_membership_recorded()
        {
            self.stage = if self.is_all { Stage::Ended(Ok(())) } else { Stage::FlushAgain };
        }
        match &mut self.stage {
            Stage::Flush | Stage::FlushAgain if self.is_flushing => RetentionStep::Wait,
            Stage::Flush | Stage::FlushAgain => {
                self.is_flushing = true;
                RetentionStep::FlushDisk
            }
            Stage::Copy { next, waits } => match std::mem::take(waits) {
                true => RetentionStep::Wait,
                false => RetentionStep::CopyLine(self.lines[*next]),
            },
            Stage::Durable { .. } => RetentionStep::Wait,
            Stage::Ended(result) => RetentionStep::End(*result),
        }
    }

    /// Handles the end of a flush of the disk.
    pub fn handle_flush<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        journal: &mut JournalState<B>,
        result: IoResult,
    ) {
        assert!(std::mem::take(&mut self.is_flushing), "a flush was asked for");
        let is_ended = journal.is_ended(self.number);
        let result = if is_ended { Err(IoError::Shutdown) } else { result };
        self.stage = match (self.stage, result) {
            // The disk has taken everything meanwhile. Pending records do not matter: a full log
            // may be unable to write them before this checkpoint ends.
            (Stage::Flush, Ok(())) if self.lines.is_empty() => Stage::Ended(Ok(())),
            (Stage::Flush, Ok(())) if self.fits(journal) => Stage::Copy { next: 0, waits: false },
            (Stage::Flush, Ok(())) => self.fenced(journal),
            (_, result) => Stage::Ended(result),
        };
    }

    /// Whether all of the data can be recorded once more.
    fn fits<B: AsRef<[u8]> + AsMut<[u8]>>(&self, journal: &JournalState<B>) -> bool {
        let (mut bytes, mut records) = (0, 0);
        for range in self.lines.iter().flat_map(|line| runs_of(line.key, line.dirty)) {
            (bytes, records) = (bytes + range.len, records + 1);
        }
        self.lines.iter().all(|line| line.lost == 0)
            && journal.log.can_forward(self.number, bytes, records)
    }

    fn fenced<B: AsRef<[u8]> + AsMut<[u8]>>(&self, journal: &mut JournalState<B>) -> Stage {
        let is_fenced = fence(journal, self.number, self.since, &self.lines);
        journal.kept_mut().fences += u64::from(is_fenced);
        Stage::Ended(Err(IoError::Io))
    }

    /// Records the line of the last step once more. `dirty` and `lost` are its sectors now, and
    /// `line` has its bytes. Must be called under its shard's lock, as in every write, so that the
    /// record has the line's content at that moment.
    pub fn handle_line<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        journal: &mut JournalState<B>,
        dirty: u8,
        lost: u8,
        line: &[u8],
    ) {
        let Stage::Copy { next, .. } = self.stage else { unreachable!("no line was asked for") };
        if journal.is_ended(self.number) {
            self.stage = Stage::Ended(Err(IoError::Shutdown));
            return;
        }
        let stuck = self.lines[next];
        if lost != 0 {
            // A lost sector is neither recorded again nor on the disk.
            self.stage = self.fenced(journal);
            return;
        }
        for range in runs_of(stuck.key, dirty) {
            match journal.log.admit_forward(self.number, range.len) {
                LogAdmission::Granted => {}
                LogAdmission::Wait => {
                    self.stage = Stage::Copy { next, waits: true };
                    return;
                }
                LogAdmission::Full | LogAdmission::Failed => {
                    self.stage = self.fenced(journal);
                    return;
                }
            }
            let from = (range.offset - stuck.key.offset()) as usize;
            let bytes = &line[from..from + range.len as usize];
            let entry = LogEntry { kind: RecordKind::Write, volume: self.number, range };
            let is_taken = journal.log.append(entry, [bytes].into_iter(), None);
            assert!(is_taken, "the record was admitted");
            journal.kept_mut().forward_bytes += range.len;
        }
        self.is_all &= dirty & stuck.dirty == stuck.dirty;
        self.stage = match next + 1 < self.lines.len() {
            true => Stage::Copy { next: next + 1, waits: false },
            false => Stage::Durable { end: journal.log.next_record() },
        };
    }
}
