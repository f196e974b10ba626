//! Journals on two devices.
//!
//! A power loss is simulated by a copy of the disk and of both devices.

use crate::common::client::{Client, PATIENCE};
use crate::journal::{
    JOURNAL_BYTES, MIB, OnRecord, add, block, check, check_disk, copy, journal_settings, memory,
    power_loss, start, write_some,
};
use crate::server::{Server, read_backend};
use forebay_backend::layers::{ErrorLayer, ErrorRule, Gate, Kinds};
use forebay_backend::{AlignedBuffer, Backend, Blocking, FileError, MemoryBackend};
use forebay_runtime::{Engine, Journal, JournalError, JournalSettings, MissingDevice};
use forebay_types::{Fault, IoError};
use std::sync::Arc;

fn pair() -> [Arc<MemoryBackend>; 2] {
    [memory(JOURNAL_BYTES), memory(JOURNAL_BYTES)]
}

fn mirrored(a: Arc<dyn Backend>, b: Option<Arc<dyn Backend>>, on: &OnRecord) -> JournalSettings {
    let error = || FileError::NotFound { path: "/b".into() }.into();
    let missing = || MissingDevice { name: "/b".into(), error: error() };
    JournalSettings {
        mirror: Some(b.ok_or_else(missing)),
        members: Box::new(on.clone()),
        ..journal_settings(a)
    }
}

fn open(server: &Server, settings: JournalSettings) -> Arc<Journal> {
    server.runtime.volumes().protectors().open_journal(settings).unwrap()
}

fn refuse(server: &Server, settings: JournalSettings) -> JournalError {
    server.runtime.volumes().protectors().open_journal(settings).err().unwrap()
}

on_both_engines! {
    either_device_alone_restores_every_write,
    a_failed_device_is_stale_and_never_read_again,
    a_failure_of_both_devices_fails_the_journal,
    damage_on_one_device_is_copied_from_the_other,
    a_journal_gets_a_mirror_and_a_mirror_another_device,
}

fn either_device_alone_restores_every_write(engine: Engine) {
    let (disk, [a, b], on) = (memory(16 * MIB), pair(), OnRecord::default());
    let first = start(engine);
    let opened = open(&first, mirrored(Arc::clone(&a) as _, Some(Arc::clone(&b) as _), &on));
    add(&first, "v", Arc::clone(&disk) as _, &opened);
    let written = write_some(&first, "v", 0..200);
    assert_eq!(opened.status().degraded, None);
    let crashed = || {
        let ([disk], [a, b]) = power_loss([&*disk], [&*a, &*b]);
        (disk, a, b, OnRecord::default())
    };
    let both = on.now();
    assert_eq!(both.len(), 2);
    for left in 0..2 {
        let (disk, a, b, on) = crashed();
        let second = start(engine);
        let settings = || mirrored(if left == 0 { a.clone() } else { b.clone() }, None, &on);
        // Without a record, the other device may have newer data.
        assert!(matches!(refuse(&second, settings()), JournalError::MayBeStale { .. }));
        forebay_runtime::MemberRecord::record(&on, forebay_runtime::JournalId([0; 16]), &both)
            .unwrap();
        let opened = open(&second, settings());
        let degraded = opened.status().degraded.unwrap();
        assert_eq!(degraded, "/b cannot be opened: '/b' does not exist");
        add(&second, "v", disk, &opened);
        check(&second, "v", &written);
        second.stop();
        assert_eq!(on.now().len(), 1, "the missing device is stale from now on");
    }
    first.stop();
}

fn a_failed_device_is_stale_and_never_read_again(engine: Engine) {
    let (disk, [a, b], on) = (memory(16 * MIB), pair(), OnRecord::default());
    let gate = Gate::new(Arc::clone(&a) as _);
    let first = start(engine);
    let opened = open(&first, mirrored(Arc::clone(&gate) as _, Some(Arc::clone(&b) as _), &on));
    add(&first, "v", Arc::clone(&disk) as _, &opened);
    let mut written = write_some(&first, "v", 0..50);
    gate.close(Kinds::ALL);
    let path = first.socket.clone();
    let waiting = std::thread::spawn(move || {
        let mut client = Client::new(&path, "v");
        client.write(0, &block(500)).unwrap();
    });
    assert!(gate.wait_held(1, PATIENCE));
    let whole = on.now();
    gate.fail_all(IoError::Io);
    waiting.join().unwrap();
    gate.open();
    written.insert(0, block(500));
    let left = on.now();
    assert!(left.len() == 1 && whole.contains(&left[0]), "on record: {left:?} of {whole:?}");
    let status = opened.status();
    assert_eq!(status.failed, None);
    assert!(status.degraded.unwrap().ends_with("has failed: input/output error"));
    written.append(&mut write_some(&first, "v", 1000..1050));
    let ([disk_then], [a_then, b_then]) = power_loss([&*disk], [&*a, &*b]);
    first.stop();

    let second = start(engine);
    let stale = mirrored(Arc::clone(&a_then) as _, None, &on);
    assert!(matches!(refuse(&second, stale), JournalError::MayBeStale { .. }));
    let settings = mirrored(Arc::clone(&a_then) as _, Some(Arc::clone(&b_then) as _), &on);
    let opened = open(&second, settings);
    assert_eq!(opened.status().degraded, None, "it was written anew");
    assert_eq!(on.now().len(), 2);
    add(&second, "v", Arc::clone(&disk_then) as _, &opened);
    check(&second, "v", &written);
    let ([disk_later], [a_later]) = power_loss([&*disk_then], [&*a_then]);
    second.stop();

    // The device that had failed has everything now.
    let third = start(engine);
    let opened = open(&third, mirrored(a_later, None, &on));
    add(&third, "v", disk_later, &opened);
    check(&third, "v", &written);
    third.stop();
}

fn a_failure_of_both_devices_fails_the_journal(engine: Engine) {
    let (disk, [a, b], on) = (memory(16 * MIB), pair(), OnRecord::default());
    let gates = [a, b].map(|device| Gate::new(device as _));
    let [gate_a, gate_b] = gates.each_ref().map(|gate| Arc::clone(gate) as Arc<dyn Backend>);
    let server = start(engine);
    let opened = open(&server, mirrored(gate_a, Some(gate_b), &on));
    add(&server, "v", Arc::clone(&disk) as _, &opened);
    let mut written = write_some(&server, "v", 0..50);
    gates.iter().for_each(|gate| gate.close(Kinds::ALL));
    let path = server.socket.clone();
    let waiting = std::thread::spawn(move || {
        let mut client = Client::new(&path, "v");
        client.write(0, &block(500)).unwrap();
    });
    for gate in &gates {
        assert!(gate.wait_held(1, PATIENCE));
        gate.fail_all(IoError::Io);
        gate.open();
    }
    waiting.join().unwrap();
    written.insert(0, block(500));
    assert_eq!(opened.status().failed, Some(IoError::Io));
    check(&server, "v", &written);
    server.stop();
    check_disk(&disk, &written);
}

fn damage_on_one_device_is_copied_from_the_other(engine: Engine) {
    let (disk, [a, b], on) = (memory(16 * MIB), pair(), OnRecord::default());
    let first = start(engine);
    let opened = open(&first, mirrored(Arc::clone(&a) as _, Some(Arc::clone(&b) as _), &on));
    add(&first, "v", Arc::clone(&disk) as _, &opened);
    let written = write_some(&first, "v", 0..200);
    let ([disk_then], [a_then, b_then]) = power_loss([&*disk], [&*a, &*b]);
    first.stop();
    // Each device lacks data that the other one has.
    let corrupt = |device: &MemoryBackend, position: u64| {
        let bytes = AlignedBuffer::from(&[0xa5; 4096][..]);
        Blocking::new(device).write(position, &bytes, true).unwrap();
    };
    corrupt(&a_then, (128 << 10) + 40 * 8192);
    corrupt(&a_then, (128 << 10) + 70 * 8192 + 4096);
    corrupt(&b_then, (128 << 10) + 90 * 8192);
    let second = start(engine);
    let settings = mirrored(Arc::clone(&a_then) as _, Some(Arc::clone(&b_then) as _), &on);
    let opened = open(&second, settings);
    assert_eq!(opened.status().degraded, None);
    let log = |device: &MemoryBackend| read_backend(device, 128 << 10, 200 * 8192);
    assert!(log(&a_then) == log(&b_then) && log(&a_then) == log(&a), "both are whole again");
    add(&second, "v", disk_then, &opened);
    check(&second, "v", &written);
    second.stop();
}

fn a_journal_gets_a_mirror_and_a_mirror_another_device(engine: Engine) {
    let (disk, [a, b], on) = (memory(16 * MIB), pair(), OnRecord::default());
    let first = start(engine);
    let opened = open(&first, journal_settings(Arc::clone(&a) as _));
    add(&first, "v", Arc::clone(&disk) as _, &opened);
    let mut written = write_some(&first, "v", 0..100);
    let ([disk], [a]) = power_loss([&*disk], [&*a]);
    first.stop();

    let second = start(engine);
    let opened = open(&second, mirrored(Arc::clone(&a) as _, Some(Arc::clone(&b) as _), &on));
    assert_eq!(opened.status().degraded, None);
    add(&second, "v", Arc::clone(&disk) as _, &opened);
    written.append(&mut write_some(&second, "v", 1000..1100));
    let ([disk], [b]) = power_loss([&*disk], [&*b]);
    second.stop();

    // A new device replaces the old one.
    let third = start(engine);
    let new = memory(JOURNAL_BYTES);
    let opened = open(&third, mirrored(Arc::clone(&new) as _, Some(Arc::clone(&b) as _), &on));
    add(&third, "v", Arc::clone(&disk) as _, &opened);
    check(&third, "v", &written);
    let ([disk], [new]) = power_loss([&*disk], [&*new]);
    third.stop();

    let fourth = start(engine);
    let unwritable = ErrorRule { kinds: Kinds::WRITE, ..ErrorRule::default() };
    let broken = ErrorLayer::new(memory(JOURNAL_BYTES), unwritable);
    let opened = open(&fourth, mirrored(new, Some(Arc::new(broken)), &on));
    assert!(opened.status().degraded.unwrap().contains("cannot be written"));
    add(&fourth, "v", disk, &opened);
    check(&fourth, "v", &written);
    fourth.stop();
}

#[test]
fn devices_that_do_not_belong_together_are_refused() {
    let server = start(Engine::Epoll);
    let on = OnRecord::default();
    let [a, b] = pair();
    let [c, d] = pair();
    open(&server, mirrored(Arc::clone(&a) as _, Some(Arc::clone(&b) as _), &on));
    open(&server, mirrored(Arc::clone(&c) as _, Some(Arc::clone(&d) as _), &on));
    let error = refuse(&server, mirrored(copy(&*a), Some(copy(&*c)), &on)).explained();
    assert!(error.contains("has devices of different journals"), "{error}");
    let error = refuse(&server, mirrored(copy(&*a), Some(copy(&*a)), &on)).explained();
    assert!(error.contains("continued without the other"), "{error}");
    let data = memory(JOURNAL_BYTES);
    Blocking::new(&*data).write(4096, &AlignedBuffer::from(&[1; 4096][..]), true).unwrap();
    let error = refuse(&server, mirrored(copy(&*a), Some(Arc::clone(&data) as _), &on));
    assert!(matches!(error, JournalError::Foreign(_)), "{error}");
    assert_eq!(read_backend(&*data, 4096, 4096), [1; 4096]);
    server.stop();
}
