//! What a shard keeps for each volume.

use crate::action::PartId;
use crate::index::bits::SlotSet;
use crate::ops::gather::Trial;
use crate::writeback::elevator::Elevator;
use crate::writeback::epochs::Order;
use crate::writeback::line_set::LineSet;
use crate::writeback::token_bucket::Allowance;
use crate::{LineKey, Protection, VolumeCounters};
use forebay_types::{IoError, LINE_BYTES, Mode, Stripes, UnsafeSupply};
use std::collections::VecDeque;
use std::sync::Arc;

/// What is old goes so much later, in milliseconds, while the elevator runs.
const ELEVATOR_AGE_MS: u64 = 20_000;

/// A FLUSH on its way: the lines that were dirty when it came and have not been destaged since.
#[derive(Debug)]
pub(crate) struct FlushJob {
    pub part: PartId,
    pub remaining: SlotSet,
    pub error: Option<IoError>,
}

#[derive(Debug)]
pub(crate) struct VolumeState {
    pub size_bytes: u64,
    pub mode: Mode,
    pub protection: Protection,
    /// What a write that the UPS does not cover is acknowledged from, if one protects the volume.
    pub unsafe_supply: UnsafeSupply,
    /// How it is divided.
    pub stripes: Stripes,
    /// Writes that are shorter, in bytes, are held back until they are old enough.
    pub gather_below: u64,
    /// Whether writes through the cache are held back for others.
    pub trial: Trial,
    /// Lines with dirty sectors.
    pub dirty: SlotSet,
    /// Those of them that are on their way to the disk in no destage, by place, unless the volume
    /// is ordered; and the first lines of stripes all of which is among them.
    pub waiting: LineSet,
    pub whole: LineSet,
    /// In which order they go when too much is dirty, and as which of its shards this one goes.
    pub elevator: Arc<Elevator>,
    pub elevator_shard: usize,
    /// Lines that were dirty when the age was last looked at.
    pub aged: SlotSet,
    /// When it is looked at again, in milliseconds.
    pub next_aging_ms: u64,
    /// Lines that a flush, a change of mode or their age has go next, in descending order of place
    /// so that the last is taken first.
    pub sweep: Vec<LineKey>,
    /// Writes wait until less is dirty.
    pub wants_room: bool,
    /// Those that do, in the order in which they came, and how many lines each needs.
    pub room_queue: VecDeque<(PartId, usize)>,
    /// Since when the first of them waits, in milliseconds.
    pub room_since_ms: u64,
    /// A write of clean sectors along with dirty ones has failed: the next goes without.
    pub is_narrow: bool,
    /// Somebody waits for reads of the disk.
    pub reading: bool,
    /// What write-back may do.
    pub allowance: Allowance,
    /// Destage operations in flight.
    pub destaging: u32,
    /// All operations in flight.
    pub operations: u32,
    pub flushes: Vec<FlushJob>,
    /// What is dirty by epochs, where it is destaged in their order.
    pub order: Option<Order>,
    /// After a failed destage, no background destage before this time.
    pub backoff_until_ms: u64,
    pub backoff_ms: u64,
    /// Sectors in dirty lines whose content is lost.
    pub lost_sectors: u64,
    pub counters: VolumeCounters,
}

impl VolumeState {
    pub(crate) fn new(size_bytes: u64, mode: Mode, slots: usize) -> Self {
        Self {
            size_bytes,
            mode,
            protection: Protection::None,
            unsafe_supply: UnsafeSupply::Stable,
            stripes: Stripes::NONE,
            gather_below: u64::MAX,
            trial: Trial::default(),
            // The sets are small, an eighth of a byte per line each, and wait for the first
            // dirty line.
            dirty: SlotSet::default(),
            aged: SlotSet::default(),
            waiting: LineSet::default(),
            whole: LineSet::default(),
            elevator: Elevator::new(1, 0),
            elevator_shard: 0,
            next_aging_ms: 0,
            sweep: Vec::new(),
            wants_room: false,
            room_queue: VecDeque::new(),
            room_since_ms: 0,
            is_narrow: false,
            reading: false,
            allowance: Allowance::default(),
            destaging: 0,
            operations: 0,
            flushes: Vec::new(),
            order: None,
            backoff_until_ms: 0,
            backoff_ms: 0,
            lost_sectors: 0,
            counters: VolumeCounters::default(),
        }
        .with_sets(slots)
    }

    fn with_sets(mut self, slots: usize) -> Self {
        if self.mode == Mode::WriteBack {
            self.dirty = SlotSet::new(slots);
            self.aged = SlotSet::new(slots);
        }
        self
    }

    pub(crate) fn set_mode(&mut self, mode: Mode, slots: usize) {
        self.mode = mode;
        if mode == Mode::WriteBack {
            self.expect_dirty(slots);
        }
    }

    /// Makes room for dirty lines.
    pub(crate) fn expect_dirty(&mut self, slots: usize) {
        if !self.dirty.is_allocated() {
            self.dirty = SlotSet::new(slots);
            self.aged = SlotSet::new(slots);
        }
    }

    /// Whether nothing of it is written back just now, as that has failed.
    pub(crate) fn holds_back(&self, now_ms: u64) -> bool {
        self.flushes.is_empty() && now_ms < self.backoff_until_ms
    }

    /// When what is old is due. The elevator comes by most of it, and lists of what is old would
    /// only disturb its order; where it follows a writer, it never comes by some.
    pub(crate) fn aging_due_ms(&self) -> u64 {
        self.next_aging_ms + if self.elevator.is_called() { ELEVATOR_AGE_MS } else { 0 }
    }

    /// A line has become dirty, or is still so after a destage.
    pub(crate) fn wait_in_line(&mut self, line: u64) {
        if self.order.is_some() {
            return;
        }
        self.waiting.insert(line);
        if let Some((first, count)) = self.stripe_lines(line)
            && self.waiting.holds(first, count)
        {
            self.whole.insert(first);
        }
    }

    /// A line is on its way to the disk, or dirty no more.
    pub(crate) fn leave_line(&mut self, line: u64) {
        self.waiting.remove(line);
        if !self.whole.is_empty()
            && let Some((first, _)) = self.stripe_lines(line)
        {
            self.whole.remove(first);
        }
    }

    /// The first line of the stripe that a line is in, if all of that waits to be written back.
    pub(crate) fn waiting_stripe(&self, line: u64) -> Option<u64> {
        if self.whole.is_empty() {
            return None;
        }
        let (first, _) = self.stripe_lines(line)?;
        self.whole.holds(first, 1).then_some(first)
    }

    /// The whole stripe that a line is in, if there is one: its first line, and how many it has.
    fn stripe_lines(&self, line: u64) -> Option<(u64, u64)> {
        let stripe = self.stripes.stripe_at(line * LINE_BYTES)?;
        let fits = stripe.len > LINE_BYTES && stripe.fits(self.size_bytes);
        fits.then_some((stripe.offset / LINE_BYTES, stripe.len / LINE_BYTES))
    }

    /// Says how the volume is divided.
    pub(crate) fn set_stripes(&mut self, stripes: Stripes) {
        self.stripes = stripes;
        self.whole.clear();
        let waiting = std::mem::take(&mut self.waiting);
        waiting.from(0).for_each(|line| self.wait_in_line(line));
    }

    /// Slots with older versions of lines.
    pub(crate) fn frozen_lines(&self) -> usize {
        self.order.as_ref().map_or(0, Order::frozen)
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.dirty.metadata_bytes()
            + self.order.as_ref().map_or(0, Order::metadata_bytes)
            + self.aged.metadata_bytes()
            + self.waiting.metadata_bytes()
            + self.whole.metadata_bytes()
            + self.room_queue.capacity() * size_of::<(PartId, usize)>()
            + self.sweep.capacity() * size_of::<LineKey>()
    }
}
