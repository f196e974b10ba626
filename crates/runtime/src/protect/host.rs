//! What the journals need of the shards and workers.

use super::{regain, retention};
use crate::journal::{Journal, JournalHost};
use crate::shared::{Message, OnDone, Shared};
use forebay_engine::Answer;
use forebay_types::{BackgroundShare, IoError, VolumeId};
use forebay_volume::worker_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl JournalHost for Shared {
    fn answer(&self, answer: Answer) {
        let worker = usize::from(worker_of(answer.part));
        self.inboxes[worker].post(Message::Answer(answer));
    }

    fn checkpoint(&self, volume: VolumeId, urgent: bool, on_done: OnDone) {
        self.inboxes[0].post(Message::Task(Box::new(move |tasks| {
            tasks.checkpoint(volume, urgent, on_done);
        })));
    }

    fn keep(
        self: Arc<Self>,
        journal: &Arc<Journal>,
        number: u16,
        volume: VolumeId,
        error: IoError,
    ) {
        retention::keep(Arc::downgrade(&self), journal, number, volume, error);
    }

    fn regain(self: Arc<Self>, journal: &Arc<Journal>, number: u16, volume: VolumeId) {
        regain::start(Arc::downgrade(&self), journal, number, volume);
    }

    fn end_without_journal(&self, volumes: &[VolumeId]) {
        for volume in volumes.iter().filter_map(|&id| self.volume(id)) {
            volume.has_lost_journal.store(true, Ordering::Release);
        }
    }

    fn disk_share(&self) -> BackgroundShare {
        self.background.disks()
    }
}
