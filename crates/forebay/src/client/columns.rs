//! Tables as text.

use comfy_table::{CellAlignment, Table};

/// Renders a table. The columns in `text` are aligned left, the others, numbers, right.
pub(crate) fn lines(mut table: Table, text: &[usize]) -> String {
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if !text.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
