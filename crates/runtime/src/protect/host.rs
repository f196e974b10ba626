//! What the journals need of the shards and workers.

use super::{regain, retention};
use crate::journal::{Journal, JournalHost};
use crate::shared::{Message, OnDone, Shared};
use forebay_engine::Answer;
use forebay_types::{BackgroundShare, IoError, VolumeId};
use forebay_volume::worker_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the failure of a journal waits for workers that disconnect clients.
const END_WAIT: Duration = Duration::from_secs(5);

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

    fn end_clients(&self, volume: VolumeId) {
        if let Some(volume) = self.volume(volume) {
            volume.is_closed.store(true, Ordering::Relaxed);
        }
        self.run_on_each_within(END_WAIT, move |tasks| {
            tasks.drop_clients(Some(volume));
            tasks.abandon_clients(Some(volume));
        });
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
