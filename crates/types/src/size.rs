//! Sizes as text: `4096`, `512MiB`, `8GiB`, `1.5GiB`.

use std::{fmt, str::FromStr};

/// A number of bytes, with its text form. `K`, `KiB`, `k` and `kib` are all 1024 bytes. Decimal
/// prefixes (`KB`, `MB`) are rejected, because their meaning is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

impl Size {
    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    /// A whole number of the largest unit that is exact: `8GiB`, `1536MiB`, `1000B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, shift) = UNITS
            .into_iter()
            .find(|&(_, shift)| self.0 >= 1 << shift && self.0.is_multiple_of(1 << shift))
            .unwrap_or(("B", 0));
        write!(f, "{}{unit}", self.0 >> shift)
    }
}

/// The text is not a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseSizeError {
    text: String,
    is_too_large: bool,
}

impl ParseSizeError {
    /// The size that was probably meant, if only the spelling of its unit is at fault: `64MiB` for
    /// `64MB` and for `64 MiB`.
    pub fn meant(&self) -> Option<String> {
        let text: String = self.text.split_whitespace().collect();
        let (number, unit) = text.split_at(digits_len(&text));
        let (unit, _) = *UNITS.iter().find(|(name, _)| {
            let decimal = name.replace('i', "");
            unit.eq_ignore_ascii_case(name) || unit.eq_ignore_ascii_case(&decimal)
        })?;
        Some(format!("{number}{unit}")).filter(|meant| meant.parse::<Size>().is_ok())
    }
}

/// The length of the number that a size begins with, in bytes.
fn digits_len(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len())
}

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_too_large {
            write!(f, "size '{}' is too large: it must be below 16 EiB", self.text)
        } else if let Some(meant) = self.meant() {
            write!(f, "invalid size '{}': units are powers of 1024: write {meant}", self.text)
        } else {
            let remedy = "write a number of bytes, or one with KiB, MiB, GiB or TiB";
            write!(f, "invalid size '{}': {remedy}", self.text)
        }
    }
}

impl std::error::Error for ParseSizeError {}

impl FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |is_too_large| ParseSizeError { text: text.to_owned(), is_too_large };
        let (number, unit) = text.split_at(digits_len(text));
        let shift = match &*unit.to_ascii_lowercase() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            _ => return Err(fail(false)),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let is_number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || (number.contains('.') && !is_number(fraction)) {
            return Err(fail(false));
        }
        let whole: u64 = whole.parse().map_err(|_| fail(true))?;
        let mut bytes = u128::from(whole) << shift;
        if !fraction.is_empty() {
            // With more digits, the product below could overflow.
            if fraction.len() > 9 {
                return Err(fail(false));
            }
            let scale = 10u128.pow(fraction.len() as u32);
            let part: u128 = fraction.parse().map_err(|_| fail(false))?;
            let product = part << shift;
            if !product.is_multiple_of(scale) {
                return Err(fail(false));
            }
            bytes += product / scale;
        }
        u64::try_from(bytes).map(Self).map_err(|_| fail(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn valid_sizes_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1k", 1024),
            ("512MiB", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("2T", 2 << 40),
            ("2g", 2 << 30),
            ("64mib", 64 << 20),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_rejected() {
        for text in ["", "x", "MiB", "1MB", "-1", "1..5G", "1.G", ".5G", "0.3B", "1 GiB", "1e9"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_with_another_spelling_of_its_unit_names_the_right_one() {
        for (text, meant) in [
            ("64MB", Some("64MiB")),
            ("2gb", Some("2GiB")),
            ("1 GiB", Some("1GiB")),
            ("1.5 tb", Some("1.5TiB")),
            ("1..5G", None),
            ("much", None),
            ("5 apples", None),
        ] {
            assert_eq!(text.parse::<Size>().unwrap_err().meant().as_deref(), meant, "{text}");
        }
        let error = "64MB".parse::<Size>().unwrap_err().to_string();
        assert_eq!(error, "invalid size '64MB': units are powers of 1024: write 64MiB");
    }

    #[test]
    fn sizes_of_16_eib_and_more_are_refused() {
        let largest = "18446744073709551615";
        assert_eq!(largest.parse(), Ok(Size(u64::MAX)));
        for text in ["18446744073709551616", "16777216T", "99999999999999T"] {
            let error = text.parse::<Size>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("size '{text}' is too large: it must be below 16 EiB")
            );
        }
    }

    proptest! {
        #[test]
        fn displayed_sizes_parse_back(bytes: u64) {
            prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
    }
}
