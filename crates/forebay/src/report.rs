//! What went wrong, in one line for people and one number for programs.

use clap::error::{ContextKind, ContextValue, ErrorKind as UsageKind};
use forebay_api::{ClientError, ErrorKind, Problem};
use forebay_backend::OpenError;
use forebay_config::{ConfigError, MemoryError};
use forebay_control::{ControlError, SocketError};
use forebay_power::drivers::{AddressError, AuthorityError};
use forebay_power::{ExpressionError, RulesError};
use forebay_runtime::{JournalError, StartError, VaultError, VolumeError};
use forebay_types::{Action, Blame, Fault, Remedy, Shown};
use std::{
    error::Error,
    fmt,
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
        Some(source) => match fault_in(source) {
            Some(fault) => say(&sentence_of(fault)),
            None => say(&source.to_string()),
        },
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

/// The words of this program for a remedy that takes a command or an option of it.
fn word(action: &Action) -> String {
    match action {
        Action::Set { setting, value } => format!("start the server with --{setting} {value}"),
        Action::NameConfiguration => "name another one with --config FILE".into(),
        Action::NameState => "name the state directory of another with --state DIR".into(),
        Action::Start => "start one with `forebay serve`".into(),
        Action::AcceptChangedDisk(volume) => {
            format!(
                "if this is the disk to go on with, start once with --accept-changed-disk {volume}"
            )
        }
        Action::AcceptLostJournal(volume) => {
            format!("if it is lost, start once with --accept-lost-journal {volume}")
        }
        Action::AcceptLostVault(volume) => {
            format!("if that is lost, start once with --accept-lost-vault {volume}")
        }
        Action::ListVolumes => "see `forebay volume list` for those there are".into(),
        Action::TrustVolume(volume) => {
            format!("check the disk and what is on it, then say `forebay volume trust {volume}`")
        }
        Action::RescueList => "see what it holds with `forebay rescue list`".into(),
        Action::RescueApply => "write what it holds to a disk with `forebay rescue apply`".into(),
        Action::RescueDiscard => "give up what it holds with `forebay rescue discard`".into(),
        Action::RescueDiscardOf { log, volume } => {
            format!("give it up with `forebay rescue discard {log} --volume {volume} --yes`")
        }
        Action::Report => "this is a fault of forebay: report it with the log".into(),
    }
}

/// What to do about a fault, in the words of this program.
fn remedy_of(fault: &dyn Fault) -> String {
    fault.remedy().worded(word)
}

/// Message, causes and remedy of a fault, in the words of this program.
pub(crate) fn sentence_of(fault: &dyn Fault) -> String {
    format!("{}: {}", fault.with_causes(), remedy_of(fault))
}

/// A fault as the API shows it.
pub(crate) fn problem(fault: &dyn Fault) -> Problem {
    let kind = match fault.blame() {
        Blame::Operator => ErrorKind::Invalid,
        Blame::Environment => ErrorKind::Failed,
        Blame::Bug => ErrorKind::Internal,
    };
    problem_of_kind(kind, fault)
}

/// The same, where the kind is known better.
pub(crate) fn problem_of_kind(kind: ErrorKind, fault: &dyn Fault) -> Problem {
    Problem::of(kind, fault, &word)
}

/// A failure of this crate, which has no type of its own, with what to do about it.
#[derive(Debug)]
pub(crate) struct Failure {
    error: anyhow::Error,
    remedy: Remedy,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

impl Fault for Failure {
    fn remedy(&self) -> Remedy {
        self.remedy.clone()
    }
}

/// A failure and what the operator can do about it.
pub(crate) fn with_remedy(
    error: impl Into<anyhow::Error>,
    remedy: impl Into<Remedy>,
) -> anyhow::Error {
    Failure { error: error.into(), remedy: remedy.into() }.into()
}

/// The fault that an error is, if it is one.
fn fault_in<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a dyn Fault> {
    fn of<'a, T: Fault + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a dyn Fault> {
        error.downcast_ref::<T>().map(|fault| fault as _)
    }
    of::<Failure>(error)
        .or_else(|| of::<ConfigError>(error))
        .or_else(|| of::<MemoryError>(error))
        .or_else(|| of::<OpenError>(error))
        .or_else(|| of::<ControlError>(error))
        .or_else(|| of::<SocketError>(error))
        .or_else(|| of::<StartError>(error))
        .or_else(|| of::<VolumeError>(error))
        .or_else(|| of::<JournalError>(error))
        .or_else(|| of::<VaultError>(error))
        .or_else(|| of::<AddressError>(error))
        .or_else(|| of::<AuthorityError>(error))
        .or_else(|| of::<ExpressionError>(error))
        .or_else(|| of::<RulesError>(error))
        .or_else(|| of::<ClientError>(error))
        .or_else(|| of::<Problem>(error))
}

/// An error with its causes and, where one of them is a fault, what to do about it.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let fault = error.chain().find_map(fault_in);
    match fault {
        Some(fault) => format!("{error:#}: {}", remedy_of(fault)),
        None => format!("{error:#}"),
    }
}

/// Says what failed.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    say(&sentence(error));
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
