//! Opens a backend by its name.
//!
//! ```text
//! BACKING = PATH                                   a regular file or block device
//!         | file:PATH                              the same, whatever the path looks like
//!         | memory:SIZE                            zeroes in memory
//!         | memory:SIZE?save=PATH[&every=TIME]     memory, loaded from a file and saved to it
//!         | model:hdd?OPTION=VALUE&…               a modelled hard disk  (size= or backing=)
//!         | model:ssd?OPTION=VALUE&…               a modelled flash disk (size= or backing=)
//!         | model:fixed?OPTION=VALUE&…             a disk that takes the same time for each I/O
//!         | model:raid5?OPTION=VALUE&…             an array of disks; raid0, 1, 5, 6 and 10
//!         | nbd://HOST[:PORT]/EXPORT               an export of an NBD server
//!         | nbd+unix:///EXPORT?socket=PATH         the same over a Unix socket
//!         | rbd:POOL/IMAGE[@CONF][?user=USER]      an image of a Ceph cluster
//!         | SCHEME:…                               of a crate above this one: `add_scheme`
//!         | LAYER(OPTION=VALUE,…):BACKING          a layer over any of these
//! LAYER   = blocks | delay | error | owned | rate | trace | volatile
//! ```
//!
//! Values are percent-encoded if they contain a separator: `%`, `,` or `)` in a layer, `%` or `&`
//! in a model. The part before the first colon or parenthesis distinguishes a name from a path: a
//! file called `memory:1GiB` is opened as `./memory:1GiB` or `file:memory:1GiB`.

use crate::file::{self, FileBackend, FileError};
use crate::layers::{BlocksError, OwnedError, TraceFileError, VolatileError};
use crate::memory::MemoryStoreError;
use crate::model::ModelError;
use crate::nbd::NbdError;
use crate::rbd::RbdError;
use crate::sync::{read, write};
use crate::{Backend, OpenOptions, SpecError, layers, memory, model, nbd, rbd};
use forebay_types::{Blame, Fault, Remedy, backing};
use std::path::Path;
use std::sync::{Arc, RwLock};

/// Maximum number of nested layers and models: the open is recursive.
const LAYERS_MAX: usize = 16;

/// A kind of backend other than a file or block device.
struct Scheme {
    /// The texts before the colon.
    names: &'static [&'static str],
    /// Whether a store can have one owner among several hosts, whatever the options.
    has_owner: bool,
    open: Open,
}

/// Opens a backend. Takes the whole name and the part after the colon, and the number of layers
/// above it.
type Open = fn((&str, &str), &OpenOptions, usize) -> Result<Arc<dyn Backend>, OpenError>;

/// The registry of schemes. Any other name is the path of a file or block device.
const SCHEMES: [Scheme; 4] = [
    Scheme {
        names: &["memory"],
        has_owner: false,
        open: |(_, text), options, _| Ok(memory::open(text, options)?),
    },
    Scheme {
        names: &["model"],
        has_owner: false,
        open: |(_, text), options, depth| model::open(text, options, depth),
    },
    Scheme {
        names: &["nbd", "nbds", "nbd+unix", "nbds+unix"],
        has_owner: false,
        open: |(url, _), options, _| Ok(nbd::open(url, options)?),
    },
    Scheme {
        names: &["rbd"],
        has_owner: true,
        open: |(name, _), options, _| Ok(rbd::open(name, options)?),
    },
];

/// A kind of backend of another crate, such as one whose libraries this crate does without.
#[derive(Clone, Copy, Debug)]
pub struct AddedScheme {
    /// The text before the colon.
    pub name: &'static str,
    /// Whether a store can have one owner among several hosts, whatever the options.
    pub has_owner: bool,
    /// Opens the whole name, or a stand-in for a trial.
    pub open: OpenAdded,
}

/// Opens a name, with its scheme.
pub type OpenAdded = fn(&str, &OpenOptions) -> Result<Arc<dyn Backend>, AddedError>;

/// The schemes of other crates, which the program adds when it starts.
static ADDED: RwLock<Vec<AddedScheme>> = RwLock::new(Vec::new());

/// Adds a kind of backend for the rest of the process.
pub fn add_scheme(scheme: AddedScheme) {
    write(&ADDED).push(scheme);
}

fn added_scheme(spec: &str) -> Option<AddedScheme> {
    let (name, _) = spec.split_once(':')?;
    read(&ADDED).iter().find(|scheme| scheme.name == name).copied()
}

/// An error of a kind of backend that was added.
#[derive(Debug)]
pub struct AddedError(Box<dyn Fault + Send + Sync>);

impl AddedError {
    /// Wraps an error.
    pub fn new(error: impl Fault + Send + Sync + 'static) -> Self {
        Self(Box::new(error))
    }
}

impl std::fmt::Display for AddedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for AddedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

impl Fault for AddedError {
    fn remedy(&self) -> Remedy {
        self.0.remedy()
    }

    fn blame(&self) -> Blame {
        self.0.blame()
    }
}

/// The scheme of a name, and the part after the colon; `None` for a path.
fn scheme_of(spec: &str) -> Option<(&'static Scheme, &str)> {
    let (name, rest) = spec.split_once(':')?;
    let scheme = SCHEMES.iter().find(|scheme| scheme.names.contains(&name))?;
    Some((scheme, rest))
}

/// Why a backend cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is malformed.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A file or block device.
    #[error(transparent)]
    File(#[from] FileError),
    /// A store in memory.
    #[error(transparent)]
    Memory(#[from] MemoryStoreError),
    /// A modelled disk.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An NBD server.
    #[error(transparent)]
    Nbd(#[from] NbdError),
    /// An image of a Ceph cluster.
    #[error(transparent)]
    Rbd(#[from] RbdError),
    /// The record of a store's owners.
    #[error(transparent)]
    Owned(#[from] OwnedError),
    /// Larger blocks.
    #[error(transparent)]
    Blocks(#[from] BlocksError),
    #[error(transparent)]
    Trace(#[from] TraceFileError),
    /// A volatile cache.
    #[error(transparent)]
    Volatile(#[from] VolatileError),
    /// A kind of backend of another crate.
    #[error(transparent)]
    Added(#[from] AddedError),
}

impl OpenError {
    fn fault(&self) -> &dyn Fault {
        match self {
            Self::Spec(error) => error,
            Self::File(error) => error,
            Self::Memory(error) => error,
            Self::Model(error) => error,
            Self::Nbd(error) => error,
            Self::Rbd(error) => error,
            Self::Blocks(error) => error,
            Self::Owned(error) => error,
            Self::Trace(error) => error,
            Self::Volatile(error) => error,
            Self::Added(error) => error,
        }
    }
}

impl Fault for OpenError {
    fn remedy(&self) -> Remedy {
        self.fault().remedy()
    }

    fn blame(&self) -> Blame {
        self.fault().blame()
    }
}

/// The path of the file or block device that `spec` names, if it has no layers and no other scheme.
pub fn plain_path(spec: &str) -> Option<&Path> {
    let is_path = backing::scheme_of(spec).is_none_or(|scheme| scheme == "file");
    let is_plain = is_path && matches!(split_layer(spec), Ok(None));
    is_plain.then(|| path_of(spec).ok()).flatten()
}

/// The identity of the file or block device that `spec` names, below its layers, as in
/// [`Description::identity`](crate::Description); `None` if it names none that exists.
pub fn identity_of(spec: &str) -> Option<String> {
    let mut rest = spec;
    while let Some((_, _, inner)) = split_layer(rest).ok()? {
        rest = inner;
    }
    file::identity_at(plain_path(rest)?)
}

/// Checks everything that opening `spec` would, as far as that is known without locking, connecting
/// or writing anything. Returns a stand-in with the properties of the store.
///
/// # Errors
/// If opening it would fail. It may still fail because the store is in use, or because its server
/// cannot be reached.
pub fn try_open(spec: &str, options: &OpenOptions) -> Result<Arc<dyn Backend>, OpenError> {
    open_nested(spec, &OpenOptions { is_trial: true, ..options.clone() }, 0)
}

/// The memory that opening `spec` allocates, in bytes: the size of a store in memory with an image,
/// also below layers.
pub fn allocated_bytes(spec: &str) -> Option<u64> {
    let mut rest = spec;
    while let Ok(Some((_, _, inner))) = split_layer(rest) {
        rest = inner;
    }
    memory::allocated_bytes(rest.strip_prefix("memory:")?)
}

/// Whether the store that `spec` names can have one owner among several hosts, as far as its name
/// says. `reserve` is [`OpenOptions::reserve`].
pub fn can_be_shared(spec: &str, reserve: bool) -> bool {
    let mut rest = spec;
    while let Ok(Some((name, _, inner))) = split_layer(rest) {
        if name == "owned" {
            return true;
        }
        rest = inner;
    }
    match (scheme_of(rest), added_scheme(rest)) {
        (Some((scheme, _)), _) => scheme.has_owner,
        (None, Some(scheme)) => scheme.has_owner,
        (None, None) => reserve,
    }
}

/// Opens the backend that `spec` names.
pub fn open(spec: &str, options: &OpenOptions) -> Result<Arc<dyn Backend>, OpenError> {
    open_nested(spec, options, 0)
}

/// Opens a backend below `depth` others.
pub(crate) fn open_nested(
    spec: &str,
    options: &OpenOptions,
    depth: usize,
) -> Result<Arc<dyn Backend>, OpenError> {
    if depth > LAYERS_MAX {
        return Err(SpecError::TooDeep { max: LAYERS_MAX }.into());
    }
    if let Some((name, text, inner)) = split_layer(spec)? {
        let inner = open_nested(inner, options, depth + 1)?;
        return layers::open(name, text, inner, options);
    }
    if let Some((scheme, rest)) = scheme_of(spec) {
        return (scheme.open)((spec, rest), options, depth);
    }
    if let Some(scheme) = added_scheme(spec) {
        return Ok((scheme.open)(spec, options)?);
    }
    let path = path_of(spec)?;
    if options.is_trial {
        return match FileBackend::ask(path, options) {
            Ok(trial) => Ok(Arc::new(trial)),
            Err(error) => Err(name_scheme(spec, error)),
        };
    }
    match FileBackend::open(path, options) {
        Ok(backend) => Ok(Arc::new(backend)),
        Err(error) => Err(name_scheme(spec, error)),
    }
}

fn path_of(spec: &str) -> Result<&Path, SpecError> {
    let path = spec.strip_prefix("file:").unwrap_or(spec);
    if path.is_empty() { Err(SpecError::Empty) } else { Ok(Path::new(path)) }
}

/// Reports an unknown scheme rather than a missing file, unless the name has no scheme.
fn name_scheme(spec: &str, error: FileError) -> OpenError {
    match (error, backing::scheme_of(spec)) {
        (FileError::NotFound { .. }, Some(scheme)) if scheme != "file" => {
            SpecError::NoBackend { spec: spec.to_owned(), scheme: scheme.to_owned() }.into()
        }
        (error, _) => error.into(),
    }
}

/// Splits off the outermost layer: its name, its options and the backend below.
fn split_layer(spec: &str) -> Result<Option<(&str, &str, &str)>, SpecError> {
    let Some((name, rest)) = spec.split_once('(') else { return Ok(None) };
    let Some(&name) = layers::NAMES.iter().find(|&&known| known == name) else { return Ok(None) };
    let incomplete = || SpecError::Incomplete { what: name.to_owned() };
    let (text, rest) = rest.split_once(')').ok_or_else(incomplete)?;
    match rest.strip_prefix(':') {
        Some(inner) if !inner.is_empty() => Ok(Some((name, text, inner))),
        _ => Err(incomplete()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(spec: &str) -> String {
        open(spec, &OpenOptions::default()).err().map(|error| error.explained()).unwrap()
    }

    #[test]
    fn the_registry_has_the_schemes_that_a_configuration_may_name() {
        // `s3` is added by the crate above this one.
        let names = SCHEMES.iter().flat_map(|scheme| scheme.names).chain(&["file", "s3"]);
        let names: std::collections::BTreeSet<_> = names.copied().collect();
        assert_eq!(names, backing::SCHEMES.into());
    }

    #[test]
    fn a_name_opens_its_backend() {
        let directory = tempfile::tempdir().unwrap();
        // A file whose name resembles a layer, a model and an address.
        let path = directory.path().join("delay(x):model:nbd:memory:1");
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let path = path.display().to_string();
        for spec in [path.clone(), format!("file:{path}"), format!("delay():file:{path}")] {
            let backend = open(&spec, &OpenOptions::default()).unwrap();
            assert_eq!(backend.description().size_bytes(), 1 << 20);
            assert!(backend.description().identity.is_some());
        }
        let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
        for spec in ["memory:1MiB", "delay():memory:1MiB", "model:ssd?size=1MiB", &path] {
            assert!(open(spec, &read_only).unwrap().description().read_only, "{spec}");
        }
    }

    #[test]
    fn an_unknown_scheme_gets_its_own_remedy() {
        for (spec, remedy) in [
            ("gs://bucket/disk", "nbdkit"),
            ("ceph:pool/image", "rbd:POOL/IMAGE"),
            ("iscsi://host/target", "iscsiadm"),
            ("vhost-user:/run/x.sock", "over NBD"),
            ("https://host/disk.img", "nbdkit"),
            ("foo://x", "memory:SIZE"),
            ("bar:baz", "memory:SIZE"),
            ("delay():gs://bucket/disk", "nbdkit"),
        ] {
            let error = open(spec, &OpenOptions::default()).err().unwrap();
            let (text, remedies) = (error.to_string(), error.remedy().to_string());
            assert!(text.contains("there is no backend"), "{spec}: {text}");
            let is_right = remedies.contains(remedy) && !remedies.contains("truncate");
            assert!(is_right, "{spec}: {remedies}");
        }
        let error = open("/none/disk.img", &OpenOptions::default()).err().unwrap();
        assert!(error.remedy().to_string().contains("truncate"));
    }

    #[test]
    fn a_trial_finds_what_an_open_would_and_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let (disk, odd, image, trace) = (at("disk"), at("odd"), at("image"), at("trace"));
        for (path, bytes) in [(&disk, 1 << 20), (&odd, 1000), (&image, 1 << 20)] {
            std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
        }
        let mut file = std::fs::File::options().write(true).open(&image).unwrap();
        std::io::Write::write_all(&mut file, b"QFI\xFB\0\0\0\x03").unwrap();
        let options = OpenOptions { refuse_images: true, ..OpenOptions::default() };
        for spec in [
            "nbds://h/x".to_owned(),
            "nbd:h".into(),
            odd.clone(),
            image.clone(),
            directory.path().display().to_string(),
            at("none"),
            "memory:1".into(),
            format!("memory:1MiB?save={}", at("none")),
            format!("memory:1MiB?save={odd}"),
            "model:ssd?size=1".into(),
            format!("model:hdd?backing={}", at("none")),
            format!("delay(speed=1):{disk}"),
            format!("blocks(size=64KiB):{odd}"),
            format!("trace(file={trace},volume=x):{disk}"),
        ] {
            let text = |result: Result<_, OpenError>| result.map(drop).map_err(|e| e.explained());
            let (tried, opened) = (text(try_open(&spec, &options)), text(open(&spec, &options)));
            assert!(tried.is_err() && tried == opened, "{spec}: {tried:?} {opened:?}");
        }
        let opened = open(&disk, &options).unwrap();
        for spec in [
            disk.clone(),
            format!("trace(file={trace}):delay():{disk}"),
            format!("model:ssd?size=64KiB&backing={disk}"),
            "nbd://192.0.2.1/x".into(),
            "blocks(size=4096):nbd+unix:///x?socket=/none".into(),
        ] {
            let tried = try_open(&spec, &options).map_err(|error| error.explained());
            tried.map(drop).unwrap();
        }
        assert_eq!(
            try_open(&disk, &options).unwrap().description().identity,
            opened.description().identity
        );
        assert!(!std::path::Path::new(&trace).exists());
    }

    #[test]
    fn invalid_names_are_refused() {
        assert!(error("").starts_with("the name of the backend is empty"));
        assert!(error("file:").starts_with("the name of the backend is empty"));
        assert!(error("memry:1GiB").contains("there is no backend 'memry:'"));
        assert!(error("slow(read=1ms):memory:1MiB").contains("does not exist"));
        assert!(error("nbds://h/x").contains("nbds needs tls-certificates"));
        assert!(error("nbd:h").contains("is not the address of an export"));
    }
}
