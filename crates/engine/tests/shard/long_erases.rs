//! Erases of many regions with one I/O.

use crate::order::ordered;
use crate::rig::{LINE, Rig};
use forebay_engine::{IoVerb, Outcome, ReadOutcome, WriteOutcome};
use forebay_types::{IoError, Mode};

const LINES: u64 = 1024;
const ALL: u64 = LINES * LINE;

#[test]
fn lines_that_are_not_in_the_pool_are_busy_during_a_long_erase() {
    let mut rig = Rig::new(8, LINES, Mode::WriteBack);
    assert!(rig.zero_long(1, 0, ALL, true).is_some());
    assert_eq!((rig.ios.len(), rig.ios[0].range.len), (1, ALL));
    assert_eq!(rig.ios[0].verb, IoVerb::Zero { unmap: false });
    assert_eq!(rig.read(2, 700 * LINE, LINE).0, ReadOutcome::Waiting);
    assert_eq!(rig.write(3, 900 * LINE, LINE, 7), WriteOutcome::Waiting);
    assert_eq!(rig.prefetch(800 * LINE, LINE), 0);
    assert!(!rig.zero(4, 0, LINE));
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(1), Some(Outcome::Done(Ok(()))));
    for part in [2, 3, 4] {
        assert_eq!(rig.take_outcome(part), Some(Outcome::Retry(None)));
    }
    assert_eq!(rig.retry(3, 900 * LINE, LINE, 7), WriteOutcome::Done);
    assert_eq!(rig.read_to_end(700 * LINE, LINE), [0; 8]);
    assert_eq!(rig.read_to_end(900 * LINE, LINE), [7; 8]);
}

#[test]
fn lines_beside_a_long_erase_are_not_busy() {
    let mut rig = Rig::new(8, LINES, Mode::WriteBack);
    assert!(rig.zero_long(1, LINE, ALL - 2 * LINE, true).is_some());
    assert_eq!(rig.write(2, 0, LINE, 7), WriteOutcome::Done);
    assert_eq!(rig.write(3, ALL - LINE, LINE, 8), WriteOutcome::Done);
    assert_eq!(rig.zero_long(4, 0, LINE, true).map(|_| ()), Some(()));
    rig.complete_all();
}

#[test]
fn lines_in_the_pool_are_erased_with_the_others() {
    let mut rig = Rig::new(8, LINES, Mode::WriteBack);
    rig.read_to_end(300 * LINE, LINE);
    assert_eq!(rig.write(1, 600 * LINE, LINE, 7), WriteOutcome::Done);
    let io = rig.zero_long(2, 0, ALL, false).unwrap();
    assert!(rig.ios.is_empty(), "another shard leads");
    assert_eq!(rig.shard.usage().dirty_lines, 1, "until the disk has erased them");
    assert_eq!(rig.read(3, 300 * LINE, LINE).0, ReadOutcome::Waiting);
    rig.end_long(io, Ok(()));
    assert_eq!(rig.take_outcome(2), None, "the leader has the answer");
    assert_eq!(rig.take_outcome(3), Some(Outcome::Retry(None)));
    let usage = rig.shard.usage();
    assert_eq!((usage.dirty_lines, usage.resident_lines, rig.shard.pins()), (0, 0, 0));
}

#[test]
fn dirty_lines_survive_a_long_erase_that_fails() {
    let mut rig = Rig::new(8, LINES, Mode::WriteBack);
    rig.read_to_end(300 * LINE, LINE);
    assert_eq!(rig.write(1, 600 * LINE, LINE, 7), WriteOutcome::Done);
    let io = rig.zero_long(2, 0, ALL, false).unwrap();
    rig.end_long(io, Err(IoError::Io));
    let usage = rig.shard.usage();
    assert_eq!((usage.dirty_lines, usage.resident_lines, rig.shard.pins()), (1, 1, 0));
    assert_eq!(rig.read_to_end(600 * LINE, LINE), [7; 8]);
}

#[test]
fn a_long_erase_ends_before_a_busy_line() {
    let mut rig = Rig::new(8, LINES, Mode::WriteBack);
    assert_eq!(rig.erasable_until(0, ALL), ALL);
    assert_eq!(rig.read(1, 700 * LINE, LINE).0, ReadOutcome::Waiting);
    assert_eq!(rig.erasable_until(0, ALL), 700 * LINE);
    assert_eq!(rig.zero_long(2, 0, ALL, true), None);
    assert!(rig.zero_long(2, 0, 256 * LINE, true).is_some());
    assert_eq!(rig.erasable_until(LINE, ALL - LINE), LINE, "in another long erase");
    assert_eq!(rig.erasable_until(256 * LINE, ALL - 256 * LINE), 700 * LINE);
    rig.complete_all();
    assert_eq!(rig.erasable_until(0, ALL), ALL);
}

#[test]
fn a_long_erase_ends_before_a_dirty_line_of_an_ordered_volume() {
    let mut rig = ordered(8, LINES);
    rig.read_to_end(100 * LINE, LINE);
    assert_eq!(rig.write(1, 500 * LINE, LINE, 7), WriteOutcome::Done);
    assert_eq!(rig.erasable_until(0, ALL), 500 * LINE);
    assert_eq!(rig.zero_long(2, 0, ALL, true), None);
    // While an older version of a line waits for its epoch, nothing is erased past it.
    rig.epoch = 2;
    assert_eq!(rig.write(3, 500 * LINE, LINE, 8), WriteOutcome::Done);
    assert_eq!(rig.erasable_until(0, ALL), 0);
}

#[test]
fn a_long_erase_names_a_limited_number_of_lines() {
    const SLOTS: u64 = 5000;
    let mut rig = Rig::new(SLOTS as usize, SLOTS, Mode::WriteBack);
    for first in (0..SLOTS).step_by(500) {
        assert!(matches!(rig.read(1, first * LINE, 500 * LINE).0, ReadOutcome::Waiting));
        rig.complete_all();
    }
    let until = rig.erasable_until(0, SLOTS * LINE);
    assert_eq!(until, 4096 * LINE);
    assert!(rig.zero_long(2, 0, until, true).is_some());
    rig.complete_all();
    assert_eq!(rig.erasable_until(0, SLOTS * LINE), SLOTS * LINE);
}
