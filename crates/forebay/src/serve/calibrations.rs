//! The measured costs of splitting a write, kept in a file of the state directory, so that a disk
//! has the same gather threshold after each start.
//!
//! A disk is identified by its backing, its size, and its identity (see
//! [`forebay_backend::Description`]). If one of them has changed, the disk is measured again. The
//! file may be deleted at any time.

use forebay_backend::Description;
use forebay_runtime::SplitCost;
use forebay_state::StateFile;
use forebay_types::{LINE_BYTES, limits::GATHER_BELOW_BYTES_MAX};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The maximum number of disks in the file. Beyond it, the alphabetically first one is dropped. A
/// dropped disk is measured again.
const DISKS_MAX: usize = 1024;

/// A disk as it was when it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Disk {
    /// As in the configuration, with all layers.
    #[serde(skip)]
    backing: String,
    size_bytes: u64,
    identity: Option<String>,
}

/// [`SplitCost`] in the file.
#[derive(Serialize, Deserialize)]
#[serde(remote = "SplitCost")]
struct KeptCost {
    #[serde(rename = "gather_below_bytes")]
    threshold_bytes: u64,
    fixed_ns: u64,
    bytes_per_second: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct Measured {
    #[serde(flatten)]
    disk: Disk,
    #[serde(flatten, with = "KeptCost")]
    cost: SplitCost,
}

impl Disk {
    pub(super) fn new(backing: &str, description: &Description) -> Self {
        let (size_bytes, identity) = (description.size_bytes(), description.identity.clone());
        Self { backing: backing.to_owned(), size_bytes, identity }
    }
}

/// The measured costs, and their file.
pub(super) struct Calibrations {
    file: StateFile,
    /// By backing.
    known: Mutex<BTreeMap<String, Measured>>,
}

impl Calibrations {
    /// Reads the file. A missing file, and each damaged entry, counts as not measured.
    pub(super) fn open(path: PathBuf) -> Self {
        let file = StateFile::new(path);
        let mut known: BTreeMap<_, Measured> = file.read_entries().take(DISKS_MAX).collect();
        known.retain(|_, measured| is_possible(&measured.cost));
        known.iter_mut().for_each(|(backing, it)| it.disk.backing.clone_from(backing));
        let known = Mutex::new(known);
        Self { file, known }
    }

    /// The kept measurement of a disk.
    pub(super) fn cost_of(&self, disk: &Disk) -> Option<SplitCost> {
        let known = self.known();
        let measured = known.get(&disk.backing)?;
        (measured.disk == *disk).then_some(measured.cost)
    }

    /// Keeps a measurement. A failure is logged: the disk is then measured again at the next start.
    pub(super) fn keep(&self, disk: &Disk, cost: SplitCost) {
        // Held while the file is written, so that the last measurement wins.
        let mut known = self.known();
        known.insert(disk.backing.clone(), Measured { disk: disk.clone(), cost });
        while known.len() > DISKS_MAX {
            known.pop_first();
        }
        if let Err(error) = self.file.replace_entries(&known) {
            tracing::warn!(%error, "cannot record calibrations");
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Measured>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_possible(cost: &SplitCost) -> bool {
    cost.threshold_bytes.is_power_of_two()
        && (LINE_BYTES..=GATHER_BELOW_BYTES_MAX).contains(&cost.threshold_bytes)
        && cost.bytes_per_second != Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn disk(backing: &str) -> Disk {
        let identity = Some("8:1".to_owned());
        Disk { backing: backing.to_owned(), size_bytes: 1 << 30, identity }
    }

    fn cost(threshold_bytes: u64) -> SplitCost {
        SplitCost { threshold_bytes, fixed_ns: 80_000, bytes_per_second: Some(1 << 30) }
    }

    #[test]
    fn a_measurement_is_kept_for_the_same_disk_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("calibrations.json");
        let calibrations = Calibrations::open(path.clone());
        assert_eq!(calibrations.cost_of(&disk("a")), None);
        calibrations.keep(&disk("a"), cost(4096));
        calibrations.keep(&disk("a"), cost(8192));
        let any_size = SplitCost { bytes_per_second: None, ..cost(32 << 20) };
        calibrations.keep(&disk("b"), any_size);
        for calibrations in [calibrations, Calibrations::open(path)] {
            assert_eq!(calibrations.cost_of(&disk("a")), Some(cost(8192)));
            assert_eq!(calibrations.cost_of(&disk("b")), Some(any_size));
            assert_eq!(calibrations.cost_of(&disk("c")), None);
            let larger = Disk { size_bytes: 2 << 30, ..disk("a") };
            assert_eq!(calibrations.cost_of(&larger), None);
            let other = Disk { identity: None, ..disk("a") };
            assert_eq!(calibrations.cost_of(&other), None);
        }
    }

    #[test]
    fn damaged_entries_count_as_not_measured() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("calibrations.json");
        let good = json!(Measured { disk: disk("good"), cost: cost(4096) });
        let with = |key: &str, value: Value| {
            let mut entry = good.clone();
            entry[key] = value;
            entry
        };
        let file = json!({
            "good": good,
            "odd": with("gather_below_bytes", json!(5000)),
            "huge": with("gather_below_bytes", json!(64 << 20)),
            "negative": with("fixed_ns", json!(-1)),
            "stopped": with("bytes_per_second", json!(0)),
            "unsized": with("size_bytes", Value::Null),
            "empty": {},
        });
        std::fs::write(&path, file.to_string()).unwrap();
        let calibrations = Calibrations::open(path.clone());
        assert_eq!(calibrations.known().keys().collect::<Vec<_>>(), ["good"]);
        for text in ["nonsense", "[]", ""] {
            std::fs::write(&path, text).unwrap();
            assert!(Calibrations::open(path.clone()).known().is_empty());
        }
    }

    #[test]
    fn the_number_of_disks_is_limited_and_a_file_that_cannot_be_written_is_no_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("none").join("calibrations.json");
        let calibrations = Calibrations::open(path);
        for at in 0..=DISKS_MAX {
            calibrations.keep(&disk(&format!("{at:05}")), cost(4096));
        }
        assert_eq!(calibrations.known().len(), DISKS_MAX);
        assert_eq!(calibrations.cost_of(&disk("00000")), None);
        assert_eq!(calibrations.cost_of(&disk("01024")), Some(cost(4096)));
    }
}
