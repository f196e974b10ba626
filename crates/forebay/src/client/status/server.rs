//! The server in depth: process, memory, patrol, pool, journals, UPSes and vault.

use crate::client::sentences::{memory_limit, shares};
use forebay_api::{
    BackgroundStatus, Damage, JournalStatus, Memory, MemoryState, PatrolStatus, PoolDivision,
    PowerStatus, Status, UpsStatus, VaultStatus,
};
use forebay_terminal::page::{Page, Piece, Style, cut, padded, right, width};
use forebay_terminal::units::{bytes, compact, count, duration, latency_us};

/// Everything about the server.
pub(crate) fn server(status: &Status, page: &mut Page) {
    page.heading("Server");
    page.field("process", format!("{}, version {}", status.pid, status.version));
    let polled = match status.polled_ms / 1_000 {
        0 => String::new(),
        seconds => format!("; polled for {}", duration(seconds)),
    };
    page.field("workers", format!("{} on {}{polled}", status.workers, status.io_engine));
    page.field("listening at", status.listeners.join(", "));
    background(&status.background, page);
    memory(&status.memory, page);
    patrol(&status.patrol, page);
    if let Some(division) = &status.division {
        pool(division, page);
    }
    status.journals.iter().for_each(|it| journal(it, page));
    if let Some(power) = &status.power {
        ups(power, page);
    }
    if let Some(it) = &status.vault {
        vault(it, page);
    }
}

fn background(background: &BackgroundStatus, page: &mut Page) {
    let (share, reason) = (background.share(), &background.reason);
    page.field("background work", format!("{share} (background={}); {reason}", background.setting));
    let pressure = |percent: Option<f64>| match percent {
        Some(percent) => format!("{percent:.1} %"),
        None => "not measured".to_owned(),
    };
    page.field(
        "pressure",
        format!(
            "processors {}, disks {}",
            pressure(background.processors_pressure),
            pressure(background.disks_pressure)
        ),
    );
}

fn memory(memory: &Memory, page: &mut Page) {
    page.heading("Memory");
    page.field(
        "pool",
        format!(
            "{} of {} in use, {} dirty",
            bytes(memory.used_bytes),
            bytes(memory.pool_bytes),
            bytes(memory.dirty_bytes)
        ),
    );
    let limit = memory_limit(memory);
    page.field("total", format!("{limit}, {} of it for the index", bytes(memory.metadata_bytes)));
    if let Some(sizing) = &memory.sizing {
        let by = sizing.limited_by.as_ref().map(|group| format!(" in the control group {group}"));
        let target = match sizing.state {
            MemoryState::Steady => String::new(),
            _ => format!(", {} with enough memory", bytes(sizing.wanted_bytes)),
        };
        let (by, reason) = (by.unwrap_or_default(), &sizing.reason);
        page.field("memory size", format!("{}{target}; {reason}{by}", sizing.memory));
        page.field(
            "of the machine",
            format!(
                "{} available, {} reserved for the system",
                bytes(sizing.available_bytes),
                bytes(sizing.reserve_bytes)
            ),
        );
    }
    if let Some(ratio) = &memory.cache_ratio {
        let text = format!("{}, {}; {}", ratio.setting, shares(ratio), ratio.reason);
        page.field("cache ratio", text);
    }
    let (pinned, most) = (bytes(memory.pinned_bytes), bytes(memory.pinned_bytes_max));
    page.field("pinned", format!("{pinned}, at most {most}"));
}

/// The patrol, and the damage that it has found.
fn patrol(patrol: &PatrolStatus, page: &mut Page) {
    if patrol.ecc == "off" {
        page.field("patrol", "off, damage to memory is not detected");
        return;
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
             {fetched_again_lines} read again from the disk, {lost_lines} lost{back}"
        ),
    };
    page.field("patrol", format!("{}, {walk}; {found}", patrol.ecc));
}

/// The parts of the pool that volumes have.
fn pool(division: &PoolDivision, page: &mut Page) {
    page.heading("Parts of the pool");
    let names = division.volumes.iter().map(|part| cut(&part.name, NAME_WIDTH_MAX));
    let names: Vec<_> = names.collect();
    let name_width = names.iter().map(|name| width(name)).fold("VOLUME".len(), usize::max);
    let line = |name: &str, cells: [String; 3]| {
        let widths = [12, 8, 11];
        let cells = cells.iter().zip(widths).map(|(cell, width)| right(cell, width));
        format!("  {}{}", padded(name, name_width), cells.collect::<String>())
    };
    let heading = ["LINES", "PART", "BY CURVES"].map(str::to_owned);
    page.line([Piece::new(Style::Strong, line("VOLUME", heading))]);
    for (name, part) in names.iter().zip(&division.volumes) {
        let lines =
            if part.lines < 1_000_000_000 { part.lines.to_string() } else { count(part.lines) };
        let ratio = |ratio: Option<f64>| match ratio {
            Some(_) => format!("{} %", compact::percent(ratio)),
            None => "-".to_owned(),
        };
        let cells = [lines, ratio(Some(part.part)), ratio(part.part_by_curves)];
        page.line([Piece::plain(line(name, cells))]);
    }
    page.field("decided", &division.reason);
}

/// The width of a volume's name in the table of parts, in columns.
const NAME_WIDTH_MAX: usize = 40;

fn journal(journal: &JournalStatus, page: &mut Page) {
    page.heading(&format!("Journal {}", journal.name));
    let reason = journal.state_reason.as_ref().map(|reason| format!(": {reason}"));
    page.field("state", format!("{}{}", journal.state, reason.unwrap_or_default()));
    if let Some(mirror) = &journal.mirror {
        page.field("mirror", mirror);
    }
    page.field(
        "log",
        format!("{} of {} in use", bytes(journal.used_bytes), bytes(journal.capacity_bytes)),
    );
    page.field(
        "written",
        format!(
            "{} records in {} batches, {} with {} of data",
            count(journal.records),
            count(journal.batches),
            bytes(journal.written_bytes),
            bytes(journal.payload_bytes)
        ),
    );
    if journal.commit.count > 0 {
        let (mean, p99) = (latency_us(journal.commit.mean_us), latency_us(journal.commit.p99_us));
        page.field("a commit takes", format!("{mean} on average, p99 {p99}"));
    }
    page.field(
        "checkpoints",
        format!("{}, {} recorded again", count(journal.checkpoints), bytes(journal.kept_bytes)),
    );
    page.field(
        "patrol",
        format!(
            "{} walks, {} verified; {} places found damaged, {} healed",
            count(journal.walks),
            bytes(journal.walked_bytes),
            count(journal.damaged_places),
            count(journal.healed_places)
        ),
    );
    for held in &journal.unserved {
        let text =
            format!("{} of volume '{}', which is not served", bytes(held.bytes), held.volume);
        page.field("holds", text);
    }
}

fn ups(power: &PowerStatus, page: &mut Page) {
    page.heading("Power");
    let allowed = if power.write_back_allowed { "allowed" } else { "not allowed" };
    page.field("write-back", format!("{allowed}: {}", power.reason));
    let (dirty, most) = (bytes(power.dirty_bytes), bytes(power.dirty_bytes_max));
    page.field("dirty", format!("{dirty} under a UPS, {most} allowed"));
    page.field("forecast", &power.forecast);
    page.field("UPSes needed", &power.needed);
    power.supplies.iter().for_each(|it| supply(it, page));
}

fn supply(supply: &UpsStatus, page: &mut Page) {
    let none = || "-".to_owned();
    let percent = |value: Option<f64>| value.map_or_else(none, |value| format!("{value:.0} %"));
    let runtime = supply.runtime_seconds.map_or_else(none, |seconds| format!("{seconds} s"));
    page.heading(&format!("UPS {}", supply.name));
    page.field("state", &supply.state);
    page.field("source", &supply.place);
    page.field("status", supply.status.clone().unwrap_or_else(none));
    page.field(
        "battery",
        format!(
            "charge {}, runtime {runtime}, load {}",
            percent(supply.charge_percent),
            percent(supply.load_percent)
        ),
    );
    let others = [
        ("model", &supply.model),
        ("last battery test", &supply.battery_test),
        ("battery date", &supply.battery_date),
        ("battery age", &supply.battery_ages),
    ];
    for (label, value) in others {
        value.iter().for_each(|value| page.field(label, value));
    }
}

fn vault(vault: &VaultStatus, page: &mut Page) {
    let speed = |value: Option<u64>| {
        value.map_or_else(|| "not measured".to_owned(), |value| format!("{}/s", bytes(value)))
    };
    page.heading(&format!("Vault {}", vault.name));
    let reason = vault.state_reason.as_ref().map(|reason| format!(": {reason}"));
    page.field("state", format!("{}{}", vault.state, reason.unwrap_or_default()));
    page.field("capacity", bytes(vault.capacity_bytes));
    page.field(
        "speed",
        format!(
            "write {}, read back {}",
            speed(vault.write_bytes_per_second),
            speed(vault.read_bytes_per_second)
        ),
    );
    if let Some(dump) = &vault.last_dump {
        page.field(
            "last dump",
            format!(
                "{} in {:.1} s, {}",
                bytes(dump.bytes),
                dump.sealed_ms as f64 / 1000.0,
                if dump.verified { "verified" } else { "NOT VERIFIED" }
            ),
        );
    }
    for held in &vault.held {
        let text =
            format!("{} of volume '{}', which is not served", bytes(held.bytes), held.volume);
        page.field("holds", text);
    }
}
