//! Keeps the process alive when memory that another process shares with it goes away.
//!
//! A process that shares a file may truncate it. An access to the pages that are gone raises
//! SIGBUS, which would end this process. The handler puts pages of zeroes there instead, and marks
//! the memory as lost; who uses it looks at the mark before it relies on what it has read.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings at most, of all virtual machines.
const MAPPINGS_MAX: usize = 4096;

struct SharedMapping {
    /// Its address; 0 if the place is free.
    start: AtomicUsize,
    bytes: AtomicUsize,
    is_lost: AtomicBool,
}

static MAPPINGS: [SharedMapping; MAPPINGS_MAX] = [const {
    SharedMapping {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        is_lost: AtomicBool::new(false),
    }
}; MAPPINGS_MAX];

/// A mapping whose loss is survived, until this is dropped.
#[derive(Debug)]
pub(crate) struct Guarded {
    place: usize,
}

impl Guarded {
    /// Guards a mapping. `None` if there are too many.
    pub(crate) fn new(start: usize, bytes: usize) -> Option<Self> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(handle);
        let place = MAPPINGS.iter().position(|mapping| {
            mapping.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        let mapping = &MAPPINGS[place];
        mapping.is_lost.store(false, Ordering::Relaxed);
        mapping.bytes.store(bytes, Ordering::Relaxed);
        mapping.start.store(start, Ordering::Release);
        Some(Self { place })
    }

    /// Whether pages of the mapping have gone away.
    pub(crate) fn is_lost(&self) -> bool {
        MAPPINGS[self.place].is_lost.load(Ordering::Acquire)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let mapping = &MAPPINGS[self.place];
        mapping.bytes.store(0, Ordering::Relaxed);
        mapping.start.store(0, Ordering::Release);
    }
}

fn handle() {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = lost;
    // SAFETY: the action is complete, and its handler only does what a handler may.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
    };
    if set != 0 {
        let error = io::Error::last_os_error();
        tracing::warn!(%error, "a virtual machine that takes its memory away would end the server");
    }
}

/// Handles an access to memory that is not there. Calls only what a signal handler may.
extern "C" fn lost(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a complete description.
    let address = unsafe { (*info).si_addr() } as usize;
    let mapping = MAPPINGS.iter().find(|mapping| {
        let start = mapping.start.load(Ordering::Acquire);
        address.wrapping_sub(start) < mapping.bytes.load(Ordering::Relaxed)
    });
    if let Some(mapping) = mapping {
        let start = mapping.start.load(Ordering::Relaxed);
        let bytes = mapping.bytes.load(Ordering::Relaxed);
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: replaces a mapping that its owner accesses through raw pointers only. Its start
        // is the whole mapping's, so huge pages are replaced whole.
        let replaced = unsafe {
            libc::mmap(
                std::ptr::without_provenance_mut(start),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if replaced != libc::MAP_FAILED {
            mapping.is_lost.store(true, Ordering::Release);
            return;
        }
    }
    // Not memory of a virtual machine: the access is repeated, and ends the process.
    // SAFETY: sets the default action.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}
