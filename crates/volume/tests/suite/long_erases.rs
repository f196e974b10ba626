//! Erases of many regions with one I/O.

use crate::world::{Io, Machine, SECTORS, VOLUME};
use forebay_engine::{Outcome, Protection};
use forebay_policy::Pace;
use forebay_types::{ByteRange, IoError, LINE_BYTES, Mode, REGION_BYTES, SECTOR_BYTES};
use forebay_volume::{Mergeable, RequestKind};

const ZERO: RequestKind = RequestKind::Zero { fua: false, unmap: false };
const WRITE: RequestKind = RequestKind::Write { fua: false };
const ALL: ByteRange = ByteRange::new(0, SECTORS * SECTOR_BYTES);

const fn line_of(region: u64) -> ByteRange {
    ByteRange::new(region * REGION_BYTES + 5 * LINE_BYTES, LINE_BYTES)
}

/// The lengths of the I/Os in flight, in regions.
fn in_flight(machine: &Machine) -> Vec<u64> {
    let ranges = machine.world.ios.iter().flat_map(|io| match io {
        Io::Coalesced(run) => run.iter().map(|io| io.range().len / REGION_BYTES).collect(),
        Io::Flush { .. } => Vec::new(),
    });
    ranges.collect()
}

/// A machine with a clean line in region 1, and a dirty one in region 6 of another shard.
fn cached() -> Machine {
    let mut machine = Machine::new(Mode::WriteBack);
    machine.submit(0, RequestKind::Read, line_of(1), 0);
    while machine.step(0) {}
    machine.submit(0, WRITE, line_of(6), 2);
    machine
}

#[test]
fn an_erase_of_all_regions_is_one_io_until_it_is_answered() {
    let mut machine = cached();
    machine.submit(0, ZERO, ALL, 0);
    assert_eq!(in_flight(&machine), [9], "the volume ends within a region");
    // A write in another shard than that of the I/O.
    machine.submit(1, WRITE, line_of(8), 4);
    assert_eq!((machine.world.answered, machine.world.ios.len()), (2, 1), "the write waits");
    machine.step(0);
    assert_eq!(in_flight(&machine), [0], "the end of the volume");
    machine.step(0);
    assert_eq!(machine.world.answered, 3, "the other worker has tried the write again");
    machine.finish();
}

#[test]
fn a_failed_long_erase_fails_its_request_alone() {
    let mut machine = cached();
    machine.world.bad_range = Some(line_of(7));
    machine.submit(0, ZERO, ALL, 0);
    machine.submit(1, RequestKind::Read, line_of(8), 0);
    while machine.step(0) {}
    assert_eq!((machine.world.answered, machine.world.failed), (4, 1));
    machine.world.bad_range = Some(line_of(8));
    machine.submit(0, RequestKind::Read, line_of(6), 0);
    assert_eq!(machine.world.answered, 5, "the dirty line is still in the pool");
    machine.finish();
}

/// The shards say how far they could erase; then one of them is used by another worker.
#[test]
fn a_long_erase_gives_way_to_what_began_meanwhile() {
    let mut machine = cached();
    machine.world.prefetch_first = Some(line_of(5));
    machine.submit(0, ZERO, ALL, 0);
    let mut lengths = in_flight(&machine);
    lengths.sort_unstable();
    assert_eq!(lengths, [0, 1, 4], "a line is read, region 0 is alone, and regions 1 to 4");
    machine.finish();
}

#[test]
fn an_erase_that_the_journal_does_not_admit_waits() {
    let mut machine = cached();
    machine.world.refuses_erase_from = Some(0);
    machine.submit(0, ZERO, ALL, 0);
    assert!(in_flight(&machine).is_empty());
    machine.answer_barred(Outcome::Retry(None));
    assert_eq!(in_flight(&machine), [9]);
    while machine.step(1) {}
    machine.finish();
}

#[test]
fn a_long_erase_that_waits_begins_no_more_if_another_part_fails() {
    let mut machine = cached();
    machine.world.bad_range = Some(line_of(0));
    machine.submit(1, RequestKind::Read, line_of(0), 0);
    machine.world.refuses_erase_from = Some(1);
    machine.submit(0, ZERO, ALL, 0);
    assert_eq!(machine.world.barred.len(), 1, "regions 1 to 8");
    while machine.step(0) {}
    assert_eq!(machine.world.answered, 3, "region 0 has failed, but a part is still waiting");
    machine.answer_barred(Outcome::Retry(None));
    assert!(in_flight(&machine).is_empty());
    assert_eq!((machine.world.answered, machine.world.failed), (4, 1));
    machine.finish();
}

/// An ordered volume erases after all that was written before.
#[test]
fn a_long_erase_waits_for_earlier_epochs() {
    let mut machine = Machine::ordered(Pace::DEFAULT);
    machine.submit(0, WRITE, line_of(9), 2);
    machine.submit(1, RequestKind::Flush, ByteRange::new(0, 0), 0);
    machine.submit(0, ZERO, ByteRange::new(0, 9 * REGION_BYTES), 0);
    assert!(!in_flight(&machine).contains(&9));
    while !in_flight(&machine).contains(&9) {
        assert!(machine.step(0), "the erase follows");
    }
    assert_eq!(machine.world.disk[(line_of(9).offset / SECTOR_BYTES) as usize], 2);
    machine.finish();
}

/// Its I/O has ended, but other requests would be recorded before it.
#[test]
fn a_long_erase_ends_when_its_record_is_durable() {
    for outcome in [Outcome::Done(Ok(())), Outcome::Done(Err(IoError::NoSpace))] {
        let mut machine = journaled();
        machine.submit(0, ZERO, ALL, 0);
        machine.step(0);
        assert_eq!(machine.world.barred.len(), 1, "one record for nine regions");
        machine.submit(0, RequestKind::Read, line_of(8), 0);
        assert!(in_flight(&machine).is_empty(), "the read waits");
        // The request may fail.
        machine.world.bad_range = Some(ByteRange::new(0, 0));
        answer_all(&mut machine, outcome);
        assert_eq!(machine.world.answered, 4);
        machine.finish();
    }
}

#[test]
fn a_long_erase_is_flushed_if_the_journal_fails() {
    let mut machine = journaled();
    machine.submit(0, ZERO, ALL, 0);
    machine.step(0);
    answer_all(&mut machine, Outcome::JournalFailed);
    assert_eq!((machine.world.answered, machine.world.failed), (3, 0));
    machine.finish();
}

fn journaled() -> Machine {
    let mut machine = cached();
    for shard in &mut machine.world.shards {
        shard.volume_mut(VOLUME).set_protection(Protection::Journal);
    }
    machine
}

/// Answers all that waits for the journal, until nothing does.
fn answer_all(machine: &mut Machine, outcome: Outcome) {
    loop {
        while machine.step(0) {}
        if machine.world.barred.is_empty() {
            break;
        }
        machine.answer_barred(outcome);
    }
}
