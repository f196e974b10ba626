//! The operator's requirements for a UPS.

use forebay_types::{Blame, Fault, Remedy};

/// Thresholds and times. [`Rules::default`] has the values of the manual; [`Rules::checked`]
/// rejects invalid rules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Charge in percent below which write-back ends. Battery-backed RAID controllers use 79.
    pub charge_off_percent: f64,
    /// Minimum charge in percent at which write-back may begin.
    pub charge_on_percent: f64,
    /// Time for which a UPS must have been safe without interruption, in milliseconds.
    pub settle_ms: u64,
    /// Time after which a reading expires, in milliseconds.
    pub reading_valid_ms: u64,
    /// Time after which an unreachable UPS that was on battery is assumed to be empty, in
    /// milliseconds.
    pub lost_on_battery_ms: u64,
    /// Time for which mains power must be back before a dump is cancelled, in milliseconds.
    pub mains_stable_ms: u64,
    /// Part of the runtime that is kept in reserve, in seconds.
    pub margin_seconds: u32,
    /// Percentage of the reported runtime that is trusted, 1 to 100.
    pub trusted_percent: u32,
}

/// Invalid rules.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum RulesError {
    /// The charge thresholds.
    #[error("invalid charge thresholds {off} and {on}")]
    Charge {
        /// The lower threshold.
        off: f64,
        /// The upper threshold.
        on: f64,
    },
    /// The validity of a reading.
    #[error("invalid reading validity of {ms} ms")]
    ReadingValid {
        /// The time.
        ms: u64,
    },
    /// The trusted part of the runtime.
    #[error("invalid trusted runtime of {percent} %")]
    Trusted {
        /// The percentage.
        percent: u32,
    },
}

impl Fault for RulesError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Charge { .. } => "write-back ends below the first and begins at the second, so \
                                    0 < first <= second <= 100"
                .into(),
            Self::ReadingValid { .. } => "choose 100 ms to 60,000 ms".into(),
            Self::Trusted { .. } => "choose 1 to 100".into(),
        }
    }

    fn blame(&self) -> Blame {
        Blame::Operator
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            charge_off_percent: 79.0,
            charge_on_percent: 85.0,
            settle_ms: 60_000,
            reading_valid_ms: 3_000,
            lost_on_battery_ms: 5_000,
            mains_stable_ms: 10_000,
            margin_seconds: 60,
            trusted_percent: 80,
        }
    }
}

impl Rules {
    /// Returns the rules if they are valid.
    ///
    /// # Errors
    /// If a value is out of range, or the thresholds contradict each other.
    pub fn checked(self) -> Result<Self, RulesError> {
        let (off, on) = (self.charge_off_percent, self.charge_on_percent);
        // This form rejects NaN.
        if !(off > 0.0 && off <= on && on <= 100.0) {
            return Err(RulesError::Charge { off, on });
        }
        if !(100..=60_000).contains(&self.reading_valid_ms) {
            return Err(RulesError::ReadingValid { ms: self.reading_valid_ms });
        }
        if !(1..=100).contains(&self.trusted_percent) {
            return Err(RulesError::Trusted { percent: self.trusted_percent });
        }
        Ok(self)
    }

    /// The trusted part of a reported runtime, in milliseconds.
    pub(crate) fn trusted_ms(&self, runtime_seconds: u32) -> u64 {
        u64::from(runtime_seconds) * 10 * u64::from(self.trusted_percent)
    }

    /// Whether the trusted runtime exceeds the margin.
    pub(crate) fn is_enough(&self, runtime_seconds: u32) -> bool {
        self.trusted_ms(runtime_seconds) > u64::from(self.margin_seconds) * 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_defaults_and_rejects_invalid_rules() {
        let good = Rules::default();
        assert_eq!(good.checked(), Ok(good));
        for bad in [
            Rules { charge_off_percent: 90.0, ..good },
            Rules { charge_off_percent: 0.0, ..good },
            Rules { charge_on_percent: 101.0, ..good },
            Rules { charge_on_percent: f64::NAN, ..good },
            Rules { reading_valid_ms: 0, ..good },
            Rules { reading_valid_ms: 3_600_000, ..good },
            Rules { trusted_percent: 0, ..good },
            Rules { trusted_percent: 101, ..good },
        ] {
            assert!(bad.checked().is_err(), "{bad:?}");
        }
    }
}
