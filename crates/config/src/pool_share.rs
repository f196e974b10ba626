//! The settings `share-min` and `share-max`: a volume's guaranteed and largest share of the pool.

use crate::{ConfigError, ConfigResult, Mistake};
use forebay_types::{SHARE_MIN_SUM_MAX, VolumeConfig};

/// Parses a share in percent, with or without `%`.
fn share(key: &str, text: &str, max: u8, example: &str) -> ConfigResult<Option<u8>> {
    if text == "off" {
        return Ok(None);
    }
    let digits = text.strip_suffix('%').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let remedy = format!("write a percentage of the pool, as in {key}={example}, or off");
    if !is_number {
        let message = format!("invalid value '{text}' of {key}");
        return Err(ConfigError::new(Mistake::Value, message, remedy));
    }
    match digits.parse() {
        Ok(percent) if (1..=max).contains(&percent) => Ok(Some(percent)),
        _ => {
            let message = format!("{key}={text} is not between 1% and {max}%");
            Err(ConfigError::new(Mistake::Limit, message, remedy))
        }
    }
}

/// Parses `share-min`.
pub(crate) fn min(key: &str, text: &str) -> ConfigResult<Option<u8>> {
    share(key, text, SHARE_MIN_SUM_MAX, "20%")
}

/// Parses `share-max`.
pub(crate) fn max(key: &str, text: &str) -> ConfigResult<Option<u8>> {
    share(key, text, 100, "50%")
}

/// Formats either.
pub(crate) fn shown(percent: &Option<u8>) -> String {
    percent.map_or_else(|| "off".to_owned(), |percent| format!("{percent}%"))
}

/// Checks that the guaranteed share of a volume does not exceed its largest one.
pub(crate) fn check(config: &VolumeConfig) -> ConfigResult<()> {
    match (config.share_min, config.share_max) {
        (Some(min), Some(max)) if min > max => Err(ConfigError::new(
            Mistake::Limit,
            format!("share-min={min}% is more than share-max={max}%"),
            format!("raise share-max to {min}% or more, or lower share-min"),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::{VolumeChange, parse_volume_spec};

    #[test]
    fn shares_are_parsed_and_displayed() {
        let config = |text: &str| parse_volume_spec(text).map(|spec| spec.config);
        let none = config("v=/x").unwrap();
        assert_eq!((none.share_min, none.share_max), (None, None));
        let set = parse_volume_spec("v=/x,share-min=20,share-max=60%").unwrap();
        assert_eq!((set.config.share_min, set.config.share_max), (Some(20), Some(60)));
        assert_eq!(set.settings().to_string(), "share-min=20%,share-max=60%");
        let off = VolumeChange::parse(["share-min=off", "share-max=off"]).unwrap();
        assert_eq!(off.to_string(), "share-min=off,share-max=off");
        assert_eq!(set.configured(&off).unwrap().config, none);
    }

    #[test]
    fn shares_that_cannot_be_kept_are_refused() {
        let invalid = [
            "share-min=0",
            "share-min=51%",
            "share-min=x",
            "share-min=1.5%",
            "share-max=0%",
            "share-max=101%",
            "share-max=",
            "share-max=+5",
            "share-max=300",
            "share-max=1GiB",
        ];
        for text in invalid {
            assert!(parse_volume_spec(&format!("v=/x,{text}")).is_err(), "{text}");
        }
        let error = parse_volume_spec("v=/x,share-min=30%,share-max=20%").unwrap_err();
        assert_eq!(error.to_string(), "volume 'v': share-min=30% is more than share-max=20%");
        assert!(parse_volume_spec("v=/x,share-min=30%,share-max=30%").is_ok());
    }
}
