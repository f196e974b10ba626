//! One volume as the operator asked for it, and changes to one.
//!
//! A [`VolumeSpec`] that exists has been checked: its name can be shown and sent over NBD, its
//! mode has the protection it needs. The checks are made in [`VolumeSpec::checked`], which every
//! way in ends with: the command line, the file and the control API.

use crate::{
    Auto, ConfigError, ConfigResult, GeometryChange, GeometrySpec, Mistake, Protection, TlsMode,
    gather, geometry,
    words::{listed, word, words, yes_no, yes_or_no},
    write_back::{self, ReadLatency, WriteBackChange, WriteBackSpec},
};
use forebay_types::{Durability, Mode, UnsafeSupply, VOLUME_KEYS, VolumeSetting, limits};
use std::{fmt, str::FromStr};

/// Longest description of a volume, in bytes: the longest string NBD can carry.
pub const DESCRIPTION_BYTES_MAX: usize = 4096;
/// Longest backing, in bytes: the longest path Linux takes, and as much again for fault layers.
pub const BACKING_BYTES_MAX: usize = 8192;

words! {
    /// Whether clients may use a volume over a connection that is not encrypted.
    pub enum TlsUse("TLS use") {
        /// They may, unless TLS is forced for all.
        #[default]
        Optional = "optional",
        /// They must not; the volume is hidden from them.
        Required = "required",
    }
}

/// A volume: what it is called, where its data lies, how it is cached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeSpec {
    /// What clients ask for. See [`check_volume_name`].
    pub name: String,
    /// A path, or a URL with or without fault layers before it.
    pub backing: String,
    /// How requests are cached.
    pub mode: Mode,
    /// What keeps writes that are not on the disk yet.
    pub protection: Protection,
    /// The journal, in the words of a backing; with a protection that has one and only then.
    pub journal: Option<String>,
    /// A second device that has everything the journal has.
    pub journal_mirror: Option<String>,
    /// When a write that the journal keeps is acknowledged.
    pub durability: Durability,
    /// What a write is acknowledged from while the UPS that protects the volume is not safe.
    pub unsafe_supply: UnsafeSupply,
    /// Whether what is dirty goes to the disk in order.
    pub ordered: bool,
    /// Whether the operator accepts that acknowledged writes are lost: by a crash where nothing
    /// protects them, or with what is damaged of a journal.
    pub accept_loss: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether what will likely be read next is read ahead.
    pub prefetch: bool,
    /// What is said by hand of the disk's stripes and seeks.
    pub geometry: GeometrySpec,
    /// Below which size writes are worth gathering, in bytes, zero for none; or what is measured.
    pub gather_below: Auto<u64>,
    /// How fast write-back may go.
    pub write_back: WriteBackSpec,
    /// Whether clients must encrypt.
    pub tls: TlsUse,
    /// A text for people, shown to NBD clients.
    pub description: Option<String>,
}

impl VolumeSpec {
    /// A volume with the default settings: write-through, prefetching, writable.
    ///
    /// # Errors
    /// The name or the backing can't be.
    pub fn new(name: impl Into<String>, backing: impl Into<String>) -> ConfigResult<Self> {
        Self { name: name.into(), backing: backing.into(), ..Self::plain() }.checked()
    }

    /// The default settings.
    fn plain() -> Self {
        Self {
            name: String::new(),
            backing: String::new(),
            mode: Mode::default(),
            protection: Protection::default(),
            journal: None,
            journal_mirror: None,
            durability: Durability::default(),
            unsafe_supply: UnsafeSupply::default(),
            ordered: false,
            accept_loss: false,
            read_only: false,
            prefetch: true,
            geometry: GeometrySpec::default(),
            gather_below: Auto::default(),
            write_back: WriteBackSpec::default(),
            tls: TlsUse::default(),
            description: None,
        }
    }

    /// The volume, not served yet, with these settings.
    ///
    /// # Errors
    /// The result is no volume that can be: write-back without a stated protection.
    pub fn configured(&self, settings: &VolumeChange) -> ConfigResult<Self> {
        let spec = self.applied(settings);
        // The default is a mistake as well where it is written down without a journal.
        spec.check_durability(settings.durability.is_some())
            .and_then(|()| spec.check_unsafe_supply(settings.unsafe_supply.is_some()))
            .map_err(|error| spec.about(error))?;
        spec.checked()
    }

    /// The volume, being served, with `change` made to it.
    ///
    /// # Errors
    /// The result is no volume that can be, or the change is one of journal, of its durability, of
    /// the order of destaging, or of being protected by one: what is recorded of a volume stays
    /// where its records are. The geometry of its disk stays as well.
    pub fn with(&self, change: &VolumeChange) -> ConfigResult<Self> {
        let spec = self.applied(change);
        self.check_protection_stays(&spec)
            .and_then(|()| self.check_fixed_settings_stay(&spec))
            .and_then(|()| spec.check_unsafe_supply(change.unsafe_supply.is_some()))
            .map_err(|error| spec.about(error))?;
        spec.checked()
    }

    /// The settings that differ from their defaults.
    pub fn settings(&self) -> VolumeChange {
        Self::plain().change_to(self)
    }

    /// A served volume keeps its fixed settings.
    fn check_fixed_settings_stay(&self, new: &Self) -> ConfigResult<()> {
        let is_fixed = |(key, _): &(&str, String)| {
            VolumeSetting::find(key).is_some_and(|setting| !setting.is_live)
        };
        let value = |(_, value): (&str, String)| match value.is_empty() {
            true => "none".to_owned(),
            false => value,
        };
        let (olds, news) = (new.change_to(self).pairs(), self.change_to(new).pairs());
        match olds.into_iter().zip(news).find(|(old, _)| is_fixed(old)) {
            Some((old, new)) => Err(stays(old.0, &value(old), &value(new))),
            None => Ok(()),
        }
    }

    /// The volume, if it can be.
    fn checked(self) -> ConfigResult<Self> {
        check_volume_name(&self.name)?;
        self.check_backing()
            .and_then(|()| self.check_description())
            .and_then(|()| self.check_journal())
            .and_then(|()| self.check_protection())
            .and_then(|()| self.check_geometry())
            .map_err(|error| self.about(error))?;
        Ok(self)
    }

    /// The mistake, said of this volume.
    pub(crate) fn about(&self, error: ConfigError) -> ConfigError {
        error.about(format_args!("volume '{}'", self.name))
    }

    fn check_backing(&self) -> ConfigResult<()> {
        if self.backing.is_empty() {
            let remedy = "name a disk or file, as in disk=/dev/sdb, or a URL";
            return Err(ConfigError::new(Mistake::Value, "it has no backing", remedy));
        }
        check_place("backing", &self.backing)
    }

    fn check_description(&self) -> ConfigResult<()> {
        let Some(text) = &self.description else { return Ok(()) };
        if text.len() > DESCRIPTION_BYTES_MAX {
            let message = format!("the description has more than {DESCRIPTION_BYTES_MAX} bytes");
            return Err(ConfigError::new(Mistake::Limit, message, "write a shorter one"));
        }
        if text.chars().any(char::is_control) {
            let message = "the description holds a control character";
            return Err(ConfigError::new(Mistake::Value, message, "write it as one line of text"));
        }
        Ok(())
    }

    /// Whether the volume can be served under these settings for TLS.
    pub(crate) fn check_tls(&self, mode: TlsMode) -> ConfigResult<()> {
        if self.tls == TlsUse::Required && mode == TlsMode::Off {
            return Err(ConfigError::new(
                Mistake::Tls,
                format!("volume '{}': tls=required, but TLS is off", self.name),
                "set tls selective or forced, or tls=optional for the volume",
            ));
        }
        Ok(())
    }
}

/// Checks what a disk can be called, of a volume's backing or of its journal.
pub(crate) fn check_place(what: &str, text: &str) -> ConfigResult<()> {
    if text.chars().any(char::is_control) {
        let message = format!("{what} {text:?} holds a control character");
        return Err(ConfigError::new(Mistake::Value, message, "name the disk by another path"));
    }
    if text.len() > BACKING_BYTES_MAX {
        let message = format!("the {what} has more than {BACKING_BYTES_MAX} bytes");
        return Err(ConfigError::new(Mistake::Limit, message, "name the disk by a shorter path"));
    }
    Ok(())
}

/// Checks that a volume can have this name: 1 to [`limits::VOLUME_NAME_BYTES_MAX`] bytes, no
/// control characters, and neither `=` nor `,`, which end the name on the command line.
///
/// # Errors
/// It can't.
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
        return fail("holds a control character", "choose one of printable characters");
    }
    if name.contains(['=', ',']) {
        return fail("holds '=' or ','", "choose one without, as they end a name");
    }
    Ok(())
}

/// Settings of a volume that are to change; what is `None` stays.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct VolumeChange {
    /// How requests are cached.
    pub mode: Option<Mode>,
    /// What keeps writes that are not on the disk yet.
    pub protection: Option<Protection>,
    /// The journal.
    pub journal: Option<Option<String>>,
    /// Its second device.
    pub journal_mirror: Option<Option<String>>,
    /// When a write that the journal keeps is acknowledged.
    pub durability: Option<Durability>,
    /// What a write is acknowledged from while the UPS is not safe.
    pub unsafe_supply: Option<UnsafeSupply>,
    /// Whether what is dirty goes to the disk in order.
    pub ordered: Option<bool>,
    /// Whether loss is accepted.
    pub accept_loss: Option<bool>,
    /// Whether writes are refused.
    pub read_only: Option<bool>,
    /// Whether data is read ahead.
    pub prefetch: Option<bool>,
    /// What is said by hand of the disk.
    pub geometry: GeometryChange,
    /// Below which size writes are worth gathering, in bytes, zero for none.
    pub gather_below: Option<Auto<u64>>,
    /// How fast write-back may go.
    pub write_back: WriteBackChange,
    /// Whether clients must encrypt.
    pub tls: Option<TlsUse>,
    /// The text for people.
    pub description: Option<Option<String>>,
}

/// Defines what is done with each setting, from its name, its field in [`VolumeSpec`] and
/// [`VolumeChange`], how its value is read from the name and a text, and how it is shown.
macro_rules! settings {
    ($($key:literal: $($field:ident).+, $read:expr, $show:expr;)+) => {
        impl VolumeSpec {
            /// The volume with `change` made to it, unchecked.
            fn applied(&self, change: &VolumeChange) -> Self {
                let mut spec = self.clone();
                $(if let Some(new) = &change.$($field).+ {
                    spec.$($field).+.clone_from(new);
                })+
                spec
            }

            /// The change that makes `self` into `other`, as far as settings go: neither name nor
            /// backing.
            pub fn change_to(&self, other: &Self) -> VolumeChange {
                let mut change = VolumeChange::default();
                $(if self.$($field).+ != other.$($field).+ {
                    change.$($field).+ = Some(other.$($field).+.to_owned());
                })+
                change
            }

            /// All settings with their values as they are read, in the order of [`VOLUME_KEYS`].
            pub fn all_settings(&self) -> Vec<(&'static str, String)> {
                vec![$(($key, $show(&self.$($field).+)),)+]
            }
        }

        impl VolumeChange {
            /// Reads and keeps the value of a setting. `None` if there is no such setting, else
            /// whether it had none before.
            fn replace(&mut self, key: &str, value: &str) -> ConfigResult<Option<bool>> {
                Ok(Some(match key {
                    $($key => self.$($field).+.replace($read(key, value)?).is_none(),)+
                    _ => return Ok(None),
                }))
            }

            /// The settings as key and value, in the order of [`VOLUME_KEYS`].
            pub fn pairs(&self) -> Vec<(&'static str, String)> {
                let all = [$(($key, self.$($field).+.as_ref().map($show)),)+];
                all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
            }
        }
    };
}

settings! {
    "mode": mode, |key, text| word(key, text, &Mode::ALL), Mode::to_string;
    "protection": protection, parsed, Protection::to_string;
    "journal": journal, place, text_or_none;
    "journal-mirror": journal_mirror, place, text_or_none;
    "durability": durability, |key, text| word(key, text, &Durability::ALL), Durability::to_string;
    "unsafe-supply": unsafe_supply, |key, text| word(key, text, &UnsafeSupply::ALL),
        UnsafeSupply::to_string;
    "ordered": ordered, yes_or_no, switch;
    "accept-loss": accept_loss, yes_or_no, switch;
    "read-only": read_only, yes_or_no, switch;
    "prefetch": prefetch, yes_or_no, switch;
    "stripe": geometry.stripe, geometry::stripe, geometry::stripe_shown;
    "chunk": geometry.chunk, geometry::size, geometry::size_shown;
    "stripe-offset": geometry.offset, geometry::size, geometry::size_shown;
    "rotational": geometry.rotational, geometry::rotational, geometry::rotational_shown;
    "gather-below": gather_below, gather::gather_below, gather::shown;
    "read-latency": write_back.read_latency, write_back::read_latency, ReadLatency::to_string;
    "write-back-rate": write_back.rate, write_back::rate, write_back::rate_shown;
    "write-back-iops": write_back.iops, write_back::iops, write_back::iops_shown;
    "write-back-age": write_back.age_s, write_back::age, write_back::age_shown;
    "tls": tls, parsed, TlsUse::to_string;
    "description": description, |_, text| some_text(text), text_or_none;
}

fn parsed<T: FromStr<Err = ConfigError>>(_: &str, text: &str) -> ConfigResult<T> {
    text.parse()
}

fn switch(value: &bool) -> String {
    yes_no(*value).to_owned()
}

fn text_or_none(text: &Option<String>) -> String {
    text.clone().unwrap_or_default()
}

/// A text, which is none where it is empty.
fn some_text(text: &str) -> ConfigResult<Option<String>> {
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

/// The mistake of changing a setting that a served volume keeps.
pub(crate) fn stays(key: &str, old: &str, new: &str) -> ConfigError {
    ConfigError::new(
        Mistake::Served,
        format!("{key} can't change from {old} to {new} while the volume is served"),
        "remove the volume, and add it again with the new settings",
    )
}

impl VolumeChange {
    /// Reads `KEY=VALUE` words, as `forebay volume set` has them.
    ///
    /// # Errors
    /// A word is no `KEY=VALUE`, a key is unknown or comes twice, a value can't be.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> ConfigResult<Self> {
        let mut change = Self::default();
        for text in words {
            let Some((key, value)) = text.split_once('=') else {
                let message = format!("'{text}' is no KEY=VALUE");
                let remedy = format!("write it like mode=bypass; {}", known_keys());
                return Err(ConfigError::new(Mistake::Syntax, message, remedy));
            };
            change.set(key, value)?;
        }
        Ok(change)
    }

    /// Sets one key.
    ///
    /// # Errors
    /// The key is unknown or was set before, or the value can't be.
    pub fn set(&mut self, key: &str, value: &str) -> ConfigResult<()> {
        match self.replace(key, value)? {
            Some(true) => Ok(()),
            Some(false) => {
                let message = format!("setting '{key}' is given twice");
                Err(ConfigError::new(Mistake::Duplicate, message, "keep one of them"))
            }
            None => {
                let message = format!("no volume setting '{key}'");
                Err(ConfigError::new(Mistake::UnknownKey, message, known_keys()))
            }
        }
    }

    /// Whether nothing is to change.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it says something that a served volume keeps as it is: of a journal, a supply, or
    /// the geometry of the disk. See [`VolumeSpec::with`].
    pub fn is_of_what_stays(&self) -> bool {
        let is_fixed = |key| VolumeSetting::find(key).is_some_and(|setting| !setting.is_live);
        self.protection.is_some_and(|new| new.has_journal() || new.has_ups())
            || self.pairs().into_iter().any(|(key, _)| is_fixed(key))
    }
}

impl fmt::Display for VolumeChange {
    /// `mode=bypass,prefetch=no`; nothing for no change.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.pairs().into_iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

/// Reads the name of a journal's device. Only a change that was computed takes one away, so nothing
/// between `=` and the next setting is a mistake.
fn place(key: &str, text: &str) -> ConfigResult<Option<String>> {
    if text.is_empty() {
        let remedy = format!("name a file or device, as in {key}=/dev/nvme0n1, or leave {key} out");
        return Err(ConfigError::new(Mistake::Value, format!("{key}= names nothing"), remedy));
    }
    some_text(text)
}

/// The sentence that lists the keys.
fn known_keys() -> String {
    format!("the settings are {}", listed(&VOLUME_KEYS, "and"))
}
