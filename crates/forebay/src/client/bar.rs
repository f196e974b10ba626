//! Progress of long operations, on a terminal.

use forebay_api::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on standard error. It is hidden if that is not a terminal.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(message: &str) -> Self {
        let bar = ProgressBar::new(0).with_message(message.to_owned());
        let template = "{msg} [{bar:30}] {binary_bytes} of {binary_total_bytes}, {eta} left";
        // It fails only for an invalid template. The default style is used then.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(bar)
    }

    /// Updates the bar. If clients keep writing, more data can be left than at the start; the bar
    /// then stays at zero.
    pub(super) fn show(&self, progress: Progress) {
        self.0.set_length(progress.dirty_bytes_total);
        let done = progress.dirty_bytes_total.saturating_sub(progress.dirty_bytes_left);
        self.0.set_position(done);
    }

    /// Removes the bar once the operation has ended, and returns its result.
    pub(super) fn until_end<T>(&self, result: T) -> T {
        self.0.finish_and_clear();
        result
    }
}
