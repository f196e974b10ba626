//! What keeps acknowledged writes that are not on the disk yet, and what has to be said for it.
//!
//! The rules that tie mode, protection, journal and durability together are all here;
//! [`VolumeSpec`]'s own check calls them.

use crate::{
    ConfigError, ConfigResult, Mistake, UpsSettings, VolumeSpec,
    volume::{check_place, stays},
};
use forebay_types::{Action, Durability, Mode, Remedy};
use std::{fmt, str::FromStr};

/// What keeps acknowledged writes that are not on the disk yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Protection {
    /// The operator did not say. Enough for every mode but write-back.
    #[default]
    Unstated,
    /// Nothing but memory, and the operator wrote that down.
    None,
    /// A journal, which the volume names.
    Journal,
    /// A supply with a battery, and a vault that takes what is dirty when the battery runs low.
    Ups,
    /// A journal, and the supply for when the journal has failed.
    JournalUps,
}

impl Protection {
    /// The word for it in the status; `unstated` can't be written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unstated => "unstated",
            Self::None => "none",
            Self::Journal => "journal",
            Self::Ups => "ups",
            Self::JournalUps => "journal+ups",
        }
    }

    /// Whether a journal is part of it.
    pub const fn has_journal(self) -> bool {
        matches!(self, Self::Journal | Self::JournalUps)
    }

    /// Whether a supply is part of it.
    pub const fn has_ups(self) -> bool {
        matches!(self, Self::Ups | Self::JournalUps)
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Protection {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let remedy = "write protection=journal with journal=PATH, protection=ups with a supply, \
                      protection=journal+ups with both, protection=none with accept-loss=yes, or \
                      use mode=write-through";
        match text {
            "none" => Ok(Self::None),
            "journal" => Ok(Self::Journal),
            "ups" => Ok(Self::Ups),
            "journal+ups" => Ok(Self::JournalUps),
            _ => {
                let message = format!("no protection '{text}'");
                Err(ConfigError::new(Mistake::Protection, message, remedy))
            }
        }
    }
}

impl VolumeSpec {
    /// A journal and the protection by it are named together, and the journal is a disk of its
    /// own.
    pub(crate) fn check_journal(&self) -> ConfigResult<()> {
        let fail = |mistake, message: &str, remedy: &'static str| {
            Err(ConfigError::new(mistake, message, remedy))
        };
        let Some(journal) = &self.journal else {
            if self.protection.has_journal() {
                let message = format!("protection={}, but no journal is named", self.protection);
                let remedy = "add journal=PATH, a file or device that is nothing else";
                return fail(Mistake::Protection, &message, remedy);
            }
            if self.journal_mirror.is_some() {
                let message = "a mirror of a journal is named, but no journal";
                let remedy = "add protection=journal,journal=PATH, or leave journal-mirror out";
                return fail(Mistake::Protection, message, remedy);
            }
            return self.check_durability(self.durability != Durability::default());
        };
        if !self.protection.has_journal() {
            let message = "a journal is named, but nothing is protected by it";
            let remedy = "add protection=journal, or leave journal out";
            return fail(Mistake::Protection, message, remedy);
        }
        check_place("journal", journal)?;
        if *journal == self.backing {
            let message = format!("its journal {journal} is its own backing");
            let remedy = "name another file or device, which only journals use";
            return fail(Mistake::Duplicate, &message, remedy);
        }
        let Some(mirror) = &self.journal_mirror else { return Ok(()) };
        check_place("mirror of the journal", mirror)?;
        if [journal, &self.backing].contains(&mirror) {
            let what = if mirror == journal { "journal" } else { "backing" };
            let message = format!("the mirror of its journal, {mirror}, is its own {what}");
            let remedy = "name another file or device, which only journals use";
            return fail(Mistake::Duplicate, &message, remedy);
        }
        Ok(())
    }

    /// Durability is a promise that only a journal can keep: saying it without one is a mistake,
    /// and not a wish that comes to nothing in silence.
    pub(crate) fn check_durability(&self, is_said: bool) -> ConfigResult<()> {
        if !is_said || self.journal.is_some() {
            return Ok(());
        }
        Err(ConfigError::new(
            Mistake::Protection,
            format!("durability={} needs a journal, and none is named", self.durability),
            "add protection=journal,journal=PATH, or leave durability out",
        ))
    }

    /// The choice is about volumes that a UPS alone protects. Beside a journal there is none:
    /// what goes past the journal is always on stable storage before it is acknowledged.
    pub(crate) fn check_unsafe_supply(&self, is_said: bool) -> ConfigResult<()> {
        if !is_said || self.protection == Protection::Ups {
            return Ok(());
        }
        Err(ConfigError::new(
            Mistake::Protection,
            format!(
                "unsafe-supply={} needs protection=ups, and the protection is {}",
                self.unsafe_supply, self.protection
            ),
            "add protection=ups, or leave unsafe-supply out",
        ))
    }

    /// Write-back acknowledges from memory. Without a protection that memory is all there is, so
    /// the operator has to have said both that there is none and that loss is accepted.
    pub(crate) fn check_protection(&self) -> ConfigResult<()> {
        let stated = match self.protection {
            Protection::Unstated => false,
            Protection::None => self.accept_loss,
            Protection::Journal | Protection::Ups | Protection::JournalUps => true,
        };
        if self.mode != Mode::WriteBack || stated {
            return Ok(());
        }
        Err(ConfigError::new(
            Mistake::Protection,
            "write-back without a protection loses acknowledged writes when the power fails or \
             the program is killed",
            "write protection=journal,journal=PATH or protection=ups to keep them, \
             protection=none,accept-loss=yes to accept that, or use mode=write-through",
        ))
    }

    /// A supply has to be watched before it protects anything, and alone it protects nothing
    /// without a vault. Beside a journal it may be without one: the journal keeps everything, and
    /// once it has failed nothing is acknowledged from memory without a vault.
    ///
    /// # Errors
    /// There is none.
    pub fn check_ups(&self, ups: &UpsSettings, has_vault: bool) -> ConfigResult<()> {
        let fail = |what: &str, remedy: Remedy| {
            let message = format!("protection={}, but {what}", self.protection);
            Err(self.about(ConfigError::new(Mistake::Protection, message, remedy)))
        };
        if self.protection.has_ups() && ups.supplies.is_empty() {
            return fail("no supply is watched", Action::set("ups", "NAME@HOST:PORT").into());
        }
        if self.protection == Protection::Ups && !has_vault {
            let what = "there is no vault for what is dirty when the battery runs low";
            let remedy = Remedy::from(Action::set("vault", "PATH"));
            return fail(what, remedy.or("write protection=journal,journal=PATH"));
        }
        Ok(())
    }

    /// A served volume keeps its kind of protection: records or battery are needed until the disk
    /// has everything, which is what removing the volume sees to.
    pub(crate) fn check_protection_stays(&self, new: &Self) -> ConfigResult<()> {
        let kind = |spec: &Self| (spec.protection.has_journal(), spec.protection.has_ups());
        if kind(self) == kind(new) {
            return Ok(());
        }
        let (old, new) = (self.protection.as_str(), new.protection.as_str());
        Err(stays("protection", old, new))
    }
}

#[cfg(test)]
#[path = "protection_tests.rs"]
mod tests;
