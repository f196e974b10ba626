//! Source checks that the compiler and its lints do not cover.
//!
//! Each rule is a function from text to findings, and has a test with a bad sample, because a rule
//! that cannot fire is worse than none. The rules work on text with comments and strings separated
//! ([`source`]); they do not parse Rust, and in doubt they are strict.
//!
//! Code that exceeds a limit is split; the limit is not raised.

mod arrows;
mod changelog;
mod documents;
mod rules;
mod source;
mod threads;
mod types;

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use source::Source;

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

/// Checks the repository at `root`. The findings are in the order of files and lines.
///
/// # Errors
/// When the repository cannot be read.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let files = list_files(root)?;
    let mut findings = Vec::new();
    let mut packages = Vec::new();
    let mut decisions = BTreeMap::new();
    for file in &files {
        let text = read(root, file)?;
        let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or("");
        let script = extension == "sh" || text.starts_with("#!");
        if script || extension == "rs" {
            rules::columns(file, &text, &mut findings);
        }
        if script || matches!(extension, "rs" | "toml" | "yml" | "yaml" | "md") {
            rules::foreign_paths(file, &text, &mut findings);
        }
        if file.ends_with("Cargo.toml") && file.components().count() > 1 {
            packages.push(file.parent().unwrap_or(Path::new("")).to_path_buf());
            arrows::check(file, &text, &mut findings);
        }
        if documents::is_decision(file) {
            documents::decision(file, &text, &mut decisions, &mut findings);
        } else if file == Path::new(documents::SPECIFICATION) {
            let read = |file: &Path| read(root, file).unwrap_or_default();
            documents::specification(&text, &files, read, &mut findings);
        }
    }
    let mut named = Vec::new();
    for package in &packages {
        check_package(root, package, &files, &mut named, &mut findings)?;
    }
    let table = read(root, Path::new(threads::TABLE)).unwrap_or_default();
    threads::table(&table, &named, &mut findings);
    match fs::read_to_string(root.join("CHANGELOG.md")) {
        Ok(text) => changelog::check(&text, &mut findings),
        Err(error) => findings.push(Finding {
            file: "CHANGELOG.md".into(),
            line: 0,
            message: format!("can't be read ({error}): tell the users what changes"),
        }),
    }
    findings.sort();
    Ok(findings)
}

/// Checks the Rust files of one package.
fn check_package(
    root: &Path,
    package: &Path,
    files: &[PathBuf],
    named: &mut Vec<threads::Named>,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let name = package.file_name().and_then(|name| name.to_str()).unwrap_or("");
    let mut sources = Vec::new();
    let mut modules = BTreeSet::new();
    let mut test_modules = BTreeSet::new();
    for file in files {
        if file.starts_with(package) && file.extension().is_some_and(|extension| extension == "rs")
        {
            let source = Source::new(&read(root, file)?);
            modules.extend(source.declared_modules(file, false));
            test_modules.extend(source.declared_modules(file, true));
            sources.push((file, source));
        }
    }
    for (file, source) in &mut sources {
        let outside = !file.starts_with(package.join("src"));
        if outside || test_modules.iter().any(|module: &PathBuf| is_below(file, module)) {
            source.all_is_test();
        }
        rules::check_source(name, file, source, findings);
        threads::check(package, file, source, named, findings);
        if !outside {
            rules::module_doc(file, source, findings);
            let found = modules.contains(*file) || test_modules.contains(*file);
            if !found && !is_root(package, file) {
                findings.push(Finding {
                    file: file.to_path_buf(),
                    line: 0,
                    message: "no module declares this file: declare it or delete it".to_owned(),
                });
            }
        }
    }
    let sources: Vec<_> = sources.iter().map(|(file, source)| (file.as_path(), source)).collect();
    types::check(&sources, findings);
    Ok(())
}

/// Whether `file` is the file of `module` or of a module inside it.
fn is_below(file: &Path, module: &Path) -> bool {
    file == module
        || (module.ends_with("mod.rs") && module.parent().is_some_and(|dir| file.starts_with(dir)))
        || file.starts_with(module.with_extension(""))
}

/// Whether `file` is a crate root.
fn is_root(package: &Path, file: &Path) -> bool {
    let inside = file.strip_prefix(package).unwrap_or(file);
    inside == Path::new("src/lib.rs")
        || inside == Path::new("src/main.rs")
        || inside.parent() == Some(Path::new("src/bin"))
}

fn read(root: &Path, file: &Path) -> Result<String> {
    let bytes = fs::read(root.join(file)).with_context(|| format!("reading {}", file.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The hand-written text files below `root`, as relative paths.
fn list_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let path = root.join(&dir);
        for entry in fs::read_dir(&path).with_context(|| format!("listing {}", path.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            let file = dir.join(&name);
            let text = name.to_string_lossy();
            let kind = entry.file_type()?;
            if kind.is_dir() {
                // Skip build output, history, and fuzzer data.
                if !matches!(&*text, "target" | ".git" | "corpus" | "artifacts") {
                    dirs.push(file);
                }
            } else if kind.is_file() && text != "Cargo.lock" {
                files.push(file);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        check(dir.path()).unwrap().iter().map(Finding::to_string).collect()
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
        assert!(check(dir.path()).unwrap()[0].to_string().starts_with("CHANGELOG.md:1:"));
    }
}
