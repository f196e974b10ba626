//! Makes the state that all workers share.

use super::RuntimeConfig;
use crate::background::Background;
use crate::budget::Budget;
use crate::disk::UnansweredIos;
use crate::error::StartError;
use crate::memory_plan::MemoryPlan;
use crate::platform::descriptors::Descriptors;
use crate::pool::{HugePages, Pool};
use crate::protect::patrol::no_walks;
use crate::service;
use crate::shared::Ecc;
use crate::shared::Timeouts;
use crate::shared::{Inbox, Shards, Shared, VolumeTable};
use forebay_ecc::Code;
use forebay_protect::PowerGate;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

/// Makes the shared state, over an empty pool or an adopted one.
pub(super) fn shared(
    config: &RuntimeConfig,
    plan: &MemoryPlan,
    timeouts: Timeouts,
    kept: Option<OwnedFd>,
) -> Result<Arc<Shared>, StartError> {
    let pool = Pool::open(plan.pool_bytes, plan.shards, kept)?;
    pool.record_limit(plan.limit_bytes, plan.start_bytes);
    let mut shards = service::shards(&pool, timeouts.dirty_age)?;
    let ecc = config.ecc;
    shards.iter_mut().for_each(|shard| shard.set_parity(ecc == Ecc::Parity));
    let workers = 0..config.workers;
    let inboxes: Result<Vec<_>, _> = workers.clone().map(|_| Inbox::new().map(Arc::new)).collect();
    Ok(Arc::new(Shared {
        shards: Shards::new(shards),
        inboxes: inboxes.map_err(io::Error::from)?,
        volumes: VolumeTable::default(),
        unanswered: UnansweredIos::new(config.workers),
        started: Instant::now(),
        timeouts,
        budget: Budget::new(plan.request_bytes, plan.lane_bytes, plan.payload_bytes),
        connections: AtomicU64::new(0),
        clients_joined: AtomicU64::new(0),
        descriptors: Descriptors::read(),
        worker_connections: workers.map(|_| AtomicU64::new(0)).collect(),
        stopping: AtomicBool::new(false),
        power: PowerGate::default(),
        background: Background::default(),
        is_recording: AtomicBool::new(false),
        huge_pages: HugePages::new(pool.shards()),
        pool,
        ecc,
        code: Code::detect(),
        walk_ms: no_walks(plan.shards),
    }))
}
