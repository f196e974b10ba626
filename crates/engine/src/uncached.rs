//! How a request was served: the lines hit and missed, and why the pool did not serve it alone.

/// Why a request was not served from the pool alone. If several reasons apply to the parts of a
/// request, the last one in this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Uncached {
    /// A read of lines that are not in the pool, and are read into it from the disk.
    Miss,
    /// A read of lines that were already being read from the disk, or written to it.
    IoInFlight,
    /// The volume is in write-through mode.
    WriteThrough,
    /// A write with FUA, without a protection that counts as stable storage.
    Fua,
    /// A write without protection, while clients flush after nearly every write.
    Flushed,
    /// The protection of the volume does not cover the write now.
    Protection,
    /// The dirty limit is reached.
    DirtyLimit,
    /// No slot could be freed, or the lines of a read were evicted in every attempt.
    NoRoom,
    /// The volume is in bypass mode.
    Bypass,
    /// A read of lines that are not in the pool, of a frozen volume.
    Frozen,
    /// Its region is held out.
    HoldOut,
    /// A read that was shared with others has failed, so it was retried past the cache.
    AfterError,
    /// The request failed: it read lost sectors, or no other reason was recorded.
    Failed,
}

impl Uncached {
    /// All reasons, in order.
    pub const ALL: [Self; 13] = [
        Self::Miss,
        Self::IoInFlight,
        Self::WriteThrough,
        Self::Fua,
        Self::Flushed,
        Self::Protection,
        Self::DirtyLimit,
        Self::NoRoom,
        Self::Bypass,
        Self::Frozen,
        Self::HoldOut,
        Self::AfterError,
        Self::Failed,
    ];

    /// Its name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Miss => "miss",
            Self::IoInFlight => "io-in-flight",
            Self::WriteThrough => "write-through",
            Self::Fua => "fua",
            Self::Flushed => "flushed",
            Self::Protection => "protection",
            Self::DirtyLimit => "dirty-limit",
            Self::NoRoom => "no-room",
            Self::Bypass => "bypass",
            Self::Frozen => "frozen",
            Self::HoldOut => "hold-out",
            Self::AfterError => "after-error",
            Self::Failed => "failed",
        }
    }
}

/// How a request, or a part of it, was served.
// It is passed along with every answer, as one word: several short stores that are read by one
// load stall the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(8))]
pub struct LineHits {
    /// Lines in the pool; for a read, only those with all requested sectors valid. This and the
    /// other counts stop at 65535.
    pub hits: u16,
    /// Other lines.
    pub misses: u16,
    /// Why the pool did not serve the request alone; `None` if it did.
    pub uncached: Option<Uncached>,
    /// Lines served as if there were no cache, because their region is held out. Zero if the cache
    /// has affected how they were served, such as by dirty data or by a wait.
    pub held_out: u16,
}

/// Which side of the comparison with a hold-out a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The cache has served it.
    Served,
    /// It was served as if there were no cache.
    HeldOut,
}

impl LineHits {
    /// One line, in the pool.
    pub const ONE_HIT: Self = Self { hits: 1, misses: 0, uncached: None, held_out: 0 };

    /// The same lines, of a request that was served past the cache for `reason`.
    pub(crate) const fn past_cache(self, reason: Uncached) -> Self {
        Self { uncached: Some(reason), ..self }
    }

    /// Adds another part, or another attempt, of the same request.
    pub fn add(&mut self, other: Self) {
        self.hits = self.hits.saturating_add(other.hits);
        self.misses = self.misses.saturating_add(other.misses);
        self.uncached = self.uncached.max(other.uncached);
        self.held_out = self.held_out.saturating_add(other.held_out);
    }

    /// The side of the comparison. `None` if the request belongs to neither: only a part of it was
    /// held out, or the cache affected how it was served.
    pub fn arm(&self) -> Option<Arm> {
        if self.held_out == 0 {
            return (self.uncached != Some(Uncached::HoldOut)).then_some(Arm::Served);
        }
        (self.held_out == self.hits.saturating_add(self.misses)).then_some(Arm::HeldOut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reason_in_order_counts() {
        let part = |hits, misses, uncached| LineHits { hits, misses, uncached, held_out: 0 };
        let mut sum = LineHits::default();
        sum.add(part(1, 2, Some(Uncached::NoRoom)));
        sum.add(part(3, 0, None));
        sum.add(part(0, 1, Some(Uncached::Miss)));
        assert_eq!(sum, part(4, 3, Some(Uncached::NoRoom)));
    }

    #[test]
    fn a_request_that_is_held_out_in_part_belongs_to_no_side() {
        let held = LineHits { misses: 2, held_out: 2, ..LineHits::default() };
        let held = held.past_cache(Uncached::HoldOut);
        let mixed = LineHits { held_out: 0, ..held };
        assert_eq!([LineHits::ONE_HIT.arm(), held.arm()], [Some(Arm::Served), Some(Arm::HeldOut)]);
        for other in [LineHits::ONE_HIT, mixed] {
            let mut sum = held;
            sum.add(other);
            assert_eq!(sum.arm(), None, "{sum:?}");
        }
        let mut both = held;
        both.add(held);
        assert_eq!((both.arm(), mixed.arm()), (Some(Arm::HeldOut), None));
    }

    #[test]
    fn the_list_of_reasons_is_in_order() {
        assert!(Uncached::ALL.is_sorted());
        let numbers = Uncached::ALL.iter().map(|&reason| reason as usize);
        assert!(numbers.eq(0..Uncached::ALL.len()));
    }
}
