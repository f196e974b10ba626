//! Decides which records of a journal are void when it is opened, and reads records again later.

use super::{Journal, JournalError, PAUSE};
use forebay_journal::{Found, FoundRecord, is_durable_before};
use forebay_types::IoError;

/// Which records of a journal are void, because the journal failed while the volumes were served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VoidRecords {
    /// The journal has not failed.
    #[default]
    None,
    /// The records of all its volumes.
    All,
    /// The records of the volumes with these names.
    Volumes(Vec<String>),
    /// The records of the volumes with these names, whose disks have everything by now.
    Settled(Vec<String>),
}

impl VoidRecords {
    /// Whether the volume is one of the named ones.
    pub(crate) fn names(&self, volume: &str) -> bool {
        self.volumes().is_some_and(|names| names.iter().any(|name| name == volume))
    }

    fn volumes(&self) -> Option<&[String]> {
        match self {
            Self::None | Self::All => None,
            Self::Volumes(names) | Self::Settled(names) => Some(names),
        }
    }

    /// Whether the journal may be formatted again without the operator's consent, once all of its
    /// records are void.
    pub(crate) const fn is_settled(&self) -> bool {
        matches!(self, Self::Settled(_))
    }
}

/// The maximum number of walks over a log that is being written. Damage counts only if every walk
/// finds some.
const WALKS_MAX: u32 = 5;

impl Journal {
    /// Reads the log again for a volume whose clients are drained, so that it can be restored.
    /// Until then, its records are not reclaimed.
    pub(crate) fn reload(&self, number: u16) -> Result<(), IoError> {
        self.lock().core.log.retain_records(number);
        let mut records = self.records_of(number)?;
        let mut found = self.found.lock();
        found.records.retain(|other| other.record.volume != number);
        found.records.append(&mut records);
        Ok(())
    }

    /// Reads all records of a volume from the log.
    pub(crate) fn records_of(&self, number: u16) -> Result<Vec<FoundRecord>, IoError> {
        {
            let mut state = self.lock();
            let end = state.core.log.next_record();
            while !is_durable_before(&state.core.log, end)? {
                self.wakeup.notify_all();
                state = self.written.wait_timeout(state, PAUSE);
            }
        }
        let mut walk = self.walk()?;
        for _ in 1..WALKS_MAX {
            if walk.damage.is_empty() {
                break;
            }
            // A batch that is being written looks like damage once the next one is on the device.
            std::thread::sleep(PAUSE);
            walk = self.walk()?;
        }
        if !walk.damage.is_empty() {
            return Err(IoError::Io);
        }
        walk.records.retain(|found| found.record.volume == number);
        Ok(walk.records)
    }

    fn walk(&self) -> Result<Found, IoError> {
        let counting = self.lock().core.log.devices();
        let device = counting.iter().position(|&counts| counts).unwrap_or(0);
        self.devices.walk(device).map_err(|_| IoError::Io)
    }
}

/// Whether all records of a journal are void.
pub(crate) fn is_void(found: &Found, abandoned: &VoidRecords) -> bool {
    let is_held = |name: &str| {
        let number = found.superblock.volumes.iter().filter(|volume| volume.name == name);
        let numbers: Vec<u16> = number.map(|volume| volume.number).collect();
        found.records.iter().any(|found| numbers.contains(&found.record.volume))
    };
    match abandoned {
        VoidRecords::None => false,
        VoidRecords::All => true,
        VoidRecords::Volumes(names) | VoidRecords::Settled(names) => {
            let others = found.superblock.volumes.iter().filter(|v| !names.contains(&v.name));
            !others.map(|volume| &volume.name[..]).any(is_held)
        }
    }
}

/// Removes void records. Fails if all are void, or if records are damaged and `accept_loss` is not
/// set.
pub(crate) fn drop_void_records(
    name: &str,
    found: &mut Found,
    abandoned: &VoidRecords,
    accept_loss: bool,
) -> Result<(), JournalError> {
    if is_void(found, abandoned) {
        let (name, id) = (name.to_owned(), found.superblock.journal);
        return Err(JournalError::Abandoned { name, id });
    }
    forget_void(found, abandoned);
    if let Some(damage) = found.damage.first() {
        let damage = damage.to_string();
        if !accept_loss {
            return Err(JournalError::Damaged { name: name.to_owned(), damage });
        }
        tracing::error!(journal = name, %damage, "journal damaged, loss accepted");
    }
    Ok(())
}

fn forget_void(found: &mut Found, abandoned: &VoidRecords) {
    let Some(names) = abandoned.volumes() else { return };
    let Found { superblock, records, .. } = found;
    superblock.volumes.retain(|volume| !names.contains(&volume.name));
    records.retain(|found| superblock.volume(found.record.volume).is_some());
}
