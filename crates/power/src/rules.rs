//! What the operator demands of a supply before anything depends on it.

/// Thresholds and times. [`Rules::default`] is what the manual says; [`Rules::checked`] refuses
/// what can not be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Below this charge write-back ends, in percent. 79 is what controllers with a battery use.
    pub charge_off_percent: f64,
    /// From this charge on it may begin, in percent.
    pub charge_on_percent: f64,
    /// How long a supply must have been safe without a break, in milliseconds.
    pub settle_ms: u64,
    /// A reading older than this says nothing, in milliseconds.
    pub fresh_ms: u64,
    /// A supply that was on battery and is silent for this long counts as empty, in milliseconds.
    pub lost_on_battery_ms: u64,
    /// How long mains must be back before a dump is called off, in milliseconds.
    pub calm_ms: u64,
    /// The part of the runtime that is never reckoned with, in seconds.
    pub margin_seconds: u32,
    /// How much of the runtime that a supply reports is believed, 1 to 100 percent.
    pub believed_percent: u32,
}

/// Rules that can not be.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum RulesError {
    /// The thresholds of charge.
    #[error(
        "charge thresholds {off} and {on} can not be: write-back ends below the first and begins \
         from the second on, so 0 < first <= second <= 100"
    )]
    Charge {
        /// The lower one.
        off: f64,
        /// The upper one.
        on: f64,
    },
    /// The time for which a reading holds.
    #[error("readings can not hold for {ms} ms: give them 100 ms to 60,000 ms")]
    Fresh {
        /// The time.
        ms: u64,
    },
    /// The part of the runtime that is believed.
    #[error("{percent} % of the runtime can not be believed: choose 1 to 100")]
    Believed {
        /// The part.
        percent: u32,
    },
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            charge_off_percent: 79.0,
            charge_on_percent: 85.0,
            settle_ms: 60_000,
            fresh_ms: 3_000,
            lost_on_battery_ms: 5_000,
            calm_ms: 10_000,
            margin_seconds: 60,
            believed_percent: 80,
        }
    }
}

impl Rules {
    /// These rules, if they make sense together.
    ///
    /// # Errors
    /// They don't.
    pub fn checked(self) -> Result<Self, RulesError> {
        let (off, on) = (self.charge_off_percent, self.charge_on_percent);
        // Written so that NaN fails.
        if !(off > 0.0 && off <= on && on <= 100.0) {
            return Err(RulesError::Charge { off, on });
        }
        if !(100..=60_000).contains(&self.fresh_ms) {
            return Err(RulesError::Fresh { ms: self.fresh_ms });
        }
        if !(1..=100).contains(&self.believed_percent) {
            return Err(RulesError::Believed { percent: self.believed_percent });
        }
        Ok(self)
    }

    /// What of a reported runtime is believed, in milliseconds.
    pub(crate) fn believed_ms(&self, runtime_seconds: u32) -> u64 {
        u64::from(runtime_seconds) * 10 * u64::from(self.believed_percent)
    }

    /// Whether so much runtime is worth anything: more than the margin.
    pub(crate) fn is_enough(&self, runtime_seconds: u32) -> bool {
        self.believed_ms(runtime_seconds) > u64::from(self.margin_seconds) * 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_pass_and_nonsense_does_not() {
        let good = Rules::default();
        assert_eq!(good.checked(), Ok(good));
        for bad in [
            Rules { charge_off_percent: 90.0, ..good },
            Rules { charge_off_percent: 0.0, ..good },
            Rules { charge_on_percent: 101.0, ..good },
            Rules { charge_on_percent: f64::NAN, ..good },
            Rules { fresh_ms: 0, ..good },
            Rules { fresh_ms: 3_600_000, ..good },
            Rules { believed_percent: 0, ..good },
            Rules { believed_percent: 101, ..good },
        ] {
            assert!(bad.checked().is_err(), "{bad:?}");
        }
    }
}
