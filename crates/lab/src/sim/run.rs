//! What all parts of a run share: its plan, its randomness, its clock and events, its outcome.

use super::plan::Plan;
use super::{SimOptions, SimReport};
use crate::harness::Sabotage;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::queue::Queue;
use forebay_engine::Answer;
use forebay_types::{ByteRange, LINE_BYTES, SECTOR_BYTES};

/// The probability that a planted bug takes effect at an opportunity.
const STRIKES: Ppm = 100_000;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A client submits its next request.
    Client(u16),
    /// A payload is complete, or its client has disconnected.
    Payload(u32),
    Complete(u32),
    Flushed(u32),
    Journal,
    /// The bytes of a reply have been sent.
    Release(u32),
    Answer(u8, Answer),
    /// The shards' clock advances.
    Tick,
}

/// A volume and a sector.
pub(crate) type Place = (u16, u64);

#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub message: String,
    /// The sector concerned, if it is a single one.
    pub place: Option<Place>,
}

/// An event, logged for the report of a failure.
#[derive(Debug)]
struct LoggedEvent {
    time_us: u64,
    volume: u16,
    /// Empty if the event concerns the whole volume.
    range: ByteRange,
    text: String,
}

impl LoggedEvent {
    fn concerns(&self, (volume, sector): Place) -> bool {
        let line = ByteRange::new(sector * SECTOR_BYTES / LINE_BYTES * LINE_BYTES, LINE_BYTES);
        self.volume == volume && (self.range.len == 0 || self.range.overlaps(line))
    }
}

/// The shared part of a run. Every part of the machine gets it with each call, and draws from the
/// same `dice`: the run that a seed determines depends on the order of calls.
pub(crate) struct Run {
    pub plan: Plan,
    pub dice: Dice,
    pub report: SimReport,
    /// Whether all faults are healed: nothing fails, stalls or is damaged any more.
    pub healed: bool,
    now_us: u64,
    /// The oracle's time: advances with each submission and each answer.
    moment: u32,
    queue: Queue<Event>,
    sabotage: Option<Sabotage>,
    /// Planted bugs have a generator of their own, so that they do not change the machine.
    sabotage_dice: Dice,
    violation: Option<Violation>,
    event_log: Option<Vec<LoggedEvent>>,
}

impl Run {
    pub(crate) fn new(plan: Plan, dice: Dice, options: &SimOptions) -> Self {
        Self {
            plan,
            dice,
            report: SimReport { seed: options.seed, ..SimReport::default() },
            healed: false,
            now_us: 0,
            moment: 1,
            queue: Queue::default(),
            sabotage: options.sabotage,
            sabotage_dice: Dice::new(!options.seed),
            violation: None,
            event_log: None,
        }
    }

    pub(crate) const fn now_us(&self) -> u64 {
        self.now_us
    }

    pub(crate) const fn moment(&self) -> u32 {
        self.moment
    }

    /// Begins a new moment, later than everything so far.
    pub(crate) const fn next_moment(&mut self) -> u32 {
        self.moment += 1;
        self.moment
    }

    pub(crate) fn schedule(&mut self, delay_us: u64, event: Event) {
        self.queue.push(self.now_us + delay_us, event);
    }

    /// Schedules the next tick of the shards' clock.
    pub(crate) fn schedule_tick(&mut self) {
        self.schedule(self.plan.tick_us, Event::Tick);
    }

    /// Advances the clock to the next event.
    pub(crate) fn next_event(&mut self) -> Event {
        let (time_us, event) = self.queue.pop().expect("the clock never stops");
        self.now_us = time_us.max(self.now_us);
        self.report.events += 1;
        event
    }

    /// Moves all events that are due after this delay to its end.
    pub(crate) fn cap_delays(&mut self, delay_us: u64) {
        self.queue.cap_times(self.now_us + delay_us);
    }

    pub(crate) fn clear_events(&mut self) {
        self.queue.clear();
    }

    /// Records a broken guarantee; the first one counts.
    pub(crate) fn violate(&mut self, place: Option<Place>, message: String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { message, place });
        }
    }

    pub(crate) const fn is_ok(&self) -> bool {
        self.violation.is_none()
    }

    pub(crate) const fn take_violation(&mut self) -> Option<Violation> {
        self.violation.take()
    }

    /// Logs all further events.
    pub(crate) fn keep_log(&mut self) {
        self.event_log = Some(Vec::new());
    }

    /// Logs an event, if events are logged.
    pub(crate) fn log_event(
        &mut self,
        volume: u16,
        range: ByteRange,
        text: impl FnOnce() -> String,
    ) {
        if let Some(notes) = &mut self.event_log {
            let (time_us, text) = (self.now_us, text());
            notes.push(LoggedEvent { time_us, volume, range, text });
        }
    }

    /// The last events of a place, or of all.
    pub(crate) fn last_events(&self, place: Option<Place>, count: usize) -> Vec<String> {
        let concerns = |note: &&LoggedEvent| place.is_none_or(|place| note.concerns(place));
        let notes = self.event_log.iter().flatten().rev().filter(concerns);
        let mut lines: Vec<String> = notes
            .take(count)
            .map(|note| format!("{:>10} us  volume {}  {}", note.time_us, note.volume, note.text))
            .collect();
        lines.reverse();
        lines
    }

    /// Whether the planted bug takes effect at this opportunity.
    pub(crate) fn strikes(&mut self, bug: Sabotage) -> bool {
        self.sabotage == Some(bug) && self.sabotage_dice.chance(STRIKES)
    }

    /// The same, with effect at every opportunity.
    pub(crate) fn strikes_always(&self, bug: Sabotage) -> bool {
        self.sabotage == Some(bug)
    }

    pub(crate) fn describe_plan(&self) -> String {
        self.plan.describe(self.sabotage)
    }
}
