//! The set of a volume's dirty lines in ascending order, with the marks that writeback uses.
//!
//! Each dirty line has three marks. It is *in a destage* or *waits*; a destage of only the sectors
//! under a write does not count. It is *old* if it was dirty at the last pass by age, or has been
//! boosted since. It is *owed* while it waits and a flush, a change of mode or its age demands its
//! destage; while it is in that destage, the mark only tells its age. A *sweep* passes once over
//! the owed lines, whole stripes first, then others in ascending order; an owed line that was busy
//! at its turn has another one when it is not. The elevator passes over all waiting lines, owed or
//! not.
//!
//! The set is a tree of chunks of sixteen lines, so it takes memory only for dirty lines: two bytes
//! for a line among adjacent ones, thirty-two for an isolated line.

use super::line_set::LineSet;
use crate::line::bits::ones;
use forebay_types::{LINE_BYTES, Stripes};
use std::collections::{BTreeMap, BTreeSet};

/// Lines per chunk.
const CHUNK: u64 = u16::BITS as u64;

/// Sixteen consecutive lines, a bit each. Every mark is a subset of `dirty`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LineChunk {
    dirty: u16,
    in_destage: u16,
    old: u16,
    owed: u16,
}

const _: () = assert!(size_of::<(u64, LineChunk)>() == 16, "the memory plan assumes this size");

impl LineChunk {
    /// Dirty lines that are in no destage.
    const fn waiting(self) -> u16 {
        self.dirty & !self.in_destage
    }

    /// Waiting lines whose destage is demanded.
    const fn owed(self) -> u16 {
        self.owed & !self.in_destage
    }

    /// Lines in a destage that were owed when it started, or have become old meanwhile.
    const fn taken(self) -> u16 {
        self.owed & self.in_destage
    }
}

/// The progress of a sweep. Stripes before `whole` and other lines before `rest` have had their
/// turn.
#[derive(Clone, Copy, Debug, Default)]
struct Sweep {
    whole: u64,
    rest: u64,
}

/// The dirty lines of a volume in one shard.
#[derive(Debug)]
pub(crate) struct DirtySet {
    chunks: BTreeMap<u64, LineChunk>,
    lines: usize,
    owed_lines: usize,
    /// Lines in a destage with the mark of owed ones.
    taken_lines: usize,
    /// First lines of stripes whose lines all wait. Updated with each change of a line, because the
    /// elevator needs the next one before each operation.
    whole: LineSet,
    stripes: Stripes,
    size_bytes: u64,
    sweep: Option<Sweep>,
    /// Owed lines that have their turn next: they were busy, or their destage failed.
    again: BTreeSet<u64>,
    /// `None` if no line was dirty at the last tick.
    ages: Option<Ages>,
}

/// Times in milliseconds before which no line of a mark became dirty.
#[derive(Clone, Copy, Debug)]
struct Ages {
    /// Of owed lines, and of those that were owed when their destage started.
    owed: u64,
    /// Of all others.
    old: u64,
    /// Of those among the others that are not old.
    young: u64,
    /// When these times were to be advanced last.
    checked: u64,
}

const fn bit(line: u64) -> u16 {
    1 << (line % CHUNK)
}

impl DirtySet {
    /// An empty set for a volume of `size_bytes`, without stripes.
    pub(crate) fn new(size_bytes: u64) -> Self {
        Self {
            chunks: BTreeMap::new(),
            lines: 0,
            owed_lines: 0,
            taken_lines: 0,
            whole: LineSet::default(),
            stripes: Stripes::NONE,
            size_bytes,
            sweep: None,
            again: BTreeSet::new(),
            ages: None,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.lines
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.lines == 0
    }

    fn chunk(&self, line: u64) -> LineChunk {
        self.chunks.get(&(line / CHUNK)).copied().unwrap_or_default()
    }

    /// A time before which none of the lines became dirty, to a tick. Each pass by age brings it
    /// forward, as soon as its lines are clean; so does [`DirtySet::advance_ages`].
    pub(crate) fn since_ms(&self) -> Option<u64> {
        let has_owed = self.owed_lines + self.taken_lines > 0;
        self.ages.map(|ages| if has_owed { ages.owed.min(ages.old) } else { ages.old })
    }

    /// If lines are dirty and no time is known, sets `ms` as the time since when they are.
    pub(crate) fn record_time(&mut self, ms: u64) {
        if self.lines > 0 {
            self.ages.get_or_insert(Ages { owed: ms, old: ms, young: ms, checked: ms });
        }
    }

    /// Whether a line is dirty.
    pub(crate) fn contains(&self, line: u64) -> bool {
        self.chunk(line).dirty & bit(line) != 0
    }

    /// Whether a line is dirty and in no destage.
    pub(crate) fn is_waiting(&self, line: u64) -> bool {
        self.chunk(line).waiting() & bit(line) != 0
    }

    pub(crate) fn is_owed(&self, line: u64) -> bool {
        self.owed_lines > 0 && self.chunk(line).owed() & bit(line) != 0
    }

    pub(crate) const fn owed_lines(&self) -> usize {
        self.owed_lines
    }

    /// All lines, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        self.iter_from(0)
    }

    /// The lines from `line` on, in ascending order.
    pub(crate) fn iter_from(&self, line: u64) -> impl Iterator<Item = u64> {
        self.chunks.range(line / CHUNK..).flat_map(move |(&at, chunk)| {
            let from = if at == line / CHUNK { u16::MAX << (line % CHUNK) } else { u16::MAX };
            lines_of(at, chunk.dirty & from)
        })
    }

    /// The waiting lines from `line` on, in ascending order.
    pub(crate) fn waiting_from(&self, line: u64) -> impl Iterator<Item = u64> {
        self.chunks.range(line / CHUNK..).flat_map(move |(&at, chunk)| {
            let from = if at == line / CHUNK { u16::MAX << (line % CHUNK) } else { u16::MAX };
            lines_of(at, chunk.waiting() & from)
        })
    }

    /// The first lines, from `line` on, of stripes whose lines all wait.
    pub(crate) fn whole_from(&self, line: u64) -> impl Iterator<Item = u64> {
        self.whole.from(line)
    }

    /// The first line of the stripe that contains a line, if all lines of the stripe wait.
    pub(crate) fn whole_stripe_of(&self, line: u64) -> Option<u64> {
        if self.whole.is_empty() {
            return None;
        }
        let (first, _) = self.stripe_lines(line)?;
        self.whole.contains_range(first, 1).then_some(first)
    }

    /// Adds a line that has become dirty.
    pub(crate) fn insert(&mut self, line: u64) {
        let chunk = self.chunks.entry(line / CHUNK).or_default();
        assert!(chunk.dirty & bit(line) == 0, "line {line} is dirty already");
        chunk.dirty |= bit(line);
        self.lines += 1;
        self.update_whole(line);
    }

    /// Removes a line that has become clean.
    pub(crate) fn remove(&mut self, line: u64) {
        let chunk = self.chunks.get_mut(&(line / CHUNK)).expect("only dirty lines are removed");
        assert!(chunk.dirty & bit(line) != 0, "line {line} is clean already");
        self.owed_lines -= usize::from(chunk.owed() & bit(line) != 0);
        self.taken_lines -= usize::from(chunk.taken() & bit(line) != 0);
        let keep = !bit(line);
        *chunk = LineChunk {
            dirty: chunk.dirty & keep,
            in_destage: chunk.in_destage & keep,
            old: chunk.old & keep,
            owed: chunk.owed & keep,
        };
        if chunk.dirty == 0 {
            self.chunks.remove(&(line / CHUNK));
        }
        self.lines -= 1;
        if self.lines == 0 {
            self.ages = None;
        }
        self.break_whole(line);
    }

    /// Marks a line as in a destage. It is no longer owed; returns whether it was.
    pub(crate) fn mark_in_destage(&mut self, line: u64) -> bool {
        let chunk = self.chunks.get_mut(&(line / CHUNK)).expect("only dirty lines are destaged");
        assert!(chunk.waiting() & bit(line) != 0, "line {line} is in a destage already");
        let was_owed = chunk.owed & bit(line) != 0;
        chunk.in_destage |= bit(line);
        self.owed_lines -= usize::from(was_owed);
        self.taken_lines += usize::from(was_owed);
        self.break_whole(line);
        was_owed
    }

    /// Makes a line that is still dirty after a destage wait for the next one, as old as it is.
    pub(crate) fn clear_in_destage(&mut self, line: u64) {
        let oldest = self.since_ms();
        if let Some(chunk) = self.chunks.get_mut(&(line / CHUNK)) {
            if chunk.taken() & bit(line) != 0 {
                chunk.owed &= !bit(line);
                self.taken_lines -= 1;
                self.ages.iter_mut().zip(oldest).for_each(|(ages, oldest)| ages.old = oldest);
            }
            chunk.in_destage &= !bit(line);
            self.update_whole(line);
        }
    }

    /// Makes a line owed at the next pass by age.
    pub(crate) fn make_old(&mut self, line: u64) {
        if let Some(chunk) = self.chunks.get_mut(&(line / CHUNK)) {
            chunk.old |= bit(line) & chunk.dirty;
        }
    }

    /// Restarts the age of a line that was rewritten during its destage.
    pub(crate) fn make_young(&mut self, line: u64) {
        if let Some(chunk) = self.chunks.get_mut(&(line / CHUNK)) {
            chunk.old &= !bit(line);
            self.taken_lines -= usize::from(chunk.taken() & bit(line) != 0);
            chunk.owed &= !(chunk.taken() & bit(line));
        }
    }

    /// Makes every waiting line owed for which `is_lost` is false, and begins a sweep.
    pub(crate) fn owe_all(&mut self, is_lost: impl Fn(u64) -> bool) {
        let oldest = self.since_ms();
        self.owed_lines = 0;
        let mut gives_up = false;
        for (&at, chunk) in &mut self.chunks {
            let waiting = chunk.waiting();
            let lost = lines_of(at, waiting).filter(|&line| is_lost(line));
            let owed = waiting & !lost.fold(0, |lost, line| lost | bit(line));
            gives_up |= chunk.owed() & !owed != 0;
            chunk.owed = owed | chunk.taken();
            self.owed_lines += owed.count_ones() as usize;
        }
        if let Some((ages, oldest)) = self.ages.as_mut().zip(oldest) {
            ages.owed = oldest;
            if gives_up {
                ages.old = oldest;
            }
        }
        self.begin_sweep();
    }

    /// Makes old lines owed for which `is_lost` is false, all others old, and begins a sweep. Old
    /// lines in a destage only get the mark.
    pub(crate) fn owe_old(&mut self, now_ms: u64, is_lost: impl Fn(u64) -> bool) {
        let (oldest, mut leaves) = (self.since_ms(), false);
        (self.owed_lines, self.taken_lines) = (0, 0);
        for (&at, chunk) in &mut self.chunks {
            let lost = lines_of(at, chunk.old & !chunk.in_destage).filter(|&line| is_lost(line));
            let due = chunk.old & !lost.fold(0, |lost, line| lost | bit(line));
            leaves |= chunk.old & !due & !chunk.owed != 0;
            chunk.owed |= due;
            chunk.old = chunk.dirty;
            self.owed_lines += chunk.owed().count_ones() as usize;
            self.taken_lines += chunk.taken().count_ones() as usize;
        }
        self.ages = self.ages.zip(oldest).map(|(ages, owed)| Ages {
            owed,
            old: if leaves { owed } else { ages.young },
            young: now_ms,
            checked: now_ms,
        });
        self.begin_sweep();
    }

    /// Advances the known age of the lines while no pass by age runs, in steps of `step_ms`. All
    /// lines become old, once those that are old now are clean or owed.
    pub(crate) fn advance_ages(&mut self, now_ms: u64, step_ms: u64) {
        let Some(ages) = &mut self.ages else { return };
        if now_ms < ages.checked.max(ages.young) + step_ms {
            return;
        }
        ages.checked = now_ms;
        if self.chunks.values().any(|chunk| chunk.old & !chunk.owed != 0) {
            return;
        }
        (ages.old, ages.young) = (ages.young, now_ms);
        self.chunks.values_mut().for_each(|chunk| chunk.old = chunk.dirty);
    }

    /// Makes a line no longer owed. `has_failed` if the disk refused it.
    pub(crate) fn clear_owed(&mut self, line: u64, has_failed: bool) {
        let oldest = self.since_ms();
        if !self.is_owed(line) {
            return;
        }
        if let Some((ages, oldest)) = self.ages.as_mut().zip(oldest).filter(|_| has_failed) {
            ages.old = oldest;
        }
        if let Some(chunk) = self.chunks.get_mut(&(line / CHUNK)) {
            self.owed_lines -= 1;
            chunk.owed &= !bit(line);
        }
    }

    /// Makes a line owed if it waits, and gives it a turn. Returns whether it waits.
    pub(crate) fn owe(&mut self, line: u64) -> bool {
        let chunk = self.chunks.get_mut(&(line / CHUNK));
        let Some(chunk) = chunk.filter(|chunk| chunk.waiting() & bit(line) != 0) else {
            return false;
        };
        if self.owed_lines + self.taken_lines == 0 {
            self.ages.iter_mut().for_each(|ages| ages.owed = ages.old);
        }
        self.owed_lines += usize::from(chunk.owed & bit(line) == 0);
        chunk.owed |= bit(line);
        self.again.insert(line);
        true
    }

    /// Gives an owed line another turn, because it is not busy any more.
    #[inline]
    pub(crate) fn retry(&mut self, line: u64) {
        if self.is_owed(line) {
            self.again.insert(line);
        }
    }

    /// Begins a sweep over the owed lines, if there are any.
    pub(crate) fn begin_sweep(&mut self) {
        self.again.clear();
        self.sweep = (self.owed_lines > 0).then(Sweep::default);
    }

    /// Whether a sweep is in progress.
    pub(crate) fn is_sweeping(&self) -> bool {
        self.sweep.is_some() || !self.again.is_empty()
    }

    /// The next owed line. Each has one turn per sweep, and one after [`DirtySet::retry`].
    pub(crate) fn next_owed(&mut self) -> Option<u64> {
        while let Some(line) = self.again.pop_first() {
            if self.is_owed(line) {
                return Some(line);
            }
        }
        let sweep = self.sweep?;
        if let Some(first) = self.whole.from(sweep.whole).find(|&first| self.owes_stripe(first)) {
            self.sweep = Some(Sweep { whole: first + 1, ..sweep });
            return Some(first);
        }
        let next = self.owed_from(sweep.rest);
        let whole = u64::MAX - CHUNK;
        self.sweep = next.map(|line| Sweep { whole, rest: line + 1 });
        next
    }

    /// Whether all lines of a waiting stripe are owed. If not, the sweep takes its owed lines one
    /// by one.
    fn owes_stripe(&self, first: u64) -> bool {
        let count = self.stripe_lines(first).map_or(1, |(_, count)| count);
        (first..first + count).all(|line| self.chunk(line).owed & bit(line) != 0)
    }

    fn owed_from(&self, line: u64) -> Option<u64> {
        self.chunks.range(line / CHUNK..).find_map(|(&at, chunk)| {
            let from = if at == line / CHUNK { u16::MAX << (line % CHUNK) } else { u16::MAX };
            lines_of(at, chunk.owed() & from).next()
        })
    }

    /// Sets the stripes of the volume.
    pub(crate) fn set_stripes(&mut self, stripes: Stripes) {
        self.stripes = stripes;
        self.whole.clear();
        let lines: Vec<u64> = self.waiting_from(0).collect();
        lines.into_iter().for_each(|line| self.update_whole(line));
    }

    /// Notes that the volume has grown.
    pub(crate) fn grow(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
        // The last stripe may be inside the volume now.
        self.set_stripes(self.stripes);
    }

    pub(crate) const fn stripes(&self) -> Stripes {
        self.stripes
    }

    /// The first line and the number of lines of the stripe that contains a line, if the stripe has
    /// several lines and is inside the volume.
    fn stripe_lines(&self, line: u64) -> Option<(u64, u64)> {
        let stripe = self.stripes.stripe_at(line * LINE_BYTES)?;
        let fits = stripe.len > LINE_BYTES && stripe.fits(self.size_bytes);
        fits.then_some((stripe.offset / LINE_BYTES, stripe.len / LINE_BYTES))
    }

    /// Adds the stripe of a line that now waits to the whole ones, if all of its lines wait.
    fn update_whole(&mut self, line: u64) {
        if let Some((first, count)) = self.stripe_lines(line)
            && self.all_wait(first, count)
        {
            self.whole.insert(first);
        }
    }

    /// Removes the stripe of a line that no longer waits from the whole ones.
    fn break_whole(&mut self, line: u64) {
        if !self.whole.is_empty()
            && let Some((first, _)) = self.stripe_lines(line)
        {
            self.whole.remove(first);
        }
    }

    /// Whether all of `count` lines from `first` on wait.
    fn all_wait(&self, first: u64, count: u64) -> bool {
        let mut end = first + count;
        // From the end, because a sequential writer fills the end last.
        while end > first {
            let start = first.max((end - 1) / CHUNK * CHUNK);
            let mask = (u16::MAX >> (CHUNK - (end - start))) << (start % CHUNK);
            if self.chunk(start).waiting() & mask != mask {
                return false;
            }
            end = start;
        }
        true
    }

    /// An estimate in bytes: tree nodes filled in ascending order are half full.
    pub(crate) fn metadata_bytes(&self) -> usize {
        self.chunks.len() * 2 * size_of::<(u64, LineChunk)>() + self.whole.metadata_bytes()
    }

    /// Panics if marks, counts and stripes are inconsistent.
    pub(crate) fn self_check(&self) {
        let (mut lines, mut owed, mut taken) = (0, 0, 0);
        for (at, chunk) in &self.chunks {
            assert!(chunk.dirty != 0, "chunk {at} is empty");
            let marks = chunk.in_destage | chunk.old | chunk.owed;
            assert!(marks & !chunk.dirty == 0, "only dirty lines have marks: {chunk:?}");
            lines += chunk.dirty.count_ones() as usize;
            owed += chunk.owed().count_ones() as usize;
            taken += chunk.taken().count_ones() as usize;
        }
        assert_eq!((lines, owed, taken), (self.lines, self.owed_lines, self.taken_lines));
        for first in self.whole.from(0) {
            let (start, count) = self.stripe_lines(first).expect("a whole stripe is a stripe");
            assert!(
                start == first && self.all_wait(first, count),
                "not all lines of the stripe at {first} wait"
            );
        }
        for line in self.waiting_from(0) {
            let Some((first, count)) = self.stripe_lines(line) else { continue };
            let is_known = self.whole.contains_range(first, 1);
            assert_eq!(is_known, self.all_wait(first, count), "stripe at {first}");
        }
    }
}

/// The lines whose bits are set.
fn lines_of(chunk: u64, bits: u16) -> impl Iterator<Item = u64> {
    ones(bits.into()).map(move |offset| chunk * CHUNK + offset as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The marks of each dirty line: in a destage, old, owed.
    type Plain = BTreeMap<u64, [bool; 3]>;

    fn plain_owed(oracle: &Plain) -> impl Iterator<Item = u64> {
        oracle
            .iter()
            .filter(|(_, [in_destage, _, owed])| !in_destage && *owed)
            .map(|(&line, _)| line)
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_map(
            steps in prop::collection::vec((0u8..9, 0u64..200), 0..300),
            from in 0u64..200,
            stripe in prop::sample::select(vec![0u64, 4, 16, 24]),
        ) {
            let mut set = DirtySet::new(190 * LINE_BYTES);
            if stripe > 0 {
                set.set_stripes(Stripes::new(stripe * LINE_BYTES, 0));
            }
            let mut oracle = Plain::new();
            let mut dirty_at: BTreeMap<u64, u64> = BTreeMap::new();
            for (now_ms, (what, line)) in (0..).zip(steps) {
                let there = oracle.get(&line).copied();
                match (what, there) {
                    (0 | 1, None) => {
                        set.insert(line);
                        oracle.insert(line, [false; 3]);
                        dirty_at.insert(line, now_ms);
                    }
                    (0, Some(_)) => {
                        set.remove(line);
                        oracle.remove(&line);
                        dirty_at.remove(&line);
                    }
                    (2, Some([false, old, owed])) => {
                        prop_assert_eq!(set.mark_in_destage(line), owed);
                        oracle.insert(line, [true, old, false]);
                    }
                    (3, Some([_, old, owed])) => {
                        set.clear_in_destage(line);
                        oracle.insert(line, [false, old, owed]);
                    }
                    (4, _) => {
                        set.owe_all(|at| at == line);
                        oracle
                            .iter_mut()
                            .for_each(|(&at, marks)| marks[2] = at != line && !marks[0]);
                    }
                    (5, _) => {
                        set.owe_old(now_ms, |at| at == line);
                        for (&at, marks) in &mut oracle {
                            let is_due = marks[1] && !marks[0] && at != line;
                            *marks = [marks[0], true, marks[2] || is_due];
                        }
                    }
                    (6, _) => {
                        set.clear_owed(line, true);
                        oracle.entry(line).and_modify(|marks| marks[2] = false);
                    }
                    (7, Some([in_destage, _, owed])) => {
                        // It is written again.
                        set.make_young(line);
                        oracle.insert(line, [in_destage, false, owed]);
                        dirty_at.insert(line, now_ms);
                    }
                    (8, _) => {
                        set.advance_ages(now_ms, 1);
                        for (&at, marks) in &mut oracle {
                            marks[1] = set.chunk(at).old & bit(at) != 0;
                        }
                    }
                    _ => {}
                }
                set.record_time(now_ms);
                set.self_check();
                let oldest = dirty_at.values().min().copied();
                prop_assert_eq!(set.since_ms().is_some(), oldest.is_some());
                prop_assert!(set.since_ms() <= oldest, "{:?} {:?}", set.since_ms(), oldest);
                prop_assert_eq!(set.contains(line), oracle.contains_key(&line));
                prop_assert_eq!(set.is_owed(line), oracle.get(&line).is_some_and(|m| m[2]));
            }
            prop_assert!(set.iter().eq(oracle.keys().copied()));
            let waiting = oracle.range(from..).filter(|(_, marks)| !marks[0]);
            prop_assert!(set.waiting_from(from).eq(waiting.map(|(&line, _)| line)));
            // A sweep gives each owed line that waits one turn, and whole stripes one turn by their
            // first line.
            set.begin_sweep();
            let mut swept: Vec<u64> = std::iter::from_fn(|| set.next_owed()).collect();
            swept.sort_unstable();
            swept.dedup();
            prop_assert!(swept.into_iter().eq(plain_owed(&oracle)));
        }
    }
}
