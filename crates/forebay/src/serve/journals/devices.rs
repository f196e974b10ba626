//! The devices of a journal: how they are opened, and what lies on them.

use super::Name;
use forebay_backend::{
    AlignedBuffer, Backend, Blocking, FileBackend, FileError, OpenError, OpenOptions,
};
use forebay_format::journal::{SUPERBLOCK_BYTES, Superblock};
use forebay_runtime::{JournalId, MissingDevice};
use forebay_state::Kind;
use std::path::Path;
use std::sync::Arc;

/// The devices of a journal: an open one, and the second one of a mirrored journal, if it has one.
pub(super) type Devices = (Arc<dyn Backend>, Option<Result<Arc<dyn Backend>, MissingDevice>>);

/// Opens the devices of a journal. One of the two devices of a mirrored journal may be missing; the
/// runtime decides whether the journal can be used without it.
///
/// # Errors
/// Fails if no device can be opened, or if one is in use under another name, such as the other's.
pub(super) fn open_devices(name: &Name, options: &OpenOptions) -> Result<Devices, OpenError> {
    let open = |device: &String| {
        forebay_backend::open(device, options).map_err(|error| (device.clone(), error))
    };
    let missing = |(name, error): (String, OpenError)| MissingDevice { name, error };
    let is_alias = |error: &OpenError| matches!(error, OpenError::File(FileError::Alias { .. }));
    // Both are open at the same time, so that the second open detects an alias of the first.
    match (open(&name.journal), name.mirror.as_ref().map(open)) {
        (_, Some(Err((_, error)))) | (Err((_, error)), _) if is_alias(&error) => Err(error),
        (Ok(first), second) => Ok((first, second.map(|second| second.map_err(missing)))),
        (Err(first), Some(Ok(second))) => Ok((second, Some(Err(missing(first))))),
        (Err((_, error)), _) => Err(error),
    }
}

/// The content of a device's superblocks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    Journal(JournalId),
    Zeroes,
    /// Unreadable or foreign. Opening the journal reports the error.
    Other,
}

impl Head {
    pub(super) const fn journal(&self) -> Option<JournalId> {
        match self {
            Self::Journal(id) => Some(*id),
            Self::Zeroes | Self::Other => None,
        }
    }
}

/// What another host sees of a journal: which state of its superblock is the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum JournalHead {
    /// Nothing was ever written.
    Blank,
    /// Its owner has closed it: the disks have everything.
    Closed { journal: JournalId, sequence: u64 },
    /// A host owns it, or has died with it.
    Open { journal: JournalId, sequence: u64, beat_ms: u32 },
}

/// A journal that another host may own, opened to read its head.
pub(in crate::serve) struct JournalPeek {
    devices: Vec<Arc<dyn Backend>>,
}

impl JournalPeek {
    /// Opens those of its devices that can be opened.
    ///
    /// # Errors
    /// None can.
    pub(in crate::serve) fn open(name: &Name) -> Result<Self, OpenError> {
        let options = OpenOptions::observing();
        let names = [Some(&name.journal), name.mirror.as_ref()].into_iter().flatten();
        let (mut devices, mut failed) = (Vec::new(), None);
        for opened in names.map(|device| forebay_backend::open(device, &options)) {
            match opened {
                Ok(device) => devices.push(device),
                Err(error) => failed = Some(error),
            }
        }
        failed.filter(|_| devices.is_empty()).map_or(Ok(Self { devices }), Err)
    }

    /// Reads the newest superblock of the devices. Waits for them.
    ///
    /// # Errors
    /// None has a journal, or can be read, or the owner may write to one that was not read: the
    /// other one would stand still although it lives.
    pub(in crate::serve) fn head(&self) -> Result<JournalHead, String> {
        let found: Vec<_> = self.devices.iter().map(superblock_of).collect();
        let newest = found.iter().flatten().flatten().max_by_key(|found| found.sequence);
        let Some(Superblock { journal, sequence, is_clean, beat_ms, members, .. }) = newest else {
            return match found.into_iter().find_map(Result::err) {
                Some(error) => Err(format!("its journal cannot be read: {error}")),
                None => Ok(JournalHead::Blank),
            };
        };
        let read: Vec<u64> = found.iter().flatten().flatten().map(|it| it.members.own).collect();
        if !members.numbers().iter().all(|number| read.contains(number)) {
            return Err("one of the two devices of its journal cannot be read".to_owned());
        }
        let (&journal, &sequence, &beat_ms) = (journal, sequence, beat_ms);
        Ok(match is_clean {
            true => JournalHead::Closed { journal, sequence },
            false => JournalHead::Open { journal, sequence, beat_ms },
        })
    }
}

/// The heads of a journal's devices that are open.
pub(super) fn heads_of(
    backend: &Arc<dyn Backend>,
    mirror: Option<&Result<Arc<dyn Backend>, MissingDevice>>,
) -> Vec<Head> {
    let mirror = mirror.and_then(|mirror| mirror.as_ref().ok());
    [Some(backend), mirror].into_iter().flatten().map(head_of).collect()
}

fn head_of(device: &Arc<dyn Backend>) -> Head {
    match superblock_of(device) {
        Ok(Some(superblock)) => Head::Journal(superblock.journal),
        Ok(None) => Head::Zeroes,
        Err(_) => Head::Other,
    }
}

/// The newer superblock of a device, nothing if it has zeroes instead, or why there is none.
fn superblock_of(device: &Arc<dyn Backend>) -> Result<Option<Superblock>, String> {
    let mut copies = [0, SUPERBLOCK_BYTES].map(|_| AlignedBuffer::new(SUPERBLOCK_BYTES));
    let name = &device.description().name;
    for (position, copy) in [0, SUPERBLOCK_BYTES].into_iter().zip(&mut copies) {
        let read = Blocking::new(&**device).read(position as u64, copy);
        read.map_err(|error| format!("{name}: {error}"))?;
    }
    match Superblock::newest([&copies[0], &copies[1]]) {
        Ok(superblock) => Ok(Some(superblock)),
        Err(_) if copies.iter().all(|copy| copy.iter().all(|&byte| byte == 0)) => Ok(None),
        Err(invalid) => Err(format!("{name} {invalid}")),
    }
}

/// Refuses a state directory that every reboot clears, for a journal or vault.
///
/// # Errors
/// Returns the message, which says what would be lost.
pub(in crate::serve) fn check_state_dir(directory: &Path, kind: Kind) -> Result<(), String> {
    if !is_forgotten_at_boot(directory) {
        return Ok(());
    }
    let record = match kind {
        Kind::Journal => "its failure",
        Kind::Vault => "which volumes rely on it",
    };
    Err(format!(
        "a {kind} needs a state directory that outlives a reboot, to record {record}, and {} does \
         not",
        directory.display()
    ))
}

/// Returns true if the directory, which may not exist yet, is in memory, or below one of the places
/// that every reboot clears.
fn is_forgotten_at_boot(directory: &Path) -> bool {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let existing = directory.ancestors().find(|place| place.exists());
    ["/run", "/var/run", "/dev/shm"].iter().any(|place| directory.starts_with(place))
        || existing.is_some_and(|existing| FileBackend::memory_at(existing).is_some())
}

/// The remedy for a journal that cannot be used.
pub(in crate::serve) const NAME_ANOTHER: &str = "name another journal";

/// The remedy for a journal in memory.
pub(crate) const MEMORY_REMEDY: &str = "name a file on a disk or a device with journal=PATH, \
                                        or write protection=none,accept-loss=yes";

/// Checks that a device of a journal keeps its data when the machine fails.
///
/// # Errors
/// Returns the message, which names the memory that it is.
pub(in crate::serve) fn check_lasts(device: &dyn Backend) -> Result<(), String> {
    let name = &device.description().name;
    memory_of(device).map_or(Ok(()), |memory| {
        Err(format!("its journal {name} is {memory}: it protects nothing"))
    })
}

/// The memory in which a device keeps its data; `None` if it is elsewhere.
pub(in crate::serve) fn memory_of(device: &dyn Backend) -> Option<String> {
    if device.description().identity.is_none() {
        return Some("memory of this process, which ends with it".to_owned());
    }
    device.medium().memory.map(|memory| memory_words(&memory))
}

pub(in crate::serve) fn memory_words(memory: &str) -> String {
    format!("in memory ({memory}), which a power failure or reset erases")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_backend::MemoryBackend;
    use forebay_format::journal::{GenerationStart, Geometry, LogKind, Members};

    #[test]
    fn one_device_of_a_mirrored_journal_says_nothing_while_the_other_may_be_written() {
        let device = |sequence, own, current| {
            let size_bytes = 1 << 30;
            let superblock = Superblock {
                journal: JournalId([7; 16]),
                kind: LogKind::Journal,
                sequence,
                size_bytes,
                geometry: Geometry::for_size(size_bytes).unwrap(),
                is_clean: false,
                first_segment: 0,
                starts: vec![GenerationStart { generation: 1, batch: 0, segment: 0 }],
                next_volume: 0,
                volumes: Vec::new(),
                members: Members { own, current },
                beat_ms: 250,
            };
            let device: Arc<dyn Backend> = Arc::new(MemoryBackend::new(16 << 20).unwrap());
            let position = superblock.position();
            Blocking::new(&*device).write(position, &superblock.encode(), false).unwrap();
            device
        };
        let (first, second) = (device(8, 1, [1, 2]), device(9, 2, [1, 2]));
        let head = |devices: &[&Arc<dyn Backend>]| {
            JournalPeek { devices: devices.iter().map(|&it| Arc::clone(it)).collect() }.head()
        };
        let seen = head(&[&first, &second]).unwrap();
        assert!(matches!(seen, JournalHead::Open { sequence: 9, beat_ms: 250, .. }), "{seen:?}");
        assert!(head(&[&first]).unwrap_err().contains("cannot be read"));
        assert!(head(&[&second]).is_err());
        // Its owner continues without the other one.
        let alone = device(12, 2, [2, 0]);
        assert!(head(&[&alone]).is_ok() && head(&[&first, &alone]).is_ok());
    }

    #[test]
    fn directories_that_a_reboot_clears_are_recognised() {
        assert!(is_forgotten_at_boot(Path::new("/run/forebay")));
        assert!(!is_forgotten_at_boot(Path::new("/var/lib/forebay")));
        assert!(!is_forgotten_at_boot(Path::new("/runner")));
    }
}
