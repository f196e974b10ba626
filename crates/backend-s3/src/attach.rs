//! Opens a volume: the store is tried, the owner is asked for, an epoch begins, and the former one
//! is ended.

use crate::name::S3Name;
use crate::owner::{self, Owner};
use crate::store::{Conditional, Store};
use crate::volume::{Background, S3Volume};
use crate::{S3Error, checkpoint, collect, probe, recover, sweep, watch};
use forebay_backend::{OpenOptions, Tenure};
use forebay_objects::{LogSettings, Manifest, ObjectLog, Replay, VolumeKey, manifest_name};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// How long each request is repeated until the store is reported not to answer.
const REQUEST_LIMIT: Duration = Duration::from_secs(15);
/// The pause before a volume in use is tried again.
const OWNER_PAUSE: Duration = Duration::from_millis(300);
/// How often a manifest that changes meanwhile is read again.
const RACES_MAX: usize = 5;

/// The volumes that this process has open, each with its name.
static OPEN: Mutex<Vec<([u8; 16], String)>> = Mutex::new(Vec::new());

/// The entry of a volume in the list of open ones.
pub(crate) struct OpenEntry([u8; 16]);

impl OpenEntry {
    fn new(volume: [u8; 16], place: &str, name: &str) -> Result<Self, S3Error> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, other)) = open.iter().find(|(known, _)| *known == volume) {
            return Err(S3Error::OpenHere { place: place.to_owned(), other: other.clone() });
        }
        open.push((volume, name.to_owned()));
        Ok(Self(volume))
    }
}

impl Drop for OpenEntry {
    fn drop(&mut self) {
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|(known, _)| *known != self.0);
    }
}

/// An open volume, its tenure unless it is read-only, its size in bytes, and its entry.
pub(crate) type Attached = (Arc<S3Volume>, Option<Tenure>, u64, OpenEntry);

/// Opens a volume.
///
/// # Errors
/// If it cannot be opened.
pub(crate) async fn attach(
    (store, executor): (Store, Handle),
    (spec, name): (String, S3Name),
    options: OpenOptions,
) -> Result<Attached, S3Error> {
    let store = Arc::new(store);
    let found = read_manifest(&store).await?;
    let nonce = random();
    if !options.read_only {
        probe::probe(&store, nonce, REQUEST_LIMIT).await?;
    }
    let found = match found {
        Some(found) => found,
        None => create(&store, &name, options.read_only).await?,
    };
    let ((manifest, tag), entry) = own(&store, (&spec, &name), found, nonce, &options).await?;
    let writer = (!options.read_only).then_some(nonce);
    let replay = match recover(&store, &manifest, writer).await {
        Ok(replay) => replay,
        Err(error) => {
            disown(&store, &manifest, &tag, writer).await;
            return Err(error);
        }
    };
    let (found, next, replayed) = replay.end();
    let key = VolumeKey { volume: manifest.volume, epoch: manifest.epoch, nonce };
    let settings =
        LogSettings { object_sectors: name.object_sectors, buffer_sectors: name.buffer_sectors };
    let log = ObjectLog::new(key, settings, found, next, replayed);
    let (volume, epoch) = (&*store.place, manifest.epoch);
    let (objects, fragments) = (log.table().len(), log.map().fragment_count());
    tracing::info!(volume, epoch, replayed, objects, fragments, "volume opened");
    let size_bytes = manifest.size_bytes;
    let former = Some(manifest.former).filter(|&former| former != 0).into_iter().collect();
    let tenure = (!options.read_only).then_some(Tenure { own: manifest.nonce, former });
    let mode = (options.read_only, name.keep);
    let background = Background { checkpoint: checkpoint::begin, collect: collect::begin };
    let io = (store, executor.clone(), background);
    let volume = S3Volume::new(io, key, log, (manifest, tag), mode);
    if !options.read_only {
        executor.spawn(sweep::orphans(volume.clone()));
        executor.spawn(watch::run(volume.clone()));
        volume.advance();
    }
    Ok((volume, tenure, size_bytes, entry))
}

async fn recover(
    store: &Arc<Store>,
    manifest: &Manifest,
    writer: Option<u64>,
) -> Result<Replay, S3Error> {
    let (map, table) = recover::read_map(store, manifest, REQUEST_LIMIT).await?;
    let mut replay = Replay::new(manifest, map, table);
    let key = (manifest.volume, writer);
    recover::replay(store, &mut replay, key, REQUEST_LIMIT).await?;
    Ok(replay)
}

/// Leaves a volume without an owner that could not be opened, if the store answers.
async fn disown(store: &Store, manifest: &Manifest, tag: &str, writer: Option<u64>) {
    if writer.is_some() {
        let serial = manifest.serial + 1;
        let next = Manifest { owner: String::new(), serial, ..manifest.clone() };
        let _ = store.replace(manifest_name(), next.encode(), tag).await;
    }
}

async fn read_manifest(store: &Store) -> Result<Option<(Manifest, String)>, S3Error> {
    let read = store.attempt(REQUEST_LIMIT, || store.read(manifest_name())).await?;
    let Some((bytes, tag)) = read else { return Ok(None) };
    let manifest = Manifest::decode(&bytes);
    let manifest = manifest.map_err(|source| store.damaged(manifest_name(), source))?;
    Ok(Some((manifest, tag)))
}

/// Creates the volume, if its name has a size.
async fn create(
    store: &Store,
    name: &S3Name,
    read_only: bool,
) -> Result<(Manifest, String), S3Error> {
    let Some(size_bytes) = name.size_bytes.filter(|_| !read_only) else {
        return Err(store.no_volume());
    };
    let mut volume = [0; 16];
    volume[..8].copy_from_slice(&random().to_le_bytes());
    volume[8..].copy_from_slice(&random().to_le_bytes());
    let manifest = Manifest {
        volume,
        size_bytes,
        epoch: 1,
        nonce: 0,
        former: 0,
        serial: 0,
        owner: String::new(),
        first: 1,
        replay: vec![1],
        checkpoint: None,
    };
    let bytes = bytes::Bytes::from(manifest.encode());
    let created =
        store.attempt(REQUEST_LIMIT, || store.create(manifest_name(), vec![bytes.clone()])).await?;
    match created {
        Conditional::Done(tag) => Ok((manifest, tag)),
        // By another server, or by an attempt whose answer was lost.
        Conditional::Refused => read_manifest(store).await?.ok_or_else(|| store.no_volume()),
    }
}

/// Makes this process the owner, in a new epoch. A reader only checks that there is none.
async fn own(
    store: &Store,
    (spec, name): (&str, &S3Name),
    found: (Manifest, String),
    nonce: u64,
    options: &OpenOptions,
) -> Result<((Manifest, String), OpenEntry), S3Error> {
    let until = Instant::now() + options.in_use_wait;
    let mut found = found;
    let mut races = 0;
    loop {
        let (manifest, tag) = &found;
        let owner = match owner::of(&manifest.owner, manifest.epoch) {
            Owner::Alive(owner) if !options.takes_over => Some(owner),
            _ => None,
        };
        if let Some(owner) = owner {
            if Instant::now() >= until {
                return Err(S3Error::Owned { place: store.place.clone(), owner });
            }
            tokio::time::sleep(OWNER_PAUSE).await;
        } else {
            // The record of this process itself is left over, unless there is an entry.
            let entry = OpenEntry::new(manifest.volume, &store.place, spec)?;
            if options.read_only {
                check_size(store, name, manifest.size_bytes)?;
                return Ok((found, entry));
            }
            let next = next_epoch(store, name, manifest, nonce)?;
            let replaced = store
                .attempt(REQUEST_LIMIT, || store.replace(manifest_name(), next.encode(), tag))
                .await?;
            if let Conditional::Done(tag) = replaced {
                return Ok(((next, tag), entry));
            }
            races += 1;
            if races > RACES_MAX {
                return Err(S3Error::Raced { place: store.place.clone() });
            }
            let read = read_manifest(store).await?;
            match read {
                // The answer to a former attempt was lost.
                Some(owned) if owned.0 == next => return Ok((owned, entry)),
                Some(other) => found = other,
                None => return Err(store.no_volume()),
            }
            continue;
        }
        found = read_manifest(store).await?.ok_or_else(|| store.no_volume())?;
    }
}

fn next_epoch(
    store: &Store,
    name: &S3Name,
    manifest: &Manifest,
    nonce: u64,
) -> Result<Manifest, S3Error> {
    let wanted = name.size_bytes.filter(|wanted| name.grow && *wanted > manifest.size_bytes);
    let size_bytes = wanted.unwrap_or(manifest.size_bytes);
    check_size(store, name, size_bytes)?;
    let epoch = manifest.epoch + 1;
    let mut replay = manifest.replay.clone();
    replay.push(epoch);
    let owner = owner::here(epoch).unwrap_or_else(|| "unknown".to_owned());
    let former = manifest.nonce;
    let serial = 0;
    Ok(Manifest { size_bytes, epoch, nonce, former, serial, owner, replay, ..manifest.clone() })
}

fn check_size(store: &Store, name: &S3Name, found: u64) -> Result<(), S3Error> {
    match name.size_bytes {
        Some(wanted) if wanted != found => {
            Err(S3Error::OtherSize { place: store.place.clone(), found, wanted })
        }
        _ => Ok(()),
    }
}

/// A number that no other process draws.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(drawn, Ok(bytes.len()), "the kernel has random numbers for short requests");
    u64::from_le_bytes(bytes)
}
