//! A volume from its checkpoint and the objects after it.

use crate::codec::Damaged;
use crate::map::{ExtentMap, ObjectPlace};
use crate::object::{ObjectHeader, ObjectKind, SectorRun};
use crate::table::ObjectTable;
use crate::{Manifest, ObjectName};

/// Why an object cannot follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongObject {
    /// It is not what it should be.
    #[error("object {name} cannot be used")]
    Damaged {
        /// The object.
        name: ObjectName,
        /// What is wrong.
        source: Damaged,
    },
}

/// The volume so far. The driver reads the object [`Replay::next`]. If there is one, it is
/// [applied](Replay::apply); if there is none, the driver puts a tombstone in its place, and
/// applies what is there then.
pub struct Replay {
    volume: [u8; 16],
    sectors: u64,
    map: ExtentMap,
    table: ObjectTable,
    next: u64,
    epochs: std::vec::IntoIter<u64>,
    epoch: u64,
    last_epoch: u64,
    applied: u64,
}

impl Replay {
    /// Begins with the checkpoint of a manifest, or an empty map if it has none.
    pub fn new(manifest: &Manifest, map: ExtentMap, table: ObjectTable) -> Self {
        let mut epochs = manifest.replay.clone().into_iter();
        let epoch = epochs.next().unwrap_or(manifest.epoch);
        Self {
            volume: manifest.volume,
            sectors: manifest.sectors(),
            map,
            table,
            next: manifest.first,
            epochs,
            epoch,
            last_epoch: manifest.epoch,
            applied: 0,
        }
    }

    /// The object that follows.
    pub fn next(&self) -> ObjectName {
        ObjectName { epoch: self.epoch, number: self.next }
    }

    /// Whether the object that follows is of the present epoch. That has not begun, so there is
    /// none.
    pub fn is_last_epoch(&self) -> bool {
        self.epoch == self.last_epoch
    }

    /// Applies the object that follows: its header and, unless it is a tombstone, its runs. After a
    /// tombstone, the next epoch follows.
    ///
    /// # Errors
    /// If it belongs elsewhere.
    pub fn apply(&mut self, header: &ObjectHeader, runs: &[SectorRun]) -> Result<(), WrongObject> {
        let name = self.next();
        if header.volume != self.volume || header.name != name {
            return Err(WrongObject::Damaged { name, source: Damaged::Place });
        }
        self.next += 1;
        if header.kind == ObjectKind::Tombstone {
            if let Some(epoch) = self.epochs.next() {
                self.epoch = epoch;
            }
            return Ok(());
        }
        self.applied += 1;
        self.table.grow(name.number, name.epoch, header.sectors);
        self.table.complete(name, header.run_count);
        let mut at = 0;
        // What the table counts as in use is what the map has: everything, first.
        for run in runs {
            let table = &mut self.table;
            if run.is_erased {
                self.map.remove(run.start, run.len, |object, freed| table.free(object, freed));
            } else {
                let place = ObjectPlace { object: name.number, at };
                let len = run.len;
                self.map.insert(run.start, len, place, |object, freed| table.free(object, freed));
                at += len;
            }
        }
        Ok(())
    }

    /// The size of the volume in sectors, for the check of runs.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Map and table, the number of the next object, and how many objects were applied.
    pub fn end(self) -> ((ExtentMap, ObjectTable), u64, u64) {
        ((self.map, self.table), self.next, self.applied)
    }
}
