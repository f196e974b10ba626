//! The inboxes of the workers: how other threads reach a worker.

use super::{DirtyRanges, Tasks};
use crate::platform::locks::Lock;
use forebay_backend::CompletionSink;
use forebay_engine::Answer;
use forebay_frontend::{ClientId, ExtentQuery};
use forebay_types::{Extent, IoResult};
use std::any::Any;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};

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
    Extents { query: ExtentQuery, extents: Vec<Extent>, dirty: DirtyRanges },
    /// A message of the front end's own type.
    FrontEnd(Box<dyn Any + Send>),
    /// Run this on the thread of the worker.
    Task(Task),
}

/// The worker may be waiting for events, and the next message wakes it.
const IDLE: u8 = 0;
/// The worker is in a turn, and looks for messages before the turn ends.
const AWAKE: u8 = 1;
/// There are messages, and the worker will find them.
const POSTED: u8 = 2;

/// The messages to a worker, and an eventfd that wakes it.
pub(crate) struct Inbox {
    /// `None` once the worker has ended.
    messages: Lock<Option<Vec<Message>>>,
    state: AtomicU8,
    eventfd: OwnedFd,
}

impl Inbox {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        use rustix::event::EventfdFlags;
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (messages, state) = (Lock::new(Some(Vec::new())), AtomicU8::new(IDLE));
        Ok(Self { messages, state, eventfd })
    }

    pub(crate) fn post(&self, message: Message) {
        match &mut *self.messages.lock() {
            Some(messages) => messages.push(message),
            // Dropping the message notifies the sender if it waits for an answer.
            None => return,
        }
        // After the message is in the list, so that a worker that is awake finds it.
        if self.state.swap(POSTED, Ordering::AcqRel) == IDLE {
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// The worker is awake, and looks for messages later. Until [`Inbox::end_turn`], they do not
    /// wake it, which spares a system call for each I/O that a backend completes at once.
    pub(crate) fn begin_turn(&self) {
        let before = self.state.swap(AWAKE, Ordering::AcqRel);
        assert_ne!(before, AWAKE, "the last turn has ended");
    }

    /// Ends the turn. Returns whether messages were posted in it; the caller must take them.
    #[must_use]
    pub(crate) fn end_turn(&self) -> bool {
        let before = self.state.swap(IDLE, Ordering::AcqRel);
        assert_ne!(before, IDLE, "a turn ends once, after it has begun");
        before == POSTED
    }

    /// Swaps all messages into an empty list.
    pub(crate) fn take(&self, into: &mut Vec<Message>) {
        // They would be posted again, to be handled twice.
        assert!(into.is_empty(), "the messages of the last turn are handled");
        if let Some(messages) = &mut *self.messages.lock() {
            std::mem::swap(messages, into);
        }
    }

    /// Drops all messages, and all that are posted from now on, as the worker ends.
    pub(crate) fn close(&self) {
        let unread = self.messages.lock().take();
        assert!(unread.is_some(), "a worker ends once");
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the eventfd was signalled since the last call.
    fn was_signalled(inbox: &Inbox) -> bool {
        rustix::io::read(&inbox.eventfd, &mut [0; 8]).is_ok()
    }

    fn taken(inbox: &Inbox) -> Vec<u64> {
        let mut messages = Vec::new();
        inbox.take(&mut messages);
        let tag = |message| match message {
            Message::IoDone { tag, .. } => tag,
            _ => panic!("another message was posted"),
        };
        messages.into_iter().map(tag).collect()
    }

    #[test]
    fn every_message_is_signalled_or_found_at_the_end_of_the_turn() {
        let inbox = Inbox::new().unwrap();
        inbox.complete(1, Ok(()));
        inbox.complete(2, Ok(()));
        assert!(was_signalled(&inbox), "the worker waits");
        // Another event has woken the worker first.
        inbox.begin_turn();
        assert!(!inbox.end_turn(), "the event of the signal is still to come");
        inbox.begin_turn();
        assert_eq!(taken(&inbox), [1, 2]);
        inbox.complete(3, Ok(()));
        inbox.complete(4, Ok(()));
        assert!(!was_signalled(&inbox) && inbox.end_turn());
        assert_eq!(taken(&inbox), [3, 4]);
        inbox.complete(5, Ok(()));
        assert!(was_signalled(&inbox), "the turn has ended");
        inbox.begin_turn();
        inbox.complete(6, Ok(()));
        assert!(!was_signalled(&inbox) && inbox.end_turn());
        assert_eq!(taken(&inbox), [5, 6]);
    }

    #[test]
    fn no_message_is_overlooked_whenever_it_is_posted() {
        const MESSAGES: u64 = 20_000;
        let inbox = Inbox::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..MESSAGES).for_each(|tag| inbox.complete(tag, Ok(()))));
            let mut found = 0;
            while found < MESSAGES {
                let is_woken = was_signalled(&inbox);
                inbox.begin_turn();
                if is_woken {
                    found += taken(&inbox).len() as u64;
                }
                if inbox.end_turn() {
                    found += taken(&inbox).len() as u64;
                }
            }
        });
        assert_eq!(taken(&inbox), []);
    }
}
