//! Begins checkpoints, and makes the workers destage the volumes that take part.
//!
//! A checkpoint destages at the pace of background writeback. The shards learn from [`distance`]
//! how much space the log has left: once a quarter is in use they speed up, and they destage at
//! once when the log is about to admit no more writes. After several starts in a row that ended
//! before a checkpoint, the next one is urgent.

use super::{Journal, State, TICK};
use forebay_journal::{checkpoints_in_progress, needs_checkpoint_for_starts};
use forebay_types::{IoError, IoResult, VolumeId};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval of checkpoints that the log does not need for its space. They keep recovery short,
/// let the samples of the disks be renewed, and leave the log without records once writes stop.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(30);
/// The minimum interval between two checkpoints for lack of space, while a failing or slow disk
/// keeps the space in use.
const CHECKPOINT_PAUSE: Duration = Duration::from_secs(1);

/// A checkpoint to begin at once.
#[derive(Debug, Default)]
pub(super) struct Urgent {
    /// It is to begin, and to close the current segment of the log.
    pub is_due: bool,
    /// Numbers of the volumes with an earlier checkpoint in progress, which has to end first.
    pub waits_for: Vec<u16>,
}

/// The space that the log has left for a volume, and its maximum; see
/// [`forebay_journal::distance`].
pub(crate) fn distance(journal: &Journal, number: u16) -> (u64, u64) {
    let state = journal.lock();
    let (left, all) = forebay_journal::distance(&state.core.log, number);
    if state.urgent.waits_for.contains(&number) { (0, all) } else { (left, all) }
}

impl Journal {
    pub(super) fn checkpoint_if_due(self: &Arc<Self>, state: &mut State) {
        let age = state.checkpoint_at.elapsed();
        if state.core.log.failed().is_some() {
            if age >= Duration::from_secs(1) {
                state.checkpoint_at = Instant::now();
                let is_shared = super::failure::is_shared(self);
                let State { volumes, disks, flushing, .. } = state;
                // A disk that hangs is asked once, and one of a volume that ends never.
                for &mut (number, volume) in volumes {
                    let disk = disks.iter().find(|(other, ..)| *other == number);
                    let is_taken_over = disk.is_some_and(|(_, disk, _)| disk.is_taken_over());
                    if !is_taken_over && !is_shared && !flushing.contains(&volume) {
                        flushing.push(volume);
                        self.destage(volume, None, true);
                    }
                }
            }
            return;
        }
        let pause = if state.core.log.is_blocked() { CHECKPOINT_PAUSE } else { TICK / 10 };
        let now = std::mem::take(&mut state.urgent.is_due);
        if now {
            state.core.log.skip_to_next_segment();
            state.urgent.waits_for = checkpoints_in_progress(&state.core.log).collect();
        }
        let due =
            state.core.log.wants_checkpoint() && age >= pause || age >= CHECKPOINT_EVERY || now;
        if !due {
            return;
        }
        state.checkpoint_at = Instant::now();
        let is_urgent = now || needs_checkpoint_for_starts(&state.core.log);
        let Some(checkpoint) = state.core.log.begin_checkpoint() else { return };
        for number in checkpoint.volumes {
            match state.volumes.iter().find(|(other, _)| *other == number) {
                Some(&(_, volume)) => self.destage(volume, Some(number), is_urgent),
                // The volume is being removed, after a flush of its own.
                None => state.core.log.end_checkpoint(number, Err(IoError::Shutdown)),
            }
        }
    }

    /// Destages a volume's dirty data, for a checkpoint if `number` is given: at once if it is
    /// urgent, otherwise at the pace of background writeback.
    fn destage(self: &Arc<Self>, volume: VolumeId, number: Option<u16>, urgent: bool) {
        let journal = Arc::clone(self);
        let on_done = move |result: IoResult| match (number, result) {
            (None, _) => journal.lock().flushing.retain(|&other| other != volume),
            (Some(number), Err(IoError::Shutdown) | Ok(())) => journal.destaged(number, result),
            (Some(number), Err(error)) => match journal.host.upgrade() {
                Some(host) => host.keep(&journal, number, volume, error),
                None => journal.destaged(number, Err(error)),
            },
        };
        // Without a host, nothing of the journal is used any more.
        if let Some(host) = self.host.upgrade() {
            host.checkpoint(volume, urgent, Box::new(on_done));
        }
    }
}
