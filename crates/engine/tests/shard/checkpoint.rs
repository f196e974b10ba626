//! Checkpoints of a journal: flushes at the pace of background writeback.

use crate::rig::{LINE, Rig, VOLUME};
use forebay_engine::{Outcome, ShardConfig, WriteOutcome};
use forebay_policy::Pace;
use forebay_types::{IoError, Mode};

/// Lines that are dirty. They are not adjacent, so each is an I/O of its own.
const LINES: u64 = 24;
/// The id of the checkpoint's part.
const CHECKPOINT: u64 = 900;

/// A shard whose disk is being read, with one burst of eight I/Os every two seconds, and with dirty
/// lines far below its limit.
fn read_disk() -> Rig {
    let mut rig = Rig::with(256, 1024, Mode::WriteBack, ShardConfig::for_slots(256));
    let volume = rig.shard.volume_mut(VOLUME);
    volume.set_reading(true);
    volume.set_pace(Pace::DEFAULT);
    dirty(&mut rig, LINES);
    rig
}

fn dirty(rig: &mut Rig, lines: u64) {
    for line in 0..lines {
        assert_eq!(rig.write(line, 2 * line * LINE, LINE, line), WriteOutcome::Done);
    }
}

/// Passes time with a tick every 50 ms. Returns when the checkpoint was answered.
fn answered_ms(rig: &mut Rig, until_ms: u64) -> Option<u64> {
    (rig.now_ms + 50..=until_ms).step_by(50).find(|&now_ms| {
        rig.shard.volume_mut(VOLUME).set_reading(true);
        rig.tick(now_ms);
        rig.complete_all();
        rig.take_outcome(CHECKPOINT) == Some(Outcome::Done(Ok(())))
    })
}

/// The urgent destages, and the others.
fn destages(rig: &Rig) -> (u64, u64) {
    let counters = rig.shard.volume(VOLUME).counters();
    (counters.destages_urgent, counters.destages_background)
}

#[test]
fn a_checkpoint_keeps_the_pace_of_background_writeback() {
    let mut rig = read_disk();
    assert_eq!(rig.checkpoint(CHECKPOINT), None);
    assert!(rig.ios.len() <= 8, "at most one burst at once: {}", rig.ios.len());
    rig.complete_all();
    let answered_ms = answered_ms(&mut rig, 20_000).expect("it is answered");
    assert!((3_000..=6_500).contains(&answered_ms), "three bursts took {answered_ms} ms");
    assert_eq!(destages(&rig), (0, LINES));
}

#[test]
fn a_checkpoint_waits_for_the_lines_that_were_dirty_when_it_began() {
    let mut rig = read_disk();
    assert_eq!(rig.checkpoint(CHECKPOINT), None);
    let mut rewritten = 0;
    let ended = (50..20_000).step_by(50).find(|&now_ms| {
        // A steady writer never lets the shard become clean.
        let line = 2 * (LINES + rewritten % 8) * LINE;
        assert_eq!(rig.write(100 + rewritten, line, LINE, 1), WriteOutcome::Done);
        rewritten += 1;
        rig.shard.volume_mut(VOLUME).set_reading(true);
        rig.tick(now_ms);
        rig.complete_all();
        rig.take_outcome(CHECKPOINT).is_some()
    });
    assert!(ended.is_some_and(|ms| ms < 8_000), "{ended:?}");
    assert!(rig.shard.volume(VOLUME).dirty_lines() > 0);
    assert_eq!(destages(&rig).0, 0);
}

#[test]
fn a_flush_makes_a_checkpoint_in_progress_urgent() {
    let mut rig = read_disk();
    assert_eq!(rig.checkpoint(CHECKPOINT), None);
    rig.complete_all();
    assert!(rig.shard.volume(VOLUME).dirty_lines() > 0, "the checkpoint has lines left");
    assert_eq!(rig.flush(901), None);
    rig.complete_all();
    assert_eq!(rig.take_outcome(901), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.take_outcome(CHECKPOINT), Some(Outcome::Done(Ok(()))));
    assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 0);
}

#[test]
fn an_error_of_a_checkpoint_does_not_fail_a_flush_beside_it() {
    let mut rig = read_disk();
    assert_eq!(rig.checkpoint(CHECKPOINT), None);
    rig.complete(0, Err(IoError::Io));
    rig.complete_all();
    assert_eq!(rig.flush(901), None);
    rig.complete_all();
    assert_eq!(rig.take_outcome(CHECKPOINT), Some(Outcome::Done(Err(IoError::Io))));
    assert_eq!(rig.take_outcome(901), Some(Outcome::Done(Ok(()))));
}

#[test]
fn a_log_that_fills_up_speeds_writeback_up_and_makes_it_urgent_at_the_end() {
    let answered = |left| {
        let mut rig = read_disk();
        rig.shard.volume_mut(VOLUME).set_log_distance(left, 100);
        assert_eq!(rig.checkpoint(CHECKPOINT), None);
        // Without writes, the log does not fill up.
        let mut line = 0;
        let answered_ms = (50..20_000).step_by(50).find(|&now_ms| {
            line = (line + 1) % 8;
            rig.write(500 + now_ms, 2 * (100 + line) * LINE, LINE, 1);
            rig.shard.volume_mut(VOLUME).set_reading(true);
            rig.tick(now_ms);
            rig.complete_all();
            rig.take_outcome(CHECKPOINT).is_some()
        });
        (answered_ms.expect("it is answered"), destages(&rig).0)
    };
    let [calm, half, tenth, short] = [100, 50, 10, 6].map(answered);
    assert!(calm.0 > 4 * half.0 && half.0 > tenth.0, "{calm:?} {half:?} {tenth:?}");
    assert_eq!([calm.1, half.1, tenth.1], [0; 3]);
    assert!(short.1 >= LINES, "{short:?}");
}

#[test]
fn a_checkpoint_leaves_its_lines_to_the_elevator_while_the_log_has_space() {
    let config = ShardConfig {
        dirty_lines_max: 200,
        dirty_lines_background: 8,
        ..ShardConfig::for_slots(256)
    };
    let next = |left| {
        let mut rig = Rig::with(256, 1024, Mode::WriteBack, config);
        dirty(&mut rig, LINES);
        rig.tick(50);
        (0..4).for_each(|_| rig.complete(0, Ok(())));
        let passed = rig.ios.iter().map(|io| io.range.offset / LINE).min();
        assert!(passed.is_some_and(|line| line > 0), "the elevator is past the first line");
        assert_eq!(rig.write(100, 0, LINE, 1), WriteOutcome::Done);
        rig.shard.volume_mut(VOLUME).set_log_distance(left, 100);
        assert_eq!(rig.checkpoint(CHECKPOINT), None);
        (0..4).for_each(|_| rig.complete(0, Ok(())));
        rig.ios.iter().any(|io| io.range.offset == 0)
    };
    assert!(!next(100), "the elevator comes back to the first line later");
    assert!(next(99), "the log waits for the first line");
}
