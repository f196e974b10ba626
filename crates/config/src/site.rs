//! Where the hosts of a site are.

use crate::{ConfigError, ConfigResult, Mistake, Settings};
use forebay_types::Action;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

const FORMS: &str = "write the address of a dashboard, https://HOST:PORT, or srv:NAME, or \
                     etcd:https://HOST:PORT/PREFIX";
/// The longest host name, and the longest prefix, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The address of an HTTP server: its text is `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HttpAddress {
    /// Whether the connection is encrypted.
    pub is_tls: bool,
    /// A name or an IP address, an IPv6 one without brackets.
    pub host: String,
    /// The port, not 0.
    pub port: u16,
}

impl HttpAddress {
    /// Whether a token may be sent to it: it is encrypted, or on this machine.
    pub fn is_private(&self) -> bool {
        self.is_tls
            || self.host == "localhost"
            || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// The host with its port, an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl FromStr for HttpAddress {
    type Err = ConfigError;

    fn from_str(text: &str) -> ConfigResult<Self> {
        let (is_tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return refuse(text, "is no address of a host"),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let Some((host, port)) = rest.rsplit_once(':') else {
            return refuse(text, "has no port");
        };
        let host = match host.strip_prefix('[') {
            Some(host) => {
                let host = host.strip_suffix(']').unwrap_or_default();
                if host.parse::<std::net::Ipv6Addr>().is_err() {
                    return refuse(text, "has no valid IPv6 address");
                }
                host
            }
            None if is_name(host) => host,
            None => return refuse(text, "has no valid host"),
        };
        let is_digits = port.bytes().all(|byte| byte.is_ascii_digit());
        match port.parse::<u16>() {
            Ok(port) if port > 0 && is_digits => {
                Ok(Self { is_tls, host: host.to_ascii_lowercase(), port })
            }
            _ => refuse(text, "has no valid port"),
        }
    }
}

/// What names hosts of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SiteSource {
    /// One host, by the address of its dashboard.
    Host(HttpAddress),
    /// The targets of the DNS records of the type SRV of this name; each has an encrypted
    /// dashboard.
    Srv(String),
    /// The values of the keys of an etcd that begin with a prefix: addresses of dashboards.
    Etcd {
        /// The address of etcd's clients.
        address: HttpAddress,
        /// What the keys begin with; not empty.
        prefix: String,
    },
}

impl SiteSource {
    /// Whether the hosts are named elsewhere than in the configuration.
    pub const fn is_elsewhere(&self) -> bool {
        !matches!(self, Self::Host(_))
    }
}

impl FromStr for SiteSource {
    type Err = ConfigError;

    fn from_str(text: &str) -> ConfigResult<Self> {
        if let Some(name) = text.strip_prefix("srv:") {
            return match is_name(name) {
                true => Ok(Self::Srv(name.to_ascii_lowercase())),
                false => refuse(text, "has no valid name"),
            };
        }
        if let Some(rest) = text.strip_prefix("etcd:") {
            let after_scheme = rest.find("://").map_or(0, |at| at + 3);
            let Some(at) = rest[after_scheme..].find('/').map(|at| at + after_scheme) else {
                return refuse(text, "has no prefix of keys");
            };
            let (address, prefix) = (rest[..at].parse()?, &rest[at + 1..]);
            let is_prefix = prefix.bytes().all(|byte| byte.is_ascii_graphic());
            return match is_prefix && (1..=NAME_BYTES_MAX).contains(&prefix.len()) {
                true => Ok(Self::Etcd { address, prefix: prefix.to_owned() }),
                false => refuse(text, "has no prefix of keys"),
            };
        }
        let address: HttpAddress = text.parse()?;
        if !address.is_private() {
            return Err(ConfigError::new(
                Mistake::Value,
                format!("host of the site {text:?} is not encrypted"),
                "write https://HOST:PORT: a dashboard that other machines can reach is encrypted",
            ));
        }
        Ok(Self::Host(address))
    }
}

impl fmt::Display for SiteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(address) => address.fmt(f),
            Self::Srv(name) => write!(f, "srv:{name}"),
            Self::Etcd { address, prefix } => write!(f, "etcd:{address}/{prefix}"),
        }
    }
}

/// The settings of the site.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SiteSettings {
    /// What names its hosts; empty if the server watches none.
    pub sources: Vec<SiteSource>,
    /// A file with the authority that has issued their certificates; one of the system's without.
    pub ca: Option<PathBuf>,
}

impl SiteSettings {
    /// Checks the settings together.
    pub(crate) fn checked(settings: &Settings) -> ConfigResult<Self> {
        let (sources, ca) = (settings.site.clone(), settings.site_ca.clone());
        if sources.is_empty() && ca.is_some() {
            let message = "site-ca is set, but there is no site";
            return Err(ConfigError::new(Mistake::Value, message, Action::set("site", "HOST")));
        }
        // An attacker who controls DNS or etcd could add a host of his own, with a certificate of a
        // public authority, and receive the token.
        let elsewhere = sources.iter().find(|source| source.is_elsewhere());
        if let Some(source) = elsewhere
            && ca.is_none()
            && settings.dashboard_tokens.is_some()
        {
            let message = format!(
                "any host that {source} names would receive a token of dashboard-tokens, even an \
                 attacker's"
            );
            return Err(ConfigError::new(Mistake::Value, message, Action::set("site-ca", "FILE")));
        }
        Ok(Self { sources, ca })
    }
}

/// Whether a text is a host name, an IPv4 address, or the name of a DNS record.
fn is_name(text: &str) -> bool {
    text.len() <= NAME_BYTES_MAX && text.strip_suffix('.').unwrap_or(text).split('.').all(is_label)
}

fn is_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

fn refuse<T>(text: &str, problem: &str) -> ConfigResult<T> {
    let shown: String = text.chars().take(NAME_BYTES_MAX).collect();
    let message = format!("host of the site {shown:?} {problem}");
    Err(ConfigError::new(Mistake::Value, message, FORMS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read_and_shown_alike() {
        for text in [
            "https://nas1.example:8443",
            "https://10.0.0.1:1",
            "https://[2001:db8::1]:65535",
            "http://127.0.0.1:8080",
            "http://[::1]:8080",
            "http://localhost:8080",
            "srv:_forebay._tcp.example.com",
            "etcd:https://etcd1.example:2379/forebay/hosts/",
            "etcd:http://10.0.0.1:2379/x",
        ] {
            assert_eq!(text.parse::<SiteSource>().unwrap().to_string(), text);
        }
        let lax: SiteSource = "https://NAS1.example:8443/".parse().unwrap();
        assert_eq!(lax.to_string(), "https://nas1.example:8443");
    }

    #[test]
    fn what_is_no_source_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "is no address"),
            ("nas1:8443", "is no address"),
            ("ftp://nas1:8443", "is no address"),
            ("https://nas1", "has no port"),
            ("https://nas1:0", "no valid port"),
            ("https://nas1:+1", "no valid port"),
            ("https://nas1:65536", "no valid port"),
            ("https://:8443", "no valid host"),
            ("https://user@nas1:8443", "no valid host"),
            ("https://nas1:8443/status", "no valid port"),
            ("https://[nas1]:8443", "no valid IPv6"),
            ("https://[::1:8443", "no valid IPv6"),
            ("http://nas1.example:8443", "is not encrypted"),
            ("http://10.0.0.1:8443", "is not encrypted"),
            ("srv:", "no valid name"),
            ("srv:a b", "no valid name"),
            ("srv:a..b", "no valid name"),
            ("etcd:https://etcd1:2379", "no prefix"),
            ("etcd:https://etcd1:2379/", "no prefix"),
            ("etcd:etcd1:2379/x", "is no address"),
            ("etcd:https://etcd1/x", "has no port"),
        ] {
            let error = text.parse::<SiteSource>().unwrap_err();
            assert!(error.to_string().contains(reason), "{text}: {error}");
        }
    }
}
