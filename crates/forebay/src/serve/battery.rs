//! Battery aging: compares the runtime at full charge with the first one recorded.
//!
//! The power controller uses the runtime that a UPS reports, so an aged battery endangers no data.
//! This record, a file in the state directory, only reports an aging battery in time to replace it.
//! It uses readings at full charge, on mains, and at about the load of the first reading, because
//! the runtime depends on the load.

use crate::state_file::StateFile;
use forebay_power::{StatusFlag, UpsReading};
use forebay_threads::Thread;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

/// Minimum charge that counts as full, in percent.
const FULL_PERCENT: f64 = 99.0;
/// Maximum difference of two loads that count as equal, in percent of the UPS's capacity.
const LOAD_TOLERANCE_PERCENT: f64 = 10.0;
/// A battery below this share of its first runtime is aging.
const AGED: f64 = 0.9;
/// A battery above this share of the first runtime counts as a new one.
const REPLACED: f64 = 1.1;
/// A change of the runtime by more than this share is recorded.
const RECORDED_CHANGE: f64 = 0.03;
/// How long the end of the daemon waits for the file to be written, because a file system may hang.
const END_WAIT: Duration = Duration::from_secs(5);

/// The record of one battery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Age {
    first_seconds: u32,
    seconds: u32,
    load_percent: Option<f64>,
    /// The date of manufacture, as the UPS reports it.
    made: Option<String>,
}

/// The records of all batteries, by the name of the UPS, and their file. A thread writes the file:
/// the thread that monitors the UPSes must not wait for it.
pub(super) struct Batteries {
    file: StateFile,
    ages: BTreeMap<String, Age>,
    writer: Option<Writer>,
}

/// The thread that writes the file. It ends once `ages` is dropped.
struct Writer {
    ages: mpsc::Sender<BTreeMap<String, Age>>,
    /// Disconnected once the thread has ended.
    running: mpsc::Receiver<()>,
}

impl Writer {
    fn start(file: StateFile) -> io::Result<Self> {
        let (ages, received) = mpsc::channel();
        let (runs, running) = mpsc::channel::<()>();
        let work = move || {
            let _runs = runs;
            while let Ok(first) = received.recv() {
                let ages = received.try_iter().last().unwrap_or(first);
                if let Err(error) = file.replace_entries(&ages) {
                    tracing::warn!(%error, "cannot record battery runtimes");
                }
            }
        };
        Thread::named("batteries").spawn(work)?;
        Ok(Self { ages, running })
    }
}

impl Batteries {
    /// Reads the file. A missing or damaged file counts as empty.
    pub(super) fn open(path: PathBuf) -> Self {
        let file = StateFile::new(path);
        Self { ages: file.read_entries().collect(), file, writer: None }
    }

    /// Compares a reading with the record of its UPS.
    pub(super) fn observe(&mut self, name: &str, reading: &UpsReading) {
        let is_full = reading.charge_percent.is_some_and(|charge| charge >= FULL_PERCENT);
        let on_mains = reading
            .status
            .as_ref()
            .is_some_and(|status| status.has(StatusFlag::Ol) && !status.has(StatusFlag::Ob));
        let Some(seconds) = reading.runtime_seconds.filter(|_| is_full && on_mains) else { return };
        let new = Age {
            first_seconds: seconds,
            seconds,
            load_percent: reading.load_percent,
            made: reading.battery_date.clone(),
        };
        let Some(known) = self.ages.get(name) else { return self.record(name, new) };
        let share = |other: u32| f64::from(seconds) / f64::from(other.max(1));
        // Some UPSes report the date only at times, and perhaps not in the first reading.
        let has_other_date = known.made.is_some() && new.made.is_some() && known.made != new.made;
        if has_other_date {
            return self.record(name, new);
        }
        let loads = known.load_percent.zip(reading.load_percent);
        if loads.is_some_and(|(first, now)| (first - now).abs() > LOAD_TOLERANCE_PERCENT) {
            return;
        }
        if share(known.first_seconds) > REPLACED {
            return self.record(name, new);
        }
        let is_dated = known.made.is_none() && new.made.is_some();
        if is_dated || (share(known.seconds) - 1.0).abs() > RECORDED_CHANGE {
            let made = new.made.or_else(|| known.made.clone());
            let age = Age { seconds, made, ..known.clone() };
            self.record(name, age);
        }
    }

    /// A note on the battery of a UPS if it is aging.
    pub(super) fn aging(&self, name: &str) -> Option<String> {
        let Age { first_seconds, seconds, .. } = *self.ages.get(name)?;
        (f64::from(seconds) < AGED * f64::from(first_seconds))
            .then(|| format!("battery aging: {seconds} s now, {first_seconds} s when first seen"))
    }

    fn record(&mut self, name: &str, age: Age) {
        self.ages.insert(name.to_owned(), age);
        if self.writer.is_none() {
            match Writer::start(self.file.clone()) {
                Ok(writer) => self.writer = Some(writer),
                Err(error) => {
                    tracing::warn!(%error, "cannot start the thread that records batteries");
                }
            }
        }
        if let Some(writer) = &self.writer {
            // The thread receives until the sender is dropped.
            let _ = writer.ages.send(self.ages.clone());
        }
    }
}

impl Drop for Batteries {
    fn drop(&mut self) {
        let Some(Writer { ages, running }) = self.writer.take() else { return };
        drop(ages);
        if running.recv_timeout(END_WAIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            let path = self.file.path().display();
            tracing::warn!(%path, "battery runtimes not recorded in time, stopping without them");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(charge: u32, runtime: u32, more: &str) -> UpsReading {
        let text =
            format!("ups.status: OL\nbattery.charge: {charge}\nbattery.runtime: {runtime}\n{more}");
        UpsReading::from_lines(&text).unwrap()
    }

    #[test]
    fn an_aging_battery_is_reported_until_it_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("batteries.json");
        let mut batteries = Batteries::open(path.clone());
        batteries.observe("a", &reading(100, 900, ""));
        batteries.observe("a", &reading(50, 400, ""));
        assert_eq!(batteries.aging("a"), None, "only a full battery is compared");
        drop(batteries);
        // The next process continues the record.
        let mut batteries = Batteries::open(path.clone());
        batteries.observe("a", &reading(100, 640, ""));
        let note = "battery aging: 640 s now, 900 s when first seen";
        assert_eq!(batteries.aging("a").as_deref(), Some(note));
        drop(batteries);
        let mut batteries = Batteries::open(path.clone());
        assert_eq!(batteries.aging("a").as_deref(), Some(note));
        batteries.observe("a", &reading(100, 1200, ""));
        assert_eq!(batteries.aging("a"), None, "it was replaced");
        drop(batteries);
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(Batteries::open(path).aging("a"), None);
    }

    #[test]
    fn runtimes_are_compared_at_the_same_load_and_of_the_same_battery() {
        let directory = tempfile::tempdir().unwrap();
        let mut batteries = Batteries::open(directory.path().join("batteries.json"));
        batteries.observe("a", &reading(100, 900, "ups.load: 20\nbattery.mfr.date: 2021/03\n"));
        batteries.observe("a", &reading(100, 400, "ups.load: 60\n"));
        assert_eq!(batteries.aging("a"), None);
        batteries.observe("a", &reading(100, 700, "ups.load: 25\n"));
        assert!(batteries.aging("a").is_some());
        batteries.observe("a", &reading(100, 700, "ups.load: 25\nbattery.mfr.date: 2026/10\n"));
        assert_eq!(batteries.aging("a"), None, "another battery starts a new record");
        batteries.observe("a", &reading(100, 600, "ups.load: 25\n"));
        assert!(batteries.aging("a").is_some(), "a reading without the date is of the same one");
    }

    /// Regression: the date was ignored until the load was near that of the first reading again.
    #[test]
    fn a_battery_with_another_date_is_another_one_at_any_load() {
        let directory = tempfile::tempdir().unwrap();
        let mut batteries = Batteries::open(directory.path().join("batteries.json"));
        let observe = |batteries: &mut Batteries, runtime, load, date| {
            let more = format!("ups.load: {load}\nbattery.mfr.date: {date}\n");
            batteries.observe("a", &reading(100, runtime, &more));
        };
        observe(&mut batteries, 900, 20, "2021/03");
        observe(&mut batteries, 700, 20, "2021/03");
        assert!(batteries.aging("a").is_some());
        observe(&mut batteries, 400, 60, "2026/10");
        assert_eq!(batteries.aging("a"), None, "it was replaced");
        observe(&mut batteries, 300, 60, "2026/10");
        assert!(batteries.aging("a").is_some(), "compared at the load of its first reading");
    }

    /// Regression: the date that a UPS reported later on was taken for that of another battery.
    #[test]
    fn a_battery_first_seen_without_its_date_is_the_same_one_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("batteries.json");
        let mut batteries = Batteries::open(path.clone());
        batteries.observe("a", &reading(100, 900, ""));
        batteries.observe("a", &reading(100, 700, "battery.mfr.date: 2021/03\n"));
        assert!(batteries.aging("a").is_some(), "it is compared with the first reading");
        drop(batteries);
        let mut batteries = Batteries::open(path);
        batteries.observe("a", &reading(100, 700, "battery.mfr.date: 2026/10\n"));
        assert_eq!(batteries.aging("a"), None, "its date was recorded, and this is another one");
    }

    /// Regression: the thread that monitors the UPSes wrote the file itself, and did not see a
    /// power failure while its file system hung.
    #[test]
    fn a_file_that_hangs_does_not_delay_the_monitor_of_the_upses() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("batteries.json");
        // Until it is opened for reading, it cannot be opened for writing.
        let pipe = directory.path().join("batteries.json.new");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let (observed, observations) = mpsc::channel();
        std::thread::spawn(move || {
            let mut batteries = Batteries::open(path);
            batteries.observe("a", &reading(100, 900, ""));
            batteries.observe("a", &reading(100, 640, ""));
            observed.send(batteries.aging("a")).unwrap();
            batteries
        });
        let aging = observations.recv_timeout(Duration::from_secs(60)).expect("it waits");
        assert!(aging.is_some());
        let written = std::fs::read_to_string(&pipe).unwrap();
        assert!(written.contains("\"first_seconds\": 900"), "{written}");
    }
}
