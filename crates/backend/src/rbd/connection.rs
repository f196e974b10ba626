//! Connections to clusters.
//!
//! A connection is what a cluster shuts out: when another client breaks the lock of an image, the
//! cluster refuses the connection of the image's former user, and with it every other image that
//! was opened over it. The disk and the journal of a volume therefore share one, and other
//! volumes have others ([`crate::OpenOptions::connection`]).
//!
//! A connection that was shut out once is **fenced** for the rest of its life: nothing is written
//! or read over it again, whatever the cluster would allow later, because a fence expires.

use super::RbdError;
use super::ceph::{Ceph, Handle, text_of};
use super::name::{ClusterName, RbdName};
use crate::sync::lock;
use libc::c_int;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Timeout of connecting, in seconds.
const CONNECT_SECONDS: &str = "15";
/// Timeout of each step of opening the first image over a connection, in seconds. Afterwards I/O
/// waits for OSDs without a limit, whatever the configuration says: if an update of an image's
/// object map has timed out, librbd 16 writes the object without repeating it, and later clients
/// read zeroes.
const OPEN_SECONDS: &str = "30";
/// The option of this timeout.
const OSD_TIMEOUT: &str = "rados_osd_op_timeout";

/// Options that apply whatever the configuration says. With librbd's cache, a write would be
/// acknowledged before it is stored. Messages would go to standard error, whose reader may hang.
/// A time limit of requests to monitors: what guards data must not hang. librbd 16 cannot break a
/// lock with a time of its own for the blocklist.
const FIXED: [(&str, &str); 6] = [
    ("rbd_cache", "false"),
    ("rbd_blocklist_expire_seconds", "0"),
    ("rados_mon_op_timeout", CONNECT_SECONDS),
    ("log_to_stderr", "false"),
    ("err_to_stderr", "false"),
    ("client_mount_timeout", CONNECT_SECONDS),
];

/// A connection to a cluster.
pub(super) struct Connection {
    pub(super) ceph: &'static Ceph,
    cluster: Handle,
    name: ClusterName,
    /// The identity of the cluster.
    pub(super) fsid: String,
    pub(super) fence: Arc<Fence>,
}

// SAFETY: a handle of librados is a pointer to an object that locks itself.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

/// The error of a call that has returned a negative number.
pub(super) fn error_of(code: impl Into<i64>) -> io::Error {
    let errno = i32::try_from(-code.into()).unwrap_or(libc::EIO);
    io::Error::from_raw_os_error(errno)
}

/// A text for C. The texts of names have no NUL (`percent_decode`).
pub(super) fn c_text(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).unwrap_or_default()
}

/// The connections in use, with the texts under which they are shared.
static SHARED: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

struct Shared {
    cluster: ClusterName,
    texts: Vec<String>,
    connection: Arc<Mutex<Weak<Connection>>>,
}

impl Connection {
    /// The connection to the cluster of `name` that is shared under one of `texts`, or a new one.
    pub(super) fn shared(name: &RbdName, texts: &[String]) -> Result<Arc<Self>, RbdError> {
        if texts.is_empty() {
            return Ok(Arc::new(Self::open(&name.cluster)?));
        }
        let shared = {
            let mut all = lock(&SHARED);
            // One that is being opened or in use.
            all.retain(|it| {
                Arc::strong_count(&it.connection) > 1
                    || lock(&it.connection).upgrade().is_some_and(|it| !it.is_fenced())
            });
            let at = all.iter_mut().find(|it| {
                it.cluster == name.cluster && it.texts.iter().any(|text| texts.contains(text))
            });
            match at {
                Some(found) => {
                    let new = texts.iter().filter(|text| !found.texts.contains(text)).cloned();
                    found.texts.extend(new.collect::<Vec<_>>());
                    found.connection.clone()
                }
                None => {
                    let connection = Arc::<Mutex<Weak<Self>>>::default();
                    let (cluster, texts) = (name.cluster.clone(), texts.to_vec());
                    all.push(Shared { cluster, texts, connection: connection.clone() });
                    connection
                }
            }
        };
        // Another opening of the same connection waits here.
        let mut connection = lock(&shared);
        if let Some(open) = connection.upgrade().filter(|open| !open.is_fenced()) {
            return Ok(open);
        }
        let open = Arc::new(Self::open(&name.cluster)?);
        *connection = Arc::downgrade(&open);
        Ok(open)
    }

    fn open(name: &ClusterName) -> Result<Self, RbdError> {
        let mut connection = Self::configure(name)?;
        // SAFETY: the handle is valid.
        let result = unsafe { (connection.ceph.rados.connect)(connection.cluster) };
        if result < 0 {
            return Err(connection.connect_error(result));
        }
        let mut fsid = [0_u8; 64];
        // SAFETY: the buffer has the given length.
        unsafe {
            let buffer = fsid.as_mut_ptr().cast();
            (connection.ceph.rados.cluster_fsid)(connection.cluster, buffer, fsid.len());
        }
        connection.fsid = text_of(&fsid);
        Ok(connection)
    }

    /// A connection that is not established yet, with its configuration. Starts no thread, and
    /// contacts no other machine.
    pub(super) fn configure(name: &ClusterName) -> Result<Self, RbdError> {
        if let Some(conf) = &name.conf {
            std::fs::File::open(conf).map_err(|error| name.conf_error(error))?;
        }
        let ceph = Ceph::load()?;
        let (mut cluster, user) = (null_mut(), c_text(&*name.user));
        // SAFETY: the arguments are an address for the handle and a text.
        let result = unsafe { (ceph.rados.create)(&raw mut cluster, user.as_ptr()) };
        if result < 0 {
            return Err(name.conf_error(error_of(result)));
        }
        let connection =
            Self { ceph, cluster, name: name.clone(), fsid: String::new(), fence: Arc::default() };
        let conf = name.conf.as_ref().map(|conf| c_text(conf.as_os_str().as_bytes()));
        let path = conf.as_ref().map_or(std::ptr::null(), |conf| conf.as_ptr());
        // SAFETY: the path is a text, or null for the default places.
        let result = unsafe { (ceph.rados.conf_read_file)(cluster, path) };
        if result < 0 {
            return Err(name.conf_error(error_of(result)));
        }
        for (option, value) in FIXED {
            connection.set(option, value);
        }
        connection.check_keyring()?;
        connection.set(OSD_TIMEOUT, OPEN_SECONDS);
        Ok(connection)
    }

    fn set(&self, option: &str, value: &str) {
        let (option, value) = (c_text(option), c_text(value));
        // SAFETY: both arguments are texts. An option that another version lacks has no effect.
        unsafe { (self.ceph.rados.conf_set)(self.cluster, option.as_ptr(), value.as_ptr()) };
    }

    fn option(&self, option: &str) -> String {
        let (option, mut value) = (c_text(option), [0_u8; 4096]);
        // SAFETY: the buffer has the given length.
        let result = unsafe {
            let buffer = value.as_mut_ptr().cast();
            (self.ceph.rados.conf_get)(self.cluster, option.as_ptr(), buffer, value.len())
        };
        if result < 0 { String::new() } else { text_of(&value) }
    }

    /// Ends the timeout that applies while the first image is opened.
    pub(super) fn end_opening(&self) {
        self.set(OSD_TIMEOUT, "0");
    }

    /// Checks that a file with a key can be read: the library's own error would not say which files
    /// it has tried.
    fn check_keyring(&self) -> Result<(), RbdError> {
        let needs_none = !self.option("auth_client_required").contains("cephx");
        if needs_none || ["key", "keyfile"].iter().any(|it| !self.option(it).is_empty()) {
            return Ok(());
        }
        let section = format!("[client.{}]", self.name.user);
        let mut tried = Vec::new();
        for file in self.option("keyring").split([',', ';', ' ']).filter(|it| !it.is_empty()) {
            match std::fs::read_to_string(file) {
                Ok(text) if text.contains(&section) => return Ok(()),
                Ok(_) => tried.push(format!("{file} (no {section})")),
                Err(error) => tried.push(format!("{file} ({error})")),
            }
        }
        let (user, tried) = (self.name.user.clone(), tried.join(", "));
        Err(RbdError::Keyring { user, tried })
    }

    fn connect_error(&self, result: c_int) -> RbdError {
        let (conf, user) = (self.name.conf_text(), self.name.user.clone());
        let source = error_of(result);
        match -result {
            libc::EACCES | libc::EPERM => RbdError::Refused { conf, user, source },
            _ => RbdError::Monitors { conf, hosts: self.option("mon_host"), source },
        }
    }

    /// Has the cluster shut out the client at `address` for `time` from now on.
    pub(super) fn shut_out(&self, address: &str, time: Duration) -> io::Result<()> {
        let seconds = time.as_secs();
        let command = c_text(format!(
            "{{\"prefix\": \"osd blocklist\", \"blocklistop\": \"add\", \"addr\": \"{address}\", \
             \"expire\": {seconds}.0}}"
        ));
        let (rados, commands) = (&self.ceph.rados, [command.as_ptr()]);
        let (mut output, mut output_len, mut status, mut status_len) =
            (null_mut(), 0, null_mut(), 0);
        // SAFETY: the cluster is connected, there is one command, which is a text, without input,
        // and the four addresses are those of local variables.
        let result = unsafe {
            (rados.mon_command)(
                self.cluster,
                commands.as_ptr(),
                1,
                null(),
                0,
                &raw mut output,
                &raw mut output_len,
                &raw mut status,
                &raw mut status_len,
            )
        };
        for buffer in [output, status] {
            if !buffer.is_null() {
                // SAFETY: the library has allocated it, and nothing uses it.
                unsafe { (rados.buffer_free)(buffer) };
            }
        }
        if result < 0 { Err(error_of(result)) } else { Ok(()) }
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.fence.is_up()
    }
}

/// Whether a connection is fenced. It stays so.
#[derive(Default)]
pub(super) struct Fence(AtomicBool);

impl Fence {
    pub(super) fn is_up(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Fences the connection. Returns true for the first call.
    pub(super) fn raise(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: all pools and images of this connection are closed: each has a reference to it.
        unsafe { (self.ceph.rados.shutdown)(self.cluster) };
    }
}

/// A pool of a cluster.
pub(super) struct Pool {
    pub(super) connection: Arc<Connection>,
    pub(super) handle: Handle,
    /// Its number.
    pub(super) id: i64,
}

// SAFETY: the handle is used by one thread at a time to open images; other uses do not change it.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Opens the pool and namespace of an image.
    pub(super) fn open(connection: Arc<Connection>, name: &RbdName) -> Result<Self, RbdError> {
        let rados = &connection.ceph.rados;
        let (mut handle, pool) = (null_mut(), c_text(&*name.pool));
        // SAFETY: the handle of the cluster is connected, and the pool is a text.
        let result =
            unsafe { (rados.ioctx_create)(connection.cluster, pool.as_ptr(), &raw mut handle) };
        if result == -libc::ENOENT {
            let (pool, conf) = (name.pool.clone(), name.cluster.conf_text());
            let list = format!("ceph {}osd pool ls", name.cluster.command_options());
            return Err(RbdError::Pool { pool, conf, list });
        }
        if result < 0 {
            let (place, source) = (name.pool.clone(), error_of(result));
            return Err(RbdError::Call { what: "open the pool", place, source });
        }
        let namespace = c_text(&*name.namespace);
        // SAFETY: the handle was just opened.
        let id = unsafe {
            (rados.ioctx_set_namespace)(handle, namespace.as_ptr());
            (rados.ioctx_get_id)(handle)
        };
        Ok(Self { connection, handle, id })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the images in the pool are closed: each owns its pool.
        unsafe { (self.connection.ceph.rados.ioctx_destroy)(self.handle) };
    }
}
