//! The decisions that guard acknowledged writes, as state machines.
//!
//! - [`admission`] decides whether a write may be acknowledged from memory, and [`protection`] what
//!   protects a volume's dirty data.
//! - [`JournalState`] is a journal as its volumes use it: it turns the requests of the shards into
//!   records and the progress of the log into answers, and holds the answers back while a failure
//!   of the journal is not recorded elsewhere.
//! - [`Retention`] keeps in the journal what a disk did not take.
//! - [`RecordAgain`] records the dirty data of an adopted pool again.
//! - [`PowerGate`] limits the dirty data under UPS protection.
//! - [`PowerSequence`] orders the steps of volumes under a UPS: drain, flush, halt, dump, resume.
//!
//! This crate has no clock, thread, file or device. The runtime and the simulator drive it: what is
//! simulated is what ships.

mod admission;
mod gate;
mod journal;
mod record_again;
mod retention;
mod sequence;

pub use admission::{admission, protection};
pub use gate::PowerGate;
pub use journal::{JournalState, KeptStatus};
pub use record_again::{RecordAgain, RecordAgainStep};
pub use retention::{Retention, RetentionStep, StuckLine, fence, runs_of};
pub use sequence::{DumpStep, PowerOrder, PowerSequence, Upkeep, VolumePower};
