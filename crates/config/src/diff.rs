//! The differences between two configurations, for a reload without a restart.

use crate::{Config, LogLevel, VolumeChange, VolumeSpec};
use std::{collections::HashMap, fmt};

/// One difference. Its text is a sentence for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A volume is missing: flush and remove it.
    VolumeRemoved {
        /// Its name.
        name: String,
    },
    /// A volume has another backing: remove the volume, then add the new one.
    VolumeReplaced {
        /// The new volume.
        new: VolumeSpec,
    },
    /// A volume has other settings. They include settings that a served volume cannot change,
    /// because the volume may have been removed and added again with the new settings by hand: only
    /// the server knows.
    VolumeChanged {
        /// Its name.
        name: String,
        /// The settings that differ.
        change: VolumeChange,
    },
    /// A volume is new.
    VolumeAdded {
        /// The volume.
        new: VolumeSpec,
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
        /// The effective value.
        old: String,
        /// The new value.
        new: String,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VolumeRemoved { name } => write!(f, "volume '{name}' is removed"),
            Self::VolumeReplaced { new } => {
                write!(f, "volume '{}' is replaced: its backing is now {}", new.name, new.backing)
            }
            Self::VolumeChanged { name, change } if change.has_fixed_settings() => {
                write!(f, "volume '{name}' has other settings: {change}")
            }
            Self::VolumeChanged { name, change } => {
                write!(f, "volume '{name}' is changed: {change}")
            }
            Self::VolumeAdded { new } => write!(f, "volume '{}' is added", new.name),
            Self::Log { new } => write!(f, "the log level is now {new}"),
            Self::NeedsRestart { setting, old, new } => {
                write!(f, "{setting} stays {old}: restart forebay to change it to {new}")
            }
        }
    }
}

/// The changes from `old` to `new`. Removals come first, so that a disk that moves to another
/// volume is free when that volume is added.
pub fn diff(old: &Config, new: &Config) -> Vec<Change> {
    let mut changes = volume_changes(&old.volumes, &new.volumes);
    if old.log != new.log {
        changes.push(Change::Log { new: new.log });
    }
    let path = |path: &Option<std::path::PathBuf>| match path {
        Some(path) => path.display().to_string(),
        None => "unset".to_owned(),
    };
    let listeners =
        |config: &Config| config.nbd.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let both = |show: &dyn Fn(&Config) -> String| (show(old), show(new));
    for (setting, (old, new)) in [
        ("memory", both(&|config| config.memory.to_string())),
        ("nbd", both(&listeners)),
        ("state", both(&|config| config.state.display().to_string())),
        ("workers", both(&|config| config.workers.to_string())),
        ("io", both(&|config| config.io.to_string())),
        ("keeper", both(&|config| config.keeper.to_string())),
        ("ecc", both(&|config| config.ecc.to_string())),
        ("tls", both(&|config| config.tls.mode.to_string())),
        ("tls-cert", both(&|config| path(&config.tls.cert))),
        ("tls-key", both(&|config| path(&config.tls.key))),
        ("tls-client-ca", both(&|config| path(&config.tls.client_ca))),
        ("ups", both(&|config| config.ups.to_string())),
        ("ups-ca", both(&|config| path(&config.ups.ca))),
        ("vault", both(&|config| config.vault.clone().unwrap_or_else(|| "unset".to_owned()))),
    ] {
        if old != new {
            changes.push(Change::NeedsRestart { setting, old, new });
        }
    }
    if let (Some((_, old)), Some((_, new))) = (&old.ups.login, &new.ups.login)
        && old != new
    {
        let (old, new) = ("as it was".to_owned(), "the new one".to_owned());
        changes.push(Change::NeedsRestart { setting: "ups-password", old, new });
    }
    changes
}

fn volume_changes(old: &[VolumeSpec], new: &[VolumeSpec]) -> Vec<Change> {
    let by_name = |volumes: &[VolumeSpec]| -> HashMap<String, VolumeSpec> {
        volumes.iter().map(|volume| (volume.name.clone(), volume.clone())).collect()
    };
    let (old_by_name, new_by_name) = (by_name(old), by_name(new));
    let removed = old.iter().filter(|volume| !new_by_name.contains_key(&volume.name));
    let mut changes: Vec<_> =
        removed.map(|volume| Change::VolumeRemoved { name: volume.name.clone() }).collect();
    let mut added = Vec::new();
    for volume in new {
        match old_by_name.get(&volume.name) {
            Some(before) if before == volume => {}
            Some(before) if before.backing != volume.backing => {
                changes.push(Change::VolumeReplaced { new: volume.clone() });
            }
            Some(before) => changes.push(Change::VolumeChanged {
                name: volume.name.clone(),
                change: before.change_to(volume),
            }),
            None => added.push(Change::VolumeAdded { new: volume.clone() }),
        }
    }
    changes.extend(added);
    changes
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
