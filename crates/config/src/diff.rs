//! The differences between two configurations, for a reload without a restart.

use crate::{Config, LogLevel, ServerChange, VolumeChange, VolumeSpec};
use forebay_types::PROGRAM_SETTINGS;
use std::{collections::HashMap, fmt};

/// The settings of [`ConfigChange::Listening`].
const LISTENING_SETTINGS: [&str; 11] = [
    "nbd",
    "vhost-user",
    "metrics",
    "dashboard",
    "dashboard-tokens",
    "site",
    "site-ca",
    "tls",
    "tls-cert",
    "tls-key",
    "tls-client-ca",
];

/// One difference. Its text is a sentence for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigChange {
    /// A volume is missing: flush and remove it.
    VolumeRemoved { name: String },
    /// A volume has another backing: flush and remove the volume. [`Self::VolumeAdded`] with the
    /// new one follows once all removals are done, as two volumes may exchange their disks.
    VolumeReplaced {
        /// The new volume.
        new: VolumeSpec,
    },
    /// A volume has other settings. They may include settings that are fixed while a volume is
    /// served: the operator may already have removed the volume and added it again with them, which
    /// only the server knows.
    VolumeChanged {
        name: String,
        /// The settings that differ.
        change: VolumeChange,
    },
    /// A volume is new.
    VolumeAdded {
        /// The volume.
        new: VolumeSpec,
    },
    /// Settings of the server, which can change while it runs.
    Server {
        /// The settings that differ.
        change: ServerChange,
    },
    /// Addresses at which the server listens, the tokens of the dashboard, the encryption, or the
    /// site that it watches.
    Listening {
        /// The key in the file.
        setting: &'static str,
        old: String,
        new: String,
    },
    /// The log level.
    Log {
        /// The new level.
        new: LogLevel,
    },
    /// A setting that cannot change at run time.
    NeedsRestart {
        /// Its key in the file.
        setting: &'static str,
        /// The effective value, also after reloads that would have changed it.
        old: String,
        /// The new value.
        new: String,
    },
}

impl ConfigChange {
    /// The name of the volume that changes.
    pub fn volume(&self) -> Option<&str> {
        match self {
            Self::VolumeRemoved { name } | Self::VolumeChanged { name, .. } => Some(name),
            Self::VolumeReplaced { new } | Self::VolumeAdded { new } => Some(&new.name),
            Self::Server { .. }
            | Self::Listening { .. }
            | Self::Log { .. }
            | Self::NeedsRestart { .. } => None,
        }
    }
}

impl fmt::Display for ConfigChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VolumeRemoved { name } => write!(f, "volume '{name}' is removed"),
            Self::VolumeReplaced { new } => {
                write!(f, "volume '{}' is replaced: its backing is now {}", new.name, new.backing)
            }
            // The protection may be fixed or not, depending on the old one.
            Self::VolumeChanged { name, change }
                if change.has_fixed_settings() || change.has("protection") =>
            {
                write!(f, "volume '{name}' has other settings: {change}")
            }
            Self::VolumeChanged { name, change } => {
                write!(f, "volume '{name}' is changed: {change}")
            }
            Self::VolumeAdded { new } => write!(f, "volume '{}' is added", new.name),
            Self::Server { change } => write!(f, "settings are changed: {change}"),
            Self::Listening { setting, old, new } => {
                write!(f, "{setting} is now {new}, before {old}")
            }
            Self::Log { new } => write!(f, "the log level is now {new}"),
            // A password: both texts are `(not shown)`.
            Self::NeedsRestart { setting, old, new } if old == new => {
                write!(f, "{setting} stays as it is: restart forebay to change it")
            }
            Self::NeedsRestart { setting, old, new } => {
                write!(f, "{setting} stays {old}: restart forebay to change it to {new}")
            }
        }
    }
}

/// The changes from `old` to `new`. Removals come first, so that the disk of a removed volume is
/// free for another one.
pub fn diff(old: &Config, new: &Config) -> Vec<ConfigChange> {
    let mut changes = volume_changes(&old.volumes, &new.volumes);
    let cache_ratio = (old.cache_ratio != new.cache_ratio).then_some(new.cache_ratio);
    let background = (old.background != new.background).then_some(new.background);
    let change = ServerChange { cache_ratio, background, ..old.memory.change_to(&new.memory) };
    if !change.is_empty() {
        changes.push(ConfigChange::Server { change });
    }
    if old.log != new.log {
        changes.push(ConfigChange::Log { new: new.log });
    }
    let text = |config: &Config, key| match &config.settings.texts(key)[..] {
        [] => "unset".to_owned(),
        texts => texts.join(", "),
    };
    let differs = |key: &&'static str| old.settings.differs(&new.settings, key);
    for setting in LISTENING_SETTINGS.iter().copied().filter(differs) {
        let (old, new) = (text(old, setting), text(new, setting));
        changes.push(ConfigChange::Listening { setting, old, new });
    }
    let fixed = PROGRAM_SETTINGS.iter().filter(|setting| !setting.is_live);
    for setting in fixed.map(|setting| setting.key).filter(differs) {
        let (old, new) = (text(old, setting), text(new, setting));
        changes.push(ConfigChange::NeedsRestart { setting, old, new });
    }
    changes
}

fn volume_changes(old: &[VolumeSpec], new: &[VolumeSpec]) -> Vec<ConfigChange> {
    let by_name = |volumes: &[VolumeSpec]| -> HashMap<String, VolumeSpec> {
        volumes.iter().map(|volume| (volume.name.clone(), volume.clone())).collect()
    };
    let (old_by_name, new_by_name) = (by_name(old), by_name(new));
    let removed = old.iter().filter(|volume| !new_by_name.contains_key(&volume.name));
    let mut changes: Vec<_> =
        removed.map(|volume| ConfigChange::VolumeRemoved { name: volume.name.clone() }).collect();
    let mut added = Vec::new();
    for volume in new {
        match old_by_name.get(&volume.name) {
            Some(before) if before == volume => {}
            Some(before) if before.backing != volume.backing => {
                changes.push(ConfigChange::VolumeReplaced { new: volume.clone() });
                added.push(ConfigChange::VolumeAdded { new: volume.clone() });
            }
            Some(before) => changes.push(ConfigChange::VolumeChanged {
                name: volume.name.clone(),
                change: before.change_to(volume),
            }),
            None => added.push(ConfigChange::VolumeAdded { new: volume.clone() }),
        }
    }
    changes.extend(added);
    changes
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
