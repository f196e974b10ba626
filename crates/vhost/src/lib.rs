//! The protocol of vhost-user and the layout of virtio block devices, without I/O.
//!
//! A virtual machine monitor connects to a socket, and sends [`message`]s: the memory of its guest,
//! and where in it the guest has the rings of its block device. From then on the guest puts
//! requests into the [`ring`]s itself, each a chain of pieces of its memory with a header of
//! [`block`] and a byte for the status. A region of [`inflight`] memory says which requests a
//! server that crashed had taken, so that the next one takes them again.
//!
//! Sources: the specification of vhost-user in the documentation of QEMU, and version 1.2 of
//! "Virtual I/O Device (VIRTIO)", sections 2.7 (split virtqueues) and 5.2 (block device). All
//! numbers are little-endian, as on the machines that this program supports.

pub mod block;
pub mod inflight;
pub mod message;
pub mod ring;

/// Entries of a ring at most.
pub const RING_ENTRIES_MAX: u16 = 1024;

/// Rings of a device at most.
pub const RINGS_MAX: u16 = 64;
