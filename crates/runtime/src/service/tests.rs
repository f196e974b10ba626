//! Additions and changes of volumes.

use super::*;
use crate::rig::{MIB, allocations, quiet_config, volume};
use crate::service::VolumeSettings;
use crate::{Runtime, memory_status};
use forebay_backend::MemoryBackend;
use forebay_frontend_nbd::NbdServer;
use forebay_types::{ByteRange, PinnedRanges};
use std::sync::mpsc;
use std::time::Duration;

fn start(memory_bytes: u64) -> Runtime {
    Runtime::start(quiet_config(memory_bytes), &NbdServer::new()).unwrap()
}

fn settings(name: &str) -> VolumeSettings {
    volume(name, Arc::new(MemoryBackend::new(MIB).unwrap()))
}

#[test]
fn a_worker_that_hangs_is_found_and_one_that_has_ended_is_none() {
    let runtime = start(64 * MIB);
    let second = Duration::from_secs(1);
    assert!(runtime.answers_within(20 * second));
    let ((hangs, begun), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
    let shared = Arc::clone(runtime.shared());
    let hanging = std::thread::spawn(move || {
        shared.run_on(0, move |_| {
            hangs.send(()).unwrap();
            let _ = released.recv();
        })
    });
    begun.recv().unwrap();
    assert!(!runtime.answers_within(second / 10));
    drop(release);
    assert!(hanging.join().unwrap().is_ok());
    assert!(runtime.answers_within(20 * second));
    let shared = Arc::clone(runtime.shared());
    runtime.stop(|_| {}).unwrap();
    assert!(shared.answers_within(20 * second));
}

/// The work is counted by the allocations of the calling thread.
#[test]
fn the_work_of_an_addition_does_not_grow_with_the_number_of_volumes() {
    let runtime = start(64 * MIB);
    let counts: Vec<u64> = (0..256)
        .map(|number| {
            let settings = settings(&format!("v{number}"));
            let before = allocations();
            runtime.volumes().add(settings).unwrap();
            allocations() - before
        })
        .collect();
    // Lists that double in size are allocated again a few times.
    let (few, many) = (counts[4..8].iter().max(), counts[248..].iter().max());
    assert!(many.unwrap() < &(few.unwrap() + 32), "{counts:?}");
    let before = allocations();
    let status = runtime.status_of("v200").unwrap();
    let one = allocations() - before;
    assert_eq!((status.volumes.len(), &*status.volumes[0].name), (1, "v200"));
    runtime.status().unwrap();
    assert!(allocations() - before - one > 20 * one, "{one}");
    runtime.stop(|_| {}).unwrap();
}

/// The work is counted by the allocations of the calling thread. A status of all volumes has some
/// for each of them.
#[test]
fn the_work_of_a_change_does_not_grow_with_the_number_of_volumes() {
    let runtime = start(64 * MIB);
    let change = |name: &str, frozen| {
        let before = allocations();
        let config = VolumeConfig { frozen, ..settings(name).config };
        runtime.volumes().change(name, config, false).unwrap();
        let status = runtime.status_of(name).unwrap();
        assert_eq!(status.memory, memory_status(&runtime));
        allocations() - before
    };
    runtime.volumes().add(settings("v0")).unwrap();
    change("v0", true);
    let alone = change("v0", false);
    (1..512).for_each(|number| {
        runtime.volumes().add(settings(&format!("v{number}"))).unwrap();
    });
    let beside_many = change("v500", true);
    assert!(beside_many < alone + 32, "{alone} {beside_many}");
    let before = allocations();
    assert_eq!(runtime.status_without_curves().unwrap().volumes.len(), 512);
    assert!(allocations() - before > 10 * beside_many);
    assert_eq!(runtime.volumes().writers(), [512, 0]);
    runtime.stop(|_| {}).unwrap();
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    let runtime = start(64 * MIB);
    runtime.volumes().add(settings("v")).unwrap();
    let volume = runtime.shared().volumes.named("v").unwrap();
    let is_unchanged = || {
        volume.info.read().description.is_empty()
            && volume.learn.is_on()
            && !volume.is_frozen()
            && volume.pins.get().ranges.is_empty()
    };
    let change = |range: ByteRange| {
        let mut pins = PinnedRanges::default();
        pins.add(range);
        VolumeConfig {
            description: Some("changed".into()),
            learn: false,
            frozen: true,
            pin: pins,
            ..VolumeConfig::default()
        }
    };
    let beyond = change(ByteRange::new(2 * MIB, 4096));
    assert!(matches!(runtime.volumes().change("v", beyond, true), Err(VolumeError::Pin(_))));
    assert!(is_unchanged());
    assert_eq!(runtime.status_of("v").unwrap().volumes[0].mode, Mode::WriteBack);
    // The workers have ended: the shards cannot be changed.
    runtime.pause().unwrap();
    let inside = change(ByteRange::new(0, 4096));
    assert!(matches!(runtime.volumes().change("v", inside, true), Err(VolumeError::Stopping)));
    assert!(is_unchanged());
}
