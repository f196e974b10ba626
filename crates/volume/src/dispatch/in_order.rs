//! Ordered volumes: parts that wait for epochs, and the runs that destage epochs.

use super::{Dispatcher, FlushStage, PartName, PartStep, Payload};
use crate::host::Host;
use crate::order::{AfterEpochs, EpochOrder};
use crate::{JobId, Request, RequestKind, Wait};
use forebay_engine::{Answer, Outcome, PartId};
use forebay_types::{ByteRange, IoError, VolumeId};

/// The next step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunNext {
    Epoch(u64),
    /// Flush the disk again, because the epoch to destage began after the last flush.
    Flush,
    Nothing,
}

impl<H: Host> Dispatcher<H> {
    /// Delays a part that writes to the disk until all earlier epochs are on stable storage, then
    /// retries it.
    pub(super) fn hold_until_in_order(
        &mut self,
        host: &mut H,
        volume: VolumeId,
        part: PartId,
        dirty: bool,
    ) -> PartStep {
        let order = host.order(volume).expect("only an ordered volume holds parts");
        // Dirty data in the part's range is destaged first, with the rest of the open epoch.
        let epoch = if dirty { order.cut() } else { order.epoch() };
        if self.wait_in_order((volume, &order), epoch, part, AfterEpochs::Retry, true) {
            self.answers.push(Answer { part, outcome: Outcome::InOrder });
        }
        PartStep::Waiting(Wait::Order)
    }

    /// Returns whether all epochs before `epoch` are on stable storage. If not, requests a run, and
    /// the part waits for it. The run is not delayed by rate limits if the part is urgent.
    pub(super) fn wait_in_order(
        &mut self,
        (volume, order): (VolumeId, &EpochOrder),
        epoch: u64,
        part: PartId,
        then: AfterEpochs,
        is_urgent: bool,
    ) -> bool {
        let is_drained = order.wait(epoch, part, then, is_urgent);
        if !is_drained {
            self.runs.push(volume);
        }
        is_drained
    }

    /// Destages everything dirty, and ends the job's one pending "part".
    pub(super) fn flush_in_order(&mut self, host: &mut H, id: JobId, order: &EpochOrder) {
        let losses = self.losses(host, id);
        let job = self.jobs.get_mut(id);
        job.losses = losses;
        let name = PartName { worker: self.worker, part: 0, job: id };
        self.answer_in_order(host, name, order);
    }

    /// Fails a flush of an ordered volume if any sector was lost when the flush arrived or has been
    /// lost since: lost data cannot reach the disk.
    pub(super) fn fail_for_loss(&mut self, host: &mut H, id: JobId) {
        let Request { volume, kind, .. } = self.jobs.get_mut(id).request;
        let is_flush = matches!(
            kind,
            RequestKind::Flush | RequestKind::Destage | RequestKind::Checkpoint { .. }
        );
        if !is_flush || host.order(volume).is_none() {
            return;
        }
        let now = self.losses(host, id);
        let job = self.jobs.get_mut(id);
        let is_lost = job.losses.1 > 0 || now != (job.losses.0, 0);
        job.error = is_lost.then_some(IoError::Io);
    }

    /// How often a line of the volume has lost data so far, and how many sectors are lost now.
    fn losses(&mut self, host: &mut H, id: JobId) -> (u64, u64) {
        let volume = self.jobs.get_mut(id).request.volume;
        let mut losses = (0, 0);
        for shard in 0..host.shards() {
            let (lines, sectors) = host.call(shard, &[], &mut self.out, |shard, _| {
                let volume = shard.volume(volume);
                (volume.counters().lost_lines, volume.lost_sectors())
            });
            losses = (losses.0 + lines, losses.1 + sectors);
        }
        losses
    }

    /// Ends a part once everything that is dirty now is on the disk's stable storage.
    pub(super) fn answer_in_order(&mut self, host: &mut H, name: PartName, order: &EpochOrder) {
        let Request { volume, kind, .. } = self.jobs.get_mut(name.job).request;
        let is_urgent = kind != RequestKind::Checkpoint { urgent: false };
        let (part, then) = (name.pack(), AfterEpochs::Answer);
        if self.wait_in_order((volume, order), order.cut(), part, then, is_urgent) {
            self.finish_part(host, name, Ok(()));
        }
    }

    /// Starts the requested runs, except on volumes that have a run in progress. A run in progress
    /// may be a background run, so the shards are notified that parts wait.
    pub(super) fn start_runs(&mut self, host: &mut H) {
        while let Some(volume) = self.runs.pop() {
            let Some(order) = host.order(volume) else { continue };
            if let Some(epoch) = order.take_demand() {
                self.expedite_epochs(host, volume, epoch);
            }
            if order.begin() {
                let range = ByteRange::new(0, 0);
                let request = Request { volume, kind: RequestKind::Order, range };
                let token = host.internal_token();
                let id = self.begin(host, token, request, Payload::None);
                self.flush_before_epoch(host, id);
            }
        }
    }

    fn expedite_epochs(&mut self, host: &mut H, volume: VolumeId, epoch: u64) {
        for shard in 0..host.shards() {
            let now_ms = host.now_ms();
            host.call(shard, &[], &mut self.out, |shard, out| {
                shard.expedite_epochs(volume, epoch, now_ms, out);
            });
            self.drain_outbox(host, shard);
        }
    }

    /// Flushes the disk, whose cache may hold writes that precede the epoch.
    fn flush_before_epoch(&mut self, host: &mut H, id: JobId) {
        let job = self.jobs.get_mut(id);
        (job.flush, job.pending) = (FlushStage::Due, 1);
        self.part_done(host, id, Ok(()));
    }

    /// Continues a run after a flush of the disk, or after a failure. Returns false if the run has
    /// ended.
    pub(super) fn continue_run(&mut self, host: &mut H, id: JobId) -> bool {
        let job = self.jobs.get_mut(id);
        let (volume, error) = (job.request.volume, job.error);
        let order = host.order(volume).expect("a volume with requests is not removed");
        let next = error.map_or_else(|| self.next_epoch(host, id, &order), |_| RunNext::Nothing);
        match next {
            RunNext::Epoch(epoch) => self.destage_epoch(host, id, epoch),
            RunNext::Flush => self.flush_before_epoch(host, id),
            RunNext::Nothing => {}
        }
        if next != RunNext::Nothing {
            return true;
        }
        if order.end(error, &mut self.answers) {
            self.runs.push(volume);
        }
        false
    }

    /// Chooses the next step: destage the oldest closed epoch; or, in a new run, close and destage
    /// the open one if it is due.
    ///
    /// No shard tracks the epochs of erases and write-throughs, but those that precede an epoch
    /// were answered before it began. So they are on stable storage if the epoch began before the
    /// last flush of the disk. `horizon` is the epoch that was open when that flush began.
    fn next_epoch(&mut self, host: &mut H, id: JobId, order: &EpochOrder) -> RunNext {
        let job = self.jobs.get_mut(id);
        let (volume, is_first, horizon) = (job.request.volume, job.epoch == 0, job.horizon);
        let (current, now_ms) = (order.epoch(), host.now_ms());
        let (mut oldest, mut is_due) = (None::<u64>, false);
        for shard in 0..host.shards() {
            let (found, due) = host.call(shard, &[], &mut self.out, |shard, _| {
                (shard.oldest_epoch(volume, current), shard.is_order_due(volume, now_ms))
            });
            oldest = oldest.into_iter().chain(found).min();
            is_due |= due;
        }
        order.advance(oldest.map_or(horizon, |oldest| oldest.min(horizon)), &mut self.answers);
        match oldest {
            Some(oldest) if oldest < current && oldest <= horizon => RunNext::Epoch(oldest),
            Some(oldest) if oldest < current => RunNext::Flush,
            Some(oldest) if is_first && is_due && oldest <= horizon => {
                order.cut();
                RunNext::Epoch(oldest)
            }
            _ => RunNext::Nothing,
        }
    }

    fn destage_epoch(&mut self, host: &mut H, id: JobId, epoch: u64) {
        let part = PartName { worker: self.worker, part: 0, job: id }.pack();
        let job = self.jobs.get_mut(id);
        job.flush = FlushStage::Due;
        job.epoch = epoch;
        job.pending = 1;
        let volume = job.request.volume;
        self.call_all_shards(host, id, |shard, now_ms, out| {
            shard.destage_epoch(volume, epoch, part, now_ms, out)
        });
    }
}
