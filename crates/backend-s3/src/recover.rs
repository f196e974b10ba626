//! Reads the map of a volume, and the objects after it, and ends former epochs.

use crate::S3Error;
use crate::store::{Conditional, RequestError, Store};
use bytes::Bytes;
use forebay_objects::checkpoint::CheckpointReader;
use forebay_objects::{
    CheckpointRef, Damaged, ExtentMap, HEADER_BYTES, Manifest, ObjectHeader, ObjectKind,
    ObjectName, ObjectTable, Replay, SectorRun, checkpoint_name, frames,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Bytes that have header and table of most objects, in one request.
const HEAD_BYTES: u64 = 64 << 10;
/// Objects that are read at one time.
const READS_MAX: u64 = 16;
/// Parts of a checkpoint that are read at one time: each has some MiB.
const PARTS_MAX: usize = 4;

/// What an object begins with.
pub(crate) struct ObjectHead {
    pub(crate) header: ObjectHeader,
    /// From the header on: at least the table, and all of a small object.
    bytes: Bytes,
}

impl ObjectHead {
    /// Its runs, in a volume of so many sectors.
    pub(crate) fn runs(&self, sectors: u64) -> Result<Vec<SectorRun>, Damaged> {
        let table = self.bytes.get(HEADER_BYTES as usize..).ok_or(Damaged::Short)?;
        self.header.decode_runs(table, sectors)
    }

    /// All of its data, verified, if it is small enough to have been read with it.
    pub(crate) fn frames(&self) -> Option<Bytes> {
        let whole = self.header.data_offset() as usize..self.header.object_bytes() as usize;
        let frames = self.bytes.get(whole.clone()).map(|_| self.bytes.slice(whole))?;
        frames::verify(&frames, self.header.name, 0).is_ok().then_some(frames)
    }
}

/// Header and table of an object, or that there is none.
type FoundHead = Result<Option<ObjectHead>, Damaged>;

async fn read_head_once(store: &Store, name: ObjectName) -> Result<FoundHead, RequestError> {
    let name = name.to_string();
    let Some(mut begin) = store.read_range(&name, 0..HEAD_BYTES).await? else {
        return Ok(Ok(None));
    };
    let header = match ObjectHeader::decode(&begin) {
        Ok(header) => header,
        Err(damaged) => return Ok(Err(damaged)),
    };
    if header.data_offset() > HEAD_BYTES {
        match store.read_range(&name, 0..header.data_offset()).await? {
            Some(whole) => begin = whole,
            None => return Ok(Ok(None)),
        }
    }
    Ok(Ok(Some(ObjectHead { header, bytes: begin })))
}

/// Header and table of an object. `None` if they are not wanted any more.
pub(crate) async fn read_head(
    store: &Store,
    name: ObjectName,
    is_wanted: impl Fn() -> bool,
) -> Option<FoundHead> {
    store.persist("read an object", is_wanted, || read_head_once(store, name)).await
}

/// Reads the checkpoint of a manifest.
///
/// # Errors
/// It is damaged or missing, or the store does not answer.
pub(crate) async fn read_map(
    store: &Arc<Store>,
    manifest: &Manifest,
    limit: Duration,
) -> Result<(ExtentMap, ObjectTable), S3Error> {
    let Some(CheckpointRef { epoch, covers, parts }) = &manifest.checkpoint else {
        return Ok(Default::default());
    };
    let (epoch, covers) = (*epoch, *covers);
    let mut reader = CheckpointReader::new(manifest.volume, epoch, covers, manifest.sectors());
    for (group, parts) in parts.chunks(PARTS_MAX).enumerate() {
        let names = (0..parts.len()).map(|index| (group * PARTS_MAX + index) as u32);
        let names: Vec<_> = names.map(|index| checkpoint_name(epoch, covers, index)).collect();
        let sizes = parts.iter().map(|part| u64::from(part.bytes));
        let reads = names.iter().cloned().zip(sizes).map(|(name, bytes)| {
            let store = store.clone();
            // A part has some MiB.
            async move { store.attempt(limit * 8, || store.read_range(&name, 0..bytes)).await }
        });
        for ((name, part), read) in names.iter().zip(parts).zip(all(reads).await) {
            let bytes = read?.ok_or_else(|| S3Error::Missing {
                place: store.place.clone(),
                object: name.clone(),
            })?;
            reader.read(&bytes, *part).map_err(|error| store.damaged(name, error))?;
        }
    }
    let name = checkpoint_name(epoch, covers, 0);
    reader.end().map_err(|error| store.damaged(name, error))
}

/// Applies the objects after the checkpoint. With a nonce, puts tombstones at the ends of former
/// epochs, so that nothing follows there any more.
///
/// # Errors
/// An object is damaged, or the store does not answer.
pub(crate) async fn replay(
    store: &Arc<Store>,
    replay: &mut Replay,
    (volume, nonce): ([u8; 16], Option<u64>),
    limit: Duration,
) -> Result<(), S3Error> {
    loop {
        // The present epoch has just begun.
        if replay.is_last_epoch() && nonce.is_some() {
            return Ok(());
        }
        let first = replay.next();
        let names = (0..READS_MAX).map(|n| ObjectName { number: first.number + n, ..first });
        let reads = names.map(|name| {
            let store = store.clone();
            async move { store.attempt(limit, || read_head_once(&store, name)).await }
        });
        let mut is_end = false;
        for read in all(reads).await {
            let name = replay.next();
            let Some(head) = read?.map_err(|source| store.damaged(name, source))? else {
                is_end = true;
                break;
            };
            let runs = head.runs(replay.sectors());
            let runs = runs.map_err(|source| store.damaged(name, source))?;
            let forebay_objects::WrongObject::Damaged { source, .. } =
                match replay.apply(&head.header, &runs) {
                    Ok(()) if head.header.kind == ObjectKind::Tombstone => break,
                    Ok(()) => continue,
                    Err(error) => error,
                };
            return Err(store.damaged(name, source));
        }
        if replay.next().epoch != first.epoch || !is_end {
            continue;
        }
        let Some(nonce) = nonce else { return Ok(()) };
        end_epoch(store, replay, (volume, nonce), limit).await?;
    }
}

/// Puts a tombstone at the end of an epoch. If there is an object meanwhile, it is applied first.
async fn end_epoch(
    store: &Store,
    replay: &mut Replay,
    (volume, nonce): ([u8; 16], u64),
    limit: Duration,
) -> Result<(), S3Error> {
    let name = replay.next();
    let kind = ObjectKind::Tombstone;
    let header = ObjectHeader { volume, name, nonce, kind, run_count: 0, sectors: 0 };
    let (text, bytes) = (name.to_string(), Bytes::from(header.encode(&[])));
    let created = store.attempt(limit, || store.create(&text, vec![bytes.clone()])).await;
    // Refused: there is an object, of the former owner or of a former attempt, which is read next.
    if let Conditional::Done(_) = created? {
        replay.apply(&header, &[]).map_err(|_| S3Error::Raced { place: store.place.clone() })?;
    }
    Ok(())
}

/// The results of all, in order.
async fn all<T: Send + 'static>(
    futures: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let mut set = JoinSet::new();
    let mut count = 0;
    for (index, future) in futures.enumerate() {
        set.spawn(async move { (index, future.await) });
        count += 1;
    }
    let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
    while let Some(joined) = set.join_next().await {
        if let Ok((index, value)) = joined {
            results[index] = Some(value);
        }
    }
    results.into_iter().map(|result| result.expect("a request does not panic")).collect()
}
