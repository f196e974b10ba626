//! Trims and writes of zeroes as the engine's erases.

use crate::RequestKind;
use forebay_engine::EraseKind;

/// The engine's kind of a trim or a write of zeroes; `None` for other requests.
pub(crate) const fn erase_kind(kind: RequestKind) -> Option<EraseKind> {
    match kind {
        RequestKind::Trim { .. } => Some(EraseKind::Discard),
        RequestKind::Zero { unmap, .. } | RequestKind::RestoreZero { unmap } => {
            Some(EraseKind::Zero { unmap })
        }
        _ => None,
    }
}
