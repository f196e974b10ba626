//! `takeover-after`.

use crate::write_back::time;
use crate::{ConfigError, ConfigResult, Mistake};
use forebay_types::VolumeConfig;

/// The shortest and longest `takeover-after`, in seconds: several beats of a journal, and so long
/// that a person comes first.
const AFTER_S_MIN: u64 = 2;
const AFTER_S_MAX: u64 = 3_600;

/// Parses `takeover-after`, in seconds.
pub(crate) fn after(key: &str, text: &str) -> ConfigResult<Option<u64>> {
    if text == "off" {
        return Ok(None);
    }
    let us = time(key, text, "10s, 1min or off")?;
    match us / 1_000_000 {
        after_s @ AFTER_S_MIN..=AFTER_S_MAX if us.is_multiple_of(1_000_000) => Ok(Some(after_s)),
        _ => {
            let message = format!("{key}={text} is not between 2s and 1h in whole seconds");
            let remedy = format!("write it like 10s, or {key}=off to decide by command");
            Err(ConfigError::new(Mistake::Limit, message, remedy))
        }
    }
}

/// Refuses it where nothing could be taken over, or watched.
pub(crate) fn check(config: &VolumeConfig) -> ConfigResult<()> {
    if config.takeover_after_s.is_none() {
        return Ok(());
    }
    let (message, remedy) = if !config.standby {
        (
            "takeover-after is set, but standby is not",
            "add standby=yes, or leave takeover-after out",
        )
    } else if config.journal.is_none() {
        let message = "takeover-after is set, but no journal is named, by which hosts see that its \
                       owner lives";
        (message, "add protection=journal,journal=DEVICE on a disk that both hosts reach")
    } else {
        return Ok(());
    };
    Err(ConfigError::new(Mistake::Value, message, remedy))
}

#[cfg(test)]
mod tests {
    use crate::{VolumeChange, parse_volume_spec};
    use forebay_types::Fault;

    #[test]
    fn the_time_is_bounded_and_needs_standby_and_a_journal() {
        let journal = "v=/x,mode=write-back,protection=journal,journal=/j";
        let spec = |text: &str| parse_volume_spec(&format!("{journal},{text}"));
        let after = |text: &str| spec(&format!("standby=yes,takeover-after={text}"));
        for (text, after_s) in
            [("2s", Some(2)), ("10s", Some(10)), ("1h", Some(3600)), ("off", None)]
        {
            let spec = after(text).unwrap();
            assert_eq!(spec.config.takeover_after_s, after_s);
            assert_eq!(spec.settings().to_string().contains("takeover-after"), after_s.is_some());
        }
        for text in ["1s", "2500ms", "61min", "0s", "10", "soon"] {
            let error = after(text).unwrap_err();
            assert!(error.explained().contains("takeover-after"), "{}", error.explained());
        }
        let error = spec("takeover-after=10s").unwrap_err().explained();
        assert!(error.contains("standby is not: add standby=yes"), "{error}");
        let error = parse_volume_spec("v=/x,standby=yes,takeover-after=10s").unwrap_err();
        assert!(error.explained().contains("no journal is named"), "{}", error.explained());
        // It can change while the volume is served.
        let change = VolumeChange::parse(["takeover-after=20s"]).unwrap();
        let changed = after("10s").unwrap().with(&change).unwrap();
        assert_eq!(changed.config.takeover_after_s, Some(20));
    }
}
