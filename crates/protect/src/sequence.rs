//! The order of the steps that protect the dirty data of volumes that only a UPS protects.
//!
//! **Write-back** is on while the UPSes allow it and no dump is being made or exists. When it ends,
//! acknowledged data may be in the pool or in a disk's cache, so the disks are flushed once
//! nothing is dirty.
//!
//! **A dump** takes these steps: halt writes, write the dirty data to the vault, flush the disks
//! (data that was destaged meanwhile may be in their caches). Only then power may be cut. If more
//! volumes depend on the UPS later, because their journal failed, the dump is made again with
//! them. When mains is back, the vault is emptied first, and only then writes continue: a dump that
//! a later start loads must not be older than an acknowledged write.

use forebay_types::VolumeId;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the UPSes allow and demand now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerOrder {
    /// The limit of dirty data in bytes of lines; 0 while write-back is off.
    pub dirty_bytes_max: u64,
    /// Whether dirty data is to be destaged: it is not protected, or exceeds the limit.
    pub drain_now: bool,
    /// Whether a dump is to be made and kept.
    pub dump_now: bool,
}

/// What to do for the disks of the volumes that only the UPS protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upkeep {
    /// A flush of each disk becomes due ([`VolumePower::request_sync`]).
    pub request_sync: bool,
    /// Destage dirty data ([`VolumePower::begin_drain`]) rather than start the flushes that are due
    /// ([`VolumePower::begin_sync`]).
    pub drain: bool,
}

/// A step of a dump. The caller carries it out and reports the result to
/// [`PowerSequence::handle_done`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpStep {
    /// Halt writes to all volumes that only the UPS protects.
    Halt,
    /// Write the dirty data of the volumes given to [`PowerSequence::poll_dump`] to the vault.
    Dump,
    /// Flush the disks of the same volumes.
    FlushDisks,
    /// Empty the vault, durably.
    EmptyVault,
    /// Accept writes again.
    Resume,
}

#[derive(Debug, PartialEq, Eq)]
enum Dump {
    None,
    /// A step is being carried out.
    Running(DumpStep),
    /// The next step.
    Next(DumpStep),
    /// The last step failed. All of them are repeated from `retry_ms` on.
    Failed {
        retry_ms: u64,
    },
    Complete,
}

/// The steps that follow from the orders of the power controller. Its owner calls
/// [`handle_order`](Self::handle_order), [`handle_dirty`](Self::handle_dirty) and
/// [`poll_dump`](Self::poll_dump) in this order, several times a second. Times are in milliseconds
/// of any clock that does not go back.
#[derive(Debug)]
pub struct PowerSequence {
    order: PowerOrder,
    is_allowed: bool,
    /// Write-back was switched by the last order.
    has_switched: bool,
    sync_interval_ms: u64,
    synced_ms: u64,
    retry_interval_ms: u64,
    dump: Dump,
    /// The volumes in the dump.
    dumped: Vec<VolumeId>,
}

impl PowerSequence {
    /// Without write-back and without a dump. The disks are flushed every `sync_interval_ms`, and
    /// failed steps are repeated after `retry_interval_ms`.
    pub const fn new(sync_interval_ms: u64, retry_interval_ms: u64) -> Self {
        Self {
            order: PowerOrder { dirty_bytes_max: 0, drain_now: false, dump_now: false },
            is_allowed: false,
            has_switched: false,
            sync_interval_ms,
            synced_ms: 0,
            retry_interval_ms,
            dump: Dump::None,
            dumped: Vec::new(),
        }
    }

    /// Whether write-back is on.
    pub const fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// Whether writes are halted, or are about to be.
    pub fn is_halted(&self) -> bool {
        self.dump != Dump::None
    }

    /// Whether all dirty data is in the vault and the disks are flushed, so that power may be cut.
    pub fn is_complete(&self) -> bool {
        self.dump == Dump::Complete
    }

    /// The volumes in the dump, or in the dump that is being made.
    pub fn dumped(&self) -> &[VolumeId] {
        &self.dumped
    }

    /// Whether the last order has switched write-back on or off.
    pub const fn has_switched(&self) -> bool {
        self.has_switched
    }

    /// Takes an order. Returns the limit of dirty data in bytes that applies from now on
    /// ([`crate::PowerGate::set`]).
    pub fn handle_order(&mut self, order: PowerOrder) -> u64 {
        let is_allowed = order.dirty_bytes_max > 0 && !self.is_halted();
        self.has_switched = is_allowed != self.is_allowed;
        (self.order, self.is_allowed) = (order, is_allowed);
        self.limit()
    }

    const fn limit(&self) -> u64 {
        if self.is_allowed { self.order.dirty_bytes_max } else { 0 }
    }

    /// Takes the number of dirty bytes, counted after the limit was set.
    pub const fn handle_dirty(&mut self, dirty_bytes: u64, now_ms: u64) -> Upkeep {
        // Draining starts below the limit, so that writers are not throttled at it.
        let is_near_limit = dirty_bytes > self.limit() / 4 * 3;
        let drain = dirty_bytes > 0 && (self.order.drain_now || is_near_limit);
        // The flush at the end of a drain may miss data that became dirty during the drain.
        let mut request_sync = self.has_switched || drain && !self.is_allowed;
        if !drain && now_ms.saturating_sub(self.synced_ms) >= self.sync_interval_ms {
            self.synced_ms = now_ms;
            request_sync = true;
        }
        Upkeep { request_sync, drain }
    }

    /// The next step of a dump, or of its end. `volumes` are those that only the UPS protects now.
    ///
    /// # Panics
    /// If the step before was not reported.
    pub fn poll_dump(&mut self, volumes: &[VolumeId], now_ms: u64) -> Option<DumpStep> {
        // The number of a removed volume is given to a new one, which is not in the dump.
        if self.dump == Dump::Complete {
            self.dumped.retain(|volume| volumes.contains(volume));
        }
        let step = match self.dump {
            Dump::Running(step) => panic!("{step:?} is being carried out"),
            Dump::Next(step) => step,
            Dump::Failed { retry_ms } if now_ms < retry_ms => return None,
            Dump::None if !self.order.dump_now => return None,
            Dump::Complete if self.order.dump_now && self.has_dumped(volumes) => return None,
            _ if self.order.dump_now => DumpStep::Halt,
            _ => DumpStep::EmptyVault,
        };
        if step == DumpStep::Dump {
            self.dumped = volumes.to_vec();
        }
        self.dump = Dump::Running(step);
        Some(step)
    }

    fn has_dumped(&self, volumes: &[VolumeId]) -> bool {
        volumes.iter().all(|volume| self.dumped.contains(volume))
    }

    /// Takes the result of a step.
    ///
    /// # Panics
    /// If no step is being carried out.
    pub fn handle_done(&mut self, is_ok: bool, now_ms: u64) {
        let Dump::Running(step) = self.dump else { panic!("no step is being carried out") };
        self.dump = match step {
            _ if !is_ok => Dump::Failed { retry_ms: now_ms.saturating_add(self.retry_interval_ms) },
            DumpStep::Halt => Dump::Next(DumpStep::Dump),
            DumpStep::Dump => Dump::Next(DumpStep::FlushDisks),
            DumpStep::FlushDisks => Dump::Complete,
            DumpStep::EmptyVault => Dump::Next(DumpStep::Resume),
            DumpStep::Resume => Dump::None,
        };
        if step == DumpStep::EmptyVault && is_ok {
            self.dumped.clear();
        }
    }

    /// The owner stops, and no data is dirty any more: if there is a dump, it is discarded without
    /// waiting for a repetition.
    pub fn handle_stop(&mut self) {
        self.order = PowerOrder::default();
        if let Dump::Failed { retry_ms } = &mut self.dump {
            *retry_ms = 0;
        }
    }
}

/// What a UPS means for one volume. Several threads use it.
#[derive(Debug, Default)]
pub struct VolumePower {
    has_ups: bool,
    /// Writes fail: a dump is being made, or was made.
    halted: AtomicBool,
    /// Dirty data is being destaged.
    draining: AtomicBool,
    /// A flush of the disk is in progress.
    syncing: AtomicBool,
    /// The disk is to be flushed, after a flush in progress.
    sync_due: AtomicBool,
}

impl VolumePower {
    /// A volume with or without a UPS.
    pub fn new(has_ups: bool) -> Self {
        Self { has_ups, ..Self::default() }
    }

    /// Whether a UPS is part of the volume's protection.
    pub const fn has_ups(&self) -> bool {
        self.has_ups
    }

    /// Whether only the pool holds the volume's dirty data: it has a UPS, and no working journal.
    /// `is_abandoned` asks the volume's journal, if it has one, whether it has failed.
    pub fn is_ups_only(&self, is_abandoned: Option<impl FnOnce() -> bool>) -> bool {
        self.has_ups && is_abandoned.is_none_or(|is_abandoned| is_abandoned())
    }

    /// Whether writes fail.
    pub fn is_halted(&self) -> bool {
        self.halted.load(Ordering::SeqCst)
    }

    /// Halts writes, or ends the halt. Returns whether that changed anything.
    pub fn set_halted(&self, halted: bool) -> bool {
        self.halted.swap(halted, Ordering::SeqCst) != halted
    }

    /// Whether dirty data should be destaged now, which the caller then does. False while that is
    /// in progress.
    pub fn begin_drain(&self) -> bool {
        !self.draining.swap(true, Ordering::Relaxed)
    }

    /// The destage has ended. Data that the disk did not take is dirty, and counted as such.
    pub fn end_drain(&self) {
        self.draining.store(false, Ordering::Relaxed);
    }

    /// Makes a flush of the disk due.
    pub fn request_sync(&self) {
        self.sync_due.store(true, Ordering::Relaxed);
    }

    /// Whether the disk should be flushed now, which the caller then does. While a flush is in
    /// progress, another one stays due, because that flush need not cover later writes.
    pub fn begin_sync(&self) -> bool {
        if !self.sync_due.load(Ordering::Relaxed) || self.syncing.swap(true, Ordering::Relaxed) {
            return false;
        }
        self.sync_due.store(false, Ordering::Relaxed);
        true
    }

    /// The flush has ended. After a failure, the next one is due with the next interval.
    pub fn end_sync(&self) {
        self.syncing.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: VolumeId = VolumeId(0);
    const B: VolumeId = VolumeId(1);
    const OPEN: PowerOrder =
        PowerOrder { dirty_bytes_max: 1000, drain_now: false, dump_now: false };
    const CRITICAL: PowerOrder = PowerOrder { dirty_bytes_max: 0, drain_now: true, dump_now: true };

    fn sequence() -> PowerSequence {
        PowerSequence::new(2000, 1000)
    }

    /// Carries steps out until there are none, all with success.
    fn all_steps(sequence: &mut PowerSequence, volumes: &[VolumeId]) -> Vec<DumpStep> {
        let next = || {
            let step = sequence.poll_dump(volumes, 0)?;
            sequence.handle_done(true, 0);
            Some(step)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_dump_halts_writes_before_it_and_flushes_the_disks_after_it() {
        let mut sequence = sequence();
        assert_eq!(sequence.handle_order(OPEN), 1000);
        assert_eq!(all_steps(&mut sequence, &[A]), []);
        assert_eq!(sequence.handle_order(CRITICAL), 0);
        let dump = [DumpStep::Halt, DumpStep::Dump, DumpStep::FlushDisks];
        assert_eq!(all_steps(&mut sequence, &[A]), dump);
        assert!(sequence.is_complete() && sequence.is_halted());
        assert_eq!(sequence.dumped(), [A]);
        assert_eq!(all_steps(&mut sequence, &[A]), [], "once");
    }

    #[test]
    fn a_dump_is_made_again_for_a_volume_whose_journal_fails_after_it() {
        let mut sequence = sequence();
        sequence.handle_order(CRITICAL);
        all_steps(&mut sequence, &[A]);
        let dump = [DumpStep::Halt, DumpStep::Dump, DumpStep::FlushDisks];
        assert_eq!(all_steps(&mut sequence, &[A, B]), dump);
        assert_eq!(sequence.dumped(), [A, B]);
        assert_eq!(all_steps(&mut sequence, &[B]), [], "all of it is in the dump");
    }

    #[test]
    fn the_vault_is_emptied_before_writes_continue() {
        let mut sequence = sequence();
        sequence.handle_order(CRITICAL);
        all_steps(&mut sequence, &[A]);
        assert_eq!(sequence.handle_order(OPEN), 0, "not while the dump exists");
        assert_eq!(all_steps(&mut sequence, &[A]), [DumpStep::EmptyVault, DumpStep::Resume]);
        assert!(!sequence.is_halted() && sequence.dumped().is_empty());
        assert_eq!(sequence.handle_order(OPEN), 1000);
    }

    /// Numbers of removed volumes are given to new ones.
    #[test]
    fn a_new_volume_with_the_number_of_a_dumped_one_is_not_taken_for_it() {
        let mut sequence = sequence();
        sequence.handle_order(CRITICAL);
        all_steps(&mut sequence, &[A]);
        assert_eq!(all_steps(&mut sequence, &[]), [], "the volume is removed");
        let dump = [DumpStep::Halt, DumpStep::Dump, DumpStep::FlushDisks];
        assert_eq!(all_steps(&mut sequence, &[A]), dump, "another volume");
    }

    #[test]
    fn a_step_that_fails_is_repeated_later_and_from_the_halt_on() {
        for failing in [DumpStep::Dump, DumpStep::FlushDisks] {
            let mut sequence = sequence();
            sequence.handle_order(CRITICAL);
            while let Some(step) = sequence.poll_dump(&[A], 500) {
                sequence.handle_done(step != failing, 500);
            }
            assert!(sequence.is_halted() && !sequence.is_complete());
            assert_eq!(sequence.poll_dump(&[A], 1499), None);
            assert_eq!(sequence.poll_dump(&[A], 1500), Some(DumpStep::Halt));
        }
    }

    #[test]
    fn a_vault_that_cannot_be_emptied_keeps_writes_halted() {
        let mut sequence = sequence();
        sequence.handle_order(CRITICAL);
        all_steps(&mut sequence, &[A]);
        sequence.handle_order(OPEN);
        assert_eq!(sequence.poll_dump(&[A], 0), Some(DumpStep::EmptyVault));
        sequence.handle_done(false, 0);
        assert_eq!(sequence.handle_order(OPEN), 0);
        assert!(sequence.is_halted() && !sequence.is_complete());
        assert_eq!(sequence.poll_dump(&[A], 999), None);
        sequence.handle_stop();
        assert_eq!(all_steps(&mut sequence, &[A]), [DumpStep::EmptyVault, DumpStep::Resume]);
        assert!(!sequence.is_halted());
    }

    #[test]
    fn disks_are_flushed_when_write_back_ends_and_nothing_is_dirty() {
        let mut sequence = sequence();
        let upkeep = |request_sync, drain| Upkeep { request_sync, drain };
        let closed = PowerOrder { dirty_bytes_max: 0, drain_now: true, dump_now: false };
        sequence.handle_order(OPEN);
        assert_eq!(sequence.handle_dirty(750, 0), upkeep(true, false), "switched on");
        sequence.handle_order(OPEN);
        assert_eq!(sequence.handle_dirty(751, 0), upkeep(false, true), "near the limit");
        assert_eq!(sequence.handle_dirty(750, 1999), upkeep(false, false));
        assert_eq!(sequence.handle_dirty(750, 2000), upkeep(true, false), "the interval");
        sequence.handle_order(closed);
        assert_eq!(sequence.handle_dirty(0, 2001), upkeep(true, false), "switched off");
        sequence.handle_order(closed);
        assert_eq!(sequence.handle_dirty(1, 2001), upkeep(true, true));
        assert_eq!(sequence.handle_dirty(0, 2001), upkeep(false, false));
    }

    #[test]
    fn a_flush_in_progress_does_not_cover_a_later_request() {
        let power = VolumePower::new(true);
        assert!(!power.begin_sync());
        power.request_sync();
        assert!(power.begin_sync() && !power.begin_sync());
        power.request_sync();
        assert!(!power.begin_sync(), "one at a time");
        power.end_sync();
        assert!(power.begin_sync());
        assert!(power.begin_drain() && !power.begin_drain());
        power.end_drain();
        assert!(power.begin_drain());
    }
}
