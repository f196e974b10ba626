//! The setting `gather-below`: the size below which writes of a volume are gathered.

use crate::{ConfigError, ConfigResult, Mistake, words::size};
use forebay_types::{Auto, SECTOR_BYTES, Size, limits::GATHER_BELOW_BYTES_MAX};

/// Parses `gather-below`, in bytes; zero for no gathering.
pub(crate) fn gather_below(_: &str, text: &str) -> ConfigResult<Auto<u64>> {
    let fail = |mistake, message: String, remedy: String| {
        Err(ConfigError::new(mistake, format!("gather-below={message}"), remedy))
    };
    let most = Size(GATHER_BELOW_BYTES_MAX);
    match text {
        "auto" => return Ok(Auto::Auto),
        "off" => return Ok(Auto::Set(0)),
        _ => {}
    }
    let message = || format!("gather-below='{text}' is not a size");
    let remedy = || "write it like 64KiB or 1.5MiB, off or auto".to_owned();
    match size(text, message, remedy)? {
        Size(0) => {
            fail(Mistake::Value, format!("{text} gathers nothing"), "write gather-below=off".into())
        }
        size if size > most => {
            let remedy = format!("write a size of at most {most}");
            fail(Mistake::Limit, format!("{size} is more than the largest write"), remedy)
        }
        size if !size.0.is_multiple_of(SECTOR_BYTES) => {
            let remedy = "write a size in whole sectors, as in 64KiB";
            fail(Mistake::Value, format!("{size} is not a multiple of 512 bytes"), remedy.into())
        }
        Size(bytes) => Ok(Auto::Set(bytes)),
    }
}

/// Formats `gather-below`.
pub(crate) fn shown(value: &Auto<u64>) -> String {
    match *value {
        Auto::Auto => "auto".to_owned(),
        Auto::Set(0) => "off".to_owned(),
        Auto::Set(bytes) => Size(bytes).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{VolumeChange, parse_volume_spec};
    use forebay_types::Fault;

    #[test]
    fn gather_below_is_parsed_and_displayed() {
        for (text, value) in [
            ("auto", Auto::Auto),
            ("off", Auto::Set(0)),
            ("512B", Auto::Set(512)),
            ("1536KiB", Auto::Set(1536 << 10)),
            ("32MiB", Auto::Set(32 << 20)),
        ] {
            assert_eq!(gather_below("gather-below", text), Ok(value));
            assert_eq!(shown(&value), text);
        }
    }

    #[test]
    fn an_invalid_size_is_refused_with_a_remedy() {
        for (text, sentence) in [
            ("0", "0 gathers nothing: write gather-below=off"),
            (
                "700",
                "700B is not a multiple of 512 bytes: write a size in whole sectors, as in 64KiB",
            ),
            ("33MiB", "33MiB is more than the largest write: write a size of at most 32MiB"),
            ("64KB", "'64KB' is not a size: units are powers of 1024, so write it like 64KiB"),
            ("", "'' is not a size: write it like 64KiB or 1.5MiB, off or auto"),
            ("none", "'none' is not a size: write it like 64KiB or 1.5MiB, off or auto"),
        ] {
            let error = parse_volume_spec(&format!("v=/x,gather-below={text}")).unwrap_err();
            assert_eq!(error.explained(), format!("volume 'v': gather-below={sentence}"));
        }
    }

    #[test]
    fn gather_below_can_change_while_the_volume_is_served() {
        let spec = parse_volume_spec("v=/x,gather-below=64KiB").unwrap();
        assert_eq!(spec.config.gather_below, Auto::Set(64 << 10));
        let change = |text: &str| {
            let change = VolumeChange::parse([text]).unwrap();
            assert!(!change.has_fixed_settings());
            spec.with(&change).unwrap()
        };
        assert_eq!(change("gather-below=off").to_string(), "v=/x,gather-below=off");
        assert_eq!(change("gather-below=auto").to_string(), "v=/x");
        assert_eq!(change("mode=bypass").config.gather_below, spec.config.gather_below);
    }
}
