//! The address at which metrics are served.

use crate::{ConfigError, ConfigResult, Mistake};
use std::{fmt, net::SocketAddr, str::FromStr};

const FORMS: &str = "write ADDRESS:PORT, as in 127.0.0.1:9101 or [::1]:9101";

/// A TCP address of this machine alone; port 0 lets the system choose one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MetricsAddress(SocketAddr);

impl MetricsAddress {
    /// The address and the port.
    pub const fn get(self) -> SocketAddr {
        self.0
    }
}

impl FromStr for MetricsAddress {
    type Err = ConfigError;

    fn from_str(text: &str) -> ConfigResult<Self> {
        let fail = |mistake, problem: &str, remedy: &'static str| {
            Err(ConfigError::new(mistake, format!("address of metrics {text:?} {problem}"), remedy))
        };
        match text.parse::<SocketAddr>() {
            Err(_) => fail(Mistake::Syntax, "is not an IP address with a port", FORMS),
            Ok(address) if !address.ip().is_loopback() => fail(
                Mistake::Value,
                "can be reached from other machines, and nothing would be encrypted",
                "write 127.0.0.1:PORT or [::1]:PORT, and let a proxy with TLS pass it on",
            ),
            Ok(address) => Ok(Self(address)),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    #[test]
    fn an_address_of_this_machine_is_taken_and_any_other_one_refused() {
        for text in ["127.0.0.1:9101", "127.1.2.3:0", "[::1]:65535"] {
            assert_eq!(text.parse::<MetricsAddress>().unwrap().to_string(), text);
        }
        for (text, reason) in [
            ("", "is not an IP address"),
            ("9101", "is not an IP address"),
            (":9101", "is not an IP address"),
            ("127.0.0.1", "is not an IP address"),
            ("127.0.0.1:65536", "is not an IP address"),
            ("127.0.0.1:-1", "is not an IP address"),
            ("::1:9101", "is not an IP address"),
            ("localhost:9101", "is not an IP address"),
            ("tcp:127.0.0.1:9101", "is not an IP address"),
            ("127.0.0.1:9101\n", "is not an IP address"),
            ("0.0.0.0:9101", "can be reached from other machines"),
            ("[::]:9101", "can be reached from other machines"),
            ("192.168.0.1:9101", "can be reached from other machines"),
            ("[::ffff:127.0.0.1]:9101", "can be reached from other machines"),
        ] {
            let error = text.parse::<MetricsAddress>().unwrap_err().explained();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
