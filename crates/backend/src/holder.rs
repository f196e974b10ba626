//! What a store says of the process that has it, so that a process that follows a killed one can
//! tell that the store is free.
//!
//! A process that ends without closing an image of Ceph keeps its lock for 30 seconds, until the
//! cluster notices, and one that has a volume on S3 keeps it for ever. The next process on the same
//! machine need not wait if it is certain that the holder is gone. The record is kept with the
//! store (a metadatum of the image, or the manifest on S3). It has a text that says to which lock
//! it belongs, as the store names its owner, and counts for no other one.

use std::fmt;
use std::fs::read_to_string;

/// A process that has a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The lock's owner as the store names it, such as the address of the connection to Ceph.
    owner: String,
    /// The name of the machine.
    host: String,
    /// Identifies the running system: another one after each boot.
    boot: String,
    /// Identifies the namespace of process numbers.
    namespace: String,
    process: u32,
    /// When the process was started, in clock ticks after the boot: a number may be used again.
    started: u64,
}

/// What is known of the owner of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A process of this machine that has ended.
    Gone,
    /// It runs, or it may run.
    Unknown,
}

impl Holder {
    /// This process, as the owner `owner` of a lock.
    pub fn here(owner: &str) -> Option<Self> {
        let process = std::process::id();
        Some(Self {
            owner: owner.to_owned(),
            host: word(&read_to_string("/proc/sys/kernel/hostname").ok()?)?,
            boot: word(&read_to_string("/proc/sys/kernel/random/boot_id").ok()?)?,
            namespace: namespace()?,
            process,
            started: started(process)?,
        })
    }

    /// Reads a record of the owner `owner`. `None` if it is of another one, or malformed.
    pub fn parse(text: &str, owner: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [of, host, boot, namespace, process, started] = words[..] else { return None };
        (of == owner).then_some(())?;
        let [of, host, boot, namespace] = [of, host, boot, namespace].map(str::to_owned);
        let (process, started) = (process.parse().ok()?, started.parse().ok()?);
        Some(Self { owner: of, host, boot, namespace, process, started })
    }

    /// Whether the process has certainly ended.
    pub fn fate(&self) -> Fate {
        self.fate_seen_from(Self::here(&self.owner), started(self.process))
    }

    fn fate_seen_from(&self, here: Option<Self>, started: Option<u64>) -> Fate {
        // After a boot, and in another container, its number says nothing. The cluster notices.
        let is_near =
            here.is_some_and(|here| here.boot == self.boot && here.namespace == self.namespace);
        if is_near && started != Some(self.started) { Fate::Gone } else { Fate::Unknown }
    }

    /// For messages.
    pub fn describe(&self) -> String {
        format!("process {} of Forebay on {}", self.process, self.host)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, host, boot, namespace, process, started } = self;
        write!(f, "{owner} {host} {boot} {namespace} {process} {started}")
    }
}

/// The text without spaces around it, if it is one word.
fn word(text: &str) -> Option<String> {
    let text = text.trim();
    (!text.is_empty() && !text.contains(char::is_whitespace)).then(|| text.to_owned())
}

fn namespace() -> Option<String> {
    word(&std::fs::read_link("/proc/self/ns/pid").ok()?.to_string_lossy())
}

/// When a process was started, in clock ticks after the boot. `None` if it has ended, also if its
/// parent has not collected it yet.
fn started(process: u32) -> Option<u64> {
    let text = read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, which may contain anything, is in parentheses.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then_some(())?;
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_for_its_owner_only() {
        let here = Holder::here("127.0.0.1:0/77").unwrap();
        let text = here.to_string();
        assert_eq!(Holder::parse(&text, "127.0.0.1:0/77"), Some(here));
        assert_eq!(Holder::parse(&text, "127.0.0.1:0/78"), None);
        assert_eq!(Holder::parse("127.0.0.1:0/77 host", "127.0.0.1:0/77"), None);
    }

    #[test]
    fn only_a_process_of_this_boot_and_container_that_has_ended_is_gone() {
        let here = Holder::here("a").unwrap();
        assert_eq!(here.fate(), Fate::Unknown);
        let ended = std::process::Command::new("true").spawn().unwrap();
        let (process, mut ended) = (ended.id(), ended);
        ended.wait().unwrap();
        let gone = Holder { process, ..here.clone() };
        assert_eq!(gone.fate(), Fate::Gone);
        // Its number is in use again.
        assert_eq!(Holder { started: here.started + 1, ..here.clone() }.fate(), Fate::Gone);
        let elsewhere = Holder { boot: "x".into(), ..gone.clone() };
        assert_eq!(elsewhere.fate(), Fate::Unknown);
        let elsewhere = Holder { namespace: "pid:[1]".into(), ..gone };
        assert_eq!(elsewhere.fate(), Fate::Unknown);
    }
}
