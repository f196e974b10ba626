//! What a shard keeps for each volume.

use crate::action::PartId;
use crate::bits::SlotSet;
use crate::gather::Trial;
use crate::order::Order;
use crate::pace::Allowance;
use crate::{LineKey, Protection, VolumeCounters};
use forebay_types::{IoError, Mode, Stripes};
use std::collections::VecDeque;

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
    /// How it is divided.
    pub stripes: Stripes,
    /// Writes that are shorter, in bytes, are held back until they are old enough.
    pub gather_below: u64,
    /// Whether writes through the cache are held back for others.
    pub trial: Trial,
    /// Lines with dirty sectors.
    pub dirty: SlotSet,
    /// Lines that were dirty when the age was last looked at.
    pub aged: SlotSet,
    /// When it is looked at again, in milliseconds.
    pub next_aging_ms: u64,
    /// Lines to destage next, in descending order of place so that the last is taken first.
    pub sweep: Vec<LineKey>,
    /// The list was made because too much is dirty, and ends when that is over.
    pub sweep_for_room: bool,
    /// Writes wait until less is dirty.
    pub wants_room: bool,
    /// Those that do, in the order in which they came, and how many lines each needs.
    pub room_queue: VecDeque<(PartId, usize)>,
    /// A write of clean sectors along with dirty ones has failed: the next goes without.
    pub is_narrow: bool,
    /// Somebody waits for reads of the disk.
    pub reading: bool,
    /// What write-back may do.
    pub allowance: Allowance,
    /// Whole stripes are going, and are held back for the next batch of them.
    pub gathers_batch: bool,
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
            stripes: Stripes::NONE,
            gather_below: u64::MAX,
            trial: Trial::default(),
            // The sets are small, an eighth of a byte per line each, and wait for the first
            // dirty line.
            dirty: SlotSet::default(),
            aged: SlotSet::default(),
            next_aging_ms: 0,
            sweep: Vec::new(),
            sweep_for_room: false,
            wants_room: false,
            room_queue: VecDeque::new(),
            is_narrow: false,
            reading: false,
            allowance: Allowance::default(),
            gathers_batch: false,
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

    /// Slots with older versions of lines.
    pub(crate) fn frozen_lines(&self) -> usize {
        self.order.as_ref().map_or(0, Order::frozen)
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.dirty.metadata_bytes()
            + self.order.as_ref().map_or(0, Order::metadata_bytes)
            + self.aged.metadata_bytes()
            + self.room_queue.capacity() * size_of::<(PartId, usize)>()
            + self.sweep.capacity() * size_of::<LineKey>()
    }
}
