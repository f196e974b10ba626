//! `forebay trace`: records the requests of clients into a file.
//!
//! The file has whole lines only, also after an error, so that the lab can replay what is there. A
//! kill can interrupt the write of several lines: then the last line may be incomplete.

use super::{connect, named};
use crate::arguments::TraceArguments;
use crate::report::{print, warn, with_remedy};
use anyhow::anyhow;
use forebay_api::{TraceEnd, TraceRequest, TraceSummary};
use forebay_terminal::units::{bytes, count};
use std::fs::{File, remove_file};
use std::io::{self, Seek, Write};
use std::path::Path;

/// `forebay trace`.
pub(crate) fn trace(arguments: &TraceArguments) -> anyhow::Result<()> {
    let request = TraceRequest {
        volumes: arguments.names.clone(),
        seconds: arguments.time.as_secs(),
        max_bytes: arguments.max_size.bytes(),
        anonymize: arguments.anonymize,
    };
    let client = connect(&arguments.state)?;
    let path = &arguments.output;
    let mut output = Output::create(path)?;
    let recorded = client.record_trace(&request, |piece| output.add(piece));
    let shown = path.display();
    let summary = match recorded {
        Ok(Ok(summary)) => summary,
        Ok(Err(error)) => {
            let kept = format!("it has {} of whole lines", bytes(output.good_bytes));
            let error = anyhow::Error::new(error)
                .context(format!("cannot write the trace {shown}, and the recording has ended"));
            return Err(with_remedy(error, format!("{kept}: record again where there is room")));
        }
        Err(error) => {
            if output.good_bytes == 0 {
                // Nothing was recorded.
                let _ = remove_file(path);
            }
            return Err(error.into());
        }
    };
    print(&sentence(arguments, &summary, output.good_bytes))?;
    if summary.dropped > 0 {
        warn(&format!(
            "{} requests are missing in {shown}: they came faster than it was written",
            summary.dropped
        ));
    }
    Ok(())
}

fn sentence(arguments: &TraceArguments, summary: &TraceSummary, len: u64) -> String {
    let path = arguments.output.display();
    let what = match summary.requests {
        1 => "1 request".to_owned(),
        requests => format!("{} requests", count(requests)),
    };
    let volumes = arguments.names.iter().enumerate();
    let volumes = volumes.map(|(number, name)| format!(", {number} is {}", named(name)));
    let end = match summary.end {
        TraceEnd::Time => "",
        TraceEnd::Size => "; size limit reached",
        TraceEnd::Stop => "; server stopping",
    };
    format!("{path}: {what}, {}{}{end}\n", bytes(len), volumes.collect::<String>())
}

/// The file of a trace.
struct Output {
    file: File,
    /// The end of the last line in the file.
    good_bytes: u64,
    /// The beginning of a line whose rest has not arrived.
    rest: Vec<u8>,
}

impl Output {
    /// Creates the file. It must not exist: a trace takes long to record, and is not overwritten.
    fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create_new(path).map_err(|error| {
            let shown = path.display();
            if error.kind() == io::ErrorKind::AlreadyExists {
                return with_remedy(anyhow!("{shown} exists"), "name a new file, or remove it");
            }
            let error = anyhow::Error::new(error).context(format!("cannot create {shown}"));
            with_remedy(error, "name a file in a directory that this user may write to")
        })?;
        Ok(Self { file, good_bytes: 0, rest: Vec::new() })
    }

    /// Writes the whole lines of a piece, and keeps its rest for the next one.
    fn add(&mut self, piece: &[u8]) -> io::Result<()> {
        let Some(last) = piece.iter().rposition(|&byte| byte == b'\n') else {
            self.rest.extend_from_slice(piece);
            return Ok(());
        };
        let (lines, rest) = piece.split_at(last + 1);
        self.rest.extend_from_slice(lines);
        if let Err(error) = self.file.write_all(&self.rest) {
            self.cut().unwrap_or_else(|error| warn(&format!("cannot cut the trace: {error}")));
            return Err(error);
        }
        self.good_bytes += self.rest.len() as u64;
        self.rest.clear();
        self.rest.extend_from_slice(rest);
        Ok(())
    }

    /// Removes a line that was written in part, after a write of the lines in `rest` has failed.
    fn cut(&mut self) -> io::Result<()> {
        let written = self.file.stream_position()?.saturating_sub(self.good_bytes) as usize;
        let written = &self.rest[..written.min(self.rest.len())];
        let whole = written.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        self.good_bytes += whole as u64;
        self.file.set_len(self.good_bytes)?;
        self.file.seek(io::SeekFrom::End(0)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_whole_lines_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.csv");
        let mut output = Output::create(&path).unwrap();
        let content = || std::fs::read_to_string(&path).unwrap();
        for (piece, expected) in [
            ("time", ""),
            ("_us\n0,1", "time_us\n"),
            (",2", "time_us\n"),
            ("\n3\n4", "time_us\n0,1,2\n3\n"),
            ("", "time_us\n0,1,2\n3\n"),
        ] {
            output.add(piece.as_bytes()).unwrap();
            assert_eq!((content(), output.good_bytes), (expected.into(), expected.len() as u64));
        }
        // A write that fails after a part of its second line.
        output.rest = b"4\n5,6\n".to_vec();
        output.file.write_all(b"4\n5,").unwrap();
        output.cut().unwrap();
        assert_eq!((content(), output.good_bytes), ("time_us\n0,1,2\n3\n4\n".into(), 18));
        assert!(Output::create(&path).is_err());
    }
}
