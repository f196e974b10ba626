//! A model of the cache: the eviction policy and the read-ahead of the server, driven by the
//! accesses to a device, without its data.

use crate::log::key;
use forebay_policy::{CAPACITY_LINES_MAX, Eviction, Hint, Lines, Slot, Weir};
use forebay_types::{ByteRange, LINE_BYTES};
use forebay_volume::{PrefetchPlan, Streams};
use std::collections::HashMap;

/// The line was read ahead, and not read since.
const PREFETCHED: u8 = 1;
/// The first use of the line requests the next window of its stream.
const MARK: u8 = 2;

/// The lines that a cache of this capacity would hold.
pub(crate) struct Cache {
    policy: Weir,
    slots_of_lines: HashMap<u64, Slot>,
    residents: Residents,
    flags: Vec<u8>,
    capacity: usize,
    /// `None` if only a sample of the accesses is known, in which streams cannot be detected.
    streams: Option<Streams>,
}

/// How a read was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// All of its lines were resident.
    pub(crate) is_hit: bool,
    /// Read-ahead served it at least in part: some of its lines had been read ahead and not been
    /// read since.
    pub(crate) is_ahead: bool,
}

/// The line in each slot. All are clean, so every one is evictable.
struct Residents(Vec<u64>);

impl Lines for Residents {
    fn is_evictable(&self, _slot: Slot) -> bool {
        true
    }

    fn key(&self, slot: Slot) -> u64 {
        key(self.0[slot as usize])
    }
}

impl Cache {
    /// An empty cache of `capacity` lines, at least one. Without `streams`, the accesses are a
    /// sample.
    pub(crate) fn new(capacity: usize, streams: Option<Streams>) -> Self {
        let capacity = capacity.clamp(1, CAPACITY_LINES_MAX);
        Self {
            policy: Weir::new(capacity),
            slots_of_lines: HashMap::new(),
            residents: Residents(Vec::new()),
            flags: Vec::new(),
            capacity,
            streams,
        }
    }

    /// Writes some lines.
    pub(crate) fn write(&mut self, lines: std::ops::Range<u64>) {
        for line in lines {
            match self.slots_of_lines.get(&line) {
                Some(&slot) => self.policy.on_write(slot),
                None => {
                    self.insert(line, Hint::Write);
                }
            }
        }
    }

    /// Reads some lines. If `is_streamed` and the cache does not follow streams itself, missing
    /// lines count as read ahead.
    pub(crate) fn read(&mut self, lines: std::ops::Range<u64>, is_streamed: bool) -> Served {
        let (mut is_hit, mut used, mut marked) = (true, 0, Vec::new());
        for line in lines.clone() {
            let Some(&slot) = self.slots_of_lines.get(&line) else {
                is_hit = false;
                continue;
            };
            let flags = std::mem::take(&mut self.flags[slot as usize]);
            // The first read of a line that was read ahead is not a reuse.
            if flags & PREFETCHED == 0 {
                self.policy.on_hit(slot);
            } else {
                used += LINE_BYTES;
            }
            marked.extend((flags & MARK != 0).then_some(line));
        }
        if !is_hit {
            let is_predicted = is_streamed && self.streams.is_none();
            let hint = if is_predicted { Hint::Stream } else { Hint::Normal };
            for line in lines.clone() {
                if !self.slots_of_lines.contains_key(&line) {
                    self.insert(line, hint);
                }
            }
            if is_predicted {
                return Served { is_hit: true, is_ahead: true };
            }
        }
        self.follow_streams(lines, is_hit, used, &marked);
        Served { is_hit, is_ahead: used > 0 }
    }

    fn follow_streams(
        &mut self,
        lines: std::ops::Range<u64>,
        is_hit: bool,
        used: u64,
        marked: &[u64],
    ) {
        let Some(mut streams) = self.streams.take() else { return };
        if used > 0 {
            streams.on_use(used);
        }
        for &line in marked {
            self.fetch(streams.on_mark(line));
        }
        if !is_hit {
            let len = (lines.end - lines.start) * LINE_BYTES;
            self.fetch(streams.on_miss(ByteRange::new(lines.start * LINE_BYTES, len)));
        }
        self.streams = Some(streams);
    }

    /// Reads ahead.
    fn fetch(&mut self, plan: Option<PrefetchPlan>) {
        let Some(plan) = plan else { return };
        for range in plan.ranges() {
            for line in range.offset / LINE_BYTES..range.end().div_ceil(LINE_BYTES) {
                let slot = match self.slots_of_lines.get(&line) {
                    Some(&slot) if self.flags[slot as usize] == 0 => {
                        self.policy.on_hit(slot);
                        slot
                    }
                    Some(&slot) => slot,
                    None => {
                        let slot = self.insert(line, Hint::Stream);
                        self.flags[slot as usize] = PREFETCHED;
                        slot
                    }
                };
                if line == plan.mark {
                    self.flags[slot as usize] |= MARK;
                }
            }
        }
    }

    fn insert(&mut self, line: u64, hint: Hint) -> Slot {
        let slot = if self.residents.0.len() < self.capacity {
            self.residents.0.push(line);
            self.flags.push(0);
            self.residents.0.len() as Slot - 1
        } else {
            let slot = self.policy.evict(key(line), hint, &self.residents);
            let slot = slot.expect("a full cache of evictable lines has a victim");
            self.slots_of_lines.remove(&self.residents.0[slot as usize]);
            self.residents.0[slot as usize] = line;
            self.flags[slot as usize] = 0;
            slot
        };
        self.slots_of_lines.insert(line, slot);
        self.policy.on_insert(slot, key(line), hint);
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(capacity: usize) -> Cache {
        Cache::new(capacity, Some(Streams::new(1 << 40, capacity as u64 * LINE_BYTES)))
    }

    #[test]
    fn a_read_is_a_hit_if_all_its_lines_are_resident() {
        let mut cache = whole(100);
        assert!(!cache.read(10..14, false).is_hit);
        assert!(cache.read(12..14, false).is_hit && !cache.read(12..16, false).is_hit);
        cache.write(50..52);
        assert_eq!(cache.read(50..52, false), Served { is_hit: true, is_ahead: false });
    }

    #[test]
    fn a_scan_is_read_ahead_and_random_reads_are_not() {
        let shares = |at: fn(u64) -> u64| {
            let mut cache = whole(16_384);
            let served: Vec<_> = (0..20_000).map(|n| cache.read(at(n)..at(n) + 1, false)).collect();
            served.iter().filter(|served| served.is_ahead && served.is_hit).count()
        };
        assert!(shares(|n| n) > 19_800);
        let random = shares(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 38);
        assert!(random < 200, "{random}");
    }

    #[test]
    fn in_a_sample_reads_of_streams_count_as_read_ahead() {
        let mut cache = Cache::new(100, None);
        assert_eq!(cache.read(1..2, true), Served { is_hit: true, is_ahead: true });
        assert_eq!(cache.read(1..2, true), Served { is_hit: true, is_ahead: false });
        assert!(!cache.read(7..8, false).is_hit);
    }

    #[test]
    fn a_cache_holds_its_capacity_and_no_more() {
        for (capacity, held) in [(0, 1), (10, 10)] {
            let mut cache = whole(capacity);
            for n in 0..1_000 {
                cache.read(n * 100..n * 100 + 1, false);
            }
            assert_eq!((cache.slots_of_lines.len(), cache.residents.0.len()), (held, held));
        }
    }
}
