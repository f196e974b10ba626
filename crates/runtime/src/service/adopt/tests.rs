//! A pool passed from one runtime to the next, together with a journal that lacks some records.

use super::*;
use crate::rig::common::client::PATIENCE;
use crate::rig::common::{GATHERS_ALL, before_lines_are_old, wait_until};
use crate::rig::{self, MIB, config, lose, open_journal, volume};
use crate::{Runtime, RuntimeConfig, Timeouts, abandon_in_pool};
use forebay_backend::{AlignedBuffer, Backend, Blocking, OpenOptions};
use forebay_frontend_nbd::NbdServer;
use forebay_types::{DiskGeometry, Fault, IoResult};
use std::os::fd::OwnedFd;
use std::sync::mpsc;

mod damage;

#[test]
fn every_combination_of_pool_and_journal_is_decided() {
    use RecoveryPlan::{Fresh, Keep, Record, Restore};
    let in_pool =
        [None, Some(Progress::Restoring), Some(Progress::Recording), Some(Progress::Whole)];
    let without = in_pool.map(|progress| plan_recovery(false, progress));
    assert_eq!(without, [Fresh, Keep, Keep, Keep]);
    let with = in_pool.map(|progress| plan_recovery(true, progress));
    assert_eq!(with, [Restore, Restore, Record, Record]);
}

/// A file, which is deleted once it is open.
fn device(bytes: u64) -> Arc<dyn Backend> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    forebay_backend::open(path.to_str().unwrap(), &OpenOptions::default()).unwrap()
}

/// A process over a pool.
fn start(pool: &OwnedFd, config: RuntimeConfig) -> Runtime {
    let kept = Some(pool.try_clone().unwrap());
    // On a loaded machine, a dirty line must not be destaged between two steps of a test.
    let timeouts = Timeouts { dirty_age: Duration::from_secs(3600), ..Timeouts::default() };
    Runtime::start_over(config, timeouts, kept, &NbdServer::new()).unwrap()
}

/// A process that serves the volume "v" with a journal.
fn process(pool: &OwnedFd, disk: &Arc<dyn Backend>, log: &Arc<dyn Backend>) -> Runtime {
    let runtime = start(pool, RuntimeConfig { journals: 1, ..config(64 * MIB) });
    let journal = Some(open_journal(&runtime, Arc::clone(log)));
    let gather_below = GATHERS_ALL;
    let settings = VolumeSettings { gather_below, journal, ..volume("v", Arc::clone(disk)) };
    runtime.volumes().add(settings).unwrap();
    runtime
}

/// A process that has only the disk and the journal serves the volume and flushes it.
fn lose_power(disk: &Arc<dyn Backend>, log: &Arc<dyn Backend>) {
    let runtime = process(&crate::new_pool_file().unwrap(), disk, log);
    runtime.volumes().flush("v", |_| ()).unwrap();
    runtime.stop(|_| ()).unwrap();
}

/// Writes a line, which is recorded in the journal if `records`.
fn write(runtime: &Runtime, line: u64, byte: u8, records: bool) {
    rig::write(runtime, runtime.named("v").unwrap().id, line, byte, records);
}

/// Destages all dirty data. The journal is not notified.
fn destage(runtime: &Runtime) {
    let id = runtime.named("v").unwrap().id;
    let (sender, result) = mpsc::channel();
    let on_done = Box::new(move |result: IoResult| sender.send(result).unwrap());
    runtime.run_on(0, move |tasks| tasks.checkpoint(id, true, on_done)).unwrap();
    result.recv().unwrap().unwrap();
}

fn on_disk(disk: &Arc<dyn Backend>, line: u64) -> u8 {
    let mut bytes = AlignedBuffer::new(4096);
    Blocking::new(&**disk).read(line * LINE_BYTES, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

/// Another program writes a line.
fn overwrite(disk: &Arc<dyn Backend>, line: u64, byte: u8) {
    let bytes = AlignedBuffer::from(&[byte; 4096][..]);
    Blocking::new(&**disk).write(line * LINE_BYTES, &bytes, true).unwrap();
}

/// A second process adopts a pool that holds newer data than the journal. Then power is lost, and a
/// third process has only the disk and the journal.
fn adopt_then_lose_power(progress: Progress) {
    before_lines_are_old(|| adopt_then_lose_power_once(progress));
}

fn adopt_then_lose_power_once(progress: Progress) {
    let (pool, disk, log) = (crate::new_pool_file().unwrap(), device(4 * MIB), device(40 * MIB));
    let first = process(&pool, &disk, &log);
    write(&first, 0, 1, true);
    write(&first, 0, 2, false);
    write(&first, 5, 3, false);
    first.shared().pool.change_volumes(|volumes| volumes[0].progress = progress);
    first.pause().unwrap();
    assert_eq!((on_disk(&disk, 0), on_disk(&disk, 5)), (0, 0));
    assert_eq!(crate::dirty_bytes_in(std::os::fd::AsFd::as_fd(&pool)), 2 * LINE_BYTES);
    let second = process(&pool, &disk, &log);
    assert_eq!(second.unserved(), []);
    assert_eq!(PoolVolumes::of(second.shared()).in_pool("v").unwrap().progress, Progress::Whole);
    second.pause().unwrap();
    lose_power(&disk, &log);
    assert_eq!((on_disk(&disk, 0), on_disk(&disk, 5)), (2, 3));
}

/// A process died with the newest record of a line in its memory, after it had destaged the line.
/// The journal has an older record.
#[test]
fn an_older_record_does_not_undo_data_destaged_before_its_own_record_was_durable() {
    before_lines_are_old(destaged_before_recorded);
}

fn destaged_before_recorded() {
    let (pool, disk, log) = (crate::new_pool_file().unwrap(), device(4 * MIB), device(40 * MIB));
    let first = process(&pool, &disk, &log);
    write(&first, 0, 1, true);
    write(&first, 5, 1, true);
    write(&first, 0, 2, false);
    destage(&first);
    write(&first, 5, 2, false);
    assert_eq!((on_disk(&disk, 0), on_disk(&disk, 5)), (2, 1));
    first.pause().unwrap();
    let second = process(&pool, &disk, &log);
    second.pause().unwrap();
    lose_power(&disk, &log);
    assert_eq!((on_disk(&disk, 0), on_disk(&disk, 5)), (2, 2));
}

/// As above, but another line of the volume is lost, so that the old records are still needed.
#[test]
fn an_older_record_kept_for_lost_sectors_does_not_undo_destaged_data() {
    before_lines_are_old(lost_while_older_records_stay);
}

fn lost_while_older_records_stay() {
    let (pool, disk, log) = (crate::new_pool_file().unwrap(), device(4 * MIB), device(40 * MIB));
    let first = process(&pool, &disk, &log);
    write(&first, 0, 1, true);
    write(&first, 0, 2, false);
    destage(&first);
    write(&first, 5, 3, true);
    write(&first, 9, 4, false);
    assert_eq!(lose(&first, first.named("v").unwrap().id, 9), 8);
    assert_eq!(on_disk(&disk, 0), 2);
    first.pause().unwrap();
    let second = process(&pool, &disk, &log);
    second.pause().unwrap();
    lose_power(&disk, &log);
    assert_eq!((on_disk(&disk, 0), on_disk(&disk, 5)), (2, 3));
}

/// A line was lost before the pool was adopted, so the new process has counted no loss.
#[test]
fn data_lost_in_an_adopted_pool_is_restored_from_the_journal() {
    before_lines_are_old(|| {
        let (disk, log) = (device(4 * MIB), device(40 * MIB));
        let pool = crate::new_pool_file().unwrap();
        let first = process(&pool, &disk, &log);
        write(&first, 0, 1, true);
        lose(&first, first.named("v").unwrap().id, 0);
        first.pause().unwrap();
        let second = process(&pool, &disk, &log);
        let id = second.named("v").unwrap().id;
        wait_until("the line is restored", PATIENCE, || !second.shared().shards.has_lost(id));
        second.volumes().flush("v", |_| ()).unwrap();
        assert_eq!(on_disk(&disk, 0), 1);
        second.stop(|_| ()).unwrap();
    });
}

/// The disk settings of a volume reach its shards.
#[test]
fn the_stripe_size_and_the_gather_threshold_of_the_settings_are_applied() {
    let disk = device(4 * MIB);
    let pool = crate::new_pool_file().unwrap();
    let runtime = bare_process(&pool, 64 * MIB);
    let geometry = DiskGeometry { stripe_bytes: 28 << 10, ..DiskGeometry::default() };
    let gather_below = Some(16 << 10);
    let settings = VolumeSettings { geometry, gather_below, ..bare(&disk, false) };
    runtime.volumes().add(settings).unwrap();
    // One line less than two stripes.
    (0..13).for_each(|line| write(&runtime, line, 1, false));
    runtime.volumes().flush("v", |_| ()).unwrap();
    let counters = runtime.status().unwrap().volumes.remove(0).engine;
    assert_eq!((counters.destaged_stripes, counters.destage_writes), (1, 2), "{counters:?}");
    assert_eq!(counters.destaged_bytes, 13 * LINE_BYTES);
    write(&runtime, 0, 2, false);
    let id = runtime.named("v").unwrap().id;
    wait_until("a tick sets the threshold of the shard", PATIENCE, || {
        runtime.shared().shard(0).volume(id).gather_below() == 16 << 10
    });
    runtime.stop(|_| ()).unwrap();
}

/// A shard may destage adopted lines as soon as it has their volume, so workers need it before.
#[test]
fn workers_know_a_volume_before_any_shard_does() {
    let disk = device(4 * MIB);
    for _ in 0..30 {
        let runtime = bare_process(&crate::new_pool_file().unwrap(), 64 * MIB);
        let shared = runtime.shared();
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                while !shared.shard(0).has_volume(VolumeId(0)) {
                    std::hint::spin_loop();
                }
                shared.volume(VolumeId(0)).is_some()
            });
            runtime.volumes().add(bare(&disk, false)).unwrap();
            assert!(watch.join().unwrap(), "a shard has the volume before the workers");
        });
        runtime.stop(|_| ()).unwrap();
    }
}

/// After a pause, no thread accesses the pool: truncating its file does not crash the process.
#[test]
fn no_thread_accesses_the_pool_after_a_pause() {
    let pool = crate::new_pool_file().unwrap();
    for _ in 0..5 {
        let runtime = bare_process(&pool, 256 * MIB);
        runtime.pause().unwrap();
        rustix::fs::ftruncate(&pool, 0).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Dirty lines of an adopted pool are found although the stripe size was changed in between.
#[test]
fn adopted_lines_are_found_by_the_stripes_of_the_previous_process() {
    let disk = device(64 * MIB);
    let pool = crate::new_pool_file().unwrap();
    let serve = |stripe_bytes| {
        let runtime = bare_process(&pool, 256 * MIB);
        let geometry = DiskGeometry { stripe_bytes, ..DiskGeometry::default() };
        runtime.volumes().add(VolumeSettings { geometry, ..bare(&disk, false) }).unwrap();
        runtime
    };
    let first = serve(28 << 10);
    assert!(first.shared().shards.len() > 1);
    (0..50).for_each(|at| write(&first, at * 300, 1, false));
    first.pause().unwrap();
    let second = serve(600 << 10);
    second.volumes().flush("v", |_| ()).unwrap();
    assert!((0..50).all(|at| on_disk(&disk, at * 300) == 1));
    second.stop(|_| ()).unwrap();
    let third = serve(600 << 10);
    let id = third.named("v").unwrap().id;
    assert_eq!(third.shared().stripes(id).width(), 600 << 10, "a closed pool is not adopted");
    third.stop(|_| ()).unwrap();
}

#[test]
fn adopted_data_without_a_record_is_recorded_before_the_volume_is_served() {
    adopt_then_lose_power(Progress::Whole);
}

#[test]
fn an_interrupted_recording_begins_anew() {
    adopt_then_lose_power(Progress::Recording);
}

#[test]
fn an_open_pool_of_the_same_size_is_adopted_and_a_damaged_one_refused() {
    let pool = crate::new_pool_file().unwrap();
    let open = |bytes: u64| Pool::open(bytes, 1, Some(pool.try_clone().unwrap()));
    let first = open(8 * MIB).unwrap();
    assert!(!first.is_adopted());
    drop(first);
    let second = open(4 * MIB).unwrap();
    assert_eq!((second.is_adopted(), second.data_bytes()), (false, 4 * MIB), "it was empty");
    drop(second);
    let third = open(4 * MIB).unwrap();
    assert!(third.is_adopted());
    third.close();
    drop(third);
    assert!(!open(4 * MIB).unwrap().is_adopted(), "a closed pool is not adopted");
    rustix::fs::ftruncate(&pool, 3 * MIB).unwrap();
    let failed = open(4 * MIB).unwrap_err();
    assert!(matches!(failed, PoolError::Damaged(_)), "{failed}");
    rustix::io::pwrite(&pool, &[0xff; 1 << 20], 0).unwrap();
    rustix::io::pwrite(&pool, &[0xff; 1 << 20], MIB).unwrap();
    let failed = open(4 * MIB).unwrap_err();
    assert!(matches!(failed, PoolError::Foreign(_)), "{failed}");
    rustix::io::pwrite(&pool, b"FBAYPOOL\x63", 0).unwrap();
    let failed = open(4 * MIB).unwrap_err();
    assert!(matches!(failed, PoolError::Version), "{failed}");
}

/// A process without a journal.
fn bare_process(pool: &OwnedFd, memory_bytes: u64) -> Runtime {
    start(pool, config(memory_bytes))
}

/// The volume "v" without a journal.
fn bare(disk: &Arc<dyn Backend>, accept_disk: bool) -> VolumeSettings {
    VolumeSettings { accept_disk, ..volume("v", Arc::clone(disk)) }
}

/// Flushes "v". Its lines stay in the pool, clean and sealed.
fn clean(runtime: &Runtime) {
    runtime.volumes().flush("v", |_| ()).unwrap();
    wait_until("the patrol has sealed all lines", PATIENCE, || {
        runtime.status().unwrap().memory.patrol.unsealed_bytes == 0
    });
}

fn resident(runtime: &Runtime, line: u64) -> bool {
    let id = runtime.named("v").unwrap().id;
    let key = LineKey::new(id, line);
    let holds = |shard| runtime.shared().shard(shard).slots().find_valid(key, 0xff).is_some();
    (0..runtime.shared().shards.len()).any(holds)
}

#[test]
fn clean_lines_of_a_changed_disk_are_dropped() {
    for changed in [false, true] {
        let disk = device(4 * MIB);
        let pool = crate::new_pool_file().unwrap();
        let first = bare_process(&pool, 64 * MIB);
        first.volumes().add(bare(&disk, false)).unwrap();
        (0..10).for_each(|line| write(&first, line, line as u8 + 1, false));
        clean(&first);
        first.pause().unwrap();
        if changed {
            overwrite(&disk, 3, 77);
        }
        let second = bare_process(&pool, 64 * MIB);
        second.volumes().add(bare(&disk, false)).unwrap();
        assert_eq!((0..10).any(|line| resident(&second, line)), !changed);
        second.stop(|_| ()).unwrap();
        assert_eq!(on_disk(&disk, 3), if changed { 77 } else { 4 });
    }
}

#[test]
fn dirty_lines_of_a_changed_disk_are_kept_until_the_operator_decides() {
    let disk = device(4 * MIB);
    let pool = crate::new_pool_file().unwrap();
    let first = bare_process(&pool, 64 * MIB);
    first.volumes().add(bare(&disk, false)).unwrap();
    (0..10).for_each(|line| write(&first, line, line as u8 + 1, false));
    clean(&first);
    write(&first, 20, 99, false);
    first.pause().unwrap();
    overwrite(&disk, 3, 77);
    let second = bare_process(&pool, 64 * MIB);
    let refused = second.volumes().add(bare(&disk, false)).unwrap_err();
    for part in
        ["4.0 KiB of dirty data of volume 'v'", "samples differ", "accept the changed disk of 'v'"]
    {
        assert!(refused.explained().contains(part), "{refused}");
    }
    assert!(matches!(refused, VolumeError::ChangedDisk { dirty_bytes: 4096, .. }));
    assert_eq!((on_disk(&disk, 20), second.unserved()), (0, vec![("v".to_owned(), 4096)]));
    second.pause().unwrap();

    // With its old content, the disk is accepted.
    overwrite(&disk, 3, 4);
    let third = bare_process(&pool, 64 * MIB);
    third.volumes().add(bare(&disk, false)).unwrap();
    assert!(resident(&third, 3) && resident(&third, 20));
    third.pause().unwrap();

    // Changed again, it is accepted by the operator, and the dirty line is written to it.
    overwrite(&disk, 3, 78);
    let fourth = bare_process(&pool, 64 * MIB);
    fourth.volumes().add(bare(&disk, true)).unwrap();
    assert!(!resident(&fourth, 3) && resident(&fourth, 20));
    fourth.stop(|_| ()).unwrap();
    assert_eq!((on_disk(&disk, 3), on_disk(&disk, 20)), (78, 99));
}

#[test]
fn what_a_former_owner_has_in_its_pool_is_void() {
    let owned = |disk: &Arc<dyn Backend>, has_other_owner| VolumeSettings {
        has_other_owner,
        ..bare(disk, false)
    };
    let (disk, pool) = (device(4 * MIB), crate::new_pool_file().unwrap());
    let first = bare_process(&pool, 64 * MIB);
    first.volumes().add(bare(&disk, false)).unwrap();
    (0..10).for_each(|line| write(&first, line, line as u8 + 1, false));
    clean(&first);
    first.pause().unwrap();
    // Clean lines: nothing on the disk shows that somebody was there.
    let second = bare_process(&pool, 64 * MIB);
    second.volumes().add(owned(&disk, true)).unwrap();
    assert!((0..10).all(|line| !resident(&second, line)));
    write(&second, 20, 99, false);
    second.pause().unwrap();
    // Dirty ones: the operator decides, unless the journal has everything.
    let third = bare_process(&pool, 64 * MIB);
    let refused = third.volumes().add(owned(&disk, true)).unwrap_err();
    assert!(refused.to_string().contains("another server has owned it since"), "{refused}");
    assert_eq!(abandon_in_pool(third.volumes(), "v"), LINE_BYTES);
    assert_eq!(third.unserved(), []);
    let fails = |_| Err(std::io::Error::from(std::io::ErrorKind::StorageFull));
    let unrecorded =
        VolumeSettings { on_recovered: Some(Box::new(move || fails(()))), ..owned(&disk, false) };
    let refused = third.volumes().add(unrecorded).unwrap_err();
    assert!(refused.to_string().contains("cannot record that this host owns"), "{refused}");
    third.volumes().add(owned(&disk, false)).unwrap();
    assert_eq!(abandon_in_pool(third.volumes(), "v"), 0, "a served volume keeps its data");
    third.stop(|_| ()).unwrap();
    assert_eq!((on_disk(&disk, 3), on_disk(&disk, 20)), (4, 0));
}
