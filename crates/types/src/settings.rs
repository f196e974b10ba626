//! The settings of a volume and of the program. The command line, the configuration file, the
//! control API with its description, the help texts, what a reload reports, and the tables of the
//! manual are derived from two tables: [`PROGRAM_SETTINGS`], and [`VOLUME_SETTINGS`], which also
//! makes the type that has the values, [`VolumeConfig`].
//!
//! [`VOLUME_SETTINGS`]: crate::VOLUME_SETTINGS
//! [`VolumeConfig`]: crate::VolumeConfig

/// A setting of a volume or of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name on the command line and in the configuration file; the API has `_` for `-`.
    pub key: &'static str,
    /// Its values, separated by `|`; capitals are placeholders, `1-9` is a range, and `...` follows
    /// if there may be several.
    pub values: &'static str,
    /// The default value; empty if there is none, or if it depends on other settings.
    pub default: &'static str,
    /// Whether it can change while the volume is served, or the program runs.
    pub is_live: bool,
    /// Its meaning, in one line.
    pub help: &'static str,
}

impl Setting {
    /// Finds the setting with a name in a table.
    pub fn find(key: &str, table: &'static [Self]) -> Option<&'static Self> {
        table.iter().find(|setting| setting.key == key)
    }

    /// Its name in the API.
    pub fn field(&self) -> String {
        self.key.replace('-', "_")
    }

    /// Whether it is a boolean in the API.
    pub fn is_switch(&self) -> bool {
        self.values == "yes|no"
    }

    /// Whether it may have several values.
    pub fn is_list(&self) -> bool {
        self.values.ends_with("...")
    }

    /// Its values, if all of them are words.
    pub fn words(&self) -> Option<Vec<&'static str>> {
        let words: Vec<_> = self.values.split('|').collect();
        let is_word =
            |word: &&str| !word.contains(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit());
        words.iter().all(is_word).then_some(words)
    }
}

/// A setting that can change while it is in use.
pub(crate) const fn live(
    key: &'static str,
    values: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, values, default, is_live: true, help }
}

/// A setting that cannot change while it is in use.
pub(crate) const fn fixed(
    key: &'static str,
    values: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, values, default, is_live: false, help }
}

/// All settings of the program, in the order of help texts.
pub const PROGRAM_SETTINGS: [Setting; 33] = [
    live(
        "memory",
        "SIZE|auto",
        "auto",
        "memory for the cache, at least 32MiB; `auto` begins with an eighth of the available \
         memory and takes more while that pays",
    ),
    live(
        "memory-min",
        "SIZE|auto",
        "auto",
        "memory that the cache keeps while other programs run short of it; `auto` is the least \
         that the server can run with",
    ),
    live(
        "memory-max",
        "SIZE|auto",
        "auto",
        "the most that `memory=auto` takes; `auto` is half of the memory available at the start",
    ),
    live(
        "memory-reserve",
        "SIZE|auto",
        "auto",
        "memory left to the system; `auto` is 500MiB, or a quarter of a smaller control group",
    ),
    live(
        "cache-ratio",
        "READ:WRITE|auto",
        "auto",
        "percentages of the cache for reads and for writes that are not on the disk yet, such as \
         25:75; at most 75 for writes; `auto` is two thirds for writes",
    ),
    live(
        "nbd",
        "ADDRESS...",
        "",
        "listening address for NBD clients, `tcp:HOST:PORT`, or `unix:PATH`, which `,mode=MODE`, \
         `,owner=USER` and `,group=GROUP` may follow; by default `unix:STATE/nbd.sock`",
    ),
    live(
        "vhost-user",
        "DIR",
        "",
        "directory of a socket `VOLUME.sock` for each volume, for virtual machine monitors, which \
         `,mode=MODE`, `,owner=USER` and `,group=GROUP` may follow",
    ),
    fixed(
        "state",
        "DIR",
        "",
        "directory of the lock, the control socket and the default NBD socket",
    ),
    live(
        "metrics",
        "ADDRESS:PORT",
        "",
        "TCP address of this machine at which metrics for Prometheus are served, such as \
         127.0.0.1:9101",
    ),
    live(
        "dashboard",
        "HOST:PORT",
        "",
        "address of the dashboard, a page for browsers, such as 127.0.0.1:8080; by default there \
         is none; other machines need `tls-cert`, `tls-key` and `dashboard-tokens`",
    ),
    live(
        "dashboard-tokens",
        "FILE",
        "",
        "tokens of the dashboard, a line `look TOKEN` or `operate TOKEN` for each; without it, \
         reading needs no token, and a token for changes is generated",
    ),
    live(
        "site",
        "HOST...",
        "",
        "hosts of the site that this server watches, `https://HOST:PORT` of their dashboards, \
         `srv:NAME` for the DNS records of a name, or `etcd:https://HOST:PORT/PREFIX` for the \
         values of keys",
    ),
    live(
        "site-ca",
        "FILE",
        "",
        "authority that must have issued the certificates of these hosts, PEM; by default one of \
         the system's",
    ),
    fixed("workers", "1-64|auto", "auto", "worker threads; `auto` is one per processor, at most 8"),
    fixed("io", "auto|io_uring|epoll", "auto", "I/O engine; `auto` is the first that works"),
    fixed(
        "keeper",
        "auto|yes|no",
        "auto",
        "whether a keeper holds the pool across restarts of the server; `yes` is a parent process, \
         `auto` is systemd if it stores descriptors, otherwise `yes`",
    ),
    fixed("ecc", "parity|checksum|off", "parity", "protection against memory damage"),
    fixed(
        "polling",
        "auto|off",
        "auto",
        "whether workers look for requests for moments before they sleep, while processors are \
         free and clients get more done by it",
    ),
    live(
        "background",
        "auto|full",
        "auto",
        "whether work that no client waits for slows down while other programs wait for processors \
         or disks",
    ),
    live("log", "error|warn|info|debug|trace", "info", "log level"),
    live("tls", "off|selective|forced", "off", "encryption of connections"),
    live("tls-cert", "FILE", "", "certificate chain of the server, PEM"),
    live("tls-key", "FILE", "", "private key of the certificate, PEM"),
    live(
        "tls-client-ca",
        "FILE",
        "",
        "authority that must have issued clients' certificates, PEM; without it clients need none",
    ),
    fixed(
        "ups",
        "UPS...",
        "",
        "UPS that bridges a power failure: `NAME@HOST:PORT` of Network UPS Tools, \
         `NAME=command:PROGRAM` or `NAME=file:PATH`",
    ),
    fixed(
        "ups-needed",
        "EXPRESSION",
        "",
        "the UPSes that must be safe, as in `any 1 of (a, b)`; by default all",
    ),
    fixed("ups-user", "TEXT", "", "user name for the NUT servers"),
    fixed("ups-password", "TEXT", "", "password of `ups-user`"),
    fixed(
        "ups-ca",
        "FILE",
        "",
        "authority that must have issued the NUT servers' certificates, PEM; without it, \
         connections to the NUT servers are not encrypted",
    ),
    fixed("ups-threshold", "1-100", "79", "battery charge in percent below which write-back ends"),
    fixed(
        "ups-settle-seconds",
        "0-86400",
        "60",
        "how long the UPSes must have been safe before write-back begins",
    ),
    fixed("ups-margin-seconds", "0-86400", "60", "battery runtime kept in reserve"),
    fixed(
        "vault",
        "PATH",
        "",
        "vault for the dirty data of volumes under a UPS when the battery runs low: a file or \
         device of its own; a missing file is created",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VOLUME_SETTINGS;

    #[test]
    fn a_setting_is_found_by_its_name() {
        let volume_setting = |key| Setting::find(key, &VOLUME_SETTINGS);
        let prefetch = volume_setting("prefetch").unwrap();
        assert!(prefetch.is_switch() && prefetch.is_live);
        let iops = volume_setting("write-back-iops").unwrap();
        assert_eq!((iops.field().as_str(), iops.words()), ("write_back_iops", None));
        assert!(!volume_setting("rotational").unwrap().is_switch());
        let mode = volume_setting("mode").unwrap();
        assert_eq!(mode.words().unwrap(), ["write-back", "write-through", "bypass"]);
        assert_eq!(volume_setting("write_back_iops"), None);
    }
}
