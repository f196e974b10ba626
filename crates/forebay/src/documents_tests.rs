//! The commands that README.md and the manual print are ones that this program understands, also
//! those that no test can run: they need root, a disk to spare, a supply or another machine.

#[path = "../tests/documents/blocks.rs"]
mod blocks;

use crate::cli::{Cli, Command, VolumeCommand};
use blocks::{Kind, blocks, documents};
use clap::{CommandFactory, Parser};
use forebay_config::{FILE_KEYS, VolumeChange, parse_toml};
use forebay_types::{VOLUME_KEYS, VOLUME_SETTINGS};
use std::path::Path;

/// The words of a command as a shell has them, up to a comment, `&`, a pipe or a redirection.
/// Variables stay as they are written.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in command.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '&' | '|' | ';' | '<' | '>') => break,
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    // Dots stand for more of the same.
    words.retain(|word| word != "...");
    words
}

/// Whether the program understands a command, and would accept its settings.
fn check(command: &str) -> Result<(), String> {
    let words = words(command);
    let cli = Cli::try_parse_from(&words).map_err(|error| error.to_string())?;
    match cli.command {
        // The configuration file is one of the reader's machine.
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

/// Whether all subcommands and options in the form of a command exist.
fn check_synopsis(form: &str) -> Result<(), String> {
    let form = form.replace(['[', ']'], " ").replace("...", " ");
    let cli = Cli::command();
    let mut command = &cli;
    for word in form.split_whitespace().skip(1) {
        let is_name = word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        if let Some(option) = word.strip_prefix("--") {
            let option = option.split('=').next().unwrap_or(option);
            let mut arguments = command.get_arguments();
            let is_known = arguments.any(|argument| argument.get_long() == Some(option));
            if !is_known && !["help", "version"].contains(&option) {
                return Err(format!("{} has no option --{option}", command.get_name()));
            }
        } else if command.has_subcommands() && is_name {
            let found = command.find_subcommand(word);
            command = found.ok_or(format!("{} has no subcommand {word}", command.get_name()))?;
        }
    }
    Ok(())
}

/// Whether the program of this repository that a line begins with, if any, is there.
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

/// The `forebay` command in a line, which may stand behind a path.
fn command_in(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let at = if line.starts_with("forebay ") { 0 } else { line.find("/forebay ")? + 1 };
    Some(&line[at..])
}

/// What is wrong with the commands of a document, and how many there are.
fn check_document(page: &str, text: &str) -> (Vec<String>, usize) {
    let (mut wrong, mut count) = (Vec::new(), 0);
    let mut note = |line: usize, what: &str, result: Result<(), String>| {
        count += 1;
        wrong.extend(result.err().map(|why| format!("{page}:{line}: {what}: {why}")));
    };
    for block in blocks(text).unwrap_or_else(|error| panic!("{page}: {error}")) {
        if block.language == "toml" {
            let result = parse_toml(&block.text, page).map(drop).map_err(|error| error.to_string());
            note(block.line, "the file", result);
            continue;
        }
        for line in block.commands() {
            let Some(command) = command_in(&line) else {
                note(block.line, &line, check_program(&line));
                continue;
            };
            let result = match block.kind {
                Kind::Synopsis => check_synopsis(command),
                Kind::Shown => Err("the block is said to hold no commands".into()),
                Kind::Run | Kind::Needs(_) | Kind::NotRun => check(command),
            };
            note(block.line, &line, result);
        }
    }
    // What the sentences mention may be as short as a subcommand.
    for (index, line) in text.lines().enumerate() {
        let codes = line.split('`').skip(1).step_by(2);
        for code in codes.filter(|code| code.starts_with("forebay ")) {
            note(index + 1, code, check_synopsis(code));
        }
    }
    (wrong, count)
}

#[test]
fn every_command_in_the_documents_is_understood() {
    let checked: Vec<_> =
        documents().iter().map(|(page, text)| check_document(page, text)).collect();
    let wrong: Vec<_> = checked.iter().flat_map(|(wrong, _)| wrong.clone()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let count: usize = checked.iter().map(|(_, count)| count).sum();
    assert!(count > 100, "only {count} commands were found");
}

#[test]
fn every_setting_is_in_the_manual() {
    let (_, serve) = documents().into_iter().find(|(page, _)| page.ends_with("serve.md")).unwrap();
    for key in VOLUME_KEYS.iter().chain(FILE_KEYS) {
        let is_there = serve.contains(&format!("`{key}`")) || serve.contains(&format!("[{key}]"));
        assert!(is_there, "serve.md says nothing of {key}");
    }
}

/// Values of a setting as the manual writes them: "a size, `none`, `auto`".
fn values_in_manual(values: &str) -> String {
    let in_words = |value: &str| match value {
        "BACKING" => "a backing".to_owned(),
        "SIZE" => "a size".to_owned(),
        "TIME" => "a time".to_owned(),
        "NUMBER" => "a number".to_owned(),
        "TEXT" => "a line of text".to_owned(),
        word => format!("`{word}`"),
    };
    values.split('|').map(in_words).collect::<Vec<_>>().join(", ")
}

/// A sentence without the addresses of its links.
fn without_links(text: &str) -> String {
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    let plain = parts
        .fold(first, |plain, part| plain + part.split_once(')').map_or(part, |(_, behind)| behind));
    plain.replace('[', "")
}

#[test]
fn the_table_of_a_volumes_settings_is_that_of_the_program() {
    let (_, serve) = documents().into_iter().find(|(page, _)| page.ends_with("serve.md")).unwrap();
    let (_, volumes) = serve.split_once("\n## Volumes\n").unwrap();
    let (volumes, _) = volumes.split_once("\n## ").unwrap();
    let rows: Vec<_> = volumes.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows.len(), VOLUME_SETTINGS.len(), "{rows:#?}");
    for (row, setting) in rows.into_iter().zip(VOLUME_SETTINGS) {
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

/// The source of all crates without its tests, with strings that go over several lines in one.
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

/// What a sentence of the manual says word by word: dots and numbers stand for what differs.
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
    let (_, operate) = pages.iter().find(|(page, _)| page.ends_with("operate.md")).unwrap();
    let (_, sentences) = operate.split_once("\n## Sentences\n").unwrap();
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
fn commands_that_do_not_exist_are_found() {
    for wrong in [
        "forebay volume lost disk",
        "forebay serve --no-such-option",
        "forebay serve --volume disk=/dev/sdb,mode=write-back",
        "forebay serve --volume disk=/dev/sdb,colour=blue",
        "forebay volume set disk colour=blue",
        "forebay lab run cash-effect",
    ] {
        assert!(check(wrong).is_err(), "{wrong}");
        let (found, _) = check_document("page.md", &format!("text\n\n    {wrong}\n"));
        assert!(found.len() == 1 && found[0].starts_with("page.md:3: "), "{found:?}");
    }
    for right in ["forebay serve --volume 'a=delay(read=1ms):b.img' &", "forebay status  # shows"] {
        assert_eq!(check(right), Ok(()), "{right}");
    }
    assert!(check_synopsis("forebay volume add NAME=BACKING[,KEY=VALUE...]").is_ok());
    assert!(check_synopsis("forebay volume lost NAME").is_err());
    assert!(check_synopsis("forebay status [--xml]").is_err());
}
