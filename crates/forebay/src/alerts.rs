//! What is wrong with the server and its volumes, and what to do about it: the alerts of the
//! status, which the command line and the dashboard show, and which metrics count.

use forebay_api::{
    Alert, CacheOff, JournalState, JournalStatus, LearnState, MemoryState, MissingVolume, Mode,
    PinState, PowerStatus, Severity, Status, VaultState, VaultStatus, VolumeState, VolumeStatus,
    WarmUpState,
};
use forebay_terminal::units::{bytes, count, duration};

/// All alerts of a status, the most serious first.
pub(crate) fn alerts(status: &Status) -> Vec<Alert> {
    let mut found = Vec::new();
    let volumes: Vec<_> = status.volumes.iter().flat_map(volume).collect();
    // The alerts of the volumes may already contain the reason that power is not safe.
    let is_said = |alert: &Alert| volumes.iter().any(|other| other.text.contains(&alert.text));
    let power = status.power.as_ref().into_iter().flat_map(power);
    found.extend(power.filter(|alert| !is_said(alert)));
    found.extend(status.vault.as_ref().into_iter().flat_map(vault));
    found.extend(status.journals.iter().flat_map(journal));
    found.extend(volumes);
    found.extend(status.missing.iter().filter_map(missing));
    found.extend(server(status));
    found.sort_by_key(|alert| alert.severity);
    found
}

fn error(kind: &str, name: &str, text: impl Into<String>) -> Alert {
    Alert::new(Severity::Error, kind, name, text)
}

fn warning(kind: &str, name: &str, text: impl Into<String>) -> Alert {
    Alert::new(Severity::Warning, kind, name, text)
}

/// A volume that is not served.
fn missing(missing: &MissingVolume) -> Option<Alert> {
    let name = &*missing.name;
    if missing.standby {
        let unwatched = missing.unwatched.as_ref()?;
        let text = format!("on standby, and not taken over by itself: {unwatched}");
        return Some(warning("volume", name, text));
    }
    let reason = missing.reason.as_deref().unwrap_or("its disk does not answer");
    let tried = if missing.taken_over { "" } else { ", and tried again" };
    Some(error("volume", name, format!("not served{tried}: {reason}")))
}

/// What is wrong with a volume.
fn volume(volume: &VolumeStatus) -> Vec<Alert> {
    let name = &*volume.name;
    let mut alerts = Vec::new();
    if volume.state != VolumeState::Serving {
        let reason = volume.state_reason.as_ref().map(|reason| format!(": {reason}"));
        let reason = reason.unwrap_or_default();
        let text = format!("{}{reason}", volume.state);
        alerts.push(match volume.state {
            VolumeState::Flushing => warning("volume", name, text),
            VolumeState::Stalled => error("volume", name, text).with_remedy(
                "check the disk and its paths, or the server behind it. Requests wait until it \
                 answers; `forebay slow` shows them",
            ),
            // A reason with a command in it says what to do.
            _ if reason.contains('`') => error("volume", name, text),
            _ => error("volume", name, text)
                .with_remedy("see the server's log for the disk's error, and repair the disk"),
        });
    }
    if let Some(off) = cache_off(volume) {
        let remedy = "run `forebay analyze stop` to have it on at once";
        alerts.push(warning("volume", name, off).with_remedy(remedy));
    }
    // If the mode is bypass or write-through, a different effective mode is no problem: a change of
    // the mode is not complete yet.
    let is_off = volume.cache_off.is_some();
    if volume.mode == Mode::WriteBack && volume.effective_mode != Mode::WriteBack && !is_off {
        let reason = volume.effective_mode_reason.as_ref().map(|reason| format!(": {reason}"));
        let reason = reason.unwrap_or_default();
        let text = format!("{} instead of {}{reason}", volume.effective_mode, volume.mode);
        alerts.push(warning("volume", name, text));
    }
    if volume.pins.state == PinState::Refused {
        let reason = volume.pins.state_reason.clone().unwrap_or_default();
        alerts.push(warning("volume", name, format!("not pinned: {reason}")));
    }
    if volume.pins.state == PinState::Failing || volume.warm_up.state == WarmUpState::Failing {
        let text = "the disk fails reads of data that is to be in memory";
        alerts.push(
            warning("volume", name, text).with_remedy("see the server's log, and the disk's"),
        );
    }
    if let Some((saved, error)) = volume.saved.iter().find_map(|it| Some((it, it.error.as_ref()?)))
    {
        let text = format!("the last save failed and is tried again within a minute: {error}");
        let remedy = saved.remedy.as_deref().unwrap_or("see the server's log");
        alerts.push(warning("volume", name, text).with_remedy(remedy));
    }
    if volume.learn.state == LearnState::Unwritable {
        let text = "its access history cannot be written";
        let remedy = "see the server's log, and the space in the state directory";
        alerts.push(warning("volume", name, text).with_remedy(remedy));
    }
    let notes = volume.geometry.notes.iter().chain(&volume.notes);
    alerts.extend(notes.map(|note| warning("volume", name, note)));
    if volume.disk_errors > 0 {
        let errors = volume.disk_errors;
        let plural = if errors == 1 { "" } else { "s" };
        let text = format!("the disk has failed {} I/O{plural} lately", count(errors));
        alerts.push(
            warning("volume", name, text)
                .with_remedy("see the server's log for the errors, and check the disk"),
        );
    }
    alerts
}

/// That an analysis has the cache of the volume off; `None` if none does.
fn cache_off(volume: &VolumeStatus) -> Option<String> {
    let CacheOff { since, seconds_left } = volume.cache_off.as_ref()?;
    let left = duration(*seconds_left);
    // Writes of an ordered volume are acknowledged from memory all the same.
    let what = match volume.effective_mode {
        Mode::WriteBack => "its cache is off for reads",
        _ => "its cache is off",
    };
    Some(format!("{what} since {since}, for an analysis: {left} more at most"))
}

/// What is wrong with a journal.
fn journal(journal: &JournalStatus) -> Vec<Alert> {
    let name = &*journal.name;
    let reason = journal.state_reason.as_ref().map(|reason| format!(": {reason}"));
    let reason = reason.unwrap_or_default();
    let mut alerts = match journal.state {
        JournalState::Working => Vec::new(),
        JournalState::Degraded => vec![
            warning("journal", name, format!("degraded{reason}"))
                .with_remedy("bring the device back or replace it; the next start uses it again"),
        ],
        JournalState::Failed => {
            vec![error("journal", name, format!("failed{reason}")).with_remedy(
                "its volumes write through unless they are under a UPS: run `forebay stop`, and \
                 start with another device",
            )]
        }
    };
    if let Some(reason) = &journal.waits_for {
        let text = format!("writes wait for the record of its failure: {reason}");
        let remedy = "free space there, or make the directory writable";
        alerts = vec![error("journal", name, text).with_remedy(remedy)];
    }
    if journal.damaged_places > 0 {
        let (damaged, healed) = (journal.damaged_places, journal.healed_places);
        let text =
            format!("{damaged} places were found damaged, {healed} of them healed from its mirror");
        alerts.push(warning("journal", name, text).with_remedy("replace the device"));
    }
    alerts.extend(journal.unserved.iter().map(|held| {
        let (bytes, volume) = (bytes(held.bytes), &held.volume);
        warning("journal", name, format!("holds {bytes} of volume '{volume}', which is not served"))
            .with_remedy("serve the volume again unchanged, or see `forebay rescue --help`")
    }));
    alerts
}

/// What is wrong with power and UPSes.
fn power(power: &PowerStatus) -> Vec<Alert> {
    let mut alerts = Vec::new();
    match (power.halted, power.write_back_allowed) {
        (true, _) => {
            let text = format!("power is failing, and writes are halted: {}", power.reason);
            alerts.push(error("power", "", text));
        }
        (false, false) => alerts.push(warning("power", "", power.reason.clone())),
        (false, true) => {}
    }
    alerts.extend(power.supplies.iter().filter_map(|supply| {
        let aging = supply.battery_ages.as_ref()?;
        let alert = warning("UPS", &supply.name, aging.clone());
        Some(alert.with_remedy("replace its battery"))
    }));
    alerts
}

/// What is wrong with the vault.
fn vault(vault: &VaultStatus) -> Vec<Alert> {
    let reason = vault.state_reason.as_ref().map(|reason| format!(": {reason}"));
    let text = format!("{}{}", vault.state, reason.unwrap_or_default());
    let name = &*vault.name;
    let mut alerts = match vault.state {
        VaultState::Ready => Vec::new(),
        VaultState::Failed => {
            let remedy = "there is no write-back under a UPS: see the server's log, and replace it";
            vec![error("vault", name, text).with_remedy(remedy)]
        }
        VaultState::Holding => {
            let text = format!("{text}; data of an earlier server is not all on its disks");
            vec![warning("vault", name, text)]
        }
        VaultState::Dumping | VaultState::Dumped => vec![error("vault", name, text)],
    };
    alerts.extend(vault.held.iter().map(|held| {
        let (volume, size) = (&held.volume, bytes(held.bytes));
        let text = format!("holds {size} of volume '{volume}', which is not served");
        warning("vault", name, text)
            .with_remedy("serve the volume again unchanged, or see `forebay rescue --help`")
    }));
    alerts
}

/// How long a line of the log waits for its reader before that is an alert.
const LOG_WAIT_SECONDS: u64 = 5;

/// What is wrong with the server itself.
fn server(status: &Status) -> Vec<Alert> {
    let mut alerts = Vec::new();
    if status.rolled_back {
        let text = format!(
            "the program of the last upgrade exited before it served, and the former {} runs again",
            status.version
        );
        alerts.push(warning("upgrade", "", text).with_remedy(
            "see the server's log, and run `forebay upgrade` again when the cause is gone",
        ));
    }
    if let Some(failure) = &status.reload_failure {
        let text = format!("the last reload did not apply the whole file: {failure}");
        alerts.push(
            warning("configuration", "", text)
                .with_remedy("correct the file or the cause, and run `forebay reload`"),
        );
    }
    let log = &status.log;
    if log.waiting_seconds >= LOG_WAIT_SECONDS {
        let (waited, lines) = (log.waiting_seconds, log.dropped_lines);
        let text = format!("nothing has read it for {waited} s; lines dropped: {lines}");
        alerts.push(warning("log", "", text).with_remedy(
            "resume or replace what reads the server's standard error or the system's journal",
        ));
    }
    let damage = &status.patrol.damage;
    if damage.found_lines > 0 {
        let text = format!(
            "{} lines were found damaged: {} corrected, {} read again from the disk, {} lost",
            damage.found_lines,
            damage.corrected_lines,
            damage.fetched_again_lines,
            damage.lost_lines
        );
        alerts.push(
            warning("memory", "", text).with_remedy("test this machine's memory, and replace it"),
        );
    }
    let sizing = status.memory.sizing.as_ref();
    if let Some(sizing) = sizing.filter(|sizing| sizing.state == MemoryState::Short) {
        let by = sizing.limited_by.as_ref().map(|group| format!(" in the control group {group}"));
        let text = format!("{}{}", sizing.reason, by.unwrap_or_default());
        alerts.push(warning("memory", "", text).with_remedy(
            "the cache grows again when memory is free; stop other programs, or add memory",
        ));
    }
    alerts
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::{Counters, Damage, HeldVolume, MemorySizing, PinStatus, UnservedWrites};
    use forebay_api::{GeometryStatus, LogStatus, Memory, PatrolStatus, UpsStatus};

    fn text(alerts: &[Alert]) -> String {
        let line = |Alert { severity, kind, name, text, .. }: &Alert| {
            let name = name.iter().map(|name| format!(" {name}")).collect::<String>();
            format!("{:<8} {kind}{name}: {text}\n", severity.as_str())
        };
        alerts.iter().map(line).collect()
    }

    fn named(name: impl Into<String>) -> VolumeStatus {
        VolumeStatus { name: name.into(), ..VolumeStatus::default() }
    }

    #[test]
    fn a_server_without_problems_has_no_alerts() {
        let status = Status {
            volumes: vec![named("a")],
            journals: vec![JournalStatus::default()],
            power: Some(PowerStatus { write_back_allowed: true, ..PowerStatus::default() }),
            vault: Some(VaultStatus::default()),
            ..Status::default()
        };
        assert_eq!(alerts(&status), []);
    }

    #[test]
    fn everything_that_can_be_wrong_has_an_alert() {
        let refused = PinStatus {
            state: PinState::Refused,
            state_reason: Some("outside".into()),
            ..PinStatus::default()
        };
        let mut ill = VolumeStatus {
            pins: refused,
            geometry: GeometryStatus {
                notes: vec!["stripes of two widths".into()],
                ..GeometryStatus::default()
            },
            // Errors that are over are no alert.
            counters: Counters { backend_errors: 5, ..Counters::default() },
            disk_errors: 3,
            state: VolumeState::Flushing,
            ..named("ill")
        };
        ill.learn.state = LearnState::Unwritable;
        ill.warm_up.state = WarmUpState::Failing;
        let journal = |state, reason: &str| JournalStatus {
            name: "/j".into(),
            state,
            state_reason: Some(reason.into()),
            damaged_places: 3,
            healed_places: 2,
            unserved: vec![UnservedWrites { volume: "old".into(), bytes: 4096 }],
            ..JournalStatus::default()
        };
        let aging = UpsStatus {
            name: "lab".into(),
            battery_ages: Some("battery aging".into()),
            ..UpsStatus::default()
        };
        let status = Status {
            version: "1.2".into(),
            rolled_back: true,
            log: LogStatus { dropped_lines: 7, waiting_seconds: 60 },
            volumes: vec![ill],
            journals: vec![
                journal(JournalState::Failed, "a write failed"),
                journal(JournalState::Degraded, "/i is missing"),
            ],
            power: Some(PowerStatus {
                halted: true,
                reason: "battery low".into(),
                supplies: vec![aging],
                ..PowerStatus::default()
            }),
            vault: Some(VaultStatus {
                name: "/v".into(),
                state: VaultState::Failed,
                state_reason: Some("I/O error".into()),
                held: vec![HeldVolume { volume: "old".into(), bytes: 1 << 20 }],
                ..VaultStatus::default()
            }),
            patrol: PatrolStatus {
                damage: Damage { found_lines: 6, corrected_lines: 6, ..Damage::default() },
                ..PatrolStatus::default()
            },
            memory: Memory {
                sizing: Some(MemorySizing {
                    state: MemoryState::Short,
                    reason: "memory is short".into(),
                    limited_by: Some("/a".into()),
                    ..MemorySizing::default()
                }),
                ..Memory::default()
            },
            ..Status::default()
        };
        let shown = text(&alerts(&status));
        for part in [
            "volume ill: flushing\n",
            "volume ill: not pinned: outside\n",
            "volume ill: stripes of two widths\n",
            "volume ill: the disk has failed 3 I/Os lately\n",
            "volume ill: its access history cannot be written\n",
            "volume ill: the disk fails reads",
            "journal /j: failed: a write failed\n",
            "journal /j: degraded: /i is missing\n",
            "3 places were found damaged",
            "holds 4.0 KiB of volume 'old'",
            "error    power: power is failing, and writes are halted: battery low\n",
            "UPS lab: battery aging\n",
            "error    vault /v: failed: I/O error\n",
            "vault /v: holds 1.0 MiB of volume 'old', which is not served\n",
            "upgrade: the program of the last upgrade",
            "log: nothing has read it for 60 s; lines dropped: 7\n",
            "memory: 6 lines were found damaged: 6 corrected",
            "memory: memory is short in the control group /a\n",
        ] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
        let holding = VaultStatus { state: VaultState::Holding, ..VaultStatus::default() };
        assert!(text(&vault(&holding)).contains("holding; data of an earlier server"));
        let waits = PowerStatus { reason: "settling".into(), ..PowerStatus::default() };
        assert_eq!(text(&power(&waits)), "warning  power: settling\n");
    }
}
