//! The governor over a modelled disk that serves one I/O at a time.

use super::*;

const TICK_US: u64 = 50_000;
const NO_AGE_LIMIT: WritebackLimits =
    WritebackLimits { target: ReadTarget::Idle, bytes: u64::MAX, ios: u64::MAX, age_s: u64::MAX };

/// A disk with one reader that always has a read outstanding, and writeback at the governor's rate.
struct Bench {
    governor: Governor,
    pace: Pace,
    random: u64,
    now_us: u64,
    free_us: u64,
    write_us: u64,
    written: u64,
    tokens_milli: u64,
    dirty: u64,
    /// The latencies of all reads, and the rate at each tick.
    reads: Vec<u64>,
    paces: Vec<u64>,
}

impl Bench {
    fn new(limits: WritebackLimits, write_us: u64) -> Self {
        Self {
            governor: Governor::new(limits),
            pace: Pace::DEFAULT,
            random: 1,
            now_us: 0,
            free_us: 0,
            write_us,
            written: 0,
            tokens_milli: 0,
            dirty: 0,
            reads: Vec::new(),
            paces: Vec::new(),
        }
    }

    /// Six to fourteen milliseconds.
    fn service_us(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        6_000 + (self.random >> 33) % 8_000
    }

    fn run(&mut self, seconds: u64) {
        let end_us = self.now_us + seconds * 1_000_000;
        let (mut sampled_us, mut sample) = (self.now_us, DiskSample::default());
        while self.now_us < end_us {
            // A destage already in progress delays the read.
            let rate = self.pace.beside_reads_milli.min(1_000_000);
            while self.dirty > 0 && self.tokens_milli >= 1_000 {
                self.tokens_milli -= 1_000;
                self.dirty -= 1;
                self.written += 1;
                self.free_us = self.free_us.max(self.now_us) + self.write_us;
            }
            self.free_us = self.free_us.max(self.now_us) + self.service_us();
            let took_us = self.free_us - self.now_us;
            self.tokens_milli = (self.tokens_milli + rate * took_us / 1_000_000).min(5_000);
            self.now_us = self.free_us;
            self.reads.push(took_us);
            sample.reads.add(ReadTimes::bucket_of(took_us), 1);
            if self.now_us - sampled_us >= TICK_US {
                sample.now_ms = self.now_us / 1_000;
                sample.written_milli = self.written * 1_000;
                sample.dirty_milli = self.dirty * 1_000;
                self.pace = self.governor.update(&sample);
                self.paces.push(self.pace.beside_reads_milli);
                (sampled_us, sample) = (self.now_us, DiskSample::default());
            }
        }
    }

    fn p99_us(&self, from: usize) -> u64 {
        let mut reads = self.reads[from..].to_vec();
        reads.sort_unstable();
        reads[reads.len() * 99 / 100]
    }
}

#[test]
fn reads_keep_their_latency_beside_writeback() {
    let mut bench = Bench::new(NO_AGE_LIMIT, 8_000);
    bench.run(30);
    let idle_us = bench.p99_us(0);
    bench.dirty = 1_000_000;
    bench.run(300);
    let from = bench.reads.len();
    let written = bench.written;
    bench.run(300);
    let beside_us = bench.p99_us(from);
    assert!(beside_us <= idle_us * 3 / 2, "{beside_us} us beside writeback, {idle_us} us idle");
    // One read in a hundred may be slow, which is one burst per second at a hundred reads.
    let bursts = bench.written - written;
    assert!((150..1_200).contains(&bursts), "{bursts} bursts in 300 s");
    assert_eq!(bench.governor.status().target_us, bench.governor.idle_us().map(|us| us * 5 / 4));
}

#[test]
fn the_rate_converges_without_oscillation() {
    let mut bench = Bench::new(NO_AGE_LIMIT, 8_000);
    bench.run(30);
    bench.dirty = 1_000_000;
    bench.run(600);
    let last = &bench.paces[bench.paces.len() / 2..];
    let (least, most) = (last.iter().min().unwrap(), last.iter().max().unwrap());
    assert!(*most <= 3 * least, "between {least} and {most} thousandths");
    // Frequent changes of direction are oscillation, even if small.
    let changes = last.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes < last.len() / 40, "{changes} changes in {} samples", last.len());
}

#[test]
fn the_rate_rises_if_writeback_delays_no_read() {
    // Writes delay no read on this disk.
    let mut bench = Bench::new(NO_AGE_LIMIT, 0);
    bench.run(30);
    bench.dirty = 1_000_000;
    bench.run(120);
    assert!(bench.pace.beside_reads_milli > 40_000, "{:?}", bench.pace);
}

#[test]
fn a_fixed_target_is_met() {
    let limits = WritebackLimits { target: ReadTarget::Micros(40_000), ..NO_AGE_LIMIT };
    let mut bench = Bench::new(limits, 8_000);
    bench.dirty = 1_000_000;
    bench.run(300);
    let from = bench.reads.len();
    bench.run(100);
    let beside_us = bench.p99_us(from);
    assert!((20_000..45_000).contains(&beside_us), "{beside_us} us");
    let off = WritebackLimits { target: ReadTarget::Off, ..WritebackLimits::default() };
    bench.governor.set_limits(off);
    bench.run(1);
    assert_eq!(bench.pace.beside_reads_milli, u64::MAX);
}

#[test]
fn old_dirty_data_is_destaged_regardless_of_reads() {
    let limits =
        WritebackLimits { target: ReadTarget::Micros(1), age_s: 100, ..WritebackLimits::default() };
    let mut bench = Bench::new(limits, 8_000);
    bench.dirty = 2_000;
    bench.run(10);
    assert!(bench.pace.beside_reads_milli >= 18_000, "{:?}", bench.pace);
}

#[test]
fn the_operators_limits_apply_until_they_are_removed() {
    let mut governor =
        Governor::new(WritebackLimits { bytes: 5 << 20, ios: 7, ..WritebackLimits::default() });
    let pace = governor.update(&DiskSample::default());
    assert_eq!((pace.bytes, pace.ios_milli), (5 << 20, 7_000));
    governor.set_limits(WritebackLimits::default());
    let pace = governor.update(&DiskSample::default());
    assert_eq!((pace.bytes, pace.ios_milli), (u64::MAX, u64::MAX));
}

#[test]
fn writeback_pauses_until_a_baseline_is_measured() {
    let mut bench = Bench::new(NO_AGE_LIMIT, 8_000);
    bench.dirty = 100;
    bench.run(1);
    assert_eq!(bench.written, 0);
    assert!(bench.paces.iter().all(|&pace| pace < 1_000), "no more than the age limit demands");
    bench.run(10);
    assert!(bench.written > 0);
}

#[test]
fn in_a_short_pause_of_the_reads_one_destage_at_a_time_is_in_flight() {
    let in_flight = |limits: WritebackLimits, pause_ms: u64| {
        let mut governor = Governor::new(limits);
        let mut reads = ReadTimes::default();
        reads.add(ReadTimes::bucket_of(8_000), 5);
        governor.update(&DiskSample { now_ms: 10_000, reads, ..DiskSample::default() });
        let sample = DiskSample { now_ms: 10_000 + pause_ms, ..DiskSample::default() };
        governor.update(&sample).in_flight
    };
    assert_eq!(in_flight(WritebackLimits::default(), 500), 1);
    assert_eq!(in_flight(WritebackLimits::default(), 2_000), Pace::DEFAULT.in_flight);
    let off = WritebackLimits { target: ReadTarget::Off, ..WritebackLimits::default() };
    assert_eq!(in_flight(off, 500), Pace::DEFAULT.in_flight);
}

#[test]
fn the_p99_is_accurate_to_a_sixteenth() {
    let mut times = ReadTimes::default();
    assert_eq!(times.p99_us(), None);
    (0..990).for_each(|_| times.add(ReadTimes::bucket_of(1_000), 1));
    (0..10).for_each(|_| times.add(ReadTimes::bucket_of(50_000), 1));
    let p99_us = times.p99_us().unwrap();
    assert!((1_000..=1_063).contains(&p99_us), "{p99_us}");
    times.add(ReadTimes::bucket_of(50_000), 5);
    assert!(times.p99_us().unwrap() >= 50_000);
    assert_eq!(times.above(2_000), 15);
    for us in [0, 1, 16, 17, 31, 32, 1_000_000, u64::MAX] {
        let bucket = ReadTimes::bucket_of(us);
        assert!(bucket < ReadTimes::BUCKETS);
        assert!(ReadTimes::least_us(bucket) <= us.max(16));
    }
}

#[test]
fn a_sequential_stream_is_slowed_as_little_as_possible() {
    let mut bench = Bench::new(NO_AGE_LIMIT, 8_000);
    bench.run(30);
    let (mut sample, rate) = (DiskSample::default(), bench.pace.beside_reads_milli);
    sample.now_ms = bench.now_us / 1_000;
    sample.dirty_milli = 1_000_000;
    let look = |governor: &mut Governor, sample: &mut DiskSample, prefetched, missed| {
        sample.now_ms += 50;
        sample.prefetched_lines += prefetched;
        sample.missed_lines += missed;
        governor.update(sample).beside_reads_milli
    };
    let governor = &mut bench.governor;
    assert!(rate > PACE_MIN_MILLI);
    assert_eq!(look(governor, &mut sample, 0, 100), rate, "random reads are no stream");
    // The client waits for each line that is being prefetched.
    assert_eq!(look(governor, &mut sample, 256, 256), PACE_MIN_MILLI);
    assert_eq!(look(governor, &mut sample, 0, 0), PACE_MIN_MILLI, "the next window is in flight");
    sample.now_ms += STREAM_MS;
    assert_eq!(look(governor, &mut sample, 0, 100), rate, "the stream has ended");
    // A single stream among many random reads does not count.
    assert_eq!(look(governor, &mut sample, 16, 100), rate);
    governor.set_limits(WritebackLimits { target: ReadTarget::Micros(40_000), ..NO_AGE_LIMIT });
    assert!(look(governor, &mut sample, 256, 0) > PACE_MIN_MILLI, "the operator's target applies");
}
