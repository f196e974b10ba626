//! `forebay status`: an overview, one volume in depth, or everything; once, or again and again.

pub(crate) mod alerts;
pub(crate) mod details;
pub(crate) mod figures;
pub(crate) mod overview;
mod screen;
mod server;
mod site;
pub(crate) mod volumes;
mod watch;

use super::{connect, socket};
use crate::arguments::{ColorChoice, ShowArguments, StatusArguments};
use crate::report::{print_escaped, print_json, with_remedy};
use anyhow::anyhow;
use figures::View;
use forebay_api::{Alert, Severity, Status, VolumeStatus};
use forebay_terminal::page::{Page, WIDTH};
use rustix::termios::tcgetwinsize;
use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

/// The exit codes of `forebay status --check` if there are warnings, and if there are errors.
const DEGRADED_CODE: u8 = 3;
const FAILING_CODE: u8 = 4;

/// `forebay status`. The exit code is that of a success unless `--check` is given.
pub(crate) fn status(arguments: &StatusArguments) -> anyhow::Result<ExitCode> {
    let StatusArguments { name, all, site, check, watch, color, show } = arguments;
    let has_color = output_has_color(*color);
    if *site {
        return of_site(arguments, has_color);
    }
    let what = match (name, all) {
        (Some(name), _) => What::Volume(name),
        (None, true) => What::All,
        (None, false) => What::Overview,
    };
    if let Some(interval) = *watch {
        watch::run(&socket(&show.state)?, interval, has_color, &|view, size| {
            what.page(view, size)
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let status = connect(&show.state)?.status()?;
    if show.json {
        json(&status, name.as_deref())?;
    } else {
        let page = what.page(&View::since_start(&status), Size::of_output(None))?;
        print_escaped(&page.text(has_color))?;
    }
    let code = if *check { code_of(&status, name.as_deref())? } else { 0 };
    Ok(ExitCode::from(code))
}

/// `forebay status --site`.
fn of_site(arguments: &StatusArguments, has_color: bool) -> anyhow::Result<ExitCode> {
    let site = connect(&arguments.show.state)?.site()?;
    match arguments.show.json {
        true => print_json(&site)?,
        false => {
            let page = site::page(&site, arguments.all, Size::of_output(None).width);
            print_escaped(&page.text(has_color))?;
        }
    }
    let code = if arguments.check { code_for(&site::alerts_of(&site)) } else { 0 };
    Ok(ExitCode::from(code))
}

/// The exit code for what is wrong with the server, or with one volume.
fn code_of(status: &Status, name: Option<&str>) -> anyhow::Result<u8> {
    if let Some(name) = name {
        find(status, name)?;
    }
    let of_it = status.alerts.iter().filter(|it| name.is_none_or(|name| it.is_about(name)));
    Ok(code_for(of_it))
}

fn code_for<'a>(alerts: impl IntoIterator<Item = &'a Alert>) -> u8 {
    match alerts.into_iter().map(|alert| alert.severity).min() {
        None => 0,
        Some(Severity::Warning) => DEGRADED_CODE,
        Some(Severity::Error) => FAILING_CODE,
    }
}

fn json(status: &Status, name: Option<&str>) -> anyhow::Result<()> {
    match name {
        Some(name) => print_json(find(status, name)?),
        None => print_json(status),
    }
}

/// `forebay volume list`.
pub(crate) fn list(arguments: &ShowArguments) -> anyhow::Result<()> {
    let client = connect(&arguments.state)?;
    if arguments.json {
        return print_json(&client.volume_list()?);
    }
    let status = client.status()?;
    let mut page = Page::new(Size::of_output(None).width);
    overview::volume_list(&View::since_start(&status), &mut page);
    print_escaped(&page.text(false))
}

/// What is shown.
#[derive(Clone, Copy, Debug)]
enum What<'a> {
    Overview,
    All,
    Volume(&'a str),
}

impl What<'_> {
    /// The page. With a height, the overview lists fewer volumes. The page can still be higher.
    fn page(self, view: &View<'_>, size: Size) -> anyhow::Result<Page> {
        let mut page = Page::new(size.width);
        match self {
            Self::Overview => return Ok(overview::overview(view, size.width, size.height)),
            Self::All => {
                page = overview::overview(view, size.width, Some(usize::MAX));
                server::server(view.status, &mut page);
                for (volume, figures) in view.volumes() {
                    page.blank();
                    details::details(view, volume, figures, &mut page);
                }
            }
            Self::Volume(name) => {
                find(view.status, name)?;
                for (volume, figures) in view.volumes().filter(|(it, _)| it.name == name) {
                    details::details(view, volume, figures, &mut page);
                }
            }
        }
        Ok(page)
    }
}

/// The volume of this name.
fn find<'a>(status: &'a Status, name: &str) -> anyhow::Result<&'a VolumeStatus> {
    let found = status.volumes.iter().find(|volume| volume.name == name);
    found.ok_or_else(|| match status.missing.iter().find(|missing| missing.name == name) {
        Some(missing) => {
            // It says what to do.
            let why = missing.reason.as_deref().unwrap_or("its disk does not answer");
            anyhow!("volume '{name}' is not served: {why}")
        }
        None => {
            with_remedy(anyhow!("no volume '{name}'"), "see the names with `forebay volume list`")
        }
    })
}

/// The space for a page, in columns and lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    /// At least [`WIDTH`].
    width: usize,
    /// None if the page may be as high as it needs.
    height: Option<usize>,
}

impl Size {
    /// The width of the terminal that standard output is, and this height. Everything fits in
    /// [`WIDTH`] columns; more are used for names of volumes.
    fn of_output(height: Option<usize>) -> Self {
        let window = tcgetwinsize(io::stdout()).ok();
        let columns = window.map_or(WIDTH, |window| usize::from(window.ws_col));
        Self { width: columns.max(WIDTH), height }
    }
}

/// Whether standard output has colors.
pub(crate) fn output_has_color(choice: ColorChoice) -> bool {
    let variable = |name| std::env::var_os(name);
    let (no_color, term) = (variable("NO_COLOR"), variable("TERM"));
    has_color(choice, io::stdout().is_terminal(), no_color.as_deref(), term.as_deref())
}

/// Whether an output has colors.
fn has_color(
    choice: ColorChoice,
    is_terminal: bool,
    no_color: Option<&OsStr>,
    term: Option<&OsStr>,
) -> bool {
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => {
            is_terminal
                && no_color.is_none_or(OsStr::is_empty)
                && term.is_none_or(|term| term != "dumb")
        }
    }
}

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
