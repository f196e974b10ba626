//! A count-min sketch of recent key frequencies: 4-bit counters, 16 in a word.
//!
//! A key selects one word and four of its counters; the estimate is the minimum of the four. After
//! ten accesses per line of capacity, all counters are halved, so that old counts decay. Eight
//! bytes per line of capacity, rounded up to a power of two.

pub struct Sketch {
    words: Box<[u64]>,
    additions: usize,
    additions_max: usize,
}

const COUNT_MAX: u64 = 15;
/// The lower three bits of each counter.
const HALVES: u64 = 0x7777_7777_7777_7777;

impl Sketch {
    pub fn new(capacity: usize) -> Self {
        Self {
            words: vec![0; capacity.next_power_of_two()].into_boxed_slice(),
            additions: 0,
            additions_max: 10 * capacity,
        }
    }

    pub fn count(&mut self, key: u64) {
        let index = self.index(key);
        let mut added = false;
        for shift in shifts(key) {
            if (self.words[index] >> shift) & COUNT_MAX < COUNT_MAX {
                self.words[index] += 1 << shift;
                added = true;
            }
        }
        self.additions += usize::from(added);
        if self.additions >= self.additions_max {
            self.halve();
        }
    }

    /// The estimated frequency of `key`, from 0 to 15; too low only because of halving.
    pub fn estimate(&self, key: u64) -> u64 {
        let word = self.words[self.index(key)];
        shifts(key).map(|shift| (word >> shift) & COUNT_MAX).into_iter().min().unwrap_or(0)
    }

    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    fn halve(&mut self) {
        for word in &mut self.words {
            *word = (*word >> 1) & HALVES;
        }
        self.additions /= 2;
    }

    fn index(&self, key: u64) -> usize {
        key as usize & (self.words.len() - 1)
    }
}

/// The positions of the key's four counters in their word, one in each quarter.
fn shifts(key: u64) -> [u32; 4] {
    let bits = (key >> 48) as u32;
    [0, 1, 2, 3].map(|row| row * 16 + ((bits >> (2 * row)) & 3) * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_rise_to_fifteen_and_halve() {
        let mut sketch = Sketch::new(64);
        let key = 0xfeed_0000_0000_0011;
        for uses in 1..=20 {
            sketch.count(key);
            assert_eq!(sketch.estimate(key), uses.min(15));
        }
        sketch.halve();
        assert_eq!(sketch.estimate(key), 7);
        assert_eq!(sketch.estimate(0x12), 0);
    }
}
