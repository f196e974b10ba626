//! Tables as text.

use std::fmt;

/// Writes rows of cells, the first row being the header, as a Markdown table that is readable as
/// plain text: columns are padded to equal width, and all but the first are right-aligned.
pub(crate) fn write_grid(f: &mut fmt::Formatter<'_>, lines: &[Vec<String>]) -> fmt::Result {
    let columns = lines.first().map_or(0, Vec::len);
    let cells = |column: usize| lines.iter().map(move |line| line[column].chars().count());
    let widths: Vec<usize> = (0..columns).map(|column| cells(column).max().unwrap_or(0)).collect();
    for (i, line) in lines.iter().enumerate() {
        for (column, (text, &width)) in line.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "| " } else { " | " };
            if column == 0 {
                write!(f, "{gap}{text:<width$}")?;
            } else {
                write!(f, "{gap}{text:>width$}")?;
            }
        }
        writeln!(f, " |")?;
        if i == 0 {
            write!(f, "|")?;
            for (column, width) in widths.iter().enumerate() {
                let dashes = "-".repeat(*width);
                write!(f, " {dashes}{}|", if column == 0 { " " } else { ":" })?;
            }
            writeln!(f)?;
        }
    }
    Ok(())
}
