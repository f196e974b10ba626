//! The engine's rules, one by one, with each I/O under the test's thumb.

use crate::rig::{LINE, Rig, VOLUME, after};
use forebay_engine::{IoVerb, Outcome, Place, ReadOutcome, ShardConfig, WriteOutcome};
use forebay_types::{IoError, Mode};

#[test]
fn a_read_fetches_only_the_sectors_that_are_missing() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    assert_eq!(rig.write(1, 1024, 512, 7), WriteOutcome::Done);
    assert!(rig.ios.is_empty(), "a small write needs no read");
    assert_eq!(rig.read_now(1024, 512), [7]);
    let (outcome, _) = rig.read(2, 0, LINE);
    assert_eq!(outcome, ReadOutcome::Waiting);
    let missing = |segment: &&forebay_engine::Segment| segment.place != Place::Discard;
    let fetched: u32 =
        rig.ios.iter().flat_map(|io| &io.segments).filter(missing).map(|s| s.len).sum();
    assert_eq!(fetched, 3584);
    rig.end_all();
    assert_eq!(rig.learnt(2), Some(Outcome::Retry(None)));
    let mut expected: Vec<u64> = (0..8).map(Rig::on_disk).collect();
    expected[2] = 7;
    assert_eq!(rig.read_now(0, LINE), expected);
}

#[test]
fn a_write_to_a_line_that_is_being_filled_waits_and_wins() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    assert_eq!(rig.read(1, 0, LINE).0, ReadOutcome::Waiting);
    assert_eq!(rig.write(2, 0, LINE, 7), WriteOutcome::Waiting);
    rig.end(0, Ok(()));
    assert_eq!(rig.learnt(2), Some(Outcome::Retry(None)));
    assert_eq!(rig.write_again(2, 0, LINE, 7, false, after(None)), WriteOutcome::Done);
    assert_eq!(rig.read_now(0, LINE), [7; 8]);
}

#[test]
fn readers_of_one_cold_line_share_one_io() {
    let mut rig = Rig::new(8, 4, Mode::WriteThrough);
    for id in 0..32 {
        assert_eq!(rig.read(id, id % 8 * 512, 512).0, ReadOutcome::Waiting);
    }
    assert_eq!(rig.ios.len(), 1);
    rig.end(0, Ok(()));
    for id in 0..32 {
        assert_eq!(rig.learnt(id), Some(Outcome::Retry(None)));
        assert_eq!(rig.read_again(id, 0, LINE, after(None)).0, ReadOutcome::Ready);
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
    assert_eq!(rig.flush(1), None);
    rig.end_all();
    assert_eq!(rig.learnt(1), Some(Outcome::Done(Ok(()))));
    let counters = rig.shard.counters(VOLUME);
    assert_eq!((counters.destaged_lines, counters.destage_writes), (4, 4));
    assert_eq!([rig.disk[0], rig.disk[16], rig.disk[32], rig.disk[48]], [990, 991, 992, 993]);
}

#[test]
fn a_write_during_destage_moves_the_line_and_stays_dirty() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    rig.write(1, 0, LINE, 1);
    assert_eq!(rig.flush(2), None);
    assert_eq!(rig.write(3, 0, 512, 2), WriteOutcome::Done);
    rig.end(0, Ok(()));
    // The flush is about what was acknowledged before it came, and that is on the disk.
    assert_eq!(rig.learnt(2), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.disk[..8], [1; 8]);
    assert_eq!(rig.shard.dirty_lines(VOLUME), 1);
    assert_eq!(rig.flush(4), None);
    rig.end_all();
    assert_eq!(rig.disk[..8], [2, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(rig.shard.pins(), 0);
}

/// A line that is destaged from an older slot, and moves once more because a reply holds the
/// newer one: what the flush waits for is in the newest slot, not under way.
#[test]
fn a_flush_follows_a_line_that_moves_twice_during_a_destage() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    rig.write(1, 0, LINE, 1);
    assert_eq!(rig.flush(2), None);
    assert_eq!(rig.write(3, 0, LINE, 2), WriteOutcome::Done);
    assert_eq!(rig.flush(4), None);
    let (outcome, held) = rig.read(5, 0, LINE);
    assert_eq!(outcome, ReadOutcome::Ready);
    assert_eq!(rig.write(6, 0, LINE, 3), WriteOutcome::Done);
    assert_eq!(rig.bytes(&held), [2; 8]);
    rig.end(0, Ok(()));
    assert_eq!(rig.learnt(2), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.learnt(4), None, "what was acknowledged before this flush is not on the disk");
    rig.end_all();
    assert_eq!(rig.learnt(4), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.disk[..8], [3; 8]);
    rig.release(&held);
    assert_eq!(rig.shard.pins(), 0);
}

#[test]
fn without_room_a_write_goes_through_and_keeps_what_replies_hold() {
    let mut rig = Rig::new(2, 4, Mode::WriteBack);
    assert_eq!(rig.read_now(0, 2 * LINE).len(), 16);
    let (_, held) = rig.read(1, 0, 2 * LINE);
    assert_eq!(rig.write(2, 0, LINE, 7), WriteOutcome::Started);
    assert_eq!(rig.bytes(&held)[0], Rig::on_disk(0), "a pinned line is never overwritten");
    assert_eq!(rig.ios[0].verb, IoVerb::Write { fua: false });
    assert!(matches!(rig.ios[0].segments[0].place, Place::Private { .. }));
    rig.end_all();
    assert_eq!(rig.learnt(2), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.shard.counters(VOLUME).writes_through_no_room, 1);
    rig.release(&held);
    assert_eq!(rig.read_now(0, 512), [0], "private memory is zeroes in this rig");
}

#[test]
fn a_write_without_room_moves_no_line_in_vain() {
    let config = ShardConfig { dirty_lines_max: 4, ..ShardConfig::for_slots(4) };
    let mut rig = Rig::with(4, 16, Mode::WriteBack, config);
    rig.write(1, 0, 2 * LINE, 1);
    assert_eq!(rig.flush(2), None);
    // Two lines under destage would have to move, and four more need slots: two are free.
    let outcome = rig.write(3, 0, 3 * LINE, 2);
    assert_eq!(outcome, WriteOutcome::Waiting);
    assert_eq!(rig.shard.counters(VOLUME).relocated_lines, 0);
    rig.end(0, Ok(()));
    assert_eq!(rig.shard.dirty_lines(VOLUME), 0, "the destage was not in vain");
    assert_eq!(rig.learnt(3), Some(Outcome::Retry(None)));
    assert_eq!(rig.write_again(3, 0, 3 * LINE, 2, false, after(None)), WriteOutcome::Done);
}

#[test]
fn a_bad_sector_met_by_reading_ahead_fails_no_neighbour() {
    let mut rig = Rig::new(16, 8, Mode::WriteThrough);
    assert_eq!(rig.prefetch(0, 8 * LINE), 8);
    assert_eq!(rig.read(1, 0, LINE).0, ReadOutcome::Waiting);
    rig.end(0, Err(IoError::Io));
    let Some(Outcome::Retry(error)) = rig.learnt(1) else { panic!("told to try again") };
    // Now it reads its own sectors only, past the cache.
    assert_eq!(rig.read_again(1, 0, LINE, after(error)).0, ReadOutcome::Started);
    assert_eq!(rig.ios[0].range.len, LINE);
    rig.end(0, Ok(()));
    assert_eq!(rig.learnt(1), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.shard.usage().resident_lines, 0, "nothing that failed is kept");
}

/// Sectors that were erased are missing, while a reply may still hold what they were.
#[test]
fn a_fill_after_an_erase_leaves_what_replies_hold() {
    let mut rig = Rig::new(8, 4, Mode::WriteThrough);
    rig.read_now(0, LINE);
    let (_, held) = rig.read(1, 0, LINE);
    assert!(rig.zero(2, 2048, 2048));
    rig.end(0, Ok(()));
    assert_eq!(rig.read(3, 0, LINE).0, ReadOutcome::Waiting);
    rig.end_all();
    let before: Vec<u64> = (0..8).map(Rig::on_disk).collect();
    assert_eq!(rig.bytes(&held), before);
    rig.release(&held);
    assert_eq!(rig.read_now(2048, 2048), [0; 4]);
}

#[test]
fn a_write_does_not_fail_for_a_read_that_it_waited_for() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    rig.write(1, 0, LINE, 1);
    assert_eq!(rig.read(2, LINE, LINE).0, ReadOutcome::Waiting);
    assert_eq!(rig.write_again(3, 0, 2 * LINE, 2, true, after(None)), WriteOutcome::Waiting);
    rig.end(0, Err(IoError::Io));
    let Some(Outcome::Retry(error)) = rig.learnt(3) else { panic!("told to try again") };
    let outcome = rig.write_again(3, 0, 2 * LINE, 2, true, after(error));
    assert_eq!(outcome, WriteOutcome::Waiting, "for the destage of the dirty line under it");
    rig.end(0, Ok(()));
    let Some(Outcome::Retry(error)) = rig.learnt(3) else { panic!("told to try again") };
    let outcome = rig.write_again(3, 0, 2 * LINE, 2, true, after(error));
    assert_eq!(outcome, WriteOutcome::Started);
    assert_eq!(rig.ios[0].verb, IoVerb::Write { fua: true });
}

#[test]
fn a_failed_write_through_leaves_no_line_that_claims_to_know() {
    let mut rig = Rig::new(8, 4, Mode::WriteThrough);
    rig.read_now(0, LINE);
    assert_eq!(rig.write(1, 0, 1024, 7), WriteOutcome::Started);
    rig.end(0, Err(IoError::Io));
    assert_eq!(rig.learnt(1), Some(Outcome::Done(Err(IoError::Io))));
    let expected: Vec<u64> = (0..8).map(Rig::on_disk).collect();
    assert_eq!(rig.read_now(0, LINE), expected, "read from the disk, which has the old data");
}

#[test]
fn a_failed_destage_keeps_its_data_and_fails_the_flush() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    rig.write(1, 0, LINE, 1);
    assert_eq!(rig.flush(2), None);
    rig.end(0, Err(IoError::NoSpace));
    assert_eq!(rig.learnt(2), Some(Outcome::Done(Err(IoError::NoSpace))));
    assert_eq!(rig.read_now(0, LINE), [1; 8]);
    assert_eq!(rig.flush(3), None);
    rig.end_all();
    assert_eq!(rig.learnt(3), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.disk[..8], [1; 8]);
}
