//! The vault that the configuration names: made where there is none, opened, and shown.
//!
//! A file is made in its whole length and its room reserved before anything depends on it, so that
//! a file system that fills up later does no harm. The end of a dump that could not be written to
//! the vault is a file in the state directory, as for a journal that failed.

use super::journals::{identity, is_forgotten_at_boot};
use super::power::Refuge;
use super::report::latencies;
use crate::marks;
use crate::reliance::Reliances;
use crate::report::with_remedy;
use anyhow::Context;
use forebay_api::{
    DrillReport, DumpSummary, ErrorKind, HeldVolume, PowerStatus, Problem, VaultState, VaultStatus,
};
use forebay_backend::OpenOptions;
use forebay_config::VolumeSpec;
use forebay_runtime::{
    DrillReport as Figures, DumpReport, Runtime, Vault, VaultPhase, VaultSettings, VolumeVault,
    vault_bytes_for,
};
use forebay_types::{Action, Remedy, Size, VolumeId};
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions as FileOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Opens the vault `name`, and makes the file where there is none.
///
/// # Errors
/// It can't be made, is no vault, too small, or in use.
pub(super) fn open(
    runtime: &Runtime,
    name: &str,
    state_dir: &Path,
    reliances: &Reliances,
    in_use_wait: Duration,
) -> anyhow::Result<Arc<Vault>> {
    if is_forgotten_at_boot(state_dir) {
        let error = anyhow::anyhow!(
            "a vault needs a state directory that outlives a reboot, where it is on record who \
             relies on it, and {} does not",
            state_dir.display()
        );
        return Err(with_remedy(error, Action::set("state", "/var/lib/forebay")));
    }
    let needed_bytes = vault_bytes_for(runtime.dirty_bytes_max());
    let path = forebay_backend::plain_path(name);
    let relying = reliances.relying_on_vault(name);
    if let Some(volume) = relying.first()
        && path.is_some_and(is_to_be_made)
    {
        let error = anyhow::anyhow!(
            "the vault {name} is not there, and may hold the newest data of {}",
            relying.join(", ")
        );
        let accept = Action::AcceptLostVault(volume.clone());
        return Err(with_remedy(error, Remedy::from("bring it back").or(accept)));
    }
    path.map_or(Ok(()), |path| prepare(path, needed_bytes))?;
    let options = OpenOptions { in_use_wait, ..OpenOptions::default() };
    let backend = forebay_backend::open(name, &options).context("the vault")?;
    if backend.description().identity.is_none() {
        let error = anyhow::anyhow!(
            "the vault {name} is memory of this process, which ends with it: it keeps nothing"
        );
        let remedy = Remedy::from("name a file or device").or(Action::set("vault", "PATH"));
        return Err(with_remedy(error, remedy));
    }
    let (theirs, ours) = (state_dir.to_owned(), state_dir.to_owned());
    let settings = VaultSettings {
        backend,
        is_void: Box::new(move |id| marks::void_path_of(&ours, &id.to_string()).exists()),
        on_void: Box::new(move |id, error| {
            marks::put(&marks::void_path_of(&theirs, &id.to_string()), &error.to_string(), &[])
        }),
    };
    let vault = runtime.open_vault(settings)?;
    let status = vault.status();
    for (volume, bytes) in &status.held {
        tracing::warn!("vault {name} holds {} of volume '{volume}'", Size(*bytes));
    }
    if !status.is_whole {
        tracing::error!("vault {name} does not hold everything that was dirty when power failed");
    }
    Ok(vault)
}

/// Makes the file where there is nothing in a directory that is there, and reserves its room.
/// Whatever else the name means is left to who opens it.
fn prepare(path: &Path, needed_bytes: u64) -> anyhow::Result<()> {
    let reserve = |file: &File, bytes: u64| {
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes).map_err(|error| {
            let what = format!(
                "the vault {} needs {} and the file system does not give them",
                path.display(),
                Size(bytes)
            );
            let remedy = Remedy::from("make room").or(Action::set("vault", "PATH"));
            with_remedy(anyhow::Error::new(error).context(what), remedy)
        })
    };
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() && found.len() > 0 => {
            let file = FileOptions::new().write(true).open(path);
            let file = file.with_context(|| format!("the vault {}", path.display()))?;
            // A file without all its blocks would fail when it counts.
            reserve(&file, found.len())
        }
        Err(_) if is_to_be_made(path) => {
            let file = FileOptions::new().write(true).create_new(true).open(path);
            let file = file.with_context(|| format!("the vault {}", path.display()))?;
            let made = reserve(&file, needed_bytes)
                .and_then(|()| file.sync_all().context("the vault can't be made durable"));
            if made.is_err() {
                let _ = std::fs::remove_file(path);
            }
            made
        }
        _ => Ok(()),
    }
}

/// Whether a file can be made there: only where surely nothing is, in a directory that is there.
fn is_to_be_made(path: &Path) -> bool {
    let found = std::fs::metadata(path);
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        && parent.unwrap_or(Path::new(".")).is_dir()
        && !path.starts_with("/dev")
}

/// The vault as a volume uses it.
pub(super) fn of_volume(vault: Option<&Arc<Vault>>, spec: &VolumeSpec) -> Option<VolumeVault> {
    let vault = Arc::clone(vault?);
    Some(VolumeVault {
        vault,
        identity: identity(&spec.name, &spec.backing),
        accept_loss: spec.accept_loss,
    })
}

/// A vault where what is dirty finds refuge when power goes.
pub(super) struct VaultRefuge(pub(super) Arc<Vault>);

impl Refuge for VaultRefuge {
    fn bytes_per_second(&self) -> Option<u64> {
        self.0.measured_bytes_per_second()
    }

    fn dump(&self, volumes: &[VolumeId]) -> anyhow::Result<u64> {
        let report = self.0.dump(volumes, None)?;
        anyhow::ensure!(report.verified, "the dump was not read back: {report}");
        Ok(report.bytes)
    }

    fn empty(&self) -> anyhow::Result<()> {
        Ok(self.0.empty()?)
    }

    fn on_battery(&self, on_battery: bool) {
        self.0.set_on_battery(on_battery);
    }
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What is told of the vault.
pub(super) fn status(vault: &Vault) -> VaultStatus {
    let status = vault.status();
    let (state, reason) = match status.phase {
        VaultPhase::Ready if status.trouble.is_some() => (VaultState::Failed, status.trouble),
        VaultPhase::Ready => (VaultState::Ready, None),
        VaultPhase::Holding if status.is_whole => (VaultState::Holding, None),
        VaultPhase::Holding => {
            (VaultState::Holding, Some("not everything that was dirty is in it".to_owned()))
        }
        VaultPhase::Dumping => (VaultState::Dumping, None),
        VaultPhase::Dumped => (VaultState::Dumped, None),
        VaultPhase::Failed(error) => (VaultState::Failed, Some(error.to_string())),
    };
    let dump = |dump: DumpReport| DumpSummary {
        begun_at: seconds(dump.begun_at),
        bytes: dump.bytes,
        sealed_ms: dump.sealed_ms,
        total_ms: dump.total_ms,
        verified: dump.verified,
        failures: dump.failures,
    };
    let held = status.held.into_iter().map(|(volume, bytes)| HeldVolume { volume, bytes });
    VaultStatus {
        name: status.name,
        state,
        state_reason: reason,
        capacity_bytes: status.capacity_bytes,
        write_bytes_per_second: status.measured.map(|measured| measured.write_bytes_per_second),
        read_bytes_per_second: status.measured.map(|measured| measured.read_bytes_per_second),
        measured_at: status.measured.map(|measured| seconds(measured.at)),
        last_dump: status.last_dump.map(dump),
        held: held.collect(),
    }
}

/// Rehearses a power failure for some volumes, and writes down what came of it.
///
/// # Errors
/// There is no vault, or it can't take part.
pub(super) fn drill(
    vault: Option<&Arc<Vault>>,
    volumes: &[VolumeId],
    power: Option<&PowerStatus>,
    state_dir: &Path,
) -> Result<DrillReport, Problem> {
    let Some(vault) = vault else {
        let remedy = "start the server with --vault PATH";
        return Err(Problem::new(ErrorKind::Invalid, "there is no vault to rehearse with", remedy));
    };
    let figures = vault.drill(volumes).map_err(|error| {
        let remedy = "see forebay status, and try again";
        Problem::new(ErrorKind::Failed, error.to_string(), remedy)
    })?;
    let mut report = report_of(&vault.status().name, &figures, power);
    match write_down(&report, state_dir) {
        Ok(path) => report.path = Some(path.display().to_string()),
        Err(error) => tracing::error!("the report of the drill can't be kept: {error}"),
    }
    tracing::info!("drill: {}", report.verdict);
    Ok(report)
}

fn report_of(vault: &str, figures: &Figures, power: Option<&PowerStatus>) -> DrillReport {
    let mut wrong = Vec::new();
    if !figures.verified {
        wrong.push("not everything was read back".to_owned());
    }
    if !figures.unflushed.is_empty() {
        wrong.push(format!("disks not flushed: {}", figures.unflushed.join(", ")));
    }
    let battery_seconds = power.and_then(|power| power.battery_seconds);
    let needed_seconds = figures.total_ms.div_ceil(1000);
    match (power, battery_seconds) {
        (Some(_), Some(battery)) if u64::from(battery) < needed_seconds => {
            wrong.push(format!("it took {needed_seconds} s, and the battery lasts {battery} s"));
        }
        (Some(_), None) => wrong.push("how long the battery lasts is not known".to_owned()),
        _ => {}
    }
    let saved_in_time = wrong.is_empty();
    let battery = match (power, battery_seconds) {
        (None, _) => "no supply is watched".to_owned(),
        (_, Some(seconds)) => format!("battery {seconds} s"),
        _ => "battery unknown".to_owned(),
    };
    let what = format!("{} bytes in {} ms, {battery}", figures.bytes, figures.total_ms);
    let verdict = if saved_in_time {
        format!("everything dirty was saved: {what}")
    } else {
        format!("NOT SAVED IN TIME: {}; {what}", wrong.join("; "))
    };
    DrillReport {
        begun_at: utc(seconds(figures.begun_at)),
        vault: vault.to_owned(),
        saved_in_time,
        verdict,
        dirty_bytes: figures.dirty_bytes,
        bytes: figures.bytes,
        write_ms: figures.write_ms,
        disks_ms: figures.disks_ms,
        total_ms: figures.total_ms,
        bytes_per_second: figures.bytes_per_second(),
        verified: figures.verified,
        failures: figures.failures,
        same_bytes: figures.same_bytes,
        changed_bytes: figures.changed_bytes,
        unflushed: figures.unflushed.clone(),
        dirty_bytes_max: power.map(|power| power.dirty_bytes_max),
        battery_seconds,
        latency_before: latencies(&figures.before),
        latency_during: latencies(&figures.during),
        path: None,
    }
}

/// Writes the report into the state directory, under its date.
fn write_down(report: &DrillReport, state_dir: &Path) -> anyhow::Result<PathBuf> {
    let directory = state_dir.join("drills");
    std::fs::create_dir_all(&directory)?;
    let path = directory.join(format!("{}.json", report.begun_at.replace(':', "-")));
    let mut file = File::create(&path)?;
    writeln!(file, "{}", serde_json::to_string_pretty(report)?)?;
    file.sync_all()?;
    Ok(path)
}

/// A moment in seconds since 1970 as people write it: `2026-02-28T13:05:09Z`.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, so that the day that a leap year adds is the last one.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_as_people_write_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_772_283_909, "2026-02-28T13:05:09Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn a_vault_is_made_in_its_whole_length_and_never_over_something() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vault");
        prepare(&path, 5 << 20).unwrap();
        let made = std::fs::metadata(&path).unwrap();
        let blocks = std::os::unix::fs::MetadataExt::blocks(&made);
        assert_eq!((made.len(), blocks >= 5 << 11), (5 << 20, true));
        std::fs::write(&path, b"something else").unwrap();
        prepare(&path, 5 << 20).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"something else");
        prepare(&directory.path().join("no/such"), 5 << 20).unwrap();
        assert!(!directory.path().join("no").exists());
        let error =
            crate::report::sentence(&prepare(&directory.path().join("big"), 1 << 60).unwrap_err());
        assert!(error.contains("--vault"), "{error}");
        assert!(!directory.path().join("big").exists(), "nothing is left behind");
    }

    #[test]
    fn a_drill_says_whether_the_battery_would_have_lasted() {
        let figures = Figures {
            begun_at: SystemTime::UNIX_EPOCH,
            dirty_bytes: 4096,
            bytes: 4096,
            written_bytes: 8192,
            write_ms: 1500,
            disks_ms: 1600,
            total_ms: 2500,
            verified: true,
            failures: 0,
            same_bytes: 4096,
            changed_bytes: 0,
            unflushed: Vec::new(),
            before: Default::default(),
            during: Default::default(),
        };
        let power = |seconds| PowerStatus { battery_seconds: seconds, ..PowerStatus::default() };
        let saved = |figures: &Figures, power: Option<&PowerStatus>| {
            report_of("/v", figures, power).saved_in_time
        };
        assert!(saved(&figures, None) && saved(&figures, Some(&power(Some(3)))));
        assert!(!saved(&figures, Some(&power(Some(2)))) && !saved(&figures, Some(&power(None))));
        assert!(!saved(&Figures { verified: false, ..figures.clone() }, None));
        let unflushed = Figures { unflushed: vec!["d".into()], ..figures };
        assert!(!saved(&unflushed, None));
    }
}
