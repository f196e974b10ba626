//! Moves a served volume to another journal, to none, or from none.
//!
//! While it moves, the volume writes through, so that in the end its disk has everything, its
//! former journal has nothing that counts, and the new one has nothing yet. At that moment requests
//! are held for some milliseconds, and the journals are exchanged. The order of the durable records
//! makes each moment one from which a start recovers: see decision 53.

use super::add::protection_of;
use super::adopt::PoolVolumes;
use super::drain::POLL;
use super::{VolumeError, VolumeService};
use crate::error::{MoveError, VolumeResult};
use crate::journal::{
    JournalError, VolumeJournal, enter as enter_journal, holds_nothing, let_go, sample_from_now_on,
};
use crate::shared::{JournalUse, Shared, Volume};
use forebay_backend::StoreMedium;
use forebay_threads::Thread;
use forebay_types::{Durability, Fault, Mode, VolumeConfig};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// The longest hold of a volume's requests.
const HOLD_MAX: Duration = Duration::from_secs(5);

/// Requests of a volume wait while this exists.
struct Hold<'a> {
    shared: &'a Shared,
    volume: &'a Volume,
}

impl<'a> Hold<'a> {
    fn begin(shared: &'a Shared, volume: &'a Volume) -> Self {
        volume.limits.hold();
        Self { shared, volume }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        for waiter in self.volume.limits.release() {
            self.shared.wake_waiter(Some(waiter));
        }
    }
}

/// Moves a volume to another journal, to none, or from none, and changes its other settings, as
/// [`VolumeService::change`] does. Its clients are served meanwhile; its writes go to the disk.
///
/// # Errors
/// When the disk does not take its data, when a journal or the disk does not answer in time, or
/// when the new journal cannot take the volume: it then keeps its journal and its settings. Or as
/// [`VolumeService::change`]: the volume has its new journal then.
pub fn move_journal(
    service: &VolumeService,
    name: &str,
    to: Option<VolumeJournal>,
    new: VolumeConfig,
    has_pins: bool,
) -> VolumeResult {
    let volume = service.shared.volumes.named(name)?;
    if volume.is_closed.load(Ordering::Relaxed) {
        return Err(VolumeError::Leaving(name.to_owned()));
    }
    let from = volume.journal.get();
    let is_same = match (&from, &to) {
        (Some(from), Some(to)) => Arc::ptr_eq(&from.journal, &to.journal),
        (None, None) => true,
        _ => false,
    };
    if !is_same {
        let old = volume.config.read().clone();
        let relies = new.mode == Mode::WriteBack;
        let mover = Mover { shared: &service.shared, volume: &volume, from, relies };
        if let Err(error) = mover.move_to(to) {
            // Relies on the former journal again, before writes are acknowledged from memory.
            if let Err(error) = service.change(name, old, false) {
                tracing::error!(
                    volume = name,
                    error = error.with_causes(),
                    "the volume writes through until its settings are changed again"
                );
            }
            return Err(error);
        }
    }
    service.change(name, new, has_pins)
}

/// What the disk of a volume lies on.
pub fn medium_of(service: &VolumeService, name: &str) -> Option<StoreMedium> {
    service.shared.volumes.named(name).ok().map(|volume| volume.backend.medium())
}

/// A volume that leaves its journal.
struct Mover<'a> {
    shared: &'a Shared,
    volume: &'a Arc<Volume>,
    from: Option<Arc<JournalUse>>,
    /// Whether the volume is to rely on its new journal.
    relies: bool,
}

impl Mover<'_> {
    fn check(&self, has_new: bool) -> VolumeResult {
        let name = self.volume.name.clone();
        if self.shared.shards.has_lost(self.volume.id) {
            return Err(MoveError::Lost { name }.into());
        }
        if let Some(error) = self.from.as_ref().and_then(|used| used.journal.unrecorded_failure()) {
            return Err(error.into());
        }
        let is_working = self.from.as_ref().is_some_and(|used| !used.journal.is_abandoned());
        if self.volume.power.has_ups() && !(is_working && has_new) {
            return Err(MoveError::Ups { name }.into());
        }
        Ok(())
    }

    fn move_to(&self, to: Option<VolumeJournal>) -> VolumeResult {
        self.check(to.is_some())?;
        let to = to.map(|to| enter(self.shared, self.volume, to)).transpose()?.map(Arc::new);
        let moved = self.write_through_and_exchange(to.as_ref());
        let left = if moved.is_ok() { self.from.clone() } else { to.clone() };
        if let Some(left) = left {
            leave(self.shared, self.volume, left);
        }
        moved?;
        let Volume { id, name, backend, freshness, disk, .. } = &**self.volume;
        if let Some(to) = &to {
            sample_from_now_on(&to.journal, to.number, backend, &disk.internal_reads);
            let has_all = to.durability == Durability::Ack && freshness.newest().is_some();
            PoolVolumes::of(self.shared).mark_whole(*id, has_all.then_some(to.journal.id()));
        }
        let journal = to.as_ref().map_or("none", |to| to.journal.name());
        tracing::info!(volume = %name, journal, "volume moved to another journal");
        Ok(())
    }

    fn write_through_and_exchange(&self, to: Option<&Arc<JournalUse>>) -> VolumeResult {
        let Self { shared, volume, .. } = self;
        let (id, mut through) = (volume.id, volume.config.read().clone());
        if through.mode == Mode::WriteBack {
            through.mode = Mode::WriteThrough;
            shared.run_on(0, move |tasks| tasks.shared().shards.configure(id, &through))?;
        }
        super::flush(shared, volume, &mut |_| {})?;
        // The disk has everything that was lost in memory before, if anything was.
        let _ = volume.freshness.is_stale(|| shared.shards.has_lost(id));
        // Until the exchange, neither journal has a record of all data.
        PoolVolumes::of(shared).mark_whole(id, None);
        let _hold = Hold::begin(shared, volume);
        let deadline = Instant::now() + HOLD_MAX;
        while Instant::now() < deadline {
            if self.is_idle()?
                && self.settle_within(deadline)?
                && self.prepare(to, deadline)?
                && self.exchange(to)
            {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        Err(MoveError::Busy { name: volume.name.clone(), seconds: HOLD_MAX.as_secs() }.into())
    }

    /// Whether the volume has no request and no I/O in flight, and nothing dirty.
    fn is_idle(&self) -> Result<bool, VolumeError> {
        let outstanding = super::outstanding(self.shared, Some(self.volume.id))?;
        Ok(outstanding.requests == 0
            && outstanding.oldest_io.is_none()
            && is_settled(self.shared, self.volume))
    }

    /// Flushes the disk. Returns false if that does not end in time.
    fn settle_within(&self, deadline: Instant) -> Result<bool, VolumeError> {
        let (sender, result) = mpsc::channel();
        let id = self.volume.id;
        self.shared.run_on(0, move |tasks| {
            let on_done = Box::new(move |flushed| {
                let _ = sender.send(flushed);
            });
            tasks.flush(id, on_done);
        })?;
        match result.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) => Err(super::drain::flush_error(self.shared, self.volume, error)),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(VolumeError::Stopping),
            Err(mpsc::RecvTimeoutError::Timeout) => Ok(false),
        }
    }

    /// Voids what the former journal has of the volume, whose disk has everything, and records that
    /// the volume relies on the new journal. Returns false if that does not end in time.
    fn prepare(
        &self,
        to: Option<&Arc<JournalUse>>,
        deadline: Instant,
    ) -> Result<bool, VolumeError> {
        let from = self.from.clone().filter(|used| !used.journal.is_abandoned());
        let (to, name) = (to.filter(|_| self.relies).cloned(), self.volume.name.clone());
        let left = deadline.saturating_duration_since(Instant::now());
        let thread = Thread::named("journal-move");
        let prepared = thread.within(left, move || -> Result<(), JournalError> {
            // First the former journal: until its records are void, it alone may be relied on. In
            // between, no journal is, and the disk has everything.
            if let Some(used) = from {
                let_go(&used.journal, used.number, &name)?;
            }
            to.map_or(Ok(()), |used| used.journal.rely(&name))
        });
        Ok(prepared.transpose()?.is_some())
    }

    /// Exchanges the journals if nothing of the volume is in flight and the former journal has
    /// nothing that counts.
    fn exchange(&self, to: Option<&Arc<JournalUse>>) -> bool {
        let id = self.volume.id;
        let exchanged = self.shared.at_standstill(
            move |tasks| tasks.requests(id) == 0 && tasks.outstanding(Some(id)).oldest_io.is_none(),
            || self.exchange_if_settled(to),
        );
        exchanged == Some(true)
    }

    fn exchange_if_settled(&self, to: Option<&Arc<JournalUse>>) -> bool {
        let Self { shared, volume, from, .. } = self;
        let is_ready = is_settled(shared, volume)
            && from.as_ref().is_none_or(|used| holds_nothing(&used.journal, used.number))
            && to.is_none_or(|used| used.journal.status().failed.is_none());
        if is_ready {
            let protection = protection_of(to.is_some(), volume.power.has_ups());
            shared.shards.set_protection(volume.id, protection);
            volume.journal.replace(to.cloned());
        }
        is_ready
    }
}

/// Whether the volume has no operation of the cache in progress, and nothing dirty.
fn is_settled(shared: &Shared, volume: &Volume) -> bool {
    shared.shards.operations(volume.id) == 0
        && shared.shards.dirty_bytes(volume.id) == 0
        && volume.internal_flushes.load(Ordering::Relaxed) == 0
}

/// Enters a volume in its new journal, which has no record of it yet.
fn enter(
    shared: &Shared,
    volume: &Arc<Volume>,
    to: VolumeJournal,
) -> Result<JournalUse, VolumeError> {
    let timeout = shared.timeouts.disk;
    let VolumeJournal { journal, durability, identity, .. } = to;
    let (entering, entered) = (Arc::clone(&journal), Arc::clone(volume));
    let (sender, result) = mpsc::channel();
    let started = Thread::named("journal-move").spawn(move || {
        let named = (&*entered.name, entered.id);
        let number = enter_journal(&entering, named, identity, &entered.backend);
        let entered = number.as_ref().ok().copied();
        // The caller has given up if it took too long.
        if sender.send(number).is_err()
            && let Some(number) = entered
        {
            entering.detach_or_report(number);
        }
    });
    let timeout = if started.is_ok() { timeout } else { Duration::ZERO };
    match result.recv_timeout(timeout) {
        Ok(number) => Ok(JournalUse { number: number?, journal, durability }),
        Err(_) => Err(MoveError::Silent {
            journal: journal.name().to_owned(),
            name: volume.name.clone(),
            seconds: timeout.as_secs(),
        }
        .into()),
    }
}

/// Removes a volume from a journal that has nothing of it that counts. A journal that does not
/// answer is waited for on another thread.
fn leave(shared: &Shared, volume: &Volume, used: Arc<JournalUse>) {
    let journal = used.journal.name().to_owned();
    let left = Thread::named("journal-move")
        .within(shared.timeouts.disk, move || used.journal.detach_or_report(used.number));
    if left.is_none() {
        tracing::warn!(
            volume = %volume.name,
            journal,
            "the former journal does not answer; what it holds of the volume is void"
        );
    }
}
