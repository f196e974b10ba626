//! What a journal needs of the cache whose writes it records.

use super::Journal;
use forebay_engine::Answer;
use forebay_types::{BackgroundShare, IoError, IoResult, VolumeId};
use std::sync::Arc;

/// The cache whose writes a journal records. A journal knows no shard and no worker.
pub(crate) trait JournalHost: Send + Sync {
    /// Passes an answer to the worker of its part.
    fn answer(&self, answer: Answer);

    /// Destages a volume's dirty data for a checkpoint, and flushes its disk: at once if it is
    /// urgent, otherwise at the pace of background writeback.
    fn checkpoint(&self, volume: VolumeId, urgent: bool, on_done: Box<dyn FnOnce(IoResult) + Send>);

    /// Keeps in the journal the data that a volume's disk did not take, after a checkpoint that
    /// failed with `error`, and ends the checkpoint with [`Journal::destaged`].
    fn keep(self: Arc<Self>, journal: &Arc<Journal>, number: u16, volume: VolumeId, error: IoError);

    /// Starts to restore the sectors of a volume that were lost in memory and that the log holds.
    fn regain(self: Arc<Self>, journal: &Arc<Journal>, number: u16, volume: VolumeId);

    /// Lets no client see a volume any more, whose disk another client has taken over. Waits for
    /// the workers, for a limited time.
    fn end_clients(&self, volume: VolumeId);

    /// Ends the I/O of volumes that cannot continue without their journal, which has failed.
    fn end_without_journal(&self, volumes: &[VolumeId]);

    /// The share of the disks that background work may take.
    fn disk_share(&self) -> BackgroundShare;
}
