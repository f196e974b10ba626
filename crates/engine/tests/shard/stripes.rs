//! Whole stripes: which lines are destaged together, and what happens if that fails.

use crate::patrol::seal_all;
use crate::rig::{LINE, Rig, VOLUME};
use forebay_engine::{Attempt, IoVerb, LineKey, Outcome, SealVerdict, ShardConfig, WriteOutcome};
use forebay_types::{ByteRange, IoError, Mode, Stripes};

/// Lines per stripe.
const WIDTH: u64 = 4;

fn rig(slots: usize) -> Rig {
    let config = ShardConfig { destage_operations_max: 8, ..ShardConfig::for_slots(slots) };
    let mut rig = Rig::with(slots, 64, Mode::WriteBack, config);
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(WIDTH * LINE, 0));
    rig
}

/// Sectors of a sealed line are found to be damaged beyond repair.
fn lose(rig: &mut Rig, line: u64, sectors: u8) {
    let slot = rig.shard.slots().find_valid(LineKey::new(VOLUME, line), 0).unwrap();
    let seal = rig.shard.seal_of(slot).unwrap();
    rig.shard.damaged(&seal, SealVerdict::Lost { sectors });
}

/// The writes in flight, in order of their start.
fn writes(rig: &Rig) -> Vec<(u64, u64)> {
    let writes = rig.ios.iter().filter(|io| matches!(io.verb, IoVerb::Write { .. }));
    writes.map(|io| (io.range.offset / LINE, io.range.len / LINE)).collect()
}

#[test]
fn whole_stripes_are_destaged_first_and_adjacent_ones_together() {
    let mut rig = rig(64);
    // A line of the first stripe, two whole stripes, and the first line of the fourth.
    for (id, line) in [1, 4, 5, 6, 7, 8, 9, 10, 11, 12].into_iter().enumerate() {
        assert_eq!(rig.write(id as u64, line * LINE, LINE, line), WriteOutcome::Done);
    }
    assert_eq!(rig.flush(90), None);
    assert_eq!(writes(&rig), [(4, 8), (1, 1), (12, 1)]);
    rig.complete_all();
    assert_eq!(rig.shard.volume(VOLUME).counters().destaged_stripes, 2);
    assert_eq!(rig.shard.volume(VOLUME).counters().destaged_bytes, 10 * LINE);
    assert_eq!(rig.disk[7 * 8], 7);
}

#[test]
fn stripes_that_fail_together_are_retried_in_smaller_pieces() {
    let mut rig = rig(64);
    rig.write(1, 0, 12 * LINE, 1);
    assert_eq!(rig.flush(90), None);
    assert_eq!(writes(&rig), [(0, 12)]);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(90), None, "the failure is not attributed to any line");
    assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 12);
    assert!(writes(&rig).iter().all(|&(_, lines)| lines <= 4), "{:?}", writes(&rig));
    rig.complete_all();
    assert_eq!(rig.take_outcome(90), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 0);
    assert_eq!((rig.disk[0], rig.disk[11 * 8 + 7]), (1, 1));
    rig.shard.self_check();
}

#[test]
fn adjacent_stripes_are_written_together_within_their_region() {
    let mut rig = Rig::with(1024, 1024, Mode::WriteBack, ShardConfig::for_slots(1024));
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(100 * LINE, 0));
    rig.write(1, 0, 250 * LINE, 1);
    rig.write(2, 250 * LINE, 150 * LINE, 1);
    assert_eq!(rig.flush(90), None);
    // Two stripes form a region, which is the largest I/O.
    assert_eq!(writes(&rig), [(0, 200), (200, 200)]);
    rig.complete_all();
    assert_eq!(rig.shard.volume(VOLUME).counters().destaged_stripes, 4);
}

#[test]
fn a_stripe_is_completed_with_clean_lines() {
    let mut rig = rig(64);
    rig.read_to_end(4 * LINE, WIDTH * LINE);
    rig.write(1, 5 * LINE + 512, LINE, 77);
    assert_eq!(rig.flush(90), None);
    assert_eq!(writes(&rig), [(4, 4)]);
    rig.complete_all();
    assert_eq!(rig.take_outcome(90), Some(Outcome::Done(Ok(()))));
    let is_new = |sector| (5 * 8 + 1..6 * 8 + 1).contains(&sector);
    let on_disk = |sector| if is_new(sector) { 77 } else { Rig::on_disk(sector as u64) };
    assert!((4 * 8..8 * 8).all(|sector| rig.disk[sector] == on_disk(sector)));
    let counters = rig.shard.volume(VOLUME).counters();
    assert_eq!((counters.destaged_lines, counters.destaged_stripes), (2, 1));
    assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 0);
    rig.shard.self_check();
}

#[test]
fn a_stripe_less_than_half_dirty_is_not_completed() {
    let mut rig = rig(64);
    rig.read_to_end(4 * LINE, WIDTH * LINE);
    rig.write(1, 5 * LINE, LINE, 77);
    assert_eq!(rig.flush(90), None);
    assert_eq!(writes(&rig), [(5, 1)]);
    rig.complete_all();
    assert_eq!(rig.shard.volume(VOLUME).counters().destaged_bytes, LINE);
}

#[test]
fn a_part_longer_than_the_dirty_limit_is_not_throttled() {
    let config = ShardConfig { dirty_lines_max: 4, ..ShardConfig::for_slots(32) };
    let mut rig = Rig::with(32, 64, Mode::WriteBack, config);
    rig.write(1, 0, 2 * LINE, 1);
    assert_eq!(rig.write(2, 20 * LINE, 5 * LINE, 2), WriteOutcome::Started);
}

#[test]
fn a_partial_stripe_at_the_end_of_the_volume_is_not_a_whole_one() {
    let mut rig = Rig::new(64, 6, Mode::WriteBack);
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(WIDTH * LINE, 0));
    rig.write(1, 4 * LINE, 2 * LINE, 7);
    assert_eq!(rig.flush(90), None);
    assert_eq!(writes(&rig), [(4, 2)]);
    assert_eq!(rig.shard.volume(VOLUME).counters().destaged_stripes, 0);
}

#[test]
fn the_dirty_lines_of_a_failed_stripe_are_retried_alone() {
    let mut rig = rig(64);
    rig.read_to_end(4 * LINE, WIDTH * LINE);
    rig.write(1, 5 * LINE, 2 * LINE, 77);
    assert_eq!(rig.flush(90), None);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(90), None, "a clean sector may be at fault");
    assert_eq!(writes(&rig), [(5, 2)]);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(90), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.disk[5 * 8], 77);
    // The next destage writes the whole stripe again.
    rig.write(2, 5 * LINE, 2 * LINE, 78);
    assert_eq!(rig.flush(91), None);
    assert_eq!(writes(&rig), [(4, 4)]);
    rig.complete(0, Err(IoError::Io));
    rig.complete(0, Err(IoError::NoSpace));
    assert_eq!(rig.take_outcome(91), Some(Outcome::Done(Err(IoError::NoSpace))));
    assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 2);
}

/// When the destage of the stripe fails, the dirty sectors of the lost line are invalid already, so
/// there is nothing to retry.
#[test]
fn a_flush_does_not_wait_for_lines_lost_while_their_stripe_fails() {
    let mut rig = rig(64);
    rig.read_to_end(4 * LINE, WIDTH * LINE);
    rig.write(1, 5 * LINE, 2 * LINE, 77);
    seal_all(&mut rig);
    assert_eq!(rig.flush(90), None);
    lose(&mut rig, 5, 0xff);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(writes(&rig), [(6, 1)]);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(90), Some(Outcome::Done(Err(IoError::Io))));
}

/// A flush that arrived during the destage waits for another attempt, which a lost line never has.
#[test]
fn a_flush_during_the_failing_destage_of_a_lost_line_ends() {
    for rewritten in [false, true] {
        let mut rig = rig(64);
        rig.write(1, 5 * LINE, LINE, 77);
        seal_all(&mut rig);
        assert_eq!((rig.flush(90), rig.flush(91)), (None, None));
        if rewritten {
            assert_eq!(rig.write(2, 5 * LINE, LINE, 78), WriteOutcome::Done);
            seal_all(&mut rig);
        }
        lose(&mut rig, 5, 0xff);
        rig.complete(0, Err(IoError::Io));
        rig.tick(50);
        rig.complete_all();
        for id in [90, 91] {
            assert_eq!(rig.take_outcome(id), Some(Outcome::Done(Err(IoError::Io))), "{rewritten}");
        }
    }
}

/// A pass by age during the failing destage must not make the flush wait for a lost line.
#[test]
fn a_flush_does_not_wait_for_a_lost_line_that_grows_old() {
    let mut rig = rig(64);
    rig.write(1, 20 * LINE, LINE, 5);
    seal_all(&mut rig);
    lose(&mut rig, 20, 0xff);
    rig.read_to_end(4 * LINE, WIDTH * LINE);
    rig.write(2, 5 * LINE, 2 * LINE, 77);
    assert_eq!(rig.flush(90), None);
    (1..4).for_each(|hours| rig.tick(hours * 3_600_000));
    rig.complete(0, Err(IoError::Io));
    assert_eq!(writes(&rig), [(5, 2)]);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(90), Some(Outcome::Done(Err(IoError::Io))));
}

/// After an error, a write to the disk destages only what it overwrites; the flush must not wait
/// for the rest, which is lost.
#[test]
fn a_flush_does_not_wait_for_a_line_of_which_only_lost_sectors_are_left() {
    let mut rig = rig(64);
    rig.write(1, 20 * LINE, 2048, 5);
    seal_all(&mut rig);
    lose(&mut rig, 20, 0b1000);
    let attempt = Attempt { count: 1, error: Some(IoError::Io), ..Attempt::default() };
    assert_eq!(rig.write_again(2, 20 * LINE, 1536, 6, true, attempt), WriteOutcome::Waiting);
    assert_eq!(rig.flush(90), None);
    rig.complete_all();
    rig.tick(50);
    rig.complete_all();
    assert_eq!(rig.take_outcome(90), Some(Outcome::Done(Err(IoError::Io))));
}

#[test]
fn a_completely_dirty_stripe_is_not_retried() {
    let mut rig = rig(64);
    rig.write(1, 4 * LINE, WIDTH * LINE, 5);
    assert_eq!(rig.flush(90), None);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(90), Some(Outcome::Done(Err(IoError::Io))));
}

#[test]
fn a_line_rewritten_while_its_stripe_is_in_flight_stays_dirty() {
    let mut rig = rig(64);
    rig.read_to_end(4 * LINE, WIDTH * LINE);
    rig.write(1, 4 * LINE, 2 * LINE, 77);
    assert_eq!(rig.flush(90), None);
    // One dirty line, and one clean line that was written along with it.
    assert_eq!(rig.write(2, 5 * LINE, LINE, 78), WriteOutcome::Done);
    assert_eq!(rig.write(3, 6 * LINE, LINE, 79), WriteOutcome::Done);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(90), Some(Outcome::Done(Ok(()))));
    assert_eq!((rig.disk[5 * 8], rig.disk[6 * 8]), (77, Rig::on_disk(6 * 8)));
    assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 2);
    assert_eq!(rig.flush(91), None);
    rig.complete_all();
    assert_eq!((rig.disk[5 * 8], rig.disk[6 * 8]), (78, 79));
    rig.shard.self_check();
}

#[test]
fn a_stripe_longer_than_an_io_is_split() {
    let mut rig = Rig::new(1024, 1024, Mode::WriteBack);
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(600 * LINE, 0));
    rig.write(1, 0, 600 * LINE, 5);
    assert_eq!(rig.flush(90), None);
    assert_eq!(writes(&rig), [(0, 256), (256, 256), (512, 88)]);
    rig.complete(1, Ok(()));
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(90), None);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(90), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.shard.volume(VOLUME).counters().destaged_stripes, 1);
}

#[test]
fn a_long_write_is_boosted() {
    let mut rig = Rig::new(64, 64, Mode::WriteBack);
    rig.shard.volume_mut(VOLUME).set_gather_below(4 * LINE);
    rig.write(1, 0, LINE, 1);
    rig.write(2, 10 * LINE, 4 * LINE, 2);
    rig.tick(0);
    assert_eq!(writes(&rig), [(10, 4)]);
    rig.complete_all();
    rig.tick(5_000);
    assert_eq!(writes(&rig), [(0, 1)]);
    rig.complete_all();
    rig.shard.volume_mut(VOLUME).set_gather_below(0);
    rig.write(3, 20 * LINE, 512, 3);
    rig.tick(10_000);
    assert_eq!(writes(&rig), [(20, 1)].map(|(line, _)| (line, 0)), "512 bytes of one line");
}

#[test]
fn a_throttled_write_waits_for_a_destage() {
    let config = ShardConfig { dirty_lines_max: 8, ..ShardConfig::for_slots(32) };
    let mut rig = Rig::with(32, 64, Mode::WriteBack, config);
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(WIDTH * LINE, 0));
    rig.write(1, 0, 8 * LINE, 1);
    assert_eq!(rig.write(2, 20 * LINE, LINE, 2), WriteOutcome::Waiting);
    assert_eq!(writes(&rig), [(0, 8)]);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(2), Some(Outcome::Retry(None)));
    assert_eq!(rig.retry(2, 20 * LINE, LINE, 2), WriteOutcome::Done);
    assert_eq!(rig.shard.volume(VOLUME).counters().throttled_writes, 1);
    assert_eq!(rig.shard.volume(VOLUME).counters().writes_through_dirty_limit, 0);
}

/// Regression: each throttled part waited for one particular operation, which a disk could complete
/// last, after a second.
#[test]
fn throttled_writes_are_admitted_in_order_after_any_destage() {
    let config = ShardConfig { dirty_lines_max: 8, ..ShardConfig::for_slots(32) };
    let mut rig = Rig::with(32, 64, Mode::WriteBack, config);
    for line in [0, 2, 4, 6, 8, 10, 12, 14] {
        rig.write(line, line * LINE, LINE, 1);
    }
    assert_eq!(rig.write(10, 20 * LINE, 2 * LINE, 2), WriteOutcome::Waiting);
    assert_eq!(rig.write(11, 30 * LINE, LINE, 2), WriteOutcome::Waiting);
    assert_eq!(rig.ios.len(), 4);
    rig.complete(3, Ok(()));
    assert_eq!(rig.take_outcome(10), None, "the part needs two lines");
    assert_eq!(rig.take_outcome(11), None, "the part came later");
    rig.complete(1, Ok(()));
    assert_eq!(rig.take_outcome(10), Some(Outcome::Retry(None)));
    assert_eq!(rig.take_outcome(11), None);
    assert_eq!(rig.retry(10, 20 * LINE, 2 * LINE, 2), WriteOutcome::Done);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(11), Some(Outcome::Retry(None)));
    assert_eq!(rig.retry(11, 30 * LINE, LINE, 2), WriteOutcome::Done);
    let counters = rig.shard.volume(VOLUME).counters();
    assert_eq!((counters.throttled_writes, counters.writes_through_dirty_limit), (2, 0));
    assert_eq!(rig.flush_to_end(90), Ok(()));
}

/// Regression: the write went through to the disk, behind all destages in flight.
#[test]
fn a_write_without_a_slot_waits_for_destages() {
    let config = ShardConfig { dirty_lines_max: 4, ..ShardConfig::for_slots(4) };
    let mut rig = Rig::with(4, 64, Mode::WriteBack, config);
    assert_eq!(rig.read_to_end(40 * LINE, 2 * LINE).len(), 16);
    let (_, held) = rig.read(1, 40 * LINE, 2 * LINE);
    rig.write(2, 0, 2 * LINE, 1);
    assert_eq!(rig.flush(3), None);
    assert_eq!(rig.write(4, 30 * LINE, LINE, 2), WriteOutcome::Waiting);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(4), Some(Outcome::Retry(None)));
    assert_eq!(rig.retry(4, 30 * LINE, LINE, 2), WriteOutcome::Done);
    assert_eq!(rig.shard.volume(VOLUME).counters().writes_through_no_room, 0);
    rig.release(&held);
}

#[test]
fn a_write_at_the_dirty_limit_goes_through_if_the_disk_fails() {
    let config = ShardConfig { dirty_lines_max: 4, ..ShardConfig::for_slots(32) };
    let mut rig = Rig::with(32, 64, Mode::WriteBack, config);
    rig.write(1, 0, 4 * LINE, 1);
    assert_eq!(rig.write(2, 20 * LINE, LINE, 2), WriteOutcome::Waiting);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(2), Some(Outcome::Retry(None)));
    let again = rig.retry(2, 20 * LINE, LINE, 2);
    assert_eq!(again, WriteOutcome::Started, "the volume backs off");
    let through = ByteRange::new(20 * LINE, LINE);
    assert!(rig.ios.iter().any(|io| io.range == through));
}

#[test]
fn scattered_runs_of_a_stripe_are_destaged_together() {
    let config = ShardConfig { destage_operations_max: 1, ..ShardConfig::for_slots(64) };
    let mut rig = Rig::with(64, 64, Mode::WriteBack, config);
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(8 * LINE, 0));
    for line in [1, 2, 4, 7, 9] {
        rig.write(line, line * LINE, LINE, line);
    }
    assert_eq!(rig.flush(90), None);
    assert_eq!(writes(&rig), [(1, 2), (4, 1), (7, 1)], "one operation; the next one waits");
    rig.complete(2, Ok(()));
    rig.complete(0, Ok(()));
    assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 5, "the operation completes as a whole");
    rig.complete(0, Ok(()));
    assert_eq!(writes(&rig), [(9, 1)]);
    rig.complete_all();
    assert_eq!(rig.take_outcome(90), Some(Outcome::Done(Ok(()))));
    let counters = rig.shard.volume(VOLUME).counters();
    assert_eq!((counters.scattered_destages, counters.destaged_stripes), (1, 0));
    assert_eq!((counters.destaged_lines, counters.destaged_bytes), (5, 5 * LINE));
    assert_eq!([1, 2, 4, 7, 9].map(|line| rig.disk[line * 8]), [1, 2, 4, 7, 9]);
    assert_eq!(rig.shard.pins(), 0);
}

#[test]
fn the_runs_of_a_failed_scattered_destage_are_retried_alone() {
    let mut rig = rig(64);
    rig.write(1, 4 * LINE, LINE, 41);
    rig.write(2, 6 * LINE, LINE, 61);
    assert_eq!(rig.flush(90), None);
    assert_eq!(writes(&rig), [(4, 1), (6, 1)]);
    rig.complete(0, Err(IoError::Io));
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(90), None, "each run is retried");
    assert_eq!(writes(&rig), [(4, 1), (6, 1)]);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(90), None, "the other run is an operation of its own now");
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(90), Some(Outcome::Done(Err(IoError::Io))));
    assert_eq!((rig.disk[6 * 8], rig.shard.volume(VOLUME).dirty_lines()), (61, 1));
    assert_eq!(rig.shard.pins(), 0);
}

/// Flushes two runs of a stripe on a disk that fails every I/O, beside writes to the disk over some
/// of their lines: a single one, or with `repeats` one after another. Returns the number of I/Os
/// after which the flush and a write have ended; `None` if they do not end.
fn refused_ios_of_a_flush_beside_writes(repeats: bool) -> Option<usize> {
    let config = ShardConfig { destage_operations_max: 1, ..ShardConfig::for_slots(64) };
    let mut rig = Rig::with(64, 64, Mode::WriteBack, config);
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(WIDTH * LINE, 0));
    for (id, offset, len) in [(1, 0, 2 * LINE + 2560), (2, 3 * LINE - 512, 512)] {
        assert_eq!(rig.write(id, offset, len, 7), WriteOutcome::Done);
    }
    rig.shard.volume_mut(VOLUME).set_mode(Mode::Bypass);
    assert_eq!(rig.flush(90), None);
    let (mut is_flushing, mut writes_ended) = (true, 0);
    let mut attempt = Attempt::default();
    assert_eq!(rig.write(91, LINE, 4 * LINE, 8), WriteOutcome::Waiting);
    for refused in 1..100 {
        if rig.ios.is_empty() {
            rig.now_ms += 60_000;
            rig.tick(rig.now_ms);
        }
        rig.complete(0, Err(IoError::Io));
        is_flushing &= rig.take_outcome(90).is_none();
        while let Some(outcome) = rig.take_outcome(91) {
            attempt = match outcome {
                Outcome::Retry(error) => attempt.after(error),
                _ => {
                    writes_ended += 1;
                    Attempt::default()
                }
            };
            if attempt.count > 0 || repeats {
                rig.write_again(91, LINE, 4 * LINE, 8, false, attempt);
            }
        }
        if !is_flushing && writes_ended > 0 {
            return Some(refused);
        }
    }
    None
}

/// Regression: the write and the flush retried the same lines in turn, now together and now alone,
/// and neither ended.
#[test]
fn a_flush_and_a_write_over_lines_that_the_disk_refuses_both_end() {
    assert!(refused_ios_of_a_flush_beside_writes(false).is_some());
}

#[test]
fn writes_over_lines_that_the_disk_refuses_do_not_delay_a_flush_for_ever() {
    assert!(refused_ios_of_a_flush_beside_writes(true).is_some());
}

#[test]
fn a_stripe_completed_with_clean_lines_is_not_scattered() {
    let mut rig = rig(64);
    rig.read_to_end(4 * LINE, WIDTH * LINE);
    rig.write(1, 4 * LINE, LINE, 41);
    rig.write(2, 6 * LINE, LINE, 61);
    assert_eq!(rig.flush(90), None);
    assert_eq!(writes(&rig), [(4, 4)]);
    rig.complete_all();
    assert_eq!((rig.shard.pins(), rig.shard.volume(VOLUME).counters().scattered_destages), (0, 0));
}

#[test]
fn a_scattered_destage_stays_within_the_size_of_one_io() {
    let mut rig = Rig::new(2048, 1024, Mode::WriteBack);
    rig.shard.volume_mut(VOLUME).set_stripes(Stripes::new(512 * LINE, 0));
    for line in [0, 200, 255, 256, 511] {
        rig.write(line, line * LINE, LINE, line);
    }
    assert_eq!(rig.flush(90), None);
    assert_eq!(writes(&rig), [(0, 1), (200, 1), (255, 1), (256, 1), (511, 1)]);
    rig.complete_all();
    assert_eq!(rig.shard.volume(VOLUME).counters().scattered_destages, 2);
}
