//! The slots of a shard: which line is in which slot, which slots are free, and which lines may be
//! evicted.
//!
//! A slot is free, not yet used, resident (indexed, and known to the policy unless its line is of a
//! pinned range, see `retained`), detached or away. A detached slot holds the old data of a line
//! that was relocated or dropped while pinned, or a payload that readers must not find yet. The
//! memory of a slot that is away is given back ([`Slabs`]). Only this module changes these states;
//! other modules pin, unpin and query.
//!
//! The line table outlives the process, which may be killed between any two instructions. So each
//! change is made in an order in which recovery can tell every intermediate state apart (listed in
//! `recover.rs`). A slot that takes over a line marks the sectors still being copied as filling.
//! The old slot keeps its dirty bits until [`Slots::finish_call`], after the copy.

pub(crate) mod buffered;
pub(crate) mod lookup;
pub(crate) mod miniatures;
pub(crate) mod recover;
pub(crate) mod retained;
pub(crate) mod shares;
pub(crate) mod slabs;
pub(crate) mod warm;
mod zones;

use crate::index::lookup::Index;
use crate::index::miniatures::FirstUses;
use crate::index::retained::Retained;
use crate::index::shares::{ShareView, Taker, VolumeShares};
use crate::index::warm::{LineCounts, WarmView};
use crate::index::zones::Zones;
use crate::line::bits::SlotSet;
use crate::line::meta::{
    BUFFERED, DETACHED, FROZEN, LineTable, MARK, PREFETCHED, PRELOADED, RETAINED, SEALED, in_order,
};
use crate::slabs::Slabs;
use crate::{LineKey, LineMeta, Slot};
use forebay_policy::{Eviction, Hint, Lines, Miniatures};
use forebay_types::{ByteRange, LINE_BYTES, VolumeId};

/// The flags that the first use of a line clears.
pub(crate) const FIRST_USE: u8 = PREFETCHED | PRELOADED | MARK;

/// The slots of a shard. Borrowed from [`crate::Shard::slots`], for queries only.
pub struct Slots<M> {
    lines: M,
    index: Index,
    policy: Box<dyn Eviction>,
    /// The policy in miniature, for other sizes of the pool.
    miniatures: Miniatures,
    first_uses: FirstUses,
    /// The slabs, and the free slots of each.
    slabs: Slabs,
    /// Slots from here on were never used, and their memory is untouched.
    unused: Slot,
    /// The slot from which to search for a victim if the policy finds none.
    hand: Slot,
    /// Slots with filling sectors. Empty between calls.
    filling_slots: Vec<Slot>,
    /// Old slots of relocated lines, each pinned by the call. Empty between calls.
    old_slots: Vec<Slot>,
    /// Old slots that become frozen. Empty between calls.
    freezing: Vec<Slot>,
    /// Slots of an adopted table, each pinned once: the kernel may still write to them.
    orphan_pins: Vec<Slot>,
    /// A superset of the resident lines with valid sectors and without a seal.
    unsealed: SlotSet,
    /// All resident lines with dirty sectors.
    dirty: SlotSet,
    evictions: u64,
    /// Lines that came into the pool.
    admitted: LineCounts,
    /// Lines that were evicted to make room for others.
    evicted: LineCounts,
    /// Preloaded lines that were evicted unread.
    preloads_in_vain: LineCounts,
    /// Lines that became part of the then current forecast, and how many of these were used before
    /// the next forecast began; see [`WarmView::forecast_lines`].
    forecast: LineCounts,
    forecast_used: LineCounts,
    /// The pinned ranges, and the lines of them that are resident.
    retained: Retained,
    /// The guaranteed and the largest shares of volumes.
    shares: VolumeShares,
}

/// The policy's view of the lines.
struct LinesView<'a> {
    lines: &'a [LineMeta],
    slabs: &'a Slabs,
    /// What the taker of the slot may have. `None` if no volume has shares.
    shares: Option<ShareView<'a>>,
}

impl Lines for LinesView<'_> {
    fn is_evictable(&self, slot: Slot) -> bool {
        let line = &self.lines[slot as usize];
        line.pins == 0
            && line.dirty == 0
            && self.slabs.keeps(slot)
            && self.shares.is_none_or(|shares| shares.may_take(line.key))
    }

    fn key(&self, slot: Slot) -> u64 {
        self.lines[slot as usize].key.hash()
    }
}

/// Prepares the lookups of all lines of a range. See [`Index::load_entries`].
pub(crate) fn prepare_lookups<M>(slots: &Slots<M>, volume: VolumeId, range: ByteRange) {
    if range.len > LINE_BYTES {
        let lines = range.offset / LINE_BYTES..range.end().div_ceil(LINE_BYTES);
        let first = LineKey::new(volume, lines.start);
        slots.index.load_entries(first, lines.end - lines.start);
    }
}

/// The first line of the zone from which on the zones of a range have more than `lines_max` lines,
/// or seem to; `None` if they have not.
pub(crate) fn exceeding<M>(
    slots: &Slots<M>,
    [first, end]: [LineKey; 2],
    lines_max: &mut usize,
) -> Option<LineKey> {
    Zones::split(first, end).map(|(first, _)| first).find(|&first| {
        let left = lines_max.checked_sub(slots.index.zones().lines_max(first));
        *lines_max = left.unwrap_or(*lines_max);
        left.is_none()
    })
}

/// The resident lines of ascending ranges, each from its first line up to its end, in any order.
pub(crate) fn resident_in<M: LineTable>(
    slots: &Slots<M>,
    ranges: &[[LineKey; 2]],
) -> Vec<(LineKey, Slot)> {
    let zones = ranges.iter().flat_map(|&[first, end]| Zones::split(first, end));
    let zones: Vec<_> =
        zones.filter(|&(first, _)| slots.index.zones().lines_max(first) > 0).collect();
    let lines: u64 = zones.iter().map(|(first, end)| end.0 - first.0).sum();
    let mut found = Vec::new();
    if lines > u64::from(slots.unused) {
        // A small pool that has lines nearly everywhere.
        let (from, to) = (ranges[0][0], ranges[ranges.len() - 1][1]);
        found.extend((0..slots.unused).filter_map(|slot| {
            let line = slots.get(slot);
            let is_inside = from <= line.key && line.key < to && !line.has(DETACHED);
            is_inside.then_some((line.key, slot))
        }));
        return found;
    }
    for (first, end) in zones {
        slots.index.load_entries(first, end.0 - first.0);
        let keys = (first.0..end.0).map(LineKey);
        found.extend(keys.filter_map(|key| Some((key, slots.find(key)?))));
    }
    found
}

impl<M: LineTable> Slots<M> {
    pub(crate) fn new(lines: M, policy: Box<dyn Eviction>, slab_lines: usize) -> Self {
        Self {
            slabs: Slabs::new(lines.len(), slab_lines),
            index: Index::new(lines.len()),
            miniatures: Miniatures::new(lines.len()),
            first_uses: FirstUses::NONE,
            retained: Retained::new(lines.len()),
            shares: VolumeShares::default(),
            unsealed: SlotSet::new(lines.len()),
            dirty: SlotSet::new(lines.len()),
            lines,
            policy,
            unused: 0,
            hand: 0,
            filling_slots: Vec::new(),
            old_slots: Vec::new(),
            freezing: Vec::new(),
            orphan_pins: Vec::new(),
            evictions: 0,
            admitted: LineCounts::default(),
            evicted: LineCounts::default(),
            preloads_in_vain: LineCounts::default(),
            forecast: LineCounts::default(),
            forecast_used: LineCounts::default(),
        }
    }

    /// All slots, including those whose memory is given back.
    pub(crate) fn capacity(&self) -> usize {
        self.lines.len()
    }

    /// The slabs in which memory is given back.
    pub const fn slabs(&self) -> &Slabs {
        &self.slabs
    }

    /// The slots from here on were never used: the memory of their lines is untouched. Slots are
    /// first used in ascending order.
    pub const fn used(&self) -> Slot {
        self.unused
    }

    pub(crate) const fn resident(&self) -> usize {
        self.index.len()
    }

    /// Resident lines of a volume.
    pub fn resident_lines(&self, volume: VolumeId) -> u64 {
        self.index.residents().get(usize::from(volume.0)).copied().unwrap_or(0).into()
    }

    pub(crate) fn get(&self, slot: Slot) -> &LineMeta {
        &self.lines[slot as usize]
    }

    fn get_mut(&mut self, slot: Slot) -> &mut LineMeta {
        &mut self.lines[slot as usize]
    }

    /// The whole table, for tests and the lab.
    pub fn table(&self) -> &[LineMeta] {
        &self.lines
    }

    pub(crate) const fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Sets flags of a line: [`meta::PREFETCHED`], [`meta::PRELOADED`] and [`meta::MARK`].
    pub(crate) fn set_flags(&mut self, slot: Slot, flags: u8) {
        debug_assert!(flags & !(FIRST_USE | SEALED) == 0, "a planted bug keeps a seal");
        self.get_mut(slot).flags |= flags;
    }

    /// Clears the flags of [`Slots::set_flags`] and returns the previous ones.
    pub(crate) fn take_flags(&mut self, slot: Slot) -> u8 {
        let line = self.get_mut(slot);
        let flags = line.flags & FIRST_USE;
        line.flags &= !flags;
        flags
    }

    /// Marks a line as sealed: the driver has stored its checksum.
    pub(crate) fn seal(&mut self, slot: Slot) {
        // The driver's checksum must be stored before the flag that declares it valid.
        in_order();
        self.get_mut(slot).flags |= SEALED;
        self.unsealed.remove(slot);
    }

    /// The next slot from `from` on that may lack a seal, among the dirty ones or among all.
    pub(crate) fn next_unsealed(&self, dirty: bool, from: Slot) -> Option<Slot> {
        let among = if dirty { &self.dirty } else { &self.unsealed };
        among.next_common(&self.unsealed, from)
    }

    pub(crate) fn remove_unsealed(&mut self, slot: Slot) {
        self.unsealed.remove(slot);
    }

    /// The slots of resident lines of a volume.
    pub(crate) fn slots_of<'a>(
        &'a self,
        volume: VolumeId,
        lines: impl Iterator<Item = u64> + 'a,
    ) -> impl Iterator<Item = Slot> + 'a {
        let keys = lines.map(move |line| LineKey::new(volume, line));
        keys.map(|key| self.find(key).expect("a dirty line is in the pool"))
    }

    /// The slots of all dirty lines, in ascending order.
    pub(crate) fn dirty_slots(&self) -> impl Iterator<Item = Slot> {
        self.dirty.iter()
    }

    pub(crate) const fn unsealed(&self) -> usize {
        self.unsealed.len()
    }

    /// Marks dirty sectors of a slot clean. Returns whether the slot was dirty and is clean now.
    pub(crate) fn clean(&mut self, slot: Slot, mask: u8) -> bool {
        let line = self.get_mut(slot);
        let was_dirty = line.dirty != 0;
        line.dirty &= !mask;
        let is_clean = was_dirty && line.dirty == 0;
        if is_clean {
            self.dirty.remove(slot);
        }
        is_clean
    }

    /// Sets which parts of a parity slot are in use.
    pub(crate) fn set_parity_parts(&mut self, slot: Slot, parts: u8) {
        let line = self.get_mut(slot);
        assert!(line.key == LineKey::PARITY, "slot {slot} holds no parity");
        line.valid = parts;
    }

    pub(crate) fn invalidate_frozen(&mut self, slot: Slot, sectors: u8) {
        let valid = self.get(slot).valid;
        self.change(slot, valid & !sectors);
        self.unsealed.remove(slot);
    }

    /// Releases the pin that kept a frozen slot. Its data is on the disk or lost.
    pub(crate) fn thaw(&mut self, slot: Slot) {
        let line = self.get_mut(slot);
        assert!(line.has(FROZEN) && line.has(DETACHED), "slot {slot} is not frozen: {line:?}");
        line.dirty = 0;
        self.unpin(slot);
    }

    /// Clears the dirty bits of an old slot. For a planted bug only.
    pub(crate) fn forget_detached(&mut self, slot: Slot) {
        self.get_mut(slot).dirty = 0;
    }

    /// Sets the valid sectors of a line and breaks its seal. All changes of the valid sectors or
    /// their content go through here.
    pub(crate) fn change(&mut self, slot: Slot, valid: u8) {
        let line = &mut self.lines[slot as usize];
        // A valid line without a seal is in the set already.
        let needs_seal = line.has(SEALED) || line.valid == 0;
        line.flags &= !SEALED;
        in_order();
        line.valid = valid;
        if needs_seal {
            self.unsealed.insert(slot);
        }
    }

    pub(crate) fn find(&self, key: LineKey) -> Option<Slot> {
        self.index.find(key, &self.lines)
    }

    /// The metadata of a line; [`LineMeta::FREE`] if it is not resident.
    pub fn line(&self, key: LineKey) -> LineMeta {
        self.find(key).map_or(LineMeta::FREE, |slot| *self.get(slot))
    }

    /// The slot of a line, if all sectors in `mask` are valid.
    pub fn find_valid(&self, key: LineKey, mask: u8) -> Option<Slot> {
        self.find(key).filter(|&slot| self.get(slot).valid & mask == mask)
    }

    /// Up to `count` clean lines of a volume, spread over all of its clean lines, each with the
    /// mask of its valid sectors. While no operation is in flight, the disk has the same data.
    pub fn clean_lines(&self, volume: VolumeId, count: usize) -> Vec<(LineKey, Slot, u8)> {
        let is_clean = |slot: &Slot| {
            let line = self.get(*slot);
            line.volume() == Some(volume)
                && line.valid != 0
                && line.dirty == 0
                && self.find(line.key) == Some(*slot)
        };
        let slots = || (0..self.unused).filter(is_clean);
        let step = slots().count().div_ceil(count.max(1)).max(1);
        let chosen = slots().step_by(step).take(count);
        chosen.map(|slot| (self.get(slot).key, slot, self.get(slot).valid)).collect()
    }

    /// The view of warm lists, warm-ups and pins.
    pub const fn warm(&self) -> WarmView<'_, M> {
        WarmView(self)
    }

    /// A view of the index for lookups without the shard's lock.
    pub fn hints(&self) -> crate::Hints {
        self.index.hints()
    }

    /// Records an access to a line: a write with [`Hint::Write`], otherwise a read.
    pub(crate) fn touch(&mut self, slot: Slot, hint: Hint) {
        if self.get(slot).has(RETAINED) {
            return;
        }
        match hint {
            Hint::Write => self.policy.on_write(slot),
            _ => self.policy.on_hit(slot),
        }
    }

    /// Allocates a slot for `key`, which must be absent, with no valid sector. Evicts another line
    /// if necessary. `None` if every line that may be evicted for it is dirty, pinned or retained,
    /// or, for a forecast, too valuable.
    pub(crate) fn allocate(&mut self, key: LineKey, hint: Hint) -> Option<Slot> {
        let taker = Taker::Line { volume: key.volume(), reserved: 0 };
        let slot = self.take_slot(Some((key, hint)), taker)?;
        self.place(slot, key, hint);
        Some(slot)
    }

    /// Puts `key`, which must be absent, into a slot that was reserved for it.
    pub(crate) fn place(&mut self, slot: Slot, key: LineKey, hint: Hint) {
        self.set_key(slot, key, 0, 0);
        self.insert_line(key, slot, hint);
    }

    /// Sets the key of a reserved slot.
    fn set_key(&mut self, slot: Slot, key: LineKey, pins: u32, flags: u8) {
        let line = self.get_mut(slot);
        assert!(line.key == LineKey::NONE && line.valid | line.dirty | line.filling == 0);
        line.pins = pins;
        line.flags = flags;
        in_order();
        line.key = key;
        in_order();
    }

    /// Reserves a detached slot for `key`, for data of a volume, under one pin. Later it is
    /// adopted, becomes the target of a relocation, or is freed with its last pin.
    pub(crate) fn reserve_detached(&mut self, key: LineKey, volume: VolumeId) -> Option<Slot> {
        let slot = self.reserve(Taker::Data(volume))?;
        self.set_key(slot, key, 1, DETACHED);
        Some(slot)
    }

    /// Makes a detached slot the place of its line, which must be absent.
    pub(crate) fn adopt(&mut self, slot: Slot) {
        let line = self.get_mut(slot);
        assert!(line.has(DETACHED));
        line.flags = 0;
        let key = line.key;
        self.insert_line(key, slot, Hint::Write);
    }

    /// Relocates a line from `old` to `new`, which is reserved or detached and gets one pin. The
    /// caller copies the data. [`Slots::finish_call`] releases the caller's pin on `old`, unless
    /// `freeze` is set: then this pin keeps the frozen slot.
    pub(crate) fn relocate(&mut self, old: Slot, new: Slot, freeze: bool) {
        let line = *self.get(old);
        let key = line.key;
        assert!(line.pins > 0, "slot {old} is relocated without a pin");
        assert!(!line.has(DETACHED), "slot {old} is not the place of a line");
        assert!(old != new, "slot {old} is relocated to itself");
        // From here on, the dirty bits of the old slot mark data that the new slot may lack.
        let kept = BUFFERED | if freeze { SEALED } else { 0 };
        self.get_mut(old).flags = DETACHED | line.flags & kept;
        in_order();
        if self.get(new).key == LineKey::NONE {
            self.set_key(new, key, 1, 0);
        }
        self.get_mut(new).filling = line.valid;
        in_order();
        self.get_mut(new).valid = line.valid;
        in_order();
        self.get_mut(new).dirty = line.dirty;
        in_order();
        self.get_mut(new).flags = line.flags & !SEALED;
        self.unsealed.insert(new);
        if self.dirty.remove(old) {
            self.dirty.insert(new);
        }
        self.index.replace(key, old, new);
        if !line.has(RETAINED) {
            self.policy.on_move(old, new, key.hash());
        }
        self.filling_slots.push(new);
        if freeze {
            self.freezing.push(old);
        } else {
            self.old_slots.push(old);
        }
    }

    /// Makes a slot the place of an absent line: enters the line into the index and, unless it is
    /// retained, into the policy.
    fn insert_line(&mut self, key: LineKey, slot: Slot, hint: Hint) {
        debug_assert!(self.find(key).is_none(), "line {key:?} is indexed twice");
        self.index.insert(key, slot);
        self.admitted.count(key.volume());
        if self.shares.are_set() {
            shares::check_insertion(self, key);
        }
        if self.retained.admit(key) {
            self.get_mut(slot).flags |= RETAINED;
        } else {
            self.policy.on_insert(slot, key.hash(), hint);
        }
    }

    /// Marks sectors dirty and filling. Returns the line's key, and whether the line was clean.
    pub(crate) fn mark_dirty(&mut self, slot: Slot, mask: u8) -> (LineKey, bool) {
        let line = self.get(slot);
        let (key, was_clean) = (line.key, line.dirty == 0);
        let valid = line.valid | mask;
        self.mark_filling(slot, mask);
        self.change(slot, valid);
        in_order();
        self.get_mut(slot).dirty |= mask;
        if was_clean {
            self.dirty.insert(slot);
        }
        (key, was_clean)
    }

    /// Marks sectors as filling: recovery ignores them until the call is finished.
    pub(crate) fn mark_filling(&mut self, slot: Slot, mask: u8) {
        self.get_mut(slot).filling |= mask;
        in_order();
        self.filling_slots.push(slot);
    }

    /// Ends a call after its memory steps: filling sectors become valid, and the old slots of
    /// relocated lines lose their dirty bits and one pin, or become frozen.
    pub(crate) fn finish_call(&mut self) {
        in_order();
        self.clear_filling();
        in_order();
        while let Some(slot) = self.old_slots.pop() {
            self.get_mut(slot).dirty = 0;
            self.unpin(slot);
        }
        while let Some(slot) = self.freezing.pop() {
            let line = self.get_mut(slot);
            line.flags |= FROZEN;
            line.dirty &= line.valid;
        }
    }

    /// Whether [`Slots::finish_call`] was called after the last change.
    pub(crate) const fn is_call_finished(&self) -> bool {
        self.filling_slots.is_empty() && self.old_slots.is_empty() && self.freezing.is_empty()
    }

    /// Ends the filling state of all sectors.
    pub(crate) fn clear_filling(&mut self) {
        while let Some(slot) = self.filling_slots.pop() {
            self.get_mut(slot).filling = 0;
        }
    }

    /// Removes a clean line from the pool. Its slot is freed now or with its last pin.
    pub(crate) fn drop_line(&mut self, slot: Slot) {
        let line = *self.get(slot);
        assert!(line.dirty == 0, "a dirty line is dropped: {line:?}");
        assert!(!line.has(DETACHED), "slot {slot} is not the place of a line");
        self.index.remove(line.key, slot, &self.lines);
        if self.shares.are_set() {
            shares::lower_ceiling(self, line.key.volume());
        }
        if line.has(RETAINED) {
            self.retained.remove(line.key.volume());
        } else {
            self.policy.on_remove(slot);
        }
        if line.pins == 0 {
            self.free_slot(slot);
        } else {
            self.get_mut(slot).flags = DETACHED;
        }
    }

    pub(crate) fn pin(&mut self, slot: Slot) {
        debug_assert!(self.get(slot).key != LineKey::NONE, "empty slot {slot} is pinned");
        self.get_mut(slot).pins += 1;
    }

    /// Finds and pins a line whose sectors in `mask` are valid, and counts the hit. Returns `None`
    /// and changes nothing if they are not valid, or if the line has a flag of [`FIRST_USE`]:
    /// `Reader` handles its first use.
    pub(crate) fn pin_hit(&mut self, key: LineKey, mask: u8) -> Option<Slot> {
        let slot = self.find(key)?;
        let line = self.get_mut(slot);
        if line.valid & mask != mask {
            return None;
        }
        // One test for both cases, because most lines have none of these flags.
        if line.flags & (FIRST_USE | RETAINED) != 0 {
            let is_retained = line.flags & FIRST_USE == 0;
            line.pins += u32::from(is_retained);
            return is_retained.then_some(slot);
        }
        line.pins += 1;
        self.policy.on_hit(slot);
        Some(slot)
    }

    pub(crate) fn unpin(&mut self, slot: Slot) {
        let line = self.get_mut(slot);
        assert!(line.pins > 0, "slot {slot} is unpinned too often");
        line.pins -= 1;
        if line.pins == 0 && line.has(DETACHED) {
            self.free_slot(slot);
        }
    }

    /// Reserves a slot, evicting another line if necessary. The slot is neither free nor resident
    /// until it is placed, relocated to or freed. `None` if every line that may be evicted for it
    /// is dirty, pinned or retained.
    pub(crate) fn reserve(&mut self, taker: Taker) -> Option<Slot> {
        self.take_slot(None, taker)
    }

    /// Takes a free slot, or that of another line, for a line that is inserted next, if it is known
    /// already. A volume at its largest share gets the slot of one of its own lines.
    fn take_slot(&mut self, incoming: Option<(LineKey, Hint)>, taker: Taker) -> Option<Slot> {
        let is_forecast = matches!(incoming, Some((_, Hint::Forecast)));
        if let Some(volume) = shares::needs_own(self, taker) {
            // A forecast would have to know which of the volume's lines are worth less.
            let victim = if is_forecast { None } else { shares::find_own(self, volume, true) }?;
            self.evict_line(victim, taker);
            return Some(victim);
        }
        if let Some(slot) = self.slabs.first_free() {
            self.slabs.pop_free(slot, self.get(slot).pins);
            return Some(slot);
        }
        if let Some(slot) = slabs::take_unused(self) {
            return Some(slot);
        }
        let shares = ShareView::new(&self.shares, self.index.residents(), taker);
        let view = LinesView { lines: &self.lines, slabs: &self.slabs, shares };
        let victim = match incoming {
            Some((key, hint)) => self.policy.evict(key.hash(), hint, &view),
            None => self.policy.vacate(&view),
        };
        // Lines that the policy does not choose are worth more than those of a forecast.
        let victim =
            if is_forecast { victim } else { victim.or_else(|| shares::find_victim(self, taker)) }?;
        self.evict_line(victim, taker);
        Some(victim)
    }

    /// Evicts a line, which the policy no longer knows. Its slot is not free.
    fn evict_line(&mut self, victim: Slot, taker: Taker) {
        let line = *self.get(victim);
        assert!(line.pins == 0 && line.dirty == 0, "the policy evicted a line in use: {line:?}");
        assert!(!line.has(RETAINED), "a line of a pinned range was evicted: {line:?}");
        if self.shares.are_set() {
            shares::check_eviction(self, line.key, taker);
        }
        self.index.remove(line.key, victim, &self.lines);
        self.clear(victim);
        self.evictions += 1;
        self.evicted.count(line.key.volume());
        if line.has(PRELOADED) {
            self.preloads_in_vain.count(line.key.volume());
        }
    }

    /// Empties a slot. The dirty bits are cleared first: in another order, recovery could take a
    /// detached slot for a line.
    fn clear(&mut self, slot: Slot) {
        self.get_mut(slot).dirty = 0;
        in_order();
        self.get_mut(slot).valid = 0;
        in_order();
        self.get_mut(slot).key = LineKey::NONE;
        in_order();
        *self.get_mut(slot) = LineMeta::FREE;
    }

    /// Adds a slot that holds no line to the free ones.
    pub(crate) fn free_slot(&mut self, slot: Slot) {
        let line = self.get(slot);
        assert!(line.dirty == 0 && !self.dirty.contains(slot), "a dirty slot is freed: {line:?}");
        self.clear(slot);
        let next = self.slabs.push_free(slot);
        self.get_mut(slot).pins = next;
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.capacity() * size_of::<LineMeta>()
            + self.index.metadata_bytes()
            + self.slabs.metadata_bytes()
            + self.unsealed.metadata_bytes()
            + self.dirty.metadata_bytes()
            + self.admitted.metadata_bytes()
            + self.evicted.metadata_bytes()
            + self.preloads_in_vain.metadata_bytes()
            + self.forecast.metadata_bytes()
            + self.forecast_used.metadata_bytes()
            + self.retained.metadata_bytes()
            + self.shares.metadata_bytes()
            + self.miniatures.heap_bytes()
            + self.policy.metadata_bytes()
    }

    /// Panics if table, index, free list and policy are inconsistent.
    pub(crate) fn self_check(&self) {
        assert!(self.is_call_finished(), "the last call was not finished");
        let free = self.slabs.self_check(
            |slot| self.get(slot).pins,
            |slot| slot < self.unused && self.get(slot).key == LineKey::NONE,
            |slot| self.get(slot).is_away(),
        );
        let mut resident = 0;
        let mut away = 0;
        let mut residents = vec![0u32; self.index.residents().len()];
        let mut detached = 0;
        for slot in 0..self.unused {
            let line = self.get(slot);
            if line.key == LineKey::NONE {
                continue;
            }
            if line.is_away() {
                assert!(line.pins == 0 && line.valid | line.dirty == 0, "slot {slot}: {line:?}");
                away += 1;
                continue;
            }
            assert!(line.filling == 0, "sectors are filling between calls: {line:?}");
            if line.has(DETACHED) {
                assert!(line.pins > 0, "a detached slot without a pin was not freed: {line:?}");
                assert!(line.dirty == 0 || line.has(FROZEN), "dirty but not frozen: {line:?}");
                detached += 1;
            } else {
                assert_eq!(self.find(line.key), Some(slot), "the index entry of {line:?}");
                let known = line.has(SEALED) || line.valid == 0 || self.unsealed.contains(slot);
                assert!(known, "the patrol misses an unsealed line: {line:?}");
                let is_known = self.dirty.contains(slot) == (line.dirty != 0);
                assert!(is_known, "the set of dirty slots is wrong for {line:?}");
                resident += 1;
                residents[usize::from(line.key.volume().0)] += 1;
            }
        }
        assert_eq!(residents, self.index.residents(), "resident lines of each volume");
        let lines = self.lines[..self.unused as usize].iter();
        let placed = lines.filter(|line| line.volume().is_some() && !line.has(DETACHED));
        self.index.zones().self_check(placed.map(|line| line.key));
        let dirty = self.dirty.iter().filter(|&slot| self.get(slot).has(DETACHED));
        assert_eq!(dirty.count(), 0, "detached slots in the set of dirty slots");
        assert_eq!(resident, self.index.len(), "resident lines in the table, and in the index");
        let known = resident + detached + free + away;
        assert_eq!(known, self.unused as usize, "slots in each state");
        retained::check(self);
        shares::check(self);
        self.policy.self_check();
        self.miniatures.self_check();
    }
}
