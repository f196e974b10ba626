//! Ordered destaging: the disk never has data of an epoch without all data of earlier ones.

use crate::patrol::seal_all;
use crate::rig::{LINE, Rig, VOLUME, attempt_after};
use forebay_engine::{
    Attempt, EraseOutcome, IoVerb, LineKey, Outcome, ReadOutcome, SealVerdict, WriteOutcome,
};
use forebay_policy::Pace;
use forebay_types::{IoError, Mode};
use proptest::prelude::*;

pub(crate) fn ordered(slots: usize, lines: u64) -> Rig {
    let mut rig = Rig::new(slots, lines, Mode::WriteBack);
    rig.shard.volume_mut(VOLUME).set_ordered();
    rig.epoch = 1;
    rig
}

const IN_ORDER: Attempt = Attempt { count: 0, error: None, in_order: true };

#[test]
fn an_epoch_is_destaged_as_it_was_when_it_was_closed() {
    let mut rig = ordered(32, 8);
    assert_eq!(rig.write(1, 0, LINE, 10), WriteOutcome::Done);
    assert_eq!(rig.write(2, LINE, LINE, 11), WriteOutcome::Done);
    rig.epoch = 2;
    assert_eq!(rig.write(3, 0, LINE, 20), WriteOutcome::Done);
    assert_eq!(rig.shard.oldest_epoch(VOLUME, 2), Some(1));
    assert_eq!(rig.destage_epoch(100, 1), None);
    assert_eq!(rig.ios.len(), 1, "adjacent lines share an I/O");
    // Rewritten while it is being destaged.
    rig.epoch = 3;
    assert_eq!(rig.write(4, LINE, 512, 30), WriteOutcome::Done);
    rig.complete_all();
    assert_eq!(rig.take_outcome(100), Some(Outcome::Done(Ok(()))));
    assert_eq!((rig.disk[0], rig.disk[8]), (10, 11));
    assert_eq!(rig.read_to_end(0, LINE), [20; 8]);
    assert_eq!(rig.read_to_end(LINE, LINE), [30, 11, 11, 11, 11, 11, 11, 11]);
    assert_eq!(rig.shard.oldest_epoch(VOLUME, 3), Some(2));
    assert_eq!(rig.destage_epoch(101, 2), None);
    rig.complete_all();
    assert_eq!((rig.disk[0], rig.disk[8]), (20, 11));
    assert_eq!(rig.destage_epoch(102, 3), None);
    rig.complete_all();
    assert_eq!((rig.disk[0], rig.disk[8], rig.disk[9]), (20, 30, 11));
    assert_eq!(rig.shard.usage().dirty_lines, 0);
    assert_eq!(rig.shard.oldest_epoch(VOLUME, 4), None);
    assert_eq!(rig.destage_epoch(103, 4), Some(Ok(())));
}

#[test]
fn a_failed_destage_keeps_the_frozen_version_for_a_retry() {
    let mut rig = ordered(32, 8);
    assert_eq!(rig.write(1, 0, LINE, 10), WriteOutcome::Done);
    rig.epoch = 2;
    assert_eq!(rig.destage_epoch(100, 1), None);
    assert_eq!(rig.write(2, 0, LINE, 20), WriteOutcome::Done);
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(100), Some(Outcome::Done(Err(IoError::Io))));
    assert_eq!(rig.destage_epoch(101, 1), None);
    rig.complete_all();
    assert_eq!(rig.disk[0], 10);
    assert_eq!(rig.read_to_end(0, LINE), [20; 8]);
    assert_eq!(rig.shard.usage().dirty_lines, 1);
}

#[test]
fn writes_past_the_pool_wait_for_earlier_epochs() {
    let mut rig = ordered(32, 8);
    assert_eq!(rig.write(1, 0, LINE, 10), WriteOutcome::Done);
    rig.epoch = 2;
    // Without protection, a FUA write goes to the disk.
    let past =
        |rig: &mut Rig, id, offset, attempt| rig.write_again(id, offset, LINE, 20, true, attempt);
    let held = |dirty| WriteOutcome::Held { dirty };
    assert_eq!(past(&mut rig, 2, LINE, Attempt::default()), held(false));
    assert_eq!(past(&mut rig, 2, 0, IN_ORDER), held(true));
    let zero = rig.zero_again(3, LINE, LINE, Attempt::default());
    assert_eq!(zero, EraseOutcome::Held { dirty: false });
    assert_eq!(rig.zero_again(3, 0, LINE, IN_ORDER), EraseOutcome::Held { dirty: true });
    assert_eq!(rig.destage_epoch(100, 1), None);
    rig.complete_all();
    let in_order = Attempt { in_order: true, ..attempt_after(None) };
    assert_eq!(past(&mut rig, 2, 0, in_order), WriteOutcome::Started);
    rig.complete_all();
    assert_eq!(rig.zero_again(3, LINE, LINE, in_order), EraseOutcome::Started);
    rig.complete_all();
    assert_eq!((rig.disk[0], rig.disk[8]), (20, 0));
}

#[test]
fn rate_limits_apply_to_an_epoch_until_a_part_waits_for_it() {
    let limited =
        [Pace { ios_milli: 10_000, ..Pace::DEFAULT }, Pace { bytes: 10 * LINE, ..Pace::DEFAULT }];
    for (pace, drains) in limited.into_iter().flat_map(|pace| [(pace, false), (pace, true)]) {
        let mut rig = ordered(128, 64);
        rig.shard.volume_mut(VOLUME).set_pace(pace);
        // Every other line, so that each is an I/O of its own.
        for line in 0..30 {
            assert_eq!(rig.write(line, line * 2 * LINE, LINE, line), WriteOutcome::Done);
        }
        rig.epoch = 2;
        // A part that waits for an earlier epoch does not count.
        rig.expedite_epochs(1);
        assert_eq!(rig.destage_epoch(100, 1), None);
        let mut went = 0;
        for now_ms in (0..2_000).step_by(50) {
            rig.tick(now_ms);
            went += rig.ios.len();
            rig.complete_all();
        }
        assert!((18..23).contains(&went), "{pace:?}: {went} in two seconds");
        assert_eq!(rig.take_outcome(100), None);
        if drains {
            rig.shard.volume_mut(VOLUME).set_mode(Mode::WriteThrough);
            rig.tick(2_000);
        } else {
            rig.expedite_epochs(2);
        }
        rig.complete_all();
        assert_eq!(rig.take_outcome(100), Some(Outcome::Done(Ok(()))));
        assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 0);
    }
}

#[test]
fn destages_of_an_epoch_that_a_part_waits_for_count_as_urgent() {
    let mut rig = ordered(32, 8);
    for (epoch, waits, counts) in [(1, false, (0, 1)), (2, true, (1, 1))] {
        assert_eq!(rig.write(epoch, 0, LINE, 10), WriteOutcome::Done);
        rig.epoch = epoch + 1;
        if waits {
            rig.expedite_epochs(epoch + 1);
        }
        assert_eq!(rig.destage_epoch(100, epoch), None);
        rig.complete_all();
        let counters = rig.shard.volume(VOLUME).counters();
        assert_eq!((counters.destages_urgent, counters.destages_background), counts);
    }
}

#[test]
fn a_limited_run_returns_to_a_line_that_was_busy() {
    let mut rig = ordered(32, 8);
    rig.shard.volume_mut(VOLUME).set_pace(Pace { ios_milli: 1_000, ..Pace::DEFAULT });
    for line in [0, 2, 4] {
        assert_eq!(rig.write(line, line * LINE, 512, 10 + line), WriteOutcome::Done);
    }
    assert_eq!(rig.read(5, 0, LINE).0, ReadOutcome::Waiting, "the line is being filled");
    rig.epoch = 2;
    assert_eq!(rig.destage_epoch(100, 1), None);
    assert_eq!((rig.ios.len(), rig.ios[0].verb), (2, IoVerb::Read));
    assert_eq!(rig.ios[1].range.offset, 2 * LINE);
    for now_ms in (0..3_000).step_by(50) {
        rig.complete_all();
        rig.tick(now_ms);
    }
    assert_eq!(rig.take_outcome(100), Some(Outcome::Done(Ok(()))));
    assert_eq!([rig.disk[0], rig.disk[16], rig.disk[32]], [10, 12, 14]);
}

/// Regression: with the newest version lost, the line did not count as dirty, and its frozen
/// version was destaged after the later erase.
#[test]
fn writes_past_the_pool_wait_for_a_frozen_version_of_a_lost_line() {
    let mut rig = ordered(32, 8);
    assert_eq!(rig.write(1, 0, LINE, 10), WriteOutcome::Done);
    rig.epoch = 2;
    assert_eq!(rig.write(2, 0, LINE, 20), WriteOutcome::Done);
    seal_all(&mut rig);
    let slot = rig.shard.slots().find_valid(LineKey::new(VOLUME, 0), 0xff).unwrap();
    let seal = rig.shard.seal_of(slot).expect("sealed just now");
    rig.shard.damaged(&seal, SealVerdict::Lost { sectors: 0xff });
    assert_eq!(rig.shard.volume(VOLUME).lost_sectors(), 8);
    let held = EraseOutcome::Held { dirty: true };
    assert_eq!(rig.zero_again(3, 0, LINE, IN_ORDER), held);
    assert_eq!(rig.destage_epoch(100, 1), None);
    rig.complete_all();
    assert_eq!(rig.disk[0], 10);
    assert_eq!(rig.zero_again(3, 0, LINE, IN_ORDER), EraseOutcome::Started);
    rig.complete_all();
    assert_eq!(rig.disk[0], 0);
    assert_eq!(rig.read_to_end(0, LINE), [0; 8]);
}

/// Regression: in a mode without dirty data, a run was due at every tick, found nothing to destage,
/// and had the disk flushed.
#[test]
fn runs_that_find_only_lost_lines_become_rare() {
    let mut rig = ordered(32, 8);
    assert_eq!(rig.write(1, 0, LINE, 10), WriteOutcome::Done);
    seal_all(&mut rig);
    let slot = rig.shard.slots().find_valid(LineKey::new(VOLUME, 0), 0xff).unwrap();
    let seal = rig.shard.seal_of(slot).expect("sealed just now");
    rig.shard.damaged(&seal, SealVerdict::Lost { sectors: 0xff });
    rig.shard.volume_mut(VOLUME).set_mode(Mode::WriteThrough);
    let mut runs = 0;
    for now_ms in (50..60_000).step_by(50) {
        rig.now_ms = now_ms;
        if rig.shard.is_order_due(VOLUME, now_ms) {
            rig.epoch += 1;
            assert_eq!(rig.destage_epoch(100, rig.epoch - 1), Some(Ok(())));
            runs += 1;
        }
    }
    assert!((2..=20).contains(&runs), "{runs} runs in a minute");
}

#[derive(Clone, Debug)]
enum Step {
    Write { line: u64, sector: u64, sectors: u64 },
    Past { line: u64 },
    Zero { line: u64 },
    Read { line: u64 },
    Cut,
    Destage,
    End { at: usize, fails: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..6u64, 0..8u64, 1..12u64)
            .prop_map(|(line, sector, sectors)| Step::Write { line, sector, sectors }),
        1 => (0..8u64).prop_map(|line| Step::Past { line }),
        1 => (0..8u64).prop_map(|line| Step::Zero { line }),
        2 => (0..8u64).prop_map(|line| Step::Read { line }),
        2 => Just(Step::Cut),
        2 => Just(Step::Destage),
        6 => (0..4usize, prop::bool::weighted(0.1))
            .prop_map(|(at, fails)| Step::End { at, fails }),
    ]
}

/// Writes in order: epoch, sector, value.
#[derive(Default)]
struct History(Vec<(u64, usize, u64)>);

impl History {
    fn of(&self, sector: usize) -> impl Iterator<Item = &(u64, usize, u64)> {
        self.0.iter().filter(move |write| write.1 == sector)
    }

    /// Fails if the disk has data of one epoch but misses data of an earlier one.
    fn check(&self, disk: &[u64]) {
        let found = |sector: usize| {
            // Zeroes are written repeatedly; zeroes on the disk count as the last ones written.
            let values: Vec<u64> = self.of(sector).map(|write| write.2).collect();
            values.iter().rposition(|&value| value == disk[sector]).map_or(0, |at| at + 1)
        };
        let sectors = 0..disk.len();
        let epochs = sectors.clone().map(|s| match found(s) {
            0 => 0,
            at => self.of(s).nth(at - 1).map_or(0, |write| write.0),
        });
        let newest = epochs.max().unwrap_or(0);
        for sector in sectors {
            let missed = self.of(sector).skip(found(sector)).find(|write| write.0 < newest);
            assert!(missed.is_none(), "the disk has data of epoch {newest} but not {missed:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Drives the shard like the dispatcher, with one request at a time.
    #[test]
    fn the_disk_never_has_data_of_an_epoch_without_all_earlier_ones(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut rig = ordered(24, 8);
        let mut history = History::default();
        let mut running: Option<u64> = None;
        for (at, step) in steps.into_iter().enumerate() {
            let (id, value) = (at as u64 + 1, at as u64 + 10);
            let oldest = rig.shard.oldest_epoch(VOLUME, rig.epoch);
            let drained = oldest.is_none_or(|oldest| oldest >= rig.epoch) && running.is_none();
            let attempt = if drained { IN_ORDER } else { Attempt::default() };
            match step {
                Step::Write { line, sector, sectors } => {
                    let (offset, len) = (line * LINE + sector * 512, sectors * 512);
                    if rig.write(id, offset, len, value) == WriteOutcome::Done {
                        let first = (offset / 512) as usize;
                        for sector in first..first + sectors as usize {
                            history.0.push((rig.epoch, sector, value));
                        }
                    }
                }
                Step::Past { line } => {
                    let outcome = rig.write_again(id, line * LINE, LINE, value, true, attempt);
                    if outcome == WriteOutcome::Started {
                        rig.complete(rig.ios.len() - 1, Ok(()));
                        let first = line as usize * 8;
                        history.0.extend((first..first + 8).map(|s| (rig.epoch, s, value)));
                    }
                }
                Step::Zero { line } => {
                    if rig.zero_again(id, line * LINE, LINE, attempt) == EraseOutcome::Started {
                        rig.complete(rig.ios.len() - 1, Ok(()));
                        let first = line as usize * 8;
                        history.0.extend((first..first + 8).map(|s| (rig.epoch, s, 0)));
                    }
                }
                Step::Read { line } => {
                    let (outcome, segments) = rig.read(id, line * LINE, LINE);
                    if outcome == forebay_engine::ReadOutcome::Ready {
                        for (at, value) in rig.values(&segments).into_iter().enumerate() {
                            let sector = line as usize * 8 + at;
                            let expected = history.of(sector).last().map(|write| write.2);
                            prop_assert_eq!(value, expected.unwrap_or(Rig::on_disk(sector as u64)));
                        }
                        rig.release(&segments);
                    }
                }
                Step::Cut => rig.epoch += 1,
                Step::Destage => {
                    if running.is_none() && let Some(oldest) = oldest {
                        rig.epoch += u64::from(oldest == rig.epoch);
                        running = rig.destage_epoch(id, oldest).is_none().then_some(id);
                    }
                }
                Step::End { at, fails } => {
                    if at < rig.ios.len() {
                        rig.complete(at, if fails { Err(IoError::Io) } else { Ok(()) });
                    }
                }
            }
            if let Some(id) = running && rig.take_outcome(id).is_some() {
                running = None;
            }
            history.check(&rig.disk);
        }
        rig.complete_all();
        while let Some(oldest) = rig.shard.oldest_epoch(VOLUME, rig.epoch + 1) {
            rig.epoch += 1;
            rig.destage_epoch(9_999, oldest);
            rig.complete_all();
            history.check(&rig.disk);
        }
        prop_assert_eq!(rig.shard.usage().dirty_lines, 0);
        for sector in 0..rig.disk.len() {
            let expected = history.of(sector).last().map(|write| write.2);
            prop_assert_eq!(rig.disk[sector], expected.unwrap_or(Rig::on_disk(sector as u64)));
        }
    }
}
