//! The C interface of Ceph's client libraries, which are loaded when the first image is opened.
//!
//! One program serves hosts with and without Ceph: it needs neither headers nor libraries of Ceph
//! when it is built, nor when it serves other disks. The declarations are those of `librados.h` and
//! `rbd/librbd.h` of Ceph 16; the functions are the same in later versions, whose libraries have
//! the same names.
//!
//! The libraries stay loaded for the rest of the process, because their threads run its code.
//! Nothing forks after they are loaded, other than to execute a program at once: a forked process
//! would have the address of its parent in the cluster, and a fence of one would shut out both.

use super::RbdError;
use crate::sync::lock;
use libc::{c_char, c_int, c_void, iovec, size_t};
use libloading::Library;
use std::ffi::CStr;
use std::sync::Mutex;

/// A handle of one of the libraries: a connection, a pool, an image or a completion.
pub(super) type Handle = *mut c_void;

/// Called by a thread of librbd when an I/O has completed.
pub(super) type Completed = unsafe extern "C" fn(completion: Handle, argument: Handle);
/// Called for each extent that a comparison of an image finds.
pub(super) type ExtentFound =
    unsafe extern "C" fn(offset: u64, len: size_t, exists: c_int, argument: Handle) -> c_int;

/// `RBD_LOCK_MODE_EXCLUSIVE`: the lock is not handed over to another client that asks for it.
pub(super) const LOCK_EXCLUSIVE: c_int = 0;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: the range stays allocated.
pub(super) const ZEROES_ALLOCATED: c_int = 1;

/// `rbd_image_info_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ImageInfo {
    pub(super) size_bytes: u64,
    pub(super) object_bytes: u64,
    object_count: u64,
    order: c_int,
    block_name_prefix: [c_char; 24],
    parent_pool: i64,
    parent_name: [c_char; 96],
}

impl ImageInfo {
    pub(super) const EMPTY: Self = Self {
        size_bytes: 0,
        object_bytes: 0,
        object_count: 0,
        order: 0,
        block_name_prefix: [0; 24],
        parent_pool: 0,
        parent_name: [0; 96],
    };
}

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ImageWatcher {
    pub(super) address: *mut c_char,
    id: i64,
    cookie: u64,
}

impl ImageWatcher {
    pub(super) const EMPTY: Self = Self { address: std::ptr::null_mut(), id: 0, cookie: 0 };
}

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ConfigOption {
    pub(super) name: *mut c_char,
    pub(super) value: *mut c_char,
    /// 0: the configuration of the client; 1: that of the pool; 2: that of the image.
    pub(super) source: c_int,
}

/// Declares a library: the type of its functions, and how they are found in it.
macro_rules! library {
    ($(#[$doc:meta])* $type:ident = $prefix:literal {
        $(fn $function:ident($($argument:ty),*) $(-> $result:ty)?;)*
    }) => {
        $(#[$doc])*
        pub(super) struct $type {
            $(pub(super) $function: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $type {
            fn find(library: &Library, name: &'static str) -> Result<Self, RbdError> {
                $(
                    let symbol = concat!($prefix, stringify!($function));
                    // SAFETY: the type is that of the declaration in the header of the library.
                    let $function = unsafe { library.get(symbol.as_bytes()) };
                    let missing = RbdError::Symbol { library: name, symbol };
                    let $function = *$function.map_err(|_| missing)?;
                )*
                Ok(Self { $($function),* })
            }
        }
    };
}

library! {
    /// The functions of librados: clusters and pools.
    Rados = "rados_" {
        fn version(*mut c_int, *mut c_int, *mut c_int);
        fn create(*mut Handle, *const c_char) -> c_int;
        fn conf_read_file(Handle, *const c_char) -> c_int;
        fn conf_set(Handle, *const c_char, *const c_char) -> c_int;
        fn conf_get(Handle, *const c_char, *mut c_char, size_t) -> c_int;
        fn connect(Handle) -> c_int;
        fn shutdown(Handle);
        fn cluster_fsid(Handle, *mut c_char, size_t) -> c_int;
        fn mon_command(
            Handle, *const *const c_char, size_t, *const c_char, size_t, *mut *mut c_char,
            *mut size_t, *mut *mut c_char, *mut size_t
        ) -> c_int;
        fn buffer_free(*mut c_char);
        fn ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
        fn ioctx_set_namespace(Handle, *const c_char);
        fn ioctx_get_id(Handle) -> i64;
        fn ioctx_destroy(Handle);
    }
}

library! {
    /// The functions of librbd: images.
    Rbd = "rbd_" {
        fn version(*mut c_int, *mut c_int, *mut c_int);
        fn open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        fn open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        fn close(Handle) -> c_int;
        fn stat(Handle, *mut ImageInfo, size_t) -> c_int;
        fn get_id(Handle, *mut c_char, size_t) -> c_int;
        fn get_size(Handle, *mut u64) -> c_int;
        fn get_stripe_unit(Handle, *mut u64) -> c_int;
        fn get_stripe_count(Handle, *mut u64) -> c_int;
        fn config_image_list(Handle, *mut ConfigOption, *mut c_int) -> c_int;
        fn config_image_list_cleanup(*mut ConfigOption, c_int);
        fn metadata_get(Handle, *const c_char, *mut c_char, *mut size_t) -> c_int;
        fn metadata_set(Handle, *const c_char, *const c_char) -> c_int;
        fn lock_acquire(Handle, c_int) -> c_int;
        fn lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut size_t) -> c_int;
        fn lock_get_owners_cleanup(*mut *mut c_char, size_t);
        fn list_lockers(
            Handle, *mut c_int, *mut c_char, *mut size_t, *mut c_char, *mut size_t, *mut c_char,
            *mut size_t, *mut c_char, *mut size_t
        ) -> isize;
        fn watchers_list(Handle, *mut ImageWatcher, *mut size_t) -> c_int;
        fn watchers_list_cleanup(*mut ImageWatcher, size_t);
        fn lock_break(Handle, c_int, *const c_char) -> c_int;
        fn is_exclusive_lock_owner(Handle, *mut c_int) -> c_int;
        fn diff_iterate2(Handle, *const c_char, u64, u64, u8, u8, ExtentFound, Handle) -> c_int;
        fn aio_create_completion(Handle, Completed, *mut Handle) -> c_int;
        fn aio_get_return_value(Handle) -> isize;
        fn aio_release(Handle);
        fn aio_readv(Handle, *const iovec, c_int, u64, Handle) -> c_int;
        fn aio_writev(Handle, *const iovec, c_int, u64, Handle) -> c_int;
        fn aio_flush(Handle, Handle) -> c_int;
        fn aio_discard(Handle, u64, u64, Handle) -> c_int;
        fn aio_write_zeroes(Handle, u64, size_t, Handle, c_int, c_int) -> c_int;
    }
}

/// Both libraries.
pub(super) struct Ceph {
    pub(super) rados: Rados,
    pub(super) rbd: Rbd,
}

/// Their files, whose numbers are the versions of the interfaces.
const RADOS: &str = "librados.so.2";
const RBD: &str = "librbd.so.1";

impl Ceph {
    /// The libraries, loaded with the first call that finds them: they may be installed later than
    /// the program is started.
    pub(super) fn load() -> Result<&'static Self, RbdError> {
        static LOADED: Mutex<Option<&'static Ceph>> = Mutex::new(None);
        let mut loaded = lock(&LOADED);
        if let Some(ceph) = *loaded {
            return Ok(ceph);
        }
        let ceph: &'static Self = Box::leak(Box::new(Self::find()?));
        *loaded = Some(ceph);
        Ok(ceph)
    }

    fn find() -> Result<Self, RbdError> {
        let rados = Rados::find(open(RADOS)?, RADOS)?;
        check_version(RADOS, rados.version, 3)?;
        let rbd = Rbd::find(open(RBD)?, RBD)?;
        check_version(RBD, rbd.version, 1)?;
        Ok(Self { rados, rbd })
    }
}

/// Loads a library for the rest of the process.
fn open(name: &'static str) -> Result<&'static Library, RbdError> {
    // SAFETY: the initialisers of Ceph's libraries have no preconditions, and its finalisers do not
    // run before the process ends, because the library is never closed.
    let library = unsafe { Library::new(name) };
    let library = library.map_err(|source| RbdError::Library { library: name, source })?;
    Ok(Box::leak(Box::new(library)))
}

type Version = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int);

/// Refuses a library whose interface has another major version.
fn check_version(library: &'static str, version: Version, wanted: c_int) -> Result<(), RbdError> {
    let (mut major, mut minor, mut extra) = (0, 0, 0);
    // SAFETY: the function stores three numbers.
    unsafe { version(&raw mut major, &raw mut minor, &raw mut extra) };
    if major == wanted {
        return Ok(());
    }
    let found = format!("{major}.{minor}.{extra}");
    Err(RbdError::Version { library, found, wanted })
}

/// The text in a buffer that a library has filled.
pub(super) fn text_of(buffer: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(buffer).map(CStr::to_bytes).unwrap_or(buffer);
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    #[test]
    fn a_library_that_is_missing_or_of_another_version_is_refused() {
        let error = open("librbd.so.999").err().unwrap();
        assert!(matches!(&error, RbdError::Library { .. }), "{error}");
        assert!(error.explained().contains("librbd1"), "{}", error.explained());
        // A library without the functions.
        let error = Rbd::find(open("libc.so.6").unwrap(), "libc.so.6").err().unwrap();
        let text = "libc.so.6 lacks the function rbd_version: install the libraries of Ceph 16 or \
                    later";
        assert_eq!(error.explained(), text);
        unsafe extern "C" fn version(major: *mut c_int, minor: *mut c_int, extra: *mut c_int) {
            // SAFETY: `check_version` passes three addresses.
            unsafe { (*major, *minor, *extra) = (2, 1, 0) };
        }
        let error = check_version(RBD, version, 1).unwrap_err();
        let text = "librbd.so.1 has version 2.1.0 of its interface, and version 1 is supported";
        assert_eq!(error.to_string(), text);
        assert!(check_version(RBD, version, 2).is_ok());
    }

    #[test]
    fn the_structures_have_the_sizes_of_the_headers() {
        assert_eq!(size_of::<ImageInfo>(), 160);
        assert_eq!(size_of::<ConfigOption>(), 24);
        assert_eq!(size_of::<ImageWatcher>(), 24);
    }
}
