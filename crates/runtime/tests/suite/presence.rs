//! Journals, vaults and disks in files that are deleted, replaced, truncated or made read-only
//! while they are in use.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::journal::{
    JOURNAL_BYTES, MIB, OnRecord, add, block, journal_settings, memory, open, start,
};
use crate::server::{Server, read_backend};
use forebay_backend::layers::{ErrorLayer, ErrorRule, Kinds};
use forebay_backend::{Backend, Displaced, FileBackend, OpenOptions};
use forebay_runtime::{
    Engine, Journal, JournalError, JournalId, JournalSettings, VaultPhase, VaultSettings,
    VoidRecords,
};
use forebay_types::{Fault, Mode};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

/// A change to a file, and the expected message.
type Mishap = (fn(&Path), Displaced);

const MISHAPS: [Mishap; 4] = [
    (|path| fs::remove_file(path).unwrap(), Displaced::Deleted),
    (replace, Displaced::Replaced),
    (
        |path| File::options().write(true).open(path).unwrap().set_len(MIB).unwrap(),
        Displaced::Shrunk { bytes: MIB },
    ),
    (
        |path| fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap(),
        Displaced::ReadOnly,
    ),
];

fn replace(path: &Path) {
    let beside = path.with_extension("beside");
    make(&beside, fs::metadata(path).unwrap().len());
    fs::rename(beside, path).unwrap();
}

fn make(path: &Path, bytes: u64) -> Arc<dyn Backend> {
    File::create(path).unwrap().set_len(bytes).unwrap();
    Arc::new(FileBackend::open(path, &OpenOptions::default()).unwrap())
}

/// Checks twice, after which a displaced device counts as displaced.
fn check_presence(server: &Server) {
    (0..2).for_each(|_| server.runtime.volumes().check_presence());
}

fn wait_for_failure(journal: &Journal) {
    wait_until("the journal has failed", PATIENCE, || journal.status().failed.is_some());
}

on_both_engines! {
    a_displaced_journal_counts_as_failed,
    a_mirrored_journal_continues_on_the_device_in_place,
}

fn a_displaced_journal_counts_as_failed(engine: Engine) {
    for (mishap, expected) in MISHAPS {
        let server = start(engine);
        let path = server.directory.path().join("journal");
        let disk = memory(16 * MIB);
        let journal = open(&server, make(&path, JOURNAL_BYTES));
        add(&server, "v", Arc::clone(&disk) as _, &journal);
        let mut client = server.client("v");
        for value in 0..20 {
            client.write(value * 4096, &block(value)).unwrap();
        }
        check_presence(&server);
        assert_eq!(journal.status().failed, None, "the journal is in place");
        mishap(&path);
        check_presence(&server);
        wait_for_failure(&journal);
        assert_eq!(journal.status().displaced, Some(expected));
        client.write(20 * 4096, &block(20)).unwrap();
        assert_eq!(read_backend(&*disk, 20 * 4096, 4096), block(20), "writes go through");
        wait_until("the pool is drained", PATIENCE, || server.status("v").dirty_bytes == 0);
        for value in 0..20 {
            assert_eq!(read_backend(&*disk, value * 4096, 4096), block(value));
        }
        drop(client);
        server.stop();
    }
}

fn a_mirrored_journal_continues_on_the_device_in_place(engine: Engine) {
    let server = start(engine);
    let [one, other] = ["one", "other"].map(|name| server.directory.path().join(name));
    let settings = JournalSettings {
        mirror: Some(Ok(make(&other, JOURNAL_BYTES))),
        members: Box::new(OnRecord::default()),
        ..journal_settings(make(&one, JOURNAL_BYTES))
    };
    let journal = server.runtime.volumes().protectors().open_journal(settings).unwrap();
    add(&server, "v", memory(16 * MIB), &journal);
    fs::remove_file(&one).unwrap();
    check_presence(&server);
    wait_until("it is degraded", PATIENCE, || journal.status().degraded.is_some());
    assert!(journal.status().degraded.unwrap().ends_with("one: it was deleted"));
    let mut client = server.client("v");
    client.write(0, &block(1)).unwrap();
    assert_eq!(journal.status().failed, None);
    replace(&other);
    check_presence(&server);
    wait_for_failure(&journal);
    drop(client);
    server.stop();
}

#[test]
fn a_name_that_is_briefly_missing_does_not_fail_the_journal() {
    let server = start(Engine::Epoll);
    let path = server.directory.path().join("journal");
    let journal = open(&server, make(&path, JOURNAL_BYTES));
    add(&server, "v", memory(16 * MIB), &journal);
    for _ in 0..3 {
        fs::rename(&path, path.with_extension("away")).unwrap();
        server.runtime.volumes().check_presence();
        fs::rename(path.with_extension("away"), &path).unwrap();
        server.runtime.volumes().check_presence();
    }
    server.client("v").write(0, &block(1)).unwrap();
    assert_eq!(journal.status().failed, None);
    server.stop();
}

#[test]
fn a_displaced_disk_is_reported_until_it_is_back() {
    let server = start(Engine::Epoll);
    let path = server.directory.path().join("disk");
    server.add("v", make(&path, 16 * MIB), Mode::WriteThrough);
    let away = path.with_extension("away");
    fs::rename(&path, &away).unwrap();
    File::create(&path).unwrap().set_len(16 * MIB).unwrap();
    check_presence(&server);
    assert_eq!(server.status("v").displaced, Some(Displaced::Replaced));
    server.client("v").write(0, &block(1)).unwrap();
    fs::rename(&away, &path).unwrap();
    server.runtime.volumes().check_presence();
    assert_eq!(server.status("v").displaced, None);
    assert_eq!(fs::read(&path).unwrap()[..4096], block(1));
    server.stop();
}

#[test]
fn a_displaced_vault_is_not_relied_on_until_it_is_back() {
    let server = start(Engine::Epoll);
    let path = server.directory.path().join("vault");
    let backend = make(&path, 96 * MIB);
    let settings = VaultSettings {
        backend,
        is_void: Box::new(|_| Ok(false)),
        on_void: Box::new(|_, _| Ok(())),
    };
    let vault = server.runtime.open_vault(settings).unwrap();
    let is_measured = || vault.measured_bytes_per_second().is_some();
    wait_until("the vault is measured", 3 * PATIENCE, is_measured);
    let away = path.with_extension("away");
    fs::rename(&path, &away).unwrap();
    check_presence(&server);
    wait_until("the vault is not relied on", PATIENCE, || !is_measured());
    let trouble = vault.status().trouble.unwrap();
    assert!(trouble.contains("it was renamed") && trouble.contains("move it back"), "{trouble}");
    let error = vault.dump(&[], None).unwrap_err().explained();
    assert!(error.contains("it was renamed"), "no start would find a dump there: {error}");
    assert_eq!(vault.status().phase, VaultPhase::Ready);
    fs::rename(&away, &path).unwrap();
    vault.probe_now();
    wait_until("the vault is relied on again", 3 * PATIENCE, is_measured);
    server.stop();
}

#[test]
fn a_failed_journal_is_formatted_again_once_the_disks_have_everything() {
    let device = memory(JOURNAL_BYTES);
    let disk = memory(16 * MIB);
    let first = start(Engine::Epoll);
    // The superblocks and some batches can be written, then all writes fail.
    let rule = ErrorRule { kinds: Kinds::WRITE, after: 8, ..ErrorRule::default() };
    let journal = open(&first, Arc::new(ErrorLayer::new(Arc::clone(&device) as _, rule)));
    add(&first, "v", Arc::clone(&disk) as _, &journal);
    let mut client = first.client("v");
    for value in 0..100 {
        client.write(value * 4096, &block(value)).unwrap();
    }
    wait_for_failure(&journal);
    let before = journal.status().id;
    drop(client);
    first.stop();
    let second = start(Engine::Epoll);
    let with = |void: VoidRecords| {
        let failed = before.clone();
        let is_abandoned = move |journal: JournalId| {
            if journal.to_string() == failed { void.clone() } else { VoidRecords::None }
        };
        JournalSettings {
            is_abandoned: Box::new(is_abandoned),
            ..journal_settings(Arc::clone(&device) as _)
        }
    };
    let names = || vec!["v".to_owned()];
    let error = second
        .runtime
        .volumes()
        .protectors()
        .open_journal(with(VoidRecords::Volumes(names())))
        .err()
        .unwrap();
    assert!(matches!(error, JournalError::Abandoned { .. }), "it may hold the only copy: {error}");
    let journal = second
        .runtime
        .volumes()
        .protectors()
        .open_journal(with(VoidRecords::Settled(names())))
        .unwrap();
    assert_ne!(journal.status().id, before, "the old journal is not read");
    add(&second, "v", Arc::clone(&disk) as _, &journal);
    let mut client = second.client("v");
    for value in 0..100 {
        assert_eq!(client.read(value * 4096, 4096).unwrap(), block(value));
    }
    client.write(0, &block(500)).unwrap();
    assert_eq!(journal.status().failed, None);
    drop(client);
    second.stop();
}
