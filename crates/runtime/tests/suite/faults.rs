//! Disks that fail, hang, shrink or fill up: which requests fail, and which data is kept.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::journal::memory;
use crate::server::{Server, read_backend, settings};
use forebay_backend::layers::{ErrorLayer, ErrorRule, Kinds};
use forebay_backend::{Backend, MemoryBackend, OpenOptions, open};
use forebay_nbd::NbdCommand;
use forebay_runtime::{Engine, VolumeError};
use forebay_types::{ByteRange, IoError, Mode};
use std::sync::Arc;

on_both_engines! {
    a_bad_sector_fails_its_reader_only,
    a_failed_write_through_fails_only_its_writer,
    write_back_keeps_data_that_a_failing_disk_does_not_take,
    a_failed_flush_of_the_disk_is_reported,
    a_joined_io_that_fails_is_split_and_fails_one_member,
    a_write_beside_a_bad_sector_of_a_dirty_neighbour_succeeds,
    after_a_failed_flush_no_flush_succeeds_until_the_disk_is_trusted,
    a_hanging_disk_does_not_disturb_another_volume,
    a_volume_that_cannot_be_flushed_is_not_removed,
    a_server_that_cannot_flush_does_not_stop,
    a_file_that_shrinks_fails_cleanly,
    a_full_disk_is_reported_as_no_space,
}

const MIB: u64 = 1 << 20;

fn failing(disk: &Arc<MemoryBackend>, kinds: Kinds, range: Option<ByteRange>) -> Arc<ErrorLayer> {
    let rule = ErrorRule { kinds, range, ..ErrorRule::default() };
    Arc::new(ErrorLayer::new(Arc::clone(disk) as _, rule))
}

fn a_bad_sector_fails_its_reader_only(engine: Engine) {
    for mode in Mode::ALL {
        let server = Server::start(engine);
        let disk = failing(&memory(16 * MIB), Kinds::READ, Some(ByteRange::new(40960, 512)));
        server.add("disk", disk, mode);
        let mut clients = [server.client("disk"), server.client("disk")];
        // All requests in one turn, so that the server coalesces neighbours into one I/O.
        let mut bytes = Vec::new();
        let cookies: Vec<u64> = (0..20)
            .map(|line| clients[0].put(NbdCommand::Read, 0, line * 4096, 4096, &mut bytes))
            .collect();
        std::io::Write::write_all(&mut clients[0].stream, &bytes).unwrap();
        for (line, cookie) in cookies.into_iter().enumerate() {
            let wanted = if line == 10 { Err(IoError::Io) } else { Ok(()) };
            assert_eq!(clients[0].wait(cookie).result, wanted, "line {line}, {mode}");
        }
        assert_eq!(clients[1].read(0, 40960), Ok(vec![0; 40960]), "{mode}");
        assert_eq!(clients[1].read(0, MIB), Err(IoError::Io), "{mode}");
        assert_eq!(clients[1].read(41472, 3584), Ok(vec![0; 3584]), "the rest of the line, {mode}");
        assert_eq!(clients[0].read(45056, 4096), Ok(vec![0; 4096]), "{mode}");
    }
}

fn a_failed_write_through_fails_only_its_writer(engine: Engine) {
    for mode in [Mode::WriteThrough, Mode::Bypass] {
        let server = Server::start(engine);
        let disk = memory(16 * MIB);
        let bad = failing(&disk, Kinds::WRITE, Some(ByteRange::new(40960, 4096)));
        server.add("disk", Arc::clone(&bad) as _, mode);
        let mut clients = [server.client("disk"), server.client("disk")];
        assert_eq!(clients[0].read(40960, 4096), Ok(vec![0; 4096]));
        let bytes: Vec<(u64, u64)> = (0..20)
            .map(|line| {
                (line, clients[0].send(NbdCommand::Write, 0, line * 4096, 4096, &[9; 4096]))
            })
            .collect();
        for (line, cookie) in bytes {
            let wanted = if line == 10 { Err(IoError::Io) } else { Ok(()) };
            assert_eq!(clients[0].wait(cookie).result, wanted, "line {line}, {mode}");
        }
        assert_eq!(clients[1].read(0, 40960), Ok(vec![9; 40960]), "{mode}");
        // The data of a failed write is neither in the pool nor on the disk.
        assert_eq!(clients[1].read(40960, 4096), Ok(vec![0; 4096]), "{mode}");
        assert_eq!(read_backend(&*disk, 40960, 4096), [0; 4096]);
        bad.set_enabled(false);
        assert_eq!(clients[0].write(40960, &[9; 4096]), Ok(()));
        assert_eq!(clients[1].read(40960, 4096), Ok(vec![9; 4096]), "{mode}");
    }
}

fn write_back_keeps_data_that_a_failing_disk_does_not_take(engine: Engine) {
    let server = Server::start(engine);
    let disk = memory(16 * MIB);
    let bad = failing(&disk, Kinds::WRITE, None);
    server.add("disk", Arc::clone(&bad) as _, Mode::WriteBack);
    server.add_memory("other", 16 * MIB, Mode::WriteBack);
    let (mut client, mut other) = (server.client("disk"), server.client("other"));
    assert_eq!(client.write(512, &[3; 9 * 4096]), Ok(()));
    assert_eq!(client.flush(), Err(IoError::Io));
    assert_eq!(client.flush(), Err(IoError::Io), "the error was forgotten");
    assert_eq!(client.read(512, 9 * 4096), Ok(vec![3; 9 * 4096]), "the data was lost");
    assert_eq!(client.write_fua(0, &[4; 512]), Err(IoError::Io));
    assert_eq!(other.write(0, &[5; 4096]), Ok(()));
    assert_eq!(other.flush(), Ok(()), "the other volume is not affected");
    assert!(server.status("disk").dirty_bytes > 0);
    bad.set_enabled(false);
    wait_until("the disk has healed", PATIENCE, || client.flush() == Ok(()));
    assert_eq!(read_backend(&*disk, 512, 9 * 4096), [3; 9 * 4096]);
    assert_eq!(server.status("disk").dirty_bytes, 0);
}

fn a_failed_flush_of_the_disk_is_reported(engine: Engine) {
    for mode in Mode::ALL {
        let server = Server::start(engine);
        let bad = failing(&memory(MIB), Kinds::FLUSH, None);
        server.add("disk", Arc::clone(&bad) as _, mode);
        let mut clients = [server.client("disk"), server.client("disk")];
        assert_eq!(clients[0].write(0, &[1; 4096]), Ok(()));
        assert_eq!(clients[1].flush(), Err(IoError::Io), "{mode}");
        assert_eq!(clients[0].flush(), Err(IoError::Io), "{mode}: the failure is latched");
    }
}

fn a_joined_io_that_fails_is_split_and_fails_one_member(engine: Engine) {
    let server = Server::start_with(engine, 64 * MIB, 1);
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteThrough);
    let mut client = server.client("disk");
    gate.close(Kinds::READ);
    let mut bytes = Vec::new();
    let cookies: Vec<u64> =
        (0..8).map(|line| client.put(NbdCommand::Read, 0, line * 4096, 4096, &mut bytes)).collect();
    std::io::Write::write_all(&mut client.stream, &bytes).unwrap();
    assert!(gate.wait_held(1, PATIENCE));
    let ranges = || gate.held().iter().map(|io| io.range).collect::<Vec<_>>();
    assert_eq!(ranges(), [ByteRange::new(0, 8 * 4096)], "one I/O for all of them");
    assert!(gate.fail(0, IoError::Io));
    assert!(gate.wait_held(8, PATIENCE), "then one for each");
    let bad = ByteRange::new(5 * 4096, 4096);
    assert_eq!(ranges().iter().filter(|&&range| range == bad).count(), 1);
    while let Some(at) = ranges().iter().position(|&range| range != bad) {
        assert!(gate.release(at));
    }
    assert!(gate.fail(0, IoError::Io));
    // The reader of the bad line retries alone before it fails.
    assert!(gate.wait_held(1, PATIENCE));
    assert_eq!(ranges(), [bad]);
    assert!(gate.fail(0, IoError::Io));
    for (line, cookie) in cookies.into_iter().enumerate() {
        let wanted = if line == 5 { Err(IoError::Io) } else { Ok(()) };
        assert_eq!(client.wait(cookie).result, wanted, "line {line}");
    }
}

fn a_write_beside_a_bad_sector_of_a_dirty_neighbour_succeeds(engine: Engine) {
    let server = Server::start(engine);
    let disk = memory(16 * MIB);
    // The last sector of line 1 and all of line 3 are bad.
    let bad = failing(&disk, Kinds::WRITE, Some(ByteRange::new(8192 - 512, 512)));
    let (kinds, range) = (Kinds::WRITE, Some(ByteRange::new(3 * 4096, 4096)));
    let worse = ErrorLayer::new(bad, ErrorRule { kinds, range, ..ErrorRule::default() });
    server.add("disk", Arc::new(worse), Mode::WriteBack);
    let mut client = server.client("disk");
    assert_eq!(client.write(0, &[1; 4 * 4096]), Ok(()));
    // FUA writes next to the bad sectors.
    assert_eq!(client.write_fua(8192, &[2; 4096]), Ok(()));
    assert_eq!(client.write_fua(4096, &[3; 512]), Ok(()), "a good sector of the same line");
    assert_eq!(client.write_fua(8192 - 512, &[4; 512]), Err(IoError::Io), "the bad sector itself");
    assert_eq!(read_backend(&*disk, 8192, 4096), [2; 4096]);
    assert_eq!(read_backend(&*disk, 4096, 512), [3; 512]);
    let mut wanted = vec![1; 4 * 4096];
    wanted[8192..12288].fill(2);
    wanted[4096..4608].fill(3);
    assert_eq!(client.read(0, 4 * 4096), Ok(wanted), "acknowledged data is kept");
    assert!(server.status("disk").dirty_bytes > 0);
}

fn after_a_failed_flush_no_flush_succeeds_until_the_disk_is_trusted(engine: Engine) {
    for mode in Mode::ALL {
        let server = Server::start(engine);
        let bad = failing(&memory(MIB), Kinds::FLUSH, None);
        server.add("disk", Arc::clone(&bad) as _, mode);
        server.add_memory("other", MIB, mode);
        let mut client = server.client("disk");
        assert_eq!(client.write(0, &[1; 4096]), Ok(()));
        assert_eq!(client.flush(), Err(IoError::Io), "{mode}");
        // After a failed flush, a successful one proves nothing.
        bad.set_enabled(false);
        assert_eq!(client.flush(), Err(IoError::Io), "{mode}: the failure is latched");
        assert_eq!(client.write_fua(4096, &[2; 4096]), Err(IoError::Io), "{mode}: FUA fails, too");
        assert_eq!(
            server.client("disk").flush(),
            Err(IoError::Io),
            "{mode}: it fails for other clients, too"
        );
        assert_eq!(client.write(8192, &[3; 4096]), Ok(()), "{mode}: other writes succeed");
        assert_eq!(client.read(8192, 4096), Ok(vec![3; 4096]), "{mode}");
        assert_eq!(
            server.client("other").flush(),
            Ok(()),
            "{mode}: the other volume is not affected"
        );
        assert_eq!(server.status("disk").flush_failure, Some(IoError::Io), "{mode}");
        for refused in
            [server.runtime.volumes().remove("disk", |_| {}), server.runtime.stop(|_| {})]
        {
            let named =
                matches!(&refused, Err(VolumeError::FlushFailed { name, .. }) if name == "disk");
            assert!(named, "{mode}: {refused:?}");
        }
        bad.set_enabled(true);
        let trusted = server.runtime.volumes().trust("disk", |_| {});
        assert!(matches!(trusted, Err(VolumeError::FlushFailed { .. })), "{mode}: {trusted:?}");
        bad.set_enabled(false);
        server.runtime.volumes().trust("disk", |_| {}).unwrap();
        assert_eq!(server.status("disk").flush_failure, None, "{mode}");
        assert_eq!(client.flush(), Ok(()), "{mode}");
        assert_eq!(client.write_fua(4096, &[2; 4096]), Ok(()), "{mode}");
        server.runtime.volumes().remove("disk", |_| {}).unwrap();
    }
}

fn a_hanging_disk_does_not_disturb_another_volume(engine: Engine) {
    // One worker, which both volumes share.
    let server = Server::start_with(engine, 64 * MIB, 1);
    let (gate, _) = server.add_gated("hangs", 16 * MIB, Mode::WriteBack);
    server.add_memory("other", 16 * MIB, Mode::WriteThrough);
    let (mut stuck, mut client) = (server.client("hangs"), server.client("other"));
    gate.close(Kinds::ALL);
    assert_eq!(stuck.write(MIB, &[1; 65536]), Ok(()), "write-back needs no disk");
    let mut cookies: Vec<u64> =
        (0..16).map(|n| stuck.send(NbdCommand::Read, 0, n * 8192, 4096, &[])).collect();
    cookies.push(stuck.send(NbdCommand::Flush, 0, 0, 0, &[]));
    assert!(gate.wait_held(2, PATIENCE));
    for n in 0..500 {
        assert_eq!(client.write(n * 4096, &[n as u8; 4096]), Ok(()));
        assert_eq!(client.read(n * 4096, 4096), Ok(vec![n as u8; 4096]));
    }
    assert_eq!(client.flush(), Ok(()));
    assert_eq!(client.block_status(0, MIB).map(|extents| extents.len()), Ok(1));
    // Volumes come and go meanwhile.
    server.add_memory("third", MIB, Mode::WriteBack);
    let mut third = server.client("third");
    assert_eq!(third.write(0, &[1; 512]), Ok(()));
    drop(third);
    server.runtime.volumes().remove("third", |_| {}).unwrap();
    assert!(!stuck.has_answer(cookies[0]));
    gate.open();
    for cookie in cookies {
        assert_eq!(stuck.wait(cookie).result, Ok(()));
    }
}

fn a_volume_that_cannot_be_flushed_is_not_removed(engine: Engine) {
    let server = Server::start(engine);
    let disk = memory(16 * MIB);
    let bad = failing(&disk, Kinds::WRITE, None);
    server.add("disk", Arc::clone(&bad) as _, Mode::WriteBack);
    let mut client = server.client("disk");
    assert_eq!(client.write(0, &[1; 3 * 4096]), Ok(()));
    match server.runtime.volumes().remove("disk", |_| {}) {
        Err(VolumeError::Dirty { name, dirty_bytes, error }) => {
            assert_eq!((name.as_str(), dirty_bytes, error), ("disk", 3 * 4096, IoError::Io));
        }
        result => panic!("{result:?}"),
    }
    assert_eq!(client.read(0, 3 * 4096), Ok(vec![1; 3 * 4096]), "it is still served");
    assert_eq!(client.write(4096, &[2; 4096]), Ok(()));
    bad.set_enabled(false);
    server.runtime.volumes().remove("disk", |_| {}).unwrap();
    assert_eq!(read_backend(&*disk, 4096, 4096), [2; 4096]);
    assert!(matches!(
        server.runtime.volumes().remove("disk", |_| {}),
        Err(VolumeError::Unknown(name)) if name == "disk"
    ));
}

fn a_server_that_cannot_flush_does_not_stop(engine: Engine) {
    let server = Server::start(engine);
    let disk = memory(16 * MIB);
    let bad = failing(&disk, Kinds::WRITE, None);
    server.add("disk", Arc::clone(&bad) as _, Mode::WriteBack);
    let mut client = server.client("disk");
    assert_eq!(client.write(0, &[1; 4096]), Ok(()));
    let stopped = server.runtime.stop(|_| {});
    assert!(matches!(stopped, Err(VolumeError::Dirty { dirty_bytes: 4096, .. })), "{stopped:?}");
    assert_eq!(server.status("disk").dirty_bytes, 4096);
    bad.set_enabled(false);
    server.stop();
    assert_eq!(read_backend(&*disk, 0, 4096), [1; 4096]);
}

fn open_file(path: &std::path::Path) -> Arc<dyn Backend> {
    open(&path.display().to_string(), &OpenOptions::default()).unwrap()
}

fn a_file_that_shrinks_fails_cleanly(engine: Engine) {
    for mode in [Mode::WriteThrough, Mode::Bypass] {
        let server = Server::start(engine);
        let path = server.directory.path().join("disk.img");
        std::fs::write(&path, vec![6; 4 << 20]).unwrap();
        server.add("disk", open_file(&path), mode);
        server.add_memory("other", MIB, mode);
        let mut client = server.client("disk");
        assert_eq!(client.read(0, 4096), Ok(vec![6; 4096]));
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(MIB).unwrap();
        assert_eq!(client.read(2 * MIB, 4096), Err(IoError::Io), "{mode}");
        assert_eq!(
            client.read(MIB - 4096, 8192),
            Err(IoError::Io),
            "{mode}: half of it is past the end"
        );
        assert_eq!(client.read(MIB - 4096, 4096), Ok(vec![6; 4096]), "{mode}");
        assert_eq!(server.client("other").read(0, 512), Ok(vec![0; 512]));
        // A write extends the file again; the gap reads as zeroes.
        assert_eq!(client.write(3 * MIB, &[8; 4096]), Ok(()), "{mode}");
        assert_eq!(client.read(2 * MIB, 4096), Ok(vec![0; 4096]), "{mode}");
        assert_eq!(client.read(3 * MIB, 4096), Ok(vec![8; 4096]), "{mode}");
    }
}

fn a_full_disk_is_reported_as_no_space(engine: Engine) {
    let rule = ErrorRule { kinds: Kinds::WRITE, error: IoError::NoSpace, ..ErrorRule::default() };
    for mode in Mode::ALL {
        let server = Server::start(engine);
        let disk = memory(MIB);
        let full = Arc::new(ErrorLayer::new(Arc::clone(&disk) as _, rule.clone()));
        server.runtime.volumes().add(settings("disk", Arc::clone(&full) as _, mode)).unwrap();
        let mut client = server.client("disk");
        assert_eq!(client.write_fua(0, &[1; 4096]), Err(IoError::NoSpace), "{mode}");
        let written = client.write(8192, &[2; 4096]);
        if mode == Mode::WriteBack {
            assert_eq!(written, Ok(()));
            assert_eq!(client.flush(), Err(IoError::NoSpace));
            assert_eq!(client.read(8192, 4096), Ok(vec![2; 4096]));
        } else {
            assert_eq!(written, Err(IoError::NoSpace));
        }
        full.set_enabled(false);
        wait_until("the disk has space again", PATIENCE, || client.flush() == Ok(()));
    }
}
