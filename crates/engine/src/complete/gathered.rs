//! Completion of writes that may share an I/O, and dispatch of those that were held back
//! (`ops::gather`).

use super::OpCompletion;
use crate::line::key::LineKey;
use crate::line::meta::LineTable;
use crate::ops::io_run::{IoRun, push_run};
use crate::ops::{OpLine, emit};
use crate::sabotage::PlantedBug;
use crate::{IoCause, IoId, IoVerb, Outbox, Place, Segment};
use forebay_types::{Few, IoError, IoResult, SECTOR_BYTES};
use std::iter;

impl<M: LineTable> OpCompletion<'_, M> {
    /// Completes the I/O of a write that may have shared it.
    pub(super) fn complete_gated(
        &mut self,
        id: IoId,
        result: IoResult,
        now_ms: u64,
        out: &mut Outbox,
    ) {
        let (stripe, joined) = self.lines.ops.leave_gate(id);
        if result.is_err() && !joined.is_empty() {
            self.retry_separately(id, &joined, now_ms, out);
        } else {
            for op in iter::once(id.op).chain(joined) {
                self.record_time(op, now_ms);
                self.complete_io(self.lines.ops.id(op), result, now_ms, out);
            }
        }
        self.dispatch_held(stripe, now_ms, out);
    }

    /// Reports the time of a write that may be held back to the trial.
    fn record_time(&mut self, op: u32, now_ms: u64) {
        let op = self.lines.ops.op(op);
        let Some(gated) = &op.gated else { return };
        if let Some(round) = gated.round {
            let took_ms = now_ms.saturating_sub(gated.begun_ms);
            self.lines.volume.trial_mut().record(round, took_ms);
        }
    }

    /// Repeats the writes of a failed common I/O one by one, so that one bad sector does not fail
    /// them all.
    fn retry_separately(&mut self, id: IoId, joined: &[u32], now_ms: u64, out: &mut Outbox) {
        if self.lines.planted.is(PlantedBug::FailOnlyFirstGathered) {
            self.complete_io(id, Err(IoError::Io), now_ms, out);
            for &op in joined {
                self.complete_io(self.lines.ops.id(op), Ok(()), now_ms, out);
            }
            return;
        }
        for &op in [id.op].iter().chain(joined) {
            self.start_joined(&[op], out);
        }
    }

    /// Dispatches the held-back writes of a stripe.
    fn dispatch_held(&mut self, stripe: LineKey, now_ms: u64, out: &mut Outbox) {
        let mut held = self.lines.ops.take_held(stripe);
        if self.lines.planted.is(PlantedBug::AnswerHeldBack) {
            for op in held.drain(..) {
                self.complete_io(self.lines.ops.id(op), Ok(()), now_ms, out);
            }
        }
        if held.is_empty() {
            self.lines.ops.close_gate(stripe);
            return;
        }
        let (mut gathered, mut joint) = (0, 0);
        let mut rest = &held[..];
        while !rest.is_empty() {
            let range = |op: u32| self.lines.ops.range_of(op);
            let meet = |pair: &[u32]| range(pair[0]).end() == range(pair[1]).offset;
            let count = 1 + rest.windows(2).take_while(|pair| meet(pair)).count();
            let (together, after) = rest.split_at(count);
            self.start_joined(together, out);
            if count > 1 {
                gathered += count;
                joint += 1;
            }
            rest = after;
        }
        let counters = self.lines.volume.counters_mut();
        counters.gathered_writes += gathered as u64;
        counters.gathered_ios += joint;
    }

    /// Starts one I/O for operations on adjacent ranges.
    fn start_joined(&mut self, ops: &[u32], out: &mut Outbox) {
        let mut runs = Few::new();
        let mut fua = false;
        for &op in ops {
            let op = self.lines.ops.op(op);
            fua |= op.gated.as_ref().is_some_and(|gated| gated.fua);
            op.lines.iter().for_each(|line| push_line(&mut runs, line));
        }
        assert_eq!(runs.len(), 1, "joined writes are adjacent");
        let id = self.lines.ops.id(ops[0]);
        let op = self.lines.ops.op_mut(ops[0]);
        let (volume, part) = (op.volume, op.part);
        let gated = op.gated.as_mut().expect("only gated writes are joined");
        gated.turn = out.turn;
        gated.joined.extend_from_slice(&ops[1..]);
        self.lines.ops.pass_gate(id);
        emit(out, id, (IoVerb::Write { fua }, IoCause::Demand), volume, part, runs);
    }
}

/// Appends the sectors of a line, which are consecutive, to the runs of a write.
fn push_line(runs: &mut Few<IoRun>, line: &OpLine) {
    let sector = SECTOR_BYTES as u32;
    let offset = line.mask.trailing_zeros() * sector;
    let place = Place::Slot { slot: line.slot, offset };
    let segment = Segment { place, len: line.mask.count_ones() * sector };
    push_run(runs, line.key.offset() + u64::from(offset), segment, 0);
}
