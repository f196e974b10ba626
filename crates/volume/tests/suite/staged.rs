//! Writes with a payload that is already in the pool.

use crate::world::Machine;
use forebay_types::{ByteRange, Mode};
use forebay_volume::RequestKind;

/// A value of a write whose payload `Machine::submit` stages.
const STAGED: u8 = 5;

/// Both attempts to destage the dirty data under the write fail, so the write is answered with an
/// error while it waits.
#[test]
fn a_staged_write_that_fails_while_it_waits_releases_its_slots() {
    let in_one_region = ByteRange::new(0, 8 << 12);
    let over_a_border = ByteRange::new((1 << 20) - (4 << 12), 8 << 12);
    for range in [in_one_region, over_a_border] {
        let mut machine = Machine::new(Mode::WriteBack);
        machine.submit(0, RequestKind::Write { fua: false }, range, 2);
        assert_eq!(machine.world.answered, 1);
        machine.world.bad_range = Some(ByteRange::new(range.offset, 1 << 12));
        machine.submit(0, RequestKind::Write { fua: true }, range, STAGED);
        assert!(pins(&machine) >= 8, "the payload is in slots");
        while machine.step(0) {}
        assert_eq!((machine.world.answered, machine.world.failed), (2, 1));
        assert_eq!(pins(&machine), 0);
        machine.world.bad_range = None;
        machine.tick(10_000);
        machine.finish();
    }
}

fn pins(machine: &Machine) -> u64 {
    machine.world.shards.iter().map(|shard| shard.pins()).sum()
}
