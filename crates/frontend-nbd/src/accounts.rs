//! The users and groups of this machine, by name and by number: for the rights of sockets, and for
//! the names of their clients. The C library is asked, because accounts need not be in
//! `/etc/passwd`. It may take as long as a directory server does.

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::ptr;

/// Largest entry that is accepted, in bytes: a group with thousands of members.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// The number of a user, given by name or number; `None` if there is none of that name.
///
/// # Errors
/// The accounts cannot be read.
pub fn user_id(name: &str) -> io::Result<Option<u32>> {
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let Ok(name) = CString::new(name) else { return Ok(None) };
    // SAFETY: an all-zero `passwd` is valid: numbers and null pointers.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let found = look_up(|buffer, len, result| {
        // SAFETY: the name ends with NUL; `entry`, `buffer` with `len` bytes and `result` are
        // writable for the call.
        unsafe { libc::getpwnam_r(name.as_ptr(), &raw mut entry, buffer, len, result) }
    })?;
    Ok(found.map(|_buffer| entry.pw_uid))
}

/// The number of a group, given by name or number; `None` if there is none of that name.
///
/// # Errors
/// The accounts cannot be read.
pub fn group_id(name: &str) -> io::Result<Option<u32>> {
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let Ok(name) = CString::new(name) else { return Ok(None) };
    // SAFETY: an all-zero `group` is valid: a number and null pointers.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    let found = look_up(|buffer, len, result| {
        // SAFETY: as in `user_id`.
        unsafe { libc::getgrnam_r(name.as_ptr(), &raw mut entry, buffer, len, result) }
    })?;
    Ok(found.map(|_buffer| entry.gr_gid))
}

/// The name of a user, if it has one.
pub fn user_name(number: u32) -> Option<String> {
    // SAFETY: as in `user_id`.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let found = look_up(|buffer, len, result| {
        // SAFETY: `entry`, `buffer` with `len` bytes and `result` are writable for the call.
        unsafe { libc::getpwuid_r(number, &raw mut entry, buffer, len, result) }
    });
    // The name is in the buffer, which lives until the end of this function.
    let _buffer = found.ok()??;
    // SAFETY: the entry was found, so its name is a string in the buffer that ends with NUL.
    let name = unsafe { CStr::from_ptr(entry.pw_name) };
    Some(name.to_string_lossy().into_owned())
}

/// Calls `get` with larger and larger buffers, until an entry fits. Returns the buffer, which has
/// the strings of the entry, if there is one.
fn look_up<T>(
    mut get: impl FnMut(*mut c_char, usize, *mut *mut T) -> c_int,
) -> io::Result<Option<Vec<c_char>>> {
    let mut buffer: Vec<c_char> = vec![0; 1 << 10];
    loop {
        let mut result = ptr::null_mut();
        match get(buffer.as_mut_ptr(), buffer.len(), &raw mut result) {
            0 => return Ok((!result.is_null()).then_some(buffer)),
            libc::EINTR => {}
            libc::ERANGE if buffer.len() < ENTRY_BYTES_MAX => buffer.resize(buffer.len() * 2, 0),
            // What systems answer for an unknown name, by getpwnam(3).
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_name_and_by_number() {
        assert_eq!(user_id("root").unwrap(), Some(0));
        assert_eq!(group_id("root").unwrap(), Some(0));
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!((user_id("4711").unwrap(), group_id("0").unwrap()), (Some(4711), Some(0)));
        for unknown in ["no-such-account", "", "a\0b", "-1", "4294967296"] {
            assert_eq!(user_id(unknown).unwrap(), None, "{unknown:?}");
            assert_eq!(group_id(unknown).unwrap(), None, "{unknown:?}");
        }
        assert_eq!(user_name(u32::MAX - 1), None);
    }

    #[test]
    fn an_entry_larger_than_the_first_buffer_is_found() {
        let mut sizes = Vec::new();
        let mut entry = 0;
        let found = look_up(|_, len, result| {
            sizes.push(len);
            if len < 5000 {
                return libc::ERANGE;
            }
            // SAFETY: `look_up` passes a pointer to its own variable.
            unsafe { *result = &raw mut entry };
            0
        });
        assert!(found.unwrap().is_some());
        assert_eq!(sizes, [1024, 2048, 4096, 8192]);
        assert!(look_up::<i32>(|_, _, _| libc::ERANGE).is_err());
        assert!(look_up::<i32>(|_, _, _| libc::ENOENT).unwrap().is_none());
    }
}
