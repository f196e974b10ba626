//! The log: lines on standard error, or entries of the system's journal if systemd has connected
//! standard error to it.
//!
//! Only the thread `log` writes either. All others put their lines into a queue, so that none waits
//! for the log's reader, and before an exit or an abort the last lines get a bounded time.

mod journal;
mod queue;

use forebay_api::LogStatus;
use forebay_config::LogLevel;
use forebay_threads::Thread;
use journal::{Entries, Socket};
use queue::{LogQueue, Record};
use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, IsTerminal, Write},
    panic::PanicHookInfo,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tracing_subscriber::{
    Registry, filter::LevelFilter, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

/// Memory for lines that are not written yet: some thousand lines.
const QUEUE_BYTES: usize = 1 << 20;
/// How long an exit waits for the reader of the log.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// Handle for changing the log level at run time.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();
/// The log's queue, once logging has started.
static QUEUE: OnceLock<Arc<LogQueue>> = OnceLock::new();

/// Starts logging. A second call only changes the level, like [`set_level`].
///
/// # Errors
/// Fails if no thread can be started.
pub(crate) fn start(level: LogLevel) -> io::Result<()> {
    let (filter, handle) = reload::Layer::new(filter(level));
    if LEVEL.set(handle).is_err() {
        set_level(level);
        return Ok(());
    }
    let queue = Arc::new(LogQueue::new(QUEUE_BYTES));
    let (socket, writer) = (socket(), Arc::clone(&queue));
    let entries = socket.is_some().then(|| Entries(Arc::clone(&queue)));
    let lines = socket.is_none().then(|| {
        let queue = Arc::clone(&queue);
        let layer = fmt::layer().with_writer(move || Lines(Arc::clone(&queue)));
        layer.with_ansi(io::stderr().is_terminal()).log_internal_errors(false)
    });
    Thread::named("log").spawn(move || {
        writer.run(
            |record| write(record, socket.as_ref()),
            |lines| tracing::warn!(lines, "log lines dropped, the log was not read in time"),
        )
    })?;
    // Only this function sets it, once.
    let _ = QUEUE.set(queue);
    // Fails only if another subscriber is already installed, which then does the logging.
    let _ = tracing_subscriber::registry().with(filter).with(entries).with(lines).try_init();
    Ok(())
}

/// Makes panics log their message, and gives it time to come out if the process aborts. Call it
/// before the first thread is started.
pub(crate) fn log_panics() {
    std::panic::set_hook(Box::new(log_panic));
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let mut text = format!("thread '{}' {panic}\n", thread.name().unwrap_or_default());
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        text += &format!("{backtrace}\n");
    }
    let is_fatal = forebay_threads::is_essential();
    if is_fatal {
        text += "forebay: aborting, as the state of this process cannot be trusted after a panic\n";
    }
    print(text);
    if is_fatal {
        flush();
    }
}

/// Prints lines on standard error, in order with the log.
pub(crate) fn print(text: String) {
    match QUEUE.get() {
        Some(queue) => queue.push(Record::Lines(text.into_bytes())),
        // A failure to print cannot be reported.
        None => drop(io::stderr().write_all(text.as_bytes())),
    }
}

/// Waits until the log is written, for a bounded time. Call it before the process exits.
pub(crate) fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(FLUSH_TIME);
    }
}

/// Whether the log is read.
pub(crate) fn status() -> LogStatus {
    QUEUE.get().map_or_else(LogStatus::default, |queue| LogStatus {
        dropped_lines: queue.dropped(),
        waiting_seconds: queue.waits_for().as_secs(),
    })
}

/// Writes a record. Waits while the reader does not read.
fn write(record: &Record, journal: Option<&Socket>) -> io::Result<()> {
    match (record, journal) {
        (Record::Lines(text), _) => io::stderr().write_all(text),
        (Record::Entry { bytes, .. }, Some(journal)) if journal.send(bytes).is_ok() => Ok(()),
        // Without the journal, its entries go to standard error.
        (Record::Entry { message, .. }, _) => writeln!(io::stderr(), "{message}"),
    }
}

/// Queues each line that is written to it.
struct Lines(Arc<LogQueue>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(Record::Lines(line.to_vec()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The system's journal, if standard error is connected to it.
fn socket() -> Option<Socket> {
    let stderr = rustix::fs::fstat(io::stderr()).ok()?;
    let announced = std::env::var("JOURNAL_STREAM").ok();
    let is_journal = journal::is_journal(announced.as_deref(), (stderr.st_dev, stderr.st_ino));
    is_journal.then(|| Socket::open(journal::SOCKET.into()).ok())?
}

/// Changes the log level.
pub(crate) fn set_level(level: LogLevel) {
    if let Some(handle) = LEVEL.get() {
        // Fails only if the subscriber is gone, so there is no level to change.
        let _ = handle.reload(filter(level));
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_can_be_changed_while_logging() {
        start(LogLevel::Warn).unwrap();
        assert!(!tracing::enabled!(tracing::Level::INFO));
        set_level(LogLevel::Debug);
        assert!(tracing::enabled!(tracing::Level::DEBUG));
        assert!(!tracing::enabled!(tracing::Level::TRACE));
        start(LogLevel::Error).unwrap();
        assert!(!tracing::enabled!(tracing::Level::WARN));
    }
}
