//! Reads a UPS from a file with lines of `key: value`, which another program writes.
//!
//! The age of a reading is the age of the file, so that readings expire if the program dies. The
//! program must rewrite the file even if nothing changes, before the last reading expires. It
//! should write a temporary file and rename it.

use super::ReadingSource;
use crate::{ReadError, ReadErrorKind, UpsObservation, UpsReading};
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Maximum size of the file in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 10;
/// Tolerance for modification times in the future: clocks of file servers differ a little.
const FUTURE_MAX: Duration = Duration::from_secs(2);

/// A [`ReadingSource`] that reads a file.
pub struct FileSource {
    path: PathBuf,
}

impl FileSource {
    /// The file at `path`, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn try_read(&self) -> io::Result<UpsReading> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        // Opening a FIFO would block, so check the type first.
        if !std::fs::metadata(&self.path)?.is_file() {
            return Err(invalid("not a regular file".into()));
        }
        let file = File::open(&self.path)?;
        let written = file.metadata()?.modified()?;
        let mut text = String::new();
        (&file).take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(invalid(format!("larger than {FILE_BYTES_MAX} bytes")));
        }
        if file.metadata()?.modified()? != written {
            return Err(invalid("the file changed while it was read".into()));
        }
        let mut reading =
            UpsReading::from_lines(&text).map_err(|error| invalid(error.to_string()))?;
        reading.age_ms = match SystemTime::now().duration_since(written) {
            Ok(age) => u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            Err(ahead) if ahead.duration() <= FUTURE_MAX => 0,
            Err(_) => return Err(invalid("the modification time is in the future".into())),
        };
        Ok(reading)
    }
}

impl ReadingSource for FileSource {
    fn read(&mut self) -> UpsObservation {
        self.try_read().map_err(|error| {
            let path = self.path.display();
            let message = format!("cannot read {path}: {error}");
            ReadError::new(ReadErrorKind::File, message, "check the program that writes it")
        })
    }
}
