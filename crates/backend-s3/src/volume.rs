//! An open volume: its writes and flushes, the objects on their way to the store, and the fence.
//!
//! All decisions are made by [`S3Volume::advance`], under the volume's lock, when something has
//! changed: what is admitted, what is sealed and what is stored. Requests are tasks, which
//! change the volume under the lock when they are answered. While nothing changes there is no task
//! that sends anything.
//!
//! A request is repeated until it is answered. When an object exists that is to be created, it is
//! read: it is this process's own if the answer to a former attempt was lost, and otherwise another
//! server has the volume. From then on, everything is answered with an error, and nothing is read
//! from the store or written to it.

use crate::store::{Conditional, Store};
use bytes::Bytes;
use forebay_backend::{Io, IoKind, IoToken};
use forebay_objects::{
    HEADER_BYTES, Manifest, MapSnapshot, ObjectHeader, ObjectLog, SealedObject, VolumeKey,
};
use forebay_types::{IoError, IoResult, SECTOR_BYTES};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

/// Objects that are being stored at one time.
const PUTS_MAX: usize = 8;
/// Reads from the store at one time.
const GETS_MAX: usize = 64;
/// How long what was written waits for more, without a flush.
const LINGER: Duration = Duration::from_secs(5);

/// What a volume starts in the background.
#[derive(Clone, Copy)]
pub(crate) struct Background {
    /// Stores the snapshot of the map.
    pub(crate) checkpoint: fn(&Arc<S3Volume>),
    /// Collects, if enough is wasted.
    pub(crate) collect: fn(&Arc<S3Volume>, &mut VolumeCore),
}

/// An open volume.
pub(crate) struct S3Volume {
    pub(crate) store: Arc<Store>,
    background: Background,
    pub(crate) key: VolumeKey,
    pub(crate) executor: Handle,
    /// Whether it is only read: there is no owner and no epoch then.
    pub(crate) read_only: bool,
    pub(crate) size_sectors: u64,
    /// How long objects are kept that are not needed any more.
    pub(crate) keep: Duration,
    core: Mutex<VolumeCore>,
    /// Notified when there may be room for more, and when an object is stored.
    pub(crate) progress: Notify,
    pub(crate) gets: Semaphore,
    /// The manifest as this process has written it last, and its tag.
    pub(crate) manifest: tokio::sync::Mutex<(Manifest, String)>,
    is_fenced: AtomicBool,
    /// Whether it is being closed: nothing is repeated any more.
    is_ended: AtomicBool,
    /// Counts reads that reach the store, and what shows that the volume is still this process's.
    pub(crate) activity: AtomicU64,
}

pub(crate) struct VolumeCore {
    pub(crate) log: ObjectLog,
    /// Changes that wait for room, in order.
    waiting: VecDeque<Io>,
    /// Answers that follow once the object with the number is stored, and all before it.
    flushes: Vec<(u64, IoToken)>,
    put_count: usize,
    pub(crate) snapshot: Option<MapSnapshot>,
    pub(crate) is_checkpointing: bool,
    /// Whether a checkpoint is wanted although it is not due.
    pub(crate) wants_checkpoint: bool,
    pub(crate) is_collecting: bool,
    /// Whether a task waits to seal the open object.
    is_lingering: bool,
}

type Answers = Vec<(IoToken, IoResult)>;

impl S3Volume {
    pub(crate) fn new(
        (store, executor, background): (Arc<Store>, Handle, Background),
        key: VolumeKey,
        log: ObjectLog,
        (manifest, tag): (Manifest, String),
        (read_only, keep): (bool, Duration),
    ) -> Arc<Self> {
        let core = VolumeCore {
            log,
            waiting: VecDeque::new(),
            flushes: Vec::new(),
            put_count: 0,
            snapshot: None,
            is_checkpointing: false,
            wants_checkpoint: manifest.has_many_epochs(),
            is_collecting: false,
            is_lingering: false,
        };
        Arc::new(Self {
            store,
            background,
            key,
            executor,
            read_only,
            size_sectors: manifest.sectors(),
            keep,
            core: Mutex::new(core),
            progress: Notify::new(),
            gets: Semaphore::new(GETS_MAX),
            manifest: tokio::sync::Mutex::new((manifest, tag)),
            is_fenced: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
            activity: AtomicU64::new(0),
        })
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, VolumeCore> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Acquire)
    }

    /// Whether requests are still to be made.
    pub(crate) fn is_active(&self) -> bool {
        !self.is_fenced() && !self.is_ended.load(Ordering::Acquire)
    }

    /// Makes no more requests.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        self.progress.notify_waiters();
    }

    /// Ends the volume: another server has it.
    pub(crate) fn fence(&self, reason: &str) {
        if self.is_fenced.swap(true, Ordering::AcqRel) || self.is_ended.load(Ordering::Acquire) {
            return;
        }
        let volume = &*self.store.place;
        tracing::error!(
            volume,
            reason,
            "the volume was taken over, nothing of it is stored any more"
        );
        let mut core = self.core();
        let (waiting, flushes) =
            (std::mem::take(&mut core.waiting), std::mem::take(&mut core.flushes));
        drop(core);
        self.progress.notify_waiters();
        let tokens = waiting.into_iter().map(|io| io.done);
        tokens
            .chain(flushes.into_iter().map(|it| it.1))
            .for_each(|it| it.complete(Err(IoError::Io)));
    }

    /// Accepts a change or a flush.
    pub(crate) fn change(self: &Arc<Self>, io: Io) {
        let mut core = self.core();
        if self.is_fenced() {
            drop(core);
            return io.done.complete(Err(IoError::Io));
        }
        match io.kind {
            IoKind::Flush => {
                let last = core.log.last_number();
                core.flushes.push((last, io.done));
            }
            _ => core.waiting.push_back(io),
        }
        self.advance_locked(core);
    }

    /// Does what can be done now.
    pub(crate) fn advance(self: &Arc<Self>) {
        self.advance_locked(self.core());
    }

    fn advance_locked(self: &Arc<Self>, mut core: MutexGuard<'_, VolumeCore>) {
        let mut answers = Answers::new();
        core.admit(&mut answers);
        core.seal_for_flushes();
        let is_due = core.log.is_checkpoint_due() || core.wants_checkpoint;
        if is_due && core.snapshot.is_none() && !core.is_checkpointing {
            core.wants_checkpoint = false;
            core.snapshot = Some(core.log.snapshot());
        }
        self.begin_puts(&mut core);
        let missing = core.log.first_missing();
        core.end_flushes(missing, &mut answers);
        let is_covered = core.snapshot.as_ref().is_some_and(|it| it.covers < missing);
        if is_covered && !core.is_checkpointing {
            core.is_checkpointing = true;
            (self.background.checkpoint)(self);
        }
        if !core.log.is_open_empty() && !core.is_lingering {
            core.is_lingering = true;
            self.executor.spawn(linger(self.clone(), core.log.open_number()));
        }
        drop(core);
        for (token, result) in answers {
            token.complete(result);
        }
    }

    fn begin_puts(self: &Arc<Self>, core: &mut VolumeCore) {
        while core.put_count < PUTS_MAX
            && let Some(object) = core.log.next_put()
        {
            core.put_count += 1;
            self.executor.spawn(put(self.clone(), object));
        }
    }

    /// Reads the header of an object that exists although it is to be created.
    async fn is_own(&self, name: &str) -> Option<bool> {
        let header = self
            .store
            .persist(
                "read an object",
                || self.is_active(),
                || self.store.read_range(name, 0..HEADER_BYTES),
            )
            .await?;
        // If it is not there any more, the next attempt creates it.
        let header = ObjectHeader::decode(&header?);
        Some(
            header.is_ok_and(|header| {
                header.volume == self.key.volume && header.nonce == self.key.nonce
            }),
        )
    }

    /// Checks that the manifest is of this epoch.
    pub(crate) async fn verify_owner(&self) {
        let read = self.store.read(forebay_objects::manifest_name()).await;
        let Ok(Some((bytes, _))) = read else { return };
        let Ok(found) = Manifest::decode(&bytes) else { return };
        if (found.epoch, found.nonce) != (self.key.epoch, self.key.nonce) {
            self.fence("another server has begun an epoch");
        }
    }
}

impl VolumeCore {
    /// Accepts changes for which there is room.
    fn admit(&mut self, answers: &mut Answers) {
        while let Some(io) = self.waiting.front() {
            let sectors = io.len / SECTOR_BYTES;
            let needed = if matches!(io.kind, IoKind::Write { .. }) { sectors } else { 0 };
            if !self.log.has_room(needed) {
                // What is in memory leaves it only if it is sealed.
                if self.put_count == 0 {
                    self.log.seal();
                }
                return;
            }
            let Some(io) = self.waiting.pop_front() else { return };
            let start = io.offset / SECTOR_BYTES;
            match io.kind {
                IoKind::Write { .. } => {
                    let mut start = start;
                    for data in io.written() {
                        self.log.write(start, data);
                        start += data.len() as u64 / SECTOR_BYTES;
                    }
                }
                _ => self.log.erase(start, sectors),
            }
            match io.kind {
                IoKind::Write { fua: true } => {
                    self.flushes.push((self.log.last_number(), io.done));
                }
                _ => answers.push((io.done, Ok(()))),
            }
        }
    }

    /// Seals the open object if a flush waits for it. One object that is not full is on its way at
    /// a time: flushes that arrive meanwhile share the next one.
    fn seal_for_flushes(&mut self) {
        let open = self.log.open_number();
        let is_wanted = self.flushes.iter().any(|(number, _)| *number == open);
        if is_wanted && !self.log.is_partial_in_flight() {
            self.log.seal();
        }
    }

    fn end_flushes(&mut self, missing: u64, answers: &mut Answers) {
        let (done, waiting) = std::mem::take(&mut self.flushes)
            .into_iter()
            .partition(|(number, _)| *number < missing);
        self.flushes = waiting;
        let done: Vec<(u64, IoToken)> = done;
        answers.extend(done.into_iter().map(|(_, token)| (token, Ok(()))));
    }

    /// Whether everything that was accepted is stored.
    pub(crate) fn is_clean(&self) -> bool {
        self.waiting.is_empty()
            && self.log.buffered_sectors() == 0
            && self.log.is_open_empty()
            && self.put_count == 0
    }
}

/// The data of an object without a copy.
struct Frames(Arc<SealedObject>);

impl AsRef<[u8]> for Frames {
    fn as_ref(&self) -> &[u8] {
        &self.0.frames
    }
}

/// Stores an object.
async fn put(volume: Arc<S3Volume>, object: Arc<SealedObject>) {
    let name = object.name.to_string();
    let head = Bytes::from(object.head.clone());
    let frames = Bytes::from_owner(Frames(object.clone()));
    loop {
        let created = volume
            .store
            .persist(
                "store an object",
                || volume.is_active(),
                || volume.store.create(&name, vec![head.clone(), frames.clone()]),
            )
            .await;
        match created {
            None => return,
            Some(Conditional::Done(_)) => break,
            Some(Conditional::Refused) => match volume.is_own(&name).await {
                Some(true) => break,
                Some(false) => return volume.fence("another server has ended this epoch"),
                None if !volume.is_active() => return,
                None => {}
            },
        }
    }
    let mut core = volume.core();
    core.put_count -= 1;
    core.log.stored(object.name.number);
    (volume.background.collect)(&volume, &mut core);
    volume.advance_locked(core);
    volume.progress.notify_waiters();
}

/// Seals an object that was open for a while.
async fn linger(volume: Arc<S3Volume>, number: u64) {
    tokio::time::sleep(LINGER).await;
    let mut core = volume.core();
    core.is_lingering = false;
    if core.log.open_number() == number && volume.is_active() {
        core.log.seal();
    }
    volume.advance_locked(core);
}
