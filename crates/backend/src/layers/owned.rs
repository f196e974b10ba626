//! `owned(record=PATH):BACKING`: a store that remembers its owners in a file, as an image of Ceph
//! does in its metadata. To try takeovers on one host: another number in the file is another owner.
//!
//! Each opening begins a [tenure](Tenure). When the file names another one, the store has been
//! taken over: from the next check of its presence on, it takes no I/O. Unlike a real shared disk
//! it does not refuse a former owner by itself.

use super::describe;
use crate::spec::{Fields, SpecError};
use crate::{Backend, Description, Displaced, Io, OpenError, Tenure};
use forebay_types::{Fault, IoError, Remedy};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The record of the owners cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot use '{path}' as the record of a store's owners")]
pub struct OwnedError {
    /// The file.
    path: PathBuf,
    /// The system's error.
    source: io::Error,
}

impl Fault for OwnedError {
    fn remedy(&self) -> Remedy {
        "give a file in a directory that this user may write to".into()
    }
}

/// A backend that remembers its owners.
pub struct Owned {
    path: PathBuf,
    tenure: Tenure,
    is_fenced: AtomicBool,
    inner: Arc<dyn Backend>,
    pub(super) description: Description,
}

/// Parses the option: the file.
pub(super) fn parse(text: &str) -> Result<String, SpecError> {
    let fields = Fields::parse("owned", text, ',', &["record"])?;
    fields.text("record").map(str::to_owned).ok_or_else(|| fields.missing("record", "owners"))
}

impl Owned {
    /// Begins a tenure, in the file at `path`, which need not exist.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn new(inner: Arc<dyn Backend>, path: &Path) -> Result<Self, OwnedError> {
        let tenure = begin(path).map_err(|source| OwnedError { path: path.into(), source })?;
        let description = describe("owned", &*inner);
        let (path, is_fenced) = (path.to_owned(), AtomicBool::new(false));
        Ok(Self { path, tenure, is_fenced, inner, description })
    }

    /// Opens the layer from its options.
    pub(super) fn open(inner: Arc<dyn Backend>, text: &str) -> Result<Self, OpenError> {
        Ok(Self::new(inner, Path::new(&parse(text)?))?)
    }
}

/// Writes a new tenure to the file.
fn begin(path: &Path) -> io::Result<Tenure> {
    let former = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    let tenure = Tenure::after(&former)?;
    std::fs::write(path, tenure.to_string())?;
    Ok(tenure)
}

impl Backend for Owned {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        if self.is_taken_over() {
            io.done.complete(Err(IoError::Io));
        } else {
            self.inner.submit(io);
        }
    }

    fn check_presence(&self) -> Result<(), Displaced> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let is_owner = Tenure::parse(&text).is_some_and(|present| present.own == self.tenure.own);
        self.is_fenced.fetch_or(!is_owner, Ordering::AcqRel);
        if self.is_taken_over() { Err(Displaced::TakenOver) } else { self.inner.check_presence() }
    }

    fn is_taken_over(&self) -> bool {
        self.is_fenced.load(Ordering::Acquire)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn tenure(&self) -> Option<Tenure> {
        Some(self.tenure.clone())
    }

    fn settle_tenure(&self) -> io::Result<()> {
        std::fs::write(&self.path, self.tenure.settled().to_string())
    }

    fn below(&self) -> Option<&dyn Backend> {
        Some(&*self.inner)
    }
}
