//! A snapshot of a journal's state and counters.

use super::{Journal, JournalPatrol, KeptStatus};
use crate::disk::Presence;
use crate::stats::LatencyHistogram;
use forebay_backend::{AlignedBuffer, Displaced};
use forebay_engine::PartId;
use forebay_journal::{Log, LogUsage};
use forebay_types::IoError;

/// A snapshot of a journal's state and counters.
#[derive(Clone, Debug)]
pub struct JournalStatus {
    /// The names of its devices.
    pub name: String,
    /// Its identity.
    pub id: String,
    /// The error that it failed with.
    pub failed: Option<IoError>,
    /// What its writes wait for: the error of the record of a failure, with the path.
    pub waits_for: Option<String>,
    /// Why one of its devices is not where it was opened.
    pub displaced: Option<Displaced>,
    /// Why a mirrored journal has only one device.
    pub degraded: Option<String>,
    /// Space in use, and counters of the log.
    pub usage: LogUsage,
    /// Data that checkpoints left in the journal because a disk did not take it.
    pub kept: KeptStatus,
    /// Counters of the patrol over the log.
    pub patrol: JournalPatrol,
    /// Latencies of the writes to the log: from the start of a batch's write until it is durable.
    pub commits: LatencyHistogram,
}

impl Journal {
    /// A snapshot of its state and counters.
    pub fn status(&self) -> JournalStatus {
        let state = self.lock();
        JournalStatus {
            name: self.name.clone(),
            id: state.core.log.superblock().journal.to_string(),
            failed: state.core.log.failed(),
            waits_for: state.waits_for.clone(),
            displaced: self.presence.iter().find_map(Presence::displaced),
            degraded: self.degraded(&state.core.log),
            usage: state.core.log.usage(),
            kept: state.core.kept(),
            patrol: self.patrol.status(),
            commits: self.commits.copy(),
        }
    }

    pub(super) fn degraded(&self, log: &Log<AlignedBuffer, PartId>) -> Option<String> {
        let lost = (0..2).find_map(|device| Some((device, log.lost(device)?)));
        match lost {
            Some((device, error)) => {
                let name = self.devices.name_of(device);
                Some(match self.presence[device].displaced() {
                    Some(displaced) => format!("{name}: {displaced}"),
                    None => format!("{name} has failed: {error}"),
                })
            }
            None => self.devices.missing().map(str::to_owned),
        }
    }
}
