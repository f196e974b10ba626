//! Checks the dashboard in a headless browser: the page of a server under load must agree with the
//! control API, cause no error, load nothing from elsewhere, be usable by keyboard and screen
//! reader, fit a phone, and change settings. Saves pictures.

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use forebay_bench::browser::{Browser, ScreenSize};
use forebay_bench::fio;
use forebay_bench::forebay::Forebay;
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug, Parser)]
struct DashboardArgs {
    /// Directory of the built programs.
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// The browser: Chromium, or a program with its options.
    #[arg(long, default_value = "chromium")]
    browser: String,
    /// Seconds of load before the pictures.
    #[arg(long, default_value_t = 40)]
    seconds: u64,
    /// Directory for the pictures.
    #[arg(long)]
    pictures: Option<PathBuf>,
}

const MIB: u64 = 1 << 20;
/// Time limit for the page to agree with the API.
const AGREE_WITHIN: Duration = Duration::from_secs(60);
/// Time between two comparisons.
const POLL: Duration = Duration::from_millis(100);
const DESK: ScreenSize = ScreenSize { width: 1360, height: 1180, is_phone: false, is_dark: false };
const PHONE: ScreenSize = ScreenSize { width: 390, height: 1500, is_phone: true, is_dark: false };

fn main() -> Result<()> {
    let arguments = DashboardArgs::parse();
    let dir = tempfile::tempdir()?;
    let server = start(&arguments.programs, dir.path())?;
    let link = std::fs::read_to_string(dir.path().join("state/dashboard.url"))?.trim().to_owned();
    let (url, _) = link.split_once('#').context("the link has no token")?;
    let mut browser = Browser::start(&arguments.browser, &dir.path().join("profile"))?;
    browser.set_screen(DESK)?;
    let ended = &AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let served = &server;
        let loads = LOADS.map(|load| scope.spawn(move || repeat(served, load, ended)));
        let checked = while_loaded(&mut browser, url, &arguments);
        ended.store(true, Ordering::Relaxed);
        for load in loads {
            load.join().map_err(|_| anyhow::anyhow!("a load panicked"))??;
        }
        checked
    })?;
    figures_agree(&mut browser, url, &server)?;
    step("a page that was left open for a day");
    left_open(&mut browser)?;
    step("keyboard and screen reader");
    keyboard(&mut browser, url)?;
    step("roles");
    roles(&mut browser, url, &link)?;
    step("changes");
    changes(&mut browser, &link, &server)?;
    let foreign: Vec<_> =
        browser.requests().iter().filter(|it| !it.starts_with(url)).cloned().collect();
    ensure!(foreign.iter().all(|it| it == "about:blank"), "loaded from elsewhere: {foreign:?}");
    no_errors(&mut browser)?;
    server.stop()?;
    browser.wait(
        "the page says that the daemon is gone",
        "document.getElementById('link').textContent.startsWith('no connection') && \
         document.body.classList.contains('stale')",
    )?;
    drop(browser);
    println!("the dashboard agrees with the API, and has no errors");
    Ok(())
}

fn step(name: &str) {
    println!("== {name}");
}

fn start(programs: &Path, dir: &Path) -> Result<Forebay> {
    let mut volumes = Vec::new();
    for (name, options) in [
        ("database", "mode=write-back,protection=none,accept-loss=yes,description=orders"),
        ("archive", "description=scans"),
        ("mail", "mode=bypass,description=spool"),
    ] {
        let path = dir.join(format!("{name}.img"));
        File::create(&path)?.set_len(512 * MIB)?;
        volumes.push(format!("{name}=model:hdd?backing={},{options}", path.display()));
    }
    Forebay::start(programs, dir, &volumes, 192 * MIB, &["--dashboard", "127.0.0.1:0"])
}

/// Volume, and options of fio.
type FioLoad = (&'static str, &'static [&'static str]);

const LOADS: [FioLoad; 3] = [
    (
        "database",
        &[
            "--rw=randrw",
            "--rwmixread=75",
            "--bs=8k",
            "--size=256M",
            "--iodepth=8",
            "--random_distribution=zipf:1.2",
            "--rate_iops=2500,700",
            "--fsync=64",
        ],
    ),
    (
        "archive",
        &[
            "--rw=randread",
            "--bs=16k",
            "--size=384M",
            "--iodepth=2",
            "--random_distribution=zipf:1.1",
            "--rate_iops=900",
        ],
    ),
    ("mail", &["--rw=randwrite", "--bs=4k", "--size=128M", "--iodepth=1", "--rate_iops=20"]),
];

/// Repeats a load of five seconds until `ended`.
fn repeat(server: &Forebay, (volume, options): FioLoad, ended: &AtomicBool) -> Result<()> {
    let mut options: Vec<_> = options.iter().map(|&it| it.to_owned()).collect();
    options.extend(["--time_based".to_owned(), "--runtime=5".to_owned()]);
    while !ended.load(Ordering::Relaxed) {
        fio::run(&server.socket, volume, &options)?;
    }
    Ok(())
}

/// The number of a tile of the page, as text.
fn tile(browser: &mut Browser, name: &str) -> Result<String> {
    let value = browser.value(&format!(
        "[...document.querySelectorAll('.tile')].find(it => it.children[0].textContent === \
         {}).querySelector('b').textContent",
        json!(name)
    ))?;
    Ok(value.as_str().unwrap_or_default().to_owned())
}

const LIVE: &str = "document.getElementById('link')?.textContent === 'live'";

fn while_loaded(browser: &mut Browser, url: &str, arguments: &DashboardArgs) -> Result<()> {
    step("the page under load");
    browser.open(url)?;
    browser.wait("the page is live", LIVE)?;
    browser.wait(
        "three volumes are listed",
        "document.querySelectorAll('table.volumes tbody tr').length === 3",
    )?;
    browser
        .wait("charts have points", &format!("performance.now() > {}", 1000 * arguments.seconds))?;
    for name in ["Served from memory", "Requests", "Read latency", "I/Os saved"] {
        let value = tile(browser, name)?;
        ensure!(value.bytes().any(|byte| byte.is_ascii_digit()), "{name}: '{value}'");
    }
    let drawn = browser.value("document.querySelectorAll('.chart canvas').length")?;
    ensure!(drawn == 6, "{drawn} charts");
    let stale = browser.value("document.body.classList.contains('stale')")?;
    ensure!(stale == false, "the page is stale");
    no_errors(browser)?;
    if let Some(pictures) = &arguments.pictures {
        std::fs::create_dir_all(pictures)?;
        browser.save_picture(&pictures.join("light.png"))?;
        browser.set_screen(ScreenSize { is_dark: true, ..DESK })?;
        open_volume(browser, url, "database")?;
        browser.save_picture(&pictures.join("dark.png"))?;
        browser.set_screen(PHONE)?;
        open_overview(browser, url)?;
        fits(browser)?;
        browser.save_picture(&pictures.join("phone.png"))?;
        for (screen, name) in [(DESK, "volume-low"), (PHONE, "phone-low")] {
            browser.set_screen(ScreenSize { height: 3600, ..screen })?;
            open_volume(browser, url, "database")?;
            fits(browser)?;
            browser.save_picture(&pictures.join(format!("{name}.png")))?;
        }
        browser.set_screen(ScreenSize { height: 2600, ..DESK })?;
        open_overview(browser, url)?;
        browser.save_picture(&pictures.join("overview-low.png"))?;
        browser.set_screen(DESK)?;
    }
    Ok(())
}

fn open_volume(browser: &mut Browser, url: &str, name: &str) -> Result<()> {
    browser.open(&format!("{url}#/volume/{name}"))?;
    browser.wait("the volume is shown", &format!("document.title.startsWith({})", json!(name)))?;
    browser.wait("its charts are drawn", "document.querySelectorAll('canvas').length === 10")?;
    // A colour scheme takes effect with the next frame.
    browser.value("new Promise(done => requestAnimationFrame(() => setTimeout(done, 1500)))")?;
    Ok(())
}

fn open_overview(browser: &mut Browser, url: &str) -> Result<()> {
    browser.open(&format!("{url}#/"))?;
    browser.wait("the overview is shown", "document.title === 'Forebay'")?;
    browser.value("new Promise(done => requestAnimationFrame(() => setTimeout(done, 1500)))")?;
    Ok(())
}

/// Nothing is wider than the screen, except what scrolls by itself, and nothing shows a value of
/// JavaScript.
fn fits(browser: &mut Browser) -> Result<()> {
    let stray = browser.value(
        "[...document.querySelectorAll('body span, body small, body b, body td')].map(it => \
         it.textContent).filter(it => /\\b(false|true|null|undefined|NaN|Infinity)\\b/.test(it))",
    )?;
    ensure!(stray.as_array().is_some_and(Vec::is_empty), "the page shows {stray}");
    let wide = browser.value(
        "[...document.querySelectorAll('body *')].filter(it => !it.closest('.scroll') && \
         !it.closest('.u-wrap') && !it.classList.contains('unseen') && \
         it.getBoundingClientRect().right > innerWidth + 1).map(it => it.outerHTML.slice(0, 120))",
    )?;
    ensure!(wide.as_array().is_some_and(Vec::is_empty), "wider than the screen: {wide}");
    let scrolls = browser.value("document.documentElement.scrollWidth > innerWidth")?;
    ensure!(scrolls == false, "the page scrolls sideways");
    Ok(())
}

fn no_errors(browser: &mut Browser) -> Result<()> {
    let errors = browser.take_errors();
    ensure!(errors.is_empty(), "errors of the page: {errors:#?}");
    Ok(())
}

/// Compares what the page shows with the API, to the last request.
fn figures_agree(browser: &mut Browser, url: &str, server: &Forebay) -> Result<()> {
    step("figures of the page against those of the API");
    for name in ["database", "archive", "mail"] {
        server.command(&["volume", "flush", name])?;
        open_volume(browser, url, name)?;
        let deadline = Instant::now() + AGREE_WITHIN;
        loop {
            // The page is up to a second behind, and background work may go on.
            let (shown, wanted) = (shown_facts(browser)?, facts_of(&volume(server, name)?)?);
            let differing: Vec<_> =
                wanted.iter().filter(|(label, value)| shown[label] != json!(value)).collect();
            if differing.is_empty() {
                break;
            }
            ensure!(Instant::now() < deadline, "{name}: {differing:?} in the API; page: {shown}");
            thread::sleep(POLL);
        }
    }
    let hits = &volume(server, "database")?["counters"]["read_hits"];
    ensure!(hits.as_u64() > Some(0), "the load had no hits: {hits}");
    Ok(())
}

/// The facts of a volume's page, by their names.
/// The model of the page keeps a bounded number of points, however long the page is open.
fn left_open(browser: &mut Browser) -> Result<()> {
    const DAY: &str = r#"(async () => {
        const { Model } = await import("/model.js");
        const status = await (await fetch("/v1/status")).json();
        const [model, clock] = [new Model(), Date.now];
        let now = clock();
        Date.now = () => now;
        for (let second = 0; second < 86400; second++) {
            now += 1000;
            model.take(status, 1000 * second);
        }
        Date.now = clock;
        const tracks = [...model.tracks.values()];
        return tracks.map((it) => it.fine.length + it.coarse.length + it.pending.length);
    })()"#;
    let points = browser.value(DAY)?;
    let tracks = points.as_array().context("no tracks")?;
    ensure!(tracks.len() == 4, "three volumes and all of them: {points}");
    let is_bounded = |points: &Value| points.as_u64().is_some_and(|it| (2000..3000).contains(&it));
    ensure!(tracks.iter().all(is_bounded), "points after a day: {points}");
    Ok(())
}

fn shown_facts(browser: &mut Browser) -> Result<Value> {
    browser.value(
        "Object.fromEntries([...document.querySelectorAll('.facts > div')].flatMap(it => { \
         const name = it.querySelector('dt').textContent; \
         return [[name, it.querySelector('dd span').textContent], \
         [name + ' more', it.querySelector('dd small').textContent]]; }))",
    )
}

/// The facts that a volume's page must show.
fn facts_of(volume: &Value) -> Result<Vec<(&'static str, String)>> {
    let counters = &volume["counters"];
    let number = |field: &str| -> Result<String> {
        Ok(grouped(counters[field].as_u64().with_context(|| format!("there is no {field}"))?))
    };
    Ok(vec![
        ("Reads", number("reads")?),
        ("Writes", number("writes")?),
        ("Flushes", number("flushes")?),
        ("Errors", number("errors")?),
        ("Disk reads", number("backend_reads")?),
        ("Disk writes", number("backend_writes")?),
        ("Disk flushes", number("backend_flushes")?),
        ("Errors more", format!("{} of them refused at once", number("refused")?)),
        ("Unaligned to 4 KiB", grouped(counters["pattern"]["unaligned"].as_u64().unwrap_or(0))),
        ("Mode", volume["effective_mode"].as_str().unwrap_or_default().to_owned()),
        ("Protection", volume["protection"].as_str().unwrap_or_default().to_owned()),
    ])
}

/// A number with commas, as the page has it.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn focused(browser: &mut Browser) -> Result<String> {
    let text = browser.value("document.activeElement?.textContent?.trim() ?? ''")?;
    Ok(text.as_str().unwrap_or_default().to_owned())
}

/// Opens a volume by keyboard alone, and changes the theme.
fn keyboard(browser: &mut Browser, url: &str) -> Result<()> {
    open_overview(browser, url)?;
    browser.value("document.activeElement.blur()")?;
    let mut seen = Vec::new();
    loop {
        browser.press("Tab")?;
        let name = focused(browser)?;
        if name == "archive" {
            break;
        }
        seen.push(name);
        if seen.len() > 60 {
            bail!("the volume cannot be reached by Tab: {seen:?}");
        }
    }
    for control in ["Skip to the content", "Unlock changes", "Theme: auto"] {
        ensure!(seen.iter().any(|it| it == control), "{control} cannot be reached: {seen:?}");
    }
    browser.press("Enter")?;
    browser.wait("Enter opens the volume", "document.title.startsWith('archive')")?;
    let unnamed = browser.unnamed_controls()?;
    ensure!(unnamed.is_empty(), "controls without a name: {unnamed:?}");
    let before = background(browser)?;
    browser.value("document.getElementById('theme').click()")?;
    browser.value("document.getElementById('theme').click()")?;
    let after = background(browser)?;
    ensure!(before != after, "the switch has no effect: {before}");
    browser.value("document.getElementById('theme').click()")?;
    Ok(())
}

fn background(browser: &mut Browser) -> Result<Value> {
    browser.value("getComputedStyle(document.body).backgroundColor")
}

/// Without a token the page only looks; the link makes it operate, and hides the token.
fn roles(browser: &mut Browser, url: &str, link: &str) -> Result<()> {
    const BUTTON: &str = "document.getElementById('role').textContent";
    open_overview(browser, url)?;
    browser.wait("the page only looks", &format!("{BUTTON} === 'Unlock changes'"))?;
    let status =
        browser.value("fetch('/v1/drill', { method: 'POST' }).then(answer => answer.status)")?;
    ensure!(status == 401, "a change without a token: {status}");
    // The browser logs each failed request.
    browser.take_errors();
    browser.open(link)?;
    browser.wait("the link unlocks changes", &format!("{BUTTON} === 'Lock changes'"))?;
    let address = browser.value("location.href")?;
    ensure!(!address.to_string().contains("token"), "the token stays in the address: {address}");
    let unnamed = browser.unnamed_controls()?;
    ensure!(unnamed.is_empty(), "controls without a name: {unnamed:?}");
    browser.value("document.getElementById('role').click()")?;
    browser.wait("the token is forgotten", &format!("{BUTTON} === 'Unlock changes'"))?;
    Ok(())
}

/// Clicks the button with a text.
fn click(browser: &mut Browser, label: &str) -> Result<()> {
    let text = json!(label);
    let button =
        format!("[...document.querySelectorAll('button')].find(it => it.textContent === {text})");
    browser.wait(&format!("the button {label}"), &format!("{button} !== undefined"))?;
    browser.value(&format!("{button}.click()"))?;
    Ok(())
}

/// Enters a value into a control, as a user does.
fn enter(browser: &mut Browser, selector: &str, value: &str) -> Result<()> {
    let (selector, value) = (json!(selector), json!(value));
    browser.value(&format!(
        "(() => {{ const it = document.querySelector({selector}); it.value = {value}; \
         for (const kind of ['input', 'change']) it.dispatchEvent(new Event(kind)); }})()"
    ))?;
    Ok(())
}

/// Waits until the result of a change contains a text.
fn result(browser: &mut Browser, part: &str) -> Result<()> {
    browser.wait(
        &format!("the result '{part}'"),
        &format!(
            "[...document.querySelectorAll('.result')].some(it => it.textContent.includes({}))",
            json!(part)
        ),
    )
}

/// Changes settings by the page, and looks at the API whether they changed.
fn changes(browser: &mut Browser, link: &str, server: &Forebay) -> Result<()> {
    const MODE: &str = "fieldset select";
    const DIALOG: &str = "document.getElementById('dialog')";
    let (url, _) = link.split_once('#').context("the link has no token")?;
    browser.open(link)?;
    browser.wait("changes are unlocked", "document.body.classList.contains('operator')")?;
    open_volume(browser, url, "mail")?;
    enter(browser, MODE, "write-through")?;
    click(browser, "Change the mode…")?;
    browser.wait("the change is confirmed first", &format!("{DIALOG}.open"))?;
    browser.press("Escape")?;
    browser.wait("Escape cancels", &format!("!{DIALOG}.open"))?;
    ensure!(volume(server, "mail")?["mode"] == "bypass", "a cancelled change was made");
    click(browser, "Change the mode…")?;
    click(browser, "Change to write-through")?;
    result(browser, "The mode is write-through now.")?;
    ensure!(volume(server, "mail")?["mode"] == "write-through", "the mode has not changed");
    enter(browser, "fieldset input[type=text]", "0+8MiB")?;
    click(browser, "Pin")?;
    result(browser, "Pinned;")?;
    ensure!(volume(server, "mail")?["pins"]["pinned_bytes"] == 8 * MIB, "nothing is pinned");
    no_errors(browser)?;
    // The words of a refusal are those of the API.
    enter(browser, "fieldset input[type=text]", "nonsense")?;
    click(browser, "Pin")?;
    result(browser, "range 'nonsense' is not OFFSET+LENGTH: write it like 1GiB+256MiB")?;
    for (text, field, now) in [
        ("Read ahead of sequential streams", "prefetch", false),
        ("Frozen: serve what is in memory, admit nothing", "frozen", true),
        ("Frozen: serve what is in memory, admit nothing", "frozen", false),
    ] {
        let switch = format!(
            "[...document.querySelectorAll('label.switch')].find(it => it.textContent === {})",
            json!(text)
        );
        browser.value(&format!("{switch}.querySelector('input').click()"))?;
        result(browser, &format!("{text}: {}.", if now { "on" } else { "off" }))?;
        ensure!(volume(server, "mail")?[field] == now, "the switch of {field} has no effect");
    }
    open_overview(browser, url)?;
    enter(browser, "fieldset input[type=range]", "60")?;
    click(browser, "Set the shares…")?;
    click(browser, "Set the shares")?;
    result(browser, "40 % were set for writes, not counting pinned memory")?;
    let share = server.status()?["memory"]["cache_ratio"]["setting"].clone();
    ensure!(share == "60:40", "the shares are {share}");
    click(browser, "Rehearse a power failure…")?;
    click(browser, "Rehearse")?;
    result(browser, "there is no vault for a drill")?;
    // The browser logs each refusal.
    let refusals = browser.take_errors();
    ensure!(refusals.iter().all(|it| it.contains("Failed to load resource")), "{refusals:?}");
    Ok(())
}

fn volume(server: &Forebay, name: &str) -> Result<Value> {
    let status = server.status()?;
    let volumes = status["volumes"].as_array().context("there are no volumes")?;
    Ok(volumes.iter().find(|it| it["name"] == name).context("it is gone")?.clone())
}
