//! The advice as text for a terminal of 80 columns.

use super::{AdviceReport, Judged};
use forebay_advice::{Expectation, Load, Prediction, Reason};
use forebay_runtime::limit_for_pool;
use forebay_terminal::page::{Page, Piece, Style};
use forebay_terminal::units::{bytes, duration, latency_us, percent, rate};
use forebay_types::{Mode, Size};

/// The report mentions lost events if their share is larger than this.
const LOST_MAX: f64 = 0.01;
/// The most workers that a server has by default.
const WORKERS_MAX: usize = 8;

pub(super) fn report(report: &AdviceReport) -> String {
    let mut page = Page::default();
    let seconds = duration(report.seconds.round() as u64);
    let devices = match &report.devices[..] {
        [one] => one.device.name.clone(),
        devices => format!("{} devices", devices.len()),
    };
    page.wrapped(Style::Plain, &format!("{devices} observed for {seconds}"));
    if let Some(reason) = &report.unsampled {
        let text = format!(
            "{reason}; the counters alone do not tell whether data is read again, so much of the \
             advice is missing"
        );
        page.hanging(Piece::plain("note"), 6, Style::Plain, &text);
    }
    let share = report.lost as f64 / (report.lost + report.seen).max(1) as f64;
    if share > LOST_MAX {
        let text = format!(
            "{} of the requests came too fast to be observed; the predictions follow from the \
             others",
            percent(Some(share))
        );
        page.hanging(Piece::plain("note"), 6, Style::Plain, &text);
    }
    for judged in &report.devices {
        device(&mut page, judged);
    }
    totals(&mut page, report);
    page.text(false)
}

fn device(page: &mut Page, judged: &Judged) {
    let name = &judged.device.name;
    page.heading(&format!("{name}: {}", headline(judged)));
    page.field("because", because(judged));
    page.field("load", load(&judged.load));
    page.field("latency", latency(&judged.load));
    if let Some(prediction) = judged.prediction.as_ref().filter(|it| has_requests(it)) {
        page.field("pattern", pattern(prediction));
        predicted(page, judged, prediction);
    }
    for note in notes(judged) {
        page.field("note", note);
    }
    if let (Some(mode), Some(memory)) = (judged.mode(), judged.memory_bytes()) {
        page.field("to cache it", command(name, mode, memory));
    }
}

fn has_requests(prediction: &Prediction) -> bool {
    prediction.pattern.reads + prediction.pattern.writes > 0
}

/// What to do, in a few words.
pub(super) fn headline(judged: &Judged) -> String {
    match (judged.mode(), judged.memory_bytes()) {
        (Some(mode), Some(memory)) => format!("cache it, {mode}, with {}", bytes(memory)),
        _ if judged.excluded.is_none() && judged.advice.reason.is_unknown() => {
            "no recommendation".to_owned()
        }
        _ => "leave it out".to_owned(),
    }
}

/// The reason in one sentence without a full stop.
pub(super) fn because(judged: &Judged) -> String {
    let load = &judged.load;
    match (&judged.excluded, &judged.advice.reason) {
        (Some(excluded), _) => excluded.clone(),
        (None, Reason::Idle) => format!(
            "nothing was read or written in {}; no advice is possible",
            duration(load.seconds.round() as u64)
        ),
        (None, Reason::TooFew) => {
            format!("there were only {} requests; observe for longer", load.requests())
        }
        (None, reason) => reason.to_string(),
    }
}

fn load(load: &Load) -> String {
    let per_second = |count: u64| rate(count as f64 / load.seconds.max(1e-9));
    let mean = |bytes_sum: u64, count: u64| bytes(bytes_sum / count.max(1));
    format!(
        "{} reads/s of {}, {} writes/s of {}, {} flushes/s; busy {}, {:.1} in flight",
        per_second(load.reads),
        mean(load.read_bytes, load.reads),
        per_second(load.writes),
        mean(load.write_bytes, load.writes),
        per_second(load.flushes),
        percent(Some(load.busy())),
        load.queue(),
    )
}

fn latency(load: &Load) -> String {
    let of = |us: f64, count: u64| match count {
        0 => "-".to_owned(),
        _ => latency_us(us),
    };
    let (read, write) = (of(load.read_us(), load.reads), of(load.write_us(), load.writes));
    format!("a read takes {read}, a write {write}")
}

fn pattern(prediction: &Prediction) -> String {
    let pattern = &prediction.pattern;
    format!(
        "{} of the reads and {} of the writes are sequential; {} of data were touched, {} of it \
         read",
        percent(Some(pattern.sequential_read_share())),
        percent(Some(pattern.sequential_write_share())),
        bytes(prediction.touched_bytes),
        bytes(prediction.read_bytes),
    )
}

fn predicted(page: &mut Page, judged: &Judged, prediction: &Prediction) {
    let Some(expected) = &judged.advice.expected else { return };
    if prediction.pattern.reads == 0 {
        return;
    }
    page.field("from memory", from_memory(expected));
    if judged.is_cached() {
        let Expectation { cached_us: (least, most), read_us, .. } = *expected;
        let (least, most, now) = (latency_us(least), latency_us(most), latency_us(read_us));
        let range = if least == most { most } else { format!("{least} to {most}") };
        page.field("a read then takes", format!("{range} instead of {now}"));
    }
    let sizes = prediction
        .points
        .iter()
        .map(|point| format!("{} {}", bytes(point.bytes), percent(Some(point.low))));
    page.field("by memory", sizes.collect::<Vec<_>>().join(", "));
}

/// The shares of reads that memory would serve.
fn from_memory(expected: &Expectation) -> String {
    let point = &expected.point;
    let (low, high) = (percent(Some(point.low)), percent(Some(point.high)));
    let range = if low == high { low } else { format!("{low} to {high}") };
    let ahead = match point.ahead {
        ..0.005 => String::new(),
        ahead => format!(", of them {} read ahead", percent(Some(ahead))),
    };
    let size = bytes(point.bytes);
    let from_empty = percent(Some(point.from_empty));
    format!(
        "with {size}: {range} of the reads{ahead}; {from_empty} in this time if the cache had \
         started empty"
    )
}

fn notes(judged: &Judged) -> Vec<String> {
    let mut notes = Vec::new();
    let prediction = judged.prediction.as_ref();
    if judged.excluded.is_none() && judged.advice.watch_longer {
        let unknown = prediction.map_or(0.0, Prediction::unknown);
        notes.push(format!(
            "{} of the later reads were first reads of their data, so it is unknown whether it is \
             read again; observe for longer with --time",
            percent(Some(unknown))
        ));
    }
    if let Some(prediction) = prediction.filter(|prediction| prediction.rate < 1.0) {
        let rate = percent(Some(prediction.rate));
        notes.push(format!("the prediction follows from {rate} of the places, chosen by hash"));
    }
    if judged.mode() == Some(Mode::WriteBack) {
        notes.push(
            "write-back needs protection=journal with journal=PATH on another device, or \
             protection=ups with --ups and --vault"
                .to_owned(),
        );
    }
    if judged.is_cached() && judged.load.writes > judged.load.reads {
        notes.push("writes outnumber reads; see later with `forebay status` what it saves".into());
    }
    if let Some(process) = judged.self_caching.first().filter(|_| judged.is_cached()) {
        notes.push(format!(
            "{} (process {}) caches for itself in {}; the prediction is for what it still reads",
            process.name,
            process.pid,
            bytes(process.resident_bytes),
        ));
    }
    notes
}

/// The command that serves a device as advised. `memory_bytes` is the memory for data; the option
/// `--memory` also includes all other memory.
pub(super) fn command(name: &str, mode: Mode, memory_bytes: u64) -> String {
    let more = match mode {
        Mode::WriteBack => ",mode=write-back,protection=journal,journal=PATH",
        _ => "",
    };
    let memory = Size(memory_setting(memory_bytes));
    format!("forebay serve --volume {name}=/dev/{name}{more} --memory {memory}")
}

/// The setting `memory` for a pool of this size.
pub(super) fn memory_setting(pool_bytes: u64) -> u64 {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX);
    limit_for_pool(pool_bytes, workers)
}

/// The sum over all devices.
fn totals(page: &mut Page, report: &AdviceReport) {
    let cached: Vec<_> = report.devices.iter().filter(|judged| judged.is_cached()).collect();
    if cached.len() < 2 {
        return;
    }
    let memory: u64 = cached.iter().filter_map(|judged| judged.memory_bytes()).sum();
    let given = match report.is_memory_given {
        true => "given",
        false => "half of the machine's",
    };
    let names: Vec<_> = cached.iter().map(|judged| &*judged.device.name).collect();
    page.heading("together");
    page.field("to be cached", names.join(", "));
    let of = format!("{} of {} ({given})", bytes(memory), bytes(report.memory_bytes));
    page.field("memory for data", of);
    page.field("setting", format!("--memory {}", Size(memory_setting(memory))));
}
