//! Deletes objects that are not needed.
//!
//! - What a checkpoint does not need any more, some time after it is stored. The list is in memory:
//!   what is left of it at a stop is swept.
//! - **Orphans**, once after each open: objects of former epochs that no map has, which a former
//!   owner had on its way when it lost the volume, or did not come to delete. Tombstones stay for
//!   ever, because a former owner may wake up at any time; they are small.
//!
//! Both after [`S3Volume::keep`], so that a reader with a former manifest finds what it needs.

use crate::store::Listed;
use crate::volume::S3Volume;
use forebay_objects::{HEADER_BYTES, ObjectName, checkpoint_of, manifest_name};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::task::JoinSet;

/// Objects that are deleted at one time.
const DELETES_MAX: usize = 8;
/// The size of a tombstone: a header and the checksum of an empty table.
const TOMBSTONE_BYTES: u64 = HEADER_BYTES + 4;
/// The age at which a probe is left over: an open takes seconds.
const PROBE_AGE: Duration = Duration::from_secs(3600);

/// Deletes objects after a while.
pub(crate) fn delete_later(volume: &Arc<S3Volume>, names: Vec<String>) {
    if names.is_empty() {
        return;
    }
    let volume = volume.clone();
    let executor = volume.executor.clone();
    executor.spawn(async move {
        tokio::time::sleep(volume.keep).await;
        delete(&volume, names).await;
    });
}

async fn delete(volume: &Arc<S3Volume>, names: Vec<String>) {
    let mut deleting = JoinSet::new();
    for name in names {
        if deleting.len() >= DELETES_MAX {
            deleting.join_next().await;
        }
        let volume = volume.clone();
        deleting.spawn(async move {
            let delete = volume.store.persist(
                "delete an object",
                || volume.is_active(),
                || volume.store.delete(&name),
            );
            delete.await
        });
    }
    while deleting.join_next().await.is_some() {}
}

/// Deletes the orphans of a volume that was just opened.
pub(crate) async fn orphans(volume: Arc<S3Volume>) {
    // Before the list: what leaves the map later is deleted by its checkpoint.
    let needed: BTreeSet<ObjectName> = {
        let core = volume.core();
        let objects = core.log.table().iter();
        objects.map(|(number, object)| ObjectName { epoch: object.epoch, number }).collect()
    };
    let checkpoint = {
        let manifest = volume.manifest.lock().await;
        manifest.0.checkpoint.as_ref().map(|it| (it.epoch, it.covers))
    };
    let listed =
        volume.store.persist("list objects", || volume.is_active(), || volume.store.list());
    let Some(listed) = listed.await else { return };
    let now = SystemTime::now();
    let orphans: Vec<String> = listed
        .into_iter()
        .filter(|listed| is_orphan(listed, volume.key.epoch, &needed, checkpoint))
        .filter(|listed| {
            let age = now.duration_since(listed.modified).unwrap_or_default();
            let is_probe = listed.name.starts_with("probe/");
            age >= if is_probe { PROBE_AGE } else { volume.keep }
        })
        .map(|listed| listed.name)
        .collect();
    if !orphans.is_empty() {
        let (name, count) = (&*volume.store.place, orphans.len());
        tracing::info!(volume = name, count, "deleting objects that no map has");
    }
    delete(&volume, orphans).await;
}

/// Whether nothing of the volume needs an object, nor will.
fn is_orphan(
    listed: &Listed,
    epoch: u64,
    needed: &BTreeSet<ObjectName>,
    checkpoint: Option<(u64, u64)>,
) -> bool {
    if listed.name == manifest_name() {
        return false;
    }
    if let Some(name) = ObjectName::parse(&listed.name) {
        let is_tombstone = listed.bytes <= TOMBSTONE_BYTES;
        return name.epoch < epoch && !is_tombstone && !needed.contains(&name);
    }
    if let Some(of) = checkpoint_of(&listed.name) {
        return of.0 < epoch && Some(of) != checkpoint;
    }
    listed.name.starts_with("probe/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_objects::checkpoint_name;

    #[test]
    fn only_what_nothing_needs_is_an_orphan() {
        let needed = [ObjectName { epoch: 2, number: 7 }].into();
        let is = |name: String, bytes| {
            let listed = Listed { name, bytes, modified: SystemTime::UNIX_EPOCH };
            is_orphan(&listed, 4, &needed, Some((3, 9)))
        };
        let object = |epoch, number| ObjectName { epoch, number }.to_string();
        assert!(is(object(2, 8), 100));
        assert!(is(object(3, 7), 100));
        assert!(is(checkpoint_name(3, 8, 0), 100));
        assert!(is("probe/1".into(), 5));
        // Needed, a tombstone, of this epoch or a later one, or not of Forebay.
        assert!(!is(object(2, 7), 100));
        assert!(!is(object(2, 9), TOMBSTONE_BYTES));
        assert!(!is(object(4, 9), 100));
        assert!(!is(object(5, 9), 100));
        assert!(!is(checkpoint_name(3, 9, 1), 100));
        assert!(!is(checkpoint_name(4, 1, 0), 100));
        assert!(!is("manifest".into(), 100));
        assert!(!is("backup.tar".into(), 100));
    }
}
