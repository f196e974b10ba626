//! Requests of volumes that are destaged in order: who waits for which epoch, and the runs that
//! bring epochs to the disk.

use super::{Dispatcher, FlushStage, PartName, Payload, Step};
use crate::host::Host;
use crate::order::{Order, Want};
use crate::{JobId, Request, RequestKind};
use forebay_engine::{Answer, Outcome, PartId};
use forebay_types::{ByteRange, IoError, VolumeId};

/// What a run does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Epoch(u64),
    /// The disk is flushed once more, for the sake of an epoch that has begun since.
    Flush,
    Nothing,
}

impl<H: Host> Dispatcher<H> {
    /// A part is to go to the disk, and is tried again when it may.
    pub(super) fn hold(
        &mut self,
        host: &mut H,
        volume: VolumeId,
        part: PartId,
        dirty: bool,
    ) -> Step {
        let order = host.order(volume).expect("only an ordered volume holds parts");
        // What is dirty under it goes first, with all that is dirty.
        let epoch = if dirty { order.cut() } else { order.epoch() };
        if self.wait_in_order(volume, &order, epoch, part, Want::Turn) {
            self.answers.push(Answer { part, outcome: Outcome::InOrder });
        }
        Step::Waiting
    }

    /// Whether everything before an epoch is on the disk. If not, it is brought there, and the part
    /// is told.
    fn wait_in_order(
        &mut self,
        volume: VolumeId,
        order: &Order,
        epoch: u64,
        part: PartId,
        want: Want,
    ) -> bool {
        let is_there = order.wait(epoch, part, want);
        if !is_there {
            self.runs.push(volume);
        }
        is_there
    }

    /// Brings everything dirty to the disk for a job with one pending "part", which this ends.
    pub(super) fn flush_in_order(&mut self, host: &mut H, id: JobId, order: &Order) {
        let losses = self.losses(host, id);
        let job = self.jobs.get_mut(id);
        job.losses = losses;
        let name = PartName { worker: self.worker, part: 0, job: id };
        self.answer_in_order(host, name, order);
    }

    /// What nobody has can't be brought to the disk: a flush of an ordered volume that is done with
    /// the rest fails for what was lost when it came, or since.
    pub(super) fn fail_for_loss(&mut self, host: &mut H, id: JobId) {
        let Request { volume, kind, .. } = self.jobs.get_mut(id).request;
        let is_flush =
            matches!(kind, RequestKind::Flush | RequestKind::Destage | RequestKind::Checkpoint);
        if !is_flush || host.order(volume).is_none() {
            return;
        }
        let now = self.losses(host, id);
        let job = self.jobs.get_mut(id);
        let is_lost = job.losses.1 > 0 || now != (job.losses.0, 0);
        job.error = is_lost.then_some(IoError::Io);
    }

    /// Lines of which something was lost so far, and sectors that are lost now.
    fn losses(&mut self, host: &mut H, id: JobId) -> (u64, u64) {
        let volume = self.jobs.get_mut(id).request.volume;
        let mut losses = (0, 0);
        for shard in 0..host.shards() {
            let (lines, sectors) = host.call(shard, &[], &mut self.out, |shard, _| {
                (shard.counters(volume).lost_lines, shard.lost_sectors(volume))
            });
            losses = (losses.0 + lines, losses.1 + sectors);
        }
        losses
    }

    /// Ends a part when everything that is dirty now is on the disk.
    pub(super) fn answer_in_order(&mut self, host: &mut H, name: PartName, order: &Order) {
        let volume = self.jobs.get_mut(name.job).request.volume;
        if self.wait_in_order(volume, order, order.cut(), name.pack(), Want::Verdict) {
            self.finish_part(host, name, Ok(()));
        }
    }

    /// Starts the runs that were asked for, except where there is one already.
    pub(super) fn start_runs(&mut self, host: &mut H) {
        while let Some(volume) = self.runs.pop() {
            let order = host.order(volume);
            if order.is_some_and(|order| order.begin()) {
                let range = ByteRange::new(0, 0);
                let request = Request { volume, kind: RequestKind::Order, range };
                let token = host.nobody();
                let id = self.begin(host, token, request, Payload::None);
                self.flush_first(host, id);
            }
        }
    }

    /// What the disk was given before an epoch may be in its cache still.
    fn flush_first(&mut self, host: &mut H, id: JobId) {
        let job = self.jobs.get_mut(id);
        (job.flush, job.pending) = (FlushStage::Due, 1);
        self.part_done(host, id, Ok(()));
    }

    /// What was destaged is on stable storage, or the run has failed. Returns whether another epoch
    /// is on its way.
    pub(super) fn run_goes_on(&mut self, host: &mut H, id: JobId) -> bool {
        let job = self.jobs.get_mut(id);
        let (volume, error) = (job.request.volume, job.error);
        let order = host.order(volume).expect("a volume with requests stays");
        let next = error.map_or_else(|| self.next_epoch(host, id, &order), |_| Next::Nothing);
        match next {
            Next::Epoch(epoch) => self.destage_epoch(host, id, epoch),
            Next::Flush => self.flush_first(host, id),
            Next::Nothing => {}
        }
        if next != Next::Nothing {
            return true;
        }
        if order.end(error, &mut self.answers) {
            self.runs.push(volume);
        }
        false
    }

    /// What a run does next: the oldest of the epochs that are over, or the one at hand if the run
    /// is about that.
    ///
    /// Erases and writes through the cache are in no shard's epochs. Those of the epochs before one
    /// had been answered when that one began; so they are on stable storage if it had begun before
    /// the last flush did.
    fn next_epoch(&mut self, host: &mut H, id: JobId, order: &Order) -> Next {
        let job = self.jobs.get_mut(id);
        let (volume, first, horizon) = (job.request.volume, job.epoch == 0, job.horizon);
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
            Some(oldest) if oldest < current && oldest <= horizon => Next::Epoch(oldest),
            Some(oldest) if oldest < current => Next::Flush,
            Some(oldest) if first && is_due && oldest <= horizon => {
                order.cut();
                Next::Epoch(oldest)
            }
            _ => Next::Nothing,
        }
    }

    fn destage_epoch(&mut self, host: &mut H, id: JobId, epoch: u64) {
        let part = PartName { worker: self.worker, part: 0, job: id }.pack();
        let job = self.jobs.get_mut(id);
        job.flush = FlushStage::Due;
        job.epoch = epoch;
        job.pending = 1 + host.shards() as u32;
        let volume = job.request.volume;
        for shard in 0..host.shards() {
            let now_ms = host.now_ms();
            let result = host.call(shard, &[], &mut self.out, |shard, out| {
                shard.destage_epoch(volume, epoch, part, now_ms, out)
            });
            self.settle(host, shard);
            if let Some(result) = result {
                self.part_done(host, id, result);
            }
        }
        self.part_done(host, id, Ok(()));
    }
}
