//! The limit on the size of files (`ulimit -f`), beyond which writes fail.

use rustix::process::{Resource, getrlimit};

/// The bytes up to which this process may write a file; `None` without a limit. It also holds for
/// files in memory, but not for block devices.
pub fn file_bytes_max() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Makes a write beyond the limit fail with an error, instead of ending the process without a
/// message. Programs that this process starts inherit that.
pub fn report_oversize_writes() {
    // SAFETY: ignoring a signal runs no code of this process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
