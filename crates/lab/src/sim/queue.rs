//! The events of the simulator.

use forebay_engine::Answer;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A client submits its next request.
    Client(u16),
    /// A payload is complete, or its client has disconnected.
    Payload(u32),
    Complete(u32),
    Flushed(u32),
    Journal,
    /// The bytes of a reply have been sent.
    Release(u32),
    Answer(u8, Answer),
    /// The shards' clock advances.
    Tick,
}

/// Events by time in microseconds.
pub(crate) type Queue = crate::harness::queue::Queue<Event>;
