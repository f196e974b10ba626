//! The layout of an array, with the defaults of Linux md: left-symmetric parity, near copies for
//! RAID 10.

use forebay_types::{Blame, ByteRange, Fault, Remedy, Size};

/// The unit of parity and of the stripe cache, in bytes. A chunk consists of whole blocks.
pub const BLOCK_BYTES: u64 = 4096;
/// Maximum number of drives: sets of them are the bits of a `u64`.
pub const DRIVE_COUNT_MAX: u32 = 64;
/// The largest chunk, in bytes.
pub const CHUNK_BYTES_MAX: u64 = 1 << 30;

/// RAID level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Striping without redundancy.
    Raid0,
    /// Mirroring on all drives.
    Raid1,
    /// Striping with one parity chunk per row.
    Raid5,
    /// Striping with two parity chunks per row.
    Raid6,
    /// Each chunk twice, on adjacent drives.
    Raid10,
}

impl Level {
    /// The level of this name, `raid5`.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Raid0, Self::Raid1, Self::Raid5, Self::Raid6, Self::Raid10]
            .into_iter()
            .find(|level| level.name() == name)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Raid0 => "raid0",
            Self::Raid1 => "raid1",
            Self::Raid5 => "raid5",
            Self::Raid6 => "raid6",
            Self::Raid10 => "raid10",
        }
    }

    /// The minimum number of drives.
    pub const fn drive_count_min(self) -> u32 {
        match self {
            Self::Raid0 | Self::Raid1 | Self::Raid10 => 2,
            Self::Raid5 => 3,
            Self::Raid6 => 4,
        }
    }

    /// Parity chunks in a row.
    const fn parity_count(self) -> u32 {
        match self {
            Self::Raid5 => 1,
            Self::Raid6 => 2,
            Self::Raid0 | Self::Raid1 | Self::Raid10 => 0,
        }
    }
}

/// Why an array is impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayError {
    /// Too few drives, or too many.
    #[error("{level} has {min} to {max} drives, not {drives}")]
    Drives {
        level: &'static str,
        /// The requested number.
        drives: u32,
        /// The minimum.
        min: u32,
        /// The maximum.
        max: u32,
    },
    /// The chunk is not a power of two, or too small or too large.
    #[error("{chunk} is not a valid chunk size")]
    Chunk {
        /// The requested chunk.
        chunk: Size,
    },
    /// More drives are missing than the redundancy of the array covers.
    #[error("{level} of {drives} drives works with up to {max} of them missing, not {degraded}")]
    Degraded {
        level: &'static str,
        /// All drives, including missing ones.
        drives: u32,
        /// The requested number of missing drives.
        degraded: u32,
        /// The maximum.
        max: u32,
    },
    /// The array does not consist of whole stripes.
    #[error("an array of {size} is not a whole number of stripes of {stripe}")]
    Size {
        /// The requested size.
        size: Size,
        /// Data in a stripe.
        stripe: Size,
        /// The next smaller valid size, or one stripe.
        nearest: Size,
    },
    /// A drive does not consist of whole chunks, or not of an even number of them, which RAID 10
    /// with an odd number of drives needs.
    #[error("a drive of {drive_size} is not {count} number of chunks of {chunk}")]
    DriveSize {
        /// The requested size.
        drive_size: Size,
        /// A whole or an even number.
        count: &'static str,
        chunk: Size,
        /// The next smaller valid size, or the smallest.
        nearest: Size,
    },
    /// The size of the array exceeds 64 bits.
    #[error("an array of {drives} drives of {drive_size} has more than 16 EiB")]
    TooLarge {
        /// The number of drives.
        drives: u32,
        /// The requested size of each.
        drive_size: Size,
    },
    /// The size of the array and of its drives are both given.
    #[error("size and drive-size are both given")]
    TwoSizes,
}

impl Fault for ArrayError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Drives { min, max, .. } => format!("give drives={min} to {max}").into(),
            Self::Chunk { .. } => "give a power of two from 4KiB to 1GiB, like chunk=64KiB".into(),
            Self::Degraded { max, .. } => format!("give degraded={max} or less").into(),
            Self::Size { nearest, .. } => Remedy::from(format!("give size={nearest}"))
                .or("the size of a drive with drive-size="),
            Self::DriveSize { nearest, .. } => format!("give drive-size={nearest}").into(),
            Self::TooLarge { .. } => "give a smaller drive-size".into(),
            Self::TwoSizes => "keep one of them".into(),
        }
    }

    fn blame(&self) -> Blame {
        Blame::Operator
    }
}

/// The layout parameters of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    level: Level,
    drive_count: u32,
    chunk_bytes: u64,
    degraded_count: u32,
}

/// A part of a range that is contiguous on one drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrivePiece {
    /// The row of chunks.
    pub row: u64,
    /// The index among the row's data chunks.
    pub index: u32,
    /// Offset in the chunk, in bytes.
    pub skip_bytes: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A row of chunks across all drives, as sets of drives: bit *n* is drive *n*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRow {
    /// Drives with data.
    pub data: u64,
    /// Drives with parity.
    pub parity: u64,
    /// Missing drives.
    pub missing: u64,
}

impl ArraySpec {
    /// An array of `drive_count` drives, of which `degraded_count` are missing, with chunks of
    /// `chunk_bytes`. RAID 1 has no chunks; its size is a multiple of `chunk_bytes`.
    ///
    /// # Errors
    /// If the array is impossible; the message gives valid values.
    pub fn new(
        level: Level,
        drive_count: u32,
        chunk_bytes: u64,
        degraded_count: u32,
    ) -> Result<Self, ArrayError> {
        let (min, max) = (level.drive_count_min(), DRIVE_COUNT_MAX);
        if !(min..=max).contains(&drive_count) {
            let (level, drives) = (level.name(), drive_count);
            return Err(ArrayError::Drives { level, drives, min, max });
        }
        if !chunk_bytes.is_power_of_two() || !(BLOCK_BYTES..=CHUNK_BYTES_MAX).contains(&chunk_bytes)
        {
            return Err(ArrayError::Chunk { chunk: Size(chunk_bytes) });
        }
        let spec = Self { level, drive_count, chunk_bytes, degraded_count };
        let max = spec.degraded_count_max();
        if degraded_count > max {
            let (level, drives, degraded) = (level.name(), drive_count, degraded_count);
            return Err(ArrayError::Degraded { level, drives, degraded, max });
        }
        Ok(spec)
    }

    /// The RAID level.
    pub const fn level(&self) -> Level {
        self.level
    }

    /// Number of drives, including missing ones.
    pub const fn drive_count(&self) -> u32 {
        self.drive_count
    }

    /// The chunk size, in bytes.
    pub const fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// The data of a full stripe, in bytes: a write of all of it needs no reads. Without parity,
    /// the amount that uses every drive.
    pub const fn stripe_bytes(&self) -> u64 {
        self.chunk_bytes * self.data_chunks() as u64
    }

    /// Data chunks in a stripe. With an odd number of drives, the pattern of RAID 10 repeats every
    /// second row.
    const fn data_chunks(&self) -> u32 {
        match self.level {
            Level::Raid0 | Level::Raid5 | Level::Raid6 => {
                self.drive_count - self.level.parity_count()
            }
            Level::Raid1 => 1,
            Level::Raid10 if self.drive_count.is_multiple_of(2) => self.drive_count / 2,
            Level::Raid10 => self.drive_count,
        }
    }

    /// Chunks per drive in a stripe.
    const fn stripe_rows(&self) -> u64 {
        match self.level {
            Level::Raid10 if !self.drive_count.is_multiple_of(2) => 2,
            _ => 1,
        }
    }

    /// The maximum number of missing drives, in the best case.
    const fn degraded_count_max(&self) -> u32 {
        match self.level {
            Level::Raid0 => 0,
            Level::Raid1 => self.drive_count - 1,
            Level::Raid5 | Level::Raid6 => self.level.parity_count(),
            Level::Raid10 => self.drive_count / 2,
        }
    }

    /// The missing drives, as a bit set: the first ones, or one of each pair.
    pub fn missing(&self) -> u64 {
        let step = if self.level == Level::Raid10 { 2 } else { 1 };
        (0..self.degraded_count).fold(0, |missing, number| missing | 1 << (number * step))
    }

    /// The size of a drive in an array of `size_bytes`, in bytes.
    ///
    /// # Errors
    /// If the size is zero or not a multiple of the stripe.
    pub fn drive_bytes(&self, size_bytes: u64) -> Result<u64, ArrayError> {
        let stripe_bytes = self.stripe_bytes();
        let stripes = size_bytes / stripe_bytes;
        if stripes == 0 || !size_bytes.is_multiple_of(stripe_bytes) {
            let nearest = Size(stripes.max(1) * stripe_bytes);
            let (size, stripe) = (Size(size_bytes), Size(stripe_bytes));
            return Err(ArrayError::Size { size, stripe, nearest });
        }
        Ok(stripes * self.stripe_rows() * self.chunk_bytes)
    }

    /// The size of an array with drives of `drive_bytes`, in bytes.
    ///
    /// # Errors
    /// If a drive does not consist of whole stripes, or is too large.
    pub fn size_bytes(&self, drive_bytes: u64) -> Result<u64, ArrayError> {
        let rows = self.stripe_rows();
        let unit_bytes = rows * self.chunk_bytes;
        let stripes = drive_bytes / unit_bytes;
        if stripes == 0 || !drive_bytes.is_multiple_of(unit_bytes) {
            return Err(ArrayError::DriveSize {
                drive_size: Size(drive_bytes),
                count: if rows == 1 { "a whole" } else { "an even" },
                chunk: Size(self.chunk_bytes),
                nearest: Size(stripes.max(1) * unit_bytes),
            });
        }
        let (drives, drive_size) = (self.drive_count, Size(drive_bytes));
        let size_bytes = stripes.checked_mul(self.stripe_bytes());
        size_bytes.ok_or(ArrayError::TooLarge { drives, drive_size })
    }

    /// The largest array of whole stripes in `bytes`.
    pub const fn size_within(&self, bytes: u64) -> u64 {
        bytes - bytes % self.stripe_bytes()
    }

    /// Splits a range of the array at chunk borders.
    pub fn pieces(&self, range: ByteRange) -> impl Iterator<Item = DrivePiece> + use<> {
        let in_row = self.chunks_in_row();
        let chunk_bytes = if self.level == Level::Raid1 { u64::MAX } else { self.chunk_bytes };
        let mut offset = range.offset;
        std::iter::from_fn(move || {
            if offset >= range.end() {
                return None;
            }
            let chunk = offset / chunk_bytes;
            let skip_bytes = offset % chunk_bytes;
            let len = (chunk_bytes - skip_bytes).min(range.end() - offset);
            offset += len;
            let index = (chunk % in_row) as u32;
            Some(DrivePiece { row: chunk / in_row, index, skip_bytes, len })
        })
    }

    /// Data chunks per row. A row of RAID 10 is one chunk with its copies, because a pair may span
    /// two rows of the drives.
    const fn chunks_in_row(&self) -> u64 {
        match self.level {
            Level::Raid1 | Level::Raid10 => 1,
            Level::Raid0 | Level::Raid5 | Level::Raid6 => self.data_chunks() as u64,
        }
    }

    /// The places of a piece: drive and offset. Mirrors have several.
    pub fn places(&self, piece: &DrivePiece) -> impl Iterator<Item = (u32, u64)> + use<> {
        let count = self.drive_count;
        let (level, row, chunk_bytes, skip) =
            (self.level, piece.row, self.chunk_bytes, piece.skip_bytes);
        let first = match level {
            Level::Raid0 => piece.index,
            Level::Raid5 => (parity_drive(count, row) + 1 + piece.index) % count,
            Level::Raid6 => (parity_drive(count, row) + 2 + piece.index) % count,
            Level::Raid1 | Level::Raid10 => 0,
        };
        let copies = match level {
            Level::Raid0 | Level::Raid5 | Level::Raid6 => 1,
            Level::Raid1 => count,
            Level::Raid10 => 2,
        };
        (0..copies).map(move |copy| match level {
            Level::Raid10 => {
                let nth = row * 2 + u64::from(copy);
                let (row, drive) = (nth / u64::from(count), nth % u64::from(count));
                (drive as u32, row * chunk_bytes + skip)
            }
            _ => (first + copy, row * chunk_bytes + skip),
        })
    }

    /// The roles of the drives in a row, for levels with parity.
    pub fn row(&self, row: u64) -> ChunkRow {
        let count = self.drive_count;
        let first = parity_drive(count, row);
        let parity = (0..self.level.parity_count())
            .fold(0, |parity, number| parity | 1 << ((first + number) % count));
        let all = u64::MAX >> (u64::BITS - count);
        ChunkRow { data: all & !parity, parity, missing: self.missing() }
    }
}

/// The drive with the first parity chunk of a row; it decreases by one per row.
fn parity_drive(drive_count: u32, row: u64) -> u32 {
    drive_count - 1 - (row % u64::from(drive_count)) as u32
}
