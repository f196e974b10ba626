//! The journals that volumes name: each opened once, shared by its name, and given up for good
//! when it has failed.
//!
//! The failure of a journal is a file in the state directory ([`crate::marks`]). It is durable
//! before anything is acknowledged without the journal, and as long as it is there, no start uses
//! the records of the volumes that it names again: they are older than the disks.

use super::members::Members;
use crate::marks::{self, Mark};
use crate::reliance::Reliances;
use crate::report::problem as problem_of;
use forebay_api::{ErrorKind, JournalFigures, JournalStatus, Problem};
use forebay_backend::{AlignedBuffer, Backend, Blocking, FileError, OpenError, OpenOptions};
use forebay_config::VolumeSpec;
use forebay_format::journal::{SUPERBLOCK_BYTES, Superblock};
use forebay_runtime::{
    Journal, JournalError, JournalId, JournalSettings, MissingDevice, Runtime, VoidRecords,
    VolumeJournal,
};
use forebay_types::Fault;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The journals of a daemon.
pub(super) struct Journals {
    state_dir: PathBuf,
    /// Those for which memory was set aside at the start, and whether each volume that names them
    /// accepts what has been lost of them.
    planned: BTreeMap<Name, bool>,
    /// The volumes whose disks are the right ones, whatever they look like: the operator's word for
    /// this start.
    accepted_disks: Vec<String>,
    reliances: Arc<Reliances>,
    /// Those that are open, by the words they are named with.
    open: Mutex<Vec<(Name, Arc<Journal>)>>,
}

/// What a journal is called: its device, and its mirror.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    journal: String,
    mirror: Option<String>,
}

impl Name {
    fn of(spec: &VolumeSpec) -> Option<Self> {
        let journal = spec.journal.clone()?;
        Some(Self { journal, mirror: spec.journal_mirror.clone() })
    }

    /// Whether they share a device.
    fn overlaps(&self, other: &Self) -> bool {
        let devices = [Some(&other.journal), other.mirror.as_ref()];
        [Some(&self.journal), self.mirror.as_ref()]
            .into_iter()
            .any(|device| device.is_some() && devices.contains(&device))
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.journal)?;
        self.mirror.iter().try_for_each(|mirror| write!(f, " and {mirror}"))
    }
}

/// The journals that some volumes use together, each with whether all of them accept its loss.
fn named(volumes: &[VolumeSpec]) -> BTreeMap<Name, bool> {
    let mut named = BTreeMap::new();
    for spec in volumes {
        if let Some(name) = Name::of(spec) {
            *named.entry(name).or_insert(true) &= spec.accept_loss;
        }
    }
    named
}

/// How many journals some volumes use together.
pub(super) fn count(volumes: &[VolumeSpec]) -> usize {
    named(volumes).len()
}

impl Journals {
    /// For the volumes that the server starts with.
    pub(super) fn new(
        state_dir: &Path,
        volumes: &[VolumeSpec],
        accepted_disks: Vec<String>,
        reliances: Arc<Reliances>,
    ) -> Self {
        let planned = named(volumes);
        let state_dir = state_dir.to_owned();
        Self { state_dir, planned, accepted_disks, reliances, open: Mutex::default() }
    }

    /// Whether the operator says that the disk of a volume is the right one.
    pub(super) fn accepts_disk_of(&self, volume: &str) -> bool {
        self.accepted_disks.iter().any(|name| name == volume)
    }

    /// The journal that a volume names, opened if it is not yet.
    pub(super) fn of_volume(
        &self,
        runtime: &Runtime,
        spec: &VolumeSpec,
        in_use_wait: Duration,
    ) -> Result<Option<VolumeJournal>, Problem> {
        let Some(name) = Name::of(spec) else { return Ok(None) };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let known = open.iter().find(|(other, _)| other.overlaps(&name));
        let journal = match known {
            Some((other, journal)) if *other == name => Arc::clone(journal),
            Some((other, _)) => {
                let message = format!(
                    "volume '{}': its journal is {name}, and another volume's is {other}",
                    spec.name
                );
                let remedy = "name the same journal and journal-mirror for both, or other devices";
                return Err(Problem::new(ErrorKind::Invalid, message, remedy));
            }
            None => {
                let opened = self.open(runtime, spec, &name, in_use_wait)?;
                open.push((name, Arc::clone(&opened)));
                opened
            }
        };
        let identity = identity(&spec.name, &spec.backing);
        let accept_disk = self.accepts_disk_of(&spec.name);
        let durability = spec.durability;
        Ok(Some(VolumeJournal { journal, durability, identity, accept_disk }))
    }

    fn open(
        &self,
        runtime: &Runtime,
        spec: &VolumeSpec,
        name: &Name,
        in_use_wait: Duration,
    ) -> Result<Arc<Journal>, Problem> {
        let fail = |message: String, remedy: &str| {
            let message = format!("volume '{}': {message}", spec.name);
            Problem::new(ErrorKind::Failed, message, remedy)
        };
        let about = |problem: Problem, what: &str| {
            let message = format!("volume '{}': {what}{}", spec.name, problem.message);
            Problem { message, ..problem }
        };
        let Some(&accept_loss) = self.planned.get(name) else {
            let message =
                format!("journal {name} was not named at the start, so no memory is set aside");
            return Err(fail(message, "restart the server with this volume in its configuration"));
        };
        if is_forgotten_at_boot(&self.state_dir) {
            let message = format!(
                "a journal needs a state directory that outlives a reboot, where its failure would \
                 be on record, and {} does not",
                self.state_dir.display()
            );
            return Err(fail(message, "start the server with --state /var/lib/forebay"));
        }
        let options = OpenOptions { in_use_wait, ..OpenOptions::default() };
        let (backend, mirror) = open_devices(name, &options)
            .map_err(|error| about(problem_of(&error), "its journal: "))?;
        let devices = [Some(&backend), mirror.as_ref().and_then(|mirror| mirror.as_ref().ok())];
        let is_memory = |device: &&Arc<dyn Backend>| device.description().identity.is_none();
        if let Some(memory) = devices.into_iter().flatten().find(is_memory) {
            let device = &memory.description().name;
            let message = format!(
                "its journal {device} is memory of this process, which ends with it: it protects \
                 nothing"
            );
            let remedy = "name a file or device with journal=PATH, or write \
                          protection=none,accept-loss=yes";
            return Err(fail(message, remedy));
        }
        self.may_open(runtime, spec, name, &backend, mirror.as_ref())
            .map_err(|error| problem_of(&error))?;
        let (theirs, ours) = (self.state_dir.clone(), self.state_dir.clone());
        let reliances = Arc::clone(&self.reliances);
        let settings = JournalSettings {
            backend,
            mirror,
            members: Box::new(Members { state_dir: self.state_dir.clone() }),
            accept_loss: accept_loss && spec.accept_loss,
            is_abandoned: Box::new(move |id| void(&marks::path_of(&ours, &id.to_string()))),
            on_failure: Box::new(move |id, error, volumes| {
                let path = marks::path_of(&theirs, &id.to_string());
                marks::put(&path, &error.to_string(), volumes)?;
                reliances.journal_failed(id, volumes)
            }),
        };
        runtime.open_journal(settings).map_err(|error| about(problem_of(&error), ""))
    }

    /// Refuses a journal while nothing on it has changed: one that is not the one that the volume
    /// relies on, and an empty one in the place of one that somebody relies on. What the pool has
    /// is looked into later, volume by volume.
    fn may_open(
        &self,
        runtime: &Runtime,
        spec: &VolumeSpec,
        name: &Name,
        backend: &Arc<dyn Backend>,
        mirror: Option<&Result<Arc<dyn Backend>, MissingDevice>>,
    ) -> Result<(), JournalError> {
        let mirror = mirror.and_then(|mirror| mirror.as_ref().ok());
        let heads: Vec<Head> = [Some(backend), mirror].into_iter().flatten().map(head_of).collect();
        let id = heads.iter().find_map(|head| match head {
            Head::Journal(id) => Some(*id),
            _ => None,
        });
        if id.is_none() && heads.contains(&Head::Other) {
            return Ok(());
        }
        let mut relying = Vec::new();
        if let Some(missing) = self.reliances.elsewhere_than(&spec.name, id) {
            relying.push((missing, spec.name.clone()));
        }
        if id.is_none() {
            let name = name.to_string();
            let volumes = self.reliances.relying_on_journal(&name).into_iter();
            relying.extend(volumes.map(|volume| (name.clone(), volume)));
        }
        let lacking = relying.into_iter().find(|(_, volume)| !runtime.is_in_pool(volume));
        lacking.map_or(Ok(()), |(name, volume)| Err(JournalError::Missing { name, volume }))
    }

    /// How they are doing.
    pub(super) fn status(&self) -> Vec<JournalStatus> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let figures = |(name, journal): &(Name, Arc<Journal>)| {
            let status = journal.status();
            let usage = status.usage;
            JournalFigures {
                name: name.journal.clone(),
                mirror: name.mirror.clone(),
                degraded: status.degraded,
                id: status.id,
                failed: status.failed.map(|error| {
                    status.displaced.map_or_else(|| error.to_string(), |gone| gone.to_string())
                }),
                capacity_bytes: usage.capacity_bytes,
                used_bytes: usage.used_bytes,
                records: usage.records,
                batches: usage.batches,
                written_bytes: usage.written_bytes,
                payload_bytes: usage.payload_bytes,
                checkpoints: usage.checkpoints,
                kept_bytes: status.kept.forward_bytes,
                walks: status.patrol.walks,
                walked_bytes: status.patrol.read_bytes,
                damaged_places: status.patrol.damaged,
                healed_places: status.patrol.healed,
                unserved: journal.unserved(),
            }
        };
        open.iter().map(figures).map(JournalStatus::from).collect()
    }

    /// Says what is held of volumes that are not served.
    pub(super) fn report_unserved(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, journal) in open.iter() {
            for (volume, bytes) in journal.unserved() {
                tracing::warn!(
                    "journal {name} holds {bytes} bytes of volume '{volume}', which is not \
                     served: they are kept until it is"
                );
            }
        }
    }
}

/// The devices of a journal: one that is there, and the other one of two.
type Devices = (Arc<dyn Backend>, Option<Result<Arc<dyn Backend>, MissingDevice>>);

/// Opens the devices of a journal. One of two that can't be opened may be done without; the runtime
/// knows whether.
///
/// # Errors
/// There is no device, or one is in use under another name, perhaps that of the other.
fn open_devices(name: &Name, options: &OpenOptions) -> Result<Devices, OpenError> {
    let open = |device: &String| {
        forebay_backend::open(device, options).map_err(|error| (device.clone(), error))
    };
    let missing =
        |(name, error): (String, OpenError)| MissingDevice { name, error: error.with_causes() };
    let is_alias = |error: &OpenError| matches!(error, OpenError::File(FileError::Alias { .. }));
    // Both stay open until both have been tried, or aliases of each other would not be found.
    match (open(&name.journal), name.mirror.as_ref().map(open)) {
        (_, Some(Err((_, error)))) | (Err((_, error)), _) if is_alias(&error) => Err(error),
        (Ok(first), second) => Ok((first, second.map(|second| second.map_err(missing)))),
        (Err(first), Some(Ok(second))) => Ok((second, Some(Err(missing(first))))),
        (Err((_, error)), _) => Err(error),
    }
}

/// What a device begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Head {
    Journal(JournalId),
    Zeroes,
    /// Whoever opens it says what is wrong with it.
    Other,
}

fn head_of(device: &Arc<dyn Backend>) -> Head {
    let mut copies = [0, SUPERBLOCK_BYTES].map(|_| AlignedBuffer::new(SUPERBLOCK_BYTES));
    for (position, copy) in [0, SUPERBLOCK_BYTES].into_iter().zip(&mut copies) {
        if Blocking::new(&**device).read(position as u64, copy).is_err() {
            return Head::Other;
        }
    }
    match Superblock::newest([&copies[0], &copies[1]]) {
        Ok(superblock) => Head::Journal(superblock.journal),
        Err(_) if copies.iter().all(|copy| copy.iter().all(|&byte| byte == 0)) => Head::Zeroes,
        Err(_) => Head::Other,
    }
}

/// Names a volume's disk in its journal: records of another name or backing are not its own. Four
/// words of FNV-1a (Fowler, Noll, Vo), each from another start; the text is the operator's, so
/// nobody is served by making it collide.
pub(crate) fn identity(name: &str, backing: &str) -> [u8; 32] {
    let mut identity = [0; 32];
    for (start, word) in identity.chunks_exact_mut(8).enumerate() {
        let text = name.bytes().chain([0]).chain(backing.bytes());
        let first = 0xcbf2_9ce4_8422_2325 ^ (start as u64) << 56;
        let sum = text
            .fold(first, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        word.copy_from_slice(&sum.to_le_bytes());
    }
    identity
}

/// Whether a directory lies where the system keeps nothing over a reboot.
pub(super) fn is_forgotten_at_boot(directory: &Path) -> bool {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    ["/run", "/var/run", "/dev/shm"].iter().any(|place| directory.starts_with(place))
}

/// Whose records are void, as the mark says; everybody's where it can't be read.
fn void(mark: &Path) -> VoidRecords {
    match marks::read(mark) {
        Ok(None) => VoidRecords::None,
        Ok(Some(Mark { volumes: Some(names), is_settled: true, .. })) => {
            VoidRecords::Settled(names)
        }
        Ok(Some(Mark { volumes: Some(names), .. })) => VoidRecords::Volumes(names),
        Ok(Some(Mark { volumes: None, .. })) => VoidRecords::All,
        Err(error) => {
            tracing::error!("{} can't be read: {error}", mark.display());
            VoidRecords::All
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_voids_what_it_names_and_everything_where_it_can_not_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = marks::path_of(directory.path(), "abcd");
        assert_eq!(void(&path), VoidRecords::None);
        marks::put(&path, "no space", &["a".to_owned()]).unwrap();
        assert_eq!(void(&path), VoidRecords::Volumes(vec!["a".to_owned()]));
        marks::settle(&path).unwrap();
        assert_eq!(void(&path), VoidRecords::Settled(vec!["a".to_owned()]));
        std::fs::write(&path, "failed").unwrap();
        assert_eq!(void(&path), VoidRecords::All);
        assert_eq!(void(directory.path()), VoidRecords::All, "a directory can't be read");
    }

    #[test]
    fn a_journal_is_damaged_for_all_its_volumes_or_for_none() {
        let spec = |name: &str, accept_loss| VolumeSpec {
            journal: Some("/j".into()),
            accept_loss,
            ..VolumeSpec::new(name, format!("/{name}")).unwrap()
        };
        let name = Name { journal: "/j".into(), mirror: None };
        assert!(named(&[spec("a", true), spec("b", true)])[&name]);
        assert!(!named(&[spec("a", true), spec("b", false)])[&name]);
        assert_eq!(count(&[spec("a", true), spec("b", false)]), 1);
    }

    #[test]
    fn a_device_belongs_to_one_journal() {
        let name = |journal: &str, mirror: Option<&str>| Name {
            journal: journal.into(),
            mirror: mirror.map(str::to_owned),
        };
        let pair = name("/j", Some("/k"));
        for other in [name("/j", None), name("/k", None), name("/l", Some("/k")), pair.clone()] {
            assert!(pair.overlaps(&other) && other.overlaps(&pair));
        }
        assert!(!pair.overlaps(&name("/l", Some("/m"))) && !pair.overlaps(&name("/l", None)));
        assert_eq!(pair.to_string(), "/j and /k");
    }

    #[test]
    fn a_place_that_a_reboot_empties_is_no_place_for_the_record() {
        assert!(is_forgotten_at_boot(Path::new("/run/forebay")));
        assert!(!is_forgotten_at_boot(Path::new("/var/lib/forebay")));
        assert!(!is_forgotten_at_boot(Path::new("/runner")));
    }

    #[test]
    fn another_name_or_backing_is_another_disk() {
        let one = identity("a", "/dev/sdb");
        assert_eq!(one, identity("a", "/dev/sdb"));
        assert_ne!(one, identity("b", "/dev/sdb"));
        assert_ne!(one, identity("a", "/dev/sdc"));
    }
}
