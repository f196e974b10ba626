//! A file on a file system on a volume: where it is in the volume.
//!
//! The search goes from the file to its device (`st_dev`), to its extents on that device (FIEMAP),
//! and through the start of the partition to the volume. The device must have the volume's size and
//! must not be made of other devices, and the file's data must be at its place in the volume.

use super::device::{MountedDevice, PIN_RANGES, file_system_name, may_have_several_devices};
use super::map::FileMap;
use super::proof::{Proof, compare, open_volume};
use crate::report::with_remedy;
use anyhow::{Context, anyhow};
use forebay_backend::{file_extents, is_on_realtime_device};
use forebay_threads::Thread;
use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs, major, minor};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// The number of comparisons before a file is refused; a file that is being written may differ in
/// some.
const ATTEMPTS: usize = 5;
/// How long a comparison may take. A disk that is being spun up answers in time.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// What is known of the volume.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) size_bytes: u64,
    /// The addresses at which the server accepts clients.
    pub(super) listeners: Vec<String>,
}

/// A file in a volume.
#[derive(Debug)]
pub(super) struct Located {
    pub(super) map: FileMap,
    /// The number of its file system's device.
    pub(super) device: u64,
    /// Why its data was not compared with the volume's.
    pub(super) unproven: Option<String>,
}

/// Writes a file's data to its device, finds the file in the volume, and proves that it is there.
///
/// # Errors
/// The file is not in the volume, or this cannot be determined.
pub(super) fn locate(path: &Path, target: &Target) -> anyhow::Result<Located> {
    let found = || {
        let opened = open(path, target)?;
        for _ in 0..ATTEMPTS {
            let map = opened.map(true)?;
            match opened.prove(&map, target)? {
                Ok(Proof::Same) => return Ok(opened.located(map, None)),
                Ok(Proof::Differs) => {}
                Ok(Proof::Nothing) => {
                    return opened.unproven(map, "it has no data to compare by".to_owned());
                }
                Err(reason) => return opened.unproven(map, reason),
            }
        }
        let name = &opened.device.name;
        let error = anyhow!(
            "other data is at its place in the volume, so {name} is another volume, or the file is \
             being written all the time"
        );
        Err(with_remedy(error, "name the right volume, or repeat this while it is not written"))
    };
    found().with_context(|| cannot_find(path, target))
}

/// Finds a file that was found before. Data that is only in memory has no place yet, and is not
/// written first. The proof is repeated if the file system is on another device.
///
/// # Errors
/// As [`locate`].
pub(super) fn locate_again(path: &Path, target: &Target, device: u64) -> anyhow::Result<FileMap> {
    let found = || {
        let opened = open(path, target)?;
        if opened.number == device { opened.map(false).map(Some) } else { Ok(None) }
    };
    match found().with_context(|| cannot_find(path, target))? {
        Some(map) => Ok(map),
        None => locate(path, target).map(|located| located.map),
    }
}

fn cannot_find(path: &Path, target: &Target) -> String {
    format!("cannot find {} in volume '{}'", path.display(), target.name)
}

/// An open file, whose device has the size of the volume.
struct Opened {
    file: File,
    number: u64,
    device: MountedDevice,
}

fn open(path: &Path, target: &Target) -> anyhow::Result<Opened> {
    // A named pipe must not make the command wait.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| {
        let remedy = match error {
            rustix::io::Errno::NOENT => {
                "check the path; the ranges of a deleted file are listed by `forebay volume list \
                 --json`"
            }
            _ => "run this as a user who may read the file",
        };
        with_remedy(error, remedy)
    })?;
    let stat = fstat(&file).context("cannot inspect the file")?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(with_remedy(anyhow!("it is not a regular file"), "name a regular file"));
    }
    let magic = fstatfs(&file).map(|found| found.f_type as u64).unwrap_or_default();
    let numbers = (major(stat.st_dev), minor(stat.st_dev));
    // File systems without a device have the major number 0.
    if numbers.0 == 0 || may_have_several_devices(magic) {
        let name = file_system_name(magic);
        let error = anyhow!("it is on a {name}, which is on no single block device");
        return Err(with_remedy(error, PIN_RANGES));
    }
    if is_on_realtime_device(&file) {
        let error = anyhow!("it is on the realtime device of its file system");
        return Err(with_remedy(error, PIN_RANGES));
    }
    let device = MountedDevice::find(Path::new("/sys"), numbers)?;
    if !device.has_size_of(target.size_bytes) {
        let error = anyhow!(
            "it is on {}, a device of {} bytes, and the volume has {}",
            device.name,
            device.size_bytes,
            target.size_bytes
        );
        let remedy = "name the volume that this device is, or a file on the file system that is \
                      on the volume";
        return Err(with_remedy(error, remedy));
    }
    Ok(Opened { file: file.into(), number: stat.st_dev, device })
}

impl Opened {
    fn map(&self, sync: bool) -> anyhow::Result<FileMap> {
        let extents = file_extents(&self.file, sync).map_err(|error| {
            let is_unsupported = error.raw_os_error()
                == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error())
                || error.raw_os_error() == Some(rustix::io::Errno::NOTTY.raw_os_error());
            let context = match is_unsupported {
                true => "its file system does not report where files are (FIEMAP)",
                false => "its file system cannot report where it is (FIEMAP)",
            };
            with_remedy(anyhow::Error::new(error).context(context), PIN_RANGES)
        })?;
        FileMap::new(&extents, &self.device)
    }

    /// Compares the file with its place in the volume. The inner error says why that is impossible.
    fn prove(&self, map: &FileMap, target: &Target) -> anyhow::Result<Result<Proof, String>> {
        let file = self.file.try_clone().context("cannot open the file twice")?;
        let (pieces, target) = (map.pieces.clone(), target.clone());
        let (sender, answer) = mpsc::channel();
        // Neither a hanging disk nor a server that was stopped has a timeout of its own.
        let work = move || {
            let result = match open_volume(&target.listeners, &target.name) {
                Ok(volume) => compare(&file, &pieces, &volume).map(Ok),
                Err(error) => Ok(Err(format!("{error:#}"))),
            };
            // The command may have given up.
            let _ = sender.send(result);
        };
        Thread::named("compare").spawn(work).context("cannot start a thread")?;
        answer.recv_timeout(COMPARE_TIMEOUT).unwrap_or_else(|_| {
            let waited = COMPARE_TIMEOUT.as_secs();
            let error = anyhow!("the volume has not answered a read for {waited} s");
            Err(with_remedy(error, "see `forebay status` for its disk"))
        })
    }

    fn located(&self, map: FileMap, unproven: Option<String>) -> Located {
        Located { map, device: self.number, unproven }
    }

    /// The file without a proof. It is accepted if it has no data in the volume, or if the device
    /// is of a kind that a server provides.
    fn unproven(&self, map: FileMap, reason: String) -> anyhow::Result<Located> {
        if map.pieces.is_empty() {
            return Ok(self.located(map, None));
        }
        if self.device.is_served() {
            return Ok(self.located(map, Some(reason)));
        }
        let error = anyhow!(
            "its device {} is no NBD device, and cannot be compared with the volume: {reason}",
            self.device.name
        );
        Err(with_remedy(error, PIN_RANGES))
    }
}

/// The file that an argument of `forebay pin` names: it contains a slash, which no range does.
pub(super) fn path_of(argument: &std::ffi::OsStr) -> Option<PathBuf> {
    argument.as_encoded_bytes().contains(&b'/').then(|| argument.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn refused(path: &Path, size_bytes: u64) -> String {
        let target = Target { name: "v".into(), size_bytes, listeners: Vec::new() };
        let error = locate(path, &target).unwrap_err();
        let sentence = crate::report::sentence(&error);
        let start = format!("cannot find {} in volume 'v': ", path.display());
        assert_eq!(crate::report::sentence(&locate_again(path, &target, 0).unwrap_err()), sentence);
        sentence.strip_prefix(&start).unwrap_or_else(|| panic!("{sentence}")).to_owned()
    }

    #[test]
    fn files_that_are_in_no_volume_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let there = directory.path();
        let missing = refused(&there.join("nosuch"), 1 << 20);
        assert!(missing.starts_with("No such file or directory (os error 2): check"), "{missing}");
        let not_a_file = "it is not a regular file: name a regular file";
        assert_eq!(refused(there, 1 << 20), not_a_file);
        let socket = there.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(refused(&socket, 1 << 20).starts_with("No such device or address"));
        assert_eq!(refused(Path::new("/dev/null"), 1 << 20), not_a_file);
        assert_eq!(
            refused(Path::new("/proc/version"), 1 << 20),
            "it is on a proc file system, which is on no single block device: pin ranges of the \
             volume instead, as OFFSET+LENGTH"
        );
    }

    #[test]
    fn a_file_beside_the_volume_is_refused_with_both_sizes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        fs::write(&path, [7; 8192]).unwrap();
        let text = refused(&path, 12345 * 512);
        // If temporary files are on no block device, the file is refused for that reason.
        let is_elsewhere = text.contains("on no single block device")
            || text.contains("which is made of other devices")
            || text.contains("cannot find the block device");
        assert!(is_elsewhere || text.contains(" bytes, and the volume has 6320640"), "{text}");
    }

    #[test]
    fn an_argument_with_a_slash_is_a_file() {
        let path = |text: &str| path_of(text.as_ref());
        assert_eq!(path("./x"), Some("./x".into()));
        assert_eq!(path("/mnt/x"), Some("/mnt/x".into()));
        for range in ["x", "0+4096", "all", "1GiB+256MiB", ""] {
            assert_eq!(path(range), None, "{range}");
        }
    }
}
