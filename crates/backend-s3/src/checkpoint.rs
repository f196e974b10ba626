//! Stores the map, and then the manifest that names it.
//!
//! What the former manifest needed and the new one does not is deleted after a while: a reader that
//! has opened the volume with the former one may still need it.

use crate::store::{Conditional, Store};
use crate::sweep;
use crate::volume::S3Volume;
use bytes::Bytes;
use forebay_objects::checkpoint::{encode, part_ref};
use forebay_objects::{
    CheckpointRef, Manifest, MapSnapshot, ObjectName, PartRef, checkpoint_name, manifest_name,
};
use std::sync::Arc;

/// Starts to store the snapshot of the volume.
pub(crate) fn begin(volume: &Arc<S3Volume>) {
    volume.executor.spawn(run(volume.clone()));
}

async fn run(volume: Arc<S3Volume>) {
    let snapshot = volume.core().snapshot.take();
    if let Some(snapshot) = snapshot {
        write(&volume, snapshot).await;
    }
    volume.core().is_checkpointing = false;
    volume.advance();
    volume.progress.notify_waiters();
}

async fn write(volume: &Arc<S3Volume>, snapshot: MapSnapshot) {
    let covers = snapshot.covers;
    let Some(parts) = store_parts(volume, &snapshot).await else { return };
    let MapSnapshot { unused, .. } = snapshot;
    let mut manifest = volume.manifest.lock().await;
    let former = manifest.0.checkpoint.clone();
    let next = Manifest {
        serial: manifest.0.serial + 1,
        first: covers + 1,
        replay: vec![volume.key.epoch],
        checkpoint: Some(CheckpointRef { epoch: volume.key.epoch, covers, parts }),
        ..manifest.0.clone()
    };
    if !replace(volume, &mut manifest, next).await {
        return;
    }
    drop(manifest);
    volume.core().log.checkpointed(&unused);
    let mut names: Vec<String> = unused.iter().map(ObjectName::to_string).collect();
    if let Some(former) = former.filter(|it| (it.epoch, it.covers) != (volume.key.epoch, covers)) {
        let parts = 0..former.parts.len() as u32;
        names.extend(parts.map(|part| checkpoint_name(former.epoch, former.covers, part)));
    }
    sweep::delete_later(volume, names);
}

/// Stores the parts of a checkpoint, one after the other: the next one is made then.
async fn store_parts(volume: &S3Volume, snapshot: &MapSnapshot) -> Option<Vec<PartRef>> {
    let mut parts = Vec::new();
    for part in encode(volume.key, snapshot) {
        parts.push(part_ref(&part));
        let name = checkpoint_name(volume.key.epoch, snapshot.covers, parts.len() as u32 - 1);
        let part = Bytes::from(part);
        // If it exists, the answer to a former attempt was lost: the name has this epoch.
        volume
            .store
            .persist(
                "store the map",
                || volume.is_active(),
                || volume.store.create(&name, vec![part.clone()]),
            )
            .await?;
    }
    Some(parts)
}

/// Replaces the manifest. Returns false if the volume has ended.
pub(crate) async fn replace(
    volume: &S3Volume,
    current: &mut (Manifest, String),
    next: Manifest,
) -> bool {
    loop {
        let replaced = volume
            .store
            .persist(
                "store the manifest",
                || volume.is_active(),
                || volume.store.replace(manifest_name(), next.encode(), &current.1),
            )
            .await;
        match replaced {
            None => return false,
            Some(Conditional::Done(tag)) => {
                *current = (next, tag);
                return true;
            }
            Some(Conditional::Refused) => {}
        }
        // The answer to a former attempt was lost, or the manifest is another server's.
        let Some(read) = present(volume, &volume.store).await else { return false };
        match read {
            Some((found, tag)) if found == next => {
                *current = (next, tag);
                return true;
            }
            // The store has changed its tag, but not the manifest.
            Some((found, tag)) if found == current.0 => current.1 = tag,
            Some((found, _)) if found.nonce == next.nonce && found.epoch == next.epoch => {
                volume.fence("the manifest is not as this server has written it");
                return false;
            }
            Some(_) => {
                volume.fence("another server has begun an epoch");
                return false;
            }
            None => {
                volume.fence("the manifest is missing or damaged");
                return false;
            }
        }
    }
}

/// The manifest as it is: `None` inside if it is missing or damaged.
async fn present(volume: &S3Volume, store: &Store) -> Option<Option<(Manifest, String)>> {
    let read =
        store.persist("read the manifest", || volume.is_active(), || store.read(manifest_name()));
    let read = read.await?;
    Some(read.and_then(|(bytes, tag)| Some((Manifest::decode(&bytes).ok()?, tag))))
}
