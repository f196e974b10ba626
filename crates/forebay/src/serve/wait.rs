//! Carries out reloads and stops that signals request, until the daemon has stopped.
//!
//! An error or a panic of either does not end the daemon: without a stop, the process must not
//! exit.

use super::manager::{self, Daemon};
use crate::keeper;
use crate::report::sentence_of;
use crate::signals::Signal;
use forebay_api::{Problem, Progress};
use forebay_control::ProgressFn;
use forebay_types::Size;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::task::{JoinError, JoinSet};

/// Time between two looks whether the machine is shutting down, while a disk prevents a stop that a
/// signal has requested.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two lines in the log about the progress of a stop, each of which also extends its
/// timeout: a fraction of [`keeper::systemd::EXTENSION`].
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The daemon, as signals control it. Reload and stop may block, and run on threads of their own.
pub(super) trait Signalled: Send + Sync + 'static {
    fn reload(&self);

    /// # Errors
    /// Fails if dirty data cannot be flushed; the daemon then continues.
    fn stop_for_signal(&self, progress: ProgressFn<'_>) -> Result<(), Problem>;

    /// Ends the daemon, whatever its disks do, if the machine is shutting down. Returns whether it
    /// has.
    fn leave_if_machine_stops(&self) -> bool;

    /// Waits until a signal or a client has stopped the daemon.
    async fn stopped(&self);
}

/// How a daemon has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With all data on the disks, or for an upgrade.
    Stopped,
    /// Before the machine goes down, without data that disks have refused.
    Left,
}

impl Signalled for Daemon {
    fn reload(&self) {
        // It logs what fails, and a signal has no answer.
        let _ = self.apply_file(false);
    }

    fn stop_for_signal(&self, progress: ProgressFn<'_>) -> Result<(), Problem> {
        Self::stop_for_signal(self, progress)
    }

    fn leave_if_machine_stops(&self) -> bool {
        manager::leave_if_machine_stops(self)
    }

    async fn stopped(&self) {
        Self::stopped(self).await;
    }
}

/// Tells the service manager to wait longer for a stop.
pub(super) type Extend = Arc<dyn Fn() + Send + Sync>;

/// Handles signals until one, or a client of the control server, has stopped the daemon.
pub(super) async fn wait_for_stop<D: Signalled>(
    daemon: &Arc<D>,
    mut next_signal: impl AsyncFnMut() -> Signal,
    mut keeper_socket: Option<UnixStream>,
    extend: Extend,
) -> End {
    // A stop does not wait for a reload, which may open a disk that hangs.
    let (mut reload, mut stop, mut leave) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
    let (mut is_reload_due, mut is_stop_due, mut is_refused) = (false, false, false);
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    loop {
        if is_reload_due && reload.is_empty() {
            is_reload_due = false;
            let daemon = Arc::clone(daemon);
            reload.spawn_blocking(move || daemon.reload());
        }
        if is_stop_due && stop.is_empty() {
            is_stop_due = false;
            tracing::info!("flushing dirty data before shutdown");
            let (daemon, extend) = (Arc::clone(daemon), Arc::clone(&extend));
            let progress = report_progress(PROGRESS_INTERVAL, extend);
            stop.spawn_blocking(move || daemon.stop_for_signal(&progress));
        }
        tokio::select! {
            biased;
            () = daemon.stopped() => return End::Stopped,
            Some(ended) = stop.join_next() => match outcome(ended) {
                Ok(()) => return End::Stopped,
                // Exiting now would lose the data that the disk refuses.
                Err(error) => {
                    keeper::notify_continuing(&mut keeper_socket).await;
                    tracing::error!(error, "shutdown failed, continuing to serve");
                    is_refused = true;
                    look.reset_immediately();
                }
            },
            Some(left) = leave.join_next() => if matches!(left, Ok(true)) {
                return End::Left;
            },
            _ = look.tick(), if is_refused && stop.is_empty() && leave.is_empty() => {
                let daemon = Arc::clone(daemon);
                leave.spawn_blocking(move || daemon.leave_if_machine_stops());
            }
            Some(ended) = reload.join_next() => {
                if let Err(panic) = ended {
                    tracing::error!(%panic, "reload failed");
                }
            }
            signal = next_signal() => match signal {
                Signal::Reload => is_reload_due = true,
                // A stop in progress is the requested one: systemd and a keeper both send SIGTERM.
                Signal::Stop => is_stop_due |= stop.is_empty(),
            },
            () = keeper::wait_until_gone(&mut keeper_socket) => {
                tracing::error!("keeper exited, stopping: the pool would not outlive this process");
                is_stop_due = true;
            }
        }
    }
}

/// The error of a stop, which may be a panic.
fn outcome(ended: Result<Result<(), Problem>, JoinError>) -> Result<(), String> {
    ended.map_err(|panic| panic.to_string())?.map_err(|problem| sentence_of(&problem))
}

/// Logs progress at intervals, and extends the time for the stop if there was some since the last
/// line: a stop that waits for a disk that hangs ends with the service manager's timeout.
fn report_progress(interval: Duration, extend: Extend) -> impl Fn(Progress) + Send + Sync {
    let reported = Mutex::new(None::<(Instant, u64)>);
    move |progress| {
        let left = progress.dirty_bytes_left;
        let mut reported = reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.is_none_or(|(at, _)| at.elapsed() >= interval) {
            if reported.is_some_and(|(_, before)| before != left) {
                extend();
            }
            *reported = Some((Instant::now(), left));
            tracing::info!(left = %Size(left), "flushing dirty data");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::ErrorKind;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use tokio::io::AsyncReadExt;
    use tokio::sync::Notify;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    type Outcome = Result<(), Problem>;

    /// A daemon whose reloads and stops report that they have begun, then wait for their outcome.
    /// Without one they panic.
    struct Fake {
        begun: UnboundedSender<&'static str>,
        reloads: Mutex<Receiver<Option<()>>>,
        stops: Mutex<Receiver<Option<Outcome>>>,
        machine_stops: AtomicBool,
        stopped: Notify,
    }

    fn next<T>(outcomes: &Mutex<Receiver<Option<T>>>) -> T {
        let outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        outcomes.recv().unwrap().expect("a panic of the test")
    }

    impl Signalled for Fake {
        fn reload(&self) {
            self.begun.send("reload").unwrap();
            next(&self.reloads);
        }

        fn stop_for_signal(&self, _: ProgressFn<'_>) -> Outcome {
            self.begun.send("stop").unwrap();
            next(&self.stops)
        }

        fn leave_if_machine_stops(&self) -> bool {
            self.machine_stops.load(Ordering::Relaxed)
        }

        async fn stopped(&self) {
            self.stopped.notified().await;
        }
    }

    /// The test's side of a [`Fake`].
    struct Script {
        signals: UnboundedSender<Signal>,
        begun: UnboundedReceiver<&'static str>,
        reloads: Sender<Option<()>>,
        stops: Sender<Option<Outcome>>,
        keeper: UnixStream,
    }

    impl Script {
        /// Waits for a message of the server to its keeper.
        async fn wait_for_continuing(&mut self) {
            let mut message = [0];
            self.keeper.read_exact(&mut message).await.unwrap();
            assert_eq!(&message, b"C");
        }

        async fn signal_and_wait(&mut self, signal: Signal, begun: &str) {
            self.signals.send(signal).unwrap();
            assert_eq!(self.begun.recv().await, Some(begun));
        }
    }

    /// Runs a script until the daemon has stopped.
    async fn run(script: impl AsyncFnOnce(Arc<Fake>, Script)) -> End {
        let (signals, mut incoming) = unbounded_channel();
        let (sender, begun) = unbounded_channel();
        let ((reloads, reload_outcomes), (stops, stop_outcomes)) = (channel(), channel());
        let (keeper, server) = UnixStream::pair().unwrap();
        let daemon = Arc::new(Fake {
            begun: sender,
            reloads: Mutex::new(reload_outcomes),
            stops: Mutex::new(stop_outcomes),
            machine_stops: AtomicBool::new(false),
            stopped: Notify::new(),
        });
        let script = script(
            Arc::clone(&daemon),
            Script { signals: signals.clone(), begun, reloads, stops, keeper },
        );
        let next_signal = async || incoming.recv().await.unwrap();
        let waiting = wait_for_stop(&daemon, next_signal, Some(server), Arc::new(|| ()));
        let (end, ()) = tokio::join!(waiting, script);
        drop(signals);
        end
    }

    #[test]
    fn a_stop_is_given_more_time_only_while_its_flush_advances() {
        let (sender, extended) = channel();
        let report = report_progress(Duration::ZERO, Arc::new(move || sender.send(()).unwrap()));
        for (left, extends) in [(10, false), (10, false), (8, true), (8, false), (0, true)] {
            report(Progress { dirty_bytes_left: left, ..Progress::default() });
            assert_eq!(extended.try_recv().is_ok(), extends, "{left}");
        }
        let rarely = report_progress(Duration::MAX, Arc::new(|| unreachable!("too early")));
        for left in [10, 8] {
            rarely(Progress { dirty_bytes_left: left, ..Progress::default() });
        }
    }

    fn refused() -> Option<Outcome> {
        Some(Err(Problem::new(ErrorKind::Failed, "the disk refuses it", "replace it")))
    }

    #[tokio::test]
    async fn no_error_or_panic_of_a_reload_or_stop_ends_the_daemon() {
        run(async |_, mut script: Script| {
            script.signal_and_wait(Signal::Reload, "reload").await;
            script.reloads.send(None).unwrap();
            for outcome in [None, refused()] {
                script.signal_and_wait(Signal::Stop, "stop").await;
                script.stops.send(outcome).unwrap();
                script.wait_for_continuing().await;
            }
            script.signal_and_wait(Signal::Reload, "reload").await;
            // A stop begins although the reload hangs, and its success ends the daemon.
            script.signal_and_wait(Signal::Stop, "stop").await;
            script.stops.send(Some(Ok(()))).unwrap();
        })
        .await;
    }

    #[tokio::test]
    async fn a_second_signal_requests_the_stop_that_is_in_progress() {
        run(async |daemon, mut script: Script| {
            script.signal_and_wait(Signal::Stop, "stop").await;
            script.signals.send(Signal::Stop).unwrap();
            // The reload shows that the signal before it was handled.
            script.signal_and_wait(Signal::Reload, "reload").await;
            script.reloads.send(Some(())).unwrap();
            script.stops.send(refused()).unwrap();
            script.wait_for_continuing().await;
            script.signal_and_wait(Signal::Reload, "reload").await;
            // A client stops the daemon.
            daemon.stopped.notify_one();
        })
        .await;
    }

    #[tokio::test]
    async fn a_daemon_that_cannot_stop_ends_with_the_machine() {
        let end = run(async |daemon, mut script: Script| {
            script.signal_and_wait(Signal::Stop, "stop").await;
            daemon.machine_stops.store(true, Ordering::Relaxed);
            script.stops.send(refused()).unwrap();
            script.wait_for_continuing().await;
        });
        assert_eq!(end.await, End::Left);
    }

    #[tokio::test]
    async fn a_daemon_whose_keeper_has_gone_stops() {
        run(async |_, mut script: Script| {
            drop(script.keeper);
            assert_eq!(script.begun.recv().await, Some("stop"));
            script.stops.send(Some(Ok(()))).unwrap();
        })
        .await;
    }
}
