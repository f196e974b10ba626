//! The states of a UPS, and the mapping from a reading to a state.
//!
//! [`evaluate`] uses a single reading. The [`PowerController`](crate::PowerController) adds
//! hysteresis, settling and timeouts. Ambiguous readings get the worse state.

use crate::{InvalidValue, ReadError, Rules, StatusFlag, UpsReading};
use forebay_types::Fault;
use std::fmt;

/// The state of a UPS, or of all UPSes together. Ordered from best to worst.
#[derive(Clone, Debug, PartialEq)]
pub enum PowerState {
    /// Protected: the UPS would carry the machine through a power failure long enough for a dump.
    Safe,
    /// On mains power, but not protected against a failure.
    NotReady(NotReady),
    /// Mains has failed, and the battery lasts for a while.
    OnBattery {
        /// The trusted part of the remaining runtime in seconds.
        left_seconds: u64,
    },
    /// The state cannot be determined.
    Unknown(Unknown),
    /// Power may fail at any moment.
    Critical(Critical),
}

/// Why a UPS on mains power does not protect against a failure.
#[derive(Clone, Debug, PartialEq)]
pub enum NotReady {
    /// The charge fell below the lower threshold, or has not reached the upper one yet.
    Charge {
        /// The charge in percent.
        percent: f64,
        /// The required charge in percent.
        needed_percent: f64,
    },
    /// The runtime does not exceed the margin.
    Runtime {
        /// The reported runtime in seconds.
        seconds: u32,
    },
    /// Safe, but not for the whole settle time yet.
    Settling {
        /// The remaining settle time in milliseconds.
        left_ms: u64,
    },
    /// `LB`, or at or below the UPS's own low thresholds.
    BatteryLow,
    /// `RB`.
    ReplaceBattery,
    /// `BYPASS`.
    Bypass,
    /// `CAL`.
    Calibration,
    /// `OVER`, or a load above 100 percent.
    Overload,
    /// `OFF`: the output is switched off.
    Off,
    /// `ALARM`, with its text.
    Alarm(Option<String>),
    /// `DISCHRG` despite `OL`.
    Discharging,
}

/// Why the state is unknown.
#[derive(Clone, Debug, PartialEq)]
pub enum Unknown {
    /// No reading since the start.
    NoReading,
    /// The last reading is this old, in milliseconds.
    Stale(u64),
    /// The driver could not read the UPS.
    ReadFailed(ReadError),
    /// A required variable is missing. NUT can be configured to report a default (`default.NAME`).
    Missing(&'static str),
    /// A variable has an invalid value.
    Invalid(InvalidValue),
    /// `WAIT`: the NUT driver has no data yet.
    Waiting,
    /// The status flags contradict each other, or indicate neither mains nor battery.
    Contradiction(String),
}

/// Why a power failure is imminent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Critical {
    /// On battery, and the battery is low.
    BatteryLow,
    /// `FSD`: a shutdown was ordered.
    ForcedShutdown,
    /// The UPS became unreachable while on battery.
    LostOnBattery,
    /// Too few UPSes are left.
    Exhausted,
    /// The dump has to begin now to complete in time.
    Deadline,
}

impl PowerState {
    /// The severity, from 0 (safe) to 4 (critical).
    pub const fn rank(&self) -> u8 {
        match self {
            Self::Safe => 0,
            Self::NotReady(_) => 1,
            Self::OnBattery { .. } => 2,
            Self::Unknown(_) => 3,
            Self::Critical(_) => 4,
        }
    }

    /// The name of the state, for tables and metrics.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::NotReady(_) => "not-ready",
            Self::OnBattery { .. } => "on-battery",
            Self::Unknown(_) => "unknown",
            Self::Critical(_) => "critical",
        }
    }
}

/// The state according to this reading alone. Ignores the reading's age.
pub fn evaluate(reading: &UpsReading, rules: &Rules) -> PowerState {
    let Some(status) = &reading.status else {
        return PowerState::Unknown(first_invalid(reading, Unknown::Missing("ups.status")));
    };
    let has = |flag| status.has(flag);
    // Critical states take precedence over everything else.
    if has(StatusFlag::Fsd) {
        return PowerState::Critical(Critical::ForcedShutdown);
    }
    let is_on_mains = has(StatusFlag::Ol) && !has(StatusFlag::Ob);
    if has(StatusFlag::Cal) && !is_on_mains && !has(StatusFlag::Wait) {
        // A planned test discharges the battery until it is low. Like NUT, this ignores `LB` then:
        // only the runtime counts. Some drivers report `CAL` in a power failure too, so the battery
        // is expected to be empty in the end.
        return left_on_battery(reading, rules);
    }
    if has(StatusFlag::Lb) && !is_on_mains {
        return PowerState::Critical(Critical::BatteryLow);
    }
    if has(StatusFlag::Wait) {
        return PowerState::Unknown(Unknown::Waiting);
    }
    match (has(StatusFlag::Ol), has(StatusFlag::Ob)) {
        (true, false) => on_mains(reading, rules),
        (false, true) => on_battery(reading, rules),
        (false, false) if has(StatusFlag::Off) => PowerState::NotReady(NotReady::Off),
        (false, false) if has(StatusFlag::Bypass) => PowerState::NotReady(NotReady::Bypass),
        _ => PowerState::Unknown(Unknown::Contradiction(status.to_string())),
    }
}

fn first_invalid(reading: &UpsReading, otherwise: Unknown) -> Unknown {
    reading.invalid.first().map_or(otherwise, |value| Unknown::Invalid(value.clone()))
}

fn on_battery(reading: &UpsReading, rules: &Rules) -> PowerState {
    if is_low(reading) {
        return PowerState::Critical(Critical::BatteryLow);
    }
    left_on_battery(reading, rules)
}

fn left_on_battery(reading: &UpsReading, rules: &Rules) -> PowerState {
    match reading.runtime_seconds {
        Some(seconds) => PowerState::OnBattery { left_seconds: rules.trusted_ms(seconds) / 1000 },
        None => PowerState::Unknown(first_invalid(reading, Unknown::Missing("battery.runtime"))),
    }
}

/// Whether the battery is at or below the UPS's own low thresholds, even without `LB`.
fn is_low(reading: &UpsReading) -> bool {
    let charge = reading.charge_percent.zip(reading.charge_low_percent);
    let runtime = reading.runtime_seconds.zip(reading.runtime_low_seconds);
    charge.is_some_and(|(is, low)| is <= low) || runtime.is_some_and(|(is, low)| is <= low)
}

fn on_mains(reading: &UpsReading, rules: &Rules) -> PowerState {
    let has = |flag| reading.status.as_ref().is_some_and(|status| status.has(flag));
    for (flag, reason) in [
        (StatusFlag::Off, NotReady::Off),
        (StatusFlag::Bypass, NotReady::Bypass),
        (StatusFlag::Rb, NotReady::ReplaceBattery),
        (StatusFlag::Lb, NotReady::BatteryLow),
        (StatusFlag::Cal, NotReady::Calibration),
        (StatusFlag::Over, NotReady::Overload),
        (StatusFlag::Dischrg, NotReady::Discharging),
    ] {
        if has(flag) {
            return PowerState::NotReady(reason);
        }
    }
    if has(StatusFlag::Alarm) || reading.alarm.as_ref().is_some_and(|alarm| !alarm.is_empty()) {
        return PowerState::NotReady(NotReady::Alarm(reading.alarm.clone()));
    }
    if let Some(value) = reading.invalid.first() {
        return PowerState::Unknown(Unknown::Invalid(value.clone()));
    }
    let Some(percent) = reading.charge_percent else {
        return PowerState::Unknown(Unknown::Missing("battery.charge"));
    };
    let Some(seconds) = reading.runtime_seconds else {
        return PowerState::Unknown(Unknown::Missing("battery.runtime"));
    };
    if reading.load_percent.is_some_and(|load| load > 100.0) {
        return PowerState::NotReady(NotReady::Overload);
    }
    if is_low(reading) {
        return PowerState::NotReady(NotReady::BatteryLow);
    }
    if percent < rules.charge_off_percent {
        let needed_percent = rules.charge_on_percent;
        return PowerState::NotReady(NotReady::Charge { percent, needed_percent });
    }
    if !rules.is_enough(seconds) {
        return PowerState::NotReady(NotReady::Runtime { seconds });
    }
    PowerState::Safe
}

impl fmt::Display for PowerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Safe => f.write_str("protected against power failure"),
            Self::NotReady(reason) => reason.fmt(f),
            Self::OnBattery { left_seconds } => write!(f, "on battery, {left_seconds} s left"),
            Self::Unknown(reason) => reason.fmt(f),
            Self::Critical(reason) => reason.fmt(f),
        }
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Charge { percent, needed_percent } => {
                write!(f, "charged to {percent} %, needs {needed_percent} %")
            }
            Self::Runtime { seconds } => {
                write!(f, "battery runtime of {seconds} s is too short for a dump")
            }
            Self::Settling { left_ms } => {
                write!(f, "safe, settling for another {} s", left_ms.div_ceil(1000))
            }
            Self::BatteryLow => f.write_str("battery low"),
            Self::ReplaceBattery => f.write_str("the battery must be replaced"),
            Self::Bypass => f.write_str("bypassed, the load is not protected"),
            Self::Calibration => f.write_str("calibrating, the battery is being discharged"),
            Self::Overload => f.write_str("overloaded"),
            Self::Off => f.write_str("switched off"),
            Self::Alarm(Some(text)) => write!(f, "alarm: {text}"),
            Self::Alarm(None) => f.write_str("alarm"),
            Self::Discharging => f.write_str("discharging on mains power"),
        }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoReading => f.write_str("no reading yet"),
            Self::Stale(ms) => write!(f, "no reading for {}.{} s", ms / 1000, ms % 1000 / 100),
            Self::ReadFailed(error) => f.write_str(&error.explained()),
            Self::Missing(name) => {
                write!(f, "does not report {name}; set default.{name} in ups.conf")
            }
            Self::Invalid(value) => value.fmt(f),
            Self::Waiting => f.write_str("its driver has no data yet"),
            Self::Contradiction(status) => {
                write!(f, "status '{status}' is neither on mains nor on battery")
            }
        }
    }
}

impl fmt::Display for Critical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BatteryLow => "on battery, and the battery is low",
            Self::ForcedShutdown => "a forced shutdown was ordered",
            Self::LostOnBattery => "was on battery when it became unreachable",
            Self::Exhausted => "too few UPSes are left",
            Self::Deadline => "the dump must begin now to complete in time",
        })
    }
}

#[cfg(test)]
mod tests;
