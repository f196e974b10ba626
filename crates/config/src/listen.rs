//! Addresses of listeners: `unix:PATH` and `tcp:HOST:PORT`.

use crate::{ConfigError, ConfigResult, Mistake};
use forebay_types::{Action, Remedy};
use std::{fmt, path::PathBuf, str::FromStr};

/// Longest path of a Unix socket, in bytes: the kernel's limit is 108 with the NUL.
pub const UNIX_PATH_BYTES_MAX: usize = 107;

const FORMS: &str = "write unix:PATH or tcp:HOST:PORT, as in unix:/run/forebay/nbd.sock, \
                     tcp:127.0.0.1:10809 or tcp:[::1]:10809";

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// A Unix stream socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// An address or a host name; an IPv6 address is kept without its brackets.
        host: String,
        /// The port; 0 lets the system choose one.
        port: u16,
    },
}

impl Listen {
    /// The Unix socket at `path`.
    ///
    /// # Errors
    /// The path is empty, too long for a socket, contains a control character or is not UTF-8.
    pub fn unix(path: impl Into<PathBuf>) -> ConfigResult<Self> {
        let path = path.into();
        let fail = |problem: String, remedy: Remedy| {
            Err(ConfigError::new(Mistake::Value, format!("socket path {problem}"), remedy))
        };
        let Some(text) = path.to_str() else {
            return fail(format!("{path:?} is not UTF-8"), "choose another path".into());
        };
        if text.is_empty() {
            return fail("'' is empty".into(), FORMS.into());
        }
        if text.chars().any(char::is_control) {
            return fail(
                format!("{text:?} contains a control character"),
                "choose another path".into(),
            );
        }
        if text.len() > UNIX_PATH_BYTES_MAX {
            return fail(
                format!("'{text}' has {} bytes, more than {UNIX_PATH_BYTES_MAX}", text.len()),
                Remedy::from("choose a shorter path").or(Action::set("state", "DIR")),
            );
        }
        Ok(Self::Unix(path))
    }

    fn tcp(text: &str) -> ConfigResult<Self> {
        let fail = |problem: &str, remedy: &'static str| {
            let message = format!("listener 'tcp:{text}' {problem}");
            Err(ConfigError::new(Mistake::Value, message, remedy))
        };
        let Some((host, port)) = text.rsplit_once(':') else {
            return fail("has no port", FORMS);
        };
        let host = match host.strip_prefix('[').map(|inner| inner.strip_suffix(']')) {
            Some(Some(inner)) if inner.parse::<std::net::Ipv6Addr>().is_ok() => inner,
            Some(_) => return fail("has no valid IPv6 address in its brackets", FORMS),
            None if host.contains(':') => {
                return fail(
                    "has an IPv6 address without brackets",
                    "write it like tcp:[::1]:10809",
                );
            }
            None => host,
        };
        if host.is_empty() {
            return fail("has no host", "for every address write tcp:[::]:10809");
        }
        // An IPv6 address with a zone (`%`) has been refused above.
        let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
        if !host.chars().all(allowed) {
            return fail("has a host that is neither a name nor an address", FORMS);
        }
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return fail("has a port that is not a number", FORMS);
        }
        match port.parse() {
            Ok(port) => Ok(Self::Tcp { host: host.to_owned(), port }),
            Err(_) => fail("has no port between 0 and 65535", FORMS),
        }
    }
}

/// A TCP address to listen at: `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TcpAddress {
    /// An address or a host name; an IPv6 address is kept without its brackets.
    pub host: String,
    /// The port; 0 lets the system choose one.
    pub port: u16,
}

impl FromStr for TcpAddress {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match Listen::tcp(text) {
            Ok(Listen::Tcp { host, port }) => Ok(Self { host, port }),
            _ => {
                let shown: String = text.chars().take(256).collect();
                let message = format!("invalid address {shown:?}");
                let help = "write HOST:PORT, as in 127.0.0.1:8080 or [::1]:8080";
                Err(ConfigError::new(Mistake::Value, message, help))
            }
        }
    }
}

impl fmt::Display for TcpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Listen {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("unix", path)) => Self::unix(path),
            Some(("tcp", address)) => Self::tcp(address),
            _ => {
                let message = format!("invalid listener {text:?}");
                Err(ConfigError::new(Mistake::Syntax, message, FORMS))
            }
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;
    use proptest::prelude::*;

    #[test]
    fn listeners_are_displayed_as_they_are_parsed() {
        for text in [
            "unix:/run/forebay/nbd.sock",
            "unix:here.sock",
            "tcp:127.0.0.1:10809",
            "tcp:[::1]:0",
            "tcp:[::]:10809",
            "tcp:storage-1.example:65535",
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_invalid_listener_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "invalid listener"),
            ("/run/nbd.sock", "invalid listener"),
            ("unix:", "is empty"),
            ("unix:a\0b", "control character"),
            ("tcp:localhost", "no port"),
            ("tcp::10809", "no host"),
            ("tcp:::1:10809", "without brackets"),
            ("tcp:[::g]:10809", "no valid IPv6 address in its brackets"),
            ("tcp:[::1:10809", "no valid IPv6 address in its brackets"),
            ("tcp:a b:1", "neither a name nor an address"),
            ("tcp:a:65536", "no port between"),
            ("tcp:a:+1", "not a number"),
            ("tcp:a:", "no port between"),
        ] {
            let error = text.parse::<Listen>().unwrap_err().explained();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_tcp_address_is_a_host_and_a_port() {
        for text in ["127.0.0.1:8080", "[::1]:0", "nas.example:65535"] {
            assert_eq!(text.parse::<TcpAddress>().unwrap().to_string(), text);
        }
        for text in ["", "8080", ":8080", "::1:8080", "tcp:127.0.0.1:80", "a:b", "a:65536"] {
            let error = text.parse::<TcpAddress>().unwrap_err().explained();
            assert!(error.starts_with("invalid address") && error.contains("HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn a_socket_path_may_have_107_bytes() {
        assert!(format!("unix:/{}", "x".repeat(106)).parse::<Listen>().is_ok());
        let error = format!("unix:/{}", "x".repeat(107)).parse::<Listen>().unwrap_err();
        assert!(error.explained().contains("has 108 bytes"), "{error}");
    }

    proptest! {
        #[test]
        fn every_parsed_listener_is_displayed_so_that_it_parses_the_same(
            text in "(unix:|tcp:)?[\\[\\]:.a-z0-9/ ]{0,20}(:[0-9]{1,6})?"
        ) {
            if let Ok(listen) = text.parse::<Listen>() {
                prop_assert_eq!(listen.to_string().parse(), Ok(listen));
            }
        }
    }
}
