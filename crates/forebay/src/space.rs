//! The space of journals and vaults in files: allocated before they are used, because a file system
//! that is full later would make them fail at the worst moment.

use forebay_state::Kind;
use forebay_types::{Action, Fault, Remedy, Size};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::error::Error;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The space of a file cannot be allocated.
#[derive(Debug)]
pub(crate) struct AllocateError {
    bytes: u64,
    kind: Kind,
    path: PathBuf,
    source: io::Error,
}

impl AllocateError {
    pub(crate) fn new(bytes: u64, kind: Kind, path: &Path, error: Errno) -> Self {
        Self { bytes, kind, path: path.to_owned(), source: error.into() }
    }
}

impl fmt::Display for AllocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, kind, path, .. } = self;
        write!(f, "cannot allocate {} for the {kind} {}", Size(*bytes), path.display())
    }
}

impl Error for AllocateError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

impl Fault for AllocateError {
    fn remedy(&self) -> Remedy {
        let free = Remedy::from(match self.source.kind() {
            io::ErrorKind::FileTooLarge => "raise the limit on the size of files (ulimit -f)",
            _ => "free space",
        });
        match self.kind {
            Kind::Journal => free.or("name another file or device with journal=PATH"),
            Kind::Vault => free.or(Action::set("vault", "PATH")),
        }
    }
}

/// Allocates the first `bytes` of a file.
///
/// # Errors
/// Fails if the file system lacks the space, or cannot allocate.
pub(crate) fn allocate(
    file: &File,
    bytes: u64,
    kind: Kind,
    path: &Path,
) -> Result<(), AllocateError> {
    let allocated = fallocate(file, FallocateFlags::empty(), 0, bytes);
    allocated.map_err(|error| AllocateError::new(bytes, kind, path, error))
}

/// Allocates the holes of a file that is in use. Any other path is left alone: opening it reports
/// the error. Where the file system cannot allocate, a warning says so.
///
/// # Errors
/// Fails if the file system lacks the space.
pub(crate) fn allocate_all(path: &Path, kind: Kind, state_dir: &Path) -> Result<(), AllocateError> {
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    if !found.is_file() || found.len() == 0 {
        return Ok(());
    }
    if std::fs::metadata(state_dir).is_ok_and(|state| state.dev() == found.dev()) {
        tracing::warn!(
            %kind,
            path = %path.display(),
            state = %state_dir.display(),
            "file is on the file system of the state directory; if it fails, both fail"
        );
    }
    // Opening it for use says why it cannot be written.
    let Ok(file) = OpenOptions::new().write(true).open(path) else { return Ok(()) };
    match allocate(&file, found.len(), kind, path) {
        Err(error) if error.source.kind() == io::ErrorKind::Unsupported => {
            let path = path.display();
            tracing::warn!(
                %kind,
                %path,
                "file system cannot allocate, and may lack the space for the file later"
            );
            Ok(())
        }
        allocated => allocated,
    }
}
