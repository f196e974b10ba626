//! Source checks that the compiler and its lints do not cover.
//!
//! Each rule is a function from text to findings, and has a test with a bad sample, because a rule
//! that cannot fire is worse than none. The rules work on text with comments and strings separated
//! ([`crate::source`]); they do not parse Rust, and in doubt they are strict.
//!
//! Code that exceeds a limit is split; the limit is not raised.

mod arrows;
mod changelog;
mod documents;
mod package;
pub mod ratchets;
mod rooms;
mod rules;
mod threads;
mod types;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::tree::{Package, Tree};

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, from the root of the repository.
    pub file: PathBuf,
    /// The line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// The fault and the remedy.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line.max(1), self.message)
    }
}

/// Checks the repository. The findings are in the order of files and lines.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut decisions = BTreeMap::new();
    for (file, text) in &tree.files {
        rules::size(file, text, &mut findings);
        let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or("");
        let script = extension == "sh" || text.starts_with("#!");
        if script || extension == "rs" {
            rules::columns(file, text, &mut findings);
        }
        if script || matches!(extension, "rs" | "toml" | "yml" | "yaml" | "md") {
            rules::foreign_paths(file, text, &mut findings);
        }
        if file.ends_with("Cargo.toml") && file.components().count() > 1 {
            arrows::check(file, text, &mut findings);
        }
        if documents::is_decision(file) {
            documents::decision(file, text, &mut decisions, &mut findings);
        }
        if extension == "md" {
            documents::source_paths(tree, file, text, &mut findings);
            documents::links(tree, file, text, &mut findings);
        }
    }
    documents::specification(tree, &mut findings);
    let mut named = Vec::new();
    for package in &tree.packages {
        check_package(package, &mut named, &mut findings);
    }
    threads::table(tree.text(threads::TABLE), &named, &mut findings);
    changelog::check(tree.text("CHANGELOG.md"), &mut findings);
    package::check(tree.text("Cargo.toml"), tree.text(package::CHANGELOG), &mut findings);
    findings.sort();
    findings
}

/// Checks the Rust files of one package.
fn check_package(package: &Package, named: &mut Vec<threads::Named>, findings: &mut Vec<Finding>) {
    for (file, source) in &package.sources {
        rules::check_source(package.name(), file, source, findings);
        threads::check(&package.dir, file, source, named, findings);
        if file.starts_with(package.dir.join("src")) {
            rules::module_doc(file, source, findings);
        }
    }
    findings.extend(package.undeclared.iter().map(|file| Finding {
        file: file.clone(),
        line: 0,
        message: "no module declares this file: declare it or delete it".to_owned(),
    }));
    rooms::check(package, findings);
    types::check(&package.sources, findings);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A repository with one package, `crates/engine`, and these files in it.
    fn repository(files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let manifest = "[package]\nname = \"forebay-engine\"\n\n[lints]\nworkspace = true\n";
        let changelog = "# Changelog\n\n## Unreleased\n\n- One thing.\n";
        let base = [("crates/engine/Cargo.toml", manifest), ("CHANGELOG.md", changelog)];
        for (file, text) in base.iter().chain(files) {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        check(&Tree::read(dir.path()).unwrap()).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_tidy_repository_has_no_findings() {
        let findings = repository(&[
            ("crates/engine/src/lib.rs", "//! The engine.\n\nmod index;\n"),
            ("crates/engine/src/index.rs", "//! The index.\n\n#[cfg(test)]\nmod tests;\n"),
            ("crates/engine/src/index/tests.rs", "//! Tests.\nuse std::fs;\n"),
            ("crates/engine/tests/all.rs", "//! Tests.\nuse std::thread;\n"),
        ]);
        assert_eq!(findings, Vec::<String>::new());
    }

    #[test]
    fn a_file_that_nobody_declares_is_found() {
        let findings = repository(&[
            ("crates/engine/src/lib.rs", "//! The engine.\n"),
            ("crates/engine/src/dead.rs", "//! Forgotten.\n"),
        ]);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("crates/engine/src/dead.rs:1: no module"), "{findings:?}");
    }

    #[test]
    fn the_package_decides_which_rules_hold() {
        let text = "//! The engine.\n\nuse std::{collections::HashMap, thread};\n";
        let findings = repository(&[("crates/engine/src/lib.rs", text)]);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("crates/engine/src/lib.rs:3: std::thread"), "{findings:?}");
    }

    #[test]
    fn a_repository_without_a_changelog_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            check(&Tree::read(dir.path()).unwrap())[0].to_string().starts_with("CHANGELOG.md:1:")
        );
    }
}
