//! Draws the state on a terminal.

use super::app::{App, Body, History};
use crate::client::status::alerts::{self, joined, style_of};
use crate::client::status::figures::{Figures, View};
use crate::client::status::{details, overview, volumes};
use forebay_api::Status;
use forebay_terminal::page::{self, Page, Piece, cut};
use forebay_terminal::units::{bytes, count, duration, latency_us, percent, rate};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline};

/// The smallest terminal that shows anything, in columns and rows.
const COLUMNS_MIN: u16 = 20;
const ROWS_MIN: u16 = 5;
/// The terminal that everything fits in, in columns and rows. A smaller one shows a part.
const COLUMNS: u16 = 80;
const ROWS: u16 = 24;
/// The rows of a sparkline, without its title: at least, and at most on a large terminal.
const CHART_ROWS: u16 = 3;
const CHART_ROWS_MAX: u16 = 12;
/// The rows of the figures, with an empty one below them.
const FIGURE_ROWS: u16 = 5;
/// The cells of a bar.
const BAR_CELLS: usize = 20;
/// The column where the values of the figures begin.
const VALUES_AT: usize = 10;

const HELP: [(&str, &str); 9] = [
    ("Up, Down", "select a volume, or scroll"),
    ("Page Up, Page Down", "the same by a page"),
    ("Home, End", "the first, the last"),
    ("Enter", "one volume in depth, and back"),
    ("Esc", "back to the list"),
    ("s", "sort: requests, hit %, misses, dirty, cached, name"),
    ("p", "pause, and go on"),
    ("?", "this help"),
    ("q, Ctrl-C", "quit"),
];

/// Draws everything. Limits the scrolling and sets the length of a page in the state.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let area = frame.area();
    if area.width < COLUMNS_MIN || area.height < ROWS_MIN {
        let text = format!(
            "This terminal has {} columns and {} rows.\nforebay top needs {COLUMNS_MIN} and \
             {ROWS_MIN}.\nMake it larger, or press q.",
            area.width, area.height
        );
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let [head, charts, figures, body, keys] = areas(area);
    let mut page_lines = 1;
    if let Some(view) = app.view() {
        draw_head(frame, app, &view, head);
        let of = figures_of(app, &view);
        draw_charts(frame, app, &of, &view, charts);
        draw_figures(frame, app, &of, &view, figures);
        page_lines = draw_body(frame, app, &view, body);
    } else {
        let text = app.trouble.clone().unwrap_or_else(|| "connecting".into());
        frame.render_widget(Paragraph::new(text), head);
    }
    draw_keys(frame, app, keys);
    if app.has_help {
        draw_help(frame, app, area);
    }
    clamp_scroll(app, page_lines);
}

/// The areas of head, charts, figures, list and keys. A large terminal has larger charts; a small
/// one lacks the figures, then the charts.
fn areas(area: Rect) -> [Rect; 5] {
    let more = area.height.saturating_sub(ROWS) / 4;
    let charts = match area.height {
        ..12 => 0,
        _ => (CHART_ROWS + more).min(CHART_ROWS_MAX) + 1,
    };
    let figures = if area.height < 18 { 0 } else { FIGURE_ROWS };
    Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(charts),
        Constraint::Length(figures),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area)
}

/// The figures of the volume that is shown, or of all together.
fn figures_of(app: &App, view: &View<'_>) -> Figures {
    match &app.body {
        Body::List => view.total(),
        Body::Volume { name, .. } => {
            let found = view.volumes().find(|(volume, _)| volume.name == *name);
            found.map_or_else(Figures::default, |(_, figures)| *figures)
        }
    }
}

/// The style of a page, in the colors of the terminal.
fn style(app: &App, style: page::Style) -> Style {
    let plain = Style::default();
    let (color, modifier) = match style {
        page::Style::Plain => return plain,
        page::Style::Strong => (None, Modifier::BOLD),
        page::Style::Faint => (None, Modifier::DIM),
        page::Style::Good => (Some(Color::Green), Modifier::empty()),
        page::Style::Warning => (Some(Color::Yellow), Modifier::empty()),
        page::Style::Error => (Some(Color::Red), Modifier::BOLD),
    };
    match color.filter(|_| app.has_color) {
        Some(color) => plain.fg(color).add_modifier(modifier),
        None => plain.add_modifier(modifier),
    }
}

fn line(app: &App, pieces: &[Piece]) -> Line<'static> {
    let spans =
        pieces.iter().map(|piece| Span::styled(piece.text().to_owned(), style(app, piece.style())));
    Line::from(spans.collect::<Vec<_>>())
}

/// The state of the server, and the most serious alert, or why there is no answer.
fn draw_head(frame: &mut Frame<'_>, app: &App, view: &View<'_>, area: Rect) {
    let status = view.status;
    let found = joined(&status.alerts);
    let (color, word) = overview::state(&found);
    // Alerts matter more than how long the server has run.
    let rest = match alerts::summary(&found) {
        text if text.is_empty() => {
            format!(", up {}", duration(status.uptime_seconds.min(100 * 365 * 86_400)))
        }
        text => format!(": {text}"),
    };
    let left = format!(
        " forebay {}, {} volumes, {} clients{rest}",
        cut(&status.version, 12),
        count(status.volumes.len() as u64),
        count(status.connections),
    );
    let right = match (app.trouble.is_some(), app.is_paused) {
        (true, _) => "NOT UP TO DATE".to_owned(),
        (false, true) => "PAUSED".to_owned(),
        (false, false) => format!("every {} s", app.interval.as_secs_f64()),
    };
    let right_style = match app.trouble.is_some() || app.is_paused {
        true => page::Style::Warning,
        false => page::Style::Faint,
    };
    let width = usize::from(area.width);
    let space = width.saturating_sub(page::width(word) + page::width(&right) + 1);
    let first = Line::from(vec![
        Span::styled(word, style(app, color)),
        Span::raw(page::padded(&cut(&left, space), space + 1)),
        Span::styled(right, style(app, right_style)),
    ]);
    let second = match (&app.trouble, found.first()) {
        (Some(trouble), _) => Line::styled(
            cut(&format!("{trouble}; reconnecting"), width),
            style(app, page::Style::Error),
        ),
        (None, Some(alert)) => {
            let text = cut(&alert.sentence(), width);
            Line::styled(text, style(app, style_of(alert.severity())))
        }
        (None, None) => Line::default(),
    };
    frame.render_widget(Paragraph::new(vec![first, second]), area);
}

/// Requests per second and hit %.
fn draw_charts(frame: &mut Frame<'_>, app: &App, of: &Figures, view: &View<'_>, area: Rect) {
    if area.height == 0 {
        return;
    }
    let columns =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(1), Constraint::Fill(1)]);
    let [left, _, right] = columns.areas(area);
    let (now, most) = match view.period {
        Some(period) => {
            let now = of.requests as f64 / period.as_secs_f64();
            let samples = app.history().iter().map(|sample| sample.requests_per_second);
            (format!("{}/s", rate(now)), samples.fold(now, f64::max))
        }
        None => (format!("{} since the start", count(of.requests)), 0.0),
    };
    let title = format!("requests {now}, at most {}/s", rate(most));
    // Sparklines have whole numbers; a thousandth is exact enough.
    let bars =
        bars(app.history(), left.width, |sample| Some((sample.requests_per_second * 1e3) as u64));
    let most = ((most * 1e3) as u64).max(1);
    chart(frame, app, &title, &bars, most, left);
    let title = format!("hit % {}", percent(of.hit_ratio()));
    let bars = self::bars(app.history(), right.width, |sample| {
        sample.hit_ratio.map(|ratio| (ratio * 1e3) as u64)
    });
    chart(frame, app, &title, &bars, 1000, right);
}

/// The newest samples, as many as there are columns, the newest on the right.
fn bars(
    history: &History,
    columns: u16,
    value: impl Fn(&super::app::TopSample) -> Option<u64>,
) -> Vec<Option<u64>> {
    let columns = usize::from(columns);
    let missing = columns.saturating_sub(history.len());
    let newest = history.iter().skip(history.len().saturating_sub(columns)).map(value);
    std::iter::repeat_n(None, missing).chain(newest).collect()
}

fn chart(
    frame: &mut Frame<'_>,
    app: &App,
    title: &str,
    bars: &[Option<u64>],
    most: u64,
    area: Rect,
) {
    let [above, below] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    let title = cut(title, usize::from(area.width));
    frame.render_widget(Line::styled(title, style(app, page::Style::Strong)), above);
    let color = if app.has_color { Style::default().fg(Color::Cyan) } else { Style::default() };
    let chart = Sparkline::default().data(bars.iter().copied()).max(most).style(color);
    frame.render_widget(chart.absent_value_symbol(" "), below);
}

/// Latency, what was saved, memory, dirty data and power, a line each.
fn draw_figures(frame: &mut Frame<'_>, app: &App, of: &Figures, view: &View<'_>, area: Rect) {
    let time = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), latency_us);
    let latency = format!(
        "hits {}, misses {}; disk reads {}, writes {}",
        time(of.hit.mean_us()),
        time(of.miss.mean_us()),
        time(of.disk_read.mean_us()),
        time(of.disk_write.mean_us())
    );
    let memory = &view.status.memory;
    let used = format!(
        "{} {} of {} in use",
        bar(memory.used_bytes, memory.pool_bytes),
        bytes(memory.used_bytes),
        bytes(memory.pool_bytes)
    );
    let (most, limit) = dirty_limit(view.status);
    let dirty = format!("{} {}{limit}", bar(memory.dirty_bytes, most), bytes(memory.dirty_bytes));
    let rows =
        [("latency", latency), ("memory", used), ("dirty", dirty), ("power", power(view.status))];
    let width = usize::from(area.width);
    let lines = rows.map(|(label, value)| {
        Line::from(vec![
            Span::styled(page::padded(label, VALUES_AT), style(app, page::Style::Faint)),
            Span::raw(cut(&value, width.saturating_sub(VALUES_AT))),
        ])
    });
    frame.render_widget(Paragraph::new(Vec::from(lines)), area);
}

/// The dirty limit: the share for writes, or what the UPS allows if that is less.
fn dirty_limit(status: &Status) -> (u64, String) {
    let ratio = status.memory.cache_ratio.as_ref().map(|ratio| ratio.write_bytes);
    let power = status.power.as_ref().map(|power| power.dirty_bytes_max);
    match (ratio, power) {
        (Some(ratio), Some(power)) if power < ratio => {
            (power, format!(", the UPS allows {}", bytes(power)))
        }
        (Some(ratio), _) => (ratio, format!(", at most {}", bytes(ratio))),
        (None, _) => (status.memory.pool_bytes, String::new()),
    }
}

/// Power in a few words.
fn power(status: &Status) -> String {
    let vault = status.vault.as_ref().map(|vault| format!("; vault {}", vault.state));
    match &status.power {
        Some(power) => format!("{}{}", power.forecast, vault.unwrap_or_default()),
        None => "no UPS".to_owned(),
    }
}

/// A bar for a part of a whole.
fn bar(part: u64, whole: u64) -> String {
    let ratio = (part as f64 / whole.max(1) as f64).clamp(0.0, 1.0);
    // A part that is not empty has a cell at least.
    let cells = ((ratio * BAR_CELLS as f64).round() as usize).max(usize::from(part > 0));
    format!("{}{}", "\u{2588}".repeat(cells), "\u{2591}".repeat(BAR_CELLS - cells))
}

/// The list of volumes, or one in depth. Returns the lines of the list that fit, or the largest
/// scroll position of the volume's page.
fn draw_body(frame: &mut Frame<'_>, app: &App, view: &View<'_>, area: Rect) -> usize {
    match &app.body {
        Body::List => draw_list(frame, app, view, area),
        Body::Volume { name, scroll } => draw_volume(frame, app, view, name, *scroll, area),
    }
}

fn draw_list(frame: &mut Frame<'_>, app: &App, view: &View<'_>, area: Rect) -> usize {
    if view.status.volumes.is_empty() {
        frame.render_widget(Paragraph::new(overview::NO_VOLUMES), area);
        return 1;
    }
    let order = app.order(view);
    let selected = app.selected(view, &order);
    // The heading has two lines.
    let fit = usize::from(area.height).saturating_sub(2).max(1);
    // The selected line stays in the middle, as far as there are lines on both sides.
    let first = selected.saturating_sub(fit / 2).min(order.len().saturating_sub(fit));
    let shown = &order[first..order.len().min(first + fit)];
    // On a narrow terminal, the last columns are cut off.
    let mut page = Page::new(usize::from(area.width.max(COLUMNS)));
    volumes::rows(view, shown, &mut page);
    let lines = page.pieces().enumerate().map(|(at, pieces)| {
        let line = line(app, pieces);
        match at == selected - first + 2 {
            true => {
                let blanks = usize::from(area.width).saturating_sub(line.width());
                let mut line = line;
                line.push_span(" ".repeat(blanks));
                line.style(Style::default().add_modifier(Modifier::REVERSED))
            }
            false => line,
        }
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
    fit
}

fn draw_volume(
    frame: &mut Frame<'_>,
    app: &App,
    view: &View<'_>,
    name: &str,
    scroll: usize,
    area: Rect,
) -> usize {
    let mut page = Page::new(usize::from(area.width.max(COLUMNS)));
    match view.volumes().find(|(volume, _)| volume.name == name) {
        Some((volume, figures)) => details::details(view, volume, figures, &mut page),
        None => page.wrapped(
            page::Style::Warning,
            &format!("volume {name} is no longer served: press Esc for the list"),
        ),
    }
    let rows = usize::from(area.height);
    let first = scroll.min(page.height().saturating_sub(rows));
    let lines = page.pieces().skip(first).take(rows).map(|pieces| line(app, pieces));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
    page.height().saturating_sub(rows)
}

/// The keys that are of use now.
fn draw_keys(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let pause = if app.is_paused { "go on" } else { "pause" };
    let text = match &app.body {
        Body::List => format!(
            "Up/Down select  Enter volume  s sort (by {})  p {pause}  ? help  q quit",
            app.order.word()
        ),
        Body::Volume { .. } => format!("Up/Down scroll  Esc list  p {pause}  ? help  q quit"),
    };
    let text = cut(&text, usize::from(area.width));
    frame.render_widget(Line::styled(text, style(app, page::Style::Faint)), area);
}

fn draw_help(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let (width, height) = (76.min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let area = Rect {
        x: area.width.saturating_sub(width) / 2,
        y: area.height.saturating_sub(height) / 2,
        width,
        height,
    };
    let lines = HELP.map(|(keys, what)| {
        Line::from(vec![
            Span::styled(page::padded(keys, 20), style(app, page::Style::Strong)),
            Span::raw(what),
        ])
    });
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(" Keys; any key closes this ");
    frame.render_widget(Paragraph::new(Vec::from(lines)).block(block), area);
}

/// Limits the scrolling, and sets by how many lines Page Up and Page Down move. `lines` is the
/// result of [`draw_body`].
fn clamp_scroll(app: &mut App, lines: usize) {
    if let Body::Volume { scroll, .. } = &mut app.body {
        *scroll = (*scroll).min(lines);
        app.page_lines = 10;
    } else {
        app.page_lines = lines;
    }
}
