//! Learns whether lines that clients write are read soon.
//!
//! Each line passes through the older part of the small queue. Lines that a write brought stay
//! there as long as lines that a read brought, so the shares of both that clients read there can be
//! compared. The counters decay: recent lines count more.

/// Writes pay while written lines are read at least an eighth as often as lines that were read. A
/// smaller share would not be worth their places, and a larger one would ignore writes on loads
/// where few lines of either kind are read.
const SHARE_MIN_INVERSE: u64 = 8;
/// At this number of lines, the counters of a kind are halved.
const LINES_MAX: u32 = 4096;

/// See the module documentation.
pub(super) struct WriteValue {
    read: Uses,
    written: Uses,
    pay: bool,
}

/// The lines of one kind, and how many of them were read again.
#[derive(Clone, Copy)]
struct Uses {
    used: u32,
    lines: u32,
}

impl Default for WriteValue {
    /// Until there is a record, writes pay.
    fn default() -> Self {
        Self { read: Uses { used: 0, lines: 1 }, written: Uses { used: 4, lines: 4 }, pay: true }
    }
}

impl WriteValue {
    /// Whether a write counts as a use of its line.
    pub(super) const fn pay(&self) -> bool {
        self.pay
    }

    /// Counts a line that has passed through the queue, and whether it was read there.
    pub(super) fn count(&mut self, is_written: bool, was_used: bool) {
        let uses = if is_written { &mut self.written } else { &mut self.read };
        uses.lines += 1;
        uses.used += u32::from(was_used);
        if uses.lines >= LINES_MAX {
            uses.lines /= 2;
            uses.used /= 2;
        }
        let written = u64::from(self.written.used) * u64::from(self.read.lines);
        let read = u64::from(self.read.used) * u64::from(self.written.lines);
        self.pay = written * SHARE_MIN_INVERSE >= read;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_pay_while_written_lines_are_read_an_eighth_as_often() {
        for (of_written, of_read, pays) in
            [(0, 0, true), (0, 10, false), (1, 10, false), (2, 10, true), (50, 10, true)]
        {
            let mut value = WriteValue::default();
            assert!(value.pay());
            for line in 0..10_000 {
                value.count(true, line % 100 < of_written);
                value.count(false, line % 100 < of_read);
            }
            assert_eq!(value.pay(), pays, "{of_written} and {of_read} of 100");
        }
    }

    #[test]
    fn a_change_of_load_is_learned() {
        let mut value = WriteValue::default();
        let pass = |value: &mut WriteValue, lines, is_written, was_used| {
            (0..lines).for_each(|_| value.count(is_written, was_used));
        };
        pass(&mut value, 10_000, false, true);
        pass(&mut value, 10_000, true, false);
        assert!(!value.pay());
        pass(&mut value, 2_000, true, true);
        assert!(value.pay());
    }
}
