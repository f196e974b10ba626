//! Notifies the keeper or the service manager while a start makes progress, which may read a whole
//! journal and write its data to disks. A start that hangs makes none, and is ended by a timeout.

use super::periodic::Periodic;
use crate::keeper::KeeperLink;
use anyhow::Context;
use forebay_runtime::Runtime;
use forebay_threads::Thread;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A fraction of the timeout of a start.
const INTERVAL: Duration = Duration::from_secs(10);

/// The thread that observes a start. Dropping this ends it.
pub(super) struct StartProgress {
    runtime: Arc<OnceLock<Arc<Runtime>>>,
    _thread: Periodic,
}

/// Counts that change while a start makes progress.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Bytes that this process has read from local disks and written to them.
    io_bytes: [u64; 2],
    /// Lines of volumes in the pool, and those that are dirty: they change while data is restored,
    /// and while it is written to a disk behind a network.
    lines: [u64; 2],
}

impl StartProgress {
    /// Observes a start until this is dropped.
    ///
    /// # Errors
    /// Fails if the system refuses a descriptor or a thread.
    pub(super) fn observe(link: &KeeperLink) -> anyhow::Result<Self> {
        let failed = "cannot start the thread that reports the progress of the start";
        let notify = link.progress().context(failed)?;
        let runtime = Arc::new(OnceLock::<Arc<Runtime>>::new());
        let observed = Arc::clone(&runtime);
        let mut before = Counts::default();
        let thread = Periodic::start(Thread::named("start"), INTERVAL, move || {
            if before.advance(Counts::now(observed.get().map(|runtime| &**runtime))) {
                notify();
            }
        });
        Ok(Self { runtime, _thread: thread.context(failed)? })
    }

    /// Observes the volumes of the runtime, too.
    pub(super) fn include(&self, runtime: &Arc<Runtime>) {
        // Fails only if there is a runtime already.
        let _ = self.runtime.set(Arc::clone(runtime));
    }
}

impl Counts {
    fn now(runtime: Option<&Runtime>) -> Self {
        // Without /proc, the start has the time of the service manager's timeout.
        let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
        let volumes = runtime.map(|runtime| runtime.volumes().statistics()).unwrap_or_default();
        let lines = volumes.iter().map(|volume| [volume.cached_lines, volume.dirty_lines]);
        Self {
            io_bytes: io_bytes(&text),
            lines: lines.fold([0; 2], |a, b| [a[0] + b[0], a[1] + b[1]]),
        }
    }

    /// Replaces the counts. Returns true if they have changed.
    fn advance(&mut self, now: Self) -> bool {
        let has_changed = *self != now;
        *self = now;
        has_changed
    }
}

/// The bytes read from disks and written to them, in the form of `/proc/PID/io`. Its first lines
/// also count what is read from pipes and from `/proc` itself, which is no progress.
fn io_bytes(text: &str) -> [u64; 2] {
    ["read_bytes: ", "write_bytes: "].map(|name| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_io_on_disks_and_lines_of_volumes_are_progress() {
        let io = |rchar: u64, read_bytes: u64| {
            let text = format!(
                "rchar: {rchar}\nwchar: {rchar}\nsyscr: 3\nsyscw: 4\nread_bytes: {read_bytes}\n\
                 write_bytes: 4096\ncancelled_write_bytes: {rchar}\n"
            );
            io_bytes(&text)
        };
        assert_eq!(io(7, 512), [512, 4096]);
        let mut counts = Counts { io_bytes: io(7, 512), lines: [3, 2] };
        assert!(!counts.advance(Counts { io_bytes: io(99, 512), lines: [3, 2] }), "its own log");
        assert!(
            counts.advance(Counts { io_bytes: io(99, 1024), lines: [3, 2] }),
            "a journal is read"
        );
        assert!(
            counts.advance(Counts { io_bytes: io(99, 1024), lines: [3, 1] }),
            "a line is written"
        );
        assert!(!counts.advance(Counts { io_bytes: io(99, 1024), lines: [3, 1] }), "it hangs");
        assert_eq!(Counts::now(None).lines, [0, 0]);
    }
}
