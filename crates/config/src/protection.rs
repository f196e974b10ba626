//! The protection of acknowledged writes that are not on the disk.
//!
//! The module owns all rules about combinations of mode, protection, journal, durability and UPS;
//! the checks of [`VolumeSpec`] call it.

use crate::{
    ConfigError, ConfigResult, Mistake, Ups, VolumeSpec,
    volume::{check_device_name, fixed_setting_error},
};
use forebay_types::{Action, Durability, Mode, Protection, Remedy, backing};

/// Parses `protection`.
pub(crate) fn protection(_: &str, text: &str) -> ConfigResult<Protection> {
    let mut valid = Protection::ALL.into_iter().filter(|value| *value != Protection::Unstated);
    valid.find(|value| value.as_str() == text).ok_or_else(|| {
        let message = format!("unknown protection '{text}'");
        let remedy = "write protection=journal with journal=PATH, protection=ups with a UPS, \
                      protection=journal+ups with both, protection=none with accept-loss=yes, or \
                      use mode=write-through";
        ConfigError::new(Mistake::Protection, message, remedy)
    })
}

impl VolumeSpec {
    /// Checks that the volume has a journal exactly if its protection includes one, and that
    /// backing, journal and mirror differ.
    pub(crate) fn check_journal(&self) -> ConfigResult<()> {
        let fail = |mistake, message: &str, remedy: &'static str| {
            Err(ConfigError::new(mistake, message, remedy))
        };
        let Some(journal) = &self.config.journal else {
            if self.config.protection.has_journal() {
                let message =
                    format!("protection={}, but no journal is named", self.config.protection);
                let remedy = "add journal=PATH, a file or device without another use";
                return fail(Mistake::Protection, &message, remedy);
            }
            if self.config.journal_mirror.is_some() {
                let message = "journal-mirror is set, but journal is not";
                let remedy = "add protection=journal,journal=PATH, or leave journal-mirror out";
                return fail(Mistake::Protection, message, remedy);
            }
            return self.check_durability(self.config.durability != Durability::default());
        };
        if !self.config.protection.has_journal() {
            let message = "journal is set, but the protection does not include one";
            let remedy = "add protection=journal, or leave journal out";
            return fail(Mistake::Protection, message, remedy);
        }
        check_device_name("journal", journal)?;
        if *journal == self.backing {
            let message = format!("journal {journal} is also its backing");
            let remedy = "name another file or device, which only journals use";
            return fail(Mistake::Duplicate, &message, remedy);
        }
        let Some(mirror) = &self.config.journal_mirror else { return Ok(()) };
        check_device_name("journal mirror", mirror)?;
        if [journal, &self.backing].contains(&mirror) {
            let what = if mirror == journal { "journal" } else { "backing" };
            let message = format!("journal mirror {mirror} is also its {what}");
            let remedy = "name another file or device, which only journals use";
            return fail(Mistake::Duplicate, &message, remedy);
        }
        Ok(())
    }

    /// Refuses an explicit durability without a journal, which it would have no effect on.
    pub(crate) fn check_durability(&self, is_set: bool) -> ConfigResult<()> {
        if !is_set || self.config.journal.is_some() {
            return Ok(());
        }
        Err(ConfigError::new(
            Mistake::Protection,
            format!("durability={} needs a journal, and none is named", self.config.durability),
            "add protection=journal,journal=PATH, or leave durability out",
        ))
    }

    /// Refuses an explicit `unsafe-supply` unless a UPS alone protects the volume. With a journal
    /// there is no choice: a write that bypasses the journal is always on stable storage before it
    /// is acknowledged.
    pub(crate) fn check_unsafe_supply(&self, is_set: bool) -> ConfigResult<()> {
        if !is_set || self.config.protection == Protection::Ups {
            return Ok(());
        }
        Err(ConfigError::new(
            Mistake::Protection,
            format!(
                "unsafe-supply={} needs protection=ups, and the protection is {}",
                self.config.unsafe_supply, self.config.protection
            ),
            "add protection=ups, or leave unsafe-supply out",
        ))
    }

    /// Refuses write-back in front of memory that is saved when the server stops: a save during an
    /// upgrade would lack the data that is only in the pool, and the pool is no faster.
    pub(crate) fn check_saved_memory(&self) -> ConfigResult<()> {
        if self.config.mode != Mode::WriteBack || !backing::is_saved_memory(&self.backing) {
            return Ok(());
        }
        Err(ConfigError::new(
            Mistake::Protection,
            "write-back in front of a volume in memory delays what is to be saved, and gains \
             nothing",
            "use mode=bypass, which does not keep the data twice, or mode=write-through",
        ))
    }

    /// Refuses write-back without protection, unless the operator has set both `protection=none`
    /// and `accept-loss`: write-back acknowledges from memory.
    pub(crate) fn check_protection(&self) -> ConfigResult<()> {
        let stated = match self.config.protection {
            Protection::Unstated => false,
            Protection::None => self.config.accept_loss,
            Protection::Journal | Protection::Ups | Protection::JournalUps => true,
        };
        if self.config.mode != Mode::WriteBack || stated {
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

    /// Checks that a protection by UPS has a UPS, and without a journal also a vault. With a
    /// journal the vault is optional: the journal preserves everything, and after its failure
    /// nothing is acknowledged from memory without a vault.
    ///
    /// # Errors
    /// The UPS or the vault is missing.
    pub fn check_ups(&self, upses: &[Ups], has_vault: bool) -> ConfigResult<()> {
        let fail = |what: &str, remedy: Remedy| {
            let message = format!("protection={}, but {what}", self.config.protection);
            Err(self.about(ConfigError::new(Mistake::Protection, message, remedy)))
        };
        if self.config.protection.has_ups() && upses.is_empty() {
            return fail("no UPS is configured", Action::set("ups", "NAME@HOST:PORT").into());
        }
        if self.config.protection == Protection::Ups && !has_vault {
            let what = "there is no vault for dirty data when the battery runs low";
            let remedy = Remedy::from(Action::set("vault", "PATH"));
            return fail(what, remedy.or("write protection=journal,journal=PATH"));
        }
        Ok(())
    }

    /// Refuses to put a served volume under a UPS or to take it away: the old protection is needed
    /// until the disk has everything. Removing the volume destages everything. Under a UPS, a
    /// volume neither gets nor leaves a journal.
    pub(crate) fn check_protection_unchanged(&self, new: &Self) -> ConfigResult<()> {
        let [old_protection, protection] = [self, new].map(|spec| spec.config.protection);
        let has_both = protection.has_journal() == old_protection.has_journal();
        let has_ups = [old_protection, protection].map(|it| it.has_ups());
        if has_ups == [false; 2] || has_ups == [true; 2] && has_both {
            return Ok(());
        }
        let (old, new) = (self.config.protection.as_str(), new.config.protection.as_str());
        Err(fixed_setting_error("protection", old, new))
    }
}

#[cfg(test)]
#[path = "protection_tests.rs"]
mod tests;
