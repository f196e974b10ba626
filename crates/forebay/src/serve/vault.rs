//! The vault of the configuration: creates, opens and reports it, and runs drills.
//!
//! A new vault file is allocated in full before use, so that a file system that fills up later does
//! no harm. If a void dump cannot be erased from the vault, a mark in the state directory voids it,
//! like the mark of a failed journal.

use super::journals::{check_state_dir, memory_of, memory_words};
use super::listen::{directory_of, has_directory};
use super::power::DumpTarget;
use super::statistics::latencies;
use crate::reliance::Reliances;
use crate::report::{problem, with_remedy};
use crate::space::{self, AllocateError};
use anyhow::Context;
use forebay_api::{
    DrillReport, DumpSummary, ErrorKind, HeldVolume, PowerStatus, Problem, VaultState, VaultStatus,
};
use forebay_backend::{Backend, FileBackend, OpenOptions};
use forebay_config::VolumeSpec;
use forebay_runtime::{
    DrillReport as Figures, DumpReport, JournalId, Runtime, Vault, VaultPhase, VaultSettings,
    VolumeVault, vault_bytes_for,
};
use forebay_state::Kind;
use forebay_state::identity;
use forebay_state::marks;
use forebay_state::{StateFile, sync_directory};
use forebay_types::{Action, Bytes, Remedy, Size, VolumeId};
use rustix::io::Errno;
use std::fs::OpenOptions as FileOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Opens the vault `name`. Creates the file if it does not exist.
///
/// # Errors
/// Fails if the vault cannot be created, is not a vault, is too small, or is in use.
pub(super) fn open(
    runtime: &Runtime,
    name: &str,
    state_dir: &Path,
    reliances: &Reliances,
    in_use_wait: Duration,
) -> anyhow::Result<Arc<Vault>> {
    check_state_dir(state_dir, Kind::Vault).map_err(|message| {
        with_remedy(anyhow::anyhow!(message), Action::set("state", "/var/lib/forebay"))
    })?;
    let needed_bytes = vault_bytes_for(runtime.dirty_bytes_max());
    let path = forebay_backend::plain_path(name);
    let relying = reliances.relying_on_vault(name).map_err(|error| {
        let what = format!("cannot read the state directory {}", state_dir.display());
        with_remedy(
            anyhow::Error::new(error).context(what),
            "check its permissions, and the space and state of its file system",
        )
    })?;
    if let Some(volume) = relying.first()
        && path.is_some_and(can_be_created)
    {
        let error = anyhow::anyhow!(
            "the vault {name} does not exist, and may hold the newest data of {}",
            relying.join(", ")
        );
        let accept = Action::AcceptLostVault(volume.clone());
        return Err(with_remedy(error, Remedy::from("restore it").or(accept)));
    }
    // Before a file is made there.
    let place = path.map(|path| if can_be_created(path) { directory_of(path) } else { path });
    place.map_or(Ok(()), |place| check_lasts(name, memory_at(place)))?;
    path.map_or(Ok(()), |path| prepare(path, needed_bytes, state_dir))?;
    let options = OpenOptions { in_use_wait, ..OpenOptions::default() };
    let backend = forebay_backend::open(name, &options).context("the vault")?;
    check_device_lasts(&*backend)?;
    let directory = state_dir.to_owned();
    let mark_of = move |id: JournalId| marks::of_dump(&directory, &id.to_string());
    let read_mark_of = mark_of.clone();
    let settings = VaultSettings {
        backend,
        is_void: Box::new(move |id| read_mark_of(id).path().try_exists()),
        on_void: Box::new(move |id, error| marks::put(&mark_of(id), &error.to_string(), &[])),
    };
    let vault = runtime.open_vault(settings)?;
    let status = vault.status();
    for (volume, bytes) in &status.held {
        let size = Size(*bytes);
        tracing::warn!(vault = name, volume, %size, "vault holds data of a volume");
    }
    if !status.is_whole {
        tracing::error!(vault = name, "vault lacks some of the dirty data");
    }
    Ok(vault)
}

/// Checks that the vault could be opened or created, if it is free, for memory of this size.
///
/// # Errors
/// Fails as a start would.
pub(super) fn check(name: &str, memory_bytes: u64) -> anyhow::Result<()> {
    /// The part of the memory that is not for lines, at most.
    const OTHER_BYTES: u64 = 128 << 20;
    let path = forebay_backend::plain_path(name).filter(|path| can_be_created(path));
    let Some(path) = path else {
        let device = forebay_backend::try_open(name, &OpenOptions::default());
        return check_device_lasts(&*device.context("the vault")?);
    };
    let place = directory_of(path);
    check_lasts(name, memory_at(place))?;
    // How much it needs exactly is known once the pool exists, but this much it does.
    let needed_bytes = vault_bytes_for(memory_bytes.saturating_sub(OTHER_BYTES) / 4);
    match rustix::fs::statvfs(place) {
        Ok(fs) if fs.f_bfree.saturating_mul(fs.f_frsize) < needed_bytes => {
            Err(AllocateError::new(needed_bytes, Kind::Vault, path, Errno::NOSPC).into())
        }
        _ => Ok(()),
    }
}

/// Checks that a vault keeps its data when the machine is off.
///
/// # Errors
/// If it is memory of this process, or in memory.
pub(super) fn check_device_lasts(device: &dyn Backend) -> anyhow::Result<()> {
    check_lasts(&device.description().name, memory_of(device))
}

/// The memory that a path leads to.
fn memory_at(place: &Path) -> Option<String> {
    FileBackend::memory_at(place).map(|memory| memory_words(&memory))
}

fn check_lasts(name: &str, memory: Option<String>) -> anyhow::Result<()> {
    let Some(memory) = memory else { return Ok(()) };
    let error = anyhow::anyhow!("the vault {name} is {memory}: it keeps nothing");
    let remedy = Remedy::from("name a file on a disk or a device").or(Action::set("vault", "PATH"));
    Err(with_remedy(error, remedy))
}

/// Creates the file if it can be created, and allocates its space. For any other path it does
/// nothing, so that opening the vault reports the error.
fn prepare(path: &Path, needed_bytes: u64, state_dir: &Path) -> anyhow::Result<()> {
    match std::fs::metadata(path) {
        Err(_) if can_be_created(path) => {
            // It will hold data of the disks, which other users may not read.
            let file = FileOptions::new().write(true).create_new(true).mode(0o600).open(path);
            let file = file.with_context(|| format!("the vault {}", path.display()))?;
            let allocated = space::allocate(&file, needed_bytes, Kind::Vault, path);
            let created = allocated.map_err(anyhow::Error::new).and_then(|()| {
                let synced = file.sync_all().and_then(|()| sync_directory(path));
                synced.context("cannot sync the new vault")
            });
            if created.is_err() {
                let _ = std::fs::remove_file(path);
            }
            created?;
        }
        _ => {}
    }
    Ok(space::allocate_all(path, Kind::Vault, state_dir)?)
}

/// Returns true if a file can be created at the path: nothing exists there, its directory exists,
/// and it is not below `/dev`.
pub(super) fn can_be_created(path: &Path) -> bool {
    let found = std::fs::metadata(path);
    found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        && has_directory(path)
        && !path.starts_with("/dev")
}

/// The settings of the vault for a volume.
pub(super) fn of_volume(vault: Option<&Arc<Vault>>, spec: &VolumeSpec) -> Option<VolumeVault> {
    let vault = Arc::clone(vault?);
    Some(VolumeVault {
        vault,
        identity: identity(&spec.name, &spec.backing),
        accept_loss: spec.config.accept_loss,
    })
}

/// The vault as the target of dumps.
pub(super) struct VaultDumpTarget(pub(super) Arc<Vault>);

impl DumpTarget for VaultDumpTarget {
    fn bytes_per_second(&self) -> Option<u64> {
        self.0.measured_bytes_per_second()
    }

    /// The report's `unflushed` is no error: the monitor flushes the disks again after the dump.
    fn dump(&self, volumes: &[VolumeId]) -> anyhow::Result<DumpReport> {
        let report = self.0.dump(volumes, None)?;
        anyhow::ensure!(report.verified, "the dump was not read back: {report}");
        Ok(report)
    }

    fn empty(&self) -> anyhow::Result<()> {
        Ok(self.0.empty()?)
    }

    fn set_on_battery(&self, on_battery: bool) {
        self.0.set_on_battery(on_battery);
    }
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

pub(super) fn status(vault: &Vault) -> VaultStatus {
    let status = vault.status();
    let (state, reason) = match status.phase {
        VaultPhase::Ready if status.trouble.is_some() => (VaultState::Failed, status.trouble),
        VaultPhase::Ready => (VaultState::Ready, None),
        VaultPhase::Holding if status.is_whole => (VaultState::Holding, None),
        VaultPhase::Holding => {
            (VaultState::Holding, Some("it lacks some of the dirty data".to_owned()))
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

/// Rehearses a dump of some volumes, of which the pool may hold `pool_bytes` of dirty data, and
/// keeps the report in the state directory.
///
/// # Errors
/// Fails if there is no vault or the drill cannot run.
pub(super) fn drill(
    vault: Option<&Arc<Vault>>,
    volumes: &[VolumeId],
    power: Option<&PowerStatus>,
    pool_bytes: u64,
    state_dir: &Path,
) -> Result<DrillReport, Problem> {
    let Some(vault) = vault else {
        let remedy = "start the server with --vault PATH";
        return Err(Problem::new(ErrorKind::Invalid, "there is no vault for a drill", remedy));
    };
    let limit = DirtyLimit::new(power, pool_bytes, vault.dirty_bytes_max());
    // The drill has the vault measured again.
    let measured = vault.measured_bytes_per_second();
    let figures = vault.drill(volumes, limit.test_bytes).map_err(|error| problem(&error))?;
    let mut report = report_of(&vault.status().name, &figures, power);
    report.dirty_bytes_max = limit.now;
    report.measured_bytes_per_second = measured;
    match write_report(&report, state_dir) {
        Ok(path) => report.path = Some(path.display().to_string()),
        Err(error) => tracing::error!(%error, "cannot write the drill's report"),
    }
    tracing::info!(verdict = report.verdict, "drill complete");
    Ok(report)
}

/// How much data of volumes under a UPS may be dirty, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DirtyLimit {
    /// The present limit; `None` without a UPS.
    now: Option<u64>,
    /// The amount that a drill tests: the present limit; or, while no dirty data is allowed, the
    /// most that pool and vault allow, because the budget of a safe UPS is unknown then.
    test_bytes: u64,
}

impl DirtyLimit {
    fn new(power: Option<&PowerStatus>, pool_bytes: u64, vault_bytes: u64) -> Self {
        let most = pool_bytes.min(vault_bytes);
        let now = power.map(|power| power.dirty_bytes_max.min(most));
        Self { now, test_bytes: now.filter(|now| *now > 0).unwrap_or(most) }
    }
}

fn report_of(vault: &str, figures: &Figures, power: Option<&PowerStatus>) -> DrillReport {
    let mut faults = Vec::new();
    if !figures.verified {
        faults.push("some data was not read back".to_owned());
    }
    if !figures.unflushed.is_empty() {
        faults.push(format!("disks not flushed: {}", figures.unflushed.join(", ")));
    }
    let battery_seconds = power.and_then(|power| power.battery_seconds);
    let needed_seconds = figures.total_ms.div_ceil(1000);
    match (power, battery_seconds) {
        (Some(_), Some(battery)) if u64::from(battery) < needed_seconds => {
            faults.push(format!("it took {needed_seconds} s, and the battery lasts {battery} s"));
        }
        (Some(_), None) => faults.push("the runtime of the battery is unknown".to_owned()),
        _ => {}
    }
    let saved_in_time = faults.is_empty();
    let battery = match (power, battery_seconds) {
        (None, _) => "no UPS is monitored".to_owned(),
        (_, Some(seconds)) => format!("battery {seconds} s"),
        _ => "battery unknown".to_owned(),
    };
    let test = if figures.is_test { " of test data" } else { "" };
    let what = format!("{}{test} in {} ms, {battery}", Bytes(figures.bytes), figures.total_ms);
    let verdict = if saved_in_time && figures.is_test {
        format!("nothing was dirty; as much as may be dirty was saved: {what}")
    } else if saved_in_time {
        format!("everything dirty was saved: {what}")
    } else {
        format!("NOT SAVED IN TIME: {}; {what}", faults.join("; "))
    };
    DrillReport {
        begun_at: utc(seconds(figures.begun_at)),
        vault: vault.to_owned(),
        saved_in_time,
        verdict,
        dirty_bytes: figures.dirty_bytes,
        bytes: figures.bytes,
        test_data: figures.is_test,
        write_ms: figures.write_ms,
        disks_ms: figures.disks_ms,
        total_ms: figures.total_ms,
        bytes_per_second: figures.bytes_per_second,
        measured_bytes_per_second: None,
        verified: figures.verified,
        failures: figures.failures,
        same_bytes: figures.same_bytes,
        changed_bytes: figures.changed_bytes,
        unflushed: figures.unflushed.clone(),
        dirty_bytes_max: None,
        battery_seconds,
        latency_before: latencies(&figures.before),
        latency_during: latencies(&figures.during),
        path: None,
    }
}

/// Writes the report to a file in the state directory, named after the time.
fn write_report(report: &DrillReport, state_dir: &Path) -> anyhow::Result<PathBuf> {
    let directory = state_dir.join("drills");
    std::fs::create_dir_all(&directory)?;
    let path = directory.join(format!("{}.json", report.begun_at.replace(':', "-")));
    let text = serde_json::to_string_pretty(report)?;
    StateFile::new(path.clone()).replace(text + "\n")?;
    Ok(path)
}

/// Formats a time in seconds since 1970 as in `2026-02-28T13:05:09Z`.
pub(super) fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years start in March, so that a leap day is the last day of its year.
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
    fn times_are_formatted_as_rfc_3339() {
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
    fn a_new_vault_is_allocated_in_full_and_replaces_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vault");
        prepare(&path, 5 << 20, directory.path()).unwrap();
        let created = std::fs::metadata(&path).unwrap();
        let blocks = std::os::unix::fs::MetadataExt::blocks(&created);
        assert_eq!((created.len(), blocks >= 5 << 11), (5 << 20, true));
        std::fs::write(&path, b"something else").unwrap();
        prepare(&path, 5 << 20, directory.path()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"something else");
        prepare(&directory.path().join("no/such"), 5 << 20, directory.path()).unwrap();
        assert!(!directory.path().join("no").exists());
        let error = crate::report::sentence(
            &prepare(&directory.path().join("big"), 1 << 60, directory.path()).unwrap_err(),
        );
        assert!(error.contains("--vault"), "{error}");
        assert!(!directory.path().join("big").exists(), "nothing is left behind");
    }

    #[test]
    fn only_its_owner_may_read_a_new_vault() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vault");
        prepare(&path, 1 << 20, directory.path()).unwrap();
        let created = std::fs::metadata(&path).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&created) & 0o777, 0o600);
    }

    #[test]
    fn as_much_may_be_dirty_as_ups_pool_and_vault_allow() {
        let power = |bytes| PowerStatus { dirty_bytes_max: bytes, ..PowerStatus::default() };
        let limit = |ups: Option<u64>, pool, vault| {
            let limit = DirtyLimit::new(ups.map(power).as_ref(), pool, vault);
            (limit.now, limit.test_bytes)
        };
        assert_eq!(limit(Some(5), 7, 9), (Some(5), 5));
        assert_eq!(limit(Some(9), 5, 7), (Some(5), 5));
        assert_eq!(limit(Some(9), 7, 5), (Some(5), 5));
        assert_eq!(limit(Some(0), 7, 5), (Some(0), 5), "the UPS is not safe");
        assert_eq!(limit(None, 7, 5), (None, 5));
    }

    #[test]
    fn a_drill_reports_whether_the_battery_would_have_lasted() {
        let figures = Figures {
            begun_at: SystemTime::UNIX_EPOCH,
            dirty_bytes: 4096,
            bytes: 4096,
            is_test: false,
            written_bytes: 8192,
            write_ms: 1500,
            bytes_per_second: 2730,
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
        let verdict = |is_test| {
            let figures = Figures { is_test, ..figures.clone() };
            report_of("/v", &figures, None).verdict
        };
        let what = "in 2500 ms, no UPS is monitored";
        assert_eq!(verdict(false), format!("everything dirty was saved: 4.0 KiB {what}"));
        let test = "nothing was dirty; as much as may be dirty was saved: 4.0 KiB of test data";
        assert_eq!(verdict(true), format!("{test} {what}"));
        let unflushed = Figures { unflushed: vec!["d".into()], ..figures };
        assert!(!saved(&unflushed, None));
    }
}
