//! How fast write-back may go.

/// Thousandths of an I/O in a second: one in two seconds.
const BESIDE_READS_MILLI: u64 = 500;

/// How fast write-back of a volume, or of a share of it, may go. [`u64::MAX`] is for no limit.
///
/// The first limit holds while clients wait for reads of the same disk, and gives way the more is
/// dirty; the others are the operator's, and hold as long as nobody waits for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// I/Os in a second beside reads, in thousandths.
    pub beside_reads_milli: u64,
    /// I/Os in a second at any time, in thousandths.
    pub ios_milli: u64,
    /// Bytes in a second at any time.
    pub bytes: u64,
}

impl Pace {
    /// What it is where nobody knows of a better one: one I/O in two seconds beside reads, which
    /// puts hardly one of them off, and otherwise no limit.
    pub const DEFAULT: Self =
        Self { beside_reads_milli: BESIDE_READS_MILLI, ios_milli: u64::MAX, bytes: u64::MAX };

    /// One of `shares` equal shares of it, from 1 on.
    #[must_use]
    pub const fn share(self, shares: u64) -> Self {
        const fn part(rate: u64, shares: u64) -> u64 {
            if rate == u64::MAX { rate } else { rate.div_ceil(shares) }
        }
        Self {
            beside_reads_milli: part(self.beside_reads_milli, shares),
            ios_milli: part(self.ios_milli, shares),
            bytes: part(self.bytes, shares),
        }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::DEFAULT
    }
}
