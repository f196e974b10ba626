//! Everything that is counted of a volume, also as a plain list of numbers that can be added,
//! subtracted and kept.

use super::{ArmTimes, InternalIos, Latencies, RequestCounters};
use forebay_engine::VolumeCounters;
use forebay_types::VolumeId;

/// Everything that is counted of a volume. All numbers only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeStatistics {
    /// Requests, and I/Os of the disk.
    pub requests: RequestCounters,
    /// Counters of the engine.
    pub engine: VolumeCounters,
    /// Lines that came into the pool.
    pub admitted_lines: u64,
    /// Lines that were evicted for others.
    pub evicted_lines: u64,
    /// Preloaded lines that were evicted before a client read them.
    pub preloaded_in_vain_lines: u64,
    /// The time in which its disk had I/Os in flight, in nanoseconds.
    pub disk_busy_ns: u64,
    /// Reads of its disk by the server itself. No other counter has them.
    pub internal: InternalIos,
    /// Latencies.
    pub latencies: Latencies,
}

/// The statistics of a volume that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedStatistics {
    /// The number of the volume. Another volume may get it when this one is removed.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Its identity, as in its settings.
    pub identity: [u8; 32],
    /// I/Os of its disk in flight now.
    pub disk_in_flight: u64,
    /// Its dirty lines now.
    pub dirty_lines: u64,
    /// Its lines in the pool now.
    pub cached_lines: u64,
    /// What was counted since the volume was added.
    pub statistics: VolumeStatistics,
    /// The response times on both sides of the comparison with a hold-out, counted while the volume
    /// has one. They are not kept over a restart.
    pub arms: ArmTimes,
}

/// Called for each group of numbers, with its name, the function that names each of its numbers,
/// and the numbers. Without such a function, the group is a single number or a histogram.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&'static str, Option<Label>, &mut [u64]);
/// Names a number of a group, given by its index.
pub(crate) type Label = fn(usize) -> String;

impl VolumeStatistics {
    /// All numbers, in a fixed order.
    pub fn into_numbers(mut self) -> Vec<u64> {
        let mut numbers = Vec::new();
        self.visit(&mut |_, _, group| numbers.extend_from_slice(group));
        numbers
    }

    /// The statistics with these numbers.
    ///
    /// # Panics
    /// If there are more or fewer of them than [`VolumeStatistics::into_numbers`] returns.
    pub fn from_numbers(numbers: &[u64]) -> Self {
        let mut statistics = Self::default();
        let mut rest = numbers;
        statistics.visit(&mut |_, _, group| {
            let (taken, after) = rest.split_at(group.len());
            group.copy_from_slice(taken);
            rest = after;
        });
        assert!(rest.is_empty(), "{} numbers are too many", numbers.len());
        statistics
    }

    /// The names of the numbers, with how many numbers each has. They are stable.
    pub fn groups() -> Vec<(String, usize)> {
        let mut groups = Vec::new();
        Self::default().visit(&mut |name, label, group| match label {
            None => groups.push((name.to_owned(), group.len())),
            Some(label) => {
                groups.extend((0..group.len()).map(|at| (format!("{name}.{}", label(at)), 1)));
            }
        });
        groups
    }

    fn visit(&mut self, visit: Visit<'_>) {
        self.requests.visit(visit);
        self.engine.visit(&mut |name, number| visit(name, None, std::slice::from_mut(number)));
        for (name, number) in [
            ("admitted_lines", &mut self.admitted_lines),
            ("evicted_lines", &mut self.evicted_lines),
            ("preloaded_in_vain_lines", &mut self.preloaded_in_vain_lines),
            ("disk_busy_ns", &mut self.disk_busy_ns),
            ("internal_reads", &mut self.internal.reads),
            ("internal_read_bytes", &mut self.internal.read_bytes),
        ] {
            visit(name, None, std::slice::from_mut(number));
        }
        self.latencies.visit(visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::LatencyClass;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_and_names_cover_everything_once() {
        let count = VolumeStatistics::default().into_numbers().len();
        let numbers: Vec<u64> = (1..=count as u64).collect();
        let statistics = VolumeStatistics::from_numbers(&numbers);
        assert_eq!(statistics.clone().into_numbers(), numbers);
        let groups = VolumeStatistics::groups();
        assert_eq!(groups.iter().map(|(_, count)| count).sum::<usize>(), count);
        let names: BTreeSet<&String> = groups.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), groups.len(), "{groups:?}");
        assert!(statistics.latencies.of(LatencyClass::DiskErase).count() > 0);
        assert!(statistics.requests.uncached_writes.iter().all(|count| *count > 0));
    }
}
