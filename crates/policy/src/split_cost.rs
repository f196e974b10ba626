//! What it costs on a disk to split a write: the part of an I/O's time that its size has no say in.
//!
//! An I/O is taken to need `fixed + bytes / bandwidth`: the way to the disk, seek and rotation, and
//! then the transfer. Of a small one the fixed part is nearly all, so two halves cost nearly twice
//! what the whole does, and it is worth waiting for the other half. Of a large one it is a small
//! share, and what is written in two pieces is written nearly as fast as in one. Between them lies
//! the *threshold*: the smallest of 4 KiB, 8 KiB, 16 KiB and so on of which the fixed part is at
//! most a quarter, so that twice the size takes at least 1.75 times as long.
//!
//! Reads are measured in place of writes, as they change nothing. Single times are wild: a disk
//! turns while one waits, and a read may meet a cache or somebody else's I/O. So the line is drawn
//! through all of them by the median of the slopes between each two, each as heavy as the sizes are
//! apart (a weighted Theil-Sen estimator). It stays where it is while fewer than a quarter of the
//! times, wherever those lie, mean nothing. The price is a square of their number, so they should
//! be tens and not thousands. With seven reads of each size a hard disk's threshold is right within
//! a factor of two.

use forebay_types::{LINE_BYTES, limits::GATHER_BELOW_BYTES_MAX};
use std::fmt;

/// How many different sizes must have been read.
pub const SIZES_MIN: usize = 4;

/// What is worth gathering where nothing was measured and nothing is set, in bytes: less than is
/// worth it on hard disks and on flash disks behind any bus.
pub const GATHER_BELOW_DEFAULT_BYTES: u64 = 64 << 10;

/// The share of the fixed part at the threshold, as a divisor of the whole.
const FIXED_SHARE: f64 = 4.0;

/// How long one read took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadTime {
    /// Its size, in bytes.
    pub bytes: u64,
    /// From its start to its answer, in nanoseconds.
    pub ns: u64,
}

/// What splitting a write costs on a disk. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitCost {
    /// Splitting a smaller write costs, in bytes: a power of two from 4 KiB to 32 MiB, the largest
    /// where an I/O of any size costs about the same.
    pub threshold_bytes: u64,
    /// The part of an I/O's time that its size has no say in, in nanoseconds.
    pub fixed_ns: u64,
    /// How fast the rest is, in bytes a second, at least one; `None` where no size took longer than
    /// another.
    pub bytes_per_second: Option<u64>,
}

/// Why times say nothing of what a split costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unclear {
    /// They are of fewer than [`SIZES_MIN`] sizes.
    TooFew,
    /// Most of them are zero.
    TooQuick,
    /// Large reads took much less time than small ones.
    LargerIsQuicker,
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFew => write!(f, "fewer than {SIZES_MIN} sizes could be read"),
            Self::TooQuick => f.write_str("reads took no time that can be measured"),
            Self::LargerIsQuicker => f.write_str("large reads took less time than small ones"),
        }
    }
}

impl std::error::Error for Unclear {}

impl SplitCost {
    /// What reads of several sizes say. Their order means nothing.
    ///
    /// # Errors
    /// They say nothing: see [`Unclear`].
    pub fn of(times: &[ReadTime]) -> Result<Self, Unclear> {
        let mut sizes: Vec<u64> = times.iter().map(|time| time.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.len() < SIZES_MIN {
            return Err(Unclear::TooFew);
        }
        let typical_ns = median(times.iter().map(|time| time.ns as f64));
        if typical_ns <= 0.0 {
            return Err(Unclear::TooQuick);
        }
        let ns_per_byte = slope(times);
        let apart_bytes = (sizes[sizes.len() - 1] - sizes[0]) as f64;
        // By how much the largest differs from the smallest tells chance from nonsense.
        if ns_per_byte * apart_bytes < -0.5 * typical_ns {
            return Err(Unclear::LargerIsQuicker);
        }
        if ns_per_byte <= 0.0 {
            let threshold_bytes = GATHER_BELOW_BYTES_MAX;
            return Ok(Self {
                threshold_bytes,
                fixed_ns: typical_ns as u64,
                bytes_per_second: None,
            });
        }
        let rest = |time: &ReadTime| time.ns as f64 - time.bytes as f64 * ns_per_byte;
        let fixed_ns = median(times.iter().map(rest)).max(0.0);
        // The fixed part is its share of the whole where the transfer takes the other shares.
        let at_bytes = fixed_ns * (FIXED_SHARE - 1.0) / ns_per_byte;
        // What is larger than the range of the type becomes its largest value.
        let at_bytes = (at_bytes.ceil() as u64).clamp(LINE_BYTES, GATHER_BELOW_BYTES_MAX);
        Ok(Self {
            threshold_bytes: at_bytes.next_power_of_two(),
            fixed_ns: fixed_ns as u64,
            bytes_per_second: Some(((1e9 / ns_per_byte) as u64).max(1)),
        })
    }

    /// The fixed part in microseconds.
    pub fn fixed_us(&self) -> f64 {
        self.fixed_ns as f64 / 1000.0
    }
}

/// Who says below which size writes are worth gathering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThresholdSource {
    /// The operator.
    Set,
    /// The disk, by how long its reads took.
    Measured,
    /// Nobody.
    Default,
}

/// Below which size writes of a volume are worth gathering, in bytes, and who says so. The operator
/// (`set`; zero is for none at all) has the last word, then what was measured.
pub const fn gather_below(
    set: Option<u64>,
    measured: Option<&SplitCost>,
) -> (u64, ThresholdSource) {
    match (set, measured) {
        (Some(bytes), _) => (bytes, ThresholdSource::Set),
        (None, Some(cost)) => (cost.threshold_bytes, ThresholdSource::Measured),
        (None, None) => (GATHER_BELOW_DEFAULT_BYTES, ThresholdSource::Default),
    }
}

/// The median of the slopes between each two times of different sizes, in nanoseconds a byte, each
/// as heavy as the sizes are apart.
fn slope(times: &[ReadTime]) -> f64 {
    let mut slopes = Vec::new();
    for (index, one) in times.iter().enumerate() {
        for other in times[index + 1..].iter().filter(|other| other.bytes != one.bytes) {
            let apart = other.bytes as f64 - one.bytes as f64;
            slopes.push(((other.ns as f64 - one.ns as f64) / apart, apart.abs()));
        }
    }
    slopes.sort_by(|one, other| one.0.total_cmp(&other.0));
    let whole: f64 = slopes.iter().map(|(_, weight)| weight).sum();
    let mut sum = 0.0;
    for (slope, weight) in &slopes {
        sum += weight;
        if sum >= whole / 2.0 {
            return *slope;
        }
    }
    0.0
}

/// The value in the middle; of two the mean; zero of none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

#[cfg(test)]
mod tests;
