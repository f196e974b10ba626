//! The objects of a volume that is open for writing: the open one, those on their way to the store,
//! and the map of all.
//!
//! Writes go to the open object, in memory. A full one is **sealed**, and stored by the driver,
//! several at once; a flush seals one that is not full. An object is created only after it was
//! sealed, and never changes. What is still in memory is read from there.
//!
//! A checkpoint is due when reading the objects since the last one would take about as long as
//! reading the map: then the map that is written again and again is at most a sixteenth of the data
//! that is written.

use crate::frames;
use crate::map::{ExtentMap, MapPiece, ObjectPlace};
use crate::object::{ObjectHeader, ObjectKind, SECTORS_MAX, SectorRun, has_room};
use crate::table::ObjectTable;
use crate::{ObjectName, SECTOR_BYTES};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What one object adds to the cost of a recovery, beside a sixteenth of its size, in bytes of map.
const OBJECT_COST: u64 = 64 << 10;
/// The cost of a recovery below which no checkpoint is due.
const RECOVERY_COST_MIN: u64 = 32 << 20;
/// Sectors of unused objects that make a checkpoint due, so that they can be deleted.
const UNUSED_MIN: u64 = 512 << 11;

/// The writer of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeKey {
    /// The volume.
    pub volume: [u8; 16],
    /// Its epoch, which began when this writer opened it.
    pub epoch: u64,
    /// What the writer recognises its objects by.
    pub nonce: u64,
}

/// Sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Sectors of data after which an object is full; at most [`SECTORS_MAX`].
    pub object_sectors: u64,
    /// Sectors that may be in memory and not in the store; at least two objects.
    pub buffer_sectors: u64,
}

/// An object that is complete, and to be stored.
#[derive(Debug)]
pub struct SealedObject {
    /// Its name.
    pub name: ObjectName,
    /// Its first part: header and table.
    pub head: Vec<u8>,
    /// Its second part: the data.
    pub frames: Vec<u8>,
    sectors: u64,
}

impl SealedObject {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        (self.head.len() + self.frames.len()) as u64
    }
}

/// A part of an object that the map still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveRun {
    /// The first sector of the volume.
    pub start: u64,
    /// How many.
    pub len: u64,
    /// The first sector in the object.
    pub at: u64,
}

/// The map after all objects up to one, for a checkpoint.
#[derive(Debug)]
pub struct MapSnapshot {
    /// The number of the last object in it.
    pub covers: u64,
    /// Where the volume is.
    pub map: ExtentMap,
    /// The objects with something in use.
    pub table: ObjectTable,
    /// The objects that are not needed once the checkpoint is stored.
    pub unused: Vec<ObjectName>,
}

struct OpenObject {
    number: u64,
    frames: Vec<u8>,
    sectors: u64,
    runs: Vec<SectorRun>,
}

impl OpenObject {
    fn new(number: u64) -> Self {
        Self { number, frames: Vec::new(), sectors: 0, runs: Vec::new() }
    }
}

struct PendingPut {
    object: Arc<SealedObject>,
    is_started: bool,
}

/// The volume as its writer has it.
pub struct ObjectLog {
    key: VolumeKey,
    settings: LogSettings,
    map: ExtentMap,
    table: ObjectTable,
    open: OpenObject,
    /// The sealed objects that are not stored yet.
    pending: BTreeMap<u64, PendingPut>,
    pending_sectors: u64,
    /// The cost of reading the objects since the last checkpoint.
    recovery_cost: u64,
}

impl ObjectLog {
    /// A volume with this map, whose next object has the number `next`. `replayed` is the number of
    /// objects since its checkpoint.
    ///
    /// # Panics
    /// If the settings are out of their bounds.
    pub fn new(
        key: VolumeKey,
        settings: LogSettings,
        (map, table): (ExtentMap, ObjectTable),
        next: u64,
        replayed: u64,
    ) -> Self {
        assert!((1..=SECTORS_MAX).contains(&settings.object_sectors), "the size of objects");
        assert!(settings.buffer_sectors >= 2 * settings.object_sectors, "the size of the buffer");
        Self {
            key,
            settings,
            map,
            table,
            open: OpenObject::new(next),
            pending: BTreeMap::new(),
            pending_sectors: 0,
            recovery_cost: replayed * OBJECT_COST,
        }
    }

    /// Whether `sectors` more can be accepted now. Always, if nothing is in memory.
    pub fn has_room(&self, sectors: u64) -> bool {
        let buffered = self.pending_sectors + self.open.sectors;
        buffered == 0 || buffered + sectors <= self.settings.buffer_sectors
    }

    /// Writes whole sectors.
    pub fn write(&mut self, start: u64, data: &[u8]) {
        debug_assert!((data.len() as u64).is_multiple_of(SECTOR_BYTES));
        if self.overwrite(start, data) {
            return;
        }
        let (mut start, mut data) = (start, data);
        while !data.is_empty() {
            let sectors = data.len() as u64 / SECTOR_BYTES;
            let taken = sectors.min(self.settings.object_sectors - self.open.sectors);
            let (piece, rest) = data.split_at((taken * SECTOR_BYTES) as usize);
            self.append(start, piece);
            (start, data) = (start + taken, rest);
        }
    }

    /// Writes where the open object already has these sectors. Returns false if it has not all.
    fn overwrite(&mut self, start: u64, data: &[u8]) -> bool {
        if self.open.sectors == 0 {
            return false;
        }
        let number = self.open.number;
        let pieces = self.map.pieces(start, data.len() as u64 / SECTOR_BYTES);
        if pieces.iter().any(|piece| piece.place.is_none_or(|place| place.object != number)) {
            return false;
        }
        for MapPiece { start: from, len, place } in pieces {
            let skip = ((from - start) * SECTOR_BYTES) as usize;
            let part = &data[skip..skip + (len * SECTOR_BYTES) as usize];
            frames::store(&mut self.open.frames, place.map_or(0, |place| place.at), part);
        }
        true
    }

    /// Appends to the open object, and seals it when it is full.
    fn append(&mut self, start: u64, data: &[u8]) {
        let len = data.len() as u64 / SECTOR_BYTES;
        let open = &mut self.open;
        if open.frames.capacity() == 0 {
            open.frames.reserve_exact(frames::bytes_of(self.settings.object_sectors) as usize);
        }
        let place = ObjectPlace { object: open.number, at: open.sectors };
        open.sectors += len;
        frames::extend(&mut open.frames, open.sectors);
        frames::store(&mut open.frames, place.at, data);
        match open.runs.last_mut() {
            Some(last) if !last.is_erased && last.start + last.len == start => last.len += len,
            _ => open.runs.push(SectorRun { start, len, is_erased: false }),
        }
        self.table.grow(place.object, self.key.epoch, len as u32);
        let table = &mut self.table;
        self.map.insert(start, len, place, |object, sectors| table.free(object, sectors));
        self.seal_if_full();
    }

    /// Makes sectors read as zeroes.
    pub fn erase(&mut self, start: u64, len: u64) {
        if self.map.is_hole(start, len) {
            return;
        }
        let table = &mut self.table;
        self.map.remove(start, len, |object, sectors| table.free(object, sectors));
        self.open.runs.push(SectorRun { start, len, is_erased: true });
        self.seal_if_full();
    }

    fn seal_if_full(&mut self) {
        let is_full = self.open.sectors >= self.settings.object_sectors;
        if is_full || !has_room(self.open.runs.len()) {
            self.seal();
        }
    }

    /// Closes the open object, unless it is empty.
    pub fn seal(&mut self) {
        if self.open.runs.is_empty() {
            return;
        }
        let next = OpenObject::new(self.open.number + 1);
        let OpenObject { number, mut frames, sectors, runs } =
            std::mem::replace(&mut self.open, next);
        let name = ObjectName { epoch: self.key.epoch, number };
        frames::sum(&mut frames, name);
        let header = ObjectHeader {
            volume: self.key.volume,
            name,
            nonce: self.key.nonce,
            kind: ObjectKind::Data,
            run_count: runs.len() as u32,
            sectors: sectors as u32,
        };
        let head = header.encode(&runs);
        let object = Arc::new(SealedObject { name, head, frames, sectors });
        self.table.complete(name, header.run_count);
        self.recovery_cost += OBJECT_COST + object.bytes() / 16;
        self.pending_sectors += sectors;
        self.pending.insert(number, PendingPut { object, is_started: false });
    }

    /// The next sealed object to store, which counts as started.
    pub fn next_put(&mut self) -> Option<Arc<SealedObject>> {
        let pending = self.pending.values_mut().find(|pending| !pending.is_started)?;
        pending.is_started = true;
        Some(pending.object.clone())
    }

    /// Records that an object is stored.
    pub fn stored(&mut self, number: u64) {
        if let Some(pending) = self.pending.remove(&number) {
            self.pending_sectors -= pending.object.sectors;
        }
    }

    /// The number of the last object in which there is something that was written so far.
    pub fn last_number(&self) -> u64 {
        if self.open.runs.is_empty() { self.open.number - 1 } else { self.open.number }
    }

    /// The number of the first object that is not stored.
    pub fn first_missing(&self) -> u64 {
        self.pending.keys().next().copied().unwrap_or(self.open.number)
    }

    /// Whether a sealed object that is not full is on its way to the store.
    pub fn is_partial_in_flight(&self) -> bool {
        let full = self.settings.object_sectors;
        self.pending.values().any(|pending| pending.object.sectors < full)
    }

    /// Whether the open object has anything.
    pub fn is_open_empty(&self) -> bool {
        self.open.runs.is_empty()
    }

    /// The number of the open object.
    pub fn open_number(&self) -> u64 {
        self.open.number
    }

    /// Sectors in memory that are not in the store.
    pub fn buffered_sectors(&self) -> u64 {
        self.pending_sectors + self.open.sectors
    }

    /// Where a range of the volume is.
    pub fn pieces(&self, start: u64, len: u64) -> Vec<MapPiece> {
        self.map.pieces(start, len)
    }

    /// Copies data of an object that is still in memory. Returns false if it is not.
    pub fn load(&self, place: ObjectPlace, data: &mut [u8]) -> bool {
        let frames = if place.object == self.open.number {
            &self.open.frames
        } else if let Some(pending) = self.pending.get(&place.object) {
            &pending.object.frames
        } else {
            return false;
        };
        frames::load(frames, place.at, data);
        true
    }

    /// The objects.
    pub fn table(&self) -> &ObjectTable {
        &self.table
    }

    /// The map.
    pub fn map(&self) -> &ExtentMap {
        &self.map
    }

    /// Whether a checkpoint would pay.
    pub fn is_checkpoint_due(&self) -> bool {
        let map_bytes = self.map.bytes() + self.table.len() as u64 * 24;
        self.recovery_cost >= map_bytes + RECOVERY_COST_MIN
            || self.table.unused() >= UNUSED_MIN + map_bytes / 32
    }

    /// Whether there were objects since the last checkpoint.
    pub fn has_changed(&self) -> bool {
        self.recovery_cost > 0
    }

    /// Seals the open object, and takes the map as it is then. It may be stored as a checkpoint
    /// once all objects that it covers are stored.
    pub fn snapshot(&mut self) -> MapSnapshot {
        self.seal();
        self.recovery_cost = 0;
        let mut table = self.table.clone();
        let mut unused = Vec::new();
        for (number, object) in self.table.iter().filter(|(_, object)| object.live == 0) {
            unused.push(ObjectName { epoch: object.epoch, number });
            table.remove(number);
        }
        MapSnapshot { covers: self.open.number - 1, map: self.map.clone(), table, unused }
    }

    /// Forgets the unused objects of a checkpoint that is stored, and in the manifest.
    pub fn checkpointed(&mut self, unused: &[ObjectName]) {
        unused.iter().for_each(|name| self.table.remove(name.number));
    }

    /// The stored object to collect next, if enough is wasted.
    pub fn collectable(&self) -> Option<ObjectName> {
        let number = self.table.candidate(self.first_missing().checked_sub(1)?)?;
        self.table.get(number).map(|object| ObjectName { epoch: object.epoch, number })
    }

    /// The parts of an object with these runs that the map still has there.
    pub fn live_runs(&self, number: u64, runs: &[SectorRun]) -> Vec<LiveRun> {
        let (mut at, mut live) = (0, Vec::new());
        for run in runs.iter().filter(|run| !run.is_erased) {
            for piece in self.map.pieces(run.start, run.len) {
                let expected = ObjectPlace { object: number, at: at + (piece.start - run.start) };
                if piece.place == Some(expected) {
                    live.push(LiveRun { start: piece.start, len: piece.len, at: expected.at });
                }
            }
            at += run.len;
        }
        live
    }

    /// Writes a part of an object again, except what was written since.
    pub fn relocate(&mut self, number: u64, run: LiveRun, data: &[u8]) {
        for piece in self.map.pieces(run.start, run.len) {
            let skip = piece.start - run.start;
            if piece.place == Some(ObjectPlace { object: number, at: run.at + skip }) {
                let from = (skip * SECTOR_BYTES) as usize;
                let part = &data[from..from + (piece.len * SECTOR_BYTES) as usize];
                self.write(piece.start, part);
            }
        }
    }
}
