//! The report as a page: one file, without scripts and without anything loaded from elsewhere.

use super::chart::{Scale, Series, TimeAxis, chart};
use super::figures::{AnalysisReport, CurvePoint, Figures, VolumeReport, sides};
use super::judgement::{Judgement, Verdict};
use super::text::{
    causes, compared, interrupted, meaning, milliseconds, provisional, worst_in_words,
};
use super::{span, words};
use forebay_api::{AnalysisPhase, AnalysisSubject};
use forebay_terminal::units::bytes;

const STYLE: &str = "\
:root{color-scheme:light dark;--text:#1b1f24;--back:#fff;--edge:#d0d7de;--faint:#57606a;\
--grid:#e5e9ed;--one:#0969da;--two:#bc4c00;--good:#1a7f37;--good-back:#eefbf1;--bad:#cf222e;\
--bad-back:#fff0ee;--none:#6e7781;--none-back:#f6f8fa}\
@media screen and (prefers-color-scheme:dark){:root{--text:#e6edf3;--back:#0d1117;--edge:#30363d;\
--faint:#9198a1;--grid:#21262d;--one:#58a6ff;--two:#f0883e;--good:#3fb950;--good-back:#12261e;\
--bad:#f85149;--bad-back:#2d1416;--none:#8b949e;--none-back:#161b22}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);\
max-width:1060px;margin:24px auto;padding:0 20px}\
h1{font-size:24px;margin:0 0 4px}h2{font-size:19px;margin:32px 0 6px;\
border-top:1px solid var(--edge);padding-top:18px}h3{font-size:15px;margin:20px 0 4px}\
p{margin:4px 0}.verdict{font-size:18px;font-weight:600;padding:10px 14px;border-left:6px solid;\
margin:10px 0}.good{border-color:var(--good);background:var(--good-back)}\
.bad{border-color:var(--bad);background:var(--bad-back)}\
.none{border-color:var(--none);background:var(--none-back)}.note{color:var(--faint);\
font-size:13px}table{border-collapse:collapse;margin:8px 0;font-size:13px}th,td{\
padding:3px 12px 3px 0;text-align:right;border-bottom:1px solid var(--grid)}\
th:first-child,td:first-child{text-align:left}.charts{display:grid;\
grid-template-columns:1fr 1fr;gap:10px}svg{width:100%;height:auto;break-inside:avoid}\
svg text{font:11px system-ui,sans-serif;fill:var(--faint)}svg .title{font-size:13px;\
font-weight:600;fill:var(--text)}svg .value{text-anchor:end}svg .phase,svg .time{\
text-anchor:middle}svg .grid{stroke:var(--grid)}svg .end{stroke:var(--none);\
stroke-dasharray:4 3}svg .line{fill:none;stroke-width:1.8;stroke-linejoin:round}\
svg .line.one{stroke:var(--one)}svg .line.two{stroke:var(--two)}svg rect.one{fill:var(--one)}\
svg rect.two{fill:var(--two)}\
@media(max-width:720px){.charts{grid-template-columns:1fr}}\
@media print{body{margin:0;max-width:none;font-size:11pt}h2{break-before:auto}\
.verdict,table,svg{break-inside:avoid}*{print-color-adjust:exact}@page{margin:14mm}}";

/// The classes of the first and the second line of a chart.
const FIRST: &str = "one";
const SECOND: &str = "two";

pub(super) fn page(report: &AnalysisReport) -> String {
    let status = &report.analysis.status;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Forebay: analysis of the benefit</title><style>{STYLE}</style></head><body>\n\
         <h1>Analysis of the benefit</h1>\n{}<p>Begun at {}{}. {} analyzed in {} intervals, {} % \
         of the regions held out.</p>\n",
        status.subject.as_ref().map(server).unwrap_or_default(),
        escape(&status.begun_at),
        status.ended_at.as_ref().map(|at| format!(", ended at {}", escape(at))).unwrap_or_default(),
        span(status.analyzed_seconds),
        status.batches,
        status.request.hold_out_percent
    );
    if let Some(note) = provisional(status) {
        page += &format!("<p><b>{note}.</b></p>\n");
    }
    for interruption in &status.interruptions {
        page += &format!("<p>{}.</p>\n", escape(interrupted(interruption).trim_end()));
    }
    if report.volumes.is_empty() {
        page += "<p>No interval is complete yet.</p>\n";
    }
    let axis = TimeAxis { ends: report.ends(), times: report.times() };
    for volume in &report.volumes {
        page += &section(volume, &axis);
    }
    page + METHOD + "</body></html>\n"
}

/// The server that was judged, as a paragraph.
fn server(subject: &AnalysisSubject) -> String {
    format!("<p>{}.</p>\n", escape(&capitalised(&words::server(subject))))
}

const METHOD: &str = "<h2>How this was measured</h2>\n<p class=\"note\">A ratio is the mean \
    response time without the cache, divided by that with it; each request counts alike, in the \
    proportion of kinds and sizes of the phase 'accelerate'. It comes from two comparisons. \
    <b>With held-out regions</b>: some regions of each volume, others in each interval, were \
    served as if there were no cache, beside the others and at the same time, in a busy volume \
    only for parts of it. The load is the same, but held-out requests meet a disk that the cache \
    spares most of its load, so they wait less than all would. <b>With the phase 'measure'</b>, \
    in which the whole volume was served as if there were no cache: requests wait for each other \
    as they do without one, but the load is that of another time. The interval of the verdict \
    covers those of both. Each comes from the differences between the intervals of the analysis \
    (jackknife, Student's t, fewer degrees of freedom if neighbours resemble each other), with an \
    error of at least 1 %. Response times are those of the server; the interval also covers \
    clients to which everything takes 100 us longer. Reads and writes together are weighted with \
    the time that they take with the cache. Writes that memory acknowledges are only compared \
    with the phase 'measure', without the intervals in which older writes were destaged. A \
    difference of less than 2 % counts as none. Normalised IOPS are the requests per second that \
    a client with one request in flight would reach.</p>\n";

fn section(volume: &VolumeReport, axis: &TimeAxis) -> String {
    let class = match volume.whole.verdict {
        Verdict::Benefit => "good",
        Verdict::Harm => "bad",
        Verdict::NoMeasurableBenefit | Verdict::TooLittleData | Verdict::NotCompared => "none",
    };
    let mut text = format!(
        "<h2>Volume {}</h2>\n<p class=\"verdict {class}\">{}</p>\n",
        escape(&volume.name),
        capitalised(&words::headline(volume))
    );
    if let Some(judged) = &volume.judged {
        text += &format!("<p>Judged: {}.</p>\n", escape(&words::configuration(judged)));
    }
    for (kind, judgement) in [("Reads", &volume.reads), ("Writes", &volume.writes)] {
        if !judgement.is_empty() {
            text += &kind_section(kind, judgement, volume);
        }
    }
    if let Some(worst) = &volume.worst {
        let words = worst_in_words(worst, volume.worst_at.as_deref());
        text += &format!("<p>{}.</p>\n", escape(&capitalised(&words)));
    }
    if let Some(compared) = compared(&volume.sums[2]) {
        text += &format!("<p>Requests were {compared}.</p>\n");
    }
    text += "<h3>Where the benefit comes from</h3>\n<ul>";
    for cause in causes(&volume.sums[2]) {
        text += &format!("<li>{cause}</li>");
    }
    text += "</ul>\n<h3>Phases</h3>\n";
    text += &phases(volume);
    text += "<h3>Over time, in UTC</h3>\n<div class=\"charts\">\n";
    text += &charts(volume, axis);
    text + "</div>\n"
}

/// The verdict on a kind of requests, and the comparisons that it comes from.
fn kind_section(kind: &str, judgement: &Judgement, volume: &VolumeReport) -> String {
    let verdict = words::verdict(judgement, volume.judged.as_ref());
    let mut text = format!("<p><b>{kind}</b>: {}</p>\n<ul>", escape(&verdict));
    let lines = words::comparisons(judgement);
    for line in lines.into_iter().chain(words::disagreement(judgement, &volume.sums)) {
        text += &format!("<li>{}</li>", escape(&line));
    }
    text + "</ul>\n"
}

fn phases(volume: &VolumeReport) -> String {
    let figures: Vec<Figures> = volume.sums.iter().map(super::figures::Sums::figures).collect();
    let mut text = "<table><tr><th></th>".to_owned();
    for phase in AnalysisPhase::ALL {
        text += &format!("<th title=\"{}\">{phase}</th>", meaning(phase));
    }
    text += "</tr>\n";
    type Row = (&'static str, fn(&Figures) -> Option<f64>, fn(f64) -> String);
    let rows: [Row; 12] = [
        ("throughput", |f| f.throughput, rate),
        ("requests/s", |f| f.iops, number),
        ("mean read", |f| f.read_mean, milliseconds),
        ("mean write", |f| f.write_mean, milliseconds),
        ("normalised IOPS", |f| f.normalised_iops, number),
        ("disk I/Os for 100 requests", |f| f.disk_ios_per_request.map(|ios| ios * 100.0), number),
        ("disk I/Os/s", |f| f.disk_iops, number),
        ("request size", |f| f.request_bytes, size),
        ("disk I/O size", |f| f.disk_io_bytes, size),
        ("disk busy", |f| f.disk_busy, percent),
        ("disk queue", |f| f.disk_queue, number),
        ("processors used by the server", |f| f.cpu, number),
    ];
    for (label, value, show) in rows {
        text += &format!("<tr><td>{label}</td>");
        for one in &figures {
            let shown = value(one).map_or_else(|| "-".to_owned(), show);
            text += &format!("<td>{shown}</td>");
        }
        text += "</tr>\n";
    }
    text + "</table>\n"
}

fn charts(volume: &VolumeReport, axis: &TimeAxis) -> String {
    let line = |label, class, value: &dyn Fn(&CurvePoint, &Figures) -> Option<f64>| Series {
        label,
        class,
        points: volume
            .points
            .iter()
            .map(|point| (point.middle_s, value(point, &Figures::of_point(point))))
            .collect(),
    };
    let one = |label, value: fn(&Figures) -> Option<f64>| {
        vec![line(label, FIRST, &|_, figures: &Figures| value(figures))]
    };
    let two = |a, first: fn(&Figures) -> Option<f64>, b, second: fn(&Figures) -> Option<f64>| {
        vec![
            line(a, FIRST, &|_, figures: &Figures| first(figures)),
            line(b, SECOND, &|_, figures: &Figures| second(figures)),
        ]
    };
    let with_and_without = vec![
        line("with the cache", FIRST, &|point, _| sides(&point.volume)[0]),
        line("held out", SECOND, &|point, _| sides(&point.volume)[1]),
    ];
    type Chart = (&'static str, Vec<Series>, fn(f64) -> String);
    let all: [Chart; 9] = [
        ("Throughput", one("of the clients", |f| f.throughput), rate),
        ("Response times", two("reads", |f| f.read_mean, "writes", |f| f.write_mean), milliseconds),
        ("Response times, compared", with_and_without, milliseconds),
        ("Normalised IOPS", one("one request in flight", |f| f.normalised_iops), number),
        (
            "I/Os that still went to the disk",
            two("requests/s", |f| f.iops, "disk I/Os/s", |f| f.disk_iops),
            number,
        ),
        (
            "Average I/O size",
            two("of requests", |f| f.request_bytes, "of the disk", |f| f.disk_io_bytes),
            size,
        ),
        ("Processors used by the server", one("processors", |f| f.cpu), number),
        ("Disk busy", one("part of the time", |f| f.disk_busy), percent),
        ("Disk queue", one("I/Os in flight", |f| f.disk_queue), number),
    ];
    let scale = |title: &str| match title {
        "Throughput" | "Average I/O size" => Scale::Binary,
        _ => Scale::Decimal,
    };
    all.iter()
        .map(|(title, series, show)| chart(title, series, axis, (scale(title), *show)))
        .collect()
}

fn rate(value: f64) -> String {
    format!("{}/s", bytes(value as u64))
}

fn size(value: f64) -> String {
    bytes(value as u64)
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

fn number(value: f64) -> String {
    match value {
        value if value >= 10_000.0 => forebay_terminal::units::count(value as u64),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// A sentence with a capital letter.
fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(characters).collect()
}

/// Text in a page. Names of volumes may have any characters.
fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, character| {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
        escaped
    })
}
