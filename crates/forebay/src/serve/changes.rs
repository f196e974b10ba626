//! The progress of changes, for the log and the API.

use forebay_api::Progress;
use forebay_control::ProgressFn;
use std::cell::Cell;

/// Logs that a volume was frozen or thawed.
pub(super) fn log_frozen(volume: &str, is_frozen: bool) {
    match is_frozen {
        true => tracing::info!(%volume, "volume frozen, it admits nothing into memory"),
        false => tracing::info!(%volume, "volume thawed"),
    }
}

/// Reports the remaining dirty bytes as progress. The total is the largest value so far.
pub(super) fn reporter(progress: ProgressFn<'_>) -> impl FnMut(u64) {
    let total = Cell::new(0);
    move |left| {
        total.set(left.max(total.get()));
        progress(Progress { dirty_bytes_left: left, dirty_bytes_total: total.get() });
    }
}
