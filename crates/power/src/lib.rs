//! Whether a power failure would be bridged: supplies read, judged and watched.
//!
//! ```text
//! drivers (threads, sockets)  ->  Observation  ->  Guard (pure)  ->  Decision
//! ```
//!
//! Everything but `drivers`, which is a feature, is pure: the time, in milliseconds of a clock
//! that only goes forward, is an argument. A [`Reading`] is what a supply says; [`judge`] is the
//! table that says what it is worth; the [`Guard`] adds what needs memory, over an [`Expression`]
//! of supplies, and says what to do. [`budget()`] says how much may be dirty.
//!
//! The one invariant: write-back is allowed only while supplies that are enough have all been
//! known to be safe, without a break, for as long as the [`Rules`] say. Whatever is not known is
//! not safe.

pub mod budget;
#[cfg(feature = "drivers")]
pub mod drivers;
mod expression;
mod guard;
pub mod nut;
mod reading;
mod rules;
mod status;
mod supply;
mod trouble;
mod verdict;

pub use budget::{Forecast, budget};
pub use expression::{EXPRESSION_BYTES_MAX, Expression, ExpressionError, SUPPLIES_MAX};
pub use guard::{Decision, Exposure, Guard};
pub use reading::{LOAD_PERCENT_MAX, Problem, RUNTIME_SECONDS_MAX, Reading, TextError};
pub use rules::{Rules, RulesError};
pub use status::{Status, Word};
pub use supply::Observation;
pub use trouble::{Trouble, TroubleKind};
pub use verdict::{Critical, NotReady, Unknown, Verdict, judge};
