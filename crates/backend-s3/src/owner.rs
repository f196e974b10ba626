//! Who has a volume open: a record in its manifest.
//!
//! It decides whether a start may take the volume from a former owner, and nothing else: that
//! nothing of a former owner is stored is up to the epoch and the tombstone. So a record that is
//! wrong costs an interruption, not data.

use forebay_backend::{Fate, Holder};
use std::fs;

/// A record of this process, for an epoch of a volume.
pub(crate) fn here(epoch: u64) -> Option<String> {
    let holder = Holder::here(&epoch.to_string())?;
    Some(format!("{}\n{holder}", machine()))
}

/// What is known of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// It has ended, is a former boot of this machine, or this process itself, which the caller
    /// knows not to have the volume open: a former open or close of it has failed.
    Gone,
    /// It runs, or may run: its name for messages.
    Alive(String),
}

/// Reads the record of the owner of an epoch.
pub(crate) fn of(record: &str, epoch: u64) -> Owner {
    seen_from(&machine(), &boot(), record, epoch)
}

fn seen_from(here: &str, boot: &str, record: &str, epoch: u64) -> Owner {
    if record.is_empty() {
        return Owner::Gone;
    }
    let known = record.split_once('\n');
    let known = known.and_then(|(machine, text)| {
        Some((machine, text, Holder::parse(text, &epoch.to_string())?))
    });
    let Some((machine, text, holder)) = known else {
        return Owner::Alive("another server".into());
    };
    let is_this = Holder::here(&epoch.to_string()).is_some_and(|this| this == holder);
    // A former boot of this machine has no processes any more.
    let is_former_boot = !here.is_empty() && machine == here && !text.contains(boot);
    match holder.fate() {
        Fate::Gone => Owner::Gone,
        Fate::Unknown if is_former_boot || is_this => Owner::Gone,
        Fate::Unknown => Owner::Alive(holder.describe()),
    }
}

/// Identifies the installation and its name; empty if it has no identity.
fn machine() -> String {
    let id = read("/etc/machine-id");
    if id.is_empty() { id } else { format!("{id} {}", read("/proc/sys/kernel/hostname")) }
}

fn boot() -> String {
    read("/proc/sys/kernel/random/boot_id")
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_owner_that_has_certainly_ended_is_gone() {
        let record = here(7).unwrap();
        assert_eq!(of(&record, 7), Owner::Gone);
        assert_eq!(of("", 7), Owner::Gone);
        // A process with the same number that began earlier.
        assert_eq!(of(&format!("{record}0"), 7), Owner::Gone);
        // A record of another epoch, and none that is known.
        assert_eq!(of(&record, 8), Owner::Alive("another server".into()));
        assert_eq!(of("x", 7), Owner::Alive("another server".into()));
        // The same after a boot, on this machine and on another one.
        let holder = record.split_once('\n').unwrap().1;
        let before = holder.replace(&boot(), "former");
        let known = format!("m h\n{before}");
        assert_eq!(seen_from("m h", &boot(), &known, 7), Owner::Gone);
        let alive = seen_from("m i", &boot(), &known, 7);
        assert!(matches!(alive, Owner::Alive(text) if text.contains("process")));
        let unknown = format!("\n{before}");
        assert!(matches!(seen_from("", &boot(), &unknown, 7), Owner::Alive(_)));
    }
}
