//! Operations in flight, and the rule that each line takes part in one at a time.
//!
//! A line that is being filled, written through, destaged or erased is *busy*. Whoever needs it in
//! a way that conflicts waits on the operation and tries again when it is over. That one rule
//! orders all overlapping requests; there is no other lock on a line. Waiting can't form a circle:
//! an operation waits for the disk only, never for a part; a write that is held back (`gather.rs`)
//! waits for one other operation, which is on the disk already.

pub(crate) mod complete;
pub(crate) mod gather;
pub(crate) mod trial;

use crate::modes::read::Run;
use crate::{IoAction, IoId, IoVerb, LineKey, NoteKind, Outbox, PartId, Slot};
use forebay_types::{ByteRange, IoError, VolumeId};
use gather::{Gated, Gates};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// What an operation does to its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// Reads sectors into slots.
    Fill,
    /// Writes a client's data to disk before it is acknowledged.
    WriteThrough,
    /// Writes dirty sectors to disk.
    Destage,
    /// Writes those dirty sectors to disk that a write through the cache is about to replace. The
    /// lines stay dirty elsewhere, and do not move meanwhile.
    DestagePart,
    /// Discards or zeroes sectors on disk.
    Erase,
    /// Reads past the cache. Its lines are not busy: nothing it brings is kept.
    DirectRead,
}

/// One line's share of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpLine {
    pub key: LineKey,
    /// Pinned for the time of the operation; `NO_SLOT` where the line is not in the pool.
    pub slot: Slot,
    /// The sectors concerned.
    pub mask: u8,
    /// Lost sectors that are lost no more if the operation goes well.
    pub regained: u8,
    /// The volume's demand when the line was written again during its destage; see
    /// [`crate::writeback::Writeback::superseded`]. Zero if it was not.
    pub superseded: u32,
}

impl OpLine {
    /// The share of an operation that regains nothing.
    pub(crate) const fn new(key: LineKey, slot: Slot, mask: u8) -> Self {
        Self { key, slot, mask, regained: 0, superseded: 0 }
    }
}

/// What a part waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// What the operation brings: its failure is the part's as well, which may try another way.
    Result,
    /// The same, and there is no other way: a failure answers the part.
    Verdict,
    /// Only that it is over.
    End,
}

#[derive(Debug)]
pub(crate) struct Op {
    pub kind: OpKind,
    pub volume: VolumeId,
    pub lines: Vec<OpLine>,
    /// Answered when the operation ends.
    pub part: Option<PartId>,
    /// Told to try again when the operation ends.
    pub waiters: Vec<(PartId, WaitFor)>,
    /// What the journal is told when the operation has gone well, before `part` is answered.
    pub note: Option<(NoteKind, ByteRange)>,
    pub ios_pending: u32,
    pub error: Option<IoError>,
    /// It destages clean sectors along with dirty ones, or runs that only share a stripe.
    pub is_wide: bool,
    /// It is a write through the cache that may go with others.
    pub gated: Option<Gated>,
}

impl Op {
    /// An operation over some lines in so many I/Os that answers `part`.
    pub(crate) const fn new(
        kind: OpKind,
        volume: VolumeId,
        lines: Vec<OpLine>,
        part: Option<PartId>,
        ios: usize,
    ) -> Self {
        Self {
            kind,
            volume,
            lines,
            part,
            waiters: Vec::new(),
            note: None,
            ios_pending: ios as u32,
            error: None,
            is_wide: false,
            gated: None,
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    op: Option<Op>,
}

/// The operations of a shard.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    entries: Vec<Entry>,
    free: Vec<u32>,
    busy: HashMap<LineKey, u32, BuildHasherDefault<KeyHasher>>,
    in_flight: usize,
    /// The stripes to which writes through the cache are on their way.
    gates: Gates,
}

impl Ops {
    /// Starts an operation; its lines become busy.
    pub(crate) fn start(&mut self, op: Op) -> IoId {
        assert!(op.ios_pending > 0, "an operation without I/O would never end");
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            (self.entries.len() - 1) as u32
        });
        if op.kind != OpKind::DirectRead {
            for line in &op.lines {
                let before = self.busy.insert(line.key, index);
                assert!(before.is_none(), "line {:?} is in two operations", line.key);
            }
        }
        let entry = &mut self.entries[index as usize];
        assert!(entry.op.is_none());
        entry.op = Some(op);
        self.in_flight += 1;
        IoId { op: index, generation: entry.generation }
    }

    /// Notes that one of the operation's I/Os ended; returns the operation when it was the last.
    pub(crate) fn finish_io(&mut self, id: IoId, error: Option<IoError>) -> Option<Op> {
        let index = id.op;
        let entry = &mut self.entries[index as usize];
        assert_eq!(entry.generation, id.generation, "an I/O was completed twice");
        let op = entry.op.as_mut().expect("an entry of this generation holds an operation");
        op.error = op.error.or(error);
        assert!(op.ios_pending > 0, "more I/Os of an operation ended than began");
        op.ios_pending -= 1;
        if op.ios_pending > 0 {
            return None;
        }
        entry.generation = entry.generation.wrapping_add(1);
        let op = entry.op.take();
        self.free.push(index);
        self.in_flight -= 1;
        if let Some(op) = &op
            && op.kind != OpKind::DirectRead
        {
            for line in &op.lines {
                let was_busy = self.busy.remove(&line.key);
                assert!(was_busy == Some(index), "line {:?} was in another operation", line.key);
            }
        }
        op
    }

    /// The operation that keeps a line busy.
    #[inline]
    pub(crate) fn busy(&self, key: LineKey) -> Option<(u32, OpKind)> {
        if self.busy.is_empty() {
            return None;
        }
        let &index = self.busy.get(&key)?;
        let op = self.entries[index as usize].op.as_ref()?;
        Some((index, op.kind))
    }

    /// Makes a part wait for an operation.
    pub(crate) fn wait(&mut self, index: u32, part: PartId, wait_for: WaitFor) {
        let op = self.entries[index as usize].op.as_mut().expect("waited for while in flight");
        op.waiters.push((part, wait_for));
    }

    /// The volume of the operation that an I/O is of.
    pub(crate) fn volume_of(&self, id: IoId) -> VolumeId {
        self.op(id.op).volume
    }

    /// Whether an I/O is of a write that may go with others.
    pub(crate) fn is_gated(&self, id: IoId) -> bool {
        self.op(id.op).gated.is_some()
    }

    /// An operation in flight.
    fn op_mut(&mut self, index: u32) -> &mut Op {
        self.entries[index as usize].op.as_mut().expect("it is named while in flight")
    }

    /// An operation in flight, to look at.
    pub(crate) fn op(&self, index: u32) -> &Op {
        self.entries[index as usize].op.as_ref().expect("it is named while in flight")
    }

    /// How the driver names an operation in flight.
    pub(crate) fn id(&self, index: u32) -> IoId {
        IoId { op: index, generation: self.entries[index as usize].generation }
    }

    /// Whether data in `slot`, which holds `key`, is being written to the disk right now. The
    /// line may be under destage from an older slot, too.
    #[inline]
    pub(crate) fn is_destaging(&self, key: LineKey, slot: Slot) -> bool {
        let Some(&index) = self.busy.get(&key) else { return false };
        self.entries[index as usize].op.as_ref().is_some_and(|op| {
            let mut lines = op.lines.iter();
            op.kind == OpKind::Destage && lines.any(|line| line.key == key && line.slot == slot)
        })
    }

    /// A line that is being destaged from `slot` was written again; see [`OpLine::superseded`].
    pub(crate) fn supersede(&mut self, key: LineKey, slot: Slot, demand: u32) {
        let Some(&index) = self.busy.get(&key) else { return };
        let lines = &mut self.op_mut(index).lines;
        let mut of_slot = lines.iter_mut().filter(|line| line.key == key && line.slot == slot);
        let line = of_slot.next().expect("the caller has found it on its way");
        line.superseded = demand;
    }

    pub(crate) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Op> {
        self.entries.iter().filter_map(|entry| entry.op.as_ref())
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.busy.capacity() * (size_of::<LineKey>() + size_of::<u32>())
            + self.gates.metadata_bytes()
    }

    /// Panics where operations, busy lines and gates contradict each other.
    pub(crate) fn self_check(&self) {
        let in_flight = self.iter().inspect(|op| assert!(op.ios_pending > 0, "{op:?}")).count();
        assert_eq!(in_flight, self.in_flight);
        let lines = self.iter().filter(|op| op.kind != OpKind::DirectRead).map(|op| op.lines.len());
        assert_eq!(lines.sum::<usize>(), self.busy.len(), "each busy line is in one operation");
        self.check_gates();
    }
}

/// Adds an I/O for each of an operation's prepared ranges to the outbox.
pub(crate) fn emit(
    out: &mut Outbox,
    id: IoId,
    verb: IoVerb,
    volume: VolumeId,
    part: Option<PartId>,
    runs: impl IntoIterator<Item = Run>,
) {
    out.ios.extend(runs.into_iter().map(|run| IoAction {
        id,
        verb,
        volume,
        range: run.range,
        segments: run.segments,
        part,
        seals: run.seals,
    }));
}

/// Line keys are mixed already by [`LineKey::hash`]; nothing else is ever hashed here.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only line keys are hashed, and they are one word");
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = LineKey(word).hash();
    }
}
