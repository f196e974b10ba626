//! The host of a machine's dispatcher: shards, and I/Os on their way to the disk.

use super::disk::Disk;
use super::journal::{Checkpoints, HostLog};
use super::machine::VOLUME;
use crate::harness::io::Io;
use crate::harness::shard::{LabShard, VolumeSetup, empty_shard, release_pins};
use forebay_backend::IoKind;
use forebay_engine::{
    Answer, Elevator, IoAction, IoId, IoVerb, LineMeta, Outbox, Part, PartId, Protection, Shard,
    ShardConfig, begin_forecast, end_former_forecasts, size_prediction,
};
use forebay_policy::{
    DiskSample, Governor, GovernorState, Needs, Pace, ReadTimes, SizePrediction, Weir,
    WritebackLimits,
};
use forebay_protect::admission;
use forebay_types::{
    ByteRange, DiskGeometry, Granule, IoError, LINE_BYTES, Mode, SECTOR_BYTES, Stripes, VolumeId,
};
use forebay_volume::{Admission, Barrier, Host, JobId, Mergeable, Reply, Streams, merge};
use std::rc::Rc;

/// The minimum size of a shard, as in the runtime.
const SHARD_BYTES_MIN: u64 = 16 << 20;
/// The disk counts as being read for this long after the last read, as in the runtime.
const READING_NS: u64 = 100_000_000;
/// The time after which counts of other sizes of the pool decay.
const PASS_NS: u64 = 1_000_000_000;

/// The cache of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheSetup {
    pub mode: Mode,
    pub shards_max: u64,
    pub reads_ahead: bool,
}

impl CacheSetup {
    /// A cache in `mode`, with the runtime's number of shards per worker and with read-ahead.
    pub(crate) const fn whole(mode: Mode) -> Self {
        Self { mode, shards_max: 4, reads_ahead: true }
    }
}

pub(crate) enum Purpose {
    /// A request of a client without a cache.
    Client(Requester),
    /// Coalesced I/Os of shards, with their start time in nanoseconds.
    Shards(IoVerb, Vec<(usize, IoId)>, u64),
    Flush(JobId),
}

/// Memory without content.
pub(crate) struct Blank {
    zeroes: Rc<[u8]>,
    len: usize,
}

impl AsRef<[u8]> for Blank {
    fn as_ref(&self) -> &[u8] {
        &self.zeroes[..self.len]
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub client: u32,
    /// The length of the answer.
    pub bytes: u64,
}

/// The origin of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Token {
    Client(Requester),
    /// A read of the loader with this number.
    Preload(u32, Granule),
    Checkpoint,
    Internal,
}

pub(crate) struct CacheHost {
    pub now_ns: u64,
    shards: Vec<LabShard>,
    stripes: Stripes,
    /// Unless nothing is read ahead.
    streams: Option<Streams>,
    pending: Vec<Io>,
    /// Calls of [`CacheHost::start_ios`] plus one.
    turn: u64,
    flushes: Vec<JobId>,
    reads_in_flight: u32,
    last_read_ns: Option<u64>,
    governor: Governor,
    /// Latencies of reads since the last poll of the governor.
    reads: ReadTimes,
    /// Requests answered in this turn.
    pub replies: Vec<Requester>,
    /// Preloads that ended in this turn.
    pub preloaded: Vec<(u32, Granule)>,
    /// The needs since a caller last took them.
    pub needs: Needs,
    zeroes: Rc<[u8]>,
    protection: Protection,
    /// When counts last decayed.
    passed_ns: u64,
    /// The journal, if one protects dirty data.
    log: Option<HostLog>,
}

impl CacheHost {
    /// A cache of `pool_bytes` of lines for one volume, as the runtime creates it.
    pub(crate) fn new(
        pool_bytes: u64,
        cache: CacheSetup,
        volume_bytes: u64,
        geometry: &DiskGeometry,
    ) -> Self {
        let stripes = geometry.stripes();
        let shards = 1 << (pool_bytes / SHARD_BYTES_MIN).clamp(1, cache.shards_max).ilog2();
        let slots = (pool_bytes / LINE_BYTES / shards) as usize;
        let config = ShardConfig::for_slots(slots).among(shards as usize);
        let setup = VolumeSetup {
            elevator: Some(Elevator::new(
                shards as usize,
                geometry.stripe_cache_bytes,
                geometry.has_one_arm(),
            )),
            protection: Protection::Power,
            mode: cache.mode,
            ..VolumeSetup::write_back(VOLUME, volume_bytes, stripes)
        };
        let shard = |number| {
            let mut shard = empty_shard(slots, Box::new(Weir::new(slots)), config);
            setup.add_to(&mut shard, number as usize);
            shard
        };
        let streams = Streams::new(volume_bytes, slots as u64 * shards * LINE_BYTES);
        Self {
            now_ns: 0,
            shards: (0..shards).map(shard).collect(),
            stripes,
            streams: cache.reads_ahead.then_some(streams),
            pending: Vec::new(),
            turn: 1,
            flushes: Vec::new(),
            reads_in_flight: 0,
            last_read_ns: None,
            governor: Governor::new(WritebackLimits::default()),
            reads: ReadTimes::default(),
            replies: Vec::new(),
            preloaded: Vec::new(),
            needs: Needs::new(slots * shards as usize),
            zeroes: Rc::default(),
            protection: Protection::Power,
            passed_ns: 0,
            log: None,
        }
    }

    /// Changes what preserves dirty data.
    pub(crate) fn set_protection(&mut self, protection: Protection) {
        self.protection = protection;
        for shard in &mut self.shards {
            shard.volume_mut(VOLUME).set_protection(protection);
        }
    }

    /// Makes a journal of `bytes` protect dirty data, instead of a UPS.
    pub(crate) fn attach_journal(&mut self, bytes: u64, volume_bytes: u64, of: Checkpoints) {
        self.log = Some(HostLog::new(bytes, volume_bytes, of));
        self.set_protection(Protection::Journal);
    }

    pub(crate) const fn log_mut(&mut self) -> Option<&mut HostLog> {
        self.log.as_mut()
    }

    /// The share of the log that is in use, from 0 to 1.
    pub(crate) fn log_used(&self) -> f64 {
        self.log.as_ref().map_or(0.0, HostLog::used)
    }

    pub(crate) fn blank(&mut self, len: u64) -> Blank {
        let len = len as usize;
        if self.zeroes.len() < len {
            self.zeroes = vec![0; len].into();
        }
        Blank { zeroes: Rc::clone(&self.zeroes), len }
    }

    /// Starts the I/Os of a turn, adjacent ones coalesced.
    pub(crate) fn start_ios(&mut self, disk: &mut Disk<Purpose>) {
        self.turn += 1;
        let mut pending = std::mem::take(&mut self.pending);
        merge(&mut pending, |run| {
            let (verb, first) = (run[0].verb(), run[0].range());
            let len = run.iter().map(|io| io.range().len).sum();
            let members = run.iter().map(|io| (io.shard, io.action.id)).collect();
            let kind = match verb {
                IoVerb::Read => IoKind::Read,
                IoVerb::Write { fua } => IoKind::Write { fua },
                IoVerb::Discard => IoKind::Discard,
                IoVerb::Zero { unmap } => IoKind::Zero { unmap },
            };
            self.reads_in_flight += u32::from(verb == IoVerb::Read);
            let range = ByteRange::new(first.offset, len);
            disk.start(self.now_ns, kind, range, Purpose::Shards(verb, members, self.now_ns));
        });
        pending.clear();
        self.pending = pending;
        for job in self.flushes.drain(..) {
            disk.start(self.now_ns, IoKind::Flush, ByteRange::new(0, 0), Purpose::Flush(job));
        }
    }

    /// Records the completion of a read that [`CacheHost::start_ios`] started.
    pub(crate) fn end_read(&mut self, began_ns: u64) {
        self.reads.add(ReadTimes::bucket_of((self.now_ns - began_ns) / 1_000), 1);
        self.reads_in_flight -= 1;
        self.last_read_ns = Some(self.now_ns);
    }

    pub(crate) fn set_limits(&mut self, limits: WritebackLimits) {
        self.governor.set_limits(limits);
    }

    pub(crate) fn governor(&self) -> GovernorState {
        self.governor.status()
    }

    fn poll_governor(&mut self) -> Pace {
        let counters = || self.shards.iter().map(|shard| shard.volume(VOLUME).counters());
        self.governor.update(&DiskSample {
            now_ms: self.now_ns / 1_000_000,
            reads: std::mem::take(&mut self.reads),
            prefetched_lines: counters().map(|counters| counters.prefetched_lines).sum(),
            missed_lines: counters().map(|counters| counters.read_miss_lines).sum(),
            written_milli: Pace::bursts_milli(
                counters().map(|counters| counters.destage_writes).sum(),
                counters().map(|counters| counters.destaged_bytes).sum(),
            ),
            is_writing: self.shards.iter().any(|shard| shard.volume(VOLUME).destaging() > 0),
            dirty_milli: Pace::bursts_milli(0, self.dirty_bytes()),
        })
    }

    /// Updates the read state and the pace of the shards with dirty lines; returns these shards.
    pub(crate) fn shards_to_tick(&mut self) -> Vec<usize> {
        let (pace, shares, now_ms) =
            (self.poll_governor(), self.shards.len() as u64, self.now_ms());
        let turns = self.shards.iter().filter(|shard| shard.needs_tick()).count() as u64;
        let lately = self.last_read_ns.is_some_and(|last_ns| self.now_ns < last_ns + READING_NS);
        let reading = lately || self.reads_in_flight > 0;
        let distance = self.log.as_ref().map(HostLog::distance);
        let due = self.shards.iter_mut().enumerate().filter(|(_, shard)| shard.needs_tick());
        due.zip(0..)
            .map(|((at, shard), turn)| {
                let volume = shard.volume_mut(VOLUME);
                volume.set_reading(reading);
                volume.set_pace(pace.share(shares, turn, turns, now_ms));
                if let Some((left, all)) = distance {
                    volume.set_log_distance(left, all);
                }
                at
            })
            .collect()
    }

    #[cfg(test)]
    pub(crate) fn configure(&mut self, set: impl FnMut(&mut LabShard)) {
        self.shards.iter_mut().for_each(set);
    }

    pub(crate) fn begin_forecast(&mut self) {
        self.shards.iter_mut().for_each(begin_forecast);
    }

    pub(crate) fn end_former_forecasts(&mut self) {
        for shard in &mut self.shards {
            while end_former_forecasts(shard, 1_024) {}
        }
    }

    pub(crate) fn counters(&self) -> forebay_engine::VolumeCounters {
        let mut sum = forebay_engine::VolumeCounters::default();
        self.shards.iter().for_each(|shard| sum.add(shard.volume(VOLUME).counters()));
        sum
    }

    /// Lets what was counted for other sizes of the pool decay.
    pub(crate) fn pass_time(&mut self) {
        if self.now_ns >= self.passed_ns + PASS_NS {
            let seconds = (self.now_ns - self.passed_ns) as f64 / 1e9;
            self.passed_ns = self.now_ns;
            self.shards.iter_mut().for_each(|shard| shard.volume_mut(VOLUME).pass_time(seconds));
        }
    }

    pub(crate) fn size_prediction(&self) -> SizePrediction {
        let mut sum = SizePrediction::default();
        self.shards.iter().for_each(|shard| sum.add(&size_prediction(shard, VOLUME)));
        sum
    }

    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.usage().dirty_lines * LINE_BYTES).sum()
    }
}

impl Host for CacheHost {
    type Token = Token;
    type Memory = Blank;
    type Table = Vec<LineMeta>;

    fn shards(&self) -> usize {
        self.shards.len()
    }

    fn stripes(&mut self, _volume: VolumeId) -> Stripes {
        self.stripes
    }

    fn block_bytes(&mut self, _: VolumeId) -> u64 {
        SECTOR_BYTES
    }

    fn now_ms(&self) -> u64 {
        self.now_ns / 1_000_000
    }

    fn batch(&self) -> u64 {
        self.turn
    }

    fn call<R>(
        &mut self,
        shard: usize,
        _payload: &[u8],
        out: &mut Outbox,
        call: impl FnOnce(&mut Shard<Self::Table>, &mut Outbox) -> R,
    ) -> R {
        let shard = &mut self.shards[shard];
        let result = call(shard, out);
        // There is no memory for the steps to change, and no line has a seal.
        out.memory.clear();
        for request in out.journal_requests.drain(..) {
            self.log.as_mut().expect("only a journal takes requests").record(&request);
        }
        shard.finish_call();
        result
    }

    fn allocate(&mut self, len: u64, _content: Option<&[u8]>) -> Blank {
        self.blank(len)
    }

    fn start_io(&mut self, shard: usize, io: IoAction, _memory: Option<(&Blank, u64)>) {
        self.pending.push(Io::new(shard, io, None, SECTOR_BYTES));
    }

    fn flush_backend(&mut self, _volume: VolumeId, job: JobId) {
        self.flushes.push(job);
    }

    fn protection(&mut self, _volume: VolumeId) -> Protection {
        self.protection
    }

    fn admit(&mut self, part: &Part, fua: bool) -> Admission {
        admission(part.range, fua, None, self.log.as_mut().map(|log| log.admit(part)))
    }

    fn withdraw(&mut self, _volume: VolumeId) {
        self.log.as_mut().expect("the journal has granted a permit").withdraw();
    }

    fn internal_token(&mut self) -> Token {
        Token::Internal
    }

    fn barrier(&mut self, _volume: VolumeId, _part: PartId) -> Result<Barrier, IoError> {
        // The log takes no time: the records of this turn are durable when it ends.
        Ok(Barrier { is_durable: true, is_complete: true })
    }

    fn record_need(&mut self, _volume: VolumeId, range: ByteRange, lines: u32) {
        self.needs.record(range, lines);
    }

    fn reply(&mut self, token: Token, reply: Reply<'_, Blank>) {
        assert_eq!(reply.result, Ok(()), "no I/O of an experiment fails");
        release_pins(reply.segments, |shard, slot| self.shards[shard].release(slot));
        match token {
            Token::Client(requester) => self.replies.push(requester),
            Token::Preload(loader, granule) => self.preloaded.push((loader, granule)),
            Token::Checkpoint => self.log.iter_mut().for_each(HostLog::end_checkpoint),
            Token::Internal => {}
        }
    }

    fn forward(&mut self, _worker: u8, _answer: Answer) {
        unreachable!("there is one worker");
    }

    fn streams<R>(&mut self, _volume: VolumeId, call: impl FnOnce(&mut Streams) -> R) -> Option<R> {
        self.streams.as_mut().map(call)
    }
}
