//! The files of the state directory, and those of them that guard data: which journals have failed,
//! which devices of a mirrored journal are current, which volumes rely on which journal or vault,
//! and since when this host owns shared disks.
//!
//! The server writes them; `forebay rescue` reads them, and releases what it has applied.

mod identity;
pub mod marks;
mod members;
mod reliance;
mod state_file;
mod tenures;

pub use identity::identity;
pub use members::Members;
pub use reliance::{Holder, Kind, Reliance, remove_name};
pub use state_file::{StateFile, sync_directory};
pub use tenures::Tenures;
