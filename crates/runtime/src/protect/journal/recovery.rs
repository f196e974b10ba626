//! What of a journal's records is used when it is opened.

use super::{Journal, JournalError};
use forebay_journal::{Found, FoundRecord};
use forebay_types::IoError;
use std::time::Duration;

/// Of whom the records in a journal are void, because it failed while they were served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Void {
    /// The journal has not failed.
    #[default]
    Nobody,
    /// Of all its volumes.
    Everybody,
    /// Of the volumes with these names.
    Volumes(Vec<String>),
    /// The same, and their disks have everything that was ever acknowledged.
    Settled(Vec<String>),
}

impl Void {
    /// Whether this volume is named.
    pub(crate) fn names(&self, volume: &str) -> bool {
        self.volumes().is_some_and(|names| names.iter().any(|name| name == volume))
    }

    fn volumes(&self) -> Option<&[String]> {
        match self {
            Self::Nobody | Self::Everybody => None,
            Self::Volumes(names) | Self::Settled(names) => Some(names),
        }
    }

    /// Whether a journal of which nothing counts may be made anew without a question.
    pub(crate) const fn is_settled(&self) -> bool {
        matches!(self, Self::Settled(_))
    }
}

/// How often a log is walked that others write to, before it counts as damaged.
const WALKS_MAX: u32 = 5;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

impl Journal {
    /// Reads again what the log holds of a volume that nobody changes meanwhile, to be restored.
    /// Nothing of it is let go before that.
    ///
    /// # Errors
    /// When it can't be read whole.
    pub(crate) fn read_again(&self, number: u16) -> Result<(), IoError> {
        self.lock().log.retain_records(number);
        let mut records = self.records_of(number)?;
        let mut found = self.found.lock();
        found.records.retain(|other| other.record.volume != number);
        found.records.append(&mut records);
        Ok(())
    }

    /// Everything that is recorded of a volume by now, from the log.
    ///
    /// # Errors
    /// When it can't be read whole.
    pub(crate) fn records_of(&self, number: u16) -> Result<Vec<FoundRecord>, IoError> {
        {
            let mut state = self.lock();
            let end = state.log.next_record();
            while state.log.first_pending_record() < end {
                if let Some(error) = state.log.failed() {
                    return Err(error);
                }
                self.bell.notify_all();
                state = self.written.wait_timeout(state, PAUSE);
            }
        }
        let mut walk = self.walk()?;
        for _ in 1..WALKS_MAX {
            if walk.damage.is_empty() {
                break;
            }
            // A batch of another volume that is being written looks like damage once the next one
            // is there.
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
        let counting = self.lock().log.devices();
        let device = counting.iter().position(|&counts| counts).unwrap_or(0);
        self.devices.walk(device).map_err(|_| IoError::Io)
    }
}

/// Whether nothing in a journal is of use to anybody.
pub(crate) fn is_void(found: &Found, given_up: &Void) -> bool {
    let is_held = |name: &str| {
        let number = found.superblock.volumes.iter().filter(|volume| volume.name == name);
        let numbers: Vec<u16> = number.map(|volume| volume.number).collect();
        found.records.iter().any(|found| numbers.contains(&found.record.volume))
    };
    match given_up {
        Void::Nobody => false,
        Void::Everybody => true,
        Void::Volumes(names) | Void::Settled(names) => {
            let others = found.superblock.volumes.iter().filter(|v| !names.contains(&v.name));
            !others.map(|volume| &volume.name[..]).any(is_held)
        }
    }
}

/// Takes what is void out of what was found, and refuses what can't be used.
pub(crate) fn take(
    name: &str,
    found: &mut Found,
    given_up: &Void,
    accept_loss: bool,
) -> Result<(), JournalError> {
    if is_void(found, given_up) {
        let (name, id) = (name.to_owned(), found.superblock.journal);
        return Err(JournalError::Abandoned { name, id });
    }
    forget_void(found, given_up);
    if let Some(damage) = found.damage.first() {
        let damage = damage.to_string();
        if !accept_loss {
            return Err(JournalError::Damaged { name: name.to_owned(), damage });
        }
        tracing::error!("journal {name} is damaged: {damage}; the loss is accepted");
    }
    Ok(())
}

/// Takes the records that are void out of what was found.
fn forget_void(found: &mut Found, given_up: &Void) {
    let Some(names) = given_up.volumes() else { return };
    let Found { superblock, records, .. } = found;
    superblock.volumes.retain(|volume| !names.contains(&volume.name));
    records.retain(|found| superblock.volume(found.record.volume).is_some());
}
