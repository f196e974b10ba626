//! The settings of one source: the configuration file, or the options of the command line.

use crate::{
    BackgroundMode, CacheRatio, ConfigError, ConfigResult, Ecc, IoEngine, KeeperMode, Listen,
    LogLevel, MemoryReserve, MemorySetting, MetricsAddress, Mistake, Percent, PollingMode, Seconds,
    Secret, SiteSource, SocketDirectory, TcpAddress, TlsMode, Ups, VolumeSpec, Workers,
    volume::parsed, words::instead_of,
};
use forebay_types::{PROGRAM_SETTINGS, Setting, VOLUME_SETTINGS};
use std::{collections::HashSet, fmt, path::PathBuf};

/// The message of `expect` for a setting that [`Settings::defaults`] sets.
pub(crate) const HAS_DEFAULT: &str = "PROGRAM_SETTINGS has a default for it";

/// The values that a source gives for a setting: at most one, or a list.
trait Values<T> {
    fn put(&mut self, value: T);
}

impl<T> Values<T> for Option<T> {
    fn put(&mut self, value: T) {
        *self = Some(value);
    }
}

impl<T> Values<T> for Vec<T> {
    fn put(&mut self, value: T) {
        self.push(value);
    }
}

/// Defines [`Settings`] and the functions that visit every setting. An entry consists of field,
/// type, key in [`PROGRAM_SETTINGS`], parser of key and text, and formatter.
macro_rules! settings {
    ($($field:ident: $type:ty = $key:literal, $read:expr, $show:expr;)+) => {
        /// The settings of one source. A setting that the source does not set is `None` or empty.
        #[derive(Clone, Debug, PartialEq, Eq, Default)]
        pub struct Settings {
            $(
                #[doc = concat!("See `", $key, "` in [`PROGRAM_SETTINGS`].")]
                pub $field: $type,
            )+
            /// The volumes to serve.
            pub volumes: Vec<VolumeSpec>,
        }

        impl Settings {
            /// Parses and stores the value of a setting, or one more value of a list.
            ///
            /// # Errors
            /// There is no such setting, or the value is invalid.
            pub fn set(&mut self, key: &str, text: &str) -> ConfigResult<()> {
                match key {
                    $($key => self.$field.put($read(key, text)?),)+
                    _ => return Err(unknown_setting(key)),
                }
                Ok(())
            }

            /// The values of a setting as text. A password is not shown.
            pub(crate) fn texts(&self, key: &str) -> Vec<String> {
                match key {
                    $($key => self.$field.iter().map($show).collect(),)+
                    _ => Vec::new(),
                }
            }

            /// Whether the values of a setting differ.
            pub(crate) fn differs(&self, other: &Self, key: &str) -> bool {
                match key {
                    $($key => self.$field != other.$field,)+
                    _ => false,
                }
            }

            /// Overrides the settings of `below`. A list replaces the one in `below`, but the
            /// volumes of both are served.
            ///
            /// # Errors
            /// Both have a volume of the same name.
            pub fn over(self, below: Self) -> ConfigResult<Self> {
                let mut volumes = below.volumes;
                volumes.extend(self.volumes);
                check_unique(&volumes)?;
                Ok(Self {
                    $($field: match self.$field == <$type>::default() {
                        true => below.$field,
                        false => self.$field,
                    },)+
                    volumes,
                })
            }
        }
    };
}

settings! {
    memory: Option<MemorySetting> = "memory", parsed, MemorySetting::to_string;
    memory_min: Option<MemorySetting> = "memory-min", parsed, MemorySetting::to_string;
    memory_max: Option<MemorySetting> = "memory-max", parsed, MemorySetting::to_string;
    memory_reserve: Option<MemoryReserve> = "memory-reserve", parsed, MemoryReserve::to_string;
    cache_ratio: Option<CacheRatio> = "cache-ratio", parsed, CacheRatio::to_string;
    nbd: Vec<Listen> = "nbd", parsed, Listen::to_string;
    vhost_user: Option<SocketDirectory> = "vhost-user", parsed, SocketDirectory::to_string;
    state: Option<PathBuf> = "state", path, |path| path.display().to_string();
    metrics: Option<MetricsAddress> = "metrics", parsed, MetricsAddress::to_string;
    dashboard: Option<TcpAddress> = "dashboard", parsed, TcpAddress::to_string;
    dashboard_tokens: Option<PathBuf> = "dashboard-tokens", path, |path| path.display().to_string();
    site: Vec<SiteSource> = "site", parsed, SiteSource::to_string;
    site_ca: Option<PathBuf> = "site-ca", path, |path| path.display().to_string();
    workers: Option<Workers> = "workers", parsed, Workers::to_string;
    io: Option<IoEngine> = "io", parsed, IoEngine::to_string;
    keeper: Option<KeeperMode> = "keeper", parsed, KeeperMode::to_string;
    ecc: Option<Ecc> = "ecc", parsed, Ecc::to_string;
    polling: Option<PollingMode> = "polling", parsed, PollingMode::to_string;
    background: Option<BackgroundMode> = "background", parsed, BackgroundMode::to_string;
    log: Option<LogLevel> = "log", parsed, LogLevel::to_string;
    tls: Option<TlsMode> = "tls", parsed, TlsMode::to_string;
    tls_cert: Option<PathBuf> = "tls-cert", path, |path| path.display().to_string();
    tls_key: Option<PathBuf> = "tls-key", path, |path| path.display().to_string();
    tls_client_ca: Option<PathBuf> = "tls-client-ca", path, |path| path.display().to_string();
    ups: Vec<Ups> = "ups", parsed, Ups::to_string;
    ups_needed: Option<String> = "ups-needed", text, String::clone;
    ups_user: Option<String> = "ups-user", text, String::clone;
    ups_password: Option<Secret> = "ups-password", |key, it| text(key, it).map(Secret),
        |secret| format!("{secret:?}");
    ups_ca: Option<PathBuf> = "ups-ca", path, |path| path.display().to_string();
    ups_threshold: Option<Percent> = "ups-threshold", parsed, Percent::to_string;
    ups_settle_seconds: Option<Seconds> = "ups-settle-seconds", parsed, Seconds::to_string;
    ups_margin_seconds: Option<Seconds> = "ups-margin-seconds", parsed, Seconds::to_string;
    vault: Option<String> = "vault", text, String::clone;
}

fn text(_: &str, text: &str) -> ConfigResult<String> {
    Ok(text.to_owned())
}

fn path(key: &str, text: &str) -> ConfigResult<PathBuf> {
    if text.is_empty() || text.contains('\0') {
        let message = format!("{key} {text:?} is not a path");
        return Err(ConfigError::new(Mistake::Value, message, "name a file"));
    }
    if text == "~" || text.starts_with("~/") {
        let message = format!("{key} {text:?} begins with ~, which only a shell replaces");
        let remedy = format!("write the whole path, or ./{text} for a folder of this name");
        return Err(ConfigError::new(Mistake::Value, message, remedy));
    }
    Ok(text.into())
}

impl Settings {
    /// The default values of [`PROGRAM_SETTINGS`].
    pub(crate) fn defaults() -> Self {
        let mut defaults = Self::default();
        for setting in PROGRAM_SETTINGS.iter().filter(|setting| !setting.default.is_empty()) {
            defaults.set(setting.key, setting.default).expect("default values are valid");
        }
        defaults
    }
}

/// The error for a setting that does not exist.
pub(crate) fn unknown_setting(key: &str) -> ConfigError {
    let known = PROGRAM_SETTINGS.iter().map(|it| it.key).chain(["volume"]);
    ConfigError::new(
        Mistake::UnknownKey,
        format!("unknown setting '{key}'"),
        match Setting::find(key, &VOLUME_SETTINGS) {
            Some(_) => "it is a setting of a volume: write it below a [[volume]]".to_owned(),
            None => instead_of(key, known),
        },
    )
}

/// Checks that no two volumes have the same name.
pub(crate) fn check_unique(volumes: &[VolumeSpec]) -> ConfigResult<()> {
    let mut names = HashSet::new();
    match volumes.iter().find(|volume| !names.insert(&volume.name)) {
        Some(volume) => Err(duplicate_name(&volume.name)),
        None => Ok(()),
    }
}

/// The error for a second volume of the same name.
pub(crate) fn duplicate_name(name: &str) -> ConfigError {
    ConfigError::new(
        Mistake::Duplicate,
        format!("two volumes are called '{name}'"),
        "give one of them another name, as in NAME=BACKING",
    )
}

impl fmt::Display for Settings {
    /// An equivalent configuration file, without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |text: String| toml::Value::String(text).to_string();
        for setting in PROGRAM_SETTINGS.iter().filter(|setting| setting.key != "ups-password") {
            let values: Vec<_> = self.texts(setting.key).into_iter().map(text).collect();
            match &values[..] {
                [] => {}
                [value] if !setting.is_list() => writeln!(f, "{} = {value}", setting.key)?,
                values => writeln!(f, "{} = [{}]", setting.key, values.join(", "))?,
            }
        }
        for volume in &self.volumes {
            writeln!(f, "\n[[volume]]\nname = {}", text(volume.name.clone()))?;
            writeln!(f, "backing = {}", text(volume.backing.clone()))?;
            for (key, value) in volume.settings().pairs() {
                writeln!(f, "{key} = {}", text(value))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::listed;
    use forebay_types::{Fault, Size, limits};

    #[test]
    fn settings_take_the_values_that_help_texts_show() {
        for setting in PROGRAM_SETTINGS {
            let set = |text: &str| Settings::default().set(setting.key, text);
            for shown in setting.values.split('|') {
                let range = shown.split_once('-').and_then(|(least, most)| {
                    Some((least.parse::<i64>().ok()?, most.parse::<i64>().ok()?))
                });
                if let Some((least, most)) = range {
                    for number in [least - 1, least, most, most + 1] {
                        let is_taken = set(&number.to_string()).is_ok();
                        assert_eq!(is_taken, (least..=most).contains(&number), "{number}");
                    }
                    continue;
                }
                let value = match shown {
                    "SIZE" => "1GiB",
                    "READ:WRITE" => "25:75",
                    "ADDRESS..." => "tcp:[::1]:10809",
                    "ADDRESS:PORT" => "127.0.0.1:9101",
                    "HOST:PORT" => "[::1]:8080",
                    "HOST..." => "https://nas:8443",
                    "UPS..." => "rack@nas",
                    word => word,
                };
                set(value).unwrap();
            }
            if let Some(words) = setting.words() {
                let error = set("x").unwrap_err().explained();
                assert!(error.ends_with(&format!("use {}", listed(&words, "or"))), "{error}");
            }
        }
        let least = Size(limits::MEMORY_BYTES_MIN).to_string();
        assert!(PROGRAM_SETTINGS[0].help.contains(&least));
    }
}
