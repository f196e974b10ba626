//! The advice for the volumes of a running server, from its statistics and miss-ratio curves.

use forebay_advice::{PoolAdvice, Served, ServedAdvice, ServedCurve, advise_served};
use forebay_api::{CurveStatus, MemoryAdvice, PeriodStatistics, Statistics, Status, VolumeStatus};
use forebay_terminal::page::{Page, Style};
use forebay_terminal::units::{bytes, count, duration, latency_us, percent};
use forebay_types::Mode;
use serde_json::{Value, json};

/// A volume with its advice.
pub(super) struct Judged<'a> {
    volume: &'a VolumeStatus,
    period: PeriodStatistics,
    served: Served,
    pub(super) advice: ServedAdvice,
}

/// Judges each volume by the last day, or by the time since it is served if that is shorter.
pub(super) fn judge<'a>(status: &'a Status, statistics: &Statistics) -> Vec<Judged<'a>> {
    let period = |volume: &VolumeStatus| {
        let found = statistics.volumes.iter().find(|it| it.name == volume.name);
        found.map(|found| found.periods.last_day.clone()).unwrap_or_default()
    };
    let judged = |volume: &'a VolumeStatus| {
        let period = period(volume);
        let served = served(volume, &period, status.memory.pool_bytes);
        Judged { volume, period, served, advice: advise_served(&served) }
    };
    status.volumes.iter().map(judged).collect()
}

fn served(volume: &VolumeStatus, period: &PeriodStatistics, pool_bytes: u64) -> Served {
    let (counters, latency) = (&period.counters, &period.latency);
    // A scan of a frozen volume says nothing about what the cache brings.
    let frozen_reads = counters.uncached_reads.get("frozen").copied().unwrap_or_default();
    Served {
        seconds: period.seconds,
        mode: volume.mode.into(),
        reads: counters.reads.saturating_sub(frozen_reads),
        read_hits: counters.read_hits,
        writes: counters.writes,
        write_bytes: counters.write_bytes,
        sequential_writes: counters.pattern.sequential_writes,
        saved_ios: counters.saved_ios,
        miss_us: latency.read_miss.mean_us,
        write_us: latency.write.mean_us,
        curve: curve(&volume.curve, pool_bytes),
    }
}

/// What the curve says; `None` before enough accesses.
fn curve(curve: &CurveStatus, pool_bytes: u64) -> Option<ServedCurve> {
    if let Some(outlook) = &curve.outlook {
        let memory = match outlook.advice {
            MemoryAdvice::Keep => PoolAdvice::Keep,
            MemoryAdvice::Less => PoolAdvice::Less,
            MemoryAdvice::More => PoolAdvice::More,
        };
        return Some(ServedCurve { hits: 1.0 - outlook.miss_ratio_now, memory });
    }
    // Without an outlook, nothing of the volume is in the pool. The largest size within it counts.
    let point = curve.points.iter().rev().find(|point| point.bytes <= pool_bytes)?;
    let is_known = curve.sampled_accesses >= 1_000;
    is_known.then_some(ServedCurve { hits: 1.0 - point.miss_ratio, memory: PoolAdvice::Keep })
}

/// The advice as text for a terminal of 80 columns.
pub(super) fn text(judged: &[Judged<'_>]) -> String {
    if judged.is_empty() {
        return "no volume is served; name block devices, as in `forebay advise /dev/sdb`\n".into();
    }
    let mut page = Page::default();
    let number = judged.len();
    let volumes = if number == 1 { "the volume".into() } else { format!("{number} volumes") };
    page.wrapped(Style::Plain, &format!("{volumes} of the running server"));
    for judged in judged {
        volume(&mut page, judged);
    }
    page.text(false)
}

fn volume(page: &mut Page, judged: &Judged<'_>) {
    let Judged { volume, served, advice, .. } = judged;
    page.heading(&format!("{}: {}", volume.name, headline(*advice)));
    page.field("because", advice.to_string());
    if served.reads + served.writes == 0 {
        return;
    }
    page.field("figures", figures(judged));
    page.field("latency", latency(judged));
    if let Some(outlook) = &volume.curve.outlook {
        page.field("memory", format!("{}: {}", bytes(outlook.share_bytes), outlook.reason));
    }
    if let Some(command) = command(&volume.name, *advice) {
        page.field("to do so", command);
    }
    if *advice == ServedAdvice::WriteBack {
        let note = "write-back needs protection=journal with journal=PATH on another device, or \
                    protection=ups with --ups and --vault; remove the volume and add it with them";
        page.field("note", note);
    }
}

/// What to do, in a few words.
fn headline(advice: ServedAdvice) -> &'static str {
    match advice {
        ServedAdvice::Idle | ServedAdvice::TooFew | ServedAdvice::TooEarly => "no recommendation",
        ServedAdvice::Keep => "keep it",
        ServedAdvice::MoreMemory => "keep it, with more memory",
        ServedAdvice::LessMemory => "keep it; less memory would do",
        ServedAdvice::WriteBack => "use write-back",
        ServedAdvice::StayOut => "leave it out, as it is",
        ServedAdvice::CacheAgain => "cache it again",
        ServedAdvice::NoGain
        | ServedAdvice::Log
        | ServedAdvice::WriteHeavy
        | ServedAdvice::Fast => "take it out of the cache",
    }
}

fn figures(judged: &Judged<'_>) -> String {
    let Judged { period, served, .. } = judged;
    let hits = (served.reads > 0).then(|| served.read_hits as f64 / served.reads as f64);
    let saved = served.saved_ios;
    let sign = if saved < 0 { "-" } else { "" };
    format!(
        "{} reads, {} of them from memory, and {} writes in {}; {sign}{} I/Os were saved",
        count(served.reads),
        percent(hits),
        count(served.writes),
        duration(period.seconds),
        count(saved.unsigned_abs()),
    )
}

fn latency(judged: &Judged<'_>) -> String {
    let latency = &judged.period.latency;
    let of = |count: u64, us: f64| if count == 0 { "-".to_owned() } else { latency_us(us) };
    format!(
        "a read takes {} from memory and {} otherwise, a write {}",
        of(latency.read_hit.count, latency.read_hit.mean_us),
        of(latency.read_miss.count, latency.read_miss.mean_us),
        of(latency.write.count, latency.write.mean_us),
    )
}

/// The command that follows the advice, if there is one.
fn command(name: &str, advice: ServedAdvice) -> Option<String> {
    match advice.mode()? {
        Mode::WriteBack => None,
        mode => Some(format!("forebay volume set {name} mode={mode}")),
    }
}

/// The advice as JSON.
pub(super) fn json(judged: &[Judged<'_>]) -> Value {
    let of = |judged: &Judged<'_>| {
        let Judged { volume, period, served, advice } = judged;
        json!({
            "name": volume.name,
            "advice": advice.name(),
            "because": advice.to_string(),
            "known": !advice.is_unknown(),
            "mode": Mode::from(volume.mode).to_string(),
            "advised_mode": advice.mode().map(|mode| mode.to_string()),
            "command": command(&volume.name, *advice),
            "seconds": period.seconds,
            "reads": served.reads,
            "read_hits": served.read_hits,
            "writes": served.writes,
            "saved_ios": served.saved_ios,
            "read_hit_us": period.latency.read_hit.mean_us,
            "read_miss_us": served.miss_us,
            "write_us": served.write_us,
            "outlook": volume.curve.outlook,
        })
    };
    json!({ "volumes": judged.iter().map(of).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_past_a_frozen_cache_do_not_count() {
        let mut period = PeriodStatistics::default();
        period.counters.reads = 11_000;
        period.counters.read_hits = 900;
        period.counters.uncached_reads = [("frozen".into(), 10_000), ("miss".into(), 100)].into();
        let found = served(&VolumeStatus::default(), &period, 1 << 30);
        assert_eq!((found.reads, found.read_hits), (1_000, 900));
    }
}
