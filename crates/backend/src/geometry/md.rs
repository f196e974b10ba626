//! Geometry of MD arrays, from their sysfs attributes.

use super::limits::QueueLimits;
use super::{attribute, number};
use forebay_types::{DiskGeometry, SECTOR_BYTES, limits::STRIPE_BYTES_MAX};
use std::path::Path;

/// The default of `stripe_size`, in bytes: the part of a row on one disk.
const PAGE_BYTES: u64 = 4096;

/// The geometry of the array with this directory; `None` if it is not an array. An array that is
/// being reshaped has two geometries, and counts as having no stripes.
pub(super) fn geometry(directory: &Path, limits: &QueueLimits) -> Option<DiskGeometry> {
    let directory = directory.join("md");
    let level = attribute(&directory, "level")?;
    let plain = limits.plain();
    // During a reshape these contain two numbers, the old one in parentheses, and do not parse.
    let chunk_bytes = number(&directory, "chunk_size");
    let disks = number(&directory, "raid_disks");
    let (Some(chunk_bytes), Some(disks)) = (chunk_bytes, disks) else { return Some(plain) };
    let layout = number(&directory, "layout").unwrap_or(0);
    let stripe_bytes = data_chunks(&level, disks, layout)
        .and_then(|chunks| chunks.checked_mul(chunk_bytes))
        .filter(|&bytes| bytes > 0 && bytes <= STRIPE_BYTES_MAX)
        .filter(|_| chunk_bytes.is_multiple_of(SECTOR_BYTES));
    Some(match stripe_bytes {
        Some(stripe_bytes) => {
            let stripe_cache_bytes = stripe_cache_bytes(&directory, stripe_bytes / chunk_bytes);
            let optimal_bytes = stripe_bytes;
            DiskGeometry { stripe_bytes, chunk_bytes, optimal_bytes, stripe_cache_bytes, ..plain }
        }
        None => plain,
    })
}

/// Capacity of the stripe cache of a parity array, in bytes of data: a number of rows, each one
/// page per disk. Zero for other arrays.
fn stripe_cache_bytes(directory: &Path, data_disks: u64) -> u64 {
    let rows = number(directory, "stripe_cache_size").unwrap_or(0);
    let row = number(directory, "stripe_size").unwrap_or(PAGE_BYTES);
    rows.saturating_mul(row).saturating_mul(data_disks)
}

/// Data chunks in a stripe; `None` for a level without stripes.
fn data_chunks(level: &str, disks: u64, layout: u64) -> Option<u64> {
    match level {
        "raid0" => Some(disks),
        "raid4" | "raid5" => disks.checked_sub(1),
        "raid6" => disks.checked_sub(2),
        // Near copies share the row; far ones are elsewhere on the disks. If a row does not hold
        // whole sets of copies, the pattern repeats after as many chunks as disks.
        "raid10" => {
            let near = (layout & 0xff).max(1);
            Some(if disks.is_multiple_of(near) { disks / near } else { disks })
        }
        _ => None,
    }
}
