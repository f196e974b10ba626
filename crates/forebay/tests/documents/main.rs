//! Runs the commands in README.md, the manual and the recipes, page by page, against the built
//! program, each page in a directory of its own. `blocks.rs` describes the comments that control
//! this. A unit
//! test of the command line parses the commands that are not run.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod blocks;

use blocks::{Block, Kind, blocks, documents};
use std::path::Path;
use std::process::{Command, Stdio};

/// The head of each page's script. The script waits for a server started in the background, and
/// stops one started in the foreground as soon as it serves.
const PRELUDE: &str = r#"
set -Eeuo pipefail
place=start
trap 'echo "FAILED: $place: $BASH_COMMAND" >&2' ERR
wait_until_served() {
  local i
  for ((i = 0; i < 2000; i++)); do
    forebay status >/dev/null 2>&1 && return
    kill -0 "$1" || return
    sleep 0.05
  done
  return 1
}
serve_briefly() {
  command forebay "$@" </dev/null & local pid=$!
  wait_until_served "$pid"
  command forebay stop
  wait "$pid"
}
stop_all() {
  local pids
  pids=$(jobs -p)
  [[ -z $pids ]] || kill $pids 2>/dev/null || true
  wait
}
trap stop_all EXIT
"#;

/// Builds the script of a page. Also returns the skipped blocks, each with the reason.
fn script(page: &str, blocks: &[Block]) -> (String, Vec<String>) {
    let (mut script, mut skipped) = (PRELUDE.to_owned(), Vec::new());
    for block in blocks {
        let place = format!("{page}:{}", block.line);
        let is_shell = matches!(block.language.as_str(), "" | "sh");
        match &block.kind {
            _ if !is_shell => continue,
            Kind::Run => {}
            Kind::Needs(programs) => {
                if let Some(missing) = programs.iter().find(|program| !is_installed(program)) {
                    skipped.push(format!("{place}: {missing} is not installed"));
                    continue;
                }
            }
            Kind::NotRun | Kind::Synopsis | Kind::Shown => continue,
        }
        script += &format!("place={place}\n");
        for command in block.commands() {
            let ends_itself = ["--check", "--example"].iter().any(|it| command.contains(it));
            let is_server = command.trim_start().starts_with("forebay serve") && !ends_itself;
            let is_background = command.trim_end().ends_with('&');
            script += &match (is_server, is_background) {
                (true, true) => format!("{command}\nwait_until_served $!\n"),
                (true, false) => format!("{}\n", command.replacen("forebay", "serve_briefly", 1)),
                (false, _) => format!("{command}\n"),
            };
        }
    }
    (script, skipped)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Runs the script of a page. On failure, returns its output.
fn run(page: &str, script: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
    let others = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{others}", program.parent().unwrap().display());
    let output = Command::new("timeout")
        .args(["--kill-after=10", "600", "bash", "-c", script])
        .current_dir(folder.path())
        .env("PATH", path)
        .env("FOREBAY_STATE", folder.path().join("state"))
        .env("TMPDIR", folder.path())
        .env("HOME", folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("{page}: {}\n{}{said}", output.status, String::from_utf8_lossy(&output.stdout)))
}

/// Builds `forebay-lab` beside the program: cargo builds the programs of one package for a test.
/// With the tests of all packages, as `cargo test --workspace` does, because dependencies have the
/// features that all of these need: it would build them anew for one program alone.
fn build_lab() {
    let folder = Path::new(env!("CARGO_BIN_EXE_forebay")).parent().unwrap();
    let profile = if folder.ends_with("release") { "release" } else { "dev" };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--offline", "--workspace", "--bins", "--tests"]);
    cargo.args(["--profile", profile, "--target-dir"]).arg(folder.parent().unwrap());
    assert!(cargo.status().unwrap().success(), "forebay-lab cannot be built");
    assert!(folder.join("forebay-lab").is_file(), "forebay-lab is not beside forebay");
}

#[test]
fn every_documented_command_succeeds() {
    build_lab();
    let mut failures = Vec::new();
    std::thread::scope(|scope| {
        let mut pages = Vec::new();
        for (page, text) in documents() {
            let (script, skipped) = script(&page, &blocks(&text).unwrap());
            for block in skipped {
                println!("skipped: {block}");
            }
            pages.push(scope.spawn(move || run(&page, &script)));
        }
        failures.extend(pages.into_iter().filter_map(|page| page.join().unwrap().err()));
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_page_with_a_wrong_command_fails_and_names_the_line() {
    let page = |text: &str| {
        let (script, _) = script("page.md", &blocks(text).unwrap());
        run("page.md", &script)
    };
    for wrong in ["forebay volume lost", "forebay serve --no-such-option", "no-such-program"] {
        let error = page(&format!("text\n\n    {wrong}\n    true\n")).unwrap_err();
        assert!(error.contains("FAILED: page.md:3: "), "{error}");
    }
    assert_eq!(page("text\n\n    forebay --version\n"), Ok(()));
    assert_eq!(page("<!-- not run: it would fail -->\n\n    false\n"), Ok(()));
    assert_eq!(page("<!-- needs: no-such-program -->\n```sh\nno-such-program\n```\n"), Ok(()));
}

#[test]
fn comments_select_how_a_block_is_tested() {
    let text = "<!-- run: a; b -->\n\n<!-- shown -->\n\n    c\n\n    d\n\n```toml\ne = 1\n```\n";
    let found = blocks(text).unwrap();
    let parts: Vec<_> = found.iter().map(|block| (block.line, &block.kind, &*block.text)).collect();
    assert_eq!(
        parts,
        [(1, &Kind::Run, "a; b"), (5, &Kind::Shown, "c\n\nd"), (9, &Kind::Run, "e = 1")]
    );
    assert_eq!(found[2].language, "toml");
    for wrong in ["<!-- skip -->\n\n    a\n", "<!-- needs: -->\n\n    a\n", "<!-- shown -->\nb\n"] {
        assert!(blocks(wrong).is_err(), "{wrong}");
    }
}
