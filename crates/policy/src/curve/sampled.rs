//! The sampled lines in the order of their last accesses, and the rank of each in it.
//!
//! Each sampled access gets the next *position*. A bit says whether the position is *live*: that of
//! the last access to its line. The distance of an access is the number of live positions after the
//! line's own, found by counting bits, with the sums of blocks of 512. A table of two-byte entries
//! finds a line's live position. When all positions are used, the owner moves the live ones
//! together ([`SampledLines::retain`]) and so frees the others; the cost is linear, and spread over
//! at least a quarter of the capacity.
//!
//! Lines are named by 32 bits of their hash. Two lines with the same bits count as one. Among the
//! `n` lines of a volume in a shard, sampled or not, a new line finds one with the same bits with a
//! probability of `n / 2^32`: 0.6 % for 100 GiB.

/// Positions per block.
const BLOCK: usize = 512;
const WORD: usize = u64::BITS as usize;
/// An unused entry of the table.
const NONE: u16 = u16::MAX;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct SampledLines {
    /// The line accessed at each position.
    lines: Box<[u32]>,
    /// Open addressing: the live position of each line. Twice as long as `lines`.
    table: Box<[u16]>,
    /// A bit for each position.
    live: Box<[u64]>,
    /// Live positions in each block.
    live_in_block: Box<[u16]>,
    /// The next position.
    end: usize,
    /// Live positions.
    len: usize,
}

impl SampledLines {
    /// Bytes on the heap with `capacity` positions.
    pub(super) const fn heap_bytes_for(capacity: usize) -> usize {
        capacity * (size_of::<u32>() + 2 * size_of::<u16>())
            + capacity.div_ceil(WORD) * size_of::<u64>()
            + capacity.div_ceil(BLOCK) * size_of::<u16>()
    }

    /// The largest capacity, up to `capacity_max`, that takes at most `bytes` on the heap.
    pub(super) fn capacity_within(bytes: usize, capacity_max: usize) -> usize {
        let mut capacity = capacity_max.min(bytes / 8);
        // 8.13 bytes for a position, and incomplete words and blocks.
        while capacity > 0 && Self::heap_bytes_for(capacity) > bytes {
            capacity -= 1;
        }
        capacity
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.lines)
            + size_of_val(&*self.table)
            + size_of_val(&*self.live)
            + size_of_val(&*self.live_in_block)
    }

    pub(super) const fn capacity(&self) -> usize {
        self.lines.len()
    }

    /// The number of lines.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Whether all positions are used, by live accesses or by others.
    pub(super) const fn is_full(&self) -> bool {
        self.end == self.lines.len()
    }

    /// Records an access. Returns the number of other lines accessed since the last one to this
    /// line; `None` for the first.
    ///
    /// # Panics
    /// If all positions are used.
    pub(super) fn access(&mut self, line: u32) -> Option<usize> {
        assert!(!self.is_full(), "no position is free");
        let now = self.end;
        let at = self.entry_of(line);
        let last = self.table[at];
        self.table[at] = now as u16;
        self.lines[now] = line;
        self.live[now / WORD] |= 1 << (now % WORD);
        self.live_in_block[now / BLOCK] += 1;
        self.end += 1;
        if last == NONE {
            self.len += 1;
            return None;
        }
        let last = usize::from(last);
        let distance = self.live_between(last + 1, now);
        self.live[last / WORD] &= !(1 << (last % WORD));
        self.live_in_block[last / BLOCK] -= 1;
        Some(distance)
    }

    /// Whether a line is there.
    pub(super) fn contains(&self, line: u32) -> bool {
        self.capacity() > 0 && self.table[self.entry_of(line)] != NONE
    }

    /// Keeps the lines for which `keep` is true, and frees all other positions. `keep` is called in
    /// the order of the last accesses, oldest first.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        let mut len = 0;
        for at in 0..self.end {
            if self.is_live(at) && keep(self.lines[at]) {
                self.lines[len] = self.lines[at];
                len += 1;
            }
        }
        self.rebuild(len);
    }

    /// Changes the capacity, which must suffice for the lines.
    ///
    /// # Panics
    /// If it does not, or a position would not fit an entry of the table.
    pub(super) fn resize(&mut self, capacity: usize) {
        assert!(self.len <= capacity && capacity < usize::from(NONE), "capacity {capacity}");
        self.retain(|_| true);
        let mut lines = vec![0; capacity].into_boxed_slice();
        lines[..self.len].copy_from_slice(&self.lines[..self.len]);
        self.lines = lines;
        self.table = vec![NONE; 2 * capacity].into_boxed_slice();
        self.live = vec![0; capacity.div_ceil(WORD)].into_boxed_slice();
        self.live_in_block = vec![0; capacity.div_ceil(BLOCK)].into_boxed_slice();
        self.rebuild(self.len);
    }

    /// The lines in the order of their last accesses, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        (0..self.end).filter(|&at| self.is_live(at)).map(|at| self.lines[at])
    }

    /// # Panics
    /// Panics if an invariant is violated.
    pub(super) fn self_check(&self) {
        assert!(self.end <= self.capacity());
        assert_eq!(self.iter().count(), self.len, "live positions");
        assert_eq!(self.live_between(0, self.end), self.len, "sums of blocks");
        let entries = self.table.iter().filter(|&&entry| entry != NONE).count();
        assert_eq!(entries, self.len, "entries of the table");
        for at in (0..self.end).filter(|&at| self.is_live(at)) {
            let entry = self.table[self.entry_of(self.lines[at])];
            assert_eq!(usize::from(entry), at, "the entry of line {}", self.lines[at]);
        }
    }

    /// Makes the first `len` positions live and all others free.
    fn rebuild(&mut self, len: usize) {
        (self.end, self.len) = (len, len);
        self.live.fill(0);
        self.live_in_block.fill(0);
        self.table.fill(NONE);
        for at in 0..len {
            self.live[at / WORD] |= 1 << (at % WORD);
            self.live_in_block[at / BLOCK] += 1;
            let entry = self.entry_of(self.lines[at]);
            self.table[entry] = at as u16;
        }
    }

    fn is_live(&self, at: usize) -> bool {
        self.live[at / WORD] >> (at % WORD) & 1 != 0
    }

    /// Live positions in `from..to`.
    fn live_between(&self, from: usize, to: usize) -> usize {
        let (first, last) = (from.div_ceil(BLOCK), to / BLOCK);
        if first >= last {
            return self.count_bits(from, to);
        }
        let blocks = &self.live_in_block[first..last];
        let whole: usize = blocks.iter().map(|&count| usize::from(count)).sum();
        self.count_bits(from, first * BLOCK) + whole + self.count_bits(last * BLOCK, to)
    }

    fn count_bits(&self, from: usize, to: usize) -> usize {
        if from >= to {
            return 0;
        }
        let (first, last) = (from / WORD, (to - 1) / WORD);
        let above = u64::MAX << (from % WORD);
        let below = u64::MAX >> (WORD - 1 - (to - 1) % WORD);
        if first == last {
            return (self.live[first] & above & below).count_ones() as usize;
        }
        let between = self.live[first + 1..last].iter().map(|word| word.count_ones());
        let ends = (self.live[first] & above).count_ones() + (self.live[last] & below).count_ones();
        (ends + between.sum::<u32>()) as usize
    }

    /// The entry of a line in the table, or the free one where it belongs.
    fn entry_of(&self, line: u32) -> usize {
        // Sampled lines have small hashes, so these are mixed again.
        let mixed = line.wrapping_mul(0x9e37_79b9);
        let mut at = ((u64::from(mixed) * self.table.len() as u64) >> 32) as usize;
        while self.table[at] != NONE && self.lines[usize::from(self.table[at])] != line {
            at += 1;
            if at == self.table.len() {
                at = 0;
            }
        }
        at
    }
}
