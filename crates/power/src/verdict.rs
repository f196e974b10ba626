//! What a reading is worth: the table of states, in one place.
//!
//! [`judge`] looks at one reading alone. What needs memory (hysteresis, settling, silence) is the
//! [`Guard`](crate::Guard)'s. Where a reading could be taken two ways, the worse one is taken.

use crate::{Problem, Reading, Rules, Trouble, Word};
use std::fmt;

/// What is known of a supply, or of all of them together. In the order of how bad it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// A power failure would be bridged.
    Safe,
    /// Mains is there, and would not be missed for long enough.
    NotReady(NotReady),
    /// Mains has failed and the battery lasts a while.
    OnBattery {
        /// What is believed to be left, in seconds.
        left_seconds: u64,
    },
    /// Nobody knows.
    Unknown(Unknown),
    /// Power will go at any moment.
    Critical(Critical),
}

/// Why a supply on mains would not bridge a failure.
#[derive(Clone, Debug, PartialEq)]
pub enum NotReady {
    /// The charge is too low to go on, or not yet high enough to begin.
    Charge {
        /// It is this, in percent.
        percent: f64,
        /// It has to be this, in percent.
        needed_percent: f64,
    },
    /// The runtime is no more than the margin.
    Runtime {
        /// It is this, in seconds, as the supply says.
        seconds: u32,
    },
    /// Safe, but not for long enough yet.
    Settling {
        /// For so many milliseconds more.
        left_ms: u64,
    },
    /// `LB`, or what the supply itself calls low.
    BatteryLow,
    /// `RB`.
    ReplaceBattery,
    /// `BYPASS`.
    Bypass,
    /// `CAL`.
    Calibration,
    /// `OVER`, or a load above 100 percent.
    Overload,
    /// `OFF`: it feeds nobody.
    Off,
    /// `ALARM`, with what it says.
    Alarm(Option<String>),
    /// `DISCHRG` although mains is said to be there.
    Discharging,
}

/// Why nothing is known.
#[derive(Clone, Debug, PartialEq)]
pub enum Unknown {
    /// No word since the start.
    NeverHeard,
    /// No word for so long, in milliseconds.
    Stale(u64),
    /// The driver could not read it.
    Trouble(Trouble),
    /// A variable that is needed is missing. NUT can be given a `default.` for some.
    Missing(&'static str),
    /// A value that can not be.
    Nonsense(Problem),
    /// `WAIT`: the supply's own driver knows nothing yet.
    Waiting,
    /// Status words that exclude each other, or say neither mains nor battery.
    Contradiction(String),
}

/// Why power will go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Critical {
    /// On battery, and it is low.
    BatteryLow,
    /// `FSD`: a shutdown was ordered.
    ForcedShutdown,
    /// It was on battery when it fell silent.
    Lost,
    /// None of the supplies that are needed is left.
    Exhausted,
    /// The dump has to begin now to be over in time.
    Deadline,
}

impl Verdict {
    /// How bad it is, from 0 (safe) to 4 (critical).
    pub const fn rank(&self) -> u8 {
        match self {
            Self::Safe => 0,
            Self::NotReady(_) => 1,
            Self::OnBattery { .. } => 2,
            Self::Unknown(_) => 3,
            Self::Critical(_) => 4,
        }
    }

    /// One word for tables and metrics.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::NotReady(_) => "not-ready",
            Self::OnBattery { .. } => "on-battery",
            Self::Unknown(_) => "unknown",
            Self::Critical(_) => "critical",
        }
    }
}

/// What this reading says, were it alone in the world. Its age is not looked at.
pub fn judge(reading: &Reading, rules: &Rules) -> Verdict {
    let Some(status) = &reading.status else {
        return Verdict::Unknown(first_problem(reading, Unknown::Missing("ups.status")));
    };
    let has = |word| status.has(word);
    // First what is bad enough that nothing else matters.
    if has(Word::Fsd) {
        return Verdict::Critical(Critical::ForcedShutdown);
    }
    if has(Word::Lb) && (has(Word::Ob) || !has(Word::Ol)) {
        return Verdict::Critical(Critical::BatteryLow);
    }
    if has(Word::Wait) {
        return Verdict::Unknown(Unknown::Waiting);
    }
    match (has(Word::Ol), has(Word::Ob)) {
        (true, false) => on_mains(reading, rules),
        (false, true) => on_battery(reading, rules),
        (false, false) if has(Word::Off) => Verdict::NotReady(NotReady::Off),
        (false, false) if has(Word::Bypass) => Verdict::NotReady(NotReady::Bypass),
        _ => Verdict::Unknown(Unknown::Contradiction(status.to_string())),
    }
}

fn first_problem(reading: &Reading, otherwise: Unknown) -> Unknown {
    reading.problems.first().map_or(otherwise, |problem| Unknown::Nonsense(problem.clone()))
}

fn on_battery(reading: &Reading, rules: &Rules) -> Verdict {
    if is_low(reading) {
        return Verdict::Critical(Critical::BatteryLow);
    }
    match reading.runtime_seconds {
        Some(seconds) => Verdict::OnBattery { left_seconds: rules.believed_ms(seconds) / 1000 },
        None => Verdict::Unknown(first_problem(reading, Unknown::Missing("battery.runtime"))),
    }
}

/// Whether the battery is at or below what the supply itself calls low, said or not.
fn is_low(reading: &Reading) -> bool {
    let charge = reading.charge_percent.zip(reading.charge_low_percent);
    let runtime = reading.runtime_seconds.zip(reading.runtime_low_seconds);
    charge.is_some_and(|(is, low)| is <= low) || runtime.is_some_and(|(is, low)| is <= low)
}

fn on_mains(reading: &Reading, rules: &Rules) -> Verdict {
    let has = |word| reading.status.as_ref().is_some_and(|status| status.has(word));
    for (word, reason) in [
        (Word::Off, NotReady::Off),
        (Word::Bypass, NotReady::Bypass),
        (Word::Rb, NotReady::ReplaceBattery),
        (Word::Lb, NotReady::BatteryLow),
        (Word::Cal, NotReady::Calibration),
        (Word::Over, NotReady::Overload),
        (Word::Dischrg, NotReady::Discharging),
    ] {
        if has(word) {
            return Verdict::NotReady(reason);
        }
    }
    if has(Word::Alarm) || reading.alarm.as_ref().is_some_and(|alarm| !alarm.is_empty()) {
        return Verdict::NotReady(NotReady::Alarm(reading.alarm.clone()));
    }
    if let Some(problem) = reading.problems.first() {
        return Verdict::Unknown(Unknown::Nonsense(problem.clone()));
    }
    let Some(percent) = reading.charge_percent else {
        return Verdict::Unknown(Unknown::Missing("battery.charge"));
    };
    let Some(seconds) = reading.runtime_seconds else {
        return Verdict::Unknown(Unknown::Missing("battery.runtime"));
    };
    if reading.load_percent.is_some_and(|load| load > 100.0) {
        return Verdict::NotReady(NotReady::Overload);
    }
    if is_low(reading) {
        return Verdict::NotReady(NotReady::BatteryLow);
    }
    if percent < rules.charge_off_percent {
        let needed_percent = rules.charge_on_percent;
        return Verdict::NotReady(NotReady::Charge { percent, needed_percent });
    }
    if !rules.is_enough(seconds) {
        return Verdict::NotReady(NotReady::Runtime { seconds });
    }
    Verdict::Safe
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Safe => f.write_str("a power failure would be bridged"),
            Self::NotReady(reason) => reason.fmt(f),
            Self::OnBattery { left_seconds } => {
                write!(f, "on battery, good for {left_seconds} s")
            }
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
                write!(f, "the battery would last {seconds} s, too little for a dump")
            }
            Self::Settling { left_ms } => {
                write!(f, "safe, and watched for another {} s", left_ms.div_ceil(1000))
            }
            Self::BatteryLow => f.write_str("the battery is low"),
            Self::ReplaceBattery => f.write_str("the battery has to be replaced"),
            Self::Bypass => f.write_str("bypassed, the load is not protected"),
            Self::Calibration => f.write_str("calibrating, the battery is being drained"),
            Self::Overload => f.write_str("overloaded"),
            Self::Off => f.write_str("switched off"),
            Self::Alarm(Some(text)) => write!(f, "alarm: {text}"),
            Self::Alarm(None) => f.write_str("alarm"),
            Self::Discharging => f.write_str("discharging on mains"),
        }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverHeard => f.write_str("not heard of yet"),
            Self::Stale(ms) => write!(f, "no word for {}.{} s", ms / 1000, ms % 1000 / 100),
            Self::Trouble(trouble) => trouble.fmt(f),
            Self::Missing(name) => {
                write!(f, "does not say {name} (in ups.conf, default.{name} can stand in)")
            }
            Self::Nonsense(problem) => problem.fmt(f),
            Self::Waiting => f.write_str("its driver has no data yet"),
            Self::Contradiction(status) => {
                write!(f, "status '{status}' says neither mains nor battery alone")
            }
        }
    }
}

impl fmt::Display for Critical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BatteryLow => "on battery, and the battery is low",
            Self::ForcedShutdown => "a shutdown was ordered, power will go",
            Self::Lost => "was on battery when it fell silent",
            Self::Exhausted => "too few supplies are left",
            Self::Deadline => "what is dirty has to be dumped now to be safe in time",
        })
    }
}

#[cfg(test)]
mod tests;
