//! Lines of Rust by package: code, comments and tests, without blank lines.

use std::fmt::Write;
use std::ops::AddAssign;

use crate::source::RustSource;
use crate::tree::Tree;

/// Lines by kind. A line with code and a comment is code; comments in test code are test code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinesByKind {
    /// Code that is not test code, string literals included.
    pub code: usize,
    /// Comments and documentation outside test code.
    pub comments: usize,
    /// Test code.
    pub tests: usize,
}

impl AddAssign for LinesByKind {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.comments += other.comments;
        self.tests += other.tests;
    }
}

/// The lines of a file.
pub fn count(source: &RustSource) -> LinesByKind {
    let mut lines = LinesByKind::default();
    let parts = source.lines().into_iter().zip(source.code_lines()).zip(source.comment_lines());
    for (at, ((line, code), comment)) in parts.enumerate() {
        if line.trim().is_empty() {
        } else if source.is_test(at) {
            lines.tests += 1;
        } else if code.trim().is_empty() && !comment.trim().is_empty() {
            lines.comments += 1;
        } else {
            lines.code += 1;
        }
    }
    lines
}

/// A table with a row for each package, and sums: of those below `crates`, and of all.
pub fn table(tree: &Tree) -> String {
    let mut table = format!("{:14}{:>8}{:>10}{:>8}\n", "package", "code", "comments", "tests");
    let mut row = |name: &str, LinesByKind { code, comments, tests }| {
        writeln!(table, "{name:14}{code:8}{comments:10}{tests:8}").expect("strings take all");
    };
    let (mut crates, mut all) = (LinesByKind::default(), LinesByKind::default());
    for package in &tree.packages {
        let mut lines = LinesByKind::default();
        package.sources.iter().for_each(|(_, source)| lines += count(source));
        row(package.name(), lines);
        all += lines;
        if package.dir.starts_with("crates") {
            crates += lines;
        }
    }
    row("sum of crates", crates);
    row("sum", all);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_counted_once() {
        let text = "//! A module.\n\n/* two\nlines */\nfn a() {} // code\n\
                    const S: &str = \"\n// in a string\n\";\n\n\
                    #[cfg(test)]\nmod tests {\n    // a test\n\n}\n";
        assert_eq!(count(&RustSource::new(text)), LinesByKind { code: 4, comments: 3, tests: 4 });
    }
}
