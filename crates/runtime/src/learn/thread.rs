//! The thread of the access histories: follows the clock, adds to the histories what was needed,
//! and passes forecasts on.

use super::volume::Learned;
use super::{Histories, regions_max};
use crate::platform::clock::{LocalClock, LocalTime};
use crate::shared::{LearnStatus, Message, Shared, Volume};
use crate::warm_up::WarmUps;
use forebay_policy::{SlotPoll, SlotTracker};
use forebay_types::TimeSlot;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

/// How long before a slot its preload begins, in seconds: a hard disk reads gigabytes in this time.
const LEAD_SECONDS: u64 = 300;
/// The forecasts of a slot may take this fraction of the pool: a quarter.
const BUDGET_DIVISOR: u64 = 4;
/// How long the end of a slot waits for the reports of the workers; one may hang.
const REPORT_WAIT: Duration = Duration::from_secs(1);

struct Thread<'a> {
    histories: Arc<dyn Histories>,
    clock: &'a dyn LocalClock,
    warm_ups: Weak<WarmUps>,
    tracker: SlotTracker,
    time: Option<LocalTime>,
    volumes: Vec<Learned>,
    /// The slot of the forecast that was last begun in the shards.
    forecast_slot: Option<TimeSlot>,
}

/// Runs until `removed`, which names removed volumes, is disconnected, or the runtime is gone.
pub(super) fn run(
    shared: &Weak<Shared>,
    warm_ups: &Weak<WarmUps>,
    histories: Arc<dyn Histories>,
    clock: &dyn LocalClock,
    removed: &mpsc::Receiver<String>,
) {
    let Some(interval) = shared.upgrade().map(|shared| shared.timeouts.clock) else { return };
    let interval = interval.max(Duration::from_millis(1));
    let mut thread = Thread {
        histories,
        clock,
        warm_ups: warm_ups.clone(),
        tracker: SlotTracker::default(),
        time: None,
        volumes: Vec::new(),
        forecast_slot: None,
    };
    loop {
        match removed.recv_timeout(interval) {
            Ok(volume) => thread.forget(&volume),
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let Some(shared) = shared.upgrade() else { return };
                if !shared.stopping.load(Ordering::Relaxed) {
                    thread.poll(&shared);
                }
            }
        }
    }
}

impl Thread<'_> {
    fn poll(&mut self, shared: &Arc<Shared>) {
        let time = self.clock.now();
        let poll = self.tracker.poll(time.local_seconds(), time.elapsed_ms);
        self.report_jump(time, &poll);
        self.follow_volumes(shared);
        if poll.discards || poll.ended.is_some() {
            collect_reports(shared);
            shared.shards.end_former_forecasts();
        }
        for learned in &mut self.volumes {
            let Some(volume) = learned.volume() else { continue };
            // A volume is frozen for work that is not typical for the time of the day.
            let is_unusual = shared.shards.is_bypass(volume.id) || volume.is_frozen();
            if poll.discards || is_unusual {
                drop(volume.learn.take_needs());
                // After a jump, the rest of the slot is not learned either: the tracker does not
                // report its end.
                learned.discard(!is_unusual);
            } else if let Some(slot) = poll.ended {
                let needs = volume.learn.take_needs();
                learned.observe(slot, &needs, &volume, &*self.histories);
            }
        }
        if poll.seconds_left <= LEAD_SECONDS {
            self.plan(shared, poll.slot);
        }
        for learned in &mut self.volumes {
            if let Some(volume) = learned.volume() {
                learned.publish(poll.slot, &volume);
            }
        }
    }

    /// Removes the history of a volume that was removed. If a volume of this name was added since,
    /// its history begins anew.
    fn forget(&mut self, volume: &str) {
        self.volumes.retain(|learned| learned.name() != volume);
        if let Err(error) = self.histories.remove(volume) {
            tracing::warn!(volume, %error, "cannot remove the access history");
        }
    }

    fn report_jump(&mut self, time: LocalTime, poll: &SlotPoll) {
        let before = self.time.replace(time);
        let (Some(before), Some(seconds)) = (before, poll.jumped_seconds) else { return };
        let slot = poll.slot;
        if before.offset_seconds == time.offset_seconds {
            tracing::warn!(seconds, %slot, "the clock has jumped, or the machine was suspended: \
                this quarter of an hour is not learned");
        } else {
            let (from_seconds, to_seconds) = (before.offset_seconds, time.offset_seconds);
            tracing::info!(from_seconds, to_seconds, %slot, "the time zone has changed: access \
                histories follow local time, this quarter of an hour is not learned");
        }
        self.volumes.iter_mut().for_each(Learned::forget_forecast);
    }

    /// Adds and removes histories, so that there is one for each volume that learns.
    fn follow_volumes(&mut self, shared: &Shared) {
        let volumes = shared.volumes.all();
        let learns = |volume: &&Arc<Volume>| {
            volume.learn.is_on() && !volume.is_closed.load(Ordering::Relaxed)
        };
        let learning: Vec<&Arc<Volume>> = volumes.iter().filter(learns).collect();
        let before = self.volumes.len();
        self.volumes.retain(|learned| learning.iter().any(|volume| learned.is_of(volume)));
        let regions_max = regions_max(shared.pool.data_bytes(), learning.len());
        let mut has_changed = self.volumes.len() < before;
        for volume in learning {
            if !self.volumes.iter().any(|learned| learned.is_of(volume)) {
                drop(volume.learn.take_needs());
                self.volumes.push(Learned::load(volume, &*self.histories, regions_max));
                has_changed = true;
            }
        }
        if has_changed {
            self.volumes.iter_mut().for_each(|learned| learned.set_regions_max(regions_max));
        }
        for volume in volumes.iter().filter(|volume| !volume.learn.is_on()) {
            volume.learn.set_status(LearnStatus::default());
        }
    }

    /// Makes the forecasts of the next slot that were not made yet, and passes them to the thread
    /// of the warm-ups.
    fn plan(&mut self, shared: &Arc<Shared>, present: TimeSlot) {
        let next = present.next();
        let Some(warm_ups) = self.warm_ups.upgrade() else { return };
        let (mut forecasts, mut all) = (Vec::new(), 0);
        for learned in &mut self.volumes {
            let Some(volume) = learned.volume() else { continue };
            if let Some(bytes) = learned.forecast_bytes(next) {
                all += bytes;
                continue;
            }
            learned.score(present, shared, &volume);
            if !shared.shards.is_bypass(volume.id) && !volume.is_frozen() {
                let bytes = learned.forecast(next, u64::MAX).bytes;
                all += bytes;
                forecasts.push((learned, volume, bytes));
            }
        }
        if forecasts.is_empty() {
            return;
        }
        // A volume that was added meanwhile joins the forecast in progress: beginning another would
        // end it.
        if self.forecast_slot.replace(next) != Some(next) {
            shared.shards.begin_forecast();
        }
        let budget = shared.shards.usable_bytes() / BUDGET_DIVISOR;
        for (learned, volume, bytes) in forecasts {
            // If all forecasts together exceed the budget, each gets the same part of its size.
            let part = u128::from(budget) * u128::from(bytes) / u128::from(all.max(budget).max(1));
            let forecast = learned.forecast(next, part as u64);
            let granules = learned.plan(next, forecast, shared, &volume);
            // Even an empty forecast is passed on, because it ends the reads of the one before.
            warm_ups.preload(&volume, granules);
        }
    }
}

/// Makes all workers report what clients needed, and waits for that, at most [`REPORT_WAIT`].
fn collect_reports(shared: &Shared) {
    let (reporting, reported) = mpsc::channel::<()>();
    for inbox in &shared.inboxes {
        let reporting = reporting.clone();
        let task = Box::new(move |tasks: &mut dyn crate::shared::Tasks| {
            tasks.report_needs();
            drop(reporting);
        });
        inbox.post(Message::Task(task));
    }
    drop(reporting);
    // The channel is disconnected once the last worker has reported.
    let _ = reported.recv_timeout(REPORT_WAIT);
}
