//! The geometry of a disk.

/// The geometry of a disk; offsets are relative to the first byte of the volume. It is a hint: I/O
/// that ignores it is correct, but may be slower. By default everything is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct DiskGeometry {
    /// The stripe width in bytes: the data of a full stripe, without parity and copies. A multiple
    /// of 512 and of the chunk; zero if the disk has no stripes or the width is unknown.
    pub stripe_bytes: u64,
    /// The chunk size in bytes: the part of a stripe on one drive. A multiple of 512; zero if
    /// unknown.
    pub chunk_bytes: u64,
    /// The offset of the first whole stripe in bytes. A multiple of 512 below the stripe width;
    /// zero without stripes.
    pub offset_bytes: u64,
    /// Whether the offset is assumed, because no source reports it.
    pub offset_is_guess: bool,
    /// The optimal I/O size in bytes; zero if unknown.
    pub optimal_bytes: u64,
    /// The capacity of the array's buffer for incomplete stripes, such as the stripe cache of Linux
    /// md, in bytes of data; zero if unknown.
    pub stripe_cache_bytes: u64,
    /// Whether seeks cost time, as on a hard disk; `None` if unknown.
    pub rotational: Option<bool>,
}

impl DiskGeometry {
    /// Whether the disk has one arm, and so serves one request at a time.
    pub fn has_one_arm(&self) -> bool {
        self.rotational == Some(true) && !self.has_stripes()
    }

    /// Whether the stripe width is known.
    pub const fn has_stripes(&self) -> bool {
        self.stripe_bytes > 0
    }

    /// The geometry without its stripes.
    #[must_use]
    pub const fn without_stripes(self) -> Self {
        let Self { optimal_bytes, rotational, .. } = self;
        let (stripe_bytes, chunk_bytes, offset_bytes, stripe_cache_bytes) = (0, 0, 0, 0);
        let offset_is_guess = false;
        Self {
            stripe_bytes,
            chunk_bytes,
            offset_bytes,
            offset_is_guess,
            optimal_bytes,
            stripe_cache_bytes,
            rotational,
        }
    }

    /// The geometry of a part of the disk, such as a partition, that begins at `start_bytes`.
    #[must_use]
    pub const fn part_from(self, start_bytes: u64) -> Self {
        if !self.has_stripes() {
            return self;
        }
        let into = start_bytes % self.stripe_bytes;
        let offset_bytes = (self.offset_bytes + self.stripe_bytes - into) % self.stripe_bytes;
        Self { offset_bytes, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stripe_offset_of_a_part_is_relative_to_its_start() {
        const WIDTH: u64 = 112 << 10;
        let whole =
            DiskGeometry { stripe_bytes: WIDTH, chunk_bytes: 16 << 10, ..Default::default() };
        for start_bytes in [0, 512, WIDTH - 512, WIDTH, 1 << 20, (1 << 40) + 31 * 512] {
            let part = whole.part_from(start_bytes);
            assert!(part.offset_bytes < WIDTH);
            assert!((start_bytes + part.offset_bytes).is_multiple_of(WIDTH), "{start_bytes}");
            let both = whole.part_from(7 * 512).part_from(start_bytes);
            assert_eq!(both, whole.part_from(start_bytes + 7 * 512));
        }
        let unknown = DiskGeometry { rotational: Some(true), ..Default::default() };
        assert_eq!(unknown.part_from(512), unknown);
        assert_eq!(DiskGeometry { rotational: Some(true), ..whole }.without_stripes(), unknown);
    }
}
