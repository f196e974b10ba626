//! Records the dirty data of an adopted pool in the volume's journal once more, before the volume
//! is served: some of its records may have been in the memory of the previous process only.
//!
//! Memory damage may be found before the recording, or while it is in progress. A lost sector has
//! no content that could be recorded: the disk has older data, and so may the journal. So it is
//! left out, and its older records are neither voided, nor used before it is known whether they are
//! the newest ([`forebay_journal::Freshness`]).
//!
//! If the process dies meanwhile, the next one starts over: until the older records are void, each
//! of them is valid, and the pool has the newest data.

use crate::{JournalState, StuckLine, fence};
use forebay_journal::{Mark, is_durable_before};
use forebay_types::IoResult;

/// What the driver of a [`RecordAgain`] has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RecordAgainStep {
    /// Verify this line, record its dirty sectors that are not lost, and report to
    /// [`RecordAgain::handle_line`]. Sectors that are neither valid nor lost were destaged
    /// meanwhile, and the disk has them.
    RecordLine(StuckLine),
    /// Wait until everything is recorded durably, note the log's next record, list the stuck lines,
    /// flush the disk, and report to [`RecordAgain::handle_flush`].
    FlushDisk,
    /// Poll again when the log has made progress; after a flush, it may have had no space.
    Wait,
    /// The recording is complete, or the log has failed. `is_whole` says that nothing was lost: the
    /// journal has all of the data, and no older record.
    End {
        /// Whether the older records are void.
        result: IoResult,
        /// Whether no data was lost.
        is_whole: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The lines from this one on must be recorded.
    Record { next: usize },
    /// The disk must flush; with `waits` when the log has space.
    Flush { waits: bool },
    /// What voids the older records must become durable: the superblock, and all records before
    /// this one.
    Durable { end: u64 },
}

/// Records the dirty data of a volume in an adopted pool again.
#[derive(Debug)]
pub struct RecordAgain {
    number: u16,
    /// The end of the older records.
    mark: Mark,
    lines: Vec<StuckLine>,
    is_whole: bool,
    stage: Stage,
}

impl RecordAgain {
    /// Begins to record `lines` of the volume with this number, which are all that are dirty or
    /// lost.
    pub fn new<B: AsRef<[u8]> + AsMut<[u8]>>(
        journal: &JournalState<B>,
        number: u16,
        mut lines: Vec<StuckLine>,
    ) -> Self {
        let is_whole = lines.iter().all(|line| line.lost == 0);
        lines.retain(|line| line.dirty != 0);
        let (mark, stage) = (journal.log.mark(), Stage::Record { next: 0 });
        Self { number, mark, lines, is_whole, stage }
    }

    /// Decides what to do next.
    pub fn poll<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        journal: &JournalState<B>,
    ) -> RecordAgainStep {
        let is_whole = self.is_whole;
        if let Some(error) = journal.log.failed() {
            return RecordAgainStep::End { result: Err(error), is_whole };
        }
        match &mut self.stage {
            Stage::Record { next } if *next < self.lines.len() => {
                RecordAgainStep::RecordLine(self.lines[*next])
            }
            Stage::Record { .. } => {
                self.stage = Stage::Flush { waits: false };
                RecordAgainStep::FlushDisk
            }
            Stage::Flush { waits } => match std::mem::take(waits) {
                true => RecordAgainStep::Wait,
                false => RecordAgainStep::FlushDisk,
            },
            Stage::Durable { end } => {
                let is_durable = is_durable_before(&journal.log, *end) == Ok(true)
                    && journal.log.is_superblock_durable()
                    && journal.log.is_membership_recorded();
                match is_durable {
                    true => RecordAgainStep::End { result: Ok(()), is_whole },
                    false => RecordAgainStep::Wait,
                }
            }
        }
    }

    /// Handles the recording of the line of the last step. `lost` are its sectors that could not be
    /// recorded.
    pub fn handle_line(&mut self, lost: u8) {
        let Stage::Record { next } = &mut self.stage else { unreachable!("no line was asked for") };
        *next += 1;
        self.is_whole &= lost == 0;
    }

    /// Handles the end of a flush of the disk. `since` is the log's next record at a moment before
    /// the `stuck` lines were listed.
    ///
    /// The older records are voided: if the newest record of a sector was in the memory of the
    /// previous process only, while the disk had the sector's data already, an older record would
    /// undo that data. The flush comes first, because afterwards only the disk has it. If data was
    /// lost, the older records of lost and of dirty sectors stay, because there may be no newer
    /// ones.
    pub fn handle_flush<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        journal: &mut JournalState<B>,
        since: u64,
        stuck: &[StuckLine],
    ) {
        assert!(matches!(self.stage, Stage::Flush { .. }), "a flush was asked for");
        let is_voided = match self.is_whole {
            true => {
                journal.log.void_records_before(self.number, self.mark);
                true
            }
            false => fence(journal, self.number, since, stuck),
        };
        self.stage = match is_voided {
            true => Stage::Durable { end: journal.log.next_record() },
            // A checkpoint may be about to free space, or have recorded something meanwhile.
            false => Stage::Flush { waits: true },
        };
    }
}
