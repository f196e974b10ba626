//! Replay through the whole cache: shards, streams, writeback and an SSD, in virtual time.
//!
//! A replay of a policy counts what the policy keeps. The cache also reads ahead, must keep dirty
//! lines, and divides its lines between shards. Here one client submits the requests of a trace,
//! one at a time: at the times of the trace, or as soon as the previous one is complete if that is
//! later or the trace has no times. The volumes of a trace lie one after the other on one disk.

use super::{Memory, ReplayError, Workload};
use crate::experiment::host::CacheSetup;
use crate::experiment::machine::{Clients, Machine, MachineStep, VOLUME};
use crate::grid::write_grid;
use crate::trace::{Op, Trace};
use forebay_engine::{LineKey, VolumeCounters};
use forebay_types::{ByteRange, LINE_BYTES, Mode, SECTOR_BYTES, Size};
use std::collections::BTreeMap;
use std::fmt;

/// A cache below this many lines gets no row: a shard divides its lines among reads, dirty data
/// and streams, which makes no sense for a few.
pub const LINES_MIN: usize = 1_024;
/// The largest disk, in bytes.
const DISK_BYTES_MAX: u64 = 1 << 62;
/// A volume begins at a multiple of this on the disk, so that its lines are lines of the disk.
const VOLUME_GRANULE: u64 = 1 << 20;

/// Why a replay through the cache cannot run.
#[derive(Debug, thiserror::Error)]
pub enum EngineReplayError {
    /// A size is out of range.
    #[error(transparent)]
    Memory(#[from] ReplayError),
    /// The volumes of a trace are too large for one disk.
    #[error("trace {0}: its volumes have more than 4 EiB together, which no modelled disk has")]
    TooFar(String),
}

/// What of the cache a replay uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineSetup {
    /// The mode of the volume.
    pub mode: Mode,
    /// The largest number of shards.
    pub shards_max: u64,
    /// Whether streams are read ahead.
    pub reads_ahead: bool,
    /// Requests in flight.
    pub depth: u32,
}

impl EngineSetup {
    /// The whole cache in write-back, for a client that submits one request at a time.
    pub const WHOLE: Self =
        Self { mode: Mode::WriteBack, shards_max: 4, reads_ahead: true, depth: 1 };
    /// The engine alone: one shard in write-through, nothing is read ahead. It should miss what the
    /// policy misses.
    pub const BARE: Self =
        Self { mode: Mode::WriteThrough, shards_max: 1, reads_ahead: false, depth: 1 };
}

/// The result: a row for each trace and size.
#[derive(Clone, Debug, Default)]
pub struct EngineTable {
    /// The rows.
    pub rows: Vec<EngineRow>,
}

/// One trace at one size.
#[derive(Clone, Debug)]
pub struct EngineRow {
    /// The trace.
    pub trace: String,
    /// Lines of 4 KiB in the cache.
    pub capacity_lines: usize,
    /// Misses per line read of the policy alone, from 0 to 1.
    pub policy_miss_ratio: f64,
    /// Misses per line read or written of the policy alone, from 0 to 1.
    pub policy_access_miss_ratio: f64,
    /// The cache's counters.
    pub counters: VolumeCounters,
    /// Bytes that the client read and wrote.
    pub client_bytes: [u64; 2],
    /// Bytes that were read from the disk and written to it.
    pub disk_bytes: [u64; 2],
}

impl EngineRow {
    /// Misses per line read, from 0 to 1. A line that was read ahead counts as a hit if it was in
    /// the pool in time.
    pub fn miss_ratio(&self) -> f64 {
        let misses = self.counters.read_miss_lines;
        ratio(misses, misses + self.counters.read_hit_lines)
    }

    /// The same, but the first read of a line that was read ahead counts as a miss: what the
    /// eviction achieves, apart from the prefetch.
    pub fn miss_ratio_without_prefetch(&self) -> f64 {
        let counters = &self.counters;
        let misses = counters.read_miss_lines + counters.prefetch_used_lines;
        ratio(misses.min(self.read_lines()), self.read_lines())
    }

    /// Misses per line read or written, from 0 to 1.
    pub fn access_miss_ratio(&self) -> f64 {
        let counters = &self.counters;
        let misses = counters.read_miss_lines + counters.write_miss_lines;
        ratio(misses, misses + counters.read_hit_lines + counters.write_hit_lines)
    }

    /// Lines that the client read.
    pub fn read_lines(&self) -> u64 {
        self.counters.read_hit_lines + self.counters.read_miss_lines
    }
}

/// `part` per `whole`; 0 if `whole` is 0.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Replays each trace at each size, in write-back.
///
/// # Errors
/// Fails if a size is out of range, or the volumes of a trace exceed the modelled disk.
pub fn run(traces: &[Trace], memories: &[Memory]) -> Result<EngineTable, EngineReplayError> {
    let mut table = EngineTable::default();
    for trace in traces {
        let workload = Workload::new(trace);
        for memory in memories {
            let lines = memory.lines(&workload)?;
            if lines >= LINES_MIN {
                table.rows.push(replay(trace, &workload, lines, EngineSetup::WHOLE)?);
            }
        }
    }
    Ok(table)
}

/// Replays a trace, whose prepared form is `workload`, through a cache of `lines` lines and through
/// the policy alone.
///
/// # Errors
/// Fails if the volumes of the trace exceed the modelled disk.
pub fn replay(
    trace: &Trace,
    workload: &Workload,
    lines: usize,
    setup: EngineSetup,
) -> Result<EngineRow, EngineReplayError> {
    let mut client = Client::new(trace)?;
    let disk = format!("model:ssd?size={}MiB", client.disk_bytes >> 20);
    let EngineSetup { mode, shards_max, reads_ahead, depth } = setup;
    let cache = CacheSetup { mode, shards_max, reads_ahead };
    let machine = Machine::with_cache(&disk, lines as u64 * LINE_BYTES, cache);
    let mut machine = machine.expect("there is a model of each size up to the largest");
    (0..depth).for_each(|client| machine.add_client(client, 0));
    machine.run(u64::MAX, &mut client);
    let tally = machine.disk_tally();
    let cache = machine.cache().expect("the machine has a cache");
    let [reads, accesses] = super::replay_hinted(&client.with_keys_of(workload, trace), lines);
    Ok(EngineRow {
        trace: trace.name.clone(),
        capacity_lines: lines,
        policy_miss_ratio: reads.miss_ratio(),
        policy_access_miss_ratio: accesses.miss_ratio(),
        counters: cache.counters(),
        client_bytes: client.bytes,
        disk_bytes: [tally.read_bytes, tally.write_bytes],
    })
}

/// The client, which submits the requests of a trace.
struct Client<'a> {
    requests: std::iter::Peekable<std::slice::Iter<'a, crate::trace::Request>>,
    /// The first byte of each volume on the disk.
    starts: BTreeMap<u32, u64>,
    disk_bytes: u64,
    /// Bytes read and written.
    bytes: [u64; 2],
}

impl<'a> Client<'a> {
    fn new(trace: &'a Trace) -> Result<Self, EngineReplayError> {
        let mut ends = BTreeMap::new();
        for request in &trace.requests {
            let end = ends.entry(request.volume).or_insert(0);
            *end = (request.offset_bytes + request.length_bytes).max(*end);
        }
        let mut disk_bytes = 0u64;
        let mut starts = BTreeMap::new();
        for (volume, end) in ends {
            starts.insert(volume, disk_bytes);
            let end = end.checked_next_multiple_of(VOLUME_GRANULE);
            let next = end.and_then(|bytes| disk_bytes.checked_add(bytes));
            disk_bytes = next
                .filter(|&bytes| bytes <= DISK_BYTES_MAX)
                .ok_or_else(|| EngineReplayError::TooFar(trace.name.clone()))?;
        }
        Ok(Self { requests: trace.requests.iter().peekable(), starts, disk_bytes, bytes: [0; 2] })
    }
}

impl Client<'_> {
    /// The workload with the keys that the cache gives to its lines. A policy that guesses by
    /// hashes of keys misses up to a hundredth more or less with others.
    fn with_keys_of(&self, workload: &Workload, trace: &Trace) -> Workload {
        let mut keys = vec![0; workload.keys.len()];
        let blocks = trace.requests.iter().flat_map(|request| {
            let start = self.starts[&request.volume] / LINE_BYTES;
            request.blocks().map(move |block| LineKey::new(VOLUME, start + block).hash())
        });
        for (&number, key) in workload.accesses.iter().zip(blocks) {
            keys[number as usize] = key;
        }
        Workload { keys, ..workload.clone() }
    }
}

impl Clients for Client<'_> {
    fn next(&mut self, _client: u32, now_ns: u64) -> MachineStep {
        let Some(&&request) = self.requests.peek() else { return MachineStep::Leave };
        let pause_ns = (request.time_us * 1_000).saturating_sub(now_ns);
        if pause_ns > 0 {
            return MachineStep::Think(pause_ns);
        }
        self.requests.next();
        let start = self.starts[&request.volume] + request.offset_bytes;
        let end = (start + request.length_bytes).next_multiple_of(SECTOR_BYTES);
        let offset = start - start % SECTOR_BYTES;
        let range = ByteRange::new(offset, end - offset);
        let is_write = request.op == Op::Write;
        self.bytes[usize::from(is_write)] += range.len;
        if is_write { MachineStep::Write(range) } else { MachineStep::Read(range) }
    }
}

impl fmt::Display for EngineTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = [
            "trace",
            "memory",
            "policy alone",
            "eviction",
            "with prefetch",
            "read ahead",
            "in vain",
            "disk reads",
            "disk writes",
        ];
        let mut lines = vec![heads.map(str::to_owned).to_vec()];
        for row in &self.rows {
            let counters = &row.counters;
            let in_vain = counters.prefetched_lines.saturating_sub(counters.prefetch_used_lines);
            let percent = |part, whole| format!("{:.1}", 100.0 * ratio(part, whole));
            lines.push(vec![
                row.trace.clone(),
                Size(row.capacity_lines as u64 * LINE_BYTES).to_string(),
                format!("{:.4}", row.policy_miss_ratio),
                format!("{:.4}", row.miss_ratio_without_prefetch()),
                format!("{:.4}", row.miss_ratio()),
                percent(counters.prefetched_lines, row.read_lines()),
                percent(in_vain, counters.prefetched_lines),
                percent(row.disk_bytes[0], row.client_bytes[0]),
                percent(row.disk_bytes[1], row.client_bytes[1]),
            ]);
        }
        if self.rows.len() > 1 {
            let mean = |of: fn(&EngineRow) -> f64| {
                let sum: f64 = self.rows.iter().map(of).sum();
                format!("{:.4}", sum / self.rows.len() as f64)
            };
            let mut line = vec!["mean".to_owned(), String::new()];
            line.push(mean(|row| row.policy_miss_ratio));
            line.push(mean(EngineRow::miss_ratio_without_prefetch));
            line.push(mean(EngineRow::miss_ratio));
            line.resize(heads.len(), String::new());
            lines.push(line);
        }
        write_grid(f, &lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Request;

    /// Requests of 4 KiB for these lines, without times.
    fn trace(requests: impl IntoIterator<Item = (Op, u64)>) -> Trace {
        let request = |(op, line): (Op, u64)| Request {
            time_us: 0,
            offset_bytes: line * LINE_BYTES,
            length_bytes: LINE_BYTES,
            volume: 0,
            op,
        };
        let requests = requests.into_iter().map(request).collect();
        Trace { name: "small".to_owned(), requests }
    }

    fn row(trace: Trace) -> EngineRow {
        let memory = Memory::Bytes(Size(LINES_MIN as u64 * LINE_BYTES));
        run(&[trace], &[memory]).unwrap().rows.remove(0)
    }

    #[test]
    fn the_cache_misses_what_the_policy_misses() {
        // Nothing is read ahead, and half of the lines fit.
        let mut dice = 1u64;
        let lines = (0..40_000).map(|_| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (dice >> 33) % 1_800 * 997
        });
        let row = row(trace(lines.map(|line| (Op::Read, line))));
        let (policy, cache) = (row.policy_miss_ratio, row.miss_ratio());
        assert_eq!(row.counters.prefetched_lines, 0);
        assert!(policy > 0.1 && (policy - cache).abs() < 0.02, "{policy} and {cache}");
        assert_eq!(row.disk_bytes, [row.counters.read_miss_lines * LINE_BYTES, 0]);
        assert_eq!(row.client_bytes, [40_000 * LINE_BYTES, 0]);
    }

    #[test]
    fn prefetched_lines_are_counted_separately() {
        let row = row(trace((0..20_000).map(|line| (Op::Read, line))));
        assert_eq!(row.policy_miss_ratio, 1.0, "each line is read once");
        assert!(row.miss_ratio_without_prefetch() > 0.99, "{row:?}");
        assert!(row.miss_ratio() < 0.1, "{row:?}");
        assert!(row.counters.prefetch_used_lines > 18_000, "{row:?}");
    }

    #[test]
    fn rewrites_spare_writes_to_the_disk() {
        let writes = (0..20_000).map(|at| (Op::Write, at % 50 * 64));
        let row = row(trace(writes));
        assert_eq!(row.client_bytes, [0, 20_000 * LINE_BYTES]);
        assert_eq!((row.read_lines(), row.disk_bytes[0]), (0, 0));
        assert!(row.disk_bytes[1] < row.client_bytes[1] / 4, "{row:?}");
        assert!((row.policy_miss_ratio, row.miss_ratio()) == (0.0, 0.0), "no line is read");
    }

    #[test]
    fn the_client_keeps_to_the_times_and_places_of_the_trace() {
        let request = |time_us, volume, offset_bytes, length_bytes| Request {
            time_us,
            offset_bytes,
            length_bytes,
            volume,
            op: Op::Read,
        };
        let requests = vec![request(0, 7, 1_000, 100), request(50, 3, 0, 4_096)];
        let trace = Trace { name: "small".to_owned(), requests };
        let mut client = Client::new(&trace).unwrap();
        assert_eq!(client.next(0, 0), MachineStep::Read(ByteRange::new((1 << 20) + 512, 1_024)));
        assert_eq!(client.next(0, 10_000), MachineStep::Think(40_000));
        assert_eq!(client.next(0, 50_000), MachineStep::Read(ByteRange::new(0, 4_096)));
        assert_eq!(client.next(0, 60_000), MachineStep::Leave);
        assert_eq!((client.disk_bytes, client.bytes), (2 << 20, [5_120, 0]));
    }

    #[test]
    fn a_trace_that_is_larger_than_any_disk_is_refused() {
        let mut far = trace([(Op::Read, 0), (Op::Read, 0)]);
        far.requests[0].offset_bytes = 1 << 61;
        far.requests[1] = Request { volume: 1, ..far.requests[0] };
        for offset_bytes in [1 << 61, u64::MAX - LINE_BYTES] {
            far.requests[1].offset_bytes = offset_bytes;
            let memory = Memory::Bytes(Size(LINES_MIN as u64 * LINE_BYTES));
            let error = run(&[far.clone()], &[memory]).unwrap_err();
            assert!(matches!(error, EngineReplayError::TooFar(_)), "{error}");
        }
    }
}
