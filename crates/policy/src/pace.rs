//! How fast write-back may go.

/// Thousandths of a burst in a second: one in two seconds.
const BESIDE_READS_MILLI: u64 = 500;
/// A burst is so many I/Os, or so many bytes: what a hard disk does in the time of a few seeks.
const BURST_IOS: u64 = 8;
const BURST_BYTES: u64 = 1 << 20;
/// What keeps a disk going, and is soon done when somebody comes who reads.
const IN_FLIGHT: u32 = 4;
/// How long a turn lasts, in milliseconds: some ticks.
const TURN_MS: u64 = 200;

/// How fast write-back of a volume, or of a share of it, may go. [`u64::MAX`] is for no limit.
///
/// The first limit holds while clients wait for reads of the same disk, and gives way the more is
/// dirty; the others are the operator's, and hold as long as nobody waits for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bursts in a second beside reads, in thousandths: what goes at once puts off one read, or
    /// those that came together, and not one for each of its I/Os.
    pub beside_reads_milli: u64,
    /// I/Os in a second at any time, in thousandths.
    pub ios_milli: u64,
    /// Bytes in a second at any time.
    pub bytes: u64,
    /// Operations in flight at a time while little is dirty, and nobody reads.
    pub in_flight: u32,
}

impl Pace {
    /// What it is where nobody knows of a better one: a burst in two seconds beside reads, which
    /// puts hardly one of them off, and otherwise no limit.
    pub const DEFAULT: Self = Self {
        beside_reads_milli: BESIDE_READS_MILLI,
        ios_milli: u64::MAX,
        bytes: u64::MAX,
        in_flight: IN_FLIGHT,
    };

    /// I/Os of one burst.
    pub const BURST_IOS: u64 = BURST_IOS;

    /// So many I/Os of so many bytes together as bursts, in thousandths.
    pub const fn bursts_milli(ios: u64, bytes: u64) -> u64 {
        let (by_ios, by_bytes) = (ios * (1_000 / BURST_IOS), bytes / (BURST_BYTES / 1_000));
        if by_ios > by_bytes { by_ios } else { by_bytes }
    }

    /// One of `shares` equal shares of the rates, from 1 on. As operations can't be divided,
    /// those who have something to write take turns: `turn` is whose share it is, as a number
    /// among `turns` of them.
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
        assert_eq!(all, 4, "everybody has the same number of turns");
        let share = pace.share(4, 0, 0, 0);
        assert_eq!((share.ios_milli, share.bytes, share.in_flight), (2_500, u64::MAX, 4));
    }

    #[test]
    fn a_burst_is_so_many_ios_or_so_many_bytes() {
        assert_eq!(Pace::bursts_milli(8, 8 << 12), 1_000);
        assert_eq!(Pace::bursts_milli(1, 4 << 20) / 10, 400);
        assert_eq!(Pace::bursts_milli(0, 0), 0);
    }
}
