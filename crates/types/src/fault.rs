//! Errors for the operator: message, causes, remedy and origin.
//!
//! The message of an error is its `Display`, and its cause is its `source`; neither repeats the
//! other. A [`Remedy`] is a list of alternatives. An alternative that needs a command or an option
//! is an [`Action`]. The program that shows the error words the actions, because libraries do not
//! know the names of its commands and options.

use crate::Shown;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// The origin of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The operator: the request is invalid whatever the state of the machine.
    Operator,
    /// A disk, a file, a device, the network or the kernel: the same request may succeed later.
    Environment,
    /// This program.
    Bug,
}

/// A remedy that needs a command or an option of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Set a setting of the program.
    Set {
        /// Its name in the configuration file.
        setting: &'static str,
        /// The value or a placeholder, such as `PATH`.
        value: Cow<'static, str>,
    },
    /// Read another configuration file.
    NameConfiguration,
    /// Name the state directory of another server.
    NameState,
    /// Start a server.
    Start,
    /// Serve a volume for one start although its disk has changed.
    AcceptChangedDisk(String),
    /// Serve a volume for one start without the data in its lost journal.
    AcceptLostJournal(String),
    /// Serve a volume for one start without the data in its lost vault.
    AcceptLostVault(String),
    /// Serve a disk as raw, whatever its content.
    ServeAsRaw,
    /// List the served volumes.
    ListVolumes,
    /// Trust the disk of a volume again.
    TrustVolume(String),
    /// Remove a volume.
    RemoveVolume(String),
    /// Remove a volume, and give up what its disk does not take.
    DiscardVolume(String),
    /// Repeat a stop that was refused, to discard data.
    RepeatStop,
    /// List the contents of a journal or a vault.
    RescueList,
    /// Write the contents of a journal or a vault to a disk.
    RescueApply,
    /// Discard the contents of a journal or a vault.
    RescueDiscard,
    /// Discard the data of one volume in a journal or a vault.
    RescueDiscardOf {
        /// The journal or the vault.
        log: String,
        /// The volume.
        volume: String,
    },
    /// Report a bug of this program.
    Report,
}

impl Action {
    /// Sets `setting` to `value`.
    pub fn set(setting: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        Self::Set { setting, value: value.into() }
    }
}

impl fmt::Display for Action {
    /// Describes the action without naming a command or an option.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set { setting, value } => write!(f, "set {setting} to {value}"),
            Self::NameConfiguration => f.write_str("specify another configuration file"),
            Self::NameState => f.write_str("specify the state directory of the other server"),
            Self::Start => f.write_str("start a server"),
            Self::AcceptChangedDisk(volume) => write!(f, "accept the changed disk of '{volume}'"),
            Self::AcceptLostJournal(volume) => write!(f, "accept the lost journal of '{volume}'"),
            Self::AcceptLostVault(volume) => write!(f, "accept the lost vault of '{volume}'"),
            Self::ServeAsRaw => f.write_str("serve it as raw if a raw disk has that content"),
            Self::ListVolumes => f.write_str("list the volumes"),
            Self::TrustVolume(volume) => write!(f, "trust the disk of '{volume}' again"),
            Self::RemoveVolume(volume) => write!(f, "remove '{volume}' once its disk answers"),
            Self::DiscardVolume(volume) => write!(f, "give up the dirty data of '{volume}'"),
            Self::RepeatStop => f.write_str("repeat the stop to discard the dirty data"),
            Self::RescueList => f.write_str("list its contents"),
            Self::RescueApply => f.write_str("write its contents to the disk"),
            Self::RescueDiscard => f.write_str("discard its contents"),
            Self::RescueDiscardOf { log, volume } => {
                write!(f, "discard the data of '{volume}' in {log}")
            }
            Self::Report => f.write_str("report this as a bug in forebay"),
        }
    }
}

/// One alternative of a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alternative {
    /// A clause that names no command or option of the program.
    Text(Cow<'static, str>),
    /// A command or an option of the program.
    Act(Action),
}

impl From<&'static str> for Alternative {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Alternative {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<Action> for Alternative {
    fn from(action: Action) -> Self {
        Self::Act(action)
    }
}

/// The remedy for an error: alternatives, the best one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    first: Alternative,
    others: Vec<Alternative>,
}

impl<T: Into<Alternative>> From<T> for Remedy {
    fn from(first: T) -> Self {
        Self { first: first.into(), others: Vec::new() }
    }
}

impl Remedy {
    /// Appends an alternative.
    #[must_use]
    pub fn or(mut self, other: impl Into<Alternative>) -> Self {
        self.others.push(other.into());
        self
    }

    /// The alternatives.
    pub fn alternatives(&self) -> impl Iterator<Item = &Alternative> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The remedy as a clause. `word` renders the actions. Consecutive settings share the words
    /// that they begin with: `start the server with --memory 1GiB or --workers 1`.
    pub fn worded(&self, word: impl Fn(&Action) -> String) -> String {
        let mut clause = String::new();
        let mut setting_before = None;
        for alternative in self.alternatives() {
            let (text, setting) = match alternative {
                Alternative::Text(text) => (text.to_string(), None),
                Alternative::Act(action) => {
                    let text = word(action);
                    let is_setting = matches!(action, Action::Set { .. });
                    (text.clone(), is_setting.then_some(text))
                }
            };
            let both = setting_before.as_deref().zip(setting.as_deref());
            let same = both.map_or(0, |(before, text)| same_words(before, text));
            if !clause.is_empty() {
                clause += if same > 0 { " or " } else { ", or " };
            }
            clause += &text[same..];
            setting_before = setting;
        }
        // Escaped, because alternatives may quote the operator's input.
        Shown::line(&clause).to_string()
    }
}

/// The length of the whole words, with their spaces, with which both texts begin, in bytes.
fn same_words(one: &str, other: &str) -> usize {
    let pairs = one.bytes().zip(other.bytes());
    let same = pairs.take_while(|(a, b)| a == b).count();
    one.as_bytes()[..same].iter().rposition(|&byte| byte == b' ').map_or(0, |space| space + 1)
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.worded(Action::to_string))
    }
}

/// A [`Fault`] that [`faults`](crate::faults) lists.
#[doc(hidden)]
pub trait Listed {}

/// Lists the types of a crate that are a [`Fault`], in a function `fault_in` that recognises them
/// behind `dyn Error`. A type that is not listed does not compile: its remedy would be lost where
/// errors have lost their types.
#[macro_export]
macro_rules! faults {
    ($($fault:ty),+ $(,)?) => {
        $(impl $crate::Listed for $fault {})+

        /// The error as a fault, if it is one of this crate.
        pub fn fault_in<'a>(
            error: &'a (dyn ::std::error::Error + 'static),
        ) -> Option<&'a dyn $crate::Fault> {
            None$(.or_else(|| error.downcast_ref::<$fault>().map(|fault| fault as _)))+
        }
    };
}

/// An error for the operator. Its message names the object and what is wrong with it.
pub trait Fault: Error + Listed {
    /// The remedy.
    fn remedy(&self) -> Remedy;

    /// The origin of the fault.
    fn blame(&self) -> Blame {
        Blame::Environment
    }

    /// The message and all causes.
    fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }

    /// Message, causes and remedy in one line, which names no command or option.
    fn explained(&self) -> String {
        format!("{}: {}", self.with_causes(), self.remedy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoError;

    #[derive(Debug)]
    struct Broken(IoError);

    impl fmt::Display for Broken {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the vault can't be read")
        }
    }

    impl Error for Broken {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    crate::faults! { Broken }

    impl Fault for Broken {
        fn remedy(&self) -> Remedy {
            Remedy::from("repair it").or(Action::set("vault", "PATH")).or("do without".to_owned())
        }
    }

    #[test]
    fn a_shown_error_has_its_message_causes_and_remedy() {
        let error = Broken(IoError::Io);
        let cause = "the vault can't be read: input/output error";
        assert_eq!(error.with_causes(), cause);
        let remedy = "repair it, or set vault to PATH, or do without";
        assert_eq!(error.explained(), format!("{cause}: {remedy}"));
        let found = fault_in(&error).expect("it is listed");
        assert_eq!(found.remedy().to_string(), remedy);
        assert!(fault_in(&IoError::Io).is_none());
        let worded = error.remedy().worded(|action| match action {
            Action::Set { setting, value } => format!("use --{setting} {value}"),
            other => panic!("{other}"),
        });
        assert_eq!(worded, "repair it, or use --vault PATH, or do without");
    }

    #[test]
    fn settings_in_a_row_do_not_repeat_their_words() {
        let memory = || Remedy::from(Action::set("memory", "1GiB"));
        let two = memory().or(Action::set("memory-reserve", "2GiB")).or("add memory");
        assert_eq!(two.to_string(), "set memory to 1GiB or memory-reserve to 2GiB, or add memory");
        let apart = memory().or("add memory").or(Action::set("workers", "1"));
        assert_eq!(apart.to_string(), "set memory to 1GiB, or add memory, or set workers to 1");
        let values = Remedy::from(Action::set("io", "epoll")).or(Action::set("io", "auto"));
        assert_eq!(values.to_string(), "set io to epoll or auto");
        let other = memory().or(Action::RepeatStop);
        assert_eq!(
            other.to_string(),
            "set memory to 1GiB, or repeat the stop to discard the dirty data"
        );
        let unlike = memory().or(Action::set("io", "auto")).worded(|action| match action {
            Action::Set { setting, .. } => format!("{setting} changed"),
            other => panic!("{other}"),
        });
        assert_eq!(unlike, "memory changed, or io changed");
    }
}
