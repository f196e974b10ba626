//! The inboxes of the workers: how other threads reach a worker.

use crate::locks::Lock;
use crate::worker::Tasks;
use forebay_backend::CompletionSink;
use forebay_engine::Answer;
use forebay_frontend::{ClientId, ExtentQuery};
use forebay_types::{Extent, IoResult};
use std::any::Any;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A closure to run on a worker's thread.
pub(crate) type Task = Box<dyn FnOnce(&mut dyn Tasks) + Send>;

/// A message from another thread to a worker.
pub(crate) enum Message {
    /// A backend has completed an I/O of the worker.
    IoDone { tag: u64, result: IoResult },
    /// A transfer of the worker owns its blocks now, and may start.
    BlockFree { tag: u32 },
    /// A part of one of the worker's requests is answered.
    Answer(Answer),
    /// Memory for which the client is queued may be free now.
    MemoryFree { client: ClientId },
    /// The answer to an extent query; without extents if they are unknown.
    Extents { query: ExtentQuery, extents: Vec<Extent> },
    /// A message of the front end's own type.
    FrontEnd(Box<dyn Any + Send>),
    /// Run this between two turns.
    Task(Task),
}

/// The messages to a worker, and an eventfd that wakes it.
pub(crate) struct Inbox {
    /// `None` once the worker has ended.
    messages: Lock<Option<Vec<Message>>>,
    is_signalled: AtomicBool,
    eventfd: OwnedFd,
}

impl Inbox {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        use rustix::event::EventfdFlags;
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (messages, is_signalled) = (Lock::new(Some(Vec::new())), AtomicBool::new(false));
        Ok(Self { messages, is_signalled, eventfd })
    }

    pub(crate) fn post(&self, message: Message) {
        match &mut *self.messages.lock() {
            Some(messages) => messages.push(message),
            // Dropping the message notifies the sender if it waits for an answer.
            None => return,
        }
        // One signal suffices until the worker drains the list.
        if !self.is_signalled.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Swaps all messages into an empty list.
    pub(crate) fn take(&self, into: &mut Vec<Message>) {
        // Cleared first, so that a message posted from now on signals again.
        self.is_signalled.store(false, Ordering::Release);
        if let Some(messages) = &mut *self.messages.lock() {
            std::mem::swap(messages, into);
        }
    }

    /// Drops all messages, and all that are posted from now on, as the worker ends.
    pub(crate) fn close(&self) {
        let unread = self.messages.lock().take();
        drop(unread);
    }

    /// Whether the worker has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.messages.lock().is_none()
    }

    pub(crate) fn eventfd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }
}

impl CompletionSink for Inbox {
    fn complete(&self, tag: u64, result: IoResult) {
        self.post(Message::IoDone { tag, result });
    }
}
