//! Where readings come from: a NUT server, a command, a file.
//!
//! Each [`Watch`] is one thread that reads its supply again and again and hands each
//! [`Observation`] to a sink. Whatever goes wrong is an observation as well; a thread that hangs
//! where the system can't be interrupted (name resolution, a dead disk) delivers nothing, and the
//! guard takes that for what it is: old readings.
//!
//! The sink is called on the watch's thread and should only store or send.

mod address;
mod clock;
mod command;
mod file;
mod link;
mod nut;
mod tls;
mod watch;

pub use address::{AddressError, NutAddress};
pub use clock::now_ms;
pub use command::{CommandSource, OUTPUT_BYTES_MAX};
pub use file::{FILE_BYTES_MAX, FileSource};
pub use nut::{Credentials, NutSource};
pub use tls::{Authority, AuthorityError};
pub use watch::{Source, Watch};

use crate::Observation;

/// Where observations go.
pub type Sink = Box<dyn FnMut(Observation) + Send>;

#[cfg(test)]
mod tests;
