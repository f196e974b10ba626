//! Transfers to and from the disks: coalesced I/Os, executed as in the runtime.
//!
//! A disk has blocks of 512 bytes, 4 KiB or 64 KiB. A transfer that covers a block partially is
//! executed in the steps of a [`BlockPlan`] and starts when
//! [`BlockOwners`](forebay_volume::BlockOwners) permits it: the code of the runtime. Each step
//! takes time of its own, so that other transfers interleave. The members of a failed coalesced
//! transfer are retried one by one.
//!
//! Checked for each transfer: no other one in flight changes the same sectors, and its memory does
//! not change while it is in flight.
//!
//! The disk executes a step at its beginning or at its end; with blocks larger than a sector, also
//! one half at each. Units of 512 or 4096 bytes are atomic, and nothing larger is.

use super::disk::sectors_of;
use super::{Device, draw_latency};
use crate::harness::Sabotage;
use crate::harness::io::Io;
use crate::harness::oracle::{POISON, ZERO, stamp};
use crate::harness::shard::PooledShard;
use crate::sim::faults::Faults;
use crate::sim::run::{Event, Run};
use forebay_engine::{IoId, IoVerb};
use forebay_types::{ByteRange, IoError, IoResult, SECTOR_BYTES, VolumeId};
use forebay_volume::{BlockClaim, BlockPlan, BlockStep};

/// Probabilities that a unit of a failed change has been changed.
const PARTIAL: [u32; 3] = [0, 500_000, 1_000_000];
/// The same for a crash.
const CUT: [u32; 4] = [0, 300_000, 700_000, 1_000_000];

/// The time at which the disk executes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Early,
    /// One half early, the other late.
    Split,
    Late,
}

/// A transfer in flight.
pub(super) struct Transfer {
    pub ios: Vec<Io>,
    /// The blocks that it changes; `None` for a read.
    claim: Option<BlockClaim>,
    plan: Option<BlockPlan>,
    step: usize,
    /// The memory of the plan, one stamp per sector.
    blocks: Vec<u64>,
    /// Whether it waits for another transfer that owns one of its blocks.
    is_waiting: bool,
    when: When,
    result: IoResult,
}

/// The range from the first I/O to the last.
fn span_of(ios: &[Io]) -> ByteRange {
    let start = ios[0].action.range.offset;
    ByteRange::new(start, ios[ios.len() - 1].action.range.end() - start)
}

impl Transfer {
    fn volume(&self) -> VolumeId {
        self.ios[0].action.volume
    }

    fn verb(&self) -> IoVerb {
        self.ios[0].action.verb
    }

    /// The current step: verb and range.
    fn current_step(&self) -> (IoVerb, ByteRange) {
        let Some(plan) = &self.plan else { return (self.verb(), span_of(&self.ios)) };
        match plan.steps[self.step] {
            BlockStep::Read(range) => (IoVerb::Read, range),
            BlockStep::Write { range, fua } => (IoVerb::Write { fua }, range),
            BlockStep::Zero { range, unmap } => (IoVerb::Zero { unmap }, range),
            BlockStep::Apply => unreachable!("it is applied before the next step"),
        }
    }

    /// The indexes of a range in the memory of the plan.
    fn in_blocks(&self, range: ByteRange) -> std::ops::Range<usize> {
        let first = self.plan.as_ref().map_or(0, |plan| plan.memory.offset);
        let from = ((range.offset - first) / SECTOR_BYTES) as usize;
        from..from + (range.len / SECTOR_BYTES) as usize
    }

    /// Applies the new content to the blocks that were read.
    fn apply(&mut self) {
        for at in 0..self.ios.len() {
            let place = self.in_blocks(self.ios[at].action.range);
            match self.verb() {
                IoVerb::Write { .. } => {
                    self.blocks[place].copy_from_slice(&self.ios[at].stamps);
                }
                _ => self.blocks[place].fill(ZERO),
            }
        }
    }

    /// The content of the current write.
    fn content(&self, range: ByteRange) -> Vec<u64> {
        match &self.plan {
            Some(_) => self.blocks[self.in_blocks(range)].to_vec(),
            None => self.ios.iter().flat_map(|io| io.stamps.iter().copied()).collect(),
        }
    }
}

impl Device {
    /// Starts a transfer of coalesced I/Os.
    pub(super) fn send_transfer(&mut self, run: &mut Run, ios: Vec<Io>) {
        for io in &ios {
            if self.ios().any(|other| io.conflicts_with(other)) {
                let range = io.action.range;
                let place = Some((io.action.volume.0, range.offset / SECTOR_BYTES));
                run.violate(place, format!("two I/Os in flight change the same sectors: {range}"));
                return;
            }
        }
        let volume = ios[0].action.volume;
        let block_bytes = run.plan.volume(volume).block_bytes();
        let verb = ios[0].action.verb;
        let ranges = ios.iter().map(|io| io.action.range);
        let claim = (verb != IoVerb::Read).then(|| BlockClaim::new(ranges, block_bytes));
        // Some memory is unsuitable for direct I/O.
        let fits = block_bytes == SECTOR_BYTES
            || matches!(verb, IoVerb::Zero { .. } | IoVerb::Discard)
            || run.dice.chance(900_000);
        let plan = match &claim {
            Some(claim) => BlockPlan::of_change(claim, verb, block_bytes, fits),
            None => BlockPlan::of_read(span_of(&ios), block_bytes, fits),
        };
        let sectors = plan.as_ref().map_or(0, |plan| plan.memory.len / SECTOR_BYTES);
        let mut transfer = Transfer {
            ios,
            claim,
            plan,
            step: 0,
            blocks: vec![POISON; sectors as usize],
            is_waiting: false,
            when: When::Late,
            result: Ok(()),
        };
        let shares = run.strikes_always(Sabotage::ShareBlocks);
        transfer.claim = transfer.claim.filter(|_| !shares);
        let at = self.transfers.insert(transfer);
        let transfer = self.transfers.get_mut(at);
        let owners = &mut self.owners[usize::from(volume.0)];
        transfer.is_waiting = transfer.claim.as_ref().is_some_and(|claim| !owners.start(claim, at));
        if !transfer.is_waiting {
            self.begin_step(run, at);
        }
    }

    fn begin_step(&mut self, run: &mut Run, at: u32) {
        let transfer = self.transfers.get_mut(at);
        transfer.is_waiting = false;
        let steps = transfer.plan.as_ref().map_or(&[][..], |plan| &plan.steps);
        if steps.get(transfer.step) == Some(&BlockStep::Apply) {
            transfer.apply();
            transfer.step += 1;
        }
        let (verb, range) = transfer.current_step();
        let refused = transfer.ios.iter().any(|io| io.result.is_err());
        let volume = transfer.volume();
        let block_sectors = run.plan.volume(volume).block_sectors;
        let sectors = sectors_of(range);
        if !(sectors.start | sectors.end).is_multiple_of(block_sectors) {
            let place = Some((volume.0, sectors.start));
            run.violate(place, format!("{verb:?} of partial blocks: {range}"));
        }
        let when = match run.dice.below(4) {
            0 | 1 => When::Early,
            2 if block_sectors > 1 => When::Split,
            _ => When::Late,
        };
        let result =
            if refused { Err(IoError::Io) } else { self.draw_result(run, volume, verb, range) };
        let transfer = self.transfers.get_mut(at);
        (transfer.when, transfer.result) = (when, result);
        if !refused && when != When::Late {
            self.execute_step(run, at, when == When::Split, true);
        }
        let latency_us = draw_latency(run);
        run.schedule(latency_us, Event::Complete(at));
    }

    fn draw_result(
        &self,
        run: &mut Run,
        volume: VolumeId,
        verb: IoVerb,
        range: ByteRange,
    ) -> IoResult {
        if run.healed {
            return Ok(());
        }
        let plan = &run.plan.device;
        let disk = self.disk(volume);
        let (ppm, is_bad) = match verb {
            IoVerb::Read => (plan.read_error, disk.is_bad(range, false)),
            IoVerb::Write { .. } => (plan.write_error, disk.is_bad(range, true)),
            IoVerb::Discard | IoVerb::Zero { .. } => (plan.erase_error, false),
        };
        if is_bad || run.dice.chance(ppm) { Err(IoError::Io) } else { Ok(()) }
    }

    /// Executes the current step, or one half of it, on the disk.
    fn execute_step(&mut self, run: &mut Run, at: u32, is_half: bool, is_first: bool) {
        let transfer = self.transfers.remove(at).expect("the transfer is in flight");
        let (verb, range) = transfer.current_step();
        let sectors = sectors_of(range);
        let unit = self.disk(transfer.volume()).unit();
        let middle = (sectors.start + (sectors.end - sectors.start) / 2) / unit * unit;
        let share = match (is_half, is_first) {
            (false, _) => sectors,
            (true, true) => sectors.start..middle,
            (true, false) => middle..sectors.end,
        };
        let transfer = if verb == IoVerb::Read {
            self.execute_read(run, transfer, range, share)
        } else {
            if !Sabotage::losing(verb).is_some_and(|bug| run.strikes(bug)) {
                // A failed change may have been done in part.
                let is_well = transfer.result.is_ok();
                let done = if is_well { 1_000_000 } else { run.dice.pick(&PARTIAL) };
                self.execute_change(run, &transfer, share, done);
            }
            transfer
        };
        let again = self.transfers.insert(transfer);
        assert!(again == at, "the free number is reused");
    }

    /// Reads a share of the current range.
    fn execute_read(
        &self,
        run: &mut Run,
        mut transfer: Transfer,
        range: ByteRange,
        share: std::ops::Range<u64>,
    ) -> Transfer {
        let volume = transfer.volume();
        let mut from = share.start;
        if run.strikes(Sabotage::SwapReads) {
            let other = self.ios().find(|other| {
                other.action.verb == IoVerb::Read
                    && other.action.volume == volume
                    && other.action.range.len / SECTOR_BYTES >= share.end - share.start
            });
            from = other.map_or(from, |other| other.action.range.offset / SECTOR_BYTES);
        }
        let count = (share.end - share.start) as usize;
        let content = &self.disk(volume).content()[from as usize..from as usize + count];
        let mut stamps = content.to_vec();
        if transfer.result.is_err() {
            stamps.fill(POISON);
        }
        if transfer.plan.is_some() {
            let place = ByteRange::new(share.start * SECTOR_BYTES, count as u64 * SECTOR_BYTES);
            let place = transfer.in_blocks(place);
            transfer.blocks[place].copy_from_slice(&stamps);
            return transfer;
        }
        let before = (share.start - range.offset / SECTOR_BYTES) as usize;
        let mut stamps = stamps.into_iter();
        let mut skip = before;
        for io in &mut transfer.ios {
            let sectors = (io.action.range.len / SECTOR_BYTES) as usize;
            io.stamps.resize(sectors, POISON);
            let first = skip.min(sectors);
            skip -= first;
            for (place, stamp) in io.stamps[first..].iter_mut().zip(stamps.by_ref()) {
                *place = stamp;
            }
        }
        transfer
    }

    /// Changes each unit of a share of the current range with the probability `done`.
    fn execute_change(
        &mut self,
        run: &mut Run,
        transfer: &Transfer,
        share: std::ops::Range<u64>,
        done: u32,
    ) {
        let (verb, range) = transfer.current_step();
        let volume = transfer.volume();
        let is_write = matches!(verb, IoVerb::Write { .. });
        let shift = u64::from(is_write && run.strikes(Sabotage::MisdirectWrite));
        let torn = is_write && run.strikes(Sabotage::TearWrite);
        let sectors = sectors_of(range);
        let half = sectors.start + (sectors.end - sectors.start).div_ceil(2);
        let content = if is_write { transfer.content(range) } else { Vec::new() };
        let disk = self.disk_mut(volume);
        let (unit, end) = (disk.unit(), disk.content().len() as u64);
        let mut from = share.start;
        while from < share.end {
            let to = ((from / unit + 1) * unit).min(share.end);
            let is_done = done >= 1_000_000 || run.dice.chance(done);
            for sector in (from..to).filter(|&sector| is_done && !(torn && sector >= half)) {
                let content = match verb {
                    IoVerb::Zero { .. } => ZERO,
                    IoVerb::Discard => match run.dice.below(4) {
                        0 => stamp(volume.0, sector, 0),
                        1 => continue,
                        _ => ZERO,
                    },
                    _ => content[(sector - sectors.start) as usize],
                };
                if sector + shift < end {
                    disk.write(sector + shift, content);
                }
            }
            disk.write_behind(from..to, &mut run.dice);
            from = to;
        }
    }

    /// Ends a step. After the last step, returns the results for the dispatcher.
    pub(crate) fn end_step(
        &mut self,
        run: &mut Run,
        shards: &mut [PooledShard],
        faults: &mut Faults,
        at: u32,
    ) -> Vec<(usize, IoId, IoResult)> {
        let transfer = self.transfers.get_mut(at);
        let (when, result, volume) = (transfer.when, transfer.result, transfer.volume());
        let (verb, range) = transfer.current_step();
        let refused = transfer.ios.iter().any(|io| io.result.is_err());
        let steps = transfer.plan.as_ref().map_or(1, |plan| plan.steps.len());
        let is_last = transfer.step + 1 == steps;
        if !refused && when != When::Early {
            self.execute_step(run, at, when == When::Split, false);
        }
        let is_stable = verb == IoVerb::Write { fua: true } && !run.strikes(Sabotage::LoseFua);
        if is_stable && result.is_ok() {
            self.disk_mut(volume).stabilize(sectors_of(range));
        }
        if result.is_ok() && !is_last {
            self.transfers.get_mut(at).step += 1;
            self.begin_step(run, at);
            return Vec::new();
        }
        let transfer = self.transfers.remove(at).expect("a transfer ends once");
        if let Some(claim) = &transfer.claim {
            let mut next = Vec::new();
            self.owners[usize::from(volume.0)].end(claim, &mut next);
            next.into_iter().for_each(|at| self.begin_step(run, at));
        }
        if result.is_err() && transfer.ios.len() > 1 {
            // One bad sector must not fail the other I/Os.
            transfer.ios.into_iter().for_each(|io| self.send_transfer(run, vec![io]));
            return Vec::new();
        }
        self.end_ios(run, shards, faults, transfer)
    }

    fn end_ios(
        &self,
        run: &mut Run,
        shards: &mut [PooledShard],
        faults: &mut Faults,
        mut transfer: Transfer,
    ) -> Vec<(usize, IoId, IoResult)> {
        let mut ended = Vec::with_capacity(transfer.ios.len());
        if transfer.verb() == IoVerb::Read && transfer.plan.is_some() {
            for at in 0..transfer.ios.len() {
                let place = transfer.in_blocks(transfer.ios[at].action.range);
                transfer.ios[at].stamps = transfer.blocks[place].to_vec();
            }
        }
        for io in &transfer.ios {
            let (volume, range) = (io.action.volume.0, io.action.range);
            match io.action.verb {
                IoVerb::Read => fill_memory(run, shards, io),
                IoVerb::Write { .. } if io.current_stamps(shards) != io.stamps => {
                    let place = Some((volume, range.offset / SECTOR_BYTES));
                    let message = format!("the memory of a write in flight changed: {range}");
                    run.violate(place, message);
                }
                _ => {}
            }
            let mut result = transfer.result;
            let (shard, id) = (io.shard, io.action.id);
            let is_last = || !self.ios().any(|io| io.shard == shard && io.action.id == id);
            faults.end_io(io, result, run.moment(), is_last);
            run.log_event(volume, range, || {
                format!("{:?} {range} ends: {result:?}", io.action.verb)
            });
            if Sabotage::hiding_error(io.action.verb).is_some_and(|bug| run.strikes(bug)) {
                result = Ok(());
            }
            ended.push((shard, id, result));
        }
        ended
    }

    /// Aborts all transfers because the process dies: the current step is done wholly, partly or
    /// not at all.
    pub(super) fn abort_transfers(&mut self, run: &mut Run) {
        let transfers: Vec<Transfer> = self.transfers.drain().collect();
        for transfer in transfers {
            let (verb, range) = match transfer.is_waiting {
                true => continue,
                false => transfer.current_step(),
            };
            let refused = transfer.ios.iter().any(|io| io.result.is_err());
            if verb != IoVerb::Read && transfer.when != When::Early && !refused {
                let done = run.dice.pick(&CUT);
                self.execute_change(run, &transfer, sectors_of(range), done);
            }
        }
        self.owners.iter_mut().for_each(|owners| *owners = Default::default());
    }
}

/// Copies the result of a read to its memory.
fn fill_memory(run: &mut Run, shards: &mut [PooledShard], io: &Io) {
    let misplaced = io.has_base() && run.strikes(Sabotage::WrongBase);
    if !io.fill_memory(shards, misplaced) {
        run.violate(None, format!("a read exceeds its memory: {:?}", io.action));
    }
}
