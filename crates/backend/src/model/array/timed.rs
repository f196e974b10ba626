//! An array with drives below it: a disk model made of disk models.

use super::{Array, ArraySpec, DriveIo};
use crate::IoKind;
use crate::model::{DiskModel, Fixed, Hdd, HddSpec, Ssd, SsdSpec};
use forebay_types::ByteRange;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// The most bytes that I/Os are joined to on their way to a drive, as Linux does.
const JOINED_BYTES_MAX: u64 = 1280 << 10;

/// What an array is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drive {
    /// Hard disks; the array gives them their size, and each a seed of its own.
    Hdd(HddSpec),
    /// Flash disks.
    Ssd(SsdSpec),
    /// Disks that take this many nanoseconds for each I/O.
    Fixed(u64),
}

impl Drive {
    /// The drive `number`, of `size_bytes`.
    pub(in crate::model) fn make(&self, number: u32, size_bytes: u64) -> Box<dyn DiskModel> {
        match self {
            Self::Hdd(spec) => {
                let seed = spec.seed.wrapping_add(u64::from(number));
                Box::new(Hdd::new(HddSpec { size_bytes, seed, ..spec.clone() }))
            }
            Self::Ssd(spec) => Box::new(Ssd::new(spec.clone())),
            Self::Fixed(service_ns) => Box::new(Fixed::new(*service_ns)),
        }
    }

    /// I/Os that are given to it at one time. What is over that waits, and can be joined. Linux
    /// has the next one ready before a disk without a queue can take it.
    fn depth(&self) -> usize {
        match self {
            Self::Hdd(spec) => spec.queue_depth.max(1),
            Self::Ssd(spec) => spec.parallel_count.max(1),
            Self::Fixed(_) => 2,
        }
    }
}

/// An array of modelled drives.
pub struct ArrayModel {
    array: Array,
    lanes: Vec<Lane>,
    is_rotational: bool,
    /// What is done: when, in which order, and which.
    answers: BinaryHeap<Reverse<(u64, u64, u64)>>,
    number: u64,
}

/// A drive and what waits for it.
struct Lane {
    disk: Box<dyn DiskModel>,
    depth: usize,
    waiting: VecDeque<Request>,
    /// What the drive has: by the first of the I/Os that it is made of, all of them.
    given: HashMap<u64, Vec<u64>>,
    count: DriveCount,
}

/// What a drive has been given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveCount {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// Adjacent I/Os of one kind that go to a drive as one.
struct Request {
    kind: IoKind,
    range: ByteRange,
    parts: Vec<u64>,
}

impl ArrayModel {
    /// An idle array of drives of `drive_bytes` each.
    pub fn new(spec: ArraySpec, drive: &Drive, drive_bytes: u64) -> Self {
        let lane = |number| Lane {
            disk: drive.make(number, drive_bytes),
            depth: drive.depth(),
            waiting: VecDeque::new(),
            given: HashMap::new(),
            count: DriveCount::default(),
        };
        Self {
            array: Array::new(spec),
            lanes: (0..spec.drive_count()).map(lane).collect(),
            is_rotational: matches!(drive, Drive::Hdd(_)),
            answers: BinaryHeap::new(),
            number: 0,
        }
    }

    /// What each drive has been given so far. I/Os that were joined count as one.
    pub fn drive_counts(&self) -> Vec<DriveCount> {
        self.lanes.iter().map(|lane| lane.count).collect()
    }

    /// Lets the time pass up to `now_ns`.
    fn advance(&mut self, now_ns: u64) {
        while let Some(at_ns) = self.next_drive_ns().filter(|&at_ns| at_ns <= now_ns) {
            for lane in &mut self.lanes {
                while let Some(id) = lane.disk.pop(at_ns) {
                    let parts = lane.given.remove(&id).expect("a drive ends an I/O once");
                    parts.into_iter().for_each(|part| self.array.drive_done(part));
                }
            }
            self.run(at_ns);
        }
    }

    /// When a drive has something done, or may have.
    fn next_drive_ns(&self) -> Option<u64> {
        self.lanes.iter().filter_map(|lane| lane.disk.next_completion()).min()
    }

    /// Does what can be done at `now_ns`.
    fn run(&mut self, now_ns: u64) {
        self.array.run();
        while let Some(io) = self.array.poll_drive_io() {
            let lane = &mut self.lanes[io.drive as usize];
            lane.push(&io);
            if !io.is_held {
                lane.give(now_ns);
            }
        }
        self.lanes.iter_mut().for_each(|lane| lane.give(now_ns));
        while let Some(id) = self.array.poll_done() {
            self.number += 1;
            self.answers.push(Reverse((now_ns, self.number, id)));
        }
    }
}

impl Lane {
    /// Queues an I/O, joined with one that waits where that is possible.
    fn push(&mut self, io: &DriveIo) {
        let range = ByteRange::new(io.offset, io.len);
        let is_joinable = matches!(io.kind, IoKind::Read | IoKind::Write { .. });
        let neighbour = self.waiting.iter_mut().find(|request| {
            is_joinable
                && request.kind == io.kind
                && request.range.len + io.len <= JOINED_BYTES_MAX
                && (request.range.end() == range.offset || range.end() == request.range.offset)
        });
        if let Some(request) = neighbour {
            let offset = request.range.offset.min(range.offset);
            request.range = ByteRange::new(offset, request.range.len + range.len);
            request.parts.push(io.id);
        } else {
            self.waiting.push_back(Request { kind: io.kind, range, parts: vec![io.id] });
        }
    }

    /// Gives the drive what it takes.
    fn give(&mut self, now_ns: u64) {
        while self.given.len() < self.depth
            && let Some(Request { kind, range, parts }) = self.waiting.pop_front()
        {
            self.count.add(kind, range.len);
            self.disk.enqueue(now_ns, parts[0], kind, range.offset, range.len);
            self.given.insert(parts[0], parts);
        }
    }
}

impl DriveCount {
    const fn add(&mut self, kind: IoKind, bytes: u64) {
        match kind {
            IoKind::Read => {
                self.reads += 1;
                self.read_bytes += bytes;
            }
            IoKind::Write { .. } | IoKind::Zero { .. } => {
                self.writes += 1;
                self.write_bytes += bytes;
            }
            IoKind::Flush | IoKind::Discard => {}
        }
    }
}

impl DiskModel for ArrayModel {
    fn enqueue(&mut self, now_ns: u64, id: u64, kind: IoKind, offset: u64, len: u64) {
        self.advance(now_ns);
        self.array.begin(id, kind, ByteRange::new(offset, len));
        self.run(now_ns);
    }

    fn next_completion(&self) -> Option<u64> {
        let answer_ns = self.answers.peek().map(|&Reverse((at_ns, ..))| at_ns);
        [answer_ns, self.next_drive_ns()].into_iter().flatten().min()
    }

    fn pop(&mut self, now_ns: u64) -> Option<u64> {
        self.advance(now_ns);
        let &Reverse((at_ns, _, id)) = self.answers.peek()?;
        if at_ns > now_ns {
            return None;
        }
        self.answers.pop();
        Some(id)
    }

    fn is_rotational(&self) -> bool {
        self.is_rotational
    }

    fn array(&self) -> Option<&ArraySpec> {
        Some(self.array.spec())
    }
}
