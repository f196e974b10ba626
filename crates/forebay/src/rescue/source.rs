//! A journal that was opened to be looked into: what it holds, and what is wrong with it.

use super::VolumeArguments;
use super::access;
use crate::marks::{self, Mark};
use anyhow::{Context, bail};
use forebay_backend::{AlignedBuffer, Backend, Blocking, OpenOptions};
use forebay_format::journal::{Record, SUPERBLOCK_BYTES, Superblock, VolumeEntry};
use forebay_journal::{Damage, Extent, Found, Image, ReadAt, recover};
use forebay_types::IoError;
use std::path::Path;
use std::sync::Arc;

/// An open journal.
pub(super) struct Source {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) found: Found,
    /// What is wrong with the copies of the superblock, if anything.
    pub(super) copies: [Option<String>; 2],
    /// Its failure, if that is on record.
    pub(super) mark: Option<Mark>,
}

struct Device<'a>(Blocking<'a>);

impl ReadAt for Device<'_> {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        let mut aligned = AlignedBuffer::new(buffer.len());
        self.0.read(position, &mut aligned)?;
        buffer.copy_from_slice(&aligned);
        Ok(())
    }
}

/// What is held of one volume.
pub(super) struct Held {
    /// What its disk may lack, in the order of the disk.
    pub(super) extents: Vec<Extent>,
    /// Records of it.
    pub(super) records: usize,
    /// Bytes of writes, without what is lost of them.
    pub(super) write_bytes: u64,
    /// Bytes that were erased.
    pub(super) erased_bytes: u64,
    /// Bytes of writes that can't be read any more.
    pub(super) lost_bytes: u64,
}

impl Source {
    /// Opens and walks a journal. Its failure is looked for in `state_dir`.
    pub(super) fn open(
        name: &str,
        read_only: bool,
        state_dir: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        let backend = forebay_backend::open(name, &options)?;
        Self::of(backend, state_dir)
    }

    /// The same of a device that is open.
    pub(super) fn of(backend: Arc<dyn Backend>, state_dir: Option<&Path>) -> anyhow::Result<Self> {
        let name = backend.description().name.clone();
        let size_bytes = backend.description().size_bytes;
        let mut device = Device(Blocking::new(&*backend));
        let found = recover(&mut device, size_bytes)
            .map_err(|error| anyhow::anyhow!("{name} {error}; is it the right device?"))?;
        let copies = [0, 1].map(|copy| {
            let mut bytes = vec![0; SUPERBLOCK_BYTES];
            let read = device.read_at(copy * SUPERBLOCK_BYTES as u64, &mut bytes);
            match read.map(|()| Superblock::decode(&bytes)) {
                Err(error) => Some(format!("can't be read: {error}")),
                Ok(Err(error)) => Some(error.to_string()),
                Ok(Ok(_)) => None,
            }
        });
        let mark = match state_dir {
            None => None,
            Some(directory) => {
                let path = marks::path_of(directory, &found.superblock.journal.to_string());
                marks::read(&path).with_context(|| format!("{} can't be read", path.display()))?
            }
        };
        Ok(Self { backend, found, copies, mark })
    }

    /// How it was named by the operator.
    pub(super) fn name(&self) -> &str {
        &self.backend.description().name
    }

    /// The volumes it knows, released ones included.
    pub(super) fn volumes(&self) -> &[VolumeEntry] {
        &self.found.superblock.volumes
    }

    /// Whether its failure says that what it holds of this volume is void.
    pub(super) fn is_given_up(&self, volume: &str) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.voids(volume))
    }

    /// Whether records are missing of which not even the volume is known.
    pub(super) fn lacks_records(&self) -> bool {
        self.found.damage.iter().any(|damage| matches!(damage, Damage::Batches { .. }))
    }

    /// Whether anything that counts is damaged. A copy of the superblock that was never written, or
    /// that a crash has torn, is no damage as long as the other one is whole.
    pub(super) fn is_whole(&self) -> bool {
        self.found.damage.is_empty()
    }

    /// What it holds of a volume.
    pub(super) fn held(&self, number: u16) -> Held {
        let records = &self.found.records;
        let extents: Vec<Extent> = Image::of_volume(records, number).extents().collect();
        let count = records.iter().filter(|found| found.record.volume == number).count();
        let mut held =
            Held { extents, records: count, write_bytes: 0, erased_bytes: 0, lost_bytes: 0 };
        for extent in &held.extents {
            let bytes = extent.range.len;
            match self.record_of(extent) {
                None => held.erased_bytes += bytes,
                Some((_, _, true)) => held.lost_bytes += bytes,
                Some(_) => held.write_bytes += bytes,
            }
        }
        held
    }

    /// The record that an extent's bytes come from, where they begin on the device, and whether
    /// they are known to be damaged; `None` for what was erased.
    fn record_of(&self, extent: &Extent) -> Option<(usize, u64, bool)> {
        let forebay_journal::Source::Write { record, .. } = extent.source else { return None };
        let found = &self.found.records[record];
        Some((record, found.position, found.is_damaged))
    }

    /// Whether the bytes of an extent are known to be damaged.
    pub(super) fn is_lost(&self, extent: &Extent) -> bool {
        self.record_of(extent).is_some_and(|(_, _, is_damaged)| is_damaged)
    }

    /// The volume that is meant. Where several have the name, the one that something is held of.
    pub(super) fn find(&self, wanted: &VolumeArguments) -> anyhow::Result<&VolumeEntry> {
        let named = self.volumes().iter().filter(|volume| {
            volume.name == wanted.name && wanted.number.is_none_or(|number| number == volume.number)
        });
        let named: Vec<_> = named.collect();
        let holding = named.iter().filter(|volume| self.held(volume.number).records > 0);
        match (&named[..], &holding.collect::<Vec<_>>()[..]) {
            ([], _) => {
                let (name, here) = (&wanted.name, self.name());
                bail!("{here} knows no volume '{name}': `forebay rescue list {here}` names them")
            }
            ([one], _) => Ok(one),
            (_, [one]) => Ok(one),
            (several, _) => {
                let numbers: Vec<_> = several.iter().map(|v| v.number.to_string()).collect();
                bail!(
                    "{} knows several volumes '{}': say which with --number, one of {}",
                    self.name(),
                    wanted.name,
                    numbers.join(", ")
                )
            }
        }
    }
}

/// Reads the bytes of extents, and checks the sum of each record again that it takes them from.
pub(super) struct Payloads<'a> {
    source: &'a Source,
    last: Option<(usize, Vec<u8>)>,
}

impl<'a> Payloads<'a> {
    pub(super) const fn new(source: &'a Source) -> Self {
        Self { source, last: None }
    }

    /// What the extent's range holds; `None` for what was erased.
    pub(super) fn read(&mut self, extent: &Extent) -> anyhow::Result<Option<&[u8]>> {
        let forebay_journal::Source::Write { record: at, offset } = extent.source else {
            return Ok(None);
        };
        if self.last.as_ref().is_none_or(|(last, _)| *last != at) {
            let found = &self.source.found.records[at];
            let Record { volume, range, checksum, .. } = found.record;
            let name = self.source.name();
            let bytes = access::read(&*self.source.backend, found.position, range.len)
                .with_context(|| format!("{name} can't be read at byte {}", found.position))?;
            if Record::checksum_of(volume, range.offset, &bytes) != checksum {
                bail!("{name} read differently a second time at byte {}", found.position);
            }
            self.last = Some((at, bytes));
        }
        let (_, bytes) = self.last.as_ref().expect("it was read just now");
        Ok(Some(&bytes[offset as usize..][..extent.range.len as usize]))
    }
}
