//! One volume in depth, in the order of a person's questions: does it work, what does it bring, is
//! data at risk, what is in memory, what does the disk do, and how is it configured.

use super::alerts::{self, joined};
use super::figures::{Figures, View};
use super::overview::{benefit, state};
use crate::client::gather;
use crate::client::sentences::{self, mode_note};
use forebay_api::{
    DurabilityClass, GeometrySource, LatencySummary, LearnState, PinState, SavedStatus,
    VolumeStatus, WarmUpState,
};
use forebay_terminal::page::{Page, Piece, Style, padded, right};
use forebay_terminal::units::{bytes, compact, count, duration, latency_us, micros, percent};
use forebay_types::Size;

/// A volume in depth. `figures` are those of the view's period.
pub(crate) fn details(view: &View<'_>, volume: &VolumeStatus, figures: &Figures, page: &mut Page) {
    head(view, volume, page);
    page.heading("Benefit");
    benefit(figures, view.period, page);
    latencies(volume, page);
    limits(volume, page);
    page.heading("Dirty data and writeback");
    writeback(volume, page);
    page.heading("Memory");
    memory(view, volume, page);
    page.heading("Reading ahead of requests");
    reading(volume, page);
    page.heading("Disk");
    disk(volume, page);
    page.heading("Settings");
    settings(volume, page);
}

/// The name, whether the volume works, and what is wrong.
fn head(view: &View<'_>, volume: &VolumeStatus, page: &mut Page) {
    let alerts = joined(view.status.alerts.iter().filter(|alert| alert.is_about(&volume.name)));
    let (style, word) = state(&alerts);
    let sentence = format!(
        "volume {}: {}, {}, {}",
        volume.name,
        sentences::state(volume),
        volume.effective_mode,
        bytes(volume.size_bytes)
    );
    page.hanging(Piece::new(style, word), 9, Style::Strong, &sentence);
    if !alerts.is_empty() {
        page.blank();
        alerts::show(&alerts, usize::MAX, page);
    }
}

fn latencies(volume: &VolumeStatus, page: &mut Page) {
    let latency = &volume.latency;
    let rows: [(&str, &LatencySummary); 8] = [
        ("read hit", &latency.read_hit),
        ("read miss", &latency.read_miss),
        ("write to memory", &latency.write_memory),
        ("write to disk", &latency.write_disk),
        ("flush", &latency.flush),
        ("disk: read", &latency.disk_read),
        ("disk: write", &latency.disk_write),
        ("disk: flush", &latency.disk_flush),
    ];
    let used: Vec<_> = rows.iter().filter(|(_, summary)| summary.count > 0).collect();
    if used.is_empty() {
        return;
    }
    let line = |name: &str, cells: [String; 5]| {
        let cells = cells.map(|cell| right(&cell, 9));
        format!("  {}{}", padded(name, 24), cells.concat())
    };
    let heading = ["COUNT", "MEAN", "P50", "P99", "MAX"].map(str::to_owned);
    page.blank();
    page.line([Piece::new(Style::Faint, line("LATENCY since the start", heading))]);
    for (name, summary) in used {
        let cells = [
            count(summary.count),
            compact::latency(Some(summary.mean_us)),
            compact::latency(Some(summary.p50_us)),
            compact::latency(Some(summary.p99_us)),
            compact::latency(Some(summary.max_us)),
        ];
        page.line([Piece::plain(line(name, cells))]);
    }
}

/// The waits for the limits of the volume, if there were any.
fn limits(volume: &VolumeStatus, page: &mut Page) {
    let counters = &volume.counters;
    if counters.limited > 0 {
        page.blank();
        let mean_us = counters.limited_us as f64 / counters.limited as f64;
        let waited = format!("{} requests, {} each", count(counters.limited), latency_us(mean_us));
        page.field("waited for limits", waited);
    }
}

/// The guaranteed and the largest share, if there are any.
fn shares(volume: &VolumeStatus) -> Option<String> {
    let min = (volume.share_min_bytes > 0)
        .then(|| format!("{} guaranteed", bytes(volume.share_min_bytes)));
    let max = volume.share_max_bytes.map(|max| format!("at most {}", bytes(max)));
    let shares: Vec<String> = min.into_iter().chain(max).collect();
    (!shares.is_empty()).then(|| shares.join(", "))
}

fn dirty(volume: &VolumeStatus) -> String {
    let dirty = bytes(volume.dirty_bytes);
    match volume.write_back.dirty_for_ms / 1000 {
        0 => dirty,
        seconds => format!("{dirty}, none of it for longer than {}", duration(seconds)),
    }
}

fn writeback(volume: &VolumeStatus, page: &mut Page) {
    let figures = &volume.write_back;
    page.field("dirty", dirty(volume));
    if let Some(note) = mode_note(volume) {
        page.field("mode", note);
    }
    page.field("protection", protection(volume));
    page.field("class", class(volume));
    if let Some(saved) = &volume.saved {
        page.field("image", image(saved));
    }
    if figures.writes > 0 {
        let (input, mean) = (&volume.counters, |bytes: u64, writes: u64| bytes / writes.max(1));
        page.field(
            "written back",
            format!(
                "{} in {} writes, {:.1} writes of clients for each",
                bytes(figures.bytes),
                count(figures.writes),
                input.writes as f64 / figures.writes as f64
            ),
        );
        page.field(
            "mean write",
            format!(
                "{} of clients, {} to the disk",
                bytes(mean(input.write_bytes, input.writes)),
                bytes(mean(figures.bytes, figures.writes))
            ),
        );
        let stripes = match volume.geometry.stripe_bytes {
            0 => String::new(),
            _ => format!(", {} of whole stripes", count(figures.whole_stripes)),
        };
        page.field(
            "destages",
            format!(
                "{} urgent, {} normal{stripes}, after {:.1} s on average",
                count(figures.urgent),
                count(figures.normal),
                figures.mean_dirty_ms as f64 / 1000.0
            ),
        );
        page.field("throttled writes", count(figures.waits));
        governor(volume, page);
    }
    page.field("worth gathering", gather::worth(&volume.gather));
    page.field("cost of an I/O", gather::cost(&volume.gather));
}

/// The latency of reads with and without writeback, and the limit of writeback.
fn governor(volume: &VolumeStatus, page: &mut Page) {
    let governor = &volume.write_back.governor;
    let time = |us: Option<u64>| us.map_or("unknown".to_owned(), micros);
    page.field(
        "p99 of reads",
        format!(
            "{} beside writeback, {} without",
            time(governor.beside_p99_us),
            time(governor.idle_p99_us)
        ),
    );
    let target = match governor.target_p99_us {
        Some(us) => format!("{} (read-latency={})", micros(us), governor.read_latency),
        None => format!("none (read-latency={})", governor.read_latency),
    };
    page.field("target p99", target);
    let rate = match governor.bursts_per_second {
        Some(rate) => format!("{rate:.1} bursts of 1 MiB or 8 I/Os per second"),
        None => "no limit".to_owned(),
    };
    page.field(
        "beside reads",
        format!(
            "{rate}; raised {}, lowered {} times",
            count(governor.raised),
            count(governor.lowered)
        ),
    );
}

/// What preserves dirty data.
fn protection(volume: &VolumeStatus) -> String {
    let mut text = volume.protection.clone();
    if let Some(journal) = &volume.journal {
        text += &format!(", {journal}");
    }
    if let Some(mirror) = &volume.journal_mirror {
        text += &format!(" and {mirror}");
    }
    if let Some(durability) = &volume.durability {
        text += &format!(", durability={durability}");
    }
    if let Some(unsafe_supply) = &volume.unsafe_supply {
        text += &format!(", unsafe-supply={unsafe_supply}");
    }
    if volume.ordered {
        text += ", destaged in order";
    }
    if volume.accept_loss {
        text += ", a crash may lose writes";
    }
    text
}

/// What would be lost with the host.
fn class(volume: &VolumeStatus) -> String {
    let class = volume.class;
    let lost = match class {
        DurabilityClass::Through => "nothing is lost with this host: the disk has every write",
        DurabilityClass::Shared if volume.durability.as_deref() == Some("flush") => {
            "nothing that was flushed is lost with this host: another one can take over disk and \
             journal"
        }
        DurabilityClass::Shared => {
            "nothing is lost with this host: another one can take over disk and journal"
        }
        DurabilityClass::Local => {
            let mut limits = volume.settings.pairs();
            let limit =
                limits.find(|(setting, value)| setting.key == "loss-limit" && *value != "off");
            let limit = limit.map(|(_, value)| value);
            let most = limit.map(|limit| format!(", at most {limit}")).unwrap_or_default();
            let left = match volume.ordered {
                true => "; the disk alone has an older state without gaps",
                false => "",
            };
            return format!("{class}: dirty data is lost with this host{most}{left}");
        }
    };
    format!("{class}: {lost}")
}

/// What a crash would leave of a volume in memory.
fn image(saved: &SavedStatus) -> String {
    let when = match saved.age_seconds {
        None => "was never saved".to_owned(),
        Some(seconds) => format!("was saved {seconds} s ago"),
    };
    let since = match saved.changed {
        true => ", and a crash loses later writes",
        false => ", and has not changed since",
    };
    let every = saved.every_seconds.map(|seconds| format!("every {} and ", interval(seconds)));
    let every = every.unwrap_or_default();
    format!("{}, written {every}at a stop: it {when}{since}", saved.file)
}

/// A time between saves.
fn interval(seconds: u64) -> String {
    match seconds {
        _ if seconds.is_multiple_of(3_600) => format!("{} h", seconds / 3_600),
        _ if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

fn memory(view: &View<'_>, volume: &VolumeStatus, page: &mut Page) {
    let parts = view.status.division.iter().flat_map(|division| &division.volumes);
    let part = parts.into_iter().find(|part| part.name == volume.name);
    let of_pool = part.map(|part| {
        let curves =
            part.part_by_curves.map(|part| format!(" ({} by curves)", percent(Some(part))));
        format!(", {} of the pool{}", percent(Some(part.part)), curves.unwrap_or_default())
    });
    let cached = bytes(volume.cached_bytes);
    page.field("in memory", format!("{cached}{}", of_pool.unwrap_or_default()));
    if let Some(shares) = shares(volume) {
        page.field("shares of the pool", shares);
    }
    let counters = &volume.counters;
    page.field(
        "admitted",
        format!("{}, {} evicted", bytes(counters.admitted_bytes), bytes(counters.evicted_bytes)),
    );
    if let Some(outlook) = &volume.curve.outlook {
        page.field(
            "misses",
            format!(
                "{} with half the pool, {} now, {} with twice the pool; its share is {}",
                percent(Some(outlook.miss_ratio_half)),
                percent(Some(outlook.miss_ratio_now)),
                percent(Some(outlook.miss_ratio_twice)),
                bytes(outlook.share_bytes)
            ),
        );
        page.field("memory advice", format!("{}: {}", outlook.advice, outlook.reason));
    }
    let damage = &volume.damage;
    if damage.found_lines > 0 {
        page.field(
            "damage",
            format!(
                "{} lines: {} corrected, {} read again from the disk, {} lost, {} of them back \
                 from the journal; {} still lost",
                damage.found_lines,
                damage.corrected_lines,
                damage.fetched_again_lines,
                damage.lost_lines,
                damage.back_from_journal_lines,
                bytes(damage.lost_bytes)
            ),
        );
    }
}

/// Read-ahead, warm-up, pins and forecasts.
fn reading(volume: &VolumeStatus, page: &mut Page) {
    let counters = &volume.counters;
    if volume.frozen {
        page.field("frozen", "nothing is admitted until `forebay volume thaw`");
    }
    let read_ahead = match volume.prefetch {
        true => {
            let (read, used) = (counters.prefetched_bytes, counters.prefetch_used_bytes);
            let share =
                read.saturating_sub(used) as f64 / counters.backend_read_bytes.max(1) as f64;
            let rest = percent(Some(share));
            format!("{}, {} used, the rest is {rest} of the disk's reads", bytes(read), bytes(used))
        }
        false => "off".to_owned(),
    };
    page.field("read ahead", read_ahead);
    let warm_up = &volume.warm_up;
    let warm = match (warm_up.enabled, warm_up.state) {
        (true, WarmUpState::None) => "none since the start".to_owned(),
        (false, WarmUpState::None) => "off".to_owned(),
        (_, state) => format!(
            "{}, {} of {} done",
            match state {
                WarmUpState::Loading if volume.frozen => "waits for the thaw".to_owned(),
                state => state.to_string(),
            },
            bytes(warm_up.done_bytes),
            bytes(warm_up.planned_bytes)
        ),
    };
    page.field("warm-up", warm);
    page.field(
        "preloaded",
        format!(
            "{}, {} used, {} evicted unused",
            bytes(counters.preloaded_bytes),
            bytes(counters.preload_used_bytes),
            bytes(counters.preload_in_vain_bytes)
        ),
    );
    let pins = &volume.pins;
    match pins.state {
        PinState::None => page.field("pinned", "nothing"),
        state => {
            let (all, loaded) = (bytes(pins.pinned_bytes), bytes(pins.loaded_bytes));
            page.field("pinned", format!("{all}, {loaded} in memory: {state}"));
        }
    }
    learned(volume, page);
}

/// What was learned of the time of the day.
fn learned(volume: &VolumeStatus, page: &mut Page) {
    let learn = &volume.learn;
    let slots = match learn.state {
        LearnState::Off => String::new(),
        _ => format!(", {} of 672 quarters of an hour observed", learn.observed_slots),
    };
    page.field("time of the day", format!("{}{slots}", learn.state));
    if let Some(forecast) = &learn.forecast {
        page.field("forecast", format!("{}: {}", forecast.slot, bytes(forecast.bytes)));
    }
    if let Some(score) = &learn.score {
        let (loaded, used) = (bytes(score.preloaded_bytes), bytes(score.used_bytes));
        page.field("last forecast", format!("{}: {loaded} preloaded, {used} used", score.slot));
    }
}

fn disk(volume: &VolumeStatus, page: &mut Page) {
    let (counters, use_of_disk) = (&volume.counters, &volume.disk);
    page.field("backing", &volume.backing);
    page.field(
        "I/Os",
        format!(
            "{} reads of {}, {} writes of {}, {} in flight",
            count(counters.backend_reads),
            bytes(counters.backend_read_bytes),
            count(counters.backend_writes),
            bytes(counters.backend_write_bytes),
            count(use_of_disk.in_flight)
        ),
    );
    page.field(
        "errors",
        format!(
            "{} of the disk; {} requests answered with an error",
            count(counters.backend_errors),
            count(counters.errors)
        ),
    );
    let disk = &volume.geometry;
    let has_stripes = disk.stripe_bytes > 0;
    let size = |is_known: bool, bytes: u64, source| {
        if is_known { value(Size(bytes), source) } else { no_value(source) }
    };
    page.field("stripe", size(has_stripes, disk.stripe_bytes, disk.stripe_source));
    if has_stripes || disk.chunk_bytes > 0 {
        page.field("chunk", size(disk.chunk_bytes > 0, disk.chunk_bytes, disk.chunk_source));
        let from = size(has_stripes, disk.stripe_offset_bytes, disk.stripe_offset_source);
        page.field("stripes from", from);
    }
    let best = disk.optimal_bytes;
    let best = if best > 0 { Size(best).to_string() } else { "unknown".to_owned() };
    page.field("optimal I/O", best);
    let rotational = match disk.rotational {
        None => no_value(disk.rotational_source),
        Some(is) => value(if is { "yes" } else { "no" }, disk.rotational_source),
    };
    page.field("rotational", rotational);
}

fn value(value: impl std::fmt::Display, source: GeometrySource) -> String {
    format!("{value} ({source})")
}

/// `unknown`, or `none` if a source reports that there is no such value.
fn no_value(source: GeometrySource) -> String {
    match source {
        GeometrySource::Unknown => "unknown".to_owned(),
        _ => value("none", source),
    }
}

fn settings(volume: &VolumeStatus, page: &mut Page) {
    for (setting, value) in volume.settings.pairs() {
        page.field(setting.key, value);
    }
}
