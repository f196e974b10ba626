//! Plots as SVG: lines and marks in a frame. The colours are in the style sheet of the page.

use super::report::figure;
use forebay_types::Size;
use std::fmt::Write;

/// The size of a plot, in units of its own.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
/// Margins: labels on the left and below; empty above and on the right.
const LEFT: f64 = 64.0;
const BELOW: f64 = 48.0;
const ABOVE: f64 = 12.0;
const RIGHT: f64 = 20.0;
/// Styles for series; further series reuse them.
const STYLES: usize = 6;
/// The approximate number of ticks of a linear axis.
const TICKS: f64 = 6.0;

/// The mapping of values to an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Linear, from zero.
    Linear,
    /// Logarithmic; values above zero.
    Decades,
    /// Sizes in bytes, logarithmic.
    Sizes,
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The quantity, with its unit.
    pub label: String,
    /// The mapping of values.
    pub scale: Scale,
}

/// A series of points.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Coordinates in the units of the axes.
    pub points: Vec<(f64, f64)>,
    /// Whether a line connects the points.
    pub is_line: bool,
}

impl Series {
    /// A measured series.
    pub(crate) fn line(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self { name: name.to_owned(), points: points.into_iter().collect(), is_line: true }
    }

    /// A line through the means of `len` values each, one value per second.
    pub(crate) fn means(name: &str, values: &[f64], len: usize) -> Self {
        let means = values.chunks_exact(len).map(|some| some.iter().sum::<f64>() / len as f64);
        Self::line(name, means.enumerate().map(|(at, mean)| ((at * len) as f64, mean)))
    }

    /// Published figures.
    pub(crate) fn marks(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self { is_line: false, ..Self::line(name, points) }
    }
}

/// A plot of some series.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// The title.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The series.
    pub series: Vec<Series>,
}

impl Axis {
    pub(crate) fn new(label: &str, scale: Scale) -> Self {
        Self { label: label.to_owned(), scale }
    }

    fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Decades => value.max(f64::MIN_POSITIVE).log10(),
            Scale::Sizes => value.max(1.0).log2(),
        }
    }

    /// The ends of the axis, as positions, and the values of its ticks.
    fn span(&self, values: &[f64]) -> (f64, f64, Vec<f64>) {
        let places = || values.iter().map(|&value| self.place(value));
        let low = places().fold(f64::INFINITY, f64::min);
        let high = places().fold(f64::NEG_INFINITY, f64::max);
        if !low.is_finite() || !high.is_finite() {
            return (0.0, 1.0, Vec::new());
        }
        let (low, high, step) = match self.scale {
            Scale::Linear => {
                let step = round_step(high.max(f64::MIN_POSITIVE) / TICKS);
                (0.0, (high / step).ceil().max(1.0) * step, step)
            }
            Scale::Decades => (low.floor(), high.ceil().max(low.floor() + 1.0), 1.0),
            Scale::Sizes => (low.floor(), high.ceil().max(low.floor() + 1.0), 2.0),
        };
        let count = ((high - low) / step + 1e-9) as u32;
        let value = |place: f64| match self.scale {
            Scale::Linear => place,
            Scale::Decades => 10f64.powf(place),
            Scale::Sizes => place.exp2(),
        };
        (low, high, (0..=count).map(|at| value(low + f64::from(at) * step)).collect())
    }

    fn text(&self, value: f64) -> String {
        match self.scale {
            Scale::Sizes => Size(value.round() as u64).to_string(),
            _ if value >= 1.0 && value.fract() == 0.0 => format!("{value}"),
            _ if value == 0.0 => "0".to_owned(),
            _ => {
                let text = format!("{value:.3}");
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
        }
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|factor| factor * power);
    steps.into_iter().find(|&step| step >= least).unwrap_or(10.0 * power)
}

/// Escapes text for HTML.
pub(crate) fn escape_html(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

impl Plot {
    pub(crate) fn new(
        title: &str,
        (x, x_scale): (&str, Scale),
        (y, y_scale): (&str, Scale),
        series: Vec<Series>,
    ) -> Self {
        let title = title.to_owned();
        Self { title, x: Axis::new(x, x_scale), y: Axis::new(y, y_scale), series }
    }

    /// The plot with its title and legend, as a part of a page.
    pub(crate) fn html(&self) -> String {
        let title = escape_html(&self.title);
        let mut page = format!(
            "<figure>\n<figcaption>{title}</figcaption>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             role=\"img\" aria-label=\"{title}\">\n"
        );
        let places = |axis: fn(&(f64, f64)) -> f64| {
            self.series.iter().flat_map(|s| &s.points).map(axis).collect::<Vec<_>>()
        };
        let (x_low, x_high, x_ticks) = self.x.span(&places(|point| point.0));
        let (y_low, y_high, y_ticks) = self.y.span(&places(|point| point.1));
        let x = |value| {
            LEFT + (self.x.place(value) - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        };
        let y = |value| {
            let part = (self.y.place(value) - y_low) / (y_high - y_low);
            HEIGHT - BELOW - part.max(0.0) * (HEIGHT - BELOW - ABOVE)
        };
        self.push_frame(&mut page, (&x_ticks, &x), (&y_ticks, &y));
        for (at, series) in self.series.iter().enumerate() {
            push_series(&mut page, series, at % STYLES, &x, &y);
        }
        page.push_str("</svg>\n<ul class=\"legend\">\n");
        for (at, Series { name, is_line, .. }) in self.series.iter().enumerate() {
            let kind = if *is_line { "" } else { " marks" };
            let (style, name) = (at % STYLES, escape_html(name));
            let _ = writeln!(page, "<li class=\"s{style}{kind}\">{name}</li>");
        }
        page.push_str("</ul>\n</figure>\n");
        page
    }

    /// Adds lines and labels for the ticks of both axes; each axis comes with its mapping to
    /// coordinates.
    fn push_frame(
        &self,
        page: &mut String,
        (x_ticks, x): (&[f64], &dyn Fn(f64) -> f64),
        (y_ticks, y): (&[f64], &dyn Fn(f64) -> f64),
    ) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BELOW);
        for &tick in y_ticks {
            let (at, text) = (y(tick), self.y.text(tick));
            let _ = writeln!(
                page,
                "<line class=\"rule\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 6.0,
                at + 4.0
            );
        }
        for &tick in x_ticks {
            let (at, text) = (x(tick), self.x.text(tick));
            let _ = writeln!(
                page,
                "<line class=\"axis\" x1=\"{at:.1}\" y1=\"{bottom}\" x2=\"{at:.1}\" \
                 y2=\"{:.1}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                bottom + 5.0,
                bottom + 19.0
            );
        }
        let (middle, label) = ((LEFT + right) / 2.0, escape_html(&self.x.label));
        let _ = writeln!(
            page,
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{bottom}\"/>\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            HEIGHT - 8.0
        );
        let (middle, label) = ((ABOVE + bottom) / 2.0, escape_html(&self.y.label));
        let _ = writeln!(
            page,
            "<text x=\"14\" y=\"{middle:.1}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 14 {middle:.1})\">{label}</text>"
        );
    }
}

/// Adds the points of a series, with their values as tooltips, and the line through them.
fn push_series(
    page: &mut String,
    series: &Series,
    style: usize,
    x: &dyn Fn(f64) -> f64,
    y: &dyn Fn(f64) -> f64,
) {
    let _ = writeln!(page, "<g class=\"s{style}\">");
    if series.is_line {
        let place = |&(at, value): &(f64, f64)| format!("{:.1},{:.1}", x(at), y(value));
        let places: Vec<String> = series.points.iter().map(place).collect();
        let _ = writeln!(
            page,
            "<polyline fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\" points=\"{}\"/>",
            places.join(" ")
        );
    }
    let radius = if series.is_line { 3 } else { 6 };
    let name = escape_html(&series.name);
    for &(at, value) in &series.points {
        let _ = writeln!(
            page,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"currentColor\">\
             <title>{name}: {}</title></circle>",
            x(at),
            y(value),
            figure(value)
        );
    }
    page.push_str("</g>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_even_and_cover_the_values() {
        let linear = Axis::new("", Scale::Linear);
        assert_eq!(
            linear.span(&[3.0, 96.0]),
            (0.0, 100.0, (0..=5).map(|n| 20.0 * f64::from(n)).collect())
        );
        let decades = Axis::new("", Scale::Decades);
        assert_eq!(decades.span(&[4.6, 160.9]), (0.0, 3.0, vec![1.0, 10.0, 100.0, 1000.0]));
        let sizes = Axis::new("", Scale::Sizes);
        let (_, _, ticks) = sizes.span(&[512.0, 8192.0]);
        let texts: Vec<_> = ticks.iter().map(|&tick| sizes.text(tick)).collect();
        assert_eq!(texts, ["512B", "2KiB", "8KiB"]);
        assert_eq!(linear.span(&[]).2, Vec::<f64>::new(), "no values, no ticks");
        assert!(linear.span(&[0.0]).1 > 0.0);
    }

    #[test]
    fn a_plot_has_all_points_and_escapes_text() {
        let plot = Plot {
            title: "a < b".into(),
            x: Axis::new("users", Scale::Linear),
            y: Axis::new("\"s\" & more", Scale::Decades),
            series: vec![
                Series::line("here", [(10.0, 1.0), (20.0, 2.0), (30.0, 3.0)]),
                Series::marks("<there>", [(20.0, 1.5)]),
            ],
        };
        let page = plot.html();
        assert_eq!(page.matches("<circle").count(), 4);
        assert_eq!(page.matches("<polyline").count(), 1, "marks have no line");
        for text in ["a &lt; b", "&quot;s&quot; &amp; more", "&lt;there&gt;: 1.50"] {
            assert!(page.contains(text), "{text} in {page}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }
}
