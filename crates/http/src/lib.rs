//! HTTP to other machines, over TLS where the address asks for it: to stores of S3, and to the
//! other servers of a site.

mod ask;
mod connect;
mod roots;

pub use ask::{AskError, Asker, HttpAnswer};
pub use connect::{Place, connect};
pub use roots::{Roots, RootsError};

forebay_types::faults! { RootsError }
