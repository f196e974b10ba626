//! The result of an experiment: as text for a terminal, and as a page with plots.

use super::plot::{Plot, escape_html};
use crate::grid::write_grid;
use std::fmt::{self, Write};

/// The last paragraph of every report.
const PURPOSE: &str = "The figures are information: no experiment fails because of a figure. The \
    tests of the lab enforce limits.";
const TEXT_COLUMNS: usize = 100;

/// The result of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The title, in one line.
    pub title: String,
    /// The model, and how to interpret the figures: paragraphs.
    pub model: Vec<String>,
    /// The figures.
    pub tables: Vec<Table>,
    /// Plots of the figures.
    pub plots: Vec<Plot>,
    /// Conclusions: paragraphs.
    pub remarks: Vec<String>,
}

/// Figures in rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The content, with its unit.
    pub caption: String,
    /// The headings of the columns.
    pub head: Vec<String>,
    /// Rows with a cell per column.
    pub rows: Vec<Vec<String>>,
}

/// The heading of a column, and the function for its cells.
pub(crate) type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

impl Table {
    pub(crate) fn new(caption: &str, head: &[&str]) -> Self {
        let head = head.iter().map(|&head| head.to_owned()).collect();
        Self { caption: caption.to_owned(), head, rows: Vec::new() }
    }

    /// A table with a row per element of `of`.
    pub(crate) fn of<T>(caption: &str, of: &[T], columns: &[Column<'_, T>]) -> Self {
        let head: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
        let mut table = Self::new(caption, &head);
        for one in of {
            table.push(columns.iter().map(|(_, cell)| cell(one)).collect());
        }
        table
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.head.len(), "a row has a cell for each column");
        self.rows.push(row);
    }
}

/// Formats a figure with three significant digits: `160.9`, `4.62`, `1234`.
pub(crate) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        small if small < 9.995 => 2,
        middle if middle < 999.5 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Formats a published figure; empty if there is none.
pub(crate) fn figure_or_empty(value: Option<f64>) -> String {
    value.map(figure).unwrap_or_default()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        write_paragraphs(f, &self.model)?;
        for table in &self.tables {
            writeln!(f, "{}\n", table.caption)?;
            let lines: Vec<_> = std::iter::once(&table.head).chain(&table.rows).cloned().collect();
            write_grid(f, &lines)?;
            writeln!(f)?;
        }
        write_paragraphs(f, &self.remarks)?;
        write_paragraphs(f, &[PURPOSE.to_owned()])
    }
}

/// Writes paragraphs, wrapped at [`TEXT_COLUMNS`], each followed by an empty line.
fn write_paragraphs(f: &mut fmt::Formatter<'_>, paragraphs: &[String]) -> fmt::Result {
    for paragraph in paragraphs {
        let mut column = 0;
        for word in paragraph.split_whitespace() {
            let len = word.chars().count();
            match column {
                0 => {}
                _ if column + 1 + len > TEXT_COLUMNS => {
                    writeln!(f)?;
                    column = 0;
                }
                _ => {
                    write!(f, " ")?;
                    column += 1;
                }
            }
            write!(f, "{word}")?;
            column += len;
        }
        writeln!(f, "\n")?;
    }
    Ok(())
}

/// The colours are distinguishable on both backgrounds, also with colour blindness.
const STYLE: &str = "
:root { color-scheme: light dark; --ground: #fcfcfb; --ink: #1d1d1b; --faint: #8a8a85;
  --rule: #dededa; --s0: #1f5fa8; --s1: #c2571a; --s2: #2e7d4f; --s3: #8e3b8c; --s4: #7a6a10;
  --s5: #555a60; }
@media (prefers-color-scheme: dark) { :root { --ground: #161719; --ink: #e6e6e2;
  --faint: #8f9094; --rule: #35373b; --s0: #6fb1f5; --s1: #f39a5b; --s2: #6fcf97; --s3: #dc8fd9;
  --s4: #d8c65a; --s5: #b4b8be; } }
body { background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
.wide { overflow-x: auto; }
caption { text-align: left; padding-bottom: 0.4rem; color: var(--faint); }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; }
figure { margin: 2rem 0; }
figcaption { font-weight: 600; }
svg { width: 100%; height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .rule { stroke: var(--rule); }
svg .axis { stroke: var(--faint); }
ul.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0.2rem 1.4rem;
  margin: 0.3rem 0; font-size: 0.9rem; }
ul.legend li::before { content: ''; display: inline-block; width: 1.2rem; height: 0.25rem;
  margin-right: 0.5rem; vertical-align: middle; background: currentColor; }
ul.legend li.marks::before { width: 0.6rem; height: 0.6rem; border-radius: 50%; }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); }
.s3 { color: var(--s3); } .s4 { color: var(--s4); } .s5 { color: var(--s5); }
";

impl Report {
    /// The report as a self-contained page.
    pub fn html(&self) -> String {
        let title = escape_html(&self.title);
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        );
        push_paragraphs(&mut page, &self.model);
        self.plots.iter().for_each(|plot| page.push_str(&plot.html()));
        self.tables.iter().for_each(|table| table.push_html(&mut page));
        push_paragraphs(&mut page, &self.remarks);
        push_paragraphs(&mut page, &[PURPOSE.to_owned()]);
        page.push_str("</body>\n</html>\n");
        page
    }
}

impl Table {
    fn push_html(&self, page: &mut String) {
        let cells = |tag: &str, cells: &[String]| {
            let cell = |text: &String| format!("<{tag}>{}</{tag}>", escape_html(text));
            let cells: String = cells.iter().map(cell).collect();
            format!("<tr>{cells}</tr>\n")
        };
        let caption = escape_html(&self.caption);
        let rows: String = self.rows.iter().map(|row| cells("td", row)).collect();
        let head = cells("th", &self.head);
        let _ = write!(
            page,
            "<div class=\"wide\">\n<table>\n<caption>{caption}</caption>\n<thead>{head}</thead>\n\
             <tbody>\n{rows}</tbody>\n</table>\n</div>\n"
        );
    }
}

fn push_paragraphs(page: &mut String, paragraphs: &[String]) {
    for paragraph in paragraphs {
        let _ = writeln!(page, "<p>{}</p>", escape_html(paragraph));
    }
}
