//! The cost of splitting a write on a disk: the fixed cost of an I/O, independent of its size.
//!
//! The model is `fixed + bytes / bandwidth`: command overhead, seek and rotation, then the
//! transfer. The fixed cost dominates a small I/O, so two halves take nearly twice as long as the
//! whole, and waiting for the other half pays. It hardly matters for a large I/O. In between lies
//! the *threshold*: the smallest power of two from 4 KiB on at which the fixed cost is at most a
//! quarter of the total, so that twice the size takes at least 1.75 times as long.
//!
//! Reads stand in for writes, as they change nothing. Single times vary widely with rotation,
//! caches and other I/O, so the slope is the median over all pairs of reads, weighted by the
//! difference of their sizes (a weighted Theil-Sen estimator). It tolerates outliers in up to a
//! quarter of the times. The run time is quadratic, so measure tens or hundreds of reads, not
//! thousands. Seven reads of each size give a hard disk's threshold within a factor of two.
//!
//! Where noise is larger than the fixed cost, the estimate is arbitrary, and no cost is reported.
//! Quantiles of the slopes on both sides of the median give a range of four standard errors on
//! either side (P. K. Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau", 1968).
//! The thresholds at both ends of this range must not differ by more than a factor of
//! [`SURE_RATIO_MAX`].

use forebay_types::{LINE_BYTES, limits::GATHER_BELOW_BYTES_MAX};
use std::fmt;

/// The minimum number of different sizes.
pub const SIZES_MIN: usize = 4;

/// The gathering threshold if none is measured or set, in bytes: below the thresholds of hard disks
/// and of flash disks behind any bus.
pub const GATHER_BELOW_DEFAULT_BYTES: u64 = 64 << 10;

/// The total cost divided by the fixed cost, at the threshold.
const TOTAL_TO_FIXED_RATIO: f64 = 4.0;

/// The maximum ratio of the largest to the smallest threshold that the times allow, if an estimate
/// is to count as certain.
pub const SURE_RATIO_MAX: u64 = 4;

/// Writes of this size or more are treated alike, whatever the threshold, in bytes.
const ALIKE_BYTES: u64 = 1 << 20;

/// Half the width of the range of slopes, in standard errors. Large, because noise that grows with
/// the size makes the standard error too small.
const RANGE_STANDARD_ERRORS: f64 = 4.0;

/// The latency of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadTime {
    /// The size in bytes.
    pub bytes: u64,
    /// The latency in nanoseconds.
    pub ns: u64,
}

/// The cost of splitting a write on a disk. See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitCost {
    /// The threshold in bytes, below which gathering pays: a power of two from 4 KiB to 32 MiB, the
    /// maximum if an I/O of any size takes about the same time.
    pub threshold_bytes: u64,
    /// The fixed cost of an I/O, in nanoseconds.
    pub fixed_ns: u64,
    /// The transfer rate, at least 1 byte per second; `None` if times do not grow with size.
    pub bytes_per_second: Option<u64>,
}

/// Why a set of times allows no estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unclear {
    /// Fewer than [`SIZES_MIN`] different sizes.
    TooFew,
    /// Most times are zero.
    TooQuick,
    /// Large reads took much less time than small ones.
    LargerIsQuicker,
    /// The times of reads vary by more than the fixed cost of an I/O.
    Noise,
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFew => write!(f, "fewer than {SIZES_MIN} sizes could be read"),
            Self::TooQuick => f.write_str("reads took no measurable time"),
            Self::LargerIsQuicker => f.write_str("large reads took less time than small ones"),
            Self::Noise => f.write_str("no measurable cost: the times of reads vary too much"),
        }
    }
}

impl std::error::Error for Unclear {}

impl SplitCost {
    /// Estimates the cost from reads in any order.
    ///
    /// # Errors
    /// Fails if the times allow no estimate; see [`Unclear`].
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
        let slopes = Slopes::of(times);
        let ns_per_byte = slopes.median();
        let span_bytes = (sizes[sizes.len() - 1] - sizes[0]) as f64;
        // A small negative slope is noise; a large one means the times are useless.
        if ns_per_byte * span_bytes < -0.5 * typical_ns {
            return Err(Unclear::LargerIsQuicker);
        }
        // A steeper line means a smaller fixed cost, so a smaller threshold.
        let [most, least] = slopes
            .range(times.len())
            .map(|slope| Self::with_slope(times, slope).threshold_bytes.min(ALIKE_BYTES));
        if most / least > SURE_RATIO_MAX {
            return Err(Unclear::Noise);
        }
        Ok(Self::with_slope(times, ns_per_byte))
    }

    /// The cost if a byte takes `ns_per_byte`.
    fn with_slope(times: &[ReadTime], ns_per_byte: f64) -> Self {
        if ns_per_byte <= 0.0 {
            return Self {
                threshold_bytes: GATHER_BELOW_BYTES_MAX,
                fixed_ns: median(times.iter().map(|time| time.ns as f64)) as u64,
                bytes_per_second: None,
            };
        }
        let fixed = |time: &ReadTime| time.ns as f64 - time.bytes as f64 * ns_per_byte;
        let fixed_ns = median(times.iter().map(fixed)).max(0.0);
        // At the threshold, the transfer takes `TOTAL_TO_FIXED_RATIO - 1` times the fixed cost.
        let at_bytes = fixed_ns * (TOTAL_TO_FIXED_RATIO - 1.0) / ns_per_byte;
        // The float-to-integer cast saturates.
        let at_bytes = (at_bytes.ceil() as u64).clamp(LINE_BYTES, GATHER_BELOW_BYTES_MAX);
        Self {
            threshold_bytes: at_bytes.next_power_of_two(),
            fixed_ns: fixed_ns as u64,
            bytes_per_second: Some(((1e9 / ns_per_byte) as u64).max(1)),
        }
    }

    /// The fixed cost in microseconds.
    pub fn fixed_us(&self) -> f64 {
        self.fixed_ns as f64 / 1000.0
    }
}

/// The source of a gathering threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThresholdSource {
    /// The operator's setting.
    Set,
    /// A measurement of the disk.
    Measured,
    /// The built-in default.
    Default,
}

/// The gathering threshold of a volume in bytes, and its source: the operator's setting (zero turns
/// gathering off), else the measurement, else the default.
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

/// The slopes between all pairs of different sizes, in nanoseconds per byte and in rising order,
/// each weighted by the difference in size.
struct Slopes(Vec<(f64, f64)>);

impl Slopes {
    fn of(times: &[ReadTime]) -> Self {
        let mut slopes = Vec::new();
        for (index, one) in times.iter().enumerate() {
            for other in times[index + 1..].iter().filter(|other| other.bytes != one.bytes) {
                let apart = other.bytes as f64 - one.bytes as f64;
                slopes.push(((other.ns as f64 - one.ns as f64) / apart, apart.abs()));
            }
        }
        slopes.sort_by(|one, other| one.0.total_cmp(&other.0));
        Self(slopes)
    }

    fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The slopes [`RANGE_STANDARD_ERRORS`] below and above the median, of `reads` reads.
    fn range(&self, reads: usize) -> [f64; 2] {
        // The standard error of Kendall's statistic, as a share of the number of pairs.
        let (reads, pairs) = (reads as f64, self.0.len() as f64);
        let error = (reads * (reads - 1.0) * (2.0 * reads + 5.0) / 18.0).sqrt() / pairs;
        let apart = RANGE_STANDARD_ERRORS * error / 2.0;
        [self.quantile(0.5 - apart), self.quantile(0.5 + apart)]
    }

    /// The slope below which the slopes have the given share of the weight.
    fn quantile(&self, share: f64) -> f64 {
        let whole: f64 = self.0.iter().map(|(_, weight)| weight).sum();
        let mut sum = 0.0;
        for (slope, weight) in &self.0 {
            sum += weight;
            if sum >= whole * share {
                return *slope;
            }
        }
        self.0.last().map_or(0.0, |(slope, _)| *slope)
    }
}

/// The median; zero of no values.
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
