//! Arrays of modelled disks: the drive I/Os of an array I/O, and their dependencies.
//!
//! [`Array`] is the part without time: array I/Os go in, drive I/Os come out; an array I/O
//! completes with the last of its drive I/Os. [`ArrayModel`] adds drives and is itself a
//! [`DiskModel`]. It follows Linux md, whose costs were measured (`scripts/md.sh`): stripes with
//! parity are handled in blocks of 4 KiB, with an LRU cache of stripes; a full-stripe write reads
//! nothing, any other uses the method with fewer reads; two writes of one stripe are never in
//! flight together. The data is in the store behind the model, not in the drives, so no parity is
//! computed.

mod layout;
mod stripe;
mod timed;

#[cfg(test)]
mod tests;

#[cfg(doc)]
use super::DiskModel;
pub(super) use layout::BLOCK_BYTES;
pub use layout::{ArrayError, ArraySpec, DRIVE_COUNT_MAX, Level};
pub use timed::{ArrayModel, Drive, DriveCount};

use crate::IoKind;
use forebay_types::ByteRange;
use layout::{ChunkRow, DrivePiece};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use stripe::{Stripe, StripeStep};

/// Size of the stripe cache: the default of md.
const STRIPE_COUNT_MAX: usize = 256;

/// An I/O for a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveIo {
    /// Identifies it on completion.
    pub id: u64,
    pub drive: u32,
    /// The operation.
    pub kind: IoKind,
    /// Offset on the drive.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Whether the drive queues all I/Os of one [`Array::run`] before it dispatches this one, as
    /// under md with the I/O of stripes. Other I/Os are dispatched as soon as they are queued.
    pub is_batched: bool,
}

/// The I/Os in flight of an array.
pub struct Array {
    spec: ArraySpec,
    /// I/Os in flight, by internal number. The numbers ascend in the order of arrival.
    ios: HashMap<u64, PendingIo>,
    /// The numbers of I/Os that change data.
    changing: BTreeSet<u64>,
    /// Flushes that wait for earlier I/Os that change data.
    flushes: VecDeque<u64>,
    /// I/Os being split into stripes, in the order of arrival.
    arriving: VecDeque<Arriving>,
    stripes: HashMap<u64, ArraySlot>,
    /// Stripes with pending work.
    ready: VecDeque<u64>,
    /// Unused stripes, least recently used first.
    unused: BTreeMap<u64, u64>,
    /// The purpose of each drive I/O.
    targets: HashMap<u64, (u32, IoTarget)>,
    /// The load of each drive, for the choice among mirrors.
    loads: Vec<DriveLoad>,
    out: VecDeque<DriveIo>,
    done: VecDeque<u64>,
    number: u64,
}

struct PendingIo {
    /// The caller's number.
    id: u64,
    /// Incomplete parts.
    missing: u64,
}

/// An I/O whose blocks enter stripes one by one, as stripes become free.
struct Arriving {
    number: u64,
    kind: IoKind,
    rest: ByteRange,
}

#[derive(Default)]
struct ArraySlot {
    stripe: Stripe,
    is_ready: bool,
    /// Its key in `unused` of the array, if it is there.
    unused: Option<u64>,
}

#[derive(Clone, Copy)]
enum IoTarget {
    /// A part of an array I/O.
    Part(u64),
    /// Reads a block of a stripe.
    BlockRead(u64),
    /// Writes a block of a stripe.
    BlockWrite(u64),
}

#[derive(Clone, Copy, Default)]
struct DriveLoad {
    in_flight: u64,
    /// Offset at which its last I/O ends.
    end: u64,
}

impl Array {
    /// An idle array.
    pub fn new(spec: ArraySpec) -> Self {
        Self {
            spec,
            ios: HashMap::new(),
            changing: BTreeSet::new(),
            flushes: VecDeque::new(),
            arriving: VecDeque::new(),
            stripes: HashMap::new(),
            ready: VecDeque::new(),
            unused: BTreeMap::new(),
            targets: HashMap::new(),
            loads: vec![DriveLoad::default(); spec.drive_count() as usize],
            out: VecDeque::new(),
            done: VecDeque::new(),
            number: 0,
        }
    }

    /// Its layout.
    pub const fn spec(&self) -> &ArraySpec {
        &self.spec
    }

    /// Accepts an array I/O. [`Array::run`] processes it.
    pub fn begin(&mut self, id: u64, kind: IoKind, range: ByteRange) {
        let number = self.next_number();
        // Splitting counts as one incomplete part.
        self.ios.insert(number, PendingIo { id, missing: 1 });
        if kind.changes_data() {
            self.changing.insert(number);
        }
        let has_parity = matches!(self.spec.level(), Level::Raid5 | Level::Raid6);
        match kind {
            IoKind::Flush => return self.flushes.push_back(number),
            IoKind::Read if has_parity && self.spec.missing() != 0 => {
                return self.arriving.push_back(Arriving { number, kind, rest: range });
            }
            IoKind::Write { .. } | IoKind::Zero { .. } if has_parity => {
                return self.arriving.push_back(Arriving { number, kind, rest: range });
            }
            // Ignored: discarding a part of a stripe would invalidate its parity.
            IoKind::Discard if has_parity => {}
            _ => {
                for piece in self.spec.pieces(range) {
                    self.begin_piece(number, kind, &piece);
                }
            }
        }
        self.end_part(number);
    }

    /// Submits a piece to its drive: a read to one mirror, anything else to all.
    fn begin_piece(&mut self, number: u64, kind: IoKind, piece: &DrivePiece) {
        let missing = self.spec.missing();
        let mut places: Vec<(u32, u64)> = self.spec.places(piece).collect();
        places.retain(|(drive, _)| missing & 1 << drive == 0);
        if kind == IoKind::Read {
            let loads = &self.loads;
            let best = places.iter().min_by_key(|&&(drive, offset)| {
                let load = loads[drive as usize];
                (load.in_flight, load.end.abs_diff(offset))
            });
            places = best.copied().into_iter().collect();
        }
        assert!(!places.is_empty(), "too many drives are missing");
        for (drive, offset) in places {
            self.send(drive, kind, ByteRange::new(offset, piece.len), IoTarget::Part(number));
            self.part(number).missing += 1;
        }
    }

    /// Processes everything that need not wait for a drive.
    pub fn run(&mut self) {
        loop {
            while self.admit_block() {}
            let Some(key) = self.ready.pop_front() else { break };
            self.run_stripe(key);
        }
        while let Some(&number) = self.flushes.front()
            && self.changing.first().is_none_or(|&first| first > number)
        {
            self.flushes.pop_front();
            let missing = self.spec.missing();
            for drive in (0..self.spec.drive_count()).filter(|drive| missing & 1 << drive == 0) {
                self.send(drive, IoKind::Flush, ByteRange::new(0, 0), IoTarget::Part(number));
                self.part(number).missing += 1;
            }
            self.end_part(number);
        }
    }

    /// The next I/O for a drive.
    pub fn poll_drive_io(&mut self) -> Option<DriveIo> {
        self.out.pop_front()
    }

    /// Handles an I/O that a drive has completed. [`Array::run`] then continues what waited for it.
    pub fn drive_done(&mut self, id: u64) {
        let (drive, target) = self.targets.remove(&id).expect("a drive completed an I/O twice");
        self.loads[drive as usize].in_flight -= 1;
        match target {
            IoTarget::Part(number) => self.end_part(number),
            IoTarget::BlockRead(key) => {
                let row = self.row(key);
                self.stripe(key).on_read(drive, row);
                self.make_ready(key);
            }
            IoTarget::BlockWrite(key) => {
                let ended = self.stripe(key).on_written(drive);
                ended.into_iter().for_each(|number| self.end_part(number));
                self.make_ready(key);
            }
        }
    }

    /// The next completed array I/O.
    pub fn poll_done(&mut self) -> Option<u64> {
        self.done.pop_front()
    }

    /// Puts the next arriving block into its stripe. Returns false if there is none, or no free
    /// stripe.
    fn admit_block(&mut self) -> bool {
        let Some(&Arriving { number, kind, rest }) = self.arriving.front() else { return false };
        let len = (BLOCK_BYTES - rest.offset % BLOCK_BYTES).min(rest.len);
        let piece = self.spec.pieces(ByteRange::new(rest.offset, len)).next();
        if let Some(piece) = piece {
            let (drive, offset) = self.spec.places(&piece).next().expect("a piece has a place");
            let key = offset / BLOCK_BYTES;
            if !self.cache_stripe(key) {
                return false;
            }
            let stripe = self.stripe(key);
            match kind {
                IoKind::Read => stripe.add_read(number, drive),
                _ => {
                    let fua = kind == (IoKind::Write { fua: true });
                    stripe.add_write(number, drive, len == BLOCK_BYTES, fua);
                }
            }
            self.part(number).missing += 1;
            self.make_ready(key);
        }
        let rest = ByteRange::new(rest.offset + len, rest.len - len);
        if rest.len == 0 {
            self.arriving.pop_front();
            self.end_part(number);
        } else {
            self.arriving[0].rest = rest;
        }
        true
    }

    /// Brings a stripe into the cache. Returns false if all are in use.
    fn cache_stripe(&mut self, key: u64) -> bool {
        if !self.stripes.contains_key(&key) {
            if self.stripes.len() >= STRIPE_COUNT_MAX {
                let Some((_, oldest)) = self.unused.pop_first() else { return false };
                self.stripes.remove(&oldest);
            }
            self.stripes.insert(key, ArraySlot::default());
        }
        if let Some(order) = self.slot(key).unused.take() {
            self.unused.remove(&order);
        }
        true
    }

    /// Executes the next step of a stripe.
    fn run_stripe(&mut self, key: u64) {
        let row = self.row(key);
        let slot = self.slot(key);
        slot.is_ready = false;
        let readers = slot.stripe.take_readers();
        let step = slot.stripe.step(row);
        let is_active = slot.stripe.is_active();
        readers.for_each(|number| self.end_part(number));
        match step {
            StripeStep::Wait => {}
            StripeStep::Read(blocks) => self.send_blocks(key, blocks, IoKind::Read),
            StripeStep::Write { blocks, fua } => {
                self.send_blocks(key, blocks, IoKind::Write { fua })
            }
        }
        if !is_active {
            let order = self.next_number();
            self.slot(key).unused = Some(order);
            self.unused.insert(order, key);
        }
    }

    fn send_blocks(&mut self, key: u64, mut blocks: u64, kind: IoKind) {
        let range = ByteRange::new(key * BLOCK_BYTES, BLOCK_BYTES);
        let target =
            if kind == IoKind::Read { IoTarget::BlockRead(key) } else { IoTarget::BlockWrite(key) };
        while blocks != 0 {
            self.send(blocks.trailing_zeros(), kind, range, target);
            blocks &= blocks - 1;
        }
    }

    fn send(&mut self, drive: u32, kind: IoKind, range: ByteRange, target: IoTarget) {
        let id = self.next_number();
        let load = &mut self.loads[drive as usize];
        load.in_flight += 1;
        if kind != IoKind::Flush {
            load.end = range.end();
        }
        self.targets.insert(id, (drive, target));
        let is_batched = matches!(target, IoTarget::BlockRead(_) | IoTarget::BlockWrite(_));
        let ByteRange { offset, len } = range;
        self.out.push_back(DriveIo { id, drive, kind, offset, len, is_batched });
    }

    fn make_ready(&mut self, key: u64) {
        let slot = self.slot(key);
        if !std::mem::replace(&mut slot.is_ready, true) {
            self.ready.push_back(key);
        }
    }

    /// A part of an array I/O has completed.
    fn end_part(&mut self, number: u64) {
        let pending = self.part(number);
        pending.missing -= 1;
        if pending.missing == 0 {
            let id = pending.id;
            self.ios.remove(&number);
            self.changing.remove(&number);
            self.done.push_back(id);
        }
    }

    fn part(&mut self, number: u64) -> &mut PendingIo {
        self.ios.get_mut(&number).expect("an I/O is in flight while its parts are")
    }

    fn slot(&mut self, key: u64) -> &mut ArraySlot {
        self.stripes.get_mut(&key).expect("a stripe is kept while it is in use")
    }

    fn stripe(&mut self, key: u64) -> &mut Stripe {
        &mut self.slot(key).stripe
    }

    fn row(&self, key: u64) -> ChunkRow {
        self.spec.row(key / (self.spec.chunk_bytes() / BLOCK_BYTES))
    }

    const fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }
}
