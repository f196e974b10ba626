//! The thread that reads the figures of the machine and of the control groups: at intervals, and at
//! once when the kernel reports that programs wait for memory.

use super::Figures;
use crate::serve::manager::Daemon;
use crate::serve::memory;
use forebay_config::MemorySources;
use forebay_threads::Thread;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time between two readings while the figures cannot be read.
const INTERVAL: Duration = Duration::from_secs(1);

/// The triggers that are tried: a program waits for memory for this long within a window, both in
/// microseconds. The second one is for processes without CAP_SYS_RESOURCE.
const TRIGGERS: [&[u8]; 2] = [b"some 50000 500000\0", b"some 200000 2000000\0"];
/// The magic numbers of the file systems that have triggers.
const PROC_MAGIC: u64 = 0x9fa0;
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// The thread. Dropping this ends it.
pub(crate) struct SizerThread {
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the thread.
///
/// # Errors
/// Fails if no thread can be started.
pub(crate) fn start(daemon: Arc<Daemon>) -> io::Result<SizerThread> {
    let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
    let ended = Arc::clone(&end);
    let thread = Thread::named("memory-sizer").spawn(move || run(&daemon, &ended))?;
    Ok(SizerThread { end, thread: Some(thread) })
}

impl Drop for SizerThread {
    fn drop(&mut self) {
        // Fails only if the counter is full; then the thread has been notified already.
        let _ = rustix::io::write(&*self.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(daemon: &Daemon, end: &OwnedFd) {
    let (sources, started) = (memory::sources(), Instant::now());
    // A test supplies the clock with the other figures of its machine.
    let has_uptime = sources.uptime_ms().is_some();
    let mut triggers = triggers(&sources);
    tracing::debug!(triggers = triggers.len(), "memory is monitored");
    let mut pressure = sources.read_pressure();
    let mut pause = Duration::ZERO;
    while wait(end, &mut triggers, pause) {
        pause = INTERVAL;
        // Without figures there is nothing to decide on; the start has warned.
        let Ok(machine) = sources.read() else { continue };
        let now_ms = match has_uptime {
            true => sources.uptime_ms(),
            false => Some(started.elapsed().as_millis() as u64),
        };
        let Some(now_ms) = now_ms else { continue };
        let earlier = std::mem::replace(&mut pressure, sources.read_pressure());
        let figures = Figures {
            now_ms,
            machine,
            stalled_us: pressure.stalled_us_since(&earlier),
            limit_events: pressure.limit_events_since(&earlier),
        };
        pause = Duration::from_millis(daemon.sizing().follow(&figures));
    }
}

/// Waits for a trigger, or for this long. Returns false when the thread is to end. A trigger whose
/// control group is gone is dropped.
fn wait(end: &OwnedFd, triggers: &mut Vec<OwnedFd>, pause: Duration) -> bool {
    let mut files = vec![PollFd::new(end, PollFlags::IN)];
    files.extend(triggers.iter().map(|trigger| PollFd::new(trigger, PollFlags::PRI)));
    let timeout =
        Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: i64::from(pause.subsec_nanos()) };
    if poll(&mut files, Some(&timeout)).is_err() {
        // Interrupted by a signal. The next reading comes early.
        return true;
    }
    let is_ended = !files[0].revents().is_empty();
    let gone = files[1..].iter().map(|file| file.revents().contains(PollFlags::ERR));
    let gone: Vec<bool> = gone.collect();
    let mut gone = gone.into_iter();
    triggers.retain(|_| !gone.next().unwrap_or(false));
    !is_ended
}

/// Sets a trigger on each pressure file. The kernel may have none.
fn triggers(sources: &MemorySources) -> Vec<OwnedFd> {
    sources.pressure_files().filter_map(|path| trigger(&path)).collect()
}

fn trigger(path: &Path) -> Option<OwnedFd> {
    TRIGGERS.iter().find_map(|text| {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        // On another file system, the write would change an ordinary file.
        let magic = rustix::fs::fstatfs(file.as_fd()).ok()?.f_type as u64;
        let has_triggers = [PROC_MAGIC, CGROUP2_MAGIC].contains(&magic);
        (has_triggers && rustix::io::write(&file, text).is_ok()).then_some(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_file_gets_no_trigger_and_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("memory");
        assert!(trigger(&path).is_none());
        std::fs::write(&path, "some total=1\n").unwrap();
        assert!(trigger(&path).is_none());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "some total=1\n");
    }

    #[test]
    fn a_wait_ends_at_the_end_of_the_thread() {
        let end = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert!(wait(&end, &mut Vec::new(), Duration::ZERO));
        rustix::io::write(&end, &1u64.to_ne_bytes()).unwrap();
        assert!(!wait(&end, &mut Vec::new(), Duration::from_secs(3600)));
    }
}
