//! An ordered volume with a rate limit.

use crate::world::{Machine, VOLUME};
use forebay_policy::Pace;
use forebay_types::{ByteRange, LINE_BYTES};
use forebay_volume::RequestKind;

#[test]
fn a_flush_does_not_wait_for_the_rate_limit_of_a_run_in_the_background() {
    let mut machine = Machine::ordered(Pace { ios_milli: 1_000, ..Pace::DEFAULT });
    // Every other line of one region, so that each is an I/O of its own, all in the same shard.
    for line in 0..6 {
        let range = ByteRange::new(line * 2 * LINE_BYTES, LINE_BYTES);
        machine.submit(0, RequestKind::Write { fua: false }, range, 2);
    }
    assert_eq!(machine.world.answered, 6);
    for _ in 0..10 {
        machine.tick(50);
        while machine.step(4) {}
    }
    let shards = machine.world.shards.iter();
    let dirty: usize = shards.map(|shard| shard.volume(VOLUME).dirty_lines()).sum();
    assert!((3..6).contains(&dirty), "{dirty} lines are left of a run at one per second");
    // The flush ends without a further tick.
    machine.submit(1, RequestKind::Flush, ByteRange::new(0, 0), 0);
    while machine.step(4) {}
    assert_eq!(machine.world.answered, 7);
    machine.finish();
}
