//! The settings that limit the writeback of a volume, and the setting `slow`.

use crate::{ConfigError, ConfigResult, Mistake, words::size};
use forebay_types::Size;
use std::fmt;

/// The highest `read-latency`, in microseconds: a minute.
const LATENCY_US_MAX: u64 = 60_000_000;
/// The lowest `write-back-rate`, in bytes per second. At a lower rate, dirty data would hardly ever
/// decrease.
const RATE_BYTES_MIN: u64 = 64 << 10;
const IOPS_MAX: u64 = 10_000_000;
/// The range of `write-back-age`, in seconds: ten seconds to thirty days.
const AGE_S_MIN: u64 = 10;
const AGE_S_MAX: u64 = 30 * 86_400;
/// The default of `write-back-age`, in seconds: a day.
const AGE_S: u64 = 86_400;
/// The default of `slow`, in microseconds. A hard disk with 64 random requests in its queue takes
/// half of it, so a system without faults logs nothing.
pub(crate) const SLOW_US: u64 = 1_000_000;
/// The range of `slow`, in microseconds: a millisecond to an hour. Below, batches of hits would be
/// logged.
const SLOW_US_MIN: u64 = 1_000;
const SLOW_US_MAX: u64 = 3_600_000_000;

/// The latency of reads that writeback preserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ReadLatency {
    /// The disk's latency without writeback.
    #[default]
    Idle,
    /// None.
    Off,
    /// A p99, in microseconds.
    Micros(u64),
}

/// The limits of writeback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriteBackSpec {
    /// The latency of reads to preserve.
    pub read_latency: ReadLatency,
    /// Maximum bytes per second.
    pub rate: Option<u64>,
    /// Maximum I/Os per second.
    pub iops: Option<u64>,
    /// How long reads may delay the writeback of dirty data, in seconds.
    pub age_s: Option<u64>,
}

impl Default for WriteBackSpec {
    fn default() -> Self {
        Self { read_latency: ReadLatency::Idle, rate: None, iops: None, age_s: Some(AGE_S) }
    }
}

/// A change of some limits; a limit that is `None` stays unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct WriteBackChange {
    /// See [`WriteBackSpec::read_latency`].
    pub read_latency: Option<ReadLatency>,
    /// See [`WriteBackSpec::rate`].
    pub rate: Option<Option<u64>>,
    /// See [`WriteBackSpec::iops`].
    pub iops: Option<Option<u64>>,
    /// See [`WriteBackSpec::age_s`].
    pub age_s: Option<Option<u64>>,
}

fn or_off(value: &Option<u64>, show: impl Fn(u64) -> String) -> String {
    value.map_or_else(|| "off".to_owned(), show)
}

/// Formats `write-back-rate`.
pub(crate) fn rate_shown(rate: &Option<u64>) -> String {
    or_off(rate, |bytes| Size(bytes).to_string())
}

/// Formats `write-back-iops`.
pub(crate) fn iops_shown(iops: &Option<u64>) -> String {
    or_off(iops, |iops| iops.to_string())
}

/// Formats `write-back-age`.
pub(crate) fn age_shown(age_s: &Option<u64>) -> String {
    or_off(age_s, |s| time_shown(s.saturating_mul(1_000_000)))
}

/// Formats `slow`.
pub(crate) fn slow_shown(slow_us: &Option<u64>) -> String {
    or_off(slow_us, time_shown)
}

impl fmt::Display for ReadLatency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => f.write_str("idle"),
            Self::Off => f.write_str("off"),
            Self::Micros(us) => f.write_str(&time_shown(*us)),
        }
    }
}

/// Units of time, in microseconds.
const UNITS: [(&str, u64); 5] =
    [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("min", 60_000_000), ("h", 3_600_000_000)];

/// Formats a time in the largest unit that divides it.
fn time_shown(us: u64) -> String {
    let whole = UNITS.iter().rev().find(|(_, unit)| us > 0 && us.is_multiple_of(*unit));
    whole.map_or("0s".to_owned(), |(name, unit)| format!("{}{name}", us / unit))
}

/// Parses a time into microseconds.
fn time(key: &str, text: &str, example: &str) -> ConfigResult<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = UNITS.iter().find(|(name, _)| *name == &text[digits.len()..]);
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    // A number that is too large for its type is above every limit, too.
    let us = unit
        .filter(|_| is_number)
        .map(|(_, unit)| digits.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(*unit));
    us.ok_or_else(|| {
        let message = format!("{key}='{text}' is not a time");
        ConfigError::new(Mistake::Value, message, format!("write it like {example}"))
    })
}

fn fail<T>(mistake: Mistake, message: String, remedy: String) -> ConfigResult<T> {
    Err(ConfigError::new(mistake, message, remedy))
}

/// Parses `read-latency`.
pub(crate) fn read_latency(key: &str, text: &str) -> ConfigResult<ReadLatency> {
    match text {
        "idle" => return Ok(ReadLatency::Idle),
        "off" => return Ok(ReadLatency::Off),
        _ => {}
    }
    match time(key, text, "20ms, idle or off")? {
        us @ 1..=LATENCY_US_MAX => Ok(ReadLatency::Micros(us)),
        0 => fail(
            Mistake::Value,
            format!("{key}={text}: it must be above zero"),
            format!("write {key}=idle for the disk's own latency, or {key}=off"),
        ),
        _ => fail(
            Mistake::Limit,
            format!("{key}={text} is more than a minute"),
            format!("write at most 1min, or {key}=off"),
        ),
    }
}

/// Parses `slow`, in microseconds.
pub(crate) fn slow(key: &str, text: &str) -> ConfigResult<Option<u64>> {
    if text == "off" {
        return Ok(None);
    }
    match time(key, text, "100ms or off")? {
        us @ SLOW_US_MIN..=SLOW_US_MAX => Ok(Some(us)),
        _ => fail(
            Mistake::Limit,
            format!("{key}={text} is not between 1ms and 1h"),
            format!("write it like 100ms, or {key}=off"),
        ),
    }
}

/// Parses `write-back-rate`, in bytes per second.
pub(crate) fn rate(key: &str, text: &str) -> ConfigResult<Option<u64>> {
    if text == "off" {
        return Ok(None);
    }
    let message = || format!("{key}='{text}' is not a size");
    let remedy = || "write the bytes per second, as in 50MiB, or off".to_owned();
    match size(text, message, remedy)? {
        Size(bytes) if bytes >= RATE_BYTES_MIN => Ok(Some(bytes)),
        _ => fail(
            Mistake::Limit,
            format!("{key}={text} is less than 64KiB per second"),
            format!("write at least 64KiB, or {key}=off for no limit"),
        ),
    }
}

/// Parses `write-back-iops`.
pub(crate) fn iops(key: &str, text: &str) -> ConfigResult<Option<u64>> {
    match (text, text.parse()) {
        ("off", _) => Ok(None),
        (_, Ok(iops @ 1..=IOPS_MAX)) => Ok(Some(iops)),
        _ => fail(
            Mistake::Value,
            format!("{key}='{text}' is not a number of I/Os"),
            format!("write 1 to {IOPS_MAX}, or off for no limit"),
        ),
    }
}

/// Parses `write-back-age`, in seconds.
pub(crate) fn age(key: &str, text: &str) -> ConfigResult<Option<u64>> {
    if text == "off" {
        return Ok(None);
    }
    let us = time(key, text, "10min, 1h or off")?;
    match us / 1_000_000 {
        age_s @ AGE_S_MIN..=AGE_S_MAX if us.is_multiple_of(1_000_000) => Ok(Some(age_s)),
        _ => fail(
            Mistake::Limit,
            format!("{key}={text} is not between 10s and 720h in whole seconds"),
            format!("write it like 10min, or {key}=off for no limit"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{VolumeChange, parse_volume_spec};
    use forebay_types::Fault;

    #[test]
    fn the_threshold_of_slow_requests_is_parsed_and_displayed() {
        let spec = |text: &str| parse_volume_spec(text);
        assert_eq!(spec("v=/x").unwrap().slow_us, Some(1_000_000));
        for (text, slow_us, shown) in [
            ("100ms", Some(100_000), "100ms"),
            ("1000ms", Some(1_000_000), "1s"),
            ("off", None, "off"),
        ] {
            let slow_us_read = slow("slow", text).unwrap();
            assert_eq!((slow_us_read, &*slow_shown(&slow_us_read)), (slow_us, shown));
        }
        for bad in ["", "0s", "999us", "61min", "5", "soon", "-1", "-1s", "99999999999999999999h"] {
            let error = spec(&format!("v=/x,slow={bad}")).unwrap_err();
            assert!(error.explained().contains("slow="), "{bad}: {}", error.explained());
        }
        let change = VolumeChange::parse(["slow=off"]).unwrap();
        assert_eq!(spec("v=/x").unwrap().with(&change).unwrap().slow_us, None);
    }

    #[test]
    fn limits_of_writeback_are_parsed_and_displayed() {
        let written = "read-latency=20ms,write-back-rate=50MiB,write-back-iops=200,\
                       write-back-age=10min";
        let spec = parse_volume_spec(&format!("v=/x,{written}")).unwrap();
        assert_eq!(
            spec.write_back,
            WriteBackSpec {
                read_latency: ReadLatency::Micros(20_000),
                rate: Some(50 << 20),
                iops: Some(200),
                age_s: Some(600),
            }
        );
        assert_eq!(spec.to_string(), format!("v=/x,{written}"));
        let change = |text| spec.with(&VolumeChange::parse([text]).unwrap()).unwrap().write_back;
        assert_eq!(change("write-back-rate=off").rate, None);
        assert_eq!(change("read-latency=idle").read_latency, ReadLatency::Idle);
        assert_eq!(change("read-latency=off").read_latency, ReadLatency::Off);
        assert_eq!(change("mode=bypass"), spec.write_back);
        let plain = parse_volume_spec("v=/x").unwrap();
        assert_eq!(plain.write_back, WriteBackSpec::default());
        let never = parse_volume_spec("v=/x,write-back-age=off").unwrap();
        assert_eq!(never.to_string(), "v=/x,write-back-age=off");
        for (us, text) in [(1, "1us"), (1_500, "1500us"), (90_000_000, "90s"), (0, "0s")] {
            assert_eq!(time_shown(us), text);
        }
    }

    #[test]
    fn an_invalid_limit_is_refused_with_a_remedy() {
        for (text, sentence) in [
            (
                "read-latency=fast",
                "read-latency='fast' is not a time: write it like 20ms, idle or off",
            ),
            ("read-latency=20", "read-latency='20' is not a time: write it like 20ms, idle or off"),
            (
                "read-latency=0ms",
                "read-latency=0ms: it must be above zero: write read-latency=idle for the disk's \
                 own latency, or read-latency=off",
            ),
            (
                "read-latency=2min",
                "read-latency=2min is more than a minute: write at most 1min, or read-latency=off",
            ),
            (
                "write-back-rate=1KiB",
                "write-back-rate=1KiB is less than 64KiB per second: write at least 64KiB, or \
                 write-back-rate=off for no limit",
            ),
            (
                "write-back-rate=quick",
                "write-back-rate='quick' is not a size: write the bytes per second, as in 50MiB, \
                 or off",
            ),
            (
                "write-back-iops=0",
                "write-back-iops='0' is not a number of I/Os: write 1 to 10000000, or off for no \
                 limit",
            ),
            (
                "write-back-age=5s",
                "write-back-age=5s is not between 10s and 720h in whole seconds: write it like \
                 10min, or write-back-age=off for no limit",
            ),
            (
                "write-back-age=99999999999999999999h",
                "write-back-age=99999999999999999999h is not between 10s and 720h in whole \
                 seconds: write it like 10min, or write-back-age=off for no limit",
            ),
            ("slow=-1", "slow='-1' is not a time: write it like 100ms or off"),
            ("slow=abc", "slow='abc' is not a time: write it like 100ms or off"),
            ("slow=2h", "slow=2h is not between 1ms and 1h: write it like 100ms, or slow=off"),
        ] {
            let error = parse_volume_spec(&format!("v=/x,{text}")).unwrap_err();
            assert_eq!(error.explained(), format!("volume 'v': {sentence}"));
        }
    }
}
