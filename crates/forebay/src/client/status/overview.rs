//! The overview: whether the server works, what is wrong, what the cache saves, and the volumes.

use super::alerts::{self, JoinedAlert, joined, style_of};
use super::figures::{Figures, Times, View};
use super::volumes;
use forebay_api::{
    BackgroundShare, JournalStatus, MemoryAdvice, PinState, Severity, Status, VolumeStatus,
    WarmUpState,
};
use forebay_terminal::page::{Page, Piece, Style, cut};
use forebay_terminal::units::{bytes, count, duration, latency_us, percent, rate};
use std::time::Duration;

/// The most alerts that the overview shows in full.
const ALERTS_MAX: usize = 8;
/// The column of the text after the state in the first line.
pub(super) const SENTENCE_AT: usize = 9;
/// The most columns of the name of a volume on standby.
const NAME_MAX: usize = 24;
/// The least number of volumes that the table shows, however low the screen is.
const VOLUMES_MIN: usize = 3;

/// What is shown instead of a table without volumes.
pub(crate) const NO_VOLUMES: &str = "no volumes: add one with `forebay volume add NAME=BACKING`";

/// The overview. With a `height` in lines, it has fewer volumes, so that it fits.
pub(crate) fn overview(view: &View<'_>, width: usize, height: Option<usize>) -> Page {
    let mut page = Page::new(width);
    head(view.status, &mut page);
    page.blank();
    benefit(&view.total(), view.period, &mut page);
    resources(view.status, &mut page);
    page.blank();
    if view.status.volumes.is_empty() {
        without_volumes(view.status, &mut page);
        return page;
    }
    // After an empty line.
    let mut below = Page::new(width);
    let waiting = standby(view.status, width);
    if waiting.height() > 0 {
        below.line([]);
        below.append(waiting);
    }
    // The table has two lines of heading, and one that says that volumes are missing.
    let most = height.map_or(usize::MAX, |height| {
        let left = height.saturating_sub(page.height() + below.height() + 2);
        let all = view.status.volumes.len();
        if all <= left { all } else { left.saturating_sub(1).max(VOLUMES_MIN) }
    });
    volumes::table(view, most, &mut page);
    page.append(below);
    if height.is_none() {
        page.blank();
        let text = "`forebay status NAME` shows one volume in depth, `--all` everything";
        page.wrapped(Style::Faint, text);
    }
    page
}

/// The volumes, and what is wrong with them.
pub(super) fn volume_list(view: &View<'_>, page: &mut Page) {
    if view.status.volumes.is_empty() {
        without_volumes(view.status, page);
    } else {
        volumes::table(view, usize::MAX, page);
        page.blank();
        page.append(standby(view.status, page.width()));
    }
    let alerts = joined(view.status.alerts.iter().filter(|alert| alert.kind == "volume"));
    page.blank();
    alerts::show(&alerts, usize::MAX, page);
}

/// What is shown instead of a table.
fn without_volumes(status: &Status, page: &mut Page) {
    page.append(standby(status, page.width()));
    if status.missing.is_empty() {
        page.wrapped(Style::Plain, NO_VOLUMES);
    }
}

/// The volumes on standby, which are no alerts.
fn standby(status: &Status, width: usize) -> Page {
    let mut page = Page::new(width);
    for missing in status.missing.iter().filter(|missing| missing.standby) {
        let mut text = missing.reason.clone().unwrap_or_default();
        if let Some(seconds) = missing.owner_silent_seconds {
            text += &format!("; silent for {}", duration(seconds));
        }
        let name = Piece::plain(format!("{}:", cut(&missing.name, NAME_MAX)));
        page.hanging(name, SENTENCE_AT, Style::Plain, &text);
    }
    page
}

/// Whether the server works, and what is wrong.
pub(super) fn head(status: &Status, page: &mut Page) {
    let alerts = joined(&status.alerts);
    let mut sentence = format!(
        "forebay {} serves {} to {}, up {}",
        cut(&status.version, 24),
        plural(status.volumes.len() as u64, "volume"),
        plural(status.connections, "client"),
        duration(status.uptime_seconds),
    );
    if !alerts.is_empty() {
        sentence += &format!(": {}", alerts::summary(&alerts));
    }
    let (style, word) = state(&alerts);
    page.hanging(Piece::new(style, word), SENTENCE_AT, Style::Plain, &sentence);
    if !alerts.is_empty() {
        page.blank();
        alerts::show(&alerts, ALERTS_MAX, page);
    }
}

/// `1 volume`, `2 volumes`.
pub(super) fn plural(n: u64, one: &str) -> String {
    format!("{} {one}{}", count(n), if n == 1 { "" } else { "s" })
}

/// The state in a word.
pub(crate) fn state(alerts: &[JoinedAlert<'_>]) -> (Style, &'static str) {
    match alerts.iter().map(JoinedAlert::severity).min() {
        None => (Style::Good, "ok"),
        Some(severity @ Severity::Warning) => (style_of(severity), "degraded"),
        Some(severity @ Severity::Error) => (style_of(severity), "failing"),
    }
}

/// What the cache saves: requests served from memory, I/Os, bytes and time.
pub(super) fn benefit(figures: &Figures, period: Option<Duration>, page: &mut Page) {
    let when = match period {
        None => "since the start".to_owned(),
        Some(period) => format!("in the last {:.1} s", period.as_secs_f64()),
    };
    let number = |n: u64| match period {
        None => count(n),
        Some(period) => format!("{}/s", rate(n as f64 / period.as_secs_f64())),
    };
    let size = |n: u64| match period {
        None => bytes(n),
        Some(period) => format!("{}/s", bytes((n as f64 / period.as_secs_f64()) as u64)),
    };
    if figures.client_ios == 0 {
        page.field("requests", format!("none {when}"));
        return;
    }
    let hits = match figures.hit_ratio() {
        None => String::new(),
        Some(ratio) => format!(", {} served from memory", percent(Some(ratio))),
    };
    page.field("requests", format!("{} {when}{hits}", number(figures.requests)));
    let Figures { saved_ios, client_ios, early_ios, .. } = *figures;
    page.field("I/Os saved", saved(saved_ios, client_ios, early_ios, &number));
    let Figures { saved_bytes, bytes, early_bytes, .. } = *figures;
    if bytes > 0 {
        page.field("bytes saved", saved(saved_bytes, bytes, early_bytes, &size));
    }
    latency("read latency", &figures.read, "read from the disk", &figures.disk_read, page);
    latency("write latency", &figures.write, "write to the disk", &figures.disk_write, page);
}

/// The I/Os or bytes of clients minus those of the disks, in words. The disks read `early` before
/// clients asked for it, which may bring something only later.
fn saved(saved: i64, all: u64, early: u64, shown: &dyn Fn(u64) -> String) -> String {
    let part = saved as f64 / all.max(1) as f64;
    if saved >= 0 {
        return format!("{} of {} ({})", shown(saved as u64), shown(all), percent(Some(part)));
    }
    let (more, all) = (shown(saved.unsigned_abs()), shown(all));
    match early {
        0 => format!("none: the disks had {more} more than the {all} of clients"),
        _ => format!(
            "none yet: the disks had {more} more than the {all} of clients, as they read {} ahead \
             of requests",
            shown(early)
        ),
    }
}

fn latency(label: &str, clients: &Times, what: &str, disk: &Times, page: &mut Page) {
    let Some(mean) = clients.mean_us() else { return };
    let disk = match disk.mean_us() {
        Some(us) => format!("a {what} takes {}", latency_us(us)),
        None => format!("there was no {what}"),
    };
    page.field(label, format!("{} on average; {disk}", latency_us(mean)));
}

/// Memory, the protection of dirty data, and background work.
fn resources(status: &Status, page: &mut Page) {
    let memory = &status.memory;
    page.field(
        "memory",
        format!(
            "{} of {} in use, {} dirty",
            bytes(memory.used_bytes),
            bytes(memory.pool_bytes),
            bytes(memory.dirty_bytes)
        ),
    );
    if let Some(text) = journals(&status.journals) {
        page.field("journals", text);
    }
    if let Some(power) = &status.power {
        let (dirty, most) = (bytes(power.dirty_bytes), bytes(power.dirty_bytes_max));
        let text = format!("{dirty} dirty under a UPS, {most} allowed; {}", power.forecast);
        page.field("power", text);
    }
    if let Some(vault) = &status.vault {
        page.field("vault", format!("{}, {}", vault.state, bytes(vault.capacity_bytes)));
    }
    if let Some(text) = loading(&status.volumes) {
        page.field("being read", text);
    }
    if status.background.share() != BackgroundShare::Full {
        let (share, reason) = (status.background.share(), &status.background.reason);
        page.field("background work", format!("{share}; {reason}"));
    }
    if let Some(text) = more_memory(&status.volumes) {
        page.field("more memory", text);
    }
}

/// A summary of the journals.
fn journals(journals: &[JournalStatus]) -> Option<String> {
    let sum =
        |part: fn(&JournalStatus) -> u64| journals.iter().map(part).fold(0, u64::saturating_add);
    let (used, capacity) = (sum(|it| it.used_bytes), sum(|it| it.capacity_bytes));
    let states = match journals {
        [] => return None,
        [journal] => journal.state.to_string(),
        _ => format!("{} journals", journals.len()),
    };
    Some(format!("{states}, {} of {} in use", bytes(used), bytes(capacity)))
}

/// What warm-ups and pins still have to read.
fn loading(volumes: &[VolumeStatus]) -> Option<String> {
    let sum =
        |part: &dyn Fn(&VolumeStatus) -> u64| volumes.iter().map(part).fold(0, u64::saturating_add);
    let warm_up = sum(&|volume| match volume.warm_up.state {
        WarmUpState::Loading if !volume.frozen => {
            volume.warm_up.planned_bytes.saturating_sub(volume.warm_up.done_bytes)
        }
        _ => 0,
    });
    let pins = sum(&|volume| match volume.pins.state {
        PinState::Loading => volume.pins.pinned_bytes.saturating_sub(volume.pins.loaded_bytes),
        _ => 0,
    });
    let parts = [("for the warm-up", warm_up), ("of pinned ranges", pins)];
    let parts = parts.iter().filter(|(_, left)| *left > 0);
    let parts: Vec<_> = parts.map(|(what, left)| format!("{} {what}", bytes(*left))).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The volumes that more memory would serve better.
fn more_memory(volumes: &[VolumeStatus]) -> Option<String> {
    let advised = volumes.iter().filter_map(|volume| {
        let outlook = volume.curve.outlook.as_ref()?;
        (outlook.advice == MemoryAdvice::More).then_some((volume, outlook))
    });
    let advised: Vec<_> = advised.collect();
    let (volume, outlook) = advised.first()?;
    let others = match advised.len() - 1 {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    Some(format!("would serve {}{others} better: {}", cut(&volume.name, 40), outlook.reason))
}
