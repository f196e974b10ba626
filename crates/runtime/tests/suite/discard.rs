//! Volumes whose disks do not take their data are removed without it.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::journal::{JOURNAL_BYTES, add, memory, open};
use crate::server::{Server, read_backend};
use forebay_backend::layers::{Gate, Kinds};
use forebay_nbd::NbdCommand;
use forebay_runtime::{Discarded, Engine, RuntimeConfig, Timeouts, VolumeError};
use forebay_types::Mode;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

on_both_engines! {
    a_volume_whose_disk_hangs_is_given_up_and_prevents_no_stop,
    a_volume_that_was_given_up_is_removed_once_its_disk_answers,
    nothing_is_given_up_if_it_cannot_be_saved,
    nothing_is_given_up_if_the_disk_takes_it,
    nothing_is_given_up_because_a_journal_hangs,
}

const MIB: u64 = 1 << 20;

/// A server with a short timeout for disks.
fn server(engine: Engine) -> Server {
    let (disk, farewell) = (Duration::from_secs(1), Duration::from_millis(100));
    let timeouts = Timeouts { disk, farewell, handshake: PATIENCE, ..Timeouts::default() };
    Server::start_over(
        RuntimeConfig { workers: 2, journals: 1, ..Server::config(engine) },
        timeouts,
    )
}

fn a_volume_whose_disk_hangs_is_given_up_and_prevents_no_stop(engine: Engine) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("saved");
    let server = server(engine);
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteBack);
    let other = server.add_memory("other", MIB, Mode::WriteBack);
    let mut client = server.client("disk");
    assert_eq!(client.write(4096, &[5; 8192]), Ok(()));
    assert_eq!(server.client("other").write(0, &[6; 4096]), Ok(()));
    gate.close(Kinds::ALL);
    let given_up = server.runtime.volumes().discard("disk", Some(&file));
    assert!(matches!(given_up, Err(VolumeError::GivenUp { .. })), "{given_up:?}");
    assert!(file.exists());
    assert_eq!(server.runtime.status().unwrap().connections, 0, "its clients are disconnected");
    // Nothing else can remove it while the disk may use its memory.
    let removed = server.runtime.volumes().remove("disk", |_| {});
    assert!(matches!(removed, Err(VolumeError::GivenUp { .. })), "{removed:?}");
    server.runtime.stop(|_| {}).unwrap();
    assert_eq!(read_backend(&*other, 0, 4096), [6; 4096], "the other volume is flushed");
}

fn a_volume_that_was_given_up_is_removed_once_its_disk_answers(engine: Engine) {
    let server = server(engine);
    let (gate, disk) = server.add_gated("disk", 16 * MIB, Mode::WriteBack);
    let mut client = server.client("disk");
    assert_eq!(client.write(0, &[5; 4096]), Ok(()));
    gate.close(Kinds::ALL);
    drop(client);
    let given_up = server.runtime.volumes().discard("disk", None);
    assert!(matches!(given_up, Err(VolumeError::GivenUp { .. })), "{given_up:?}");
    gate.open();
    wait_until("it is removed", PATIENCE, || {
        server.runtime.volumes().remove("disk", |_| {}).is_ok()
    });
    server.add("disk", Arc::clone(&disk) as _, Mode::WriteBack);
    let content = read_backend(&*disk, 0, 4096);
    assert!(server.client("disk").read(0, 4096) == Ok(content), "nothing is left in the pool");
    server.stop();
}

fn nothing_is_given_up_if_it_cannot_be_saved(engine: Engine) {
    let directory = tempfile::tempdir().unwrap();
    let server = server(engine);
    let (gate, disk) = server.add_gated("disk", 16 * MIB, Mode::WriteBack);
    assert_eq!(server.client("disk").write(0, &[5; 4096]), Ok(()));
    gate.close(Kinds::ALL);
    for (path, kind) in [
        (directory.path().to_owned(), ErrorKind::AlreadyExists),
        (directory.path().join("none/saved"), ErrorKind::NotFound),
    ] {
        match server.runtime.volumes().discard("disk", Some(&path)) {
            Err(VolumeError::Copy { source, .. }) => assert_eq!(source.kind(), kind),
            other => panic!("{other:?}"),
        }
        assert_eq!(server.client("disk").read(0, 4096), Ok(vec![5; 4096]), "it is still served");
    }
    gate.open();
    wait_until("it is flushed", PATIENCE, || {
        server.runtime.volumes().flush("disk", |_| {}).is_ok()
    });
    assert_eq!(read_backend(&*disk, 0, 4096), [5; 4096]);
    server.stop();
}

fn nothing_is_given_up_if_the_disk_takes_it(engine: Engine) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("saved");
    let server = Server::start(engine);
    let disk = server.add_memory("disk", 16 * MIB, Mode::WriteBack);
    assert_eq!(server.client("disk").write(0, &[5; 4096]), Ok(()));
    let discarded = server.runtime.volumes().discard("disk", Some(&file)).unwrap();
    assert_eq!((discarded, file.exists()), (Discarded::default(), false));
    assert_eq!(read_backend(&*disk, 0, 4096), [5; 4096]);
    server.stop();
}

fn nothing_is_given_up_because_a_journal_hangs(engine: Engine) {
    let server = server(engine);
    let (disk, gate) = (memory(16 * MIB), Gate::new(memory(JOURNAL_BYTES)));
    let journal = open(&server, Arc::clone(&gate) as _);
    add(&server, "v", Arc::clone(&disk) as _, &journal);
    let mut client = server.client("v");
    gate.close(Kinds::ALL);
    client.send(NbdCommand::Write, 0, 4096, 4096, &[2; 4096]);
    assert!(gate.wait_held(1, PATIENCE));
    let refused = server.runtime.volumes().discard("v", None);
    assert!(matches!(refused, Err(VolumeError::Stalled(_))), "{refused:?}");
    gate.open();
    // Elsewhere: writes in flight together have no order.
    assert_eq!(server.client("v").write(8192, &[3; 4096]), Ok(()), "it is still served");
    wait_until("it is flushed", PATIENCE, || server.runtime.volumes().flush("v", |_| {}).is_ok());
    assert_eq!(read_backend(&*disk, 8192, 4096), [3; 4096]);
}
