//! Each thread of the product is started in one way, and is in the table of threads, which says
//! what it may wait for.

use super::Finding;
use crate::source::RustSource;
use std::path::{Path, PathBuf};

/// The page with the table.
pub const TABLE: &str = "docs/threads.md";
/// Threads in the table that the program does not start itself.
const GIVEN: [&str; 1] = ["main"];
/// The crate that starts threads, and one whose threads are not part of the product.
const EXEMPT: [&str; 2] = ["threads", "lab"];
/// Other ways to start a thread.
const BANNED: [&str; 3] = ["thread::spawn", "thread::Builder", "thread::scope"];
/// What names a thread.
const NAMING: &str = "Thread::named(";

/// A thread that the program starts: its name, and where that is.
pub type Named = (String, PathBuf, usize);

/// Checks how a file of the package starts threads. Adds those that it starts to `named`.
pub fn check(
    package: &Path,
    file: &Path,
    source: &RustSource,
    named: &mut Vec<Named>,
    findings: &mut Vec<Finding>,
) {
    let exempt = |name: &&str| package == Path::new("crates").join(name);
    if !package.starts_with("crates") || EXEMPT.iter().any(exempt) {
        return;
    }
    let lines = source.code_lines().into_iter().enumerate();
    for (line, code) in lines.chain(source.uses()) {
        if source.is_test(line) {
            continue;
        }
        for way in BANNED.iter().filter(|way| code.contains(**way)) {
            let message = format!("{way}: use Thread of forebay-threads, whose panics abort");
            let finding = Finding { file: file.to_path_buf(), line: line + 1, message };
            // A `use` on one line is found both in the code and in the `use` trees.
            if !findings.contains(&finding) {
                findings.push(finding);
            }
        }
    }
    for (at, literal) in source.arguments(NAMING) {
        let line = source.line_of(at) + 1;
        match literal {
            _ if source.is_test(line - 1) => {}
            Some(name) => named.push((name, file.to_path_buf(), line)),
            None => findings.push(Finding {
                file: file.to_path_buf(),
                line,
                message: "the name of a thread is not a literal, so it cannot be compared".into(),
            }),
        }
    }
}

/// Compares the table with the threads that the program starts.
pub fn table(text: &str, named: &[Named], findings: &mut Vec<Finding>) {
    let rows: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .filter_map(|(at, line)| Some((at + 1, line.strip_prefix("| `")?.split('`').next()?)))
        .collect();
    for (name, file, line) in named {
        if !rows.iter().any(|(_, row)| row == name) {
            let message = format!("{TABLE} does not say what the thread {name} may wait for");
            findings.push(Finding { file: file.clone(), line: *line, message });
        }
    }
    for (line, row) in rows {
        let known = GIVEN.contains(&row) || named.iter().any(|(name, ..)| name == row);
        if !known {
            let message = format!("no thread has the name {row}: remove the row");
            findings.push(Finding { file: TABLE.into(), line, message });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names and findings of a file of a package.
    fn checked(package: &str, text: &str) -> (Vec<Named>, Vec<Finding>) {
        let (mut named, mut findings) = (Vec::new(), Vec::new());
        let (package, source) = (Path::new(package), RustSource::new(text));
        check(package, &package.join("src/x.rs"), &source, &mut named, &mut findings);
        (named, findings)
    }

    #[test]
    fn a_thread_that_is_started_otherwise_is_found() {
        let test = "#[cfg(test)]\nmod tests {\n    fn f() { thread::spawn(g); }\n}\n";
        for text in [
            "fn f() { std::thread::spawn(g); }\n",
            "use std::thread::{Builder, JoinHandle};\n",
            "fn f() { thread::scope(g); }\n",
        ] {
            let (_, findings) = checked("crates/runtime", &(text.to_owned() + test));
            assert_eq!(findings.len(), 1, "{text}: {findings:?}");
            assert_eq!(findings[0].line, 1);
            for exempt in ["crates/threads", "crates/lab", "bench"] {
                assert_eq!(checked(exempt, text).1, []);
            }
        }
        assert_eq!(checked("crates/runtime", "use std::thread::{self, JoinHandle};\n").1, []);
        let computed = "fn f() {}\nfn g() { Thread::named(name).spawn(h); }\n";
        assert_eq!(checked("crates/runtime", computed).1[0].line, 2);
    }

    #[test]
    fn the_table_has_all_threads_and_no_other() {
        let text = "fn f() {\n    Thread::named(\n        \"one\",\n    );\n}\n\
                    // Thread::named(\"no\")\n\
                    fn g() { Thread::named(\"two\") }\n\
                    #[test]\nfn h() { Thread::named(\"of a test\") }\n";
        let (named, findings) = checked("crates/runtime", text);
        assert_eq!(findings, []);
        let found = |table: &str| {
            let mut findings = Vec::new();
            super::table(table, &named, &mut findings);
            findings.iter().map(Finding::to_string).collect::<Vec<_>>()
        };
        let head = "| thread | may wait for |\n| --- | --- |\n| `main` | signals |\n";
        let whole = format!("{head}| `one` | a |\n| `two` | b |\n");
        assert_eq!(found(&whole), Vec::<String>::new());
        assert!(found(&format!("{head}| `one` | a |\n"))[0].contains("the thread two"));
        assert!(found(&format!("{whole}| `three` | c |\n"))[0].contains("docs/threads.md:6: no"));
    }
}
