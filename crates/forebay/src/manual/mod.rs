//! What is installed beside the program: manual pages, and completions for shells. They are made of
//! the descriptions that the program itself uses, of its command line and of its settings.

mod settings;

use crate::cli::Cli;
use crate::report;
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::path::Path;

/// The name of the manual, at the foot of each page.
const MANUAL: &str = "Forebay";

/// The files and directories that commands use, with their meanings.
const FILES: [(&str, &str); 4] = [
    ("/etc/forebay/forebay.toml", "Configuration of the service: see forebay.toml(5)."),
    ("/var/lib/forebay", "State directory of the service. /run/forebay is a link to it."),
    ("/run/forebay/control.sock", "Control socket, by which commands reach the server."),
    ("/dev/forebay/VOLUME", "Block device of a volume that is attached: see forebay-attach(1)."),
];

/// The exit codes, with their meanings.
const EXIT_CODES: [(&str, &str); 5] = [
    ("0", "Success."),
    ("1", "The command failed. Standard error says why, and what to do."),
    ("2", "The command line or the configuration is invalid. Nothing was done."),
    ("3", "forebay status --check: something does not work as configured."),
    ("4", "forebay status --check: requests fail or wait for a disk, or data is at risk."),
];

/// The environment variables, with their meanings.
const ENVIRONMENT: [(&str, &str); 2] = [
    ("FOREBAY_STATE", "State directory, unless --state names one."),
    ("NO_COLOR", "Without colors, if it is set and not empty."),
];

/// Prints the completions of the command for a shell.
///
/// # Errors
/// Fails if standard output takes nothing.
pub(crate) fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "forebay", &mut text);
    report::print_escaped(&String::from_utf8(text).context("completions are text")?)
}

/// Writes the manual pages into a directory: section 1 into `man1`, section 5 into `man5`.
///
/// # Errors
/// Fails if a file cannot be written.
pub(crate) fn write_pages(directory: &Path) -> anyhow::Result<()> {
    for (name, text) in pages() {
        let section = name.rsplit('.').next().expect("the name of a page ends with its section");
        let folder = directory.join(format!("man{section}"));
        let path = folder.join(&name);
        std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(&path, text))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// All pages: the names of their files, and their texts.
fn pages() -> Vec<(String, String)> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_command(&mut pages, &command, None);
    pages.push(("forebay.toml.5".to_owned(), settings::page()));
    pages
}

/// Adds the page of a command, and those of its subcommands.
fn add_command(pages: &mut Vec<(String, String)>, command: &clap::Command, above: Option<&str>) {
    let page = Man::new(command.clone()).source(source()).manual(MANUAL);
    let mut text = Vec::new();
    render(&page, command, &mut text).expect("a vector takes any text");
    let mut text = broken_after_lists(&String::from_utf8(text).expect("help texts are UTF-8"));
    text += &tail(above);
    let name = page.get_filename();
    let own = name.trim_end_matches(".1").to_owned();
    pages.push((name, text));
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        add_command(pages, below, Some(&own));
    }
}

/// Ends the last line of a list in a help text, whose lines begin with blanks: man would join it
/// with the sentence that follows.
fn broken_after_lists(page: &str) -> String {
    let mut text = String::new();
    let mut is_list = false;
    for line in page.lines() {
        if is_list && !line.starts_with([' ', '.']) {
            text += ".br\n";
        }
        is_list = line.starts_with(' ');
        text += line;
        text += "\n";
    }
    text
}

/// The sections that follow from the command line.
fn render(page: &Man, command: &clap::Command, text: &mut Vec<u8>) -> std::io::Result<()> {
    page.render_title(text)?;
    page.render_name_section(text)?;
    page.render_synopsis_section(text)?;
    page.render_description_section(text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        page.render_options_section(text)?;
    }
    if command.has_subcommands() {
        page.render_subcommands_section(text)?;
    }
    Ok(())
}

/// The last sections of a page. The page of the program has what concerns all commands.
fn tail(above: Option<&str>) -> String {
    let mut roff = Roff::new();
    let above = match above {
        None => {
            list(&mut roff, "FILES", &FILES);
            list(&mut roff, "ENVIRONMENT", &ENVIRONMENT);
            list(&mut roff, "EXIT STATUS", &EXIT_CODES);
            "forebay-serve"
        }
        Some(above) => above,
    };
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold(above), roman("(1), "), bold("forebay.toml"), roman("(5)")]);
    roff.render()
}

/// The program and its version, at the foot of each page.
fn source() -> String {
    format!("Forebay {}", env!("CARGO_PKG_VERSION"))
}

/// A section of names and their meanings.
fn list(roff: &mut Roff, title: &str, items: &[(&str, &str)]) {
    roff.control("SH", [title]);
    for (name, meaning) in items {
        roff.control("TP", []);
        roff.text([bold(*name)]);
        roff.text([roman(*meaning)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::{PROGRAM_SETTINGS, VOLUME_SETTINGS};

    fn page(name: &str) -> String {
        let (_, text) = pages().into_iter().find(|(it, _)| it == name).expect(name);
        text
    }

    #[test]
    fn every_command_has_a_page() {
        let names: Vec<_> = pages().into_iter().map(|(name, _)| name).collect();
        for name in ["forebay.1", "forebay-volume.1", "forebay-volume-set.1", "forebay.toml.5"] {
            assert!(names.iter().any(|it| it == name), "{name} in {names:?}");
        }
        let command = Cli::command();
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            let text = page(&format!("forebay-{}.1", below.get_name()));
            assert!(text.contains(".SH SYNOPSIS") && text.contains(".SH \"SEE ALSO\""), "{text}");
        }
        assert!(page("forebay.1").contains(".SH \"EXIT STATUS\""));
    }

    #[test]
    fn the_page_of_the_file_has_every_setting() {
        let text = page("forebay.toml.5");
        for setting in PROGRAM_SETTINGS.iter().chain(&VOLUME_SETTINGS) {
            let key = setting.key.replace('-', "\\-");
            assert!(text.contains(&format!("\\fB{key}\\fR")), "{key} in {text}");
        }
    }

    #[test]
    fn a_sentence_after_a_list_begins_a_line() {
        assert_eq!(broken_after_lists("a\n b\nc\n.PP\n"), "a\n b\n.br\nc\n.PP\n");
        assert!(page("forebay-volume-set.1").contains("\n.br\nTo change other settings"));
    }

    #[test]
    fn completions_know_the_commands_of_each_shell() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "forebay", &mut text);
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains("calibrate") && text.contains("memory-reserve"), "{shell}");
        }
    }
}
