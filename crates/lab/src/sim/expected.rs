//! What the clients of the machine may expect: contents, their order on the disks, and failures.
//!
//! Each volume has an oracle, which knows the permitted contents of each sector, and if it is
//! ordered, a history, which knows the permitted contents of its disk. A read may fail only because
//! of a fault in its own range, or because sectors of that range are lost. Other requests may also
//! fail because of faults and losses elsewhere in the volume ([`Expected::permits_failure`]).

use super::device::Device;
use super::device::disk::sectors_of;
use super::faults::{FaultKind, Faults};
use super::losses::Losses;
use super::order::{History, crash_image};
use super::plan::{Plan, VolumePlan};
use super::requests::PendingRequest;
use super::run::Run;
use crate::harness::dice::Dice;
use crate::harness::io::Io;
use crate::harness::oracle::{Oracle, Promise, ZERO, is_change, stamp};
use crate::harness::shard::PooledShard;
use forebay_engine::LineKey;
use forebay_types::{ByteRange, LINE_BYTES, SECTOR_BYTES, SECTORS_PER_LINE, VolumeId};
use forebay_volume::{Request, RequestKind};

struct Expectation {
    oracle: Oracle,
    /// The history of an ordered volume.
    history: Option<History>,
}

pub(crate) struct Expected {
    volumes: Vec<Expectation>,
    pub losses: Losses,
    pub faults: Faults,
    /// When the adoption in progress began. Reads since then were made by checks, not by clients.
    adopting_since: Option<u32>,
    /// A generator for checks, which must not affect the run.
    check_dice: Dice,
}

impl Expected {
    pub(crate) fn new(plan: &Plan, seed: u64) -> Self {
        let expectation = |(at, plan): (usize, &VolumePlan)| Expectation {
            oracle: Oracle::new(at as u16, plan.sectors, !plan.journal && !plan.ups),
            history: None,
        };
        Self {
            volumes: plan.volumes.iter().enumerate().map(expectation).collect(),
            losses: Losses::new(plan.volumes.len()),
            faults: Faults::default(),
            adopting_since: None,
            check_dice: Dice::new(seed.rotate_left(16) ^ 0x0def),
        }
    }

    fn oracle(&mut self, volume: VolumeId) -> &mut Oracle {
        &mut self.volumes[usize::from(volume.0)].oracle
    }

    /// Begins new histories of ordered volumes: each process has its own.
    pub(crate) fn start_histories(&mut self, plan: &Plan) {
        for (volume, plan) in self.volumes.iter_mut().zip(&plan.volumes) {
            volume.history = plan.ordered.then(History::default);
        }
    }

    /// Records the submission of a request, now. Returns the version of its content.
    pub(crate) fn submit(&mut self, run: &Run, request: Request, oldest_read: u32) -> u32 {
        let (volume, moment) = (request.volume, run.moment());
        let changed = run.plan.changed_by(request);
        let sectors = || changed.iter().copied().flat_map(sectors_of);
        let state = &mut self.volumes[usize::from(volume.0)];
        let version = state.oracle.submit(request.kind, sectors(), moment, oldest_read);
        let Some(history) = &mut state.history else { return version };
        for sector in sectors() {
            let (stamp, fua) = match request.kind {
                RequestKind::Write { fua } => (Some(stamp(volume.0, sector, version)), fua),
                RequestKind::Zero { fua, .. } => (Some(ZERO), fua),
                RequestKind::Trim { .. } => (None, false),
                _ => break,
            };
            history.submit(sector, stamp, fua, moment);
        }
        version
    }

    /// Records the success of a request in the history of an ordered volume.
    pub(crate) fn acknowledge(&mut self, run: &Run, pending: &PendingRequest) {
        let (Request { volume, kind, .. }, moment) = (pending.request, run.moment());
        let Some(history) = &mut self.volumes[usize::from(volume.0)].history else { return };
        if kind == RequestKind::Flush {
            history.flush(pending.submitted, moment);
        } else if is_change(kind) {
            let changed = run.plan.changed_by(pending.request);
            let sectors = changed.into_iter().flat_map(sectors_of);
            sectors.for_each(|sector| history.end(sector, pending.submitted, moment));
        }
    }

    /// Records the end of a change. If it succeeded, its guarantee applies from now on.
    pub(crate) fn end_change(
        &mut self,
        run: &Run,
        pending: &PendingRequest,
        promise: Option<Promise>,
    ) {
        let (volume, submitted) = (pending.request.volume, pending.submitted);
        let changed = run.plan.changed_by(pending.request);
        for range in changed.iter().filter(|range| promise.is_some() && range.len > 0) {
            self.end_loss(run, volume, *range, submitted);
        }
        let sectors = changed.into_iter().flat_map(sectors_of);
        self.oracle(volume).end(sectors, submitted, run.moment(), promise);
    }

    /// Ends a request that will not be answered.
    pub(crate) fn abandon(&mut self, run: &Run, pending: &PendingRequest) {
        if is_change(pending.request.kind) {
            self.end_change(run, pending, None);
        }
    }

    /// Records the acknowledgement of a flush submitted at `submitted`.
    pub(crate) fn flush(&mut self, volume: VolumeId, submitted: u32) {
        self.oracle(volume).flush(submitted);
    }

    /// The same for a flush that a UPS protects.
    pub(crate) fn flush_kept(&mut self, volume: VolumeId, submitted: u32) {
        self.oracle(volume).flush_kept(submitted);
    }

    /// Records that a pool is being adopted, from the moment `now` on or earlier.
    pub(crate) fn begin_adoption(&mut self, now: u32) {
        self.adopting_since.get_or_insert(now);
    }

    pub(crate) const fn is_adopting(&self) -> bool {
        self.adopting_since.is_some()
    }

    /// Records that clients are served again.
    pub(crate) const fn end_adoption(&mut self) {
        self.adopting_since = None;
    }

    /// Records that sectors of a line are lost. `with_clean` are all its damaged sectors, clean
    /// ones included; they are exempt from the order of writes.
    pub(crate) fn lose(&mut self, run: &mut Run, key: LineKey, lost: u8, with_clean: u8) {
        let (volume, first) = (key.volume(), key.offset() / SECTOR_BYTES);
        let sectors_of = |mask: u8| (0..8).filter(move |at| mask >> at & 1 != 0);
        if let Some(history) = &mut self.volumes[usize::from(volume.0)].history {
            sectors_of(lost | with_clean).for_each(|at| history.damage(first + at));
        }
        // Later than all submissions so far.
        let moment = run.next_moment();
        let range = ByteRange::new(key.offset(), LINE_BYTES);
        run.log_event(volume.0, range, || format!("{moment}: sectors {lost:#010b} are lost"));
        sectors_of(lost).for_each(|at| self.losses.add(volume, first + at, moment));
        if let Some(since) = self.adopting_since {
            // A lost write that was neither acknowledged nor recorded is undone. No client has read
            // it.
            sectors_of(lost).for_each(|at| self.oracle(volume).forget_seen(first + at, since));
        }
        run.report.lost_sectors += u64::from(lost.count_ones());
    }

    /// Ends the losses of rewritten sectors, except losses after `submitted`.
    pub(crate) fn end_loss(
        &mut self,
        run: &Run,
        volume: VolumeId,
        range: ByteRange,
        submitted: u32,
    ) {
        for sector in self.losses.end(volume, range, submitted) {
            let range = ByteRange::new(sector * SECTOR_BYTES, SECTOR_BYTES);
            self.faults.add(run.moment(), volume, FaultKind::Lost, range);
        }
    }

    /// Accepts the disk's content of sectors that were lost before the crash and reported as such,
    /// if only memory protected them or no journal has them any more.
    pub(crate) fn accept_losses(&mut self, plan: &Plan, contents: &[Vec<u64>]) {
        self.end_adoption();
        for (volume, content) in plan.volume_ids().into_iter().zip(contents) {
            let has_ups = plan.is_ups_only(volume, false);
            let oracle = &mut self.volumes[usize::from(volume.0)].oracle;
            let is_accepted = |sector| has_ups || self.losses.is_unrecoverable(volume, sector);
            for &sector in self.losses.of(volume).keys().filter(|sector| is_accepted(**sector)) {
                oracle.restart(sector, content[sector as usize]);
            }
            self.losses.clear_unrecoverable(volume);
        }
    }

    /// Records that the journal no longer has the data that is lost in the pool, or may have only
    /// older data.
    pub(crate) fn mark_unrecoverable(&mut self, plan: &Plan) {
        let volumes = plan.volume_ids().into_iter();
        for volume in volumes.filter(|&volume| plan.volume(volume).journal) {
            self.losses.mark_unrecoverable(volume);
        }
    }

    /// Sets the contents of all volumes, without any change in flight.
    pub(crate) fn restart(&mut self, contents: &[Vec<u64>]) {
        for (state, content) in self.volumes.iter_mut().zip(contents) {
            for (sector, &found) in content.iter().enumerate() {
                state.oracle.restart(sector as u64, found);
            }
        }
    }

    /// Sets the content of one sector, without any change in flight.
    pub(crate) fn restart_sector(&mut self, volume: VolumeId, sector: u64, found: u64) {
        self.oracle(volume).restart(sector, found);
    }

    /// Whether a request may have failed.
    pub(crate) fn permits_failure(&self, plan: &Plan, pending: &PendingRequest) -> bool {
        let Request { volume, kind, range } = pending.request;
        let VolumePlan { stripes, journal, ordered, ups, .. } = *plan.volume(volume);
        // A destage also writes other dirty data of the region.
        let first = stripes.region_at(range.offset).offset;
        let end = stripes.region_at(range.end().max(1) - 1).end();
        let around = ByteRange::new(first, end - first);
        let is_reason = |fault: FaultKind, at: ByteRange| match kind {
            // The disk has the change, but the journal could not record it, so only the change's
            // own request fails.
            _ if fault == FaultKind::NoRoom => kind != RequestKind::Read && at.overlaps(range),
            RequestKind::Read => {
                let ours = at.offset >= range.offset && at.end() <= range.end();
                matches!(fault, FaultKind::Read | FaultKind::Lost) && ours
            }
            // Data that a journal fails to keep is destaged and flushed.
            _ if journal && matches!(fault, FaultKind::Flush | FaultKind::Write) => true,
            // In an ordered volume, a destage fails together with the destages before it.
            _ if ordered
                && matches!(fault, FaultKind::Flush | FaultKind::Write | FaultKind::Lost) =>
            {
                true
            }
            RequestKind::Write { .. } => fault == FaultKind::Write && at.overlaps(around),
            // Zeroes are flushed while the UPS is not safe.
            RequestKind::Trim { fua } | RequestKind::Zero { fua, .. } => {
                let flushes = fua || ups;
                fault == FaultKind::Erase && at.overlaps(range)
                    || flushes && fault == FaultKind::Flush
            }
            RequestKind::Sync => fault == FaultKind::Flush,
            RequestKind::Flush | RequestKind::Destage | RequestKind::Checkpoint { .. } => {
                matches!(fault, FaultKind::Write | FaultKind::Flush | FaultKind::Lost)
            }
            RequestKind::Restore | RequestKind::Record => fault == FaultKind::Write,
            RequestKind::RestoreZero { .. } => fault == FaultKind::Erase,
            RequestKind::Prefetch => false,
            RequestKind::Preload { .. } => fault == FaultKind::Read && at.overlaps(range),
            RequestKind::Order => unreachable!("a run has no answer"),
        };
        let is_lost = match kind {
            RequestKind::Read => self.losses.any_in(volume, Some(range)),
            RequestKind::Flush | RequestKind::Destage | RequestKind::Checkpoint { .. } => {
                self.losses.any_in(volume, None)
            }
            // Data that a journal fails to keep is flushed to the disk.
            _ => (journal || ordered) && self.losses.any_in(volume, None),
        };
        is_lost || self.faults.any_since(pending.submitted, volume, is_reason)
    }

    /// Checks the content that a read has returned.
    pub(crate) fn check_read(&mut self, run: &mut Run, pending: &PendingRequest, stamps: &[u64]) {
        let (Request { volume, range, .. }, submitted) = (pending.request, pending.submitted);
        if stamps.len() as u64 * SECTOR_BYTES != range.len {
            let place = Some((volume.0, range.offset / SECTOR_BYTES));
            let message = format!("the answer to a read of {range} has {} sectors", stamps.len());
            run.violate(place, message);
            return;
        }
        let contents = sectors_of(range).zip(stamps.iter().copied());
        let is_right = |oracle: &mut Oracle, at, found| oracle.check_read(at, found, submitted);
        if let Some((sector, text)) = self.oracle(volume).first_mismatch(contents, is_right) {
            let message =
                format!("a read submitted at {submitted}: sector {sector} of {volume} {text}");
            run.violate(Some((volume.0, sector)), message);
        }
    }

    /// Checks that clients wrote the content that goes to the disk, each sector at its own place.
    pub(crate) fn check_write(&mut self, run: &mut Run, io: &Io) {
        let (volume, first) = (io.action.volume, sectors_of(io.action.range).start);
        if let Some((sector, found)) = io.first_foreign(first, self.oracle(volume)) {
            let message = format!("no client wrote what goes to the disk: {found}");
            run.violate(Some((volume.0, sector)), message);
        }
    }

    /// Checks the content of all volumes.
    pub(crate) fn check_contents(
        &mut self,
        run: &mut Run,
        when: &str,
        contents: &[Vec<u64>],
        mut is_right: impl FnMut(&mut Oracle, u64, u64) -> bool,
    ) {
        for (at, content) in contents.iter().enumerate() {
            let contents = (0..).zip(content.iter().copied());
            let oracle = &mut self.volumes[at].oracle;
            if let Some((sector, text)) = oracle.first_mismatch(contents, &mut is_right) {
                let message = format!("{when}, sector {sector} of volume {at} {text}");
                run.violate(Some((at as u16, sector)), message);
                return;
            }
        }
    }

    /// Checks the content of one sector, as a read would return it now.
    pub(crate) fn check_sector(
        &mut self,
        run: &mut Run,
        when: &str,
        (volume, sector): (VolumeId, u64),
        found: u64,
    ) {
        let oracle = self.oracle(volume);
        if !oracle.check_read(sector, found, run.moment()) {
            let text = oracle.explain(sector, found);
            let message = format!("{when}, sector {sector} of volume {} {text}", volume.0);
            run.violate(Some((volume.0, sector)), message);
        }
    }

    /// Checks what the disks of ordered volumes would hold without pool and journal.
    pub(crate) fn check_write_order(&mut self, run: &mut Run, device: &Device) {
        for (at, state) in self.volumes.iter().enumerate() {
            let Some(history) = &state.history else { continue };
            let disk = device.disk(VolumeId(at as u16));
            let survive = self.check_dice.pick(&[0, 300_000, 1_000_000]);
            let image = crash_image(disk.stable(), disk.content(), survive, &mut self.check_dice);
            run.report.order_checks += 1;
            if let Some((sector, message)) = history.first_violation(&image) {
                run.violate(Some((at as u16, sector)), message);
            }
        }
    }

    /// Checks that nothing is lost any more.
    pub(crate) fn check_none_lost(&self, run: &mut Run, shards: &[PooledShard]) {
        for volume in run.plan.volume_ids() {
            let volumes = shards.iter().map(|shard| shard.shard.volume(volume));
            let left: u64 = volumes.map(|volume| volume.lost_sectors()).sum();
            let first = self.losses.of(volume).keys().next();
            if left > 0 || first.is_some() {
                let place = Some((volume.0, first.copied().unwrap_or(0)));
                run.violate(place, format!("{left} sectors are lost although rewritten"));
            }
        }
    }

    /// Checks the losses that the tables of an adopted pool record. Each must have been known
    /// before. A known loss that is missing in the tables was ended by a request that was not
    /// answered.
    pub(crate) fn reload_losses(&mut self, run: &mut Run, shards: &[PooledShard]) {
        let moment = run.next_moment();
        for volume in run.plan.volume_ids() {
            let line_sectors = u64::from(SECTORS_PER_LINE);
            let lines = run.plan.volume(volume).sectors.div_ceil(line_sectors);
            let lost = (0..lines).flat_map(|line| {
                let key = LineKey::new(volume, line);
                let lines = shards.iter().map(|one| one.shard.slots().line(key));
                let mask = lines.fold(0, |all, line| all | line.lost());
                let sectors = (0..line_sectors).filter(move |sector| mask >> sector & 1 != 0);
                sectors.map(move |sector| (line * line_sectors + sector, moment))
            });
            if let Some(sector) = self.losses.replace(volume, lost.collect()) {
                let message = "a sector is lost that was not lost before";
                run.violate(Some((volume.0, sector)), message.into());
            }
        }
    }
}
