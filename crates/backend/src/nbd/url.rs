//! Export URLs: `nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`.

use super::{NbdError, NbdTls};
use crate::SpecError;
use crate::spec::{Fields, duration_ns, percent_decode};
use forebay_nbd::proto::STRING_BYTES_MAX;
use std::net::IpAddr;
use std::path::PathBuf;

/// The default port.
const PORT: u16 = 10809;
/// The options: of Unix sockets, of TLS, of all.
const KNOWN: [&str; 5] =
    ["socket", "tls-certificates", "tls-hostname", "reconnect-delay", "keeps-writes"];

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// A host, by name or address, and a port.
    Tcp {
        /// Name or address, an IPv6 address without its brackets.
        host: String,
        port: u16,
    },
    /// A Unix socket.
    Unix { path: PathBuf },
}

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUrl {
    /// Where the server listens.
    pub address: NbdAddress,
    /// The name of the export; empty for the server's default. At most 4096 bytes, no NUL.
    pub export: String,
    /// How to reach the server over TLS; `None` for plain text.
    pub tls: Option<NbdTls>,
    /// How long I/O waits for a lost server before it fails, in seconds; `None` for the default.
    pub reconnect_seconds: Option<u32>,
    /// Whether the server, or the one that comes after it, has every write that was answered.
    pub keeps_writes: bool,
}

impl NbdUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// If it is malformed, or names an export that the protocol cannot name.
    pub fn parse(url: &str) -> Result<Self, NbdError> {
        let fail = || NbdError::Address { url: url.to_owned() };
        let (scheme, rest) = url.split_once("://").ok_or_else(fail)?;
        let (is_unix, is_tls, known): (_, _, &[&str]) = match scheme {
            "nbd" => (false, false, &KNOWN[3..]),
            "nbd+unix" => (true, false, &[KNOWN[0], KNOWN[3], KNOWN[4]]),
            "nbds" => (false, true, &KNOWN[1..]),
            "nbds+unix" => (true, true, &KNOWN),
            _ => return Err(fail()),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // Only the first slash separates: the export of nbd://h//x is called /x.
        let export = percent_decode(path)?;
        if export.len() > STRING_BYTES_MAX {
            return Err(NbdError::LongName { bytes: export.len(), max: STRING_BYTES_MAX });
        }
        let fields = Fields::parse(scheme, query, '&', known)?;
        let address = if is_unix {
            let Some(path) = fields.text("socket") else {
                return Err(fields.missing("socket", "/run/nbd.sock").into());
            };
            if !authority.is_empty() {
                return Err(fail());
            }
            NbdAddress::Unix { path: path.into() }
        } else {
            let (host, port) = split_authority(authority).ok_or_else(fail)?;
            NbdAddress::Tcp { host: percent_decode(host)?, port }
        };
        let tls = if is_tls { Some(tls_of(&fields, &address)?) } else { None };
        let delay_ns = fields.get("reconnect-delay", "5min", duration_ns)?;
        let reconnect_seconds = delay_ns.map(|ns| ns.div_ceil(1_000_000_000) as u32);
        let keeps_writes = fields.get("keeps-writes", "yes", yes_or_no)?.unwrap_or(false);
        Ok(Self { address, export, tls, reconnect_seconds, keeps_writes })
    }

    /// Identifies the export. URLs that differ only in the percent-encoding, the spelling of the
    /// host or an explicit default port have the same identity; other names of the same host do
    /// not.
    pub(super) fn identity(&self) -> String {
        match &self.address {
            NbdAddress::Tcp { host, port } => {
                // An address has several spellings, and a name ignores case.
                let host = match host.parse::<IpAddr>() {
                    Ok(address) => address.to_string(),
                    Err(_) => host.to_ascii_lowercase(),
                };
                format!("nbd:{host}:{port}/{}", self.export)
            }
            NbdAddress::Unix { path } => format!("nbd:{}/{}", path.display(), self.export),
        }
    }
}

/// How to reach a server at this address over TLS.
fn tls_of(fields: &Fields<'_>, address: &NbdAddress) -> Result<NbdTls, SpecError> {
    let Some(certificates) = fields.text("tls-certificates") else {
        return Err(fields.missing("tls-certificates", "/etc/forebay/nbd-tls"));
    };
    let hostname = match (fields.text("tls-hostname"), address) {
        (Some(name), _) => name,
        (None, NbdAddress::Tcp { host, .. }) => host,
        (None, NbdAddress::Unix { .. }) => "localhost",
    };
    Ok(NbdTls { certificates: certificates.into(), hostname: hostname.to_owned() })
}

fn yes_or_no(value: &str) -> Option<bool> {
    match value {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

/// Splits `HOST:PORT`, `HOST`, `[V6]:PORT` or `[V6]`.
fn split_authority(authority: &str) -> Option<(&str, u16)> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    let port = match port {
        None | Some("") => PORT,
        Some(port) => port.parse().ok().filter(|&port| port != 0)?,
    };
    (!host.is_empty() && !host.contains('@')).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    fn tcp(host: &str, port: u16, export: &str) -> NbdUrl {
        let address = NbdAddress::Tcp { host: host.into(), port };
        let export = export.into();
        NbdUrl { address, export, tls: None, reconnect_seconds: None, keeps_writes: false }
    }

    #[test]
    fn urls_are_parsed() {
        for (url, expected) in [
            ("nbd://h", tcp("h", PORT, "")),
            ("nbd://h/", tcp("h", PORT, "")),
            ("nbd://h/x", tcp("h", PORT, "x")),
            ("nbd://h//x", tcp("h", PORT, "/x")),
            ("nbd://h:7/a%20b%2Fc/d", tcp("h", 7, "a b/c/d")),
            ("nbd://[fe80::1]:7/x", tcp("fe80::1", 7, "x")),
            ("nbd://[::1]", tcp("::1", PORT, "")),
        ] {
            assert_eq!(NbdUrl::parse(url).unwrap(), expected, "{url}");
        }
        let unix = NbdUrl::parse("nbd+unix:///disk%201?socket=/run/a%26b.sock").unwrap();
        assert_eq!(unix.address, NbdAddress::Unix { path: "/run/a&b.sock".into() });
        assert_eq!(unix.export, "disk 1");
        assert_eq!(unix.identity(), "nbd:/run/a&b.sock/disk 1");
    }

    #[test]
    fn an_export_has_one_identity_under_all_spellings_of_its_host() {
        let identity = |url| NbdUrl::parse(url).unwrap().identity();
        assert_eq!(identity("nbd://HOST.example/x"), identity("nbd://host.Example:10809/x"));
        assert_eq!(identity("nbd://[FE80:0:0::1]/x"), identity("nbd://[fe80::1]/x"));
        assert_eq!(identity("nbd://%68ost/x"), identity("nbd://host/x"));
        // The server decides what case means in the name of an export.
        assert_ne!(identity("nbd://host/X"), identity("nbd://host/x"));
    }

    #[test]
    fn malformed_urls_are_refused() {
        for url in [
            "nbd:",
            "nbd:h",
            "nbd://",
            "nbd:///x",
            "nbd://h:0/x",
            "nbd://h:port/x",
            "nbd://[::1/x",
            "nbd://[::1]7/x",
            "nbd://me@h/x",
            "nbd+unix://h/x?socket=/s",
        ] {
            assert!(matches!(NbdUrl::parse(url), Err(NbdError::Address { .. })), "{url}");
        }
        let message = |url| NbdUrl::parse(url).unwrap_err().explained();
        assert_eq!(message("nbd+unix:///x"), "nbd+unix needs socket: add socket=/run/nbd.sock");
        let expected = "nbds needs tls-certificates: add tls-certificates=/etc/forebay/nbd-tls";
        assert_eq!(message("nbds://h/x"), expected);
        assert!(message("nbd://h/x?tls-certificates=/a").contains("no option"));
        assert!(message("nbd://h/x?reconnect-delay=5").contains("write it like 5min"));
        let expected = "write it like yes";
        assert!(message("nbd://h/x?keeps-writes=1").contains(expected));
        assert!(message("nbd://h/%zz").contains("%25"));
        assert!(message("nbd://h/x?socket=/s").contains("no option 'socket'"));
    }

    #[test]
    fn export_names_that_the_protocol_cannot_carry_are_refused() {
        let message = |url: &str| NbdUrl::parse(url).unwrap_err().explained();
        let long = "x".repeat(STRING_BYTES_MAX + 1);
        let expected = "the name of the export has 4097 bytes, and the NBD protocol allows 4096: \
                        give the export a shorter name on its server";
        assert_eq!(message(&format!("nbd://h/{long}")), expected);
        assert_eq!(message(&format!("nbd+unix:///{long}?socket=/s")), expected);
        // The decoded name counts.
        let encoded = "%41".repeat(STRING_BYTES_MAX);
        assert_eq!(NbdUrl::parse(&format!("nbd://h/{encoded}")).unwrap().export.len(), 4096);
        let expected = "'a%00b' contains a NUL byte: remove %00";
        assert_eq!(message("nbd://h/a%00b"), expected);
    }
}
