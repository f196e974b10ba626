//! Writes through the cache that are in flight together go to the disk together.
//!
//! An array with parity reads before it writes less than a stripe, so two small writes to a stripe
//! cost it twice what one of both does. While a write is on its way to a stripe, small writes that
//! come for the same stripe are *held back*: everything is done for them but the I/O. When any
//! write to the stripe has ended, those that were held back go, neighbours in one I/O. A write that
//! finds none on its way is never held back, and no write waits longer than for one other.
//!
//! Each write stays an operation of its own, with its own lines, waiters, record and answer; one
//! that was held back is busy like any other, so all that overlaps is in order as ever. Only the
//! I/O is common: it ends all of them, and if it fails, each is written by itself and judged by
//! that. An I/O with FUA in it is FUA wholly.
//!
//! I/Os of one turn start together and are joined by the driver, so nobody waits for what has begun
//! in the same turn: it is not on its way yet.
//!
//! Holding back has to pay, and that is tried ([`super::trial`]). A disk that joins waiting writes
//! by itself, as an elevator or the stripe cache of Linux md does, gains nothing, and a write that
//! waits for another one takes twice the time. It pays where each I/O costs, however small it is.
//! The clock counts milliseconds, so a disk that answers in much less is never found to gain.

use crate::index::key::LineKey;
use crate::index::meta::{LineTable, NO_SLOT};
use crate::modes::read::{Run, push_run};
use crate::ops::complete::Completion;
use crate::ops::emit;
use crate::ops::trial::Trial;
use crate::ops::{KeyHasher, Op, OpLine, Ops};
use crate::sabotage::PlantedBug;
use crate::volume::VolumeState;
use crate::{IoId, IoVerb, Outbox, Part, Place, Segment};
use forebay_types::{ByteRange, IoError, IoResult, LINE_BYTES, Mode, REGION_BYTES, SECTOR_BYTES};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::iter;

/// What a write through the cache knows of the others in its stripe.
#[derive(Debug)]
pub(crate) struct Gated {
    /// The first line of its stripe.
    stripe: LineKey,
    /// The driver's turn in which its I/O was started.
    turn: u64,
    fua: bool,
    /// When it began, in milliseconds, and in which round of the trial, if it is a small one: only
    /// such may be held back.
    begun_ms: u64,
    round: Option<u32>,
    /// Operations whose sectors are in its I/O.
    along: Vec<u32>,
}

/// Writes through the cache to one stripe.
#[derive(Debug, Default)]
struct Gate {
    /// I/Os on their way.
    in_flight: u32,
    /// Those of them that were started in `turn`.
    fresh: u32,
    turn: u64,
    /// Operations that wait for one of them, and the bytes of these.
    held: Vec<u32>,
    held_bytes: u64,
}

/// The stripes to which writes through the cache are on their way.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    stripes: HashMap<LineKey, Gate, BuildHasherDefault<KeyHasher>>,
}

impl Gates {
    pub(crate) fn metadata_bytes(&self) -> usize {
        self.stripes.capacity() * size_of::<(LineKey, Gate)>()
    }
}

impl Ops {
    /// Whether a write waits for one that is on its way. It needs all its bytes in the pool.
    pub(crate) fn is_held_back(&mut self, bytes: u64, op: &Op, trial: &Trial) -> bool {
        let gated = op.gated.as_ref().filter(|gated| gated.round.is_some() && trial.holds());
        let Some(gated) = gated else { return false };
        let Some(gate) = self.gates.stripes.get_mut(&gated.stripe) else { return false };
        gate.enter(gated.turn);
        let is_here = |line: &OpLine| line.slot != NO_SLOT && line.mask != 0;
        gate.in_flight > gate.fresh
            && gate.held_bytes + bytes <= REGION_BYTES
            && op.lines.iter().all(is_here)
    }

    /// Keeps a write back until one to its stripe has ended.
    pub(crate) fn hold_back(&mut self, id: IoId, bytes: u64) {
        let stripe = self.op(id.op).gated.as_ref().map(|gated| gated.stripe);
        let gate = stripe.and_then(|stripe| self.gates.stripes.get_mut(&stripe));
        let gate = gate.expect("a write waits for another one of its stripe");
        gate.held.push(id.op);
        gate.held_bytes += bytes;
    }

    /// The I/O of a write is started now.
    pub(crate) fn pass_gate(&mut self, id: IoId) {
        let Some(gated) = &self.op(id.op).gated else { return };
        let (stripe, turn) = (gated.stripe, gated.turn);
        let gate = self.gates.stripes.entry(stripe).or_default();
        gate.enter(turn);
        gate.in_flight += 1;
        gate.fresh += u32::from(turn != 0);
    }

    /// The I/O of a write has ended: its stripe, and the operations that went along with it.
    fn leave_gate(&mut self, id: IoId) -> (LineKey, Vec<u32>) {
        let gated = self.op_mut(id.op).gated.as_mut().expect("the caller has looked");
        let (stripe, turn) = (gated.stripe, gated.turn);
        let along = std::mem::take(&mut gated.along);
        let gate = self.gates.stripes.get_mut(&stripe).expect("its I/O is on its way");
        assert!(gate.in_flight > 0, "an I/O leaves a stripe that it was not on its way to");
        gate.in_flight -= 1;
        if turn == gate.turn {
            // Zero where the turns of two drivers took each other's place.
            gate.fresh = gate.fresh.saturating_sub(1);
        }
        (stripe, along)
    }

    /// The writes that were held back for a stripe, in order of place.
    fn take_held(&mut self, stripe: LineKey) -> Vec<u32> {
        let gate = self.gates.stripes.get_mut(&stripe).expect("a write has just left it");
        let mut held = std::mem::take(&mut gate.held);
        gate.held_bytes = 0;
        held.sort_unstable_by_key(|&op| self.range_of(op).offset);
        held
    }

    /// Forgets a stripe to which nothing is on its way any more.
    fn close_gate(&mut self, stripe: LineKey) {
        if self.gates.stripes.get(&stripe).is_some_and(|gate| gate.in_flight == 0) {
            self.gates.stripes.remove(&stripe);
        }
    }

    /// The bytes that an operation writes.
    fn range_of(&self, op: u32) -> ByteRange {
        let lines = &self.op(op).lines;
        let (first, last) = (&lines[0], &lines[lines.len() - 1]);
        let sector = |count: u32| u64::from(count) * SECTOR_BYTES;
        let start = first.key.offset() + sector(first.mask.trailing_zeros());
        let end = last.key.offset() + sector(8 - last.mask.leading_zeros());
        ByteRange::new(start, end - start)
    }

    /// Panics where a write waits at a gate that nothing opens.
    pub(super) fn check_gates(&self) {
        let mut known = 0;
        for (&stripe, gate) in &self.gates.stripes {
            assert!(gate.in_flight > 0 && gate.fresh <= gate.in_flight, "{stripe:?}: {gate:?}");
            let mut bytes = 0;
            for &held in &gate.held {
                let op = self.op(held);
                let gated = op.gated.as_ref().expect("only such are held back");
                assert!(gated.stripe == stripe && gated.along.is_empty());
                bytes += self.range_of(held).len;
            }
            assert_eq!(bytes, gate.held_bytes);
            known += gate.in_flight as usize + gate.held.len();
        }
        let gated = self.iter().filter_map(|op| op.gated.as_ref());
        let ops = gated.fold(0, |sum, gated| sum + 1 - gated.along.len() as i64);
        assert_eq!(known as i64, ops, "each write waits, is on its way, or goes along with one");
    }
}

impl Gated {
    /// What a write of a part has to do with others, if it lies in one stripe.
    pub(crate) fn new(
        part: &Part,
        volume: &VolumeState,
        fua: bool,
        turn: u64,
        begun_ms: u64,
    ) -> Option<Self> {
        let width = volume.writeback().dirty().stripes().width();
        if width <= LINE_BYTES || volume.mode() == Mode::Bypass {
            return None;
        }
        let stripe = volume.stripe_at(part.range.offset / LINE_BYTES * LINE_BYTES)?;
        if part.range.end() > stripe.end() {
            return None;
        }
        let stripe = LineKey::new(part.volume, stripe.offset / LINE_BYTES);
        let round = (part.range.len < volume.gather_below()).then_some(volume.trial().round());
        Some(Self { stripe, turn, fua, begun_ms, round, along: Vec::new() })
    }
}

impl<M: LineTable> Completion<'_, M> {
    /// The I/O of a write that may have company has ended.
    pub(super) fn complete_gated(
        &mut self,
        id: IoId,
        result: IoResult,
        now_ms: u64,
        out: &mut Outbox,
    ) {
        let (stripe, along) = self.lines.ops.leave_gate(id);
        if result.is_err() && !along.is_empty() {
            self.go_apart(id, &along, now_ms, out);
        } else {
            for op in iter::once(id.op).chain(along) {
                self.count_time(op, now_ms);
                self.ended(self.lines.ops.id(op), result, now_ms, out);
            }
        }
        self.open_gate(stripe, now_ms, out);
    }

    /// A write that may be held back has ended.
    fn count_time(&mut self, op: u32, now_ms: u64) {
        let op = self.lines.ops.op(op);
        let Some(gated) = &op.gated else { return };
        if let Some(round) = gated.round {
            let took_ms = now_ms.saturating_sub(gated.begun_ms);
            self.lines.volume.trial_mut().ended(round, took_ms);
        }
    }

    /// An I/O for several has failed. One bad sector is not to fail them all.
    fn go_apart(&mut self, id: IoId, along: &[u32], now_ms: u64, out: &mut Outbox) {
        if self.lines.planted.is(PlantedBug::PraiseGathered) {
            self.ended(id, Err(IoError::Io), now_ms, out);
            along.iter().for_each(|&op| self.ended(self.lines.ops.id(op), Ok(()), now_ms, out));
            return;
        }
        for &op in [id.op].iter().chain(along) {
            self.start_together(&[op], out);
        }
    }

    /// A write to the stripe has ended: those that waited for one go.
    fn open_gate(&mut self, stripe: LineKey, now_ms: u64, out: &mut Outbox) {
        let mut held = self.lines.ops.take_held(stripe);
        if self.lines.planted.is(PlantedBug::AnswerHeldBack) {
            held.drain(..).for_each(|op| self.ended(self.lines.ops.id(op), Ok(()), now_ms, out));
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
            self.start_together(together, out);
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

    /// Starts one I/O for operations that follow each other on the disk.
    fn start_together(&mut self, ops: &[u32], out: &mut Outbox) {
        let mut runs = Vec::with_capacity(1);
        let mut fua = false;
        for &op in ops {
            let op = self.lines.ops.op(op);
            fua |= op.gated.as_ref().is_some_and(|gated| gated.fua);
            op.lines.iter().for_each(|line| push_line(&mut runs, line));
        }
        assert_eq!(runs.len(), 1, "they follow each other");
        let id = self.lines.ops.id(ops[0]);
        let op = self.lines.ops.op_mut(ops[0]);
        let (volume, part) = (op.volume, op.part);
        let gated = op.gated.as_mut().expect("it was held back");
        gated.turn = out.turn;
        gated.along.extend_from_slice(&ops[1..]);
        self.lines.ops.pass_gate(id);
        emit(out, id, IoVerb::Write { fua }, volume, part, runs);
    }
}

impl Gate {
    /// A turn may have begun.
    const fn enter(&mut self, turn: u64) {
        if self.turn != turn {
            self.turn = turn;
            self.fresh = 0;
        }
    }
}

/// Appends the sectors of a line, which follow each other, to what is to be written.
fn push_line(runs: &mut Vec<Run>, line: &OpLine) {
    let sector = SECTOR_BYTES as u32;
    let offset = line.mask.trailing_zeros() * sector;
    let place = Place::Slot { slot: line.slot, offset };
    let segment = Segment { place, len: line.mask.count_ones() * sector };
    push_run(runs, line.key.offset() + u64::from(offset), segment, 0);
}
