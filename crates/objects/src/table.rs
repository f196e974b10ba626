//! How much of each object is still in use, and which one is to be collected.
//!
//! An object of which nothing is in use can be deleted once no checkpoint needs it. One of which
//! little is in use is collected: its rest is written again, into the open object. What an object
//! wastes is what is not in use of it, and [`SHARE_OF_EACH`]: so many small objects, which frequent
//! flushes leave, are joined to large ones. Collection begins when more than a quarter of what is
//! stored is wasted; each round takes the object with the most waste for its size. With that, what
//! is rewritten is at most about three times what was freed, in the worst case of uniform writes.

use crate::ObjectName;
use crate::object::data_offset;
use std::collections::BTreeMap;

/// Sectors that each object counts as wasted, whatever its size.
const SHARE_OF_EACH: u64 = 512;
/// Wasted sectors in all, below which nothing is collected.
const WASTE_MIN: u64 = 32 << 11;

/// An object with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// The epoch in which it was written.
    pub epoch: u64,
    /// The sectors of data in it.
    pub sectors: u32,
    /// How many of them the map has.
    pub live: u32,
    /// The number of runs in its table, which says where its data begins.
    pub runs: u32,
}

impl StoredObject {
    /// Where its data begins, in bytes.
    pub const fn data_offset(&self) -> u64 {
        data_offset(self.runs)
    }

    fn waste(&self) -> u64 {
        u64::from(self.sectors - self.live) + SHARE_OF_EACH
    }

    /// Its sectors, if none is in use.
    fn unused(&self) -> u64 {
        if self.live == 0 { u64::from(self.sectors) } else { 0 }
    }

    fn weight(&self) -> u64 {
        u64::from(self.sectors) + SHARE_OF_EACH
    }
}

/// The objects of a volume that its map needs, and those that a later checkpoint will not need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectTable {
    objects: BTreeMap<u64, StoredObject>,
    sectors: u64,
    live: u64,
    /// Sectors of the objects of which nothing is in use.
    unused: u64,
}

impl ObjectTable {
    /// Adds sectors to an object, or a new one, and counts them as in use.
    pub(crate) fn grow(&mut self, number: u64, epoch: u64, sectors: u32) {
        let empty = StoredObject { epoch, sectors: 0, live: 0, runs: 0 };
        let object = self.objects.entry(number).or_insert(empty);
        self.unused -= object.unused();
        object.sectors += sectors;
        object.live += sectors;
        self.unused += object.unused();
        self.sectors += u64::from(sectors);
        self.live += u64::from(sectors);
    }

    /// Adds an object of which nothing is in use yet.
    pub(crate) fn add_unused(&mut self, name: ObjectName, sectors: u32, runs: u32) -> bool {
        let object = StoredObject { epoch: name.epoch, sectors, live: 0, runs };
        self.sectors += u64::from(sectors);
        self.unused += object.unused();
        self.objects.insert(name.number, object).is_none()
    }

    /// Records the number of runs of an object that is complete now.
    pub(crate) fn complete(&mut self, name: ObjectName, runs: u32) {
        self.grow(name.number, name.epoch, 0);
        if let Some(object) = self.objects.get_mut(&name.number) {
            object.runs = runs;
        }
    }

    /// Counts sectors of an object as in use. Returns false if it has no so many.
    pub(crate) fn use_more(&mut self, number: u64, sectors: u64) -> bool {
        let Some(object) = self.objects.get_mut(&number) else { return false };
        let live = u64::from(object.live) + sectors;
        if live > u64::from(object.sectors) {
            return false;
        }
        self.unused -= object.unused();
        self.live += sectors;
        object.live = live as u32;
        self.unused += object.unused();
        true
    }

    /// Counts sectors of an object as no longer in use.
    ///
    /// # Panics
    /// If the object has not so many in use.
    pub(crate) fn free(&mut self, number: u64, sectors: u64) {
        let object = self.objects.get_mut(&number).expect("the map has objects of the table only");
        object.live = u64::from(object.live)
            .checked_sub(sectors)
            .expect("an object has what the map has of it") as u32;
        self.live -= sectors;
        self.unused += object.unused();
    }

    pub(crate) fn remove(&mut self, number: u64) {
        if let Some(object) = self.objects.remove(&number) {
            self.sectors -= u64::from(object.sectors);
            self.live -= u64::from(object.live);
            self.unused -= object.unused();
        }
    }

    /// An object, by its number.
    pub fn get(&self, number: u64) -> Option<StoredObject> {
        self.objects.get(&number).copied()
    }

    /// All objects, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, StoredObject)> {
        self.objects.iter().map(|(number, object)| (*number, *object))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Sectors of data in all objects, and those in use.
    pub fn sectors(&self) -> (u64, u64) {
        (self.sectors, self.live)
    }

    /// The object to collect next, if enough is wasted, among those with a number up to `last`.
    pub(crate) fn candidate(&self, last: u64) -> Option<u64> {
        let waste = self.sectors - self.live + self.objects.len() as u64 * SHARE_OF_EACH;
        if waste < WASTE_MIN || waste * 3 < self.live {
            return None;
        }
        let of_use = self.objects.range(..=last).filter(|(_, object)| object.live > 0);
        let worst = of_use.max_by(|(_, a), (_, b)| {
            // The larger share of waste: a/b > c/d as a*d > c*b.
            (a.waste() * b.weight()).cmp(&(b.waste() * a.weight()))
        });
        // One that is in use to more than three quarters gains nothing.
        worst.filter(|(_, object)| object.waste() * 4 > object.weight()).map(|(number, _)| *number)
    }

    /// Sectors of the objects of which nothing is in use.
    pub(crate) fn unused(&self) -> u64 {
        self.unused
    }
}
