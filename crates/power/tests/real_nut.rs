//! The driver and the power controller with a real NUT server.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

mod nut_lab;

use forebay_power::drivers::{
    Authority, Credentials, NutAddress, NutSource, Poller, ReadingSource, now_ms,
};
use forebay_power::{
    Exposure, Expression, PowerController, PowerDecision, PowerState, ReadErrorKind, Rules,
    UpsObservation, evaluate,
};
use nut_lab::{NutLab, wait};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);
/// Timeout after which the test fails.
const PATIENCE: Duration = Duration::from_secs(300);
/// Poll interval of the probe, which measures when the server reports an event.
const PROBE: Duration = Duration::from_millis(20);
/// Repetitions of each event, of about five seconds each.
const ROUNDS: u64 = 2;
const EXPOSED: Exposure =
    Exposure { dirty_bytes: 700 << 20, vault_bytes_per_second: Some(100 << 20) };

fn source(lab: &NutLab, timeout: Duration) -> NutSource {
    let address = NutAddress { name: "lab".into(), host: "127.0.0.1".into(), port: lab.port };
    NutSource::new(address, timeout)
}

/// A controller that monitors the UPS, and a probe of the server.
struct Bench {
    controller: PowerController,
    words: Receiver<UpsObservation>,
    /// When the probe last saw a change.
    changed: Arc<Mutex<Option<Instant>>>,
    /// Readings since then. One of them may have been in flight.
    readings_since: u32,
    pollers: Vec<Poller>,
}

impl Bench {
    fn start(lab: &NutLab) -> Self {
        let rules = Rules { settle_ms: 1500, mains_stable_ms: 500, ..Rules::default() };
        let controller = PowerController::new(Expression::parse("lab").unwrap(), rules);
        let (sender, words) = mpsc::channel();
        let user = Credentials { user: "watch".into(), password: "watchpw".into() };
        let main = source(lab, INTERVAL).with_login(user);
        let sink = Box::new(move |word| drop(sender.send(word)));
        let changed = Arc::new(Mutex::new(None));
        let (noted, mut before) = (Arc::clone(&changed), None);
        let probe = Box::new(move |word: UpsObservation| {
            let word = word.map(|reading| evaluate(&reading, &rules).as_str()).map_err(|_| ());
            if before != Some(word) {
                *noted.lock().unwrap() = Some(Instant::now());
                before = Some(word);
            }
        });
        let pollers = vec![
            Poller::start(main, INTERVAL, sink).unwrap(),
            Poller::start(source(lab, INTERVAL), PROBE, probe).unwrap(),
        ];
        Self { controller, words, changed, readings_since: 0, pollers }
    }

    /// Processes readings until the decision is as expected.
    fn follow(&mut self, what: &str, is_wanted: impl Fn(&PowerDecision) -> bool) -> PowerDecision {
        let begin = Instant::now();
        loop {
            if let Ok(word) = self.words.recv_timeout(Duration::from_millis(5)) {
                self.controller.observe(0, now_ms(), word);
                self.readings_since += u32::from(self.changed.lock().unwrap().is_some());
            }
            let decision = self.controller.decide(now_ms(), &EXPOSED);
            let unsafe_verdict = decision.state != PowerState::Safe;
            assert!(!(decision.write_back_allowed && unsafe_verdict), "{decision:?}");
            if is_wanted(&decision) {
                return decision;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {decision:?}");
        }
    }
}

impl Bench {
    /// Processes readings for a while, so that the polls of the three programs are not synchronised
    /// with the events.
    fn idle(&mut self, ms: u64) {
        let until = Instant::now() + Duration::from_millis(ms);
        self.follow("idle", |_| Instant::now() >= until);
    }
}

/// An event, and the expected decision.
struct Event {
    name: &'static str,
    act: fn(&mut NutLab),
    undo: fn(&mut NutLab),
    word: &'static str,
    dump: bool,
}

/// A change of the status, undone by `OL`.
macro_rules! status {
    ($status:literal, $word:literal, $dump:literal) => {
        Event {
            name: concat!("status ", $status),
            act: |lab| lab.set("ups.status", $status),
            undo: |lab| lab.set("ups.status", "OL"),
            word: $word,
            dump: $dump,
        }
    };
}

/// A change of another variable.
macro_rules! variable {
    ($name:literal, $value:literal, $back:literal, $word:literal) => {
        Event {
            name: concat!($name, " ", $value),
            act: |lab| lab.set($name, $value),
            undo: |lab| lab.set($name, $back),
            word: $word,
            dump: false,
        }
    };
}

fn events() -> Vec<Event> {
    vec![
        status!("OB DISCHRG", "on-battery", false),
        status!("OB DISCHRG LB", "critical", true),
        status!("OL RB", "not-ready", false),
        status!("OL BYPASS", "not-ready", false),
        status!("OL CAL", "not-ready", false),
        status!("OL OVER", "not-ready", false),
        status!("OFF", "not-ready", false),
        status!("OL OB", "unknown", false),
        variable!("battery.charge", "78", "85", "not-ready"),
        variable!("battery.charge", "abc", "100", "unknown"),
        variable!("battery.runtime", "60", "1800", "not-ready"),
        Event {
            name: "shutdown ordered (FSD)",
            act: |lab| lab.force_shutdown(),
            undo: |lab| {
                lab.kill_server();
                lab.start_server();
            },
            word: "critical",
            dump: true,
        },
        Event {
            name: "driver hangs (stale)",
            act: |lab| lab.stop_driver(true),
            undo: |lab| lab.stop_driver(false),
            word: "unknown",
            dump: false,
        },
        Event {
            name: "driver dead",
            act: NutLab::kill_driver,
            undo: NutLab::start_driver,
            word: "unknown",
            dump: false,
        },
        Event {
            name: "server hangs",
            act: |lab| lab.stop_server(true),
            undo: |lab| lab.stop_server(false),
            word: "unknown",
            dump: false,
        },
        Event {
            name: "server dead",
            act: NutLab::kill_server,
            undo: NutLab::start_server,
            word: "unknown",
            dump: false,
        },
    ]
}

fn spread(times: &[u128]) -> String {
    let (min, max) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    format!("{min} to {max}")
}

#[test]
#[ignore = "needs nut-server"]
fn tool_every_state_of_a_real_server_ends_write_back() {
    let mut lab = NutLab::start();
    let mut bench = Bench::start(&lab);
    bench.follow("at first", |decision| decision.write_back_allowed);
    println!("| event | verdict | ms from the event | ms since upsd knew | ms until back |");
    println!("| --- | --- | --- | --- | --- |");
    for (index, event) in (0..).zip(events()) {
        let (mut all, mut ours, mut back) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            bench.idle((round * 270 + index * 137) % 1000);
            *bench.changed.lock().unwrap() = None;
            bench.readings_since = 0;
            let begin = Instant::now();
            (event.act)(&mut lab);
            let decision = bench.follow(event.name, |decision| !decision.write_back_allowed);
            let end = Instant::now();
            assert_eq!(decision.state.as_str(), event.word, "{}: {decision:?}", event.name);
            assert_eq!(decision.dump_now, event.dump, "{}: {decision:?}", event.name);
            assert!(decision.drain_now);
            all.push((end - begin).as_millis());
            let changed = bench.changed.lock().unwrap().unwrap_or(end);
            let readings = bench.readings_since;
            assert!(readings <= 3, "{}: known after {readings} readings", event.name);
            ours.push(end.saturating_duration_since(changed).as_millis());
            let begin = Instant::now();
            (event.undo)(&mut lab);
            bench.follow(event.name, |decision| decision.write_back_allowed);
            back.push(begin.elapsed().as_millis());
        }
        let (name, word) = (event.name, event.word);
        println!("| {name} | {word} | {} | {} | {} |", spread(&all), spread(&ours), spread(&back));
    }
    assert_eq!(bench.pollers.len(), 2);
}

#[test]
#[ignore = "needs nut-server"]
fn tool_a_real_server_waits_for_us_until_we_log_out() {
    let lab = NutLab::start();
    let user = |password: &str| Credentials { user: "watch".into(), password: password.into() };
    let begin = Instant::now();
    let mut login = source(&lab, INTERVAL).with_login(user("watchpw"));
    // A driver that has just started has no data yet.
    wait("a reading", || login.read().is_ok_and(|reading| reading.charge_percent.is_some()));
    println!("first reading after {} ms", begin.elapsed().as_millis());
    assert_eq!(login.read().unwrap().model.as_deref(), Some("Lab Dummy"));
    assert_eq!(lab.logins(), "NUMLOGINS lab 1");
    login.release();
    assert_eq!(lab.logins(), "NUMLOGINS lab 0");
    assert!(login.read().is_ok(), "reading goes on without a login");
    assert_eq!(lab.logins(), "NUMLOGINS lab 0");

    let mut wrong = source(&lab, INTERVAL).with_login(user("wrong"));
    assert_eq!(wrong.read().unwrap_err().kind(), ReadErrorKind::Refused);
    let mut unencrypted = source(&lab, INTERVAL).with_tls(any_authority());
    assert_eq!(unencrypted.read().unwrap_err().kind(), ReadErrorKind::Tls);
    let address = format!("nobody@127.0.0.1:{}", lab.port).parse().unwrap();
    let trouble = NutSource::new(address, INTERVAL).read().unwrap_err();
    assert!(trouble.to_string().contains("UNKNOWN-UPS"), "{trouble}");
}

fn any_authority() -> Authority {
    let file = tempfile::NamedTempFile::new().unwrap();
    let made = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
    std::fs::write(file.path(), made.cert.pem()).unwrap();
    Authority::from_pem_file(file.path()).unwrap()
}
