//! Flushes of a volume with a journal.

use crate::world::Machine;
use forebay_engine::Outcome;
use forebay_types::{ByteRange, LINE_BYTES, Mode};
use forebay_volume::{Barrier, RequestKind};

const FLUSH: RequestKind = RequestKind::Flush;
const DESTAGE: RequestKind = RequestKind::Destage;

/// A machine with a dirty line, and a request after it that meets this answer of the journal.
fn flushing(kind: RequestKind, barrier: Barrier) -> Machine {
    let mut machine = Machine::new(Mode::WriteBack);
    let line = ByteRange::new(0, LINE_BYTES);
    machine.submit(0, RequestKind::Write { fua: false }, line, 2);
    machine.world.barrier = Some(barrier);
    machine.submit(0, kind, ByteRange::new(0, 0), 0);
    while machine.step(0) {}
    machine
}

/// After a crash, an older record would be replayed over the destaged data otherwise.
#[test]
fn a_flush_that_the_journal_does_not_cover_waits_for_disk_and_journal() {
    for kind in [FLUSH, DESTAGE] {
        for outcome in [Outcome::Done(Ok(())), Outcome::JournalFailed] {
            let barrier = Barrier { is_durable: false, is_complete: false };
            let mut machine = flushing(kind, barrier);
            assert_eq!(machine.world.disk[0], 2, "the data is destaged");
            assert_eq!(machine.world.answered, 1, "{kind:?} waits for the journal");
            machine.answer_barred(outcome);
            while machine.step(0) {}
            assert_eq!((machine.world.answered, machine.world.failed), (2, 0));
            machine.world.barrier = None;
            machine.finish();
        }
    }
    let barrier = Barrier { is_durable: true, is_complete: false };
    let mut machine = flushing(FLUSH, barrier);
    assert_eq!((machine.world.answered, machine.world.disk[0]), (2, 2));
    machine.world.barrier = None;
    machine.finish();
}

#[test]
fn a_flush_that_the_journal_covers_does_not_wait_for_the_disk() {
    let mut machine = flushing(FLUSH, Barrier { is_durable: true, is_complete: true });
    assert_eq!((machine.world.answered, machine.world.disk[0]), (2, 0));
    machine.world.barrier = None;
    machine.finish();
}

#[test]
fn a_flush_destages_if_the_journal_fails() {
    let mut machine = flushing(FLUSH, Barrier { is_durable: false, is_complete: true });
    assert_eq!((machine.world.answered, machine.world.disk[0]), (1, 0));
    machine.answer_barred(Outcome::JournalFailed);
    while machine.step(0) {}
    assert_eq!((machine.world.answered, machine.world.disk[0]), (2, 2));
    machine.world.barrier = None;
    machine.finish();
}
