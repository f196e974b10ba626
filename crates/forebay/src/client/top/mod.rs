//! `forebay top`: a monitor in the terminal. One request of the server's status per interval feeds
//! it; keys arrive from a thread of their own, which ends with the process.

mod app;
mod draw;

use crate::arguments::TopArguments;
use crate::client::socket;
use crate::report::{sentence, with_remedy};
use crate::signals::Signals;
use anyhow::{Context, anyhow};
use app::{App, Wish};
use draw::draw;
use forebay_api::Client;
use forebay_threads::Thread;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{Event, KeyEventKind, read};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::process::{Signal, getpid, kill_process};
use std::io::{self, IsTerminal, Stdout};
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How long the past is waited for.
const PAST_WAIT: Duration = Duration::from_secs(2);

/// `forebay top`.
///
/// # Errors
/// Standard input and output are no terminal, the server does not answer at first, or the terminal
/// fails.
pub(crate) fn top(arguments: &TopArguments) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let error = anyhow!("top needs a terminal for its input and output");
        let remedy = "use `forebay status --watch`, which prints to files and pipes";
        return Err(with_remedy(error, remedy));
    }
    let client = Client::new(socket(&arguments.state)?);
    let has_color = crate::client::status::output_has_color(arguments.color);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot create an event loop")?;
    runtime.block_on(run(&client, App::new(arguments.interval, has_color)))
}

async fn run(client: &Client, mut app: App) -> anyhow::Result<()> {
    let mut signals = Signals::listen().context("cannot handle signals")?;
    // The first answer comes before the screen is changed: an error stays visible.
    tokio::select! {
        biased;
        _ = signals.next() => return Ok(()),
        status = client.status() => app.add(Instant::now(), status?),
    }
    add_past(client, &mut app, None).await;
    let (keys, mut events) = unbounded_channel();
    let mut screen = Screen::enter().context("cannot use the terminal")?;
    let reader = Thread::named("keys").spawn(move || read_events(&keys));
    reader.context("cannot start a thread")?;
    let mut ticks = interval(app.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        if let Some(name) = app.wanted_past() {
            add_past(client, &mut app, Some(&name)).await;
        }
        let mut reading = pin!(async {
            ticks.tick().await;
            client.status().await
        });
        // Keys and signals are handled while the answer is awaited.
        let answer = loop {
            screen.draw(&mut app)?;
            tokio::select! {
                biased;
                _ = signals.next() => return Ok(()),
                event = next(&mut events) => match carry_out(&mut app, &event?) {
                    Wish::Nothing => {}
                    Wish::Quit => return Ok(()),
                    Wish::Suspend => screen.suspend().context("cannot restore the terminal")?,
                },
                answer = &mut reading, if !app.is_paused => break answer,
            }
        };
        match answer {
            Ok(status) => app.add(Instant::now(), status),
            Err(error) => app.trouble = Some(sentence(&error.into())),
        }
    }
}

/// Asks for the past of a volume, or of all. Without an answer, the charts begin with the first
/// sample, and the next request says why.
async fn add_past(client: &Client, app: &mut App, name: Option<&str>) {
    if let Ok(Ok(past)) = timeout(PAST_WAIT, client.history(name, true)).await {
        app.add_past(name, &past.five_seconds);
    }
}

fn carry_out(app: &mut App, event: &Event) -> Wish {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => app.press(*key),
        // Other events, such as a new size, only need another drawing.
        _ => Wish::Nothing,
    }
}

async fn next(events: &mut UnboundedReceiver<io::Result<Event>>) -> anyhow::Result<Event> {
    match events.recv().await {
        Some(event) => event.context("cannot read from the terminal"),
        None => Err(anyhow!("the thread that reads from the terminal has ended")),
    }
}

/// Sends the events of the terminal to the main loop, until reading fails.
fn read_events(events: &UnboundedSender<io::Result<Event>>) {
    loop {
        let event = read();
        let is_over = event.is_err();
        if events.send(event).is_err() || is_over {
            return;
        }
    }
}

/// The terminal. Dropping it, and a panic, restore what was there before.
struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    fn enter() -> io::Result<Self> {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Before the message, which would vanish with the other screen.
            leave();
            hook(panic);
        }));
        let entered = show().and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        entered.inspect_err(|_| leave()).map(Self)
    }

    fn draw(&mut self, app: &mut App) -> anyhow::Result<()> {
        self.0.draw(|frame| draw(frame, app)).context("cannot write to the terminal")?;
        Ok(())
    }

    /// Restores the terminal and stops this process. Sets the terminal up again when the process is
    /// continued.
    fn suspend(&mut self) -> io::Result<()> {
        leave();
        kill_process(getpid(), Signal::STOP)?;
        show()?;
        // A new terminal draws everything. Clearing the old one would ask for the cursor's
        // position, and the thread that reads events would get the answer.
        self.0 = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn show() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// Restores the terminal, which may be gone.
fn leave() {
    let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests;
