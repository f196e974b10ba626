//! UPS monitoring: decides whether the machine would survive a power failure.
//!
//! ```text
//! drivers (threads, sockets)  ->  Observation  ->  PowerController (pure)  ->  Decision
//! ```
//!
//! Everything except the optional feature `drivers` is pure: the time, in milliseconds of a
//! monotonic clock, is an argument. A [`UpsReading`] is the state that a UPS reports. [`evaluate`]
//! maps one reading to a [`PowerState`]. The [`PowerController`] adds hysteresis, settling and
//! timeouts for all UPSes of an [`Expression`], and decides what to do. [`budget()`] limits the
//! amount of dirty data.
//!
//! Invariant: write-back is allowed only while a sufficient set of UPSes has been safe, without
//! interruption, for the time that the [`Rules`] require. An unknown state is never safe.

pub mod budget;
mod controller;
#[cfg(feature = "drivers")]
pub mod drivers;
mod error;
mod expression;
pub mod nut;
mod reading;
mod rules;
mod state;
mod status;
mod ups;

pub use budget::{OutageForecast, budget};
pub use controller::{Exposure, PowerController, PowerDecision};
pub use error::{ReadError, ReadErrorKind};
pub use expression::{EXPRESSION_BYTES_MAX, Expression, ExpressionError, UPSES_MAX};
pub use reading::{InvalidValue, LOAD_PERCENT_MAX, RUNTIME_SECONDS_MAX, TextError, UpsReading};
pub use rules::{Rules, RulesError};
pub use state::{Critical, NotReady, PowerState, Unknown, evaluate};
pub use status::{StatusFlag, UpsFlags};
pub use ups::UpsObservation;

forebay_types::faults! { nut::EncodeError, ExpressionError, ReadError, RulesError }
