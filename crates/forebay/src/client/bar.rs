//! Progress of long operations, on a terminal.

use forebay_api::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// A bar on standard error; where that is no terminal there is nothing to see.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// A bar that says what is going on.
    pub(super) fn new(what: &str) -> Self {
        let bar = ProgressBar::new(0).with_message(what.to_owned());
        let form = "{msg} [{bar:30}] {binary_bytes} of {binary_total_bytes}, {eta} left";
        // A form that can't be read leaves the built-in one, which is as good.
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(bar)
    }

    /// Shows how far it is. Clients that go on writing can make more of what is left than there
    /// was in the beginning; the bar then stands still at its start.
    pub(super) fn show(&self, progress: Progress) {
        self.0.set_length(progress.dirty_bytes_total);
        let done = progress.dirty_bytes_total.saturating_sub(progress.dirty_bytes_left);
        self.0.set_position(done);
    }

    /// Takes the bar away.
    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}
