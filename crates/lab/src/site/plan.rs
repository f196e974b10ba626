//! The plan of a site, drawn from its seed: hosts, volumes, clients and faults.

use super::SiteOptions;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::places::sectors;
use forebay_types::ByteRange;
use forebay_volume::RequestKind;

/// How a store shuts a former owner out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FenceKind {
    /// The cluster shuts a connection out, which disk and journal share, from reads as well.
    Connection,
    /// Each device refuses the writes of others, and is taken over by itself.
    Reservations,
}

/// The clock of a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostClock {
    offset_ms: u64,
    /// Its milliseconds per second.
    rate: u64,
}

impl HostClock {
    fn draw(dice: &mut Dice) -> Self {
        Self {
            offset_ms: dice.below(1 << 32) * 100,
            rate: dice.pick(&[1000, 1000, 0, 1, 900, 1100, 1_000_000]),
        }
    }

    pub(super) const fn at(self, site_ms: u64) -> u64 {
        self.offset_ms + site_ms * self.rate / 1000
    }
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SiteStep {
    /// A client submits a request.
    Request,
    /// An I/O in flight reaches the store, or its end the server.
    Io,
    /// Something that servers do on their own: a tick, a look at the stores, a step of a takeover.
    Upkeep,
    /// A fault, a repair, or a command.
    Event,
}

/// A fault, its repair, or a command of the operator or a cluster manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SiteEvent {
    Kill,
    Start,
    Pause,
    Resume,
    CutStore,
    CutClients,
    Heal,
    TakeOver,
    TakeOverTwice,
    HandOver,
}

const EVENTS: [SiteEvent; 10] = [
    SiteEvent::Kill,
    SiteEvent::Start,
    SiteEvent::Pause,
    SiteEvent::Resume,
    SiteEvent::CutStore,
    SiteEvent::CutClients,
    SiteEvent::Heal,
    SiteEvent::TakeOver,
    SiteEvent::TakeOverTwice,
    SiteEvent::HandOver,
];

pub(super) struct SitePlan {
    pub hosts: usize,
    pub volumes: u16,
    /// Steps until all faults are repaired.
    pub steps: u64,
    pub shards: usize,
    pub lines_per_shard: usize,
    /// Each shard may have only one dirty line.
    pub is_tight: bool,
    /// The fence of each volume.
    pub fences: Vec<FenceKind>,
    pub clocks: Vec<HostClock>,
    /// Requests in flight at which clients wait.
    pub requests_max: usize,
    /// Weights of [`SiteStep`], in its order.
    steps_mix: [u32; 4],
    /// Weights of [`EVENTS`].
    events_mix: [u32; EVENTS.len()],
    /// Weights of read, write, write with FUA, flush, trim, zero.
    requests_mix: [u32; 6],
    /// The share of I/Os that are slow.
    pub slow: Ppm,
    /// Whether I/Os fail, instead of hanging, while a host does not reach stores with reservations.
    pub paths_fail: bool,
    longest: u64,
}

impl SitePlan {
    pub(super) fn draw(dice: &mut Dice, options: &SiteOptions) -> Self {
        let hosts = options.hosts.unwrap_or_else(|| dice.pick(&[2, 2, 2, 3, 3, 4]));
        let volumes = options.volumes.unwrap_or_else(|| dice.pick(&[1, 1, 1, 2, 2, 3]));
        let kinds = [FenceKind::Connection, FenceKind::Reservations];
        let steps = options.steps * (hosts as u64).max(u64::from(volumes)).max(4) / 4;
        Self {
            hosts,
            volumes,
            steps: dice.range(steps / 2, steps),
            shards: dice.pick(&[1, 2]),
            lines_per_shard: dice.pick(&[4, 8]),
            is_tight: dice.chance(200_000),
            fences: (0..volumes).map(|_| dice.pick(&kinds)).collect(),
            clocks: (0..hosts).map(|_| HostClock::draw(dice)).collect(),
            requests_max: dice.pick(&[1, 2, 4, 8]) * usize::from(volumes),
            steps_mix: dice.pick(&[[25, 53, 20, 2], [20, 50, 24, 6], [30, 54, 15, 1]]),
            events_mix: dice.pick(&[
                [4, 8, 4, 6, 3, 2, 6, 10, 3, 2],
                [8, 10, 0, 0, 0, 0, 0, 10, 0, 0],
                [0, 1, 8, 8, 0, 0, 0, 10, 4, 0],
                [1, 4, 2, 4, 8, 4, 8, 10, 2, 0],
                [1, 4, 1, 4, 1, 1, 4, 4, 12, 1],
                [2, 6, 2, 4, 2, 0, 4, 8, 1, 8],
            ]),
            requests_mix: dice.pick(&[
                [30, 45, 8, 5, 5, 5],
                [20, 80, 0, 0, 0, 0],
                [40, 20, 20, 10, 5, 5],
                [10, 60, 5, 2, 10, 10],
            ]),
            slow: dice.pick(&[0, 20_000, 300_000]),
            paths_fail: dice.chance(300_000),
            longest: dice.pick(&[1, 8, 8, 16]),
        }
    }

    pub(super) fn draw_step(&self, dice: &mut Dice) -> SiteStep {
        [SiteStep::Request, SiteStep::Io, SiteStep::Upkeep, SiteStep::Event]
            [dice.weighted(&self.steps_mix)]
    }

    pub(super) fn draw_event(&self, dice: &mut Dice) -> SiteEvent {
        EVENTS[dice.weighted(&self.events_mix)]
    }

    pub(super) fn draw_request(&self, dice: &mut Dice) -> (RequestKind, ByteRange) {
        let count = dice.range(1, self.longest);
        let range = sectors(dice.below(crate::harness::places::SECTORS as u64 - count + 1), count);
        let fua = dice.chance(200_000);
        let kind = match dice.weighted(&self.requests_mix) {
            0 => RequestKind::Read,
            1 => RequestKind::Write { fua: false },
            2 => RequestKind::Write { fua: true },
            3 => return (RequestKind::Flush, crate::harness::WHOLE),
            4 => RequestKind::Trim { fua },
            _ => RequestKind::Zero { fua, unmap: dice.chance(500_000) },
        };
        (kind, range)
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "{} hosts, {} volumes, fences {:?}, {} shards of {} lines",
            self.hosts, self.volumes, self.fences, self.shards, self.lines_per_shard
        )
    }
}
