//! Reads: from memory where an object is still there, otherwise from the store.
//!
//! What one read needs of an object is read at once if the parts are near each other. Each frame is
//! verified. An object may be gone when it is read, because what it had was written again meanwhile
//! and the object was deleted: then the read starts again, with the map as it is then.

use crate::volume::S3Volume;
use bytes::Bytes;
use forebay_backend::Io;
use forebay_objects::{MapPiece, ObjectName, frames};
use forebay_types::{IoError, IoResult, SECTOR_BYTES};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Sectors between two parts of an object that are read with them, at most.
const GAP_SECTORS: u64 = 64;
/// How often a read starts again.
const ATTEMPTS_MAX: usize = 5;

/// A part of a read that is in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoredPart {
    /// Bytes of the read before it.
    skip: u64,
    at: u64,
    sectors: u64,
}

/// Parts of one object that are read at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredParts {
    pub(crate) name: ObjectName,
    /// Where its first frame is, in bytes, and its sectors.
    data_offset: u64,
    object_sectors: u64,
    /// The sectors around all parts.
    pub(crate) sectors: Range<u64>,
    parts: Vec<StoredPart>,
}

/// Why sectors of an object could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// There is no such object.
    Missing,
    /// It is not as it was written.
    Damaged,
    /// The volume has ended.
    Ended,
}

/// Answers a read, at once if all of it is in memory.
pub(crate) fn begin(volume: &Arc<S3Volume>, mut io: Io) {
    let parts = resolve(volume, &mut io);
    if volume.is_fenced() {
        return io.done.complete(Err(IoError::Io));
    }
    if parts.is_empty() {
        return io.done.complete(Ok(()));
    }
    let volume = volume.clone();
    let executor = volume.executor.clone();
    executor.spawn(async move {
        let result = read(&volume, &mut io, parts).await;
        io.done.complete(result);
    });
}

/// Fills what is in memory and what has no data. Returns the rest.
fn resolve(volume: &S3Volume, io: &mut Io) -> Vec<StoredParts> {
    let first = io.offset / SECTOR_BYTES;
    let core = volume.core();
    let (mut stored, mut buffer): (Vec<StoredParts>, Vec<u8>) = Default::default();
    let mut pieces: Vec<MapPiece> = core.log.pieces(first, io.len / SECTOR_BYTES);
    pieces.sort_by_key(|piece| piece.place.map(|place| (place.object, place.at)));
    for MapPiece { start, len, place } in pieces {
        let skip = (start - first) * SECTOR_BYTES;
        buffer.clear();
        buffer.resize((len * SECTOR_BYTES) as usize, 0);
        match place {
            Some(place) if !core.log.load(place, &mut buffer) => {
                let object = core.log.table().get(place.object);
                let object = object.expect("the map has objects of the table only");
                let name = ObjectName { epoch: object.epoch, number: place.object };
                let part = StoredPart { skip, at: place.at, sectors: len };
                let end = place.at + len;
                match stored.last_mut() {
                    Some(last)
                        if last.name == name && place.at <= last.sectors.end + GAP_SECTORS =>
                    {
                        last.sectors.end = last.sectors.end.max(end);
                        last.parts.push(part);
                    }
                    _ => stored.push(StoredParts {
                        name,
                        data_offset: object.data_offset(),
                        object_sectors: object.sectors.into(),
                        sectors: place.at..end,
                        parts: vec![part],
                    }),
                }
            }
            _ => io.fill(skip, &buffer),
        }
    }
    stored
}

async fn read(volume: &Arc<S3Volume>, io: &mut Io, parts: Vec<StoredParts>) -> IoResult {
    let mut parts = parts;
    for _ in 0..ATTEMPTS_MAX {
        volume.activity.fetch_add(1, Ordering::Relaxed);
        let names: Vec<ObjectName> = parts.iter().map(|part| part.name).collect();
        match read_parts(volume, io, parts).await {
            Ok(()) => return Ok(()),
            Err(ReadError::Ended) => return Err(IoError::Io),
            Err(error) => {
                // A former owner finds objects gone that the present one does not need.
                volume.verify_owner().await;
                parts = resolve(volume, io);
                if volume.is_fenced() {
                    return Err(IoError::Io);
                }
                if parts.is_empty() {
                    return Ok(());
                }
                let is_same = parts.iter().any(|part| names.contains(&part.name));
                if is_same && error == ReadError::Missing {
                    break;
                }
            }
        }
    }
    Err(IoError::Io)
}

async fn read_parts(
    volume: &Arc<S3Volume>,
    io: &mut Io,
    all: Vec<StoredParts>,
) -> Result<(), ReadError> {
    let mut reading = tokio::task::JoinSet::new();
    for parts in all {
        let volume = volume.clone();
        reading.spawn(async move {
            let object = (parts.data_offset, parts.object_sectors);
            let read = sectors(&volume, parts.name, object, parts.sectors.clone()).await;
            (parts, read)
        });
    }
    let mut result = Ok(());
    while let Some(joined) = reading.join_next().await {
        let Ok((StoredParts { sectors, parts, .. }, read)) = joined else {
            return Err(ReadError::Ended);
        };
        match read {
            Ok(found) => {
                for part in parts {
                    let from = found.first + (part.at - sectors.start);
                    let mut data = vec![0; (part.sectors * SECTOR_BYTES) as usize];
                    frames::load(&found.frames, from, &mut data);
                    io.fill(part.skip, &data);
                }
            }
            Err(error) => result = Err(error),
        }
    }
    result
}

/// Verified frames around some sectors.
pub(crate) struct VerifiedFrames {
    pub(crate) frames: Bytes,
    /// The number of the first sector that was asked for, in these frames.
    pub(crate) first: u64,
}

/// Reads sectors of an object, and verifies them.
pub(crate) async fn sectors(
    volume: &S3Volume,
    name: ObjectName,
    (data_offset, object_sectors): (u64, u64),
    sectors: Range<u64>,
) -> Result<VerifiedFrames, ReadError> {
    let range = frames::range_of(sectors.start, sectors.end - sectors.start, object_sectors);
    let bytes = range.end - range.start;
    let range = data_offset + range.start..data_offset + range.end;
    let first = sectors.start % frames::FRAME_SECTORS;
    let mut last = ReadError::Damaged;
    // Once more, because what was transferred may have been damaged on its way.
    for _ in 0..2 {
        let _permit = volume.gets.acquire().await.map_err(|_| ReadError::Ended)?;
        let object = name.to_string();
        let read = volume.store.persist(
            "read an object",
            || volume.is_active(),
            || volume.store.read_range(&object, range.clone()),
        );
        let volume_name = &*volume.store.place;
        let Some(found) = read.await else { return Err(ReadError::Ended) };
        let Some(frames) = found else {
            tracing::warn!(volume = volume_name, object, "an object is missing");
            return Err(ReadError::Missing);
        };
        let base = sectors.start - first;
        match frames::verify(&frames, name, base) {
            Ok(()) if frames.len() as u64 == bytes => return Ok(VerifiedFrames { frames, first }),
            _ => {
                tracing::error!(volume = volume_name, object, "an object is damaged");
                last = ReadError::Damaged;
            }
        }
    }
    Err(last)
}
