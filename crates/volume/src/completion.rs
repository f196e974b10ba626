//! Completions: exactly one answer per request, enforced by type.
//!
//! A front end submits a request with a ticket, which identifies the request to it. The ticket
//! travels with the request as a [`Completion`]. Answering consumes the completion, so a second
//! answer is impossible. A completion dropped unanswered answers with an I/O error, so that no
//! client waits for a lost request.
//!
//! Answers collect in the [`CompletionQueue`] that made the completion, until its owner takes them
//! in a [`CompletionBatch`]. Queue and completions belong to one thread; they use no atomics, and
//! allocate nothing once the lists have grown.

use crate::{Reply, ReplySegment, WaitBreakdown};
use forebay_engine::LineHits;
use forebay_types::{IoError, IoResult};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// The duty to answer a request. See the module's description.
#[must_use = "dropping it answers the request with an I/O error"]
pub struct Completion<T, M> {
    /// `None` once it has been answered.
    ticket: Option<T>,
    answers: Rc<RefCell<CompletionBatch<T, M>>>,
}

impl<T, M> Completion<T, M> {
    /// Answers the request.
    // Inlined, nothing is copied: several short stores that are read by one load stall the
    // processor.
    #[inline(always)]
    pub fn answer(mut self, reply: Reply<'_, M>) {
        if let Some(ticket) = self.ticket.take() {
            self.answers.borrow_mut().push(ticket, reply, false);
        }
    }
}

impl<T, M> Drop for Completion<T, M> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let (result, line_hits) = (Err(IoError::Io), LineHits::default());
            let reply = Reply { result, segments: &[], memory: None, line_hits, trail: None };
            self.answers.borrow_mut().push(ticket, reply, true);
        }
    }
}

/// Makes completions and collects their answers.
pub struct CompletionQueue<T, M>(Rc<RefCell<CompletionBatch<T, M>>>);

impl<T, M> Default for CompletionQueue<T, M> {
    fn default() -> Self {
        Self(Rc::default())
    }
}

impl<T, M> CompletionQueue<T, M> {
    /// Makes the completion of the request with this ticket.
    pub fn begin(&self, ticket: T) -> Completion<T, M> {
        Completion { ticket: Some(ticket), answers: Rc::clone(&self.0) }
    }

    /// Swaps the answers into `into`. The former content of `into`, usually nothing, ends up in the
    /// queue.
    pub fn take(&self, into: &mut CompletionBatch<T, M>) {
        debug_assert!(into.is_empty(), "answers that were taken are not delivered");
        std::mem::swap(&mut *self.0.borrow_mut(), into);
    }

    /// Whether no answer waits to be taken.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

#[derive(Debug)]
pub struct AnsweredRequest<T, M> {
    /// The ticket of the request.
    pub ticket: T,
    /// Success, or the first error.
    pub result: IoResult,
    /// The private memory that segments refer to.
    pub memory: Option<M>,
    /// Lines hit and missed, and why the pool did not serve the request alone.
    pub line_hits: LineHits,
    /// What it waited for, if that may be of interest.
    pub trail: Option<Box<WaitBreakdown>>,
    /// Whether the completion was dropped unanswered.
    pub is_lost: bool,
}

/// An answer without what only few answers own.
#[derive(Debug)]
struct AnswerEntry<T> {
    ticket: T,
    result: IoResult,
    line_hits: LineHits,
    is_lost: bool,
    owns_more: bool,
    segments: Range<u32>,
}

/// What few answers own. Kept apart from the entries: an entry then has nothing to drop, so the
/// compiler writes it directly to its place.
type Owned<M> = (Option<M>, Option<Box<WaitBreakdown>>);

/// Answers, in the order given.
#[derive(Debug)]
pub struct CompletionBatch<T, M> {
    entries: Vec<AnswerEntry<T>>,
    /// What the entries with `owns_more` own, in the same order.
    owned: Vec<Owned<M>>,
    segments: Vec<ReplySegment>,
}

impl<T, M> Default for CompletionBatch<T, M> {
    fn default() -> Self {
        Self { entries: Vec::new(), owned: Vec::new(), segments: Vec::new() }
    }
}

impl<T, M> CompletionBatch<T, M> {
    /// Whether the batch has no answer.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Calls `each` with every answer and the segments of its data, and empties the batch.
    pub fn drain(&mut self, mut each: impl FnMut(AnsweredRequest<T, M>, &[ReplySegment])) {
        let mut owned = self.owned.drain(..);
        for entry in self.entries.drain(..) {
            let AnswerEntry { ticket, result, line_hits, is_lost, owns_more, segments } = entry;
            let more = if owns_more { owned.next() } else { None };
            let (memory, trail) = more.unwrap_or_default();
            let segments = &self.segments[segments.start as usize..segments.end as usize];
            each(AnsweredRequest { ticket, result, memory, line_hits, trail, is_lost }, segments);
        }
        assert!(owned.next().is_none(), "memory of an answer went to another request");
        drop(owned);
        self.segments.clear();
    }

    #[inline(always)]
    fn push(&mut self, ticket: T, reply: Reply<'_, M>, is_lost: bool) {
        let Reply { result, segments, memory, line_hits, trail } = reply;
        let from = self.segments.len() as u32;
        // Most replies have one segment, and copying a slice takes a call.
        match segments {
            [segment] => self.segments.push(*segment),
            segments => self.segments.extend_from_slice(segments),
        }
        let owns_more = memory.is_some() || trail.is_some();
        if owns_more {
            self.owned.push((memory, trail));
        }
        let segments = from..self.segments.len() as u32;
        self.entries.push(AnswerEntry { ticket, result, line_hits, is_lost, owns_more, segments });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_engine::{Place, Segment};

    type Queue = CompletionQueue<u32, Vec<u8>>;

    fn segment(offset: u32) -> ReplySegment {
        ReplySegment { shard: 0, segment: Segment { place: Place::Private { offset }, len: 512 } }
    }

    fn reply(segments: &[ReplySegment]) -> Reply<'_, Vec<u8>> {
        let line_hits = LineHits::default();
        Reply { result: Ok(()), segments, memory: None, line_hits, trail: None }
    }

    fn take_all(queue: &Queue) -> Vec<(u32, IoResult, Vec<ReplySegment>)> {
        let (mut batch, mut all) = (CompletionBatch::default(), Vec::new());
        queue.take(&mut batch);
        batch.drain(|done, segments| all.push((done.ticket, done.result, segments.to_vec())));
        assert!(batch.is_empty());
        all
    }

    #[test]
    fn an_answered_completion_does_not_answer_again_when_dropped() {
        let queue = Queue::default();
        let (first, second) = (queue.begin(1), queue.begin(2));
        second.answer(reply(&[segment(0), segment(512)]));
        first.answer(reply(&[segment(1024)]));
        let expected =
            [(2, Ok(()), vec![segment(0), segment(512)]), (1, Ok(()), vec![segment(1024)])];
        assert_eq!(take_all(&queue), expected);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_dropped_completion_answers_with_an_io_error() {
        let queue = Queue::default();
        let lost = queue.begin(7);
        assert!(queue.is_empty(), "it may still be answered");
        drop(lost);
        let mut batch = CompletionBatch::default();
        queue.take(&mut batch);
        let mut answered = Vec::new();
        batch.drain(|done, segments| {
            answered.push((done.ticket, done.result, done.is_lost, segments.len()));
        });
        assert_eq!(answered, [(7, Err(IoError::Io), true, 0)]);
    }

    #[test]
    fn answers_given_while_a_batch_is_drained_are_in_the_next() {
        let queue = Queue::default();
        let later = queue.begin(2);
        queue.begin(1).answer(reply(&[]));
        let mut batch = CompletionBatch::default();
        queue.take(&mut batch);
        let mut later = Some(later);
        batch.drain(|done, _| {
            assert_eq!(done.ticket, 1);
            later.take().expect("the batch has one answer").answer(reply(&[]));
        });
        assert_eq!(take_all(&queue), [(2, Ok(()), Vec::new())]);
    }
}
