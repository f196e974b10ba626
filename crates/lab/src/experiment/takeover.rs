//! `takeover`: the time until the volumes of a dead host are served again, and what a host needs
//! for its volumes.

use super::report::{Report, Table, figure};
use forebay_backend::OpenError;
use forebay_format::journal::BATCH_BYTES_MAX;
use std::collections::VecDeque;

/// What the model assumes. The comments say which figures are measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakeoverPlan {
    /// From the death of a host to the command that takes its volumes over, in seconds.
    pub detection_s: f64,
    /// Shutting a former owner out and taking its locks; measured on an RBD cluster of two OSDs.
    pub fence_s: f64,
    /// How many owners the cluster shuts out per second; measured with one monitor and 32 requests
    /// at a time.
    pub fences_per_s: f64,
    /// The rate at which one journal is read and checked, in MiB/s; measured on the same cluster.
    pub stream_mib_s: f64,
    /// The rate at which the store delivers the journals of all hosts together, in MiB/s.
    pub store_mib_s: f64,
    /// Workers of a server, which determine the buffers of a journal.
    pub workers: u64,
}

impl TakeoverPlan {
    pub(super) const FULL: Self = Self {
        detection_s: 10.0,
        fence_s: 0.22,
        fences_per_s: 450.0,
        stream_mib_s: 150.0,
        store_mib_s: 10_000.0,
        workers: 8,
    };
}

/// Volumes without an owner, and who takes them over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outage {
    pub volumes: u32,
    pub survivors: u32,
    /// Volumes that a host opens at a time.
    pub at_a_time: u32,
    pub journal_mib: f64,
}

/// Openings in progress on one host.
struct Survivor {
    waiting: u32,
    open: u32,
}

enum TakeoverStage {
    /// Until this time.
    Fence(f64),
    /// MiB to read.
    Read(f64),
}

struct Takeover {
    survivor: usize,
    stage: TakeoverStage,
}

/// The times at which volumes are served again, in seconds after the death of their hosts,
/// ascending.
pub(super) fn served_at(plan: &TakeoverPlan, outage: &Outage) -> Vec<f64> {
    let count = outage.survivors as usize;
    let mut survivors: Vec<Survivor> = (0..outage.survivors)
        .map(|at| {
            let more = u32::from(at < outage.volumes % outage.survivors);
            Survivor { waiting: outage.volumes / outage.survivors + more, open: 0 }
        })
        .collect();
    let (mut now, mut monitors_free) = (plan.detection_s, plan.detection_s);
    let mut openings: Vec<Takeover> = Vec::new();
    let mut served = Vec::with_capacity(outage.volumes as usize);
    let mut idle: VecDeque<usize> = (0..count).collect();
    while served.len() < outage.volumes as usize {
        while let Some(at) = idle.pop_front() {
            let one = &mut survivors[at];
            if one.waiting == 0 || one.open == outage.at_a_time {
                continue;
            }
            (one.waiting, one.open) = (one.waiting - 1, one.open + 1);
            monitors_free = f64::max(monitors_free, now) + 1.0 / plan.fences_per_s;
            let stage = TakeoverStage::Fence(monitors_free + plan.fence_s);
            openings.push(Takeover { survivor: at, stage });
            idle.push_back(at);
        }
        let reads = openings.iter().filter(|it| matches!(it.stage, TakeoverStage::Read(_))).count();
        let rate = plan.stream_mib_s.min(plan.store_mib_s / reads.max(1) as f64);
        let ends = openings.iter().map(|it| match it.stage {
            TakeoverStage::Fence(until) => until,
            TakeoverStage::Read(mib) => now + mib / rate,
        });
        let next = ends.fold(f64::INFINITY, f64::min);
        let passed_mib = (next - now) * rate;
        now = next;
        openings.retain_mut(|it| {
            match &mut it.stage {
                TakeoverStage::Fence(until) if *until <= now => {
                    it.stage = TakeoverStage::Read(outage.journal_mib);
                }
                TakeoverStage::Fence(_) => {}
                TakeoverStage::Read(mib) => *mib -= passed_mib,
            }
            let is_served = matches!(it.stage, TakeoverStage::Read(mib) if mib < 1e-6);
            if is_served {
                served.push(now);
                survivors[it.survivor].open -= 1;
                idle.push_back(it.survivor);
            }
            !is_served
        });
    }
    served
}

/// A volume's connection to a cluster has so many threads of Ceph's library; measured.
const CONNECTION_THREADS: u64 = 25;
/// Its memory, with two open images; measured.
const CONNECTION_BYTES: u64 = 2700 << 10;
/// Threads of a journal: the one that writes it, and its patrol.
const JOURNAL_THREADS: u64 = 2;

fn times(plan: &TakeoverPlan) -> Table {
    let head = ["volumes", "hosts that take over", "journal", "at a time", "first", "half", "all"];
    let mut table = Table::new("Seconds from the death of hosts until volumes are served", &head);
    for (volumes, survivors) in [(100, 2), (100, 999), (1000, 10), (1000, 999), (20_000, 980)] {
        for (journal_mib, at_a_time) in [(16.0, 1), (140.0, 1), (140.0, 8)] {
            let outage = Outage { volumes, survivors, at_a_time, journal_mib };
            let served = served_at(plan, &outage);
            table.push(vec![
                volumes.to_string(),
                survivors.to_string(),
                format!("{journal_mib} MiB"),
                at_a_time.to_string(),
                figure(served[0]),
                figure(served[served.len() / 2]),
                figure(served[served.len() - 1]),
            ]);
        }
    }
    table
}

fn needs(plan: &TakeoverPlan) -> Table {
    let head = ["volumes", "connections", "threads", "memory of connections", "of journals"];
    let mut table = Table::new("A host with a connection and a journal for each volume", &head);
    for volumes in [10, 100, 1000] {
        let buffers = volumes * (plan.workers + 2) * BATCH_BYTES_MAX;
        table.push(vec![
            volumes.to_string(),
            volumes.to_string(),
            (volumes * (CONNECTION_THREADS + JOURNAL_THREADS)).to_string(),
            format!("{} MiB", (volumes * CONNECTION_BYTES) >> 20),
            format!("{} MiB", buffers >> 20),
        ]);
    }
    table
}

#[expect(clippy::unnecessary_wraps, reason = "like the other experiments")]
pub(super) fn run(plan: &TakeoverPlan) -> Result<Report, OpenError> {
    let TakeoverPlan { detection_s, fence_s, fences_per_s, stream_mib_s, store_mib_s, workers } =
        *plan;
    Ok(Report {
        title: "Takeover: how long the volumes of dead hosts are not served".into(),
        model: vec![format!(
            "Hosts die, and the others take their volumes over, in equal shares, after \
             {detection_s} s. A volume is served once its former owner is shut out, in {fence_s} \
             s, and its journal is read, at {stream_mib_s} MiB/s. The cluster shuts out \
             {fences_per_s} owners per second. These are measured on a cluster of two OSDs; that \
             the store delivers {store_mib_s} MiB/s to all hosts together is assumed. The present \
             server opens one journal at a time. It has {workers} workers."
        )],
        tables: vec![times(plan), needs(plan)],
        plots: Vec::new(),
        remarks: vec![
            "The last row of a block shows what opening several journals at a time would bring."
                .into(),
        ],
    })
}
