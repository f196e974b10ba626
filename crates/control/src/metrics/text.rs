//! The text format: families of samples.

use std::fmt::{Display, Write};

/// Labels of a sample: names and values.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// The kinds of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
}

/// Metrics as text.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    pub(super) fn into_string(self) -> String {
        self.0
    }

    /// Begins a family: all samples of one name, given without `forebay_`. A family without
    /// samples consists of its HELP and TYPE lines, which the format allows.
    pub(super) fn family<'a>(&'a mut self, kind: Kind, name: &'a str, help: &str) -> Family<'a> {
        debug_assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        };
        self.line(format_args!("# HELP forebay_{name} {help}"));
        self.line(format_args!("# TYPE forebay_{name} {kind}"));
        Family { text: self, name }
    }

    /// A family with one sample and no labels.
    pub(super) fn one(&mut self, kind: Kind, name: &str, help: &str, value: impl Display) {
        self.family(kind, name, help).sample(&[], value);
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("writing to a string does not fail");
    }
}

/// All samples of one name.
pub(super) struct Family<'a> {
    text: &'a mut Text,
    name: &'a str,
}

impl Family<'_> {
    pub(super) fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        self.put("", labels, value);
    }

    /// A sample for each of some states: 1 for the present one.
    pub(super) fn states(&mut self, labels: Labels<'_>, name: &str, now: &str, all: &[&str]) {
        for state in all {
            let labels = [labels, &[(name, *state)]].concat();
            self.sample(&labels, u8::from(*state == now));
        }
    }

    /// A histogram. `buckets` are pairs of upper bound and cumulative count, in ascending order.
    pub(super) fn histogram(
        &mut self,
        labels: Labels<'_>,
        buckets: impl Iterator<Item = (f64, u64)>,
        sum: f64,
        count: u64,
    ) {
        for (end, up_to) in buckets {
            let end = end.to_string();
            self.put("_bucket", &[labels, &[("le", &end)]].concat(), up_to);
        }
        self.put("_bucket", &[labels, &[("le", "+Inf")]].concat(), count);
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

    fn put(&mut self, suffix: &str, labels: Labels<'_>, value: impl Display) {
        let mut listed = String::new();
        for (name, value) in labels {
            let comma = if listed.is_empty() { "" } else { "," };
            listed += &format!("{comma}{name}=\"{}\"", escaped(value));
        }
        if !listed.is_empty() {
            listed = format!("{{{listed}}}");
        }
        self.text.line(format_args!("forebay_{}{suffix}{listed} {value}", self.name));
    }
}

/// The value of a label, escaped as the format requires.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
