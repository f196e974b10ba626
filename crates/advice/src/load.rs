//! What was observed of a device: the counters of the kernel, the pattern of its requests, and
//! processes that cache its data themselves.

/// The counters of a device over an observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// The length of the observation.
    pub seconds: f64,
    /// Reads that the device completed.
    pub reads: u64,
    /// Writes that the device completed.
    pub writes: u64,
    /// Flushes that the device completed.
    pub flushes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// The sum of the times that reads took, queues included, in milliseconds.
    pub read_wait_ms: u64,
    /// The same for writes.
    pub write_wait_ms: u64,
    /// The time in which at least one request was in flight, in milliseconds.
    pub busy_ms: u64,
}

impl Load {
    /// Reads and writes.
    pub const fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    /// The share of the requests that are reads, from 0 to 1; 0 without requests.
    pub fn read_share(&self) -> f64 {
        ratio(self.reads as f64, self.requests() as f64)
    }

    /// The mean time of a read, in microseconds; 0 without reads.
    pub fn read_us(&self) -> f64 {
        ratio(self.read_wait_ms as f64 * 1e3, self.reads as f64)
    }

    /// The mean time of a write, in microseconds; 0 without writes.
    pub fn write_us(&self) -> f64 {
        ratio(self.write_wait_ms as f64 * 1e3, self.writes as f64)
    }

    /// The share of the time in which a request was in flight, from 0 to 1.
    pub fn busy(&self) -> f64 {
        ratio(self.busy_ms as f64 / 1e3, self.seconds).min(1.0)
    }

    /// The mean number of requests in flight.
    pub fn queue(&self) -> f64 {
        ratio((self.read_wait_ms + self.write_wait_ms) as f64 / 1e3, self.seconds)
    }
}

/// The pattern of the requests that a log has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Reads that begin where one of the last reads has ended.
    pub sequential_reads: u64,
    /// Writes that begin where one of the last writes has ended.
    pub sequential_writes: u64,
}

impl Pattern {
    /// The share of the reads that are sequential, from 0 to 1; 0 without reads.
    pub fn sequential_read_share(&self) -> f64 {
        ratio(self.sequential_reads as f64, self.reads as f64)
    }

    /// The share of the writes that are sequential, from 0 to 1; 0 without writes.
    pub fn sequential_write_share(&self) -> f64 {
        ratio(self.sequential_writes as f64, self.writes as f64)
    }

    /// The mean size of a write, in bytes; 0 without writes.
    pub fn write_size(&self) -> f64 {
        ratio(self.write_bytes as f64, self.writes as f64)
    }
}

/// A process that reads the device bypassing the kernel's page cache, and has memory for a cache of
/// its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfCaching {
    /// Its name.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// Its resident memory, including huge pages, in bytes.
    pub resident_bytes: u64,
}

/// `part` divided by `whole`; 0 if `whole` is 0.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_zero_without_requests() {
        let idle = Load { seconds: 5.0, ..Load::default() };
        let figures =
            [idle.read_share(), idle.read_us(), idle.write_us(), idle.busy(), idle.queue()];
        assert_eq!(figures, [0.0; 5]);
        assert_eq!(Load::default().busy(), 0.0);
        assert_eq!(Pattern::default().write_size(), 0.0);
    }

    #[test]
    fn means_are_those_of_the_kernel() {
        let load = Load {
            seconds: 10.0,
            reads: 300,
            writes: 100,
            read_wait_ms: 1_500,
            write_wait_ms: 3_500,
            busy_ms: 4_000,
            ..Load::default()
        };
        assert_eq!((load.read_us(), load.write_us()), (5_000.0, 35_000.0));
        assert_eq!((load.read_share(), load.busy(), load.queue()), (0.75, 0.4, 0.5));
    }
}
