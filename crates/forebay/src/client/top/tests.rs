//! What `forebay top` shows on terminals of several sizes, and what keys do.

use super::app::{App, Body, Order, Wish};
use super::draw::draw;
use crate::client::status::samples::{failing, healthy, many};
use forebay_api::{HistoryPoint, Status};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};
use std::time::{Duration, Instant};

/// The same volumes some requests later.
fn later(status: &Status, reads: u64) -> Status {
    let mut status = status.clone();
    for volume in &mut status.volumes {
        volume.counters.reads += reads;
        volume.counters.read_hits += reads / 2;
        volume.latency.read_hit.count += reads / 2;
        volume.latency.read_miss.count += reads - reads / 2;
    }
    status
}

/// A monitor that has seen a few intervals of a second.
fn monitor(status: &Status) -> App {
    let mut app = App::new(Duration::from_secs(1), true);
    let start = Instant::now();
    let mut status = status.clone();
    for (second, reads) in [100, 200, 400, 800, 1600, 200, 0, 3000].into_iter().enumerate() {
        status = later(&status, reads);
        app.add(start + Duration::from_secs(second as u64), status.clone());
    }
    app
}

fn terminal(app: &mut App, columns: u16, rows: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    // Once more, as the first drawing tells the state how much fits.
    terminal.draw(|frame| draw(frame, app)).unwrap();
    terminal
}

/// The rows of the screen as text.
fn screen(app: &mut App, columns: u16, rows: u16) -> String {
    let terminal = terminal(app, columns, rows);
    let buffer = terminal.backend().buffer();
    let row = |y| {
        let cells = (0..columns).map(|x| buffer[(x, y)].symbol());
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    (0..rows).map(row).collect()
}

fn press(app: &mut App, code: KeyCode) -> Wish {
    app.press(KeyEvent::new(code, KeyModifiers::NONE))
}

fn golden(name: &str, text: &str) {
    let path = format!("{}/src/client/top/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, kept, "{name}: run with UPDATE_GOLDEN=1");
}

#[test]
fn the_screen_at_several_sizes() {
    golden("80x24.txt", &screen(&mut monitor(&failing()), 80, 24));
    golden("120x40.txt", &screen(&mut monitor(&many(40)), 120, 40));
    golden("60x14.txt", &screen(&mut monitor(&many(40)), 60, 14));
    let mut app = monitor(&healthy());
    assert_eq!(press(&mut app, KeyCode::Enter), Wish::Nothing);
    golden("volume.txt", &screen(&mut app, 80, 24));
    let _ = press(&mut app, KeyCode::Char('?'));
    golden("help.txt", &screen(&mut app, 80, 24));
}

#[test]
fn a_terminal_that_is_too_small_is_told_so() {
    for (columns, rows) in [(19, 24), (80, 4), (1, 1)] {
        let text = screen(&mut monitor(&healthy()), columns, rows);
        let said = format!("This terminal has {columns} columns and {rows} rows.");
        let fits = said.len() <= usize::from(columns);
        assert_eq!(text.contains(&said), fits, "{text}");
        assert!(!text.contains("VOLUME"), "{text}");
    }
}

#[test]
fn a_small_terminal_shows_a_part() {
    for (columns, rows) in [(79, 24), (80, 23), (40, 12), (20, 5)] {
        let mut app = monitor(&healthy());
        let text = screen(&mut app, columns, rows);
        assert!(text.starts_with("ok") && text.contains("Up/Down"), "{text}");
        assert_eq!(text.contains("hit %"), rows >= 12, "{text}");
        // Nothing of what keys show needs more room.
        for code in [KeyCode::Char('?'), KeyCode::Enter, KeyCode::Enter, KeyCode::End] {
            let _ = press(&mut app, code);
            let _ = screen(&mut app, columns, rows);
        }
    }
}

#[test]
fn the_past_is_shown_before_the_first_interval() {
    let point = |reads| HistoryPoint { seconds: 5, reads, ..HistoryPoint::default() };
    let mut app = App::new(Duration::from_secs(1), true);
    app.add(Instant::now(), healthy());
    app.add_past(None, &[point(5), point(10)]);
    let rates: Vec<_> = app.history().iter().map(|it| it.requests_per_second).collect();
    assert_eq!(rates, [[1.0; 5], [2.0; 5]].concat(), "a column for each second");
    app.add_past(None, &vec![point(1); 1_000]);
    assert_eq!(app.history().len(), 480, "no more than is kept");
    assert_eq!(app.wanted_past(), None);
    let _ = press(&mut app, KeyCode::Enter);
    assert!(app.wanted_past().is_some());
    assert_eq!(app.wanted_past(), None, "asked for once");
}

#[test]
fn before_the_first_interval_and_without_volumes_something_is_shown() {
    let mut app = App::new(Duration::from_secs(1), true);
    assert!(screen(&mut app, 80, 24).starts_with("connecting\n"));
    app.add(Instant::now(), Status::default());
    let text = screen(&mut app, 80, 24);
    assert!(text.contains("no volumes: add one with"), "{text}");
    // Keys that need a volume do nothing.
    for code in [KeyCode::Enter, KeyCode::Down, KeyCode::End] {
        assert_eq!(press(&mut app, code), Wish::Nothing);
    }
    assert_eq!(app.body, Body::List);
}

#[test]
fn the_selection_stays_with_its_volume_and_in_view() {
    let mut app = monitor(&many(100));
    let selected = |app: &mut App| {
        let terminal = terminal(app, 80, 24);
        let buffer = terminal.backend().buffer();
        let is_reversed = |y: &u16| buffer[(0, *y)].modifier.contains(Modifier::REVERSED);
        let rows: Vec<_> = (0..24).filter(is_reversed).collect();
        assert_eq!(rows.len(), 1, "one row is selected");
        (0..18).map(|x| buffer[(x, rows[0])].symbol()).collect::<String>()
    };
    // By requests, the failing volume is first; then all are equal and in the order of their names.
    assert!(selected(&mut app).contains("0099"));
    let _ = press(&mut app, KeyCode::End);
    let last = selected(&mut app);
    assert!(last.contains("0098"), "{last}");
    for code in [KeyCode::Up, KeyCode::PageUp, KeyCode::Down, KeyCode::Home, KeyCode::Down] {
        let _ = press(&mut app, code);
        selected(&mut app);
    }
    let second = selected(&mut app);
    assert!(second.contains("0000"), "{second}");
    for order in [Order::Hits, Order::Misses, Order::Dirty, Order::Cached, Order::Name] {
        let _ = press(&mut app, KeyCode::Char('s'));
        assert_eq!(app.order, order);
        assert_eq!(selected(&mut app), second);
    }
    let _ = press(&mut app, KeyCode::Char('s'));
    assert_eq!(app.order, Order::Requests);
}

#[test]
fn the_list_is_sorted_by_what_is_asked_for() {
    let mut status = many(4);
    status.volumes[3].state = forebay_api::VolumeState::Serving;
    let before = status.clone();
    for (at, (reads, dirty)) in [(1, 40), (30, 10), (20, 30), (0, 20)].into_iter().enumerate() {
        status.volumes[at].counters.reads += reads;
        status.volumes[at].dirty_bytes = dirty;
        status.volumes[at].cached_bytes = 100 - dirty;
    }
    let mut app = App::new(Duration::from_secs(1), true);
    let start = Instant::now();
    app.add(start, before);
    app.add(start + Duration::from_secs(1), status);
    for (order, places) in [
        (Order::Requests, [1, 2, 0, 3]),
        (Order::Dirty, [0, 2, 3, 1]),
        (Order::Cached, [1, 3, 2, 0]),
        (Order::Name, [0, 1, 2, 3]),
    ] {
        app.order = order;
        assert_eq!(app.order(&app.view().unwrap()), places, "{order:?}");
    }
}

#[test]
fn a_volume_is_scrolled_and_its_end_is_the_end() {
    let mut app = monitor(&healthy());
    let _ = press(&mut app, KeyCode::Enter);
    let top = screen(&mut app, 80, 24);
    assert!(top.contains("volume db: serving"), "{top}");
    let _ = press(&mut app, KeyCode::End);
    let end = screen(&mut app, 80, 24);
    assert!(end.contains("ordered             no"), "{end}");
    let _ = press(&mut app, KeyCode::Down);
    assert_eq!(screen(&mut app, 80, 24), end);
    let _ = press(&mut app, KeyCode::Up);
    assert_ne!(screen(&mut app, 80, 24), end);
    let _ = press(&mut app, KeyCode::Home);
    assert_eq!(screen(&mut app, 80, 24), top);
    // The volume is removed while it is shown.
    let mut status = healthy();
    status.volumes.remove(0);
    app.add(Instant::now() + Duration::from_secs(60), status);
    assert!(screen(&mut app, 80, 24).contains("volume db is no longer served"));
    let _ = press(&mut app, KeyCode::Esc);
    assert_eq!(app.body, Body::List);
}

#[test]
fn a_server_that_is_away_is_said_to_be() {
    let mut app = monitor(&healthy());
    app.trouble = Some("no forebay answers at /s: start one".into());
    let text = screen(&mut app, 80, 24);
    assert!(text.contains("NOT UP TO DATE"), "{text}");
    assert!(text.contains("no forebay answers at /s: start one; reconnecting"), "{text}");
    app.add(Instant::now() + Duration::from_secs(60), healthy());
    let text = screen(&mut app, 80, 24);
    assert!(!text.contains("NOT UP TO DATE") && text.contains("every 1 s"), "{text}");
    let _ = press(&mut app, KeyCode::Char('p'));
    assert!(app.is_paused && screen(&mut app, 80, 24).contains("PAUSED"));
    let _ = press(&mut app, KeyCode::Char('p'));
    assert!(!app.is_paused);
}

#[test]
fn keys_end_it_and_close_the_help() {
    let mut app = monitor(&healthy());
    let control =
        |app: &mut App, c| app.press(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL));
    assert_eq!(control(&mut app, 'c'), Wish::Quit);
    assert_eq!(control(&mut app, 'z'), Wish::Suspend);
    assert_eq!(press(&mut app, KeyCode::Char('q')), Wish::Quit);
    let _ = press(&mut app, KeyCode::Char('?'));
    assert!(app.has_help);
    assert_eq!(press(&mut app, KeyCode::Char('s')), Wish::Nothing);
    assert_eq!((app.has_help, app.order), (false, Order::Requests));
}

#[test]
fn colors_can_be_switched_off() {
    let mut app = monitor(&failing());
    let colors = |app: &mut App| {
        let terminal = terminal(app, 80, 24);
        let cells = &terminal.backend().buffer().content;
        cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(colors(&mut app));
    app.has_color = false;
    assert!(!colors(&mut app));
}
