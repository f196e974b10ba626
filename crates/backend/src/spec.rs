//! The options in the name of a backend: `key=value` pairs, each known, each at most once.
//!
//! Each error repeats the operator's text and gives valid values.

use forebay_types::{Blame, Fault, Remedy, Size, backing};

/// A fault in the name of a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The name is empty.
    #[error("the name of the backend is empty")]
    Empty,
    /// An option that the backend or layer does not have.
    #[error("{what} has no option '{key}'")]
    UnknownOption {
        /// The backend or layer.
        what: String,
        /// The option as typed.
        key: String,
        /// The known options, separated by commas.
        known: String,
    },
    /// An option without a value.
    #[error("option '{key}' of {what} has no value")]
    NoValue {
        /// The backend or layer.
        what: String,
        /// The option.
        key: String,
    },
    /// An option given twice.
    #[error("option '{key}' of {what} is given twice")]
    Twice {
        /// The backend or layer.
        what: String,
        /// The option.
        key: String,
    },
    /// A value that cannot be parsed.
    #[error("{what}: {key}='{value}' is invalid")]
    BadValue {
        /// The backend or layer.
        what: String,
        /// The option.
        key: String,
        /// The value as typed.
        value: String,
        /// Valid values.
        example: &'static str,
    },
    /// A missing option.
    #[error("{what} needs {key}")]
    Missing {
        /// The backend or layer.
        what: String,
        /// The option.
        key: String,
        /// A valid value.
        example: &'static str,
    },
    /// A layer without a closing parenthesis, or without a backend below it.
    #[error("layer {what} is incomplete")]
    Incomplete {
        /// The layer.
        what: String,
    },
    /// Too many nested layers and models.
    #[error("more than {max} layers and models are nested")]
    TooDeep {
        /// The maximum.
        max: usize,
    },
    /// A percent sign without two hexadecimal digits after it, or bytes that are not UTF-8.
    #[error("'{text}' is not percent-encoded text")]
    BadEncoding {
        /// The text as typed.
        text: String,
    },
    /// A NUL byte, which neither a path nor an export name can contain.
    #[error("'{text}' contains a NUL byte")]
    Nul {
        /// The text as typed.
        text: String,
    },
    /// A name with an unknown scheme that is not the name of a file either.
    #[error("'{spec}' names no file, and there is no backend '{scheme}:'")]
    NoBackend {
        /// The name as typed.
        spec: String,
        /// The text before the colon.
        scheme: String,
    },
    /// An unknown model.
    #[error("there is no model '{name}'")]
    NoModel {
        /// The model as typed.
        name: String,
    },
}

impl Fault for SpecError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Empty => backing::remedy_for_scheme("").into(),
            Self::UnknownOption { known, .. } => format!("the options are {known}").into(),
            Self::NoValue { key, .. } => format!("write {key}=VALUE").into(),
            Self::Twice { .. } => "keep one of them".into(),
            Self::BadValue { example, .. } => format!("write it like {example}").into(),
            Self::Missing { key, example, .. } => format!("add {key}={example}").into(),
            Self::Incomplete { what } => format!("write {what}(OPTION=VALUE,…):BACKING").into(),
            Self::TooDeep { .. } => "remove some of them".into(),
            Self::BadEncoding { .. } => "write a percent sign itself as %25".into(),
            Self::Nul { .. } => "remove %00".into(),
            Self::NoBackend { scheme, .. } => backing::remedy_for_scheme(scheme).into(),
            Self::NoModel { .. } => {
                "use one of model:hdd, model:ssd, model:fixed and model:raid0, \
                                     raid1, raid5, raid6, raid10"
                    .into()
            }
        }
    }

    fn blame(&self) -> Blame {
        Blame::Operator
    }
}

/// Decodes percent-encoded text: `%41` is `A`.
pub fn percent_decode(text: &str) -> Result<String, SpecError> {
    let fail = || SpecError::BadEncoding { text: text.to_owned() };
    let digit = |byte: Option<u8>| {
        byte.and_then(|b| char::from(b).to_digit(16)).map(|d| d as u8).ok_or_else(fail)
    };
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = digit(bytes.next())?;
            let low = digit(bytes.next())?;
            decoded.push(high << 4 | low);
        } else {
            decoded.push(byte);
        }
    }
    let decoded = String::from_utf8(decoded).map_err(|_| fail())?;
    if decoded.contains('\0') {
        return Err(SpecError::Nul { text: text.to_owned() });
    }
    Ok(decoded)
}

/// The options of one backend or layer.
pub struct Fields<'a> {
    what: &'a str,
    fields: Vec<(&'a str, String)>,
    /// Put before each key that is queried.
    prefix: &'static str,
}

impl<'a> Fields<'a> {
    /// Parses `text`: pairs of a `known` key and a percent-encoded value, between `separator`s.
    pub fn parse(
        what: &'a str,
        text: &'a str,
        separator: char,
        known: &[&str],
    ) -> Result<Self, SpecError> {
        let mut fields: Vec<(&str, String)> = Vec::new();
        for field in text.split(separator).filter(|field| !field.is_empty()) {
            let (key, value) = field.split_once('=').unwrap_or((field, ""));
            let (what, owned) = (what.to_owned(), key.to_owned());
            if !known.contains(&key) {
                let known = known.join(", ");
                return Err(SpecError::UnknownOption { what, key: owned, known });
            }
            if value.is_empty() {
                return Err(SpecError::NoValue { what, key: owned });
            }
            if fields.iter().any(|&(k, _)| k == key) {
                return Err(SpecError::Twice { what, key: owned });
            }
            fields.push((key, percent_decode(value)?));
        }
        Ok(Self { what, fields, prefix: "" })
    }

    /// The options whose keys begin with `prefix`, queried without it.
    pub(crate) fn under(&self, prefix: &'static str) -> Self {
        Self { what: self.what, fields: self.fields.clone(), prefix }
    }

    /// The text of an option, if it is set.
    pub fn text(&self, key: &str) -> Option<&str> {
        let is_key = |k: &str| k.strip_prefix(self.prefix) == Some(key);
        self.fields.iter().find(|(k, _)| is_key(k)).map(|(_, value)| value.as_str())
    }

    /// The value of an option, parsed with `read`, if it is set.
    pub fn get<T>(
        &self,
        key: &str,
        example: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, SpecError> {
        let Some(value) = self.text(key) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(SpecError::BadValue {
                what: self.what.to_owned(),
                key: format!("{}{key}", self.prefix),
                value: value.to_owned(),
                example,
            }),
        }
    }

    /// The error for a missing option.
    pub fn missing(&self, key: &str, example: &'static str) -> SpecError {
        let (what, key) = (self.what.to_owned(), format!("{}{key}", self.prefix));
        SpecError::Missing { what, key, example }
    }
}

/// Parses a duration, `250ns`, `80us`, `8.5ms`, `1s`, `2m` or `3h`, in nanoseconds. Refuses a
/// number without a unit.
pub fn duration_ns(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(end);
    let unit_ns = match unit {
        "ns" => 1e0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3_600e9,
        _ => return None,
    };
    let ns = number.parse::<f64>().ok()? * unit_ns;
    // At most a day, so that sums of times do not overflow 64 bits.
    (ns <= 86_400e9).then_some(ns.round() as u64)
}

/// Parses a rate above zero in bytes per second, `120MiB/s` or `120MiB`.
pub(crate) fn bytes_per_second(text: &str) -> Option<u64> {
    text.strip_suffix("/s").unwrap_or(text).parse::<Size>().ok().map(Size::bytes).filter(|&b| b > 0)
}

/// Parses a size in bytes.
pub fn size_bytes(text: &str) -> Option<u64> {
    text.parse::<Size>().ok().map(Size::bytes)
}

pub(crate) fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// Parses `on` or `off`.
pub fn switch(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn options_are_known_and_given_once() {
        let known = ["size", "seed"];
        let fields = Fields::parse("memory", "size=8GiB,seed=1", ',', &known).unwrap();
        assert_eq!(fields.get("size", "8GiB", size_bytes), Ok(Some(8 << 30)));
        assert_eq!(fields.get("seed", "1", number::<u64>), Ok(Some(1)));
        for (text, message) in [
            ("sized=1", "memory has no option 'sized': the options are size, seed"),
            ("size=1,size=2", "option 'size' of memory is given twice: keep one of them"),
            ("size", "option 'size' of memory has no value: write size=VALUE"),
            ("size=%4", "'%4' is not percent-encoded text: write a percent sign itself as %25"),
        ] {
            let error = Fields::parse("memory", text, ',', &known).err().unwrap();
            assert_eq!(error.explained(), message);
        }
        let fields = Fields::parse("memory", "size=big", ',', &known).unwrap();
        let error = fields.get("size", "8GiB", size_bytes).unwrap_err();
        assert_eq!(error.explained(), "memory: size='big' is invalid: write it like 8GiB");
    }

    #[test]
    fn times_have_a_unit() {
        for (text, ns) in [
            ("250ns", 250),
            ("80us", 80_000),
            ("8.5ms", 8_500_000),
            ("1s", 1_000_000_000),
            ("2m", 120_000_000_000),
            ("24h", 86_400_000_000_000),
            ("0s", 0),
        ] {
            assert_eq!(duration_ns(text), Some(ns), "{text}");
        }
        for text in ["", "5", "ms", "-1ms", "1..5ms", "5 ms", "1e3ms", "100000m", "25h", "5MS"] {
            assert_eq!(duration_ns(text), None, "{text}");
        }
    }

    #[test]
    fn rates_are_sizes_per_second() {
        assert_eq!(bytes_per_second("120MiB/s"), Some(120 << 20));
        assert_eq!(bytes_per_second("10M"), Some(10 << 20));
        assert_eq!(bytes_per_second("0/s"), None);
        assert_eq!(bytes_per_second("10MiB/m"), None);
    }

    #[test]
    fn percent_decoding_is_exact() {
        assert_eq!(percent_decode("a%2Fb%20c%C3%A4").unwrap(), "a/b cä");
        for text in ["%", "%2", "%zz", "%ff", "%00", "a%+1"] {
            assert!(percent_decode(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn encoded_text_decodes_to_itself(text in "[^\0]*") {
            let encoded: String = text.bytes().map(|b| format!("%{b:02x}")).collect();
            prop_assert_eq!(percent_decode(&encoded).unwrap(), text);
        }
    }
}
