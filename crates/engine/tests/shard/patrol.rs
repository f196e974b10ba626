//! The lines that the patrol inspects, and the handling of damaged ones.

use crate::lru::Lru;
use crate::rig::{LINE, Rig, Table, VOLUME};
use forebay_engine::{
    Attempt, Fate, Inspection, LineKey, MemoryStep, Outbox, Outcome, PARITIES_PER_SLOT, PatrolWork,
    ReadOutcome, SealVerdict, Shard, ShardConfig, WriteOutcome,
};
use forebay_types::{IoError, Mode};

/// Seals all unsealed lines. Returns their number.
pub fn seal_all(rig: &mut Rig) -> usize {
    let mut count = 0;
    while let Some(found) = rig.shard.next_unsealed() {
        assert_eq!(found.work, PatrolWork::Seal);
        rig.shard.inspected(&found, SealVerdict::Intact);
        count += 1;
    }
    rig.shard.self_check();
    count
}

/// Completes one walk with the same verdict on each line. Returns the inspections.
fn walk(rig: &mut Rig, verdict: SealVerdict) -> Vec<Inspection> {
    let mut seen = Vec::new();
    while let Some(found) = rig.shard.next_sealed() {
        rig.shard.inspected(&found, verdict);
        seen.push(found);
    }
    rig.shard.self_check();
    seen
}

#[test]
fn every_change_breaks_the_seal_and_nothing_else_does() {
    let mut rig = Rig::new(16, 8, Mode::WriteBack);
    rig.read_to_end(0, 4 * LINE);
    assert_eq!((seal_all(&mut rig), seal_all(&mut rig)), (4, 0));
    rig.read_to_end(0, 4 * LINE);
    assert_eq!(seal_all(&mut rig), 0, "reads change nothing");
    assert_eq!(rig.write(1, 0, LINE, 5), WriteOutcome::Done);
    assert_eq!(rig.write(2, LINE, 512, 6), WriteOutcome::Done);
    assert_eq!(seal_all(&mut rig), 2);
    assert_eq!(rig.flush(3), None);
    rig.complete_all();
    assert_eq!(seal_all(&mut rig), 0, "a destage changes nothing");
    assert!(rig.zero(4, 0, 512));
    rig.complete_all();
    assert_eq!(seal_all(&mut rig), 1);
    assert_eq!(walk(&mut rig, SealVerdict::Intact).len(), 4);
}

#[test]
fn sectors_that_a_change_keeps_are_verified_first() {
    let mut rig = Rig::new(16, 8, Mode::WriteBack);
    assert_eq!(rig.write(1, 0, LINE, 5), WriteOutcome::Done);
    rig.write(2, 512, 512, 6);
    assert!(rig.verify.is_empty(), "the line was not sealed");
    seal_all(&mut rig);
    rig.write(3, 0, LINE, 7);
    assert!(rig.verify.is_empty(), "no sector is kept");
    seal_all(&mut rig);
    rig.write(4, 512, 1024, 8);
    let (seal, kept) = rig.verify.pop().expect("six sectors are kept");
    assert_eq!((seal.valid, kept), (0xff, 0b1111_1001));
    // Two sectors are damaged; one of them has been overwritten.
    rig.shard.damaged_before(&seal, kept, SealVerdict::Lost { sectors: 0b0000_0110 | 0x80 });
    assert_eq!(rig.shard.volume(VOLUME).lost_sectors(), 1);
    assert_eq!(rig.read_to_end(512, 1024), [8, 8]);
    assert_eq!(rig.read(5, 3584, 512).0, ReadOutcome::Failed(IoError::Io));
}

/// Regression: a write that invalidated its sectors in a line that is dirty elsewhere broke the
/// seal without a verification, and damage to the dirty sectors got a new seal or was destaged.
#[test]
fn a_write_past_the_pool_verifies_the_dirty_sectors_beside_it() {
    for (mode, staged, slots) in
        [(Mode::Bypass, false, 4), (Mode::Bypass, true, 4), (Mode::WriteThrough, false, 1)]
    {
        let config = ShardConfig { dirty_lines_max: 1, ..ShardConfig::for_slots(slots) };
        let mut rig = Rig::with(slots, 4, Mode::WriteBack, config);
        rig.read_to_end(0, LINE);
        assert_eq!(rig.write(1, 0, 512, 7), WriteOutcome::Done);
        seal_all(&mut rig);
        // The write through the cache finds its line pinned, and no other slot.
        let (_, held) = rig.read(2, 0, LINE);
        rig.shard.volume_mut(VOLUME).set_mode(mode);
        let outcome = if staged {
            let slots = rig.stage(1024, 512, 8).unwrap();
            rig.write_staged(3, 1024, 512, &slots, Attempt::default())
        } else {
            rig.write(3, 1024, 512, 8)
        };
        assert_eq!(outcome, WriteOutcome::Started);
        let (seal, kept) = rig.verify.pop().expect("seven sectors are kept");
        assert_eq!((seal.valid, kept), (0xff, 0b1111_1011), "{mode}");
        rig.shard.damaged_before(&seal, kept, SealVerdict::Lost { sectors: 1 });
        assert_eq!(rig.shard.volume(VOLUME).lost_sectors(), 1);
        rig.release(&held);
        rig.complete_all();
        assert_eq!(rig.flush_to_end(4), Err(IoError::Io));
        assert_eq!((rig.disk[0], rig.disk[2]), (Rig::on_disk(0), 8), "{mode}");
    }
}

#[test]
fn a_failed_erase_verifies_the_dirty_sectors_that_it_keeps() {
    let mut rig = Rig::new(16, 8, Mode::WriteBack);
    assert_eq!(rig.write(1, 0, LINE, 5), WriteOutcome::Done);
    seal_all(&mut rig);
    assert!(rig.zero(2, 0, 1024));
    rig.complete(0, Err(IoError::Io));
    let (seal, kept) = rig.verify.pop().expect("all sectors are kept");
    assert_eq!((seal.valid, kept), (0xff, 0xff));
    rig.shard.damaged_before(&seal, kept, SealVerdict::Lost { sectors: 1 });
    assert_eq!(rig.shard.volume(VOLUME).lost_sectors(), 1);
    assert_eq!(rig.read(3, 0, 512).0, ReadOutcome::Failed(IoError::Io));
}

#[test]
fn dirty_sectors_are_verified_before_the_clean_ones_beside_them_are_forgotten() {
    let mut rig = Rig::new(8, 4, Mode::WriteBack);
    rig.read_to_end(0, LINE);
    assert_eq!(rig.write(1, 0, 1024, 5), WriteOutcome::Done);
    let (policy, config) = (Box::new(Lru::new(8)), ShardConfig::for_slots(8));
    let table = Table::new(rig.shard.slots().table().to_vec());
    // The volume of an adopted table is not served yet.
    let (mut shard, _) =
        Shard::recover(table, policy, config, &|_| Fate::Kept, &mut Vec::new()).unwrap();
    let found = shard.next_unsealed().unwrap();
    shard.inspected(&found, SealVerdict::Intact);
    let mut out = Outbox::default();
    shard.forget_clean(VOLUME, &mut out);
    let Some(MemoryStep::Verify { seal, kept }) = out.memory.pop() else { panic!("unverified") };
    assert_eq!((seal.valid, kept, out.memory.len()), (0xff, 0b11, 0));
    shard.damaged_before(&seal, kept, SealVerdict::Lost { sectors: 0b110 });
    shard.add_volume(VOLUME, 4 * LINE, Mode::WriteBack);
    shard.self_check();
    assert_eq!(shard.volume(VOLUME).lost_sectors(), 1);
    let dirty = [(LineKey::new(VOLUME, 0), 0b01)];
    assert_eq!(shard.dirty_sectors(VOLUME), dirty, "the other sector is intact");
}

#[test]
fn a_destage_carries_the_seals_of_its_lines() {
    let mut rig = Rig::new(16, 8, Mode::WriteBack);
    rig.write(1, 0, 2 * LINE, 5);
    seal_all(&mut rig);
    rig.write(2, LINE, LINE, 6);
    assert_eq!(rig.flush(3), None);
    let seals = rig.ios[0].seals.clone();
    assert_eq!(seals.iter().map(|seal| seal.key.line()).collect::<Vec<_>>(), [0]);
    rig.shard.damaged(&seals[0], SealVerdict::Lost { sectors: 1 });
    // The driver refuses the write, so the flush fails. The next flush destages the rest.
    rig.complete(0, Err(IoError::Io));
    assert_eq!(rig.take_outcome(3), Some(Outcome::Done(Err(IoError::Io))));
    assert_eq!(rig.flush_to_end(4), Err(IoError::Io));
    let mut expected = vec![5; 8];
    expected[0] = Rig::on_disk(0);
    assert_eq!(rig.disk[..8], expected, "lost sectors are not destaged");
    assert_eq!(rig.disk[8..16], [6; 8]);
    assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 1);
}

#[test]
fn a_damaged_clean_line_leaves_the_pool() {
    let mut rig = Rig::new(16, 8, Mode::WriteBack);
    rig.read_to_end(0, 2 * LINE);
    seal_all(&mut rig);
    assert_eq!(walk(&mut rig, SealVerdict::Lost { sectors: 0xff }).len(), 2);
    assert_eq!(rig.shard.usage().resident_lines, 0);
    assert_eq!(rig.shard.volume(VOLUME).counters().refetched_lines, 2);
    assert_eq!(rig.read_to_end(0, LINE), (0..8).map(Rig::on_disk).collect::<Vec<_>>());
}

#[test]
fn in_bypass_a_line_is_dropped_when_its_lost_sectors_are_abandoned() {
    let mut rig = Rig::new(16, 8, Mode::WriteBack);
    rig.write(1, 0, LINE, 5);
    seal_all(&mut rig);
    walk(&mut rig, SealVerdict::Lost { sectors: 0b11 });
    assert_eq!(rig.flush(2), None);
    rig.complete_all();
    rig.shard.volume_mut(VOLUME).set_mode(Mode::Bypass);
    rig.shard.drop_clean(VOLUME, 0, u32::MAX);
    let resident = |rig: &Rig| rig.shard.slots().resident_lines(VOLUME);
    assert_eq!(resident(&rig), 1, "the line is dirty: two sectors are lost");
    rig.shard.abandon_lost(VOLUME);
    assert_eq!(resident(&rig), 0);
}

/// Fails if ticks end with the last dirty line: no other call answers the flush.
#[test]
fn a_flush_whose_last_line_is_lost_and_abandoned_is_answered_by_a_tick() {
    for is_ordered in [false, true] {
        let mut rig = Rig::new(16, 8, Mode::WriteBack);
        if is_ordered {
            rig.shard.volume_mut(VOLUME).set_ordered();
        }
        rig.write(1, 0, 1024, 5);
        seal_all(&mut rig);
        // A read of the other sectors fills them. Meanwhile the line is busy, so the flush cannot
        // destage it.
        assert_eq!(rig.read(2, 0, LINE).0, ReadOutcome::Waiting);
        let flushed = if is_ordered { rig.destage_epoch(3, 0) } else { rig.flush(3) };
        assert_eq!((flushed, rig.ios.len()), (None, 1));
        // The line is verified after the fill, so only the next tick would destage it.
        rig.complete(0, Ok(()));
        let (seal, kept) = rig.verify.pop().expect("the fill keeps the dirty sectors");
        assert!(rig.ios.is_empty(), "a line is destaged before its verdict is known");
        rig.shard.damaged_before(&seal, kept, SealVerdict::Lost { sectors: 0b11 });
        rig.shard.abandon_lost(VOLUME);
        assert_eq!((rig.shard.volume(VOLUME).dirty_lines(), rig.take_outcome(3)), (0, None));
        assert!(rig.shard.needs_tick(), "a flush is unanswered, ordered: {is_ordered}");
        rig.tick(50);
        assert_eq!(rig.take_outcome(3), Some(Outcome::Done(Err(IoError::Io))));
        assert!(!rig.shard.needs_tick());
    }
}

#[test]
fn lost_sectors_fail_until_rewritten_erased_or_abandoned() {
    for way in 0..4 {
        let mut rig = Rig::new(16, 8, Mode::WriteBack);
        rig.write(1, 0, LINE, 5);
        seal_all(&mut rig);
        walk(&mut rig, SealVerdict::Lost { sectors: 0b11 });
        assert_eq!(rig.shard.volume(VOLUME).lost_sectors(), 2);
        assert_eq!(rig.read(2, 0, 1024).0, ReadOutcome::Failed(IoError::Io));
        assert_eq!(rig.read_to_end(1024, 3072), [5; 6]);
        // A fill must not read lost sectors from the disk.
        assert_eq!(rig.prefetch(0, LINE), 0);
        assert_eq!(rig.flush_to_end(3), Err(IoError::Io));
        assert_eq!(rig.disk[..2], [Rig::on_disk(0), Rig::on_disk(1)]);
        let expected = match way {
            0 => {
                assert_eq!(rig.write(4, 0, 1024, 9), WriteOutcome::Done);
                9
            }
            1 => {
                rig.shard.volume_mut(VOLUME).set_mode(Mode::Bypass);
                assert_eq!(rig.write(4, 0, 1024, 0), WriteOutcome::Started);
                rig.complete_all();
                0
            }
            2 => {
                assert!(rig.zero(4, 0, 1024));
                rig.complete_all();
                0
            }
            _ => {
                rig.shard.abandon_lost(VOLUME);
                Rig::on_disk(0)
            }
        };
        assert_eq!(rig.shard.volume(VOLUME).lost_sectors(), 0, "way {way}");
        rig.shard.volume_mut(VOLUME).set_mode(Mode::WriteBack);
        assert_eq!(rig.read_to_end(0, 512), [expected], "way {way}");
        if rig.flush(5).is_none() {
            rig.complete_all();
            assert_eq!(rig.take_outcome(5), Some(Outcome::Done(Ok(()))), "way {way}");
        }
        assert_eq!(rig.shard.volume(VOLUME).dirty_lines(), 0, "way {way}");
    }
}

#[test]
fn parity_takes_slots_only_while_lines_are_dirty() {
    let mut rig = Rig::new(32, 16, Mode::WriteBack);
    rig.shard.set_parity(true);
    rig.write(1, 0, 12 * LINE, 5);
    rig.read_to_end(13 * LINE, LINE);
    seal_all(&mut rig);
    let usage = rig.shard.usage();
    let slots = 12u64.div_ceil(u64::from(PARITIES_PER_SLOT));
    assert_eq!((usage.parity_lines, usage.parity_slots), (12, slots));
    let mut places: Vec<_> =
        walk(&mut rig, SealVerdict::Intact).iter().filter_map(|found| found.seal.parity).collect();
    places.sort_unstable_by_key(|place| (place.slot, place.index));
    places.dedup();
    assert_eq!(places.len(), 12, "each line has a place of its own");
    assert_eq!(rig.flush(2), None);
    rig.complete_all();
    let usage = rig.shard.usage();
    assert_eq!((usage.parity_lines, usage.parity_slots, rig.shard.pins()), (0, 0, 0));
}

#[test]
fn a_dirty_line_is_sealed_without_parity_if_no_slot_is_free() {
    let mut config = ShardConfig::for_slots(8);
    config.dirty_lines_max = 8;
    let mut rig = Rig::with(8, 8, Mode::WriteBack, config);
    rig.shard.set_parity(true);
    rig.write(1, 0, 8 * LINE, 5);
    assert_eq!(seal_all(&mut rig), 8);
    assert_eq!(rig.shard.usage().parity_lines, 0);
    assert!(walk(&mut rig, SealVerdict::Intact).iter().all(|found| !found.encode));
}
