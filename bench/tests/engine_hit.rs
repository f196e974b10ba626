//! Allocations and data copies of a hit.

use forebay_bench::allocations::{Counting, allocations};
use forebay_engine::{
    Attempt, LineMeta, MemoryStep, Outbox, Part, PartId, Place, ReadOutcome, Segment, Shard,
    ShardConfig, WriteOutcome, WriteTerms,
};
use forebay_policy::Weir;
use forebay_types::{ByteRange, LINE_BYTES, Mode, VolumeId};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const VOLUME: VolumeId = VolumeId(0);
const LINES: u64 = 4_000;

fn part(line: u64) -> Part {
    let range = ByteRange::new(line * LINE_BYTES, LINE_BYTES);
    Part { id: PartId(line), volume: VOLUME, range, restores: false }
}

#[test]
fn hits_allocate_nothing_and_copy_no_reads() {
    let slots = 8_192;
    let policy = Box::new(Weir::new(slots));
    let table = vec![LineMeta::FREE; slots];
    let mut shard = Shard::new(table, policy, ShardConfig::for_slots(slots));
    shard.add_volume(VOLUME, LINES * LINE_BYTES, Mode::WriteBack);
    let mut segments: Vec<Segment> = Vec::with_capacity(4);
    let mut out = Outbox::default();
    // Every line is resident and was used before, so that all lists have grown.
    for line in 0..LINES {
        let outcome = shard.write(&part(line), WriteTerms::default(), Attempt::default(), &mut out);
        assert_eq!(outcome, WriteOutcome::Done);
        out.memory.clear();
        shard.finish_call();
    }
    // The first overwrite of dirty data grows its lists.
    let outcome = shard.write(&part(0), WriteTerms::default(), Attempt::default(), &mut out);
    assert_eq!(outcome, WriteOutcome::Done);
    out.memory.clear();
    shard.finish_call();
    let before = allocations();
    for round in 0..3 * LINES {
        let part = part(round * 7 % LINES);
        let (outcome, line_hits) = shard.read(&part, Attempt::default(), &mut segments, &mut out);
        assert_eq!((outcome, line_hits.hits, line_hits.misses), (ReadOutcome::Ready, 1, 0));
        assert!(out.is_empty(), "nothing is copied, and no I/O started");
        for segment in segments.drain(..) {
            let Place::Slot { slot, .. } = segment.place else {
                unreachable!("a hit is in the pool")
            };
            shard.release(slot);
        }
        let outcome = shard.write(&part, WriteTerms::default(), Attempt::default(), &mut out);
        assert_eq!(outcome, WriteOutcome::Done);
        let is_fill = |step: &MemoryStep| matches!(step, MemoryStep::Fill { .. });
        assert!(out.memory.len() == 1 && out.memory.iter().all(is_fill), "copied once");
        assert!(out.ios.is_empty() && out.answers.is_empty());
        out.memory.clear();
        shard.finish_call();
    }
    assert_eq!(allocations() - before, 0);
}
