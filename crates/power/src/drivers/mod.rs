//! Sources of readings: a NUT server, a command, a file.
//!
//! Each [`Poller`] is a thread that polls one UPS and passes each [`UpsObservation`] to a sink.
//! Errors are observations too. A thread that hangs in an uninterruptible call (name resolution, a
//! dead disk) delivers nothing, so its last reading expires.
//!
//! The thread calls the sink, which should only store or send the observation.

mod address;
mod clock;
mod command;
mod connection;
mod file;
mod nut;
mod poller;
mod tls;

pub use address::{AddressError, NutAddress};
pub use clock::now_ms;
pub use command::{CommandSource, OUTPUT_BYTES_MAX};
pub use file::{FILE_BYTES_MAX, FileSource};
pub use nut::{Credentials, NutSource};
pub use poller::{Poller, ReadingSource};
pub use tls::{Authority, AuthorityError};

use crate::UpsObservation;

forebay_types::faults! { AddressError, AuthorityError }

/// The receiver of observations.
pub type ObservationSink = Box<dyn FnMut(UpsObservation) + Send>;

#[cfg(test)]
mod tests;
