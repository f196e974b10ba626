//! A thread pool for stores with blocking calls.
//!
//! A thread is started when all others are busy, up to a limit. All threads end with the pool. The
//! queue is unbounded: the I/O in flight is limited where requests enter.

use crate::{Io, sync::lock};
use forebay_threads::Thread;
use forebay_types::IoError;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Executes and answers one I/O.
type IoWork = Box<dyn Fn(Io) + Send + Sync>;

/// Threads that run one function on each submitted I/O.
pub(crate) struct ThreadPool {
    shared: Arc<PoolShared>,
}

struct PoolShared {
    state: Mutex<QueueState>,
    wake: Condvar,
    work: IoWork,
    thread: Thread,
    thread_count_max: usize,
}

struct QueueState {
    queue: VecDeque<Io>,
    /// Threads that wait for `wake`.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    is_stopping: bool,
}

impl ThreadPool {
    /// A pool of up to `thread_count_max` threads; none is running yet.
    pub(crate) fn new(thread: Thread, thread_count_max: usize, work: IoWork) -> Self {
        assert!(thread_count_max > 0, "a pool needs at least one thread");
        let (queue, threads) = (VecDeque::new(), Vec::new());
        let state = QueueState { queue, idle: 0, threads, is_stopping: false };
        let shared = PoolShared {
            state: Mutex::new(state),
            wake: Condvar::new(),
            work,
            thread,
            thread_count_max,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Queues one I/O.
    pub(crate) fn submit(&self, io: Io) {
        let mut state = lock(&self.shared.state);
        state.queue.push_back(io);
        if state.queue.len() > state.idle && state.threads.len() < self.shared.thread_count_max {
            let shared = self.shared.clone();
            match self.shared.thread.spawn(move || shared.serve()) {
                Ok(thread) => state.threads.push(thread),
                // With another thread running, the I/O only waits longer.
                Err(_) if !state.threads.is_empty() => {}
                Err(error) => {
                    tracing::error!(%error, "cannot start a disk I/O thread");
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

impl PoolShared {
    /// The main loop of one thread. Executes all queued I/O before it stops.
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(io) = state.queue.pop_front() {
                drop(state);
                (self.work)(io);
                state = lock(&self.state);
            } else if state.is_stopping {
                return;
            } else {
                state.idle += 1;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.is_stopping = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.wake.notify_all();
        for thread in threads {
            join_unless_self(thread);
        }
    }
}

/// Joins a thread, unless it is the calling one: the answer to an I/O may drop the last handle of
/// the answering backend.
pub(crate) fn join_unless_self(thread: JoinHandle<()>) {
    let name = thread.thread().name().unwrap_or_default().to_owned();
    if thread.thread().id() != thread::current().id() && thread.join().is_err() {
        tracing::error!(thread = name, "backend thread panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IoKind, IoToken, blocking::IoWait};
    use forebay_types::Few;
    use std::sync::Barrier;

    fn flush(wait: &Arc<IoWait>, tag: u64) -> Io {
        let done = IoToken::new(wait.clone(), tag);
        Io { kind: IoKind::Flush, offset: 0, len: 0, buffers: Few::new(), done }
    }

    #[test]
    fn all_permitted_threads_work_concurrently() {
        // Passes only if four I/Os are inside `work` at the same time.
        let barrier = Barrier::new(4);
        let work = move |io: Io| {
            barrier.wait();
            io.done.complete(Ok(()));
        };
        let pool = ThreadPool::new(Thread::named("test"), 4, Box::new(work));
        let wait = IoWait::new(32);
        (0..32).for_each(|tag| pool.submit(flush(&wait, tag)));
        assert_eq!(wait.all(), vec![Ok(()); 32]);
        assert_eq!(lock(&pool.shared.state).threads.len(), 4);
    }

    #[test]
    fn queued_io_completes_before_the_pool_ends() {
        let wait = IoWait::new(64);
        let pool =
            ThreadPool::new(Thread::named("test"), 1, Box::new(|io: Io| io.done.complete(Ok(()))));
        (0..64).for_each(|tag| pool.submit(flush(&wait, tag)));
        drop(pool);
        assert_eq!(wait.all(), vec![Ok(()); 64]);
    }
}
