//! The threads of the workers.

use super::Worker;
use crate::error::StartError;
use crate::platform::locks::{Lock, order};
use crate::platform::reactor::{EpollReactor, Reactor, UringReactor};
use crate::shared::Shared;
use forebay_frontend::{FrontEnd, Service};
use forebay_threads::Thread;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The interval at which [`Crew::wait`] polls for ended threads.
const POLL: Duration = Duration::from_millis(5);

/// The I/O engine of the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring if the kernel allows it, otherwise epoll.
    #[default]
    Auto,
    /// io_uring.
    IoUring,
    /// epoll for sockets; the backends' threads do file I/O.
    Epoll,
}

/// The threads of all workers.
pub(crate) struct Crew {
    engine: &'static str,
    counts_as_io_pressure: bool,
    threads: Lock<Vec<JoinHandle<()>>, { order::THREADS }>,
}

impl Crew {
    /// Starts a thread for each worker; all of them use the same kind of reactor.
    pub(crate) fn start<S: Service>(
        shared: &Arc<Shared>,
        engine: Engine,
        service: &Arc<S>,
    ) -> Result<Self, StartError> {
        let ring = match engine {
            Engine::Epoll => Err(None),
            Engine::IoUring | Engine::Auto => {
                Self::start_with::<UringReactor, S>(shared, service).map_err(Some)
            }
        };
        match (ring, engine) {
            (Ok(crew), _) => Ok(crew),
            (Err(Some(error)), Engine::IoUring) => Err(StartError::Ring(error)),
            (Err(reason), _) => {
                if let Some(error) = reason {
                    tracing::warn!(%error, "io_uring is not available, using epoll");
                }
                Ok(Self::start_with::<EpollReactor, S>(shared, service)?)
            }
        }
    }

    /// As [`Crew::start`], with this kind of reactor.
    pub(crate) fn start_with<R: Reactor, S: Service>(
        shared: &Arc<Shared>,
        service: &Arc<S>,
    ) -> io::Result<Self> {
        let (mut threads, mut counts_as_io_pressure) = (Vec::new(), false);
        for worker in 0..shared.inboxes.len() {
            let (sender, started) = mpsc::channel();
            let (shared, service) = (Arc::clone(shared), Arc::clone(service));
            let thread = Thread::named("worker").numbered(worker).spawn(move || {
                match Worker::<R, S::FrontEnd>::new(shared, worker, service.front_end()) {
                    Err(error) => {
                        let _ = sender.send(Err(error));
                    }
                    Ok(worker) => {
                        let _ = sender.send(Ok(worker.counts_as_io_pressure()));
                        run(worker);
                    }
                }
            })?;
            let started = started.recv();
            counts_as_io_pressure |= started
                .unwrap_or_else(|_| Err(io::Error::other("the worker exited during its start")))?;
            threads.push(thread);
        }
        Ok(Self { engine: R::NAME, counts_as_io_pressure, threads: Lock::new(threads) })
    }

    /// See [`crate::Runtime::counts_as_io_pressure`].
    pub(crate) const fn counts_as_io_pressure(&self) -> bool {
        self.counts_as_io_pressure
    }

    /// The I/O engine in use.
    pub(crate) const fn engine(&self) -> &'static str {
        self.engine
    }

    /// Waits until all threads have ended.
    pub(crate) fn join(&self) {
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }

    /// Waits until all threads have ended, but not longer than `time`.
    pub(crate) fn wait(&self, time: Duration) {
        let until = Instant::now() + time;
        let threads = self.threads.lock();
        while Instant::now() < until && !threads.iter().all(|thread| thread.is_finished()) {
            std::thread::sleep(POLL);
        }
    }
}

/// Runs a worker.
///
/// # Panics
/// If the worker cannot wait for events; a panic aborts the process.
fn run<R: Reactor, F: FrontEnd>(worker: Worker<R, F>) {
    if let Err(error) = worker.run() {
        panic!("the worker cannot wait for events: {error}");
    }
}
