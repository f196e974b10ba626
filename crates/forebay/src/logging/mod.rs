//! The log: lines on standard error, or entries of the system's journal if systemd has connected
//! standard error to it.

mod journal;

use forebay_config::LogLevel;
use journal::Journal;
use std::{
    io::{self, IsTerminal},
    sync::OnceLock,
};
use tracing_subscriber::{
    Registry, filter::LevelFilter, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

/// Handle for changing the log level at run time.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Starts logging. A second call only changes the level, like [`set_level`].
pub(crate) fn start(level: LogLevel) {
    let (filter, handle) = reload::Layer::new(filter(level));
    if LEVEL.set(handle).is_err() {
        set_level(level);
        return;
    }
    let journal = journal();
    let lines = journal
        .is_none()
        .then(|| fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal()));
    // Fails only if another subscriber is already installed, which then does the logging.
    let _ = tracing_subscriber::registry().with(filter).with(journal).with(lines).try_init();
}

/// The system's journal, if standard error is connected to it.
fn journal() -> Option<Journal> {
    let stderr = rustix::fs::fstat(io::stderr()).ok()?;
    let announced = std::env::var("JOURNAL_STREAM").ok();
    let is_journal = journal::is_journal(announced.as_deref(), (stderr.st_dev, stderr.st_ino));
    is_journal.then(|| Journal::open(journal::SOCKET.into()).ok())?
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
        start(LogLevel::Warn);
        assert!(!tracing::enabled!(tracing::Level::INFO));
        set_level(LogLevel::Debug);
        assert!(tracing::enabled!(tracing::Level::DEBUG));
        assert!(!tracing::enabled!(tracing::Level::TRACE));
        start(LogLevel::Error);
        assert!(!tracing::enabled!(tracing::Level::WARN));
    }
}
