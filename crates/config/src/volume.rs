//! One volume as the operator asked for it, and changes to one.
//!
//! A [`VolumeSpec`] that exists has been checked: its name can be shown and sent over NBD, its
//! mode has the protection it needs. The checks are made in [`VolumeSpec::checked`], which every
//! way in ends with: the command line, the file and the control API.

use crate::{
    Auto, ConfigError, ConfigResult, GeometryChange, GeometrySpec, Mistake, Protection, TlsMode,
    gather::{gather_below, shown},
    geometry::{rotational, size, stripe},
    words::{listed, word, words, yes_no, yes_or_no},
    write_back::{WriteBackChange, WriteBackSpec, age, iops, rate, read_latency},
};
use forebay_types::{Durability, Mode, UnsafeSupply, limits};
use std::fmt;

/// Longest description of a volume, in bytes: the longest string NBD can carry.
pub const DESCRIPTION_BYTES_MAX: usize = 4096;
/// Longest backing, in bytes: the longest path Linux takes, and as much again for fault layers.
pub const BACKING_BYTES_MAX: usize = 8192;

/// A setting of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSetting {
    /// Its name.
    pub key: &'static str,
    /// What it may be set to, as help texts show it.
    pub values: &'static str,
    /// Whether it can change while the volume is served.
    pub is_live: bool,
}

const fn live(key: &'static str, values: &'static str) -> VolumeSetting {
    VolumeSetting { key, values, is_live: true }
}

const fn fixed(key: &'static str, values: &'static str) -> VolumeSetting {
    VolumeSetting { key, values, is_live: false }
}

/// The settings of a volume, in the order they are listed and shown.
pub const VOLUME_SETTINGS: [VolumeSetting; 21] = [
    live("mode", "write-back|write-through|bypass"),
    live("protection", "none|journal|ups|journal+ups"),
    fixed("journal", "BACKING"),
    fixed("journal-mirror", "BACKING"),
    fixed("durability", "ack|flush"),
    live("unsafe-supply", "stable|disk-cache"),
    fixed("ordered", "yes|no"),
    live("accept-loss", "yes|no"),
    live("read-only", "yes|no"),
    live("prefetch", "yes|no"),
    fixed("stripe", "SIZE|none|auto"),
    fixed("chunk", "SIZE|auto"),
    fixed("stripe-offset", "SIZE|auto"),
    fixed("rotational", "yes|no|auto"),
    live("gather-below", "SIZE|off|auto"),
    live("read-latency", "TIME|idle|off"),
    live("write-back-rate", "SIZE|off"),
    live("write-back-iops", "NUMBER|off"),
    live("write-back-age", "TIME|off"),
    live("tls", "required|optional"),
    live("description", "TEXT"),
];

/// Their names, in the same order.
pub const VOLUME_KEYS: [&str; VOLUME_SETTINGS.len()] = {
    let mut keys = [""; VOLUME_SETTINGS.len()];
    let mut at = 0;
    while at < keys.len() {
        keys[at] = VOLUME_SETTINGS[at].key;
        at += 1;
    }
    keys
};

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
        Self {
            name: name.into(),
            backing: backing.into(),
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
        .checked()
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
        self.check_journal_stays(&spec)
            .and_then(|()| self.check_geometry_stays(&spec))
            .and_then(|()| spec.check_unsafe_supply(change.unsafe_supply.is_some()))
            .map_err(|error| spec.about(error))?;
        spec.checked()
    }

    /// The volume with `change` made to it, unchecked.
    fn applied(&self, change: &VolumeChange) -> Self {
        let mut spec = self.clone();
        spec.mode = change.mode.unwrap_or(spec.mode);
        spec.protection = change.protection.unwrap_or(spec.protection);
        spec.durability = change.durability.unwrap_or(spec.durability);
        spec.unsafe_supply = change.unsafe_supply.unwrap_or(spec.unsafe_supply);
        spec.ordered = change.ordered.unwrap_or(spec.ordered);
        spec.accept_loss = change.accept_loss.unwrap_or(spec.accept_loss);
        spec.read_only = change.read_only.unwrap_or(spec.read_only);
        spec.prefetch = change.prefetch.unwrap_or(spec.prefetch);
        spec.geometry = spec.geometry.applied(&change.geometry);
        spec.write_back = spec.write_back.applied(&change.write_back);
        spec.gather_below = change.gather_below.unwrap_or(spec.gather_below);
        spec.tls = change.tls.unwrap_or(spec.tls);
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        spec.journal = change.journal.as_ref().map_or(spec.journal, text);
        spec.journal_mirror = change.journal_mirror.as_ref().map_or(spec.journal_mirror, text);
        spec.description = change.description.as_ref().map_or(spec.description, text);
        spec
    }

    /// The change that makes `self` into `other`, as far as settings go: neither name nor backing.
    pub fn change_to(&self, other: &Self) -> VolumeChange {
        fn new<T: PartialEq + Clone>(old: &T, new: &T) -> Option<T> {
            (old != new).then(|| new.clone())
        }
        VolumeChange {
            mode: new(&self.mode, &other.mode),
            protection: new(&self.protection, &other.protection),
            journal: new(&self.journal, &other.journal).map(Option::unwrap_or_default),
            journal_mirror: new(&self.journal_mirror, &other.journal_mirror)
                .map(Option::unwrap_or_default),
            durability: new(&self.durability, &other.durability),
            unsafe_supply: new(&self.unsafe_supply, &other.unsafe_supply),
            ordered: new(&self.ordered, &other.ordered),
            accept_loss: new(&self.accept_loss, &other.accept_loss),
            read_only: new(&self.read_only, &other.read_only),
            prefetch: new(&self.prefetch, &other.prefetch),
            geometry: self.geometry.change_to(&other.geometry),
            gather_below: new(&self.gather_below, &other.gather_below),
            write_back: self.write_back.change_to(&other.write_back),
            tls: new(&self.tls, &other.tls),
            description: new(&self.description, &other.description).map(Option::unwrap_or_default),
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
    /// The journal; an empty text takes it away.
    pub journal: Option<String>,
    /// Its second device; an empty text takes it away.
    pub journal_mirror: Option<String>,
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
    /// The text for people; an empty one takes it away.
    pub description: Option<String>,
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
        let first = match key {
            "mode" => self.mode.replace(word("mode", value, &Mode::ALL)?).is_none(),
            "protection" => self.protection.replace(value.parse()?).is_none(),
            "journal" => self.journal.replace(journal(key, value)?).is_none(),
            "journal-mirror" => self.journal_mirror.replace(journal(key, value)?).is_none(),
            "durability" => self.durability.replace(word(key, value, &Durability::ALL)?).is_none(),
            "unsafe-supply" => {
                self.unsafe_supply.replace(word(key, value, &UnsafeSupply::ALL)?).is_none()
            }
            "ordered" => self.ordered.replace(yes_or_no(key, value)?).is_none(),
            "accept-loss" => self.accept_loss.replace(yes_or_no(key, value)?).is_none(),
            "read-only" => self.read_only.replace(yes_or_no(key, value)?).is_none(),
            "prefetch" => self.prefetch.replace(yes_or_no(key, value)?).is_none(),
            "stripe" => self.geometry.stripe.replace(stripe(value)?).is_none(),
            "chunk" => self.geometry.chunk.replace(size(key, value)?).is_none(),
            "stripe-offset" => self.geometry.offset.replace(size(key, value)?).is_none(),
            "rotational" => self.geometry.rotational.replace(rotational(value)?).is_none(),
            "gather-below" => self.gather_below.replace(gather_below(value)?).is_none(),
            "read-latency" => {
                self.write_back.read_latency.replace(read_latency(key, value)?).is_none()
            }
            "write-back-rate" => self.write_back.rate.replace(rate(key, value)?).is_none(),
            "write-back-iops" => self.write_back.iops.replace(iops(key, value)?).is_none(),
            "write-back-age" => self.write_back.age_s.replace(age(key, value)?).is_none(),
            "tls" => self.tls.replace(value.parse()?).is_none(),
            "description" => self.description.replace(value.to_owned()).is_none(),
            _ => {
                let message = format!("no volume setting '{key}'");
                return Err(ConfigError::new(Mistake::UnknownKey, message, known_keys()));
            }
        };
        if first {
            return Ok(());
        }
        let message = format!("setting '{key}' is given twice");
        Err(ConfigError::new(Mistake::Duplicate, message, "keep one of them"))
    }

    /// Whether nothing is to change.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it says something that a served volume keeps as it is: of a journal, a supply, or
    /// the geometry of the disk. See [`VolumeSpec::with`].
    pub fn is_of_what_stays(&self) -> bool {
        self.protection.is_some_and(|new| new.has_journal() || new.has_ups())
            || self.journal.is_some()
            || self.journal_mirror.is_some()
            || self.durability.is_some()
            || self.ordered.is_some()
            || !self.geometry.is_empty()
    }

    /// The settings as key and value, in the order of [`VOLUME_KEYS`].
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let [stripe, chunk, offset, rotational] = self.geometry.values();
        let [read_latency, rate, iops, age] = self.write_back.values();
        [
            ("mode", self.mode.map(|mode| mode.to_string())),
            ("protection", self.protection.map(|protection| protection.to_string())),
            ("journal", self.journal.clone()),
            ("journal-mirror", self.journal_mirror.clone()),
            ("durability", self.durability.map(|durability| durability.to_string())),
            ("unsafe-supply", self.unsafe_supply.map(|choice| choice.to_string())),
            ("ordered", self.ordered.map(|value| yes_no(value).to_owned())),
            ("accept-loss", self.accept_loss.map(|value| yes_no(value).to_owned())),
            ("read-only", self.read_only.map(|value| yes_no(value).to_owned())),
            ("prefetch", self.prefetch.map(|value| yes_no(value).to_owned())),
            ("stripe", stripe),
            ("chunk", chunk),
            ("stripe-offset", offset),
            ("rotational", rotational),
            ("gather-below", self.gather_below.map(shown)),
            ("read-latency", read_latency),
            ("write-back-rate", rate),
            ("write-back-iops", iops),
            ("write-back-age", age),
            ("tls", self.tls.map(|tls| tls.to_string())),
            ("description", self.description.clone()),
        ]
        .into_iter()
        .filter_map(|(key, value)| value.map(|value| (key, value)))
        .collect()
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
fn journal(key: &str, text: &str) -> ConfigResult<String> {
    if text.is_empty() {
        let remedy = format!("name a file or device, as in {key}=/dev/nvme0n1, or leave {key} out");
        return Err(ConfigError::new(Mistake::Value, format!("{key}= names nothing"), remedy));
    }
    Ok(text.to_owned())
}

/// The sentence that lists the keys.
fn known_keys() -> String {
    format!("the settings are {}", listed(&VOLUME_KEYS, "and"))
}
