//! The settings that limit the writeback of a volume, and the setting `slow`.

use crate::{ConfigError, ConfigResult, Mistake, words::size};
use forebay_types::{ReadLatency, Size};

/// The highest `read-latency`, in microseconds: a minute.
const LATENCY_US_MAX: u64 = 60_000_000;
/// The lowest `write-back-rate`, in bytes per second. At a lower rate, dirty data would hardly ever
/// decrease.
const RATE_BYTES_MIN: u64 = 64 << 10;
const IOPS_MAX: u64 = 10_000_000;
/// The lowest `loss-limit`, in bytes: as much as clients write at once.
const LOSS_BYTES_MIN: u64 = 1 << 20;
/// The range of `write-back-age`, in seconds: ten seconds to thirty days.
const AGE_S_MIN: u64 = 10;
const AGE_S_MAX: u64 = 30 * 86_400;
/// The range of `slow`, in microseconds: a millisecond to an hour. Below, batches of hits would be
/// logged. The default is a second: a hard disk with 64 random requests in its queue takes half of
/// it, so a system without faults logs nothing.
const SLOW_US_MIN: u64 = 1_000;
const SLOW_US_MAX: u64 = 3_600_000_000;

fn or_off(value: &Option<u64>, show: impl Fn(u64) -> String) -> String {
    value.map_or_else(|| "off".to_owned(), show)
}

/// Formats `write-back-rate` or `loss-limit`.
pub(crate) fn rate_shown(rate: &Option<u64>) -> String {
    or_off(rate, |bytes| Size(bytes).to_string())
}

/// Formats `write-back-iops` or `iops-limit`.
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

/// Formats `read-latency`.
pub fn read_latency_shown(latency: &ReadLatency) -> String {
    match latency {
        ReadLatency::Idle => "idle".to_owned(),
        ReadLatency::Off => "off".to_owned(),
        ReadLatency::Micros(us) => time_shown(*us),
    }
}

/// Units of time, in microseconds.
const UNITS: [(&str, u64); 5] =
    [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("min", 60_000_000), ("h", 3_600_000_000)];

/// Formats a time in the largest unit that divides it.
pub(crate) fn time_shown(us: u64) -> String {
    let whole = UNITS.iter().rev().find(|(_, unit)| us > 0 && us.is_multiple_of(*unit));
    whole.map_or("0s".to_owned(), |(name, unit)| format!("{}{name}", us / unit))
}

/// Parses a time into microseconds.
pub(crate) fn time(key: &str, text: &str, example: &str) -> ConfigResult<u64> {
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

/// Parses `write-back-rate`, or another rate, in bytes per second.
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

/// Parses `loss-limit`, in bytes.
pub(crate) fn loss(key: &str, text: &str) -> ConfigResult<Option<u64>> {
    if text == "off" {
        return Ok(None);
    }
    let bad = format!("{key}='{text}' is not a size");
    match size(text, || bad, || "write a size, as in 64MiB, or off".to_owned())? {
        Size(bytes) if bytes >= LOSS_BYTES_MIN => Ok(Some(bytes)),
        _ => fail(
            Mistake::Limit,
            format!("{key}={text} is less than 1MiB"),
            format!("write at least 1MiB, mode=write-through to lose nothing, or {key}=off"),
        ),
    }
}

/// Parses `write-back-iops` or `iops-limit`.
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
    use forebay_types::{Fault, Mode, VolumeConfig};

    #[test]
    fn the_threshold_of_slow_requests_is_parsed_and_displayed() {
        let spec = |text: &str| parse_volume_spec(text);
        assert_eq!(spec("v=/x").unwrap().config.slow_us, Some(1_000_000));
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
        assert_eq!(spec("v=/x").unwrap().with(&change).unwrap().config.slow_us, None);
    }

    #[test]
    fn limits_of_writeback_are_parsed_and_displayed() {
        let written = "read-latency=20ms,write-back-rate=50MiB,write-back-iops=200,\
                       write-back-age=10min";
        let spec = parse_volume_spec(&format!("v=/x,{written}")).unwrap();
        assert_eq!(
            spec.config,
            VolumeConfig {
                read_latency: ReadLatency::Micros(20_000),
                write_back_rate: Some(50 << 20),
                write_back_iops: Some(200),
                write_back_age_s: Some(600),
                ..VolumeConfig::default()
            }
        );
        assert_eq!(spec.to_string(), format!("v=/x,{written}"));
        let change = |text| spec.with(&VolumeChange::parse([text]).unwrap()).unwrap().config;
        assert_eq!(change("write-back-rate=off").write_back_rate, None);
        assert_eq!(change("read-latency=idle").read_latency, ReadLatency::Idle);
        assert_eq!(change("read-latency=off").read_latency, ReadLatency::Off);
        assert_eq!(
            change("mode=bypass"),
            VolumeConfig { mode: Mode::Bypass, ..spec.config.clone() }
        );
        let plain = parse_volume_spec("v=/x").unwrap();
        assert_eq!(plain.config, VolumeConfig::default());
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
                "loss-limit=64KiB",
                "loss-limit=64KiB is less than 1MiB: write at least 1MiB, mode=write-through to \
                 lose nothing, or loss-limit=off",
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
