//! Questions to backends that may take their time: what is allocated.
//!
//! A backend may block for as long as its store takes to say, so no worker asks it. Each volume has
//! a queue of questions, and a thread for as long as there are any: a store that hangs holds up
//! nobody but those who asked it. What finds the queue full is answered at once that nothing is
//! known, which is always true. The price is a thread's start for each burst of questions.

use crate::locks::Lock;
use crate::shared::{Inbox, Message, Volume};
use forebay_frontend::ExtentQuery;
use forebay_types::Extent;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Questions of one volume that wait; each is small, but what waits should be known to wait.
const WAITING_MAX: usize = 64;

/// Who asked. It is told exactly once: when dropped, that nothing is known.
pub(super) struct Asker {
    inbox: Arc<Inbox>,
    query: ExtentQuery,
    extents: Vec<Extent>,
}

impl Asker {
    pub(super) const fn new(inbox: Arc<Inbox>, query: ExtentQuery) -> Self {
        Self { inbox, query, extents: Vec::new() }
    }

    fn answer(mut self, extents: Vec<Extent>) {
        self.extents = extents;
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        let extents = std::mem::take(&mut self.extents);
        self.inbox.post(Message::Extents { query: self.query, extents });
    }
}

/// The questions of a volume.
#[derive(Default)]
pub(crate) struct Inquiries(Lock<Queue>);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Asker>,
    /// A thread asks the backend, and looks here before it ends.
    asking: bool,
}

impl Volume {
    /// Has the backend asked what is allocated.
    pub(super) fn inquire(self: &Arc<Self>, asker: Asker) {
        let mut queue = self.inquiries.0.lock();
        if queue.waiting.len() >= WAITING_MAX {
            drop(queue);
            drop(asker);
            return;
        }
        queue.waiting.push_back(asker);
        if queue.asking {
            return;
        }
        queue.asking = true;
        drop(queue);
        let volume = Arc::clone(self);
        let thread = std::thread::Builder::new().name("extents".into());
        if let Err(error) = thread.spawn(move || volume.ask_backend()) {
            tracing::warn!(volume = self.name, "nobody can ask what is allocated: {error}");
            let mut queue = self.inquiries.0.lock();
            queue.asking = false;
            let unanswered = std::mem::take(&mut queue.waiting);
            drop(queue);
            drop(unanswered);
        }
    }

    /// Asks until no question is left.
    fn ask_backend(&self) {
        loop {
            let mut queue = self.inquiries.0.lock();
            let Some(asker) = queue.waiting.pop_front() else {
                queue.asking = false;
                return;
            };
            drop(queue);
            let range = asker.query.range;
            // Whoever waits behind a question that the backend can't stand is still served.
            let asked = catch_unwind(AssertUnwindSafe(|| self.backend.extents(range)));
            asker.answer(asked.unwrap_or_default());
        }
    }
}
