//! The result of a comparison, and its text form.

use super::Outcome;
use crate::grid::write_grid;
use forebay_types::{LINE_BYTES, Size};
use std::fmt;

/// Miss ratios by trace, size and policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Names of the policies.
    pub columns: Vec<String>,
    /// One row per trace and size.
    pub rows: Vec<Row>,
}

/// One trace at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The trace.
    pub trace: String,
    /// Lines of 4 KiB in the cache.
    pub capacity_lines: usize,
    /// One per column.
    pub cells: Vec<Outcome>,
}

impl Table {
    /// The mean miss ratio of each column over all rows with equal weight; empty if there are no
    /// rows.
    pub fn means(&self) -> Vec<f64> {
        self.means_where(|_| true)
    }

    /// As [`Table::means`], over the rows that `counts` accepts.
    pub fn means_where(&self, counts: impl Fn(&Row) -> bool) -> Vec<f64> {
        let rows: Vec<&Row> = self.rows.iter().filter(|row| counts(row)).collect();
        if rows.is_empty() {
            return Vec::new();
        }
        let mean = |column: usize| {
            let sum: f64 = rows.iter().map(|row| row.cells[column].miss_ratio()).sum();
            sum / rows.len() as f64
        };
        (0..self.columns.len()).map(mean).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![["trace", "memory"].map(str::to_owned).to_vec()];
        lines[0].extend(self.columns.iter().cloned());
        for row in &self.rows {
            let memory = Size(row.capacity_lines as u64 * LINE_BYTES).to_string();
            let mut line = vec![row.trace.clone(), memory];
            line.extend(row.cells.iter().map(|cell| format!("{:.4}", cell.miss_ratio())));
            lines.push(line);
        }
        if self.rows.len() > 1 {
            let mut line = vec!["mean".to_owned(), String::new()];
            line.extend(self.means().iter().map(|mean| format!("{mean:.4}")));
            lines.push(line);
        }
        write_grid(f, &lines)
    }
}
