//! The choice of requests.
//!
//! The volume is divided into zones of 4 MiB; the last one includes the remainder. Within a zone,
//! the connections own pieces in turn. The piece length differs by zone: from one block of the
//! protocol, so that a disk block has several writers, to parts of a megabyte. A connection changes
//! only its own pieces, so no sector has changes in flight from two connections. Reads go anywhere.
//!
//! Three of eight requests go to the same 4 or 64 KiB as the previous one, so that a disk block has
//! several changes in flight. As many go to a slowly moving window, for cache hits; the others
//! cause evictions.

use super::oracle::Sectors;
use super::stamp::SECTOR_BYTES;
use crate::content::LoadRandom;
use crate::wire::{Export, WireCommand, export_flag, request_flag};

const ZONE_SECTORS: u32 = (4 << 20) / SECTOR_BYTES as u32;
/// Lengths of pieces in blocks of the protocol, by zone.
const GRAINS: [u32; 12] = [1, 2, 1, 3, 8, 1, 5, 13, 64, 1, 256, 2048];
/// Requests per window position.
const WINDOW_REQUESTS: u64 = 1500;
/// Longest change in sectors.
const CHANGE_SECTORS_MAX: u32 = 4096;

/// One request, in sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRequest {
    pub command: WireCommand,
    /// Its flags on the wire.
    pub flags: u16,
    /// The sectors; empty for a flush.
    pub sectors: Sectors,
}

/// Chooses requests.
pub struct RequestPlan {
    random: LoadRandom,
    connections: u32,
    /// Sectors per block of the protocol, the alignment of requests.
    unit: u32,
    sectors: u32,
    flags: u16,
    window: Sectors,
    /// Start of the previous request.
    last: u32,
    chosen: u64,
}

impl RequestPlan {
    /// Requests supported by `export`.
    pub fn new(seed: u64, export: &Export, connections: u32) -> Self {
        let sectors = (export.size_bytes / SECTOR_BYTES as u64) as u32;
        Self {
            random: LoadRandom::new(seed),
            connections,
            unit: export.block_min.div_ceil(SECTOR_BYTES as u32),
            sectors,
            flags: export.flags,
            window: 0..sectors,
            last: 0,
            chosen: 0,
        }
    }

    /// The next request of connection number `connection`, which may support block status.
    pub fn next(&mut self, connection: u32, has_status: bool) -> ModelRequest {
        if self.chosen.is_multiple_of(WINDOW_REQUESTS) {
            self.move_window();
        }
        self.chosen += 1;
        let can = |flag: u16| self.flags & flag != 0;
        let (trim, zero) = (can(export_flag::TRIM), can(export_flag::WRITE_ZEROES));
        let cache = can(export_flag::CACHE);
        match self.random.below(100) {
            0..2 => ModelRequest { command: WireCommand::Flush, flags: 0, sectors: 0..0 },
            2..34 => self.anywhere(WireCommand::Read),
            34..36 if cache => self.anywhere(WireCommand::Cache),
            36..38 if has_status => self.anywhere(WireCommand::BlockStatus),
            38..42 if trim => self.owned(WireCommand::Trim, connection),
            42..49 if zero => self.owned(WireCommand::WriteZeroes, connection),
            _ => self.owned(WireCommand::Write, connection),
        }
    }

    fn move_window(&mut self) {
        let len = (128 << self.random.below(6)).min(self.sectors);
        let start = self.random.below(u64::from(self.sectors - len) + 1) as u32;
        self.window = start..start + len;
    }

    /// A place near the last one, in the window, or anywhere.
    fn place(&mut self) -> u32 {
        let block_of_last = |sectors: u32| {
            let start = self.last / sectors * sectors;
            start..(start + sectors).min(self.sectors)
        };
        let range = match self.random.below(8) {
            0 | 1 => block_of_last(8),
            2 => block_of_last(128),
            3..6 => self.window.clone(),
            _ => 0..self.sectors,
        };
        self.last = range.start + self.random.below(u64::from(range.end - range.start)) as u32;
        self.last
    }

    /// A length in blocks, short ones more often, and up to `max`.
    fn blocks(&mut self, max: u32) -> u32 {
        let bits = self.random.below(u64::from(u32::BITS - max.leading_zeros()) + 1);
        (1 + self.random.below(1 << bits) as u32).min(max)
    }

    /// Sectors from the block of `place` on, within the volume.
    fn span(&self, place: u32, blocks: u32) -> Sectors {
        let start = place / self.unit * self.unit;
        start..(start + blocks * self.unit).min(self.sectors)
    }

    fn anywhere(&mut self, command: WireCommand) -> ModelRequest {
        let rare = self.random.below(20) == 0;
        let blocks = self.blocks(if rare { 2048 / self.unit } else { 64 });
        let place = self.place();
        let sectors = self.span(place, blocks.max(1));
        let one = command == WireCommand::BlockStatus && self.random.below(2) == 0;
        ModelRequest { command, flags: if one { request_flag::REQ_ONE } else { 0 }, sectors }
    }

    fn owned(&mut self, command: WireCommand, connection: u32) -> ModelRequest {
        let place = self.place();
        let piece = self.piece(place, connection);
        let blocks = (piece.end - piece.start) / self.unit;
        let whole = blocks == 1 || self.random.below(4) == 0;
        let len = if whole { blocks } else { self.blocks(blocks) };
        let len = len.min(CHANGE_SECTORS_MAX / self.unit);
        let first = self.random.below(u64::from(blocks - len) + 1) as u32;
        let start = piece.start + first * self.unit;
        let mut flags = 0;
        let mut maybe = |flag: u16, one_in: u64| {
            if self.random.below(one_in) == 0 {
                flags |= flag;
            }
        };
        if self.flags & export_flag::FUA != 0 {
            maybe(request_flag::FUA, 12);
        }
        if command == WireCommand::WriteZeroes {
            maybe(request_flag::NO_HOLE, 3);
            if self.flags & export_flag::FAST_ZERO != 0 {
                maybe(request_flag::FAST_ZERO, 4);
            }
        }
        ModelRequest { command, flags, sectors: start..start + len * self.unit }
    }

    /// The piece of `connection` that is nearest to `place`, in the same zone.
    fn piece(&self, place: u32, connection: u32) -> Sectors {
        let last = (self.sectors / ZONE_SECTORS).saturating_sub(1);
        let zone = (place / ZONE_SECTORS).min(last);
        let zone_start = zone * ZONE_SECTORS;
        let zone_end = if zone == last { self.sectors } else { zone_start + ZONE_SECTORS };
        let zone_blocks = (zone_end - zone_start) / self.unit;
        // Each connection has at least one piece in each zone.
        let most = (zone_blocks / self.connections).max(1);
        let grain = GRAINS[zone as usize % GRAINS.len()].min(most);
        let pieces = (zone_blocks / grain).max(1);
        let near = ((place - zone_start) / self.unit / grain).min(pieces - 1);
        let turn = near - near % self.connections + (connection + zone) % self.connections;
        let piece = if turn < pieces { turn } else { turn.saturating_sub(self.connections) };
        let start = zone_start + piece * grain * self.unit;
        start..(start + grain * self.unit).min(zone_end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(size_bytes: u64, block_min: u32) -> Export {
        Export { size_bytes, flags: u16::MAX, block_min, structured: true, allocation: Some(1) }
    }

    #[test]
    fn no_two_connections_change_the_same_sector() {
        for (size, block) in
            [(64 << 20, 512), ((9 << 20) + 8192, 1), (64 << 20, 4096), (40 << 20, 65536)]
        {
            let mut owner = vec![None; (size / 512) as usize];
            let mut plan = RequestPlan::new(1, &export(size, block), 5);
            let mut seen = [0; 10];
            for turn in 0..200_000 {
                let connection = turn % 5;
                let operation = plan.next(connection, connection != 1);
                let number = match operation.command {
                    WireCommand::Write => 0,
                    WireCommand::Trim => 1,
                    WireCommand::WriteZeroes => 2,
                    WireCommand::Read => 3,
                    WireCommand::Flush => 4,
                    WireCommand::Cache => 5,
                    _ => 6,
                };
                seen[number] += 1;
                let unit = block.div_ceil(512);
                assert!(operation.sectors.start.is_multiple_of(unit), "{operation:?}");
                assert!(operation.sectors.end.is_multiple_of(unit), "{operation:?}");
                assert!(u64::from(operation.sectors.end) <= size / 512, "{operation:?}");
                assert!(number == 4 || !operation.sectors.is_empty(), "{operation:?}");
                if number < 3 {
                    for sector in operation.sectors {
                        let owner = &mut owner[sector as usize];
                        assert_eq!(*owner.get_or_insert(connection), connection);
                    }
                }
            }
            assert!(seen[..7].iter().all(|&count| count > 100), "{seen:?}");
        }
    }

    #[test]
    fn blocks_of_four_kib_have_several_owners() {
        let plan = RequestPlan::new(1, &export(64 << 20, 512), 4);
        let mut shared = 0;
        for block in 0..(64 << 20) / 4096 {
            let owner_of = |sector| {
                (0..4).find(|&connection| plan.piece(sector, connection).contains(&sector))
            };
            let owners: Vec<_> = (block * 8..block * 8 + 8).map(owner_of).collect();
            shared += u32::from(owners.iter().any(|owner| *owner != owners[0]));
        }
        assert!(shared > 16384 / 3, "{shared}");
    }
}
