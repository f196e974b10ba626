//! Addresses of listeners: `unix:PATH[,mode=MODE][,owner=USER][,group=GROUP]` and `tcp:HOST:PORT`.

use crate::{ConfigError, ConfigResult, Mistake};
use forebay_types::{Action, Remedy};
use std::path::{Path, PathBuf};
use std::{fmt, str::FromStr};

/// Longest path of a Unix socket, in bytes: the kernel's limit is 108 with the NUL.
pub const UNIX_PATH_BYTES_MAX: usize = 107;

const FORMS: &str = "write unix:PATH or tcp:HOST:PORT, as in unix:/run/forebay/nbd.sock, \
                     tcp:127.0.0.1:10809 or tcp:[::1]:10809";
const OPTIONS: &str = "the options of a Unix socket are mode=MODE, owner=USER and group=GROUP, \
                       each at most once, as in unix:/run/forebay/nbd.sock,mode=0660,group=kvm";

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// A Unix stream socket.
    Unix {
        path: PathBuf,
        /// Which users may connect.
        access: SocketAccess,
    },
    /// A TCP port.
    Tcp {
        /// An address or a host name; an IPv6 address is kept without its brackets.
        host: String,
        /// The port; 0 lets the system choose one.
        port: u16,
    },
}

/// The mode, owner and group of a Unix socket. What is not set is the server's own, and the mode
/// without a group or an owner that of its umask.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SocketAccess {
    /// At most 0o777.
    pub mode: Option<u32>,
    /// The name or number of a user, not looked up yet.
    pub owner: Option<String>,
    /// The name or number of a group, not looked up yet.
    pub group: Option<String>,
}

impl SocketAccess {
    /// The mode: unless it is set, a group or an owner that is set may connect, nobody else.
    pub fn effective_mode(&self) -> Option<u32> {
        match self {
            Self { mode: Some(mode), .. } => Some(*mode),
            Self { group: Some(_), .. } => Some(0o660),
            Self { owner: Some(_), .. } => Some(0o600),
            Self { owner: None, .. } => None,
        }
    }

    fn set(&mut self, option: &str) -> ConfigResult<()> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let name = match key {
            "mode" if self.mode.is_none() => {
                self.mode = Some(mode(value)?);
                return Ok(());
            }
            "owner" if self.owner.is_none() => &mut self.owner,
            "group" if self.group.is_none() => &mut self.group,
            "mode" | "owner" | "group" => return refuse(format!("{key} is given twice"), OPTIONS),
            _ => return refuse(format!("unknown option '{option}'"), OPTIONS),
        };
        if value.is_empty() || value.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return refuse(format!("{key} '{value}' is not a name"), OPTIONS);
        }
        *name = Some(value.to_owned());
        Ok(())
    }
}

fn refuse<T>(message: String, remedy: &'static str) -> ConfigResult<T> {
    Err(ConfigError::new(Mistake::Value, message, remedy))
}

/// Parses the mode of a socket.
fn mode(text: &str) -> ConfigResult<u32> {
    let is_octal =
        (1..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    match u32::from_str_radix(text, 8) {
        Ok(mode @ 0..=0o777) if is_octal => Ok(mode),
        Ok(_) if is_octal => refuse(
            format!("mode '{text}' is above 0777"),
            "a socket has no setuid, setgid or sticky bit",
        ),
        _ => refuse(
            format!("mode '{text}' is not octal"),
            "write up to four octal digits, as in mode=0660",
        ),
    }
}

/// Whether a text begins with letters and `=`.
fn begins_with_key(text: &str) -> bool {
    let key = text.split_once('=').map_or("", |(key, _)| key);
    !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphabetic())
}

impl fmt::Display for SocketAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(mode) = self.mode {
            write!(f, ",mode={mode:04o}")?;
        }
        if let Some(owner) = &self.owner {
            write!(f, ",owner={owner}")?;
        }
        if let Some(group) = &self.group {
            write!(f, ",group={group}")?;
        }
        Ok(())
    }
}

impl Listen {
    /// A Unix socket from its text without `unix:`. A path may contain commas: the options begin at
    /// the first comma that is followed by a possible key and `=`, so that a mistyped key is
    /// reported and not taken as part of the path.
    fn unix_with_options(text: &str) -> ConfigResult<Self> {
        let first = text.match_indices(',').find(|(at, _)| begins_with_key(&text[at + 1..]));
        let (path, options) = match first {
            Some((at, _)) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        };
        let mut socket_access = SocketAccess::default();
        for option in options.into_iter().flat_map(|options| options.split(',')) {
            let listener = format_args!("listener 'unix:{path}'");
            socket_access.set(option).map_err(|error| error.about(listener))?;
        }
        match Self::unix(path)? {
            Self::Unix { path, .. } => Ok(Self::Unix { path, access: socket_access }),
            tcp @ Self::Tcp { .. } => Ok(tcp),
        }
    }

    /// Returns true if both cannot be listened at together.
    #[must_use]
    pub fn is_at(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unix { path, .. }, Self::Unix { path: other, .. }) => path == other,
            // The system chooses a different port each time.
            (Self::Tcp { port: 0, .. }, _) => false,
            _ => self == other,
        }
    }

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
        Ok(Self::Unix { path, access: SocketAccess::default() })
    }

    fn tcp(text: &str) -> ConfigResult<Self> {
        let fail = |problem: &str, remedy: &'static str| {
            let message = format!("listener 'tcp:{text}' {problem}");
            Err(ConfigError::new(Mistake::Value, message, remedy))
        };
        if text.contains(',') {
            return fail("has options, which only a Unix socket has", FORMS);
        }
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

/// A directory with a socket for each volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketDirectory(Listen);

impl SocketDirectory {
    /// The socket of a volume.
    ///
    /// # Errors
    /// The path is too long for a socket.
    pub fn socket_of(&self, volume: &str) -> ConfigResult<Listen> {
        match &self.0 {
            Listen::Unix { path, access } => {
                match Listen::unix(path.join(format!("{volume}.sock")))? {
                    Listen::Unix { path, .. } => Ok(Listen::Unix { path, access: access.clone() }),
                    tcp @ Listen::Tcp { .. } => Ok(tcp),
                }
            }
            tcp @ Listen::Tcp { .. } => Ok(tcp.clone()),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        match &self.0 {
            Listen::Unix { path, .. } => path,
            Listen::Tcp { host, .. } => Path::new(host),
        }
    }
}

impl FromStr for SocketDirectory {
    type Err = ConfigError;

    fn from_str(text: &str) -> ConfigResult<Self> {
        if text.is_empty() {
            return refuse("vhost-user names no directory".to_owned(), "name one, or leave it out");
        }
        Listen::unix_with_options(text).map(Self)
    }
}

impl fmt::Display for SocketDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(text.strip_prefix("unix:").unwrap_or(&text))
    }
}

impl FromStr for Listen {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("unix", path)) => Self::unix_with_options(path),
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
            Self::Unix { path, access } => write!(f, "unix:{}{access}", path.display()),
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
            "unix:a,b.sock",
            "unix:a,b.sock,mode=0666",
            "unix:nbd.sock,mode=0660,owner=libvirt-qemu,group=kvm",
            "unix:nbd.sock,group=108",
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
            ("unix:a,mode=0668", "mode '0668' is not octal"),
            ("unix:a,mode=rw", "mode 'rw' is not octal"),
            ("unix:a,mode=+66", "mode '+66' is not octal"),
            ("unix:a,mode=", "mode '' is not octal"),
            ("unix:a,mode=1777", "mode '1777' is above 0777"),
            ("unix:a,mode=0600,mode=0660", "mode is given twice"),
            ("unix:a,group=kvm,group=kvm", "group is given twice"),
            ("unix:a,owner=", "owner '' is not a name"),
            ("unix:a,owner=a b", "owner 'a b' is not a name"),
            ("unix:a,mod=0660", "listener 'unix:a': unknown option 'mod=0660'"),
            ("unix:a,mode=0660,kvm", "unknown option 'kvm'"),
            ("unix:,mode=0660", "is empty"),
            ("tcp:localhost:1,mode=0660", "has options, which only a Unix socket has"),
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
    fn a_group_or_owner_alone_admits_nobody_else() {
        for (text, mode) in [
            ("unix:a", None),
            ("unix:a,owner=qemu", Some(0o600)),
            ("unix:a,group=kvm", Some(0o660)),
            ("unix:a,owner=qemu,group=kvm", Some(0o660)),
            ("unix:a,mode=0666,group=kvm", Some(0o666)),
        ] {
            let Ok(Listen::Unix { access, .. }) = text.parse() else { panic!("{text}") };
            assert_eq!(access.effective_mode(), mode, "{text}");
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
            text in "(unix:|tcp:)?[\\[\\]:.,a-z0-9/ ]{0,20}(:[0-9]{1,6})?\
                    (,mode=[0-7]{3,4})?(,[a-z]{5}=[a-z]{1,3})?(,group=[a-z0-9,=]{1,4})?"
        ) {
            if let Ok(listen) = text.parse::<Listen>() {
                prop_assert_eq!(listen.to_string().parse(), Ok(listen));
            }
        }
    }
}
