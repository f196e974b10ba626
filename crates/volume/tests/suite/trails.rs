//! What requests waited for.

use crate::world::Machine;
use forebay_engine::PreloadKind;
use forebay_types::{ByteRange, GRANULE_LINES, LINE_BYTES, Mode};
use forebay_volume::{RequestKind, Wait};

const READ: RequestKind = RequestKind::Read;
const WRITE: RequestKind = RequestKind::Write { fua: false };
const LINE: ByteRange = ByteRange::new(0, 4096);
const GRANULE: ByteRange = ByteRange::new(0, GRANULE_LINES * LINE_BYTES);
const SECTOR: ByteRange = ByteRange::new(512, 512);
/// Two regions.
const BORDER: ByteRange = ByteRange::new((1 << 20) - 4096, 8192);

/// Kinds, times and milliseconds.
type Waits = Vec<(Wait, u16, u32)>;

/// Completes everything now. Returns the kinds, times and milliseconds of the waits of the requests
/// that were answered, with their I/Os and errors.
fn complete(machine: &mut Machine) -> Vec<(Waits, u16, u16)> {
    while machine.step(0) {}
    let trails = machine.world.trails.drain(..).map(|trail| {
        let waits = trail.waits().iter().map(|it| (it.wait, it.times, it.us / 1_000));
        (waits.collect(), trail.ios(), trail.errors())
    });
    trails.collect()
}

#[test]
fn a_read_waits_for_its_own_io_or_for_that_of_another_request() {
    let mut machine = Machine::new(Mode::WriteThrough);
    machine.submit(0, READ, LINE, 0);
    machine.tick(10);
    machine.submit(1, READ, SECTOR, 0);
    machine.tick(20);
    let mut trails = complete(&mut machine);
    trails.sort();
    assert_eq!(trails, [(vec![(Wait::Disk, 1, 30)], 1, 0), (vec![(Wait::Read, 1, 20)], 0, 0)]);
    machine.submit(0, READ, LINE, 0);
    assert_eq!(complete(&mut machine), [], "a hit waits for nothing");
    machine.finish();
}

#[test]
fn a_read_waits_for_a_preload() {
    let mut machine = Machine::new(Mode::WriteThrough);
    machine.submit(0, RequestKind::Preload { lines: 1, kind: PreloadKind::Warm }, GRANULE, 0);
    machine.submit(1, READ, SECTOR, 0);
    machine.tick(5);
    let trails = complete(&mut machine);
    assert!(trails.contains(&(vec![(Wait::ReadAhead, 1, 5)], 0, 0)), "{trails:?}");
    machine.finish();
}

#[test]
fn a_write_waits_for_another_one_and_then_for_its_own() {
    let mut machine = Machine::new(Mode::WriteThrough);
    machine.submit(0, WRITE, LINE, 2);
    machine.submit(0, WRITE, SECTOR, 4);
    machine.tick(10);
    while machine.world.trails.is_empty() {
        assert!(machine.step(0));
    }
    machine.tick(7);
    assert_eq!(
        complete(&mut machine),
        [(vec![(Wait::Disk, 1, 10)], 1, 0), (vec![(Wait::Write, 1, 10), (Wait::Disk, 1, 7)], 1, 0)]
    );
    machine.finish();
}

#[test]
fn a_trim_keeps_a_read_waiting() {
    let mut machine = Machine::new(Mode::WriteThrough);
    machine.submit(0, RequestKind::Zero { unmap: false, fua: false }, LINE, 0);
    machine.submit(1, READ, SECTOR, 0);
    machine.tick(3);
    let trails = complete(&mut machine);
    assert!(trails.iter().any(|(waits, ..)| waits[0] == (Wait::Erase, 1, 3)), "{trails:?}");
    machine.finish();
}

#[test]
fn a_request_over_a_border_has_the_waits_of_the_part_that_ended_last() {
    let mut machine = Machine::new(Mode::WriteThrough);
    machine.submit(0, READ, BORDER, 0);
    machine.tick(4);
    assert!(machine.step(1));
    machine.tick(6);
    assert_eq!(complete(&mut machine), [(vec![(Wait::Disk, 1, 10)], 1, 0)]);
    machine.finish();
}

#[test]
fn attempts_that_fail_are_counted() {
    let mut machine = Machine::new(Mode::WriteBack);
    machine.submit(0, WRITE, LINE, 2);
    machine.world.bad_range = Some(SECTOR);
    machine.submit(0, RequestKind::Write { fua: true }, LINE, 4);
    machine.tick(1);
    assert_eq!(complete(&mut machine), [(vec![(Wait::Destage, 2, 1)], 0, 1)]);
    assert_eq!(machine.world.failed, 1);
    machine.world.bad_range = None;
    machine.tick(10_000);
    machine.finish();
}

#[test]
fn a_flush_waits_for_destages_and_then_for_the_disk() {
    let mut machine = Machine::new(Mode::WriteBack);
    machine.submit(0, WRITE, LINE, 2);
    machine.submit(0, RequestKind::Flush, ByteRange::new(0, 0), 0);
    machine.tick(8);
    assert!(machine.step(2));
    machine.tick(9);
    let waits = vec![(Wait::Destage, 1, 8), (Wait::DiskFlush, 1, 9)];
    assert_eq!(complete(&mut machine), [(waits, 0, 0)]);
    machine.finish();
}
