//! References in documents: they name existing files and tests, links lead to existing pages and
//! headings, and each decision has a unique number.

use super::Finding;
use crate::source::is_word;
use crate::tree::Tree;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// The guarantees, and the tests that enforce them.
const SPECIFICATION: &str = "docs/SPECIFICATION.md";
const DECISIONS: &str = "docs/decisions";
/// Roots of the paths in the specification.
const ROOTS: [&str; 3] = ["crates", "scripts", ""];
/// Test names are sentences; shorter words of the same form are settings and fields.
const TEST_NAME_CHARS_MIN: usize = 15;

/// Whether a file is a decision.
pub fn is_decision(file: &Path) -> bool {
    file.parent() == Some(Path::new(DECISIONS))
}

/// Checks a decision: its file name and title start with the same, unique number.
pub fn decision(
    file: &Path,
    text: &str,
    numbers: &mut BTreeMap<String, PathBuf>,
    findings: &mut Vec<Finding>,
) {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or("");
    let number = name.split('-').next().unwrap_or("").to_owned();
    let mut find = |message| findings.push(Finding { file: file.to_owned(), line: 0, message });
    if !text.starts_with(&format!("# {number}: ")) {
        find(format!("the title does not begin with \"# {number}: \", as the file's name does"));
    }
    if let Some(other) = numbers.insert(number, file.to_owned()) {
        find(format!("{} has the same number: take the next free one", other.display()));
    }
}

/// Checks that the source files and folders named by a document exist: from its own folder, as in
/// the README of a crate, from the folder of all crates, or from the root. Decisions and the
/// changelog name what there was at their time.
pub fn source_paths(tree: &Tree, file: &Path, text: &str, findings: &mut Vec<Finding>) {
    let is_checked_elsewhere = file == Path::new(SPECIFICATION);
    if is_checked_elsewhere || is_decision(file) || file == Path::new("CHANGELOG.md") {
        return;
    }
    let dir = file.parent().unwrap_or(Path::new(""));
    for (index, line) in text.lines().enumerate() {
        let words = line.split('`').skip(1).step_by(2);
        for word in words.filter(|word| is_source_path(word)) {
            let places = [dir, "crates".as_ref(), "".as_ref()].map(|root| root.join(word));
            if !tree.files.iter().any(|(at, _)| places.iter().any(|place| at.starts_with(place))) {
                let message = format!("there is no {word}");
                findings.push(Finding { file: file.to_owned(), line: index + 1, message });
            }
        }
    }
}

/// Checks that the links of a document lead to files and folders of the repository, and to headings
/// of its documents.
pub fn links(tree: &Tree, file: &Path, text: &str, findings: &mut Vec<Finding>) {
    let dir = file.parent().unwrap_or(Path::new(""));
    for (index, line) in text.lines().enumerate() {
        for rest in line.split("](").skip(1) {
            let Some((target, _)) = rest.split_once(')') else { continue };
            if target.contains("://") || target.contains(char::is_whitespace) {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let page = if path.is_empty() { file.to_owned() } else { resolve(&dir.join(path)) };
            let is_there = tree.files.iter().any(|(at, _)| at.starts_with(&page));
            if !is_there || !heading.is_empty() && !has_heading(tree.text(&page), heading) {
                let message = format!("the link to {target} leads nowhere");
                findings.push(Finding { file: file.to_owned(), line: index + 1, message });
            }
        }
    }
}

/// A path without `.` and `..`.
fn resolve(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            Component::CurDir => {}
            part => resolved.push(part),
        }
    }
    resolved
}

/// Whether a document has a heading with this anchor: its text in lower case, with hyphens for
/// spaces and without punctuation.
fn has_heading(text: &str, anchor: &str) -> bool {
    text.lines().filter(|line| line.starts_with('#')).any(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        title.chars().filter(|c| is_word(*c) || *c == '-').eq(anchor.chars())
    })
}

/// Checks that the files and tests named by the specification exist.
pub fn specification(tree: &Tree, findings: &mut Vec<Finding>) {
    for (index, line) in tree.text(SPECIFICATION).lines().enumerate() {
        let mut find = |message| {
            findings.push(Finding { file: SPECIFICATION.into(), line: index + 1, message });
        };
        // A test name refers to the file named before it.
        let mut source = None;
        for word in line.split('`').skip(1).step_by(2) {
            if is_path(word) {
                let mut places = ROOTS.iter().map(|root| Path::new(root).join(word));
                let place =
                    places.find(|place| tree.files.iter().any(|(file, _)| file.starts_with(place)));
                if place.is_none() {
                    find(format!("there is no {word}"));
                }
                source = place.map(|place| tree.text(place)).filter(|text| !text.is_empty());
            } else if is_test_name(word)
                && let Some(source) = &source
                && !has_function(source, word)
            {
                find(format!("there is no {word} in the file before it"));
            }
        }
    }
}

fn is_path(word: &str) -> bool {
    [".rs", ".sh", "/"].iter().any(|end| word.ends_with(*end)) && !word.contains(' ')
}

/// Whether a word is a path with a folder `src` or `tests`.
fn is_source_path(word: &str) -> bool {
    let (folders, _) = word.rsplit_once('/').unwrap_or_default();
    folders.split('/').any(|part| matches!(part, "src" | "tests"))
        && word.chars().all(|c| is_word(c) || matches!(c, '/' | '.' | '-'))
}

fn is_test_name(word: &str) -> bool {
    word.len() >= TEST_NAME_CHARS_MIN
        && word.contains('_')
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_…".contains(c))
        && !word.starts_with('…')
}

/// Whether a function has this name, or this prefix if `name` ends in dots.
fn has_function(source: &str, name: &str) -> bool {
    let (name, whole) = name.strip_suffix('…').map_or((name, true), |begin| (begin, false));
    let mut rests = source.split("fn ").skip(1).filter_map(|rest| rest.strip_prefix(name));
    rests.any(|rest| !whole || !rest.chars().next().is_some_and(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_specification(text: &str) -> Vec<String> {
        let files = [
            ("crates/engine/src/index.rs", "fn a_line_is_found_again() {}\n"),
            (SPECIFICATION, text),
            ("scripts/clients.sh", ""),
        ];
        let files = files.map(|(file, text)| (file.into(), text.to_owned())).into();
        let mut findings = Vec::new();
        specification(&Tree::of(files), &mut findings);
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_test_that_is_there_may_be_named() {
        for text in [
            "| `engine/src/index.rs`: `a_line_is_found_again`; `engine/src/`; `clients.sh` |",
            "| `engine/src/index.rs`: `a_line_is_found_…`; `…passes_the_suite`, `dirty_bytes` |",
            "| `a_name_without_a_file_says_nothing` |",
        ] {
            assert_eq!(of_specification(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn a_test_or_file_that_is_not_there_is_found() {
        for (text, message) in [
            ("`engine/src/gone.rs`", "there is no engine/src/gone.rs"),
            ("`engine/tests/`", "there is no engine/tests/"),
            (
                "`engine/src/index.rs`: `a_line_is_found`",
                "there is no a_line_is_found in the file before it",
            ),
        ] {
            assert_eq!(of_specification(text), [message]);
        }
    }

    #[test]
    fn a_source_that_is_not_there_is_found_in_any_document() {
        let files = ["crates/engine/src/index.rs", "crates/nbd/src/a/b.rs", "bench/src/bin/x.rs"];
        let tree = Tree::of(files.map(|file| (file.into(), String::new())).into());
        let found = |file: &str, text: &str| {
            let mut findings = Vec::new();
            source_paths(&tree, Path::new(file), text, &mut findings);
            findings.iter().map(Finding::to_string).collect::<Vec<_>>()
        };
        let readme = "crates/engine/README.md";
        let there = "`src/index.rs`, `nbd/src/a`, `bench/src/bin/x.rs`, `src/`, `a/b.rs`, `src/*`";
        assert_eq!(found(readme, there), Vec::<String>::new());
        for (file, path) in
            [(readme, "src/gone.rs"), (readme, "nbd/src/gone"), ("docs/x.md", "src/index.rs")]
        {
            let text = format!("one\ntwo `{path}`\n");
            assert_eq!(found(file, &text), [format!("{file}:2: there is no {path}")]);
        }
        assert_eq!(found("docs/decisions/0001-x.md", "`src/gone.rs`"), Vec::<String>::new());
    }

    #[test]
    fn a_link_leads_to_a_page_and_a_heading() {
        let page = "# A page\n\n## Reads, and `writes`: 1 of 2\n";
        let files = [("docs/a.md", page), ("docs/manual/b.md", "# B\n"), ("docs/top/x.png", "")];
        let tree = Tree::of(files.map(|(file, text)| (file.into(), text.to_owned())).into());
        let found = |text: &str| {
            let mut findings = Vec::new();
            links(&tree, Path::new("docs/manual/b.md"), text, &mut findings);
            findings.iter().map(Finding::to_string).collect::<Vec<_>>()
        };
        for right in ["../a.md", "../a.md#reads-and-writes-1-of-2", "#b", "../top", "https://x/y"] {
            assert_eq!(found(&format!("see [it]({right}), ![picture](../top/x.png)")), [""; 0]);
        }
        for wrong in ["a.md", "../a.md#reads", "#a-page", "../gone", "b.md#"] {
            let wanted = format!("docs/manual/b.md:2: the link to {wrong} leads nowhere");
            let wanted = if wrong.ends_with('#') { vec![] } else { vec![wanted] };
            assert_eq!(found(&format!("one\n[two]({wrong})")), wanted);
        }
    }

    #[test]
    fn decisions_have_numbers_of_their_own() {
        let mut numbers = BTreeMap::new();
        let mut findings = Vec::new();
        for (file, title) in [
            ("docs/decisions/0001-one.md", "# 0001: One\n"),
            ("docs/decisions/0001-two.md", "# 0001: Two\n"),
            ("docs/decisions/0002-three.md", "# Three\n"),
        ] {
            assert!(is_decision(Path::new(file)));
            decision(Path::new(file), title, &mut numbers, &mut findings);
        }
        let files: Vec<_> = findings.iter().map(|finding| finding.file.display()).collect();
        assert_eq!(files.len(), 2, "{findings:?}");
        assert_eq!(files[0].to_string(), "docs/decisions/0001-two.md");
        assert_eq!(files[1].to_string(), "docs/decisions/0002-three.md");
    }
}
