//! Queue limits of a device, and the geometry derived from them.

use super::{attribute, number};
use forebay_types::{DiskGeometry, SECTOR_BYTES};
use std::path::Path;

/// Largest plausible optimal I/O size, in bytes. Larger values are the maximum of a field, or a
/// least common multiple of incompatible sizes.
const OPTIMAL_BYTES_MAX: u64 = 64 << 20;
/// An optimal size of 2^n - 1 blocks is taken to be the maximum of a field if it has at least this
/// many bytes; a smaller one may be a stripe.
const ODD_BYTES_MIN: u64 = 4 << 20;

/// Queue limits, in bytes; zero if not reported.
pub(super) struct QueueLimits {
    optimal: u64,
    minimum: u64,
    physical: u64,
    /// Bytes from the start to the first natural boundary; `None` if there is none.
    alignment: Option<u64>,
    rotational: Option<bool>,
}

impl QueueLimits {
    pub(super) fn read(directory: &Path) -> Self {
        let queue = |name: &str| number(directory, &format!("queue/{name}")).unwrap_or(0);
        let alignment = match attribute(directory, "alignment_offset") {
            None => Some(0),
            // The kernel reports -1 for a misaligned device.
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

    /// An array has a minimum I/O size above the block size, and an optimal size that is a multiple
    /// of it. On other devices the minimum is the block size, and the optimal size is not a stripe.
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

    /// The geometry without stripes.
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

    /// Whether the optimal size is plausible. Disks behind some controllers and bridges report
    /// 33553920 or 4294966784, the maximum number of blocks in a field.
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
