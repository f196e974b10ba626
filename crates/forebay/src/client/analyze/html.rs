//! The report as a page: one file, without scripts and without anything loaded from elsewhere.

use super::chart::{Scale, Series, chart};
use super::comparison::Verdict;
use super::figures::{AnalysisReport, CurvePoint, Figures, VolumeReport, sides, times, verdict};
use super::span;
use super::text::{
    causes, compared, interrupted, meaning, milliseconds, provisional, worst_in_words,
};
use forebay_api::AnalysisPhase;
use forebay_terminal::units::bytes;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;color:#1b1f24;background:#fff;max-width:1060px;\
margin:24px auto;padding:0 20px}\
h1{font-size:24px;margin:0 0 4px}h2{font-size:19px;margin:32px 0 6px;border-top:1px solid #d0d7de;\
padding-top:18px}h3{font-size:15px;margin:20px 0 4px}p{margin:4px 0}\
.verdict{font-size:18px;font-weight:600;padding:10px 14px;border-left:6px solid;margin:10px 0}\
.faster{border-color:#1a7f37;background:#eefbf1}.slower{border-color:#cf222e;background:#fff0ee}\
.none{border-color:#6e7781;background:#f6f8fa}.note{color:#57606a;font-size:13px}\
table{border-collapse:collapse;margin:8px 0;font-size:13px}th,td{padding:3px 12px 3px 0;\
text-align:right;border-bottom:1px solid #e5e9ed}th:first-child,td:first-child{text-align:left}\
.charts{display:grid;grid-template-columns:1fr 1fr;gap:10px}svg{width:100%;height:auto;\
break-inside:avoid}svg text{font:11px system-ui,sans-serif;fill:#57606a}\
svg .title{font-size:13px;font-weight:600;fill:#1b1f24}svg .value{text-anchor:end}\
svg .phase{text-anchor:middle}svg .grid{stroke:#e5e9ed}svg .end{stroke:#6e7781;\
stroke-dasharray:4 3}svg .line{fill:none;stroke-width:1.8;stroke-linejoin:round}\
@media(max-width:720px){.charts{grid-template-columns:1fr}}\
@media print{body{margin:0;max-width:none;font-size:11pt}h2{break-before:auto}\
.verdict,table,svg{break-inside:avoid}*{print-color-adjust:exact}@page{margin:14mm}}";

const BLUE: &str = "#0969da";
const ORANGE: &str = "#bc4c00";

pub(super) fn page(report: &AnalysisReport) -> String {
    let status = &report.analysis.status;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Forebay: analysis of the benefit</title><style>{STYLE}</style></head><body>\n\
         <h1>Analysis of the benefit</h1>\n<p>Begun at {}{}. {} analyzed in {} intervals, {} % of \
         the regions held out.</p>\n",
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
    let ends: Vec<(String, f64)> =
        report.ends().into_iter().map(|(phase, end)| (phase.to_string(), end)).collect();
    for volume in &report.volumes {
        page += &section(volume, &ends);
    }
    page + METHOD + "</body></html>\n"
}

const METHOD: &str = "<h2>How this was measured</h2>\n<p class=\"note\">Some regions of each \
    volume, others in each interval, were held out: served as if there were no cache, beside the \
    others and at the same time, in a busy volume only for parts of it. The verdict compares \
    both, kind by kind and size by size. Its interval comes from the differences between \
    intervals (jackknife, Student's t). A difference of less than 2 % counts as none. Limits: \
    held-out requests use a disk that the cache spares most of its load, and are close to each \
    other on it, so they are faster than without a cache, and the gain is understated; \
    writebacks and reads ahead slow them down a little. Response times are those of the server: \
    client and network add the same time to both sides. Writes are not compared where their \
    protection would make held-out ones slower than without a cache, nor in ordered write-back \
    volumes. The comparison with the phase 'measure' is only as good as the load was the same. \
    Normalised IOPS are the requests per second that a client with one request in flight \
    would reach.</p>\n";

fn section(volume: &VolumeReport, ends: &[(String, f64)]) -> String {
    let class = match volume.all.verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::NoMeasurableBenefit | Verdict::TooLittleData | Verdict::NotCompared => "none",
    };
    let name = escape(&volume.name);
    let mut text =
        format!("<h2>Volume {name}</h2>\n<p class=\"verdict {class}\">{}</p>\n", volume.verdict());
    text += &comparisons(volume);
    if let Some(worst) = &volume.all.worst {
        let words = worst_in_words(worst, volume.worst_at.as_deref());
        text += &format!("<p>{}.</p>\n", escape(&words));
    }
    if let Some(phases) = volume.phases {
        text += &format!(
            "<p>Compared with the phase 'measure': {} times as fast ({} to {}), if the load was \
             the same.</p>\n",
            times(phases.value),
            times(phases.low),
            times(phases.high)
        );
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
    text += "<h3>Over time</h3>\n<div class=\"charts\">\n";
    text += &charts(volume, ends);
    text + "</div>\n"
}

fn comparisons(volume: &VolumeReport) -> String {
    let mut text = "<table><tr><th></th><th>with the cache</th><th>without</th><th>served</th>\
        <th>held out</th><th>comparable</th><th>verdict</th></tr>\n"
        .to_owned();
    for (kind, one) in [("reads", &volume.reads), ("writes", &volume.writes)] {
        if one.served + one.held == 0 {
            continue;
        }
        let mean = |seconds: f64| match one.ratio {
            Some(_) => milliseconds(seconds),
            None => "-".to_owned(),
        };
        text += &format!(
            "<tr><td>{kind}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.0} %</td>\
             <td>{}</td></tr>\n",
            mean(one.served_mean),
            mean(one.held_mean),
            one.served,
            one.held,
            one.covered * 100.0,
            verdict(one)
        );
    }
    text + "</table>\n"
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

fn charts(volume: &VolumeReport, ends: &[(String, f64)]) -> String {
    let line = |label, color, value: &dyn Fn(&CurvePoint, &Figures) -> Option<f64>| Series {
        label,
        color,
        points: volume
            .points
            .iter()
            .map(|point| (point.middle_s, value(point, &Figures::of_point(point))))
            .collect(),
    };
    let one = |label, value: fn(&Figures) -> Option<f64>| {
        vec![line(label, BLUE, &|_, figures: &Figures| value(figures))]
    };
    let two = |a, first: fn(&Figures) -> Option<f64>, b, second: fn(&Figures) -> Option<f64>| {
        vec![
            line(a, BLUE, &|_, figures: &Figures| first(figures)),
            line(b, ORANGE, &|_, figures: &Figures| second(figures)),
        ]
    };
    let with_and_without = vec![
        line("with the cache", BLUE, &|point, _| sides(&point.volume)[0]),
        line("held out", ORANGE, &|point, _| sides(&point.volume)[1]),
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
        .map(|(title, series, show)| chart(title, series, ends, (scale(title), *show)))
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
