//! Threads that serve I/O of this machine.

use std::io;

/// Options of `prctl`, since Linux 5.6.
const PR_SET_IO_FLUSHER: libc::c_int = 57;
const PR_GET_IO_FLUSHER: libc::c_int = 58;

/// Tells the kernel that this thread serves I/O: memory that it asks for is not taken from pages
/// that would have to be written through the device that it serves.
///
/// # Errors
/// The process lacks `CAP_SYS_RESOURCE`.
pub fn serve_io_on_this_thread() -> io::Result<()> {
    // SAFETY: changes a flag of this thread.
    match unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Checks that threads of this process can use [`serve_io_on_this_thread`].
///
/// # Errors
/// The process lacks `CAP_SYS_RESOURCE`.
pub fn check_can_serve_io() -> io::Result<()> {
    // SAFETY: reads a flag of this thread.
    match unsafe { libc::prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
