//! Permitted dependencies between crates, as a table.

use std::path::Path;

use super::Finding;

/// Each crate by its directory, and its permitted workspace dependencies. Anything else is an
/// error, so a new crate must be added here first. Dev-dependencies are not checked.
const ARROWS: [(&str, &[&str]); 36] = [
    ("types", &[]),
    ("threads", &[]),
    ("ecc", &["types"]),
    ("policy", &["types"]),
    ("format", &["types"]),
    ("journal", &["types", "format"]),
    ("engine", &["types", "policy"]),
    ("volume", &["types", "engine", "policy"]),
    ("protect", &["types", "format", "journal", "engine", "volume"]),
    ("advice", &["types", "policy", "volume"]),
    ("nbd", &["types"]),
    ("backend", &["types", "threads", "nbd"]),
    ("objects", &[]),
    ("http", &["types"]),
    ("backend-s3", &["types", "objects", "backend", "http"]),
    ("frontend", &["types", "engine", "volume"]),
    ("frontend-nbd", &["types", "threads", "engine", "volume", "nbd", "frontend"]),
    ("ublk", &["types"]),
    ("frontend-ublk", &["types", "engine", "volume", "ublk", "frontend"]),
    ("vhost", &[]),
    ("frontend-vhost", &["types", "threads", "engine", "volume", "vhost", "frontend"]),
    (
        "runtime",
        &[
            "types", "threads", "ecc", "policy", "format", "journal", "engine", "volume",
            "protect", "frontend", "backend",
        ],
    ),
    ("state", &["types", "format"]),
    ("terminal", &["types"]),
    ("rescue", &["types", "format", "journal", "backend", "runtime", "state", "terminal"]),
    ("api", &["types"]),
    ("advise", &["types", "advice", "runtime", "api", "terminal"]),
    ("attach", &["types", "ublk", "nbd", "api", "terminal"]),
    ("config", &["types"]),
    ("power", &["types", "threads"]),
    ("control", &["types", "api", "config"]),
    ("site", &["types", "threads", "http", "api", "config"]),
    (
        "lab",
        &["types", "ecc", "policy", "engine", "volume", "format", "journal", "protect", "backend"],
    ),
    (
        "forebay",
        &[
            "types",
            "threads",
            "format",
            "protect",
            "backend",
            "backend-s3",
            "frontend",
            "frontend-nbd",
            "frontend-ublk",
            "vhost",
            "frontend-vhost",
            "runtime",
            "api",
            "config",
            "control",
            "site",
            "power",
            "state",
            "terminal",
            "advise",
            "rescue",
            "attach",
        ],
    ),
    ("bench", &["types", "ecc", "policy", "engine", "volume", "nbd", "backend", "runtime"]),
    ("xtask", &[]),
];

/// Async runtimes are permitted only in these crates, outside the data path.
const ASYNC_CRATES: [&str; 6] = ["api", "backend-s3", "control", "forebay", "http", "site"];
const ASYNC_PREFIXES: [&str; 4] = ["tokio", "hyper", "axum", "futures"];

/// Checks the manifest `file`.
pub fn check(file: &Path, text: &str, findings: &mut Vec<Finding>) {
    let mut find = |word: &str, message: String| {
        let line = text.lines().position(|line| line.starts_with(word)).map_or(0, |at| at + 1);
        findings.push(Finding { file: file.to_path_buf(), line, message });
    };
    let manifest = match text.parse::<toml::Table>() {
        Ok(manifest) => manifest,
        Err(error) => return find("", format!("is not TOML: {error}")),
    };
    // The fuzz targets are a separate workspace and may use any crate.
    if manifest.contains_key("workspace") {
        return;
    }
    let inherits = manifest.get("lints").and_then(|lints| lints.get("workspace"));
    if inherits.and_then(toml::Value::as_bool) != Some(true) {
        find("[lints]", "does not take the workspace's lints: add [lints] workspace = true".into());
    }
    let name = file.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or("");
    let Some((_, allowed)) = ARROWS.iter().find(|(of, _)| *of == name) else {
        return find("[package]", format!("crate {name} is not in the table of arrows"));
    };
    for dependency in dependencies(&manifest) {
        if let Some(inner) = dependency.strip_prefix("forebay-")
            && !allowed.contains(&inner)
        {
            find(&dependency, format!("{name} may not use {inner}: calls never point up"));
        }
        let waits = ASYNC_PREFIXES.iter().any(|prefix| dependency.starts_with(prefix));
        if waits && !ASYNC_CRATES.contains(&name) {
            let place = ASYNC_CRATES.join(", ");
            find(&dependency, format!("{name} may not use {dependency}: only {place} may wait"));
        }
    }
}

/// All dependencies of the package and its build script, on any platform.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let mut tables = vec![manifest];
    if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
        tables.extend(targets.values().filter_map(toml::Value::as_table));
    }
    tables
        .iter()
        .flat_map(|table| [table.get("dependencies"), table.get("build-dependencies")])
        .filter_map(|dependencies| dependencies?.as_table())
        .flatten()
        .map(|(key, value)| {
            // `name = { package = "real-name" }` hides the real name.
            let package = value.get("package").and_then(toml::Value::as_str);
            package.unwrap_or(key).to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(krate: &str, dependencies: &str) -> Vec<String> {
        let text =
            format!("[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n\n{dependencies}");
        let mut findings = Vec::new();
        check(&Path::new("crates").join(krate).join("Cargo.toml"), &text, &mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn an_arrow_that_points_up_is_found() {
        let found = messages("engine", "[dependencies]\nforebay-runtime.workspace = true\n");
        assert_eq!(
            found,
            ["crates/engine/Cargo.toml:8: engine may not use runtime: calls never \
                            point up"]
        );
        let fine = "[dependencies]\nforebay-types.workspace = true\n\n\
                    [dev-dependencies]\nforebay-lab.workspace = true\n";
        assert_eq!(messages("engine", fine), Vec::<String>::new());
    }

    #[test]
    fn a_hidden_arrow_is_found() {
        let renamed =
            "[dependencies]\nharmless = { package = \"forebay-backend\", path = \"b\" }\n";
        assert_eq!(messages("engine", renamed).len(), 1);
        let platform = "[target.'cfg(unix)'.dependencies]\nforebay-backend.workspace = true\n";
        assert_eq!(messages("engine", platform).len(), 1);
        let build = "[build-dependencies]\nforebay-backend.workspace = true\n";
        assert_eq!(messages("engine", build).len(), 1);
    }

    #[test]
    fn waiting_has_its_place() {
        assert_eq!(messages("runtime", "[dependencies]\ntokio.workspace = true\n").len(), 1);
        assert_eq!(messages("backend", "[dependencies]\nhyper-util = \"1\"\n").len(), 1);
        assert_eq!(messages("control", "[dependencies]\ntokio = \"1\"\n"), Vec::<String>::new());
    }

    #[test]
    fn a_crate_without_a_place_or_lints_is_found() {
        assert!(messages("novelty", "")[0].contains("novelty is not in the table"));
        let mut findings = Vec::new();
        check(Path::new("crates/types/Cargo.toml"), "[package]\nname = \"x\"\n", &mut findings);
        assert!(findings[0].message.contains("lints"));
    }

    #[test]
    fn the_table_has_no_circles() {
        // Each crate may only use crates above it in the table; this is stricter than acyclic, and
        // easy to check.
        for (index, (name, uses)) in ARROWS.iter().enumerate() {
            for used in *uses {
                let at = ARROWS.iter().position(|(of, _)| of == used);
                assert!(at.is_some_and(|at| at < index), "{name} uses {used}");
            }
        }
    }
}
