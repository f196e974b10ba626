//! The setting `pin`: the ranges of a volume that stay in memory.

use crate::{ConfigError, ConfigResult, Mistake};
use forebay_types::{ByteRange, PinnedRanges, Size, limits::PINNED_RANGES_MAX};

/// Parses `pin`.
pub(crate) fn pin(_: &str, text: &str) -> ConfigResult<PinnedRanges> {
    match text {
        "none" => Ok(PinnedRanges::default()),
        _ => parse_pinned_ranges(text.split(',')),
    }
}

/// Parses ranges, each as `OFFSET+LENGTH`, or the word `all` for the whole volume. They may
/// overlap.
///
/// # Errors
/// A text is no range, a range is empty or ends beyond 16 EiB, or there are more than
/// [`PINNED_RANGES_MAX`] ranges, of which adjacent ones count as one.
pub fn parse_pinned_ranges<'a>(
    texts: impl IntoIterator<Item = &'a str>,
) -> ConfigResult<PinnedRanges> {
    let mut pins = PinnedRanges::default();
    let mut is_all = false;
    for text in texts {
        match text {
            "all" => is_all = true,
            _ => pins.add(range(text)?),
        }
    }
    if is_all {
        return Ok(PinnedRanges::all());
    }
    check_range_count(&pins)?;
    Ok(pins)
}

/// Refuses more than [`PINNED_RANGES_MAX`] ranges.
///
/// # Errors
/// There are more.
pub(crate) fn check_range_count(pins: &PinnedRanges) -> ConfigResult<()> {
    if pins.len() <= PINNED_RANGES_MAX {
        return Ok(());
    }
    let message = format!("{} separate ranges are pinned", pins.len());
    let remedy = format!("pin at most {PINNED_RANGES_MAX}, as larger ranges that include several");
    Err(ConfigError::new(Mistake::Limit, message, remedy))
}

/// Parses `OFFSET+LENGTH`.
fn range(text: &str) -> ConfigResult<ByteRange> {
    let fail = |mistake, problem: &str, remedy: &'static str| {
        Err(ConfigError::new(mistake, format!("range '{text}' {problem}"), remedy))
    };
    let size = |text: &str| text.parse().ok().map(|Size(bytes)| bytes);
    let parts = text.split_once('+').and_then(|(offset, len)| Some((size(offset)?, size(len)?)));
    match parts {
        None => fail(
            Mistake::Value,
            "is not OFFSET+LENGTH",
            "write it like 1GiB+256MiB, in bytes or with KiB, MiB, GiB or TiB, or write all",
        ),
        Some((_, 0)) => fail(Mistake::Value, "is empty", "write a length above zero"),
        Some((offset, len)) if offset.checked_add(len).is_none() => {
            fail(Mistake::Limit, "ends beyond 16 EiB", "write a range inside the volume")
        }
        Some((offset, len)) => Ok(ByteRange::new(offset, len)),
    }
}

/// Formats ranges as the setting `pin`.
pub fn pinned_ranges_shown(pins: &PinnedRanges) -> String {
    if pins.is_empty() {
        return "none".to_owned();
    }
    if pins.is_all() {
        return "all".to_owned();
    }
    let shown = |range: ByteRange| format!("{}+{}", Size(range.offset), Size(range.len));
    pins.iter().map(shown).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{VolumeChange, parse_volume_spec};
    use forebay_types::Fault;

    #[test]
    fn ranges_are_parsed_merged_and_displayed() {
        for (text, shown) in [
            ("none", "none"),
            ("all", "all"),
            ("0+4096", "0B+4KiB"),
            ("1GiB+256MiB", "1GiB+256MiB"),
            ("8MiB+1MiB,0+1MiB", "0B+1MiB,8MiB+1MiB"),
            ("0+1MiB,512KiB+1MiB,1536KiB+512", "0B+1540KiB"),
            ("1000+1", "0B+4KiB"),
            ("0+1MiB,all", "all"),
        ] {
            let pins = pin("pin", text).unwrap();
            assert_eq!(pinned_ranges_shown(&pins), shown, "{text}");
            assert_eq!(pin("pin", shown), Ok(pins));
        }
    }

    #[test]
    fn invalid_ranges_are_refused_with_a_remedy() {
        let form = "is not OFFSET+LENGTH: write it like 1GiB+256MiB, in bytes or with KiB, MiB, \
                    GiB or TiB, or write all";
        for (text, sentence) in [
            ("", format!("range '' {form}")),
            ("0+1MB", format!("range '0+1MB' {form}")),
            ("0-4096", format!("range '0-4096' {form}")),
            ("0+4096,", format!("range '' {form}")),
            ("none,0+4096", format!("range 'none' {form}")),
            ("0+0", "range '0+0' is empty: write a length above zero".into()),
            (
                "16777215T+2T",
                "range '16777215T+2T' ends beyond 16 EiB: write a range inside the volume".into(),
            ),
        ] {
            let error = parse_volume_spec(&format!("v=/x,pin={text}")).unwrap_err();
            assert_eq!(error.explained(), format!("volume 'v': {sentence}"));
        }
        let many: Vec<String> = (0..=1024).map(|at| format!("{}+1", at * 8192)).collect();
        let error = pin("pin", &many.join(",")).unwrap_err();
        let sentence = "1025 separate ranges are pinned: pin at most 1024, as larger ranges that \
                        include several";
        assert_eq!(error.explained(), sentence);
    }

    #[test]
    fn pins_change_while_the_volume_is_served_but_not_in_bypass() {
        let spec = parse_volume_spec("v=/x,pin=0+1MiB,4MiB+1MiB,warm=no").unwrap();
        assert_eq!(spec.to_string(), "v=/x,warm=no,pin=0B+1MiB,4MiB+1MiB");
        assert_eq!(parse_volume_spec(&spec.to_string()), Ok(spec.clone()));
        let change = |text: &str| VolumeChange::parse(text.split(' ')).unwrap();
        assert!(!change("pin=all").has_fixed_settings());
        assert_eq!(spec.with(&change("pin=none")).unwrap().to_string(), "v=/x,warm=no");
        // The pins wait for another mode.
        let bypassed = spec.with(&change("mode=bypass")).unwrap();
        assert_eq!(bypassed.config.pin, spec.config.pin);
        assert!(bypassed.with(&change("pin=none")).is_ok());
        let error = bypassed.with(&change("pin=all")).unwrap_err();
        let sentence = "volume 'v': no range can be pinned in the mode bypass, which caches \
                        nothing: choose another mode first, as in mode=write-through";
        assert_eq!(error.explained(), sentence);
        let error = parse_volume_spec("v=/x,mode=bypass,pin=all").unwrap_err();
        assert_eq!(error.explained(), sentence);
        assert!(bypassed.with(&change("pin=all mode=write-through")).is_ok());
    }
}
