//! Background work slows down while other programs wait for processors or disks. A thread compares
//! the kernel's figures once a second, [`BackgroundControl`] decides, and the runtime carries the
//! decision out.
//!
//! **Processors**: the time in which some task waited for a processor, in the whole machine or in a
//! control group that encloses this process. If the kernel lacks these figures, the number of
//! runnable threads is used instead.
//!
//! While processors are free, workers may also look for requests before they sleep.
//!
//! **Disks**: the time in which some task waited for I/O. Clients on the same machine wait for I/O
//! while they wait for this server, so the latency of all requests is subtracted, and for each
//! request an allowance for its way through the sockets. If the kernel counts the waits of this
//! server itself, nothing is measured: otherwise background work would slow itself down.

use super::manager::Daemon;
use super::memory;
use super::periodic::Periodic;
use forebay_api::BackgroundStatus;
use forebay_config::{BackgroundMode, LoadSources, PollingMode, SystemLoad};
use forebay_runtime::{BackgroundControl, BackgroundShares, Runtime};
use forebay_threads::Thread;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// How much longer a client on this machine waits for an answer than the server takes for it, in
/// microseconds: the way through the sockets, and two wake-ups.
const REQUEST_US: u64 = 100;
/// The least time between two lines in the log that say that background work slows down, in
/// milliseconds.
const LOG_INTERVAL_MS: u64 = 60_000;
/// Workers may look for requests if processors had nothing to do for this part of the last second,
/// in thousandths of one processor. Another program then finds a free one, most of the time.
const IDLE_MIN: u64 = 250;
/// Below this pressure, in thousandths, other programs hardly wait.
const PRESSURE_LOW: u32 = 100;

/// The background work of a running server.
pub(super) struct Background {
    runtime: Arc<Runtime>,
    /// Whether workers may look for requests before they sleep, if processors are free.
    may_poll: bool,
    state: Mutex<BackgroundState>,
}

struct BackgroundState {
    setting: BackgroundMode,
    processors: BackgroundControl,
    disks: BackgroundControl,
    pressures: Pressures,
    log: HoldLog,
}

/// The share of the time in which some task waited, in thousandths; `None` if it is not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pressures {
    processors: Option<u32>,
    disks: Option<u32>,
}

/// The figures at one moment.
struct PressureSample {
    load: SystemLoad,
    /// The requests of clients that were answered so far, and the sum of their latencies in
    /// microseconds.
    client_waits: (u64, u64),
}

impl Background {
    pub(super) fn new(
        runtime: Arc<Runtime>,
        setting: BackgroundMode,
        polling: PollingMode,
    ) -> Self {
        let state = BackgroundState {
            setting,
            processors: BackgroundControl::default(),
            disks: BackgroundControl::default(),
            pressures: Pressures::default(),
            log: HoldLog::default(),
        };
        let may_poll = polling == PollingMode::Auto && processors() > 1;
        Self { runtime, may_poll, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, BackgroundState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the setting, if one is given.
    pub(super) fn set(&self, setting: Option<BackgroundMode>) {
        let Some(setting) = setting else { return };
        let mut state = self.state();
        tracing::info!(%setting, "background work is set");
        state.setting = setting;
        (state.processors, state.disks) = Default::default();
        state.log = HoldLog::default();
        self.runtime.set_background(BackgroundShares::default());
    }

    /// Decides from the pressures of the last interval, and carries the decision out.
    fn follow(&self, now_ms: u64, pressures: Pressures) {
        let mut state = self.state();
        state.pressures = pressures;
        if state.setting == BackgroundMode::Full {
            return;
        }
        let shares = BackgroundShares {
            processors: state.processors.update(now_ms, pressures.processors),
            disks: state.disks.update(now_ms, pressures.disks),
        };
        self.runtime.set_background(shares);
        state.log.report(now_ms, shares, pressures);
    }

    /// Lets workers look for requests, or not, by the idle time of all processors in the last
    /// interval, in thousandths of one. The pressure is no measure for this: a client and a worker
    /// that wake each other on one processor wait for it all the time.
    fn set_idle(&self, idle: Option<u64>) {
        let has_spare = self.may_poll && idle.is_some_and(|idle| idle >= IDLE_MIN);
        self.runtime.set_spare_processors(has_spare);
    }

    /// What background work may use, and why.
    pub(super) fn status(&self) -> BackgroundStatus {
        let state = self.state();
        let shares =
            BackgroundShares { processors: state.processors.share(), disks: state.disks.share() };
        let percent = |pressure: Option<u32>| pressure.map(|it| f64::from(it) / 10.0);
        BackgroundStatus {
            setting: state.setting.to_string(),
            processors: shares.processors.into(),
            disks: shares.disks.into(),
            processors_pressure: percent(state.pressures.processors),
            disks_pressure: percent(state.pressures.disks),
            reason: match state.setting {
                BackgroundMode::Full => "it is set to full".to_owned(),
                BackgroundMode::Auto => reason(shares, state.pressures),
            },
        }
    }
}

/// Starts the thread.
///
/// # Errors
/// Fails if no thread can be started.
pub(super) fn start(daemon: Arc<Daemon>) -> std::io::Result<Periodic> {
    let sources = LoadSources::find(&memory::root());
    let counts_as_io = daemon.runtime().counts_as_io_pressure();
    let sample = move |daemon: &Daemon| PressureSample {
        load: sources.read(),
        client_waits: daemon.runtime().client_waits(),
    };
    let started = Instant::now();
    let (mut sampled, mut earlier) = (started, sample(&daemon));
    Periodic::start(Thread::named("background"), INTERVAL, move || {
        let (now, later) = (Instant::now(), sample(&daemon));
        let mut pressures =
            pressures_between(&earlier, &later, now.duration_since(sampled), processors());
        pressures.disks = pressures.disks.filter(|_| !counts_as_io);
        daemon.background().set_idle(idle_between(&earlier.load, &later.load, now - sampled));
        daemon.background().follow(now.duration_since(started).as_millis() as u64, pressures);
        (sampled, earlier) = (now, later);
    })
}

/// The processors that this process may use.
fn processors() -> u64 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u64)
}

/// The pressures between two samples.
fn pressures_between(
    earlier: &PressureSample,
    later: &PressureSample,
    elapsed: Duration,
    processors: u64,
) -> Pressures {
    let elapsed_us = (elapsed.as_micros() as u64).max(1);
    let of_time = |us: u64| (us.saturating_mul(1_000) / elapsed_us).min(1_000) as u32;
    let processors = match later.load.processors.us_since(&earlier.load.processors) {
        Some(stalled_us) => Some(of_time(stalled_us)),
        None => later.load.runnable.map(|count| of_threads(count, processors)),
    };
    let (requests, waited_us) = later.client_waits;
    let requests = requests.saturating_sub(earlier.client_waits.0);
    let clients_us =
        waited_us.saturating_sub(earlier.client_waits.1) + requests.saturating_mul(REQUEST_US);
    let stalled_us = later.load.disks.us_since(&earlier.load.disks);
    let disks = stalled_us.map(|stalled_us| of_time(stalled_us.saturating_sub(clients_us)));
    Pressures { processors, disks }
}

/// The idle time between two samples, in thousandths of the time of one processor.
fn idle_between(earlier: &SystemLoad, later: &SystemLoad, elapsed: Duration) -> Option<u64> {
    let idle_us = later.idle_us?.saturating_sub(earlier.idle_us?);
    Some(idle_us.saturating_mul(1_000) / (elapsed.as_micros() as u64).max(1))
}

/// The share of the runnable threads that have no processor, in thousandths.
const fn of_threads(runnable: u64, processors: u64) -> u32 {
    match runnable.saturating_sub(processors) {
        0 => 0,
        waiting => (waiting * 1_000 / runnable) as u32,
    }
}

/// Why the shares are what they are.
fn reason(shares: BackgroundShares, pressures: Pressures) -> String {
    let resources = [
        ("processors", shares.processors, pressures.processors),
        ("disks", shares.disks, pressures.disks),
    ];
    let held = resources.iter().filter(|(_, share, _)| !share.is_full());
    let held: Vec<String> = held.map(|(name, _, pressure)| waits(name, *pressure)).collect();
    match (held.is_empty(), pressures.disks.is_some()) {
        (false, _) => format!("other programs {}", held.join(", and ")),
        (true, true) => "other programs hardly wait for processors and disks".to_owned(),
        (true, false) => "other programs hardly wait for processors; waits for disks are not \
            measured"
            .to_owned(),
    }
}

fn waits(resource: &str, pressure: Option<u32>) -> String {
    let percent = pressure.unwrap_or(0) / 10;
    match pressure {
        Some(PRESSURE_LOW..) => format!("wait for {resource} {percent} % of the time"),
        _ => format!("have waited for {resource} until a moment ago"),
    }
}

/// Logs when background work begins to slow down, at most once in [`LOG_INTERVAL_MS`], and the end
/// of each slow-down that was logged.
#[derive(Debug, Default)]
struct HoldLog {
    is_held: bool,
    is_logged: bool,
    /// When the slow-down began, and when one was last logged.
    since_ms: u64,
    logged_ms: Option<u64>,
    /// Slow-downs since then that were not logged.
    unlogged: u64,
}

impl HoldLog {
    fn report(&mut self, now_ms: u64, shares: BackgroundShares, pressures: Pressures) {
        let was_held = std::mem::replace(&mut self.is_held, !shares.are_full());
        match (was_held, self.is_held) {
            (false, true) => {
                self.since_ms = now_ms;
                self.is_logged = self.admit(now_ms);
                if self.is_logged {
                    let unlogged_times = std::mem::take(&mut self.unlogged);
                    tracing::info!(
                        processors = %shares.processors,
                        disks = %shares.disks,
                        unlogged_times,
                        reason = reason(shares, pressures),
                        "background work slows down"
                    );
                }
            }
            (true, false) if self.is_logged => {
                let seconds = now_ms.saturating_sub(self.since_ms) / 1_000;
                tracing::info!(seconds, "background work is at full speed again");
            }
            _ => {}
        }
    }

    fn admit(&mut self, now_ms: u64) -> bool {
        if self.logged_ms.is_some_and(|logged_ms| now_ms < logged_ms + LOG_INTERVAL_MS) {
            self.unlogged += 1;
            return false;
        }
        self.logged_ms = Some(now_ms);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::Stalls;
    use forebay_types::BackgroundShare::{Full, Least, Reduced};

    fn sample(
        processors_us: Option<u64>,
        disks_us: Option<u64>,
        client_waits: (u64, u64),
    ) -> PressureSample {
        let stalls = |us| Stalls::from_iter([None, us]);
        let (processors, disks) = (stalls(processors_us), stalls(disks_us));
        PressureSample {
            load: SystemLoad { processors, disks, ..SystemLoad::default() },
            client_waits,
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn idle_time_is_counted_in_processors() {
        let load = |idle_us| SystemLoad { idle_us, ..SystemLoad::default() };
        let between = |now, elapsed| idle_between(&load(Some(1_000_000)), &load(now), elapsed);
        assert_eq!(between(Some(2_500_000), SECOND), Some(1_500));
        assert_eq!(between(Some(2_500_000), SECOND * 2), Some(750));
        assert_eq!(between(Some(900_000), SECOND), Some(0), "a processor was taken away");
        assert_eq!(between(None, SECOND), None);
        assert_eq!(between(Some(1_000_000), Duration::ZERO), Some(0));
    }

    #[test]
    fn pressure_is_the_share_of_the_time_in_which_something_waited() {
        let before = sample(Some(1_000_000), Some(5_000_000), (0, 0));
        let between = |elapsed| {
            let after = sample(Some(1_300_000), Some(5_700_000), (0, 0));
            pressures_between(&before, &after, elapsed, 1)
        };
        assert_eq!(between(SECOND), Pressures { processors: Some(300), disks: Some(700) });
        assert_eq!(between(SECOND * 2), Pressures { processors: Some(150), disks: Some(350) });
        // The figures are not read at the same moment as the clock, so they can exceed it.
        assert_eq!(between(SECOND / 2).disks, Some(1_000));
        assert_eq!(between(Duration::ZERO).disks, Some(1_000));
    }

    #[test]
    fn waits_of_clients_for_the_server_are_no_pressure_of_others() {
        let before = sample(None, Some(0), (10, 1_000));
        let disks = |requests: u64, waited_us: u64| {
            let after = sample(None, Some(900_000), (10 + requests, 1_000 + waited_us));
            pressures_between(&before, &after, SECOND, 1).disks
        };
        assert_eq!(disks(0, 0), Some(900));
        assert_eq!(disks(1_000, 50_000), Some(750));
        assert_eq!(disks(100, 880_000), Some(10));
        assert_eq!(disks(100_000, 32_000_000), Some(0), "32 at a time");
        // A volume was removed, and its counters with it.
        let after = sample(None, Some(900_000), (0, 0));
        assert_eq!(pressures_between(&before, &after, SECOND, 1).disks, Some(900));
    }

    #[test]
    fn without_figures_of_the_kernel_runnable_threads_are_compared_with_the_processors() {
        let processors = |runnable, processors| {
            let mut after = sample(None, None, (0, 0));
            after.load.runnable = runnable;
            let before = sample(None, None, (0, 0));
            pressures_between(&before, &after, SECOND, processors)
        };
        for (runnable, count, pressure) in [(0, 4, 0), (4, 4, 0), (5, 4, 200), (9, 1, 888)] {
            let expected = Pressures { processors: Some(pressure), disks: None };
            assert_eq!(processors(Some(runnable), count), expected);
        }
        assert_eq!(processors(None, 4), Pressures::default());
    }

    #[test]
    fn the_reason_names_what_others_wait_for() {
        let shares = |processors, disks| BackgroundShares { processors, disks };
        let pressures = |processors, disks| Pressures { processors, disks };
        for (shares, pressures, expected) in [
            (
                shares(Least, Full),
                pressures(Some(456), Some(90)),
                "other programs wait for processors 45 % of the time",
            ),
            (
                shares(Reduced, Least),
                pressures(Some(300), Some(90)),
                "other programs wait for processors 30 % of the time, and have waited for disks \
                 until a moment ago",
            ),
            (
                shares(Full, Full),
                pressures(Some(3), Some(150)),
                "other programs hardly wait for processors and disks",
            ),
            (
                shares(Full, Full),
                pressures(Some(3), None),
                "other programs hardly wait for processors; waits for disks are not measured",
            ),
        ] {
            assert_eq!(reason(shares, pressures), expected);
        }
    }

    #[test]
    fn the_log_says_once_a_minute_that_background_work_slows_down() {
        let mut log = HoldLog::default();
        let held = BackgroundShares { processors: Least, disks: Full };
        let mut logged = Vec::new();
        for second in 0..200 {
            // Ten seconds each.
            let shares = if second / 10 % 2 == 0 { held } else { BackgroundShares::default() };
            log.report(second * 1_000, shares, Pressures::default());
            logged.extend(log.logged_ms.filter(|ms| *ms == second * 1_000));
        }
        assert_eq!(logged, [0, 60_000, 120_000, 180_000]);
        assert_eq!(log.unlogged, 0);
    }
}
