//! Reloads: reads the configuration file again, and applies the changes.
//!
//! A file that was emptied by mistake, or half written, must not end the service of the volumes
//! that it no longer names. So a reload that would remove more than half of them has to be
//! confirmed. So has the removal of a volume that clients use: a mounted file system would lose its
//! disk.

use super::Daemon;
use super::add::add_configured;
use super::listeners::PreparedListeners;
use super::remove::remove;
use crate::report::{problem as problem_of, problem_in, sentence, sentence_of};
use crate::serve::{check, dashboard, tls};
use forebay_api::{ErrorKind, Problem};
use forebay_config::{Config, ConfigChange, VolumeSpec};
use forebay_control::Manager;
use std::fs::{Metadata, metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::PoisonError;

/// Volumes named in a message.
const NAMES_MAX: usize = 4;

impl Daemon {
    /// Reads the configuration again and applies the changes, and remembers a failure for the
    /// status. A change that fails is logged, its
    /// volume stays as it is, and the next reload repeats it. If a replacement has removed its
    /// volume and cannot add the new one, the next reload repeats the addition.
    ///
    /// # Errors
    /// The file is invalid, an address cannot be opened, a change failed, or another reload is in
    /// progress. Without `removes`, so is it to remove more than half of the served volumes, or a
    /// volume that has clients.
    pub(in crate::serve) fn apply_file(&self, removes: bool) -> Result<(), Problem> {
        let Ok(_one) = self.reloading.try_lock() else {
            let message = "a reload is in progress";
            let problem = Problem::new(ErrorKind::Busy, message, "wait until it has ended");
            return Err(logged(problem));
        };
        let applied = self.apply_now(removes);
        let failure = applied.as_ref().err().map(|problem| problem.message.clone());
        *self.reload_failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        applied
    }

    fn apply_now(&self, removes: bool) -> Result<(), Problem> {
        let old = self.state().config.clone();
        let mut new = old.reload().map_err(|error| {
            let problem = problem_of(&error);
            let message = format!("reload failed, configuration unchanged: {}", problem.message);
            logged(Problem { message, ..problem })
        })?;
        keep_disks(&old.volumes, &mut new.volumes);
        let changes = forebay_config::diff(&old, &new);
        let served: Vec<_> = self.volume_list().into_iter().map(|volume| volume.name).collect();
        if !removes {
            check_removals(&changes, &served).map_err(logged)?;
        }
        // Each time, because the files that the settings name may have changed.
        let site = self.site.prepare(&new).map_err(|error| {
            let problem = problem_in(&error);
            let message = format!("reload failed, configuration unchanged: {}", problem.message);
            logged(Problem { message, ..problem })
        })?;
        let listeners = PreparedListeners::prepare(self, &old, &new).map_err(|problem| {
            let message = format!("reload failed, configuration unchanged: {}", problem.message);
            logged(Problem { message, ..problem })
        })?;
        // Before the volumes: a disk may hang, and clients at new addresses would wait.
        listeners.apply();
        self.site.replace(site);
        let mut failed: Vec<(ConfigChange, Problem)> = Vec::new();
        for change in changes {
            let has_failed =
                |volume| failed.iter().any(|(failed, _)| failed.volume() == Some(volume));
            if change.volume().is_some_and(has_failed) {
                // The second half of a replacement: the volume is still served as it was.
                continue;
            }
            tracing::info!(%change, "applying configuration change");
            let applied = match change.volume().is_some_and(|name| self.missing.forget(name)) {
                true => apply_to_missing(self, &change, &new),
                false => apply(self, &change, removes),
            };
            if let Err(problem) = applied {
                tracing::error!(error = sentence_of(&problem), "configuration change failed");
                failed.push((change, problem));
            }
        }
        // Once, as it costs as much for one change as for many.
        self.log_ratio();
        read_certificates(self, &old, &new);
        let (failed, mut problems): (Vec<_>, Vec<_>) = failed.into_iter().unzip();
        let volumes = self.volume_figures();
        self.state().config.apply_live(new, &failed, |name| {
            volumes.iter().any(|volume| volume.name == name && !volume.half_added)
        });
        if problems.is_empty() { Ok(()) } else { Err(problems.swap_remove(0)) }
    }
}

fn apply(daemon: &Daemon, change: &ConfigChange, removes: bool) -> Result<(), Problem> {
    match change {
        ConfigChange::VolumeRemoved { name } => cut_off(daemon, name, removes),
        ConfigChange::VolumeReplaced { new } => {
            // A mistyped path must not end the service of the volume.
            check::try_disk(new)?;
            cut_off(daemon, &new.name, removes)
        }
        ConfigChange::VolumeChanged { name, change } => {
            let _claim = daemon.claims.volume(name)?;
            daemon.change_claimed(name, change)
        }
        ConfigChange::VolumeAdded { new } => add_configured(daemon, new.clone()),
        ConfigChange::Server { change } => {
            daemon.ratio.configure(change, || match change.has_memory() {
                true => daemon.sizing.configure(change),
                false => Ok(()),
            })?;
            daemon.background.set(change.background);
            Ok(())
        }
        ConfigChange::Log { new } => {
            crate::logging::set_level(*new);
            Ok(())
        }
        // They are changed already.
        ConfigChange::Listening { .. } | ConfigChange::NeedsRestart { .. } => Ok(()),
    }
}

/// Removes a volume. Its clients lose their disk, which has to be confirmed.
fn cut_off(daemon: &Daemon, name: &str, removes: bool) -> Result<(), Problem> {
    remove(daemon, name, removes, &|_| {}).map_err(|problem| match problem.kind {
        ErrorKind::InUse => {
            let remedy = "unmount and disconnect them and reload again, or cut them off with \
                          `forebay reload --remove`";
            Problem { remedy: remedy.into(), ..problem }
        }
        _ => problem,
    })
}

/// A volume whose disk or journal has got another path, such as a stable one, keeps the path that
/// is in use until the next start.
fn keep_disks(old: &[VolumeSpec], new: &mut [VolumeSpec]) {
    for volume in new {
        let Some(before) = old.iter().find(|before| before.name == volume.name) else { continue };
        keep_if_same(&before.backing, &mut volume.backing);
        let (used, named) = (&before.config, &mut volume.config);
        for (used, named) in
            [(&used.journal, &mut named.journal), (&used.journal_mirror, &mut named.journal_mirror)]
        {
            if let (Some(used), Some(named)) = (used, named) {
                keep_if_same(used, named);
            }
        }
    }
}

fn keep_if_same(used: &str, named: &mut String) {
    if used != named
        && let (Ok(of_used), Ok(of_named)) = (metadata(used), metadata(&*named))
        && identity(&of_used) == identity(&of_named)
    {
        used.clone_into(named);
    }
}

/// What two paths of one disk have in common: a device's number, or the place of a file.
fn identity(file: &Metadata) -> (bool, u64, u64) {
    match file.file_type().is_block_device() {
        true => (true, file.rdev(), 0),
        false => (false, file.dev(), file.ino()),
    }
}

/// Reads the certificates and the tokens again, if their paths stay. What cannot be read stays in
/// use as it was.
fn read_certificates(daemon: &Daemon, old: &Config, new: &Config) {
    if old.tls == new.tls {
        match tls::load(&new.tls) {
            Ok(setup) => daemon.tls.replace(setup),
            Err(error) => {
                tracing::error!(error = sentence(&error), "reload failed, certificate unchanged");
            }
        }
    }
    if let Some(keys) = daemon.control().and_then(|control| control.dashboard_keys())
        && old.dashboard == new.dashboard
        && let Err(error) = dashboard::reload(&keys, new)
    {
        tracing::error!(error = sentence(&error), "reload failed, dashboard unchanged");
    }
}

/// Applies a change to a volume that is not served.
fn apply_to_missing(daemon: &Daemon, change: &ConfigChange, new: &Config) -> Result<(), Problem> {
    match change {
        ConfigChange::VolumeChanged { name, .. }
        | ConfigChange::VolumeAdded { new: VolumeSpec { name, .. } } => {
            let spec = new.volumes.iter().find(|spec| spec.name == *name);
            spec.map_or(Ok(()), |spec| add_configured(daemon, spec.clone()))
        }
        // An addition follows a replacement.
        _ => Ok(()),
    }
}

/// Logs why a reload changes nothing. Changes that fail are logged one by one.
fn logged(problem: Problem) -> Problem {
    tracing::error!(error = sentence_of(&problem), "reload failed");
    problem
}

/// Refuses the removal of more than half of the served volumes.
fn check_removals(changes: &[ConfigChange], served: &[String]) -> Result<(), Problem> {
    let is_removal = |change: &&ConfigChange| matches!(change, ConfigChange::VolumeRemoved { .. });
    let removed = changes.iter().filter(is_removal).filter_map(ConfigChange::volume);
    let removed: Vec<&str> =
        removed.filter(|name| served.iter().any(|served| served == name)).collect();
    if removed.len() * 2 <= served.len() {
        return Ok(());
    }
    let names = removed.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
    let others = removed.len().saturating_sub(NAMES_MAX);
    let others = if others > 0 { format!(" and {others} others") } else { String::new() };
    let message = format!(
        "reload refused, configuration unchanged: it would remove {} of {} volumes, {names}\
         {others}",
        removed.len(),
        served.len()
    );
    let remedy =
        "run `forebay reload --remove` if that is meant, or correct the configuration file";
    Err(Problem::new(ErrorKind::Invalid, message, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_removal_of_more_than_half_of_the_volumes_has_to_be_confirmed() {
        let names = |count: usize| (0..count).map(|n| format!("v{n}")).collect::<Vec<_>>();
        let check = |removed: usize, served: usize| {
            let removals =
                names(removed).into_iter().map(|name| ConfigChange::VolumeRemoved { name });
            check_removals(&removals.collect::<Vec<_>>(), &names(served))
        };
        for (removed, served, is_admitted) in
            [(0, 0, true), (1, 1, false), (1, 2, true), (2, 3, false), (2, 4, true), (9, 0, true)]
        {
            assert_eq!(check(removed, served).is_ok(), is_admitted, "{removed} of {served}");
        }
        let message = check(6, 6).unwrap_err().message;
        assert!(message.ends_with("would remove 6 of 6 volumes, v0, v1, v2, v3 and 2 others"));
    }
}
