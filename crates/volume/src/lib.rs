//! Volumes over the engine's shards: splitting, retries, streams, flushes and replies.
//!
//! A request arrives with a token of its host. The [`Dispatcher`] splits it at region borders into
//! parts and passes each part to the shard that owns its region. It keeps the requests in flight,
//! retries parts that had to wait, and returns the token with the answer. If tokens are
//! [`Completion`]s, the type system ensures exactly one answer per request. Each worker of the
//! runtime has one dispatcher, and so has the lab; [`Host`] covers their differences.
//!
//! Requests go down: host -> dispatcher -> shard -> I/O; answers return the same way. The crate
//! uses no clock, thread or socket.

mod blocks;
mod completion;
mod dispatch;
mod erase;
mod host;
mod job;
mod merge;
mod order;
mod request;
mod split;
mod streams;
mod trail;
mod warm_up;

pub use blocks::{BlockClaim, BlockOwners, BlockPlan, BlockStep};
pub use completion::{AnsweredRequest, Completion, CompletionBatch, CompletionQueue};
pub use dispatch::Dispatcher;
pub use host::{Admission, Barrier, Host, Payload, Reply, ReplySegment};
pub use job::{JobId, worker_of};
pub use merge::{Mergeable, READ_BYTES_MAX, WRITTEN_BYTES_MAX, merge};
pub use order::EpochOrder;
pub use request::{Request, RequestKind};
pub use split::{pinned_lines_by_shard, shard_of, staged_pieces};
pub use streams::{PrefetchPlan, Streams};
pub use trail::{Wait, WaitBreakdown, Waited};
pub use warm_up::{
    Conditions, DemandReads, Loader, LoaderEnd, LoaderStep, collect_granules, granules_of,
    keep_most_valuable, merge_granules, shrink_to_pool,
};
