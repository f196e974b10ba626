//! The open journals: each is opened for its first volume and shared by all volumes that name it.
//!
//! A failed journal is never used again. Its failure mark ([`marks`]) is durable before a
//! write is acknowledged without the journal. While the mark exists, no start uses the journal's
//! records of the volumes that the mark lists, because they are older than the disks.

mod devices;
mod openings;

pub(super) use devices::{
    JournalHead, JournalPeek, MEMORY_REMEDY, NAME_ANOTHER, check_lasts, check_state_dir, memory_of,
    memory_words,
};

use super::statistics::latency;
use crate::reliance::{KeptMembers, Reliances};
use crate::report::problem as problem_of;
use crate::space;
use devices::{Devices, Head, heads_of, open_devices};
use forebay_api::{ErrorKind, JournalStatus, Problem, UnservedWrites};
use forebay_backend::{Backend, FileError, OpenError, OpenOptions, StoreMedium};
use forebay_config::VolumeSpec;
use forebay_runtime::{
    Journal, JournalError, JournalId, JournalSettings, MissingDevice, Runtime, VoidRecords,
    VolumeJournal,
};
use forebay_state::Kind;
use forebay_state::Members;
use forebay_state::StateFile;
use forebay_state::identity;
use forebay_state::marks::{self, Mark};
use forebay_types::Protection;
use openings::Openings;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// The journals of a daemon.
pub(super) struct Journals {
    state_dir: PathBuf,
    /// The journals that the memory plan includes, each with whether all its volumes have
    /// `accept-loss`.
    planned: BTreeMap<Name, bool>,
    /// Volumes that this start serves even if their disks do not match their fingerprints.
    accepted_disks: Vec<String>,
    reliances: Arc<Reliances>,
    openings: Openings,
    /// The open journals.
    open: Mutex<Vec<(Name, Arc<Journal>)>>,
    /// Held for reading while a journal is found for a volume that does not use it yet.
    leases: RwLock<()>,
    /// Volumes that are served without their failed journals, with the data of the vault.
    replaced: Mutex<Vec<Replaced>>,
    /// What the devices of each journal that was opened lie on.
    media: Mutex<BTreeMap<Name, JournalMedia>>,
}

/// What the devices of a journal lie on.
struct JournalMedia {
    devices: Vec<StoreMedium>,
    /// Whether another host can take all of them over.
    is_shared: bool,
}

/// A volume under a UPS that is served without its failed journal.
struct Replaced {
    volume: String,
    journal: Name,
    reason: String,
}

/// A journal as a volume's settings name it: its device and its mirror.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    journal: String,
    mirror: Option<String>,
}

impl Name {
    pub(super) fn of(spec: &VolumeSpec) -> Option<Self> {
        let journal = spec.config.journal.clone()?;
        Some(Self { journal, mirror: spec.config.journal_mirror.clone() })
    }

    /// The text of a record of a move from this journal.
    fn to_record(&self) -> String {
        let mirror = self.mirror.as_ref().map(|mirror| format!("mirror {mirror}\n"));
        format!("journal {}\n{}", self.journal, mirror.unwrap_or_default())
    }

    fn of_record(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let journal = lines.next()?.strip_prefix("journal ")?.to_owned();
        let mirror = lines.next().and_then(|line| line.strip_prefix("mirror ")).map(str::to_owned);
        Some(Self { journal, mirror })
    }

    /// Returns true if the two share a device.
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

/// How the disk of a volume and the devices of its journal are opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreAccess {
    /// How long to wait for a store that another process has open.
    in_use_wait: Duration,
    /// Whether to end what another host has of them.
    takes_over: bool,
}

impl StoreAccess {
    /// Waits so long for stores in use.
    pub(super) const fn waiting(in_use_wait: Duration) -> Self {
        Self { in_use_wait, takes_over: false }
    }

    /// Takes the stores over from another host.
    pub(super) const TAKING_OVER: Self = Self { in_use_wait: Duration::ZERO, takes_over: true };

    /// The options that apply to all stores of a volume.
    pub(super) fn options(self, spec: &VolumeSpec) -> OpenOptions {
        let Self { in_use_wait, takes_over } = self;
        let reserve = spec.config.reserve;
        // The disk and the devices of the journal share their connection to a cluster, and what
        // shuts out one of them shuts out all.
        let devices = [&spec.config.journal, &spec.config.journal_mirror].into_iter().flatten();
        let connection = std::iter::once(&spec.backing).chain(devices).cloned().collect();
        OpenOptions { in_use_wait, reserve, takes_over, connection, ..OpenOptions::default() }
    }
}

/// The journals that these volumes name, each with whether all its volumes have `accept-loss`.
fn named(volumes: &[VolumeSpec]) -> BTreeMap<Name, bool> {
    let mut named = BTreeMap::new();
    for spec in volumes {
        if let Some(name) = Name::of(spec) {
            *named.entry(name).or_insert(true) &= spec.config.accept_loss;
        }
    }
    named
}

/// The number of journals for which there is memory if the server starts with these volumes: with
/// any, one more than they name, so that a volume can move to another one.
pub(super) fn count(volumes: &[VolumeSpec]) -> usize {
    with_spare(named(volumes).len())
}

const fn with_spare(named: usize) -> usize {
    if named == 0 { 0 } else { named + 1 }
}

/// The longest interval of a journal's beats.
const BEAT_MAX: Duration = Duration::from_secs(5);
/// How long opening a journal waits for another volume that opens the same one.
const OPENING_WAIT: Duration = Duration::from_secs(20);

impl Journals {
    /// Plans the journals of the volumes in the configuration. None is open yet.
    pub(super) fn new(
        state_dir: &Path,
        volumes: &[VolumeSpec],
        accepted_disks: Vec<String>,
        reliances: Arc<Reliances>,
    ) -> Self {
        let planned = named(volumes);
        let state_dir = state_dir.to_owned();
        let (openings, open, leases, replaced, media) = Default::default();
        Self {
            state_dir,
            planned,
            accepted_disks,
            reliances,
            openings,
            open,
            leases,
            replaced,
            media,
        }
    }

    /// Returns true if the operator accepts the disk of a volume for this start.
    pub(super) fn accepts_disk_of(&self, volume: &str) -> bool {
        self.accepted_disks.iter().any(|name| name == volume)
    }

    fn open_ones(&self) -> MutexGuard<'_, Vec<(Name, Arc<Journal>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps all journals open, until a volume uses one that is found meanwhile.
    pub(super) fn lease(&self) -> RwLockReadGuard<'_, ()> {
        self.leases.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record that a volume moves from one journal to another.
    fn move_of(&self, spec: &VolumeSpec) -> StateFile {
        let id: String =
            identity(&spec.name, &spec.backing).iter().map(|byte| format!("{byte:02x}")).collect();
        StateFile::record(self.state_dir.join(format!("{id}.moves")))
    }

    /// Records that a volume is about to leave its journal for another one. A start that finds the
    /// volume relying on the former one begins with that.
    pub(super) fn begin_move(&self, former: &VolumeSpec) -> Result<(), Problem> {
        let Some(name) = Name::of(former) else { return Ok(()) };
        self.move_of(former).replace(name.to_record()).map_err(|error| {
            let message = format!(
                "volume '{}': cannot record in the state directory that it leaves its journal: \
                 {error}",
                former.name
            );
            let remedy = "make the state directory writable, with free space";
            Problem::new(ErrorKind::Failed, message, remedy)
        })
    }

    /// Removes the record of [`Self::begin_move`]: the volume relies on its new journal.
    pub(super) fn end_move(&self, spec: &VolumeSpec) {
        // A record that stays says nothing to a start, unless the volume relies on that journal.
        let _ = self.move_of(spec).remove();
    }

    /// The journal of a volume, and the settings with which the volume is to be added first: those
    /// that it has, or with its former journal, if the last server ended before the volume had
    /// left that.
    pub(super) fn to_begin_with(
        &self,
        runtime: &Runtime,
        spec: &VolumeSpec,
        access: StoreAccess,
    ) -> Result<(Option<VolumeJournal>, VolumeSpec), Problem> {
        let recorded = self.move_of(spec).read_text().ok().flatten();
        let former = recorded.as_deref().and_then(Name::of_record);
        let former = former.filter(|former| {
            Name::of(spec).as_ref() != Some(former) && !runtime.is_in_pool(&spec.name)
        });
        if let Some(former) = former {
            let mut first = spec.clone();
            first.config.protection = match spec.config.protection.has_ups() {
                true => Protection::JournalUps,
                false => Protection::Journal,
            };
            (first.config.journal, first.config.journal_mirror) =
                (Some(former.journal.clone()), former.mirror.clone());
            // Without that journal, or if the volume does not rely on it any more, its own decides.
            if self.reliances.elsewhere_than(&spec.name, None).is_some()
                && let Ok(Some(used)) = self.of_volume(runtime, &first, access)
                && self.reliances.elsewhere_than(&spec.name, Some(used.journal.id())).is_none()
            {
                tracing::warn!(
                    volume = %spec.name,
                    journal = %former,
                    "the last server ended while the volume moved to another journal: its newest \
                     data is in the former one, beginning with that"
                );
                return Ok((Some(used), first));
            }
        }
        let journal = self.of_volume(runtime, spec, access)?;
        Ok((journal, spec.clone()))
    }

    /// Closes the journal that a volume names, if no volume uses it.
    pub(super) fn close_if_unused(&self, runtime: &Runtime, spec: &VolumeSpec) {
        let Some(name) = Name::of(spec) else { return };
        // A later move closes it otherwise.
        let Some(_opening) = self.openings.begin(&name, Duration::ZERO) else { return };
        let Ok(_leases) = self.leases.try_write() else { return };
        let protectors = runtime.volumes().protectors();
        let open = self.open_ones().iter().find(|(other, _)| *other == name).cloned();
        let Some((_, journal)) = open.filter(|(_, journal)| !protectors.is_used(journal)) else {
            return;
        };
        protectors.close_journal(&journal);
        // Not before: until it is closed, who watches it would take it for another host's.
        self.open_ones().retain(|(_, other)| !Arc::ptr_eq(other, &journal));
        self.media.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        tracing::info!(journal = %name, "journal closed, no volume uses it");
    }

    /// Returns the journal that a volume names. Opens it if no other volume has opened it. None
    /// also for a volume that is served without its failed journal.
    pub(super) fn of_volume(
        &self,
        runtime: &Runtime,
        spec: &VolumeSpec,
        access: StoreAccess,
    ) -> Result<Option<VolumeJournal>, Problem> {
        let Some(name) = Name::of(spec) else { return Ok(None) };
        let Some(_opening) = self.openings.begin(&name, OPENING_WAIT) else {
            let message = format!("volume '{}': its journal is being opened already", spec.name);
            let remedy = "repeat the command when that journal's device answers";
            return Err(Problem::new(ErrorKind::Busy, message, remedy));
        };
        let known = self.open_ones().iter().find(|(other, _)| other.overlaps(&name)).cloned();
        let known = known.filter(|(_, journal)| !self.close_if_lost(runtime, journal));
        let journal = match known {
            Some((other, journal)) if other == name => {
                if self.is_replaced(runtime, spec, journal.status().id.as_str()) {
                    self.replace(spec, name, "it failed earlier");
                    return Ok(None);
                }
                journal
            }
            Some((other, _)) => {
                let message = format!(
                    "volume '{}': its journal {name} shares a device with another volume's \
                     journal {other}",
                    spec.name
                );
                let remedy = "name the same journal and journal-mirror for both, or other devices";
                return Err(Problem::new(ErrorKind::Invalid, message, remedy));
            }
            None => {
                let Some(opened) = self.open(runtime, spec, &name, access)? else {
                    return Ok(None);
                };
                self.open_ones().push((name, Arc::clone(&opened)));
                opened
            }
        };
        let identity = identity(&spec.name, &spec.backing);
        let accept_disk = self.accepts_disk_of(&spec.name);
        let durability = spec.config.durability;
        Ok(Some(VolumeJournal { journal, durability, identity, accept_disk }))
    }

    /// Closes a journal that no volume uses, that has failed and that other hosts can take over:
    /// they may have had it since, so it has to be opened anew. Returns whether it was so.
    fn close_if_lost(&self, runtime: &Runtime, journal: &Arc<Journal>) -> bool {
        let protectors = runtime.volumes().protectors();
        let is_lost =
            forebay_runtime::journal_is_shared(journal) && journal.status().failed.is_some();
        if !is_lost || protectors.is_used(journal) {
            return false;
        }
        self.open_ones().retain(|(_, other)| !Arc::ptr_eq(other, journal));
        protectors.close_journal(journal);
        true
    }

    /// The number of other journals that are open or being opened.
    fn others_than(&self, name: &Name) -> usize {
        let mut others = self.openings.under_way();
        others.extend(self.open_ones().iter().map(|(other, _)| other.clone()));
        others.sort();
        others.dedup();
        others.iter().filter(|other| *other != name).count()
    }

    fn open(
        &self,
        runtime: &Runtime,
        spec: &VolumeSpec,
        name: &Name,
        access: StoreAccess,
    ) -> Result<Option<Arc<Journal>>, Problem> {
        let failed = |message: String, remedy: &str| {
            let message = format!("volume '{}': {message}", spec.name);
            Problem::new(ErrorKind::Failed, message, remedy)
        };
        let with_volume = |problem: Problem| {
            let message = format!("volume '{}': {}", spec.name, problem.message);
            Problem { message, ..problem }
        };
        if self.others_than(name) >= with_spare(self.planned.len()) {
            let message = format!(
                "journal {name} was not in the configuration at the start, so the memory plan has \
                 no memory for it"
            );
            return Err(failed(
                message,
                "restart the server with this volume in its configuration",
            ));
        }
        let accept_loss = self.planned.get(name).copied().unwrap_or(spec.config.accept_loss);
        check_state_dir(&self.state_dir, Kind::Journal)
            .map_err(|message| failed(message, "start the server with --state /var/lib/forebay"))?;
        let (backend, mirror) = match open_devices(name, &access.options(spec)) {
            Ok(devices) => devices,
            // No journal may hold the newest data: this one failed, and the vault has it.
            Err(error)
                if has_vaulted(runtime, spec)
                    && self.reliances.elsewhere_than(&spec.name, None).is_none() =>
            {
                self.replace(spec, name.clone(), &error.to_string());
                return Ok(None);
            }
            Err(error) => return Err(self.not_opened(spec, name, &error)),
        };
        let devices = [Some(&backend), mirror.as_ref().and_then(|mirror| mirror.as_ref().ok())];
        for device in devices.into_iter().flatten() {
            check_lasts(&**device).map_err(|message| failed(message, MEMORY_REMEDY))?;
        }
        let devices: Vec<_> = devices.into_iter().flatten().collect();
        let media = JournalMedia {
            is_shared: devices.iter().all(|device| device.is_shared()),
            devices: devices.iter().map(|device| device.medium()).collect(),
        };
        self.media.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), media);
        self.check_reliance(runtime, spec, name, &backend, mirror.as_ref())
            .map_err(|error| problem_of(&error))?;
        let found = heads_of(&backend, mirror.as_ref()).iter().find_map(Head::journal);
        if found.is_some_and(|id| self.is_replaced(runtime, spec, &id.to_string())) {
            self.replace(spec, name.clone(), "it failed earlier");
            return Ok(None);
        }
        [Some(&name.journal), name.mirror.as_ref()]
            .into_iter()
            .flatten()
            .try_for_each(|device| self.reserve(device))
            .map_err(|error| with_volume(problem_of(&error)))?;
        let accept_loss = accept_loss && spec.config.accept_loss;
        let settings = self.settings((backend, mirror), accept_loss, beat_every(spec));
        let opened = runtime.volumes().protectors().open_journal(settings);
        opened.map(Some).map_err(|error| with_volume(problem_of(&error)))
    }

    fn settings(
        &self,
        (backend, mirror): Devices,
        accept_loss: bool,
        beat_every: Option<Duration>,
    ) -> JournalSettings {
        let state_dir = self.state_dir.clone();
        let mark_of = move |id: JournalId| marks::of_journal(&state_dir, &id.to_string());
        let read_mark_of = mark_of.clone();
        let reliances = Arc::clone(&self.reliances);
        JournalSettings {
            backend,
            mirror,
            members: Box::new(KeptMembers(Members { state_dir: self.state_dir.clone() })),
            accept_loss,
            beat_every,
            is_abandoned: Box::new(move |id| void(&read_mark_of(id))),
            on_failure: Box::new(move |id, error, volumes| {
                marks::put(&mark_of(id), &error.to_string(), volumes)?;
                reliances.journal_failed(id, volumes)
            }),
        }
    }

    /// Whether this journal failed while the volume was served, and the vault has the data that the
    /// volume's disk lacks.
    fn is_replaced(&self, runtime: &Runtime, spec: &VolumeSpec, id: &str) -> bool {
        let mark = marks::read(&marks::of_journal(&self.state_dir, id));
        has_vaulted(runtime, spec)
            && mark.is_ok_and(|mark| mark.is_some_and(|mark| mark.voids(&spec.name)))
    }

    /// Serves a volume without its failed journal.
    fn replace(&self, spec: &VolumeSpec, journal: Name, reason: &str) {
        tracing::warn!(
            volume = %spec.name,
            %journal,
            reason,
            "serving the volume without its failed journal, under its UPS alone; its data is \
             loaded from the vault"
        );
        let (volume, reason) = (spec.name.clone(), reason.to_owned());
        let mut replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.push(Replaced { volume, journal, reason });
    }

    /// Records after an orderly stop that failed journals are no longer needed, if all volumes that
    /// continued without them were served: their disks have everything.
    pub(super) fn settle_replaced(&self) {
        let replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        let names: Vec<&str> = replaced.iter().map(|replaced| &*replaced.volume).collect();
        if let Err(error) = marks::settle_all_of(&self.state_dir, &names) {
            tracing::error!(%error, "cannot record that failed journals are no longer needed");
        }
    }

    /// Allocates the blocks of a device that is a file: on a full file system, writes to the holes
    /// of a sparse one would fail.
    fn reserve(&self, device: &str) -> Result<(), space::AllocateError> {
        let path = forebay_backend::plain_path(device);
        path.map_or(Ok(()), |path| space::allocate_all(path, Kind::Journal, &self.state_dir))
    }

    /// Whether this server has the journal open, and it has not failed.
    pub(super) fn is_working(&self, name: &Name) -> bool {
        let open = self.open_ones().iter().find(|(open, _)| open == name).cloned();
        open.is_some_and(|(_, journal)| journal.status().failed.is_none())
    }

    /// Sets how often each journal tells other hosts that its owner lives, from the settings of the
    /// volumes that are served.
    pub(super) fn set_beats(&self, served: &[VolumeSpec]) {
        for (name, journal) in self.open_ones().iter() {
            let mut using =
                served.iter().filter(|it| Name::of(it).as_ref() == Some(name)).peekable();
            // One that is being opened has the interval of its first volume.
            if using.peek().is_some() {
                forebay_runtime::beat_every(journal, using.filter_map(beat_every).min());
            }
        }
    }

    /// What the devices of a volume's journal lie on; nothing without a journal.
    pub(super) fn media_of(&self, spec: &VolumeSpec) -> Vec<StoreMedium> {
        let media = self.media.lock().unwrap_or_else(PoisonError::into_inner);
        let found = Name::of(spec).and_then(|name| media.get(&name));
        found.map(|media| media.devices.clone()).unwrap_or_default()
    }

    /// Whether the journal of a volume is open, and another host can take it over as it does the
    /// disk: the volume's newest data is then in it, whoever has written that.
    pub(super) fn is_shared(&self, spec: &VolumeSpec) -> bool {
        let media = self.media.lock().unwrap_or_else(PoisonError::into_inner);
        Name::of(spec).and_then(|name| media.get(&name)).is_some_and(|media| media.is_shared)
    }

    /// The problem of a volume whose journal's devices cannot be opened.
    fn not_opened(&self, spec: &VolumeSpec, name: &Name, error: &OpenError) -> Problem {
        let volume = &spec.name;
        // A new file, which the error suggests, would not have the journal's data.
        if let OpenError::File(FileError::NotFound { .. }) = error
            && let Some(missing) = self.reliances.elsewhere_than(volume, None)
        {
            let message = format!(
                "volume '{volume}': its journal {name} does not exist, and its newest data may be \
                 in journal {missing}"
            );
            let remedy = format!(
                "restore that journal, or if it is lost, start once with --accept-lost-journal \
                 {volume}"
            );
            return Problem::new(ErrorKind::Failed, message, remedy);
        }
        let problem = problem_of(error);
        let message = format!("volume '{volume}': its journal: {}", problem.message);
        Problem { message, ..problem }
    }

    /// Checks the reliance records before the journal is opened, which may write to it. Refuses a
    /// journal other than the one that the volume relies on, and an empty one under a name that any
    /// volume relies on. A volume in the pool passes: the runtime checks it when it is added.
    fn check_reliance(
        &self,
        runtime: &Runtime,
        spec: &VolumeSpec,
        name: &Name,
        backend: &Arc<dyn Backend>,
        mirror: Option<&Result<Arc<dyn Backend>, MissingDevice>>,
    ) -> Result<(), JournalError> {
        let heads = heads_of(backend, mirror);
        let id = heads.iter().find_map(Head::journal);
        if id.is_none() && heads.contains(&Head::Other) {
            return Ok(());
        }
        let mut relying = Vec::new();
        if let Some(missing) = self.reliances.elsewhere_than(&spec.name, id) {
            relying.push((missing, spec.name.clone()));
        }
        if id.is_none() {
            let name = name.to_string();
            match self.reliances.relying_on_journal(&name) {
                Ok(volumes) => {
                    relying.extend(volumes.into_iter().map(|volume| (name.clone(), volume)));
                }
                Err(error) => return Err(JournalError::Record { name, error }),
            }
        }
        let lacking = relying.into_iter().find(|(_, volume)| !runtime.is_in_pool(volume));
        lacking.map_or(Ok(()), |(name, volume)| Err(JournalError::Missing { name, volume }))
    }

    /// The status of each open journal.
    pub(super) fn status(&self) -> Vec<JournalStatus> {
        let open = self.open_ones().clone();
        let shown = |(name, journal): &(Name, Arc<Journal>)| {
            let status = journal.status();
            let usage = status.usage;
            let failed = status.failed.map(|error| {
                status.displaced.map_or_else(|| error.to_string(), |gone| gone.to_string())
            });
            let unserved = journal.unserved().into_iter();
            let shown = JournalStatus {
                name: name.journal.clone(),
                mirror: name.mirror.clone(),
                id: status.id,
                waits_for: status.waits_for,
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
                commit: latency(&status.commits),
                unserved: unserved
                    .map(|(volume, bytes)| UnservedWrites { volume, bytes })
                    .collect(),
                ..JournalStatus::default()
            };
            shown.with_errors(failed, status.degraded)
        };
        let replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        let without = replaced.iter().map(|Replaced { volume, journal, reason }| {
            let failed = format!("{reason}; volume '{volume}' is served without it, under its UPS");
            let Name { journal: name, mirror } = journal.clone();
            JournalStatus { name, mirror, ..JournalStatus::default() }
                .with_errors(Some(failed), None)
        });
        open.iter().map(shown).chain(without).collect()
    }

    /// Logs the data that the journals hold of volumes that are not served.
    pub(super) fn report_unserved(&self) {
        for (name, journal) in self.open_ones().iter() {
            for (volume, bytes) in journal.unserved() {
                tracing::warn!(
                    journal = %name,
                    volume,
                    bytes,
                    "journal holds data of a volume that is not served, keeping it"
                );
            }
        }
    }
}

/// How often the journal of a volume tells other hosts that its owner lives: so often that several
/// beats may be missed before one takes over.
fn beat_every(spec: &VolumeSpec) -> Option<Duration> {
    let after = Duration::from_secs(spec.config.takeover_after_s?);
    Some((after / 8).min(BEAT_MAX))
}

/// Whether a volume is under a UPS, and the vault has all data that its disk lacks.
fn has_vaulted(runtime: &Runtime, spec: &VolumeSpec) -> bool {
    let vault = runtime.volumes().protectors().vault();
    spec.config.protection.has_ups()
        && vault.is_some_and(|vault| vault.replaces_journal(&spec.name))
}

/// The volumes whose records a failure mark voids; all volumes if it cannot be read.
fn void(mark: &StateFile) -> VoidRecords {
    match marks::read(mark) {
        Ok(None) => VoidRecords::None,
        Ok(Some(Mark { volumes: Some(names), is_settled: true, .. })) => {
            VoidRecords::Settled(names)
        }
        Ok(Some(Mark { volumes: Some(names), .. })) => VoidRecords::Volumes(names),
        Ok(Some(Mark { volumes: None, .. })) => VoidRecords::All,
        Err(error) => {
            tracing::error!(%error, "cannot read failure mark");
            VoidRecords::All
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_mark_voids_the_records_of_all_volumes() {
        let directory = tempfile::tempdir().unwrap();
        let mark = marks::of_journal(directory.path(), "abcd");
        assert_eq!(void(&mark), VoidRecords::None);
        marks::put(&mark, "no space", &["a".to_owned()]).unwrap();
        assert_eq!(void(&mark), VoidRecords::Volumes(vec!["a".to_owned()]));
        marks::settle(&mark).unwrap();
        assert_eq!(void(&mark), VoidRecords::Settled(vec!["a".to_owned()]));
        std::fs::write(mark.path(), "failed").unwrap();
        assert_eq!(void(&mark), VoidRecords::All);
        assert_eq!(
            void(&StateFile::record(directory.path().to_owned())),
            VoidRecords::All,
            "a directory cannot be read"
        );
    }

    #[test]
    fn a_damaged_journal_needs_accept_loss_of_all_its_volumes() {
        let spec = |name: &str, accept_loss| {
            let mut spec = VolumeSpec::new(name, format!("/{name}")).unwrap();
            (spec.config.journal, spec.config.accept_loss) = (Some("/j".into()), accept_loss);
            spec
        };
        let name = Name { journal: "/j".into(), mirror: None };
        assert!(named(&[spec("a", true), spec("b", true)])[&name]);
        assert!(!named(&[spec("a", true), spec("b", false)])[&name]);
        assert_eq!(count(&[spec("a", true), spec("b", false)]), 2, "one to move to");
        assert_eq!(count(&[VolumeSpec::new("a", "/a").unwrap()]), 0);
    }

    #[test]
    fn a_record_of_a_move_names_the_devices() {
        for mirror in [None, Some("/a and b".to_owned())] {
            let name = Name { journal: "blocks(size=512):/x, y".to_owned(), mirror };
            assert!(Name::of_record(&name.to_record()) == Some(name));
        }
        assert!(Name::of_record("").is_none() && Name::of_record("mirror /x").is_none());
    }

    #[test]
    fn journals_that_share_a_device_overlap() {
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
}
