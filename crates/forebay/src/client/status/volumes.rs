//! The table with a line for each volume.

use super::figures::{Figures, View};
use crate::client::sentences;
use forebay_api::{VolumeState, VolumeStatus};
use forebay_terminal::page::{Page, Piece, Style, cut, padded, right, width};
use forebay_terminal::units::compact;

/// The columns with numbers: two lines of heading, and the width of the cells.
const NUMBERS: [(&str, &str, usize); 7] = [
    ("", "SIZE", 5),
    ("", "HIT %", 5),
    ("", "", 5),
    ("LATENCY OF", "HIT", 5),
    ("", "MISS", 5),
    ("", "DIRTY", 5),
    ("", "CACHED", 6),
];
/// The column with the number of requests, whose heading depends on the period.
const REQUESTS: usize = 2;

/// Adds the table. With more than `most` volumes, it has the busiest ones in the order of their
/// addition, and says so.
pub(crate) fn table(view: &View<'_>, most: usize, page: &mut Page) {
    let shown = busiest(view, most);
    rows(view, &shown, page);
    let all = view.status.volumes.len();
    if shown.len() < all {
        let text = format!("the {} busiest of {all} volumes", shown.len());
        page.line([Piece::new(Style::Faint, text)]);
    }
}

/// Adds the heading of the table, and the lines of the volumes at these places of the status.
pub(crate) fn rows(view: &View<'_>, places: &[usize], page: &mut Page) {
    let volumes: Vec<_> = view.volumes().collect();
    let shown: Vec<_> = places.iter().map(|&at| volumes[at]).collect();
    let widths = Widths::of(&shown, page.width());
    heading(view, &widths, page);
    for (volume, figures) in shown {
        row(volume, figures, view, &widths, page);
    }
}

/// The places of the volumes that fail, and of those with the most requests: at most `most`.
fn busiest(view: &View<'_>, most: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..view.status.volumes.len()).collect();
    if places.len() > most {
        let volumes: Vec<_> = view.volumes().collect();
        places.sort_by_key(|&at| {
            let (volume, figures) = volumes[at];
            (volume.state == VolumeState::Serving, std::cmp::Reverse(figures.requests))
        });
        places.truncate(most);
        places.sort_unstable();
    }
    places
}

/// The widths of the columns with text, and the columns between two cells.
struct Widths {
    name: usize,
    mode: usize,
    state: usize,
    gap: usize,
}

impl Widths {
    fn of(volumes: &[(&VolumeStatus, &Figures)], page: usize) -> Self {
        let widest = |least: &str, cell: &dyn Fn(&VolumeStatus) -> String| {
            let cells = volumes.iter().map(|(volume, _)| width(&cell(volume)));
            cells.fold(least.len(), usize::max)
        };
        let name = widest("VOLUME", &|volume| cut(&volume.name, usize::MAX));
        let mode = widest("MODE", &|volume| volume.effective_mode.to_string());
        let state = widest("STATE", &sentences::state);
        let numbers: usize = NUMBERS.iter().map(|(_, _, width)| width).sum();
        let left =
            |gap: usize| page.saturating_sub(mode + state + numbers + gap * (NUMBERS.len() + 2));
        // Narrow gaps leave more for long names.
        let gap = if name <= left(2) { 2 } else { 1 };
        Self { name: name.min(left(gap)), mode, state, gap }
    }

    /// A line with these cells of numbers.
    fn line(&self, texts: [Piece; 3], numbers: [String; 7]) -> Vec<Piece> {
        let gap = " ".repeat(self.gap);
        let mut pieces = Vec::from(texts);
        for (cell, (_, _, width)) in numbers.iter().zip(NUMBERS) {
            pieces.push(Piece::plain(format!("{gap}{}", right(cell, width))));
        }
        pieces
    }
}

fn heading(view: &View<'_>, widths: &Widths, page: &mut Page) {
    let requests = if view.period.is_some() { "REQ/S" } else { "REQS" };
    let before = widths.name + widths.mode + widths.state + 2 * widths.gap;
    // The upper line is over the cells of hits and misses.
    let latency = NUMBERS.iter().position(|(above, ..)| !above.is_empty()).unwrap_or_default();
    let cells = &NUMBERS[..=latency + 1];
    let end: usize = cells.iter().map(|(_, _, width)| width + widths.gap).sum();
    page.line([Piece::new(Style::Strong, right(NUMBERS[latency].0, before + end))]);
    let texts = [("VOLUME", widths.name), ("MODE", widths.mode), ("STATE", widths.state)];
    let gap = " ".repeat(widths.gap);
    let mut line = texts.map(|(text, width)| padded(text, width)).join(&gap);
    for (at, (_, text, width)) in NUMBERS.into_iter().enumerate() {
        let text = if at == REQUESTS { requests } else { text };
        line += &format!("{gap}{}", right(text, width));
    }
    page.line([Piece::new(Style::Strong, line)]);
}

fn row(
    volume: &VolumeStatus,
    figures: &Figures,
    view: &View<'_>,
    widths: &Widths,
    page: &mut Page,
) {
    let gap = " ".repeat(widths.gap);
    let state = match volume.state {
        VolumeState::Serving if volume.frozen => Style::Warning,
        VolumeState::Serving => Style::Plain,
        VolumeState::Flushing => Style::Warning,
        VolumeState::Failing | VolumeState::Stalled => Style::Error,
    };
    let mode = match volume.mode == volume.effective_mode {
        true => Style::Plain,
        false => Style::Warning,
    };
    let requests = match view.period {
        None => compact::count(figures.requests),
        Some(period) => compact::rate(figures.requests as f64 / period.as_secs_f64()),
    };
    let name = padded(&cut(&volume.name, widths.name), widths.name) + &gap;
    let line = widths.line(
        [
            Piece::plain(name),
            Piece::new(mode, padded(&volume.effective_mode.to_string(), widths.mode) + &gap),
            Piece::new(state, padded(&sentences::state(volume), widths.state)),
        ],
        [
            compact::bytes(volume.size_bytes),
            compact::percent(figures.hit_ratio()),
            requests,
            compact::latency(figures.hit.mean_us()),
            compact::latency(figures.miss.mean_us()),
            compact::bytes(volume.dirty_bytes),
            compact::bytes(volume.cached_bytes),
        ],
    );
    page.line(line);
}
