//! The pages of `forebay status` from given statuses: their text, and that they fit.

use super::figures::View;
use super::samples::{failing, healthy, many};
use super::*;
use forebay_api::{Alert, BackendIos, MissingVolume, Severity};
use forebay_terminal::page::{WIDTH, width};
use serde_json::Value;
use std::time::Duration;

const ONCE: Size = Size { width: WIDTH, height: None };

fn page(what: What<'_>, view: &View<'_>, size: Size) -> String {
    what.page(view, size).unwrap().text(false)
}

fn once(what: What<'_>, status: &Status) -> String {
    page(what, &View::since_start(status), ONCE)
}

/// Compares a text with the one that is kept in a file.
fn golden(name: &str, text: &str) {
    let path = format!("{}/src/client/status/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, kept, "{name}: run with UPDATE_GOLDEN=1");
    assert_fits(text);
}

fn assert_fits(text: &str) {
    for line in text.lines() {
        assert!(width(line) <= WIDTH, "{} columns: {line}", width(line));
        assert_eq!(line, line.trim_end());
    }
}

#[test]
fn what_matters_comes_first() {
    golden("healthy.txt", &once(What::Overview, &healthy()));
    golden("failing.txt", &once(What::Overview, &failing()));
    golden("volume.txt", &once(What::Volume("db"), &healthy()));
    golden("all.txt", &once(What::All, &failing()));
    let empty = Status { version: "0.1.0".into(), ..Status::default() };
    golden("empty.txt", &once(What::Overview, &empty));
}

#[test]
fn volumes_on_standby_are_shown_with_and_without_others() {
    let waiting = MissingVolume {
        name: "mail".into(),
        reason: Some("on standby: `forebay takeover mail` serves it".into()),
        standby: true,
        owner_silent_seconds: Some(3),
        ..MissingVolume::default()
    };
    let long = MissingVolume { name: "n".repeat(255), ..waiting.clone() };
    let said = "mail:    on standby: `forebay takeover mail` serves it; silent for 3 s\n";
    for volumes in [Vec::new(), healthy().volumes] {
        let status =
            Status { volumes, missing: vec![waiting.clone(), long.clone()], ..Status::default() };
        let text = once(What::Overview, &status);
        assert!(text.contains(said) && !text.contains("no volumes"), "{text}");
        assert_fits(&text);
        let mut list = Page::default();
        overview::volume_list(&View::since_start(&status), &mut list);
        assert!(list.text(false).contains(said));
    }
}

/// All requests are hits of what the warm-up has read.
#[test]
fn after_a_warm_start_what_the_disks_had_more_is_explained() {
    let mut status = healthy();
    status.volumes.truncate(1);
    let counters = &mut status.volumes[0].counters;
    let read = BackendIos { reads: 5_000, read_bytes: 300 << 20, ..BackendIos::default() };
    counters.backend_causes = [("preload".to_owned(), read)].into();
    (counters.saved_ios, counters.saved_bytes) = (100, -(256 << 20));
    let text = once(What::Overview, &status);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("bytes saved none yet: the disks had 256 MiB more than the"), "{text}");
    assert!(text.contains("of clients, as they read 300 MiB ahead of requests"), "{text}");
}

#[test]
fn the_documents_show_the_overview_as_it_is() {
    for (page, status) in [("README.md", healthy()), ("docs/manual/status.md", failing())] {
        let path = format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"));
        let document = std::fs::read_to_string(path).unwrap();
        let shown = once(What::Overview, &status);
        let shown = shown.lines().map(|line| format!("    {line}").trim_end().to_owned() + "\n");
        let shown = shown.collect::<String>();
        assert!(document.contains(&shown), "{page} does not show\n{shown}");
    }
}

#[test]
fn a_frozen_volume_is_seen_at_a_glance() {
    let mut status = healthy();
    assert!(!once(What::All, &status).contains("frozen"));
    status.volumes[0].frozen = true;
    let overview = once(What::Overview, &status);
    let row = overview.lines().find(|line| line.starts_with("db ")).unwrap();
    assert!(row.contains(" frozen ") && !row.contains("serving"), "{row}");
    let page = once(What::Volume("db"), &status);
    assert!(page.contains("volume db: frozen, write-back"), "{page}");
    assert!(page.contains("nothing is admitted until `forebay volume thaw`"), "{page}");
    // What is wrong comes first.
    status.volumes[0].state = forebay_api::VolumeState::Failing;
    let overview = once(What::Overview, &status);
    let row = overview.lines().find(|line| line.starts_with("db ")).unwrap();
    assert!(row.contains(" failing "), "{row}");
}

#[test]
fn an_interval_has_rates() {
    let (before, mut now) = (healthy(), healthy());
    let counters = &mut now.volumes[0].counters;
    counters.reads += 4_000;
    counters.read_hits += 3_900;
    counters.read_bytes += 4_000 << 12;
    counters.saved_ios += 3_900;
    counters.saved_bytes += 3_900 << 12;
    let view = View::between(&before, &now, Duration::from_secs(2));
    golden("interval.txt", &page(What::Overview, &view, ONCE));
    let idle = View::between(&now, &now, Duration::from_secs(2));
    let text = page(What::Volume("db"), &idle, ONCE);
    assert!(text.contains("requests            none in the last 2.0 s\n"), "{text}");
}

#[test]
fn a_disk_with_more_to_do_than_its_clients_is_not_said_to_save() {
    let mut status = healthy();
    status.volumes[0].counters.saved_ios = -1_500;
    let text = once(What::Overview, &status);
    let line = "I/Os saved          none: the disks had 1.5 k more than the 1.3 M of clients";
    assert!(text.contains(line), "{text}");
}

#[test]
fn many_volumes_have_a_line_each_and_fit_a_screen() {
    for count in [40, 1000] {
        let status = many(count);
        let text = once(What::Overview, &status);
        assert_fits(&text);
        let rows = text.lines().filter(|line| line.contains("\u{2026}")).count();
        assert_eq!(rows, count, "{text}");
        // A screen has the busiest, and those that fail.
        let view = View::since_start(&status);
        let mut screen =
            What::Overview.page(&view, Size { width: WIDTH, height: Some(23) }).unwrap();
        assert_eq!(screen.height(), 23, "{}", screen.text(false));
        screen.limit(23);
        let text = screen.text(false);
        let last = format!("busiest of {count} volumes\n");
        assert!(text.ends_with(&last), "{text}");
        assert!(text.contains("failing"), "{text}");
    }
    // Where they fit, all are shown, and longer names in a wider terminal.
    let status = many(5);
    let wide = Size { width: 120, height: Some(30) };
    let text = page(What::Overview, &View::since_start(&status), wide);
    assert!(text.contains("volume-with-a-long-name-0004  write-back"), "{text}");
    assert!(!text.contains("busiest"), "{text}");
}

#[test]
fn colors_mark_what_is_wrong_and_can_be_switched_off() {
    let status = failing();
    let page = What::Overview.page(&View::since_start(&status), ONCE).unwrap();
    let colored = page.text(true);
    for part in ["\x1b[1;31mfailing  \x1b[0m", "\x1b[33mwarning  \x1b[0m", "\x1b[33mwrite-through "]
    {
        assert!(colored.contains(part), "{part}: {colored:?}");
    }
    let mut plain = String::new();
    for (at, part) in colored.split("\x1b[").enumerate() {
        plain += if at == 0 { part } else { part.split_once('m').unwrap().1 };
    }
    assert_eq!(plain, page.text(false));

    let text = |text: &'static str| Some(OsStr::new(text));
    use ColorChoice::{Always, Auto, Never};
    for (choice, is_terminal, no_color, term, has) in [
        (Auto, true, None, text("xterm"), true),
        (Auto, true, text(""), None, true),
        (Auto, true, text("1"), None, false),
        (Auto, true, None, text("dumb"), false),
        (Auto, false, None, None, false),
        (Always, false, text("1"), text("dumb"), true),
        (Never, true, None, None, false),
    ] {
        assert_eq!(has_color(choice, is_terminal, no_color, term), has, "{choice:?}");
    }
}

/// The status with every value replaced by the most extreme one that it accepts.
fn extreme(status: &Status) -> Status {
    let text = "\u{8cc7}\u{6599}\u{5eab}-and-a-very-long-word-without-a-blank-".repeat(4);
    let whole = [u64::MAX, i64::MAX as u64, u64::from(u32::MAX), 255];
    let mut document = serde_json::to_value(status).unwrap();
    for path in leaves(&document) {
        let before = document.pointer(&path).unwrap().clone();
        let candidates: Vec<Value> = match &before {
            Value::Number(number) if number.is_f64() => vec![1e300.into()],
            Value::Number(_) => whole.map(Value::from).into(),
            Value::String(_) => vec![text.clone().into()],
            _ => continue,
        };
        // All texts become the same one, so a name still matches where a volume is named.
        for candidate in candidates.into_iter().chain([before]) {
            *document.pointer_mut(&path).unwrap() = candidate;
            if serde_json::from_value::<Status>(document.clone()).is_ok() {
                break;
            }
        }
    }
    serde_json::from_value(document).unwrap()
}

/// The paths of all values that contain no others.
fn leaves(document: &Value) -> Vec<String> {
    let below = |key: String, value: &Value| {
        leaves(value).into_iter().map(move |path| format!("/{key}{path}")).collect::<Vec<_>>()
    };
    match document {
        Value::Object(map) => {
            map.iter().flat_map(|(key, value)| below(key.clone(), value)).collect()
        }
        Value::Array(list) => {
            list.iter().enumerate().flat_map(|(at, value)| below(at.to_string(), value)).collect()
        }
        _ => vec![String::new()],
    }
}

#[test]
fn no_value_makes_a_line_wider_than_80_columns() {
    let status = extreme(&failing());
    assert_eq!(status.volumes[0].size_bytes, u64::MAX);
    assert_eq!(status.uptime_seconds, u64::MAX);
    assert!(status.volumes[0].name.len() > 100);
    let name = status.volumes[0].name.clone();
    let since_start = View::since_start(&status);
    let healthy = healthy();
    let between =
        View::between(&Status { pid: status.pid, ..healthy }, &status, Duration::from_millis(100));
    assert!(between.period.is_some());
    for view in [&since_start, &between] {
        for what in [What::Overview, What::All, What::Volume(&name)] {
            assert_fits(&page(what, view, ONCE));
        }
    }
    let mut list = Page::default();
    overview::volume_list(&since_start, &mut list);
    assert_fits(&list.text(false));
}

/// Regression: the list said that there were none.
#[test]
fn a_volume_that_is_missing_is_in_the_list_if_no_other_is_served() {
    let missing = MissingVolume { name: "mail".into(), ..MissingVolume::default() };
    let alert = Alert::new(Severity::Error, "volume", "mail", "its disk does not answer");
    let status = Status { missing: vec![missing], alerts: vec![alert], ..Status::default() };
    let mut list = Page::default();
    overview::volume_list(&View::since_start(&status), &mut list);
    let text = list.text(false);
    assert!(text.contains("mail: its disk does not answer"), "{text}");
    assert!(!text.contains("no volumes") && !text.starts_with('\n'), "{text}");
}

#[test]
fn an_unknown_volume_is_an_error() {
    let error = What::Volume("nix").page(&View::since_start(&healthy()), ONCE).unwrap_err();
    assert_eq!(error.to_string(), "no volume 'nix'");
    let reason = Some("on standby: `forebay takeover nix` serves it".into());
    let missing = MissingVolume { name: "nix".into(), reason, ..MissingVolume::default() };
    let status = Status { missing: vec![missing], ..Status::default() };
    let error = What::Volume("nix").page(&View::since_start(&status), ONCE).unwrap_err();
    let said = "volume 'nix' is not served: on standby: `forebay takeover nix` serves it";
    assert_eq!(error.to_string(), said);
}
