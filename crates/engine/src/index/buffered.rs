//! Buffered lines: they are in the pool only until the disk has their dirty data, because a write
//! brought them there while its volume was frozen.
//!
//! The flag follows a line to other slots, and recovery keeps it. A buffered line is dirty or in an
//! operation, except within a call.

use crate::Slot;
use crate::index::Slots;
use crate::index::retained::is_pinned;
use crate::line::meta::{BUFFERED, LineTable};

/// Marks a line that a write to a frozen volume has brought into the pool, unless it is of a pinned
/// range.
pub(crate) fn mark<M: LineTable>(slots: &mut Slots<M>, slot: Slot) {
    if !is_pinned(slots, slots.get(slot).key) {
        slots.get_mut(slot).flags |= BUFFERED;
    }
}

/// Drops a buffered line, which is clean and idle. If it is of a pinned range by now, or `keeps`,
/// it becomes a line like any other.
pub(crate) fn finish<M: LineTable>(slots: &mut Slots<M>, slot: Slot, keeps: bool) {
    assert!(slots.get(slot).has(BUFFERED), "slot {slot} buffers no write");
    if keeps || is_pinned(slots, slots.get(slot).key) {
        slots.get_mut(slot).flags &= !BUFFERED;
    } else {
        slots.drop_line(slot);
    }
}
