//! What will happen in the simulator.

use forebay_engine::Answer;

/// Something that will happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A client has thought and asks for something.
    Client(u16),
    /// The rest of a payload has come, or its client has gone.
    Payload(u32),
    /// An I/O ends.
    Complete(u32),
    /// A disk's own flush ends.
    Flushed(u32),
    /// A write of the journal ends.
    Journal,
    /// The bytes of a reply are sent.
    Release(u32),
    /// An answer reaches another worker.
    Answer(u8, Answer),
    /// The shards' clock moves on.
    Tick,
}

/// Events by microseconds.
pub(crate) type Queue = crate::harness::queue::Queue<Event>;
