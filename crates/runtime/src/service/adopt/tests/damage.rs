//! Memory damage in an adopted pool, before and while its data is recorded again. A lost sector
//! stays lost until it is written again or given up: neither older records nor the disk replace it.

use super::*;
use crate::VolumeJournal;
use crate::rig::damage;
use forebay_backend::layers::{Gate, Kinds};
use forebay_format::journal::LOG_OFFSET;
use forebay_types::Durability;
use forebay_volume::shard_of;

/// More than a recording has in flight at once.
const LINES: u64 = 2600;

/// What outlives a process: the pool, the disk and the journal's device.
struct Machine {
    pool: OwnedFd,
    disk: Arc<dyn Backend>,
    log: Arc<Gate>,
}

/// Opens a gate when it is dropped, so that a failed test ends.
struct Closed<'a>(&'a Gate);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl Machine {
    fn new() -> Self {
        let (disk, log) = (device(32 * MIB), Gate::new(device(80 * MIB)));
        Self { pool: crate::new_pool_file().unwrap(), disk, log }
    }

    fn start(&self, durability: Durability) -> (Runtime, VolumeSettings) {
        // Half of each shard may be dirty before lines are destaged.
        let runtime = start(&self.pool, RuntimeConfig { journals: 1, ..config(128 * MIB) });
        let log = Arc::clone(&self.log) as Arc<dyn Backend>;
        let journal = Some(VolumeJournal { durability, ..open_journal(&runtime, log) });
        let gather_below = GATHERS_ALL;
        let disk = Arc::clone(&self.disk);
        let settings = VolumeSettings { gather_below, journal, ..volume("v", disk) };
        (runtime, settings)
    }

    fn serve(&self, durability: Durability) -> Runtime {
        let (runtime, settings) = self.start(durability);
        runtime.volumes().add(settings).unwrap();
        runtime
    }

    /// Serves the volume, and calls `meanwhile` while the first batch of its data is being written
    /// to the journal. The last lines have not been copied by then.
    fn serve_and(&self, durability: Durability, meanwhile: impl FnOnce(&Runtime)) -> Runtime {
        let (runtime, settings) = self.start(durability);
        self.log.close(Kinds::WRITE);
        std::thread::scope(|scope| {
            let closed = Closed(&self.log);
            let added = scope.spawn(|| runtime.volumes().add(settings));
            wait_until("data is recorded", PATIENCE, || {
                let held = self.log.held();
                match held.iter().position(|io| io.range.offset < LOG_OFFSET) {
                    Some(superblock) => {
                        self.log.release(superblock);
                        false
                    }
                    None => !held.is_empty() || added.is_finished(),
                }
            });
            if added.is_finished() {
                panic!("nothing was recorded: {:?}", added.join().unwrap());
            }
            meanwhile(&runtime);
            drop(closed);
            added.join().unwrap().unwrap();
        });
        runtime
    }

    /// A copy of the machine as it would be if its process were killed now. Both use the same disk.
    fn killed(&self) -> Self {
        let pool = crate::new_pool_file().unwrap();
        let size_bytes = rustix::fs::fstat(&self.pool).unwrap().st_size as u64;
        rustix::fs::ftruncate(&pool, size_bytes).unwrap();
        let mut bytes = vec![0; MIB as usize];
        for at in (0..size_bytes).step_by(MIB as usize) {
            let len = rustix::io::pread(&self.pool, &mut bytes, at).unwrap();
            if bytes[..len].iter().any(|&byte| byte != 0) {
                assert_eq!(rustix::io::pwrite(&pool, &bytes[..len], at).unwrap(), len);
            }
        }
        let size_bytes = self.log.description().size_bytes();
        let log = device(size_bytes);
        let mut bytes = AlignedBuffer::new(size_bytes as usize);
        Blocking::new(&*self.log).read(0, &mut bytes).unwrap();
        Blocking::new(&*log).write(0, &bytes, true).unwrap();
        Self { pool, disk: Arc::clone(&self.disk), log: Gate::new(log) }
    }

    /// Dirties [`LINES`] lines without records, and dies. Returns the line that is copied last when
    /// they are recorded.
    fn fill_and_die(&self, durability: Durability, first: impl FnOnce(&Runtime, u64)) -> u64 {
        let runtime = self.serve(durability);
        let (shared, id) = (runtime.shared(), runtime.named("v").unwrap().id);
        let (stripes, shards) = (shared.stripes(id), shared.shards.len());
        let shard = |line: &u64| shard_of(id, stripes, line * LINE_BYTES, shards);
        let last = (0..LINES).max_by_key(|line| (shard(line), *line)).unwrap();
        first(&runtime, last);
        (0..LINES).filter(|line| *line != last).for_each(|line| write(&runtime, line, 5, false));
        runtime.pause().unwrap();
        last
    }

    /// Power is lost, and the next process has only the disk and the journal.
    fn lose_power(&self) {
        let log = Arc::clone(&self.log) as Arc<dyn Backend>;
        lose_power(&self.disk, &log);
    }
}

/// Damages a line beyond repair, and waits until that has been found.
fn damage_and_find(runtime: &Runtime, line: u64) {
    let id = runtime.named("v").unwrap().id;
    damage(runtime, id, line);
    wait_until("the damage is found", PATIENCE, || runtime.shared().shards.has_lost(id));
}

/// The lost sectors of a line.
fn lost_in(runtime: &Runtime, line: u64) -> u8 {
    let key = LineKey::new(runtime.named("v").unwrap().id, line);
    let shards = 0..runtime.shared().shards.len();
    shards.map(|at| runtime.shared().shard(at).slots().line(key).lost()).fold(0, |a, b| a | b)
}

/// Checks that a line is lost: it is not readable, a flush fails, and the disk has not changed. The
/// status counts it.
fn assert_lost(runtime: &Runtime, disk: &Arc<dyn Backend>, line: u64) {
    assert_eq!(lost_in(runtime, line), 0xff);
    assert!(runtime.volumes().flush("v", |_| ()).is_err());
    assert_eq!((lost_in(runtime, line), on_disk(disk, line)), (0xff, 0));
    // A search in the journal will not restore it either.
    assert!(runtime.named("v").unwrap().freshness.newest().is_none());
    let volume = runtime.status().unwrap().volumes.remove(0);
    assert_eq!(volume.lost_sectors, 8);
}

/// Checks that a lost line stays lost over further restarts, until it is written.
fn assert_lost_until_written(machine: &Machine, durability: Durability, line: u64) {
    for _ in 0..2 {
        let runtime = machine.serve(durability);
        assert_lost(&runtime, &machine.disk, line);
        runtime.pause().unwrap();
    }
    let runtime = machine.serve(durability);
    write(&runtime, line, 9, true);
    runtime.volumes().flush("v", |_| ()).unwrap();
    runtime.pause().unwrap();
    machine.lose_power();
    assert_eq!(on_disk(&machine.disk, line), 9);
}

#[test]
fn older_records_do_not_replace_what_is_lost_while_it_is_recorded() {
    let machine = Machine::new();
    let line = machine.fill_and_die(Durability::Flush, |runtime, line| {
        write(runtime, line, 1, true);
        write(runtime, line, 2, false);
    });
    let next = machine.serve_and(Durability::Flush, |runtime| damage_and_find(runtime, line));
    assert_lost(&next, &machine.disk, line);
    next.pause().unwrap();
    assert_lost_until_written(&machine, Durability::Flush, line);
}

#[test]
fn the_disk_does_not_replace_what_is_lost_while_it_is_recorded() {
    let machine = Machine::new();
    let unrecorded = |runtime: &Runtime, line| write(runtime, line, 2, false);
    let line = machine.fill_and_die(Durability::Flush, unrecorded);
    let next = machine.serve_and(Durability::Flush, |runtime| damage_and_find(runtime, line));
    assert_lost(&next, &machine.disk, line);
    next.pause().unwrap();
    assert_lost_until_written(&machine, Durability::Flush, line);
}

/// The damage is found by the patrol, or by the recording.
#[test]
fn damaged_data_is_not_recorded_as_if_it_were_right() {
    let machine = Machine::new();
    let unrecorded = |runtime: &Runtime, line| write(runtime, line, 2, false);
    let line = machine.fill_and_die(Durability::Flush, unrecorded);
    let next = machine.serve_and(Durability::Flush, |runtime| {
        damage(runtime, runtime.named("v").unwrap().id, line);
    });
    assert_lost(&next, &machine.disk, line);
    next.pause().unwrap();
    assert_lost_until_written(&machine, Durability::Flush, line);
}

#[test]
fn lost_sectors_stay_lost_after_a_kill_in_the_middle_of_a_recording() {
    let machine = Machine::new();
    let line = machine.fill_and_die(Durability::Flush, |runtime, line| {
        write(runtime, line, 1, true);
        write(runtime, line, 2, false);
    });
    let mut killed = None;
    let next = machine.serve_and(Durability::Flush, |runtime| {
        damage_and_find(runtime, line);
        killed = Some(machine.killed());
    });
    next.pause().unwrap();
    let killed = killed.unwrap();
    let next = killed.serve(Durability::Flush);
    assert_lost(&next, &killed.disk, line);
    next.pause().unwrap();
    assert_lost_until_written(&killed, Durability::Flush, line);
    assert!((0..LINES).filter(|at| *at != line).all(|at| on_disk(&killed.disk, at) == 5));
}

/// With `durability=ack`, the journal has everything that was acknowledged. Its record must stay
/// until the data is recorded again.
#[test]
fn recorded_data_that_is_lost_while_it_is_recorded_again_comes_back() {
    let machine = Machine::new();
    let recorded = |runtime: &Runtime, line| write(runtime, line, 3, true);
    let line = machine.fill_and_die(Durability::Ack, recorded);
    let next = machine.serve_and(Durability::Ack, |runtime| damage_and_find(runtime, line));
    wait_until("the line is restored", PATIENCE, || lost_in(&next, line) == 0);
    next.pause().unwrap();
    machine.lose_power();
    assert_eq!(on_disk(&machine.disk, line), 3);
}

/// A new journal has no record of what was lost before, so a flush must not rely on it.
#[test]
fn a_new_journal_does_not_count_as_a_record_of_what_is_lost() {
    let machine = Machine::new();
    let first = machine.serve(Durability::Ack);
    write(&first, 0, 1, true);
    assert_eq!(lose(&first, first.named("v").unwrap().id, 0), 8);
    first.pause().unwrap();
    let machine = Machine { log: Gate::new(device(80 * MIB)), ..machine };
    for _ in 0..2 {
        let next = machine.serve(Durability::Ack);
        assert_lost(&next, &machine.disk, 0);
        next.pause().unwrap();
    }
}

/// The operator gives up lost data of which an older record exists. It does not come back.
#[test]
fn older_records_do_not_replace_what_was_given_up() {
    let machine = Machine::new();
    let first = machine.serve(Durability::Flush);
    write(&first, 0, 1, true);
    write(&first, 0, 2, false);
    assert_eq!(lose(&first, first.named("v").unwrap().id, 0), 8);
    first.pause().unwrap();
    let next = machine.serve(Durability::Flush);
    assert_lost(&next, &machine.disk, 0);
    next.volumes().trust("v", |_| ()).unwrap();
    assert_eq!((lost_in(&next, 0), on_disk(&machine.disk, 0)), (0, 0));
    next.pause().unwrap();
    machine.lose_power();
    assert_eq!(on_disk(&machine.disk, 0), 0);
}

/// The records of a process with `durability=flush` do not become the newest ones because the next
/// process has `durability=ack`.
#[test]
fn older_records_do_not_replace_what_is_lost_when_the_durability_changes() {
    let machine = Machine::new();
    let first = machine.serve(Durability::Flush);
    write(&first, 0, 1, true);
    write(&first, 0, 2, false);
    assert_eq!(lose(&first, first.named("v").unwrap().id, 0), 8);
    first.pause().unwrap();
    assert_lost_until_written(&machine, Durability::Ack, 0);
}
