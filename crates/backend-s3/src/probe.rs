//! Whether the store keeps the conditions of requests, which the fence depends on.
//!
//! A store that ignores a condition answers with success, and would give a volume to two servers.
//! So each open for writing tries it: six small requests.

use crate::S3Error;
use crate::store::{Conditional, Store};
use bytes::Bytes;
use std::time::Duration;

/// Tries the conditions, with an object of this name.
///
/// # Errors
/// The store ignores one, or does not answer.
pub(crate) async fn probe(store: &Store, nonce: u64, limit: Duration) -> Result<(), S3Error> {
    let name = format!("probe/{nonce:016x}");
    let result = try_conditions(store, &name, limit).await;
    // What is left of it is swept later.
    let _ = store.delete(&name).await;
    result
}

async fn try_conditions(store: &Store, name: &str, limit: Duration) -> Result<(), S3Error> {
    let (one, two) = (Bytes::from_static(b"one"), Bytes::from_static(b"two"));
    let created = store.attempt(limit, || store.create(name, vec![one.clone()])).await?;
    // Refused if the answer to a first attempt was lost.
    let first = match created {
        Conditional::Done(tag) => tag,
        Conditional::Refused => tag_of(store, name, limit).await?,
    };
    if store.attempt(limit, || store.create(name, vec![two.clone()])).await? != Conditional::Refused
    {
        return Err(store.unfit("creates an object although it exists (If-None-Match is ignored)"));
    }
    for strips in [false, true] {
        store.strip_quotes(strips);
        let replaced = store.attempt(limit, || store.replace(name, b"three".to_vec(), &first));
        let is_replaced = match replaced.await? {
            Conditional::Done(_) => true,
            // Perhaps the answer to a first attempt was lost.
            Conditional::Refused => tag_of(store, name, limit).await? != first,
        };
        if is_replaced {
            let stale = store.attempt(limit, || store.replace(name, b"four".to_vec(), &first));
            return match stale.await? {
                Conditional::Refused => Ok(()),
                Conditional::Done(_) => {
                    Err(store
                        .unfit("replaces an object although it has changed (If-Match is ignored)"))
                }
            };
        }
    }
    Err(store.unfit("does not replace an object that has not changed (If-Match)"))
}

async fn tag_of(store: &Store, name: &str, limit: Duration) -> Result<String, S3Error> {
    let read = store.attempt(limit, || store.read(name)).await?;
    let lost = "does not show an object that it has just stored";
    read.map(|(_, tag)| tag).ok_or_else(|| store.unfit(lost))
}
