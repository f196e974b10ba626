//! Operations in flight, and the rule that a line takes part in one at a time.
//!
//! A line that is being filled, written through, destaged or erased is *busy*. A part that
//! conflicts with a busy line waits for the operation and tries again when it completes. This rule
//! alone orders all overlapping requests; there is no other lock on a line. Waits cannot form a
//! cycle: an operation waits only for the disk, never for a part, and a held-back write
//! (`gather.rs`) waits for one other operation, whose I/O is in flight.

pub(crate) mod gather;
pub(crate) mod io_run;
pub(crate) mod trial;

use crate::ops::io_run::IoRun;
use crate::{IoAction, IoCause, IoId, IoVerb, JournalOp, LineKey, Outbox, PartId, Slot, WaitsFor};
use forebay_types::{ByteRange, Few, IoError, VolumeId};
use gather::{Gated, Gates};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// What an operation does to its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// Reads sectors into slots.
    Fill,
    /// Writes a client's data to the disk before it is acknowledged.
    WriteThrough,
    /// Writes dirty sectors to the disk.
    Destage,
    /// Writes only the dirty sectors under a write through the cache to the disk. The lines may
    /// stay dirty in other sectors, and do not move meanwhile.
    DestagePart,
    /// Discards or zeroes sectors on the disk.
    Erase,
    /// Reads past the cache. Its lines are not busy, because it changes none of them.
    DirectRead,
}

/// One line's share of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpLine {
    pub key: LineKey,
    /// Pinned until the operation completes; `NO_SLOT` if the line is not in the pool.
    pub slot: Slot,
    /// The sectors that the operation reads, writes or erases.
    pub mask: u8,
    /// Lost sectors that the operation makes valid on the disk if it succeeds.
    pub regained: u8,
    /// A flush, a change of mode or its age demands this destage of the line.
    pub is_owed: bool,
    /// The last group of flushes that had begun when the line was rewritten during its destage; see
    /// [`crate::writeback::Writeback::supersede`]. Zero if the line was not rewritten.
    pub superseded: u64,
}

impl OpLine {
    /// The share of a line that regains no sector and has not been rewritten.
    pub(crate) const fn new(key: LineKey, slot: Slot, mask: u8) -> Self {
        Self { key, slot, mask, regained: 0, is_owed: false, superseded: 0 }
    }
}

/// The groups of flushes that a destage matters to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Serves {
    /// The first group that needs it.
    pub first: u64,
    /// The last group that had begun when it started. If it fails, later groups try again.
    pub last: u64,
}

impl Serves {
    /// As it applies to one line of the destage.
    pub(crate) const fn of_line(self, line: &OpLine) -> Self {
        if line.is_owed { self } else { Self { first: self.last + 1, ..self } }
    }
}

/// What a part waits for, and how a failure affects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// The result. If the operation fails, the part is tried again with the error.
    Result,
    /// Success. If the operation fails, the part fails.
    Success,
    /// The completion, whatever the result.
    End,
}

#[derive(Debug)]
pub(crate) struct LineOp {
    pub kind: OpKind,
    /// Why a fill reads.
    pub cause: IoCause,
    pub volume: VolumeId,
    pub lines: Few<OpLine>,
    /// Answered when the operation ends.
    pub part: Option<PartId>,
    /// Parts to retry, or fail, when the operation completes.
    pub waiters: Vec<(PartId, WaitFor)>,
    /// The journal record to make when the operation has succeeded, before `part` is answered.
    pub journal_op: Option<(JournalOp, ByteRange)>,
    pub ios_pending: u32,
    pub error: Option<IoError>,
    /// A failure does not show which line is at fault; see `Span::is_wide`.
    pub is_wide: bool,
    /// The flushes that a destage matters to.
    pub serves: Serves,
    /// Set for a write through the cache that may share its I/O with others.
    pub gated: Option<Gated>,
}

impl LineOp {
    /// An operation over `lines` in `ios` I/Os.
    pub(crate) const fn new(
        kind: OpKind,
        volume: VolumeId,
        lines: Few<OpLine>,
        part: Option<PartId>,
        ios: usize,
    ) -> Self {
        Self {
            kind,
            cause: IoCause::Demand,
            volume,
            lines,
            part,
            waiters: Vec::new(),
            journal_op: None,
            ios_pending: ios as u32,
            error: None,
            is_wide: false,
            serves: Serves { first: 0, last: 0 },
            gated: None,
        }
    }

    /// What a part of another request waits for if this operation blocks it.
    pub(crate) const fn waits_for(&self) -> WaitsFor {
        match (self.kind, self.cause) {
            (OpKind::Fill | OpKind::DirectRead, IoCause::Demand) => WaitsFor::Read,
            (OpKind::Fill | OpKind::DirectRead, _) => WaitsFor::ReadAhead,
            (OpKind::WriteThrough, _) => WaitsFor::Write,
            (OpKind::Destage | OpKind::DestagePart, _) => WaitsFor::Destage,
            (OpKind::Erase, _) => WaitsFor::Erase,
        }
    }
}

#[derive(Debug, Default)]
struct OpEntry {
    generation: u32,
    op: Option<LineOp>,
}

/// The operations of a shard.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    entries: Vec<OpEntry>,
    free: Vec<u32>,
    busy: HashMap<LineKey, u32, BuildHasherDefault<KeyHasher>>,
    /// The ranges of long erases: from the first line of each to the line after its last, and the
    /// operation. They are disjoint. All their lines are busy, without an entry in `busy` for those
    /// that are not in the pool.
    long_erases: BTreeMap<LineKey, (LineKey, u32)>,
    in_flight: usize,
    /// Stripes with writes through the cache in flight.
    gates: Gates,
}

impl Ops {
    /// Starts an operation; its lines become busy.
    pub(crate) fn start(&mut self, op: LineOp) -> IoId {
        assert!(op.ios_pending > 0, "an operation needs an I/O to complete");
        let is_of_volume = |line: &OpLine| line.key.volume() == op.volume;
        assert!(op.lines.iter().all(is_of_volume), "{op:?} has lines of another volume");
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(OpEntry::default());
            (self.entries.len() - 1) as u32
        });
        if op.kind != OpKind::DirectRead {
            for line in &op.lines {
                let is_erased = self.long_erase_of(line.key).is_some();
                let before = self.busy.insert(line.key, index);
                let is_free = before.is_none() && !is_erased;
                assert!(is_free, "line {:?} is in two operations", line.key);
            }
        }
        let entry = &mut self.entries[index as usize];
        assert!(entry.op.is_none());
        entry.op = Some(op);
        self.in_flight += 1;
        IoId { op: index, generation: entry.generation }
    }

    /// Starts a long erase. All lines from `first` up to `end` become busy, those in the pool as
    /// lines of the operation.
    pub(crate) fn start_long_erase(&mut self, op: LineOp, first: LineKey, end: LineKey) -> IoId {
        assert!(op.kind == OpKind::Erase, "{op:?} erases nothing");
        let busy = self.first_busy(first, end);
        assert!(busy.is_none(), "line {busy:?} is in another operation than its erase");
        let id = self.start(op);
        self.long_erases.insert(first, (end, id.op));
        id
    }

    /// The first busy line from `first` up to `end`. Scans all busy lines.
    pub(crate) fn first_busy(&self, first: LineKey, end: LineKey) -> Option<LineKey> {
        let lines = self.busy.keys().copied().filter(|&key| first <= key && key < end).min();
        let erase = self.long_erase_of(first).map(|_| first);
        let erase = erase.or_else(|| self.long_erases.range(first..end).next().map(|it| *it.0));
        lines.into_iter().chain(erase).min()
    }

    /// The long erase that keeps a line busy.
    fn long_erase_of(&self, key: LineKey) -> Option<u32> {
        let (_, &(end, op)) = self.long_erases.range(..=key).next_back()?;
        (key < end).then_some(op)
    }

    /// Counts the completion of one I/O. Returns the operation if it was the last one.
    pub(crate) fn finish_io(&mut self, id: IoId, error: Option<IoError>) -> Option<LineOp> {
        let index = id.op;
        let entry = &mut self.entries[index as usize];
        assert_eq!(entry.generation, id.generation, "an I/O of {id:?} was completed twice");
        let op = entry.op.as_mut().expect("an entry of this generation holds an operation");
        op.error = op.error.or(error);
        assert!(op.ios_pending > 0, "more I/Os of an operation completed than started");
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
                assert!(was_busy == Some(index), "line {:?} is in another operation", line.key);
            }
            if op.kind == OpKind::Erase {
                self.long_erases.retain(|_, erase| erase.1 != index);
            }
        }
        op
    }

    /// The operation that keeps a line busy.
    #[inline]
    pub(crate) fn busy(&self, key: LineKey) -> Option<(u32, OpKind)> {
        if self.busy.is_empty() && self.long_erases.is_empty() {
            return None;
        }
        let index = match self.busy.get(&key) {
            Some(&index) => index,
            None => self.long_erase_of(key)?,
        };
        let op = self.entries[index as usize].op.as_ref()?;
        Some((index, op.kind))
    }

    /// Makes a part wait for an operation.
    pub(crate) fn wait(&mut self, index: u32, part: PartId, wait_for: WaitFor) {
        self.op_mut(index).waiters.push((part, wait_for));
    }

    /// The volume of an I/O's operation.
    pub(crate) fn volume_of(&self, id: IoId) -> VolumeId {
        self.op(id.op).volume
    }

    /// Whether an I/O belongs to a write that may share it with others.
    pub(crate) fn is_gated(&self, id: IoId) -> bool {
        self.op(id.op).gated.is_some()
    }

    /// An operation in flight, to be changed.
    pub(crate) fn op_mut(&mut self, index: u32) -> &mut LineOp {
        self.entries[index as usize].op.as_mut().expect("the operation is in flight")
    }

    /// An operation in flight.
    pub(crate) fn op(&self, index: u32) -> &LineOp {
        self.entries[index as usize].op.as_ref().expect("the operation is in flight")
    }

    /// The identifier of an operation in flight.
    pub(crate) fn id(&self, index: u32) -> IoId {
        IoId { op: index, generation: self.entries[index as usize].generation }
    }

    /// The flushes that the destage of the data in `slot`, which holds `key`, matters to; `None` if
    /// there is no destage. One from an older slot of the line does not count.
    #[inline]
    pub(crate) fn destage_of(&self, key: LineKey, slot: Slot) -> Option<Serves> {
        let &index = self.busy.get(&key)?;
        let op = self.entries[index as usize].op.as_ref()?;
        let mut lines = op.lines.iter().filter(|_| op.kind == OpKind::Destage);
        let line = lines.find(|line| line.key == key && line.slot == slot)?;
        Some(op.serves.of_line(line))
    }

    /// Records that a line was rewritten while it is being destaged from `slot`; see
    /// [`OpLine::superseded`].
    pub(crate) fn supersede(&mut self, key: LineKey, slot: Slot, group: u64) {
        let Some(&index) = self.busy.get(&key) else { return };
        let lines = &mut self.op_mut(index).lines;
        let mut of_slot = lines.iter_mut().filter(|line| line.key == key && line.slot == slot);
        let line = of_slot.next().expect("the slot is being destaged");
        line.superseded = group;
    }

    pub(crate) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LineOp> {
        self.entries.iter().filter_map(|entry| entry.op.as_ref())
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<OpEntry>()
            + self.busy.capacity() * (size_of::<LineKey>() + size_of::<u32>())
            + self.long_erases.len() * size_of::<(LineKey, (LineKey, u32))>()
            + self.gates.metadata_bytes()
    }

    /// Whether a line is in the range of a long erase, which does not name it.
    pub(crate) fn is_erased_unnamed(&self, key: LineKey) -> bool {
        !self.busy.contains_key(&key) && self.long_erase_of(key).is_some()
    }

    /// Panics if operations, busy lines and gates are inconsistent.
    pub(crate) fn self_check(&self) {
        let in_flight = self.iter().inspect(|op| assert!(op.ios_pending > 0, "{op:?}")).count();
        assert_eq!(in_flight, self.in_flight);
        let lines = self.iter().filter(|op| op.kind != OpKind::DirectRead).map(|op| op.lines.len());
        assert_eq!(lines.sum::<usize>(), self.busy.len(), "each busy line is in one operation");
        let mut after = LineKey(0);
        for (&first, &(end, op)) in &self.long_erases {
            assert!(after <= first && first < end, "long erases overlap, or one is empty");
            let mut inside = self.busy.iter().filter(|&(&key, _)| first <= key && key < end);
            let is_alone = inside.all(|(_, &of)| of == op) && self.op(op).kind == OpKind::Erase;
            assert!(is_alone, "lines of a long erase are in other operations");
            after = end;
        }
        self.check_gates();
    }
}

/// Adds an I/O for each run to the outbox.
pub(crate) fn emit(
    out: &mut Outbox,
    id: IoId,
    (verb, cause): (IoVerb, IoCause),
    volume: VolumeId,
    part: Option<PartId>,
    runs: impl IntoIterator<Item = IoRun>,
) {
    out.ios.extend(runs.into_iter().map(|run| {
        let len = run.segments.iter().map(|segment| u64::from(segment.len)).sum::<u64>();
        let is_erase = matches!(verb, IoVerb::Discard | IoVerb::Zero { .. });
        let expected = if is_erase { 0 } else { run.range.len };
        assert_eq!(len, expected, "bytes in the segments of a {verb:?} of {}", run.range);
        let (range, segments, seals) = (run.range, run.segments, run.seals);
        IoAction { id, verb, volume, range, segments, part, seals, cause }
    }));
}

/// Hashes line keys only, with [`LineKey::hash`].
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
