//! Files on a real file system, on tmpfs, and (with root and loop devices) block devices.

use super::*;
use crate::{AlignedBuffer, Blocking, conformance};
use forebay_types::{Fault, Few, IoError};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use tempfile::{TempDir, tempdir};

fn make(directory: &TempDir, name: &str, size_bytes: u64) -> PathBuf {
    let path = directory.path().join(name);
    File::create(&path).unwrap().set_len(size_bytes).unwrap();
    path
}

/// A file of this size, and its directory.
fn disk(size_bytes: u64) -> (TempDir, PathBuf) {
    let directory = tempdir().unwrap();
    let path = make(&directory, "disk", size_bytes);
    (directory, path)
}

fn open(path: &Path) -> Result<FileBackend, FileError> {
    FileBackend::open(path, &OpenOptions::default())
}

fn open_read_only(path: &Path) -> Result<FileBackend, FileError> {
    FileBackend::open(path, &OpenOptions { read_only: true, ..OpenOptions::default() })
}

fn message(result: Result<FileBackend, FileError>) -> String {
    let error = result.err().unwrap();
    format!("{error}: {}", error.remedy())
}

#[test]
fn a_file_where_the_service_may_not_write_names_the_setting_of_the_unit() {
    let remedy = |is_block, read_only| {
        let path = Path::new("/srv/disk.img");
        let error = super::open::not_permitted(path, is_block, read_only, rustix::io::Errno::ROFS);
        error.remedy().to_string()
    };
    assert!(remedy(false, false).contains("`ReadWritePaths=`"), "{}", remedy(false, false));
    assert!(!remedy(true, false).contains("ReadWritePaths"), "a device needs no directory");
}

#[test]
fn a_file_passes_the_suite() {
    let (_directory, path) = disk(16 << 20);
    let backend = open(&path).unwrap();
    println!("{:?}", backend.description());
    conformance::check(&(Arc::new(backend) as Arc<dyn Backend>));
}

#[test]
fn a_file_of_odd_size_passes_the_suite() {
    let (_directory, path) = disk((16 << 20) + 512);
    conformance::check(&(Arc::new(open(&path).unwrap()) as Arc<dyn Backend>));
}

#[test]
fn a_file_in_memory_passes_the_suite() {
    let Ok(directory) = TempDir::new_in("/dev/shm") else { return };
    let path = make(&directory, "disk", 16 << 20);
    let backend = open(&path).unwrap();
    assert_eq!(backend.description().alignment_bytes, 512);
    let flags = rustix::fs::fcntl_getfl(backend.native_file().unwrap()).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::DIRECT), "tmpfs has no direct I/O");
    conformance::check(&(Arc::new(backend) as Arc<dyn Backend>));
}

#[test]
fn open_errors_name_cause_and_remedy() {
    let directory = tempdir().unwrap();
    let shown = |path: &Path| path.display().to_string();
    let path = directory.path().join("none");
    let (text, name) = (message(open(&path)), shown(&path));
    assert_eq!(
        text,
        format!(
            "'{name}' does not exist: check the spelling, or make a file with \
             `truncate -s 10G '{name}'`"
        )
    );
    let text = message(open(Path::new("/dev/none")));
    assert_eq!(text, "'/dev/none' does not exist: check the spelling");
    let text = message(open(directory.path()));
    assert!(text.contains("is a directory: give the path of a regular file"), "{text}");
    let text = message(open(Path::new("/dev/null")));
    assert!(text.contains("'/dev/null' is a character device"), "{text}");
    let text = message(open(&make(&directory, "empty", 0)));
    assert!(text.contains("is empty: give it a size"), "{text}");
    let text = message(open(&make(&directory, "odd", 1000)));
    assert!(text.contains("is 1000 bytes, not a multiple of 512"), "{text}");
    assert!(!text.contains("truncate"), "the file may belong to another program: {text}");
}

#[test]
fn a_pipe_is_refused_without_waiting_for_its_other_end() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("pipe");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(message(open(&path)).contains("is a pipe"));
}

#[test]
fn a_file_is_written_by_one_and_read_by_many() {
    let (directory, path) = disk(1 << 20);
    let writer = open(&path).unwrap();
    assert!(matches!(open(&path), Err(FileError::InUse { .. })));
    assert!(matches!(open_read_only(&path), Err(FileError::InUse { .. })));
    // A hard link is the same file.
    let link = directory.path().join("link");
    fs::hard_link(&path, &link).unwrap();
    assert!(
        message(open(&link)).contains("is in use by another process or volume: stop the program")
    );
    let identity = writer.description().identity.clone();
    drop(writer);
    let readers = [open_read_only(&path).unwrap(), open_read_only(&link).unwrap()];
    assert!(readers.iter().all(|reader| reader.description().identity == identity));
    assert!(matches!(open(&path), Err(FileError::InUse { .. })));
    drop(readers);
    open(&path).unwrap();
}

#[test]
fn a_file_is_not_shared_with_qemu_and_no_image_is_taken_for_a_disk() {
    use super::byte_locks::{Use, take};
    let (_directory, path) = disk(1 << 20);
    let file = || File::options().read(true).write(true).open(&path).unwrap();
    let by_qemu: std::os::fd::OwnedFd = file().into();
    take(&by_qemu, Use::Writing).unwrap();
    let (text, read_only) = (message(open(&path)), message(open_read_only(&path)));
    for text in [text, read_only] {
        assert!(text.contains("is in use by another process or volume"), "{text}");
    }
    drop(by_qemu);
    let readers = [open_read_only(&path).unwrap(), open_read_only(&path).unwrap()];
    assert!(take(&file().into(), Use::Writing).is_err());
    take(&file().into(), Use::Reading).unwrap();
    drop(readers);
    let backend = open(&path).unwrap();
    assert!(take(&file().into(), Use::Reading).is_err());
    drop(backend);
    std::io::Write::write_all(&mut file(), b"vhdxfile").unwrap();
    let options = OpenOptions { refuse_images: true, ..OpenOptions::default() };
    let text = message(FileBackend::open(&path, &options));
    assert!(
        text.contains("is a disk image in the format VHDX, not a raw disk: convert it"),
        "{text}"
    );
    open(&path).unwrap();
    file().set_len(196_616).unwrap();
    assert!(message(FileBackend::open(&path, &options)).contains("VHDX"), "of any size");
}

#[test]
fn a_file_opened_for_reading_is_not_written() {
    let (_directory, path) = disk(1 << 20);
    let backend = open_read_only(&path).unwrap();
    let blocking = Blocking::new(&backend);
    let mut bytes = AlignedBuffer::new(4096);
    assert_eq!(blocking.write(0, &bytes, false), Err(IoError::NotPermitted));
    assert_eq!(blocking.discard(0, 4096), Err(IoError::NotPermitted));
    assert_eq!(blocking.read(0, &mut bytes), Ok(()));
    assert_eq!(blocking.flush(), Ok(()));
    assert!(!backend.description().can_discard);
}

#[test]
fn a_truncated_file_fails_past_its_end() {
    let (_directory, path) = disk(1 << 20);
    let backend = open(&path).unwrap();
    // At the end of a page, and at the end of a sector.
    for cut_bytes in [512 << 10, (256 << 10) + 512] {
        File::options().write(true).open(&path).unwrap().set_len(cut_bytes).unwrap();
        let blocking = Blocking::new(&backend);
        let mut bytes = AlignedBuffer::new(64 << 10);
        assert_eq!(blocking.read(0, &mut bytes), Ok(()));
        let across = (cut_bytes - (16 << 10)) / 4096 * 4096;
        assert_eq!(blocking.read(across, &mut bytes), Err(IoError::Io));
        assert_eq!(blocking.read(768 << 10, &mut bytes), Err(IoError::Io));
        let extents = backend.extents(ByteRange::new(0, 1 << 20));
        assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), 1 << 20);
    }
}

#[test]
fn extents_match_written_ranges() {
    let (_directory, path) = disk(4 << 20);
    let backend = open(&path).unwrap();
    let all = ByteRange::new(0, 4 << 20);
    let hole = |len| Extent { len, hole: true, zero: true };
    let data = |len| Extent { len, hole: false, zero: false };
    assert_eq!(backend.extents(all), [hole(4 << 20)]);
    let blocking = Blocking::new(&backend);
    blocking.write(1 << 20, &AlignedBuffer::new(64 << 10), false).unwrap();
    blocking.flush().unwrap();
    let rest = (3 << 20) - (64 << 10);
    assert_eq!(backend.extents(all), [hole(1 << 20), data(64 << 10), hole(rest)]);
    let inside = ByteRange::new((1 << 20) + 4096, 8192);
    assert_eq!(backend.extents(inside), [data(8192)]);
    if backend.description().can_discard {
        blocking.discard(1 << 20, 64 << 10).unwrap();
        assert_eq!(backend.extents(all), [hole(4 << 20)]);
    }
}

#[test]
fn the_last_answer_may_close_the_backend() {
    // The pool thread that delivers the answer then drops its own pool.
    struct Closer(std::sync::Mutex<Option<Arc<FileBackend>>>, Arc<crate::IoWait>);
    impl crate::CompletionSink for Closer {
        fn complete(&self, tag: u64, result: forebay_types::IoResult) {
            drop(self.0.lock().unwrap().take());
            self.1.complete(tag, result);
        }
    }
    let directory = tempdir().unwrap();
    let backend = Arc::new(open(&make(&directory, "disk", 1 << 20)).unwrap());
    let wait = crate::IoWait::new(1);
    let closer = Arc::new(Closer(std::sync::Mutex::new(None), wait.clone()));
    let done = crate::IoToken::new(closer.clone(), 0);
    let held = crate::layers::Gate::new(backend.clone());
    held.close(crate::layers::Kinds::ALL);
    let io = Io { kind: crate::IoKind::Flush, offset: 0, len: 0, buffers: Few::new(), done };
    held.submit(io);
    *closer.0.lock().unwrap() = Some(backend);
    held.release_all();
    drop(held);
    assert_eq!(wait.all(), [Ok(())]);
}

/// A loop device over a file, detached on drop.
struct Loop(String);

impl Loop {
    fn new(path: &Path, sector_bytes: u32) -> Self {
        let sector = format!("--sector-size={sector_bytes}");
        let arguments = ["-f", "--show", &sector];
        let output = Command::new("losetup").args(arguments).arg(path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        Command::new("losetup").args(["-d", &self.0]).status().unwrap();
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_a_block_device_passes_the_suite() {
    for sector_bytes in [512, 4096] {
        let (_directory, file) = disk(16 << 20);
        let device = Loop::new(&file, sector_bytes);
        let path = Path::new(&device.0);
        let backend = open(path).unwrap();
        println!("{:?}", backend.description());
        assert!(backend.description().identity.as_ref().unwrap().starts_with("block:7:"));
        assert_eq!(backend.description().size_bytes(), 16 << 20);
        assert_eq!(backend.description().alignment_bytes, sector_bytes);
        let text = message(open(path));
        assert!(text.contains("is in use by another process or volume (mounted"), "{text}");
        assert!(matches!(open_read_only(path), Err(FileError::InUse { .. })));
        let backend = Arc::new(backend) as Arc<dyn Backend>;
        conformance::check(&backend);
        drop(backend);
        open_read_only(path).unwrap();
    }
}

/// A new file system on a loop device, unmounted on drop.
struct Mounted(PathBuf);

impl Mounted {
    fn new(device: &Loop, mkfs: &str, at: PathBuf) -> Self {
        let made = Command::new(mkfs).args(["-q", &device.0]).status().unwrap();
        assert!(made.success());
        fs::create_dir(&at).unwrap();
        let mounted = Command::new("mount").arg(&device.0).arg(&at).status().unwrap();
        assert!(mounted.success());
        Self(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        Command::new("umount").arg(&self.0).status().unwrap();
    }
}

/// Checks that opening `path` is refused, with `other` in the message.
fn assert_refused(path: &Path, other: &str) {
    let error = open(path).err().unwrap();
    let text = error.to_string();
    assert!(matches!(error, FileError::Alias { .. }), "{text}");
    assert!(text.contains(&path.display().to_string()) && text.contains(other), "{text}");
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_a_file_and_loop_devices_over_it_are_one_store() {
    let (directory, file) = disk(16 << 20);
    let (first, second) = (Loop::new(&file, 512), Loop::new(&file, 4096));
    let (first, second) = (Path::new(&first.0), Path::new(&second.0));
    let on_file = open(&file).unwrap();
    assert_refused(first, "the file below it");
    assert_refused(second, "the file below it");
    drop(on_file);
    let on_first = open(first).unwrap();
    assert_refused(second, &first.display().to_string());
    // A rename does not matter.
    let renamed = directory.path().join("renamed");
    fs::rename(&file, &renamed).unwrap();
    assert_refused(&renamed, &first.display().to_string());
    drop(on_first);
    let on_second = open_read_only(second).unwrap();
    assert_refused(first, &second.display().to_string());
    assert_refused(&renamed, &second.display().to_string());
    drop(on_second);
    open(&renamed).unwrap();
    open(first).unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_a_loop_device_is_identified_by_its_file_after_its_removal() {
    let (directory, file) = disk(16 << 20);
    let link = directory.path().join("link");
    fs::hard_link(&file, &link).unwrap();
    let device = Loop::new(&file, 512);
    fs::remove_file(&file).unwrap();
    let device = Path::new(&device.0);
    let on_device = open(device).unwrap();
    assert_refused(&link, &device.display().to_string());
    drop(on_device);
    let on_link = open(&link).unwrap();
    assert_refused(device, "(deleted), the file below it");
    drop(on_link);
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_stacked_and_partial_loop_devices_are_distinguished() {
    let (_directory, file) = disk(16 << 20);
    let part = |offset: &str| {
        let arguments = ["-f", "--show", "--sizelimit=8M", offset];
        let output = Command::new("losetup").args(arguments).arg(&file).output().unwrap();
        Loop(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    };
    let (low, high) = (part("--offset=0"), part("--offset=8M"));
    let over = Loop::new(Path::new(&low.0), 512);
    let on_high = open(Path::new(&high.0)).unwrap();
    let on_low = open(Path::new(&low.0)).unwrap();
    assert_refused(Path::new(&over.0), &low.0);
    drop(on_low);
    let on_over = open(Path::new(&over.0)).unwrap();
    assert_refused(Path::new(&low.0), &over.0);
    drop(on_high);
    assert_refused(&file, &over.0);
    drop(on_over);
    open(&file).unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_a_file_mounted_through_a_loop_device_is_in_use() {
    let (directory, file) = disk(32 << 20);
    let device = Loop::new(&file, 512);
    let mounted = Mounted::new(&device, "mkfs.ext4", directory.path().join("mounted"));
    assert_refused(&file, &device.0);
    // A file in that file system is on the file below it, and can be opened alone.
    let inside = mounted.0.join("inside");
    File::create(&inside).unwrap().set_len(1 << 20).unwrap();
    open(&inside).map(drop).unwrap();
    drop(mounted);
    open(&file).unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_a_file_without_extents_is_zeroed_by_writing_and_says_so() {
    for (mkfs, is_fast) in [("mkfs.ext3", false), ("mkfs.ext4", true)] {
        let directory = tempdir().unwrap();
        let device = Loop::new(&make(&directory, "disk", 32 << 20), 512);
        let mounted = Mounted::new(&device, mkfs, directory.path().join("mounted"));
        let inside = mounted.0.join("inside");
        File::create(&inside).unwrap().set_len(1 << 20).unwrap();
        let backend = open(&inside).unwrap();
        assert_eq!(backend.description().can_zero_fast, is_fast, "{mkfs}");
        let (blocking, mut bytes) = (Blocking::new(&backend), AlignedBuffer::from(&[7; 8192][..]));
        blocking.write(0, &bytes, false).unwrap();
        // The first call finds that zeroing is not supported; the second one does not try it.
        for offset in [0, 4096] {
            blocking.zero(offset, 4096, false).unwrap();
        }
        blocking.read(0, &mut bytes).unwrap();
        assert_eq!(bytes[..], [0; 8192]);
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_a_device_that_refuses_writes_is_not_opened_for_writing() {
    let directory = tempdir().unwrap();
    let device = Loop::new(&make(&directory, "disk", 16 << 20), 512);
    let path = Path::new(&device.0);
    let set = |how: &str| {
        assert!(Command::new("blockdev").args([how, &device.0]).status().unwrap().success());
    };
    set("--setro");
    let (writable, read_only) = (open(path), open_read_only(path));
    // The kernel keeps the mark when the file is detached.
    set("--setrw");
    let text = message(writable);
    assert!(text.contains("is read-only: serve it read-only, or make it writable"), "{text}");
    read_only.map(drop).unwrap();
    open(path).unwrap();
}

#[test]
#[ignore = "needs root and swap"]
fn kernel_an_active_swap_file_is_in_use() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempdir().unwrap();
    // A name that the kernel escapes in its list.
    let path = directory.path().join("swap file");
    fs::write(&path, vec![0; 16 << 20]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let run = |program: &str| {
        let output = Command::new(program).arg(&path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    run("mkswap");
    run("swapon");
    let opened = [message(open(&path)), message(open_read_only(&path))];
    run("swapoff");
    for text in opened {
        assert!(text.contains("is in use as swap"), "{text}");
    }
    open(&path).unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_the_tail_of_a_device_that_is_no_whole_block_is_not_exported() {
    let (_directory, file) = disk((16 << 20) + 1536);
    let device = Loop::new(&file, 4096);
    let backend = open(Path::new(&device.0)).unwrap();
    assert_eq!(backend.description().size_bytes(), 16 << 20);
    assert_eq!(backend.description().alignment_bytes, 4096);
    assert_eq!(backend.medium().hidden_bytes, 1536);
    let blocking = Blocking::new(&backend);
    blocking.write((16 << 20) - 4096, &AlignedBuffer::new(4096), false).unwrap();
    assert_eq!(backend.check_presence(), Ok(()));
}

#[test]
fn the_remedy_for_an_immutable_file_is_lsattr() {
    let (_directory, path) = disk(1 << 20);
    let mark = |flag: &str| Command::new("chattr").arg(flag).arg(&path).status();
    // Needs root, and a file system with this attribute.
    if !mark("+i").is_ok_and(|status| status.success()) {
        return;
    }
    let immutable = open(&path).err().unwrap();
    mark("-i").unwrap();
    mark("+a").unwrap();
    let append_only = open(&path).err().unwrap();
    mark("-a").unwrap();
    for error in [immutable, append_only] {
        let remedy = error.remedy().to_string();
        assert!(remedy.contains("lsattr") && remedy.contains("append-only"), "{remedy}");
        assert!(!remedy.contains("run as"), "{remedy}");
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn kernel_the_remedy_for_a_detached_loop_device_is_losetup() {
    let directory = tempdir().unwrap();
    let path = PathBuf::from(&Loop::new(&make(&directory, "disk", 1 << 20), 512).0);
    let text = message(open(&path));
    assert!(text.contains("has no size") && text.contains("losetup"), "{text}");
    assert!(!text.contains("truncate"), "{text}");
}

#[test]
fn submit_here_runs_the_io_on_the_calling_thread() {
    struct Where(std::sync::Mutex<Vec<std::thread::ThreadId>>);
    impl crate::CompletionSink for Where {
        fn complete(&self, _: u64, result: forebay_types::IoResult) {
            result.unwrap();
            self.0.lock().unwrap().push(std::thread::current().id());
        }
    }
    let directory = tempdir().unwrap();
    let backend = open(&make(&directory, "disk", 1 << 20)).unwrap();
    let answered = Arc::new(Where(std::sync::Mutex::default()));
    let flush = || Io {
        kind: crate::IoKind::Flush,
        offset: 0,
        len: 0,
        buffers: Few::new(),
        done: crate::IoToken::new(answered.clone(), 0),
    };
    backend.submit_here(flush());
    assert_eq!(*answered.0.lock().unwrap(), [std::thread::current().id()]);
}

#[test]
fn a_replaced_truncated_or_read_only_file_is_detected() {
    use std::os::unix::fs::PermissionsExt;
    let (directory, path) = disk(1 << 20);
    let backend = open(&path).unwrap();
    assert_eq!(backend.check_presence(), Ok(()));
    let away = directory.path().join("away");
    fs::rename(&path, &away).unwrap();
    assert_eq!(backend.check_presence(), Err(Displaced::Moved));
    make(&directory, "disk", 1 << 20);
    assert_eq!(backend.check_presence(), Err(Displaced::Replaced));
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&away, &path).unwrap();
    assert_eq!(backend.check_presence(), Ok(()), "the same file by another path");
    File::options().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
    assert_eq!(backend.check_presence(), Ok(()), "the file has grown");
    File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert_eq!(backend.check_presence(), Err(Displaced::Shrunk { bytes: 4096 }));
    File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    assert_eq!(backend.check_presence(), Err(Displaced::ReadOnly));
    drop(backend);
    let backend = open_read_only(&path).unwrap();
    assert_eq!(backend.check_presence(), Ok(()), "it was not opened for writing");
    fs::remove_file(&away).unwrap();
    assert_eq!(backend.check_presence(), Err(Displaced::Deleted));
}
