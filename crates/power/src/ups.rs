//! The state of one UPS over time: its last reading, charge hysteresis, and safe time.
//!
//! Times are milliseconds of the controller's clock, which never goes backwards.

use crate::{Critical, NotReady, PowerState, ReadError, Rules, Unknown, UpsReading, evaluate};

/// What a driver delivers: a reading, or an error.
pub type UpsObservation = Result<UpsReading, ReadError>;

#[derive(Clone, Debug, Default)]
pub(crate) struct WatchedUps {
    /// The last reading, and its time.
    last: Option<(u64, UpsReading)>,
    /// The last error, if it is newer than the reading.
    error: Option<ReadError>,
    /// Whether the charge has reached the upper threshold, and the UPS has been safe since.
    charged: bool,
    /// Since when the UPS has been safe and charged.
    safe_since: Option<u64>,
    /// Whether the last status, if not expired on delivery, indicated a mains failure.
    on_battery: bool,
    /// When the battery would be empty if it had been in use since the last reading with a runtime.
    empty_at: Option<u64>,
    /// Since when the state has been unknown.
    unknown_since: Option<u64>,
}

impl WatchedUps {
    /// Processes an observation at `now`.
    pub(crate) fn observe(&mut self, now: u64, observation: UpsObservation, rules: &Rules) {
        match observation {
            Err(error) => self.error = Some(error),
            Ok(reading) => {
                let taken = now.saturating_sub(reading.age_ms);
                // A reading that had expired on delivery must not order a dump.
                if reading.age_ms <= rules.reading_valid_ms {
                    self.update_battery(taken, &reading, rules);
                }
                self.error = None;
                self.last = Some((taken, reading));
            }
        }
        self.advance(now, rules);
    }

    fn update_battery(&mut self, taken: u64, reading: &UpsReading, rules: &Rules) {
        match evaluate(reading, rules) {
            PowerState::OnBattery { .. } | PowerState::Critical(_) => self.on_battery = true,
            PowerState::Safe | PowerState::NotReady(_) => self.on_battery = false,
            PowerState::Unknown(_) => self.on_battery |= reports_on_battery(reading),
        }
        if let Some(seconds) = reading.runtime_seconds {
            self.empty_at = Some(taken.saturating_add(rules.trusted_ms(seconds)));
        }
    }

    /// Advances the time: expires the reading, and updates the charge hysteresis.
    pub(crate) fn advance(&mut self, now: u64, rules: &Rules) {
        let current = self.current(now, rules);
        if matches!(current, PowerState::Unknown(_)) {
            self.unknown_since.get_or_insert(now);
        } else {
            self.unknown_since = None;
        }
        if current != PowerState::Safe {
            self.charged = false;
            self.safe_since = None;
            return;
        }
        let percent = self.last.as_ref().and_then(|(_, reading)| reading.charge_percent);
        self.charged |= percent.is_some_and(|percent| percent >= rules.charge_on_percent);
        if self.charged {
            self.safe_since.get_or_insert(now);
        }
    }

    /// The state with hysteresis, settling and timeouts. Call [`advance`](Self::advance) first.
    pub(crate) fn state(&self, now: u64, rules: &Rules) -> PowerState {
        match self.current(now, rules) {
            PowerState::Safe => self.safe_state(now, rules),
            PowerState::Unknown(_) if self.is_lost(now, rules) => {
                PowerState::Critical(Critical::LostOnBattery)
            }
            PowerState::OnBattery { .. } => {
                PowerState::OnBattery { left_seconds: self.left_ms(now).unwrap_or(0) / 1000 }
            }
            state => state,
        }
    }

    /// The remaining battery time in milliseconds, assuming that the battery has been in use since
    /// the last reading with a runtime. `None` without such a reading.
    pub(crate) fn left_ms(&self, now: u64) -> Option<u64> {
        self.empty_at.map(|empty| empty.saturating_sub(now))
    }

    /// Whether the last reading that had not expired on delivery indicated a mains failure.
    pub(crate) fn is_on_battery(&self) -> bool {
        self.on_battery
    }

    /// The runtime of the last reading in seconds, unless the reading has expired.
    pub(crate) fn runtime_seconds(&self, now: u64, rules: &Rules) -> Option<u32> {
        let (taken, reading) = self.last.as_ref()?;
        let is_valid = self.error.is_none() && now - taken <= rules.reading_valid_ms;
        reading.runtime_seconds.filter(|_| is_valid)
    }

    /// The last reading, however old.
    pub(crate) fn reading(&self) -> Option<&UpsReading> {
        self.last.as_ref().map(|(_, reading)| reading)
    }

    /// The state according to the last reading, if it has not expired.
    fn current(&self, now: u64, rules: &Rules) -> PowerState {
        if let Some(error) = &self.error {
            return PowerState::Unknown(Unknown::ReadFailed(error.clone()));
        }
        let Some((taken, reading)) = &self.last else {
            return PowerState::Unknown(Unknown::NoReading);
        };
        let age = now.saturating_sub(*taken);
        if age > rules.reading_valid_ms {
            return PowerState::Unknown(Unknown::Stale(age));
        }
        evaluate(reading, rules)
    }

    /// The state of a UPS whose reading is safe: hysteresis and settle time may delay it.
    fn safe_state(&self, now: u64, rules: &Rules) -> PowerState {
        let Some(since) = self.safe_since else {
            let percent = self.reading().and_then(|reading| reading.charge_percent);
            return PowerState::NotReady(NotReady::Charge {
                percent: percent.unwrap_or(0.0),
                needed_percent: rules.charge_on_percent,
            });
        };
        match rules.settle_ms.saturating_sub(now - since) {
            0 => PowerState::Safe,
            left_ms => PowerState::NotReady(NotReady::Settling { left_ms }),
        }
    }

    fn is_lost(&self, now: u64, rules: &Rules) -> bool {
        let unknown_ms = self.unknown_since.map_or(0, |since| now - since);
        self.on_battery && unknown_ms >= rules.lost_on_battery_ms
    }
}

/// Whether the status has `OB`, even if the reading is otherwise invalid.
fn reports_on_battery(reading: &UpsReading) -> bool {
    reading.status.as_ref().is_some_and(|status| status.has(crate::StatusFlag::Ob))
}
