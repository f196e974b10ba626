//! A hard disk: seeks, rotation, zones, a track buffer and a command queue.
//!
//! One command moves the head at a time. The next one is chosen when it completes, among the first
//! [`HddSpec::queue_depth`] waiting ones. With the write cache off, the default, a write completes
//! when it is on the platter; with it on, a write completes in the cache, and the scheduler decides
//! when it goes to the platter.

mod buffer;
mod platter;

use super::DiskModel;
use super::answers::TimedAnswers;
use crate::IoKind;
use crate::random::Random;
use buffer::DriveBuffer;
use forebay_types::ByteRange;
use platter::{Dimensions, Platter};

/// Overhead of a command before the head moves, in nanoseconds.
const OVERHEAD_NS: u64 = 50_000;
/// Interface time per byte: 500 MB/s.
const INTERFACE_NS_PER_BYTE: u64 = 2;
/// Additional settle time of a write, in nanoseconds.
const WRITE_SETTLE_NS: u64 = 500_000;
/// A command that has waited this long goes first, in nanoseconds.
const WAIT_NS_MAX: u64 = 1_000_000_000;
/// Capacity of the write cache, in bytes.
const WRITE_CACHE_BYTES: u64 = 32 << 20;

/// The command scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scheduler {
    /// Shortest seek plus rotation first, like disks with command queueing.
    #[default]
    ShortestPositioning,
    /// Ascending offsets, then from the start again.
    Elevator,
    /// First come, first served.
    Fifo,
}

/// Parameters of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HddSpec {
    /// Size in bytes. A small disk has the seeks of a large one: it is as wide, with fewer tracks.
    pub size_bytes: u64,
    /// Revolutions per minute, above zero.
    pub revolutions_per_minute: u32,
    /// Average seek time, in nanoseconds.
    pub seek_average_ns: u64,
    /// Sequential rate of the outermost tracks, in bytes per second.
    pub transfer_bytes_per_second: u64,
    /// Commands among which the disk chooses; 1 for no choice.
    pub queue_depth: usize,
    pub scheduler: Scheduler,
    /// Whether writes are answered from the cache.
    pub has_write_cache: bool,
    /// Seed of the initial position of head and platter.
    pub seed: u64,
}

impl HddSpec {
    /// A 7200 rpm disk of this size.
    pub const fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            revolutions_per_minute: 7200,
            seek_average_ns: 8_500_000,
            transfer_bytes_per_second: 120 << 20,
            queue_depth: 32,
            scheduler: Scheduler::ShortestPositioning,
            has_write_cache: false,
            seed: 0,
        }
    }
}

/// A modelled hard disk.
pub struct Hdd {
    spec: HddSpec,
    platter: Platter,
    buffer: DriveBuffer,
    head_track: u64,
    /// The command in progress.
    active: Option<Active>,
    /// Waiting commands, in the order of arrival.
    waiting: Vec<HddCommand>,
    /// Answers that need no head movement.
    answers: TimedAnswers,
    /// The number of the last command or flush.
    number: u64,
    dirty_bytes: u64,
    /// Flushes, each with the number of the first write that it need not wait for.
    flushes: Vec<(u64, u64)>,
}

struct Active {
    done_ns: u64,
    command: HddCommand,
}

#[derive(Clone, Copy)]
struct HddCommand {
    number: u64,
    /// The I/O to answer; `None` for a write already answered from the cache.
    id: Option<u64>,
    is_read: bool,
    arrived_ns: u64,
    range: ByteRange,
}

impl Hdd {
    /// An idle disk that spins at full speed.
    pub fn new(spec: HddSpec) -> Self {
        let revolution_ns = 60_000_000_000 / u64::from(spec.revolutions_per_minute.max(1));
        let mut random = Random::new(spec.seed);
        let platter = Platter::new(&Dimensions {
            size_bytes: spec.size_bytes,
            revolution_ns,
            switch_ns: (spec.seek_average_ns / 8).min(1_000_000),
            seek_average_ns: spec.seek_average_ns,
            transfer_bytes_per_second: spec.transfer_bytes_per_second,
            phase_ns: random.below(revolution_ns),
        });
        let head_track = platter.track(random.below(spec.size_bytes.max(1)));
        Self {
            spec,
            platter,
            buffer: DriveBuffer::default(),
            head_track,
            active: None,
            waiting: Vec::new(),
            answers: TimedAnswers::default(),
            number: 0,
            dirty_bytes: 0,
            flushes: Vec::new(),
        }
    }

    /// Executes one I/O on an idle disk. Returns its completion time. For callers with their own
    /// queue: enqueued commands are neither considered nor affected.
    pub fn service(&mut self, now_ns: u64, kind: IoKind, offset: u64, len: u64) -> u64 {
        match kind {
            IoKind::Flush | IoKind::Discard => now_ns + OVERHEAD_NS,
            IoKind::Read | IoKind::Write { .. } | IoKind::Zero { .. } => {
                let (id, is_read) = (None, matches!(kind, IoKind::Read));
                let range = ByteRange::new(offset, len);
                let command = HddCommand { number: 0, id, is_read, arrived_ns: now_ns, range };
                self.perform(now_ns, &command)
            }
        }
    }

    /// Moves the head for one command, from `start_ns` on.
    fn perform(&mut self, start_ns: u64, command: &HddCommand) -> u64 {
        let ByteRange { offset, len } = command.range;
        let ready_ns = self.ready_ns(start_ns, command);
        let interface_ns = ready_ns + len * INTERFACE_NS_PER_BYTE;
        if command.is_read && self.buffer.holds(offset, len) {
            let size_bytes = self.spec.size_bytes;
            let media_ns = self.buffer.serve(&self.platter, size_bytes, ready_ns, offset, len);
            return media_ns.max(interface_ns);
        }
        let at_ns = self.positioned_ns(start_ns, command);
        if let Some(reached) = self.buffer.stop(&self.platter, start_ns) {
            self.head_track = self.platter.track(reached);
        }
        let end = command.range.end();
        let done_ns = at_ns + self.platter.media_ns(end) - self.platter.media_ns(offset);
        self.head_track = self.platter.track(end);
        if command.is_read {
            self.buffer.start(self.spec.size_bytes, done_ns, offset, len);
        } else {
            self.buffer.invalidate(offset, len);
        }
        done_ns
    }

    /// When the disk has decoded a command. Decoding overlaps with the previous command.
    fn ready_ns(&self, start_ns: u64, command: &HddCommand) -> u64 {
        start_ns.max(command.arrived_ns + OVERHEAD_NS)
    }

    /// When the first byte of a command passes the head.
    fn positioned_ns(&self, start_ns: u64, command: &HddCommand) -> u64 {
        let offset = command.range.offset;
        let settle_ns = if command.is_read { 0 } else { WRITE_SETTLE_NS };
        let seek_ns = match self.platter.seek_ns(self.head_track, self.platter.track(offset)) {
            0 => 0,
            seek_ns => seek_ns + settle_ns,
        };
        let over_track_ns = self.ready_ns(start_ns, command) + seek_ns;
        over_track_ns + self.platter.rotation_ns(offset, over_track_ns)
    }

    /// Advances the time to `now_ns`: commands complete, and the next ones are chosen.
    fn advance(&mut self, now_ns: u64) {
        while let Some(Active { done_ns, command }) = self.active.take_if(|a| a.done_ns <= now_ns) {
            match command.id {
                Some(id) => self.answers.push(done_ns, id),
                None => self.dirty_bytes -= command.range.len,
            }
            self.end_flushes(done_ns);
            self.start_next(done_ns);
        }
    }

    /// Answers the flushes whose writes are all on the platter.
    fn end_flushes(&mut self, now_ns: u64) {
        let is_cached = |command: &&HddCommand| command.id.is_none();
        let active = self.active.iter().map(|active| &active.command);
        let oldest =
            self.waiting.iter().chain(active).filter(is_cached).map(|command| command.number).min();
        let is_done = |&(_, before): &(u64, u64)| oldest.is_none_or(|oldest| oldest >= before);
        let done: Vec<(u64, u64)> = self.flushes.extract_if(.., |flush| is_done(flush)).collect();
        for (id, _) in done {
            self.answers.push(now_ns + OVERHEAD_NS, id);
        }
    }

    fn start_next(&mut self, now_ns: u64) {
        if self.active.is_none()
            && let Some(index) = self.choose(now_ns)
        {
            let command = self.waiting.remove(index);
            let done_ns = self.perform(now_ns, &command);
            self.active = Some(Active { done_ns, command });
        }
    }

    /// The index of the next command among the waiting ones.
    fn choose(&self, now_ns: u64) -> Option<usize> {
        let depth = self.spec.queue_depth.max(1).min(self.waiting.len());
        let oldest = self.waiting.first()?;
        if now_ns.saturating_sub(oldest.arrived_ns) > WAIT_NS_MAX {
            return Some(0);
        }
        let head = self.head_track;
        (0..depth).min_by_key(|&index| {
            let command = &self.waiting[index];
            match self.spec.scheduler {
                Scheduler::Fifo => (false, index as u64),
                Scheduler::Elevator => {
                    let offset = command.range.offset;
                    (self.platter.track(offset) < head, offset)
                }
                Scheduler::ShortestPositioning => {
                    let ByteRange { offset, len } = command.range;
                    if command.is_read && self.buffer.holds(offset, len) {
                        (false, 0)
                    } else {
                        (false, self.positioned_ns(now_ns, command))
                    }
                }
            }
        })
    }

    /// Whether the write cache has all data of a read.
    fn is_in_write_cache(&self, range: ByteRange) -> bool {
        self.waiting.iter().any(|command| {
            command.id.is_none()
                && command.range.offset <= range.offset
                && range.end() <= command.range.end()
        })
    }

    fn enqueue_command(&mut self, now_ns: u64, id: u64, kind: IoKind, range: ByteRange) {
        let soon_ns = now_ns + OVERHEAD_NS + range.len * INTERFACE_NS_PER_BYTE;
        let is_read = matches!(kind, IoKind::Read);
        let cached = match kind {
            IoKind::Read if self.is_in_write_cache(range) => return self.answers.push(soon_ns, id),
            IoKind::Write { fua: false } | IoKind::Zero { .. } => {
                self.spec.has_write_cache && self.dirty_bytes + range.len <= WRITE_CACHE_BYTES
            }
            _ => false,
        };
        if cached {
            self.dirty_bytes += range.len;
            self.answers.push(soon_ns, id);
        }
        self.number += 1;
        let (number, id) = (self.number, (!cached).then_some(id));
        self.waiting.push(HddCommand { number, id, is_read, arrived_ns: now_ns, range });
        self.start_next(now_ns);
    }
}

impl DiskModel for Hdd {
    fn enqueue(&mut self, now_ns: u64, id: u64, kind: IoKind, offset: u64, len: u64) {
        self.advance(now_ns);
        match kind {
            IoKind::Flush => {
                self.number += 1;
                self.flushes.push((id, self.number));
                self.end_flushes(now_ns);
            }
            // A hard disk ignores discards.
            IoKind::Discard => self.answers.push(now_ns + OVERHEAD_NS, id),
            IoKind::Read | IoKind::Write { .. } | IoKind::Zero { .. } => {
                self.enqueue_command(now_ns, id, kind, ByteRange::new(offset, len));
            }
        }
    }

    fn next_completion(&self) -> Option<u64> {
        let active_ns = self.active.as_ref().map(|active| active.done_ns);
        [self.answers.next_ns(), active_ns].into_iter().flatten().min()
    }

    fn pop(&mut self, now_ns: u64) -> Option<u64> {
        self.advance(now_ns);
        self.answers.pop(now_ns)
    }

    fn is_rotational(&self) -> bool {
        true
    }
}
