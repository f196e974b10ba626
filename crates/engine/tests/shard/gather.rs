//! Gathering of writes through the cache that are in flight together.

use crate::rig::{LINE, Rig, VOLUME, attempt_after};
use forebay_engine::{IoVerb, Outcome, ReadOutcome, WriteOutcome};
use forebay_types::{IoError, Mode, Stripes};

/// Lines per stripe.
const WIDTH: u64 = 8;

fn rig() -> Rig {
    let mut rig = Rig::new(64, 64, Mode::WriteThrough);
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(WIDTH * LINE, 0));
    rig
}

/// Writes some lines; each line's number is the part and the value.
fn write(rig: &mut Rig, lines: impl IntoIterator<Item = u64>) {
    for line in lines {
        assert_eq!(rig.write(line, line * LINE, LINE, line), WriteOutcome::Started);
    }
}

/// The I/Os in flight: first sector and number of sectors.
fn sectors_in_flight(rig: &Rig) -> Vec<(u64, u64)> {
    rig.ios.iter().map(|io| (io.range.offset / 512, io.range.len / 512)).collect()
}

fn lines_in_flight(rig: &Rig) -> Vec<(u64, u64)> {
    sectors_in_flight(rig).into_iter().map(|(first, count)| (first / 8, count / 8)).collect()
}

fn assert_done(rig: &mut Rig, ids: impl IntoIterator<Item = u64>) {
    for id in ids {
        assert_eq!(rig.take_outcome(id), Some(Outcome::Done(Ok(()))), "{id}");
    }
    assert!(rig.answers.is_empty(), "{:?}", rig.answers);
}

#[test]
fn a_write_without_another_in_flight_to_its_stripe_starts_at_once() {
    let mut rig = rig();
    write(&mut rig, [3, 11, 20]);
    assert_eq!(lines_in_flight(&rig), [(3, 1), (11, 1), (20, 1)]);
    rig.complete_all();
    write(&mut rig, [4]);
    assert_eq!(lines_in_flight(&rig), [(4, 1)]);
    rig.complete_all();
    assert_eq!(rig.shard.volume(VOLUME).counters().writes_held, 0);
}

#[test]
fn held_back_writes_are_gathered_when_the_one_in_flight_completes() {
    let mut rig = rig();
    write(&mut rig, [3, 5, 2, 4, 7, 0]);
    assert_eq!(lines_in_flight(&rig), [(3, 1)]);
    rig.complete(0, Ok(()));
    assert_done(&mut rig, [3]);
    assert_eq!(lines_in_flight(&rig), [(0, 1), (2, 1), (4, 2), (7, 1)]);
    rig.complete(2, Ok(()));
    assert_done(&mut rig, [4, 5]);
    rig.complete_all();
    assert_done(&mut rig, [0, 2, 7]);
    assert!([0, 2, 3, 4, 5, 7].iter().all(|&line| rig.disk[line as usize * 8..][..8] == [line; 8]));
    let counters = rig.shard.volume(VOLUME).counters();
    assert_eq!((counters.writes_held, counters.gathered_writes, counters.gathered_ios), (5, 2, 1));
    assert_eq!(rig.read_to_end(4 * LINE, 2 * LINE), [[4; 8], [5; 8]].concat());
    assert_eq!(rig.shard.pins(), 0);
}

#[test]
fn a_write_is_held_back_for_a_gathered_one_in_flight() {
    let mut rig = rig();
    write(&mut rig, [0, 1, 2]);
    rig.complete(0, Ok(()));
    write(&mut rig, [3, 4, 5]);
    assert_eq!(lines_in_flight(&rig), [(1, 2)]);
    rig.complete(0, Ok(()));
    assert_eq!(lines_in_flight(&rig), [(3, 3)]);
    rig.complete(0, Ok(()));
    assert_done(&mut rig, 0..6);
}

#[test]
fn adjacent_parts_of_lines_share_an_io() {
    let mut rig = rig();
    write(&mut rig, [0]);
    assert_eq!(rig.write(10, 3 * LINE + 512, LINE - 512, 10), WriteOutcome::Started);
    assert_eq!(rig.write(11, 4 * LINE, LINE + 1024, 11), WriteOutcome::Started);
    assert_eq!(rig.write(12, 6 * LINE, 512, 12), WriteOutcome::Started);
    rig.complete(0, Ok(()));
    assert_eq!(sectors_in_flight(&rig), [(25, 17), (48, 1)]);
    rig.complete_all();
    assert_done(&mut rig, [0, 10, 11, 12]);
    assert_eq!(rig.disk[24..43], {
        let mut disk = vec![Rig::on_disk(24)];
        disk.extend([10; 7]);
        disk.extend([11; 10]);
        disk.push(Rig::on_disk(42));
        disk
    });
}

#[test]
fn a_long_write_is_never_held_back() {
    let mut rig = rig();
    rig.shard.volume_mut(VOLUME).set_gather_below(2 * LINE);
    write(&mut rig, [0]);
    assert_eq!(rig.write(20, 2 * LINE, 2 * LINE, 20), WriteOutcome::Started);
    write(&mut rig, [1]);
    assert_eq!(lines_in_flight(&rig), [(0, 1), (2, 2)]);
    // The completion of either one dispatches the held-back write.
    rig.complete(1, Ok(()));
    assert_eq!(lines_in_flight(&rig), [(0, 1), (1, 1)]);
    rig.complete_all();
    assert_done(&mut rig, [20, 0, 1]);
    rig.shard.volume_mut(VOLUME).set_gather_below(0);
    write(&mut rig, [0, 1]);
    assert_eq!(lines_in_flight(&rig), [(0, 1), (1, 1)]);
}

#[test]
fn without_stripes_and_in_bypass_nothing_is_held_back() {
    let mut rig = rig();
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::NONE);
    write(&mut rig, [0, 1]);
    assert_eq!(rig.ios.len(), 2);
    rig.complete_all();
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(LINE, 0));
    write(&mut rig, [0, 1]);
    assert_eq!(rig.ios.len(), 2);
    rig.complete_all();
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(WIDTH * LINE, 0));
    rig.shard.volume_mut(VOLUME).set_mode(Mode::Bypass);
    write(&mut rig, [0, 1]);
    assert_eq!(rig.ios.len(), 2);
}

#[test]
fn a_write_over_two_stripes_is_not_gathered() {
    let mut rig = rig();
    assert_eq!(rig.write(1, 7 * LINE, 2 * LINE, 1), WriteOutcome::Started);
    write(&mut rig, [5, 10]);
    assert_eq!(lines_in_flight(&rig), [(7, 2), (5, 1), (10, 1)]);
}

/// A held-back write must not need memory outside of the pool.
#[test]
fn a_write_without_a_slot_is_not_held_back() {
    let mut rig = Rig::new(2, 64, Mode::WriteThrough);
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(WIDTH * LINE, 0));
    write(&mut rig, [0, 1, 2, 3]);
    assert_eq!(lines_in_flight(&rig), [(0, 1), (2, 1), (3, 1)]);
    rig.complete_all();
    assert_done(&mut rig, [0, 2, 3, 1]);
}

#[test]
fn the_writes_of_a_failed_gathered_io_are_retried_alone() {
    let mut rig = rig();
    write(&mut rig, [0, 1, 2, 3]);
    rig.complete(0, Ok(()));
    assert_done(&mut rig, [0]);
    assert_eq!(lines_in_flight(&rig), [(1, 3)]);
    rig.complete(0, Err(IoError::Io));
    assert!(rig.answers.is_empty());
    assert_eq!(lines_in_flight(&rig), [(1, 1), (2, 1), (3, 1)]);
    rig.complete(1, Err(IoError::NoSpace));
    assert_eq!(rig.take_outcome(2), Some(Outcome::Done(Err(IoError::NoSpace))));
    rig.complete_all();
    assert_done(&mut rig, [1, 3]);
    assert_eq!((rig.disk[8], rig.disk[16], rig.disk[24]), (1, Rig::on_disk(16), 3));
    assert_eq!(rig.read_to_end(LINE, 3 * LINE)[8], Rig::on_disk(16));
    assert_eq!((rig.shard.pins(), rig.shard.volume(VOLUME).operations()), (0, 0));
    assert_eq!(rig.shard.volume(VOLUME).counters().write_errors, 1);
}

#[test]
fn a_failed_write_dispatches_the_held_back_ones() {
    let mut rig = rig();
    write(&mut rig, [0, 1]);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(0), Some(Outcome::Done(Err(IoError::Io))));
    rig.complete(0, Ok(()));
    assert_done(&mut rig, [1]);
}

#[test]
fn a_gathered_io_has_fua_only_if_one_of_its_writes_has() {
    let mut rig = rig();
    let first = attempt_after(None);
    write(&mut rig, [0]);
    assert_eq!(rig.write_again(1, LINE, LINE, 1, true, first), WriteOutcome::Started);
    write(&mut rig, [2, 5]);
    rig.complete(0, Ok(()));
    assert_eq!(lines_in_flight(&rig), [(1, 2), (5, 1)]);
    assert_eq!(rig.ios[0].verb, IoVerb::Write { fua: true });
    assert_eq!(rig.ios[1].verb, IoVerb::Write { fua: false });
    // Repeated alone, each has only the FUA that its client requested.
    rig.complete(0, Err(IoError::Io));
    let verbs: Vec<IoVerb> = rig.ios.iter().map(|io| io.verb).collect();
    let fua = |fua| IoVerb::Write { fua };
    assert_eq!(verbs, [fua(false), fua(true), fua(false)]);
}

#[test]
fn requests_that_overlap_a_held_back_write_wait_for_it() {
    let mut rig = rig();
    write(&mut rig, [0, 1]);
    assert_eq!(rig.write(10, LINE, 512, 10), WriteOutcome::Waiting);
    assert_eq!(rig.read(11, LINE, LINE).0, ReadOutcome::Waiting);
    assert!(!rig.zero(12, LINE, LINE), "the erase waits");
    assert_eq!(rig.flush(13), Some(Ok(())), "no write has been acknowledged");
    rig.complete(0, Ok(()));
    assert_done(&mut rig, [0]);
    assert_eq!(lines_in_flight(&rig), [(1, 1)]);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(1), Some(Outcome::Done(Ok(()))));
    for id in 10..13 {
        assert_eq!(rig.take_outcome(id), Some(Outcome::Retry(None)));
    }
    assert_eq!(rig.read_to_end(LINE, LINE), [1; 8]);
}

#[test]
fn held_back_writes_complete_after_a_change_of_mode() {
    for mode in [Mode::Bypass, Mode::WriteBack] {
        let mut rig = rig();
        write(&mut rig, [0, 1, 2]);
        rig.shard.volume_mut(VOLUME).set_mode(mode);
        rig.complete(0, Ok(()));
        assert_eq!(lines_in_flight(&rig), [(1, 2)]);
        rig.complete(0, Ok(()));
        assert_done(&mut rig, [0, 1, 2]);
        assert_eq!((rig.disk[8], rig.disk[16]), (1, 2));
    }
}

#[test]
fn staged_payloads_are_gathered() {
    let mut rig = rig();
    write(&mut rig, [0]);
    let slots = rig.stage(LINE, 2 * LINE, 7).unwrap();
    let first = attempt_after(None);
    assert_eq!(rig.write_staged(1, LINE, 2 * LINE, &slots, first), WriteOutcome::Started);
    write(&mut rig, [3]);
    rig.complete(0, Ok(()));
    assert_eq!(lines_in_flight(&rig), [(1, 3)]);
    rig.complete(0, Ok(()));
    assert_done(&mut rig, [0, 1, 3]);
    assert_eq!((rig.disk[8], rig.disk[16], rig.disk[24]), (7, 7, 3));
    assert_eq!(rig.shard.pins(), 0);
}

#[test]
fn a_write_is_not_held_back_for_one_of_the_same_turn() {
    let mut rig = rig();
    rig.turn(1);
    write(&mut rig, [0, 1]);
    assert_eq!(lines_in_flight(&rig), [(0, 1), (1, 1)], "the driver coalesces them");
    rig.turn(2);
    write(&mut rig, [2, 3]);
    assert_eq!(rig.ios.len(), 2);
    rig.turn(3);
    rig.complete(0, Ok(()));
    assert_eq!(lines_in_flight(&rig), [(1, 1), (2, 2)]);
    write(&mut rig, [4]);
    assert_eq!(rig.ios.len(), 2, "line 4 is held back");
    rig.complete(0, Ok(()));
    assert_eq!(lines_in_flight(&rig), [(2, 2), (4, 1)]);
    write(&mut rig, [5]);
    assert_eq!(rig.ios.len(), 3, "all I/Os in flight started in this turn");
    rig.complete_all();
    assert_done(&mut rig, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn held_back_writes_fit_one_io() {
    let mut rig = Rig::new(2048, 2048, Mode::WriteThrough);
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(1024 * LINE, 0));
    write(&mut rig, [0]);
    for (id, line) in [1, 129, 257].into_iter().enumerate() {
        let written = rig.write(10 + id as u64, line * LINE, 128 * LINE, 1);
        assert_eq!(written, WriteOutcome::Started);
    }
    assert_eq!(lines_in_flight(&rig), [(0, 1), (257, 128)]);
    rig.complete_all();
    assert_eq!(rig.shard.volume(VOLUME).counters().gathered_ios, 1);
}

/// Writes four adjacent lines in each round, to a disk that takes 10 ms for an I/O, with one I/O at
/// a time or all at once. Returns the rounds in which a write was held back.
fn rounds_with_holding(rig: &mut Rig, rounds: u64, is_serial: bool) -> Vec<u64> {
    let mut held_in = Vec::new();
    for round in 0..rounds {
        let before = rig.shard.volume(VOLUME).counters().writes_held;
        write(rig, [0, 1, 2, 3]);
        if rig.shard.volume(VOLUME).counters().writes_held > before {
            held_in.push(round);
        }
        while !rig.ios.is_empty() {
            rig.now_ms += 10;
            let count = if is_serial { 1 } else { rig.ios.len() };
            (0..count).for_each(|_| rig.complete(0, Ok(())));
        }
        rig.answers.clear();
    }
    held_in
}

#[test]
fn writes_are_no_longer_held_back_if_a_trial_finds_no_gain() {
    let mut rig = rig();
    let held_in = rounds_with_holding(&mut rig, 5_000, false);
    assert_eq!(held_in[..64], (0..64).collect::<Vec<_>>());
    // A trial takes 64 rounds with holding back and 64 without. The next one starts 8,192 writes
    // later.
    assert_eq!(held_in[64], 128 + 2_048);
    assert_eq!(held_in.len(), 128);
    assert_eq!(rounds_with_holding(&mut rig, 2_000, false).len(), 64, "the pause doubles");
}

#[test]
fn writes_are_still_held_back_if_a_trial_finds_a_gain() {
    let mut rig = rig();
    let held_in = rounds_with_holding(&mut rig, 5_000, true);
    assert!(held_in.len() > 4_500, "{}", held_in.len());
    let counters = rig.shard.volume(VOLUME).counters();
    assert_eq!(counters.gathered_writes, 3 * counters.gathered_ios);
    // The disk's behaviour changes.
    let held_in = rounds_with_holding(&mut rig, 10_000, false);
    assert!(held_in.len() < 2_000, "{}", held_in.len());
}
