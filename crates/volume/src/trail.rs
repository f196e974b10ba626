//! Where the time of a request goes: what it waits for, and for how long.
//!
//! Only a request that has to wait has a [`WaitBreakdown`]; one that is answered at once takes no
//! time. The times are those of the host's turns, so it needs no clock of its own. A breakdown has
//! a fixed size, so it allocates nothing: waits of the same kind are added up.

use forebay_engine::WaitsFor;

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// Its own I/Os to the disk.
    Disk,
    /// A read of the same data that another request has started.
    Read,
    /// A read of the same data ahead of a stream, for a warm-up, or for a pinned range.
    ReadAhead,
    /// A write of the same data that another request has started.
    Write,
    /// A trim or a write of zeroes to the same data that another request has started.
    Erase,
    /// Destages of dirty data: for a flush of all of it, else of the same data.
    Destage,
    /// Any destage, because the dirty limit is reached or no slot is free.
    Throttle,
    /// The journal, to make its record durable.
    Journal,
    /// The journal, to admit the write: its memory or space, or a record that the disk changes.
    JournalAdmission,
    /// Earlier epochs of an ordered volume, which are destaged first.
    Order,
    /// A flush of the disk's cache.
    DiskFlush,
}

/// The number of kinds.
const KINDS: usize = 11;

impl Wait {
    /// Its name in the log and the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Read => "read",
            Self::ReadAhead => "read-ahead",
            Self::Write => "write",
            Self::Erase => "erase",
            Self::Destage => "destage",
            Self::Throttle => "throttle",
            Self::Journal => "journal",
            Self::JournalAdmission => "journal-admission",
            Self::Order => "order",
            Self::DiskFlush => "disk-flush",
        }
    }
}

impl From<WaitsFor> for Wait {
    fn from(waits_for: WaitsFor) -> Self {
        match waits_for {
            WaitsFor::OwnRead => Self::Disk,
            WaitsFor::Read => Self::Read,
            WaitsFor::ReadAhead => Self::ReadAhead,
            WaitsFor::Write => Self::Write,
            WaitsFor::Erase => Self::Erase,
            WaitsFor::Destage => Self::Destage,
            WaitsFor::Throttle => Self::Throttle,
        }
    }
}

/// All waits of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// The kind.
    pub wait: Wait,
    /// How often it waited; 65,535 if more often.
    pub times: u16,
    /// Microseconds altogether; `u32::MAX`, more than an hour, if longer.
    pub us: u32,
    /// Microseconds of the longest of them, with the same limit.
    pub longest_us: u32,
}

impl Waited {
    const NONE: Self = Self { wait: Wait::Disk, times: 0, us: 0, longest_us: 0 };
}

/// What a request has waited for so far. A request with several parts has the breakdown of the part
/// that ended last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitBreakdown {
    /// In the order in which the kinds first occurred.
    waits: [Waited; KINDS],
    len: u8,
    /// I/Os that it has started.
    ios: u16,
    /// Attempts that have failed and were repeated.
    errors: u16,
    /// The position in `waits` of the wait in progress, and when it began.
    current: Option<(u8, u64)>,
}

// A request that waits has one for itself and one for each of its parts.
const _: () = assert!(size_of::<WaitBreakdown>() <= 176);

impl Default for WaitBreakdown {
    fn default() -> Self {
        Self { waits: [Waited::NONE; KINDS], len: 0, ios: 0, errors: 0, current: None }
    }
}

impl WaitBreakdown {
    /// What it waited for, in the order in which the kinds first occurred.
    pub fn waits(&self) -> &[Waited] {
        &self.waits[..usize::from(self.len)]
    }

    /// I/Os that it has started; 65,535 if more.
    pub const fn ios(&self) -> u16 {
        self.ios
    }

    /// Attempts that have failed, because of the disk or the journal, and were repeated in another
    /// way; 65,535 if more.
    pub const fn errors(&self) -> u16 {
        self.errors
    }

    /// Ends the wait in progress, and begins another one.
    pub(crate) fn begin(&mut self, wait: Wait, now_us: u64) {
        self.end(now_us);
        let len = usize::from(self.len);
        let at = self.waits().iter().position(|waited| waited.wait == wait).unwrap_or(len);
        if at == len {
            self.waits[at].wait = wait;
            self.len += 1;
        }
        self.waits[at].times = self.waits[at].times.saturating_add(1);
        self.current = Some((at as u8, now_us));
    }

    /// Ends the wait in progress, if there is one.
    pub(crate) fn end(&mut self, now_us: u64) {
        let Some((at, since_us)) = self.current.take() else { return };
        let us = u32::try_from(now_us.saturating_sub(since_us)).unwrap_or(u32::MAX);
        let waited = &mut self.waits[usize::from(at)];
        waited.us = waited.us.saturating_add(us);
        waited.longest_us = waited.longest_us.max(us);
    }

    pub(crate) fn add_ios(&mut self, ios: usize) {
        self.ios = self.ios.saturating_add(u16::try_from(ios).unwrap_or(u16::MAX));
    }

    pub(crate) const fn add_error(&mut self) {
        self.errors = self.errors.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waited(wait: Wait, times: u16, us: u32, longest_us: u32) -> Waited {
        Waited { wait, times, us, longest_us }
    }

    #[test]
    fn waits_add_up_by_kind_in_their_first_order() {
        let mut trail = WaitBreakdown::default();
        trail.end(5);
        assert_eq!(trail.waits(), []);
        for (wait, at_us) in [(Wait::Write, 10), (Wait::Disk, 40), (Wait::Write, 45)] {
            trail.begin(wait, at_us);
        }
        trail.add_ios(2);
        trail.add_ios(usize::MAX);
        trail.add_error();
        trail.end(60);
        trail.end(90);
        assert_eq!(trail.waits(), [waited(Wait::Write, 2, 45, 30), waited(Wait::Disk, 1, 5, 5)]);
        assert_eq!((trail.ios(), trail.errors()), (u16::MAX, 1));
        // A clock that goes backwards costs a wait, not the program.
        trail.begin(Wait::Journal, 100);
        trail.end(99);
        assert_eq!(trail.waits()[2], waited(Wait::Journal, 1, 0, 0));
    }

    #[test]
    fn each_kind_has_room_and_hours_are_cut() {
        use Wait::{Destage, Disk, DiskFlush, Erase, Journal};
        use Wait::{JournalAdmission, Order, Read, ReadAhead, Throttle, Write};
        let kinds: [Wait; KINDS] = [
            Disk,
            Read,
            ReadAhead,
            Write,
            Erase,
            Destage,
            Throttle,
            Journal,
            JournalAdmission,
            Order,
            DiskFlush,
        ];
        let mut trail = WaitBreakdown::default();
        for round in 0..2 {
            for (at, kind) in (0..).zip(kinds) {
                assert_eq!(kind as usize, at);
                trail.begin(kind, round * 100 + at as u64);
            }
        }
        trail.begin(Disk, 200);
        trail.end(u64::MAX);
        let waits = trail.waits();
        assert_eq!(waits.len(), KINDS);
        assert_eq!(waits[0], waited(Disk, 3, u32::MAX, u32::MAX));
        assert_eq!(waits[1], waited(Read, 2, 2, 1));
    }
}
