//! Figures of a run, each with a limit or marked as information.
//!
//! Programs collect their figures here, so that none is shown without either, and a missed limit
//! always exits with 1.

use crate::table::{TextTable, number};
use std::process::ExitCode;

/// The limit of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FigureLimit {
    /// This much or more.
    AtLeast(f64),
    /// This much or less.
    AtMost(f64),
    /// No limit: it explains the others, or depends on the machine.
    Information,
}

impl FigureLimit {
    /// Whether `value` meets the limit. NaN never does.
    pub fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
            Self::Information => true,
        }
    }

    /// The limit as text, with its result.
    pub fn verdict(self, value: f64) -> String {
        let word = if self.is_met(value) { "met" } else { "MISSED" };
        match self {
            Self::AtLeast(limit) => format!(">= {} {word}", number(Some(limit))),
            Self::AtMost(limit) => format!("<= {} {word}", number(Some(limit))),
            Self::Information => "information".to_owned(),
        }
    }
}

/// Figures with their limits, in the order in which they are printed.
#[derive(Clone, Debug, Default)]
pub struct FigureList {
    figures: Vec<(String, f64, FigureLimit)>,
}

impl FigureList {
    /// Adds a figure.
    pub fn add(&mut self, name: impl Into<String>, value: f64, limit: FigureLimit) {
        self.figures.push((name.into(), value, limit));
    }

    /// The number of missed limits.
    pub fn missed_count(&self) -> usize {
        self.figures.iter().filter(|(_, value, limit)| !limit.is_met(*value)).count()
    }

    /// The figures as a table in Markdown, and how many limits were missed.
    pub fn markdown(&self) -> String {
        let mut table = TextTable::new(["figure", "value", "limit"]);
        for (name, value, limit) in &self.figures {
            table.row([name.clone(), number(Some(*value)), limit.verdict(*value)]);
        }
        format!("{}\n{} limits missed.\n", table.markdown(), self.missed_count())
    }

    /// Prints the table. The exit code is 1 if a limit was missed.
    #[must_use]
    pub fn print(&self) -> ExitCode {
        print!("{}", self.markdown());
        if self.missed_count() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_limit_can_be_met_and_missed() {
        for (limit, good, bad) in
            [(FigureLimit::AtLeast(2.0), 2.0, 1.9), (FigureLimit::AtMost(2.0), 2.0, 2.1)]
        {
            assert!(limit.is_met(good) && !limit.is_met(bad), "{limit:?}");
            assert!(!limit.is_met(f64::NAN), "what was not measured is missed: {limit:?}");
        }
        assert!(FigureLimit::Information.is_met(f64::NAN));
    }

    #[test]
    fn a_table_says_of_each_figure_what_it_is_for() {
        let mut figures = FigureList::default();
        figures.add("ratio", 1.58, FigureLimit::AtMost(1.5));
        figures.add("hits us", 3.0, FigureLimit::Information);
        let text = figures.markdown();
        assert!(text.contains("<= 1.50 MISSED") && text.contains("information"), "{text}");
        assert!(text.ends_with("\n1 limits missed.\n"), "{text}");
        assert_eq!(figures.missed_count(), 1);
    }
}
