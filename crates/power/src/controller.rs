//! The power controller: turns observations and the time into a decision.
//!
//! Each UPS has its own hysteresis and settle time ([`WatchedUps`]); the expression combines the
//! resulting states. So "one of two" needs one UPS that has been safe for the whole settle time,
//! not two that alternate.
//!
//! - Write-back ends at the call with the bad observation, or at the first call after the last good
//!   reading has expired.
//! - While write-back is off, dirty data is destaged urgently.
//! - An ordered dump stays ordered until mains power has been stable for a while: a dump that is
//!   cancelled and restarted every second saves nothing.
//! - If the clock goes backwards, time stands still; if it jumps ahead, readings expire. The price:
//!   a jump disables write-back for the settle time.

use crate::budget::dump_ms;
use crate::ups::WatchedUps;
use crate::{
    Critical, Expression, OutageForecast, PowerState, Rules, UpsObservation, UpsReading, budget,
};

/// Start of the controller's clock in milliseconds, so that subtracting the age of a reading does
/// not underflow.
const START_MS: u64 = 1 << 48;

/// Largest accepted jump of the clock in milliseconds: 34 years.
const LEAP_MS_MAX: u64 = 1 << 40;

/// The data at risk, as measured by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exposure {
    /// Dirty bytes, which a dump would have to write.
    pub dirty_bytes: u64,
    /// The measured write speed of the vault in bytes per second. Without a measurement there is
    /// no write-back.
    pub vault_bytes_per_second: Option<u64>,
}

/// What the caller has to do now.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerDecision {
    /// Whether writes may be acknowledged from memory.
    pub write_back_allowed: bool,
    /// Whether to destage dirty data urgently: it is unprotected, or exceeds the limit.
    pub drain_now: bool,
    /// Whether to halt writes, which would be newer than the vault's copy, and to dump dirty data
    /// to the vault. Stays set until mains power is stable again.
    pub dump_now: bool,
    /// The combined state of all UPSes.
    pub state: PowerState,
    /// A human-readable reason.
    pub reason: String,
    /// Time until the dump has to begin if nothing changes, in milliseconds; `None` on mains power
    /// or if nothing is dirty.
    pub dump_in_ms: Option<u64>,
    /// The limit of dirty data in bytes; 0 while write-back is off.
    pub dirty_bytes_max: u64,
    /// What would happen if mains failed now.
    pub forecast: OutageForecast,
}

/// Monitors the UPSes of an expression.
#[derive(Clone, Debug)]
pub struct PowerController {
    expression: Expression,
    rules: Rules,
    upses: Vec<WatchedUps>,
    /// The controller's clock.
    now: u64,
    /// The caller's clock at the last call.
    callers_now_ms: Option<u64>,
    /// Whether a dump is ordered.
    dumping: bool,
    /// When mains power came back, if a dump is still ordered.
    mains_since: Option<u64>,
}

/// How long power lasts.
#[derive(Clone, Copy)]
struct Remaining {
    /// `u64::MAX` on mains power.
    ms: u64,
    /// False if a UPS in an unknown state was not on battery, so that `ms` is an assumption.
    known: bool,
}

impl PowerController {
    /// A controller without readings, which does not allow write-back.
    pub fn new(expression: Expression, rules: Rules) -> Self {
        let upses = vec![WatchedUps::default(); expression.names().len()];
        Self {
            expression,
            rules,
            upses,
            now: START_MS,
            callers_now_ms: None,
            dumping: false,
            mains_since: None,
        }
    }

    /// The expression. [`observe`](Self::observe) takes the index of one of its names.
    pub fn expression(&self) -> &Expression {
        &self.expression
    }

    /// Takes an observation of the UPS with this index in the expression's names; ignores other
    /// indexes. The clock of `now_ms` must also count while the machine is suspended.
    pub fn observe(&mut self, ups: usize, now_ms: u64, observation: UpsObservation) {
        self.advance(now_ms);
        let now = self.now;
        if let Some(ups) = self.upses.get_mut(ups) {
            ups.observe(now, observation, &self.rules);
        }
    }

    /// Decides what to do now. Call it after each observation, and at least every 100 ms, because
    /// readings expire.
    pub fn decide(&mut self, now_ms: u64, exposure: &Exposure) -> PowerDecision {
        self.advance(now_ms);
        let remaining = self.remaining();
        let mut state = self.combined_state(remaining);
        let forecast = OutageForecast {
            dump_ms: dump_ms(exposure.dirty_bytes, exposure.vault_bytes_per_second),
            battery_seconds: self.forecast_seconds(),
        };
        let dump_in_ms = self.dump_in_ms(&state, remaining.ms, exposure, &forecast);
        if dump_in_ms == Some(0) && !matches!(state, PowerState::Critical(_)) {
            state = PowerState::Critical(Critical::Deadline);
        }
        self.latch(&state);
        let speed = exposure.vault_bytes_per_second.unwrap_or(0);
        let dirty_bytes_max = match &state {
            PowerState::Safe if !self.dumping => self.dirty_bytes_max(speed),
            _ => 0,
        };
        let write_back_allowed = dirty_bytes_max > 0;
        PowerDecision {
            write_back_allowed,
            drain_now: !write_back_allowed || exposure.dirty_bytes > dirty_bytes_max,
            dump_now: self.dumping,
            reason: self.reason(&state, speed, write_back_allowed),
            state,
            dump_in_ms,
            dirty_bytes_max,
            forecast,
        }
    }

    /// The name, state and last reading of each UPS, as of the last call.
    pub fn upses(&self) -> impl Iterator<Item = (&str, PowerState, Option<&UpsReading>)> {
        self.expression
            .names()
            .iter()
            .zip(&self.upses)
            .map(|(name, ups)| (name.as_str(), ups.state(self.now, &self.rules), ups.reading()))
    }

    /// Advances the controller's clock by the time that passed on the caller's clock.
    fn advance(&mut self, now_ms: u64) {
        let passed = self.callers_now_ms.map_or(0, |before| now_ms.saturating_sub(before));
        self.callers_now_ms = Some(now_ms);
        self.now = self.now.saturating_add(passed.min(LEAP_MS_MAX));
        for ups in &mut self.upses {
            ups.advance(self.now, &self.rules);
        }
    }

    /// The combined state of all UPSes: in each group the worst of the best `needed` states,
    /// corrected by the remaining time. The correction matters for a UPS that is switched off: its
    /// state counts as better than on battery, although it cannot supply the machine when mains
    /// fails.
    fn combined_state(&self, remaining: Remaining) -> PowerState {
        let states: Vec<PowerState> = self.states().collect();
        let decisive = self.expression.smallest(|index| (states[index].rank(), index)).1;
        let state = states[decisive].clone();
        if remaining.ms == u64::MAX || !self.is_mains_failing() {
            return state;
        }
        match state {
            PowerState::Critical(_) => state,
            _ if remaining.ms == 0 && remaining.known => PowerState::Critical(Critical::Exhausted),
            PowerState::Unknown(_) => state,
            _ => PowerState::OnBattery { left_seconds: remaining.ms / 1000 },
        }
    }

    fn states(&self) -> impl Iterator<Item = PowerState> {
        self.upses.iter().map(|ups| ups.state(self.now, &self.rules))
    }

    fn is_mains_failing(&self) -> bool {
        self.upses.iter().any(WatchedUps::is_on_battery)
    }

    /// How long power lasts.
    ///
    /// A silent UPS is assumed to run on battery since its last reading. If mains has failed at any
    /// UPS, and a group does not need all its UPSes, a silent one that was not on battery is
    /// assumed to be empty.
    fn remaining(&self) -> Remaining {
        let failing = self.is_mains_failing();
        let states: Vec<PowerState> = self.states().collect();
        let leaf = |index: usize| {
            let ups = &self.upses[index];
            match states[index] {
                PowerState::Critical(_) => Remaining { ms: 0, known: true },
                PowerState::NotReady(crate::NotReady::Off) => Remaining { ms: 0, known: true },
                PowerState::Safe | PowerState::NotReady(_) => {
                    Remaining { ms: u64::MAX, known: true }
                }
                PowerState::OnBattery { .. } => {
                    Remaining { ms: ups.left_ms(self.now).unwrap_or(0), known: true }
                }
                PowerState::Unknown(_) => {
                    let without_reading = if failing { 0 } else { u64::MAX };
                    let ms = ups.left_ms(self.now).unwrap_or(without_reading);
                    Remaining { ms, known: ups.is_on_battery() }
                }
            }
        };
        let group = |needed: usize, mut all: Vec<Remaining>| {
            let known = all.iter().all(|remaining| remaining.known);
            if failing && needed < all.len() {
                let assumed = all.iter_mut().filter(|remaining| !remaining.known);
                assumed.for_each(|remaining| remaining.ms = 0);
            }
            all.sort_unstable_by_key(|remaining| std::cmp::Reverse(remaining.ms));
            Remaining { ms: all[needed - 1].ms, known: known || needed < all.len() }
        };
        self.expression.fold(leaf, group)
    }

    fn dump_in_ms(
        &self,
        state: &PowerState,
        left_ms: u64,
        exposure: &Exposure,
        forecast: &OutageForecast,
    ) -> Option<u64> {
        let is_on_mains = matches!(state, PowerState::Safe | PowerState::NotReady(_));
        if is_on_mains || left_ms == u64::MAX || exposure.dirty_bytes == 0 {
            return None;
        }
        let margin_ms = u64::from(self.rules.margin_seconds) * 1000;
        // Without a measured speed, assume that the dump takes forever.
        let dump_ms = forecast.dump_ms.unwrap_or(u64::MAX);
        Some(left_ms.saturating_sub(margin_ms).saturating_sub(dump_ms))
    }

    /// Keeps a dump ordered until mains power has been stable for a while.
    fn latch(&mut self, state: &PowerState) {
        if matches!(state, PowerState::Critical(_)) {
            self.dumping = true;
        }
        if !self.dumping || !matches!(state, PowerState::Safe | PowerState::NotReady(_)) {
            self.mains_since = None;
            return;
        }
        let since = *self.mains_since.get_or_insert(self.now);
        if self.now - since >= self.rules.mains_stable_ms {
            self.dumping = false;
            self.mains_since = None;
        }
    }

    /// The reported runtime of the safe UPSes in seconds, if mains failed now. Other UPSes are
    /// assumed to be empty.
    fn safe_seconds(&self) -> u32 {
        let safe = |index: usize| {
            let ups = &self.upses[index];
            let safe = ups.state(self.now, &self.rules) == PowerState::Safe;
            let seconds = ups.runtime_seconds(self.now, &self.rules).filter(|_| safe);
            std::cmp::Reverse(seconds.unwrap_or(0))
        };
        self.expression.smallest(safe).0
    }

    fn forecast_seconds(&self) -> Option<u32> {
        let runtime = |index: usize| {
            std::cmp::Reverse(self.upses[index].runtime_seconds(self.now, &self.rules))
        };
        self.expression.smallest(runtime).0
    }

    fn dirty_bytes_max(&self, speed: u64) -> u64 {
        let rules = &self.rules;
        budget(speed, self.safe_seconds(), rules.margin_seconds, rules.trusted_percent)
    }

    /// The human-readable reason: a summary, then each UPS that is not safe.
    fn reason(&self, state: &PowerState, speed: u64, allowed: bool) -> String {
        let head = match state {
            PowerState::Safe if self.dumping => "mains is back, waiting until it is stable",
            PowerState::Safe if allowed => "write-back allowed: protected against power failure",
            PowerState::Safe if speed == 0 => "no write-back: the vault speed is not measured",
            PowerState::Safe => "no write-back: the vault is too slow for the battery runtime",
            PowerState::NotReady(_) if self.dumping => "mains is back, dumping until it is stable",
            PowerState::NotReady(_) => "no write-back: not protected against power failure",
            PowerState::OnBattery { .. } if self.dumping => "on battery, dumping",
            PowerState::OnBattery { .. } => "no write-back: on battery",
            PowerState::Unknown(_) if self.dumping => "dumping: the UPS state is unknown",
            PowerState::Unknown(_) => "no write-back: the UPS state is unknown",
            PowerState::Critical(Critical::Deadline) => "dumping: the deadline is reached",
            PowerState::Critical(_) => "dumping: power failure is imminent",
        };
        let names = self.expression.names().iter();
        let faults = names.zip(self.states()).filter(|(_, state)| *state != PowerState::Safe);
        let faults: Vec<String> = faults.map(|(name, why)| format!("{name}: {why}")).collect();
        if faults.is_empty() { head.to_owned() } else { format!("{head} ({})", faults.join("; ")) }
    }
}

#[cfg(test)]
mod tests;
