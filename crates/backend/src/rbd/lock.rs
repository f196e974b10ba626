//! The exclusive lock of an image, by which the cluster lets one client write it.
//!
//! To break a lock is to fence: the cluster shuts out the connection of the former owner before
//! another client has the lock.

use super::RbdError;
use super::ceph::{ImageWatcher, LOCK_EXCLUSIVE, text_of};
use super::connection::{c_text, error_of};
use super::image::{Image, NOT_FOUND};
use crate::sync::lock;
use crate::{Fate, Holder, OpenOptions, Tenure};
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::io;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// The pause between two attempts to acquire a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(200);
/// How long a takeover waits for the lock, at least: it is free a moment after it was broken.
const TAKEOVER_WAIT: Duration = Duration::from_secs(5);
/// For how long a former owner is shut out of the cluster: a year.
const SHUT_OUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// The most clients of an image that are looked at.
const WATCHERS_MAX: usize = 64;
/// The key of the metadatum that says which process has the lock.
const HOLDER_KEY: &str = "forebay.holder";
/// The key of the metadatum with the tenure.
const TENURE: &str = "forebay.tenure";

/// How an image is locked.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockAccess {
    /// Not at all, but refused while another client has the lock.
    read_only: bool,
    /// End the lock of another client.
    takes_over: bool,
    /// How long to wait for it.
    wait: Duration,
}

impl LockAccess {
    pub(super) fn of(options: &OpenOptions) -> Self {
        let OpenOptions { read_only, takes_over, in_use_wait, .. } = *options;
        let wait = if takes_over { in_use_wait.max(TAKEOVER_WAIT) } else { in_use_wait };
        Self { read_only, takes_over, wait }
    }
}

/// The lock of an image, and with it its tenure.
pub(super) struct ImageLock<'a>(pub(super) &'a Image);

impl ImageLock<'_> {
    /// Locks the image. Breaks the lock of a process of this machine that has ended, and with
    /// `takes_over` that of the present owner. If another holder does not answer, the cluster takes
    /// 30 seconds to notice that.
    pub(super) fn acquire(&self, access: &LockAccess) -> Result<(), RbdError> {
        let LockAccess { read_only, takes_over, wait } = *access;
        let begun = Instant::now();
        let (mut first, mut taken_from) = (None, None);
        loop {
            let owner = if read_only { self.owner_at_open()? } else { self.owner()? };
            let holder = owner.as_ref().and_then(|owner| self.holder(owner));
            let is_gone = holder.as_ref().is_some_and(|it| it.fate() == Fate::Gone);
            // Of two servers that take over at once, the second does not end the first.
            let is_first = *first.get_or_insert_with(|| owner.clone()) == owner;
            let ends = takes_over && is_first && !is_gone;
            if let Some(owner) = owner.as_ref().filter(|_| (is_gone || ends) && !read_only) {
                if ends {
                    // Before librbd, because in Ceph 16 a second entry changes nothing.
                    self.shut_out(owner);
                    taken_from = Some(owner.clone());
                }
                self.break_lock(owner, is_gone)?;
            }
            // Waiting for another client would only end when that has died. The cluster notices its
            // death after 30 seconds; then the lock can be had.
            let is_alive = match &owner {
                Some(owner) if !is_gone && !read_only && !ends => self.is_watching(owner)?,
                _ => false,
            };
            let result = match read_only {
                false if is_alive => -libc::EBUSY,
                true if is_gone => 0,
                true => owner.as_ref().map_or(0, |_| -libc::EBUSY),
                // SAFETY: the image is open.
                false => unsafe { (self.0.ceph.rbd.lock_acquire)(self.0.handle, LOCK_EXCLUSIVE) },
            };
            match -result {
                0 if read_only => return Ok(()),
                0 => {
                    // Where a later entry replaces an earlier one, librbd has set the default.
                    taken_from.iter().for_each(|owner: &String| self.shut_out(owner));
                    self.record_holder()?;
                    return self.begin_tenure();
                }
                libc::EROFS | libc::EBUSY | libc::EAGAIN => {}
                libc::EINVAL | libc::EOPNOTSUPP => {
                    return Err(RbdError::NoLock { place: self.0.place.clone() });
                }
                _ => return Err(self.0.call_error("lock the image", result)),
            }
            if begun.elapsed() >= wait {
                return Err(self.locked(owner, holder.as_ref()));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    fn locked(&self, owner: Option<String>, holder: Option<&Holder>) -> RbdError {
        let owner = owner.map_or("another client".to_owned(), |owner| {
            let known = holder.map(|it| format!(" ({})", it.describe()));
            format!("the client at {owner}{}", known.unwrap_or_default())
        });
        RbdError::Locked { place: self.0.place.clone(), owner }
    }

    /// The owner of the lock, if there is one: the address of its connection.
    fn owner(&self) -> Result<Option<String>, RbdError> {
        let (mut mode, mut owners, mut count) = (0, [null_mut::<c_char>(); 8], 8);
        let get = self.0.ceph.rbd.lock_get_owners;
        // SAFETY: there is space for as many owners as `count` says.
        let result =
            unsafe { get(self.0.handle, &raw mut mode, owners.as_mut_ptr(), &raw mut count) };
        if result == NOT_FOUND {
            return Ok(None);
        }
        if result == -libc::EINVAL {
            return Err(RbdError::NoLock { place: self.0.place.clone() });
        }
        if result < 0 {
            return Err(self.0.call_error("read the owner of the lock of", result));
        }
        let first = owners[..count].first();
        // SAFETY: the call has set as many texts as `count` says.
        let owner = first.map(|it| unsafe { CStr::from_ptr(*it) }.to_string_lossy().into_owned());
        // SAFETY: the list is that of the call above, and is cleaned up once.
        unsafe { (self.0.ceph.rbd.lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(owner)
    }

    /// The owner of the lock of an image that is open read-only, for which [`Self::owner`] fails.
    /// As it was when the image was opened.
    fn owner_at_open(&self) -> Result<Option<String>, RbdError> {
        let mut texts = [[0_u8; 512]; 4];
        let mut lens = [512_usize; 4];
        let mut is_exclusive = 0;
        let list = self.0.ceph.rbd.list_lockers;
        let [tag, clients, cookies, addresses] = texts.each_mut().map(|text| text.as_mut_ptr());
        let [tag_len, clients_len, cookies_len, addresses_len] = lens.each_mut();
        // SAFETY: each buffer has the given length.
        let result = unsafe {
            list(
                self.0.handle,
                &raw mut is_exclusive,
                tag.cast(),
                tag_len,
                clients.cast(),
                clients_len,
                cookies.cast(),
                cookies_len,
                addresses.cast(),
                addresses_len,
            )
        };
        match c_int::try_from(result).unwrap_or(-libc::EIO) {
            // More clients than fit share the lock, which Forebay never does.
            0 | NOT_FOUND => Ok(None),
            1.. => Ok(Some(text_of(&texts[3]))),
            failed => Err(self.0.call_error("read the owner of the lock of", failed)),
        }
    }

    /// Whether a client is connected to the image, as far as the cluster knows.
    fn is_watching(&self, client: &str) -> Result<bool, RbdError> {
        let (mut watchers, mut count) = ([ImageWatcher::EMPTY; WATCHERS_MAX], WATCHERS_MAX);
        let list = self.0.ceph.rbd.watchers_list;
        // SAFETY: there is space for as many watchers as `count` says.
        let result = unsafe { list(self.0.handle, watchers.as_mut_ptr(), &raw mut count) };
        match result {
            // One of so many may be the client.
            _ if result == -libc::ERANGE => return Ok(true),
            _ if result < 0 => {
                return Err(self.0.call_error("read the clients of the image", result));
            }
            _ => {}
        }
        let found = watchers[..count].iter().any(|watcher| {
            // SAFETY: the call has set the address to a text, which lives until the cleanup below.
            unsafe { CStr::from_ptr(watcher.address) }.to_bytes() == client.as_bytes()
        });
        // SAFETY: the list is that of the call above, and is cleaned up once.
        unsafe { (self.0.ceph.rbd.watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
        Ok(found)
    }

    /// Ends the lock of another client, which the cluster shuts out with it.
    fn break_lock(&self, owner: &str, is_gone: bool) -> Result<(), RbdError> {
        let image = &self.0.place;
        match is_gone {
            true => tracing::info!(%image, owner, "breaking the lock of a server that has ended"),
            false => tracing::warn!(%image, owner, "taking the image over from another client"),
        }
        let text = c_text(owner);
        let break_lock = self.0.ceph.rbd.lock_break;
        // SAFETY: the image is open, and the owner is a text.
        let result = unsafe { break_lock(self.0.handle, LOCK_EXCLUSIVE, text.as_ptr()) };
        // Without an owner, the lock was released meanwhile.
        if result < 0 && result != NOT_FOUND {
            return Err(self.0.call_error("break the lock of", result));
        }
        Ok(())
    }

    /// Has the cluster shut out a former owner of the lock for [`SHUT_OUT`]: its own entry ends
    /// after an hour, and a machine can be suspended for longer.
    fn shut_out(&self, owner: &str) {
        if let Err(error) = self.0.pool.connection.shut_out(owner, SHUT_OUT) {
            tracing::error!(
                image = %self.0.place,
                owner,
                %error,
                "cannot have the cluster shut out the former owner for longer than by default: end \
                 it, or it may write when it wakes up later"
            );
        }
    }

    /// The record of the process that has the lock, if its owner has left one.
    fn holder(&self, owner: &str) -> Option<Holder> {
        let text = self.0.metadatum(HOLDER_KEY).ok()??;
        Holder::parse(&text, owner)
    }

    /// Records this process as the holder of the lock. Without the record, a later process waits
    /// for the cluster to notice the end of this one.
    fn record_holder(&self) -> Result<(), RbdError> {
        let Some(here) = self.owner()?.as_deref().and_then(Holder::here) else { return Ok(()) };
        if let Err(error) = self.0.set_metadatum(HOLDER_KEY, &here.to_string()) {
            tracing::warn!(
                image = %self.0.place,
                %error,
                "cannot record which process has the lock of the image"
            );
        }
        Ok(())
    }

    /// Whether this client still has the lock. Asks the OSD.
    ///
    /// # Errors
    /// If the OSD did not answer, or shuts this client out.
    pub(super) fn has_lock(&self) -> io::Result<bool> {
        let mut is_owner = 0;
        // SAFETY: the image is open, and the number has an address.
        let result =
            unsafe { (self.0.ceph.rbd.is_exclusive_lock_owner)(self.0.handle, &raw mut is_owner) };
        if result < 0 { Err(error_of(result)) } else { Ok(is_owner != 0) }
    }

    /// Begins a tenure: writes its number to the image, before those that it follows.
    fn begin_tenure(&self) -> Result<(), RbdError> {
        let former = self.0.metadatum(TENURE)?.unwrap_or_default();
        let begun = Tenure::after(&former)
            .and_then(|tenure| self.0.set_metadatum(TENURE, &tenure.to_string()).map(|()| tenure));
        let tenure = begun.map_err(|source| {
            let (what, place) = ("write the metadata of the image", self.0.place.clone());
            RbdError::Call { what, place, source }
        })?;
        // It is acquired once, while the image is opened.
        let _ = self.0.tenure.set(tenure);
        Ok(())
    }

    /// See [`crate::Backend::settle_tenure`].
    pub(super) fn settle_tenure(&self) -> io::Result<()> {
        let Some(tenure) = self.0.tenure.get() else { return Ok(()) };
        let mut is_settled = lock(&self.0.is_settled);
        if !*is_settled {
            self.0.set_metadatum(TENURE, &tenure.settled().to_string())?;
            *is_settled = true;
        }
        Ok(())
    }
}
