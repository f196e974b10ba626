//! The setting `cache-ratio`: how the pool is divided between reads and writes.

use crate::{ConfigError, ConfigResult, Mistake};
use forebay_types::{WriteShare, limits::WRITE_PERCENT_MAX};
use std::{fmt, str::FromStr};

/// The shares of the pool for reads and for writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheRatio {
    /// The default of the engine.
    #[default]
    Auto,
    /// This share for writes, and the rest for reads.
    Writes(WriteShare),
}

impl CacheRatio {
    /// The share for writes that the engine is given; `None` for its default.
    pub const fn write_share(self) -> Option<WriteShare> {
        match self {
            Self::Auto => None,
            Self::Writes(share) => Some(share),
        }
    }
}

/// The ratio with this percentage for writes.
fn shown(write: u64) -> String {
    format!("{}:{write}", 100 - write)
}

impl FromStr for CacheRatio {
    type Err = ConfigError;

    fn from_str(text: &str) -> ConfigResult<Self> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let percent = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u64>().ok().filter(|_| is_number)
        };
        let parts =
            text.split_once(':').and_then(|(read, write)| Some((percent(read)?, percent(write)?)));
        let Some((read, write)) = parts else {
            let message = format!("invalid cache ratio '{text}'");
            let remedy = "write auto, or the percentages for reads and writes, as in 25:75";
            return Err(ConfigError::new(Mistake::Value, message, remedy));
        };
        let sum = read.saturating_add(write);
        if sum != 100 {
            let message = format!("the parts of cache ratio {text} add up to {sum}, not to 100");
            let remedy = "write percentages that add up to 100, as in 25:75";
            return Err(ConfigError::new(Mistake::Value, message, remedy));
        }
        let share = u8::try_from(write).ok().and_then(WriteShare::of_percent);
        share.map(Self::Writes).ok_or_else(|| {
            let least = 100 - WRITE_PERCENT_MAX;
            ConfigError::new(
                Mistake::Limit,
                format!("cache ratio {text} leaves less than {least}% for reads"),
                format!("write {} or less for writes", shown(WRITE_PERCENT_MAX.into())),
            )
        })
    }
}

impl fmt::Display for CacheRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Writes(share) => f.write_str(&shown(share.percent().into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    #[test]
    fn a_ratio_is_parsed_as_it_is_displayed() {
        for text in ["auto", "25:75", "50:50", "100:0", "99:1"] {
            let ratio: CacheRatio = text.parse().unwrap();
            assert_eq!(ratio.to_string(), text);
        }
        assert_eq!(CacheRatio::Auto.write_share(), None);
        let ratio: CacheRatio = "070:30".parse().unwrap();
        assert_eq!(ratio.write_share(), WriteShare::of_percent(30));
    }

    #[test]
    fn what_is_not_a_ratio_is_refused_with_a_remedy() {
        let usage = "write auto, or the percentages for reads and writes, as in 25:75";
        for text in ["", "50", "50:", ":50", "50/50", "-1:101", "+50:50", "1:2:97", "half:half"] {
            let error = text.parse::<CacheRatio>().unwrap_err().explained();
            assert_eq!(error, format!("invalid cache ratio '{text}': {usage}"));
        }
        let sum = "not to 100: write percentages that add up to 100, as in 25:75";
        for (text, found) in
            [("60:50", "110"), ("0:0", "0"), ("1:18446744073709551615", "18446744073709551615")]
        {
            let error = text.parse::<CacheRatio>().unwrap_err().explained();
            let expected = format!("the parts of cache ratio {text} add up to {found}, {sum}");
            assert_eq!(error, expected);
        }
        for (text, sentence) in [
            (
                "24:76",
                "cache ratio 24:76 leaves less than 25% for reads: write 25:75 or less for writes",
            ),
            (
                "0:100",
                "cache ratio 0:100 leaves less than 25% for reads: write 25:75 or less for writes",
            ),
        ] {
            assert_eq!(text.parse::<CacheRatio>().unwrap_err().explained(), sentence);
        }
    }
}
