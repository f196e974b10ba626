//! A line chart as inline SVG.

use forebay_api::AnalysisPhase;
use std::fmt::Write;

/// A line of a chart. A gap is where a value is missing.
pub(super) struct Series {
    pub(super) label: &'static str,
    /// Its class in the page's style, which has its colour.
    pub(super) class: &'static str,
    pub(super) points: Vec<(f64, Option<f64>)>,
}

/// What the horizontal axes of all charts show.
pub(super) struct TimeAxis {
    /// The phases and their ends, in seconds.
    pub(super) ends: Vec<(AnalysisPhase, f64)>,
    /// Times of the clock, and when they were, in seconds.
    pub(super) times: Vec<(String, f64)>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 236.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 42.0;
/// Horizontal lines of the grid.
const LINES: u32 = 4;

/// The scale of values: the factor between their units.
#[derive(Clone, Copy)]
pub(super) enum Scale {
    Decimal,
    Binary,
}

/// Draws a chart. `show` formats a value.
pub(super) fn chart(
    title: &str,
    series: &[Series],
    axis: &TimeAxis,
    (scale, show): (Scale, fn(f64) -> String),
) -> String {
    let values = series.iter().flat_map(|one| one.points.iter().filter_map(|point| point.1));
    let highest = values.fold(0.0, f64::max);
    let (top, end_s) = (nice(highest, scale), axis.ends.last().map_or(1.0, |end| end.1).max(1e-9));
    let x = |seconds: f64| LEFT + (WIDTH - LEFT - RIGHT) * seconds / end_s;
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\
         <text x=\"{LEFT}\" y=\"14\" class=\"title\">{title}</text>"
    );
    let mut add = |text: String| svg.push_str(&text);
    for line in 0..=LINES {
        let value = top * f64::from(line) / f64::from(LINES);
        let at = y(value);
        add(format!(
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" class=\"grid\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" class=\"value\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            show(value)
        ));
    }
    let mut from = 0.0;
    for (phase, to) in axis.ends.iter().filter(|(_, end)| *end > 0.0) {
        let (at, middle) = (x(*to), x(f64::midpoint(from, *to)));
        if *to > from {
            add(format!(
                "<text x=\"{middle:.1}\" y=\"{:.1}\" class=\"phase\">{phase}</text>",
                HEIGHT - 8.0
            ));
        }
        if *to < end_s {
            add(format!(
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" class=\"end\"/>",
                HEIGHT - BOTTOM
            ));
        }
        from = *to;
    }
    for (time, seconds) in &axis.times {
        let at = x(*seconds);
        add(format!(
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" class=\"grid\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" class=\"time\">{time}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 4.0,
            HEIGHT - BOTTOM + 15.0
        ));
    }
    let mut legend = LEFT;
    for Series { label, class, points } in series {
        add(format!("<path d=\"{}\" class=\"line {class}\"/>", path(points, x, y)));
        add(format!(
            "<rect x=\"{legend:.1}\" y=\"20\" width=\"14\" height=\"4\" class=\"{class}\"/>\
             <text x=\"{:.1}\" y=\"26\" class=\"label\">{label}</text>",
            legend + 18.0
        ));
        legend += 34.0 + 6.2 * label.len() as f64;
    }
    svg + "</svg>\n"
}

/// The path of a line, with a short stroke for a point between gaps.
fn path(points: &[(f64, Option<f64>)], x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    let mut is_open = false;
    for &(seconds, value) in points {
        let Some(value) = value else {
            is_open = false;
            continue;
        };
        let (at, height) = (x(seconds), y(value));
        let command = if is_open { 'L' } else { 'M' };
        write!(path, "{command}{at:.1} {height:.1}").expect("writing to a string does not fail");
        if !is_open {
            path += "h1";
        }
        is_open = true;
    }
    path
}

/// A round number that is not below `value`.
fn nice(value: f64, scale: Scale) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let unit = match scale {
        Scale::Decimal => 1.0,
        Scale::Binary => 1024_f64.powf(value.log(1024.0).floor()),
    };
    let power = unit * 10_f64.powf((value / unit).log10().floor());
    let steps = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0];
    steps.iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(10.0 * power)
}
