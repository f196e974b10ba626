//! Threads that may block, for stores that only know calls that do.
//!
//! Threads are started as I/O finds all others busy, up to a limit, and end with the pool. The
//! queue in front of them has no limit of its own: what is in flight is limited where requests
//! enter.

use crate::{Io, sync::lock};
use forebay_types::IoError;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// What the threads do with one I/O, which includes answering it.
type Work = Box<dyn Fn(Io) + Send + Sync>;

/// A pool of threads that run one function on each I/O given to it.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    work: Work,
    name: &'static str,
    thread_count_max: usize,
}

struct State {
    queue: VecDeque<Io>,
    /// Threads that wait for `wake`.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    stopping: bool,
}

impl Pool {
    /// A pool of up to `thread_count_max` threads, none of them running yet.
    pub(crate) fn new(name: &'static str, thread_count_max: usize, work: Work) -> Self {
        assert!(thread_count_max > 0, "a pool without threads answers nothing");
        let state = State { queue: VecDeque::new(), idle: 0, threads: Vec::new(), stopping: false };
        let shared =
            Shared { state: Mutex::new(state), wake: Condvar::new(), work, name, thread_count_max };
        Self { shared: Arc::new(shared) }
    }

    /// Has one I/O done.
    pub(crate) fn submit(&self, io: Io) {
        let mut state = lock(&self.shared.state);
        state.queue.push_back(io);
        if state.queue.len() > state.idle && state.threads.len() < self.shared.thread_count_max {
            let shared = self.shared.clone();
            let thread = thread::Builder::new().name(self.shared.name.into());
            match thread.spawn(move || shared.serve()) {
                Ok(thread) => state.threads.push(thread),
                // With a thread left the I/O only waits longer.
                Err(_) if !state.threads.is_empty() => {}
                Err(error) => {
                    tracing::error!(%error, "no thread can be started for disk I/O");
                    let io = state.queue.pop_back();
                    drop(state);
                    if let Some(io) = io {
                        io.done.complete(Err(IoError::NoMemory));
                    }
                    return;
                }
            }
        }
        drop(state);
        self.shared.wake.notify_one();
    }
}

impl Shared {
    /// The life of one thread. What is queued when the pool stops is still done.
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(io) = state.queue.pop_front() {
                drop(state);
                (self.work)(io);
                state = lock(&self.state);
            } else if state.stopping {
                return;
            } else {
                state.idle += 1;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.stopping = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.wake.notify_all();
        for thread in threads {
            join_unless_self(thread);
        }
    }
}

/// Waits for a thread to end, unless this is that thread: the answer to an I/O may drop the last
/// handle of the backend that answers it.
pub(crate) fn join_unless_self(thread: JoinHandle<()>) {
    if thread.thread().id() != thread::current().id() && thread.join().is_err() {
        tracing::error!("a thread that served disk I/O has panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Completion, IoKind, blocking::Wait};
    use std::sync::Barrier;

    fn flush(wait: &Arc<Wait>, tag: u64) -> Io {
        let done = Completion::new(wait.clone(), tag);
        Io { kind: IoKind::Flush, offset: 0, len: 0, buffers: Vec::new(), done }
    }

    #[test]
    fn as_many_threads_work_at_once_as_are_allowed() {
        // Passes only if four I/Os are inside `work` together.
        let barrier = Barrier::new(4);
        let work = move |io: Io| {
            barrier.wait();
            io.done.complete(Ok(()));
        };
        let pool = Pool::new("test", 4, Box::new(work));
        let wait = Wait::new(32);
        (0..32).for_each(|tag| pool.submit(flush(&wait, tag)));
        assert_eq!(wait.all(), vec![Ok(()); 32]);
        assert_eq!(lock(&pool.shared.state).threads.len(), 4);
    }

    #[test]
    fn what_is_queued_is_done_before_the_pool_ends() {
        let wait = Wait::new(64);
        let pool = Pool::new("test", 1, Box::new(|io: Io| io.done.complete(Ok(()))));
        (0..64).for_each(|tag| pool.submit(flush(&wait, tag)));
        drop(pool);
        assert_eq!(wait.all(), vec![Ok(()); 64]);
    }
}
