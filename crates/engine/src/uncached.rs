//! How a request was served: the lines hit and missed, and why the pool did not serve it alone.

/// Why a request was not served from the pool alone. If several reasons apply to the parts of a
/// request, the last one in this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Uncached {
    /// A read of lines that are not in the pool. They are read from the disk into it.
    Miss,
    /// A read of lines that were already being read from the disk, or written to it.
    IoInFlight,
    /// The volume is in write-through mode.
    WriteThrough,
    /// A write with FUA, without a protection that counts as stable storage.
    Fua,
    /// The protection of the volume does not cover the write now.
    Protection,
    /// The dirty limit is reached.
    DirtyLimit,
    /// No slot could be freed, or the lines of a read were evicted in every attempt.
    NoRoom,
    /// The volume is in bypass mode.
    Bypass,
    /// A read that was shared with others has failed, so it was retried past the cache.
    AfterError,
    /// The request failed before its lines were looked up.
    Failed,
}

impl Uncached {
    /// All reasons, in order.
    pub const ALL: [Self; 10] = [
        Self::Miss,
        Self::IoInFlight,
        Self::WriteThrough,
        Self::Fua,
        Self::Protection,
        Self::DirtyLimit,
        Self::NoRoom,
        Self::Bypass,
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
            Self::Protection => "protection",
            Self::DirtyLimit => "dirty-limit",
            Self::NoRoom => "no-room",
            Self::Bypass => "bypass",
            Self::AfterError => "after-error",
            Self::Failed => "failed",
        }
    }
}

/// How a request, or a part of it, was served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineHits {
    /// Lines in the pool; for a read, only those with all requested sectors valid.
    pub hits: u32,
    /// Other lines.
    pub misses: u32,
    /// Why the pool did not serve it alone; `None` if it did.
    pub uncached: Option<Uncached>,
}

impl LineHits {
    /// One line, in the pool.
    pub const ONE_HIT: Self = Self { hits: 1, misses: 0, uncached: None };

    /// The same, served past the cache for a reason.
    pub(crate) const fn past_cache(self, reason: Uncached) -> Self {
        Self { uncached: Some(reason), ..self }
    }

    /// Adds another part, or another attempt, of the same request.
    pub fn add(&mut self, other: Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.uncached = self.uncached.max(other.uncached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reason_in_order_counts() {
        let part = |hits, misses, uncached| LineHits { hits, misses, uncached };
        let mut sum = LineHits::default();
        sum.add(part(1, 2, Some(Uncached::NoRoom)));
        sum.add(part(3, 0, None));
        sum.add(part(0, 1, Some(Uncached::Miss)));
        assert_eq!(sum, part(4, 3, Some(Uncached::NoRoom)));
    }

    #[test]
    fn the_list_of_reasons_is_in_order() {
        assert!(Uncached::ALL.is_sorted());
        let numbers = Uncached::ALL.iter().map(|&reason| reason as usize);
        assert!(numbers.eq(0..Uncached::ALL.len()));
    }
}
