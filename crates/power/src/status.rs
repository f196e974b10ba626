//! The flags of `ups.status`.
//!
//! Flags appear in any order and combination. Unknown flags are kept for display and have no
//! effect.

use std::fmt;

/// Maximum number of unknown flags kept, to bound memory and messages.
const UNKNOWN_FLAGS_MAX: usize = 8;
/// Maximum length of an unknown flag in bytes: eight characters of up to four bytes.
const FLAG_BYTES_MAX: usize = 32;

/// A known flag of `ups.status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StatusFlag {
    /// On line power.
    Ol,
    /// On battery.
    Ob,
    /// The battery is low.
    Lb,
    /// The battery is overcharged.
    Hb,
    /// The battery must be replaced.
    Rb,
    /// Charging.
    Chrg,
    /// Discharging.
    Dischrg,
    /// The load bypasses the UPS and is not protected.
    Bypass,
    /// Calibration: the battery is being discharged on purpose.
    Cal,
    /// The output is switched off.
    Off,
    /// Overload.
    Over,
    /// The UPS reduces a high mains voltage.
    Trim,
    /// The UPS raises a low mains voltage.
    Boost,
    /// The UPS needs attention.
    Alarm,
    /// Forced shutdown: power will be cut.
    Fsd,
    /// The driver has no data yet.
    Wait,
}

const FLAGS: [(&str, StatusFlag); 16] = [
    ("OL", StatusFlag::Ol),
    ("OB", StatusFlag::Ob),
    ("LB", StatusFlag::Lb),
    ("HB", StatusFlag::Hb),
    ("RB", StatusFlag::Rb),
    ("CHRG", StatusFlag::Chrg),
    ("DISCHRG", StatusFlag::Dischrg),
    ("BYPASS", StatusFlag::Bypass),
    ("CAL", StatusFlag::Cal),
    ("OFF", StatusFlag::Off),
    ("OVER", StatusFlag::Over),
    ("TRIM", StatusFlag::Trim),
    ("BOOST", StatusFlag::Boost),
    ("ALARM", StatusFlag::Alarm),
    ("FSD", StatusFlag::Fsd),
    ("WAIT", StatusFlag::Wait),
];

/// The set of flags in one `ups.status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpsFlags {
    known: u32,
    unknown: Vec<String>,
}

impl UpsFlags {
    /// Parses the value of `ups.status`.
    pub fn parse(text: &str) -> Self {
        let mut status = Self::default();
        for word in text.split_whitespace() {
            match FLAGS.iter().find(|(name, _)| *name == word) {
                Some((_, flag)) => status.known |= 1 << *flag as u32,
                None if status.unknown.len() < UNKNOWN_FLAGS_MAX => {
                    status.unknown.push(word.chars().take(FLAG_BYTES_MAX / 4).collect());
                }
                None => {}
            }
        }
        status
    }

    /// Whether the flag is set.
    pub const fn has(&self, flag: StatusFlag) -> bool {
        self.known & 1 << flag as u32 != 0
    }

    /// The unknown flags, truncated.
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }
}

impl fmt::Display for UpsFlags {
    /// The known flags in a fixed order, then the unknown ones.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = FLAGS.iter().filter(|(_, flag)| self.has(*flag)).map(|(name, _)| *name);
        let words: Vec<&str> = known.chain(self.unknown.iter().map(String::as_str)).collect();
        f.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter_and_unknown_flags_are_kept() {
        let status = UpsFlags::parse("  DISCHRG ECO OB\tOB ");
        assert!(
            status.has(StatusFlag::Ob)
                && status.has(StatusFlag::Dischrg)
                && !status.has(StatusFlag::Ol)
        );
        assert_eq!(status.unknown(), ["ECO"]);
        assert_eq!(status.to_string(), "OB DISCHRG ECO");
        assert_eq!(UpsFlags::parse(""), UpsFlags::default());
    }

    #[test]
    fn flags_are_distinct() {
        for (name, flag) in FLAGS {
            let status = UpsFlags::parse(name);
            assert!(
                FLAGS.iter().all(|(_, other)| status.has(*other) == (*other == flag)),
                "{name}"
            );
            assert_eq!(status.to_string(), name);
        }
        // The flags of `ups.status` are upper case.
        assert!(!UpsFlags::parse("ol").has(StatusFlag::Ol));
    }

    #[test]
    fn memory_of_unknown_flags_is_bounded() {
        let status = UpsFlags::parse(&"ää ".repeat(100_000));
        assert!(status.unknown().len() <= UNKNOWN_FLAGS_MAX);
        let status = UpsFlags::parse(&"ä".repeat(100_000));
        assert!(status.unknown()[0].len() <= FLAG_BYTES_MAX);
    }
}
