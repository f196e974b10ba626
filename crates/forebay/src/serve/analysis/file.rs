//! The file of an analysis: one JSON object a line, appended and never changed. A line that a crash
//! has cut is ignored; the interval in it is lost, like the one in progress.

use super::Record;
use forebay_api::{AnalysisBatch, AnalysisInterruption, AnalysisRequest, AnalysisState};
use forebay_state::StateFile;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};

/// The longest file that is read, in bytes: three phases of 49 intervals of 32 volumes with
/// requests of all sizes.
const BYTES_MAX: u64 = 64 << 20;

/// The file of the analysis.
pub(super) struct AnalysisFile {
    file: StateFile,
    /// The last line may be incomplete, because a write has failed or the process was killed.
    is_torn: bool,
}

impl AnalysisFile {
    /// Reads the file, if there is one. What is unusable in it is ignored, and reported in the log.
    pub(super) fn open(file: StateFile) -> (Self, Vec<Record>) {
        let mut records = Vec::new();
        let mut is_torn = false;
        match file.read(BYTES_MAX) {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                let text = String::from_utf8_lossy(&bytes);
                is_torn = !text.is_empty() && !text.ends_with('\n');
                let lines = text.lines().filter(|line| !line.is_empty());
                let parsed: Vec<_> = lines.map(parse).collect();
                let unusable = parsed.iter().filter(|record| record.is_none()).count();
                if unusable > 0 {
                    tracing::warn!(
                        file = %file.path().display(), lines = unusable,
                        "lines of the analysis are unusable, ignoring them"
                    );
                }
                records = parsed.into_iter().flatten().collect();
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the analysis, it does not continue");
            }
        }
        // Without the first record, the others have no meaning.
        if !matches!(records.first(), Some(Record::Begin { .. })) {
            records.clear();
        }
        (Self { file, is_torn }, records)
    }

    /// Replaces the file by one with a first record.
    ///
    /// # Errors
    /// It cannot be written. The former file then remains.
    pub(super) fn begin(&mut self, record: &Record) -> io::Result<()> {
        self.file.replace(line(record))?;
        self.is_torn = false;
        Ok(())
    }

    /// Appends records, durably.
    ///
    /// # Errors
    /// Not all of them could be written. The caller then repeats the whole call.
    pub(super) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).open(self.file.path())?;
        let before = file.metadata()?.len();
        let written = self.write(&mut file, records);
        if written.is_err() {
            // Otherwise a repetition would write the complete records among them twice.
            self.is_torn |= file.set_len(before).is_err();
        }
        written
    }

    fn write(&mut self, file: &mut File, records: &[Record]) -> io::Result<()> {
        let mut text = String::new();
        if self.is_torn {
            text.push('\n');
        }
        text.extend(records.iter().map(line));
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        self.is_torn = false;
        Ok(())
    }
}

fn line(record: &Record) -> String {
    let value = match record {
        Record::Begin { at, request, subject } => {
            json!({"begin": at, "request": request, "subject": subject})
        }
        Record::Batch(batch) => json!({"batch": batch}),
        Record::Interrupted(interruption) => json!({"interrupted": interruption}),
        Record::End { at, state } => json!({"end": at, "state": state}),
    };
    format!("{value}\n")
}

fn parse(line: &str) -> Option<Record> {
    let mut value: Value = serde_json::from_str(line).ok()?;
    let object = value.as_object_mut()?;
    let mut take = |key: &str| object.remove(key);
    if let Some(batch) = take("batch") {
        let batch: AnalysisBatch = serde_json::from_value(batch).ok()?;
        let is_sane = (0.0..1e9).contains(&batch.seconds);
        return is_sane.then_some(Record::Batch(batch));
    }
    if let Some(interruption) = take("interrupted") {
        let interruption: AnalysisInterruption = serde_json::from_value(interruption).ok()?;
        return Some(Record::Interrupted(interruption));
    }
    if let Some(begin) = take("begin") {
        let request: AnalysisRequest = serde_json::from_value(take("request")?).ok()?;
        // Earlier versions have not recorded it.
        let subject = take("subject").and_then(|subject| serde_json::from_value(subject).ok());
        return Some(Record::Begin { at: begin.as_str()?.to_owned(), request, subject });
    }
    let end = take("end")?.as_str()?.to_owned();
    let state: AnalysisState = serde_json::from_value(take("state")?).ok()?;
    Some(Record::End { at: end, state })
}
