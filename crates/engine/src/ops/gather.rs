//! Gathers writes through the cache to one stripe into common I/Os.
//!
//! An array with parity must read before it writes less than a stripe, so two small writes to a
//! stripe cost twice as much as one write of both. While a write to a stripe is in flight, further
//! small writes to the same stripe are *held back*: their operations have started, but their I/O
//! has not. When any write to the stripe completes, the held-back writes are dispatched, adjacent
//! ones in one I/O. A write is never held back if none is in flight to its stripe, and no write
//! waits for more than one other.
//!
//! Each write remains an operation with its own lines, waiters, journal record and answer. The
//! lines of a held-back write are busy, so overlapping requests keep their order. Only the I/O is
//! shared. It completes all of its writes; if it fails, each write is repeated alone and gets its
//! own result. An I/O has FUA if one of its writes has.
//!
//! The driver starts the I/Os of one turn together and coalesces adjacent ones, so a write is not
//! held back because of one in the same turn, which is not in flight yet.
//!
//! Holding back has a cost: a write that waits for another one takes twice the time. A disk that
//! merges queued writes itself, with an elevator or in the stripe cache of Linux md, gains nothing
//! from it; a disk on which each I/O has a high fixed cost does. So a trial measures both ways
//! ([`super::trial`]). The clock counts milliseconds, so the trial finds no gain on a disk that
//! answers much faster.

use crate::IoId;
use crate::line::key::LineKey;
use crate::line::meta::NO_SLOT;
use crate::ops::trial::Trial;
use crate::ops::{KeyHasher, LineOp, OpLine, Ops};
use forebay_types::{ByteRange, REGION_BYTES, SECTOR_BYTES};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// The gathering state of a write through the cache.
#[derive(Debug)]
pub(crate) struct Gated {
    /// The first line of its stripe.
    pub stripe: LineKey,
    /// The driver's turn in which its I/O started.
    pub turn: u64,
    pub fua: bool,
    /// The start of the write in milliseconds and its round of the trial. The round is set only for
    /// a small write, and only such a write may be held back.
    pub begun_ms: u64,
    pub round: Option<u32>,
    /// Other operations that share its I/O.
    pub joined: Vec<u32>,
}

/// Writes through the cache to one stripe. A gate exists while an I/O is in flight.
#[derive(Debug, Default)]
struct StripeGate {
    /// I/Os in flight.
    in_flight: u32,
    /// I/Os in flight that started in `turn`.
    fresh: u32,
    turn: u64,
    /// Operations held back, and the sum of their bytes.
    held: Vec<u32>,
    held_bytes: u64,
}

/// The gates of all stripes with an I/O in flight.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    stripes: HashMap<LineKey, StripeGate, BuildHasherDefault<KeyHasher>>,
}

impl Gates {
    pub(crate) fn metadata_bytes(&self) -> usize {
        self.stripes.capacity() * size_of::<(LineKey, StripeGate)>()
    }
}

impl Ops {
    /// Whether a write is to be held back. Only a write whose bytes are all in the pool can be.
    pub(crate) fn must_hold_back(&mut self, bytes: u64, op: &LineOp, trial: &Trial) -> bool {
        let gated = op.gated.as_ref().filter(|gated| gated.round.is_some() && trial.holds());
        let Some(gated) = gated else { return false };
        let Some(gate) = self.gates.stripes.get_mut(&gated.stripe) else { return false };
        gate.begin_turn(gated.turn);
        let is_in_pool = |line: &OpLine| line.slot != NO_SLOT && line.mask != 0;
        gate.in_flight > gate.fresh
            && gate.held_bytes + bytes <= REGION_BYTES
            && op.lines.iter().all(is_in_pool)
    }

    /// Holds a write back until another write to its stripe completes.
    pub(crate) fn hold_back(&mut self, id: IoId, bytes: u64) {
        let stripe = self.op(id.op).gated.as_ref().map(|gated| gated.stripe);
        let gate = stripe.and_then(|stripe| self.gates.stripes.get_mut(&stripe));
        let gate = gate.expect("a held-back write waits for another to its stripe");
        gate.held.push(id.op);
        gate.held_bytes += bytes;
    }

    /// Counts the I/O of a write as started.
    pub(crate) fn pass_gate(&mut self, id: IoId) {
        let Some(gated) = &self.op(id.op).gated else { return };
        let (stripe, turn) = (gated.stripe, gated.turn);
        let gate = self.gates.stripes.entry(stripe).or_default();
        gate.begin_turn(turn);
        gate.in_flight += 1;
        gate.fresh += u32::from(turn != 0);
    }

    /// Counts the I/O of a write as completed. Returns its stripe, and the other operations that
    /// shared the I/O.
    pub(crate) fn leave_gate(&mut self, id: IoId) -> (LineKey, Vec<u32>) {
        let gated = self.op_mut(id.op).gated.as_mut().expect("only gated writes leave a gate");
        let (stripe, turn) = (gated.stripe, gated.turn);
        let joined = std::mem::take(&mut gated.joined);
        let gate = self.gates.stripes.get_mut(&stripe).expect("an I/O in flight has a gate");
        assert!(gate.in_flight > 0, "more I/Os to {stripe:?} completed than started");
        gate.in_flight -= 1;
        if turn == gate.turn {
            // The count may be zero already, if turns of two drivers alternated.
            gate.fresh = gate.fresh.saturating_sub(1);
        }
        (stripe, joined)
    }

    /// Takes the held-back writes of a stripe, in ascending order of their ranges.
    pub(crate) fn take_held(&mut self, stripe: LineKey) -> Vec<u32> {
        let gate = self.gates.stripes.get_mut(&stripe).expect("the gate stays until `close_gate`");
        let mut held = std::mem::take(&mut gate.held);
        gate.held_bytes = 0;
        held.sort_unstable_by_key(|&op| self.range_of(op).offset);
        held
    }

    /// Removes the gate of a stripe with no I/O in flight.
    pub(crate) fn close_gate(&mut self, stripe: LineKey) {
        if self.gates.stripes.get(&stripe).is_some_and(|gate| gate.in_flight == 0) {
            self.gates.stripes.remove(&stripe);
        }
    }

    /// The byte range that an operation writes.
    pub(crate) fn range_of(&self, op: u32) -> ByteRange {
        let lines = &self.op(op).lines;
        let (first, last) = (&lines[0], &lines[lines.len() - 1]);
        let sector = |count: u32| u64::from(count) * SECTOR_BYTES;
        let start = first.key.offset() + sector(first.mask.trailing_zeros());
        let end = last.key.offset() + sector(8 - last.mask.leading_zeros());
        ByteRange::new(start, end - start)
    }

    /// Panics if gates and operations are inconsistent, or a held-back write would never be
    /// dispatched.
    pub(super) fn check_gates(&self) {
        let mut known = 0;
        for (&stripe, gate) in &self.gates.stripes {
            assert!(gate.in_flight > 0 && gate.fresh <= gate.in_flight, "{stripe:?}: {gate:?}");
            let mut bytes = 0;
            for &held in &gate.held {
                let op = self.op(held);
                let gated = op.gated.as_ref().expect("only gated writes are held back");
                assert!(gated.stripe == stripe && gated.joined.is_empty());
                bytes += self.range_of(held).len;
            }
            assert_eq!(bytes, gate.held_bytes);
            known += gate.in_flight as usize + gate.held.len();
        }
        let gated = self.iter().filter_map(|op| op.gated.as_ref());
        let ops = gated.fold(0, |sum, gated| sum + 1 - gated.joined.len() as i64);
        assert_eq!(known as i64, ops, "each gated write is held, in flight or joined");
    }
}

impl StripeGate {
    /// Resets the count of fresh I/Os if a new turn has begun.
    const fn begin_turn(&mut self, turn: u64) {
        if self.turn != turn {
            self.turn = turn;
            self.fresh = 0;
        }
    }
}
