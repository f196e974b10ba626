//! Where each sector of a volume is.
//!
//! The volume is divided into pages of 4 MiB. A page has the fragments of it that are in objects,
//! in order, of 12 bytes each; consecutive sectors that are consecutive in one object are one
//! fragment. So a volume written in lines of 4 KiB at random takes 3 MiB of memory for each GiB
//! (and up to a quarter more while pages grow), one written in order about 20 KiB. A change of a
//! page moves the fragments behind it, 12 KiB at most for whole lines.
//!
//! A clone shares the pages, and a page is copied when it is changed while it is shared.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Sectors of a page.
pub(crate) const PAGE_SECTORS: u64 = 8192;

/// Where data is: an object, and the first sector of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectPlace {
    /// The number of the object.
    pub object: u64,
    /// The sector in the object.
    pub at: u64,
}

/// A range of the volume that is at one place, or has no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPiece {
    /// The first sector.
    pub start: u64,
    /// How many.
    pub len: u64,
    /// Where; `None` if it reads as zeroes.
    pub place: Option<ObjectPlace>,
}

impl MapPiece {
    /// The place of its end, if it has data.
    fn end_place(&self) -> Option<ObjectPlace> {
        self.place.map(|place| ObjectPlace { at: place.at + self.len, ..place })
    }
}

/// A range of a page in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// The first sector in the page.
    start: u16,
    len: u16,
    /// The sector in the object.
    at: u16,
    /// The number of the object, in 48 bits.
    object_high: u16,
    object_low: u32,
}

const _: () = assert!(size_of::<Fragment>() == 12);

impl Fragment {
    /// `None` for values that a fragment cannot have.
    pub(crate) fn new(start: u64, len: u64, place: ObjectPlace) -> Option<Self> {
        let fits = len > 0 && start + len <= PAGE_SECTORS && place.at + len <= 1 << 16;
        (fits && place.object < 1 << 48).then_some(Self {
            start: start as u16,
            len: len as u16,
            at: place.at as u16,
            object_high: (place.object >> 32) as u16,
            object_low: place.object as u32,
        })
    }

    pub(crate) fn start(self) -> u64 {
        u64::from(self.start)
    }

    pub(crate) fn len(self) -> u64 {
        u64::from(self.len)
    }

    fn end(self) -> u64 {
        self.start() + self.len()
    }

    pub(crate) fn place(self) -> ObjectPlace {
        let object = u64::from(self.object_high) << 32 | u64::from(self.object_low);
        ObjectPlace { object, at: u64::from(self.at) }
    }

    /// The part from `start` to `end`, in sectors of the page.
    fn part(self, start: u64, end: u64) -> Self {
        let place = self.place();
        let at = place.at + (start - self.start());
        Self::new(start, end - start, ObjectPlace { at, ..place })
            .expect("a part of a fragment is one")
    }

    /// Whether the other one continues it.
    fn joins(self, next: Self) -> bool {
        let (place, after) = (self.place(), next.place());
        self.end() == next.start()
            && place.object == after.object
            && place.at + self.len() == after.at
    }
}

/// The fragments of a page, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MapPage(Vec<Fragment>);

impl MapPage {
    /// `None` unless the fragments are in order.
    pub(crate) fn new(fragments: Vec<Fragment>) -> Option<Self> {
        let is_sorted = fragments.windows(2).all(|pair| pair[0].end() <= pair[1].start());
        (is_sorted && !fragments.is_empty()).then_some(Self(fragments))
    }

    pub(crate) fn fragments(&self) -> &[Fragment] {
        &self.0
    }

    /// The fragments that have sectors from `start` to `end`.
    fn touched(&self, start: u64, end: u64) -> std::ops::Range<usize> {
        let first = self.0.partition_point(|fragment| fragment.end() <= start);
        let count = self.0[first..].partition_point(|fragment| fragment.start() < end);
        first..first + count
    }

    /// Puts `new` in the place of all that is from `start` to `end`. Reports what is no longer at a
    /// place.
    fn replace(
        &mut self,
        start: u64,
        end: u64,
        new: Option<Fragment>,
        freed: &mut impl FnMut(u64, u64),
    ) {
        let touched = self.touched(start, end);
        let mut parts: [Option<Fragment>; 3] = [None, new, None];
        for fragment in &self.0[touched.clone()] {
            let (from, to) = (fragment.start().max(start), fragment.end().min(end));
            freed(fragment.place().object, to - from);
            if fragment.start() < start {
                parts[0] = Some(fragment.part(fragment.start(), start));
            }
            if fragment.end() > end {
                parts[2] = Some(fragment.part(end, fragment.end()));
            }
        }
        let first = touched.start;
        let added = parts.iter().flatten().count();
        if added > touched.len() && self.0.len() + added > self.0.capacity() {
            self.0.reserve_exact(self.0.len() / 4 + 4);
        }
        self.0.splice(touched, parts.into_iter().flatten());
        self.join(first.saturating_sub(1), first + added + 1);
    }

    /// Joins the fragments from `first` to before `end` that continue each other.
    fn join(&mut self, first: usize, end: usize) {
        let mut index = first;
        let mut left = end.saturating_sub(first);
        while left > 1 && index + 1 < self.0.len() {
            let (one, next) = (self.0[index], self.0[index + 1]);
            let whole = Fragment::new(one.start(), one.len() + next.len(), one.place());
            match whole.filter(|_| one.joins(next)) {
                Some(whole) => {
                    self.0[index] = whole;
                    self.0.remove(index + 1);
                }
                None => index += 1,
            }
            left -= 1;
        }
    }
}

/// The map of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentMap {
    pages: BTreeMap<u64, Arc<MapPage>>,
    fragment_count: u64,
}

impl ExtentMap {
    /// Records that `len` sectors from `start` are at `place` now. Calls `freed` with the number of
    /// each object that has less of the volume now, and how many sectors less.
    ///
    /// # Panics
    /// If the place is not one that an object can have.
    pub fn insert(
        &mut self,
        start: u64,
        len: u64,
        place: ObjectPlace,
        mut freed: impl FnMut(u64, u64),
    ) {
        for (page, from, to, skipped) in parts(start, len) {
            let at = ObjectPlace { at: place.at + skipped, ..place };
            let new = Fragment::new(from, to - from, at).expect("the place is in an object");
            self.change(page, |page| page.replace(from, to, Some(new), &mut freed));
        }
    }

    /// Records that `len` sectors from `start` read as zeroes now, as [`ExtentMap::insert`].
    pub fn remove(&mut self, start: u64, len: u64, mut freed: impl FnMut(u64, u64)) {
        if len == 0 {
            return;
        }
        let pages = start / PAGE_SECTORS..=(start + len - 1) / PAGE_SECTORS;
        let present: Vec<u64> = self.pages.range(pages).map(|(number, _)| *number).collect();
        for number in present {
            let first = number * PAGE_SECTORS;
            let from = start.max(first) - first;
            let to = (start + len).min(first + PAGE_SECTORS) - first;
            self.change(number, |page| page.replace(from, to, None, &mut freed));
        }
    }

    /// The pieces of a range, which cover it.
    pub fn pieces(&self, start: u64, len: u64) -> Vec<MapPiece> {
        let mut pieces: Vec<MapPiece> = Vec::new();
        for (number, from, to, _) in parts(start, len) {
            let first = number * PAGE_SECTORS;
            let mut done = from;
            if let Some(page) = self.pages.get(&number) {
                for fragment in &page.0[page.touched(from, to)] {
                    let part = fragment.part(fragment.start().max(from), fragment.end().min(to));
                    push(&mut pieces, first + done, part.start() - done, None);
                    push(&mut pieces, first + part.start(), part.len(), Some(part.place()));
                    done = part.end();
                }
            }
            push(&mut pieces, first + done, to - done, None);
        }
        pieces
    }

    /// Whether no sector of the range has data. Takes no longer for a longer range.
    pub fn is_hole(&self, start: u64, len: u64) -> bool {
        let Some(last) = (start + len).checked_sub(1).filter(|_| len > 0) else { return true };
        let (first, last) = (start / PAGE_SECTORS, last / PAGE_SECTORS);
        let mut present = self.pages.range(first..=last);
        match (present.next(), present.nth(1)) {
            (None, _) => true,
            // Of three pages, the one in the middle is in the range.
            (Some(_), Some(_)) => false,
            (Some(_), None) => self.pages.range(first..=last).all(|(number, page)| {
                let begin = number * PAGE_SECTORS;
                let from = start.max(begin) - begin;
                let to = (start + len).min(begin + PAGE_SECTORS) - begin;
                page.touched(from, to).is_empty()
            }),
        }
    }

    /// The number of fragments.
    pub fn fragment_count(&self) -> u64 {
        self.fragment_count
    }

    /// The size of the map in a checkpoint, without headers.
    pub fn bytes(&self) -> u64 {
        self.fragment_count * size_of::<Fragment>() as u64 + self.pages.len() as u64 * 16
    }

    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, &MapPage)> {
        self.pages.iter().map(|(number, page)| (*number, &**page))
    }

    /// Adds a page. Returns false if there is one already.
    pub(crate) fn add_page(&mut self, number: u64, page: MapPage) -> bool {
        self.fragment_count += page.0.len() as u64;
        self.pages.insert(number, Arc::new(page)).is_none()
    }

    fn change(&mut self, number: u64, change: impl FnOnce(&mut MapPage)) {
        let page = Arc::make_mut(self.pages.entry(number).or_default());
        let before = page.0.len() as u64;
        change(page);
        let after = page.0.len() as u64;
        self.fragment_count = self.fragment_count + after - before;
        if after == 0 {
            self.pages.remove(&number);
        }
    }
}

/// Adds a piece, or makes the last one longer. Without data, it continues one without data.
fn push(pieces: &mut Vec<MapPiece>, start: u64, len: u64, place: Option<ObjectPlace>) {
    if len == 0 {
        return;
    }
    match pieces.last_mut() {
        Some(last) if last.end_place() == place => last.len += len,
        _ => pieces.push(MapPiece { start, len, place }),
    }
}

/// The parts of a range in each page: the page, first and end sector in it, and the sectors before.
fn parts(start: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64, u64)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let sector = start + done;
            let from = sector % PAGE_SECTORS;
            let count = (PAGE_SECTORS - from).min(len - done);
            let part = (sector / PAGE_SECTORS, from, from + count, done);
            done += count;
            part
        })
    })
}
