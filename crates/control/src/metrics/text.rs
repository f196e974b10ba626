//! The text format: families of samples.

use std::fmt::Write;

/// Labels of a sample: names and values.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// The kinds of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
    Summary,
}

/// The value of a sample.
pub(super) trait SampleValue {
    fn put(self, text: &mut String);
}

macro_rules! integer_values {
    ($($type:ty)*) => {
        $(impl SampleValue for $type {
            fn put(self, text: &mut String) {
                text.push_str(itoa::Buffer::new().format(self));
            }
        })*
    };
}

integer_values!(u8 u32 u64 usize i32 i64);

impl SampleValue for f64 {
    fn put(self, text: &mut String) {
        write!(text, "{self}").expect("writing to a string does not fail");
    }
}

impl<T: Copy + SampleValue> SampleValue for &T {
    fn put(self, text: &mut String) {
        (*self).put(text);
    }
}

/// Metrics as text.
pub(super) struct MetricsText(String);

impl MetricsText {
    /// An empty text with room for this number of bytes, which may be exceeded.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(String::with_capacity(bytes))
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }

    /// Begins a family: all samples of one name, given without `forebay_`. A family without
    /// samples consists of its HELP and TYPE lines, which the format allows.
    pub(super) fn family<'a>(&'a mut self, kind: MetricKind, name: &str, help: &str) -> Family<'a> {
        debug_assert_eq!(name.ends_with("_total"), kind == MetricKind::Counter, "{name}");
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Summary => "summary",
        };
        self.line(format_args!("# HELP forebay_{name} {help}"));
        self.line(format_args!("# TYPE forebay_{name} {kind}"));
        Family { text: self, name: format!("forebay_{name}") }
    }

    /// A family with one sample and no labels.
    pub(super) fn one(
        &mut self,
        kind: MetricKind,
        name: &str,
        help: &str,
        value: impl SampleValue,
    ) {
        self.family(kind, name, help).sample(&[], value);
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("writing to a string does not fail");
    }
}

/// All samples of one name.
pub(super) struct Family<'a> {
    text: &'a mut MetricsText,
    name: String,
}

impl Family<'_> {
    pub(super) fn sample(&mut self, labels: Labels<'_>, value: impl SampleValue) {
        self.put("", labels, value);
    }

    /// A sample for each of some states: 1 for the present one.
    pub(super) fn states(&mut self, labels: Labels<'_>, name: &str, now: &str, all: &[&str]) {
        for state in all {
            let labels = [labels, &[(name, *state)]].concat();
            self.sample(&labels, u8::from(*state == now));
        }
    }

    /// A histogram, with the cumulative count of each of `ends`, the upper bounds of its buckets.
    pub(super) fn histogram(
        &mut self,
        labels: Labels<'_>,
        ends: &[String],
        counts: impl IntoIterator<Item = u64>,
        sum: f64,
        count: u64,
    ) {
        let text = &mut self.text.0;
        let begin = text.len();
        put_name(text, &self.name, "_bucket", labels);
        text.push_str(if labels.is_empty() { "{le=\"" } else { ",le=\"" });
        let line_begin = text[begin..].to_owned();
        text.truncate(begin);
        let ends = ends.iter().map(String::as_str).chain(["+Inf"]);
        for (end, up_to) in ends.zip(counts.into_iter().chain([count])) {
            text.push_str(&line_begin);
            text.push_str(end);
            text.push_str("\"} ");
            put_value(text, up_to);
        }
        self.put("_sum", labels, sum);
        self.put("_count", labels, count);
    }

    /// A summary with these quantiles.
    pub(super) fn summary(
        &mut self,
        labels: Labels<'_>,
        quantiles: &[(&str, f64)],
        sum: f64,
        count: u64,
    ) {
        for (quantile, value) in quantiles {
            self.sample(&[labels, &[("quantile", *quantile)]].concat(), value);
        }
        self.put("_sum", labels, sum);
        self.put("_count", labels, count);
    }

    fn put(&mut self, suffix: &str, labels: Labels<'_>, value: impl SampleValue) {
        let text = &mut self.text.0;
        put_name(text, &self.name, suffix, labels);
        text.push_str(if labels.is_empty() { " " } else { "} " });
        put_value(text, value);
    }
}

/// The name of a sample and its labels, without the brace after them.
fn put_name(text: &mut String, name: &str, suffix: &str, labels: Labels<'_>) {
    text.push_str(name);
    text.push_str(suffix);
    for (index, (name, value)) in labels.iter().enumerate() {
        text.push(if index == 0 { '{' } else { ',' });
        text.push_str(name);
        text.push_str("=\"");
        put_escaped(text, value);
        text.push('"');
    }
}

fn put_value(text: &mut String, value: impl SampleValue) {
    value.put(text);
    text.push('\n');
}

/// The value of a label, escaped as the format requires.
fn put_escaped(text: &mut String, value: &str) {
    if value.bytes().all(|byte| !matches!(byte, b'\\' | b'"' | b'\n')) {
        return text.push_str(value);
    }
    for part in value.split_inclusive(['\\', '"', '\n']) {
        match part.char_indices().next_back() {
            Some((at, '\n')) => text.extend([&part[..at], "\\n"]),
            Some((at, special @ ('\\' | '"'))) => {
                text.extend([&part[..at], "\\"]);
                text.push(special);
            }
            _ => text.push_str(part),
        }
    }
}
