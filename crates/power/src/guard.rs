//! The guard: from observations and the time to what is to be done.
//!
//! Each supply has its own hysteresis and its own time to settle ([`Supply`]); the expression is
//! laid over the verdicts that result. So "one of two" needs one supply that has itself been safe
//! for a minute, not two that take turns.
//!
//! - Write-back ends at the call that brings the bad news, or at the first call after the last
//!   good news has become too old.
//! - While write-back is off, what is still dirty is to be destaged.
//! - A dump that was ordered stays ordered until mains has been back for a while: half a dump,
//!   called off and begun again each second, saves nothing.
//! - A clock that goes back counts as one that stands still; one that leaps makes readings old.
//!   The price: a leap ends write-back for as long as settling takes.

use crate::budget::dump_ms;
use crate::supply::Supply;
use crate::{Critical, Expression, Forecast, Observation, Reading, Rules, Verdict, budget};

/// Where the guard's clock begins, in milliseconds: old readings lie before the start.
const START_MS: u64 = 1 << 48;

/// The farthest that the clock is believed to leap at once, in milliseconds: 34 years.
const LEAP_MS_MAX: u64 = 1 << 40;

/// What is at stake, as the caller measures it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exposure {
    /// Bytes that would have to be dumped.
    pub dirty_bytes: u64,
    /// How fast the vault was measured to take them, in bytes per second. Without a measurement
    /// there is no write-back.
    pub vault_bytes_per_second: Option<u64>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Writes may be acknowledged from memory.
    pub write_back_allowed: bool,
    /// What is dirty is to be destaged urgently: nothing bridges its loss, or it is too much.
    pub drain_now: bool,
    /// What is dirty is to be dumped to the vault. Stays so until mains is back for good.
    pub dump_now: bool,
    /// No write is to be taken any more: it would be newer than the vault's copy.
    pub stop_writes: bool,
    /// What is known of all supplies together.
    pub verdict: Verdict,
    /// Why, for people.
    pub reason: String,
    /// How long until the dump has to begin if nothing changes, in milliseconds from now; `None`
    /// while mains is there or nothing is dirty.
    pub dump_in_ms: Option<u64>,
    /// How much may be dirty, in bytes; 0 while write-back is off.
    pub dirty_bytes_max: u64,
    /// What would happen if mains failed now.
    pub forecast: Forecast,
}

/// Watches the supplies of an expression.
#[derive(Clone, Debug)]
pub struct Guard {
    expression: Expression,
    rules: Rules,
    supplies: Vec<Supply>,
    /// The guard's clock, and the caller's when it was last seen.
    now: u64,
    callers_now_ms: Option<u64>,
    /// A dump was ordered.
    dumping: bool,
    /// Since when mains is back while one is.
    calm_since: Option<u64>,
}

/// How long the supplies go on, for folding.
#[derive(Clone, Copy)]
struct Lasts {
    /// `u64::MAX` on mains.
    ms: u64,
    /// Whether a supply said so lately, rather than we suppose so.
    known: bool,
}

impl Guard {
    /// A guard that has heard nothing yet, and so allows nothing.
    pub fn new(expression: Expression, rules: Rules) -> Self {
        let supplies = vec![Supply::default(); expression.names().len()];
        Self {
            expression,
            rules,
            supplies,
            now: START_MS,
            callers_now_ms: None,
            dumping: false,
            calm_since: None,
        }
    }

    /// The expression, whose names have the indexes that [`observe`](Self::observe) takes.
    pub fn expression(&self) -> &Expression {
        &self.expression
    }

    /// Takes what a driver says of the supply with this index in the expression's names. `now_ms`
    /// is a clock that counts while the machine sleeps, too. Another index is passed over.
    pub fn observe(&mut self, supply: usize, now_ms: u64, observation: Observation) {
        self.advance(now_ms);
        let now = self.now;
        if let Some(supply) = self.supplies.get_mut(supply) {
            supply.observe(now, observation, &self.rules);
        }
    }

    /// What is to be done now. To be asked after each observation, and at least every 100 ms,
    /// because silence is news as well.
    pub fn decide(&mut self, now_ms: u64, exposure: &Exposure) -> Decision {
        self.advance(now_ms);
        let lasts = self.lasts();
        let mut verdict = self.together(lasts);
        let forecast = Forecast {
            dump_ms: dump_ms(exposure.dirty_bytes, exposure.vault_bytes_per_second),
            battery_seconds: self.forecast_seconds(),
        };
        let dump_in_ms = self.dump_in_ms(&verdict, lasts.ms, exposure, &forecast);
        if dump_in_ms == Some(0) && !matches!(verdict, Verdict::Critical(_)) {
            verdict = Verdict::Critical(Critical::Deadline);
        }
        self.latch(&verdict);
        let speed = exposure.vault_bytes_per_second.unwrap_or(0);
        let allowance = match &verdict {
            Verdict::Safe if !self.dumping => self.allowance(speed),
            _ => 0,
        };
        let write_back_allowed = allowance > 0;
        Decision {
            write_back_allowed,
            drain_now: !write_back_allowed || exposure.dirty_bytes > allowance,
            dump_now: self.dumping,
            stop_writes: self.dumping,
            reason: self.reason(&verdict, speed, write_back_allowed),
            verdict,
            dump_in_ms,
            dirty_bytes_max: allowance,
            forecast,
        }
    }

    /// Each supply by name, with its verdict and its last reading, as of the last call.
    pub fn supplies(&self) -> impl Iterator<Item = (&str, Verdict, Option<&Reading>)> {
        self.expression.names().iter().zip(&self.supplies).map(|(name, supply)| {
            (name.as_str(), supply.verdict(self.now, &self.rules), supply.reading())
        })
    }

    /// Moves the guard's clock by what the caller's has moved, if that is forward.
    fn advance(&mut self, now_ms: u64) {
        let passed = self.callers_now_ms.map_or(0, |before| now_ms.saturating_sub(before));
        self.callers_now_ms = Some(now_ms);
        self.now = self.now.saturating_add(passed.min(LEAP_MS_MAX));
        for supply in &mut self.supplies {
            supply.advance(self.now, &self.rules);
        }
    }

    /// The verdict on all supplies together: how bad as many as are needed are, corrected by how
    /// long they last. A supply that is off is harmless beside one on mains, and no help beside
    /// one on battery; the ranks alone can't say that.
    fn together(&self, lasts: Lasts) -> Verdict {
        let verdicts: Vec<Verdict> = self.verdicts().collect();
        let ranked = self.expression.smallest(|index| (verdicts[index].rank(), index)).1;
        let verdict = verdicts[ranked].clone();
        if lasts.ms == u64::MAX || !self.is_mains_failing() {
            return verdict;
        }
        match verdict {
            Verdict::Critical(_) => verdict,
            _ if lasts.ms == 0 && lasts.known => Verdict::Critical(Critical::Exhausted),
            Verdict::Unknown(_) => verdict,
            _ => Verdict::OnBattery { left_seconds: lasts.ms / 1000 },
        }
    }

    fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        self.supplies.iter().map(|supply| supply.verdict(self.now, &self.rules))
    }

    fn is_mains_failing(&self) -> bool {
        self.supplies.iter().any(Supply::is_on_battery)
    }

    /// How long power lasts.
    ///
    /// What is silent is supposed to be on battery since it was last heard. Where others could
    /// do without it, and mains has failed somewhere, it counts as empty: hope is no plan.
    fn lasts(&self) -> Lasts {
        let failing = self.is_mains_failing();
        let verdicts: Vec<Verdict> = self.verdicts().collect();
        let leaf = |index: usize| {
            let supply = &self.supplies[index];
            match verdicts[index] {
                Verdict::Critical(_) => Lasts { ms: 0, known: true },
                Verdict::NotReady(crate::NotReady::Off) => Lasts { ms: 0, known: true },
                Verdict::Safe | Verdict::NotReady(_) => Lasts { ms: u64::MAX, known: true },
                Verdict::OnBattery { .. } => {
                    Lasts { ms: supply.left_ms(self.now).unwrap_or(0), known: true }
                }
                Verdict::Unknown(_) => {
                    let unheard = if failing { 0 } else { u64::MAX };
                    let ms = supply.left_ms(self.now).unwrap_or(unheard);
                    Lasts { ms, known: supply.is_on_battery() }
                }
            }
        };
        let group = |needed: usize, mut lasts: Vec<Lasts>| {
            let known = lasts.iter().all(|lasts| lasts.known);
            if failing && needed < lasts.len() {
                lasts.iter_mut().filter(|lasts| !lasts.known).for_each(|lasts| lasts.ms = 0);
            }
            lasts.sort_unstable_by_key(|lasts| std::cmp::Reverse(lasts.ms));
            Lasts { ms: lasts[needed - 1].ms, known: known || needed < lasts.len() }
        };
        self.expression.fold(leaf, group)
    }

    fn dump_in_ms(
        &self,
        verdict: &Verdict,
        left_ms: u64,
        exposure: &Exposure,
        forecast: &Forecast,
    ) -> Option<u64> {
        let bridged = matches!(verdict, Verdict::Safe | Verdict::NotReady(_));
        if bridged || left_ms == u64::MAX || exposure.dirty_bytes == 0 {
            return None;
        }
        let margin_ms = u64::from(self.rules.margin_seconds) * 1000;
        // A vault of unknown speed may need all the time there is.
        let dump_ms = forecast.dump_ms.unwrap_or(u64::MAX);
        Some(left_ms.saturating_sub(margin_ms).saturating_sub(dump_ms))
    }

    /// Remembers an ordered dump until mains has been back for a while.
    fn latch(&mut self, verdict: &Verdict) {
        if matches!(verdict, Verdict::Critical(_)) {
            self.dumping = true;
        }
        if !self.dumping || !matches!(verdict, Verdict::Safe | Verdict::NotReady(_)) {
            self.calm_since = None;
            return;
        }
        let since = *self.calm_since.get_or_insert(self.now);
        if self.now - since >= self.rules.calm_ms {
            self.dumping = false;
            self.calm_since = None;
        }
    }

    /// The runtime that counts if mains failed now, in seconds, as the supplies say: of those
    /// that are safe, where others are as good as empty.
    fn safe_seconds(&self) -> u32 {
        let safe = |index: usize| {
            let supply = &self.supplies[index];
            let safe = supply.verdict(self.now, &self.rules) == Verdict::Safe;
            let seconds = supply.runtime_seconds(self.now, &self.rules).filter(|_| safe);
            std::cmp::Reverse(seconds.unwrap_or(0))
        };
        self.expression.smallest(safe).0
    }

    fn forecast_seconds(&self) -> Option<u32> {
        let runtime = |index: usize| {
            std::cmp::Reverse(self.supplies[index].runtime_seconds(self.now, &self.rules))
        };
        self.expression.smallest(runtime).0
    }

    fn allowance(&self, speed: u64) -> u64 {
        let rules = &self.rules;
        budget(speed, self.safe_seconds(), rules.margin_seconds, rules.believed_percent)
    }

    /// The sentence: what it is about, then each supply that is not as it should be.
    fn reason(&self, verdict: &Verdict, speed: u64, allowed: bool) -> String {
        let head = match verdict {
            Verdict::Safe if self.dumping => "mains is back, watched before the dump is called off",
            Verdict::Safe if allowed => "write-back is allowed, a power failure would be bridged",
            Verdict::Safe if speed == 0 => "no write-back: the speed of the vault is not measured",
            Verdict::Safe => "no write-back: the vault is too slow for the battery",
            Verdict::NotReady(_) if self.dumping => "mains is back, dumping until it stays",
            Verdict::NotReady(_) => "no write-back: a power failure would not be bridged",
            Verdict::OnBattery { .. } if self.dumping => "on battery, dumping",
            Verdict::OnBattery { .. } => "no write-back: mains has failed",
            Verdict::Unknown(_) if self.dumping => "dumping, and the state is not known",
            Verdict::Unknown(_) => "no write-back: the state is not known",
            Verdict::Critical(Critical::Deadline) => "dumping: the battery lasts just long enough",
            Verdict::Critical(_) => "dumping: power will go",
        };
        let names = self.expression.names().iter();
        let faults = names.zip(self.verdicts()).filter(|(_, verdict)| *verdict != Verdict::Safe);
        let faults: Vec<String> = faults.map(|(name, why)| format!("{name}: {why}")).collect();
        if faults.is_empty() { head.to_owned() } else { format!("{head} ({})", faults.join("; ")) }
    }
}

#[cfg(test)]
mod tests;
