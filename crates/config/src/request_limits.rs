//! The settings that limit the requests of a volume's clients.

use crate::write_back::{rate, rate_shown, time, time_shown};
use crate::{ConfigError, ConfigResult, Mistake};

/// The range of `limit-burst`, in microseconds: ten milliseconds to an hour. With less, a worker
/// that is busy for a few milliseconds would lose a part of the limit.
const BURST_US_MIN: u64 = 10_000;
const BURST_US_MAX: u64 = 3_600_000_000;

/// Parses `bandwidth-limit`, in bytes per second, with or without `/s`.
pub(crate) fn bandwidth(key: &str, text: &str) -> ConfigResult<Option<u64>> {
    rate(key, text.strip_suffix("/s").unwrap_or(text))
}

/// Formats `bandwidth-limit`.
pub(crate) fn bandwidth_shown(bytes: &Option<u64>) -> String {
    let shown = rate_shown(bytes);
    if bytes.is_some() { shown + "/s" } else { shown }
}

/// Parses `limit-burst`, in microseconds.
pub(crate) fn burst(key: &str, text: &str) -> ConfigResult<u64> {
    match time(key, text, "100ms")? {
        us @ BURST_US_MIN..=BURST_US_MAX => Ok(us),
        _ => Err(ConfigError::new(
            Mistake::Limit,
            format!("{key}={text} is not between 10ms and 1h"),
            "write it like 100ms, the default, or 10s",
        )),
    }
}

/// Formats `limit-burst`.
pub(crate) fn burst_shown(us: &u64) -> String {
    time_shown(*us)
}

#[cfg(test)]
mod tests {
    use crate::{VolumeChange, parse_volume_spec};

    #[test]
    fn limits_are_parsed_and_displayed() {
        let config = |text: &str| parse_volume_spec(text).map(|spec| spec.config);
        let none = config("v=/x").unwrap();
        assert_eq!(
            (none.iops_limit, none.bandwidth_limit, none.limit_burst_us),
            (None, None, 100_000)
        );
        let some = "v=/x,iops-limit=500,bandwidth-limit=50MiB/s,limit-burst=2s";
        let set = config(some).unwrap();
        let values = (set.iops_limit, set.bandwidth_limit, set.limit_burst_us);
        assert_eq!(values, (Some(500), Some(50 << 20), 2_000_000));
        let shown = parse_volume_spec(some).unwrap().settings().to_string();
        assert_eq!(shown, "iops-limit=500,bandwidth-limit=50MiB/s,limit-burst=2s");
        assert_eq!(config("v=/x,bandwidth-limit=1GiB").unwrap().bandwidth_limit, Some(1 << 30));
        let off = VolumeChange::parse(["iops-limit=off", "bandwidth-limit=off"]).unwrap();
        assert_eq!(off.to_string(), "iops-limit=off,bandwidth-limit=off");
    }

    #[test]
    fn limits_that_nothing_could_pass_are_refused() {
        for text in ["iops-limit=0", "bandwidth-limit=1KiB", "limit-burst=1ms", "limit-burst=2h"] {
            assert!(parse_volume_spec(&format!("v=/x,{text}")).is_err(), "{text}");
        }
    }
}
