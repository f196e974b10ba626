//! A volume in immutable objects of a store such as S3, without I/O, clock, threads and randomness.
//!
//! ```text
//! PREFIX/manifest            the only object that is ever replaced: who owns the volume, its
//!                            epoch, and where its map is; replaced only if it is as it was read
//! PREFIX/EPOCH/NUMBER        data: what was written, in the order in which it was written;
//!                            created only if it does not exist, and never changed
//! PREFIX/map/EPOCH-NUMBER/N  parts of a checkpoint: the map as it was after object NUMBER
//! ```
//!
//! Objects are numbered in the order of their content, and the numbers go on from epoch to epoch.
//! A volume is its latest checkpoint and the objects after it, up to the first number that is
//! missing: a consistent prefix of what was written, whatever else was stored out of order. A new
//! owner begins an epoch, and puts a **tombstone** at the first missing number of the former one.
//! The former owner cannot create an object with that number any more, so nothing of it is
//! acknowledged from then on.
//!
//! | module | is |
//! | --- | --- |
//! | [`ObjectHeader`], [`SectorRun`] | what an object begins with |
//! | [`frames`] | its data, in frames of 4 KiB with a checksum each |
//! | [`ExtentMap`] | where each sector of the volume is |
//! | [`ObjectTable`] | how much of each object is still in use |
//! | [`ObjectLog`] | the open object, and those on their way to the store |
//! | [`Manifest`], [`checkpoint`] | the root, and the map as it is stored |
//! | [`Replay`] | the volume from its manifest, checkpoint and objects |
//!
//! Numbers are little-endian and of fixed width. Every structure has a checksum, and that of a
//! frame includes the place it belongs to. Parsers do not trust their input.

#![deny(missing_docs)]

pub mod checkpoint;
mod codec;
pub mod frames;
mod log;
mod manifest;
mod map;
mod names;
mod object;
mod replay;
mod table;

#[cfg(test)]
mod tests;

pub use checkpoint::{CheckpointRef, PartRef};
pub use codec::Damaged;
pub use log::{LiveRun, LogSettings, MapSnapshot, ObjectLog, SealedObject, VolumeKey};
pub use manifest::{MANIFEST_BYTES_MAX, Manifest};
pub use map::{ExtentMap, MapPiece, ObjectPlace};
pub use names::{ObjectName, checkpoint_name, checkpoint_of, manifest_name};
pub use object::{HEADER_BYTES, ObjectHeader, ObjectKind, SECTORS_MAX, SectorRun};
pub use replay::{Replay, WrongObject};
pub use table::{ObjectTable, StoredObject};

/// The unit of the map, in bytes.
pub const SECTOR_BYTES: u64 = 512;
