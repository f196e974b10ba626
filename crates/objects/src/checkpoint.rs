//! The map and the table of objects as they are stored: parts of some MiB.
//!
//! ```text
//! part     magic, version, volume, epoch, last object, index of the part; entries; checksum
//! entry    1, page, number of fragments, the fragments (12 bytes each)
//!        | 2, number, epoch, sectors and runs of an object
//! ```

use crate::codec::{Damaged, NumberReader, begin, checksum, seal, verified};
use crate::log::MapSnapshot;
use crate::map::{ExtentMap, Fragment, MapPage, ObjectPlace, PAGE_SECTORS};
use crate::table::ObjectTable;
use crate::{ObjectName, VolumeKey};

/// Size of a part, at most.
pub const PART_BYTES_MAX: u32 = 9 << 20;
/// Size at which a part is complete: with the largest page it stays below the maximum.
const PART_BYTES: usize = 8 << 20;
const MAGIC: &[u8; 4] = b"FBcp";
const VERSION: u32 = 1;
const PAGE: u8 = 1;
const OBJECT: u8 = 2;

/// A part of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRef {
    /// Its size in bytes.
    pub bytes: u32,
    /// Its checksum.
    pub checksum: u32,
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointRef {
    /// The epoch in which it was written.
    pub epoch: u64,
    /// The last object in it.
    pub covers: u64,
    /// Its parts.
    pub parts: Vec<PartRef>,
}

/// The parts of a checkpoint, one after the other.
pub fn encode(key: VolumeKey, snapshot: &MapSnapshot) -> impl Iterator<Item = Vec<u8>> {
    let mut pages = snapshot.map.pages().peekable();
    let mut objects = snapshot.table.iter().peekable();
    let covers = snapshot.covers;
    let mut index = 0u32;
    std::iter::from_fn(move || {
        if pages.peek().is_none() && objects.peek().is_none() {
            return None;
        }
        let mut part = begin_part(key, covers, index);
        index += 1;
        while part.len() < PART_BYTES
            && let Some((number, page)) = pages.next()
        {
            write_page(&mut part, number, page);
        }
        while part.len() < PART_BYTES
            && let Some((number, object)) = objects.next()
        {
            part.push(OBJECT);
            part.extend(number.to_le_bytes());
            part.extend(object.epoch.to_le_bytes());
            part.extend(object.sectors.to_le_bytes());
            part.extend(object.runs.to_le_bytes());
        }
        seal(&mut part);
        Some(part)
    })
}

fn begin_part(key: VolumeKey, covers: u64, index: u32) -> Vec<u8> {
    let mut part = Vec::new();
    part.extend(MAGIC);
    part.extend(VERSION.to_le_bytes());
    part.extend(key.volume);
    part.extend(key.epoch.to_le_bytes());
    part.extend(covers.to_le_bytes());
    part.extend(index.to_le_bytes());
    part
}

fn write_page(part: &mut Vec<u8>, number: u64, page: &MapPage) {
    part.push(PAGE);
    part.extend(number.to_le_bytes());
    part.extend((page.fragments().len() as u32).to_le_bytes());
    for fragment in page.fragments() {
        let place = fragment.place();
        part.extend((fragment.start() as u16).to_le_bytes());
        part.extend((fragment.len() as u16).to_le_bytes());
        part.extend((place.at as u16).to_le_bytes());
        part.extend(&place.object.to_le_bytes()[..6]);
    }
}

/// What the manifest says of a part.
pub fn part_ref(part: &[u8]) -> PartRef {
    PartRef { bytes: part.len() as u32, checksum: checksum(part) }
}

/// A checkpoint that is being read.
pub struct CheckpointReader {
    volume: [u8; 16],
    /// Epoch and last object.
    name: ObjectName,
    volume_sectors: u64,
    next: u32,
    map: ExtentMap,
    table: ObjectTable,
}

impl CheckpointReader {
    /// Begins to read the checkpoint of an epoch after an object.
    pub fn new(volume: [u8; 16], epoch: u64, covers: u64, volume_sectors: u64) -> Self {
        let name = ObjectName { epoch, number: covers };
        let (map, table) = Default::default();
        Self { volume, name, volume_sectors, next: 0, map, table }
    }

    /// Reads the next part.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn read(&mut self, part: &[u8], expected: PartRef) -> Result<(), Damaged> {
        if part_ref(part) != expected {
            return Err(Damaged::Checksum);
        }
        let mut reader = begin(verified(part)?, MAGIC, VERSION)?;
        let volume: [u8; 16] = reader.array()?;
        let name = ObjectName { epoch: reader.u64()?, number: reader.u64()? };
        if (volume, name, reader.u32()?) != (self.volume, self.name, self.next) {
            return Err(Damaged::Place);
        }
        self.next += 1;
        while !reader.0.is_empty() {
            match reader.u8()? {
                PAGE => self.read_page(&mut reader)?,
                OBJECT => self.read_object(&mut reader)?,
                _ => return Err(Damaged::Value("entry")),
            }
        }
        Ok(())
    }

    fn read_page(&mut self, reader: &mut NumberReader<'_>) -> Result<(), Damaged> {
        let (number, count) = (reader.u64()?, reader.u32()?);
        let first = number.checked_mul(PAGE_SECTORS).filter(|first| *first < self.volume_sectors);
        let first = first.ok_or(Damaged::Value("page"))?;
        if u64::from(count) > PAGE_SECTORS {
            return Err(Damaged::Value("page"));
        }
        let mut fragments = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let (start, len) = (u64::from(reader.u16()?), u64::from(reader.u16()?));
            let at = u64::from(reader.u16()?);
            let mut object = [0; 8];
            object[..6].copy_from_slice(reader.bytes(6)?);
            let place = ObjectPlace { object: u64::from_le_bytes(object), at };
            let is_inside = start + len <= self.volume_sectors - first;
            let fragment = Fragment::new(start, len, place).filter(|_| is_inside);
            fragments.push(fragment.ok_or(Damaged::Value("fragment"))?);
        }
        let page = MapPage::new(fragments).ok_or(Damaged::Value("page"))?;
        if !self.map.add_page(number, page) {
            return Err(Damaged::Value("page"));
        }
        Ok(())
    }

    fn read_object(&mut self, reader: &mut NumberReader<'_>) -> Result<(), Damaged> {
        let (number, epoch) = (reader.u64()?, reader.u64()?);
        let (sectors, runs) = (reader.u32()?, reader.u32()?);
        let fits = number <= self.name.number && u64::from(sectors) <= crate::SECTORS_MAX;
        let name = ObjectName { epoch, number };
        if !fits || !self.table.add_unused(name, sectors, runs) {
            return Err(Damaged::Value("object"));
        }
        Ok(())
    }

    /// The map and the objects, once all parts were read.
    ///
    /// # Errors
    /// If the map has data in an object that does not have it.
    pub fn end(mut self) -> Result<(ExtentMap, ObjectTable), Damaged> {
        for (_, page) in self.map.pages() {
            for fragment in page.fragments() {
                let place = fragment.place();
                let object = self.table.get(place.object).ok_or(Damaged::Value("place"))?;
                let has_it = place.at + fragment.len() <= u64::from(object.sectors);
                if !has_it || !self.table.use_more(place.object, fragment.len()) {
                    return Err(Damaged::Value("place"));
                }
            }
        }
        Ok((self.map, self.table))
    }
}
