//! The user that runs the program.

/// Whether it is root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
