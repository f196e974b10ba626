//! `forebay status --watch`: the same page again and again, with the rates of the last interval.

use super::figures::{Readings, View};
use super::screen::Screen;
use super::{Size, WIDTH};
use crate::report::{sentence, warn};
use crate::signals::Signals;
use anyhow::Context;
use forebay_api::Client;
use forebay_terminal::page::{Page, Style};
use rustix::process::Signal;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

/// Makes the page of a view for an output of this size.
type Show<'a> = &'a dyn Fn(&View<'_>, Size) -> anyhow::Result<Page>;

/// Shows pages until SIGINT, SIGTERM or SIGHUP. On a terminal each page replaces the last one;
/// otherwise they follow each other. A server that does not answer is asked again.
///
/// # Errors
/// The server does not answer the first time, a page cannot be made, or the output cannot be
/// written.
pub(super) fn run(
    socket: &Path,
    every: Duration,
    color: bool,
    show: Show<'_>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot create an event loop")?;
    runtime.block_on(watch(&Client::new(socket), every, color, show))
}

async fn watch(
    client: &Client,
    every: Duration,
    color: bool,
    show: Show<'_>,
) -> anyhow::Result<()> {
    let handlers = "cannot handle signals";
    let mut signals = Signals::listen().context(handlers)?;
    let mut output = Output { every, color, screen: None, is_first: true, reported: String::new() };
    let suspend = SignalKind::from_raw(Signal::TSTP.as_raw());
    let mut window = signal(SignalKind::window_change()).context(handlers)?;
    let (mut readings, mut trouble) = (Readings::default(), None);
    // The first answer comes before the screen is changed: an error stays visible.
    tokio::select! {
        biased;
        _ = signals.next() => return Ok(()),
        status = client.status() => readings.add(Instant::now(), status?),
    }
    let mut suspended = None;
    if io::stdout().is_terminal() {
        output.screen = Some(Screen::enter()?);
        suspended = Some(signal(suspend).context(handlers)?);
    }
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        if !output.draw(&readings, trouble.as_deref(), show)? {
            return Ok(());
        }
        let mut reading = pin!(async {
            ticks.tick().await;
            client.status().await
        });
        let answer = loop {
            let stop = async {
                match &mut suspended {
                    Some(suspended) => suspended.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = signals.next() => return Ok(()),
                _ = stop => output.suspend()?,
                _ = window.recv() => {}
                answer = &mut reading => break answer,
            }
            if output.screen.is_some() {
                output.draw(&readings, trouble.as_deref(), show)?;
            }
        };
        match answer {
            Ok(status) => {
                readings.add(Instant::now(), status);
                trouble = None;
            }
            Err(error) => trouble = Some(sentence(&error.into())),
        }
    }
}

/// Standard output.
struct Output {
    every: Duration,
    color: bool,
    screen: Option<Screen>,
    is_first: bool,
    /// The cause of missing answers that was printed last.
    reported: String,
}

impl Output {
    /// Shows the latest view. Returns false if the reader of the output is gone.
    fn draw(
        &mut self,
        readings: &Readings,
        trouble: Option<&str>,
        show: Show<'_>,
    ) -> anyhow::Result<bool> {
        let Some(view) = readings.view() else { return Ok(true) };
        let Some(screen) = &self.screen else { return self.print(&view, trouble, show) };
        let height = Screen::height();
        let mut page = Page::new(Size::of_output(None).width);
        if let Some(trouble) = trouble {
            page.wrapped(Style::Error, &format!("not up to date: {trouble}"));
        }
        let size = Size {
            height: Some(height.saturating_sub(page.height() + 1)),
            ..Size::of_output(None)
        };
        page.append(show(&view, size)?);
        page.limit(height.saturating_sub(1));
        let every = self.every.as_secs_f64();
        page.wrapped(Style::Faint, &format!("every {every} s; Ctrl-C ends"));
        screen.draw(&page, self.color)?;
        Ok(true)
    }

    /// Prints a view below the last one, or why there is no newer one, once for each cause.
    fn print(
        &mut self,
        view: &View<'_>,
        trouble: Option<&str>,
        show: Show<'_>,
    ) -> anyhow::Result<bool> {
        if let Some(trouble) = trouble {
            if self.reported != trouble {
                warn(trouble);
                trouble.clone_into(&mut self.reported);
            }
            return Ok(true);
        }
        self.reported.clear();
        let page = show(view, Size { width: WIDTH, height: Some(usize::MAX) })?;
        let between = if std::mem::take(&mut self.is_first) { "" } else { "\n" };
        let mut out = io::stdout().lock();
        let text = format!("{between}{}", page.text(self.color));
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            written => written.map(|()| true).context("cannot write to standard output"),
        }
    }

    fn suspend(&mut self) -> anyhow::Result<()> {
        match &mut self.screen {
            Some(screen) => screen.suspend().context("cannot restore the terminal"),
            None => Ok(()),
        }
    }
}
