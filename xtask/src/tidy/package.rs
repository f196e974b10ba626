//! The version of the Debian packages, which is that of the workspace.

use super::Finding;

/// The changelog of the packages.
pub const CHANGELOG: &str = "debian/changelog";

/// Compares the version of the workspace with the newest one of the packages' changelog, which
/// begins with `forebay (1.2.3) unstable; urgency=medium`.
pub fn check(workspace: &str, changelog: &str, findings: &mut Vec<Finding>) {
    let Some(version) = version(workspace) else { return };
    let packaged = changelog.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    let packaged = packaged.map_or("none", |(version, _)| version);
    if packaged != version {
        findings.push(Finding {
            file: CHANGELOG.into(),
            line: 1,
            message: format!(
                "has version {packaged}, and Cargo.toml {version}: add an entry for it"
            ),
        });
    }
}

/// The version of `workspace.package`.
fn version(workspace: &str) -> Option<String> {
    let table: toml::Table = workspace.parse().ok()?;
    let package = table.get("workspace")?.get("package")?;
    Some(package.get("version")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packages_have_the_version_of_the_workspace() {
        let workspace = "[workspace.package]\nversion = \"1.2.3\"\n";
        let found = |changelog: &str| {
            let mut findings = Vec::new();
            check(workspace, changelog, &mut findings);
            findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(found("forebay (1.2.3) unstable; urgency=medium\n"), "");
        let older = found("forebay (1.2.2) unstable; urgency=medium\n");
        assert!(older.contains("has version 1.2.2, and Cargo.toml 1.2.3"), "{older}");
        assert!(found("").contains("has version none"));
    }
}
