//! Opening a file or block device: looking, locking, and finding out what it can do.
//!
//! Nothing is opened before it is known to be a file or a block device (opening a pipe would
//! wait for its other end), and nothing is used before it is locked: a block device by an
//! exclusive open, which also keeps mounts, RAID and LVM away, a file by an advisory lock
//! (`flock`), which keeps other Forebays away and all programs that ask for it. Loop devices know
//! of neither, so other names of the same data are looked for as well ([`super::alias`]).

use super::alias::{self, Alias, FileId, Node, System};
use crate::geometry::Sysfs;
use crate::{Description, OpenOptions};
use forebay_types::{Fault, Remedy, SECTOR_BYTES};
use rustix::fs::{
    FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat, StatxFlags,
};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why a file or block device can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Nothing is there.
    #[error("'{path}' does not exist")]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// The path leads to something that holds no sectors.
    #[error("'{path}' is a {found}")]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// This user may not open it so.
    #[error("'{path}' may not be opened for {access}")]
    NotPermitted {
        /// The path.
        path: PathBuf,
        /// Reading, or reading and writing.
        access: &'static str,
        /// What to do.
        remedy: &'static str,
        /// What the system said.
        source: Errno,
    },
    /// Another process or volume has it.
    #[error("'{path}' is in use by another process or volume{holder}")]
    InUse {
        /// The path.
        path: PathBuf,
        /// What may be holding it, for block devices.
        holder: &'static str,
    },
    /// The same data is in use under another name.
    #[error("'{path}' is in use under another name: {alias}")]
    Alias {
        /// The path.
        path: PathBuf,
        /// The other name, and how it leads to the same data.
        alias: String,
    },
    /// Not made of whole sectors.
    #[error("'{path}' is {size_bytes} bytes, no multiple of 512")]
    Size {
        /// The path.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
    },
    /// A file with nothing in it.
    #[error("'{path}' is empty")]
    Empty {
        /// The path.
        path: PathBuf,
    },
    /// A block device without sectors: a detached loop device, or a drive without its medium.
    #[error("block device '{path}' has no size: nothing is attached to it, or its medium is out")]
    NoMedium {
        /// The path.
        path: PathBuf,
        /// Whether it is a loop device.
        is_loop: bool,
    },
    /// Anything else the system said.
    #[error("'{path}' can't be opened ({call})")]
    System {
        /// The path.
        path: PathBuf,
        /// The call that failed.
        call: &'static str,
        /// What the system said.
        source: Errno,
    },
}

impl Fault for FileError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::NotFound { path } => {
                let remedy = Remedy::from("check the spelling");
                // Among the devices a file would lie in memory.
                if path.starts_with("/dev") {
                    return remedy;
                }
                remedy.or(format!("make a file with `truncate -s 10G '{}'`", path.display()))
            }
            Self::NotAFile { .. } => "give the path of a regular file or a block device".into(),
            Self::NotPermitted { remedy, .. } => (*remedy).into(),
            Self::InUse { .. } => "stop that first".into(),
            Self::Alias { .. } => "stop that use, or name another file or device".into(),
            // What has such a size is hardly a disk, so no command that would change it.
            Self::Size { .. } => {
                "name a disk image or a block device, or a file made for this use".into()
            }
            Self::Empty { path } => {
                format!("give it a size with `truncate -s 10G '{}'`", path.display()).into()
            }
            Self::NoMedium { path, is_loop: true } => {
                format!("attach a file with `losetup '{}' FILE`", path.display()).into()
            }
            Self::NoMedium { .. } => "insert its medium, or name another device".into(),
            Self::System { .. } => "see the kernel's log for the disk".into(),
        }
    }
}

/// What opening found.
pub(super) struct Opened {
    pub(super) file: OwnedFd,
    /// Locks on what lies below it, held as long as it is open.
    pub(super) locks: Vec<OwnedFd>,
    pub(super) is_block: bool,
    pub(super) description: Description,
}

/// Opens, locks and describes.
pub(super) fn open(path: &Path, options: &OpenOptions) -> Result<Opened, FileError> {
    let is_block = look(path, options.read_only)?;
    let (file, locks) = open_patiently(path, is_block, options)?;
    let call = |call, source| FileError::System { path: path.into(), call, source };
    let opened = rustix::fs::fstat(&file).map_err(|source| call("fstat", source))?;
    if check_type(path, &opened)? != is_block {
        return Err(call("open", Errno::STALE));
    }
    let size_bytes = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| call("lseek", e))?;
    check_size(path, &opened, size_bytes)?;
    let alignment = enable_direct(path, &file, is_block, size_bytes);
    let device = if is_block { opened.st_rdev } else { opened.st_dev };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let identity = if is_block {
        format!("block:{major}:{minor}")
    } else {
        format!("file:{major}:{minor}:{}", opened.st_ino)
    };
    let geometry = Sysfs::system().of_device(major, minor);
    let queue = |name: &str| queue_setting(major, minor, name);
    let description = Description {
        name: path.display().to_string(),
        size_bytes,
        identity: Some(identity),
        read_only: options.read_only,
        // Offsets in a file are none on the disk.
        geometry: if is_block { geometry } else { geometry.without_stripes() },
        can_discard: if is_block {
            queue("discard_max_bytes") > Some(0)
        } else {
            !options.read_only && can_punch(&file, size_bytes)
        },
        can_zero_fast: if is_block {
            queue("write_zeroes_max_bytes") > Some(0)
        } else {
            knows_zero_range(&file)
        },
        alignment_bytes: alignment.unwrap_or(SECTOR_BYTES as u32),
    };
    Ok(Opened { file, locks, is_block, description })
}

/// Whether there is a block device; an error if there is no file either.
pub(super) fn look(path: &Path, read_only: bool) -> Result<bool, FileError> {
    let stat = rustix::fs::stat(path).map_err(|source| match source {
        Errno::NOENT | Errno::NOTDIR => FileError::NotFound { path: path.into() },
        Errno::ACCESS => not_permitted(path, false, read_only, source),
        source => FileError::System { path: path.into(), call: "stat", source },
    })?;
    check_type(path, &stat)
}

/// Whether it is a block device; an error if it is no file either.
fn check_type(path: &Path, stat: &Stat) -> Result<bool, FileError> {
    let found = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(false),
        FileType::BlockDevice => return Ok(true),
        FileType::Directory => "directory",
        FileType::CharacterDevice => "character device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        _ => "special file",
    };
    Err(FileError::NotAFile { path: path.into(), found })
}

fn check_size(path: &Path, stat: &Stat, size_bytes: u64) -> Result<(), FileError> {
    /// The major number of loop devices.
    const LOOP: u32 = 7;
    let path = || path.into();
    if size_bytes > 0 && size_bytes.is_multiple_of(SECTOR_BYTES) {
        return Ok(());
    }
    Err(match FileType::from_raw_mode(stat.st_mode) {
        _ if size_bytes > 0 => FileError::Size { path: path(), size_bytes },
        FileType::BlockDevice => {
            let is_loop = rustix::fs::major(stat.st_rdev) == LOOP;
            FileError::NoMedium { path: path(), is_loop }
        }
        _ => FileError::Empty { path: path() },
    })
}

/// How often a file is tried that somebody else has.
const IN_USE_POLL: Duration = Duration::from_millis(50);

/// Opens the file as soon as nobody else has it, within the time there is.
fn open_patiently(
    path: &Path,
    is_block: bool,
    options: &OpenOptions,
) -> Result<(OwnedFd, Vec<OwnedFd>), FileError> {
    let begin = Instant::now();
    let mut said = false;
    loop {
        let opened = open_alone(path, is_block, options.read_only);
        let in_use = matches!(&opened, Err(FileError::InUse { .. } | FileError::Alias { .. }));
        if !in_use || begin.elapsed() >= options.in_use_wait {
            return opened;
        }
        if !said {
            let seconds = options.in_use_wait.as_secs();
            tracing::info!(
                path = %path.display(),
                "the file is in use, by a process that is ending maybe: tried for {seconds} s"
            );
            said = true;
        }
        std::thread::sleep(IN_USE_POLL);
    }
}

/// Opens the file if neither it nor another name of it is in use, and locks what is below it.
fn open_alone(
    path: &Path,
    is_block: bool,
    read_only: bool,
) -> Result<(OwnedFd, Vec<OwnedFd>), FileError> {
    let aliased = |Alias(alias)| FileError::Alias { path: path.into(), alias };
    match open_locked(path, is_block, read_only) {
        Ok(file) => {
            let stat = rustix::fs::fstat(&file).map_err(|source| FileError::System {
                path: path.into(),
                call: "fstat",
                source,
            })?;
            let locks = follow(&stat, is_block).map_err(aliased)?;
            Ok((file, locks))
        }
        // A file below a loop device is locked through that: the loop device is named then.
        Err(error @ FileError::InUse { .. }) if !is_block => match rustix::fs::stat(path) {
            Ok(stat) => Err(follow(&stat, is_block).err().map_or(error, aliased)),
            Err(_) => Err(error),
        },
        Err(error) => Err(error),
    }
}

fn follow(stat: &Stat, is_block: bool) -> Result<Vec<OwnedFd>, Alias> {
    let numbers = |device| (rustix::fs::major(device), rustix::fs::minor(device));
    match is_block {
        true => {
            let device = numbers(stat.st_rdev);
            alias::follow(&System, Node::Device(device), device)
        }
        false => alias::follow(&System, Node::File(FileId::of(stat)), numbers(stat.st_dev)),
    }
}

/// Opens the file and takes it for this opening alone (a reader of a file: together with other
/// readers).
fn open_locked(path: &Path, is_block: bool, read_only: bool) -> Result<OwnedFd, FileError> {
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    // On a block device, without O_CREAT, O_EXCL asks the kernel for sole use.
    let sole = if is_block { OFlags::EXCL } else { OFlags::empty() };
    let flags = access | sole | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|source| match source {
        Errno::NOENT => FileError::NotFound { path: path.into() },
        Errno::BUSY | Errno::TXTBSY => FileError::InUse {
            path: path.into(),
            holder: " (mounted, or part of a RAID, LVM or swap)",
        },
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            not_permitted(path, is_block, read_only, source)
        }
        source => FileError::System { path: path.into(), call: "open", source },
    })?;
    if is_block {
        return Ok(file);
    }
    let lock = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match rustix::fs::flock(&file, lock) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(FileError::InUse { path: path.into(), holder: "" }),
        Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {
            tracing::warn!(
                path = %path.display(),
                "the file system has no locks: nothing keeps another process from this file"
            );
            Ok(file)
        }
        Err(source) => Err(FileError::System { path: path.into(), call: "flock", source }),
    }
}

fn not_permitted(path: &Path, is_block: bool, read_only: bool, source: Errno) -> FileError {
    let access = if read_only { "reading" } else { "writing" };
    let remedy = match (source, is_block, read_only) {
        (Errno::ROFS, ..) => "its file system or disk is read-only; serve it read-only",
        // Root gets this as well, so another user is no remedy.
        (Errno::PERM, true, _) => {
            "a container or a security policy forbids it: allow this device there"
        }
        (Errno::PERM, false, _) => {
            "it is immutable (see `lsattr`, and `chattr -i`), or a security policy forbids it"
        }
        (_, _, true) => "run as a user who may read it",
        (_, _, false) => "run as a user who may write it, or serve it read-only",
    };
    FileError::NotPermitted { path: path.into(), access, remedy, source }
}

/// Switches the open file to direct I/O. Gives the alignment that this asks for, or `None` where
/// the page cache is used; that is said once, as it costs the memory twice.
fn enable_direct(path: &Path, file: &OwnedFd, is_block: bool, size_bytes: u64) -> Option<u32> {
    let buffered = |reason: &str| {
        tracing::warn!(
            path = %path.display(),
            reason,
            "direct I/O is not possible: the page cache keeps a second copy of what is cached"
        );
        None
    };
    let Some(alignment) = direct_alignment(file, is_block) else {
        return buffered("the file system has none");
    };
    if alignment > 4096 {
        return buffered("it would need an alignment above 4096 bytes");
    }
    let alignment = alignment.max(SECTOR_BYTES as u32);
    if !size_bytes.is_multiple_of(u64::from(alignment)) {
        return buffered("its size is no multiple of the alignment, 4096 bytes");
    }
    let flags = rustix::fs::fcntl_getfl(file).unwrap_or(OFlags::empty());
    match rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT) {
        Ok(()) => Some(alignment),
        Err(_) => buffered("the file system refuses it"),
    }
}

/// The alignment of offsets, lengths and memory for direct I/O, in bytes; `None` where there is
/// no direct I/O.
fn direct_alignment(file: &OwnedFd, is_block: bool) -> Option<u32> {
    let flags = rustix::fs::AtFlags::EMPTY_PATH;
    let asked = StatxFlags::DIOALIGN;
    if let Ok(statx) = rustix::fs::statx(file, c"", flags, asked)
        && StatxFlags::from_bits_retain(statx.stx_mask).contains(asked)
    {
        let alignment = statx.stx_dio_mem_align.max(statx.stx_dio_offset_align);
        return (alignment > 0).then_some(alignment);
    }
    if is_block {
        return rustix::fs::ioctl_blksszget(file).ok();
    }
    // Kernels before 6.1 and file systems that do not say: all disks take 4096, and memory file
    // systems, which take the flag and ignore it, have no direct I/O to speak of.
    const TMPFS: i128 = 0x0102_1994;
    const RAMFS: i128 = 0x8584_58f6;
    let magic = i128::from(rustix::fs::fstatfs(file).ok()?.f_type);
    (magic != TMPFS && magic != RAMFS).then_some(4096)
}

/// Whether holes can be punched: tried behind the end, where there is nothing to lose.
fn can_punch(file: &OwnedFd, size_bytes: u64) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, mode, size_bytes.next_multiple_of(4096), 4096).is_ok()
}

/// Whether the file system can zero a range without writing it. Trying would allocate, so this
/// goes by the file systems known to (in the order: ext4, XFS, btrfs, F2FS).
fn knows_zero_range(file: &OwnedFd) -> bool {
    const KNOWN: [i128; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010];
    rustix::fs::fstatfs(file).is_ok_and(|fs| KNOWN.contains(&i128::from(fs.f_type)))
}

/// A setting of the request queue of a block device, or of the disk that it is a part of.
fn queue_setting(major: u32, minor: u32, name: &str) -> Option<u64> {
    let device = format!("/sys/dev/block/{major}:{minor}");
    [format!("{device}/queue/{name}"), format!("{device}/../queue/{name}")]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok())
}
