//! Numbers of bytes for people.

use std::fmt;

/// A number of bytes with about three digits and a unit: `512 B`, `1.5 GiB`, `128 MiB`. In the
/// alternate form `{:#}`, an inexact one has all digits in parentheses:
/// `1.0 GiB (1074790400 bytes)`.
///
/// What is shown cannot be given as a setting again; [`crate::Size`] can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = 0;
        // A value that rounds to 1024 is shown as 1.0 of the next unit.
        while value >= 1023.5 {
            value /= 1024.0;
            unit += 1;
        }
        let decimals = usize::from(unit > 0 && value < 9.95);
        write!(f, "{value:.decimals$} {}", UNITS[unit])?;
        // Ten times the value is whole if the first decimal shows all of it.
        let shown = value * if decimals > 0 { 10.0 } else { 1.0 };
        if f.alternate() && shown.fract() != 0.0 {
            write!(f, " ({} bytes)", self.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_four_digits() {
        for (value, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (10 << 20, "10 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(Bytes(value).to_string(), text);
        }
    }

    #[test]
    fn the_alternate_form_has_all_digits_of_an_inexact_number() {
        for (value, text) in [
            (1023, "1023 B"),
            (64 << 20, "64 MiB"),
            (3 << 29, "1.5 GiB"),
            ((64 << 20) + 512, "64 MiB (67109376 bytes)"),
            (1025 << 20, "1.0 GiB (1074790400 bytes)"),
        ] {
            assert_eq!(format!("{:#}", Bytes(value)), text);
        }
    }
}
