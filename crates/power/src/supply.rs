//! What is remembered of one supply: its last word, its hysteresis, and how long it has been safe.
//!
//! Times are milliseconds of the guard's own clock, which never goes back.

use crate::{Critical, NotReady, Reading, Rules, Trouble, Unknown, Verdict, judge};

/// What a driver has to say: a reading, or why there is none.
pub type Observation = Result<Reading, Trouble>;

/// One supply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Supply {
    /// The last reading, and when it was true.
    heard: Option<(u64, Reading)>,
    /// What went wrong since.
    trouble: Option<Trouble>,
    /// The charge has reached the upper threshold, and the supply was safe ever since.
    charged: bool,
    /// Since when it is safe and charged.
    safe_since: Option<u64>,
    /// The last status said that mains had failed.
    on_battery: bool,
    /// When the battery would be empty, were it used from the last reading on.
    empty_at: Option<u64>,
    /// Since when nothing is known.
    lost_since: Option<u64>,
}

impl Supply {
    /// Takes what a driver says at `now`.
    pub(crate) fn observe(&mut self, now: u64, observation: Observation, rules: &Rules) {
        match observation {
            Err(trouble) => self.trouble = Some(trouble),
            Ok(reading) => {
                let taken = now.saturating_sub(reading.age_ms);
                // What was too old when it came says nothing of how long the battery lasts now.
                if reading.age_ms <= rules.fresh_ms {
                    self.note_battery(taken, &reading, rules);
                }
                self.trouble = None;
                self.heard = Some((taken, reading));
            }
        }
        self.advance(now, rules);
    }

    fn note_battery(&mut self, taken: u64, reading: &Reading, rules: &Rules) {
        match judge(reading, rules) {
            Verdict::OnBattery { .. } | Verdict::Critical(_) => self.on_battery = true,
            Verdict::Safe | Verdict::NotReady(_) => self.on_battery = false,
            Verdict::Unknown(_) => self.on_battery |= says_on_battery(reading),
        }
        if let Some(seconds) = reading.runtime_seconds {
            self.empty_at = Some(taken.saturating_add(rules.believed_ms(seconds)));
        }
    }

    /// Lets time pass: what has become old is forgotten, what is safe may become charged.
    pub(crate) fn advance(&mut self, now: u64, rules: &Rules) {
        let word = self.word(now, rules);
        if matches!(word, Verdict::Unknown(_)) {
            self.lost_since.get_or_insert(now);
        } else {
            self.lost_since = None;
        }
        if word != Verdict::Safe {
            self.charged = false;
            self.safe_since = None;
            return;
        }
        let percent = self.heard.as_ref().and_then(|(_, reading)| reading.charge_percent);
        self.charged |= percent.is_some_and(|percent| percent >= rules.charge_on_percent);
        if self.charged {
            self.safe_since.get_or_insert(now);
        }
    }

    /// The verdict with all that is remembered. [`advance`](Self::advance) comes first.
    pub(crate) fn verdict(&self, now: u64, rules: &Rules) -> Verdict {
        match self.word(now, rules) {
            Verdict::Safe => self.settled(now, rules),
            Verdict::Unknown(_) if self.is_lost(now, rules) => Verdict::Critical(Critical::Lost),
            Verdict::OnBattery { .. } => {
                Verdict::OnBattery { left_seconds: self.left_ms(now).unwrap_or(0) / 1000 }
            }
            word => word,
        }
    }

    /// What is left in the battery, were it used since the last word, in milliseconds.
    pub(crate) fn left_ms(&self, now: u64) -> Option<u64> {
        self.empty_at.map(|empty| empty.saturating_sub(now))
    }

    /// Whether the last that was heard is that mains had failed.
    pub(crate) fn is_on_battery(&self) -> bool {
        self.on_battery
    }

    /// The runtime of the last reading, in seconds, while that is fresh.
    pub(crate) fn runtime_seconds(&self, now: u64, rules: &Rules) -> Option<u32> {
        let (taken, reading) = self.heard.as_ref()?;
        let fresh = self.trouble.is_none() && now - taken <= rules.fresh_ms;
        reading.runtime_seconds.filter(|_| fresh)
    }

    /// The last reading, however old.
    pub(crate) fn reading(&self) -> Option<&Reading> {
        self.heard.as_ref().map(|(_, reading)| reading)
    }

    /// The last word, if it still counts.
    fn word(&self, now: u64, rules: &Rules) -> Verdict {
        if let Some(trouble) = &self.trouble {
            return Verdict::Unknown(Unknown::Trouble(trouble.clone()));
        }
        let Some((taken, reading)) = &self.heard else {
            return Verdict::Unknown(Unknown::NeverHeard);
        };
        let age = now.saturating_sub(*taken);
        if age > rules.fresh_ms {
            return Verdict::Unknown(Unknown::Stale(age));
        }
        judge(reading, rules)
    }

    fn settled(&self, now: u64, rules: &Rules) -> Verdict {
        let Some(since) = self.safe_since else {
            let percent = self.reading().and_then(|reading| reading.charge_percent);
            return Verdict::NotReady(NotReady::Charge {
                percent: percent.unwrap_or(0.0),
                needed_percent: rules.charge_on_percent,
            });
        };
        match rules.settle_ms.saturating_sub(now - since) {
            0 => Verdict::Safe,
            left_ms => Verdict::NotReady(NotReady::Settling { left_ms }),
        }
    }

    fn is_lost(&self, now: u64, rules: &Rules) -> bool {
        let silent = self.lost_since.map_or(0, |since| now - since);
        self.on_battery && silent >= rules.lost_on_battery_ms
    }
}

/// A status that speaks of a battery in use, whatever else is wrong with the reading.
fn says_on_battery(reading: &Reading) -> bool {
    reading.status.as_ref().is_some_and(|status| status.has(crate::Word::Ob))
}
