//! The guaranteed and the largest shares of volumes in a shard's lines.
//!
//! - A volume with a largest share has at most so many resident lines: at the limit, each new line
//!   replaces one of its own that is clean, unpinned and not retained, or gets no slot.
//! - While a volume has at most its guaranteed lines, only its own lines replace them. So its
//!   number of lines never falls on behalf of others.
//!
//! Both are shares of the lines that the shard may hold, and follow its size. A limit that becomes
//! lower leaves the volume with too many lines, its *ceiling*: it gets no more of them, and
//! [`trim`] evicts the clean ones in bounded steps. Slots without a line (replies in flight, a
//! payload that is being received, older versions of an ordered volume's lines) do not count here;
//! the dirty quota counts the last.
//!
//! The eviction policy does not know shares. It is only offered what the taker of a slot may have,
//! and gives up after a few lines. Lines of one volume are therefore often found by a clock over
//! the slots ([`find`]), which spares a line once for each hit that the policy has counted. The
//! price: for a volume with a hundredth of the shard, such an eviction examines some hundred slots,
//! 16 bytes each; and its lines are replaced by this clock, which resists scans less than the
//! policy does.

use crate::index::Slots;
use crate::line::meta::{DETACHED, LineTable, RETAINED};
use crate::sabotage::{Planted, PlantedBug};
use crate::{LineKey, LineMeta, Slot};
use forebay_policy::Eviction;
use forebay_types::{PoolShare, VolumeId};

/// Slots that a search for one volume's lines examines at most: 1 MiB of the line table. The next
/// search continues there.
const SEARCH_SLOTS_MAX: Slot = 1 << 16;
/// Lines that a search spares at most.
const SPARED_MAX: usize = 64;
/// Lines of a volume that one [`trim`] evicts at most.
const TRIMMED_LINES_MAX: usize = 1024;

/// What a slot is taken for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taker {
    /// A new line of a volume. So many other new lines of it have slots already, and are not
    /// resident yet.
    Line { volume: VolumeId, reserved: usize },
    /// Data of a volume that makes no new line: another place for a line, a payload, parity.
    Data(VolumeId),
    /// Another place for a line that a resize moves. It takes no guaranteed line, not even of the
    /// same volume.
    Moved,
}

impl Taker {
    /// The volume that may lose guaranteed lines to itself.
    const fn volume(self) -> Option<VolumeId> {
        match self {
            Self::Line { volume, .. } | Self::Data(volume) => Some(volume),
            Self::Moved => None,
        }
    }
}

/// Lines that a volume has by its shares, beside its pinned ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShareLines {
    /// Guaranteed lines.
    pub min: usize,
    /// `None` without a largest share.
    pub max: Option<usize>,
}

/// The shares of a volume.
#[derive(Clone, Copy, Debug)]
struct ShareState {
    share: PoolShare,
    lines_min: u32,
    /// [`u32::MAX`] without a limit.
    lines_max: u32,
    /// The number of lines that the volume does not exceed: `lines_max`, or the number that it had
    /// when that became lower, or has had since.
    ceiling: u32,
    /// The slot from which to search for a line of the volume.
    hand: Slot,
}

impl ShareState {
    const NONE: Self = Self {
        share: PoolShare::NONE,
        lines_min: 0,
        lines_max: u32::MAX,
        ceiling: u32::MAX,
        hand: 0,
    };
}

/// The shares of all volumes.
#[derive(Debug, Default)]
pub(crate) struct VolumeShares {
    /// Indexed by the number of the volume; no shares beyond the end. Empty if no volume has any,
    /// so that the test for that is short.
    volumes: Vec<ShareState>,
    planted: Planted,
}

impl VolumeShares {
    pub(crate) const fn are_set(&self) -> bool {
        !self.volumes.is_empty()
    }

    fn of(&self, volume: VolumeId) -> ShareState {
        self.volumes.get(usize::from(volume.0)).copied().unwrap_or(ShareState::NONE)
    }

    /// Whether a volume with `lines` lines may lose one to a taker.
    fn may_lose(&self, volume: VolumeId, lines: u32, taker: Option<VolumeId>) -> bool {
        Some(volume) == taker
            || lines > self.of(volume).lines_min
            || self.planted.is(PlantedBug::EvictGuaranteed)
    }

    /// Whether lines belong to volumes that have no more lines than they are guaranteed.
    pub(crate) fn guaranteed<'a>(&'a self, residents: &'a [u32]) -> impl Fn(LineKey) -> bool + 'a {
        move |key| {
            let min = self.of(key.volume()).lines_min;
            let lines = residents.get(usize::from(key.volume().0));
            min > 0 && lines.is_some_and(|&lines| lines <= min)
        }
    }

    pub(crate) const fn metadata_bytes(&self) -> usize {
        self.volumes.capacity() * size_of::<ShareState>()
    }
}

/// Which lines a taker may have. Without shares, all.
#[derive(Clone, Copy)]
pub(crate) struct ShareView<'a> {
    shares: &'a VolumeShares,
    residents: &'a [u32],
    taker: Option<VolumeId>,
}

impl<'a> ShareView<'a> {
    /// `None` if no volume has shares.
    pub(crate) fn new(
        shares: &'a VolumeShares,
        residents: &'a [u32],
        taker: Taker,
    ) -> Option<Self> {
        shares.are_set().then_some(Self { shares, residents, taker: taker.volume() })
    }

    /// Whether the taker may have the place of a resident line.
    pub(crate) fn may_take(&self, key: LineKey) -> bool {
        let of = key.volume();
        self.shares.may_lose(of, self.residents[usize::from(of.0)], self.taker)
    }
}

/// Sets the shares of a volume in a shard that may hold `lines` lines.
pub(crate) fn set<M: LineTable>(
    slots: &mut Slots<M>,
    volume: VolumeId,
    share: PoolShare,
    lines: usize,
) {
    let at = usize::from(volume.0);
    let volumes = &mut slots.shares.volumes;
    if volumes.len() <= at {
        volumes.resize(at + 1, ShareState::NONE);
    }
    volumes[at].share = share;
    if volumes.iter().all(|of| of.share.is_none()) {
        volumes.clear();
    }
    set_lines(slots, lines);
}

/// Makes the shares follow the number of lines that the shard may hold.
pub(crate) fn set_lines<M: LineTable>(slots: &mut Slots<M>, lines: usize) {
    for at in 0..slots.shares.volumes.len() {
        let resident = slots.resident_lines(VolumeId(at as u16)) as u32;
        let of = &mut slots.shares.volumes[at];
        of.lines_min = of.share.lines_min(lines) as u32;
        of.lines_max = of.share.lines_max(lines).map_or(u32::MAX, |lines| lines as u32);
        of.ceiling = of.lines_max.max(resident);
    }
}

/// Plants a bug.
#[cfg(feature = "sabotage")]
pub(crate) const fn plant<M>(slots: &mut Slots<M>, planted: Planted) {
    slots.shares.planted = planted;
}

/// The guaranteed lines of a volume, and the most that it may have.
pub(crate) fn lines_of<M>(slots: &Slots<M>, volume: VolumeId) -> (u64, Option<u64>) {
    let of = slots.shares.of(volume);
    (of.lines_min.into(), (of.lines_max != u32::MAX).then_some(of.lines_max.into()))
}

/// The share of each volume that has one.
pub(crate) fn all<M>(slots: &Slots<M>) -> impl Iterator<Item = (VolumeId, PoolShare)> {
    let volumes = slots.shares.volumes.iter().enumerate();
    volumes.map(|(at, of)| (VolumeId(at as u16), of.share)).filter(|(_, share)| !share.is_none())
}

/// Records that a volume has fewer lines, and not because others of it take their places.
pub(super) fn lower_ceiling<M: LineTable>(slots: &mut Slots<M>, volume: VolumeId) {
    let lines = slots.resident_lines(volume) as u32;
    if let Some(of) = slots.shares.volumes.get_mut(usize::from(volume.0)) {
        of.ceiling = of.lines_max.max(of.ceiling.min(lines));
    }
}

/// Whether a volume has all the lines that it may have, if `reserved` are added.
pub(crate) fn is_full<M: LineTable>(slots: &Slots<M>, volume: VolumeId, reserved: usize) -> bool {
    slots.shares.are_set()
        && !slots.shares.planted.is(PlantedBug::PassShareMax)
        && slots.resident_lines(volume) + reserved as u64
            >= u64::from(slots.shares.of(volume).lines_max)
}

/// Whether a taker needs a place of one of its own lines.
pub(super) fn needs_own<M: LineTable>(slots: &Slots<M>, taker: Taker) -> Option<VolumeId> {
    match taker {
        Taker::Line { volume, reserved } => is_full(slots, volume, reserved).then_some(volume),
        Taker::Data(_) | Taker::Moved => None,
    }
}

/// Whether the line in a slot may not be dropped to make room for others.
pub(crate) fn is_guaranteed<M: LineTable>(slots: &Slots<M>, slot: Slot) -> bool {
    slots.shares.guaranteed(slots.index.residents())(slots.get(slot).key)
}

/// Evicts lines of a volume until it may have `lines` more. Returns false if it cannot.
pub(crate) fn make_room<M: LineTable>(
    slots: &mut Slots<M>,
    volume: VolumeId,
    lines: usize,
) -> bool {
    while lines > 0 && is_full(slots, volume, lines - 1) {
        if !free_one(slots, volume) {
            return false;
        }
    }
    true
}

/// Evicts lines of volumes that have more than they may have, some of each.
pub(crate) fn trim<M: LineTable>(slots: &mut Slots<M>) {
    for at in 0..slots.shares.volumes.len() {
        let volume = VolumeId(at as u16);
        for _ in 0..TRIMMED_LINES_MAX {
            if !is_over(slots, volume) || !free_one(slots, volume) {
                break;
            }
            lower_ceiling(slots, volume);
        }
    }
}

/// Evicts a line of a volume and frees its slot. Returns false if none can be evicted.
fn free_one<M: LineTable>(slots: &mut Slots<M>, volume: VolumeId) -> bool {
    let Some(slot) = find_own(slots, volume, false) else { return false };
    slots.evict_line(slot, Taker::Data(volume));
    slots.free_slot(slot);
    true
}

/// Whether a volume has more lines than it may have.
fn is_over<M: LineTable>(slots: &Slots<M>, volume: VolumeId) -> bool {
    slots.resident_lines(volume) > u64::from(slots.shares.of(volume).lines_max)
}

/// Whether any volume has more lines than it may have.
pub(crate) fn is_any_over<M: LineTable>(slots: &Slots<M>) -> bool {
    (0..slots.shares.volumes.len()).any(|at| is_over(slots, VolumeId(at as u16)))
}

/// A line of a volume that may be evicted, in a slab that stays if its slot is to be used again.
/// The policy no longer knows it.
pub(super) fn find_own<M: LineTable>(
    slots: &mut Slots<M>,
    volume: VolumeId,
    is_used_again: bool,
) -> Option<Slot> {
    let Slots { lines, slabs, policy, unused, shares, .. } = slots;
    let mut search = LineSearch { lines, policy: &mut **policy, used: *unused };
    let hand = &mut shares.volumes[usize::from(volume.0)].hand;
    search.find(hand, SEARCH_SLOTS_MAX, |slot, key| {
        key.volume() == volume && (!is_used_again || slabs.keeps(slot))
    })
}

/// The next line that a taker may have, in order of slots. The policy no longer knows it. A policy
/// examines only a few lines, and all of these may be dirty. Some slots are always clean, so the
/// search is short on average, although a single one may be long.
pub(super) fn find_victim<M: LineTable>(slots: &mut Slots<M>, taker: Taker) -> Option<Slot> {
    if !slots.shares.are_set() {
        let mut order = (slots.hand..slots.unused).chain(0..slots.hand);
        let victim =
            order.find(|&slot| is_evictable(slots.get(slot)) && slots.slabs.keeps(slot))?;
        slots.hand = victim + 1;
        slots.policy.on_remove(victim);
        return Some(victim);
    }
    let Slots { lines, slabs, policy, unused, shares, index, hand, .. } = slots;
    let mut search = LineSearch { lines, policy: &mut **policy, used: *unused };
    let view = ShareView { shares, residents: index.residents(), taker: taker.volume() };
    search.find(hand, Slot::MAX, |slot, key| view.may_take(key) && slabs.keeps(slot))
}

/// A search over the slots.
struct LineSearch<'a> {
    lines: &'a [LineMeta],
    policy: &'a mut dyn Eviction,
    used: Slot,
}

impl LineSearch<'_> {
    /// Searches up to `slots_max` slots from `hand` on for an evictable line among those that `may`
    /// allows. A line with hits is spared and loses one, unless no other is found.
    fn find(
        &mut self,
        hand: &mut Slot,
        slots_max: Slot,
        may: impl Fn(Slot, LineKey) -> bool,
    ) -> Option<Slot> {
        let (mut spared, mut first_spared) = (0, None);
        for _ in 0..self.used.min(slots_max) {
            let slot = if *hand < self.used { *hand } else { 0 };
            *hand = slot + 1;
            let line = &self.lines[slot as usize];
            if !is_evictable(line) || !may(slot, line.key) {
                continue;
            }
            if spared < SPARED_MAX && self.policy.spare(slot) {
                spared += 1;
                first_spared = first_spared.or(Some(slot));
                continue;
            }
            self.policy.on_remove(slot);
            return Some(slot);
        }
        let slot = first_spared?;
        *hand = slot + 1;
        self.policy.on_remove(slot);
        Some(slot)
    }
}

/// Whether a slot holds a line that may be evicted.
fn is_evictable(line: &LineMeta) -> bool {
    let is_idle = line.pins == 0 && line.dirty == 0;
    line.key != LineKey::NONE && is_idle && line.flags & (DETACHED | RETAINED) == 0
}

/// Panics if a volume loses a guaranteed line to another one.
pub(super) fn check_eviction<M: LineTable>(slots: &Slots<M>, key: LineKey, taker: Taker) {
    let (volume, taker) = (key.volume(), taker.volume());
    let lines = slots.resident_lines(volume);
    let min = u64::from(slots.shares.of(volume).lines_min);
    assert!(
        Some(volume) == taker || lines > min,
        "{volume}, which has {lines} of {min} guaranteed lines, loses {key:?} to {taker:?}"
    );
}

/// Panics if a volume has more lines than its ceiling after one was added.
pub(super) fn check_insertion<M: LineTable>(slots: &Slots<M>, key: LineKey) {
    let volume = key.volume();
    let (lines, ceiling) = (slots.resident_lines(volume), slots.shares.of(volume).ceiling);
    assert!(lines <= u64::from(ceiling), "{key:?} is line {lines} of {ceiling} of {volume}");
}

/// Panics if a volume has more lines than its ceiling.
pub(super) fn check<M: LineTable>(slots: &Slots<M>) {
    for (at, of) in slots.shares.volumes.iter().enumerate() {
        let (volume, ceiling) = (VolumeId(at as u16), u64::from(of.ceiling));
        let lines = slots.resident_lines(volume);
        assert!(
            lines <= ceiling,
            "{volume} has {lines} lines, and at most {ceiling} are its share"
        );
    }
}
