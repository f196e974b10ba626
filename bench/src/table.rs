//! Medians and centres of figures, and tables in Markdown.

/// The median of `values`: the middle one, or the mean of the two in the middle; `None` if empty.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// The centre of figures that vary by chance, and the interval that holds it with about 95 %; with
/// less if there are fewer than six.
///
/// The median of the means of all pairs of them, which few that are far off do not move, and which
/// varies less than the median of the figures themselves. Source: Hollander, Wolfe and Chicken,
/// *Nonparametric Statistical Methods*, 3rd edition, sections 3.2 and 3.3 (Hodges and Lehmann's
/// estimate, and Tukey's interval, in the approximation for many figures).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Centre {
    /// The centre.
    pub value: f64,
    /// The start of the interval.
    pub low: f64,
    /// The end of the interval.
    pub high: f64,
}

impl Centre {
    /// The centre of `values`. All of its fields are NaN if there are none.
    pub fn of(values: &[f64]) -> Self {
        let mut means: Vec<f64> = Vec::new();
        for (at, &one) in values.iter().enumerate() {
            means.extend(values[at..].iter().map(|&other| f64::midpoint(one, other)));
        }
        let Some(value) = median(&means) else {
            return Self { value: f64::NAN, low: f64::NAN, high: f64::NAN };
        };
        means.sort_by(f64::total_cmp);
        let n = values.len() as f64;
        let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
        let outside = (means.len() as f64 / 2.0 - 1.96 * deviation).max(0.0) as usize;
        Self { value, low: means[outside], high: means[means.len() - 1 - outside] }
    }
}

/// A number with appropriate precision; a dash for none.
pub fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.abs() >= 10_000.0 => format!("{:.0}k", value / 1000.0),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

/// A size in bytes in the largest unit that divides it.
pub fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => {
            format!("{} MiB", bytes >> 20)
        }
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => {
            format!("{} KiB", bytes >> 10)
        }
        bytes => format!("{bytes} B"),
    }
}

/// A table with a header. All rows have as many cells as the header.
#[derive(Clone, Debug, Default)]
pub struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with this header and no rows.
    pub fn new<'a>(head: impl IntoIterator<Item = &'a str>) -> Self {
        Self { rows: vec![head.into_iter().map(str::to_owned).collect()] }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If its number of cells differs from the header.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.rows[0].len(), "a row is as long as its head");
        self.rows.push(cells);
    }

    /// The table in Markdown, its columns aligned: the first to the left, the others to the right.
    pub fn markdown(&self) -> String {
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        let mut text = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                text += &match column {
                    0 => format!("| {cell:<width$} |"),
                    _ => format!(" {cell:>width$} |"),
                };
            }
            text.push('\n');
            if index == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let dashes = "-".repeat(width + 1);
                    text +=
                        &if column == 0 { format!("|{dashes}-|") } else { format!("{dashes}:|") };
                }
                text.push('\n');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn the_centre_of_figures_is_inside_its_interval_and_ignores_one_far_off() {
        assert!(Centre::of(&[]).value.is_nan());
        assert_eq!(Centre::of(&[2.0]), Centre { value: 2.0, low: 2.0, high: 2.0 });
        let figures: Vec<f64> = (1..=20).map(f64::from).collect();
        let Centre { value, low, high } = Centre::of(&figures);
        assert_eq!(value, 10.5);
        // The 53rd of the 210 means from each end.
        assert_eq!((low, high), (7.5, 13.5));
        let off = [&figures[..19], &[1e6]].concat();
        let centre = Centre::of(&off);
        assert!(centre.value < 11.0 && centre.high < 15.0, "{centre:?}");
    }

    #[test]
    fn numbers_and_sizes() {
        let texts = [None, Some(0.123), Some(12.34), Some(5000.0), Some(561_964.0)].map(number);
        assert_eq!(texts, ["-", "0.12", "12.3", "5000", "562k"]);
        assert_eq!([512, 4096, 1 << 20, 5000].map(size), ["512 B", "4 KiB", "1 MiB", "5000 B"]);
    }

    #[test]
    fn a_table_lines_up() {
        let mut table = TextTable::new(["what", "n"]);
        table.row(["a".to_owned(), "100".to_owned()]);
        assert_eq!(table.markdown(), "| what |   n |\n|------|----:|\n| a    | 100 |\n");
    }
}
