//! The threads that carry out requests: two for all volumes on S3, started with the first one.

use std::future::Future;
use std::io;
use std::sync::{Mutex, PoisonError, mpsc};
use tokio::runtime::{Builder, Handle, Runtime};

/// Most of the work is checksums, encryption and copies between sockets and buffers.
const THREAD_COUNT: usize = 2;

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

/// The threads.
///
/// # Errors
/// The system refuses them.
pub(crate) fn handle() -> io::Result<Handle> {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = &*runtime {
        return Ok(runtime.handle().clone());
    }
    let mut builder = Builder::new_multi_thread();
    let built = builder.worker_threads(THREAD_COUNT).thread_name("s3").enable_all().build()?;
    let handle = built.handle().clone();
    *runtime = Some(built);
    Ok(handle)
}

/// Runs a future to its end, and blocks the calling thread until then.
///
/// # Errors
/// The future has panicked.
pub(crate) fn wait_for<T: Send + 'static>(
    handle: &Handle,
    future: impl Future<Output = T> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = mpsc::channel();
    handle.spawn(async move { sender.send(future.await) });
    receiver.recv().map_err(|_| io::Error::other("a thread of the store has panicked"))
}
