//! Checks the format of the changelog, so that a release can be cut from it mechanically.
//!
//! A title; then versions, newest first, `## Unreleased` or `## 1.2.3 - 2026-11-21`; below each
//! at least one entry, `- A sentence about what users notice.`, perhaps in groups under `###`.

use super::Finding;

/// Checks the text of the changelog.
pub fn check(text: &str, findings: &mut Vec<Finding>) {
    let mut find = |line: usize, message: &str| {
        let message = message.to_owned();
        findings.push(Finding { file: "CHANGELOG.md".into(), line, message });
    };
    if text.lines().next() != Some("# Changelog") {
        find(1, "does not begin with \"# Changelog\"");
    }
    let mut newest: Option<[u32; 3]> = None;
    // The last heading without an entry so far.
    let mut empty: Option<usize> = None;
    let mut versions = 0;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if let Some(heading) = line.strip_prefix("## ") {
            if let Some(at) = empty.replace(number) {
                find(at, "a version without an entry");
            }
            versions += 1;
            match version(heading) {
                None if heading == "Unreleased" && versions == 1 => {}
                None => find(number, "is neither \"Unreleased\" on top nor \"1.2.3 - 2026-11-21\""),
                Some(version) => {
                    if newest.is_some_and(|newest| newest <= version) {
                        find(number, "the versions do not go from newest to oldest");
                    }
                    newest = Some(version);
                }
            }
        } else if line.starts_with("- ") {
            empty = None;
            if versions == 0 {
                find(number, "an entry that belongs to no version");
            }
        } else if line.starts_with("* ") || line.starts_with("+ ") {
            find(number, "entries begin with \"- \"");
        }
    }
    if let Some(at) = empty {
        find(at, "a version without an entry");
    }
    if versions == 0 {
        find(1, "has no version: begin with \"## Unreleased\"");
    }
}

/// Parses the version from a heading with a date.
fn version(heading: &str) -> Option<[u32; 3]> {
    let (version, date) = heading.split_once(" - ")?;
    let date: Vec<&str> = date.split('-').collect();
    let lengths: Vec<usize> = date.iter().map(|part| part.len()).collect();
    let digits = date.iter().all(|part| part.chars().all(|c| c.is_ascii_digit()));
    if lengths != [4, 2, 2] || !digits {
        return None;
    }
    let parts: Vec<u32> = version.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    parts.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check(text, &mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    const GOOD: &str = "# Changelog\n\nWhat users notice.\n\n## Unreleased\n\n- A.\n  More.\n\n\
                        ## 0.2.0 - 2026-12-01\n\n### Added\n\n- B.\n\n\
                        ## 0.1.10 - 2026-11-21\n\n- C.\n";

    #[test]
    fn a_good_one_passes() {
        assert_eq!(messages(GOOD), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_found() {
        for (from, to, line) in [
            ("# Changelog", "# Changes", 1),
            ("## Unreleased", "## Next", 5),
            ("0.2.0 - 2026-12-01", "0.2.0 - December", 10),
            ("0.2.0 - ", "0.1.9 - ", 16),
            ("0.2.0 - ", "0.2 - ", 10),
            ("- C.", "", 16),
            ("- A.", "", 5),
            ("- B.", "* B.", 14),
            ("What users notice.", "- Z.", 3),
        ] {
            let bad = GOOD.replacen(from, to, 1);
            assert_ne!(bad, GOOD);
            let found = messages(&bad);
            assert!(
                found.iter().any(|one| one.starts_with(&format!("CHANGELOG.md:{line}:"))),
                "{from} -> {to}: {found:?}"
            );
        }
        assert_eq!(messages("# Changelog\n").len(), 1);
    }
}
