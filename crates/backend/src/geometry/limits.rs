//! The limits of a device's request queue, and what follows from them.

use super::{number, text};
use forebay_types::{DiskGeometry, SECTOR_BYTES};
use std::path::Path;

/// Largest I/O size that a device is believed to like best, in bytes. What is said beyond is the
/// largest number of a field, or a least common multiple of what does not go together.
const OPTIMAL_BYTES_MAX: u64 = 64 << 20;
/// Sizes below this are those of arrays, however odd they look, in bytes.
const ODD_BYTES_MIN: u64 = 4 << 20;

/// What a queue says of itself, in bytes; zero where it says nothing.
pub(super) struct Limits {
    optimal: u64,
    minimum: u64,
    physical: u64,
    /// Bytes from the beginning to the first natural boundary; `None` where there is none.
    alignment: Option<u64>,
    rotational: Option<bool>,
}

impl Limits {
    pub(super) fn read(directory: &Path) -> Self {
        let queue = |name: &str| number(directory, &format!("queue/{name}")).unwrap_or(0);
        let alignment = match text(directory, "alignment_offset") {
            None => Some(0),
            // The kernel says -1 where the device is aligned to nothing.
            Some(text) => text.parse().ok(),
        };
        Self {
            optimal: queue("optimal_io_size"),
            minimum: queue("minimum_io_size"),
            physical: queue("physical_block_size"),
            alignment,
            rotational: number(directory, "queue/rotational").map(|value| value != 0),
        }
    }

    /// Arrays say what they are by a smallest I/O above the block and a best one of several of
    /// those. Elsewhere the smallest I/O is the block, and the best one is no stripe.
    pub(super) fn geometry(&self) -> DiskGeometry {
        let plain = self.plain();
        let (stripe_bytes, chunk_bytes) = (plain.optimal_bytes, self.minimum);
        let is_array = chunk_bytes > self.block()
            && chunk_bytes.is_multiple_of(SECTOR_BYTES)
            && stripe_bytes > chunk_bytes
            && stripe_bytes.is_multiple_of(chunk_bytes);
        if !is_array {
            return plain;
        }
        let offset = self.alignment.filter(|offset| offset.is_multiple_of(SECTOR_BYTES));
        DiskGeometry {
            stripe_bytes,
            chunk_bytes,
            offset_bytes: offset.unwrap_or(0) % stripe_bytes,
            offset_is_guess: offset.is_none(),
            ..plain
        }
    }

    /// What they say apart from stripes.
    pub(super) fn plain(&self) -> DiskGeometry {
        DiskGeometry {
            optimal_bytes: if self.is_plausible() { self.optimal } else { 0 },
            rotational: self.rotational,
            ..DiskGeometry::default()
        }
    }

    fn block(&self) -> u64 {
        self.physical.max(SECTOR_BYTES)
    }

    /// Whether the best size is one. Disks behind some controllers and bridges say 33553920 or
    /// 4294966784, the largest number of blocks that a field holds.
    fn is_plausible(&self) -> bool {
        let is_full_field = |block: u64| (self.optimal / block + 1).is_power_of_two();
        let is_odd = self.optimal >= ODD_BYTES_MIN
            && (is_full_field(SECTOR_BYTES) || is_full_field(4096) || is_full_field(self.block()));
        self.optimal > 0
            && self.optimal <= OPTIMAL_BYTES_MAX
            && self.optimal.is_multiple_of(self.block())
            && !is_odd
    }
}
