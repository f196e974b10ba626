//! Tests of which files a new socket replaces.

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixStream};

fn error(path: &Path) -> String {
    listen_at(path, SocketRights::default()).unwrap_err().to_string()
}

/// Makes a stale socket, as a killed process does.
fn make_stale(path: &Path) {
    drop(UnixListener::bind(path).unwrap());
}

fn rights(mode: u32) -> SocketRights {
    SocketRights { mode: Some(Mode::from_raw_mode(mode)), ..SocketRights::default() }
}

#[test]
fn a_socket_has_the_mode_that_is_asked_for_whatever_the_umask_is() {
    let root = tempfile::tempdir().unwrap();
    for mode in [0o600, 0o660, 0o666, 0o777, 0o060, 0] {
        let path = root.path().join("socket");
        let (_listener, file) = listen_at(&path, rights(mode)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
        file.remove().unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_socket_admits_nobody_before_it_has_its_rights() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("socket");
    let _bound = bind_at(&path, rights(0o666)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0);
    // Also of root, whom the mode does not keep out.
    let refused = UnixStream::connect(&path).unwrap_err().kind();
    assert!(
        [io::ErrorKind::ConnectionRefused, io::ErrorKind::PermissionDenied].contains(&refused),
        "{refused}"
    );
}

#[test]
fn only_the_new_socket_gets_its_rights() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("socket");
    fs::write(&path, "precious").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let other = Handle::open(&path).unwrap().unwrap();
    let error = other.set_rights(&path, rights(0o666)).unwrap_err();
    assert!(matches!(error, SocketError::Replaced { .. }), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
}

#[test]
fn a_socket_that_may_not_be_given_away_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("socket");
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let listen = || {
        // Only this thread is another user, who is a member of no group.
        if rustix::process::geteuid().is_root() {
            let nobody = Uid::from_raw(54_321);
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        let group = SocketRights { group: Some(Gid::from_raw(54_322)), ..rights(0o660) };
        let owner = SocketRights { owner: Some(Uid::ROOT), ..SocketRights::default() };
        [group, owner].map(|rights| listen_at(&path, rights).unwrap_err())
    };
    let [group, owner] = std::thread::scope(|scope| scope.spawn(listen).join().unwrap());
    for (error, whom, remedy) in
        [(group, "group", "make the user of the server a member"), (owner, "owner", "CAP_CHOWN")]
    {
        let text = format!("may not give the socket {} to its {whom}", path.display());
        assert!(error.to_string().contains(&text), "{error}");
        assert!(error.remedy().to_string().contains(remedy), "{}", error.remedy());
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0, "no socket is left");
}

#[test]
fn a_socket_that_listens_gets_other_rights_or_keeps_all_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("socket");
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let change = || {
        if rustix::process::geteuid().is_root() {
            let nobody = Uid::from_raw(54_321);
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        let (_listener, file) = listen_at(&path, rights(0o640)).unwrap();
        let before = file.rights().unwrap();
        let group = SocketRights { group: Some(Gid::from_raw(54_322)), ..rights(0o604) };
        let owner = SocketRights { owner: Some(Uid::ROOT), ..rights(0o604) };
        for (refused, whom) in [(group, "group"), (owner, "owner")] {
            let error = file.change_rights(refused).unwrap_err().to_string();
            assert!(error.contains(&format!("to its {whom}")), "{error}");
            assert_eq!(file.rights().unwrap(), before, "{whom}");
        }
        file.change_rights(rights(0o606)).unwrap();
        let mode = |mode| Some(Mode::from_raw_mode(mode));
        let after = file.rights().unwrap();
        assert_eq!(after.mode.map(|it| it & Mode::from_raw_mode(0o777)), mode(0o606));
        assert_eq!((after.owner, after.group), (before.owner, before.group));
        // As a new socket would be.
        file.change_rights(SocketRights::default()).unwrap();
        let other = root.path().join("other");
        let (_listener, new) = listen_at(&other, SocketRights::default()).unwrap();
        assert_eq!(file.rights().unwrap(), new.rights().unwrap());
    };
    std::thread::scope(|scope| scope.spawn(change).join().unwrap());
}

#[test]
fn a_stale_socket_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    // The second path is so long that an address could not hold a longer one.
    for name in ["socket".into(), "x".repeat(106 - root.path().as_os_str().len())] {
        let path = root.path().join(name);
        make_stale(&path);
        let (listener, _file) = listen_at(&path, SocketRights::default()).unwrap();
        UnixStream::connect(&path).unwrap();
        assert!(listener.accept().is_ok());
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "no other file is left");
}

#[test]
fn another_kind_of_file_is_refused_and_kept() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    fs::write(at("file"), "precious").unwrap();
    fs::create_dir(at("directory")).unwrap();
    make_stale(&at("stale"));
    symlink(at("file"), at("link-to-file")).unwrap();
    symlink(at("stale"), at("link-to-stale")).unwrap();
    symlink(at("none"), at("link-to-nothing")).unwrap();
    rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    for (name, found) in [
        ("file", "regular file"),
        ("directory", "directory"),
        ("link-to-file", "symbolic link"),
        ("link-to-stale", "symbolic link"),
        ("link-to-nothing", "symbolic link"),
        ("pipe", "pipe"),
    ] {
        let before = lstat(at(name)).unwrap();
        let text = error(&at(name));
        assert!(text.contains(&format!("{name} is a {found}, not a socket")), "{text}");
        let after = lstat(at(name)).unwrap();
        assert_eq!((before.st_ino, before.st_mode), (after.st_ino, after.st_mode), "{name}");
    }
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "precious");
    assert!(lstat(at("stale")).is_ok());
}

#[test]
fn a_socket_in_use_is_refused_and_kept() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let (first, _file) = listen_at(&at("ours"), SocketRights::default()).unwrap();
    let _datagrams = UnixDatagram::bind(at("datagrams")).unwrap();
    // Bound but not yet listening: a state that every server passes through.
    let bound = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let bound = bound.unwrap();
    bind(&bound, &SocketAddrUnix::new(at("bound")).unwrap()).unwrap();
    // No connection is accepted, so the backlog is full.
    let full = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let full = full.unwrap();
    bind(&full, &SocketAddrUnix::new(at("full")).unwrap()).unwrap();
    listen(&full, 0).unwrap();
    let _waiting = UnixStream::connect(at("full")).unwrap();
    for name in ["ours", "datagrams", "bound", "full"] {
        let text = error(&at(name));
        assert!(text.contains("another program listens at"), "{name}: {text}");
        assert!(lstat(at(name)).is_ok(), "{name}");
    }
    // Another spelling of the path is detected too.
    let text = error(&root.path().join("./bound"));
    assert!(text.contains("another program listens at"), "{text}");
    UnixStream::connect(at("ours")).unwrap();
    assert!(first.accept().is_ok());
}

#[test]
fn a_file_replaced_after_the_check_is_not_removed() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("socket");
    make_stale(&path);
    let stale = Handle::open(&path).unwrap().unwrap();
    stale.check_stale(&path).unwrap();
    // Another program takes the path between the check and the removal.
    fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    let error = stale.remove_at(&path).unwrap_err();
    assert!(matches!(error, SocketError::Replaced { left_at: None, .. }), "{error}");
    UnixStream::connect(&path).unwrap();
    assert!(other.accept().is_ok());
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
}

#[test]
fn a_file_that_replaced_the_socket_is_kept_at_the_end() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("socket");
    let (listener, file) = listen_at(&path, SocketRights::default()).unwrap();
    drop(listener);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "precious").unwrap();
    let error = file.remove().unwrap_err();
    assert!(matches!(error, SocketError::Replaced { left_at: None, .. }), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_missing_directory_is_an_error_with_a_remedy() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("none");
    let error = listen_at(&directory.join("socket"), SocketRights::default()).unwrap_err();
    assert!(matches!(error, SocketError::NoDirectory { .. }), "{error}");
    assert!(error.remedy().to_string().contains(&format!("mkdir -p {}", directory.display())));
    fs::write(&directory, "").unwrap();
    let error = listen_at(&directory.join("socket"), SocketRights::default()).unwrap_err();
    assert!(matches!(error, SocketError::System { call: "open", .. }), "{error}");
}

#[test]
fn only_unconnected_sockets_of_the_list_are_named() {
    let line = |state, name| {
        format!("0000000000000000: 00000002 00000000 00010000 0001 {state}  7171 {name}")
    };
    let named = |line: &str| unconnected_name(line.as_bytes()).map(<[u8]>::to_vec);
    assert_eq!(named(&line("01", "/run/a b")), Some(b"/run/a b".to_vec()));
    assert_eq!(named(&line("03", "/run/a")), None, "an accepted connection");
    assert_eq!(named("Num       RefCount Protocol Flags    Type St Inode Path"), None);
    assert_eq!(named("0: 2 0 0 1 01 7"), None, "no name");
    assert_eq!(named(""), None);
}
