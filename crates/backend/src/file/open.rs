//! Opening a file or block device: looking, locking, and finding out what it can do.
//!
//! Nothing is opened before it is known to be a file or a block device (opening a pipe would
//! wait for its other end), and nothing is used before it is locked: a block device by an
//! exclusive open, which also keeps mounts, RAID and LVM away, a file by an advisory lock
//! (`flock`), which keeps other Forebays away and whoever else asks for it.

use crate::geometry::Sysfs;
use crate::{Description, OpenOptions};
use forebay_types::SECTOR_BYTES;
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
    #[error("'{path}' does not exist: check the spelling{}", or_make(.path))]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// The path leads to something that holds no sectors.
    #[error("'{path}' is a {found}: give the path of a regular file or a block device")]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// This user may not open it so.
    #[error("'{path}' may not be opened for {access}: {remedy}")]
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
    /// Someone else has it.
    #[error("'{path}' is in use by another process or volume{holder}: stop that first")]
    InUse {
        /// The path.
        path: PathBuf,
        /// What may be holding it, for block devices.
        holder: &'static str,
    },
    /// Not made of whole sectors.
    #[error(
        "'{path}' is {size_bytes} bytes, no multiple of 512: make it longer with \
         `truncate -s {rounded_bytes} '{path}'`"
    )]
    Size {
        /// The path.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// The next size that would do.
        rounded_bytes: u64,
    },
    /// Nothing in it.
    #[error("'{path}' is empty: give it a size with `truncate -s 10G '{path}'`")]
    Empty {
        /// The path.
        path: PathBuf,
    },
    /// Anything else the system said.
    #[error("'{path}' can't be opened ({call}): see the cause, and the kernel's log for the disk")]
    System {
        /// The path.
        path: PathBuf,
        /// The call that failed.
        call: &'static str,
        /// What the system said.
        source: Errno,
    },
}

/// A file can be made anywhere but among the devices, where it would lie in memory.
fn or_make(path: &Path) -> String {
    if path.starts_with("/dev") {
        return String::new();
    }
    format!(", or make a file with `truncate -s 10G '{}'`", path.display())
}

/// What opening found.
pub(super) struct Opened {
    pub(super) file: OwnedFd,
    pub(super) is_block: bool,
    pub(super) description: Description,
}

/// Opens, locks and describes.
pub(super) fn open(path: &Path, options: &OpenOptions) -> Result<Opened, FileError> {
    let stat = rustix::fs::stat(path).map_err(|source| match source {
        Errno::NOENT | Errno::NOTDIR => FileError::NotFound { path: path.into() },
        Errno::ACCESS => not_permitted(path, options.read_only, source),
        source => FileError::System { path: path.into(), call: "stat", source },
    })?;
    let is_block = check_type(path, &stat)?;
    let file = open_patiently(path, is_block, options)?;
    let call = |call, source| FileError::System { path: path.into(), call, source };
    let opened = rustix::fs::fstat(&file).map_err(|source| call("fstat", source))?;
    if check_type(path, &opened)? != is_block {
        return Err(call("open", Errno::STALE));
    }
    let size_bytes = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| call("lseek", e))?;
    check_size(path, size_bytes)?;
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
    Ok(Opened { file, is_block, description })
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

fn check_size(path: &Path, size_bytes: u64) -> Result<(), FileError> {
    if size_bytes == 0 {
        return Err(FileError::Empty { path: path.into() });
    }
    if !size_bytes.is_multiple_of(SECTOR_BYTES) {
        let rounded_bytes = size_bytes.next_multiple_of(SECTOR_BYTES);
        return Err(FileError::Size { path: path.into(), size_bytes, rounded_bytes });
    }
    Ok(())
}

/// How often a file is tried that somebody else has.
const IN_USE_POLL: Duration = Duration::from_millis(50);

/// Opens the file as soon as nobody else has it, within the time there is.
fn open_patiently(
    path: &Path,
    is_block: bool,
    options: &OpenOptions,
) -> Result<OwnedFd, FileError> {
    let begin = Instant::now();
    let mut said = false;
    loop {
        let opened = open_locked(path, is_block, options.read_only, OFlags::empty());
        let in_use = matches!(&opened, Err(FileError::InUse { .. }));
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

/// Opens the file and takes it for this opening alone (a reader of a file: together with other
/// readers).
fn open_locked(
    path: &Path,
    is_block: bool,
    read_only: bool,
    more: OFlags,
) -> Result<OwnedFd, FileError> {
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    // On a block device, without O_CREAT, O_EXCL asks the kernel for sole use.
    let sole = if is_block { OFlags::EXCL } else { OFlags::empty() };
    let flags = access | sole | more | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|source| match source {
        Errno::NOENT => FileError::NotFound { path: path.into() },
        Errno::BUSY | Errno::TXTBSY => FileError::InUse {
            path: path.into(),
            holder: " (mounted, or part of a RAID, LVM or swap)",
        },
        Errno::ACCESS | Errno::PERM | Errno::ROFS => not_permitted(path, read_only, source),
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

fn not_permitted(path: &Path, read_only: bool, source: Errno) -> FileError {
    let (access, remedy) = match (read_only, source) {
        (true, _) => ("reading", "run as a user who may read it"),
        (false, Errno::ROFS) => {
            ("writing", "its file system or disk is read-only; serve it read-only")
        }
        (false, _) => ("writing", "run as a user who may write it, or serve it read-only"),
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
