//! The log under inspection: a journal on one or two devices, or a vault.
//!
//! Inspection is read-only. Before a volume is released from a mirrored journal, the members are
//! synchronized and recorded, as a server start would do. Stale and blank devices stay untouched.

use super::access;
use anyhow::{Context, anyhow};
use forebay_backend::{AlignedBuffer, Backend, Blocking};
use forebay_format::journal::{
    LogKind, Members as MemberList, Released, SUPERBLOCK_BYTES, Superblock, SuperblockInvalid,
};
use forebay_journal::{
    Found, MirrorDevice, MirrorStep, RecoverError, RecoveredLog, recover_any, recover_mirrored,
};
use forebay_runtime::LogReader;
use forebay_state::Members;
use forebay_terminal::with_remedy;
use forebay_types::IoError;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes copied between devices per I/O.
const COPY_BYTES: u64 = 1 << 20;

/// The message for [`OpenLog::may_be_stale`].
pub(super) const POSSIBLY_STALE: &str =
    "it is one of the two devices of a mirrored journal, and the other one may be newer";
/// The remedy for [`OpenLog::may_be_stale`].
pub(super) const STALE_REMEDY: &str =
    "name the other device with --mirror, or the daemon's state directory with --state";

/// The devices of a log, and what recovery found on them.
pub(super) struct OpenLog {
    devices: [Option<Arc<dyn Backend>>; 2],
    walked: Walked,
    /// Only one device of a mirrored journal is open, and the other one may be newer.
    pub(super) may_be_stale: bool,
    /// Only one device of a mirrored journal is open.
    pub(super) is_alone: bool,
    state_dir: Option<PathBuf>,
}

enum Walked {
    One(Box<Found>),
    Two(Box<RecoveredLog>),
}

impl OpenLog {
    /// Whether other hosts can take its devices over.
    pub(super) fn is_shared(&self) -> bool {
        self.devices.iter().flatten().all(|device| device.is_shared())
    }

    /// Walks the log on a device and on its mirror, if given.
    pub(super) fn walk(
        device: Arc<dyn Backend>,
        mirror: Option<Arc<dyn Backend>>,
        state_dir: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let is_pair = mirror.is_some();
        if !is_pair {
            let found = walk_one(&*device)?;
            let members = found.superblock.members;
            if found.superblock.kind != LogKind::Journal || members.own == 0 {
                return Ok(Self {
                    devices: [Some(device), None],
                    walked: Walked::One(Box::new(found)),
                    may_be_stale: false,
                    is_alone: false,
                    state_dir: state_dir.map(Path::to_owned),
                });
            }
        }
        let devices = [Some(device), mirror];
        let (recovered, may_be_stale) = walk_both(&devices, state_dir)?;
        let walked = Walked::Two(Box::new(recovered));
        let state_dir = state_dir.map(Path::to_owned);
        Ok(Self { devices, walked, may_be_stale, is_alone: !is_pair, state_dir })
    }

    /// The device names, as given by the operator.
    pub(super) fn name(&self) -> String {
        names(&self.devices).join(" and ")
    }

    pub(super) const fn found(&self) -> &Found {
        match &self.walked {
            Walked::One(found) => found,
            Walked::Two(recovered) => &recovered.found,
        }
    }

    /// For each device, whether it is a member: it holds everything found.
    fn are_members(&self) -> [bool; 2] {
        match &self.walked {
            Walked::One(_) => [true, false],
            Walked::Two(recovered) => recovered.in_sync(),
        }
    }

    /// The member devices, with their indexes.
    fn members(&self) -> impl Iterator<Item = (usize, &dyn Backend)> {
        let are_members = self.are_members();
        let members = self.devices.iter().enumerate().filter(move |(at, _)| are_members[*at]);
        members.filter_map(|(at, device)| Some((at, device.as_deref()?)))
    }

    /// Each copy of the superblock on each device, with its fault if it has one.
    pub(super) fn copies(&self) -> Vec<(String, usize, Option<String>)> {
        let mut copies = Vec::new();
        for device in self.devices.iter().flatten() {
            for copy in 0..2 {
                let position = (copy * SUPERBLOCK_BYTES) as u64;
                let read = access::read(&**device, position, SUPERBLOCK_BYTES as u64);
                let fault = match read.map(|bytes| Superblock::decode(&bytes)) {
                    Err(error) => Some(format!("cannot be read: {error}")),
                    Ok(Err(error)) => Some(error.to_string()),
                    Ok(Ok(_)) => None,
                };
                copies.push((device.description().name.clone(), copy, fault));
            }
        }
        copies
    }

    /// Reads bytes of the log from the first member on which they pass the check.
    pub(super) fn read(
        &self,
        position: u64,
        len: u64,
        is_sound: impl Fn(&[u8]) -> bool,
    ) -> anyhow::Result<Vec<u8>> {
        let mut last_error = None;
        for (_, device) in self.members() {
            let name = &device.description().name;
            last_error = Some(match access::read(device, position, len) {
                Ok(bytes) if is_sound(&bytes) => return Ok(bytes),
                Ok(_) => {
                    anyhow!("{name} returned different data on a second read at byte {position}")
                }
                Err(error) => anyhow!("cannot read {name} at byte {position}: {error}"),
            });
        }
        Err(last_error.expect("at least one device is a member"))
    }

    /// Checks, before any write, that a volume can be released.
    pub(super) fn check_release(&self) -> anyhow::Result<()> {
        let Walked::Two(recovered) = &self.walked else { return Ok(()) };
        let records = recovered.steps().iter().any(|step| matches!(step, MirrorStep::Record(_)));
        if !records || self.state_dir.as_ref().is_some_and(|path| path.is_dir()) {
            return Ok(());
        }
        let error = anyhow!(
            "{} is one device of a mirrored journal, and the daemon's state directory, which \
             records the members, does not exist",
            self.name()
        );
        Err(with_remedy(error, "name the state directory with --state"))
    }

    /// Marks a volume's records as void. The new superblock replaces the older of the two copies
    /// first, so that the newer one survives a torn write, and then the other copy too, so that
    /// the loss of one copy later does not revive the records.
    pub(super) fn release(&self, number: u16, how: Released) -> anyhow::Result<()> {
        self.synchronize()?;
        let mut superblock = self.found().superblock.clone();
        let volume = superblock.volumes.iter_mut().find(|volume| volume.number == number);
        volume.expect("the volume is in this superblock").disk.released = how;
        for _ in 0..2 {
            superblock.sequence += 1;
            for (at, device) in self.members() {
                let members = superblock.members;
                let own = if members.own == 0 { 0 } else { members.current[at] };
                let members = MemberList { own, ..members };
                write(device, &Superblock { members, ..superblock.clone() })?;
            }
        }
        Ok(())
    }

    /// Synchronizes and records the members, as a server start does before it uses the log.
    fn synchronize(&self) -> anyhow::Result<()> {
        let Walked::Two(recovered) = &self.walked else { return Ok(()) };
        let journal = recovered.found.superblock.journal;
        let device = |at: usize| self.devices[at].as_deref().expect("steps name open devices");
        for step in recovered.steps() {
            match step {
                MirrorStep::Record(members) => {
                    let Some(state_dir) = self.state_dir.clone() else { continue };
                    let recorded = Members { state_dir }.record(journal, &members);
                    recorded.context("cannot write the state directory")?;
                }
                MirrorStep::Write { to, position, bytes } => {
                    let name = &device(to).description().name;
                    let written = access::write(device(to), position, &bytes);
                    written
                        .and_then(|()| Blocking::new(device(to)).flush())
                        .context(name.clone())?;
                }
                MirrorStep::Copy(copy) => {
                    for at in (0..copy.len).step_by(COPY_BYTES as usize) {
                        let (position, len) = (copy.position + at, COPY_BYTES.min(copy.len - at));
                        let bytes = access::read(device(copy.from), position, len)?;
                        access::write(device(copy.to), position, &bytes)?;
                    }
                    Blocking::new(device(copy.to)).flush()?;
                }
            }
        }
        Ok(())
    }
}

fn names(devices: &[Option<Arc<dyn Backend>>; 2]) -> Vec<String> {
    devices.iter().flatten().map(|device| device.description().name.clone()).collect()
}

fn walk_one(device: &dyn Backend) -> anyhow::Result<Found> {
    let description = device.description();
    recover_any(&mut LogReader(Blocking::new(device)), description.size_bytes())
        .map_err(|error| unusable(&description.name, &error))
}

/// Walks a mirrored journal on the devices present. Also returns true if a missing device may be
/// newer than the one present.
fn walk_both(
    devices: &[Option<Arc<dyn Backend>>; 2],
    state_dir: Option<&Path>,
) -> anyhow::Result<(RecoveredLog, bool)> {
    let members = state_dir.map(|path| Members { state_dir: path.to_owned() });
    let is_on_record = |journal, member| {
        members.as_ref().is_some_and(|known| known.members(journal).contains(&member))
    };
    let mut open = devices.each_ref().map(|device| {
        let device = device.as_deref()?;
        Some((LogReader(Blocking::new(device)), device.description().size_bytes()))
    });
    let drawn = draw()?;
    let mut recover = |accept_loss| {
        let halves = open.each_mut().map(|device| {
            let (device, size_bytes) = device.as_mut()?;
            Some(MirrorDevice { device, size_bytes: *size_bytes })
        });
        recover_mirrored(halves, drawn, &is_on_record, accept_loss)
    };
    let (recovered, may_be_stale) = match recover(false) {
        Err(RecoverError::MayBeStale { .. }) => (recover(true), true),
        other => (other, false),
    };
    let names = names(devices);
    let recovered = recovered.map_err(|error| match error {
        RecoverError::On { device, error } => unusable(&names[device], &error),
        error => unusable(&names.join(" and "), &error),
    })?;
    let Some(mut recovered) = recovered else {
        let error = anyhow!("{} hold no journal", names.join(" and "));
        return Err(with_remedy(error, "check that they are the right devices"));
    };
    if let Some(device) = recovered.rebuild_target() {
        // A start would rebuild this device; a rescue leaves it alone.
        let _ = recovered.remove_device(device);
    }
    Ok((recovered, may_be_stale))
}

/// Draws two random member numbers.
fn draw() -> anyhow::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("cannot get random numbers from the system")?;
    let drawn = u128::from_le_bytes(bytes);
    // Zero is reserved, and the two must differ: one is odd, the other even and not zero.
    Ok([drawn as u64 | 1, (drawn >> 64) as u64 & !1 | 2])
}

fn unusable(name: &str, error: &RecoverError) -> anyhow::Error {
    let error = match error {
        RecoverError::Superblock(SuperblockInvalid::Foreign) => {
            anyhow!("{name} holds no journal and no vault")
        }
        error => anyhow!("{name} {error}"),
    };
    with_remedy(error, "check that it is the right device")
}

fn write(device: &dyn Backend, superblock: &Superblock) -> anyhow::Result<()> {
    let name = &device.description().name;
    let position = superblock.position();
    let failed = |error: IoError| {
        let error = anyhow::Error::new(error);
        let error = error.context(format!("cannot write the superblock of {name}"));
        with_remedy(error, "run the command again")
    };
    let bytes = AlignedBuffer::from(&superblock.encode()[..]);
    Blocking::new(device).write(position, &bytes, true).map_err(failed)?;
    Blocking::new(device).flush().map_err(failed)?;
    let mut back = AlignedBuffer::new(SUPERBLOCK_BYTES);
    Blocking::new(device).read(position, &mut back).map_err(failed)?;
    if Superblock::decode(&back).as_ref() != Ok(superblock) {
        let error = anyhow!("{name} does not return the superblock just written");
        return Err(with_remedy(error, "copy it to a device that does, and use that one"));
    }
    Ok(())
}
