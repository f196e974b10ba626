//! Errors as the program shows them: one line on standard error, and an exit code.

use crate::space::AllocateError;
use crate::usage;
use clap::error::ErrorKind as UsageKind;
use forebay_api::{ErrorKind, Problem};
use forebay_config::ConfigError;
use forebay_power::drivers::AddressError;
use forebay_power::{ExpressionError, RulesError};
use forebay_terminal::Failure;
use forebay_types::{Action, Blame, Fault, Shown};
use std::error::Error;
use std::process::ExitCode;

pub(crate) use forebay_terminal::{misconfigured, print, print_escaped, print_json, with_remedy};

/// What the server and its client say of a volume on standby whose disk has no fence.
pub(crate) const NOTHING_SHUTS_OUT: &str =
    "nothing shuts a former owner out of its disk: make sure that no other host serves it";

/// The exit code for an invalid command line or configuration.
const USAGE: u8 = 2;

/// Prints the error of an invalid command line, or the requested help or version.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return print(&error.to_string()).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    match error.source() {
        // One of our parsers refused a value. Its message is more specific than clap's.
        Some(source) => match any_fault_in(source) {
            Some(fault) => print_error(&sentence_of(fault)),
            None => print_error(&source.to_string()),
        },
        // Without arguments, clap shows the help.
        None if error.kind() == UsageKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{}", Shown::lines(&error.to_string()));
        }
        None => print_error(&usage::sentence(error)),
    }
    ExitCode::from(USAGE)
}

/// The action of a remedy, in the commands and options of this program.
fn action_text(action: &Action) -> String {
    match action {
        Action::Set { setting, value } => format!("start the server with --{setting} {value}"),
        Action::NameConfiguration => "name another file with --config FILE".into(),
        Action::NameState => "name another state directory with --state DIR".into(),
        Action::Start => "start one with `forebay serve`, or see `systemctl status forebay`".into(),
        Action::AcceptChangedDisk(volume) => {
            format!("if this is the right disk, start once with --accept-changed-disk {volume}")
        }
        Action::AcceptLostJournal(volume) => {
            format!("if it is lost, start once with --accept-lost-journal {volume}")
        }
        Action::AcceptLostVault(volume) => {
            format!("if it is lost, start once with --accept-lost-vault {volume}")
        }
        Action::ServeAsRaw => "if a raw disk has that content, add format=raw to the volume".into(),
        Action::ListVolumes => "see the volumes with `forebay volume list`".into(),
        Action::TrustVolume(volume) => {
            format!("check the disk and its data, then run `forebay volume trust {volume}`")
        }
        Action::RemoveVolume(volume) => {
            format!("remove it with `forebay volume remove {volume}` once its disk answers")
        }
        Action::DiscardVolume(volume) => {
            format!("give up the data with `forebay volume discard {volume}`")
        }
        Action::RepeatStop => "repeat `forebay stop` to discard the dirty data".into(),
        Action::RescueList => "see its content with `forebay rescue list`".into(),
        Action::RescueApply => "write its data to a disk with `forebay rescue apply`".into(),
        Action::RescueDiscard => "give up its data with `forebay rescue discard`".into(),
        Action::RescueDiscardOf { log, volume } => {
            format!("give it up with `forebay rescue discard {log} --volume {volume} --yes`")
        }
        Action::Report => "this is a bug in forebay: report it with the log".into(),
    }
}

/// The remedy of a fault, in the words of this program.
fn remedy_of(fault: &dyn Fault) -> String {
    fault.remedy().worded(action_text)
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

/// Like [`problem`], with a more specific kind.
pub(crate) fn problem_of_kind(kind: ErrorKind, fault: &dyn Fault) -> Problem {
    Problem::of(kind, fault, &action_text)
}

forebay_types::faults! { AllocateError }

/// Returns the error as a fault if it is one.
fn any_fault_in<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a dyn Fault> {
    fault_in(error)
        .or_else(|| forebay_terminal::fault_in(error))
        .or_else(|| forebay_config::fault_in(error))
        .or_else(|| forebay_backend::fault_in(error))
        .or_else(|| forebay_backend_s3::fault_in(error))
        .or_else(|| forebay_control::fault_in(error))
        .or_else(|| forebay_runtime::fault_in(error))
        .or_else(|| forebay_power::fault_in(error))
        .or_else(|| forebay_power::drivers::fault_in(error))
        .or_else(|| forebay_api::fault_in(error))
}

/// An error with its causes, and the remedy of the first of them that is a fault.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let fault = error.chain().find_map(any_fault_in);
    match fault {
        Some(fault) => format!("{error:#}: {}", remedy_of(fault)),
        None => format!("{error:#}"),
    }
}

/// An error as the API shows it: its causes, and the remedy of the first of them that is a fault.
pub(crate) fn problem_in(error: &anyhow::Error) -> Problem {
    let (message, fault) = (format!("{error:#}"), error.chain().find_map(any_fault_in));
    let remedy = fault.map_or_else(|| "resolve the system's error".to_owned(), remedy_of);
    let kind = match fault.map(Fault::blame) {
        Some(Blame::Operator) => ErrorKind::Invalid,
        Some(Blame::Bug) => ErrorKind::Internal,
        Some(Blame::Environment) | None => ErrorKind::Failed,
    };
    Problem::new(kind, message, remedy)
}

/// Prints an error and returns its exit code.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    print_error(&sentence(error));
    if error.chain().any(is_usage) { USAGE.into() } else { ExitCode::FAILURE }
}

/// Whether an error is one of the command line or the configuration alone.
fn is_usage(error: &(dyn Error + 'static)) -> bool {
    error.is::<ConfigError>()
        || error.is::<AddressError>()
        || error.is::<ExpressionError>()
        || error.is::<RulesError>()
        || error.downcast_ref::<Failure>().is_some_and(|it| it.blame() == Blame::Operator)
}

/// Prints a warning.
pub(crate) fn warn(sentence: &str) {
    print_error(&format!("warning: {sentence}"));
}

/// Says on standard error what a command is waiting for.
pub(crate) fn note(sentence: &str) {
    print_error(sentence);
}

/// Prints one line on standard error. A server does not wait for the reader.
fn print_error(sentence: &str) {
    crate::logging::print(format!("forebay: {}\n", Shown::line(sentence)));
}
