//! The settings of a volume. The command line, the configuration file, the control API with its
//! description, the help texts and a table of the manual are derived from this table.

/// A setting of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSetting {
    /// Its name on the command line and in the configuration file; the API has `_` for `-`.
    pub key: &'static str,
    /// Its values, separated by `|`; capitals are placeholders.
    pub values: &'static str,
    /// The default value; empty if there is none.
    pub default: &'static str,
    /// Whether it can change while the volume is served.
    pub is_live: bool,
    /// Its meaning, in one line.
    pub help: &'static str,
}

impl VolumeSetting {
    /// Finds the setting with a name.
    pub fn find(key: &str) -> Option<&'static Self> {
        VOLUME_SETTINGS.iter().find(|setting| setting.key == key)
    }

    /// Its name in the API.
    pub fn field(&self) -> String {
        self.key.replace('-', "_")
    }

    /// Whether it is a boolean in the API.
    pub fn is_switch(&self) -> bool {
        self.values == "yes|no"
    }

    /// Its values, if none of them is a placeholder.
    pub fn words(&self) -> Option<Vec<&'static str>> {
        let words: Vec<_> = self.values.split('|').collect();
        let is_word = |word: &&str| !word.contains(|c: char| c.is_ascii_uppercase());
        words.iter().all(is_word).then_some(words)
    }
}

/// A setting that can change while the volume is served.
const fn live(
    key: &'static str,
    values: &'static str,
    default: &'static str,
    help: &'static str,
) -> VolumeSetting {
    VolumeSetting { key, values, default, is_live: true, help }
}

/// A setting that cannot change while the volume is served.
const fn fixed(
    key: &'static str,
    values: &'static str,
    default: &'static str,
    help: &'static str,
) -> VolumeSetting {
    VolumeSetting { key, values, default, is_live: false, help }
}

/// All settings, in the order of help texts.
pub const VOLUME_SETTINGS: [VolumeSetting; 21] = [
    live("mode", "write-back|write-through|bypass", "write-through", "cache mode"),
    live(
        "protection",
        "none|journal|ups|journal+ups",
        "",
        "what preserves writes that are not on the disk",
    ),
    fixed(
        "journal",
        "BACKING",
        "",
        "the journal, with `protection=journal`; volumes may share one",
    ),
    fixed("journal-mirror", "BACKING", "", "second device of the journal"),
    fixed(
        "durability",
        "ack|flush",
        "ack",
        "with a journal: each write waits until it is recorded, or only a FLUSH does",
    ),
    live(
        "unsafe-supply",
        "stable|disk-cache",
        "stable",
        "with `protection=ups`: where a write must be before it is acknowledged while the UPS is \
         not safe",
    ),
    fixed(
        "ordered",
        "yes|no",
        "no",
        "destage in order, so that the disk alone is always consistent",
    ),
    live(
        "accept-loss",
        "yes|no",
        "no",
        "with `protection=none`: a crash may lose acknowledged writes. Write-back needs both. With \
         a journal: serve what is left of a damaged one",
    ),
    live(
        "read-only",
        "yes|no",
        "no",
        "writes are refused, and the backing store is opened read-only",
    ),
    live("prefetch", "yes|no", "yes", "read ahead of sequential streams"),
    fixed("stripe", "SIZE|none|auto", "auto", "data per full stripe of the disk"),
    fixed("chunk", "SIZE|auto", "auto", "the part of a stripe on one drive"),
    fixed("stripe-offset", "SIZE|auto", "auto", "where the first whole stripe begins"),
    fixed("rotational", "yes|no|auto", "auto", "whether seeks cost time"),
    live("gather-below", "SIZE|off|auto", "auto", "size below which writes are worth gathering"),
    live("read-latency", "TIME|idle|off", "idle", "p99 of reads beside writeback"),
    live("write-back-rate", "SIZE|off", "off", "maximum writeback per second"),
    live("write-back-iops", "NUMBER|off", "off", "maximum writeback I/Os per second"),
    live("write-back-age", "TIME|off", "24h", "how long reads may delay dirty data"),
    live(
        "tls",
        "required|optional",
        "optional",
        "whether the volume is hidden from unencrypted clients",
    ),
    live("description", "TEXT", "", "shown to clients; at most 4,096 bytes"),
];

/// The names of all settings, in the same order.
pub const VOLUME_KEYS: [&str; VOLUME_SETTINGS.len()] = {
    let mut keys = [""; VOLUME_SETTINGS.len()];
    let mut at = 0;
    while at < keys.len() {
        keys[at] = VOLUME_SETTINGS[at].key;
        at += 1;
    }
    keys
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_found_by_its_name() {
        let prefetch = VolumeSetting::find("prefetch").unwrap();
        assert!(prefetch.is_switch() && prefetch.is_live);
        let iops = VolumeSetting::find("write-back-iops").unwrap();
        assert_eq!((iops.field().as_str(), iops.words()), ("write_back_iops", None));
        assert!(!VolumeSetting::find("rotational").unwrap().is_switch());
        let mode = VolumeSetting::find("mode").unwrap();
        assert_eq!(mode.words().unwrap(), ["write-back", "write-through", "bypass"]);
        assert_eq!(VolumeSetting::find("write_back_iops"), None);
    }
}
