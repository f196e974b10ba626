//! Checks that the program understands every command and configuration file in README.md, the
//! manual and the recipes, including those that no test can run, as they need root, a spare disk, a
//! UPS or another machine.

#[path = "../tests/documents/blocks.rs"]
mod blocks;
#[path = "../tests/documents/check.rs"]
mod check;

use crate::arguments::VolumeCommand;
use crate::cli::{Cli, Command};
use blocks::{blocks, documents};
use check::Program;
use clap::{CommandFactory, Parser};
use forebay_config::{Settings, SettingsSource, VolumeChange};
use forebay_types::{PROGRAM_SETTINGS, VOLUME_SETTINGS};
use std::path::Path;

fn program() -> Program {
    Program { name: "forebay", command: Cli::command(), accepts }
}

/// Checks that the program parses a command and accepts its settings.
fn accepts(words: &[String]) -> Result<(), String> {
    let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
    match cli.command {
        // The configuration file exists only on the reader's machine.
        Command::Serve(_) if words.iter().any(|word| word == "--config") => Ok(()),
        Command::Serve(arguments) => {
            arguments.source().load().map(drop).map_err(|error| error.to_string())
        }
        Command::Volume(VolumeCommand::Set { settings, .. }) => {
            let change = VolumeChange::parse(settings.iter().map(String::as_str));
            change.map(drop).map_err(|error| error.to_string())
        }
        _ => Ok(()),
    }
}

/// Checks that a server would start with this configuration file, as far as that depends on the
/// file alone.
fn load(text: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forebay.toml");
    std::fs::write(&file, text).unwrap();
    let state_default = Some("/var/lib/forebay".into());
    let source = SettingsSource { file: Some(file), options: Settings::default(), state_default };
    source.load().map(drop).map_err(|error| error.to_string())
}

/// If a line runs a program of this repository, checks that the program exists.
fn check_program(line: &str) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = line.split_whitespace().next().unwrap_or_default();
    let source = match program.strip_prefix("target/release/") {
        Some(name) => format!("bench/src/bin/{name}.rs"),
        None if ["./", "scripts/"].iter().any(|start| program.starts_with(start)) => program.into(),
        None => return Ok(()),
    };
    let is_there = root.join(&source).is_file();
    if is_there { Ok(()) } else { Err(format!("there is no {source}")) }
}

/// Returns the errors in a document's configuration files and programs of this repository.
fn check_rest(page: &str, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut note = |line: usize, what: &str, result: Result<(), String>| {
        wrong.extend(result.err().map(|why| format!("{page}:{line}: {what}: {why}")));
    };
    for block in blocks(text).unwrap_or_else(|error| panic!("{page}: {error}")) {
        if block.language == "toml" {
            note(block.line, "the file", load(&block.text));
            continue;
        }
        block.commands().iter().for_each(|line| note(block.line, line, check_program(line)));
    }
    wrong
}

#[test]
fn every_command_in_the_documents_is_understood() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (page, text) in documents() {
        let (wrong_commands, commands) = program().check_document(&page, &text);
        wrong.extend(wrong_commands);
        wrong.extend(check_rest(&page, &text));
        count += commands;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "only {count} commands were found");
}

#[test]
fn the_unit_of_the_manual_keeps_the_pool_while_starts_fail_or_take_long() {
    let (_, serve) = documents().into_iter().find(|(page, _)| page.ends_with("serve.md")).unwrap();
    let blocks = blocks(&serve).unwrap();
    let unit = blocks.iter().find(|block| block.language == "ini").unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd/forebay.service");
    let installed = std::fs::read_to_string(path).unwrap();
    assert_eq!(unit.text.trim_end(), installed.trim_end(), "the manual quotes the unit");
    let sections = unit.text.split_once("\n[Service]\n").unwrap();
    assert!(sections.0.lines().any(|line| line == "StartLimitIntervalSec=0"), "{}", unit.text);
    for wanted in [
        "Type=notify",
        "NotifyAccess=main",
        "FileDescriptorStoreMax=2",
        "FileDescriptorStorePreserve=yes",
        // Its state outlives the process and a reboot.
        "StateDirectory=forebay",
        &format!("TimeoutStartSec={}", crate::keeper::systemd::EXTENSION.as_secs()),
        "TimeoutStartFailureMode=kill",
        "TimeoutStopSec=300",
        "Restart=on-failure",
        &format!("RestartForceExitStatus={}", crate::keeper::UPGRADE_CODE),
    ] {
        assert!(sections.1.lines().any(|line| line == wanted), "{wanted}: {}", unit.text);
    }
}

/// The values of a setting in the manual's form: "a size, `none`, `auto`".
fn values_in_manual(values: &str) -> String {
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    let in_manual = |value: &str| match value {
        "BACKING" => "a backing".to_owned(),
        "SIZE" => "a size".to_owned(),
        "PERCENT" => "a percentage".to_owned(),
        "READ:WRITE" => "two percentages".to_owned(),
        "TIME" => "a time".to_owned(),
        "RANGES" => "ranges".to_owned(),
        "NUMBER" => "a number".to_owned(),
        "TEXT" => "a line of text".to_owned(),
        "HOST:PORT" => "an address".to_owned(),
        "DIR" => "a directory".to_owned(),
        "FILE" => "a file".to_owned(),
        "PATH" => "a path".to_owned(),
        "EXPRESSION" => "an expression".to_owned(),
        "ADDRESS..." => "one or more addresses".to_owned(),
        "ADDRESS:PORT" => "an address with a port".to_owned(),
        "HOST..." => "one or more hosts".to_owned(),
        "UPS..." => "one or more UPSes".to_owned(),
        value => match value.split_once('-') {
            Some((least, most)) if is_number(least) => format!("{least} to {most}"),
            _ => format!("`{value}`"),
        },
    };
    values.split('|').map(in_manual).collect::<Vec<_>>().join(", ")
}

/// Removes the targets of Markdown links.
fn without_links(text: &str) -> String {
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    let plain = parts
        .fold(first, |plain, part| plain + part.split_once(')').map_or(part, |(_, behind)| behind));
    plain.replace('[', "")
}

#[test]
fn the_tables_of_settings_are_those_of_the_program() {
    let (_, serve) = documents().into_iter().find(|(page, _)| page.ends_with("serve.md")).unwrap();
    let settings = PROGRAM_SETTINGS.iter().chain(&VOLUME_SETTINGS);
    let (tables, _) = serve.split_once("\n## Backings\n").unwrap();
    let rows: Vec<_> = tables.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows.len(), settings.clone().count(), "{rows:#?}");
    for (row, setting) in rows.into_iter().zip(settings) {
        let default = match setting.default {
            "" => "|".to_owned(),
            default => format!("| `{default}`"),
        };
        let (key, values) = (setting.key, values_in_manual(setting.values));
        let expected = format!("| `{key}` | {values} {default} | {}", setting.help);
        let row = without_links(row);
        assert!(row.starts_with(&expected), "serve.md: {row}\nexpected: {expected}");
    }
}

/// Collects the source of all crates without tests, with multi-line strings joined.
fn source(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_test = name.contains("tests") || name == "target";
        match path.is_dir() {
            true if !is_test => source(&path, text),
            false if !is_test && name.ends_with(".rs") => {
                let lines = std::fs::read_to_string(&path).unwrap();
                for line in lines.lines() {
                    match line.strip_suffix('\\') {
                        Some(line) => text.push_str(line.trim_start()),
                        None => text.push_str(&format!("{}\n", line.trim_start())),
                    }
                }
            }
            _ => {}
        }
    }
}

/// The literal parts of a message in the manual, between the placeholders `...`, `N` and `M`.
fn fixed_parts(sentence: &str) -> Vec<String> {
    let sentence = sentence.replace("...", "\n").replace("'\n'", "\n");
    let mut parts = vec![String::new()];
    for word in sentence.replace('\n', " \n ").split([' ']) {
        match word {
            "\n" | "N" | "M" => parts.push(String::new()),
            word => *parts.last_mut().unwrap() += &format!("{word} "),
        }
    }
    let trimmed = parts.iter().map(|part| part.trim_matches([' ', '\'', ':', ',', ';']).to_owned());
    trimmed.filter(|part| part.len() >= 7).collect()
}

#[test]
fn every_sentence_that_the_manual_explains_is_in_the_program() {
    let mut text = String::new();
    source(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut text);
    let pages = documents();
    let (_, messages) = pages.iter().find(|(page, _)| page.ends_with("messages.md")).unwrap();
    let (_, sentences) = messages.split_once("\n## Messages\n").unwrap();
    let (mut missing, mut count) = (Vec::new(), 0);
    for row in sentences.lines().filter(|line| line.starts_with("| `")) {
        let cell = row.split('|').nth(1).unwrap();
        let parts: Vec<_> = cell.split('`').skip(1).step_by(2).flat_map(fixed_parts).collect();
        count += parts.len();
        missing.extend(parts.into_iter().filter(|part| !text.contains(part)));
    }
    assert!(missing.is_empty(), "the program never says: {missing:#?}");
    assert!(count > 20, "only {count} sentences were found");
}

#[test]
fn wrong_configuration_files_in_documents_are_found() {
    let page = |settings: &str| format!("text\n\n```toml\n{settings}\n```\n");
    let volume = "[[volume]]\nname = 'a'\nbacking = '/dev/sdb'\nmode = 'write-through'";
    assert_eq!(check_rest("page.md", &page(volume)), Vec::<String>::new());
    let unprotected = volume.replace("through", "back");
    for wrong in ["memmory = '1GiB'", "tls = 'forced'", &unprotected] {
        let found = check_rest("page.md", &page(wrong));
        assert!(found.len() == 1 && found[0].starts_with("page.md:3: "), "{wrong}: {found:?}");
    }
}

#[test]
fn wrong_commands_in_documents_are_found() {
    for wrong in [
        "forebay volume lost disk",
        "forebay serve --no-such-option",
        "forebay serve --volume disk=/dev/sdb,mode=write-back",
        "forebay serve --volume disk=/dev/sdb,colour=blue",
        "forebay volume set disk colour=blue",
        "forebay lab run",
    ] {
        assert!(program().check(wrong).is_err(), "{wrong}");
        let (found, _) = program().check_document("page.md", &format!("text\n\n    {wrong}\n"));
        assert!(found.len() == 1 && found[0].starts_with("page.md:3: "), "{found:?}");
    }
    for right in ["forebay serve --volume 'a=delay(read=1ms):b.img' &", "forebay status  # shows"] {
        assert_eq!(program().check(right), Ok(()), "{right}");
    }
    assert!(program().check_synopsis("forebay volume add NAME=BACKING[,KEY=VALUE...]").is_ok());
    assert!(program().check_synopsis("forebay volume lost NAME").is_err());
    assert!(program().check_synopsis("forebay status [--xml]").is_err());
}
