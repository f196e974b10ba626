//! The daemon's status as tables and sentences.

use super::columns::{lines, table};
use super::curve::curve;
use super::disks::disks;
use super::division::division;
use super::gather::gather;
use super::governor::governor;
use super::learn::learn;
use super::pins::pins;
use super::units::{bytes, count, duration, percent};
use super::warm_up::warm_up;
use super::write_back::write_back;
use forebay_api::{
    BackgroundShare, BackgroundStatus, CacheRatio, Damage, DrillReport, JournalState,
    JournalStatus, Latencies, Memory, MemorySizing, MemoryState, PatrolStatus, PowerStatus,
    SavedStatus, Status, VaultStatus, VolumeState, VolumeStatus,
};

/// The whole status: six lines on the daemon, seven while background work is slow, then tables of
/// volumes, miss ratios, parts of the pool, disks, gathering, writeback, governors, warm-ups, pins,
/// forecasts, journals and UPSes, and the vault.
pub(super) fn status(status: &Status) -> String {
    let memory = &status.memory;
    format!(
        "forebay {}, process {}, up {}, {} workers on {}\n\
         memory: {} of {} in use, {} dirty; {}, {} of it for the index\n\
         {}{}{}\n\
         {}clients: {} connected, listening at {}\n\n{}{}{}{}{}{}{}{}{}{}{}{}{}",
        status.version,
        status.pid,
        duration(status.uptime_seconds),
        status.workers,
        status.io_engine,
        bytes(memory.used_bytes),
        bytes(memory.pool_bytes),
        bytes(memory.dirty_bytes),
        memory_limit(memory),
        bytes(memory.metadata_bytes),
        memory.sizing.as_ref().map(sizing).unwrap_or_default(),
        memory.cache_ratio.as_ref().map(cache_ratio).unwrap_or_default(),
        patrol(&status.patrol),
        background(&status.background),
        status.connections,
        status.listeners.join(", "),
        volumes(&status.volumes),
        curve(&status.volumes),
        status.division.as_ref().map(division).unwrap_or_default(),
        disks(&status.volumes),
        gather(&status.volumes),
        write_back(&status.volumes),
        governor(&status.volumes),
        warm_up(&status.volumes),
        pins(&status.volumes),
        learn(&status.volumes),
        journals(&status.journals),
        status.power.as_ref().map(power).unwrap_or_default(),
        status.vault.as_ref().map(vault).unwrap_or_default(),
    )
}

/// The limit of the memory, and its maximum if that is larger.
pub(super) fn memory_limit(memory: &Memory) -> String {
    let limit = bytes(memory.limit_bytes);
    match memory.limit_bytes_max > memory.limit_bytes {
        true => format!("limit {limit}, at most {}", bytes(memory.limit_bytes_max)),
        false => format!("limit {limit}"),
    }
}

/// A line that says why the memory has its limit.
fn sizing(sizing: &MemorySizing) -> String {
    let MemorySizing { memory, reason, .. } = sizing;
    let by = sizing.limited_by.as_ref().map(|group| format!(" in the control group {group}"));
    let (by, wanted) = (by.unwrap_or_default(), bytes(sizing.wanted_bytes));
    let target = match sizing.state {
        MemoryState::Steady => String::new(),
        _ => format!(", {wanted} with enough memory"),
    };
    format!("memory size: {memory}{target}; {reason}{by}\n")
}

/// A line with the shares of the cache for reads and for writes.
fn cache_ratio(ratio: &CacheRatio) -> String {
    let CacheRatio { setting, reason, .. } = ratio;
    format!("cache ratio: {setting}, {}; {reason}\n", shares(ratio))
}

/// The shares of the cache in a few words: `33 % for reads, 67 % (60 MiB) for writes`.
pub(super) fn shares(ratio: &CacheRatio) -> String {
    let CacheRatio { read_percent, write_percent, .. } = ratio;
    let limit = bytes(ratio.write_bytes);
    format!("{read_percent} % for reads, {write_percent} % ({limit}) for writes")
}

/// A line that says why background work is slow; empty if it is not.
fn background(background: &BackgroundStatus) -> String {
    match background.share() {
        BackgroundShare::Full => String::new(),
        share => format!("background work: {share}; {}\n", background.reason),
    }
}

/// The patrol in one line.
fn patrol(patrol: &PatrolStatus) -> String {
    if patrol.ecc == "off" {
        return "patrol: off, damage to memory is not detected".into();
    }
    let walk = match patrol.walk_seconds {
        0.0 => "the first walk has not ended".into(),
        seconds => format!("the last walk took {seconds:.1} s"),
    };
    let Damage { found_lines, corrected_lines, fetched_again_lines, lost_lines, .. } =
        patrol.damage;
    let back = match patrol.damage.back_from_journal_lines {
        0 => String::new(),
        lines => format!(", {lines} of them back from a journal"),
    };
    let found = match found_lines {
        0 => "no damage found".into(),
        _ => format!(
            "{found_lines} lines found damaged: {corrected_lines} corrected, \
             {fetched_again_lines} fetched again, {lost_lines} lost{back}"
        ),
    };
    format!("patrol: {}, {walk}; {found}", patrol.ecc)
}

/// The table of volumes, and notes on problems below it.
pub(super) fn volumes(volumes: &[VolumeStatus]) -> String {
    if volumes.is_empty() {
        return "no volumes: add one with forebay volume add NAME=BACKING\n".into();
    }
    let mut table = table(["NAME", "SIZE", "MODE", "HIT", "READS", "WRITES", "CACHED", "DIRTY"]);
    for volume in volumes {
        table.add_row([
            volume.name.clone(),
            bytes(volume.size_bytes),
            volume.effective_mode.to_string(),
            percent(volume.counters.read_hit_ratio()),
            count(volume.counters.reads),
            count(volume.counters.writes),
            bytes(volume.cached_bytes),
            bytes(volume.dirty_bytes),
        ]);
    }
    lines(table, &[0, 2]) + &volumes_notes(volumes)
}

/// The table of journals after an empty line, and notes on problems below it. Empty if there are
/// none.
fn journals(journals: &[JournalStatus]) -> String {
    if journals.is_empty() {
        return String::new();
    }
    let mut table = table(["JOURNAL", "STATE", "SIZE", "USED", "RECORDS", "BATCHES", "WRITTEN"]);
    for journal in journals {
        table.add_row([
            journal.name.clone(),
            journal.state.to_string(),
            bytes(journal.capacity_bytes),
            bytes(journal.used_bytes),
            count(journal.records),
            count(journal.batches),
            bytes(journal.written_bytes),
        ]);
    }
    format!("\n{}{}", lines(table, &[0, 1]), journals_notes(journals))
}

/// The table of UPSes after an empty line, and the resulting power state below it.
fn power(power: &PowerStatus) -> String {
    let mut table = table(["UPS", "STATUS", "STATE", "CHARGE", "RUNTIME", "LOAD"]);
    let none = || "-".to_owned();
    let percent = |value: Option<f64>| value.map_or_else(none, |value| format!("{value:.0} %"));
    for supply in &power.supplies {
        table.add_row([
            supply.name.clone(),
            supply.status.clone().unwrap_or_else(none),
            supply.state.clone(),
            percent(supply.charge_percent),
            supply.runtime_seconds.map_or_else(none, |seconds| format!("{seconds} s")),
            percent(supply.load_percent),
        ]);
    }
    let notes = power.supplies.iter().flat_map(|supply| {
        let test = supply.battery_test.as_ref().map(|test| format!("last battery test: {test}"));
        let notes = [test, supply.battery_ages.clone()];
        notes.into_iter().flatten().map(|note| format!("{}: {note}\n", supply.name))
    });
    format!(
        "\n{}\n{}power: {}\n{} dirty under a UPS, {} allowed; {}\n",
        lines(table, &[0, 1, 2]),
        notes.collect::<String>(),
        power.reason,
        bytes(power.dirty_bytes),
        bytes(power.dirty_bytes_max),
        power.forecast,
    )
}

/// The vault in one line after an empty one, and a line for each volume whose data it holds.
fn vault(vault: &VaultStatus) -> String {
    let speed = |value: Option<u64>| {
        value.map_or_else(|| "not measured".to_owned(), |value| format!("{}/s", bytes(value)))
    };
    let mut text = format!(
        "\nvault {}: {}, {}; write {}, read back {}\n",
        vault.name,
        vault.state,
        bytes(vault.capacity_bytes),
        speed(vault.write_bytes_per_second),
        speed(vault.read_bytes_per_second),
    );
    if let Some(reason) = &vault.state_reason {
        text.push_str(&format!("vault: {reason}\n"));
    }
    for held in &vault.held {
        let (volume, size) = (&held.volume, bytes(held.bytes));
        text.push_str(&format!("vault: holds {size} of volume '{volume}', which is not served\n"));
    }
    text
}

/// The report of a drill.
pub(super) fn drill(report: &DrillReport) -> String {
    let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1000.0);
    let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
    let latencies = |latencies: &Latencies| {
        format!(
            "reads from memory {:.0}, reads from disk {:.0}, writes {:.0} us",
            latencies.read_hit.mean_us, latencies.read_miss.mean_us, latencies.write.mean_us
        )
    };
    let test = if report.test_data { " of test data" } else { "" };
    format!(
        "drill of {}: {}\n\
         dirty: {}, saved: {}{test}, stable after {} ({}/s), disks flushed after {}, read \
         back after {}\n\
         read back: {}, {} as in memory, {} changed meanwhile, {} failures of the vault\n\
         battery: {}, dirty limit: {}\n\
         clients before: {}\n\
         clients during: {}\n\
         report: {}\n",
        report.begun_at,
        report.verdict,
        bytes(report.dirty_bytes),
        bytes(report.bytes),
        seconds(report.write_ms),
        bytes(report.bytes_per_second),
        seconds(report.disks_ms),
        seconds(report.total_ms),
        if report.verified { "verified" } else { "NOT VERIFIED" },
        bytes(report.same_bytes),
        bytes(report.changed_bytes),
        report.failures,
        or_unknown(report.battery_seconds.map(|seconds| format!("{seconds} s"))),
        or_unknown(report.dirty_bytes_max.map(bytes)),
        latencies(&report.latency_before),
        latencies(&report.latency_during),
        report.path.as_deref().unwrap_or("not kept; see the log"),
    )
}

/// One volume in a few words: `1.0 GiB, write-through`.
pub(super) fn summary(volume: &VolumeStatus) -> String {
    let read_only = if volume.read_only { ", read-only" } else { "" };
    let mut text = format!("{}, {}{read_only}", bytes(volume.size_bytes), volume.mode);
    if let Some(note) = mode_note(volume) {
        text += &format!("; {note}");
    }
    if let Some(reason) = &volume.pins.state_reason {
        text += &format!("; its ranges are not pinned: {reason}");
    }
    volume.geometry.notes.iter().for_each(|note| text += &format!("; {note}"));
    text
}

/// What a crash would leave of a volume in memory.
fn saved_note(name: &str, saved: &SavedStatus) -> String {
    let when = match saved.age_seconds {
        None => "was never saved".to_owned(),
        Some(seconds) => format!("was saved {seconds} s ago"),
    };
    let since = match saved.changed {
        true => ", and a crash loses later writes",
        false => ", and has not changed since",
    };
    let every = saved.every_seconds.map(|seconds| format!(" every {} and", interval(seconds)));
    let every = every.unwrap_or_default();
    let failed = saved.error.as_ref().map(|error| {
        let remedy = saved.remedy.as_deref().unwrap_or("see the server's log");
        format!("; THE LAST SAVE FAILED: {error}: {remedy}; it is tried again within a minute")
    });
    let failed = failed.unwrap_or_default();
    format!(
        "\n{name}: in memory, saved to {}{every} at a stop: it {when}{since}{failed}",
        saved.file
    )
}

/// A time between saves.
fn interval(seconds: u64) -> String {
    match seconds {
        _ if seconds.is_multiple_of(3_600) => format!("{} h", seconds / 3_600),
        _ if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

/// A line for each volume that is failing or not in its configured mode, for each inconsistency of
/// a disk's geometry, and for each volume in memory that is saved.
fn volumes_notes(volumes: &[VolumeStatus]) -> String {
    let mut notes = String::new();
    for volume in volumes {
        notes.extend(mode_note(volume).map(|note| format!("\n{}: {note}", volume.name)));
        if volume.state != VolumeState::Serving {
            let reason = volume.state_reason.as_ref().map(|reason| format!(": {reason}"));
            let reason = reason.unwrap_or_default();
            notes += &format!("\n{}: {}{reason}", volume.name, volume.state);
        }
        notes.extend(volume.saved.iter().map(|saved| saved_note(&volume.name, saved)));
        let geometry = &volume.geometry.notes;
        notes.extend(geometry.iter().map(|note| format!("\n{}: {note}", volume.name)));
    }
    if notes.is_empty() { notes } else { notes + "\n" }
}

/// A line for each journal that has failed, lacks a device or was damaged, and for each volume that
/// is not served and whose data a journal holds.
fn journals_notes(journals: &[JournalStatus]) -> String {
    let mut notes = String::new();
    for journal in journals {
        if journal.state != JournalState::Working {
            let reason = journal.state_reason.as_ref().map(|reason| format!(": {reason}"));
            let reason = reason.unwrap_or_default();
            notes += &format!("\n{}: {}{reason}", journal.name, journal.state);
        }
        if journal.damaged_places > 0 {
            notes += &format!(
                "\n{}: {} places were found damaged, {} of them healed from its mirror",
                journal.name, journal.damaged_places, journal.healed_places
            );
        }
        for held in &journal.unserved {
            let (bytes, volume) = (bytes(held.bytes), &held.volume);
            notes += &format!(
                "\n{}: holds {bytes} of volume '{volume}', which is not served",
                journal.name
            );
        }
    }
    if notes.is_empty() { notes } else { notes + "\n" }
}

fn mode_note(volume: &VolumeStatus) -> Option<String> {
    let reason = volume.effective_mode_reason.as_ref();
    (volume.mode != volume.effective_mode).then(|| {
        let reason = reason.map(|reason| format!(", {reason}")).unwrap_or_default();
        format!("{} instead of {}{reason}", volume.effective_mode, volume.mode)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::{Mode, UnservedWrites, UpsStatus};

    fn volume(name: &str) -> VolumeStatus {
        VolumeStatus {
            name: name.into(),
            size_bytes: 8 << 40,
            mode: Mode::WriteBack,
            effective_mode: Mode::WriteBack,
            ..VolumeStatus::default()
        }
    }

    #[test]
    fn a_table_is_aligned_and_has_no_trailing_blanks() {
        let mut disk = volume("a longer name");
        (disk.counters.reads, disk.counters.read_hits) = (2_000_000, 1_500_000);
        (disk.cached_bytes, disk.dirty_bytes) = (3 << 29, 4096);
        let text = volumes(&[disk, volume("b")]);
        assert_eq!(
            text,
            "NAME              SIZE  MODE           HIT  READS  WRITES   CACHED    DIRTY\n\
             a longer name  8.0 TiB  write-back  75.0 %  2.0 M       0  1.5 GiB  4.0 KiB\n\
             b              8.0 TiB  write-back       -      0       0      0 B      0 B\n"
        );
    }

    #[test]
    fn problems_are_noted_below_the_table() {
        let mut degraded = volume("a");
        degraded.effective_mode = Mode::WriteThrough;
        degraded.effective_mode_reason = Some("memory is full of dirty data".into());
        let mut failing = volume("b");
        failing.state = VolumeState::Failing;
        failing.state_reason = Some("the disk cannot be written".into());
        failing.geometry.notes = vec!["stripes of two widths".into()];
        assert_eq!(summary(&failing), "8.0 TiB, write-back; stripes of two widths");
        let text = volumes(&[degraded.clone(), failing]);
        assert!(
            text.ends_with(
                "\n\na: write-through instead of write-back, memory is full of dirty data\n\
                 b: failing: the disk cannot be written\n\
                 b: stripes of two widths\n"
            ),
            "{text}"
        );
        assert_eq!(
            summary(&degraded),
            "8.0 TiB, write-back; write-through instead of write-back, memory is full of dirty data"
        );
    }

    #[test]
    fn upses_have_a_table_and_the_power_state_below_it() {
        let supply = UpsStatus {
            name: "lab".into(),
            state: "safe".into(),
            status: Some("OL CHRG".into()),
            charge_percent: Some(97.6),
            runtime_seconds: Some(1800),
            battery_ages: Some("battery aging: 640 s now, 900 s when first seen".into()),
            ..UpsStatus::default()
        };
        let text = power(&PowerStatus {
            reason: "write-back is allowed".into(),
            forecast: "if mains failed now: dump 7 s, battery 640 s".into(),
            dirty_bytes: 1 << 20,
            dirty_bytes_max: 4 << 30,
            supplies: vec![supply],
            ..PowerStatus::default()
        });
        assert_eq!(
            text,
            "\nUPS  STATUS   STATE  CHARGE  RUNTIME  LOAD\n\
             lab  OL CHRG  safe     98 %   1800 s     -\n\n\
             lab: battery aging: 640 s now, 900 s when first seen\n\
             power: write-back is allowed\n\
             1.0 MiB dirty under a UPS, 4.0 GiB allowed; \
             if mains failed now: dump 7 s, battery 640 s\n"
        );
    }

    #[test]
    fn the_vault_is_shown_with_its_speed_and_content() {
        let ready = VaultStatus {
            name: "/v".into(),
            capacity_bytes: 4 << 30,
            write_bytes_per_second: Some(512 << 20),
            ..VaultStatus::default()
        };
        let line = "\nvault /v: ready, 4.0 GiB; write 512 MiB/s, read back not measured\n";
        assert_eq!(vault(&ready), line);
        let holding = VaultStatus {
            state: forebay_api::VaultState::Holding,
            state_reason: Some("not everything is in it".into()),
            held: vec![forebay_api::HeldVolume { volume: "a".into(), bytes: 1 << 20 }],
            ..ready
        };
        let text = vault(&holding);
        assert!(text.contains("vault: not everything is in it\n"), "{text}");
        let held = "vault: holds 1.0 MiB of volume 'a', which is not served\n";
        assert!(text.ends_with(held), "{text}");
    }

    #[test]
    fn journals_have_a_table_of_their_own() {
        let working = JournalStatus {
            name: "/dev/nvme0n1".into(),
            capacity_bytes: 1 << 30,
            used_bytes: 64 << 20,
            records: 3000,
            batches: 500,
            written_bytes: 16 << 20,
            ..JournalStatus::default()
        };
        assert_eq!(journals(&[]), "");
        let table = "\nJOURNAL       STATE       SIZE    USED  RECORDS  BATCHES  WRITTEN\n\
                     /dev/nvme0n1  working  1.0 GiB  64 MiB    3.0 k      500   16 MiB\n";
        assert_eq!(journals(std::slice::from_ref(&working)), table);
        let failed = JournalStatus {
            name: "/j".into(),
            state: JournalState::Failed,
            state_reason: Some("a write failed".into()),
            damaged_places: 3,
            healed_places: 2,
            unserved: vec![UnservedWrites { volume: "old".into(), bytes: 4096 }],
            ..JournalStatus::default()
        };
        let degraded = JournalStatus {
            name: "/h".into(),
            state: JournalState::Degraded,
            state_reason: Some("/i has failed: input/output error".into()),
            ..JournalStatus::default()
        };
        let text = journals(&[working, degraded, failed]);
        assert!(
            text.ends_with(
                "\n\n/h: degraded: /i has failed: input/output error\n\
                 /j: failed: a write failed\n\
                 /j: 3 places were found damaged, 2 of them healed from its mirror\n\
                 /j: holds 4.0 KiB of volume 'old', which is not served\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn the_patrol_is_shown_with_the_damage_found() {
        let mut status = PatrolStatus { ecc: "parity".into(), ..PatrolStatus::default() };
        assert_eq!(
            patrol(&status),
            "patrol: parity, the first walk has not ended; no damage found"
        );
        status.walk_seconds = 63.96;
        status.damage = Damage {
            found_lines: 6,
            corrected_lines: 3,
            fetched_again_lines: 2,
            lost_lines: 1,
            back_from_journal_lines: 0,
            lost_bytes: 512,
        };
        assert_eq!(
            patrol(&status),
            "patrol: parity, the last walk took 64.0 s; 6 lines found damaged: 3 corrected, \
             2 fetched again, 1 lost"
        );
        status.damage.back_from_journal_lines = 1;
        assert!(
            patrol(&status).ends_with("2 fetched again, 1 lost, 1 of them back from a journal")
        );
        status.ecc = "off".into();
        assert_eq!(patrol(&status), "patrol: off, damage to memory is not detected");
    }

    #[test]
    fn without_volumes_the_next_step_is_suggested() {
        assert_eq!(volumes(&[]), "no volumes: add one with forebay volume add NAME=BACKING\n");
    }
}
