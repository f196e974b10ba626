//! Tables as text.

use comfy_table::{CellAlignment, Table};

/// A table as text, its columns of words to the left and its numbers to the right.
pub(crate) fn lines(mut table: Table, words: &[usize]) -> String {
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if !words.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
