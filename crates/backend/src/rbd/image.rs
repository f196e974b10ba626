//! An open image: a handle of librbd behind safe calls. All of them may block.

use super::RbdError;
use super::ceph::{Ceph, ConfigOption, Handle, ImageInfo, text_of};
use super::connection::{Connection, Pool, c_text, error_of};
use super::lock::{ImageLock, LockAccess};
use super::name::RbdName;
use super::request::InFlight;
use crate::sync::lock;
use crate::{OpenOptions, Tenure};
use forebay_types::{ByteRange, DiskGeometry, Extent};
use libc::{c_int, size_t};
use std::ffi::CStr;
use std::io;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, OnceLock};

/// The result of a call that finds nothing.
pub(super) const NOT_FOUND: c_int = -libc::ENOENT;
/// The largest list of options that is read.
const OPTION_COUNT_MAX: c_int = 4096;

/// The images that this process has open: identity and name. A second connection of the process
/// would be another client, and wait for the lock that the first one has.
static OPEN: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// An open image. Dropped, it waits for the I/O in flight, and is closed, which releases its lock.
pub(super) struct Image {
    pub(super) handle: Handle,
    pub(super) ceph: &'static Ceph,
    pub(super) in_flight: Arc<InFlight>,
    /// Identifies the image: cluster, pool, namespace and the image's own identity.
    pub(super) identity: String,
    pub(super) place: String,
    /// The entry in [`OPEN`], if it has one.
    is_listed: bool,
    /// Set once the image is locked.
    pub(super) tenure: OnceLock<Tenure>,
    /// Whether the image has forgotten the former tenures. Held while it is told.
    pub(super) is_settled: Mutex<bool>,
    /// After the handle, which needs it until it is closed.
    pub(super) pool: Pool,
}

// SAFETY: a handle of librbd is a pointer to an object that locks itself.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

/// Size and geometry of an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) size_bytes: u64,
    pub(super) geometry: DiskGeometry,
}

impl Image {
    /// Opens an image, called `text` by the operator, and locks it unless it is opened read-only.
    pub(super) fn open(
        connection: Arc<Connection>,
        name: &RbdName,
        text: &str,
        options: &OpenOptions,
    ) -> Result<Self, RbdError> {
        let pool = Pool::open(connection, name)?;
        let ceph = pool.connection.ceph;
        let (mut handle, image) = (null_mut(), c_text(&*name.image));
        let open = if options.read_only { ceph.rbd.open_read_only } else { ceph.rbd.open };
        // SAFETY: the handle of the pool is valid, and the image is a text. No snapshot is named.
        let result = unsafe { open(pool.handle, image.as_ptr(), &raw mut handle, null()) };
        if result < 0 {
            return Err(open_error(name, result));
        }
        let (place, in_flight) = (name.place(), Arc::default());
        let (identity, is_listed) = (String::new(), false);
        let (tenure, is_settled) = Default::default();
        let mut image =
            Self { handle, ceph, in_flight, identity, place, is_listed, tenure, is_settled, pool };
        image.identity = image.read_identity(name)?;
        image.check_cache(name)?;
        if !options.observes {
            image.list(text)?;
            ImageLock(&image).acquire(&LockAccess::of(options))?;
        }
        image.pool.connection.end_opening();
        Ok(image)
    }

    pub(super) fn call_error(&self, what: &'static str, result: c_int) -> RbdError {
        let place = self.place.clone();
        match -result {
            libc::ETIMEDOUT => RbdError::Osds { place },
            _ => RbdError::Call { what, place, source: error_of(result) },
        }
    }

    fn read_identity(&self, name: &RbdName) -> Result<String, RbdError> {
        let mut id = [0_u8; 256];
        // SAFETY: the buffer has the given length.
        let result =
            unsafe { (self.ceph.rbd.get_id)(self.handle, id.as_mut_ptr().cast(), id.len()) };
        if result < 0 {
            return Err(self.call_error("read the identity of the image", result));
        }
        let (fsid, pool) = (&self.pool.connection.fsid, self.pool.id);
        Ok(format!("rbd:{fsid}/{pool}/{}/{}", name.namespace, text_of(&id)))
    }

    /// Enters the image in the list of this process.
    fn list(&mut self, text: &str) -> Result<(), RbdError> {
        let mut open = lock(&OPEN);
        if let Some((_, other)) = open.iter().find(|(identity, _)| *identity == self.identity) {
            let (place, other) = (self.place.clone(), other.clone());
            return Err(RbdError::OpenHere { place, other });
        }
        open.push((self.identity.clone(), text.to_owned()));
        self.is_listed = true;
        Ok(())
    }

    /// Refuses librbd's cache, which the configuration of a pool or an image can turn on over that
    /// of the client.
    fn check_cache(&self, name: &RbdName) -> Result<(), RbdError> {
        let mut options = Vec::new();
        let mut count: c_int = 128;
        let result = loop {
            let empty = ConfigOption { name: null_mut(), value: null_mut(), source: 0 };
            options.clear();
            options.resize(count as usize, empty);
            let list = self.ceph.rbd.config_image_list;
            // SAFETY: there is space for as many options as `count` says.
            let result = unsafe { list(self.handle, options.as_mut_ptr(), &raw mut count) };
            if result != -libc::ERANGE || count > OPTION_COUNT_MAX {
                break result;
            }
        };
        if result < 0 {
            return Err(self.call_error("read the configuration of the image", result));
        }
        let found = options[..count as usize].iter().find_map(|option| {
            // SAFETY: the call has set both to texts, which live until they are cleaned up below.
            let [name, value] = [option.name, option.value].map(|it| unsafe { CStr::from_ptr(it) });
            (name == c"rbd_cache" && value == c"true").then_some(option.source)
        });
        // SAFETY: the list is that of the call above, and is cleaned up once.
        unsafe { (self.ceph.rbd.config_image_list_cleanup)(options.as_mut_ptr(), count) };
        let Some(source) = found else { return Ok(()) };
        let (level, of) = match source {
            1 => ("pool", name.pool.clone()),
            _ => ("image", self.place.clone()),
        };
        let with = name.cluster.command_options();
        let remove = format!("rbd {with}config {level} remove {of} rbd_cache");
        Err(RbdError::Cached { place: self.place.clone(), level, remove })
    }

    /// A metadatum of the image; `None` if it has none with this key.
    pub(super) fn metadatum(&self, key: &str) -> Result<Option<String>, RbdError> {
        let (mut text, mut len) = ([0_u8; 512], 512);
        let (key, get) = (c_text(key), self.ceph.rbd.metadata_get);
        let buffer = text.as_mut_ptr().cast();
        // SAFETY: the buffer has the given length.
        match unsafe { get(self.handle, key.as_ptr(), buffer, &raw mut len) } {
            NOT_FOUND => Ok(None),
            failed if failed < 0 => Err(self.call_error("read the metadata of the image", failed)),
            _ => Ok(Some(text_of(&text))),
        }
    }

    /// Sets a metadatum of the image, which needs its lock.
    pub(super) fn set_metadatum(&self, key: &str, text: &str) -> io::Result<()> {
        let (key, text, set) = (c_text(key), c_text(text), self.ceph.rbd.metadata_set);
        // SAFETY: the image is open, and both arguments are texts.
        let result = unsafe { set(self.handle, key.as_ptr(), text.as_ptr()) };
        if result < 0 { Err(error_of(result)) } else { Ok(()) }
    }

    /// Size and geometry.
    pub(super) fn shape(&self) -> Result<Shape, RbdError> {
        let (mut info, mut unit, mut count) = (ImageInfo::EMPTY, 0, 0);
        let rbd = &self.ceph.rbd;
        // SAFETY: the image is open, and each call gets the address of what it stores.
        let results = unsafe {
            [
                (rbd.stat)(self.handle, &raw mut info, size_of::<ImageInfo>()),
                (rbd.get_stripe_unit)(self.handle, &raw mut unit),
                (rbd.get_stripe_count)(self.handle, &raw mut count),
            ]
        };
        if let Some(failed) = results.into_iter().find(|&result| result < 0) {
            return Err(self.call_error("read the size of the image", failed));
        }
        let (size_bytes, place) = (info.size_bytes, self.place.clone());
        if size_bytes == 0 || !size_bytes.is_multiple_of(512) {
            return Err(RbdError::Size { place, size_bytes });
        }
        // What lies in one object in one piece: with striping, a unit.
        let stripe_bytes = if count > 1 { unit } else { info.object_bytes };
        let geometry = DiskGeometry { stripe_bytes, ..DiskGeometry::default() };
        Ok(Shape { size_bytes, geometry })
    }

    /// The present size in bytes.
    pub(super) fn size_bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        // SAFETY: the image is open, and the number has an address.
        let result = unsafe { (self.ceph.rbd.get_size)(self.handle, &raw mut bytes) };
        if result < 0 { Err(error_of(result)) } else { Ok(bytes) }
    }

    /// The allocation of a range, by objects, as consecutive extents that cover it.
    pub(super) fn extents(&self, range: ByteRange) -> Vec<Extent> {
        let mut found: Vec<ByteRange> = Vec::new();
        let (from, include_parent, whole_objects) = (null(), 1, 1);
        let argument = (&raw mut found).cast();
        let iterate = self.ceph.rbd.diff_iterate2;
        // SAFETY: `add_extent` gets the address of the list, which lives until the call returns.
        let result = unsafe {
            let (offset, len) = (range.offset, range.len);
            iterate(
                self.handle,
                from,
                offset,
                len,
                include_parent,
                whole_objects,
                add_extent,
                argument,
            )
        };
        if result < 0 {
            return vec![Extent { len: range.len, hole: false, zero: false }];
        }
        with_holes(range, found)
    }
}

/// Adds an extent with data to the list of `extents`.
unsafe extern "C" fn add_extent(offset: u64, len: size_t, exists: c_int, list: Handle) -> c_int {
    if exists != 0 {
        // SAFETY: the address is that of the list in `extents`, which nothing else uses meanwhile.
        let list = unsafe { &mut *list.cast::<Vec<ByteRange>>() };
        list.push(ByteRange::new(offset, len as u64));
    }
    0
}

/// The extents of `range`, of which only `data` is allocated.
fn with_holes(range: ByteRange, mut data: Vec<ByteRange>) -> Vec<Extent> {
    let mut extents = Vec::new();
    let mut at = range.offset;
    data.sort_unstable();
    let ends = data.iter().flat_map(|it| [(it.offset, true), (it.end(), false)]);
    for (end, hole) in ends.chain([(range.end(), true)]) {
        let end = end.min(range.end());
        if end > at {
            extents.push(Extent { len: end - at, hole, zero: hole });
            at = end;
        }
    }
    extents
}

impl Drop for Image {
    fn drop(&mut self) {
        self.in_flight.wait_for_all();
        // SAFETY: the image is open, nothing is in flight, and nothing uses the handle afterwards.
        unsafe { (self.ceph.rbd.close)(self.handle) };
        if self.is_listed {
            lock(&OPEN).retain(|(identity, _)| *identity != self.identity);
        }
    }
}

fn open_error(name: &RbdName, result: c_int) -> RbdError {
    let place = name.place();
    match -result {
        libc::ENOENT => {
            let conf = name.cluster.conf_text();
            let pool = place.rsplit_once('/').map_or("", |(pool, _)| pool);
            let list = format!("rbd {}ls {pool}", name.cluster.command_options());
            RbdError::Image { place, conf, list }
        }
        libc::EPERM | libc::EACCES => {
            let (user, pool) = (name.cluster.user.clone(), name.pool.clone());
            RbdError::Denied { user, place, pool }
        }
        libc::ETIMEDOUT => RbdError::Osds { place },
        _ => RbdError::Call { what: "open the image", place, source: error_of(result) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn holes_are_what_no_extent_covers(
            data in prop::collection::vec((0u64..120, 1u64..30), 0..8),
            offset in 0u64..60,
            len in 1u64..60,
        ) {
            let data: Vec<_> =
                data.into_iter().map(|(offset, len)| ByteRange::new(offset, len)).collect();
            let range = ByteRange::new(offset, len);
            let expected: Vec<bool> = (offset..range.end())
                .map(|at| !data.iter().any(|it| it.offset <= at && at < it.end()))
                .collect();
            let extents = with_holes(range, data.clone());
            prop_assert!(extents.iter().all(|extent| extent.len > 0));
            let found: Vec<bool> = extents
                .iter()
                .flat_map(|extent| vec![extent.hole && extent.zero; extent.len as usize])
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
