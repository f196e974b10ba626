//! The words of `ups.status`.
//!
//! Words come in any order and combination; what counts is which are there, never the whole
//! string. Words that are not known are kept for people and change nothing.

use std::fmt;

/// Most unknown words that are kept, so that a mad supply fills no log.
const UNKNOWN_WORDS_MAX: usize = 8;
/// Longest unknown word that is kept, in bytes.
const WORD_BYTES_MAX: usize = 32;

/// A word of `ups.status` that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Word {
    /// On line power.
    Ol,
    /// On battery.
    Ob,
    /// The battery is low.
    Lb,
    /// The battery is charged more than it should be.
    Hb,
    /// The battery has to be replaced.
    Rb,
    /// Charging.
    Chrg,
    /// Discharging.
    Dischrg,
    /// The load is fed past the supply and not protected.
    Bypass,
    /// Calibration: the battery is being drained on purpose.
    Cal,
    /// The load is switched off.
    Off,
    /// Overload.
    Over,
    /// Too high a voltage is being corrected.
    Trim,
    /// Too low a voltage is being corrected.
    Boost,
    /// The supply has something to tell its owner.
    Alarm,
    /// A shutdown is under way and the power will go.
    Fsd,
    /// The driver has no data yet.
    Wait,
}

const WORDS: [(&str, Word); 16] = [
    ("OL", Word::Ol),
    ("OB", Word::Ob),
    ("LB", Word::Lb),
    ("HB", Word::Hb),
    ("RB", Word::Rb),
    ("CHRG", Word::Chrg),
    ("DISCHRG", Word::Dischrg),
    ("BYPASS", Word::Bypass),
    ("CAL", Word::Cal),
    ("OFF", Word::Off),
    ("OVER", Word::Over),
    ("TRIM", Word::Trim),
    ("BOOST", Word::Boost),
    ("ALARM", Word::Alarm),
    ("FSD", Word::Fsd),
    ("WAIT", Word::Wait),
];

/// The set of words of one `ups.status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    known: u32,
    unknown: Vec<String>,
}

impl Status {
    /// Reads the value of `ups.status`, whatever it is.
    pub fn parse(text: &str) -> Self {
        let mut status = Self::default();
        for word in text.split_whitespace() {
            match WORDS.iter().find(|(name, _)| *name == word) {
                Some((_, word)) => status.known |= 1 << *word as u32,
                None if status.unknown.len() < UNKNOWN_WORDS_MAX => {
                    status.unknown.push(word.chars().take(WORD_BYTES_MAX / 4).collect());
                }
                None => {}
            }
        }
        status
    }

    /// Whether the word is there.
    pub const fn has(&self, word: Word) -> bool {
        self.known & 1 << word as u32 != 0
    }

    /// The words that are not known, shortened.
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }
}

impl fmt::Display for Status {
    /// The known words, in a fixed order, then the others.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = WORDS.iter().filter(|(_, word)| self.has(*word)).map(|(name, _)| *name);
        let words: Vec<&str> = known.chain(self.unknown.iter().map(String::as_str)).collect();
        f.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_in_any_order_and_unknown_ones_are_tolerated() {
        let status = Status::parse("  DISCHRG ECO OB\tOB ");
        assert!(status.has(Word::Ob) && status.has(Word::Dischrg) && !status.has(Word::Ol));
        assert_eq!(status.unknown(), ["ECO"]);
        assert_eq!(status.to_string(), "OB DISCHRG ECO");
        assert_eq!(Status::parse(""), Status::default());
    }

    #[test]
    fn every_word_is_its_own() {
        for (name, word) in WORDS {
            let status = Status::parse(name);
            assert!(
                WORDS.iter().all(|(_, other)| status.has(*other) == (*other == word)),
                "{name}"
            );
            assert_eq!(status.to_string(), name);
        }
        // `ups.status` is upper case; anything else is another program's word.
        assert!(!Status::parse("ol").has(Word::Ol));
    }

    #[test]
    fn a_mad_supply_fills_no_memory() {
        let status = Status::parse(&"ää ".repeat(100_000));
        assert!(status.unknown().len() <= UNKNOWN_WORDS_MAX);
        let status = Status::parse(&"ä".repeat(100_000));
        assert!(status.unknown()[0].len() <= WORD_BYTES_MAX);
    }
}
