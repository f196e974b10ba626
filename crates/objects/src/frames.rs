//! The data of an object: frames of eight sectors, each behind its checksum.
//!
//! The checksum includes epoch, number and index of the frame, so that data of another place is
//! detected. The last frame may be shorter. A read of any sectors transfers whole frames, which are
//! verified; lines of 4 KiB that were written as such are one frame each.

use crate::codec::{Damaged, checksum};
use crate::{ObjectName, SECTOR_BYTES};

/// Sectors of a frame.
pub const FRAME_SECTORS: u64 = 8;
/// Bytes of data of a frame.
const DATA_BYTES: u64 = FRAME_SECTORS * SECTOR_BYTES;
const SUM_BYTES: u64 = 4;
/// Bytes of a frame in the object.
const FRAME_BYTES: u64 = SUM_BYTES + DATA_BYTES;

/// The bytes that `sectors` take in an object.
pub const fn bytes_of(sectors: u64) -> u64 {
    sectors.div_ceil(FRAME_SECTORS) * SUM_BYTES + sectors * SECTOR_BYTES
}

/// The bytes of the frames that have `len` sectors from sector `at` of an object's `sectors`,
/// counted from its first frame.
pub fn range_of(at: u64, len: u64, sectors: u64) -> std::ops::Range<u64> {
    let first = at / FRAME_SECTORS;
    let end = (at + len).next_multiple_of(FRAME_SECTORS).min(sectors);
    first * FRAME_BYTES..bytes_of(end)
}

/// Where a sector is in a sequence of frames.
const fn offset_of(sector: u64) -> usize {
    let (frame, within) = (sector / FRAME_SECTORS, sector % FRAME_SECTORS);
    (frame * FRAME_BYTES + SUM_BYTES + within * SECTOR_BYTES) as usize
}

/// Calls `part` for each piece of the frames that has consecutive bytes of `len` sectors from
/// sector `at`: its range in the frames, and its place in the data.
fn for_each_part(at: u64, len: u64, mut part: impl FnMut(std::ops::Range<usize>, usize)) {
    let mut done = 0;
    while done < len {
        let sector = at + done;
        let count = (FRAME_SECTORS - sector % FRAME_SECTORS).min(len - done);
        let start = offset_of(sector);
        part(start..start + (count * SECTOR_BYTES) as usize, (done * SECTOR_BYTES) as usize);
        done += count;
    }
}

/// Makes room for sectors up to `sectors` at the end.
pub(crate) fn extend(frames: &mut Vec<u8>, sectors: u64) {
    frames.resize(bytes_of(sectors) as usize, 0);
}

/// Stores whole sectors at sector `at` of the frames.
pub(crate) fn store(frames: &mut [u8], at: u64, data: &[u8]) {
    for_each_part(at, data.len() as u64 / SECTOR_BYTES, |range, from| {
        let len = range.len();
        frames[range].copy_from_slice(&data[from..from + len]);
    });
}

/// Copies whole sectors from sector `at` of the frames.
///
/// # Panics
/// If the frames end before.
pub fn load(frames: &[u8], at: u64, data: &mut [u8]) {
    for_each_part(at, data.len() as u64 / SECTOR_BYTES, |range, to| {
        let len = range.len();
        data[to..to + len].copy_from_slice(&frames[range]);
    });
}

/// Stores the checksums of all frames.
pub(crate) fn sum(frames: &mut [u8], name: ObjectName) {
    for (index, frame) in frames.chunks_mut(FRAME_BYTES as usize).enumerate() {
        let (sum, data) = frame.split_at_mut(SUM_BYTES as usize);
        sum.copy_from_slice(&sum_of(data, name, index as u64).to_le_bytes());
    }
}

/// Verifies frames of the object `name`, the first of which has sector `at`, a multiple of
/// [`FRAME_SECTORS`].
///
/// # Errors
/// If one is not as it was written.
pub fn verify(frames: &[u8], name: ObjectName, at: u64) -> Result<(), Damaged> {
    for (index, frame) in frames.chunks(FRAME_BYTES as usize).enumerate() {
        let (sum, data) = frame.split_at_checked(SUM_BYTES as usize).ok_or(Damaged::Short)?;
        let index = at / FRAME_SECTORS + index as u64;
        if data.is_empty() || sum_of(data, name, index).to_le_bytes() != sum {
            return Err(Damaged::Checksum);
        }
    }
    Ok(())
}

fn sum_of(data: &[u8], name: ObjectName, index: u64) -> u32 {
    let mut place = [0; 24];
    place[..8].copy_from_slice(&name.epoch.to_le_bytes());
    place[8..16].copy_from_slice(&name.number.to_le_bytes());
    place[16..].copy_from_slice(&index.to_le_bytes());
    // The sums of both combine like this because their lengths are fixed.
    checksum(data) ^ checksum(&place)
}
