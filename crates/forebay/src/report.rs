//! What went wrong, in one line for people and one number for programs.

use clap::error::{ContextKind, ContextValue, ErrorKind as UsageKind};
use forebay_api::{ErrorKind, Problem};
use forebay_backend::OpenError;
use forebay_config::ConfigError;
use forebay_types::Shown;
use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

/// The exit code for a command line or a configuration that can't be.
const USAGE: u8 = 2;

/// Says why the command line can't be, or shows the help or the version that it asks for.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return print(&error.to_string()).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    if error.kind() == UsageKind::InvalidSubcommand {
        say(&unknown_command(error));
        return ExitCode::from(USAGE);
    }
    match error.source() {
        // A value that one of our parsers refused; its sentence says more than clap's.
        Some(source) => say(&format!("{source}")),
        None => eprint!("{}", Shown::lines(&error.to_string())),
    }
    ExitCode::from(USAGE)
}

/// What to say to an unknown command. Commands that other caches have are answered with what does
/// the same here: the known command that is spelled most like `top` is `stop`.
fn unknown_command(error: &clap::Error) -> String {
    let strings = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.as_str()],
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let named = strings(ContextKind::InvalidSubcommand).concat();
    let remedy = match &*named {
        "top" | "stats" | "monitor" | "watch" => {
            "`watch forebay status` shows what is going on, again and again".into()
        }
        "freeze" | "snapshot" | "quiesce" | "sync" => {
            "`forebay volume flush NAME` brings a volume's data to its disk; writes are not held, \
             so stop what writes first"
                .into()
        }
        "pin" | "unpin" | "prefetch" | "evict" | "drop" => {
            "what stays in memory follows from its use: give the cache more with `forebay serve \
             --memory SIZE`, or keep a volume out with `forebay volume set NAME mode=bypass`"
                .into()
        }
        "lab" => "the lab is a program of its own: `forebay-lab` has the same subcommands".into(),
        "start" | "run" | "daemon" => "`forebay serve` starts one".into(),
        _ => match strings(ContextKind::SuggestedSubcommand)[..] {
            [] => "`forebay --help` lists the commands".into(),
            [.., best] => format!("is '{best}' meant? `forebay --help` lists the commands"),
        },
    };
    format!("unrecognized subcommand '{named}': {remedy}")
}

/// A failure and what the operator can do about it. The causes of the error are in the message.
pub(crate) fn with_remedy(
    error: impl Into<anyhow::Error>,
    remedy: impl Into<String>,
) -> anyhow::Error {
    Problem::new(ErrorKind::Failed, format!("{:#}", error.into()), remedy).into()
}

/// Why a backend can't be opened, with all causes, and what the operator can do about it.
pub(crate) fn unopened(error: OpenError) -> (String, String) {
    let text = error.to_string();
    let (message, remedy) = match error.remedy() {
        Some(remedy) => (text, remedy),
        // Its sentence ends with the remedy, where it has one.
        None => {
            let parts = text.rsplit_once(": ").unwrap_or((&text, "mend that, and try again"));
            (parts.0.to_owned(), parts.1.to_owned())
        }
    };
    let mut text = message;
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    (text, remedy)
}

/// The same as one error.
pub(crate) fn not_open(error: OpenError) -> anyhow::Error {
    let (message, remedy) = unopened(error);
    with_remedy(anyhow::anyhow!(message), remedy)
}

/// Says what failed.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    say(&format!("{error:#}"));
    if error.downcast_ref::<ConfigError>().is_some() { USAGE.into() } else { ExitCode::FAILURE }
}

/// One line on standard error, where nobody is left to tell when that fails.
fn say(sentence: &str) {
    let _ = writeln!(io::stderr(), "forebay: {}", Shown::line(sentence));
}

/// Writes to standard output. A reader that has seen enough, such as `head`, is no failure.
///
/// # Errors
/// It can't be written, as to a full disk.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    // Tables show what is in names of disks and descriptions, and ask nothing of the terminal.
    let text = Shown::lines(text).to_string();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("standard output can't be written"))
        }
        _ => Ok(()),
    }
}
