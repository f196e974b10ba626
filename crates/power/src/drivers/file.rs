//! A supply that another program writes into a file, in lines of `key: value`.
//!
//! The age of a reading is the age of the file: a program that has died leaves a file that is
//! soon too old, so the file has to be written again even when nothing changes, within the time
//! for which readings hold. It should be written beside and renamed over.

use super::Source;
use crate::{Observation, Reading, Trouble, TroubleKind};
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Largest file that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 10;
/// How far into the future a file may have been written. Clocks of file servers differ a little.
const FUTURE_MAX: Duration = Duration::from_secs(2);

/// A file, as a source.
pub struct FileSource {
    path: PathBuf,
}

impl FileSource {
    /// The file at `path`, which need not be there yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn try_read(&self) -> io::Result<Reading> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        // A pipe would block the open, so what it is comes first.
        if !std::fs::metadata(&self.path)?.is_file() {
            return Err(invalid("it is no plain file".into()));
        }
        let file = File::open(&self.path)?;
        let written = file.metadata()?.modified()?;
        let mut text = String::new();
        (&file).take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(invalid(format!("it has more than {FILE_BYTES_MAX} bytes")));
        }
        if file.metadata()?.modified()? != written {
            return Err(invalid("it changed while it was read".into()));
        }
        let mut reading = Reading::from_lines(&text).map_err(|error| invalid(error.to_string()))?;
        reading.age_ms = match SystemTime::now().duration_since(written) {
            Ok(age) => u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            Err(ahead) if ahead.duration() <= FUTURE_MAX => 0,
            Err(_) => return Err(invalid("it was written in the future".into())),
        };
        Ok(reading)
    }
}

impl Source for FileSource {
    fn read(&mut self) -> Observation {
        self.try_read().map_err(|error| {
            let path = self.path.display();
            Trouble::new(TroubleKind::File, format!("{path} can't be read ({error})"))
        })
    }
}
