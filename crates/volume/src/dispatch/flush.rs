//! Flushes, destages and checkpoints: requests that concern all shards and the disk's cache.

use super::{Dispatcher, FlushStage, PartName, Payload};
use crate::host::Host;
use crate::{Barrier, JobId, Request, RequestKind, Wait};
use forebay_engine::{Attempt, Outbox, Protection, Shard, checkpoint};
use forebay_types::IoResult;

impl<H: Host> Dispatcher<H> {
    pub(super) fn submit_flush(&mut self, host: &mut H, token: H::Token, request: Request) {
        let id = self.begin(host, token, request, Payload::None);
        let part = PartName { worker: self.worker, part: 0, job: id }.pack();
        if let (RequestKind::Flush, Some(order)) = (request.kind, host.order(request.volume)) {
            order.cut();
        }
        match request.kind {
            RequestKind::Checkpoint { .. } => return self.flush_shards(host, id),
            RequestKind::Sync => return self.part_done(host, id, Ok(())),
            _ => {}
        }
        // `None` if the volume has neither a UPS nor a journal, or its journal has failed.
        let barrier = match host.protection(request.volume) {
            Protection::None => None,
            Protection::Power => Some(Barrier { is_durable: true, is_complete: true }),
            Protection::Journal => host.barrier(request.volume, part).ok(),
        };
        let is_awaited = barrier.is_some_and(|barrier| !barrier.is_durable);
        let is_protected = barrier.is_some_and(|barrier| barrier.is_complete);
        if request.kind == RequestKind::Destage || !is_protected {
            // Also wait for the journal: after a crash, it would replay an older record over a
            // destaged write whose own record is not durable.
            self.jobs.get_mut(id).pending += u32::from(is_awaited);
            return self.flush_shards(host, id);
        }
        let job = self.jobs.get_mut(id);
        job.flush = FlushStage::NotNeeded;
        job.trail.begin(Wait::Journal, host.now_us());
        if !is_awaited {
            self.part_done(host, id, Ok(()));
        }
    }

    /// Destages everything dirty, then flushes the disk. Ends the job's one pending "part".
    pub(super) fn flush_shards(&mut self, host: &mut H, id: JobId) {
        let part = PartName { worker: self.worker, part: 0, job: id }.pack();
        let job = self.jobs.get_mut(id);
        job.flush = FlushStage::Due;
        job.trail.begin(Wait::Destage, host.now_us());
        let Request { volume, kind, .. } = job.request;
        if let Some(order) = host.order(volume) {
            return self.flush_in_order(host, id, &order);
        }
        let is_urgent = kind != RequestKind::Checkpoint { urgent: false };
        self.call_all_shards(host, id, |shard, now_ms, out| match is_urgent {
            true => shard.flush(volume, part, now_ms, out),
            false => checkpoint(shard, volume, part, now_ms, out),
        });
    }

    /// Makes a call to every shard for a job, and ends the job's one pending "part". If `call`
    /// returns no result, the shard answers later.
    pub(super) fn call_all_shards(
        &mut self,
        host: &mut H,
        id: JobId,
        mut call: impl FnMut(&mut Shard<H::Table>, u64, &mut Outbox) -> Option<IoResult>,
    ) {
        self.jobs.get_mut(id).pending += host.shards() as u32;
        for shard in 0..host.shards() {
            let now_ms = host.now_ms();
            let result =
                host.call(shard, &[], &mut self.out, |shard, out| call(shard, now_ms, out));
            self.drain_outbox(host, shard);
            if let Some(result) = result {
                self.part_done(host, id, result);
            }
        }
        self.part_done(host, id, Ok(()));
    }

    /// Makes the data of a part durable on the disk, because the journal has failed to record it.
    pub(super) fn destage_unrecorded(&mut self, host: &mut H, name: PartName) {
        let job = self.jobs.get_mut(name.job);
        match job.request.kind {
            RequestKind::Flush if job.flush == FlushStage::NotNeeded => {
                job.trail.add_error();
                return self.flush_shards(host, name.job);
            }
            // The destage of all shards in progress covers everything that was to be recorded.
            RequestKind::Flush | RequestKind::Destage => {
                return self.part_done(host, name.job, Ok(()));
            }
            _ => {}
        }
        job.flush = FlushStage::Due;
        let volume = job.request.volume;
        // It left nothing to destage.
        let was_long = self.end_long_erase(host, name, Ok(()));
        if let Some(order) = host.order(volume) {
            return self.answer_in_order(host, name, &order);
        }
        if was_long {
            return self.finish_part(host, name, Ok(()));
        }
        let job = self.jobs.get_mut(name.job);
        let part = &mut job.parts[usize::from(name.part)];
        part.is_applied = true;
        part.attempt = Attempt::default();
        part.trail.add_error();
        self.run_part(host, name.job, name.part);
    }
}
