//! The specification of a volume, and changes to it.
//!
//! Every [`VolumeSpec`] has passed `VolumeSpec::checked`: its name can be displayed and sent over
//! NBD, and its mode has the protection that it needs. Command line, file and control API all end
//! with that check.

use crate::{
    ConfigError, ConfigResult, Mistake, TlsMode, gather, geometry, pin, pool_share, protection,
    request_limits, takeover,
    words::{instead_of, word, yes_no, yes_or_no},
    write_back,
};
use forebay_types::{
    DiskFormat, Durability, Mode, PinnedRanges, Protection, Setting, TlsUse, UnsafeUps,
    VOLUME_KEYS, VOLUME_SETTINGS, VolumeConfig, limits,
};
use std::{collections::BTreeSet, fmt, str::FromStr};

/// Longest description of a volume, in bytes: the longest string NBD can carry.
pub const DESCRIPTION_BYTES_MAX: usize = 4096;
/// Longest backing, in bytes: the longest path of Linux, and as much again for layers.
pub const BACKING_BYTES_MAX: usize = 8192;

/// A volume: name, backing and settings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeSpec {
    /// The name that clients use. See [`check_volume_name`].
    pub name: String,
    /// A path, or a URL, with or without layers before it.
    pub backing: String,
    /// The settings.
    pub config: VolumeConfig,
}

impl VolumeSpec {
    /// A volume with the default settings: write-through, prefetching, writable.
    ///
    /// # Errors
    /// The name or the backing is invalid.
    pub fn new(name: impl Into<String>, backing: impl Into<String>) -> ConfigResult<Self> {
        let config = VolumeConfig::default();
        Self { name: name.into(), backing: backing.into(), config }.checked()
    }

    /// The volume with these settings, before it is served.
    ///
    /// # Errors
    /// The result is invalid, such as write-back without protection.
    pub fn configured(&self, settings: &VolumeChange) -> ConfigResult<Self> {
        let spec = self.applied(settings);
        // A setting without effect is refused even if its value is the default.
        spec.check_durability(settings.has("durability"))
            .and_then(|()| spec.check_unsafe_supply(settings.has("unsafe-supply")))
            .and_then(|()| spec.check_pin(settings))
            .map_err(|error| spec.about(error))?;
        spec.checked()
    }

    /// The volume with `change` applied, while it is served.
    ///
    /// # Errors
    /// The result is invalid, or a fixed setting gets another value: the protection by a UPS, the
    /// durability of a journal, the order of destaging, or the disk's geometry.
    pub fn with(&self, change: &VolumeChange) -> ConfigResult<Self> {
        let spec = self.applied(change);
        self.check_protection_unchanged(&spec)
            .and_then(|()| self.check_fixed_settings_unchanged(&spec))
            .and_then(|()| spec.check_unsafe_supply(change.has("unsafe-supply")))
            .and_then(|()| spec.check_pin(change))
            .map_err(|error| spec.about(error))?;
        spec.checked()
    }

    /// The settings that differ from their defaults.
    pub fn settings(&self) -> VolumeChange {
        VolumeChange::between(&VolumeConfig::default(), &self.config)
    }

    /// The change from the settings of `self` to those of `other`, without name and backing.
    pub fn change_to(&self, other: &Self) -> VolumeChange {
        VolumeChange::between(&self.config, &other.config)
    }

    /// All settings as key and value, in the order of [`VOLUME_KEYS`].
    pub fn all_settings(&self) -> Vec<(&'static str, String)> {
        shown(&self.config)
    }

    /// The volume with `change` applied, unchecked.
    fn applied(&self, change: &VolumeChange) -> Self {
        let mut spec = self.clone();
        change.apply(&mut spec.config);
        spec
    }

    fn check_fixed_settings_unchanged(&self, new: &Self) -> ConfigResult<()> {
        let value = |(_, value): (&str, String)| match value.is_empty() {
            true => "none".to_owned(),
            false => value,
        };
        let (olds, news) = (new.change_to(self).pairs(), self.change_to(new).pairs());
        // A volume that gets or leaves a journal gets or leaves its durability, too.
        let has_both = self.config.journal.is_some() && new.config.journal.is_some();
        let is_fixed = |key: &str| is_fixed(key) && (has_both || key != "durability");
        match olds.into_iter().zip(news).find(|((key, _), _)| is_fixed(key)) {
            Some((old, new)) => Err(fixed_setting_error(old.0, &value(old), &value(new))),
            None => Ok(()),
        }
    }

    /// The volume, if it is valid.
    fn checked(self) -> ConfigResult<Self> {
        check_volume_name(&self.name)?;
        self.check_backing()
            .and_then(|()| self.check_description())
            .and_then(|()| self.check_journal())
            .and_then(|()| self.check_saved_memory())
            .and_then(|()| takeover::check(&self.config))
            .and_then(|()| self.check_protection())
            .and_then(|()| geometry::check(&self.config))
            .and_then(|()| pool_share::check(&self.config))
            .map_err(|error| self.about(error))?;
        Ok(self)
    }

    /// Prefixes an error with this volume's name.
    pub(crate) fn about(&self, error: ConfigError) -> ConfigError {
        error.about(format_args!("volume '{}'", self.name))
    }

    fn check_backing(&self) -> ConfigResult<()> {
        if self.backing.is_empty() {
            let remedy = "name a disk or file, as in disk=/dev/sdb, or a URL";
            return Err(ConfigError::new(Mistake::Value, "it has no backing", remedy));
        }
        check_device_name("backing", &self.backing)
    }

    /// Refuses too many ranges, and new pins while the mode is bypass. Earlier pins take effect
    /// again in another mode.
    fn check_pin(&self, change: &VolumeChange) -> ConfigResult<()> {
        pin::check_range_count(&self.config.pin)?;
        let pins = change.has("pin") && !self.config.pin.is_empty();
        if !pins || self.config.mode != Mode::Bypass {
            return Ok(());
        }
        let message = "no range can be pinned in the mode bypass, which caches nothing";
        let remedy = "choose another mode first, as in mode=write-through";
        Err(ConfigError::new(Mistake::Value, message, remedy))
    }

    fn check_description(&self) -> ConfigResult<()> {
        let Some(text) = &self.config.description else { return Ok(()) };
        if text.len() > DESCRIPTION_BYTES_MAX {
            let message = format!("the description has more than {DESCRIPTION_BYTES_MAX} bytes");
            return Err(ConfigError::new(Mistake::Limit, message, "write a shorter one"));
        }
        if text.chars().any(char::is_control) {
            let message = "the description contains a control character";
            return Err(ConfigError::new(Mistake::Value, message, "write it as one line of text"));
        }
        Ok(())
    }

    /// Checks that the volume can be served in this TLS mode.
    pub(crate) fn check_tls(&self, mode: TlsMode) -> ConfigResult<()> {
        if self.config.tls == TlsUse::Required && mode == TlsMode::Off {
            return Err(ConfigError::new(
                Mistake::Tls,
                format!("volume '{}': tls=required, but TLS is off", self.name),
                "set tls selective or forced, or tls=optional for the volume",
            ));
        }
        Ok(())
    }
}

/// Checks the name of a volume's backing or journal.
pub(crate) fn check_device_name(what: &str, text: &str) -> ConfigResult<()> {
    if text.chars().any(char::is_control) {
        let message = format!("{what} {text:?} contains a control character");
        return Err(ConfigError::new(Mistake::Value, message, "name the disk by another path"));
    }
    if text.len() > BACKING_BYTES_MAX {
        let message = format!("the {what} has more than {BACKING_BYTES_MAX} bytes");
        return Err(ConfigError::new(Mistake::Limit, message, "name the disk by a shorter path"));
    }
    Ok(())
}

/// Checks a volume's name: 1 to [`limits::VOLUME_NAME_BYTES_MAX`] bytes, no control characters, and
/// neither `=` nor `,`, which end the name on the command line.
///
/// # Errors
/// The name is invalid.
pub fn check_volume_name(name: &str) -> ConfigResult<()> {
    let fail = |problem: &str, remedy: &'static str| {
        let message = format!("volume name {name:?} {problem}");
        Err(ConfigError::new(Mistake::Name, message, remedy))
    };
    if name.is_empty() {
        return fail("is empty", "give the volume a name, as in disk=/dev/sdb");
    }
    if name.len() > limits::VOLUME_NAME_BYTES_MAX {
        let most = limits::VOLUME_NAME_BYTES_MAX;
        return fail(&format!("has more than {most} bytes"), "choose a shorter one");
    }
    if name.chars().any(char::is_control) {
        return fail("contains a control character", "choose one of printable characters");
    }
    if name.contains(['=', ',']) {
        return fail("contains '=' or ','", "choose one without, as they end a name");
    }
    Ok(())
}

/// A change of some settings of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct VolumeChange {
    /// The new values; defaults for the settings that do not change.
    values: VolumeConfig,
    /// The settings that change.
    keys: BTreeSet<&'static str>,
}

/// Defines the functions that visit every setting. An entry consists of key, field in
/// [`VolumeConfig`], parser of key and text, and formatter.
macro_rules! settings {
    ($($key:literal: $field:ident, $read:expr, $show:expr;)+) => {
        /// All settings as key and value, in the order of [`VOLUME_KEYS`].
        fn shown(config: &VolumeConfig) -> Vec<(&'static str, String)> {
            vec![$(($key, $show(&config.$field)),)+]
        }

        impl VolumeChange {
            /// The change from one configuration to another.
            fn between(old: &VolumeConfig, new: &VolumeConfig) -> Self {
                let mut change = Self::default();
                $(if old.$field != new.$field {
                    change.values.$field.clone_from(&new.$field);
                    change.keys.insert($key);
                })+
                change
            }

            /// Applies the change, unchecked.
            fn apply(&self, config: &mut VolumeConfig) {
                $(if self.has($key) {
                    config.$field.clone_from(&self.values.$field);
                })+
            }

            /// Parses and stores the value of a setting. Returns whether the setting had no value
            /// before; `None` if there is no such setting.
            fn replace(&mut self, key: &str, value: &str) -> ConfigResult<Option<bool>> {
                match key {
                    $($key => {
                        self.values.$field = $read(key, value)?;
                        Ok(Some(self.keys.insert($key)))
                    })+
                    _ => Ok(None),
                }
            }
        }
    };
}

settings! {
    "mode": mode, |key, text| word(key, text, &Mode::ALL), Mode::to_string;
    "protection": protection, protection::protection, Protection::to_string;
    "journal": journal, device_name, text_or_none;
    "journal-mirror": journal_mirror, device_name, text_or_none;
    "durability": durability, |key, text| word(key, text, &Durability::ALL), Durability::to_string;
    "unsafe-supply": unsafe_supply, |key, text| word(key, text, &UnsafeUps::ALL),
        UnsafeUps::to_string;
    "ordered": ordered, yes_or_no, switch;
    "accept-loss": accept_loss, yes_or_no, switch;
    "nofail": nofail, yes_or_no, switch;
    "standby": standby, yes_or_no, switch;
    "takeover-after": takeover_after_s, takeover::after, write_back::age_shown;
    "read-only": read_only, yes_or_no, switch;
    "reserve": reserve, yes_or_no, switch;
    "format": format, |key, text| word(key, text, &DiskFormat::ALL), DiskFormat::to_string;
    "frozen": frozen, yes_or_no, switch;
    "share-min": share_min, pool_share::min, pool_share::shown;
    "share-max": share_max, pool_share::max, pool_share::shown;
    "prefetch": prefetch, yes_or_no, switch;
    "warm": warm, yes_or_no, switch;
    "pin": pin, pin::pin, pin::pinned_ranges_shown;
    "learn": learn, yes_or_no, switch;
    "stripe": stripe, geometry::stripe, geometry::stripe_shown;
    "chunk": chunk, geometry::size, geometry::size_shown;
    "stripe-offset": stripe_offset, geometry::size, geometry::size_shown;
    "rotational": rotational, geometry::rotational, geometry::rotational_shown;
    "gather-below": gather_below, gather::gather_below, gather::shown;
    "read-latency": read_latency, write_back::read_latency, write_back::read_latency_shown;
    "write-back-rate": write_back_rate, write_back::rate, write_back::rate_shown;
    "write-back-iops": write_back_iops, write_back::iops, write_back::iops_shown;
    "write-back-age": write_back_age_s, write_back::age, write_back::age_shown;
    "loss-limit": loss_limit, write_back::loss, write_back::rate_shown;
    "iops-limit": iops_limit, write_back::iops, write_back::iops_shown;
    "bandwidth-limit": bandwidth_limit, request_limits::bandwidth, request_limits::bandwidth_shown;
    "limit-burst": limit_burst_us, request_limits::burst, request_limits::burst_shown;
    "slow": slow_us, write_back::slow, write_back::slow_shown;
    "tls": tls, |_, text| word("tls value", text, &TlsUse::ALL), TlsUse::to_string;
    "description": description, |_, text| some_text(text), text_or_none;
}

pub(crate) fn parsed<T: FromStr<Err = ConfigError>>(_: &str, text: &str) -> ConfigResult<T> {
    text.parse()
}

fn switch(value: &bool) -> String {
    yes_no(*value).to_owned()
}

fn text_or_none(text: &Option<String>) -> String {
    text.clone().unwrap_or_default()
}

/// Parses a text; an empty text means none.
fn some_text(text: &str) -> ConfigResult<Option<String>> {
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

/// The error for a change of a setting that is fixed while the volume is served.
pub(crate) fn fixed_setting_error(key: &str, old: &str, new: &str) -> ConfigError {
    ConfigError::new(
        Mistake::Served,
        format!("{key} cannot change from {old} to {new} while the volume is served"),
        "remove the volume, and add it again with the new settings",
    )
}

impl VolumeChange {
    /// Parses `KEY=VALUE` arguments, as in `forebay volume set`.
    ///
    /// # Errors
    /// An argument is not `KEY=VALUE`, a key is unknown or repeated, or a value is invalid.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> ConfigResult<Self> {
        let mut change = Self::default();
        for text in words {
            let Some((key, value)) = text.split_once('=') else {
                let message = format!("'{text}' is not KEY=VALUE");
                let remedy = match Setting::find(text, &VOLUME_SETTINGS) {
                    Some(Setting { key, values, .. }) => format!("write {key}={values}"),
                    None => "write it like mode=bypass".to_owned(),
                };
                return Err(ConfigError::new(Mistake::Syntax, message, remedy));
            };
            change.set(key, value)?;
        }
        Ok(change)
    }

    /// Sets one key.
    ///
    /// # Errors
    /// The key is unknown or already set, or the value is invalid.
    pub fn set(&mut self, key: &str, value: &str) -> ConfigResult<()> {
        match self.replace(key, value)? {
            Some(true) => Ok(()),
            Some(false) => {
                let message = format!("setting '{key}' is given twice");
                Err(ConfigError::new(Mistake::Duplicate, message, "keep one of them"))
            }
            None => {
                let message = format!("unknown volume setting '{key}'");
                let remedy = match key {
                    "name" | "backing" => "write a volume as NAME=BACKING,KEY=VALUE".to_owned(),
                    _ => instead_of(key, VOLUME_KEYS),
                };
                Err(ConfigError::new(Mistake::UnknownKey, message, remedy))
            }
        }
    }

    /// The pinning of these ranges instead of the former ones.
    pub fn pins(pin: PinnedRanges) -> Self {
        let values = VolumeConfig { pin, ..VolumeConfig::default() };
        Self { values, keys: BTreeSet::from(["pin"]) }
    }

    /// Whether a setting gets a value, be it the old one.
    pub fn has(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// Whether no setting changes.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The settings that change as key and value, in the order of [`VOLUME_KEYS`].
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        shown(&self.values).into_iter().filter(|(key, _)| self.has(key)).collect()
    }

    /// Whether the change includes a setting that is fixed while the volume is served. See
    /// [`VolumeSpec::with`].
    pub fn has_fixed_settings(&self) -> bool {
        self.values.protection.has_ups() || self.keys.iter().any(|key| is_fixed(key))
    }
}

impl fmt::Display for VolumeChange {
    /// `mode=bypass,prefetch=no`; empty for no change.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.pairs().into_iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

/// Parses the name of a journal's device. An empty name is an error: only [`VolumeSpec::change_to`]
/// makes a change that removes a journal.
fn device_name(key: &str, text: &str) -> ConfigResult<Option<String>> {
    if text.is_empty() {
        let remedy = format!("name a file or device, as in {key}=/dev/nvme0n1, or leave {key} out");
        return Err(ConfigError::new(Mistake::Value, format!("{key}= is empty"), remedy));
    }
    some_text(text)
}

fn is_fixed(key: &str) -> bool {
    Setting::find(key, &VOLUME_SETTINGS).is_some_and(|setting| !setting.is_live)
}
