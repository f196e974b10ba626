//! A journal or a vault that was opened to be looked into: what it holds, and what is wrong.

use super::VolumeArguments;
use super::log::OpenLog;
use crate::marks::{self, Mark};
use crate::reliance::{Holder, Kind, Reliance};
use anyhow::{Context, bail};
use forebay_backend::{Backend, OpenOptions};
use forebay_format::journal::{LogKind, Record, Superblock, VolumeEntry};
use forebay_journal::{Damage, Extent, Found, Image};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open journal or vault.
pub(super) struct Source {
    pub(super) log: OpenLog,
    /// Why what it holds of some volumes is older than their disks, if that is on record.
    pub(super) mark: Option<Mark>,
    state_dir: Option<PathBuf>,
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
    /// Opens and walks a log. What is on record of it is looked for in `state_dir`.
    pub(super) fn open(
        name: &str,
        mirror: Option<&str>,
        read_only: bool,
        state_dir: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        let open = |name| forebay_backend::open(name, &options);
        let (backend, mirror) = (open(name)?, mirror.map(open).transpose()?);
        Self::of(backend, mirror, state_dir)
    }

    /// The same of devices that are open.
    pub(super) fn of(
        backend: Arc<dyn Backend>,
        mirror: Option<Arc<dyn Backend>>,
        state_dir: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let log = OpenLog::of(backend, mirror, state_dir)?;
        let mark = match state_dir {
            None => None,
            Some(directory) => mark_of(&log.found().superblock, directory)?,
        };
        Ok(Self { log, mark, state_dir: state_dir.map(Path::to_owned) })
    }

    /// How it was named by the operator.
    pub(super) fn name(&self) -> String {
        self.log.name()
    }

    pub(super) const fn found(&self) -> &Found {
        self.log.found()
    }

    pub(super) const fn kind(&self) -> LogKind {
        self.found().superblock.kind
    }

    /// Whether it is a dump that did not come to its end. One of nothing holds nothing.
    pub(super) fn is_unfinished(&self) -> bool {
        let Superblock { kind, clean, ref volumes, .. } = self.found().superblock;
        matches!(kind, LogKind::Vault { sealed: None }) && !clean && !volumes.is_empty()
    }

    fn holder(&self) -> Holder {
        let superblock = &self.found().superblock;
        match self.kind() {
            LogKind::Vault { .. } => Holder::Vault(superblock.members.own),
            LogKind::Journal => Holder::Journal(superblock.journal),
        }
    }

    /// The vault, or the other journal, in which the newest of a volume may be.
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

    /// Nothing more of a volume with this number is needed from here: it relies on this no longer,
    /// unless something is held under another number.
    pub(super) fn forget(&self, number: u16, volume: &str) -> anyhow::Result<()> {
        let Some(state_dir) = &self.state_dir else { return Ok(()) };
        let others = self
            .volumes()
            .iter()
            .filter(|other| other.number != number && other.name == volume && other.counts());
        if others.into_iter().any(|other| self.held(other.number).records > 0) {
            return Ok(());
        }
        Reliance::release(state_dir, self.holder(), volume)
            .with_context(|| format!("what relies on {} can't be put on record", self.name()))
    }

    /// The volumes it knows, released ones included.
    pub(super) fn volumes(&self) -> &[VolumeEntry] {
        &self.found().superblock.volumes
    }

    /// Whether its failure says that what it holds of this volume is void.
    pub(super) fn is_given_up(&self, volume: &str) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.voids(volume))
    }

    /// Whether records are missing of which not even the volume is known.
    pub(super) fn lacks_records(&self) -> bool {
        self.found().damage.iter().any(|damage| matches!(damage, Damage::Batches { .. }))
    }

    /// Whether all that it is to hold is there, and all there is of it is known. A copy of the
    /// superblock that was never written, or that a crash has torn, is no damage as long as the
    /// other one is whole.
    pub(super) fn is_whole(&self) -> bool {
        self.found().damage.is_empty() && !self.is_unfinished() && !self.log.may_be_stale
    }

    /// How it is, in one word.
    pub(super) fn state(&self) -> &'static str {
        match () {
            () if !self.found().damage.is_empty() => "damaged",
            () if self.is_unfinished() => "unfinished",
            () if self.log.may_be_stale => "may be older",
            () => "whole",
        }
    }

    /// What it holds of a volume.
    pub(super) fn held(&self, number: u16) -> Held {
        let records = &self.found().records;
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
        let found = &self.found().records[record];
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
            let found = &self.source.found().records[at];
            let Record { volume, range, checksum, .. } = found.record;
            let is_sound =
                |bytes: &[u8]| Record::checksum_of(volume, range.offset, bytes) == checksum;
            let bytes = self.source.log.read(found.position, range.len, is_sound)?;
            self.last = Some((at, bytes));
        }
        let (_, bytes) = self.last.as_ref().expect("it was read just now");
        Ok(Some(&bytes[offset as usize..][..extent.range.len as usize]))
    }
}

/// Why what a log holds is older than some disks, if that is on record.
fn mark_of(superblock: &Superblock, state_dir: &Path) -> anyhow::Result<Option<Mark>> {
    let id = superblock.journal.to_string();
    let (path, void) = match superblock.kind {
        LogKind::Journal => (marks::path_of(state_dir, &id), Vec::new()),
        LogKind::Vault { .. } => {
            let void = Reliance::void_in(state_dir, superblock.members.own)
                .context("who relies on the vault can't be read")?;
            (marks::void_path_of(state_dir, &id), void)
        }
    };
    let mark = marks::read(&path).with_context(|| format!("{} can't be read", path.display()))?;
    let superseded = || Mark {
        reason: "served without the vault later".to_owned(),
        volumes: Some(void.clone()),
        is_settled: false,
    };
    let is_of_vault = matches!(superblock.kind, LogKind::Vault { .. });
    // The end of a dump is the end of all of it.
    let mark = mark.map(|mark| if is_of_vault { Mark { volumes: None, ..mark } } else { mark });
    Ok(mark.or_else(|| (!void.is_empty()).then(superseded)))
}
