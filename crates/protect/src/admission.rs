//! Whether a write may be acknowledged from memory.

use crate::PowerGate;
use forebay_engine::Protection;
use forebay_journal::LogAdmission;
use forebay_types::{ByteRange, Durability, LINE_BYTES};
use forebay_volume::Admission;

/// What protects the dirty data of a volume now. `ups` is the gate of the UPS if one protects the
/// volume, and `is_abandoned` says whether its journal is abandoned, if it has one.
pub fn protection(ups: Option<&PowerGate>, is_abandoned: Option<impl Fn() -> bool>) -> Protection {
    let is_open = ups.is_some_and(PowerGate::is_open);
    match is_abandoned {
        None if is_open => Protection::Power,
        Some(is_abandoned) if is_open && is_abandoned() => Protection::Power,
        Some(_) => Protection::Journal,
        None => Protection::None,
    }
}

/// Whether a write to `range` may be acknowledged from memory. `ups` is the gate of the UPS if one
/// protects the volume. `journal` is the answer of its journal, if it has one, and when the journal
/// acknowledges writes.
pub fn admission(
    range: ByteRange,
    fua: bool,
    ups: Option<&PowerGate>,
    journal: Option<(LogAdmission, Durability)>,
) -> Admission {
    match (journal, ups) {
        (Some((LogAdmission::Granted, durability)), _) => {
            Admission::Logged { is_awaited: fua || durability == Durability::Ack }
        }
        (Some((LogAdmission::Wait, _)), _) => Admission::Wait,
        // Not from memory, even with a UPS: the write must go to the disk and void its older
        // records.
        (Some((LogAdmission::Full, _)), _) => Admission::Through,
        // The records of an abandoned journal are void.
        (None | Some((LogAdmission::Failed, _)), Some(gate)) => {
            let lines = range.end().div_ceil(LINE_BYTES) - range.offset / LINE_BYTES;
            if gate.admit(lines) { Admission::Free } else { Admission::Through }
        }
        (Some((LogAdmission::Failed, _)), None) => Admission::Through,
        (None, None) => Admission::Free,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: ByteRange = ByteRange::new(LINE_BYTES - 512, 1024);

    fn open(lines: u64) -> PowerGate {
        let gate = PowerGate::default();
        gate.set(0, lines * LINE_BYTES);
        gate
    }

    #[test]
    fn a_ups_protects_only_what_no_journal_has() {
        let (open, closed) = (open(1), PowerGate::default());
        let gates = [None, Some(&closed), Some(&open)];
        let all = |journal: Option<bool>| {
            gates.map(|ups| protection(ups, journal.map(|is_abandoned| move || is_abandoned)))
        };
        assert_eq!(all(None), [Protection::None, Protection::None, Protection::Power]);
        assert_eq!(all(Some(false)), [Protection::Journal; 3]);
        assert_eq!(
            all(Some(true)),
            [Protection::Journal, Protection::Journal, Protection::Power],
            "an abandoned journal"
        );
    }

    #[test]
    fn each_combination_of_journal_and_ups_admits_what_survives() {
        let (closed, one, two) = (PowerGate::default(), open(1), open(2));
        let all = |journal: Option<LogAdmission>| {
            let journal = journal.map(|answer| (answer, Durability::Ack));
            [None, Some(&closed), Some(&one), Some(&two)]
                .map(|ups| admission(RANGE, false, ups, journal))
        };
        let (free, through) = (Admission::Free, Admission::Through);
        assert_eq!(all(Some(LogAdmission::Full)), [through; 4], "older records are not void");
        assert_eq!(all(Some(LogAdmission::Wait)), [Admission::Wait; 4]);
        assert_eq!(
            all(Some(LogAdmission::Granted)),
            [Admission::Logged { is_awaited: true }; 4],
            "the UPS is not needed"
        );
        assert_eq!(all(Some(LogAdmission::Failed)), [through, through, through, free]);
        assert_eq!(all(None), [free, through, through, through], "the gate admitted two lines");
    }

    #[test]
    fn a_write_waits_for_its_record_with_fua_or_durability_ack() {
        let granted = |durability| Some((LogAdmission::Granted, durability));
        let waits = |fua, durability| admission(RANGE, fua, None, granted(durability));
        let logged = |is_awaited| Admission::Logged { is_awaited };
        assert_eq!(waits(false, Durability::Flush), logged(false));
        assert_eq!(waits(true, Durability::Flush), logged(true));
        assert_eq!(waits(false, Durability::Ack), logged(true));
    }
}
