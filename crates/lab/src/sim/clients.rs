//! The clients: their requests and payloads.

use super::device::disk::sectors_of;
use super::driver::VERIFIER;
use super::plan::{Plan, VolumePlan};
use super::run::Event;
use super::world::World;
use crate::harness::dice::{Dice, Ppm};
use crate::harness::memory::{Memory, write_stamp};
use crate::harness::oracle::{POISON, stamp};
use crate::harness::{Sabotage, WHOLE};
use forebay_engine::Slot;
use forebay_types::{ByteRange, LINE_BYTES, SECTOR_BYTES, VolumeId};
use forebay_volume::{Dispatcher, Payload, Request, RequestKind, staged_pieces};
use std::cell::Cell;
use std::rc::Rc;

/// The probability that a payload received into the pool never completes.
const ABANDONED: Ppm = 50_000;
/// The content of a slot before its payload: no version of any sector.
const GARBAGE: u64 = POISON;

/// A client with one request in flight at a time.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub worker: u8,
    /// The volume that it uses most.
    main_volume: u16,
    /// The end of its last request, in sectors; shared with the clients of the same volume if they
    /// write side by side.
    position: Rc<Cell<u64>>,
    /// The next read, of data that it has just written.
    read_back: Option<(VolumeId, ByteRange)>,
}

impl Client {
    pub(crate) fn new(plan: &Plan, dice: &mut Dice) -> Self {
        Self {
            worker: dice.below(u64::from(plan.workers)) as u8,
            main_volume: dice.below(plan.volumes.len() as u64) as u16,
            position: Rc::new(Cell::new(dice.below(1 << 20))),
            read_back: None,
        }
    }

    pub(crate) fn all(plan: &Plan, dice: &mut Dice) -> Vec<Self> {
        let mut all: Vec<Self> = (0..plan.clients).map(|_| Self::new(plan, dice)).collect();
        if plan.side_by_side() {
            let places: Vec<_> = plan.volumes.iter().map(|_| Rc::default()).collect();
            all.iter_mut()
                .for_each(|c| c.position = Rc::clone(&places[usize::from(c.main_volume)]));
        }
        all
    }

    pub(crate) fn draw(&mut self, plan: &Plan, dice: &mut Dice) -> Request {
        if let Some((volume, range)) = self.read_back.take() {
            return Request { volume, kind: RequestKind::Read, range };
        }
        let count = plan.volumes.len() as u64;
        let volume = if dice.chance(900_000) { self.main_volume } else { dice.below(count) as u16 };
        let fua = dice.chance(250_000);
        let kind = match dice.weighted(&plan.mix) {
            0 => RequestKind::Read,
            1 | 7 => RequestKind::Write { fua: false },
            2 => RequestKind::Write { fua: true },
            3 => RequestKind::Flush,
            4 => RequestKind::Trim { fua },
            5 => RequestKind::Zero { fua, unmap: dice.chance(500_000) },
            _ => RequestKind::Prefetch,
        };
        let range = self.draw_range(plan, volume, kind, dice);
        let volume = VolumeId(volume);
        if kind == (RequestKind::Write { fua: false }) && dice.chance(100_000) {
            self.read_back = Some((volume, range));
        }
        Request { volume, kind, range }
    }

    fn draw_range(
        &mut self,
        plan: &Plan,
        volume: u16,
        kind: RequestKind,
        dice: &mut Dice,
    ) -> ByteRange {
        let size = plan.volumes[usize::from(volume)].sectors;
        if kind == RequestKind::Flush {
            return WHOLE;
        }
        let is_erase = matches!(kind, RequestKind::Trim { .. } | RequestKind::Zero { .. });
        // A few erases cover the whole volume, possibly with more parts than one erase may have.
        if is_erase && dice.chance(20_000) {
            return ByteRange::new(0, size * SECTOR_BYTES);
        }
        let count = plan.draw_sectors(dice).min(size);
        let place = dice.weighted(&plan.places);
        let first = match place {
            0 => dice.below(size),
            // The hot lines are adjacent; their position depends on the volume's number.
            1 => {
                let from = (u64::from(volume) * 7919) % size;
                from + dice.below(plan.hot_lines * 8)
            }
            _ => self.position.get(),
        };
        // Half of the requests that do not continue at the position are aligned to lines, like
        // those of file systems.
        let first = if dice.chance(500_000) && place != 2 { first / 8 * 8 } else { first };
        let first = first % (size - count + 1);
        self.position.set(first + count);
        if is_erase && count % 8 == 5 {
            return whole_regions(plan.volume(VolumeId(volume)), first, count % 5);
        }
        ByteRange::new(first * SECTOR_BYTES, count * SECTOR_BYTES)
    }
}

/// At least two regions from that of a sector on, as far as the volume has them.
fn whole_regions(volume: &VolumePlan, sector: u64, more: u64) -> ByteRange {
    let from = volume.stripes.region_at(sector * SECTOR_BYTES).offset;
    let end = volume.stripes.border(volume.stripes.region_of(from) + 2 + more);
    ByteRange::new(from, end.min(volume.bytes()) - from)
}

/// A write whose payload is being received into the pool.
pub(crate) struct Staging {
    pub worker: u8,
    client: u16,
    request: Request,
    slots: Vec<Slot>,
}

impl Staging {
    /// Reserves slots for the payload of a write and fills them with garbage. Returns false if
    /// there are no slots.
    fn begin(
        world: &mut World,
        dispatcher: &mut Dispatcher<World>,
        client: u16,
        request: Request,
    ) -> bool {
        let Some(slots) = dispatcher.stage(world, request.volume, request.range) else {
            return false;
        };
        let staging = Self { worker: world.worker, client, request, slots };
        staging.fill(world, |_| GARBAGE);
        world.requests.begin_payload(&mut world.run, staging);
        true
    }

    /// Ends the reception: the payload is complete and is written, or its client has disconnected
    /// and another one takes its place.
    pub(crate) fn end(self, world: &mut World, dispatcher: &mut Dispatcher<World>) {
        let Self { client, request, .. } = self;
        if world.run.dice.chance(ABANDONED) {
            dispatcher.unstage(world, request.volume, request.range, &self.slots);
            world.run.schedule(0, Event::Client(client));
            return;
        }
        let (token, version) = world.register(client, request);
        if !world.run.strikes(Sabotage::ShortPayload) {
            self.fill(world, |sector| stamp(request.volume.0, sector, version));
        }
        dispatcher.submit(world, token, request, Payload::Staged(self.slots));
    }

    fn fill(&self, world: &mut World, content: impl Fn(u64) -> u64) {
        let Request { volume, range, .. } = self.request;
        let divided = (volume, world.stripes_of(volume));
        for (shard, piece, slots) in staged_pieces(divided, range, world.shards.len(), &self.slots)
        {
            for sector in sectors_of(piece) {
                let offset = sector * SECTOR_BYTES;
                let slot = slots[(offset / LINE_BYTES - piece.offset / LINE_BYTES) as usize];
                let at = (offset % LINE_BYTES) as u32;
                world.shards[shard].set_stamp(slot, at, content(sector));
            }
        }
    }
}

/// A buffer for payloads that are lent to the dispatcher.
#[derive(Default)]
pub(crate) struct Payloads(Vec<u8>);

impl Payloads {
    pub(crate) fn submit(
        &mut self,
        world: &mut World,
        dispatcher: &mut Dispatcher<World>,
        client: u16,
        request: Request,
    ) {
        let is_write = matches!(request.kind, RequestKind::Write { .. });
        // The verifier always completes its payloads.
        if is_write
            && client != VERIFIER
            && world.run.dice.chance(world.run.plan.staged_payload)
            && Staging::begin(world, dispatcher, client, request)
        {
            return;
        }
        let (token, version) = world.register(client, request);
        if !is_write {
            dispatcher.submit(world, token, request, Payload::None);
            return;
        }
        let len = request.range.len as usize;
        if self.0.len() < len {
            self.0.resize(len, 0);
        }
        let first = request.range.offset / SECTOR_BYTES;
        for at in 0..request.range.len / SECTOR_BYTES {
            let content = stamp(request.volume.0, first + at, version);
            write_stamp(&mut self.0, at * SECTOR_BYTES, content);
        }
        let bytes = &self.0[..len];
        if world.run.dice.chance(world.run.plan.owned_payload) {
            let memory = Memory::payload(bytes);
            dispatcher.submit(world, token, request, Payload::Owned(memory));
        } else {
            dispatcher.submit(world, token, request, Payload::Borrowed(bytes));
        }
    }
}
