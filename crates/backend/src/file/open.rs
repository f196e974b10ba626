//! Opens a file or block device: checks its type, locks it, and detects its capabilities.
//!
//! The type is checked before the open, because the open of a pipe waits for its other end. The
//! lock is taken before any I/O: an exclusive open of a block device also excludes mounts, RAID and
//! LVM; an advisory lock on a file (`flock`) excludes other Forebays and all programs that take it.
//! Loop devices respect neither, so the open also searches for aliases of the same data
//! ([`super::alias`]).

use super::alias::{self, Alias, FileId, StorageNode, System};
use super::byte_locks::{self, LockRefused, Use};
use super::{ability, image, medium};
use crate::geometry::Sysfs;
use crate::{Description, DiskSize, OpenOptions, ReservationError, StoreMedium};
use forebay_types::{Action, Fault, IoError, Remedy, SECTOR_BYTES, Size};
use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, FlockOperation, IFlags, Mode, OFlags, SeekFrom,
    Stat, StatxFlags,
};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why a file or block device cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The path does not exist.
    #[error("'{path}' does not exist")]
    NotFound { path: PathBuf },
    /// The path leads to neither a file nor a block device.
    #[error("'{path}' is a {found}")]
    NotAFile {
        path: PathBuf,
        /// The type of the file.
        found: &'static str,
    },
    /// The permissions forbid the access.
    #[error("no permission to open '{path}' for {access}")]
    NotPermitted {
        path: PathBuf,
        /// `reading` or `writing`.
        access: &'static str,
        /// The remedy for this cause.
        remedy: &'static str,
        /// The system's error.
        source: Errno,
    },
    /// Another process or volume uses it.
    #[error("'{path}' is in use by another process or volume{holder}")]
    InUse {
        path: PathBuf,
        /// Its users or possible users, in parentheses.
        holder: String,
    },
    /// The same data is in use under another name.
    #[error("'{path}' is in use under another name: {alias}")]
    Alias {
        path: PathBuf,
        /// The other name, and how it leads to the same data.
        alias: String,
    },
    /// The size is not a multiple of the sector size.
    #[error("'{path}' is {size_bytes} bytes, not a multiple of 512")]
    Size { path: PathBuf, size_bytes: u64 },
    /// An empty file.
    #[error("'{path}' is empty")]
    Empty { path: PathBuf },
    /// A block device without sectors: a detached loop device, or a drive without its medium.
    #[error("block device '{path}' has no size: no file is attached, or no medium inserted")]
    NoMedium {
        path: PathBuf,
        /// Whether it is a loop device.
        is_loop: bool,
    },
    /// A device that refuses writes, opened for writing.
    #[error("'{path}' is read-only")]
    ReadOnly { path: PathBuf },
    /// The system swaps to the file.
    #[error("'{path}' is in use as swap")]
    Swap { path: PathBuf },
    /// A zoned device, opened for writing, that accepts writes only at the end of each zone.
    #[error("'{path}' is a zoned device that accepts sequential writes only")]
    Zoned { path: PathBuf },
    /// An image in the format of a virtual machine's disk.
    #[error("'{path}' is a disk image in the format {format}, not a raw disk")]
    Image { path: PathBuf, format: &'static str },
    /// The system does not let this process write the whole file.
    #[error(
        "'{path}' has {}, and the limit on the size of files (ulimit -f) is {}",
        Size(*size_bytes), Size(*limit_bytes)
    )]
    Limit { path: PathBuf, size_bytes: u64, limit_bytes: u64 },
    /// It cannot be reserved.
    #[error(transparent)]
    Reservation(#[from] ReservationError),
    /// Any other error of the system.
    #[error("cannot open '{path}' ({call} failed)")]
    System {
        path: PathBuf,
        /// The call that failed.
        call: &'static str,
        /// The system's error.
        source: Errno,
    },
}

impl Fault for FileError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::NotFound { path } => {
                let remedy = Remedy::from("check the spelling");
                // A file made under /dev would be in memory.
                if path.starts_with("/dev") {
                    return remedy;
                }
                remedy.or(format!("make a file with `truncate -s 10G '{}'`", path.display()))
            }
            Self::NotAFile { .. } => "give the path of a regular file or a block device".into(),
            Self::NotPermitted { remedy, .. } => (*remedy).into(),
            Self::InUse { holder, .. } if holder.contains("mounted at") => {
                "unmount it with `umount`, or specify another device".into()
            }
            Self::InUse { .. } | Self::Alias { .. } => {
                "stop the program that uses it, or specify another file or device".into()
            }
            // Such a file is probably not a disk, so no command is suggested that changes it.
            Self::Size { .. } => {
                "name a disk image or a block device, or a file made for this use".into()
            }
            Self::Empty { path } => {
                format!("give it a size with `truncate -s 10G '{}'`", path.display()).into()
            }
            Self::NoMedium { path, is_loop: true } => {
                format!("attach a file with `losetup '{}' FILE`", path.display()).into()
            }
            Self::NoMedium { .. } => "insert a medium, or name another device".into(),
            Self::ReadOnly { path } => Remedy::from("serve it read-only")
                .or(format!("make it writable with `blockdev --setrw '{}'`", path.display())),
            Self::Swap { path } => {
                Remedy::from(format!("run `swapoff '{}'`", path.display())).or("name another file")
            }
            Self::Zoned { .. } => "serve it read-only, or a file system's file on it".into(),
            Self::Image { path, .. } => Remedy::from(format!(
                "convert it with `qemu-img convert -O raw '{}' NEW`, or export it with qemu-nbd \
                 and serve that",
                path.display()
            ))
            .or(Action::ServeAsRaw),
            Self::Limit { .. } => {
                "raise the limit (ulimit -f unlimited, or LimitFSIZE=infinity of the service)"
                    .into()
            }
            Self::Reservation(error) => error.remedy(),
            Self::System { source, .. } => {
                IoError::from_errno(source.raw_os_error()).remedy().into()
            }
        }
    }
}

/// An open, locked file or block device.
pub(super) struct OpenedFile {
    pub(super) file: OwnedFd,
    /// Locks on the files below it, held as long as it is open.
    pub(super) locks: Vec<OwnedFd>,
    pub(super) is_block: bool,
    pub(super) medium: StoreMedium,
    pub(super) description: Description,
}

/// Opens and locks a file or block device, and detects its properties.
pub(super) fn open(path: &Path, options: &OpenOptions) -> Result<OpenedFile, FileError> {
    let is_block = is_block_device(path, options.read_only)?;
    let (file, locks) = open_when_free(path, is_block, options)?;
    let call = |call, source| FileError::System { path: path.into(), call, source };
    let opened = rustix::fs::fstat(&file).map_err(|source| call("fstat", source))?;
    if check_type(path, &opened)? != is_block {
        return Err(call("open", Errno::STALE));
    }
    let FileProperties { size_bytes, identity, medium } = examine(path, &file, &opened, options)?;
    let alignment = enable_direct(path, &file, is_block, size_bytes);
    let (major, minor) = numbers(&opened, is_block);
    let geometry = Sysfs::system().of_device(major, minor);
    let queue = |name: &str| queue_setting(major, minor, name);
    let description = Description {
        name: path.display().to_string(),
        size: DiskSize::new(size_bytes),
        identity: Some(identity),
        read_only: options.read_only,
        // Offsets in a file are not offsets on the disk.
        geometry: if is_block { geometry } else { geometry.without_stripes() },
        can_discard: if is_block {
            queue("discard_max_bytes") > Some(0)
        } else {
            !options.read_only && can_punch(&file, size_bytes)
        },
        can_zero_fast: if is_block {
            queue("write_zeroes_max_bytes") > Some(0)
        } else {
            has_zero_range(&file)
        },
        alignment_bytes: alignment.unwrap_or(SECTOR_BYTES as u32),
    };
    Ok(OpenedFile { file, locks, is_block, medium, description })
}

/// What can be asked of a file or block device before it is used.
pub(super) struct FileProperties {
    pub(super) size_bytes: u64,
    pub(super) identity: String,
    pub(super) medium: StoreMedium,
}

/// Asks a file or block device, without locking it or opening it for writing.
pub(super) fn ask(path: &Path, options: &OpenOptions) -> Result<FileProperties, FileError> {
    let is_block = is_block_device(path, options.read_only)?;
    let refused = |source| not_permitted(path, is_block, options.read_only, source);
    let access =
        Access::READ_OK | if options.read_only { Access::EXISTS } else { Access::WRITE_OK };
    rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS).map_err(refused)?;
    if options.reserve && !is_block {
        return Err(ReservationError::Unsupported { path: path.display().to_string() }.into());
    }
    let file = open_at(path, is_block, true, OFlags::NONBLOCK)?;
    let is_append_only = || {
        let flags = rustix::fs::ioctl_getflags(&file);
        flags.is_ok_and(|flags| flags.contains(IFlags::APPEND))
    };
    if !options.read_only && !is_block && is_append_only() {
        return Err(refused(Errno::PERM));
    }
    let stat = rustix::fs::fstat(&file).map_err(|source| FileError::System {
        path: path.into(),
        call: "fstat",
        source,
    })?;
    examine(path, &file, &stat, options)
}

/// Asks an open file, which is not opened for direct I/O.
fn examine(
    path: &Path,
    file: &OwnedFd,
    stat: &Stat,
    options: &OpenOptions,
) -> Result<FileProperties, FileError> {
    let is_block = check_type(path, stat)?;
    let size_bytes = rustix::fs::seek(file, SeekFrom::End(0))
        .map_err(|source| FileError::System { path: path.into(), call: "lseek", source })?;
    // First, because an image may have any size.
    if options.refuse_images
        && let Some(format) = image::format_of(file, size_bytes)
    {
        return Err(FileError::Image { path: path.into(), format });
    }
    check_size(path, stat, size_bytes)?;
    ability::check(path, file, stat, size_bytes, options.read_only)?;
    let hidden_bytes = ability::bytes_beyond_blocks(path, file, is_block, size_bytes);
    let size_bytes = size_bytes - hidden_bytes;
    let identity = identity(stat, is_block);
    let medium = StoreMedium { hidden_bytes, ..medium::of(file, stat, is_block) };
    Ok(FileProperties { size_bytes, identity, medium })
}

/// The numbers of the device, or of the device that the file is on.
fn numbers(stat: &Stat, is_block: bool) -> (u32, u32) {
    let device = if is_block { stat.st_rdev } else { stat.st_dev };
    (rustix::fs::major(device), rustix::fs::minor(device))
}

/// The identity of a file or block device, whatever path leads to it.
fn identity(stat: &Stat, is_block: bool) -> String {
    let (major, minor) = numbers(stat, is_block);
    match is_block {
        true => format!("block:{major}:{minor}"),
        false => format!("file:{major}:{minor}:{}", stat.st_ino),
    }
}

/// The identity of the file or block device at a path, without opening it.
pub(crate) fn identity_at(path: &Path) -> Option<String> {
    let stat = rustix::fs::stat(path).ok()?;
    let is_block = check_type(path, &stat).ok()?;
    Some(identity(&stat, is_block))
}

/// Returns true for a block device, false for a regular file, an error for anything else.
pub(super) fn is_block_device(path: &Path, read_only: bool) -> Result<bool, FileError> {
    let stat = rustix::fs::stat(path).map_err(|source| match source {
        Errno::NOENT | Errno::NOTDIR => FileError::NotFound { path: path.into() },
        Errno::ACCESS => not_permitted(path, false, read_only, source),
        source => FileError::System { path: path.into(), call: "stat", source },
    })?;
    check_type(path, &stat)
}

/// Like [`is_block_device`], for the result of a `stat`.
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

pub(super) fn check_size(path: &Path, stat: &Stat, size_bytes: u64) -> Result<(), FileError> {
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

/// Time between two attempts to open a file that is in use.
const IN_USE_POLL: Duration = Duration::from_millis(50);

/// Opens the file. If it is in use, retries for up to `in_use_wait`.
fn open_when_free(
    path: &Path,
    is_block: bool,
    options: &OpenOptions,
) -> Result<(OwnedFd, Vec<OwnedFd>), FileError> {
    let begin = Instant::now();
    let mut is_logged = false;
    loop {
        let opened = match options.observes {
            true => open_at(path, is_block, true, OFlags::empty()).map(|file| (file, Vec::new())),
            false => open_exclusively(path, is_block, options.read_only),
        };
        let in_use = matches!(&opened, Err(FileError::InUse { .. } | FileError::Alias { .. }));
        if !in_use || begin.elapsed() >= options.in_use_wait {
            return opened;
        }
        if !is_logged {
            let wait = options.in_use_wait;
            tracing::info!(path = %path.display(), ?wait, "file in use, waiting for its release");
            is_logged = true;
        }
        std::thread::sleep(IN_USE_POLL);
    }
}

/// Opens the file if neither it nor an alias of it is in use, and locks the files below it.
fn open_exclusively(
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
        // If the file is locked through a loop device, the error names that device.
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
            alias::follow(&System, StorageNode::Device(device), device)
        }
        false => alias::follow(&System, StorageNode::File(FileId::of(stat)), numbers(stat.st_dev)),
    }
}

/// Opens the file.
fn open_at(
    path: &Path,
    is_block: bool,
    read_only: bool,
    more: OFlags,
) -> Result<OwnedFd, FileError> {
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let flags = access | more | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|source| match source {
        Errno::NOENT => FileError::NotFound { path: path.into() },
        Errno::BUSY | Errno::TXTBSY => {
            FileError::InUse { path: path.into(), holder: holder_of(path) }
        }
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            not_permitted(path, is_block, read_only, source)
        }
        source => FileError::System { path: path.into(), call: "open", source },
    })
}

/// Who uses a block device, as far as the kernel says so.
fn holder_of(path: &Path) -> String {
    let number = rustix::fs::stat(path).map_or(0, |stat| stat.st_rdev);
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let place = format!("/sys/dev/block/{major}:{minor}");
    match &crate::uses::device_uses(Path::new("/"), Path::new(&place))[..] {
        [] => " (mounted, or part of a RAID, LVM or swap)".into(),
        uses => format!(" ({})", uses.join(", ")),
    }
}

/// Opens and locks the file. Readers of a regular file share the lock.
fn open_locked(path: &Path, is_block: bool, read_only: bool) -> Result<OwnedFd, FileError> {
    // On a block device, O_EXCL without O_CREAT is an exclusive claim.
    let exclusive = if is_block { OFlags::EXCL } else { OFlags::empty() };
    let file = open_at(path, is_block, read_only, exclusive)?;
    if is_block {
        return lock_bytes(path, file, read_only);
    }
    let lock = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match rustix::fs::flock(&file, lock) {
        Ok(()) => lock_bytes(path, file, read_only),
        Err(Errno::WOULDBLOCK) => {
            Err(FileError::InUse { path: path.into(), holder: String::new() })
        }
        Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {
            tracing::warn!(
                path = %path.display(),
                "file system does not support locks, another process may use this file"
            );
            Ok(file)
        }
        Err(source) => Err(FileError::System { path: path.into(), call: "flock", source }),
    }
}

/// Takes the locks of QEMU and libvirt, which do not know those of other programs.
fn lock_bytes(path: &Path, file: OwnedFd, read_only: bool) -> Result<OwnedFd, FileError> {
    let usage = if read_only { Use::Reading } else { Use::Writing };
    match byte_locks::take(&file, usage) {
        Ok(()) => Ok(file),
        Err(LockRefused::ByQemu) => {
            Err(FileError::InUse { path: path.into(), holder: " (QEMU has locked it)".into() })
        }
        Err(LockRefused::ByAnother) => {
            Err(FileError::InUse { path: path.into(), holder: String::new() })
        }
        Err(LockRefused::Unsupported(error)) => {
            tracing::warn!(
                path = %path.display(),
                %error,
                "no byte locks, QEMU will not notice that this file or device is in use"
            );
            Ok(file)
        }
    }
}

pub(super) fn not_permitted(
    path: &Path,
    is_block: bool,
    read_only: bool,
    source: Errno,
) -> FileError {
    let access = if read_only { "reading" } else { "writing" };
    let remedy = match (source, is_block, read_only) {
        // With `ProtectSystem=strict`, as in our unit, all file systems are.
        (Errno::ROFS, false, false) => {
            "the file system is read-only, or the service may not write there: serve it \
             read-only, or add `ReadWritePaths=` with the file's directory to `[Service]` with \
             `systemctl edit forebay`"
        }
        (Errno::ROFS, ..) => "the file system or disk is read-only: serve it read-only",
        // This error also stops root, so another user would not help.
        (Errno::PERM, true, _) => {
            "a container or a security policy forbids it: allow this device there"
        }
        (Errno::PERM, false, _) => {
            "it is immutable or append-only (see `lsattr`, and `chattr -i` and `chattr -a`), or a \
             security policy forbids it"
        }
        (_, _, true) => "give the server's user read permission (the service runs as `forebay`)",
        (_, _, false) => {
            "give the server's user write permission (the service runs as `forebay`), or serve it \
             read-only"
        }
    };
    FileError::NotPermitted { path: path.into(), access, remedy, source }
}

/// Switches the open file to direct I/O. Returns the alignment that direct I/O requires. If it is
/// not possible, returns `None` and logs a warning, because the page cache takes as much memory
/// again.
fn enable_direct(path: &Path, file: &OwnedFd, is_block: bool, size_bytes: u64) -> Option<u32> {
    let buffered = |reason: &str| {
        tracing::warn!(
            path = %path.display(),
            reason,
            "direct I/O is not possible: the page cache keeps a second copy of cached data"
        );
        None
    };
    let Some(alignment) = direct_alignment(file, is_block) else {
        return buffered("not supported by the file system");
    };
    if alignment > 4096 {
        return buffered("requires an alignment above 4096 bytes");
    }
    let alignment = alignment.max(SECTOR_BYTES as u32);
    if !size_bytes.is_multiple_of(u64::from(alignment)) {
        return buffered("the size is not a multiple of the alignment");
    }
    let flags = rustix::fs::fcntl_getfl(file).unwrap_or(OFlags::empty());
    match rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT) {
        Ok(()) => Some(alignment),
        Err(_) => buffered("refused by the file system"),
    }
}

/// The alignment of offsets, lengths and memory for direct I/O, in bytes; `None` without it.
fn direct_alignment(file: &OwnedFd, is_block: bool) -> Option<u32> {
    let flags = rustix::fs::AtFlags::EMPTY_PATH;
    let requested = StatxFlags::DIOALIGN;
    if let Ok(statx) = rustix::fs::statx(file, c"", flags, requested)
        && StatxFlags::from_bits_retain(statx.stx_mask).contains(requested)
    {
        let alignment = statx.stx_dio_mem_align.max(statx.stx_dio_offset_align);
        return (alignment > 0).then_some(alignment);
    }
    if is_block {
        return rustix::fs::ioctl_blksszget(file).ok();
    }
    // Kernels before 6.1 and some file systems do not report it. All disks accept 4096. Memory file
    // systems accept the flag and ignore it.
    let number = rustix::fs::fstatfs(file).ok()?.f_type as u32;
    medium::memory_type(number).is_none().then_some(4096)
}

/// Whether the file system can punch holes. The trial is past the end, where there is no data.
fn can_punch(file: &OwnedFd, size_bytes: u64) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, mode, size_bytes.next_multiple_of(4096), 4096).is_ok()
}

/// Whether the file can be zeroed without writing it. A trial would allocate space, so the answer
/// depends on the kind of file system: XFS, btrfs, F2FS, and ext4 for files with extents. ext2 and
/// ext3 have the number of ext4, but no extents.
fn has_zero_range(file: &OwnedFd) -> bool {
    const EXT: i128 = 0xEF53;
    const OTHERS: [i128; 3] = [0x5846_5342, 0x9123_683E, 0xF2F5_2010];
    /// `FS_EXTENT_FL`, from the kernel's interface.
    const EXTENTS: u32 = 0x8_0000;
    match rustix::fs::fstatfs(file).map(|fs| i128::from(fs.f_type)) {
        Ok(EXT) => rustix::fs::ioctl_getflags(file).is_ok_and(|flags| flags.bits() & EXTENTS != 0),
        Ok(other) => OTHERS.contains(&other),
        Err(_) => false,
    }
}

/// A number among the settings of the request queue of a block device.
fn queue_setting(major: u32, minor: u32, name: &str) -> Option<u64> {
    queue_text(major, minor, name)?.parse().ok()
}

/// A setting of the request queue of a block device, or of the disk of a partition.
pub(super) fn queue_text(major: u32, minor: u32, name: &str) -> Option<String> {
    let device = format!("/sys/dev/block/{major}:{minor}");
    [format!("{device}/queue/{name}"), format!("{device}/../queue/{name}")]
        .iter()
        .find_map(|path| Some(std::fs::read_to_string(path).ok()?.trim().to_owned()))
}
