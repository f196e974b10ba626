//! Checks the commands of the documents against the command line of a program, without running
//! them.

use super::blocks::{Kind, blocks};

/// A program whose commands the documents print.
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// Its command line.
    pub command: clap::Command,
    /// Whether it accepts these arguments; the first is its name.
    pub accepts: fn(&[String]) -> Result<(), String>,
}

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
    // `...` stands for further arguments.
    words.retain(|word| word != "...");
    words
}

impl Program {
    /// Whether the program accepts a command.
    pub fn check(&self, command: &str) -> Result<(), String> {
        (self.accepts)(&words(command))
    }

    /// Whether all subcommands and options in the form of a command exist.
    pub fn check_synopsis(&self, form: &str) -> Result<(), String> {
        let form = form.replace(['[', ']'], " ").replace("...", " ");
        let mut command = &self.command;
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
                command =
                    found.ok_or(format!("{} has no subcommand {word}", command.get_name()))?;
            }
        }
        Ok(())
    }

    /// The command of the program in a line, without a path before its name.
    pub fn command_in<'a>(&self, line: &'a str) -> Option<&'a str> {
        let (line, start) = (line.trim_start(), format!("{} ", self.name));
        let at = if line.starts_with(&start) { 0 } else { line.find(&format!("/{start}"))? + 1 };
        Some(&line[at..])
    }

    /// The errors in the program's commands in a document, and the number of these commands.
    pub fn check_document(&self, page: &str, text: &str) -> (Vec<String>, usize) {
        let (mut wrong, mut count) = (Vec::new(), 0);
        let mut note = |line: usize, what: &str, result: Result<(), String>| {
            count += 1;
            wrong.extend(result.err().map(|why| format!("{page}:{line}: {what}: {why}")));
        };
        for block in blocks(text).unwrap_or_else(|error| panic!("{page}: {error}")) {
            for line in block.commands() {
                let Some(command) = self.command_in(&line) else { continue };
                let result = match block.kind {
                    Kind::Synopsis => self.check_synopsis(command),
                    Kind::Shown => Err("the block is said to hold no commands".into()),
                    Kind::Run | Kind::Needs(_) | Kind::NotRun => self.check(command),
                };
                note(block.line, &line, result);
            }
        }
        // Code in a sentence may be only a part of a command.
        for (index, line) in text.lines().enumerate() {
            let codes = line.split('`').skip(1).step_by(2);
            for code in codes.filter(|code| code.starts_with(&format!("{} ", self.name))) {
                note(index + 1, code, self.check_synopsis(code));
            }
        }
        (wrong, count)
    }
}
