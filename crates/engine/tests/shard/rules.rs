//! The engine's rules, one by one, with control over each I/O.

use crate::rig::{LINE, Rig, VOLUME, attempt_after};
use forebay_engine::{
    IoAction, IoVerb, Outcome, Place, Protection, ReadOutcome, ShardConfig, WriteOutcome,
};
use forebay_policy::Pace;
use forebay_types::{IoError, Mode, UnsafeUps};

#[test]
fn a_read_fetches_only_the_sectors_that_are_missing() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    assert_eq!(rig.write(1, 1024, 512, 7), WriteOutcome::Done);
    assert!(rig.ios.is_empty(), "a small write needs no read");
    assert_eq!(rig.read_to_end(1024, 512), [7]);
    let (outcome, _) = rig.read(2, 0, LINE);
    assert_eq!(outcome, ReadOutcome::Waiting);
    let missing = |segment: &&forebay_engine::Segment| segment.place != Place::Discard;
    let fetched: u32 =
        rig.ios.iter().flat_map(|io| &io.segments).filter(missing).map(|s| s.len).sum();
    assert_eq!(fetched, 3584);
    rig.complete_all();
    assert_eq!(rig.take_outcome(2), Some(Outcome::Retry(None)));
    let mut expected: Vec<u64> = (0..8).map(Rig::on_disk).collect();
    expected[2] = 7;
    assert_eq!(rig.read_to_end(0, LINE), expected);
}

#[test]
fn a_write_to_a_line_being_filled_waits_for_the_fill() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    assert_eq!(rig.read(1, 0, LINE).0, ReadOutcome::Waiting);
    assert_eq!(rig.write(2, 0, LINE, 7), WriteOutcome::Waiting);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(2), Some(Outcome::Retry(None)));
    assert_eq!(rig.retry(2, 0, LINE, 7), WriteOutcome::Done);
    assert_eq!(rig.read_to_end(0, LINE), [7; 8]);
}

#[test]
fn readers_of_one_cold_line_share_one_io() {
    let mut rig = Rig::new(8, 4, Mode::WriteThrough);
    for id in 0..32 {
        assert_eq!(rig.read(id, id % 8 * 512, 512).0, ReadOutcome::Waiting);
    }
    assert_eq!(rig.ios.len(), 1);
    rig.complete(0, Ok(()));
    for id in 0..32 {
        assert_eq!(rig.take_outcome(id), Some(Outcome::Retry(None)));
        assert_eq!(rig.read_again(id, 0, LINE, attempt_after(None)).0, ReadOutcome::Ready);
    }
    assert!(rig.ios.is_empty());
}

#[test]
fn a_burst_of_overwrites_reaches_the_disk_once_per_line() {
    let mut rig = Rig::new(32, 16, Mode::WriteBack);
    for round in 0..100 {
        for line in 0..4 {
            let outcome = rig.write(round, line * 2 * LINE, LINE, round * 10 + line);
            assert_eq!(outcome, WriteOutcome::Done);
        }
    }
    assert!(rig.ios.is_empty());
    assert_eq!(rig.flush_to_end(1), Ok(()));
    let counters = rig.shard.volume(VOLUME).counters();
    assert_eq!((counters.destaged_lines, counters.destage_writes), (4, 4));
    assert_eq!([rig.disk[0], rig.disk[16], rig.disk[32], rig.disk[48]], [990, 991, 992, 993]);
}

#[test]
fn a_write_during_destage_moves_the_line_and_stays_dirty() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    rig.write(1, 0, LINE, 1);
    assert_eq!(rig.flush(2), None);
    assert_eq!(rig.write(3, 0, 512, 2), WriteOutcome::Done);
    rig.complete(0, Ok(()));
    // The flush covers only what was acknowledged before it, and that is on the disk.
    assert_eq!(rig.take_outcome(2), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.disk[..8], [1; 8]);
    assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 1);
    assert_eq!(rig.flush(4), None);
    rig.complete_all();
    assert_eq!(rig.disk[..8], [2, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(rig.shard.pins(), 0);
}

/// Each of several clients that write and flush has its own destage in flight, as it would have its
/// own write in flight without a cache.
#[test]
fn a_flush_starts_its_own_destages_beside_those_in_flight() {
    let mut rig = Rig::new(128, 96, Mode::WriteBack);
    for id in 0..40 {
        rig.write(100 + id, 2 * id * LINE, LINE, id);
        assert_eq!(rig.flush(id), None);
        assert_eq!(rig.ios.len(), id as usize + 1, "the line of flush {id} is not in flight");
    }
    // A flush also waits for what was acknowledged before it, and for nothing later.
    rig.complete(1, Ok(()));
    assert_eq!(rig.take_outcome(1), None);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(0), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.take_outcome(1), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.take_outcome(2), None);
    rig.complete_all();
    assert!((2..40).all(|id| rig.take_outcome(id) == Some(Outcome::Done(Ok(())))));
}

/// A line that was rewritten during its destage is destaged again when that ends, although others
/// are in flight.
#[test]
fn a_flush_of_a_rewritten_line_waits_for_one_destage_only() {
    let mut rig = Rig::new(16, 12, Mode::WriteBack);
    rig.write(1, 0, LINE, 1);
    assert_eq!(rig.flush(2), None);
    rig.write(3, 4 * LINE, LINE, 2);
    assert_eq!(rig.flush(4), None);
    rig.write(5, 0, LINE, 3);
    assert_eq!(rig.flush(6), None);
    assert_eq!(rig.ios.len(), 2);
    rig.complete(0, Ok(()));
    assert_eq!(rig.ios.len(), 2, "the line is destaged again");
    rig.complete_all();
    assert_eq!(rig.take_outcome(6), Some(Outcome::Done(Ok(()))));
    assert_eq!((rig.disk[0], rig.disk[32]), (3, 2));
}

/// Without protection, a flush waits for the disk, so write-back brings nothing to a client that
/// flushes after each write, and makes its flushes wait for the destages of others.
#[test]
fn writes_that_are_flushed_at_once_go_to_the_disk() {
    let mut rig = Rig::new(128, 96, Mode::WriteBack);
    let commit = |rig: &mut Rig, line: u64| {
        let outcome = rig.write(line, line % 90 * LINE, LINE, line);
        rig.complete_all();
        assert_eq!(rig.flush(1_000 + line).unwrap_or(Ok(())), Ok(()));
        rig.complete_all();
        outcome
    };
    assert_eq!(commit(&mut rig, 0), WriteOutcome::Done);
    (0..200).for_each(|line| {
        commit(&mut rig, line);
    });
    assert_eq!(commit(&mut rig, 0), WriteOutcome::Started);
    let through = |rig: &Rig| rig.shard.volume(VOLUME).counters().writes_through_flushed;
    assert!(through(&rig) > 100, "{}", through(&rig));
    // Clients that write the same line share a destage.
    assert_eq!(rig.write(1, 0, LINE, 1), WriteOutcome::Started);
    assert_eq!(rig.write(2, 0, LINE, 2), WriteOutcome::Waiting);
    rig.complete_all();
    assert_eq!(rig.retry(2, 0, LINE, 2), WriteOutcome::Done);
    rig.complete_all();
    // Clients that no longer flush gain from write-back again.
    let before = through(&rig);
    (0..90).for_each(|line| {
        rig.write(line, line * LINE, LINE, line);
        rig.complete_all();
    });
    assert!(through(&rig) < before + 70, "without flushes, writes stay in memory");
}

/// Nothing may be dirty when the flushes end, so no tick may come.
#[test]
fn writes_beside_flushes_that_wait_most_of_the_time_go_to_the_disk_until_flushes_end() {
    let mut rig = Rig::new(128, 96, Mode::WriteBack);
    (0..45).for_each(|line| {
        rig.write(line, line * 2 * LINE, LINE, line);
    });
    assert_eq!(rig.flush(900), None);
    (0..20).for_each(|at| rig.tick(at * 100));
    assert_eq!(rig.write(101, 95 * LINE, LINE, 2), WriteOutcome::Started);
    rig.complete_all();
    assert_eq!(rig.take_outcome(900), Some(Outcome::Done(Ok(()))));
    let mut now_ms = 2_000;
    while rig.shard.needs_tick() {
        rig.tick(now_ms);
        now_ms += 100;
    }
    let outcomes: Vec<_> = (0..400)
        .map(|line| {
            rig.now_ms = now_ms + line * 10;
            let outcome = rig.write(line, line % 90 * LINE, LINE, line);
            rig.complete_all();
            outcome
        })
        .collect();
    assert_eq!(outcomes[0], WriteOutcome::Started);
    assert_eq!(outcomes[399], WriteOutcome::Done);
}

/// Flushes that come while the lines of another one wait for their destage form one group.
#[test]
fn flushes_behind_waiting_lines_form_one_group() {
    let config = ShardConfig { destage_operations_max: 1, ..ShardConfig::for_slots(32) };
    let mut rig = Rig::with(32, 256, Mode::WriteBack, config);
    (0..4).for_each(|line| assert_eq!(rig.write(90, 2 * line * LINE, LINE, 1), WriteOutcome::Done));
    assert_eq!((rig.flush(1), rig.flush(2)), (None, None));
    assert_eq!(rig.ios.len(), 2, "one destage for each flush");
    rig.write(91, 20 * LINE, LINE, 1);
    assert_eq!(rig.flush(3), None);
    (0..3).for_each(|_| rig.complete(0, Ok(())));
    assert_eq!((rig.take_outcome(1), rig.take_outcome(2)), (None, None));
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(1), Some(Outcome::Done(Ok(()))));
    assert_eq!((rig.take_outcome(2), rig.take_outcome(3)), (None, None));
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(2), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.take_outcome(3), Some(Outcome::Done(Ok(()))));
}

/// Flushes that come while another one is running form one group, which gets its own result.
#[test]
fn flushes_during_another_one_cover_the_writes_before_them() {
    let mut rig = Rig::new(16, 16, Mode::WriteBack);
    rig.write(1, 0, LINE, 1);
    assert_eq!(rig.flush(2), None);
    rig.write(3, 4 * LINE, LINE, 2);
    assert_eq!(rig.flush(4), None);
    assert_eq!(rig.flush(5), None);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(2), Some(Outcome::Done(Err(IoError::Io))));
    assert_eq!((rig.take_outcome(4), rig.take_outcome(5)), (None, None));
    rig.complete_all();
    assert_eq!(rig.take_outcome(4), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.take_outcome(5), Some(Outcome::Done(Ok(()))));
    assert_eq!((rig.disk[0], rig.disk[32]), (1, 2));
}

/// A line that is destaged from an older slot is relocated again, because a reply has pinned the
/// newer slot. The second flush must wait for the newest slot, not for the destage in flight.
#[test]
fn a_flush_follows_a_line_relocated_twice_during_a_destage() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    rig.write(1, 0, LINE, 1);
    assert_eq!(rig.flush(2), None);
    assert_eq!(rig.write(3, 0, LINE, 2), WriteOutcome::Done);
    assert_eq!(rig.flush(4), None);
    let (outcome, held) = rig.read(5, 0, LINE);
    assert_eq!(outcome, ReadOutcome::Ready);
    assert_eq!(rig.write(6, 0, LINE, 3), WriteOutcome::Done);
    assert_eq!(rig.values(&held), [2; 8]);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(2), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.take_outcome(4), None, "data acknowledged before this flush is not on the disk");
    rig.complete_all();
    assert_eq!(rig.take_outcome(4), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.disk[..8], [3; 8]);
    rig.release(&held);
    assert_eq!(rig.shard.pins(), 0);
}

#[test]
fn a_write_without_a_slot_goes_through_and_keeps_pinned_data() {
    let mut rig = Rig::new(2, 4, Mode::WriteBack);
    assert_eq!(rig.read_to_end(0, 2 * LINE).len(), 16);
    let (_, held) = rig.read(1, 0, 2 * LINE);
    assert_eq!(rig.write(2, 0, LINE, 7), WriteOutcome::Started);
    assert_eq!(rig.values(&held)[0], Rig::on_disk(0), "a pinned line is never overwritten");
    assert_eq!(rig.ios[0].verb, IoVerb::Write { fua: false });
    assert!(matches!(rig.ios[0].segments[0].place, Place::Private { .. }));
    rig.complete_all();
    assert_eq!(rig.take_outcome(2), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.shard.volume(VOLUME).counters().writes_through_no_room, 1);
    rig.release(&held);
    assert_eq!(rig.read_to_end(0, 512), [7]);
}

#[test]
fn a_write_through_not_covered_by_the_ups_has_fua() {
    let stable = UnsafeUps::Stable;
    for (mode, protection, choice, fua) in [
        (Mode::WriteBack, Protection::Power, stable, true),
        (Mode::WriteBack, Protection::Power, UnsafeUps::DiskCache, false),
        (Mode::WriteBack, Protection::None, stable, false),
        (Mode::WriteThrough, Protection::Power, stable, false),
        (Mode::Bypass, Protection::Power, stable, false),
    ] {
        // With a dirty limit of zero, a write-back write goes through as well.
        let config = ShardConfig { dirty_lines_max: 0, ..ShardConfig::for_slots(8) };
        let mut rig = Rig::with(8, 4, mode, config);
        rig.shard.volume_mut(VOLUME).set_protection(protection);
        rig.shard.volume_mut(VOLUME).set_unsafe_ups(choice);
        assert_eq!(rig.write(2, 0, LINE, 7), WriteOutcome::Started);
        assert_eq!(rig.ios[0].verb, IoVerb::Write { fua }, "{mode} {protection:?} {choice}");
        rig.complete_all();
    }
}

#[test]
fn a_clean_line_is_evicted_among_many_dirty_ones() {
    let mut rig = Rig::new(256, 300, Mode::WriteBack);
    for line in 0..100 {
        assert_eq!(rig.write(line, line * LINE, LINE, line), WriteOutcome::Done);
    }
    rig.read_to_end(100 * LINE, 156 * LINE);
    for line in 256..300 {
        assert_eq!(rig.write(line, line * LINE, LINE, line), WriteOutcome::Done, "line {line}");
    }
    assert_eq!(rig.shard.volume(VOLUME).counters().throttled_writes, 0);
    let lines: Vec<u64> = (0..100).chain(256..300).collect();
    for line in lines {
        assert_eq!(rig.read_to_end(line * LINE, LINE), [line; 8]);
    }
    assert_eq!(rig.ios.len(), 0, "no dirty line was evicted or destaged");
}

#[test]
fn a_write_without_enough_slots_relocates_no_line() {
    let config = ShardConfig { dirty_lines_max: 4, ..ShardConfig::for_slots(4) };
    let mut rig = Rig::with(4, 16, Mode::WriteBack, config);
    rig.write(1, 0, 2 * LINE, 1);
    assert_eq!(rig.flush(2), None);
    // The write needs three slots, for two lines in a destage and an absent one. Two are free.
    let outcome = rig.write(3, 0, 3 * LINE, 2);
    assert_eq!(outcome, WriteOutcome::Waiting);
    assert_eq!(rig.shard.volume(VOLUME).counters().relocated_lines, 0);
    rig.complete(0, Ok(()));
    assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 0, "the destaged lines were not relocated");
    assert_eq!(rig.take_outcome(3), Some(Outcome::Retry(None)));
    assert_eq!(rig.retry(3, 0, 3 * LINE, 2), WriteOutcome::Done);
}

#[test]
fn a_read_that_waited_for_a_failed_prefetch_is_retried_alone() {
    let mut rig = Rig::new(16, 8, Mode::WriteThrough);
    assert_eq!(rig.prefetch(0, 8 * LINE), 8);
    assert_eq!(rig.read(1, 0, LINE).0, ReadOutcome::Waiting);
    rig.complete(0, Err(IoError::Io));
    let Some(Outcome::Retry(error)) = rig.take_outcome(1) else { panic!("not retried") };
    // The retry reads only its own sectors, past the cache.
    assert_eq!(rig.read_again(1, 0, LINE, attempt_after(error)).0, ReadOutcome::Started);
    assert_eq!(rig.ios[0].range.len, LINE);
    rig.complete(0, Ok(()));
    assert_eq!(rig.take_outcome(1), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.shard.usage().resident_lines, 0, "no line of the failed fill is kept");
}

/// The driver limits prefetch by the number of prefetched lines that clients read.
#[test]
fn a_read_that_waits_for_a_prefetch_counts_once_as_its_use() {
    let mut rig = Rig::new(16, 8, Mode::WriteThrough);
    assert_eq!(rig.prefetch(0, 8 * LINE), 8);
    assert_eq!(rig.read(1, 0, 3 * LINE).0, ReadOutcome::Waiting);
    let used = |rig: &Rig| rig.shard.volume(VOLUME).counters().prefetch_used_lines;
    assert_eq!((used(&rig), rig.prefetch_uses), (3, 3));
    rig.complete_all();
    rig.read_to_end(0, 4 * LINE);
    assert_eq!((used(&rig), rig.prefetch_uses), (4, 4), "three were counted before");
}

/// The client has caught up with the prefetch. If only a later use of the marked line counted, the
/// next window would be requested only when the client has read this one to its end.
#[test]
fn a_read_that_waits_for_the_marked_line_requests_the_next_window() {
    let mut rig = Rig::new(16, 8, Mode::WriteThrough);
    assert_eq!(rig.prefetch_marked(0, 8 * LINE, Some(0)), 8);
    assert_eq!(rig.read(1, 0, LINE).0, ReadOutcome::Waiting);
    assert_eq!(rig.marks, 1);
    rig.complete_all();
    rig.read_to_end(0, 4 * LINE);
    assert_eq!(rig.marks, 1, "once per window");
}

/// Erased sectors are missing, but a reply may still have their old data pinned.
#[test]
fn a_fill_after_an_erase_keeps_pinned_data() {
    let mut rig = Rig::new(8, 4, Mode::WriteThrough);
    rig.read_to_end(0, LINE);
    let (_, held) = rig.read(1, 0, LINE);
    assert!(rig.zero(2, 2048, 2048));
    rig.complete(0, Ok(()));
    assert_eq!(rig.read(3, 0, LINE).0, ReadOutcome::Waiting);
    rig.complete_all();
    let before: Vec<u64> = (0..8).map(Rig::on_disk).collect();
    assert_eq!(rig.values(&held), before);
    rig.release(&held);
    assert_eq!(rig.read_to_end(2048, 2048), [0; 4]);
}

#[test]
fn a_write_ignores_the_failure_of_a_read_it_waited_for() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    rig.write(1, 0, LINE, 1);
    assert_eq!(rig.read(2, LINE, LINE).0, ReadOutcome::Waiting);
    assert_eq!(rig.retry_fua(3, 0, 2 * LINE, 2), WriteOutcome::Waiting);
    rig.complete(0, Err(IoError::Io));
    let Some(Outcome::Retry(error)) = rig.take_outcome(3) else { panic!("not retried") };
    let outcome = rig.write_again(3, 0, 2 * LINE, 2, true, attempt_after(error));
    assert_eq!(outcome, WriteOutcome::Waiting, "the dirty line under it is destaged first");
    rig.complete(0, Ok(()));
    let Some(Outcome::Retry(error)) = rig.take_outcome(3) else { panic!("not retried") };
    let outcome = rig.write_again(3, 0, 2 * LINE, 2, true, attempt_after(error));
    assert_eq!(outcome, WriteOutcome::Started);
    assert_eq!(rig.ios[0].verb, IoVerb::Write { fua: true });
}

#[test]
fn a_failed_write_through_leaves_no_valid_sector() {
    let mut rig = Rig::new(8, 4, Mode::WriteThrough);
    rig.read_to_end(0, LINE);
    assert_eq!(rig.write(1, 0, 1024, 7), WriteOutcome::Started);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(1), Some(Outcome::Done(Err(IoError::Io))));
    let expected: Vec<u64> = (0..8).map(Rig::on_disk).collect();
    assert_eq!(
        rig.read_to_end(0, LINE),
        expected,
        "read again from the disk, which has the old data"
    );
}

#[test]
fn a_failed_destage_keeps_its_data_and_fails_the_flush() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    rig.write(1, 0, LINE, 1);
    assert_eq!(rig.flush(2), None);
    rig.complete(0, Err(IoError::NoSpace));
    assert_eq!(rig.take_outcome(2), Some(Outcome::Done(Err(IoError::NoSpace))));
    assert_eq!(rig.read_to_end(0, LINE), [1; 8]);
    assert_eq!(rig.flush_to_end(3), Ok(()));
    assert_eq!(rig.disk[..8], [1; 8]);
}

#[test]
fn a_disk_that_has_taken_all_it_refused_refuses_nothing() {
    let mut rig = Rig::new(16, 16, Mode::WriteBack);
    let refused = |rig: &Rig| rig.shard.volume(VOLUME).refused_lines();
    // Two lines apart, so that each has its own destage.
    rig.write(1, 0, LINE, 1);
    rig.write(2, 8 * LINE, LINE, 1);
    assert_eq!((rig.flush(3), rig.ios.len(), refused(&rig)), (None, 2, 0));
    rig.complete(0, Err(IoError::Io));
    assert_eq!(refused(&rig), 1);
    // The other line is written, and this one is still refused.
    rig.complete_all();
    assert_eq!((refused(&rig), rig.shard.volume(VOLUME).dirty_lines()), (1, 1));
    // A new write to it does not change that, only one that the disk takes does.
    rig.write(4, 0, LINE, 2);
    assert_eq!(refused(&rig), 1);
    assert_eq!(rig.flush_to_end(5), Ok(()));
    assert_eq!((refused(&rig), rig.shard.volume(VOLUME).dirty_lines()), (0, 0));
    assert_eq!(rig.shard.volume(VOLUME).counters().destage_errors, 1);
}

/// A write through the cache first destages the dirty sectors under it, together with adjacent
/// ones. A bad sector among the adjacent ones must not fail the write.
#[test]
fn a_write_over_a_dirty_run_fails_only_for_its_own_sectors() {
    for (offset, len) in [(LINE, LINE), (LINE + 1024, 512), (512, 2 * LINE)] {
        let mut rig = Rig::new(16, 8, Mode::WriteBack);
        assert_eq!(rig.write(1, 0, 4 * LINE, 7), WriteOutcome::Done);
        assert_eq!(rig.retry_fua(2, offset, len, 8), WriteOutcome::Waiting);
        assert_eq!(rig.ios.len(), 1);
        assert_eq!(rig.ios[0].range.len, 4 * LINE, "all adjacent dirty lines are included");
        rig.complete(0, Err(IoError::Io));
        assert_eq!(rig.take_outcome(2), Some(Outcome::Retry(Some(IoError::Io))));
        let again = attempt_after(Some(IoError::Io));
        assert_eq!(rig.write_again(2, offset, len, 8, true, again), WriteOutcome::Waiting);
        assert_eq!((rig.ios.len(), rig.ios[0].range.offset), (1, offset));
        assert_eq!(rig.ios[0].range.len, len, "only the sectors under the write");
        rig.complete(0, Ok(()));
        assert_eq!(rig.take_outcome(2), Some(Outcome::Retry(None)));
        assert_eq!(rig.retry_fua(2, offset, len, 8), WriteOutcome::Started);
        rig.complete(0, Ok(()));
        assert_eq!(rig.take_outcome(2), Some(Outcome::Done(Ok(()))));
        let first = (offset / 512) as usize;
        assert_eq!(rig.disk[first..first + (len / 512) as usize], vec![8; (len / 512) as usize]);
        let counters = rig.shard.volume(VOLUME).counters();
        assert_eq!((counters.destage_writes, counters.destages_urgent), (2, 2));
        // Four lines in the failed destage, then only the sectors under the write.
        assert_eq!(counters.destaged_bytes, 4 * LINE + len);
        let under = (offset + len).div_ceil(LINE) - offset / LINE;
        assert_eq!(counters.destaged_lines, 4 + under);
        // The adjacent sectors that failed are still dirty, and the next flush destages them.
        assert_eq!(rig.flush_to_end(3), Ok(()));
        let expected: Vec<u64> = (0..32)
            .map(|sector| if (offset..offset + len).contains(&(sector * 512)) { 8 } else { 7 })
            .collect();
        assert_eq!(rig.disk[..32], expected);
        assert_eq!(rig.read_to_end(0, 4 * LINE), expected);
        assert_eq!((rig.shard.volume(VOLUME).dirty_lines(), rig.shard.pins()), (0, 0));
    }
}

#[test]
fn a_write_over_a_bad_sector_fails_and_keeps_the_dirty_data() {
    let mut rig = Rig::new(16, 8, Mode::WriteBack);
    assert_eq!(rig.write(1, 0, 2 * LINE, 7), WriteOutcome::Done);
    assert_eq!(rig.retry_fua(2, 0, 512, 8), WriteOutcome::Waiting);
    rig.complete(0, Err(IoError::Io));
    let again = attempt_after(Some(IoError::Io));
    assert_eq!(rig.write_again(2, 0, 512, 8, true, again), WriteOutcome::Waiting);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(2), Some(Outcome::Retry(Some(IoError::Io))));
    assert_eq!(
        rig.take_outcome(2),
        Some(Outcome::Done(Err(IoError::Io))),
        "the second failure is final"
    );
    assert_eq!(rig.read_to_end(0, 2 * LINE), [7; 16]);
    assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 2);
    assert_eq!(rig.shard.pins(), 0);
}

/// A reply has the line pinned and no other slot is free: the dirty sectors stay in place, and the
/// written ones become invalid.
#[test]
fn a_write_through_without_a_slot_keeps_the_other_dirty_sectors_of_its_line() {
    for mode in [Mode::WriteThrough, Mode::Bypass] {
        let config = ShardConfig { dirty_lines_max: 1, ..ShardConfig::for_slots(1) };
        let mut rig = Rig::with(1, 4, Mode::WriteBack, config);
        assert_eq!(rig.read_to_end(0, LINE).len(), 8);
        assert_eq!(rig.write(1, 0, 512, 7), WriteOutcome::Done);
        let (_, held) = rig.read(2, 0, LINE);
        rig.shard.volume_mut(VOLUME).set_mode(mode);
        assert_eq!(rig.write(3, 1024, 512, 8), WriteOutcome::Started);
        assert!(matches!(rig.ios[0].segments[0].place, Place::Private { .. }));
        assert_eq!(rig.values(&held)[2], Rig::on_disk(2), "pinned data does not change");
        rig.release(&held);
        assert_eq!(rig.write(4, 0, 512, 9), WriteOutcome::Waiting, "the line is busy");
        rig.complete(0, Ok(()));
        assert_eq!(rig.take_outcome(3), Some(Outcome::Done(Ok(()))));
        assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 1);
        assert_eq!(rig.flush(5), None);
        rig.complete_all();
        assert_eq!((rig.disk[0], rig.disk[2]), (7, 8));
        assert_eq!(rig.shard.pins(), 0);
    }
}

#[test]
fn a_write_is_counted_once_however_often_it_is_tried() {
    let mut rig = Rig::new(8, 8, Mode::WriteBack);
    assert_eq!(rig.write(1, 0, LINE, 1), WriteOutcome::Done);
    // The write waits for the destage of the data it replaces, then for a fill, and then succeeds.
    assert_eq!(rig.retry_fua(2, 0, 2 * LINE, 2), WriteOutcome::Waiting);
    rig.complete_all();
    assert_eq!(rig.read(3, LINE, LINE).0, ReadOutcome::Waiting);
    assert_eq!(rig.retry_fua(2, 0, 2 * LINE, 2), WriteOutcome::Waiting);
    rig.complete_all();
    assert_eq!(rig.retry_fua(2, 0, 2 * LINE, 2), WriteOutcome::Started);
    rig.complete_all();
    let counters = rig.shard.volume(VOLUME).counters();
    assert_eq!((counters.write_hit_lines, counters.write_miss_lines), (2, 1));
    assert_eq!((counters.writes_back, counters.writes_through_fua), (1, 1));
}

#[test]
fn background_writeback_yields_to_reads_and_never_stops() {
    let config = ShardConfig {
        dirty_lines_background: 32,
        dirty_lines_max: 48,
        dirty_age_ms: 0,
        ..ShardConfig::for_slots(128)
    };
    let mut rig = Rig::with(128, 128, Mode::WriteBack, config);
    rig.shard.volume_mut(VOLUME).set_pace(Pace { beside_reads_milli: 1_000, ..Pace::DEFAULT });
    // Every other line, so that each is an I/O of its own.
    let write = |rig: &mut Rig, line: u64| {
        assert_eq!(rig.write(line, line * 2 * LINE, LINE, line), WriteOutcome::Done);
    };
    (0..20).for_each(|line| write(&mut rig, line));
    rig.shard.volume_mut(VOLUME).set_reading(true);
    let mut went = Vec::new();
    for now_ms in (0..5_000).step_by(50) {
        rig.tick(now_ms);
        if !rig.ios.is_empty() {
            went.push((now_ms, rig.ios.len()));
            rig.complete_all();
        }
    }
    // The first tick destages nothing: a line that it finds dirty for the first time is not old.
    assert_eq!(went, [(50, 8), (1_050, 8), (2_050, 4)], "one burst per second");
    // A flush does not wait for reads.
    (0..20).for_each(|line| write(&mut rig, line));
    assert_eq!(rig.flush_to_end(100), Ok(()));
    // Nor does destaging near the dirty limit wait: the nearer the limit, the faster it is.
    rig.now_ms = 5_000;
    (0..46).for_each(|line| write(&mut rig, line));
    let dirty = |rig: &Rig| rig.shard.volume(VOLUME).dirty_lines();
    let mut left = Vec::new();
    for now_ms in (5_000..7_000).step_by(50) {
        rig.tick(now_ms);
        rig.complete_all();
        left.push(dirty(&rig));
    }
    assert!(left[4] < 40 && left[39] > 8, "fast at first, then slower: {left:?}");
    rig.shard.volume_mut(VOLUME).set_reading(false);
    rig.tick(7_050);
    rig.complete_all();
    rig.tick(7_100);
    rig.complete_all();
    assert_eq!(dirty(&rig), 0, "without reads, everything is destaged");
}

#[test]
fn a_read_slows_writeback_down_from_its_start() {
    let config = ShardConfig { dirty_age_ms: 0, ..ShardConfig::for_slots(128) };
    let mut rig = Rig::with(128, 128, Mode::WriteBack, config);
    for line in 0..40 {
        assert_eq!(rig.write(line, line * 2 * LINE, LINE, line), WriteOutcome::Done);
    }
    let is_destage = |io: &IoAction| matches!(io.verb, IoVerb::Write { .. });
    let destages = |rig: &Rig| rig.ios.iter().filter(|io| is_destage(io)).count();
    rig.tick(0);
    rig.tick(50);
    assert!(destages(&rig) > 0, "the disk is idle");
    for _ in 0..10 {
        rig.complete(0, Ok(()));
    }
    let in_flight = destages(&rig);
    assert!(in_flight > 0, "one follows the other");
    assert_eq!(rig.read(100, LINE, LINE).0, ReadOutcome::Waiting);
    // The driver reports reads to the shard only before the next tick.
    while let Some(at) = rig.ios.iter().position(is_destage) {
        rig.complete(at, Ok(()));
    }
    let dirty = |rig: &Rig| rig.shard.volume(VOLUME).dirty_lines();
    assert_eq!(dirty(&rig), 40 - 10 - in_flight, "none has started since the read");
    // The driver starts reads at the end of its turn, and may tick before that.
    rig.shard.volume_mut(VOLUME).set_reading(false);
    rig.tick(100);
    assert!(!rig.ios.iter().any(is_destage), "the read counts until the next tick at least");
}

#[test]
fn a_line_in_a_prefetched_range_stays_until_the_stream_comes_to_it() {
    let mut rig = Rig::new(64, 256, Mode::WriteThrough);
    rig.read_to_end(3 * LINE, LINE);
    for line in 100..163 {
        rig.read_to_end(line * LINE, LINE);
    }
    // The oldest line of a full pool is inside the first range.
    for first in [0, 16] {
        let missing = if first == 0 { 15 } else { 16 };
        assert_eq!(rig.prefetch(first * LINE, 16 * LINE), missing);
        rig.complete_all();
    }
    let (outcome, segments) = rig.read(1, 3 * LINE, LINE);
    assert_eq!(outcome, ReadOutcome::Ready);
    rig.release(&segments);
}

#[test]
fn a_line_that_was_prefetched_is_not_used_by_being_prefetched_again() {
    let mut rig = Rig::new(32, 256, Mode::WriteThrough);
    assert_eq!(rig.prefetch(0, 16 * LINE), 16);
    rig.complete_all();
    for line in 100..116 {
        rig.read_to_end(line * LINE, LINE);
    }
    assert_eq!(rig.prefetch(0, 16 * LINE), 0);
    rig.read_to_end(200 * LINE, LINE);
    let (outcome, segments) = rig.read(1, 100 * LINE, LINE);
    assert_eq!(outcome, ReadOutcome::Ready, "the oldest line is still one of the unread");
    rig.release(&segments);
}

#[test]
fn the_dirty_limit_counts_as_far_away_without_recent_writers() {
    let config = ShardConfig {
        dirty_lines_background: 32,
        dirty_lines_max: 48,
        ..ShardConfig::for_slots(128)
    };
    let left_after = |pause_ms: u64| {
        let mut rig = Rig::with(128, 128, Mode::WriteBack, config);
        rig.shard.volume_mut(VOLUME).set_pace(Pace { beside_reads_milli: 1_000, ..Pace::DEFAULT });
        rig.shard.volume_mut(VOLUME).set_reading(true);
        rig.now_ms = 5_000;
        for line in 0..47 {
            assert_eq!(rig.write(line, line * 2 * LINE, LINE, line), WriteOutcome::Done);
        }
        for now_ms in (5_000 + pause_ms..5_400 + pause_ms).step_by(50) {
            rig.now_ms = now_ms;
            rig.tick(now_ms);
            rig.complete_all();
        }
        rig.shard.volume(VOLUME).dirty_lines()
    };
    assert!(left_after(50) <= 32, "{} at once", left_after(50));
    assert!(left_after(600) >= 39, "{}: one burst", left_after(600));
}

#[test]
fn rate_limits_apply_to_all_writeback_except_flushes() {
    let config = ShardConfig { dirty_age_ms: 0, ..ShardConfig::for_slots(64) };
    let limited =
        [Pace { ios_milli: 10_000, ..Pace::DEFAULT }, Pace { bytes: 10 * LINE, ..Pace::DEFAULT }];
    for pace in limited {
        let mut rig = Rig::with(64, 64, Mode::WriteBack, config);
        rig.shard.volume_mut(VOLUME).set_pace(pace);
        for line in 0..30 {
            assert_eq!(rig.write(line, line * 2 * LINE, LINE, line), WriteOutcome::Done);
        }
        let mut went = 0;
        for now_ms in (0..2_000).step_by(50) {
            rig.tick(now_ms);
            went += rig.ios.len();
            rig.complete_all();
        }
        assert!((18..23).contains(&went), "{pace:?}: {went} in two seconds");
        assert_eq!(rig.flush_to_end(100), Ok(()));
        assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 0);
    }
}

#[test]
fn a_line_destaged_since_the_last_pass_is_not_old() {
    let mut rig = Rig::new(8, 16, Mode::WriteBack);
    rig.write(1, 0, LINE, 1);
    rig.tick(5_000);
    assert_eq!(rig.ios.len(), 0, "the line was not dirty at the last pass");
    rig.flush(2);
    rig.complete_all();
    rig.write(3, 0, LINE, 2);
    rig.tick(10_000);
    assert_eq!(rig.ios.len(), 0, "the line was clean in between");
    rig.tick(15_000);
    assert_eq!(rig.ios.len(), 1);
}

#[test]
fn clean_lines_are_dropped_a_few_slots_at_a_time() {
    let mut rig = Rig::new(16, 16, Mode::WriteBack);
    assert_eq!(rig.prefetch(0, 8 * LINE), 8);
    rig.complete_all();
    assert_eq!(rig.write(1, 9 * LINE, LINE, 7), WriteOutcome::Done);
    let resident = |rig: &Rig| rig.shard.slots().resident_lines(VOLUME);
    assert_eq!(resident(&rig), 9);
    // Writes past the cache invalidate what they overwrite; the other lines stay valid until
    // dropped.
    rig.shard.volume_mut(VOLUME).set_mode(Mode::Bypass);
    assert_eq!(rig.shard.drop_clean(VOLUME, 0, 3), Some(3));
    assert_eq!(resident(&rig), 6);
    assert_eq!(rig.write(2, 5 * LINE, LINE, 8), WriteOutcome::Started);
    rig.complete_all();
    assert_eq!(rig.take_outcome(2), Some(Outcome::Done(Ok(()))));
    assert_eq!(resident(&rig), 5, "a bypass write drops the line it overwrites");
    assert_eq!(rig.read_to_end(6 * LINE, 512), [Rig::on_disk(48)]);
    assert_eq!(rig.shard.drop_clean(VOLUME, 3, 64), None);
    assert_eq!(resident(&rig), 1, "a dirty line stays");
    assert_eq!(rig.read_to_end(9 * LINE, LINE), [7; 8]);
    rig.shard.self_check();
}

#[test]
fn lines_dirty_or_busy_at_a_change_to_bypass_are_dropped_later() {
    let mut rig = Rig::new(16, 16, Mode::WriteBack);
    assert_eq!(rig.prefetch(0, 2 * LINE), 2);
    assert_eq!(rig.write(1, 4 * LINE, LINE, 7), WriteOutcome::Done);
    assert_eq!(rig.write(2, 6 * LINE, 512, 8), WriteOutcome::Done);
    rig.shard.volume_mut(VOLUME).set_mode(Mode::Bypass);
    assert_eq!(rig.shard.drop_clean(VOLUME, 0, 64), None);
    assert_eq!(rig.shard.slots().resident_lines(VOLUME), 4, "two lines are dirty and two filling");
    rig.tick(5_000);
    rig.complete_all();
    assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 0);
    assert_eq!(rig.shard.slots().resident_lines(VOLUME), 0);
    assert_eq!((rig.disk[4 * 8], rig.disk[6 * 8]), (7, 8));
    rig.shard.self_check();
}
