//! How a disk would like to be read and written.

/// The geometry of a disk, as a volume sees it from its own first byte. The default is a disk of
/// which nothing is known. All of it is advice: I/O of any size at any sector is right, and only
/// slower where it does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct DiskGeometry {
    /// Data in a full stripe, in bytes: the width, without parity and copies. Zero where there are
    /// no stripes, or none are known; otherwise a multiple of 512, and of the chunk.
    pub stripe_bytes: u64,
    /// What of a stripe lies on one disk, in bytes: the depth, a multiple of 512. Zero where it is
    /// not known.
    pub chunk_bytes: u64,
    /// Where the first stripe begins that is whole, in bytes from the volume's first byte: a
    /// multiple of 512 below the width. Zero where there are no stripes.
    pub offset_bytes: u64,
    /// Whether nobody says where stripes begin, so that the offset may be wrong.
    pub offset_is_guess: bool,
    /// The size that I/O should have where there is a choice, in bytes. Zero where it is not
    /// known.
    pub optimal_bytes: u64,
    /// What an array holds of writes while it makes whole stripes of them, in bytes of data. Zero
    /// where it is not known.
    pub held_bytes: u64,
    /// Whether seeks cost, as on a hard disk. `None` where it is not known.
    pub rotational: Option<bool>,
}

impl DiskGeometry {
    /// Whether stripes are known.
    pub const fn has_stripes(&self) -> bool {
        self.stripe_bytes > 0
    }

    /// The same disk to which no stripes are known.
    #[must_use]
    pub const fn without_stripes(self) -> Self {
        let Self { optimal_bytes, rotational, .. } = self;
        let (stripe_bytes, chunk_bytes, offset_bytes, held_bytes) = (0, 0, 0, 0);
        let offset_is_guess = false;
        Self {
            stripe_bytes,
            chunk_bytes,
            offset_bytes,
            offset_is_guess,
            optimal_bytes,
            held_bytes,
            rotational,
        }
    }

    /// What begins `start_bytes` behind the first byte of this, such as a partition.
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
    fn a_part_sees_stripes_from_its_own_beginning() {
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
