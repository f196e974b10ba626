//! Named volumes over the engine: bounds, splitting, streams, flushes and replies.
//!
//! A client's request comes in with a token, is cut at region borders into parts, and each part
//! goes to the shard that owns its region. The [`Dispatcher`] keeps what is in flight, tries parts
//! again that had to wait, and gives the token back with the answer. A host whose tokens are
//! [`Completion`]s has each request answered exactly once, by type. Each worker of the runtime has
//! one dispatcher, and so has the lab; what they do differently is behind [`Host`].
//!
//! Requests go down: host -> dispatcher -> shard -> I/O; answers come back the same way. Nothing
//! here knows a clock, a thread or a socket.

mod blocks;
mod completion;
mod dispatch;
mod erase;
mod gate;
mod host;
mod job;
mod merge;
mod order;
mod request;
mod split;
mod streams;

pub use blocks::{BlockOwners, BlockPlan, BlockStep, Claim};
pub use completion::{Answered, Completion, CompletionBatch, CompletionQueue};
pub use dispatch::Dispatcher;
pub use gate::PowerGate;
pub use host::{Admission, Host, Payload, Reply, ReplySegment};
pub use job::{JobId, worker_of};
pub use merge::{Mergeable, READ_BYTES_MAX, WRITTEN_BYTES_MAX, merge};
pub use order::Order;
pub use request::{Request, RequestKind};
pub use split::{shard_of, staged_pieces};
pub use streams::{Plan, Streams};
