//! A journal or vault opened for inspection: its content and its faults.

use super::VolumeArguments;
use super::log::OpenLog;
use anyhow::{Context, anyhow};
use forebay_backend::{Backend, FileError, OpenError, OpenOptions};
use forebay_format::journal::{LogKind, Record, Superblock, VolumeEntry};
use forebay_journal::identity::Evidence;
use forebay_journal::{Damage, Extent, Found, Image};
use forebay_state::marks::{self, Mark};
use forebay_state::{Holder, Kind, Reliance, Tenures};
use forebay_terminal::with_remedy;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open journal or vault.
pub(super) struct Source {
    pub(super) log: OpenLog,
    /// The recorded reason why its data of some volumes is older than their disks.
    pub(super) mark: Option<Mark>,
    state_dir: Option<PathBuf>,
}

/// Opens a device of a rescue. Unlike at a start, the remedy for a missing or empty file is not a
/// new one, which would hold no data to rescue.
pub(super) fn open_existing(name: &str, options: &OpenOptions) -> anyhow::Result<Arc<dyn Backend>> {
    forebay_backend::open(name, options).map_err(|error| match error {
        OpenError::File(FileError::NotFound { .. }) => with_remedy(error, "check the spelling"),
        OpenError::File(FileError::Empty { .. }) => {
            with_remedy(error, "check that it is the right file")
        }
        error => error.into(),
    })
}

/// Adds to what a comparison has shown whether another server has owned the disk since the log's
/// daemon had it, and the log did not go with the disk.
pub(super) fn with_owners(
    source: &Source,
    volume: &str,
    disk: &dyn Backend,
    evidence: Evidence,
) -> anyhow::Result<Evidence> {
    let (Some(tenure), Some(state_dir)) = (disk.tenure(), &source.state_dir) else {
        return Ok(evidence);
    };
    let tenures = Tenures { state_dir: state_dir.clone() };
    let last = tenures.last(volume, &disk.description().name)?;
    let has_other_owner = !tenure.follows(last) && !source.log.is_shared();
    Ok(Evidence { has_other_owner, ..evidence })
}

/// The data that a log holds of one volume.
pub(super) struct HeldVolume {
    /// Extents that may be missing from the disk, in ascending order of offset.
    pub(super) extents: Vec<Extent>,
    /// Number of records.
    pub(super) records: usize,
    /// Bytes of readable writes.
    pub(super) write_bytes: u64,
    pub(super) erased_bytes: u64,
    /// Bytes of damaged writes.
    pub(super) lost_bytes: u64,
}

impl Source {
    /// Opens and walks a log. Its failure mark and reliance record are read from `state_dir`.
    pub(super) fn open(
        name: &str,
        mirror: Option<&str>,
        read_only: bool,
        state_dir: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        let open = |name| open_existing(name, &options);
        let (backend, mirror) = (open(name)?, mirror.map(open).transpose()?);
        Self::walk(backend, mirror, state_dir)
    }

    /// Walks a log on devices that are already open.
    pub(super) fn walk(
        backend: Arc<dyn Backend>,
        mirror: Option<Arc<dyn Backend>>,
        state_dir: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let log = OpenLog::walk(backend, mirror, state_dir)?;
        let mark = match state_dir {
            None => None,
            Some(directory) => read_mark(&log.found().superblock, directory)?,
        };
        Ok(Self { log, mark, state_dir: state_dir.map(Path::to_owned) })
    }

    /// The device names, as given by the operator.
    pub(super) fn name(&self) -> String {
        self.log.name()
    }

    pub(super) const fn found(&self) -> &Found {
        self.log.found()
    }

    pub(super) const fn kind(&self) -> LogKind {
        self.found().superblock.kind
    }

    /// Returns true for an incomplete dump. A dump of no volumes lacks nothing.
    pub(super) fn is_unfinished(&self) -> bool {
        let Superblock { kind, is_clean, ref volumes, .. } = self.found().superblock;
        matches!(kind, LogKind::Vault { sealed: None }) && !is_clean && !volumes.is_empty()
    }

    fn holder(&self) -> Holder {
        let superblock = &self.found().superblock;
        match self.kind() {
            LogKind::Vault { .. } => Holder::Vault(superblock.members.own),
            LogKind::Journal => Holder::Journal(superblock.journal),
        }
    }

    /// Whether the state directory records that the volume relies on this log. If it does not,
    /// either it is not the directory of the log's daemon, or the disk has received all of the
    /// volume's data since. In both cases the disk may have newer data.
    pub(super) fn is_relied_on(&self, volume: &str) -> anyhow::Result<bool> {
        let Some(state_dir) = &self.state_dir else { return Ok(false) };
        Reliance::includes(state_dir, self.holder(), volume)
            .with_context(|| format!("cannot read the reliance record of {}", self.name()))
    }

    /// A vault or another journal that may hold newer data of the volume.
    pub(super) fn newer(&self, volume: &str) -> Option<String> {
        let state_dir = self.state_dir.as_ref()?;
        let own = self.holder();
        let elsewhere = |kind| {
            let name = Reliance::elsewhere(state_dir, kind, volume, Some(own))?;
            Some(format!("{kind} {name}"))
        };
        let journal = matches!(own, Holder::Journal(_)).then(|| elsewhere(Kind::Journal));
        elsewhere(Kind::Vault).or_else(|| journal.flatten())
    }

    /// Removes the volume's reliance on this log after its records under `number` were released,
    /// unless the log also holds records of it under another number.
    pub(super) fn remove_reliance(&self, number: u16, volume: &str) -> anyhow::Result<()> {
        let Some(state_dir) = &self.state_dir else { return Ok(()) };
        let others = self.volumes().iter().filter(|other| {
            other.number != number && other.name == volume && other.has_valid_records()
        });
        if others.into_iter().any(|other| self.held(other.number).records > 0) {
            return Ok(());
        }
        Reliance::release(state_dir, self.holder(), volume)
            .with_context(|| format!("cannot update the reliance record of {}", self.name()))
    }

    /// The volumes in its superblock, including released ones.
    pub(super) fn volumes(&self) -> &[VolumeEntry] {
        &self.found().superblock.volumes
    }

    /// Returns true if a failure mark voids its records of this volume.
    pub(super) fn is_given_up(&self, volume: &str) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.voids(volume))
    }

    /// Returns true if whole batches are unreadable, so any volume may lack records.
    pub(super) fn lacks_records(&self) -> bool {
        self.found().damage.iter().any(|damage| matches!(damage, Damage::Batches { .. }))
    }

    /// Returns true if the log is complete, undamaged and known to be current. An unwritten or torn
    /// copy of the superblock is not damage while the other copy is intact.
    pub(super) fn is_whole(&self) -> bool {
        self.found().damage.is_empty() && !self.is_unfinished() && !self.log.may_be_stale
    }

    /// The state, for display.
    pub(super) fn state(&self) -> &'static str {
        match () {
            () if !self.found().damage.is_empty() => "damaged",
            () if self.is_unfinished() => "unfinished",
            () if self.log.may_be_stale => "may be older",
            () => "whole",
        }
    }

    /// The data it holds of a volume.
    pub(super) fn held(&self, number: u16) -> HeldVolume {
        let records = &self.found().records;
        let extents: Vec<Extent> = Image::of_volume(records, number).extents().collect();
        let count = records.iter().filter(|found| found.record.volume == number).count();
        let mut held =
            HeldVolume { extents, records: count, write_bytes: 0, erased_bytes: 0, lost_bytes: 0 };
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

    /// The record that holds an extent's bytes, its position on the device, and whether it is
    /// damaged; `None` for an erased extent.
    fn record_of(&self, extent: &Extent) -> Option<(usize, u64, bool)> {
        let forebay_journal::Source::Write { record, .. } = extent.source else { return None };
        let found = &self.found().records[record];
        Some((record, found.position, found.is_damaged))
    }

    /// Returns true if the bytes of an extent are damaged.
    pub(super) fn is_lost(&self, extent: &Extent) -> bool {
        self.record_of(extent).is_some_and(|(_, _, is_damaged)| is_damaged)
    }

    /// Finds a volume. If several have the name, prefers the only one with records.
    pub(super) fn find(&self, wanted: &VolumeArguments) -> anyhow::Result<&VolumeEntry> {
        let named = self.volumes().iter().filter(|volume| {
            volume.name == wanted.name && wanted.number.is_none_or(|number| number == volume.number)
        });
        let named: Vec<_> = named.collect();
        let holding = named.iter().filter(|volume| self.held(volume.number).records > 0);
        match (&named[..], &holding.collect::<Vec<_>>()[..]) {
            ([], _) => {
                let (name, here) = (&wanted.name, self.name());
                let remedy = format!("see its volumes with `forebay rescue list {here}`");
                Err(with_remedy(anyhow!("{here} has no volume '{name}'"), remedy))
            }
            ([one], _) => Ok(one),
            (_, [one]) => Ok(one),
            (several, _) => {
                let numbers: Vec<_> = several.iter().map(|v| v.number.to_string()).collect();
                let error = anyhow!("{} has several volumes '{}'", self.name(), wanted.name);
                let remedy = format!("choose one with --number, one of {}", numbers.join(", "));
                Err(with_remedy(error, remedy))
            }
        }
    }
}

/// Reads the bytes of extents, and verifies the checksum of each record again. Caches one record.
pub(super) struct Payloads<'a> {
    source: &'a Source,
    last: Option<(usize, Vec<u8>)>,
}

impl<'a> Payloads<'a> {
    pub(super) const fn new(source: &'a Source) -> Self {
        Self { source, last: None }
    }

    /// The bytes of an extent; `None` for an erased one.
    pub(super) fn read(&mut self, extent: &Extent) -> anyhow::Result<Option<&[u8]>> {
        let forebay_journal::Source::Write { record: at, offset } = extent.source else {
            return Ok(None);
        };
        if self.last.as_ref().is_none_or(|(last, _)| *last != at) {
            let found = &self.source.found().records[at];
            let Record { volume, range, checksum, .. } = found.record;
            let is_sound =
                |bytes: &[u8]| Record::checksum_of(volume, range.offset, bytes) == checksum;
            let bytes = self.source.log.read(found.position, range.len, is_sound)?;
            self.last = Some((at, bytes));
        }
        let (_, bytes) = self.last.as_ref().expect("the record was just read");
        Ok(Some(&bytes[offset as usize..][..extent.range.len as usize]))
    }
}

/// The recorded reason why a log's data is older than some disks.
fn read_mark(superblock: &Superblock, state_dir: &Path) -> anyhow::Result<Option<Mark>> {
    let id = superblock.journal.to_string();
    let (file, void) = match superblock.kind {
        LogKind::Journal => (marks::of_journal(state_dir, &id), Vec::new()),
        LogKind::Vault { .. } => {
            let void = Reliance::void_in(state_dir, superblock.members.own)
                .context("cannot read the vault's reliance record")?;
            (marks::of_dump(state_dir, &id), void)
        }
    };
    let mark = marks::read(&file).context("cannot read failure mark")?;
    let superseded = || Mark {
        reason: "served without the vault since the dump".to_owned(),
        volumes: Some(void.clone()),
        is_settled: false,
    };
    let is_of_vault = matches!(superblock.kind, LogKind::Vault { .. });
    // The mark of a dump lists no volumes, and voids all of them.
    let mark = mark.map(|mark| if is_of_vault { Mark { volumes: None, ..mark } } else { mark });
    Ok(mark.or_else(|| (!void.is_empty()).then(superseded)))
}
