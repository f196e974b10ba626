//! Writeback rate limits.

/// The default rate during reads, in thousandths of a burst per second: one burst in two seconds.
const BESIDE_READS_MILLI: u64 = 500;
/// The I/Os or bytes of a burst: what a hard disk does in the time of a few seeks.
const BURST_IOS: u64 = 8;
const BURST_BYTES: u64 = 1 << 20;
/// Enough to keep a disk busy, and few enough that a new read does not wait long.
const IN_FLIGHT: u32 = 4;
/// The duration of a turn in milliseconds: several ticks.
const TURN_MS: u64 = 200;

/// The writeback rate limits of a volume, or of a share of it. [`u64::MAX`] means no limit.
///
/// The first limit applies while clients wait for reads of the same disk, and is relaxed as dirty
/// data accumulates. The limits on I/Os and bytes are the operator's, and apply unless a client
/// waits for a flush or the mode has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The rate during reads, in thousandths of a burst per second. The unit is a burst because
    /// I/Os issued together delay one read, or one group of reads, and not one read each.
    pub beside_reads_milli: u64,
    /// Thousandths of an I/O per second, at any time.
    pub ios_milli: u64,
    /// Bytes per second, at any time.
    pub bytes: u64,
    /// Operations in flight while there is little dirty data and no read is in flight.
    pub in_flight: u32,
}

impl Pace {
    /// The limits before any measurement: a burst in two seconds during reads, which delays hardly
    /// any of them, and otherwise no rate limit.
    pub const DEFAULT: Self = Self {
        beside_reads_milli: BESIDE_READS_MILLI,
        ios_milli: u64::MAX,
        bytes: u64::MAX,
        in_flight: IN_FLIGHT,
    };

    /// I/Os in a burst.
    pub const BURST_IOS: u64 = BURST_IOS;

    /// Converts I/Os and their total bytes to thousandths of a burst.
    pub const fn bursts_milli(ios: u64, bytes: u64) -> u64 {
        let (by_ios, by_bytes) = (ios * (1_000 / BURST_IOS), bytes / (BURST_BYTES / 1_000));
        if by_ios > by_bytes { by_ios } else { by_bytes }
    }

    /// One of `shares` equal shares of the rates; `shares` must not be zero. Operations in flight
    /// are indivisible, so the `turns` shares with dirty data take turns: `turn` is the number of
    /// this one among them.
    #[must_use]
    pub const fn share(self, shares: u64, turn: u64, turns: u64, now_ms: u64) -> Self {
        const fn part(rate: u64, shares: u64) -> u64 {
            if rate == u64::MAX { rate } else { rate.div_ceil(shares) }
        }
        Self {
            beside_reads_milli: part(self.beside_reads_milli, shares),
            ios_milli: part(self.ios_milli, shares),
            bytes: part(self.bytes, shares),
            in_flight: self.operations(turn, turns, now_ms),
        }
    }

    const fn operations(self, turn: u64, turns: u64, now_ms: u64) -> u32 {
        if turns == 0 {
            return self.in_flight;
        }
        let (each, more) = (self.in_flight as u64 / turns, self.in_flight as u64 % turns);
        let place = (turn + now_ms / TURN_MS) % turns;
        each as u32 + (place < more) as u32
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_take_turns() {
        let pace = Pace { ios_milli: 10_000, in_flight: 4, ..Pace::DEFAULT };
        for turns in [1, 3, 4, 7, 64] {
            for now_ms in (0..20_000).step_by(TURN_MS as usize) {
                let shares = (0..turns).map(|turn| pace.share(turns, turn, turns, now_ms));
                assert_eq!(shares.map(|share| share.in_flight).sum::<u32>(), 4);
            }
        }
        let all = (0..64).map(|at| pace.share(64, 9, 64, at * TURN_MS).in_flight).sum::<u32>();
        assert_eq!(all, 4, "each share has the same number of turns");
        let share = pace.share(4, 0, 0, 0);
        assert_eq!((share.ios_milli, share.bytes, share.in_flight), (2_500, u64::MAX, 4));
    }

    #[test]
    fn a_burst_is_limited_by_ios_and_by_bytes() {
        assert_eq!(Pace::bursts_milli(8, 8 << 12), 1_000);
        assert_eq!(Pace::bursts_milli(1, 4 << 20) / 10, 400);
        assert_eq!(Pace::bursts_milli(0, 0), 0);
    }
}
