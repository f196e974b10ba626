//! Volumes in the objects of an S3 store.
//!
//! The format and the map are those of `forebay-objects`; this crate makes requests of what it
//! decides. A volume behaves as a disk with a volatile cache: a write is answered when it is in the
//! open object, in memory, and a flush when everything before it is in the store.
//!
//! | module | is |
//! | --- | --- |
//! | `name`, `addressing` | what is named, and where the bucket is in the address |
//! | `credentials`, `transport` | with which keys, and how it is reached |
//! | `store` | single requests with their outcomes, and retries |
//! | `attach` | opening a volume: conditions of the store, owner, epoch, end of the former epoch |
//! | `volume` | the open volume: writes, flushes, objects on their way, the fence |
//! | `read`, `checkpoint`, `collect`, `sweep` | reads; the map; what is not needed any more |
//! | `watch`, `close` | the owner while nothing is written; the end |
//! | `backend` | all of it as a [`forebay_backend::Backend`] |
//!
//! Price: two threads for all volumes, the buffer and the map of each volume in memory.

mod addressing;
mod attach;
mod backend;
mod checkpoint;
mod close;
mod collect;
mod credentials;
mod error;
mod executor;
mod name;
mod owner;
mod probe;
mod read;
mod recover;
mod store;
mod sweep;
mod transport;
mod volume;
mod watch;

#[cfg(test)]
mod tests;

pub use backend::S3Backend;
pub use error::S3Error;

use forebay_backend::{AddedError, AddedScheme};

forebay_types::faults! { S3Error }

/// Makes names with `s3://` known to [`forebay_backend::open`].
pub fn register() {
    forebay_backend::add_scheme(AddedScheme {
        name: "s3",
        has_owner: true,
        open: |name, options| backend::open(name, options).map_err(AddedError::new),
    });
}
