//! An array with its drives: a disk model composed of disk models.

use super::{Array, ArraySpec, DriveIo};
use crate::IoKind;
use crate::model::answers::TimedAnswers;
use crate::model::{DiskModel, Fixed, Hdd, HddSpec, Ssd, SsdSpec};
use forebay_types::ByteRange;
use std::collections::{HashMap, VecDeque};

/// Maximum size of merged I/Os to a drive, as in Linux.
const MERGED_BYTES_MAX: u64 = 1280 << 10;

/// The drives of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drive {
    /// Hard disks; the array sets their size, and a different seed for each.
    Hdd(HddSpec),
    Ssd(SsdSpec),
    /// Disks that take this many nanoseconds per I/O.
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

    /// Maximum number of I/Os in flight per drive; the others wait, and can be merged. It is 2 for
    /// a disk without a queue: Linux dispatches the next I/O before the disk can accept it.
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
    queues: Vec<DriveQueue>,
    is_rotational: bool,
    /// The completed I/Os.
    answers: TimedAnswers,
}

/// A drive and its request queue.
struct DriveQueue {
    disk: Box<dyn DiskModel>,
    depth: usize,
    waiting: VecDeque<MergedIo>,
    /// Requests in flight: the ids of the merged I/Os, by the first of them.
    in_flight: HashMap<u64, Vec<u64>>,
    count: DriveCount,
}

/// I/O counters of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveCount {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// Adjacent I/Os of one kind, merged.
struct MergedIo {
    kind: IoKind,
    range: ByteRange,
    parts: Vec<u64>,
}

impl ArrayModel {
    /// An idle array of drives of `drive_bytes` each.
    pub fn new(spec: ArraySpec, drive: &Drive, drive_bytes: u64) -> Self {
        let queue = |number| DriveQueue {
            disk: drive.make(number, drive_bytes),
            depth: drive.depth(),
            waiting: VecDeque::new(),
            in_flight: HashMap::new(),
            count: DriveCount::default(),
        };
        Self {
            array: Array::new(spec),
            queues: (0..spec.drive_count()).map(queue).collect(),
            is_rotational: matches!(drive, Drive::Hdd(_)),
            answers: TimedAnswers::default(),
        }
    }

    /// The I/O counters of each drive. Merged I/Os count as one.
    pub fn drive_counts(&self) -> Vec<DriveCount> {
        self.queues.iter().map(|queue| queue.count).collect()
    }

    /// Advances the time to `now_ns`.
    fn advance(&mut self, now_ns: u64) {
        while let Some(at_ns) = self.next_drive_ns().filter(|&at_ns| at_ns <= now_ns) {
            for queue in &mut self.queues {
                while let Some(id) = queue.disk.pop(at_ns) {
                    let parts =
                        queue.in_flight.remove(&id).expect("a drive completed an I/O twice");
                    parts.into_iter().for_each(|part| self.array.drive_done(part));
                }
            }
            self.run(at_ns);
        }
    }

    /// The earliest time at which a drive may complete an I/O.
    fn next_drive_ns(&self) -> Option<u64> {
        self.queues.iter().filter_map(|queue| queue.disk.next_completion()).min()
    }

    /// Processes everything possible at `now_ns`.
    fn run(&mut self, now_ns: u64) {
        self.array.run();
        while let Some(io) = self.array.poll_drive_io() {
            let queue = &mut self.queues[io.drive as usize];
            queue.push(&io);
            if !io.is_batched {
                queue.dispatch(now_ns);
            }
        }
        self.queues.iter_mut().for_each(|queue| queue.dispatch(now_ns));
        while let Some(id) = self.array.poll_done() {
            self.answers.push(now_ns, id);
        }
    }
}

impl DriveQueue {
    /// Queues an I/O, merged with a waiting one if possible.
    fn push(&mut self, io: &DriveIo) {
        let range = ByteRange::new(io.offset, io.len);
        let is_mergeable = matches!(io.kind, IoKind::Read | IoKind::Write { .. });
        let neighbour = self.waiting.iter_mut().find(|request| {
            is_mergeable
                && request.kind == io.kind
                && request.range.len + io.len <= MERGED_BYTES_MAX
                && (request.range.end() == range.offset || range.end() == request.range.offset)
        });
        if let Some(request) = neighbour {
            let offset = request.range.offset.min(range.offset);
            request.range = ByteRange::new(offset, request.range.len + range.len);
            request.parts.push(io.id);
        } else {
            self.waiting.push_back(MergedIo { kind: io.kind, range, parts: vec![io.id] });
        }
    }

    /// Dispatches requests up to the queue depth.
    fn dispatch(&mut self, now_ns: u64) {
        while self.in_flight.len() < self.depth
            && let Some(MergedIo { kind, range, parts }) = self.waiting.pop_front()
        {
            self.count.add(kind, range.len);
            self.disk.enqueue(now_ns, parts[0], kind, range.offset, range.len);
            self.in_flight.insert(parts[0], parts);
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
        [self.answers.next_ns(), self.next_drive_ns()].into_iter().flatten().min()
    }

    fn pop(&mut self, now_ns: u64) -> Option<u64> {
        self.advance(now_ns);
        self.answers.pop(now_ns)
    }

    fn is_rotational(&self) -> bool {
        self.is_rotational
    }

    fn array(&self) -> Option<&ArraySpec> {
        Some(self.array.spec())
    }
}
