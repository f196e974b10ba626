//! The rules for single files.

use std::path::Path;

use super::Finding;
use crate::source::{RustSource, is_word};

/// The widest line, in characters.
const COLUMNS_MAX: usize = 100;
/// The longest function, in lines, from its `fn` to its closing brace. Test code is exempt.
const FUNCTION_LINES_MAX: usize = 70;
/// The longest file, in lines that are not test code.
const FILE_LINES_MAX: usize = 800;
/// Files that are larger are output of a program, such as a core dump; pictures fit.
const FILE_BYTES_MAX: usize = 512 * 1024;

/// Crates that are state machines: an event and the time go in, actions come out.
const PURE: [&str; 11] = [
    "types", "ecc", "policy", "format", "journal", "engine", "volume", "protect", "advice", "nbd",
    "objects",
];
/// Crates that are pure except for one directory.
const PURE_BUT: [(&str, &str); 1] = [("power", "src/drivers")];
/// Crates that may hold `unsafe` code.
const UNSAFE: [&str; 9] = [
    "ecc",
    "backend",
    "frontend",
    "frontend-nbd",
    "frontend-ublk",
    "frontend-vhost",
    "attach",
    "runtime",
    "bench",
];

/// Names banned in pure crates outside tests, with the alternative.
const IMPURE: [(&str, &str); 10] = [
    ("Instant::now", "take the time as an argument"),
    ("SystemTime", "take the time as an argument"),
    ("std::fs", "leave files to the backend"),
    ("std::net", "leave sockets to the runtime"),
    ("std::os", "leave the system to the runtime"),
    ("std::thread", "leave threads to the runtime"),
    ("std::process", "leave processes to the runtime"),
    ("std::env", "take the setting as an argument"),
    ("tokio", "leave waiting to the driver"),
    ("rand", "take a seed as an argument"),
];

/// The crate whose locks are ranked, and where they are defined.
const LOCKS: (&str, &str) = ("runtime", "crates/runtime/src/platform/locks");

/// Machine-specific paths and names, and package registries, which mean nothing on another machine.
/// Written in two parts, so that this file passes.
const FOREIGN: [&str; 8] = [
    concat!("/work", "/"),
    concat!("/root", "/"),
    concat!("/home", "/"),
    concat!("crates", ".io"),
    concat!("docs", ".rs"),
    concat!("pypi", ".org"),
    concat!("deb.debian", ".org"),
    concat!("npmjs", ".com"),
];

/// Checks the Rust file `file` of the crate in directory `name`.
pub fn check_source(name: &str, file: &Path, source: &RustSource, findings: &mut Vec<Finding>) {
    lengths(file, source, findings);
    unfinished(file, source, findings);
    unwraps(file, source, findings);
    if !UNSAFE.contains(&name) {
        unsafe_code(file, source, findings);
    }
    if name == LOCKS.0 && !file.starts_with(LOCKS.1) {
        unranked_locks(file, source, findings);
    }
    if is_pure(name, file) {
        purity(file, source, findings);
    }
}

/// Whether the file belongs to the pure part of its crate.
fn is_pure(name: &str, file: &Path) -> bool {
    let beside = |(krate, edge): &(&str, &str)| {
        let edge = Path::new("crates").join(krate).join(edge);
        *krate == name && !file.starts_with(edge)
    };
    PURE.contains(&name) || PURE_BUT.iter().any(beside)
}

fn find(findings: &mut Vec<Finding>, file: &Path, line: usize, message: String) {
    findings.push(Finding { file: file.to_path_buf(), line: line + 1, message });
}

/// Checks the size of a file of any kind.
pub fn size(file: &Path, text: &str, findings: &mut Vec<Finding>) {
    if text.len() > FILE_BYTES_MAX {
        let message = format!("more than {} KiB: delete it", FILE_BYTES_MAX / 1024);
        find(findings, file, 0, message);
    }
}

/// Checks the line width.
pub fn columns(file: &Path, text: &str, findings: &mut Vec<Finding>) {
    for (number, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            let message = format!("{columns} columns are more than {COLUMNS_MAX}: break the line");
            find(findings, file, number, message);
        }
    }
}

/// Checks for machine-specific paths and hosts.
pub fn foreign_paths(file: &Path, text: &str, findings: &mut Vec<Finding>) {
    for (number, line) in text.lines().enumerate() {
        for foreign in FOREIGN {
            // A preceding letter makes it part of a longer word, as in "network/".
            let found = line.match_indices(foreign).any(|(at, _)| {
                foreign.starts_with('/') || !line[..at].chars().next_back().is_some_and(is_word)
            });
            if found {
                let message =
                    format!("{foreign:?} is a name of one machine or registry: leave it out");
                find(findings, file, number, message);
            }
        }
    }
}

/// Checks that a module starts with its documentation.
pub fn module_doc(file: &Path, source: &RustSource, findings: &mut Vec<Finding>) {
    let begins = source
        .comment_lines()
        .iter()
        .zip(source.code_lines())
        .find(|(comment, code)| !comment.trim().is_empty() || !code.trim().is_empty())
        .is_some_and(|(comment, _)| comment.starts_with("//!"));
    if !begins && !source.is_test(0) {
        let message = "does not begin with a module doc: say in //! what it owns and promises";
        find(findings, file, 0, message.to_owned());
    }
}

fn lengths(file: &Path, source: &RustSource, findings: &mut Vec<Finding>) {
    for function in source.functions() {
        let lines = function.last_line - function.first_line + 1;
        if lines > FUNCTION_LINES_MAX && !source.is_test(function.first_line) {
            let message = format!(
                "function {} has {lines} lines, more than {FUNCTION_LINES_MAX}: split it",
                function.name
            );
            find(findings, file, function.first_line, message);
        }
    }
    let lines = source.line_count();
    if lines > FILE_LINES_MAX {
        let message = format!("{lines} lines outside tests, more than {FILE_LINES_MAX}: split it");
        find(findings, file, 0, message);
    }
}

/// Checks for leftover markers of unfinished work.
fn unfinished(file: &Path, source: &RustSource, findings: &mut Vec<Finding>) {
    for (number, line) in source.comment_lines().iter().enumerate() {
        for mark in ["FIXME", "TODO", "XXX"] {
            if has_word(line, mark) {
                find(findings, file, number, format!("{mark}: do it, or write an issue"));
            }
        }
    }
    for (number, line) in source.code_lines().iter().enumerate() {
        for call in ["todo!", "unimplemented!", "dbg!"] {
            if has_word(line, call) {
                find(findings, file, number, format!("{call} is left over: finish it"));
            }
        }
    }
}

fn unwraps(file: &Path, source: &RustSource, findings: &mut Vec<Finding>) {
    for (number, line) in source.code_lines().iter().enumerate() {
        for call in [".unwrap()", ".unwrap_err()"] {
            if line.contains(call) && !source.is_test(number) {
                let message =
                    format!("{call} outside tests: return the error, or expect and say why");
                find(findings, file, number, message);
            }
        }
    }
}

fn unsafe_code(file: &Path, source: &RustSource, findings: &mut Vec<Finding>) {
    for at in source.words("unsafe") {
        let message = format!("unsafe code is allowed only in {}: move it", UNSAFE.join(", "));
        find(findings, file, source.line_of(at), message);
    }
}

fn unranked_locks(file: &Path, source: &RustSource, findings: &mut Vec<Finding>) {
    for lock in ["Mutex", "RwLock", "Condvar"] {
        for line in source.words(lock).into_iter().map(|at| source.line_of(at)) {
            if !source.is_test(line) {
                let message = format!("{lock} has no rank: use a lock of {}", LOCKS.1);
                find(findings, file, line, message);
            }
        }
    }
}

fn purity(file: &Path, source: &RustSource, findings: &mut Vec<Finding>) {
    let named = source.code_lines().into_iter().enumerate();
    for (line, path) in named.chain(source.uses()) {
        if source.is_test(line) {
            continue;
        }
        let path: String = path.chars().filter(|c| !c.is_whitespace()).collect();
        for (call, instead) in IMPURE {
            // The name of a crate is at the start of a path, unlike in `brand::x` and `self.rand`.
            let krate = !call.contains("::") && call != "SystemTime";
            let named =
                if krate { has_word(&path, &format!("{call}::")) } else { has_word(&path, call) };
            let finding = Finding {
                file: file.to_path_buf(),
                line: line + 1,
                message: format!("{call} in a crate without side effects: {instead}"),
            };
            // A `use` on one line is found both in the code and in the `use` trees.
            if named && !findings.contains(&finding) {
                findings.push(finding);
            }
        }
    }
}

/// Whether `word` occurs in `line` as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let open = word.ends_with(|c| !is_word(c));
        !before.is_some_and(is_word) && (open || !after.is_some_and(is_word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages that a file of `krate` gives rise to.
    fn messages(krate: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check_source(krate, Path::new("x.rs"), &RustSource::new(text), &mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    /// Asserts that the rule fires on `bad`, once, in the line of the mark, and not on `good`.
    fn fires(krate: &str, bad: &str, line: usize, word: &str, good: &str) {
        let found = messages(krate, bad);
        assert_eq!(found.len(), 1, "{bad}: {found:?}");
        assert!(found[0].starts_with(&format!("x.rs:{line}:")), "{found:?}");
        assert!(found[0].contains(word), "{found:?}");
        assert_eq!(messages(krate, good), Vec::<String>::new(), "{good}");
    }

    #[test]
    fn wide_lines() {
        let mut findings = Vec::new();
        columns(Path::new("x.rs"), &"ä".repeat(COLUMNS_MAX), &mut findings);
        assert!(findings.is_empty());
        columns(Path::new("x.rs"), &format!("a\n{}", "b".repeat(COLUMNS_MAX + 1)), &mut findings);
        assert_eq!(findings[0].line, 2);
    }

    #[test]
    fn large_files() {
        let mut findings = Vec::new();
        size(Path::new("x.png"), &"x".repeat(FILE_BYTES_MAX), &mut findings);
        assert!(findings.is_empty());
        size(Path::new("core"), &"x".repeat(FILE_BYTES_MAX + 1), &mut findings);
        assert_eq!(findings.len(), 1);
    }

    #[test]
    fn long_functions() {
        let function = |lines: usize| format!("fn f() {{\n{}}}\n", "    a();\n".repeat(lines - 2));
        let test = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(71));
        fires("engine", &function(71), 1, "function f has 71", &(function(70) + &test));
    }

    #[test]
    fn long_files() {
        let file = |lines| "const A: u8 = 1;\n".repeat(lines);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", file(500));
        fires("engine", &file(801), 1, "801 lines", &(file(800) + &tests));
    }

    #[test]
    fn unfinished_work() {
        let good = "fn todo_list() {} // a mastodon\nlet s = \"FIXME\";\n";
        fires("engine", &format!("\n// {} later\n", "FIXME"), 2, "FIXME", good);
        fires("engine", "fn f() { todo!() }\n", 1, "todo!", good);
        fires("engine", "// TODO: x\n", 1, "TODO", good);
    }

    #[test]
    fn unwraps_outside_of_tests() {
        let good = "#[cfg(test)]\nmod tests {\n    fn f() { x.unwrap(); }\n}\n\
                    fn g() { x.unwrap_or(3); } // .unwrap()\n";
        fires("engine", "fn f() { x.unwrap(); }\n", 1, ".unwrap()", good);
    }

    #[test]
    fn unsafe_in_the_wrong_crate() {
        let bad = "fn f() {}\nfn g() { unsafe { h() } }\n";
        fires("engine", bad, 2, "unsafe", "#![forbid(unsafe_code)] // unsafe\n");
        assert_eq!(messages("backend", bad), Vec::<String>::new());
    }

    #[test]
    fn locks_without_a_rank() {
        let good = "use crate::locks::Lock;\n#[cfg(test)]\nmod tests { use std::sync::Mutex; }\n";
        fires("runtime", "struct S { a: Mutex<u8> }\n", 1, "has no rank", good);
        assert_eq!(messages("backend", "use std::sync::Mutex;\n"), Vec::<String>::new());
    }

    #[test]
    fn impure_calls_in_pure_crates() {
        let good = "use std::time::{Duration, Instant};\nuse std::collections::HashMap;\n\
                    fn f() { self.rand; brand::x(); operand.y(); }\n\
                    #[cfg(test)]\nmod tests { use std::fs; }\n";
        for (bad, word) in [
            ("let t = Instant::now();", "Instant::now"),
            ("let t = std::time::SystemTime::UNIX_EPOCH;", "SystemTime"),
            ("use std::fs::File;", "std::fs"),
            ("use std::{sync::Arc, net::{Ipv4Addr, TcpStream}};", "std::net"),
            ("std::thread::spawn(f);", "std::thread"),
            ("use std::{env, mem};", "std::env"),
            ("use tokio::net;", "tokio"),
            ("let n = rand::random();", "rand"),
        ] {
            for krate in PURE {
                fires(krate, bad, 1, word, good);
            }
            assert_eq!(messages("runtime", bad), Vec::<String>::new());
        }
    }

    #[test]
    fn the_edge_of_a_pure_crate_has_a_directory() {
        let found = |file: &str| {
            let mut findings = Vec::new();
            let source = RustSource::new("use std::thread;\n");
            check_source("power", Path::new(file), &source, &mut findings);
            findings.len()
        };
        assert_eq!(found("crates/power/src/guard.rs"), 1);
        assert_eq!(found("crates/power/src/drivers.rs"), 1);
        assert_eq!(found("crates/power/src/drivers/nut.rs"), 0);
    }

    #[test]
    fn module_docs() {
        let found = |text: &str| {
            let mut findings = Vec::new();
            module_doc(Path::new("x.rs"), &RustSource::new(text), &mut findings);
            findings.len()
        };
        assert_eq!(found("//! Owns.\nuse a;\n"), 0);
        assert_eq!(found("\n#![no_std]\n//! Late.\n"), 1);
        assert_eq!(found("use a;\n//! Late.\n"), 1);
        assert_eq!(found("/// Of an item.\nfn f() {}\n"), 1);
        assert_eq!(found(""), 1);
    }

    #[test]
    fn names_of_machines() {
        let found = |text: &str| {
            let mut findings = Vec::new();
            foreign_paths(Path::new("x.md"), text, &mut findings);
            findings.len()
        };
        for foreign in FOREIGN {
            assert_eq!(found(&format!("see {foreign}x")), 1, "{foreign}");
        }
        assert_eq!(found("see mydocs.rs, lib.rs and network/x"), 0);
    }
}
