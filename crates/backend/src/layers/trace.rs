//! `trace(file=PATH,volume=N):BACKING`: records every read and write as it arrives.
//!
//! The file has the format that the lab replays: a header
//! `time_us,volume,op,offset_bytes,length_bytes`, then a line per request with the microseconds
//! since the layer was opened and `R` or `W`. Other kinds are not recorded. A separate thread
//! writes the lines. Requests that arrive while its queue is full are served but not recorded;
//! their number is logged when the layer is closed.

use super::describe;
use crate::spec::{Fields, SpecError, number};
use crate::thread_pool::join_unless_self;
use crate::{Backend, Description, Io, IoKind, OpenError};
use forebay_threads::Thread;
use forebay_types::{ByteRange, Fault, Remedy};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// Queue length of the writer thread: the requests of a fast volume in a second, in 4 MiB of
/// memory.
const LINES_WAITING_MAX: usize = 128 << 10;

/// The trace cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the trace '{path}'")]
pub struct TraceFileError {
    /// The file.
    path: PathBuf,
    /// The system's error.
    source: io::Error,
}

impl Fault for TraceFileError {
    fn remedy(&self) -> Remedy {
        "give a file in a directory that this user may write to".into()
    }
}

struct TraceLine {
    time_us: u64,
    op: char,
    range: ByteRange,
}

/// A backend that records its requests.
pub struct TraceLayer {
    started: Instant,
    /// `None` only while the layer is closed.
    lines: Option<SyncSender<TraceLine>>,
    writer: Option<JoinHandle<()>>,
    lost_count: AtomicU64,
    path: PathBuf,
    inner: Arc<dyn Backend>,
    pub(super) description: Description,
}

impl TraceLayer {
    /// Records the I/O of `inner` as requests to volume `volume`. Truncates the file.
    pub fn new(inner: Arc<dyn Backend>, path: &Path, volume: u16) -> Result<Self, TraceFileError> {
        let fail = |source| TraceFileError { path: path.into(), source };
        let mut file = BufWriter::new(File::create(path).map_err(fail)?);
        writeln!(file, "time_us,volume,op,offset_bytes,length_bytes").map_err(fail)?;
        let (lines, received) = sync_channel(LINES_WAITING_MAX);
        let name = path.to_owned();
        let write = move || {
            if let Err(error) = write_lines(&mut file, &received, volume) {
                tracing::error!(
                    path = %name.display(),
                    %error,
                    "trace write failed, recording stopped"
                );
            }
        };
        let writer = Thread::named("trace").spawn(write).map_err(fail)?;
        Ok(Self {
            started: Instant::now(),
            lines: Some(lines),
            writer: Some(writer),
            lost_count: AtomicU64::new(0),
            path: path.into(),
            description: describe("trace", &*inner),
            inner,
        })
    }

    /// Opens the layer from its options.
    pub(super) fn parse(inner: Arc<dyn Backend>, text: &str) -> Result<Self, OpenError> {
        let (path, volume) = Self::options(text)?;
        Ok(Self::new(inner, Path::new(&path), volume)?)
    }

    /// Parses the options: the file, and the number of the volume.
    pub(super) fn options(text: &str) -> Result<(String, u16), SpecError> {
        let fields = Fields::parse("trace", text, ',', &["file", "volume"])?;
        let Some(path) = fields.text("file") else {
            return Err(fields.missing("file", "trace.csv"));
        };
        Ok((path.to_owned(), fields.get("volume", "0", number)?.unwrap_or(0)))
    }
}

/// Writes lines until the channel closes, and flushes the file whenever the queue is empty.
fn write_lines(file: &mut impl Write, lines: &Receiver<TraceLine>, volume: u16) -> io::Result<()> {
    loop {
        let line = match lines.try_recv() {
            Ok(line) => Ok(line),
            Err(TryRecvError::Empty) => {
                file.flush()?;
                lines.recv()
            }
            Err(TryRecvError::Disconnected) => return file.flush(),
        };
        let Ok(TraceLine { time_us, op, range }) = line else { return file.flush() };
        writeln!(file, "{time_us},{volume},{op},{},{}", range.offset, range.len)?;
    }
}

impl Backend for TraceLayer {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        let op = match io.kind {
            IoKind::Read => Some('R'),
            IoKind::Write { .. } => Some('W'),
            IoKind::Flush | IoKind::Discard | IoKind::Zero { .. } => None,
        };
        if let (Some(op), Some(lines)) = (op, &self.lines) {
            let time_us = self.started.elapsed().as_micros() as u64;
            if lines.try_send(TraceLine { time_us, op, range: io.range() }).is_err() {
                self.lost_count.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.inner.submit(io);
    }

    fn below(&self) -> Option<&dyn Backend> {
        Some(&*self.inner)
    }
}

impl Drop for TraceLayer {
    fn drop(&mut self) {
        // Closing the channel ends the writer after the last line.
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            join_unless_self(writer);
        }
        let lost_count = self.lost_count.load(Ordering::Relaxed);
        if lost_count > 0 {
            tracing::warn!(
                path = %self.path.display(),
                lost_count,
                "trace incomplete, requests not recorded"
            );
        }
    }
}
