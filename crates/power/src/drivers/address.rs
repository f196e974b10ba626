//! The address of a UPS in NUT's notation: `NAME`, `NAME@HOST`, `NAME@HOST:PORT`.

use crate::nut::{PORT, WORD_BYTES_MAX};
use forebay_types::{Blame, Fault, Remedy};
use std::{fmt, str::FromStr};

/// The address of a UPS on a NUT server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NutAddress {
    /// The server's name for the UPS.
    pub name: String,
    /// The server's IP address or host name; an IPv6 address without brackets.
    pub host: String,
    /// The server's port.
    pub port: u16,
}

/// A malformed address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}': {problem}")]
pub struct AddressError {
    text: String,
    problem: &'static str,
}

impl Fault for AddressError {
    fn remedy(&self) -> Remedy {
        "write NAME@HOST:PORT, as in rack-a@192.0.2.7 or rack-a@[::1]:3493".into()
    }

    fn blame(&self) -> Blame {
        Blame::Operator
    }
}

impl FromStr for NutAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let fail = |problem| AddressError { text: text.chars().take(256).collect(), problem };
        let (name, place) = text.split_once('@').unwrap_or((text, "localhost"));
        let of_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(of_name) || name.len() > WORD_BYTES_MAX {
            return Err(fail("invalid or missing UPS name"));
        }
        let (host, port) = match place.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or(fail("'[' without ']'"))?;
                if host.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(fail("no IPv6 address in the brackets"));
                }
                let port = match after.strip_prefix(':') {
                    Some(port) => Some(port),
                    None if after.is_empty() => None,
                    None => return Err(fail("only a port may follow the brackets")),
                };
                (host, port)
            }
            None => match place.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(fail("IPv6 address without brackets"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        let of_host = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if host.is_empty() || !host.chars().all(of_host) {
            return Err(fail("invalid or missing host"));
        }
        let port = match port {
            None => PORT,
            Some(port) => match port.parse() {
                Ok(port) if port != 0 => port,
                _ => return Err(fail("the port must be 1 to 65535")),
            },
        };
        Ok(Self { name: name.to_owned(), host: host.to_owned(), port })
    }
}

impl fmt::Display for NutAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "{}@[{}]:{}", self.name, self.host, self.port),
            false => write!(f, "{}@{}:{}", self.name, self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_all_forms() {
        for (text, shown) in [
            ("lab", "lab@localhost:3493"),
            ("lab@nas", "lab@nas:3493"),
            ("lab@192.0.2.7:13493", "lab@192.0.2.7:13493"),
            ("lab@[::1]", "lab@[::1]:3493"),
            ("lab@[::1]:99", "lab@[::1]:99"),
        ] {
            let address: NutAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(shown.parse(), Ok(address));
        }
    }

    #[test]
    fn rejects_malformed_addresses() {
        for text in [
            "",
            "@nas",
            "a b@nas",
            "lab@",
            "lab@:99",
            "lab@nas:",
            "lab@nas:0",
            "lab@nas:65536",
            "lab@::1",
            "lab@[::1",
            "lab@[x]",
            "lab@[::1]9",
            "lab@na s",
            "lab@nas\n",
            "lab@a@b",
        ] {
            let error = text.parse::<NutAddress>().unwrap_err();
            assert!(error.explained().contains("NAME@HOST:PORT"), "{text}");
        }
    }
}
